#!/usr/bin/env python3
"""Predicts training steps on two ranks, or what a plan gains, from profiles, and holds them against measured ones."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/predict.py [-c PP_COMPILE] [--rounds N] [--steps N] [--transport threads|mpi] [-D name=value]..
#                         [--calm SECONDS] [--gains] [SCHEDULE..]
# Each round runs every program twice: first with --profile, then measured. So the predicted run is not the profiled
# one. In each round the step time that `--costs` predicts is divided by the measured one. The table has the median and
# the range of these ratios. The next column divides by the step of the profiled run instead: this is the model's error
# alone, without the change of the machine's speed between the two runs. Each rank has one thread. Peak bytes compares
# what the plan says that a rank allocates with the pages of it that the run has touched.
#
# --gains: what --plan and --search gain over the schedule as written. The plan is made with a profile of the program as
# written, and the gain is predicted from that profile alone. --search takes no profile, so it chooses by its cluster,
# and the gain is predicted from profiles of both programs. Then the two programs run in turn for N rounds. The measured
# gain is the median of the rounds' ratios.
import argparse, json, os, re, resource, statistics, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZES = dict(ranks=2, microbatches=8, layers=4, hidden=256, heads=4, ffn=704, vocab=2048, sequence=128, microbatch=2)
ENVIRONMENT = dict(os.environ, PP_THREADS="1", OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1",
                   OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_mpi_yield_when_idle="1",
                   OMPI_MCA_btl_vader_single_copy_mechanism="none")


OTHERS = 0.1  # cores that others may use beside a run with --calm


def busy():
    """Seconds that all cores have worked so far, but for this script's ended children."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK") - own.ru_utime - own.ru_stime


def others(action):
    """What the action returns, and how many cores others have used meanwhile."""
    begin, before = time.monotonic(), busy()
    said = action()
    return said, (busy() - before) / (time.monotonic() - begin)


def calm_call(arguments, command):
    """With --calm SECONDS: waits until nobody else uses the cores, and runs again if somebody did meanwhile."""
    until = time.monotonic() + arguments.calm
    while arguments.calm:
        if others(lambda: time.sleep(0.5))[1] < OTHERS:
            said, used = others(lambda: call(command))
            if used < OTHERS:
                return said
        if time.monotonic() > until:
            raise SystemExit(f"others have used more than {OTHERS} cores beside every run for {arguments.calm} seconds")
    return call(command)


def call(command, **more):
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, **more)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


