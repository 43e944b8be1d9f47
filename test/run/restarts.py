#!/usr/bin/env python3
"""Kills and stops ranks of a run under pp-run: it ends in the weights of the unbroken run, and never runs for ever."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: restarts.py PP_COMPILE FOLDER [--kills N] [--seed N]
import json, os, random, shutil, signal, subprocess, sys, time
import harness

SIZES = dict(schedule="1f1b", ranks=4, microbatches=8, model="llama", layers=4, hidden=64, heads=4, kv_heads=2, ffn=96,
             vocab=256, sequence=64, microbatch=1)
STEPS, TIMEOUT = 200, 3.0


def newest(folder):
    """The step of the checkpoint there; 0: there is none."""
    try:
        with open(os.path.join(folder, "state.json")) as file:
            return json.load(file)["step"]
    except (OSError, ValueError):
        return 0


def children(parent):
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(child) for child in done.stdout.split()]


def is_alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def write(path, text, mode=0o755):
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Restarts:
    def __init__(self, options):
        compiler, folder = os.path.abspath(options.compiler), os.path.abspath(options.folder)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        os.chdir(folder)
        self.compiler, self.draw, self.tally = compiler, random.Random(options.seed), harness.Tally()
        self.tool = os.path.join(os.path.dirname(compiler), "pp-run")
        self.text = harness.write_text(folder)
        harness.compile_train(compiler, "prog", SIZES, options=["--also", "ranks=2,1"])
        harness.call([*harness.launch("./prog", 4, "mpi"), *self.words("whole")])
        print(f"seed {options.seed}")

    def words(self, save, *more, steps=STEPS):
        return ["--data", self.text, "--steps", str(steps), "--save", save, *more]

    def command(self, *words, ranks=4, options=()):
        return [sys.executable, self.tool, "-n", str(ranks), "--launch-with=--oversubscribe", *options, "./prog",
                *words]

    def run(self, *words, **more):
        return subprocess.run(self.command(*words, **more), env=harness.ENVIRONMENT, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=120)

    def same(self, save, what):
        equal = all(read(f"{save}/{name}.safetensors") == read(f"whole/{name}.safetensors")
                    for name in ("model", "optimizer"))
        self.tally.check(equal and newest(save) == STEPS, f"{what}: weights and state are those of the unbroken run")

    def says(self):
        """What is wrong with a command line is said once; what would come again is not tried again."""
        write("hosts", "localhost slots=many\n")
        write("option", "localhost\n-oProxyCommand=touch${IFS}PWNED slots=3\n")
        for name in ("name", "user"):
            write(name, f"{dict(name='a;b', user='-l@localhost')[name]} slots=1\n")
        os.mkfifo("pipe")
        for words, options, code, said in (
                (self.words("ck"), ["-n", "0"], 1, "`-n` expects a number from 1 on, got `0`"),
                (self.words("ck"), ["--retry=2"], 1, "unrecognized arguments: --retry=2; see --help"),
                (["--data", self.text], [], 1, "give the program `--save DIR`"),
                (self.words("ck"), ["--hosts", "none"], 1, "cannot read the hosts file `none`"),
                (self.words("ck"), ["--hosts", "hosts"], 1,
                 "`hosts`, line 1: expected `name` or `name slots=N`, got `localhost slots=many`"),
                (self.words("ck"), ["--hosts", "option"], 1,
                 "`option`, line 2: expected the name or the address of a host, got `-oProxyCommand=touch${IFS}PWNED`"),
                (self.words("ck"), ["--hosts", "name"], 1, "`name`, line 1: expected the name or the address"),
                (self.words("ck"), ["--hosts", "user"], 1, "`user`, line 1: expected the name or the address"),
                (self.words("ck"), ["--hosts", "pipe"], 1, "cannot read the hosts file `pipe`: it is not a regular"),
                (self.words("ck"), ["--hosts", "/dev/zero"], 1, "file `/dev/zero`: it is not a regular file"),
                (self.words("ck"), ["--srun", "--hosts", "hosts"], 1, "have no effect with `--srun`"),
                (self.words("ck", "--step", "3"), [], 1, "unknown option `--step`")):
            done = self.run(*words, options=options)
            self.tally.check(done.returncode == code and said in done.stderr and "starts again" not in done.stderr,
                             f"{words[2:]} {options}: {done.returncode} {done.stderr[-200:]}")
        self.tally.check(not os.path.exists("PWNED"), "no name of a host is an option of ssh")
        done = self.run("--data", self.text, "--steps", "3", options=["--retries", "0"])
        self.tally.check(done.returncode == 0 and "step 3/3" in done.stdout, "a run without a checkpoint")

    def gives_up(self):
        """A program that always fails is started K + 1 times, and its code is that of pp-run."""
        for end, code in (("exit 3", 3), ("kill -9 $$", 137), ("exit 1", 1)):
            write("failing", f"#!/bin/sh\necho >> starts\n{end}\n")
            write("starts", "")
            command = [word if word != "./prog" else "./failing" for word in self.command("--save", "ck", ranks=1)]
            done = subprocess.run([*command[:4], "--retries", "1", *command[4:]], env=harness.ENVIRONMENT,
                                  capture_output=True, text=True, timeout=60)
            starts = len(read("starts").splitlines())
            self.tally.check(done.returncode == code and starts == (1 if code == 1 else 2),
                             f"`{end}`: code {done.returncode}, {starts} starts: {done.stderr[-150:]!r}")

    def hung(self):
        """mpirun itself hangs behind ranks that have ended."""
        os.mkdir("hung")
        write("hung/mpirun", f"#!{sys.executable}\nimport subprocess, time\n"
              "ranks = [subprocess.Popen(['sleep', '1.5']) for _ in range(2)]\ntime.sleep(1000)\n")
        command = self.command(*self.words("none", "--timeout", "0.1"), options=["--retries", "0"])
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30,
                                  env=dict(harness.ENVIRONMENT, PATH="hung:" + harness.ENVIRONMENT["PATH"]))
            self.tally.check(done.returncode == 137 and "mpirun does not end, with 0 of 2 ranks" in done.stderr,
                             f"mpirun that hangs: {done.returncode} {done.stderr[-300:]}")
        except subprocess.TimeoutExpired as error:
            self.tally.check(False, f"mpirun that hangs: {error}")

    def anew(self):
        """A run that begins anew does not go on from the checkpoint that was there before."""
        harness.call([*harness.launch("./prog", 4, "mpi"), *self.words("old", "--stop-at", "150", "--seed", "3")])
        write("flaky", '#!/bin/sh\nmkdir "tried$OMPI_COMM_WORLD_RANK" 2>/dev/null && exit 3\nexec ./prog "$@"\n')
        command = [word if word != "./prog" else "./flaky" for word in self.command(*self.words("old"))]
        done = subprocess.run(command, env=harness.ENVIRONMENT, capture_output=True, text=True, timeout=60)
        self.tally.check(done.returncode == 0 and "it starts again from its beginning" in done.stderr,
                         f"a run that failed before its first checkpoint: {done.returncode} {done.stderr[-200:]}")
        self.same("old", "what begins anew")

    def hosts(self):
        """Where hosts are missing, a program for fewer ranks goes on with the checkpoint."""
        write("agent", '#!/bin/sh\n[ "$1" != gone ] && exec sh -c true\nexit 255\n')
        write("hosts", "localhost slots=3\ngone slots=2 # for the others\n")
        harness.call([*harness.launch("./prog", 4, "mpi"), *self.words("fewer", "--stop-at", "100")])
        options = ["--hosts", "hosts", "--agent", os.path.abspath("agent")]
        done = self.run(*self.words("fewer", "--resume", "fewer", "--save-every", "50"), options=options)
        made = json.loads(read("fewer/state.json")).get("made_by", {}).get("ranks")
        self.tally.check(done.returncode == 0 and newest("fewer") == STEPS and made == 2 and "step 101/200" in
                         done.stdout and "`gone` does not answer" in done.stderr,
                         f"two of four ranks go on: {made} {done.stderr[-300:]}")
        write("hosts", "localhost\n" * 4)  # as PBS writes them, a line for each slot
        done = self.run("--data", self.text, "--steps", "3", options=["--retries", "0", "--launch-with=", *options])
        self.tally.check(done.returncode == 0 and "step 3/3" in done.stdout, f"a line a slot: {done.stderr[-300:]}")
        write("hosts", "gone slots=4\n")
        done = self.run(*self.words("none"), options=options)
        self.tally.check(done.returncode == 1 and "the program needs 4 processes, 0 have a host" in done.stderr,
                         f"no host: {done.stderr[-300:]}")

    def signals(self):
        """What pp-run is told to end with ends all ranks, and nothing starts again: SIGTERM with a checkpoint."""
        for number, codes in ((signal.SIGINT, [128 + signal.SIGINT]), (signal.SIGTERM, [5, 128 + signal.SIGTERM])):
            # (The other code: a rank that has not begun yet dies of the signal.)
            run = subprocess.Popen(self.command(*self.words("told", steps=10000000)), env=harness.ENVIRONMENT,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            ranks, end = {}, time.time() + 20
            while len(ranks) < 4 and time.time() < end:
                time.sleep(0.2)
                ranks = harness.ranks_of(*children(run.pid)[:1] or [0])
            time.sleep(self.draw.uniform(0, 1))
            run.send_signal(number)
            try:
                errors = run.communicate(timeout=20)[1]
            except subprocess.TimeoutExpired:
                run.kill()
                errors = "hangs"
            left = [process for process in ranks.values() if is_alive(process)]
            self.tally.check(run.returncode in codes and errors != "hangs" and "starts again" not in errors and
                             len(ranks) == 4 and not left, f"{number.name}: {run.returncode} {left} {errors[-200:]}")

    def kills(self, number):
        """Signals at random moments, of run after run until there were enough; many a run ends before the first one. No
        more than four come before there is a newer checkpoint, for pp-run gives up where there is no progress."""
        done = {"kill": 0, "stop": 0, "mpirun": 0}
        rounds = 0
        while sum(done.values()) < number and rounds < 5 * number:
            rounds += 1
            save = "broken"
            shutil.rmtree(save, ignore_errors=True)
            run = subprocess.Popen(self.command(*self.words(save, "--save-every", "5", "--keep", "2", "--resume", save,
                                                            "--timeout", str(TIMEOUT)), options=["--retries", "9"]),
                                   env=harness.ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True)
            end, reached, since = time.time() + 60 + 10 * number, 0, 0
            while run.poll() is None and time.time() < end:
                time.sleep(self.draw.uniform(0.1, 2))
                if newest(save) > reached:
                    reached, since = newest(save), 0
                if sum(done.values()) >= number or since == 4:
                    continue
                found = children(run.pid)
                ranks = harness.ranks_of(found[0]) if found else {}
                if not ranks:
                    continue
                kind = self.draw.choice(["kill", "kill", "stop", "mpirun"])
                target = found[0] if kind == "mpirun" else self.draw.choice(sorted(ranks.values()))
                try:
                    os.kill(target, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
                    done[kind] += 1
                    since += 1
                except ProcessLookupError:
                    pass
            hangs = run.poll() is None
            if hangs:
                run.kill()
            errors = run.communicate()[1]
            if hangs or run.returncode != 0:
                self.tally.check(False, f"round {rounds}: {'hangs' if hangs else run.returncode}: {errors[-1500:]}")
                break
            self.same(save, f"round {rounds}, {done}, {errors.count('it starts again')} restarts")
        self.tally.check(sum(done.values()) >= number, f"signals: {done} in {rounds} runs")


def main():
    options = harness.draws(kills=4, seed=1)
    restarts = Restarts(options)
    restarts.says()
    restarts.gives_up()
    restarts.hung()
    restarts.anew()
    restarts.hosts()
    restarts.signals()
    restarts.kills(options.kills)
    return restarts.tally.close()


if __name__ == "__main__":
    sys.exit(main())
