#!/usr/bin/env python3
"""Changes rank programs and task bodies, on meshes, with experts, plans, slices: what compiles computes the same."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: mutants.py PP_COMPILE FOLDER [--cases N] [--mutants M] [--bodies B] [--seed S]
# pp-fuzz runs what it draws on an executor of its own, which knows no mesh. Here N programs are drawn, each with M
# mutants of its rank programs (pp-fuzz mutants). pp-compile proves a mutant and links it, or refuses it. A linked
# mutant runs three steps, on threads with rendezvous sends or on the emulated device, and must have the losses,
# gradients and weights of one rank. A refused mutant does not run. So this test finds wrong programs that are proved,
# but not right programs that are refused. B mutants of the task bodies of each program of BODIES are judged in the same
# way. pp-compile must accept its own unchanged rank programs of each schedule of the library.
import collections, os, random, re, subprocess, sys
import harness
from compositions import SCHEDULES, draw_case
from gradients import Runner, agreement

PLANNED = ("gpipe", "1f1b", "1f1b_recompute", "gpipe_offload", "interleaved", "v_min")
JOINTS = ("1f1b_overlap", "dualpipe", "dualpipe_v")
SIZES = dict(model="llama", layers=4, hidden=16, heads=2, kv_heads=1, ffn=24, vocab=256, sequence=12, microbatches=4,
             precision="f64")
# Programs whose bodies are changed: what each has of its own, what its reference shares, options.
BODIES = ((dict(schedule="1f1b"), dict(model="gpt2"), ("--epilogues",)),
          (dict(schedule="zb_h1"), {}, ()),
          (dict(schedule="slimpipe", exchange="true"), {}, ()),
          (dict(schedule="1f1b"), dict(model="mixtral", experts=4, top=2, balance=0.5), ()),
          (dict(schedule="1f1b", **{"mesh.tensor": 2, "mesh.sequence": "true"}), dict(kv_heads=2), ()),
          (dict(schedule="1f1b_recompute", mlp_chunks=2), {}, ()),
          (dict(schedule="gpipe", **{"mesh.data": 2, "mesh.zero": 2}), {"model.tied": "true"}, ()),
          (dict(schedule="1f1b", **{"optimizer.barrier": "false"}), dict(clip=1.0), ()),
          (dict(schedule="ring_attention"), {}, ()),
          (dict(schedule="replicated_zero1"), dict(model="gpt2"), ()))


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


class Body:
    """The lines of one task body in a module's text, and the types of its values."""

    def __init__(self, lines, first):
        self.lines, self.first = lines, first
        self.last = next(i for i in range(first, len(lines)) if lines[i] == "  }")
        self.types = dict(re.findall(r"(%arg\d+): (tensor<[^>]*>)", lines[first]))
        self.born = dict.fromkeys(self.types, first)
        for i in range(first + 1, self.last):
            made, types = self.results(i), re.findall(r"tensor<[^>]*>", re.split(" : |->", lines[i])[-1])
            if len(made) == len(types):
                self.types |= dict(zip(made, types))
                self.born |= dict.fromkeys(made, i)

    def results(self, i):
        return re.findall(r"%\w+", self.lines[i].partition(" = nn.")[0]) if " = nn." in self.lines[i] else []

    def operands(self, i):
        """Matches, each of one operand."""
        begin = self.lines[i].index("= ") if self.results(i) else 0
        return [found for found in re.finditer(r"%\w+", self.lines[i]) if found.start() > begin]

    def others(self, value, i):
        """Values of the same type that are there before line i."""
        return [other for other, born in self.born.items()
                if other != value and born < i and self.types[other] == self.types.get(value)]

    def set(self, i, *changes):
        line = self.lines[i]
        for found, text in sorted(changes, key=lambda change: -change[0].start()):
            line = line[:found.start()] + text + line[found.end():]
        self.lines[i] = line

    def change(self, draw):
        """What was done; None where the draw found nothing to do."""
        i = draw.randint(self.first + 1, self.last - 1)
        operands, kind = self.operands(i), draw.choice(("operand", "operand", "swap", "attribute", "drop", "move",
                                                        "head", "return"))
        if kind == "operand" and operands:
            found = draw.choice(operands)
            if others := self.others(found[0], i):
                self.set(i, (found, draw.choice(others)))
                return kind
        if kind in ("swap", "return"):
            i = self.last - 1 if kind == "return" else i
            pairs = [(a, b) for a in self.operands(i) for b in self.operands(i)
                     if a.start() < b.start() and a[0] != b[0] and self.types.get(a[0]) == self.types.get(b[0])]
            if pairs:
                a, b = draw.choice(pairs)
                self.set(i, (a, b[0]), (b, a[0]))
                return kind
        if kind == "attribute" or kind == "head":
            i = self.first if kind == "head" else i
            begin = self.lines[i].find("attributes {" if kind == "head" else "{")
            line = re.sub(r"pipeline\.buffers = array<[^>]*>", lambda found: "-" * len(found[0]), self.lines[i])
            words = [found for found in re.finditer(r"(?<=[ <])-?\d+(\.\d+(e[+-]\d+)?)?(?=[ ,>\]])|true|false", line)
                     if 0 <= begin < found.start()]
            if words:
                found = draw.choice(words)
                new = {"true": "false", "false": "true"}.get(found[0]) or (
                    repr(float(found[0]) * 1.5 + 0.5) if "." in found[0] else str(int(found[0]) + draw.choice((-1, 1))))
                self.set(i, (found, new))
                return kind
        made = self.results(i)
        if kind == "drop" and made and all(self.others(value, i) for value in made):
            for value in made:
                instead = draw.choice(self.others(value, i))
                for j in range(i + 1, self.last):
                    self.set(j, *((found, instead) for found in self.operands(j) if found[0] == value))
            del self.lines[i]
            return kind
        if kind == "move" and made:
            self.lines.insert(draw.randint(self.first + 1, self.last - 2), self.lines.pop(i))
            return kind
        return None