class Program:
    def __init__(self, arguments, folder, schedule):
        self.path, self.schedule, self.arguments = os.path.join(folder, schedule), schedule, arguments
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
        calm_call(self.arguments, [*self.train, "--profile", self.path + ".profile"])
        said = calm_call(self.arguments, [*self.train, "--log", self.path + ".log"])
        stats = json.loads(call([*self.compile, "--emit=stats", f"--costs={self.path}.profile"]))
        with open(self.path + ".profile") as profile:
            profiled = json.load(profile)["seconds"]
        with open(self.path + ".log") as log:
            measured = statistics.median(json.loads(line)["seconds"] for line in list(log)[2:])
        planned = [rank["peak_bytes"]["total"] for rank in stats["per_rank"]]
        arena = [int(row) for row in re.findall(r"^ +[0-9]+ +[0-9]+ +([0-9]+) +[0-9]+ ", said, re.M)]
        planned = [peak for peak in planned for _ in range(len(arena) // len(planned))]  # the devices of a rank
        return stats["step"] * 1e3, profiled * 1e3, measured * 1e3, planned, arena


PLAN, SEARCH = ["--plan", "--memory-limit=4GB"], ["--cluster=cpu", "--search"]
# By name: the schedule as written, further options of its program, and the options that find a better schedule.
GAINS = {
    "one microbatch after the other, planned": ("slow_b", [], PLAN),
    "the same with halves of backwards, planned": ("slow_iw", ["--fuse=false"], PLAN),
    "two stages a rank, one microbatch after the other, planned": ("slow_loop", [], PLAN),
    "1F1B, 7 layers, vocabulary 8192, in 160 MB, searched": (
        "1f1b", ["-D", "layers=7", "-D", "vocab=8192"], [*SEARCH, "--memory-limit=160MB"]),
    "1F1B, 6 layers, vocabulary 16384, in 230 MB, searched": (
        "1f1b", ["-D", "layers=6", "-D", "vocab=16384"], [*SEARCH, "--memory-limit=230MB"]),
    "1F1B in 75 MB, searched": ("1f1b", [], [*SEARCH, "--memory-limit=75MB"]),
}
SLOW = """
schedule slow_b(ranks p, microbatches m) {
  stage s of p at s
  for i in microbatches { for s in 0 .. p { F(s, i) } for s in reversed(0 .. p) { B(s, i) } }
}
schedule slow_iw(ranks p, microbatches m) {
  stage s of p at s
  for i in microbatches { for s in 0 .. p { F(s, i) } for s in reversed(0 .. p) { I(s, i) W(s, i) } }
}
schedule slow_loop(ranks p, microbatches m) {
  stage s of 2 * p at s % p
  for i in microbatches { for s in 0 .. 2 * p { F(s, i) } for s in reversed(0 .. 2 * p) { B(s, i) } }
}
"""


class Gain:
    """A program as written and one that --plan or --search makes of it."""

    def __init__(self, arguments, folder, number, name, case):
        schedule, more, finds = case
        base = os.path.join(folder, f"case{number}")
        with open(os.path.join(ROOT, "examples", "train.pipe")) as file:
            text = file.read()
        if f'"{schedule}"' not in text:
            text = text.replace("schedule choose schedule {", f'schedule choose schedule {{ "{schedule}" {schedule}'
                                "(ranks, microbatches)") + SLOW
        with open(base + ".pipe", "w") as file:
            file.write(text)
        defines = [*(f"{key}={value}" for key, value in dict(SIZES, schedule=schedule).items()), *arguments.D]
        written = [arguments.compiler, base + ".pipe", *[word for its in defines for word in ("-D", its)], *more]
        launch = ["mpirun", "-n", "2", "--oversubscribe"] if arguments.transport == "mpi" else []
        end = ["--in-process"] if arguments.transport != "mpi" else []
        self.steps = ["--data", "random", "--steps", str(arguments.steps)]
        call([*written, "-o", base + ".written"])
        self.runs = [[*launch, base + ".written", *end]]
        profile = base + ".written.profile"
        calm_call(arguments, [*self.runs[0], *self.steps, "--profile", profile])
        costs = [f"--costs={profile}"]
        searches = "--search" in finds
        found = [*written, *finds, *([] if searches else costs)]
        stats = [json.loads(call([*written, *costs, "--emit=stats"]))]
        if searches:
            call([*found, "--emit=pipe", "-o", base + ".planned.pipe"])
            with open(base + ".planned.pipe") as file:
                called = re.search("write `schedule (.*?)` in `train`", file.read())[1]
            with open(base + ".chosen.pipe", "w") as file:
                file.write(f'import "{base}.planned.pipe"\n' + text.replace(
                    "schedule choose schedule {", f'schedule choose schedule {{ "found" {called}'))
            print(f"{name}: {called}", file=sys.stderr)
            found = [written[0], base + ".chosen.pipe", *written[2:], "-D", "schedule=found"]
        call([*found, "-o", base + ".found"])
        self.runs.append([*launch, base + ".found", *end])
        if searches:
            calm_call(arguments, [*self.runs[1], *self.steps, "--profile", base + ".found.profile"])
            found.append(f"--costs={base}.found.profile")
        stats.append(json.loads(call([*found, "--emit=stats"])))
        self.predicted = stats[0]["step"] / stats[1]["step"]
        self.log, self.arguments = base + ".log", arguments

    def round(self):
        """The steps as written and as found, in ms, one run after the other."""
        both = []
        for run in self.runs:
            calm_call(self.arguments, [*run, *self.steps, "--log", self.log])
            with open(self.log) as log:
                both.append(statistics.median(json.loads(line)["seconds"] for line in list(log)[2:]) * 1e3)
        return both


def gains(arguments, folder):
    print("| case | as written ms | found ms | gain predicted | measured | range | measured / predicted |\n"
          "|---|---:|---:|---:|---:|---|---:|", flush=True)
    cases = [(name, case) for name, case in GAINS.items() if not arguments.schedules or name in arguments.schedules]
    for number, (name, case) in enumerate(cases):
        gain = Gain(arguments, folder, number, name, case)
        rounds = [gain.round() for _ in range(arguments.rounds)]
        ratios = [written / found for written, found in rounds]
        measured = statistics.median(ratios)
        columns = [*[f"{statistics.median(its):.1f}" for its in zip(*rounds)], f"{gain.predicted:.3f}",
                   f"{measured:.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}", f"{measured / gain.predicted:.3f}"]
        print(f"| {name} | " + " | ".join(columns) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--transport", choices=("threads", "mpi"), default="threads")
    parser.add_argument("-D", action="append", default=[], metavar="NAME=VALUE",
                        help="with these there have to be two devices, as -D ranks=1 -D mesh.tensor=2 single")
    parser.add_argument("--calm", type=int, default=0, metavar="SECONDS",
                        help="wait so long for a run beside which nobody else used the cores")
    parser.add_argument("--gains", action="store_true", help="what --plan and --search gain, in place of single steps")
    parser.add_argument("schedules", nargs="*", metavar="SCHEDULE", help="or, with --gains, the name of a case")
    arguments = parser.parse_args()
    if arguments.gains:
        with tempfile.TemporaryDirectory() as folder:
            return gains(arguments, folder)
    arguments.schedules = arguments.schedules or ["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "weipipe_interleave"]
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
