#!/usr/bin/env python3
"""Runs every packed schedule on one GPU, all ranks in one process, and compares gradients and losses with one rank."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: gradients.py PROGRAMS TEXT     (programs `gradients.<type>.<schedule>/program`, linked by bench/gpu/link.py)
# Tolerances, relative to the largest element of a tensor: f32 1e-4, for sums over 8 layers and 1024 tokens in another
# order than one rank's (each step rounds at 6e-8, and norms and softmax amplify it about a thousandfold at worst).
# In 16 bits as measured by bench/gradient_errors.py (CPU kernels, this model, nine schedules): where all units have the
# one rank's shapes, gradients differ by 2.3e-7 at most, by the order of sums in f32; where sequences are cut into
# slices, whose results are rounded apart, by 5.1e-3 in bf16 and 5.6e-4 in f16. The bounds are four times that, since a
# GPU may choose another algorithm for another shape; they are what all of rounding costs against f64 (largest 2.0e-2
# and 2.3e-3, median 6.1e-3 and 8.4e-4). A wrong or stale message changes gradients by a microbatch's share, an eighth.
import glob, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "run"))
import harness
from gradients import difference

# GPT-2's programs run with and without epilogues (PP_EPILOGUES): what differs is whether gelu sees u rounded.
TOLERANCE = {"f32": 1e-4, "bf16": 2e-2, "f16": 2.5e-3}
EMULATED = os.path.exists("build-of-rehearsal")
PLAIN = "without epilogues"
BY_CUDNN = ("1f1b", "zb_v", "helixpipe")  # the others by our own attention: cuDNN compiles its kernels at every start


def run(folder, text, *options):
    program, result = os.path.join(folder, "program"), os.path.join(folder, "result")
    harness.ENVIRONMENT["PP_EPILOGUES"] = "off" if PLAIN in options else "on"
    options = [option for option in options if option != PLAIN]
    harness.ENVIRONMENT["PP_CUDNN"] = "on" if folder.split(".")[-1] in BY_CUDNN else "off"
    if EMULATED:
        harness.ENVIRONMENT["PP_EMULATE"] = "1"
    harness.call([os.path.abspath(program), "--in-process", "--data", text, "--steps", "4", "--grads",
                  result + ".grads", "--log", result + ".jsonl", *options], timeout=60)
    gradients = {name: values for name, (_, values) in harness.read_safetensors(result + ".grads").items()}
    return gradients, [line["loss"] for line in harness.read_log(result + ".jsonl")]


def main():
    programs, text = sys.argv[1:]
    tally = harness.Tally()
    for reference in sorted(glob.glob(os.path.join(programs, "gradients.*.single"))):
        kind = os.path.basename(reference).split(".")[1]
        expected, expected_losses = run(reference, text)
        for folder in sorted(glob.glob(os.path.join(programs, f"gradients.{kind}.*"))):
            for options in ((), ("--no-graph",)) + (((PLAIN,),) if kind.endswith("gpt2") else ()):
                name = " ".join([kind, folder.split(".")[-1], *options])
                try:
                    gradients, losses = run(folder, text, *options)
                except Exception as error:  # the others are of interest all the same
                    tally.check(False, f"{name}: {str(error).strip().splitlines()[-1]}")
                    continue
                worst, where = difference(gradients, expected)
                drift = max(abs(a - b) / abs(b) for a, b in zip(losses, expected_losses))
                tolerance = TOLERANCE[kind.split("-")[0]]
                good = worst <= tolerance and drift <= 10 * tolerance
                tally.check(good, f"{name}: gradients {worst:.1e} losses {drift:.1e}"
                            + ("" if good else f" in {where}"))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
