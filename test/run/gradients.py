#!/usr/bin/env python3
"""Judges schedules by execution: gradients, losses and trained weights on several ranks against those on one rank."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: gradients.py PP_COMPILE FOLDER [--quick] [--schedules NAME[/PARAMETER=VALUE..],..] [--train FILE.pipe]
#                     [--models FILE.pipe] [--precisions f64,f32] [-D NAME=VALUE].. [--recompute PARTS] [--hoist]
#                     [--plan] [--order COSTS] [--matrix [--only PRECISION,RANKS,ROUNDS,LAYERS]..]
# Every case is compiled by pp-compile from examples/train.pipe (or FILE.pipe), run for three steps of AdamW under
# `mpirun` or in one process, with buffered or rendezvous sends, or as on a GPU (streams and staged copies, emulated);
# the gradients of its first step, its losses and the weights after its last step must equal those of `schedule=single`
# within the tolerance of its type, and be the same bits in all modes.
# --matrix: 2, 4, 6 ranks, 1, 2, 4 rounds of microbatches, 1, 2 layers a rank, f64 and f32, and `groups=all` in a
# schedule for every divisor of the ranks; threads and mpi in turn, all with rendezvous sends. --only keeps one of them.
import argparse, glob, itertools, os, re, shutil, sys
import harness

TOLERANCE = {"f32": 1e-5, "f64": 1e-11, "f16": 1e-5, "bf16": 1e-5}
# AdamW divides by the root of the squared gradient: where that is all rounding, so is the step, whose size is at most
# the learning rate. Relative to the largest weight of a tensor. In f16 all that a rank computes is the same bits as on
# one rank but sums over microbatches, which are f32; weights are rounded to 2^-11, and key biases, whose gradient is 0,
# are all rounding. bf16 rounds to 2^-8.
TRAINED = {"f32": 1e-3, "f64": 1e-9, "f16": 3e-2, "bf16": 3e-2}
SMALL = dict(layers=8, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=256, sequence=24, microbatch=2)


def difference(ours, theirs):
    """The largest difference over all tensors, relative to the largest gradient of the tensor."""
    if ours.keys() != theirs.keys():
        return float("inf"), f"tensors differ: {sorted(ours.keys() ^ theirs.keys())}"
    worst, where = 0.0, ""
    for name, values in ours.items():
        other = theirs[name]
        if len(values) != len(other):
            return float("inf"), f"{name} has {len(values)} and {len(other)} elements"
        scale = max(max(map(abs, other)), 1e-30)
        error = max(abs(a - b) for a, b in zip(values, other)) / scale
        if not error <= worst:  # catches NaN too
            worst, where = error, name
    return worst, where


def agreement(ours, wanted, precision="f64"):
    """Whether gradients, losses and weights of a run are those of another one; and how far they are, in words."""
    worst, where = difference(ours[0], wanted[0])
    drift = max(abs(a - b) / abs(b) for a, b in zip(ours[1], wanted[1], strict=True))
    trained, moved = difference(ours[2], wanted[2])
    good = worst <= TOLERANCE[precision] and drift <= 10 * TOLERANCE[precision] and trained <= TRAINED[precision]
    return good, (f"gradients {worst:.1e} losses {drift:.1e} trained {trained:.1e}"
                  + ("" if good else f" worst in {where}, {moved}"))


class Runner:
    def __init__(self, compiler, folder):
        self.compiler, self.folder, self.text = compiler, folder, harness.write_text(folder)
        self.options, self.file = (), harness.TRAIN

    def hoist(self):
        """From now on weights leave as early as the step on a cluster of slow links gains by it."""
        self.options += ("--hoist", "--cluster=a800_pcie_10gbe")

    def compile(self, train=None, **values):
        path = os.path.join(self.folder, "_".join(str(value).replace("/", "_") for value in values.values()))
        values["schedule"], *more = values["schedule"].split("/")
        defines = SMALL | values | dict(pair.split("=") for pair in more)
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


def cases(quick, schedules, precisions):
    """Of llama and gpt2, and of the other models that a schedule names."""
    named = {model for schedule in schedules for model in re.findall(r"/model=(\w+)", schedule)} - {"llama", "gpt2"}
    for model in ("llama", "gpt2", *sorted(named)):
        for precision in precisions:
            for ranks in (1, 2, 4):
                for microbatches in (4, 8):
                    chosen = (ranks, microbatches, precision) in ((4, 8, "f64"), (2, 4, "f32"), (4, 8, "bf16"),
                                                                  *((ranks, 2 * ranks, "f16") for ranks in (2, 4)))
                    for number, schedule in enumerate(schedules if chosen or not quick else ()):
                        if f"/model={model}/" not in schedule + "/" and ("/model=" in schedule or model in named):
                            continue
                        other = (number + (ranks == 2)) % 2 == 1
                        if quick and "/model=" not in schedule and (model == "gpt2") != other:
                            continue  # the next schedule has the models the other way round
                        yield dict(model=model, precision=precision, ranks=ranks, microbatches=microbatches), schedule


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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("folder")
    parser.add_argument("--quick", action="store_true",
                        help="two sizes, each with one of the two models, and three of the six modes a case")
    parser.add_argument("--schedules", nargs="+", default=["gpipe,1f1b,weipipe_interleave"])
    parser.add_argument("--models", metavar="FILE.pipe", help="more models, for schedules that say `/model=NAME`")
    parser.add_argument("--train",
                        help="the file with the schedules; the reference keeps its own")
    parser.add_argument("--precisions", default="f64,f32")
    parser.add_argument("--hoist", action="store_true", help="let weights leave earlier")
    parser.add_argument("--plan", action="store_true", help="run the order that the planner finds")
    parser.add_argument("--order", metavar="COSTS",
                        help="of parts of the model: the order of messages, and receives ahead of them")
    parser.add_argument("--recompute", metavar="PARTS", help="in all stages of the library's schedules")
    parser.add_argument("--without-mpi", action="store_true",
                        help="programs that were linked without MPI: in one process alone")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("-D", action="append", default=[], metavar="NAME=VALUE",
                        help="of the model and the data, or of the schedules alone")
    parser.add_argument("--matrix", action="store_true", help="all sizes of the issue of weight passing")
    parser.add_argument("--only", action="append", default=[], metavar="PRECISION,RANKS,ROUNDS,LAYERS",
                        help="of the matrix")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    runner, tally, references = Runner(arguments.compiler, arguments.folder), harness.Tally(), {}
    if arguments.models:
        runner.file = harness.add_models(arguments.folder, arguments.models)
    if arguments.hoist:
        runner.hoist()
    if arguments.plan:
        runner.options += ("--plan",)
    if arguments.order:
        runner.options += (f"--order={arguments.order}",)
    if arguments.recompute:
        runner.forget(arguments.recompute)
    defines = dict(define.split("=", 1) for define in arguments.D)
    SMALL.update({name: defines.pop(name) for name in list(defines) if name in SMALL or name.startswith("model.")})
    modes = [("mpi", "rendezvous"), ("threads", "rendezvous"), ("threads", "buffered"), ("mpi", "buffered")]
    names = ",".join(arguments.schedules).split(",")
    only = [words.split(",") for words in arguments.only]
    for number, (sizes, schedule) in enumerate(matrix(names, only) if arguments.matrix
                                               else cases(arguments.quick, names, arguments.precisions.split(","))):
        precision, ranks = sizes["precision"], sizes["ranks"]
        key = tuple(value for name, value in sizes.items() if name != "ranks")
        if key not in references:
            single = runner.compile(schedule="single", **sizes | dict(ranks=1))
            references[key] = runner.run(single, 1, "threads", "rendezvous", arguments.steps)
        program = runner.compile(arguments.train, schedule=schedule, **sizes, **defines)
        streams, staged = (f"streams/{number}", "rendezvous"), (f"staged/{number}", "rendezvous")
        quick = [modes[0], staged if number % 4 == 3 else modes[1 + number % 2], streams]
        chosen = [modes[number % 2]] if arguments.matrix else quick if arguments.quick else [*modes, streams, staged]
        if arguments.without_mpi:
            chosen = [mode for mode in chosen if mode[0] == "threads" or mode[0].startswith("streams")] or [modes[1]]
        first = None
        for transport, sends in chosen:
            ours = runner.run(program, ranks, transport, sends, arguments.steps)
            good, far = agreement(ours, references[key], precision)
            first = first or ours
            tally.check(good and ours == first, " ".join(f"{name} {value}" for name, value in sizes.items())
                        + f" {schedule:28} {transport:10} {sends:10} {far}"
                        + ("" if good and ours == first else f", bits as in the first mode: {ours == first}"))
        if arguments.matrix:
            runner.clean(program)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
