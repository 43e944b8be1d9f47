#!/usr/bin/env python3
"""Measures steps on meshes beside one device of one thread, and with --compile what a mesh adds to compiling."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/meshes.py [-c PP_COMPILE] [--rounds 5] [--folder build/meshes] [--only WORD] [-D name=value]..
# llama, hidden 512, 512 tokens a sequence, f32; 8 sequences a step in every row. A row is the least step of all rounds
# but the first of each run; its ratio is that to one device in the same round, the median over rounds. Two devices
# need two cores that do nothing else.
# --compile: 64 layers of llama as 1F1B of 512 microbatches on 64 ranks, the executable with the programs of all ranks,
# with meshes beside none. Processor seconds and peak bytes of pp-compile; a ratio is the median over rounds.
import argparse, os, statistics, subprocess, sys
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

LARGE = dict(schedule="1f1b", ranks=64, microbatches=512, layers=64, hidden=512, heads=8, kv_heads=8, ffn=1024,
             vocab=1024, sequence=64, microbatch=1)
COMPILED = (("no mesh", {}), ("tensor 8, data 4", dict(tensor=8, data=4)),
            ("tensor 8, data 4, zero 1", dict(tensor=8, data=4, zero=1)),
            ("tensor 8, context 2, data 4, sequence", dict(tensor=8, context=2, data=4, sequence="true")))


def compiles(arguments):
    """What pp-compile takes for each mesh, beside the same program without one."""
    found = {name: [] for name, _ in COMPILED}
    for _ in range(arguments.rounds):
        for name, mesh in COMPILED:
            defines = LARGE | {f"mesh.{option}": value for option, value in mesh.items()}
            defines |= dict(given.split("=") for given in arguments.D)
            words = [word for pair in defines.items() for word in ("-D", "%s=%s" % pair)]
            process = subprocess.Popen([arguments.compiler, harness.TRAIN, *words, "-o",
                                        os.path.join(arguments.folder, "large")])
            _, status, usage = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(f"{name}: pp-compile failed")
            found[name].append((usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    print("| mesh | processor seconds | ratio | peak MB | ratio |\n|---|---:|---:|---:|---:|")
    for name, its in found.items():
        seconds, peaks = ([statistics.median(one[i] / other[i] for one, other in zip(its, found[COMPILED[0][0]])),
                           min(one[i] for one in its)] for i in (0, 1))
        print(f"| {name} | {seconds[1]:.1f} | {seconds[0]:.2f} | {peaks[1]:.0f} | {peaks[0]:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(harness.ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=os.path.join(harness.ROOT, "build", "meshes"))
    parser.add_argument("--only", default="", help="rows whose name has this word, beside one device")
    parser.add_argument("--compile", action="store_true", help="compile, and run nothing")
    parser.add_argument("-D", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    if arguments.compile:
        return compiles(arguments)
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
