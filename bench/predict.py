#!/usr/bin/env python3
"""Predicts training steps on two ranks from a profile of other runs, and holds them against measured ones."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/predict.py [-c PP_COMPILE] [--rounds N] [--steps N] [--transport threads|mpi] [-D name=value]..
#                         [SCHEDULE..]
# Each round runs every program twice, first with --profile, then measured: so the run that is predicted is not the one
# that was profiled. Per round the step predicted by `--costs` is divided by the measured one; the table has the median
# of these ratios and their range. Beside it the same over the profiled run's own step: what the model errs by, without
# what the machine's speed has changed by between the two runs. One thread a rank. Peak bytes: what the plan says a rank
# allocates, against the pages of it that the run has touched.
import argparse, json, os, re, statistics, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZES = dict(ranks=2, microbatches=8, layers=4, hidden=256, heads=4, ffn=704, vocab=2048, sequence=128, microbatch=2)
ENVIRONMENT = dict(os.environ, PP_THREADS="1", OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1",
                   OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_mpi_yield_when_idle="1",
                   OMPI_MCA_btl_vader_single_copy_mechanism="none")


def call(command, **more):
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, **more)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


class Program:
    def __init__(self, arguments, folder, schedule):
        self.path, self.schedule = os.path.join(folder, schedule), schedule
        self.compile = [arguments.compiler, os.path.join(ROOT, "examples", "train.pipe"),
                        *[word for key, value in dict(SIZES, schedule=schedule).items()
                          for word in ("-D", f"{key}={value}")],
                        *[word for given in arguments.D for word in ("-D", given)]]
        call([*self.compile, "-o", self.path])
        launch = ["mpirun", "-n", "2", "--oversubscribe",
                  self.path] if arguments.transport == "mpi" else [self.path, "--in-process"]
        self.train = [*launch, "--data", "random", "--steps", str(arguments.steps)]

    def round(self):
        """Milliseconds of a step, predicted, profiled and measured; peak bytes by rank, planned and touched."""
        call([*self.train, "--profile", self.path + ".profile"])
        said = call([*self.train, "--log", self.path + ".log"])
        stats = json.loads(call([*self.compile, "--emit=stats", f"--costs={self.path}.profile"]))
        with open(self.path + ".profile") as profile:
            profiled = json.load(profile)["seconds"]
        with open(self.path + ".log") as log:
            measured = statistics.median(json.loads(line)["seconds"] for line in list(log)[2:])
        planned = [rank["peak_bytes"]["total"] for rank in stats["per_rank"]]
        arena = [int(row) for row in re.findall(r"^ +[0-9]+ +[0-9]+ +([0-9]+) +[0-9]+ ", said, re.M)]
        planned = [peak for peak in planned for _ in range(len(arena) // len(planned))]  # the devices of a rank
        return stats["step"] * 1e3, profiled * 1e3, measured * 1e3, planned, arena


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--transport", choices=("threads", "mpi"), default="threads")
    parser.add_argument("-D", action="append", default=[], metavar="NAME=VALUE",
                        help="with these there have to be two devices, as -D ranks=1 -D mesh.tensor=2 single")
    parser.add_argument("schedules", nargs="*", metavar="SCHEDULE",
                        default=["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "weipipe_interleave"])
    arguments = parser.parse_args()
    print("| schedule | predicted ms | measured ms | predicted / measured | range | predicted / profiled | range | "
          "peak bytes |\n"
          "|---|---:|---:|---:|---|---:|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        programs = [Program(arguments, folder, schedule) for schedule in arguments.schedules]
        rounds = [[program.round() for program in programs] for _ in range(arguments.rounds)]
        for program, results in zip(programs, zip(*rounds)):
            exact = all(planned == arena for _, _, _, planned, arena in results)
            columns = [f"{statistics.median(r[0] for r in results):.2f}",
                       f"{statistics.median(r[2] for r in results):.2f}"]
            for other in (2, 1):
                ratios = [result[0] / result[other] for result in results]
                columns += [f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}"]
            print(f"| `{program.schedule}` | " + " | ".join(columns) + f" | {'equal' if exact else results[0][3:]} |",
                  flush=True)


if __name__ == "__main__":
    sys.exit(main())
