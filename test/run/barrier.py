#!/usr/bin/env python3
"""Judges `barrier = false`: losses, norms and weights are, bit for bit, those of steps with a barrier."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: barrier.py PP_COMPILE FOLDER [--all]
# A run is stopped after a number of steps: what it saves then has gone through all judges before, and through the one
# behind the last step. Clipping is never needed, always, and sometimes; in f16 some steps overflow. --all: after each
# number of steps; more schedules, sizes and types, and a measured trace in which steps have to overlap, which depends
# on the machine's load.
import json, math, os, re, sys
import harness

SIZES = dict(model="llama", layers=4, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=256, sequence=24, microbatch=1,
             precision="f32", lr=6e-3)
STEPS = 5
CLIPS = {"never": 1e9, "always": 1e-3, "sometimes": None}
ALL = (("zb_h2", 2, 5, ("threads",), dict(precision="f64")), ("1f1b", 4, 8, ("threads",), {}),
       ("zb_v", 2, 6, ("threads", "mpi"), dict(precision="f64")), ("zb_v", 4, 8, ("threads",), dict(layers=8)),
       ("gpipe", 4, 6, ("threads",), {}), ("slimpipe", 2, 4, ("threads",), {}),
       ("1f1b_recompute", 2, 4, ("threads",), dict(precision="f64")),
       ("1f1b", 2, 4, ("threads",), dict(model="gpt2", precision="bf16")),
       ("zb_h2", 4, 8, ("threads",), dict(optimizer="sgd")),
       ("zb_h2", 2, 4, ("threads", "mpi"), {"mesh.tensor": 2, "mesh.sequence": "true"}),
       ("zb_v", 2, 4, ("threads",), {"mesh.data": 2, "mesh.context": 2, "precision": "f64"}),
       ("1f1b", 2, 4, ("mpi",), {"mesh.data": 2, "model": "gpt2", "precision": "bf16"}))
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


class Judge:
    def __init__(self, compiler, folder, every):
        self.compiler, self.folder, self.every = compiler, folder, every
        self.text, self.tally = harness.write_text(folder), harness.Tally()

    def path(self, name):
        return os.path.join(self.folder, name)

    def compile(self, name, barrier, values):
        more = {} if barrier else {"optimizer.barrier": "false"}
        return harness.compile_train(self.compiler, self.path(name + ("_with" if barrier else "_without")),
                                     SIZES | values | more)

    def run(self, program, ranks, transport, *options, expect=0):
        log, saved = program + ".jsonl", program + ".saved"
        if "--resume" not in options and os.path.exists(log):
            os.remove(log)
        done = harness.call([*harness.launch(program, ranks, transport), "--sends=rendezvous", "--data", self.text,
                             "--log", log, "--save", saved, *options], expect=expect)
        if expect:
            return done.stderr
        files = []
        for name in FILES:
            with open(os.path.join(saved, name), "rb") as file:
                files.append(file.read())
        over = re.search(r"updates done over: (\d+)", done.stdout)
        self.over = int(over[1]) if over else 0  # the step with a barrier runs first
        lines = [[line.get(key) for key in ("step", "loss", "grad_norm", "lr", "loss_scale", "skipped", "eval_loss")]
                 for line in harness.read_log(log)]
        return lines, files

    def compare(self, what, programs, ranks, transport, *options, expect=0):
        got = [self.run(program, ranks, transport, *options, expect=expect) for program in programs]
        self.tally.check(got[0] == got[1], f"{what} over {transport}")
        return got[0]

    def pair(self, name, **values):
        return [self.compile(name, barrier, values) for barrier in (True, False)]

    def steps(self, name, what, ranks, transports, steps=STEPS, **values):
        programs = self.pair(name, ranks=ranks, **values)
        ranks *= math.prod(values.get("mesh." + axis, 1) for axis in ("tensor", "context", "data"))  # to devices
        for transport in transports:
            for last in range(1, steps + 1) if self.every else (1, steps):
                lines, _ = self.compare(f"{what}: {last} steps", programs, ranks, transport, "--steps", str(steps),
                                        "--stop-at", str(last))
        return programs, lines

    def clipped(self, schedule, ranks, microbatches, transports, **values):
        name = "_".join([schedule, str(ranks), str(microbatches), *(key[5:] for key in values if key[:5] == "mesh.")])
        more = dict(schedule=schedule, microbatches=microbatches, **values)
        norms = []
        for often, clip in CLIPS.items():
            if clip is None:  # between the norms of the run without clipping
                clip = sorted(norms)[len(norms) // 2] * 1.0001
            programs, lines = self.steps(f"{name}_{often}", f"{name}, {often} clipped", ranks,
                                         transports, clip=clip, **more)
            if often == "never":
                norms = [line[2] for line in lines]
            clips = sum(line[2] > clip for line in lines)
            self.tally.check(self.over == clips, f"{name}, {often}: {self.over} updates are done over")
            self.tally.check(0 < clips < STEPS if often == "sometimes" else clips == STEPS * (often == "always"),
                             f"{name}, {often}: {clips} of {STEPS} steps are clipped")
        return programs

    def between(self, programs, ranks, transport):
        """What reads or writes weights between steps means what it meant."""
        name = f"{os.path.basename(programs[0])}: "
        for options in (["--save-every", "2"], ["--eval", self.text[:-4] + ".short", "--eval-every", "2"]):
            self.compare(name + options[0][2:], programs, ranks, transport, "--steps", "7", *options)
        grads = [program + ".grads" for program in programs]
        for program, path in zip(programs, grads):
            self.run(program, ranks, transport, "--steps", "3", "--grads", path)
        read = [harness.read_safetensors(path) for path in grads]
        self.tally.check(read[0] == read[1], name + "--grads")
        whole = self.run(programs[0], ranks, transport, "--steps", "6")
        for first, second in ((0, 1), (1, 0), (1, 1)):
            self.run(programs[first], ranks, transport, "--steps", "6", "--stop-at", "3")
            saved = [program + ".saved" for program in programs]
            if first != second:
                harness.call(["rm", "-rf", saved[second]])
                os.rename(saved[first], saved[second])
            _, files = self.run(programs[second], ranks, transport, "--resume", saved[second])
            self.tally.check(files == whole[1], f"{name}resumed from {first} by {second}")

    def late(self):
        """More steps than are said at once, and gradients that are not finite."""
        programs = self.pair("long", schedule="zb_h2", ranks=2, microbatches=4, clip=1.0)
        self.compare("40 steps", programs, 2, "threads", "--steps", "40")
        programs = self.pair("infinite", schedule="zb_h2", ranks=2, microbatches=4, clip=1.0, lr=1e38)
        ends = [self.run(program, 2, "threads", "--steps", "40", expect=1) for program in programs]
        self.tally.check(ends[0] == ends[1] and "the gradients of 8 steps up to step" in ends[0],
                         f"gradients that are not finite: {ends[0].strip()} / {ends[1].strip()}")

    def overlaps(self):
        """In a measured trace steps overlap: a rank runs forwards before another has made its last gradient."""
        for schedule, ranks, microbatches in (("zb_h2", 4, 8), ("zb_v", 4, 8)):
            found = []
            for program in self.pair("traced_" + schedule, schedule=schedule, ranks=ranks, microbatches=microbatches,
                                     layers=8, clip=1e9):
                path = program + ".trace"
                self.run(program, ranks, "threads", "--steps", str(2 * STEPS), "--trace", path)
                with open(path) as file:
                    events = json.load(file)
                begins, ends = [0] * 2 * STEPS, [0] * 2 * STEPS  # of the first F and the last B, I or W of each step
                seen = {}
                for event in events["traceEvents"] if isinstance(events, dict) else events:
                    if event.get("ph") != "X" or event["cat"] not in "FBIW":
                        continue
                    unit = event["pid"], event["tid"], event["name"]
                    step = seen[unit] = seen.get(unit, -1) + 1
                    begins[step] = min(begins[step] or event["ts"], event["ts"])
                    if event["cat"] != "F":
                        ends[step] = max(ends[step], event["ts"] + event["dur"])
                found.append(sum(begin < end for begin, end in zip(begins[1:], ends)))
            self.tally.check(found[0] == 0 and found[1] > 0,
                             f"{schedule} on {ranks}: of {2 * STEPS - 1} steps begin before the last one has ended: "
                             f"{found[0]} with a barrier, {found[1]} without")

    def refused(self):
        for why, values in (("several updates a step", dict(schedule="pipedream_2bw", ranks=2, microbatches=4)),
                            ("`zero` above 0", {"schedule": "1f1b", "ranks": 2, "mesh.data": 2, "mesh.zero": 1}),
                            ("is cut over ranks", dict(schedule="fsdp", ranks=2, microbatches=4)),
                            ("mixtures of experts", dict(schedule="1f1b", ranks=2, microbatches=4, model="mixtral")),
                            ("has no option `barrier`", dict(schedule="1f1b", ranks=2, optimizer="muon"))):
            try:
                self.compile("refused", False, values)
                self.tally.check(False, f"compiles in spite of: {why}")
            except RuntimeError as error:
                self.tally.check(why in str(error), f"refused: {why}" + ("" if why in str(error) else str(error)))


def main():
    compiler, folder = sys.argv[1:3]
    every = "--all" in sys.argv[3:]
    judge = Judge(compiler, folder, every)
    with open(judge.text, "rb") as whole, open(judge.text[:-4] + ".short", "wb") as short:
        short.write(whole.read(400))
    both = ("threads", "mpi")
    last = judge.clipped("zb_h2", 4, 8, both if every else ("threads",))
    judge.between(last, 4, "threads")
    judge.clipped("1f1b", 2, 4, ("mpi",), precision="f64")
    judge.clipped("interleaved", 2, 4, ("threads",))
    judge.clipped("1f1b", 2, 4, ("threads",), **{"mesh.tensor": 2, "mesh.data": 2})
    for schedule, ranks, microbatches, transports, more in ALL if every else ():
        judge.clipped(schedule, ranks, microbatches, transports, **more)
    for window in (2, 4) if every else (2,):
        _, lines = judge.steps(f"f16_{window}", f"f16, the scale doubles after {window} steps", 4, ("threads",),
                               steps=14, schedule="zb_h2", microbatches=8, precision="f16", clip=0,
                               **{"optimizer.loss_scale": 2**24, "optimizer.scale_window": window})
        skipped = sum(line[5] for line in lines)
        judge.tally.check(0 < skipped < 14 and judge.over == skipped, f"f16: {skipped} of 14 steps overflow")
    judge.late()
    if every:
        judge.overlaps()
    judge.refused()
    return judge.tally.close()


if __name__ == "__main__":
    sys.exit(main())
