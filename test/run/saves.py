#!/usr/bin/env python3
"""Checkpoints behind the steps: never half, whatever kills the run; the last K stay; a save that fails is said."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: saves.py PP_COMPILE FOLDER [--kills N]        0: at every operation on a file
import json, os, re, shutil, subprocess, sys, time, zlib
import harness

SIZES = dict(schedule="1f1b", ranks=2, microbatches=2, model="llama", layers=2, hidden=16, heads=2, kv_heads=2, ffn=16,
             vocab=256, sequence=8, microbatch=1)
STEPS = 9
KEEPS = ["--save", "ck", "--save-every", "2", "--keep", "3"]  # 9, and 8 and 6 before it


def damage(folder):
    """What is wrong with a checkpoint, by its own checksums; nothing: it is whole."""
    try:
        with open(os.path.join(folder, "state.json"), "rb") as file:
            text = file.read()
        state = json.loads(text)
        before = text[:text.rindex(b',\n  "crc32_before"')]
        if f"{zlib.crc32(before):08x}" != state["crc32_before"]:
            return "state.json"
        if set(state["crc32"]) != set(state["files"]) - {"state.json"}:
            return "list of files"
        for name, expected in state["crc32"].items():
            with open(os.path.join(folder, name), "rb") as file:
                if f"{zlib.crc32(file.read()):08x}" != expected:
                    return name
        return ""
    except (OSError, ValueError, KeyError) as error:
        return str(error)


def step_of(folder):
    with open(os.path.join(folder, "state.json")) as file:
        return json.load(file)["step"]


def folders():
    return sorted(name for name in os.listdir() if name.startswith("ck"))


class Saves:
    def __init__(self, compiler, folder):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        os.chdir(folder)
        self.text, self.tally = harness.write_text(folder), harness.Tally()
        harness.compile_train(compiler, "prog", SIZES)
        operations = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs", "FileOps.c")
        harness.call([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", "ops.so", operations, "-ldl"])
        self.run("--save", "whole")
        with open("whole/model.safetensors", "rb") as file:
            self.whole = file.read()

    def command(self, *words, steps=STEPS):
        return ["./prog", "--in-process", "--data", self.text, *(["--steps", str(steps)] if steps else []), *words]

    def run(self, *words, steps=STEPS, **environment):
        return subprocess.run(self.command(*words, steps=steps), env=dict(harness.ENVIRONMENT, **environment),
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)

    def clean(self):
        for name in folders():
            shutil.rmtree(name, ignore_errors=True)
            if os.path.exists(name):
                os.remove(name)

    def kept(self):
        """A run that is not killed, alone and over MPI."""
        for launch in ([], ["mpirun", "-n", "2", "--oversubscribe"]):
            self.clean()
            command = [word for word in self.command(*KEEPS) if not launch or word != "--in-process"]
            done = subprocess.run([*launch, *command], env=harness.ENVIRONMENT, capture_output=True, text=True)
            self.tally.check(done.returncode == 0 and folders() == ["ck", "ck.step-6", "ck.step-8"],
                             f"the last three checkpoints stay: {folders()} {done.stderr[-200:]}")
            self.same("a run that saves")
        self.clean()
        self.run(*KEEPS, "--save-sync")
        self.same("a run that saves between the steps")
        said = subprocess.run(["./prog", "--info"], capture_output=True, text=True).stdout
        bytes_ = sum(len(values) * 4 for name in ("model", "optimizer")
                     for _, values in harness.read_safetensors(f"ck/{name}.safetensors").values())
        self.tally.check(f"--save-every copies {bytes_} bytes" in said, f"--info counts the copy, {bytes_} bytes")

    def same(self, what):
        wrong = [f"{name}: {damage(name)}" for name in folders() if damage(name)]
        with open("ck/model.safetensors", "rb") as file:
            self.tally.check(file.read() == self.whole and not wrong, f"{what} ends in the same bits {wrong}")

    def behind(self):
        """Steps go on while a checkpoint is written, and the end waits for it."""
        for words, reached in (([], 4), (["--save-sync"], 2)):
            self.clean()
            if os.path.exists("go"):
                os.remove("go")
            run = subprocess.Popen(self.command("--save", "ck", "--save-every", "2", "--log", "log", *words),
                                   env=dict(harness.ENVIRONMENT, LD_PRELOAD=os.path.abspath("ops.so"), PP_HOLD="go"),
                                   stdout=subprocess.DEVNULL)
            count, end = 0, time.time() + 20
            while count < reached and time.time() < end:
                time.sleep(0.05)
                count = sum(1 for _ in open("log")) if os.path.exists("log") else 0
            time.sleep(0.3)
            count = sum(1 for _ in open("log"))
            held = run.poll() is None and not os.path.exists("ck")
            open("go", "w").close()
            run.communicate(timeout=30)
            self.tally.check(held and count == reached and run.returncode == 0,
                             f"with {words} a write that is held lets {count} steps go on, expected {reached}")
            self.same("a run whose writing was held")
            os.remove("log")

    def kills(self, number):
        """Killed before an operation on a file: what is there is whole, and the run that goes on ends alike."""
        at, every, killed = 1, 1, 0
        if number:  # how many there are
            low, high = 1, 4096
            while low < high:
                self.clean()
                middle = (low + high) // 2
                alive = self.run(*KEEPS, LD_PRELOAD="./ops.so", PP_KILL_AT=str(middle)).returncode == 0
                low, high = (low, middle) if alive else (middle + 1, high)
            every = max(1, low / number)
        while True:
            self.clean()
            done = self.run(*KEEPS, LD_PRELOAD="./ops.so", PP_KILL_AT=str(int(at)))
            if done.returncode == 0:
                break
            killed += 1
            left = folders()
            wrong = damage("ck") if "ck" in left else ""
            said = [int(step) for step in re.findall(r"^step +(\d+)/", done.stdout, re.M)]
            # A save is done before the next one begins, and a step is said before its save.
            late = bool(said) and (step_of("ck") if "ck" in left else 0) < max(said) // 2 * 2 - 4
            many = [name for name in left if ".step-" in name and not damage(name)]
            going = self.run(*KEEPS, *(["--resume", "ck"] if "ck" in left else []))
            resumed = going.returncode == 0
            if "ck" in left and step_of("ck") == STEPS and not resumed:
                resumed = "nothing to do" in going.stderr
            with open("ck/model.safetensors", "rb") as file:
                same = file.read() == self.whole
            after = folders()
            good = not wrong and not late and len(many) <= 3 and resumed and same and not damage("ck")
            if going.returncode == 0:
                good = good and after == ["ck", "ck.step-6", "ck.step-8"] and not any(map(damage, after))
            if not good:
                self.tally.check(False, f"killed before operation {int(at)}: {left} {wrong}, late {late}, then "
                                 f"{going.stderr[-200:]} {after}, same {same}")
            at += every
        self.tally.check(killed > 10, f"killed before {killed} operations on files")

    def full(self):
        """No room for a checkpoint: the run says so and ends, and the last one stays."""
        self.clean()
        self.run("--save", "ck", "--stop-at", "3")
        for launch in ([], ["mpirun", "-n", "2", "--oversubscribe"]):
            for words in ([], ["--save-sync"]):
                command = [word for word in self.command("--save", "ck", "--resume", "ck", "--save-every", "2", *words,
                                                         steps=100000) if not launch or word != "--in-process"]
                done = subprocess.run([*launch, "env", "LD_PRELOAD=./ops.so", "PP_FULL=1", *command],
                                      env=harness.ENVIRONMENT, capture_output=True, text=True, timeout=60)
                lines = [line for line in done.stderr.splitlines() if "pp: error" in line]
                said = len(lines) == 1 and "No space left on device" in lines[0]
                self.tally.check(done.returncode == 2 and said and
                                 "the checkpoint of step 4 is not written: " in lines[0],
                                 f"no room, {launch[:1]} {words}: {done.returncode} {lines}")
                self.tally.check(folders() == ["ck"] and not damage("ck") and step_of("ck") == 3,
                                 f"the last checkpoint stays: {folders()}")


def main():
    options = harness.draws(kills=25)
    saves = Saves(os.path.abspath(options.compiler), os.path.abspath(options.folder))
    saves.kept()
    saves.behind()
    saves.full()
    saves.kills(options.kills)
    return saves.tally.close()


if __name__ == "__main__":
    sys.exit(main())
