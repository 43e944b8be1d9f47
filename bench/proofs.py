#!/usr/bin/env python3
"""Prints what each proof costs beside the rest of a compilation, and the memory of the whole."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/proofs.py [-c PP_COMPILE] [--million] [-D name=value]..
# By default the size of compile_time.py, 65536 units; --million: 8192 microbatches, 1048576 units, which takes minutes.
import argparse, json, os, subprocess, sys, tempfile, time
from compile_time import ROOT, SIZES


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--million", action="store_true", help="1048576 units")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="name=value")
    arguments = parser.parse_args()
    sizes = SIZES | (dict(microbatches=8192) if arguments.million else {})
    sizes |= dict(define.split("=", 1) for define in arguments.defines)
    defines = [word for name, value in sizes.items() for word in ("-D", f"{name}={value}")]
    with tempfile.TemporaryFile("w+") as report, tempfile.TemporaryDirectory() as folder:
        command = [arguments.compiler, os.path.join(ROOT, "examples", "train.pipe"), *defines, "--prove=json",
                   "--rank=0", "--emit=obj", "-o", os.path.join(folder, "out")]
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=report)
        _, status, usage = os.wait4(process.pid, 0)
        total = time.monotonic() - start
        if status:
            raise SystemExit(f"{' '.join(command)}: status {os.waitstatus_to_exitcode(status)}")
        report.seek(0)
        proof = json.load(report)
    print(" ".join(f"{name}={value}" for name, value in sizes.items()))
    print(", ".join(f"{name} {count}" for name, count in proof["subject"].items()))
    print("| | seconds | share |\n|---|---:|---:|")
    for name, seconds in [*((proved["name"], proved["seconds"]) for proved in proof["proofs"] if "seconds" in proved),
                          ("all proofs", proof["seconds"]["proofs"]), ("all passes", proof["seconds"]["passes"]),
                          ("`--rank=0 --emit=obj`", total)]:
        print(f"| {name} | {seconds:.2f} | {seconds / total:.1%} |")
    print(f"\n{usage.ru_utime + usage.ru_stime:.1f} processor seconds, peak {usage.ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    sys.exit(main())
