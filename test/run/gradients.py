#!/usr/bin/env python3
"""Judges schedules by execution: gradients, losses and trained weights on several ranks against those on one rank."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: gradients.py PP_COMPILE FOLDER [OPTION..]     one row: --help says its options
#        gradients.py PP_COMPILE FOLDER --table FILE [--long] [--shard I/N] [--only NAME]..     rows of a file
# Every case is compiled by pp-compile from examples/train.pipe (or FILE.pipe), run for three steps of AdamW under
# `mpirun` or in one process, with buffered or rendezvous sends, or as on a GPU (streams and staged copies, emulated);
# the gradients of its first step, its losses and the weights after its last step must equal those of `schedule=single`
# within the tolerance of its type, and be the same bits in all modes. Rows of a table share the runs of `single`.
# --quick: a schedule runs once, on 4 ranks with 8 microbatches, in one of the six modes, every third in two. Models,
# types and modes take turns from schedule to schedule. --both: it also runs on 2 ranks, in the other model and the
# last type.
# --matrix: 2, 4, 6 ranks, 1, 2, 4 rounds of microbatches, 1, 2 layers a rank, f64 and f32, and `groups=all` in a
# schedule for every divisor of the ranks; threads and mpi in turn, all with rendezvous sends. --sizes keeps one.
import argparse, glob, itertools, os, re, shlex, shutil, sys
import harness

TOLERANCE = {"f32": 1e-5, "f64": 1e-11, "f16": 1e-5, "bf16": 1e-5}
# Bounds for trained weights, relative to the largest weight of a tensor. AdamW divides by the root of the squared
# gradient: if a gradient is only rounding, so is its step, whose size is at most the learning rate. In f16 all values
# of a rank have the bits of one rank, except sums over microbatches, which are f32. Weights are rounded to 2^-11, and
# key biases, whose gradient is 0, are only rounding. bf16 rounds to 2^-8.
TRAINED = {"f32": 1e-3, "f64": 1e-9, "f16": 3e-2, "bf16": 3e-2}
SMALL = dict(layers=8, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=256, sequence=24, microbatch=2)


def difference(ours, theirs):
    """The largest difference over all tensors, relative to the largest gradient of the tensor."""
    if ours.keys() != theirs.keys():
        return float("inf"), f"tensors differ: {sorted(ours.keys() ^ theirs.keys())}"
    worst, where = 0.0, ""
    for name, values in ours.items():
        error = harness.apart(values, theirs[name]) / max(max(map(abs, theirs[name]), default=0), 1e-30)
        if error > worst:
            worst, where = error, name
    return worst, where


def agreement(ours, wanted, precision="f64"):
    """Whether gradients, losses and weights of a run are those of another one; and how far they are, in words."""
    worst, where = difference(ours[0], wanted[0])
    drift = harness.drift(ours[1], wanted[1])
    trained, moved = difference(ours[2], wanted[2])
    good = worst <= TOLERANCE[precision] and drift <= 10 * TOLERANCE[precision] and trained <= TRAINED[precision]
    return good, (f"gradients {worst:.1e} losses {drift:.1e} trained {trained:.1e}"
                  + ("" if good else f" worst in {where}, {moved}"))


class Runner:
    def __init__(self, compiler, folder):
        self.compiler, self.folder, self.text = compiler, folder, harness.write_text(folder)
        self.options, self.file, self.small = (), harness.TRAIN, SMALL

    def hoist(self):
        """From now on weights leave as early as the step on a cluster of slow links gains by it."""
        self.options += ("--hoist", "--cluster=a800_pcie_10gbe")

    def compile(self, train=None, **values):
        path = os.path.join(self.folder, "_".join(str(value).replace("/", "_") for value in values.values()))
        values["schedule"], *more = values["schedule"].split("/")
        defines = self.small | values | dict(pair.split("=") for pair in more)
        return harness.compile_train(self.compiler, path, defines, train or self.file, self.options)

    def forget(self, parts):
        """From now on every schedule of the library says `recompute PARTS` behind its stages."""
        library = os.path.join(self.folder, "stdlib")
        shutil.copytree(os.path.join(harness.ROOT, "stdlib"), library, dirs_exist_ok=True)
        for name in os.listdir(library):
            if name.endswith(".pipe") and name != "single.pipe":  # the reference
                with open(os.path.join(library, name), "r+") as file:
                    text = re.sub(r"^( *)stage \w+ of .*$(?!\n *(weight|opt|layers) )", rf"\g<0>\n\1recompute {parts}",
                                  file.read(), flags=re.M)
                    file.seek(0)
                    file.write(text)
        self.options = (f"--stdlib={library}",)

    def run(self, program, ranks, transport, sends, steps=3):
        result = f"{program}.{transport.replace('/', '_')}.{sends}"
        harness.call([*harness.launch(program, ranks, transport), "--data", self.text, "--steps", str(steps),
                      f"--sends={sends}", "--grads", result + ".grads", "--log", result + ".jsonl", "--save",
                      result + ".saved"])
        gradients, weights = ({name: values for name, (_, values) in harness.read_safetensors(path).items()}
                              for path in (result + ".grads", os.path.join(result + ".saved", "model.safetensors")))
        return gradients, [line["loss"] for line in harness.read_log(result + ".jsonl")], weights

    def clean(self, program):
        """The matrix has a thousand programs of a megabyte."""
        for path in glob.glob(glob.escape(program) + "*"):
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def models_of(schedule):
    """The model that a schedule names, or the two that take turns."""
    return re.findall(r"/model=(\w+)", schedule) or ["llama", "gpt2"]


def cases(row, schedules, precisions):
    """The sizes of a case, with its model and its type, and its schedule."""
    if row.matrix:
        yield from matrix(schedules, [words.split(",") for words in row.sizes])
        return
    for number, schedule in enumerate(schedules):
        models = models_of(schedule)
        if not row.quick:
            for model, precision, ranks, microbatches in itertools.product(models, precisions, (1, 2, 4), (4, 8)):
                yield dict(model=model, precision=precision, ranks=ranks, microbatches=microbatches), schedule
            continue
        turn = number % 2
        yield dict(model=models[turn % len(models)], precision=precisions[0 if row.both else turn % len(precisions)],
                   ranks=4, microbatches=8), schedule
        if row.both:
            yield dict(model=models[(turn + 1) % len(models)], precision=precisions[-1], ranks=2,
                       microbatches=4), schedule


def matrix(schedules, only):
    for precision, ranks, rounds, depth in itertools.product(("f64", "f32"), (2, 4, 6), (1, 2, 4), (1, 2)):
        if only and [precision, str(ranks), str(rounds), str(depth)] not in only:
            continue
        for schedule in schedules:
            every = [d for d in range(1, ranks + 1) if ranks % d == 0] if "groups=all" in schedule else [0]
            for groups in every:
                yield (dict(model="llama", precision=precision, ranks=ranks, microbatches=rounds * ranks,
                            layers=depth * ranks),
                       schedule.replace("groups=all", f"groups={groups}"))


PLAIN = [("mpi", "rendezvous"), ("threads", "rendezvous"), ("threads", "buffered"), ("mpi", "buffered")]


def modes(row, number):
    """Transports and sends of the case with this number. In one process a case runs in a third of MPI's time."""
    streams, staged = (f"streams/{number}", "rendezvous"), (f"staged/{number}", "rendezvous")
    pairs = [(PLAIN[0], streams), (PLAIN[1], staged), (PLAIN[2], streams), (PLAIN[3], PLAIN[1])]
    turn = pairs[number % 4]
    turn = turn if number % 3 == 0 else turn[number % 3 - 1:number % 3]
    if row.seldom:
        turn = pairs[number // 4 % 4] if number % 4 == 0 else [(PLAIN[1], streams, PLAIN[2])[number % 3]]
    chosen = [PLAIN[number % 2]] if row.matrix else turn if row.quick else [*PLAIN, streams, staged]
    if row.without_mpi:
        chosen = [mode for mode in chosen if mode[0] == "threads" or mode[0].startswith("streams")] or [PLAIN[1]]
    return chosen


class Rows:
    """Runs rows, each of which says schedules and what they share."""

    def __init__(self, compiler, folder):
        self.compiler, self.folder, self.tally, self.references = compiler, folder, harness.Tally(), {}

    def runner(self, row, folder):
        runner = Runner(self.compiler, folder)
        if row.models:
            runner.file = harness.add_models(folder, row.models)
        if row.hoist:
            runner.hoist()
        if row.plan:
            runner.options += ("--plan",)
        if row.order:
            runner.options += (f"--order={row.order}",)
        if row.recompute:
            runner.forget(row.recompute)
        return runner

    def reference(self, runner, row, sizes):
        """The run of `schedule=single`, whose program does not depend on ranks."""
        key = (*sorted((runner.small | sizes | dict(ranks=1)).items()), row.models, row.steps)
        if key not in self.references:
            path = os.path.join(self.folder, f"single{len(self.references)}")
            single = harness.compile_train(self.compiler, path, runner.small | sizes | dict(schedule="single", ranks=1),
                                           runner.file)
            self.references[key] = runner.run(single, 1, "threads", "rendezvous", row.steps)
        return self.references[key]

    def run(self, row, name="", number=0):
        """Number: of the row in its table; modes take turns from there."""
        runner = self.runner(row, os.path.join(self.folder, name))
        defines = dict(define.split("=", 1) for define in row.D)
        runner.small = SMALL | {its: defines.pop(its) for its in list(defines)
                                if its in SMALL or its == "products" or its.startswith("model.")}
        schedules = ",".join(row.schedules).split(",")
        for number, (sizes, schedule) in enumerate(cases(row, schedules, row.precisions.split(",")), number):
            wanted = self.reference(runner, row, sizes)
            program = runner.compile(row.train, schedule=schedule, **sizes, **defines)
            first = None
            for transport, sends in modes(row, number):
                ours = runner.run(program, sizes["ranks"], transport, sends, row.steps)
                if first is None or ours != first:
                    good, far = agreement(ours, wanted, sizes["precision"])
                first = first or ours
                said = " ".join(f"{its} {value}" for its, value in sizes.items())
                self.tally.check(good and ours == first, f"{name} {said} {schedule:28} {transport:10} {sends:10} {far}"
                    + ("" if good and ours == first else f", bits as in the first mode: {ours == first}"))
            if row.matrix:
                runner.clean(program)


def row_options():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--quick", action="store_true", help="each schedule once, in one or two of the six modes")
    parser.add_argument("--both", action="store_true", help="with --quick: on 4 and on 2 ranks")
    parser.add_argument("--schedules", nargs="+", default=["gpipe,1f1b,weipipe_interleave"],
                        metavar="NAME[/PARAMETER=VALUE..]", help="separated by commas or blanks")
    parser.add_argument("--models", metavar="FILE.pipe", help="more models, for schedules that say `/model=NAME`")
    parser.add_argument("--train", help="the file with the schedules; the reference keeps its own")
    parser.add_argument("--precisions", default="f64,f32")
    parser.add_argument("--hoist", action="store_true", help="let weights leave earlier")
    parser.add_argument("--plan", action="store_true", help="run the order that the planner finds")
    parser.add_argument("--order", metavar="COSTS",
                        help="of parts of the model: the order of messages, and receives ahead of them")
    parser.add_argument("--recompute", metavar="PARTS", help="in all stages of the library's schedules")
    parser.add_argument("--without-mpi", action="store_true",
                        help="programs that were linked without MPI: in one process alone")
    parser.add_argument("--seldom", action="store_true", help="with --quick: over MPI in three of sixteen cases alone")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("-D", action="append", default=[], metavar="NAME=VALUE",
                        help="of the model and the data, or of the schedules alone")
    parser.add_argument("--matrix", action="store_true", help="all sizes of the issue of weight passing")
    parser.add_argument("--sizes", action="append", default=[], metavar="PRECISION,RANKS,ROUNDS,LAYERS",
                        help="of the matrix")
    return parser


def table(path, is_long, shard, only, more):
    """The rows of a file: name, number, options. A shard has a run of rows with its part of all schedules."""
    with open(path) as file:
        text = "".join(line for line in file if line.strip() and not line.startswith("#"))
    inputs, rows = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs"), []
    for line in re.sub(r"\n +", " ", text).splitlines():
        head, words = line.split(":", 1)
        name, *tags = head.split()
        if is_long or "long" not in tags:
            words = [word.replace("@inputs@", inputs) for word in shlex.split(words)]
            row = row_options().parse_args(["--quick", *words, "--both" if is_long else "--seldom", *more])
            rows.append((name, row, len(",".join(row.schedules).split(",")) * (1 + row.both)))
    part, parts = map(int, shard.split("/"))
    total, before = sum(programs for _, _, programs in rows), 0
    for name, row, programs in rows:
        if before * parts // total == part - 1 and (not only or name in only):
            yield name, before, row
        before += programs


def main():
    parser = argparse.ArgumentParser(parents=[row_options()])
    parser.add_argument("compiler")
    parser.add_argument("folder")
    parser.add_argument("--table", metavar="FILE", help="rows of options")
    parser.add_argument("--long", action="store_true", help="with rows that are marked `long`; --both in all rows")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th part of the table")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a row of the table")
    arguments = parser.parse_args()
    rows = Rows(arguments.compiler, arguments.folder)
    if arguments.table:
        for name, number, row in table(arguments.table, arguments.long, arguments.shard, arguments.only,
                                       ["--without-mpi"] * arguments.without_mpi):
            rows.run(row, name, number)
    else:
        rows.run(arguments)
    return rows.tally.close()


if __name__ == "__main__":
    sys.exit(main())
