#!/usr/bin/env python3
"""Prints a table of schedules: bubble, peaks and traffic, as `pp-compile --emit=stats` says for examples/train.pipe."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/table.py [-c PP_COMPILE] [-D name=value].. SCHEDULE..
# Bubble: the share of the makespan that the ranks idle on average, in unit time (F 1, B 2, I 1, W 1; messages 0).
# The columns from `stashes` on are those of the rank with the largest value.
import argparse, json, os, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COLUMNS = ("schedule", "bubble", "makespan", "stashes", "peak MB", "sent MB", "messages")


def row(compiler, schedule, defines):
    command = [compiler, os.path.join(ROOT, "examples", "train.pipe"), "--emit=stats", "-D", f"schedule={schedule}"]
    for define in defines:
        command += ["-D", define]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        error = next(line for line in done.stderr.splitlines() if " error: " in line)
        raise SystemExit(f"{schedule}: {error.split(' error: ')[1]}")
    stats = json.loads(done.stdout)
    most = lambda value: max(map(value, stats["per_rank"]))
    return (f"`{schedule}`", f"{stats['bubble']:.3f}", f"{stats['makespan']:g}",
            str(most(lambda rank: rank["peak_values"]["stash"])),
            f"{most(lambda rank: rank['peak_bytes']['total']) / 1e6:.1f}",
            f"{most(lambda rank: rank['bytes_sent']['total']) / 1e6:.1f}",
            str(most(lambda rank: rank["messages_sent"])))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="name=value")
    parser.add_argument("schedules", nargs="+", metavar="SCHEDULE")
    arguments = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n|---|" + "---:|" * (len(COLUMNS) - 1))
    for schedule in arguments.schedules:
        print("| " + " | ".join(row(arguments.compiler, schedule, arguments.defines)) + " |")


if __name__ == "__main__":
    sys.exit(main())
