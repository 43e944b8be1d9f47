#!/usr/bin/env python3
"""Prints what the step that runs forward alone adds to a compile, and how long it takes beside the step that trains."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/forward_step.py [-c PP_COMPILE] [-D name=value]..
# A run of n steps, one of 2n, and one of n with an evaluation of as many rows, in turn: their differences are n steps
# that train and n that evaluate. Of several rounds the one with the least time counts.
import argparse, os, sys, tempfile
from proofs import ROOT, measure

SIZES = dict(model="llama", ranks=4, microbatches=8, layers=8, hidden=128, heads=4, ffn=344, vocab=256, sequence=128,
             microbatch=2)
STEPS = 6


def best(rounds, commands):
    """By command the least wall and processor seconds; the commands run in turn."""
    times = [[measure(command)[:2] for command in commands] for _ in range(rounds)]
    return [[min(time[i][kind] for time in times) for kind in (0, 1)] for i in range(len(commands))]


def compile_row(compiler, defines, folder, rounds):
    """Processor seconds of a compile with and without the forward step; the program with it."""
    program = os.path.join(folder, "program")
    command = [compiler, os.path.join(ROOT, "examples", "train.pipe"), *defines, "-o"]
    (_, without), (_, with_it) = best(rounds, [[*command, program + ".alone", "--forward=false"], [*command, program]])
    return program, with_it, without


def run_row(program, rows, folder, rounds):
    """Wall and processor seconds of one step that evaluates and of one that trains."""
    text = os.path.join(folder, "text.bin")
    with open(text, "wb") as file:
        file.write(bytes(97 + i * i % 23 for i in range(STEPS * rows + 1)))
    run = ["sh", "-c", 'exec "$@" > /dev/null', "sh", program, "--in-process", "--data", text, "--steps"]
    few, many, more = best(rounds, [[*run, str(STEPS)], [*run, str(2 * STEPS)], [*run, str(STEPS), "--eval", text]])
    return [[(one[kind] - few[kind]) / STEPS for kind in (0, 1)] for one in (more, many)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="name=value")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    sizes = SIZES | dict(define.split("=", 1) for define in arguments.defines)
    rows = int(sizes["microbatches"]) * int(sizes["microbatch"]) * int(sizes["sequence"])
    print(" ".join(f"{name}={value}" for name, value in sizes.items()))
    print("| schedule | compile, processor s | without | evaluates, ms | trains, ms | ratio | ratio of processor s |\n"
          "|---|---:|---:|---:|---:|---:|---:|")
    for schedule in ("1f1b", "zb_v"):
        chosen = sizes | {"schedule": schedule}
        defines = [word for name, value in chosen.items() for word in ("-D", f"{name}={value}")]
        with tempfile.TemporaryDirectory() as folder:
            program, with_it, without = compile_row(arguments.compiler, defines, folder, arguments.rounds)
            evaluates, trains = run_row(program, rows, folder, arguments.rounds)
            print(f"| {schedule} | {with_it:.2f} | {without:.2f} | {1e3 * evaluates[0]:.0f} | {1e3 * trains[0]:.0f} | "
                  f"{evaluates[0] / trains[0]:.2f} | {evaluates[1] / trains[1]:.2f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
