#!/usr/bin/env python3
"""Prints what each proof costs beside the rest of a compilation, and the memory of the whole."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/proofs.py [-c PP_COMPILE] [--million] [-D name=value]..
# By default the size of compile_time.py, 65536 units; --million: 8192 microbatches, 1048576 units, which takes minutes.
import argparse, os, re, subprocess, sys, tempfile, time
from compile_time import ROOT, SIZES

LINE = re.compile(r"(\d+\.\d+) \( *\d+\.\d+%\)  (?:\s*)(\w+)$")


def passes_of(report):
    """Seconds of each pass, in order, as MLIR's timing prints them (the last column of numbers is wall time)."""
    found = [match for match in map(LINE.search, report.splitlines()) if match]
    return {match[2]: float(match[1]) for match in found if match[2] not in ("root", "Total", "Rest")}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--million", action="store_true", help="1048576 units")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="name=value")
    arguments = parser.parse_args()
    sizes = SIZES | (dict(microbatches=8192) if arguments.million else {})
    sizes |= dict(define.split("=", 1) for define in arguments.defines)
    defines = [word for name, value in sizes.items() for word in ("-D", f"{name}={value}")]
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.compiler, os.path.join(ROOT, "examples", "train.pipe"), *defines, "--timing",
                   "--rank=0", "--emit=obj", "-o", os.path.join(folder, "out")]
        start = time.monotonic()
        with open(os.path.join(folder, "report"), "w+") as report:
            process = subprocess.Popen(command, stderr=report)
            _, status, usage = os.wait4(process.pid, 0)
            total = time.monotonic() - start
            report.seek(0)
            text = report.read()
    if status:
        raise SystemExit(f"{text}{' '.join(command)}: status {os.waitstatus_to_exitcode(status)}")
    seconds = passes_of(text)
    proofs = {name: value for name, value in seconds.items() if name.startswith(("Prove", "Verify"))}
    print(" ".join(f"{name}={value}" for name, value in sizes.items()))
    print("| pass | seconds | share |\n|---|---:|---:|")
    for name, value in seconds.items():
        print(f"| {name} | {value:.2f} | {value / total:.0%} |")
    print(f"| all proofs (Prove.., Verify..) | {sum(proofs.values()):.2f} | {sum(proofs.values()) / total:.0%} |")
    print(f"| the whole of `--rank=0 --emit=obj` | {total:.2f} | |")
    print(f"\n{usage.ru_utime + usage.ru_stime:.1f} processor seconds, peak {usage.ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    sys.exit(main())
