#!/usr/bin/env python3
"""Runs one small case for each fault that docs/what-goes-wrong.md lists from public trackers, judged from outside."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: public_cases.py PP_COMPILE FOLDER [--without-mpi] [CASE..]
#        public_cases.py --list                     the names of all cases, as the page has them
# A case returns what it found. Most are judged by plain_model.py, which has no microbatches, ranks, devices or padding;
# these also say what the fault would give, so that a case in which the fault could not be seen fails.
import gc, os, subprocess, sys, time
import harness
import public_steps, public_runs  # for their cases
from public_lab import CASES, Lab


def main():
    words = sys.argv[1:]
    if words == ["--list"]:
        print("\n".join(CASES))
        return 0
    mpi = "--without-mpi" not in words
    compiler, folder, *chosen = [word for word in words if word != "--without-mpi"]
    gc.disable()  # the plain model's numbers are many and have no cycles
    lab, tally = Lab(compiler, folder, mpi), harness.Tally()
    for name, function in CASES.items():
        if not chosen or name in chosen:
            begin = time.process_time() + sum(os.times()[2:4])
            try:
                found, good = function(lab), True
            except (AssertionError, RuntimeError, subprocess.TimeoutExpired) as error:
                found, good = error, False
            took = time.process_time() + sum(os.times()[2:4]) - begin
            tally.check(good, f"{name}: {found}" + (f" [{took:.2f} s]" if "PP_TIMES" in os.environ else ""))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
