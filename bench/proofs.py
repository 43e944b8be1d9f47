#!/usr/bin/env python3
"""Prints what each proof costs beside the rest of a compilation of earnest size, or what each form of output costs."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/proofs.py [-c PP_COMPILE] [--forms | --million] [-D name=value]..
# 1F1B, by default on 64 ranks with 512 microbatches and 64 layers: 65536 units; --million: 8192 microbatches, 1048576
# units, which takes minutes. The tensors are small; their size costs nothing here.
import argparse, json, os, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZES = dict(schedule="1f1b", ranks=64, microbatches=512, layers=64, hidden=128, heads=4, ffn=344)
FORMS = (["--emit=actions"], ["--emit=pipeline"], ["--emit=stats"], ["--rank=0", "--emit=obj"])


def measure(command, **more):
    """Wall seconds, processor seconds and peak MB of one process (its own peak, which rusage of all children hides)."""
    start = time.monotonic()
    process = subprocess.Popen(command, **more)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: status {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def forms(command, folder):
    print("| form | seconds | processor seconds | peak MB |\n|---|---:|---:|---:|")
    for form in FORMS:
        seconds, processor, memory = measure([*command, *form, "-o", os.path.join(folder, "out")])
        print(f"| `{' '.join(form)}` | {seconds:.1f} | {processor:.1f} | {memory:.0f} |", flush=True)


def proofs(command, folder):
    with tempfile.TemporaryFile("w+") as report:
        total, processor, memory = measure([*command, "--prove=json", "--rank=0", "--emit=obj", "-o",
                                            os.path.join(folder, "out")], stdout=report)
        report.seek(0)
        proof = json.JSONDecoder().raw_decode(report.read())[0]  # of the step that trains; the other follows
    print(", ".join(f"{name} {count}" for name, count in proof["subject"].items()))
    print("| | seconds | share |\n|---|---:|---:|")
    for name, seconds in [*((proved["name"], proved["seconds"]) for proved in proof["proofs"] if "seconds" in proved),
                          ("all proofs", proof["seconds"]["proofs"]), ("all passes", proof["seconds"]["passes"]),
                          ("`--rank=0 --emit=obj`", total)]:
        print(f"| {name} | {seconds:.2f} | {seconds / total:.1%} |")
    print(f"\n{processor:.1f} processor seconds, peak {memory:.0f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--forms", action="store_true", help="what each form of output costs")
    parser.add_argument("--million", action="store_true", help="1048576 units")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="name=value")
    arguments = parser.parse_args()
    sizes = SIZES | (dict(microbatches=8192) if arguments.million else {})
    sizes |= dict(define.split("=", 1) for define in arguments.defines)
    print(" ".join(f"{name}={value}" for name, value in sizes.items()))
    command = [arguments.compiler, os.path.join(ROOT, "examples", "train.pipe"),
               *(word for name, value in sizes.items() for word in ("-D", f"{name}={value}"))]
    with tempfile.TemporaryDirectory() as folder:
        (forms if arguments.forms else proofs)(command, folder)


if __name__ == "__main__":
    sys.exit(main())
