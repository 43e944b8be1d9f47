#!/usr/bin/env python3
"""Runs a compiled program under mpirun or srun, and starts it again from its last checkpoint when ranks die or hang."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: pp-run -n N [--hosts FILE] [--retries K] [--srun] [--agent CMD] [--launch-with OPTIONS] PROGRAM ARGS..
# docs/cluster.md explains it. A restarted program gets `--resume` with the folder of its own `--save`. Code 1 (the
# command line or a file is wrong) and 4 (a library is wrong) would come again, so they end the run at once. So does
# code 5: the program was told to end, and its checkpoint is written.
import argparse, ipaddress, json, os, re, shlex, shutil, signal, stat, subprocess, sys, tempfile, time

HOPELESS = (1, 4)
TOLD = 5  # code of a program that was told to end, and has saved where it was
TIMEOUT, SPARE = 600.0, 5.0  # of the program's own --timeout, and how long after it we look whether it has worked
START = 60.0  # in which mpirun starts a rank, at least
LARGEST = 1 << 24  # of a file that people write
LONGEST_PAUSE = 30.0  # between two starts without progress: 1 s, 2 s, 4 s, ..
# Options of a program that say where the first start begins, and which of them have a value.
BEGINNINGS = {"load": True, "adapter": True, "init": False, "allow-unused": True, "shard-size": True, "grads": True}

AT_THE_END = ("merge", "logprobs", "trace", "profile")  # what is written behind the last checkpoint


class Refused(Exception):
    """What is wrong with the command line or the machine, in one sentence."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(f"{message}; see --help")


def say(text):
    print(f"pp-run: {text}", file=sys.stderr, flush=True)


def value_of(arguments, name, default=None):
    """What an option of the program is given, as `--name value` or `--name=value`."""
    for at, word in enumerate(arguments):
        if word.startswith(f"--{name}="):
            return word[len(name) + 3:]
        if word == f"--{name}" and at + 1 < len(arguments):
            return arguments[at + 1]
    return default


def timeout_of(arguments):
    """The program's --timeout, in seconds."""
    try:
        return min(max(0.0, float(value_of(arguments, "timeout", TIMEOUT))), 1e9)
    except ValueError:
        return TIMEOUT  # the program says what is wrong with it


def without(arguments, names):
    """The arguments without these options; `names` says which of them have a value."""
    left, at = [], 0
    while at < len(arguments):
        name = arguments[at][2:].split("=")[0] if arguments[at].startswith("--") else ""
        if name in names:
            at += names[name] and "=" not in arguments[at]
        else:
            left.append(arguments[at])
        at += 1
    return left


def without_end_slash(path):
    return path.rstrip("/") or path


