#!/usr/bin/env python3
"""Bounds the memory in which pp-compile simulates a step of 65536 units, and writes the object of a rank of it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: compile_bytes.py PP_COMPILE FOLDER
# The size of `bench/proofs.py --forms`. The simulation needed 360 MB on 22 November 2026, 509 MB when it kept every
# message of its second step, 300 MB since it keeps those that are under way, and 269 MB with smaller tables in the
# proofs. The object, with the program for evaluation in it, needed 330 MB and needs 295 MB.
import json, os, subprocess, sys
from harness import TRAIN, Tally

MOST = {"--emit=stats": 295, "--emit=obj": 325}  # MB as bench/proofs.py counts them
SIZES = dict(schedule="1f1b", ranks=64, microbatches=512, layers=64, hidden=128, heads=4, ffn=344)


def main():
    compiler, folder = sys.argv[1:3]
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "written")
    defines = [word for name, value in SIZES.items() for word in ("-D", f"{name}={value}")]
    tally = Tally()
    for form, most in MOST.items():
        rank = ["--rank=0"] if form == "--emit=obj" else []
        process = subprocess.Popen([compiler, TRAIN, *defines, form, *rank, "-o", path])
        _, status, usage = os.wait4(process.pid, 0)
        tally.check(status == 0, f"{form}: status {status}")
        peak = usage.ru_maxrss / 1e3
        tally.check(peak <= most, f"{form}: {peak:.0f} MB, expected at most {most}")
        if form == "--emit=stats":
            with open(path) as file:
                found = json.load(file)
            # 1F1B with F = 1 and B = 2: the last rank's first F waits p - 1, its last B is followed by p - 1 others.
            tally.check(found["makespan"] == 3 * (512 + 64 - 1), f"makespan {found['makespan']}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
