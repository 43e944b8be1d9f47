#!/usr/bin/env python3
"""Judges programs whose products do gelu, residuals and bias sums along (--epilogues) by those that call each."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: epilogues.py PP_COMPILE FOLDER [RUNTIME]
# On the CPU a pair is its two calls, and changes no bit, however the program runs. RUNTIME has the kernels of the
# device `cuda`, emulated, with epilogues as cuBLASLt's: gelu of sums that are not rounded yet. There, too, a schedule
# gives the same bits in every mode. Compared with the plain calls (PP_EPILOGUES=off), gradients differ by one rounding
# of an activation in each layer, and by one of each product before a residual: in bf16 2^-9 of an element. These are
# three of the dozen roundings of a layer, and the bound is that of all roundings together (test/gpu/gradients.py). In
# f32, where a product is not rounded before its sum, only the order of sums differs. Recomputation changes no bit: R
# makes a residual as F does (docs/derivatives.md, R2). In that test pieces have two layers, so that R makes both sums
# of one layer.
import os, sys
import harness
from gradients import difference

SIZES = dict(model="gpt2", layers=4, hidden=16, heads=2, ffn=32, vocab=256, context=8, sequence=8, microbatch=1,
             microbatches=4)
SCHEDULES = {"single": 1, "zb_h1": 4, "1f1b_recompute": 4}
MODES = ("threads", "streams/1", "streams/2", "staged/3")
TOLERANCE = {"bf16": 2e-2, "f32": 1e-5}


class Programs:
    def __init__(self, compiler, folder):
        self.compiler, self.folder, self.text = compiler, folder, harness.write_text(folder)

    def compile(self, schedule, precision, *options, **sizes):
        path = os.path.join(self.folder, "_".join([schedule, precision, *map(str, sizes.values()),
                                                   *(os.path.basename(option) for option in options)]))
        values = SIZES | dict(schedule=schedule, ranks=SCHEDULES.get(schedule, 4), precision=precision) | sizes
        return harness.compile_train(self.compiler, path, values, options=options)

    def run(self, program, mode, ranks, wish="on"):
        harness.ENVIRONMENT["PP_EPILOGUES"] = wish
        grads = program + ".grads"
        harness.call([*harness.launch(program, ranks, mode), "--data", self.text, "--steps", "2", "--grads", grads])
        with open(grads, "rb") as file:
            raw = file.read()
        return raw, {name: values for name, (_, values) in harness.read_safetensors(grads).items()}


def check_cpu(tally, programs):
    for precision in ("f32", "bf16"):
        for schedule, ranks in (("zb_h1", 4), ("1f1b_recompute", 4)):
            plain, _ = programs.run(programs.compile(schedule, precision), "threads", ranks)
            fused = programs.compile(schedule, precision, "--epilogues")
            same = [mode for mode in MODES if programs.run(fused, mode, ranks)[0] == plain]
            tally.check(same == list(MODES), f"{schedule} {precision}: the bits of the plain program in {same}")


def check_emulated(tally, programs, runtime):
    for precision in ("f32", "bf16"):
        options = ("--epilogues", f"--runtime={runtime}")
        _, expected = programs.run(programs.compile("single", precision, *options), "threads", 1, "off")
        for schedule, ranks in SCHEDULES.items():
            program = programs.compile(schedule, precision, *options)
            first, gradients = programs.run(program, "threads", ranks)
            modes = ("streams/1", "staged/2") if ranks > 1 and precision == "bf16" else ()
            tally.check(all(programs.run(program, mode, ranks)[0] == first for mode in modes),
                        f"{schedule} {precision}: one set of bits in {', '.join(('threads', *modes))}")
            worst, where = difference(gradients, expected)
            fused = worst > 0 or precision == "f32"  # whose sums of few rows are made in one order
            tally.check(fused and worst <= TOLERANCE[precision],
                        f"{schedule} {precision}: {worst:.1e} from plain calls, in {where}")


def check_recomputation(tally, programs, runtime):
    options = ("--epilogues", f"--runtime={runtime}")
    for model in ("gpt2", "llama"):
        saves, recomputes = (programs.compile(schedule, "bf16", *options, model=model, layers=8)
                             for schedule in ("1f1b", "1f1b_recompute"))
        expected, _ = programs.run(saves, "threads", 4)
        tally.check(programs.run(recomputes, "threads", 4)[0] == expected, f"{model}: recomputation changes no bit")
        tally.check(programs.run(saves, "threads", 4, "off")[0] != expected, f"{model}: plain calls round otherwise")


def main():
    compiler, folder, *runtime = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    tally, programs = harness.Tally(), Programs(compiler, folder)
    check_cpu(tally, programs)
    if runtime:
        check_emulated(tally, programs, *runtime)
        check_recomputation(tally, programs, *runtime)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
