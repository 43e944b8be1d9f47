#!/usr/bin/env python3
"""Changes rank programs on meshes, with experts, joints, plans and no barrier: what compiles computes the same."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: mutants.py PP_COMPILE FOLDER [--cases N] [--mutants M] [--seed S]
# pp-fuzz runs what it draws on an executor of its own, which knows no mesh. Here N programs are drawn, each with M
# mutants of its rank programs (pp-fuzz mutants). pp-compile proves a mutant and links it, or says why not. What it
# links runs three steps, on threads with rendezvous sends or on the emulated device, and must have the losses,
# gradients and weights of one rank. What is refused does not run. So this finds what is proved and wrong, not what is
# refused and right.
import collections, os, random, re, subprocess, sys
import harness
from compositions import draw_case
from gradients import Runner, agreement

PLANNED = ("gpipe", "1f1b", "1f1b_recompute", "gpipe_offload", "interleaved", "v_min")
JOINTS = ("1f1b_overlap", "dualpipe", "dualpipe_v")


def draw_program(draw):
    """The kind of a program, its defines, those of its reference, options of pp-compile."""
    kind = draw.choice(("mesh", "experts", "joints", "planned", "barrier"))
    while True:
        own, shared, _ = draw_case(draw)
        devices = own["mesh.data"] * own["mesh.tensor"] * own["mesh.context"]
        experts = "experts" in shared
        if devices * own["ranks"] > 8 or shared["layers"] > 8 or "freeze" in shared and kind == "barrier":
            continue
        if kind == "mesh" and devices > 1 or kind == "experts" and experts and own.get("mesh.expert", 1) > 1:
            return kind, own, shared, ()
        if own["ranks"] == 1 or experts or shared["model"] == "encoder_decoder":
            continue
        if kind == "joints" and devices > 1 and own["ranks"] % 2 == 0:
            return kind, own | {"schedule": draw.choice(JOINTS)}, shared, ()
        if kind == "planned":
            own = own | {"mesh.data": 1, "mesh.tensor": 1, "mesh.context": 1, "schedule": draw.choice(PLANNED)}
            own = {key: value for key, value in own.items() if key not in ("mesh.zero", "mesh.attention")}
            return kind, own, shared, ("--plan",)
        if kind == "barrier" and "mesh.zero" not in own:
            # Between the norms of most programs here, so some steps are clipped and done over.
            shared = shared | {"clip": draw.choice((1e9, 2.0, 1.0, 0.1))}
            return kind, own | {"schedule": draw.choice(("1f1b", "gpipe", "zb_h1", "zb_h2")),
                                "optimizer.barrier": "false"}, shared, ()


class Mutants:
    def __init__(self, arguments):
        self.arguments, self.runner = arguments, Runner(arguments.compiler, arguments.folder)
        self.fuzz = os.path.join(os.path.dirname(arguments.compiler), "pp-fuzz")
        self.tally, self.counts = harness.Tally(), collections.Counter()

    def check(self, good, text):
        """Thousands are right, and say nothing."""
        if good:
            self.tally.passed += 1
        else:
            self.tally.check(False, text)

    def compile(self, source, path):
        """None if it is linked, else what pp-compile says."""
        done = harness.call([self.arguments.compiler, source, *harness.RUNTIME, "-o", path], expect=None)
        return None if done.returncode == 0 else done.stderr if done.returncode == 1 else f"ends with {done.returncode}"

    def judge(self, path, devices, mode, wanted):
        """What is wrong with a program that compiles, and that this run has to show."""
        try:
            ours = self.runner.run(path, devices, mode, "rendezvous")
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return str(error)[-300:]
        good, far = agreement(ours, wanted)
        return "" if good else far

    def program(self, number, draw):
        kind, own, shared, options = draw_program(draw)
        defines = [word for name, value in (own | shared).items() for word in ("-D", f"{name}={value}")]
        what = " ".join([*options, *defines[1::2]])
        path = os.path.join(self.arguments.folder, f"program{number}")
        done = harness.call([self.arguments.compiler, harness.TRAIN, *defines, *options, "--emit=ranks", "-o",
                             path + ".mlir"], expect=None)
        if done.returncode:
            self.counts[kind, "not drawn"] += 1  # sizes that a schedule does not take; compositions.py judges those
            return
        rows = own["microbatch"] * own["mesh.data"]
        reference = self.runner.compile(**shared | dict(schedule="single", ranks=1, microbatch=rows))
        wanted = self.runner.run(reference, 1, "threads", "rendezvous")
        self.runner.clean(reference)
        devices = own["ranks"] * own["mesh.data"] * own["mesh.tensor"] * own["mesh.context"]
        harness.call([self.fuzz, "mutants", path + ".mlir", path + ".mutants", str(draw.getrandbits(48)),
                      str(self.arguments.mutants)])
        sources = [path + ".mlir"] + [os.path.join(path + ".mutants", name)
                                      for name in sorted(os.listdir(path + ".mutants"))]
        for source in sources:
            streams = harness.RUNTIME and kind != "barrier"  # which is for CPUs
            mode = draw.choice(("threads", f"streams/{draw.randint(1, 99)}")) if streams else "threads"
            said = self.compile(source, path)
            name = f"{number} {os.path.basename(source)} of {kind} {what}"
            if said is not None:
                self.counts[kind, "refused"] += 1
                self.check(source != sources[0] and re.search(r"\berror: ", said) is not None
                                 and "fault of pp-compile" not in said, f"{name}: {said[-300:]}")
                continue
            wrong = self.judge(path, devices, mode, wanted)
            self.counts[kind, "linked, wrong" if wrong else "linked, right"] += 1
            self.check(not wrong, f"{name} {mode}: {wrong}")
            if wrong:
                os.rename(source, os.path.join(self.arguments.folder, f"wrong-{number}-{os.path.basename(source)}"))
        self.runner.clean(path)


def main():
    arguments = harness.draws(cases=20, seed=1, mutants=20)
    mutants = Mutants(arguments)
    for number in range(arguments.cases):
        mutants.program(number, random.Random(f"{arguments.seed} {number}"))
    for (kind, how), count in sorted(mutants.counts.items()):
        print(f"{count:6}  {kind}: {how}")
    return mutants.tally.close()


if __name__ == "__main__":
    sys.exit(main())
