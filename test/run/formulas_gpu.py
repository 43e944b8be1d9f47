#!/usr/bin/env python3
"""Judges formulas on GPUs where there is none: whole programs over an emulated device against programs for CPUs."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: formulas_gpu.py PP_COMPILE FOLDER [--groups N] [--seed N] [--each N]     (PP_TEST_RUNTIME: over FakeCuda.cpp)
# The programs are those for `cuda` to the last call: the PTX that they hold is interpreted. Models and random formulas
# are those of formulas.py, on heads of 1 to 37 columns. In f64 gradients and losses of three steps (one call by call,
# one captured as a graph, one that launches it) are those of one rank on the CPU to 1e-12. In f32 and bf16 both start
# with the same weights, which have 8 bits: the mean distance from the gradients of f64 is at most 3 times that of the
# CPU's program.
import os, random, sys
import formulas, harness
from formulas import COLUMNS, HEADS, MODELS, SIZES, Formulas, distance, write_random

TOLERANCE = 1e-12
LAYOUTS = (dict(schedule="single"), dict(schedule="zb_h1", ranks=2), dict(schedule="1f1b_recompute", ranks=2),
           dict(schedule="slimpipe", ranks=2, slices=2), dict(schedule="single") | {"mesh.tensor": 2},
           dict(schedule="single") | {"mesh.context": 2})
ON_CPU = "--runtime=" + os.path.join(os.path.dirname(os.environ["PP_TEST_RUNTIME"]), "libpp-runtime.a")


class Unread:
    """Stands for torch, where it is missing: of a random formula the text alone is read here."""

    def __getattr__(self, _):
        return self


formulas.torch = formulas.torch or Unread()


def mean_error(ours, exact):
    """The mean over all tensors of the mean distance, relative to the tensor's mean size."""
    errors = []
    for name, (_, values) in exact.items():
        size = sum(map(abs, values)) or 1
        errors.append(sum(abs(a - b) for a, b in zip(ours[name][1], values)) / size)
    return sum(errors) / len(errors)


class Run:
    def __init__(self, compiler, folder, train, model, columns):
        self.compiler, self.folder, self.train, self.model = compiler, folder, train, model
        self.sizes = SIZES | dict(model=model, hidden=HEADS * columns, ffn=14, microbatches=2)
        self.text = "u8:" + os.path.join(folder, "data")
        with open(self.text[3:], "wb") as file:
            file.write(random.Random(1).randbytes(8192))

    def step(self, layout, on_gpu, *more, steps=3):
        """Gradients of the first step, and the losses."""
        path = os.path.join(self.folder, f"{self.model}.{'gpu' if on_gpu else 'cpu'}")
        harness.compile_train(self.compiler, path, self.sizes | layout, self.train,
                              ["--target=cuda"] if on_gpu else [ON_CPU])
        grads, log = path + ".grads", path + ".log"
        harness.call([path, "--in-process", "--data", self.text, "--steps", str(steps), "--grads", grads, "--log", log,
                      *more])
        return harness.read_safetensors(grads), [line["loss"] for line in harness.read_log(log)]

    def judge_f64(self, tally, layouts):
        wanted, losses = self.step(layouts[0], False)
        for layout in layouts:
            grads, ours = self.step(layout, True)
            name, error = distance(grads, wanted)
            drift = harness.drift(ours, losses)
            said = " ".join(f"{key} {value}" for key, value in layout.items())
            tally.check(error <= TOLERANCE and drift <= TOLERANCE,
                        f"{self.model:8} {said:36} gradients {error:.1e} {name} losses {drift:.1e}")

    def judge_rounding(self, tally, precision):
        base = os.path.join(self.folder, "base.safetensors")
        shapes, _ = self.step(LAYOUTS[0], False, steps=1)
        draw = random.Random(7)
        harness.write_safetensors(base, {name: (shape, [round(draw.gauss(0, 0.3) * 64) / 64 for _ in values])
                                         for name, (shape, values) in shapes.items()})
        exact, _ = self.step(LAYOUTS[0], False, "--load", base, steps=1)
        errors = [mean_error(self.step(LAYOUTS[0] | dict(precision=precision), on_gpu, "--load", base, steps=1)[0],
                             exact) for on_gpu in (False, True)]
        tally.check(0 < errors[1] <= 3 * errors[0], f"{self.model:8} {precision}: mean distance from f64 "
                    f"{errors[1]:.2e}, of the CPU's {errors[0]:.2e}")


def main():
    its = harness.draws(groups=1, seed=0, each=10)
    tally = harness.Tally()
    train = harness.add_models(its.folder, MODELS)
    every = its.groups > 1
    for number, model in enumerate(("relu2", "gated", "ngpt")):
        run = Run(its.compiler, its.folder, train, model, COLUMNS[0])
        run.judge_f64(tally, [each for k, each in enumerate(LAYOUTS) if every or k == 0 or k % 3 == number])
        for precision in ("f32", "bf16"):
            run.judge_rounding(tally, precision)
    for seed in range(its.seed, its.seed + its.groups):
        columns = COLUMNS[seed % len(COLUMNS)]
        draw = random.Random(seed)
        drawn = [Formulas(draw, columns).drawn(i) for i in range(its.each)]
        run = Run(its.compiler, its.folder, harness.add_models(its.folder, write_random(its.folder, drawn)), "drawn",
                  columns)
        run.judge_f64(tally, LAYOUTS if every else LAYOUTS[:2])
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
