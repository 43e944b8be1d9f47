"""Counts instructions at three sizes, each twice the one before: passes that were quadratic once are linear."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: linear.py PP_COMPILE FOLDER
# valgrind counts, so other work on the machine does not matter. The ratio is (cost of 4n - cost of 2n) / (cost of 2n -
# cost of n), so a constant part of the cost drops out. Linear work gives a ratio of 2, quadratic work 4.
import os, re, shutil, subprocess, sys

COMPILER, FOLDER = sys.argv[1:3]
EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "train.pipe")
SMALL = ["hidden=8", "heads=1", "ffn=16", "vocab=16"]
LARGEST = 2.4
# The parameter that doubles, its first value, the other options, and the form.
CASES = {
    "units": ("microbatches", 32, ["schedule=1f1b", "ranks=4", "layers=4", *SMALL], "--emit=stats"),
    "moves of weights": ("microbatches", 32, ["schedule=weipipe_interleave", "ranks=4", "layers=4", *SMALL],
                         "--emit=pipeline"),
    "runs of an mlp": ("mlp_chunks", 32,
                       ["schedule=zb_h1", "ranks=2", "layers=2", "microbatches=4", "sequence=1024", *SMALL],
                       "--emit=stats"),
    "places of many ranks": ("ranks", 512, ["schedule=data_parallel", "microbatches=2048", "layers=1", *SMALL],
                             "--emit=actions"),
}


def instructions(defines, form):
    words = [word for define in defines for word in ("-D", define)]
    counter = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    done = subprocess.run([*counter, COMPILER, EXAMPLE, *words, form, "-o", os.path.join(FOLDER, "out")],
                          capture_output=True, text=True)
    count = re.search(r"I +refs: +([\d,]+)", done.stderr)
    if done.returncode or not count:
        raise SystemExit(done.stderr[-2000:])
    return int(count[1].replace(",", ""))


def main():
    if not shutil.which("valgrind"):
        print("valgrind is not here")
        return 77
    os.makedirs(FOLDER, exist_ok=True)
    failed = 0
    for name, (doubles, first, others, form) in CASES.items():
        counts = [instructions([f"{doubles}={first * factor}", *others], form) for factor in (1, 2, 4)]
        ratio = (counts[2] - counts[1]) / (counts[1] - counts[0])
        bad = ratio > LARGEST
        failed += bad
        print(f"{name}: {counts}, ratio {ratio:.2f}" + (f", expected at most {LARGEST}" if bad else ""), flush=True)
    print(f"{len(CASES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
