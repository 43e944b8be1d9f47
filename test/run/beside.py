#!/usr/bin/env python3
"""Judges units of one `together` that run op by op in turn: against one rank, and bit for bit against one by one."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: beside.py PP_COMPILE FOLDER [--all]
# Each program is judged on its mesh as meshes.py does. Then the same program with --interleave=false has to give the
# same gradients, losses and weights, on threads also where each message is on its way for a millisecond. The programs
# of the ranks show that units do run side by side: some launch has turns of both bodies.
import argparse, os, re, sys
import harness
from meshes import HEADS, MIXED, SIZES, Meshes
from gradients import SMALL

ROWS = (("1f1b_overlap", dict(tensor=2), dict(ranks=1)),
        ("1f1b_overlap/model=gpt2", dict(tensor=2, sequence="true", again="all"), dict(ranks=2)),
        ("1f1b_overlap/model=mixtral", dict(data=2, expert=2), MIXED),
        ("dualpipe_v/model=gpt2/microbatches=8", dict(tensor=2, data=2), dict(ranks=2)),
        ("dualpipe_v/microbatches=8/kv_heads=1", HEADS, dict(ranks=2)))
ALL_ROWS = ROWS + (
    ("1f1b_overlap/kv_heads=3", dict(tensor=3), dict(ranks=1, heads=3, hidden=24, microbatches=6)),
    ("1f1b_overlap", dict(context=2), dict(ranks=3, layers=6, microbatches=9)),
    ("1f1b_overlap/model=gpt2", HEADS | dict(tensor=2, sequence="true"), dict(ranks=2, microbatches=7)),
    ("1f1b_overlap", dict(data=2, zero=1, tensor=2), dict(ranks=2)),
    ("1f1b_overlap/model=gpt2", dict(data=3, zero=2, context=2), dict(ranks=2)),
    ("1f1b_overlap/model=qwen3_moe", dict(context=2, data=2, expert=4, tensor=2), MIXED | dict(experts=8)),
    ("1f1b_overlap/model=glm4_moe", dict(data=2, expert=2), MIXED | dict(z=0)),
    ("1f1b_overlap/model=gpt2", dict(tensor=2),
     {"ranks": 2, "model.attention_rate": 0.2, "model.residual_rate": 0.1}),
    ("1f1b_overlap", dict(tensor=2, order="pipeline data context tensor"), dict(ranks=4)),
    ("dualpipe/model=gpt2/microbatches=8", dict(tensor=2), {}),
    ("dualpipe/microbatches=8/model=mixtral", dict(data=2, expert=2), MIXED | dict(ranks=4)),
    ("dualpipe_v/model=mixtral/microbatches=8", dict(data=2, expert=2, tensor=2), MIXED),
    ("dualpipe_v/microbatches=8", dict(tensor=2, sequence="true", again="nothing"), {}),
    ("dualpipe_v/model=gpt2/microbatches=9", dict(context=3), dict(ranks=2, sequence=18)))


class Beside(Meshes):
    def plain(self, schedule, mesh, values):
        """The same bits without turns."""
        values = SIZES | values | {f"mesh.{name}": value for name, value in mesh.items()}
        devices = values["ranks"]
        for axis in ("data", "context", "tensor"):
            devices *= mesh.get(axis, 1)
        runs, sides = [], []
        for option in ("--interleave=true", "--interleave=false"):
            self.runner.options = (option,)
            program = self.runner.compile(schedule=schedule, **values)  # over the one before, which has run
            runs.append(self.runner.run(program, devices, "threads", "rendezvous"))
            sides.append(self.turns(schedule, values, option))
        self.runner.options = ()
        self.tally.check(runs[0] == runs[1] and sides[0] > 0 and sides[1] == 0,
                         f"{schedule} {mesh}: the same bits one by one; {sides[0]} and {sides[1]} launches in turn")

    def turns(self, schedule, values, option):
        name, *more = schedule.split("/")
        defines = SMALL | values | dict(pair.split("=") for pair in more) | dict(schedule=name)
        words = [word for key, value in defines.items() for word in ("-D", f"{key}={value}")]
        ranks = harness.call([self.compiler, harness.TRAIN, *words, option, "--emit=ranks"]).stdout
        return sum(len(found.split(",")) > 2 for found in re.findall(r" beside \[([-0-9, ]*)\]", ranks))

    def delayed(self):
        """Messages that take their time change nothing."""
        program = self.make("delayed", schedule="1f1b_overlap", ranks=2, **{"mesh.tensor": 2})
        results = []
        for delay in ("0", "0.001"):
            grads = f"{program}.{delay}.grads"
            harness.call([program, "--in-process", "--data", self.text, "--steps", "2", "--delay", delay, "--grads",
                          grads])
            with open(grads, "rb") as file:
                results.append(file.read())
        self.tally.check(results[0] == results[1], "--delay 0.001: the bits of --delay 0")
        refused = harness.call([program, "--data", self.text, "--delay", "0.001"], expect=None)
        self.tally.check(refused.returncode == 1 and "`--delay` needs `--in-process`" in refused.stderr,
                         f"--delay without --in-process is refused: {refused.stderr.strip()}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("folder")
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    tests = Beside(arguments.compiler, arguments.folder, None)
    for number, (schedule, mesh, values) in enumerate(ALL_ROWS if arguments.all else ROWS):
        modes = [("threads", "rendezvous"), ("mpi", ("rendezvous", "buffered")[number % 2])]
        if harness.RUNTIME:
            modes.append((f"streams/{number}", "rendezvous"))
        tests.schedule(schedule, mesh, modes, values)
        tests.plain(schedule, mesh, values)
    tests.delayed()
    return tests.tally.close()


if __name__ == "__main__":
    sys.exit(main())
