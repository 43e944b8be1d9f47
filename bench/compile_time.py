#!/usr/bin/env python3
"""Prints how long pp-compile takes, and how much memory, for 1F1B of a size that is used in earnest."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/compile_time.py [-c PP_COMPILE] [-D name=value]..
# By default 64 ranks, 512 microbatches and 64 layers: 65536 units. The tensors are small; their size costs nothing
# here.
import argparse, os, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZES = dict(schedule="1f1b", ranks=64, microbatches=512, layers=64, hidden=128, heads=4, ffn=344)
FORMS = (["--emit=actions"], ["--emit=pipeline"], ["--emit=stats"], ["--rank=0", "--emit=obj"])


def measure(command):
    """Wall seconds, processor seconds and peak MB of one process (its own peak, which rusage of all children hides)."""
    start = time.monotonic()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: status {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="name=value")
    arguments = parser.parse_args()
    sizes = SIZES | dict(define.split("=", 1) for define in arguments.defines)
    defines = [word for name, value in sizes.items() for word in ("-D", f"{name}={value}")]
    print(" ".join(f"{name}={value}" for name, value in sizes.items()))
    print("| form | seconds | processor seconds | peak MB |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS:
            seconds, processor, memory = measure([arguments.compiler, os.path.join(ROOT, "examples", "train.pipe"),
                                                  *defines, *form, "-o", os.path.join(folder, "out")])
            print(f"| `{' '.join(form)}` | {seconds:.1f} | {processor:.1f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
