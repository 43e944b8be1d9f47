#!/usr/bin/env python3
"""Measures steps on meshes beside one device of one thread, in one round after the other, and compile times."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/meshes.py [-c PP_COMPILE] [--rounds 5] [--folder build/meshes] [--only WORD] [-D name=value]..
# llama, hidden 512, 512 tokens a sequence, f32; 8 sequences a step in every row. A row is the least step of all rounds
# but the first of each run; its ratio is that to one device in the same round, the median over rounds. Two devices
# need two cores that do nothing else.
import argparse, os, statistics, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "run"))
import harness

SIZES = dict(model="llama", layers=4, hidden=512, heads=8, ffn=1408, vocab=256, sequence=512, microbatch=1)
ROWS = (("one device", 8, {}, "threads"),
        ("tensor 2", 8, {"mesh.tensor": 2}, "threads"),
        ("tensor 2, over MPI", 8, {"mesh.tensor": 2}, "mpi"),
        ("tensor 2, sequence", 8, {"mesh.tensor": 2, "mesh.sequence": "true"}, "threads"),
        ("tensor 2, sequence, over MPI", 8, {"mesh.tensor": 2, "mesh.sequence": "true"}, "mpi"),
        ("context 2", 8, {"mesh.context": 2}, "threads"),
        ("context 2, over MPI", 8, {"mesh.context": 2}, "mpi"),
        ("data 2", 4, {"mesh.data": 2}, "threads"),
        ("data 2, over MPI", 4, {"mesh.data": 2}, "mpi"),
        ("data 2, zero 1", 4, {"mesh.data": 2, "mesh.zero": 1}, "threads"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(harness.ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=os.path.join(harness.ROOT, "build", "meshes"))
    parser.add_argument("--only", default="", help="rows whose name has this word, beside one device")
    parser.add_argument("-D", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    text = harness.write_text(arguments.folder)
    rows = [row for row in ROWS if arguments.only in row[0] or not row[2]]
    made, steps = [], {name: [] for name, *_ in rows}
    for number, (name, microbatches, axes, transport) in enumerate(rows):
        values = SIZES | dict(schedule="single", microbatches=microbatches) | axes
        values |= dict(given.split("=") for given in arguments.D)
        made.append(harness.compile_train(arguments.compiler, os.path.join(arguments.folder, str(number)), values))
    os.environ["PP_THREADS"] = harness.ENVIRONMENT["PP_THREADS"] = "1"
    for _ in range(arguments.rounds):
        for program, (name, _, axes, transport) in zip(made, rows):
            devices = 2 if axes else 1
            log = program + ".jsonl"
            harness.call([*harness.launch(program, devices, transport), "--data", text, "--steps", "4", "--log", log])
            steps[name].append(min(line["seconds"] for line in harness.read_log(log)[1:]))
    print("| | step | of one device |\n|---|---:|---:|")
    for name, found in steps.items():
        ratio = statistics.median(ours / one for ours, one in zip(found, steps[ROWS[0][0]]))
        print(f"| {name} | {1e3 * min(found):.0f} ms | {ratio:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
