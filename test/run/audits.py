#!/usr/bin/env python3
"""Judges --audit: a flipped bit in a message, a sum or a weight ends the run and is named; without one nothing does."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: audits.py PP_COMPILE FOLDER [--cases N] [--seed S]   (with PP_TEST_RUNTIME=libpp-runtime-faulty.a)
# Programs are linked with a runtime that flips one drawn bit of one drawn message or tensor (Inputs/Faults.cpp), and
# says on stderr which one it was. The run must end with code 2 and one sentence that has the same name, the devices and
# the step. The same programs without a fault train to their end, and their losses are those of a run without --audit.
import os, random, re, subprocess, sys
import harness

SIZES = dict(layers=4, hidden=32, heads=4, ffn=48, vocab=64, sequence=16, microbatch=2, microbatches=4, ranks=2)
SIX_STEPS = ["--data", "random", "--steps", "6"]
# Devices, then what differs from SIZES: programs in which bits are flipped, and others that only are audited.
FLIPPED = {
    "1f1b": (4, dict(schedule="1f1b", ranks=4, model="llama")),
    "slimpipe": (2, dict(schedule="slimpipe", exchange="true", layers=8, kv_heads=1)),
    "fsdp": (2, dict(schedule="fsdp")),
    "weipipe": (2, dict(schedule="weipipe", precision="bf16")),
    "dualpipe": (4, dict(schedule="dualpipe", ranks=4, layers=8, microbatches=8)),
    "data": (3, {"schedule": "single", "ranks": 1, "mesh.data": 3}),
    "zero": (4, {"schedule": "1f1b", "mesh.data": 2, "mesh.zero": 1}),
    "tensor": (4, {"schedule": "zb_v", "mesh.tensor": 2, "mesh.sequence": "true", "model": "gpt2"}),
    "context": (4, {"schedule": "1f1b", "mesh.context": 2, "mesh.attention": "heads"}),
}
MESHES = ("data", "zero", "tensor", "context")
SILENT = {
    "zb_v": (2, dict(schedule="zb_v")),
    "chimera": (2, dict(schedule="chimera")),
    "replicated": (4, dict(schedule="replicated_1f1b", ranks=4, replicas=2)),
    "two_versions": (2, dict(schedule="pipedream_2bw")),
    "offload": (2, dict(schedule="gpipe_offload")),
    "bf16": (4, {"schedule": "1f1b", "mesh.data": 2, "precision": "bf16"}),
    "f16": (4, {"schedule": "1f1b", "mesh.tensor": 2, "precision": "f16"}),
    "experts": (4, {"schedule": "1f1b", "mesh.context": 2, "mesh.expert": 2, "model": "mixtral", "experts": 4}),
    "keys": (4, {"schedule": "1f1b", "mesh.context": 2}),
    "late": (4, {"schedule": "1f1b", "mesh.data": 2, "optimizer.barrier": "false", "clip": "0.5"}),
}


class Audits:
    def __init__(self, arguments):
        self.compiler, self.folder = arguments.compiler, arguments.folder
        self.tally, self.dice = harness.Tally(), random.Random(arguments.seed)
        self.programs = {}

    def program(self, name):
        """Compiled when first asked for."""
        devices, values = (FLIPPED | SILENT)[name]
        if name not in self.programs:
            self.programs[name] = harness.compile_train(self.compiler, os.path.join(self.folder, name), SIZES | values)
        return self.programs[name], devices

    def run(self, name, transport, *options, fault=None):
        program, devices = self.program(name)
        environment = {key: value for key, value in harness.ENVIRONMENT.items() if key != "PP_FAULT"}
        if fault:
            environment["PP_FAULT"] = fault
        return subprocess.run([*harness.launch(program, devices, transport), *SIX_STEPS, *options], env=environment,
                              capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)

    def silent(self, name):
        """Audited steps train to the same losses as others, and something was compared."""
        plain = losses(self.run(name, "threads"))
        other = self.dice.choice(("mpi", "streams/3", "staged/3")) if name in SILENT else "streams/3"
        for transport, every in (("threads", 1), ("mpi" if name == "late" else other, 2)):
            done = self.run(name, transport, "--audit", str(every))
            found = re.search(r"^audits: (\d) steps, (\d+) messages and (\d+) copies", done.stdout, re.M)
            good = (done.returncode == 0 and losses(done) == plain and len(plain) == 6 and found
                    and ("emulated" in done.stdout) == ("/" in transport)
                    and (name != "late" or re.search(r"updates done over: [1-9]", done.stdout)))
            self.tally.check(good and int(found[1]) == 6 // every and int(found[2]) + int(found[3]) > 0,
                             f"{name}, {transport}: {found[0] if good else (done.returncode, done.stderr[-500:])}")

    def flip(self, name, transport, kind, part=""):
        """A bit is flipped in step 4, and audits are in steps 2, 4 and 6. Replicas that all update their weights stay
        apart, so that a weight may flip in step 3; with ZeRO the owner's value reaches the others in step 4."""
        _, devices = self.program(name)
        step = self.dice.choice((3, 4)) if kind == "weight" and name != "zero" else 4
        device, seed = self.dice.randrange(devices), self.dice.randrange(1 << 30)
        done = self.run(name, transport, "--audit", "2", fault=f"{step}:{device}:{kind}:{seed}:{part}")
        what = f"{name}, {transport}, {kind} {part or 'any'}, device {device}, step {step}"
        flipped = re.findall(r"^flipped (.*)$", done.stderr, re.M)
        errors = [line for line in done.stderr.splitlines() if line.startswith("pp: error: ")]
        if flipped == ["nothing"] or (not flipped and kind == "rest" and done.returncode == 0):
            return False  # no such message; or the device has no input, with which its weights would change
        if len(flipped) != 1 or len(errors) != 1 or done.returncode != 2:
            self.tally.check(False, f"{what}: {flipped}, code {done.returncode}: {done.stderr[-500:]}")
            return True
        error, label = errors[0][11:], re.search(r"`[^`]+`", flipped[0])[0]
        own = f"{'device' if name in MESHES else 'rank'} {device}"
        named = re.search(rf"\b{own}\b", error) and label in error
        sent = re.match(r"`.*` (to|from) (.*) (\(\d+ bytes, channel \d+\))$", flipped[0])
        if sent:  # from one to one
            to, begin = (sent[2], own) if sent[1] == "to" else (own, sent[2])
            named = re.match(rf"{re.escape(to)}(?!\d).*, step 4, .*{re.escape(label)} from {re.escape(begin)}(?!\d).* "
                             rf"{re.escape(sent[3])} is not what was sent", error)
        self.tally.check(named and ("before step 5: " if kind == "rest" else "step 4") in error, f"{what}: {error}")
        return True

    def alone(self):
        """Of three copies the one that stands alone is named."""
        done = self.run("data", "threads", "--audit", "2", fault="3:1:weight:7")
        self.tally.check("; device 1 (rank 0, data 1) stands alone" in done.stderr,
                         "one of three: " + done.stderr.splitlines()[-1])

    def unaudited(self):
        """What is flipped in a step that is not audited, and heals, is not found; nor is anything without --audit."""
        done = self.run("1f1b", "threads", "--audit", "2", fault="3:0:given:1:act")
        self.tally.check(done.returncode == 0 and "flipped" in done.stderr, "a message of a step without audit")
        done = self.run("data", "threads", fault="3:1:weight:7")
        self.tally.check(done.returncode == 0 and "flipped" in done.stderr, "a weight without --audit")

    def refused(self):
        for options, words in ((["--audit", "0"], "expects a whole number from 1"),
                               (["--audit", "2", "--profile", os.path.join(self.folder, "p")], "times would hold")):
            done = self.run("data", "threads", *options)
            self.tally.check(done.returncode == 1 and words in done.stderr, f"{options[:2]}: {done.stderr.strip()}")


def losses(done):
    return re.findall(r"loss +(\S+)", done.stdout)


def main():
    arguments = harness.draws(cases=20, seed=21)
    audits = Audits(arguments)
    audits.alone()
    audits.unaudited()
    audits.refused()
    copies = {"data": "", "tensor": "norm", "context": "", "dualpipe": "weight", "zero": "weight$"}
    for name in ("1f1b", "fsdp", "context"):
        audits.flip(name, f"streams/{audits.dice.randrange(99)}", "given")
    done = 0
    for _ in range(4 * arguments.cases):
        kind = audits.dice.choice(("given", "taken", "term", "rest", "weight"))
        name = audits.dice.choice(sorted(copies if kind == "weight" else FLIPPED))
        transport = "mpi" if kind == "term" else audits.dice.choice(("threads", "mpi"))
        done += audits.flip(name, transport, kind, copies[name] if kind == "weight" else "")
        if done == arguments.cases:
            break
    audits.tally.check(done == arguments.cases, f"{done} of {arguments.cases} drawn places were flipped")
    for name in FLIPPED | SILENT:
        audits.silent(name)
    return audits.tally.close()


if __name__ == "__main__":
    sys.exit(main())
