#!/usr/bin/env python3
"""The memory of a process, less that of one with tiny sizes: the plan's arena and scratch, and little more."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: process_bytes.py PP_COMPILE FOLDER
# bench/scratch.py measures it. Weights of which a whole shard was made beside the arena took 22 MB more.
import os, subprocess, sys
import harness

SCRATCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "scratch.py")
MOST = 10  # MB: a library may have a few buffers more when a program is large


def main():
    tally = harness.Tally()
    table = subprocess.run([sys.executable, SCRATCH, *sys.argv[1:3], "--quick", "--isa", "best", "--precision", "f32"],
                           env=harness.ENVIRONMENT, capture_output=True, text=True)
    row = [cell.strip() for cell in table.stdout.strip().splitlines()[-1].split("|")[1:-1]] if table.stdout else []
    tally.check(table.returncode == 0 and row[:2] == ["fsdp", "f32"] and float(row[-1]) <= MOST,
                f"fsdp in f32: {row[-1:]} MB over the plan {table.stderr}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