def change_body(text, draw):
    """The text with one body changed, and how."""
    while True:
        lines = text.split("\n")
        body = Body(lines, draw.choice([i for i, line in enumerate(lines)
                                        if line.startswith("  func.func") and "pipeline.body =" in line]))
        if kind := body.change(draw):
            return "\n".join(lines), kind


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

    def program(self, number, kind, own, shared, options, change, draw):
        """`change` writes mutants of the program at the path it gets, and returns where they are."""
        defines = [word for name, value in (own | shared).items() for word in ("-D", f"{name}={value}")]
        what = " ".join([*options, *defines[1::2]])
        path = os.path.join(self.arguments.folder, f"program{number}")
        done = harness.call([self.arguments.compiler, harness.TRAIN, *defines, *options, "--emit=ranks", "-o",
                             path + ".mlir"], expect=None)
        if done.returncode:
            self.counts[kind, "not drawn"] += 1  # sizes that a schedule does not take; compositions.py judges those
            return
        rows = own["microbatch"] * own.get("mesh.data", 1)
        reference = self.runner.compile(**shared | dict(schedule="single", ranks=1, microbatch=rows))
        wanted = self.runner.run(reference, 1, "threads", "rendezvous")
        self.runner.clean(reference)
        devices = own["ranks"]
        for axis in ("mesh.data", "mesh.tensor", "mesh.context"):
            devices *= own.get(axis, 1)
        sources = [path + ".mlir", *change(path)]
        for source in sources:
            streams = harness.RUNTIME and "optimizer.barrier" not in own  # which is for CPUs
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


    def draw(self, number, draw):
        """A program that is drawn, and mutants of what its ranks do."""
        def change(path):
            harness.call([self.fuzz, "mutants", path + ".mlir", path + ".mutants", str(draw.getrandbits(48)),
                          str(self.arguments.mutants)])
            return [os.path.join(path + ".mutants", name) for name in sorted(os.listdir(path + ".mutants"))]
        self.program(number, *draw_program(draw), change, draw)

    def bodies(self, number, draw):
        """One of BODIES, and mutants of its bodies."""
        own, shared, options = BODIES[number]

        def change(path):
            with open(path + ".mlir") as file:
                text = file.read()
            os.makedirs(path + ".mutants", exist_ok=True)
            for count in range(self.arguments.bodies):
                mutant, kind = change_body(text, draw)
                with open(name := os.path.join(path + ".mutants", f"{count}-{kind}.mlir"), "w") as file:
                    file.write(mutant)
                yield name
        own = dict(ranks=2, microbatch=2) | own
        self.program(f"-bodies{number}", "bodies", own, SIZES | shared, options, change, draw)

    def library(self):
        """Every schedule as text that nobody has changed."""
        for number, schedule in enumerate(SCHEDULES):
            name, *more = schedule.split("/")
            values = SIZES | dict(model=("llama", "gpt2")[number % 2], layers=8, sequence=64, ranks=4, microbatches=8,
                                  schedule=name)
            values |= dict(word.split("=") for word in more) | ({"mlp_chunks": 2} if number % 3 == 0 else {})
            defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
            path = os.path.join(self.arguments.folder, "library.mlir")
            harness.call([self.arguments.compiler, harness.TRAIN, *defines, "--emit=ranks", "-o", path])
            said = harness.call([self.arguments.compiler, path, "--prove"], expect=None)
            self.check("computes what the parts" in said.stdout, f"{schedule}: {said.stderr[-300:]}")

def main():
    arguments = harness.draws(cases=20, seed=1, mutants=20, bodies=20)
    mutants = Mutants(arguments)
    for number in range(arguments.cases):
        mutants.draw(number, random.Random(f"{arguments.seed} {number}"))
    mutants.library()
    for number in range(len(BODIES) if arguments.bodies else 0):
        mutants.bodies(number, random.Random(f"{arguments.seed} bodies {number}"))
    for (kind, how), count in sorted(mutants.counts.items()):
        print(f"{count:6}  {kind}: {how}")
    return mutants.tally.close()

if __name__ == "__main__":
    sys.exit(main())