def read_text(path, what):
    """A file that people write, by whole lines."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8-sig") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Refused(f"cannot read {what} `{path}`: it is not a regular file")
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise Refused(f"cannot read {what} `{path}`: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refused(f"cannot read {what} `{path}`: it is no text in UTF-8") from None
    if len(text) > LARGEST:
        raise Refused(f"cannot read {what} `{path}`: it has more than {LARGEST} characters")
    return text


def read_state(folder):
    """The step and the last step of a checkpoint, and which file says so; nothing: there is none."""
    path = os.path.join(folder, "state.json")
    try:
        state = json.loads(read_text(path, ""))
        info = os.stat(path)
        return int(state["step"]), int(state["steps"]), (info.st_ino, info.st_mtime_ns)
    except (Refused, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def newest(save):
    """The newest checkpoint of the folder and those that are kept beside it."""
    save = without_end_slash(os.path.realpath(save))
    names = [save]
    parent, name = os.path.split(save)
    if os.path.isdir(parent):
        names += [os.path.join(parent, each) for each in os.listdir(parent)
                  if re.fullmatch(re.escape(name) + r"\.step-\d+", each)]
    return max(filter(None, map(read_state, names)), default=None)


class Program:
    """The command of each start, by what the checkpoints say."""

    def __init__(self, path, arguments):
        self.path, self.arguments = path, arguments
        self.save, self.resume = value_of(arguments, "save"), value_of(arguments, "resume")
        self.goes_on = bool(self.save and self.resume) and \
            os.path.realpath(self.save) == os.path.realpath(self.resume)
        self.before = newest(self.save) if self.save else None  # a run that begins anew does not go on from it

    def state(self):
        """The newest checkpoint of this run."""
        state = newest(self.save) if self.save else None
        return state if self.goes_on or state != self.before else None

    def command(self):
        """The arguments of the next start."""
        changed = (value_of(self.arguments, "changed") or "").split(",")
        state, resume, left = self.state(), self.resume, without(self.arguments, {"resume": True, "changed": True})
        if state:
            resume, left = self.save, without(left, BEGINNINGS)
        elif self.goes_on:
            resume = None  # there is none yet
        changed = [name for name in changed if name and (name != "config") == bool(resume)]
        return left + (["--resume", resume] if resume else []) + \
            (["--changed", ",".join(changed)] if changed else [])

    def is_done(self):
        state, stop = self.state(), value_of(self.arguments, "stop-at")
        return bool(state) and state[0] >= (int(stop) if stop and stop.isdigit() else state[1])


def is_host(name):
    """A name or an address, which ssh and mpirun take for nothing else, maybe behind `user@`."""
    user, at, host = name.rpartition("@")
    if at and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", user):
        return False
    if ":" in host:
        try:
            return bool(ipaddress.IPv6Address(host))
        except ValueError:
            return False
    word = r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?"
    return bool(re.fullmatch(rf"{word}(\.{word})*", host))


def read_hosts(path):
    """Names and slots of a hosts file, as mpirun reads it: `name`, `name slots=4`. A name on several lines, as PBS
    writes one for each slot, has the slots of all of them."""
    hosts = {}
    for number, line in enumerate(read_text(path, "the hosts file").splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        match = re.fullmatch(r"(\S+?)(?:\s+slots\s*=\s*([0-9]{1,6}))?", " ".join(words))
        if not match or match[2] and int(match[2]) == 0:
            raise Refused(f"`{path}`, line {number}: expected `name` or `name slots=N`, got `{line.strip()}`")
        if not is_host(match[1]):
            raise Refused(f"`{path}`, line {number}: expected the name or the address of a host, got `{match[1]}`")
        hosts[match[1]] = hosts.get(match[1], 0) + int(match[2] or 1)
    if not hosts:
        raise Refused(f"the hosts file `{path}` names no host")
    return list(hosts.items())


def answers(host, agent):
    """Whether a host runs a command that is sent to it."""
    if host in ("localhost", "127.0.0.1", os.uname().nodename):
        return True
    try:
        return subprocess.run([*agent, host, "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False
    except OSError as error:
        raise Refused(f"cannot run `{agent[0]}`: {error.strerror}") from None


def processes_of(path):
    """How many processes a program wants, by its own help."""
    try:
        said = subprocess.run([path, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    except OSError:
        return None
    match = re.search(r"mpirun -n (\d+) <program>", said)
    return int(match[1]) if match else None


def fewer(path, most):
    """The largest program beside this one for at most so many processes: `pp-compile --also` makes them."""
    folder, name = os.path.split(os.path.abspath(path))
    found = []
    for each in os.listdir(folder):
        if re.fullmatch(re.escape(name) + r"\.ranks\d+", each):
            count = processes_of(os.path.join(folder, each))
            if count and count <= most:
                found.append((count, os.path.join(folder, each)))
    return max(found, default=None)


class Launch:
    """One command that runs the program on all ranks of what is there now."""

    def __init__(self, options):
        self.options, self.hostfile, self.alive = options, None, []
        self.more = shlex.split(options.launch_with)
        self.agent = shlex.split(options.agent) if options.agent else ["ssh", "-o", "BatchMode=yes", "-o",
                                                                       "ConnectTimeout=10", "--"]

    def command(self, program):
        count, path = self.options.n, program.path
        if self.options.srun:
            return ["srun", "-n", str(count), "--kill-on-bad-exit=1", *self.more, path, *program.command()]
        where = []
        if self.options.hosts:
            hosts = read_hosts(self.options.hosts)
            self.alive = alive = [host for host in hosts if answers(host[0], self.agent)]
            for host in hosts:
                if host not in alive:
                    say(f"`{host[0]}` does not answer")
            slots = sum(slots for _, slots in alive)
            if slots < count:
                choice = fewer(path, slots)
                if not choice:
                    raise Refused(f"the program needs {count} processes, {slots} have a host, and there is no "
                                  f"`{path}.ranksN` for as few: `pp-compile --also ranks=N` makes it")
                count, path = choice
                say(f"{slots} of {self.options.n} processes have a host: `{path}` runs in its place")
            where = ["--hostfile", self.write_hosts(alive)]
            if self.options.agent:
                where += ["--mca", "plm_rsh_agent", self.options.agent]
            where += self.watches()
        return ["mpirun", "-n", str(count), *where, *self.more, path, *program.command()]

    def watches(self):
        """mpirun 4.1 finds that a host is cut off by TCP's keepalive, which asks nothing while an answer to mpirun is
        due. So it must have found it before a rank's --timeout has mpirun end all ranks; else mpirun hangs."""
        if any("oob_tcp_keepalive" in word for word in [*self.more, *os.environ]):
            return []
        seconds = int(timeout_of(self.options.arguments))
        values = {"time": min(10, max(1, seconds // 3)), "intvl": min(5, max(1, seconds // 6)),
                  "probes": 2 if seconds >= 6 else 1}
        return [word for name, value in values.items() for word in ("--mca", f"oob_tcp_keepalive_{name}", str(value))]

    def has_lost_host(self):
        """Whether a host of this start answers no more. mpirun then ends with a code that a program may have, too."""
        return not all(answers(name, self.agent) for name, _ in self.alive)

    def write_hosts(self, hosts):
        if not self.hostfile:
            self.hostfile = tempfile.NamedTemporaryFile("w", prefix="pp-run-", suffix=".hosts")
        self.hostfile.seek(0)
        self.hostfile.truncate()
        self.hostfile.write("".join(f"{name} slots={slots}\n" for name, slots in hosts))
        self.hostfile.flush()
        return self.hostfile.name


def processes():
    """Of every process that has not ended: number, parent, session."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                yield int(name), int(fields[1]), int(fields[3])
        except (OSError, IndexError, ValueError):  # it has ended meanwhile
            pass


class Run:
    """One start: waits for its end, forwards signals, and ends what mpirun leaves."""

    def __init__(self, options):
        self.options, self.child, self.signal = options, None, None
        self.saves = bool(value_of(options.arguments, "save"))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self.forward)

    def forward(self, number, _):
        again, self.signal = self.signal == number, number
        if self.child:
            self.child.send_signal(self.handed_on(again))

    def handed_on(self, again=False):
        """mpirun hands SIGUSR1 on to the ranks, which then save; with SIGTERM it kills them a second later."""
        saves = self.saves and not again and self.signal != signal.SIGINT
        return signal.SIGUSR1 if saves else signal.SIGTERM if self.signal == signal.SIGUSR1 else self.signal

    def wait(self, command, timeout):
        """The exit code. mpirun can hang as well: if no rank begins, or if ranks of this machine have ended and others,
        or mpirun itself, do not for longer than the program's own timeout, all of them are ended."""
        try:
            self.child = subprocess.Popen(command, start_new_session=True)
        except OSError as error:
            raise Refused(f"cannot start `{command[0]}`: {error.strerror}") from None
        if self.signal:
            self.child.send_signal(self.handed_on())
        most, since, asked = 0, None if self.options.hosts else time.monotonic(), None
        while True:
            try:
                self.child.wait(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                pass
            now = time.monotonic()
            ranks = sum(parent == self.child.pid for _, parent, _ in processes())
            if ranks and ranks >= most:
                most, since = ranks, None
            elif most:
                since = since or now
            if since and not self.options.srun and now - since > (timeout if most else max(timeout, START)) + SPARE:
                say(f"mpirun does not end, with {ranks} of {most} ranks of this machine: it is killed" if most else
                    "mpirun starts no rank: it is killed")
                self.child.kill()
            asked = asked or (now if self.signal else None)
            if asked and now - asked > timeout + SPARE:
                self.child.kill()
        for process, _, session in list(processes()):
            if session == self.child.pid:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        code = self.child.returncode
        self.child = None
        return code if code >= 0 else 128 - code


def meaning(code):
    return f"code {code}" + (f", signal {code - 128}" if 128 < code < 160 else "")


def supervise(options):
    program, launch, run = Program(options.program, options.arguments), Launch(options), Run(options)
    timeout = timeout_of(options.arguments)
    failures, reached = 0, (program.state() or (0,))[0]
    while True:
        code = run.wait(launch.command(program), timeout)
        if code == TOLD:
            return code
        if code and run.signal:
            return 128 + run.signal
        if code == 0 or (code in HOPELESS and not launch.has_lost_host()):
            return code
        if program.is_done():
            more = [name for name in AT_THE_END if value_of(options.arguments, name)]
            say(f"the program ended with {meaning(code)} behind its last step; the last checkpoint is whole" +
                (f", but what `--{more[0]}` writes may be missing" if more else ""))
            return code if more else 0
        step = (program.state() or (0,))[0]
        failures = 0 if step > reached else failures
        if failures == options.retries:
            say(f"the program ended with {meaning(code)}; no progress in {failures + 1} starts in a row: it ends here")
            return code
        failures, reached = failures + 1, max(step, reached)
        where = f"step {step} of `{program.save}`" if step else "its beginning"
        say(f"the program ended with {meaning(code)}; it starts again from {where} (restart {failures} of at most "
            f"{options.retries} without progress)")
        pause = min(2.0 ** (failures - 2), LONGEST_PAUSE) if failures > 1 else 0
        end = time.monotonic() + pause
        while time.monotonic() < end and not run.signal:
            time.sleep(0.1)
        if run.signal:
            return 128 + run.signal


def main():
    parser = Parser(prog="pp-run", description=__doc__, allow_abbrev=False)
    parser.add_argument("-n", type=int, required=True, metavar="N", help="the number of processes: the program's ranks")
    parser.add_argument("--hosts", metavar="FILE", help="hosts with their slots, as for mpirun: `name slots=4`")
    parser.add_argument("--retries", type=int, default=3, metavar="K",
                        help="how many restarts in a row may make no progress (3)")
    parser.add_argument("--srun", action="store_true", help="start by Slurm's srun in place of mpirun")
    parser.add_argument("--agent", metavar="CMD", help="what runs a command on a host, in place of ssh")
    parser.add_argument("--launch-with", default="", metavar="OPTIONS",
                        help="more options of mpirun or srun, as --launch-with='--bind-to core'")
    parser.add_argument("program", metavar="PROGRAM", help="what pp-compile made")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the program's own options")
    try:
        options = parser.parse_args()
        if options.n < 1:
            raise Refused(f"`-n` expects a number from 1 on, got `{options.n}`")
        if options.retries < 0:
            raise Refused(f"`--retries` expects a number from 0 on, got `{options.retries}`")
        if options.srun and (options.hosts or options.agent):
            raise Refused("`--hosts` and `--agent` have no effect with `--srun`: Slurm knows the hosts")
        if not shutil.which(options.program):
            raise Refused(f"`{options.program}` is no program")
        if "/" not in options.program and os.path.exists(options.program):
            options.program = "./" + options.program
        if options.retries and not value_of(options.arguments, "save"):
            raise Refused("restarts go on from checkpoints: give the program `--save DIR` and `--save-every N`, or "
                          "`--retries 0`")
        return supervise(options)
    except Refused as error:
        say(f"error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
