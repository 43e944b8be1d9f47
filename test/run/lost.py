#!/usr/bin/env python3
"""Nothing is lost: a run replaces neither what it reads nor what others made, and says what is wrong with a file."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: lost.py PP_COMPILE FOLDER [--pairs N]
import json, os, random, shutil, stat, struct, subprocess, sys, time
import harness

SIZES = dict(schedule="1f1b", ranks=2, microbatches=2, model="llama", layers=2, hidden=16, heads=2, kv_heads=2, ffn=16,
             vocab=256, sequence=8, microbatch=1)
TEXT = "a text that a run reads, of more than a few tokens. " * 40
FILES = ("grads", "log", "trace", "profile", "logprobs", "batches")


class Lost:
    def __init__(self, compiler, folder):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        os.chdir(folder)
        self.tally = harness.Tally()
        harness.compile_train(compiler, "prog", SIZES)
        write("text", TEXT)

    def run(self, *words, data="text", steps=2, timeout=60, **environment):
        """The run, its output and whether it ended at all."""
        command = ["./prog", "--in-process", "--data", data, *(["--steps", str(steps)] if steps else []), *words]
        try:
            return subprocess.run(command, env=dict(harness.ENVIRONMENT, **environment), capture_output=True,
                                  text=True, stdin=subprocess.DEVNULL, timeout=timeout, errors="replace")
        except subprocess.TimeoutExpired as error:
            return subprocess.CompletedProcess(command, -1, "", f"hangs: {error.stderr}")

    def refuses(self, what, said, *words, **more):
        """One line says it, nothing of what was there has changed, and nothing new is there."""
        before = snapshot()
        done = self.run(*words, **more)
        lines = done.stderr.splitlines()
        good = done.returncode in (1, 2) and len(lines) == 1 and said in lines[0] and lines[0].startswith("pp: error: ")
        self.tally.check(good, f"{what}: {done.returncode} {lines[-1:] or done.stdout[-200:]}")
        changed = {name for name in before.keys() ^ snapshot().keys()} or \
                  {name for name, its in snapshot().items() if before[name] != its}
        self.tally.check(not changed, f"{what}: what was there stays: {changed}")

    def works(self, what, *words, **more):
        done = self.run(*words, **more)
        self.tally.check(done.returncode == 0, f"{what}: {done.returncode} {done.stderr[-300:]}")
        return done

    def outputs(self):
        """Files that a run writes one by one."""
        self.works("a checkpoint", "--save", "ck")
        os.mkfifo("pipe")
        try:  # one that may be lost
            os.mknod("device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:  # who is not root cannot replace the machine's
            os.symlink("/dev/null", "device")
        os.mkdir("folder")
        write("notes.json", '{"mine": 1}\n')
        write("source.pipe", "schedule mine {}\n")
        shutil.copy("ck/model.safetensors", "published")
        os.symlink("source.pipe", "link")
        need = {"profile": 8}
        for option in FILES:
            steps = need.get(option, 2)
            for path, said in (("pipe", "it is a pipe"), ("device", "it is a device"), ("folder", "it is a folder"),
                               ("source.pipe", f"was not written by --{option}"),
                               ("link", f"was not written by --{option}"), ("./text", "what `--data` names"),
                               ("notes.json", f"was not written by --{option}"), ("./prog", "the program itself")):
                if (option, path) not in (("log", "pipe"), ("log", "device")):
                    self.refuses(f"--{option} {path}", said, f"--{option}", path, steps=steps)
            self.refuses(f"--{option} in what is resumed", "would be written into `ck`", f"--{option}",
                         "ck/state.json", "--resume", "ck", steps=12)
            self.refuses(f"--{option} in what is saved", "lies in `new`, which `--save` replaces", f"--{option}",
                         "new/out", "--save", "new", steps=steps)
            # A file of the same option is replaced, through a link as well: the link stays.
            os.symlink(f"to-{option}", f"link-{option}")
            write(f"to-{option}.tmp", "somebody's")
            for time_ in range(2):
                self.works(f"--{option} through a link, time {time_}", f"--{option}", f"link-{option}", steps=steps)
            self.tally.check(os.path.islink(f"link-{option}") and os.path.getsize(f"to-{option}") > 0 and
                             read(f"to-{option}.tmp") == "somebody's", f"--{option}: the link and its neighbour stay")
        self.tally.check(stat.S_ISCHR(os.stat("device").st_mode), "a device is one still")
        self.refuses("a model instead of gradients", "would be written over what `--load` names", "--grads",
                     "published", "--load", "published")
        self.refuses("a log that nobody reads", "nobody reads the pipe", "--log", "pipe")
        self.works("a log to a device", "--log", "device")
        with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE, text=True) as reader:
            time.sleep(0.2)
            self.works("a log to a pipe that is read", "--log", "pipe")
            lines = reader.communicate(timeout=20)[0].splitlines()
            self.tally.check([json.loads(line)["step"] for line in lines] == [1, 2], f"lines of the pipe: {lines}")

    def folders(self):
        """Folders that a save replaces."""
        for name, content in (("weights", ("model.safetensors",)), ("three", ("model.safetensors", "state.json",
                              "optimizer.safetensors")), ("state", ("state.json",))):
            for option in ("save", "merge"):
                os.makedirs(name, exist_ok=True)
                for file in content:
                    write(os.path.join(name, file), "{}")
                if option == "save":
                    self.refuses(f"--{option} where others made {content}", "no run of pp made this one", f"--{option}",
                                 name)
        shutil.copytree("ck", "more")
        write("more/notes", "mine")
        self.refuses("--save where ours has a file of others", "is not part of a checkpoint", "--save", "more")
        os.mkdir("empty")
        self.works("--save into an empty folder", "--save", "empty")
        os.mkdir("real")
        os.symlink("real", "named")
        for _ in range(2):
            self.works("--save through a link", "--save", "named")
        self.tally.check(os.path.islink("named") and os.path.exists("real/state.json"), "the link stays")
        os.makedirs("left.tmp")
        write("left.tmp/state.json.tmp", '{"for')  # killed while it wrote the mark
        self.works("--save beside what a killed run left", "--save", "left")
        self.tally.check(not [name for name in os.listdir() if name.endswith((".lock", ".old"))] and
                         not os.path.exists("left.tmp"), "nothing is left beside a checkpoint")
        write("mine.lock", "mine")
        self.refuses("a lock that is none", "is not the lock of a run", "--save", "mine")
        shutil.copytree("ck", "held.tmp")
        self.refuses("weights where a save works", "whose weights are read", "--load", "held.tmp", "--save", "held")
        write("held.tmp/data", TEXT)
        self.refuses("data where a save works", "where `--data` is read", "--save", "held", data="held.tmp/data")

    def two(self):
        """Two runs on one folder or one log: one goes on, one says why not."""
        for words, said in ((["--save", "both", "--save-every", "50"], "another run saves to it"),
                            (["--log", "both.jsonl"], "another run writes it")):
            for order in range(3):
                first = subprocess.Popen(["./prog", "--in-process", "--data", "text", "--steps", "1000000", *words],
                                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                time.sleep(0.5 + 0.1 * order)
                done = self.run(*words)
                good = done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
                self.tally.check(good and first.poll() is None, f"{words[0]}, run {order}: {done.stderr[-200:]}")
                first.kill()
                first.communicate()
                self.works(f"{words[0]} after the other was killed", *words)

    def pairs(self, number):
        """Two runs begin on one folder nearly together: who does not say why not saves, and the folder is whole."""
        self.works("one run alone", "--save", "alone")
        wanted, draw, ended = contents("alone"), random.Random(number), [0, 0, 0]
        for pair in range(number):
            runs = []
            for _ in range(2):
                runs.append(subprocess.Popen(["./prog", "--in-process", "--data", "text", "--steps", "2", "--save",
                                              "shared", "--save-every", "1"], stdout=subprocess.DEVNULL,
                                             stderr=subprocess.PIPE, text=True))
                time.sleep(draw.random() ** 2 * 0.1)
            said = [run.communicate(timeout=60)[1].splitlines() for run in runs]
            good = [run.returncode == 0 and not lines or run.returncode == 2 and len(lines) == 1 and
                    "another run saves to it" in lines[0] for run, lines in zip(runs, said)]
            ended[sum(run.returncode == 0 for run in runs)] += 1
            kept = contents("shared")
            if not all(good) or all(run.returncode for run in runs) or kept != wanted:
                self.tally.check(False, f"pair {pair}: {said}, {list(kept)}, same {kept == wanted}")
        self.tally.check(True, f"{number} pairs of runs on a folder: in {ended[1]} one alone saved, in {ended[2]} both")

    def data(self):
        """What is no text and no token file; what changes under a run."""
        llmc = struct.pack("<256i", 20240521, 1, 2000, *[0] * 253) + b"\1\0" * 2000
        bodies = [llmc, struct.pack(">i", 20240520) + b"aa" * 2000, b"\x89HDF\r\n\x1a\n" + b"a" * 3000,
                  b"\x7fELF" + b"a" * 3000, b"BZh9\x17\x72\x45" + b"a" * 999, b"GGUF\3" + b"a" * 999,
                  b"\xfd7zXZ" + b"a" * 999, b"%PDF-1.5\n\xe2\xe3" + b"a" * 999, b"caf\xe9 " * 99,
                  "text".encode("utf-16") * 99, b"\x80\4" + b"a" * 999, b"a" * 999 + b"\1" * 99]
        for i, body in enumerate(bodies):
            with open(f"foreign{i}", "wb") as file:
                file.write(body)
            self.refuses(f"foreign data {body[:8]}", "neither UTF-8 text nor a token file", data=f"foreign{i}")
        self.works("bytes that are tokens", data="u8:foreign8")
        write("greek", "αβγ δεζ, ünïcödé ☃ 𝄞\n" * 4000)  # 64 KiB end inside a character
        self.works("UTF-8", data="greek")
        for name in ("pipe", "device", "folder"):
            self.refuses(f"data {name}", "it is not a regular file", data=name)
        for prefix in ("", "u16:"):
            with open("sparse", "wb") as file:
                file.truncate(3 << 40)
            self.refuses("a text of 3 TB that was never written", "were ever written", data=prefix + "sparse")
        os.unlink("sparse")
        for ranks in ("--in-process", "mpi"):
            write("cut", TEXT * 20000)
            alone = ["./prog", "--in-process"] if ranks != "mpi" else ["mpirun", "-n", "2", "--oversubscribe", "./prog"]
            run = subprocess.Popen([*alone, "--data", "cut", "--steps", "100000000"], env=harness.ENVIRONMENT,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while "step" not in run.stdout.readline():
                pass
            os.truncate("cut", 10)
            try:
                _, errors = run.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                run.kill()
                errors = "hangs"
            lines = [line for line in errors.splitlines() if "pp: error" in line]
            # mpirun ends with the code of the rank that ends first: the one that read, or the other, which heard of it.
            codes = (2, 3) if ranks == "mpi" else (2,)
            self.tally.check(run.returncode in codes and len(lines) == 1 and "`cut` was cut while" in lines[0],
                             f"data that is cut under a run, {ranks}: {run.returncode} {errors[-300:]}")

    def fields(self):
        """Fields of state.json out of their range, and JSON that is deep."""
        with open("ck/state.json") as file:
            good = {name: value for name, value in json.load(file).items() if not name.startswith("crc32")}
        for field, values in (("step", (0, -1, 1.5, True, "2", None, 1e300, 2**63, 2**64, [2])),
                              ("steps", (1, -5, 2**62, 2.5, False)), ("seed", (-1, 0.5, "1", 2**64)),
                              ("lr", (-1, "x", None, True, [])), ("format", (2, "1", None)),
                              ("program", (1, None, []))):
            for value in values:
                shutil.rmtree("bad", ignore_errors=True)
                shutil.copytree("ck", "bad")
                write("bad/state.json", json.dumps(good | {field: value}))
                self.refuses(f"state.json with {field} {value}", "state.json` ", "--resume", "bad", steps=9)
        for deep in ("[" * 100000, '{"a":' * 100000, "[" * 100000 + "]" * 100000):
            write("bad/state.json", deep)
            self.refuses("a deep state.json", "is corrupt", "--resume", "bad", steps=9)
            body = deep.encode()
            with open("deep.safetensors", "wb") as file:
                file.write(struct.pack("<Q", len(body)) + body)
            self.refuses("a deep safetensors file", "is corrupt", "--load", "deep.safetensors")

    def environment(self):
        for name, values in (("PP_THREADS", ("100000", "0", "-3", "x", "2x", "", "99999999999999999999")),
                             ("PP_ISA", ("foo", "", "AVX2"))):
            for value in values:
                self.refuses(f"{name}={value}", f"{name} expects", **{name: value})

    def failing(self):
        """A file system that is full: no half files, and what was there stays."""
        for option in FILES:
            if option in ("trace", "profile", "batches", "logprobs", "grads"):
                before = set(os.listdir())
                done = subprocess.run(["sh", "-c", 'ulimit -f 2; trap "" XFSZ; exec "$0" "$@"', "./prog",
                                       "--in-process", "--data", "text", "--steps", "300", f"--{option}",
                                       f"full-{option}"], capture_output=True, text=True, timeout=60)
                self.tally.check(done.returncode == 2 and "File too large" in done.stderr and
                                 set(os.listdir()) == before, f"--{option} where there is no room: {done.returncode} "
                                 f"{done.stderr[-200:]} {set(os.listdir()) - before}")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read()


def contents(folder):
    """The bytes of its files."""
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


def snapshot():
    """What is there: kinds, and of files sizes and times of change."""
    found = {}
    for at, folders, files in os.walk("."):
        for name in folders + files:
            info = os.lstat(os.path.join(at, name))
            found[os.path.join(at, name)] = (stat.S_IFMT(info.st_mode), info.st_ino,
                                             0 if stat.S_ISDIR(info.st_mode) else info.st_size,
                                             0 if stat.S_ISDIR(info.st_mode) else info.st_mtime_ns)
    return found


def main():
    options = harness.draws(pairs=8)
    lost = Lost(os.path.abspath(options.compiler), os.path.abspath(options.folder))
    for check in (lost.outputs, lost.folders, lost.two, lost.data, lost.fields, lost.environment, lost.failing):
        check()
    lost.pairs(options.pairs)
    return lost.tally.close()


if __name__ == "__main__":
    sys.exit(main())
