"""Compares the peak memory of runs with the bytes that their programs plan: arenas, and scratch beside them.

usage: python3 bench/scratch.py COMPILER FOLDER [--quick] [--precision NAME ..] [--isa NAME ..]

A rank's memory is the peak of its resident set, less that of the same program with tiny sizes, less what that one
plans: what the process, MPI and the libraries take for themselves. `over` is what is left of it over arena and scratch,
of the rank where most is left: below 0 where not all that is planned was used. With `avx2` and `plain` neither oneDNN
nor our kernels use more than that, as on a machine that has no more.
"""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import argparse
import os
import subprocess
import sys

ISAS = {"best": {}, "avx512": {"PP_ISA": "avx512"}, "avx2": {"PP_ISA": "avx2", "DNNL_MAX_CPU_ISA": "AVX2"},
        "plain": {"PP_ISA": "plain", "DNNL_MAX_CPU_ISA": "SSE41"}}
LARGE = {"layers": 4, "hidden": 512, "heads": 8, "ffn": 1536, "vocab": 50257, "sequence": 256, "microbatch": 1,
         "microbatches": 4}
TINY = {"layers": 4, "hidden": 16, "heads": 2, "ffn": 32, "vocab": 64, "sequence": 16, "microbatch": 1,
        "microbatches": 4}
SCHEDULES = [("fsdp", 4), ("1f1b", 2), ("zb_v", 2), ("weipipe", 4)]
WATCH = """
import os, resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
with open(sys.argv[1] + ".peak" + os.environ["OMPI_COMM_WORLD_RANK"], "w") as file:
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, file=file)
sys.exit(code)
"""


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        os.makedirs(arguments.folder, exist_ok=True)

    def compile(self, schedule, ranks, precision, sizes, name):
        program = os.path.join(self.arguments.folder, name)
        options = [x for key, value in {"schedule": schedule, "ranks": ranks, "precision": precision, **sizes}.items()
                   for x in ("-D", f"{key}={value}")]
        train = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "train.pipe")
        subprocess.run([self.arguments.compiler, train, *options, "-o", program], check=True)
        return program

    def run(self, program, ranks, isa):
        """For each rank: planned bytes of arena and scratch, scratch that was taken, peak of the resident set."""
        info = subprocess.run([program, "--info"], check=True, capture_output=True, text=True).stdout
        rows = [line.split() for line in info.split("rank  planned")[1].splitlines()[1:]]
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), sys.executable, "-c", WATCH,
                   program, "--data", "random", "--steps", "2"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ISAS[isa]})
        if done.returncode:
            sys.exit(f"{program}: {done.stderr}{done.stdout}")
        peaks = [int(open(f"{program}.peak{rank}").read()) for rank in range(ranks)]
        table = [line.split() for line in done.stdout.split("rank  planned")[1].splitlines()[1:ranks + 1]]
        return [(int(row[2]), int(row[3]), int(table[rank][3]), peaks[rank]) for rank, row in enumerate(rows)]

    def row(self, schedule, ranks, precision, isa):
        large = self.run(self.compile(schedule, ranks, precision, LARGE, "large"), ranks, isa)
        tiny = self.run(self.compile(schedule, ranks, precision, TINY, "tiny"), ranks, isa)
        over = [(its[3] - (own[3] - own[0] - own[1]) - its[0] - its[1], its) for its, own in zip(large, tiny)]
        worst, (arena, planned, taken, peak) = max(over)
        mega = " | ".join(f"{n / 1e6:.1f}" for n in (arena, planned, taken, peak, worst))
        print(f"| {schedule} | {precision} | {isa} | {mega} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("compiler")
    parser.add_argument("folder")
    parser.add_argument("--quick", action="store_true", help="one schedule")
    parser.add_argument("--precision", nargs="*", default=["f32", "bf16", "f16", "f64"])
    parser.add_argument("--isa", nargs="*", default=["best", "avx2"], choices=list(ISAS))
    arguments = parser.parse_args()
    bench = Bench(arguments)
    print("| schedule | precision | instructions | arena, MB | scratch planned | scratch taken | peak | over |\n"
          "|---|---|---|---:|---:|---:|---:|---:|")
    for schedule, ranks in SCHEDULES[:1 if arguments.quick else 4]:
        for precision in arguments.precision:
            for isa in arguments.isa if precision != "f64" else arguments.isa[:1]:
                bench.row(schedule, ranks, precision, isa)


if __name__ == "__main__":
    main()
