#!/usr/bin/env python3
"""Judges losses of tokens on GPUs where there is none: programs over an emulated device against CPUs and torch."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: losses_gpu.py PP_COMPILE FOLDER [--every 1]     (PP_TEST_RUNTIME: over FakeCuda.cpp)
# The programs are those for `cuda` to the last call. Models, data and what torch computes are those of losses.py. In
# f64 losses, reports and gradients of three steps (one call by call, one captured as a graph, one that launches it)
# are those of one rank on the CPU to 1e-12, and those of the first step are torch's to 1e-11. In f32 and bf16 the
# mean distance from the gradients of f64 is at most 3 times that of the CPU's program. `--logprobs` writes what it
# writes on the CPU. `--every 1`: all losses, in all layouts. Without torch the script ends with 77.
import os, random, sys
import harness, losses
from formulas import LAYOUTS, SIZES, distance
from formulas_gpu import ON_CPU, TOLERANCE, mean_error
from losses import CASES, OVER_DOCUMENTS, OVER_GROUPS, REPORTS, torch

DOCUMENTS = {"data.documents": "true"}
WHOLE = [each for each in LAYOUTS if "slices" not in each]  # of documents
SHARDS = [dict(schedule="1f1b_vocabulary", ranks=2), dict(schedule="single") | {"mesh.tensor": 2, "mesh.context": 2}]
QUICK = ("capped", "policy", "distil", "both", "sums", "each", "pairs")


def far(ours, theirs):
    """How far two losses or reports are apart; small ones absolutely."""
    return harness.apart([ours], [theirs]) / max(abs(theirs), 1e-3)


class Run:
    def __init__(self, compiler, folder, train, name, data, more):
        self.compiler, self.folder, self.train, self.name, self.data = compiler, folder, train, name, data
        self.sizes, self.reports = SIZES | more | {"model": name}, REPORTS.get(name, {})
        self.base = os.path.join(folder, "base.safetensors")

    def call(self, layout, on_gpu, *more):
        path = os.path.join(self.folder, f"{self.name}.{'gpu' if on_gpu else 'cpu'}")
        harness.compile_train(self.compiler, path, self.sizes | layout, self.train,
                              ["--target=cuda"] if on_gpu else [ON_CPU])
        harness.call([path, "--in-process", "--data", self.data, *more])

    def steps(self, layout, on_gpu, count, *more):
        """Gradients of the first step, and what each step logs."""
        grads, log = os.path.join(self.folder, "grads"), os.path.join(self.folder, "log")
        self.call(layout, on_gpu, "--steps", str(count), "--grads", grads, "--log", log, *more)
        return harness.read_safetensors(grads), harness.read_log(log)

    def draw_weights(self):
        """Weights of 8 bits, for bf16 starts with the same ones."""
        draw, shapes = random.Random(self.name), self.steps(LAYOUTS[0], False, 1)[0]
        weights = {name: (shape, [round(draw.gauss(0, 0.3) * 64) / 64 for _ in values])
                   for name, (shape, values) in shapes.items()}
        harness.write_safetensors(self.base, weights)
        return weights

    def judge(self, tally, layouts, of, documents):
        weights = self.draw_weights()
        self.wanted, lines = self.steps(LAYOUTS[0], False, 3, "--load", self.base)
        by_torch = None
        if torch:
            path = os.path.join(self.folder, "batches")
            self.call(LAYOUTS[0], False, "--steps", "1", "--batches", path)
            by_torch = losses.reference(weights, harness.read_safetensors(path), of, documents,
                                        self.sizes.get("data.group", 1), self.reports)
        for layout in layouts:
            grads, ours = self.steps(layout, True, 3, "--load", self.base)
            error = distance(grads, self.wanted)[1]
            drift = max(far(mine[name], wanted[name]) for mine, wanted in zip(ours, lines, strict=True)
                        for name in ("loss", *self.reports))
            right = error <= TOLERANCE and drift <= TOLERANCE
            said = " ".join(f"{key} {value}" for key, value in layout.items())
            said = f"{self.name:8} {said:42} gradients {error:.1e} loss and {len(self.reports)} reports {drift:.1e}"
            if by_torch:
                error = distance(grads, by_torch[0])[1]
                drift = max(far(ours[0][name], value) for name, value in (("loss", by_torch[1]), *by_torch[2].items()))
                right &= error <= losses.TOLERANCE and drift <= losses.TOLERANCE
                said += f", from torch's {error:.1e} {drift:.1e}"
            tally.check(right, said)

    def judge_logprobs(self, tally, layout):
        """Those of a step of `--eval`, whose graph is there before."""
        path, written = os.path.join(self.folder, "logprobs"), []
        for where in (LAYOUTS[0], False), (layout, True):
            self.call(*where, "--steps", "1", "--lr", "0", "--load", self.base, "--eval", self.data, "--eval-first",
                      "--logprobs", path)
            written.append(list(harness.read_safetensors(path)["logprobs"][1]))
        tally.check(any(written[0]) and harness.apart(*written) < 1e-6, f"{self.name:8} --logprobs of "
                    f"{len(written[0])} places, apart {harness.apart(*written):.1e}")

    def judge_rounding(self, tally, precision):
        errors = [mean_error(self.steps(LAYOUTS[0] | dict(precision=precision), on_gpu, 1, "--load", self.base)[0],
                             self.wanted) for on_gpu in (False, True)]
        tally.check(0 < errors[1] <= 3 * errors[0], f"{self.name:8} {precision}: mean distance from f64 "
                    f"{errors[1]:.2e}, of the CPU's {errors[0]:.2e}")


def main():
    its = harness.draws(every=0)
    tally, train = harness.Tally(), losses.write_models(its.folder)
    text, data = losses.write_data(its.folder)
    columns = data + ".columns.safetensors"
    cases = [(name, {}, of) for name, _, of in CASES] + [(name, DOCUMENTS, of) for name, _, of in OVER_DOCUMENTS]
    cases += [(name, more, of) for name, more, _, of in OVER_GROUPS]
    for number, (name, more, of) in enumerate(each for each in cases if its.every or each[0] in QUICK):
        documents = None
        if "data.group" in more:
            group, sequence = more["data.group"], more["sequence"]
            columns = losses.write_data(its.folder, most=sequence // group, count=group)[1] + ".columns.safetensors"
            documents = losses.pack_groups(list(harness.read_safetensors(columns)["documents"][1]), group, sequence,
                                           SIZES["microbatches"] * SIZES["microbatch"])
        has_columns = "data.group" in more or name in ("policy", "distil", "weighted", "both", "ratios")
        layouts = WHOLE if more else LAYOUTS
        if not its.every:
            layouts = (layouts[0], layouts[1 + number % (len(layouts) - 1)], SHARDS[number % 2])
        else:
            layouts = [*layouts, *SHARDS]
        path = columns if has_columns else data + ".safetensors" if more else text
        run = Run(its.compiler, its.folder, train, name, path, DOCUMENTS | more if has_columns else more)
        run.judge(tally, layouts, of, documents)
        if name != "distil":
            run.judge_logprobs(tally, layouts[-1])
        for precision in ("f32", "bf16") if its.every or name in ("policy", "distil") else ():
            run.judge_rounding(tally, precision)
    return tally.close() or (0 if torch else 77)


if __name__ == "__main__":
    sys.exit(main())
