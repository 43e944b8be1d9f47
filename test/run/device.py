#!/usr/bin/env python3
"""The device `cuda` where there may be no GPU, and the emulated one: what it refuses, and what a missing wait does."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: device.py PP_COMPILE FOLDER
import os, sys
import harness
from gradients import SMALL

SIZES = SMALL | dict(model="llama", precision="f64", schedule="1f1b", ranks=4, microbatches=6)


def check_cuda(tally, compiler, folder, text):
    """Linked for CUDA where the toolkit is; without a GPU the program says so and ends with the status of PP_IO."""
    path = os.path.join(folder, "cuda")
    defines = [word for name, value in SIZES.items() for word in ("-D", f"{name}={value}")]
    done = harness.call([compiler, harness.TRAIN, *defines, "--target=cuda", "-o", path], expect=None)
    if "this pp-compile was built without CUDA" in done.stderr:
        tally.check(done.returncode == 1 and not os.path.exists(path), "a compiler without CUDA says so")
        return
    tally.check(done.returncode == 0, "--target=cuda links" + done.stderr)
    info = harness.call([path, "--info"])
    tally.check("schedule    one_f_one_b on 4 ranks" in info.stdout, "--info needs no GPU")
    refused = harness.call([path, "--in-process", "--data", text, "--emulate", "1"], expect=1)
    tally.check("`--emulate` is for programs compiled with --target=cpu" in refused.stderr, "a GPU is not emulated")
    ran = harness.call([path, "--in-process", "--data", text, "--steps", "2"], expect=None)
    says = ("this program needs an NVIDIA driver", "this machine has no NVIDIA GPU")
    without = ran.returncode == 2 and len(ran.stderr.splitlines()) == 1 and any(part in ran.stderr for part in says)
    tally.check(without or (ran.returncode == 0 and "step 2/2" in ran.stdout), "it trains, or says in a line that it cannot")


def check_waits(tally, compiler, folder, text):
    """Every wait of a step left out in turn: some order of the others must bring another gradient."""
    program = harness.compile_train(compiler, os.path.join(folder, "emulated"), SIZES)

    def gradients(emulate):
        path = os.path.join(folder, "grads")
        harness.call([program, "--in-process", "--data", text, "--steps", "1", "--emulate", emulate, "--grads", path])
        with open(path, "rb") as file:
            return file.read()

    right = gradients("0")
    tally.check(all(gradients(str(seed)) == right for seed in range(1, 5)), "five orders, the same bits")
    seen = [any(gradients(f"{seed}:{wait}") != right for seed in range(4)) for wait in range(0, 96, 8)]
    # The others' order is implied by further waits, or needs a rarer order of the streams.
    tally.check(sum(seen) >= len(seen) / 2, f"of {len(seen)} missing waits {sum(seen)} are seen")


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    tally, text = harness.Tally(), harness.write_text(folder)
    check_cuda(tally, compiler, folder, text)
    check_waits(tally, compiler, folder, text)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
