#!/usr/bin/env python3
"""Judges scans and convolutions on GPUs where there is none: programs over an emulated device against CPUs."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: scans_gpu.py PP_COMPILE FOLDER [--every 1]     (PP_TEST_RUNTIME: over FakeCuda.cpp)
# Models with a delta rule, Mamba-2, decays of columns beside latent attention, and short convolutions; sequences of
# two chunks and a part of one, rows of several documents. The programs are those for `cuda` to the last call. In f64
# losses and norms of three steps (one call by call, one captured as a graph, one that launches it) and the gradients of
# the first are those of one rank on the CPU to 1e-11. `--every 1`: in all layouts; in f32 and bf16 the mean distance
# from the gradients of f64 is at most 3 times that of the CPU's program; and tiny folders of four families have the
# losses and gradients of transformers (Inputs/families.json).
import json, os, random, sys
import families, harness
from documents import CHANNELS, write_dataset
from formulas import distance
from formulas_gpu import ON_CPU, mean_error

TOLERANCE = 1e-11
SIZES = dict(layers=4, hidden=24, heads=4, kv_heads=2, ffn=14, vocab=256, sequence=72, microbatches=2, microbatch=1,
             precision="f64")
MODELS = {"delta": {"model": "delta", "balance": 0}, "mamba": {"model": "mamba", "model.groups": 2},
          "channels": CHANNELS | {"model.scan_heads": 4}, "lfm2": {"model": "lfm2", "model.shorts": "[1, 0, 1, 1]"}}
LAYOUTS = (dict(schedule="terapipe", ranks=2, slices=3), dict(schedule="single") | {"mesh.context": 2},
           dict(schedule="zb_v", ranks=2), dict(schedule="slimpipe", ranks=2, slices=4),
           dict(schedule="1f1b_recompute", ranks=2), dict(schedule="weipipe_interleave", ranks=2),
           dict(schedule="single") | {"mesh.tensor": 2},
           dict(schedule="single") | {"mesh.data": 2, "mesh.zero": 2, "microbatches": 1})
WHOLE = {"channels": "mesh.pre.tensor"}  # the part that two devices do not cut; of the others qkv
FAMILIES = ("qwen3_next", "mamba2", "kimi_linear", "lfm2")


class Run:
    def __init__(self, its, name):
        self.its, self.name = its, name
        draw = random.Random(name)
        self.text = "u8:" + os.path.join(its.folder, "text")
        with open(self.text[3:], "wb") as file:
            file.write(draw.randbytes(8192))
        rows = [[draw.randrange(97, 123) for _ in range(draw.choice((1, 2, 20, 31, 32, 33, 40, 70)))]
                for _ in range(64)]
        self.documents = write_dataset(its.folder, "documents.safetensors", rows)

    def steps(self, layout, on_gpu, documents, *more, count=3):
        """Gradients of the first step; losses and norms of all."""
        path = os.path.join(self.its.folder, f"{self.name}.{'gpu' if on_gpu else 'cpu'}")
        options = ["--target=cuda"] if on_gpu else [ON_CPU]
        harness.compile_train(self.its.compiler, path, SIZES | MODELS[self.name] | layout,
                              options=options + documents * ["-D", "data.documents=true"])
        grads, log = path + ".grads", path + ".log"
        harness.call([path, "--in-process", "--data", self.documents if documents else self.text, "--steps", str(count),
                      "--grads", grads, "--log", log, *more])
        lines = harness.read_log(log)
        return harness.read_safetensors(grads), [line[key] for line in lines for key in ("loss", "grad_norm")]

    def judge(self, tally, layouts, documents):
        wanted, numbers = self.steps(dict(schedule="single"), False, documents)
        for layout in layouts:
            if "mesh.tensor" in layout:
                layout = layout | {WHOLE.get(self.name, "mesh.qkv.tensor"): 1}
            grads, ours = self.steps(layout, True, documents)
            name, error = distance(grads, wanted)
            drift = harness.drift(ours, numbers)
            said = " ".join(f"{key} {value}" for key, value in layout.items()) + documents * " documents"
            tally.check(error <= TOLERANCE and drift <= TOLERANCE,
                        f"{self.name:8} {said:44} gradients {error:.1e} {name} losses and norms {drift:.1e}")

    def judge_rounding(self, tally, precision):
        base, single = os.path.join(self.its.folder, "base.safetensors"), dict(schedule="single")
        shapes, _ = self.steps(single, False, True, count=1)
        draw = random.Random(7)
        harness.write_safetensors(base, {name: (shape, [round(draw.gauss(0, 0.3) * 64) / 64 for _ in values])
                                         for name, (shape, values) in shapes.items()})
        exact, _ = self.steps(single, False, True, "--load", base, count=1)
        errors = [mean_error(self.steps(single | dict(precision=precision), on_gpu, True, "--load", base, count=1)[0],
                             exact) for on_gpu in (False, True)]
        tally.check(0 < errors[1] <= 3 * errors[0], f"{self.name:8} {precision}: mean distance from f64 "
                    f"{errors[1]:.2e}, of the CPU's {errors[0]:.2e}")


def main():
    its = harness.draws(every=0)
    tally = harness.Tally()
    for number, name in enumerate(MODELS):
        run = Run(its, name)
        if not its.every:
            run.judge(tally, LAYOUTS[number:number + 1], number % 3 == 0)
            continue
        for documents in (False, True):
            run.judge(tally, [dict(schedule="single"), *LAYOUTS], documents)
        for precision in ("f32", "bf16"):
            run.judge_rounding(tally, precision)
    if its.every:
        judge = families.Judge(its.compiler, its.folder, ("--target=cuda",))
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs", "families.json")) as file:
            expected = json.load(file)
        for name in FAMILIES:
            judge.judge(tally, name, "zb_v.pipe:zb_v", expected[name])
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
