#!/usr/bin/env python3
"""SIGTERM and SIGUSR1: a run that saves ends behind its step with a checkpoint, from which it goes on to the bit."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: told.py PP_COMPILE FOLDER
import json, os, re, shutil, signal, subprocess, sys
import harness

SIZES = dict(schedule="1f1b", ranks=2, microbatches=2, model="llama", layers=2, hidden=16, heads=2, kv_heads=2, ffn=16,
             vocab=256, sequence=16, microbatch=1)
TOLD, STEPS = 5, 100000  # the exit code; more steps than a run makes here


class Told:
    def __init__(self, compiler, folder):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        os.chdir(folder)
        self.tally, self.text = harness.Tally(), harness.write_text(folder)
        self.tool = os.path.join(os.path.dirname(compiler), "pp-run")
        harness.compile_train(compiler, "plain", SIZES)
        harness.compile_train(compiler, "late", SIZES | {"optimizer.barrier": "false"})

    def run(self, launch, number, target, *words):
        """A run that is told so after its third step: its code, and what it said. `target`: the process, by that of
        the first one."""
        run = subprocess.Popen([*launch, "--data", self.text, "--steps", str(STEPS), "--log", "log", *words],
                               env=harness.ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not re.match(r"step +3/", line := run.stdout.readline()) and line:
            pass
        os.kill(target(run.pid), number)
        try:
            output, errors = run.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            run.kill()
            return "hangs", *run.communicate()
        return run.returncode, output, errors

    def ends(self, what, program, launch, number, target):
        """The checkpoint is of the last step that was said; the run that goes on has the losses of one without a
        break."""
        for name in ("saved", "log"):
            shutil.rmtree(name, ignore_errors=True)
            if os.path.exists(name):
                os.unlink(name)
        code, output, errors = self.run(launch, number, target, "--save", "saved", "--save-every", "1000000")
        step = 0
        if os.path.exists("saved/state.json"):
            with open("saved/state.json") as file:
                step = json.load(file)["step"]
        said = int((re.findall(r"^step +(\d+)/", output, re.M) or [0])[-1])
        good = code == TOLD and step == said >= 3 and f"the run ends behind step {step} of {STEPS}" in output
        self.tally.check(good, f"{what}: code {code}, checkpoint of step {step}, last step {said} {errors[-300:]}")
        if not good:
            return
        alone = ["./" + program, "--in-process", "--data", self.text]
        last = str(step + 2)
        harness.call([*alone, "--resume", "saved", "--stop-at", last, "--save", "resumed"])
        harness.call([*alone, "--steps", str(STEPS), "--stop-at", last, "--save", "whole"])
        same = all(read(f"resumed/{name}.safetensors") == read(f"whole/{name}.safetensors")
                   for name in ("model", "optimizer"))
        self.tally.check(same, f"{what}: the run that goes on ends in the bits of one that was not told")

    def all(self):
        itself = lambda pid: pid
        mpi = harness.launch("./plain", 2, "mpi")
        second = lambda pid: harness.ranks_of(pid)[1]
        self.ends("SIGUSR1 to mpirun", "plain", mpi, signal.SIGUSR1, itself)
        self.ends("SIGTERM to rank 1 alone", "plain", mpi, signal.SIGTERM, second)
        self.ends("SIGUSR1 to rank 1 alone, without a barrier", "late", harness.launch("./late", 2, "mpi"),
                  signal.SIGUSR1, second)
        self.ends("SIGTERM in one process", "plain", ["./plain", "--in-process"], signal.SIGTERM, itself)
        self.ends("SIGTERM to pp-run", "plain", [sys.executable, self.tool, "-n", "2", "--launch-with=--oversubscribe",
                                                 "./plain"], signal.SIGTERM, itself)
        for launch in (["./plain", "--in-process"], mpi):
            code, _, _ = self.run(launch, signal.SIGTERM, itself if len(launch) == 2 else second)
            self.tally.check(code not in (0, TOLD, "hangs"), f"SIGTERM without --save, {launch[0]}: {code}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def main():
    told = Told(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
    told.all()
    return told.tally.close()


if __name__ == "__main__":
    sys.exit(main())
