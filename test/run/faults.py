#!/usr/bin/env python3
"""Breaks things on purpose: bad input and killed ranks end with one message that one can act on, and nothing hangs."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: faults.py PP_COMPILE FOLDER
import os, re, shutil, signal, struct, subprocess, sys, time, zlib
import harness

SIZES = dict(schedule="1f1b", model="llama", ranks=4, microbatches=4, layers=4, hidden=32, heads=4, kv_heads=2, ffn=48,
             vocab=256, sequence=32, microbatch=2)
PAIR = SIZES | dict(ranks=2, microbatches=2, layers=2)


class Faults:
    def __init__(self, compiler, folder):
        self.folder, self.tally = folder, harness.Tally()
        self.text = harness.write_text(folder)
        self.program = harness.compile_train(compiler, self.path("program"), SIZES)
        self.pair = harness.compile_train(compiler, self.path("pair"), PAIR)
        self.compiler = compiler

    def path(self, name):
        return os.path.join(self.folder, name)

    def expect(self, what, command, *words):
        """The command fails within a minute, and says all the words in one line of its error output."""
        done = subprocess.run(command, env=harness.ENVIRONMENT, capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL)
        lines = [line for line in done.stderr.splitlines() if "error:" in line]
        said = [line for line in lines if all(word in line for word in words)]
        self.tally.check(done.returncode != 0 and len(said) == 1,
                         f"{what}: {said[0] if said else (done.returncode, done.stderr[-600:])}")

    def compiling(self):
        for what, values, words in (
            ("a schedule that does not exist", dict(schedule="1f1c"), ["1f1c", "did you mean `1f1b`"]),
            ("a model that does not exist", dict(model="lama"), ["lama", "did you mean `llama`"]),
            ("fewer layers than stages", dict(layers=3), ["4 stages need a layer each, and the model has 3"]),
            ("heads that do not divide", dict(hidden=30), ["`hidden` must be a multiple of `heads`"]),
            ("sizes whose sum is no number of 64 bits", dict(schedule="single", ranks=1, layers=400, hidden=256,
                                                             ffn=2 ** 40), ["the values of rank 0", "(2 EiB) or more"]),
            ("WeiPipe with half a round", dict(schedule="weipipe_interleave", microbatches=6), ["microbatches"]),
        ):
            defines = [word for key, value in (SIZES | values).items() for word in ("-D", f"{key}={value}")]
            self.expect(what, [self.compiler, harness.TRAIN, *defines, "-o", self.path("none")], *words)
        self.expect("a parameter that does not exist", [self.compiler, harness.TRAIN, "-D", "rank=4"],
                    "rank", "did you mean `ranks`")
        self.expect("a rank that does not exist", [self.compiler, harness.TRAIN, "--rank=9", "--emit=obj"],
                    "rank 9 does not exist", "0 to 3")

    def options(self):
        run = [self.program, "--in-process"]
        good = ["--data", self.text, "--steps", "1"]
        self.expect("a wrong option", [*run, *good, "--step"], "--step")
        self.expect("no data", [*run, "--steps", "1"], "--data")
        self.expect("data that does not exist", [*run, "--data", self.path("missing"), "--steps", "1"], "missing")
        self.expect("too few ranks", [*harness.launch(self.program, 3, "mpi"), *good], "4 ranks", "3")
        with open(self.path("short.bin"), "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, 1000, *[0] * 253) + b"\0\0" * 500)
        self.expect("a truncated token file", [*run, "--data", self.path("short.bin"), "--steps", "1"], "1000 tokens",
                    "2024")
        blocked = self.path("a_file_not_a_folder")
        open(blocked, "w").close()
        self.expect("an unwritable checkpoint folder", [*run, *good, "--save", os.path.join(blocked, "x")], blocked)

    def weights(self):
        run = [self.program, "--in-process", "--data", self.text, "--steps", "1"]
        harness.call([*run, "--save", self.path("good")])
        with open(os.path.join(self.path("good"), "model.safetensors"), "rb") as file:
            data = file.read()
        for what, content, words in (("a cut safetensors file", data[:len(data) // 2], ["cut.safetensors"]),
                                     ("a safetensors file of noise", os.urandom(4096), ["cut.safetensors"])):
            with open(self.path("cut.safetensors"), "wb") as file:
                file.write(content)
            self.expect(what, [*run, "--load", self.path("cut.safetensors")], *words)
        other = harness.compile_train(self.compiler, self.path("other"), SIZES | dict(ffn=64))
        self.expect("weights of another shape", [other, "--in-process", "--data", self.text, "--load",
                                                 os.path.join(self.path("good"), "model.safetensors")], "mlp", "64",
                    "48")
        self.expect("a checkpoint of another model", [other, "--in-process", "--data", self.text, "--resume",
                                                      self.path("good")], "good")

    def strike(self, sign, *options):
        """Sends one rank a signal in the middle of a step: its number, what all said, seconds until all had ended."""
        command = [*harness.launch(self.program, 4, "mpi"), "--data", self.text, "--steps", "100000", *options]
        run = subprocess.Popen(command, env=harness.ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
        time.sleep(4)
        number = 2
        os.kill(harness.ranks_of(run.pid)[number], sign)
        struck = time.time()
        try:
            _, errors = run.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            run.kill()
            return number, "mpirun still runs after 20 seconds", 20
        return number, errors if run.returncode else "mpirun says that all is well", time.time() - struck

    def wrapper(self, name, rank, command):
        """A program that does something before it becomes the program, on one rank."""
        path = self.path(name)
        with open(path, "w") as file:
            file.write(f'#!/bin/sh\nif [ "$OMPI_COMM_WORLD_RANK" = {rank} ]; then {command}; fi\n'
                       f'exec "{self.pair}" "$@"\n')
        os.chmod(path, 0o755)
        return path

    def pairs(self, ranks, *common, program=None):
        """Two ranks, each with options of its own; `program`: of rank 1."""
        words = ["mpirun", "--oversubscribe"]
        for rank, own in enumerate(ranks):
            words += [":"] * rank + ["-n", "1", program if rank and program else self.pair, *common, *own]
        return words

    def alike(self):
        """What ranks are trusted to have in common differs: all end before the first step, and both ranks are named."""
        bodies = [bytes(range(64)) * 64, bytes(range(64)) * 63 + b"z" * 64]
        for name, body in zip("xyz", [*bodies, bodies[0]]):
            with open(self.path(name), "wb") as file:
                file.write(body)
        x, y, z = ("u8:" + self.path(name) for name in "xyz")
        sums = [f"{zlib.crc32(body):08x}" for body in bodies]
        steps = ["--data", x, "--steps", "1"]
        harness.call([*harness.launch(self.pair, 2, "mpi"), *steps, "--save", self.path("begun"), "--stop-at", "1"])
        shutil.copytree(self.path("begun"), self.path("changed"), dirs_exist_ok=True)
        with open(self.path("changed/model.safetensors"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x01")
        heads = harness.compile_train(self.compiler, self.path("heads"), PAIR | dict(heads=2))
        rate = harness.compile_train(self.compiler, self.path("rate"), PAIR | dict(lr=0.5))
        plain = self.wrapper("plain", 1, "export PP_ISA=plain")
        weights = [["--load", self.path(name) + "/model.safetensors"] for name in ("begun", "changed")]
        for what, command, words in (
            ("data", self.pairs((["--data", x], ["--data", y]), "--steps", "1"),
             [f"`--data` is `{y}` (4096 bytes, checksum {sums[1]}, read as u8) on rank 1 and `{x}` (4096 bytes, "
              f"checksum {sums[0]}, read as u8) on rank 0"]),
            ("a file to evaluate", self.pairs((["--eval", x], ["--eval", y]), *steps), ["`--eval` is", *sums]),
            ("seeds", self.pairs((["--seed", "1"], ["--seed", "2"]), *steps),
             ["`--seed` is 2 on rank 1 and 1 on rank 0"]),
            ("steps and a rate", self.pairs((["--steps", "2"], ["--steps", "3", "--lr", "0.1"]), "--data", x),
             ["`--steps` is 3 on rank 1 and 2 on rank 0", "`--lr` is 0.1 on rank 1 and not given on rank 0"]),
            ("a checkpoint that one rank alone wants", self.pairs(([], ["--save", self.path("none")]), *steps),
             ["`--save` is given on rank 1 and not given on rank 0"]),
            ("heads", self.pairs(([], []), *steps, program=heads),
             ["what the model computes (heads", "rank 1", "rank 0"]),
            ("a program's rate", self.pairs(([], []), *steps, program=rate),
             ["`optimizer.lr` of the program is 0.5 on rank 1 and", "on rank 0"]),
            ("ranks of another program", self.pairs(([], []), *steps, program=self.program),
             ["`ranks` of the program is 4 on rank 1 and 2 on rank 0"]),
            ("instruction sets", self.pairs(([], []), *steps, program=plain), ["PP_ISA", "is plain on rank 1 and"]),
            ("weights", self.pairs(weights, *steps), ["`--load` is", "on rank 1 and", "on rank 0"]),
            ("checkpoints", self.pairs([["--resume", self.path(name)] for name in ("begun", "changed")],
                                       "--data", x, "--steps", "2"), ["`model.safetensors` of `--resume` is"]),
            ("an option that is wrong on rank 1", self.pairs(([], ["--sed", "1"]), *steps),
             ["rank 1", "unknown option"]),
            ("a seed, by pp-run", [sys.executable, os.path.join(os.path.dirname(self.compiler), "pp-run"), "-n", "2",
                                   "--retries", "0", "--launch-with=--oversubscribe",
                                   self.wrapper("seeds", 1, 'set -- "$@" --seed 7'), *steps],
             ["`--seed` is 7 on rank 1 and not given on rank 0"])):
            self.expect("ranks that differ: " + what, command, *words)
        own = (["--data", x, "--trace", self.path("t0"), "--timeout", "50", "--log", self.path("log")],
               ["--data", z, "--trace", self.path("t1")])
        done = subprocess.run(self.pairs(own, "--steps", "1"), env=harness.ENVIRONMENT, capture_output=True,
                              text=True, timeout=60)
        self.tally.check(done.returncode == 0, f"the same data elsewhere, other outputs: {done.stderr[-300:]}")

    def starting(self):
        """A rank that is stopped while MPI starts, or is not there yet: the others name it. One that cannot be seen, as
        if it was on another machine, is not one of this machine."""
        for what, command, said in (("is stopped", "kill -STOP $$", "rank 1 (process"),
                                    ("has not come", "sleep 30", "rank 1 (process"),
                                    ("have come", "exec env -i sleep 30", "the ranks of this machine")):
            late = self.wrapper("late", 1, command)
            began = time.time()
            self.expect(f"a rank, {what}", [*harness.launch(late, 2, "mpi"), "--data", self.text, "--steps", "1",
                                            "--timeout", "2"], "the start of MPI", said, what)
            self.tally.check(time.time() - began < 8, f"{what}: all ended after {time.time() - began:.1f} s")

    def alive(self):
        return subprocess.run(["pgrep", "-f", f"^{self.program} --data"], capture_output=True,
                              text=True).stdout.split()

    def killed(self):
        """A rank killed in the middle of a step: mpirun and all ranks are gone within ten seconds."""
        number, errors, took = self.strike(signal.SIGKILL)
        left, named = self.alive(), f"rank {number}" in errors
        self.tally.check(took < 10 and not left and named,
                         f"a killed rank: all ended after {took:.1f} s, named: {named}, left: {left}"
                         + ("" if named else errors[-800:]))

    def stopped(self):
        """A rank that stops: the report names it, and of each message that others wait for the line of its unit. If
        they wait between two steps, or for the norm, another run is stopped."""
        with open(os.path.join(harness.ROOT, "stdlib", "1f1b.pipe")) as file:
            source = file.read().split("\n")
        for _ in range(8):
            number, errors, took = self.strike(signal.SIGSTOP, "--timeout", "2")
            places = re.findall(r"`(d?act)\(\d+, \d+\)` (?:to|from) rank \d+ \([^;]*?, 1f1b\.pipe:(\d+):(\d+)\)",
                                errors)
            if places or f"rank {number} (process" not in errors:
                break
        right = places and all(source[int(line) - 1][int(column) - 1:].startswith("B(" if what == "dact" else "F(")
                               for what, line, column in places)
        self.tally.check(took < 10 and right and f"rank {number} (process" in errors,
                         f"a stopped rank: all ended after {took:.1f} s; " + errors[-900:].strip().split("\n")[0])


def main():
    faults = Faults(sys.argv[1], sys.argv[2])
    faults.compiling()
    faults.options()
    faults.weights()
    faults.alike()
    faults.starting()
    faults.killed()
    faults.stopped()
    return faults.tally.close()


if __name__ == "__main__":
    sys.exit(main())
