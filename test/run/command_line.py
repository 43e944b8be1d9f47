#!/usr/bin/env python3
"""Command lines of tools and programs: options without effect, what may be written where, exit codes, colours."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: command_line.py PP_COMPILE FOLDER
import json, os, pty, shutil, subprocess, sys, threading
import harness

compiler, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
translate, pp = (os.path.join(os.path.dirname(compiler), name) for name in ("pp-translate", "pp"))
tally = harness.Tally()

SOURCE = """import "std/models/llama.pipe"
import "imported.pipe"
train t(unused = 1) {
  model     llama(layers = 2, hidden = 8, heads = 2, ffn = 16, vocab = 32)
  schedule  pipe(ranks = 2, microbatches = 2)
  data      microbatch = 1, sequence = 8
}
"""
IMPORTED = """schedule pipe(ranks p, microbatches m) {
  stage s of p at s
  for i in microbatches { for s in 0 .. p { F(s, i) } for s in reversed(0 .. p) { B(s, i) } }
}
"""

# All outputs that may be asked for: the forms, and options that replace a form.
FORMS = ["actions", "pipeline", "ranks", "tasks", "comms", "torch", "timeline", "svg", "report", "trace", "stats",
         "llvm", "obj", "json", "chakra", "exe"]
ASKED = FORMS + ["prove", "compare"]
BEYOND = set(ASKED) - {"actions"}  # made of the step
RANKS = BEYOND - {"pipeline"}  # made of rank programs, which are proved
SIMULATED = {"svg", "report", "trace", "stats", "json", "chakra", "compare"}
BODIES = RANKS - {"tasks", "comms", "torch", "timeline"}  # sizes, times or code of tasks
READ_BY = {"--plan": set(ASKED), "--plan=high": set(ASKED),
           "--fuse=false": BEYOND - {"torch"}, "--interleave=false": BEYOND, "--hoist": BEYOND,
           "--order=rest=1": BEYOND, "--costs=rest=1": BEYOND,
           "--costs=units": SIMULATED, "--overlap=false": SIMULATED, "--lockstep": SIMULATED, "--epilogues": BODIES,
           "--target=cpu": BODIES, "--messages": {"svg", "torch"}, "--memory": {"svg"}, "--to-scale": {"timeline"},
           "--columns=70": {"timeline"}, "--rank=0": {"obj", "llvm"}, "--runtime=none.a": {"exe"},
           "--channels=edge": RANKS,
           "--also=ranks=1": {"exe"}, "--memory-limit=1TiB": RANKS, "-o=out": set(ASKED) - {"prove"},
           "--compare=run.trace": {"report", "compare"}, "--prove": RANKS - {"compare"}}


def call(*words, expect=0, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=folder,
                          env=harness.ENVIRONMENT | more.pop("environment", {}),
                          timeout=120, stdin=more.pop("stdin", subprocess.DEVNULL), **more)
    what = f"{' '.join(map(str, words))}: {done.returncode}, expected {expect}: {first(done.stderr)}"
    tally.check(expect is None or done.returncode == expect, what)
    return done


def first(text):
    return text.split("\n", 1)[0]


def path(name):
    return os.path.join(folder, name)


def write(name, text):
    with open(path(name), "w") as file:
        file.write(text)


def read(name):
    with open(path(name)) as file:
        return file.read()


def words_for(asked):
    return {"prove": ["--prove"], "compare": ["--compare=run.trace"]}.get(asked, [f"--emit={asked}"])


def options():
    """Every option beside every form: it is read, or refused with who reads it."""
    slow = {"exe", "obj", "chakra"}  # what is read there is seen elsewhere
    for option, readers in READ_BY.items():
        for asked in ASKED:
            if option.split("=")[0] in [word.split("=")[0] for word in words_for(asked)]:
                continue
            if asked not in readers:
                done = call(compiler, "t.pipe", *words_for(asked), option, expect=2)
                tally.check("has no effect here; it is for " in done.stderr and not done.stdout,
                            f"{option} beside {asked}: {first(done.stderr)}")
            elif asked not in slow and (asked != "compare" or ("rest" not in option and "--plan" not in option)):
                call(compiler, "t.pipe", *words_for(asked), option)  # (what is not compared has another order)
    call(compiler, "t.pipe", "--emit=stats", "--costs=none.json", expect=1)
    call(compiler, "t.pipe", "--emit=timeline", "--costs=units", "--hoist")
    # Rank programs in a file are already fused, ordered and hoisted: the options for that are refused.
    write("ranks.mlir", call(compiler, "t.pipe", "--emit=ranks").stdout)
    for option in ("-D ranks=2", "--schedule=pipe", "--cluster=cpu", "--fuse=false", "--hoist", "--plan",
                   "--order=rest=1", "--epilogues"):
        call(compiler, "ranks.mlir", "--emit=stats", *option.split(), expect=2)
    call(compiler, "ranks.mlir", "--emit=stats")
    for asked in ("actions", "pipeline"):
        call(compiler, "ranks.mlir", f"--emit={asked}", expect=2)
    # A parameter that nothing reads is a warning.
    done = call(compiler, "t.pipe", "--emit=timeline", "-D", "unused=2")
    tally.check("<command line>:1:4: warning: `unused` has no effect" in done.stderr, done.stderr)


def outputs():
    """Nothing is written over what is read, nor half."""
    write("q", SOURCE)
    os.symlink("t.pipe", path("soft.pipe"))
    os.link(path("t.pipe"), path("hard.pipe"))
    os.mkdir(path("folder"))
    before = {name: read(name) for name in ("q", "t.pipe", "imported.pipe", "run.trace", "run.json")}
    said = call(compiler, "q", expect=2).stderr
    tally.check("`q` would be written over: it is what this compiles; name another file with -o" in said, said)
    for output in ("t.pipe", "./t.pipe", "folder/../t.pipe", "soft.pipe", "hard.pipe", "imported.pipe"):
        for form in ("exe", "timeline", "stats"):
            said = call(compiler, "t.pipe", f"--emit={form}", "-o", output, expect=2).stderr
            tally.check("would be written over" in said, said)
    call(compiler, "t.pipe", "--rank=0", "--emit=obj", "-o", "t.pipe", expect=2)
    call(compiler, "t.pipe", "--emit=stats", "--costs=run.json", "-o", "run.json", expect=2)
    call(compiler, "t.pipe", "--compare=run.trace", "-o", "run.trace", expect=2)
    call(translate, "--import-csv", "t.csv", "-o", "./t.csv", expect=2)
    for form in ("exe", "timeline"):
        tally.check("is a folder" in call(compiler, "t.pipe", f"--emit={form}", "-o", "folder", expect=2).stderr,
                    f"-o folder, {form}")
    os.mkdir(path("t"))
    call(compiler, "t.pipe", expect=2)  # its default name is a folder
    tally.check(all(read(name) == text for name, text in before.items()), "what is read is as it was")

    write("old", "old")
    call(compiler, "bad.pipe", "--emit=stats", "-o", "old", expect=1)
    call(compiler, "t.pipe", "--emit=stats", "--costs=none.json", "-o", "old", expect=1)
    tally.check(read("old") == "old", "what was there stays if nothing is made")
    call(compiler, "t.pipe", "--emit=timeline", "-o", "none/out", expect=1)
    os.symlink("new", path("dangling"))
    call(compiler, "t.pipe", "--emit=timeline", "-o", "dangling")
    tally.check(os.path.islink(path("dangling")) and "r0 |" in read("new"), "a link is followed")
    tally.check(not [name for name in os.listdir(folder) if name.startswith(("old.", "new.", "out.", "dangling."))],
                "no temporaries are left")


def links():
    """What CXX names ends with 0 and links nothing: there is an error, and what was there is no new program."""
    write("stale", "old")
    for driver, output in (("/bin/true", "stale"), ("/bin/true", "fresh"), ("/bin/echo", "stale")):
        said = call(compiler, "t.pipe", "-o", output, expect=1, environment=dict(CXX=driver)).stderr
        tally.check(f"cannot link `{output}`: `{driver}` ended with status 0 and wrote no program" in said, said)
    tally.check(read("stale") == "old" and not os.path.exists(path("fresh")), "no program is made")


def full():
    """Results that cannot be written are an error."""
    call(compiler, "t.pipe", "-o", "trains")
    with open("/dev/full", "w") as device:
        for words in ([path("trains"), "--in-process", "--data", "random", "--steps", "1"], [path("trains"), "--info"],
                      [path("trains"), "--help"], [compiler, "t.pipe", "--emit=timeline"], [compiler, "--version"],
                      [compiler, "--emit=torch", "t.pipe"]):
            done = subprocess.run(words, cwd=folder, env=harness.ENVIRONMENT, stdout=device, stderr=subprocess.PIPE,
                                  text=True, timeout=60)
            said = "No space left on device" in done.stderr or "cannot be written to standard output" in done.stderr
            tally.check(done.returncode and said and "``" not in done.stderr,
                        f"{words} > /dev/full: {done.returncode} {first(done.stderr)}")


def streams():
    """`-`, descriptors, pipes: written as they are, and no place for an executable."""
    drawn = call(compiler, "t.pipe", "--emit=timeline").stdout
    for output in ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        tally.check(call(compiler, "t.pipe", "--emit=timeline", "-o", output).stdout == drawn, f"-o {output}")
        call(compiler, "t.pipe", "-o", output, expect=2)
    tally.check(call(compiler, "t.pipe", "--emit=timeline", "-o", "/dev/stderr").stderr == drawn, "-o /dev/stderr")
    tally.check(os.path.exists("/dev/stdout") and os.path.islink("/dev/stdout"), "/dev/stdout is what it was")
    with open(path("appended"), "w") as file:
        file.write("before\n")
        file.flush()
        subprocess.run([compiler, "t.pipe", "--emit=timeline", "-o", "/dev/stdout"], cwd=folder, stdout=file,
                       check=True)
    tally.check(read("appended") == "before\n" + drawn, "what the shell redirects is appended to")
    os.mkfifo(path("pipe"))
    got = []
    reader = threading.Thread(target=lambda: got.append(read("pipe")))
    reader.start()
    call(compiler, "t.pipe", "--emit=timeline", "-o", "pipe")
    reader.join(30)
    tally.check(got == [drawn], "a named pipe is written into")
    call(compiler, "t.pipe", "-o", "pipe", expect=2)
    call(compiler, "t.pipe", "--emit=obj", "--rank=0", "-o", "pipe", expect=2)
    with open(path("t.pipe")) as source:
        tally.check(call(compiler, "-", "--emit=timeline", stdin=source).stdout == drawn, "`-` is standard input")
    with open(path("t.pipe")) as source:
        tally.check("has no name" in call(compiler, "-", stdin=source, expect=2).stderr,
                    "an executable of standard input needs a name")
    with open("/dev/full", "w") as full:
        done = subprocess.run([compiler, "t.pipe", "--emit=timeline"], cwd=folder, stdout=full, stderr=subprocess.PIPE,
                              text=True)
    tally.check(done.returncode == 1 and "cannot write standard output" in done.stderr,
                f"a full device: {done.returncode} {done.stderr}")
    call(compiler, "t.pipe", "--emit=timeline", "-o", "/dev/full", expect=1)


def verbs():
    """`pp`, the half without code: its verbs are options of pp-compile, and its file needs nothing of the machine."""
    with open(pp, "rb") as file:
        data = file.read()
    with open(os.path.join(os.path.dirname(compiler), "..", "CMakeCache.txt")) as cache:
        if "CMAKE_BUILD_TYPE:STRING=Release" in cache.read():
            begin, size, count = (int.from_bytes(data[at:at + of], "little") for at, of in ((32, 8), (54, 2), (56, 2)))
            kinds = {int.from_bytes(data[begin + size * i:begin + size * i + 4], "little") for i in range(count)}
            tally.check(1 in kinds and not kinds & {2, 3}, "pp needs no loader and has no dynamic symbol")
            tally.check(len(data) < 12e6, f"pp has {len(data)} bytes, expected at most 12 MB")
    for verb, option in (("draw", "--emit=timeline"), ("stats", "--emit=stats"), ("json", "--emit=json"),
                         ("export-csv", "--emit=torch"), ("plan", ["--plan", "--emit=pipe"])):
        options = [option] if isinstance(option, str) else option
        same = call(pp, verb, "t.pipe").stdout
        tally.check(same and same == call(compiler, "t.pipe", *options).stdout, f"pp {verb} is {options}")
        tally.check(same == call(pp, "t.pipe", *options).stdout, f"pp takes {options} without a verb")
    tally.check("progress" in call(pp, "prove", "t.pipe").stdout, "pp prove")
    tally.check(call(pp, "draw", "--emit=tasks", "t.pipe").stdout == call(compiler, "t.pipe", "--emit=tasks").stdout,
                "an --emit beside the verb counts")
    for ending, begin in ((".svg", "<svg"), (".html", "<!doctype html"), (".json", "{")):
        call(pp, "draw", "t.pipe", "-o", "drawn" + ending)
        tally.check(read("drawn" + ending).lower().startswith(begin), f"pp draw -o drawn{ending}")
    write("t.csv", call(pp, "export-csv", "t.pipe").stdout)
    tally.check("schedule back(" in call(pp, "import-csv", "t.csv", "--name=back").stdout, "pp import-csv")
    for words, said in ((["drow", "t.pipe"], "pp: error: there is no verb `drow`; did you mean `draw`?"),
                        (["advise"], "the wheel `pp-schedules`"), (["t.pipe"], "say what to do with `t.pipe`"),
                        ([], "say what to do: pp VERB FILE"), (["draw"], "name the file to read: pp"),
                        (["draw", "t.pipe", "--emit=exe"], "`--emit` has no value `exe`"),
                        (["draw", "t.pipe", "--rank=0"], "there is no option `--rank`"),
                        (["stats", "t.pipe", "--messages"],
                         "`--messages` has no effect here; it is for --emit=svg and torch"),
                        (["export-csv", "t.pipe", "--name=x"], "`--name` has no effect here; it is for --import-csv"),
                        (["export-csv", "t.pipe", "--memory"], "`--memory` has no effect here; it is for --emit=svg"),
                        (["export-csv", "t.pipe", "--waits=false"],
                         "`--waits` has no effect here; it is for --emit=torch --messages"),
                        (["import-csv", "t.csv", "--memory"], "`--memory` has no effect here; it is not for")):
        done = call(pp, *words, expect=2)
        tally.check(said in done.stderr and not done.stdout, f"pp {words}: {first(done.stderr)}")
    for words, shown, hidden in ((["draw"], "--to-scale", "--search-seconds"), (["prove"], "--channels", "--columns"),
                                 (["export-csv"], "--messages", "--memory "), (["search"], "--search-seconds", "--lsp"),
                                 (["lsp"], "--stdlib", "--schedule"), ([], "import-csv", "--messages")):
        told = call(pp, *words, "--help").stdout
        tally.check(shown in told and hidden not in told, f"pp {words} --help")
    tally.check(call(pp, "--version").stdout.startswith("pp "), "pp --version")


def codes():
    """0 done, 1 the program or a file, 2 the command line; and what --help says."""
    write("wrong.pipe", SOURCE.replace("layers = 2", "layers = 0"))
    call(compiler, "wrong.pipe", "--emit=timeline", expect=1)
    call(compiler, "missing.pipe", "--emit=timeline", expect=1)
    write("empty.mlir", "")
    for words in (["--emit=stats"], ["--emit=llvm", "--rank=0"]):
        tally.check("`empty.mlir` holds no program" in call(compiler, "empty.mlir", *words, expect=1).stderr,
                    f"no program, {words}")
    for words, said in ((["t.pipe", "--emitt=svg"], "there is no option `--emitt`; did you mean `--emit`?"),
                        (["t.pipe", "--zzzzzzz"], "there is no option `--zzzzzzz`; see --help"),
                        (["t.pipe", "--emit=statz"],
                         "`--emit` has no value `statz`; did you mean `stats`?; there are `exe`, `obj`"),
                        (["t.pipe", "--channels=x"],
                         "there are `rank`, `direction`, `pair`, `edge`, `serial` and `all`"),
                        (["t.pipe", "--target=tpu"], "target `tpu` is not known; there are cpu and cuda"),
                        ([], "name the file to read"),
                        (["t.pipe", "-D", "ranks"], "expected -D name=value, got `-D ranks`"),
                        (["t.pipe", "-D", "ranx=2", "--emit=timeline"],
                         "<command line>:1:4: error: train `t` has no "
                         "parameter `ranx`; did you mean `schedule.ranks`?"),
                        (["t.pipe", "--schedule=pip", "--emit=timeline"], "note: there is `pipe`"),
                        (["t.pipe", "--emit=llvm", "--rank=2"],
                         "rank 2 does not exist; this program has 2 ranks, 0 to 1"),
                        (["t.pipe", "--emit=llvm", "--rank=-1"],
                         "rank -1 does not exist; this program has 2 ranks, 0 to 1"),
                        (["t.pipe", "--memory-limit=x", "--emit=ranks"],
                         "expected a number of bytes after --memory-limit"),
                        (["t.pipe", "t.pipe"], "oo many positional arguments")):
        done = call(compiler, *words, expect=2)
        tally.check(said in done.stderr and not done.stdout, f"{words}: {first(done.stderr)}")
    for words in ([], ["t.csv"], ["--import-csv", "--messages", "t.csv"], ["--import-csv", "-D", "a=1", "t.csv"],
                  ["--import-csv", "--emit=stats", "t.csv"], ["--import-csv", "--dialect=3", "t.csv"]):
        call(translate, *words, expect=2)
    call(translate, "--import-csv", "missing.csv", expect=1)
    for tool in (compiler, translate):
        long = call(tool, "--help").stdout
        tally.check(call(tool, "-h").stdout == long and "exit codes:" in long, f"{tool} -h")
        tally.check(len(long.splitlines()) <= 110 and "aarch64" not in long and "--split-input-file" not in long,
                    f"{tool} --help is short")
        tally.check("--split-input-file" in call(tool, "--help-hidden").stdout, f"{tool} --help-hidden")


def in_terminal(words, **environment):
    """What a program prints to a terminal."""
    master, slave = pty.openpty()
    environment = dict(harness.ENVIRONMENT, TERM="xterm", **environment)
    subprocess.run(words, cwd=folder, stdout=slave, stderr=slave, env=environment, timeout=60)
    os.close(slave)
    text = b""
    try:
        while part := os.read(master, 65536):
            text += part
    except OSError:  # the other end is closed
        pass
    os.close(master)
    return text


def colours():
    for words in ([compiler, "t.pipe", "--emit=timeline"], [compiler, "wrong.pipe", "--emit=timeline"]):
        plain = {key: value for key, value in harness.ENVIRONMENT.items() if key != "NO_COLOR"}
        harness.ENVIRONMENT.clear(), harness.ENVIRONMENT.update(plain)
        tally.check(b"\x1b[" in in_terminal(words), f"{words[1]}: colours in a terminal")
        tally.check(b"\x1b[" in in_terminal(words, NO_COLOR=""), f"{words[1]}: an empty NO_COLOR says nothing")
        tally.check(b"\x1b[" not in in_terminal(words, NO_COLOR="1"), f"{words[1]}: none with NO_COLOR")
        tally.check(b"\x1b[" in in_terminal([*words, "--color"], NO_COLOR="1"), f"{words[1]}: --color counts more")


def emitted():
    program = path("program")
    long = call(program, "--help").stdout
    tally.check(call(program, "-h").stdout == long and "exit codes:" in long and "--in-process" in long,
                "-h of an emitted program")
    for words, said in ((["--step", "3"], "did you mean `--steps`?"), (["--in-process"], "no data to train on"),
                        (["--info", "--steps", "2"], "`--steps` has no effect beside `--info`"),
                        (["--in-process", "--data", "random", "--stop-at", "30"],
                         "`--stop-at 30` has no effect: the last step is 20"),
                        (["--in-process", "--data", "random", "--no-graph"],
                         "`--no-graph` has no effect: this program runs on a CPU"),
                        (["--in-process", "--data", "t.pipe", "--log", "./t.pipe"],
                         "would be written over what `--data` names")):
        done = call(program, *words, expect=1)
        tally.check(said in done.stderr, f"{words}: {first(done.stderr)}")


def also():
    """Further programs beside the main one: all of them, or not the main one."""
    call(compiler, "t.pipe", *harness.RUNTIME, "-o", "many", "--also=ranks=1")
    for name, ranks in (("many", 2), ("many.ranks1", 1)):
        said = call("./" + name, "--info").stdout
        tally.check(f"schedule    pipe on {ranks} rank" in said, f"{name} has {ranks} ranks")
    said = call(compiler, "t.pipe", *harness.RUNTIME, "-o", "few", "--also=ranks=1,3", expect=2).stderr
    tally.check("error: 3 stages need a layer each" in said and "note: with ranks = 3, as --also asks for" in said and
                not os.path.exists(path("few")), f"--also that is refused: {said}")
    os.link(path("t.pipe"), path("over.ranks1"))
    for words, expected in ((["--also=ranks"], "expected --also=name=value,.. with different values"),
                            (["--also=ranks=2,2"], "expected --also=name=value,.. with different values"),
                            (["--also=ranks=1", "-o", "over"], "`over.ranks1` would be written over")):
        said = call(compiler, "t.pipe", *words, expect=2).stderr
        tally.check(expected in said, f"{words}: {first(said)}")
    said = call(compiler, "-", "-o", "x", "--also=ranks=1", expect=2).stderr
    tally.check("standard input can be read once" in said, first(said))


def names():
    """A name that begins like an option is none of the command that links."""
    library = harness.RUNTIME[1:] or [os.path.join(os.path.dirname(compiler), "..", "lib", "libpp-runtime.a")]
    os.symlink(os.path.abspath(library[0]), path("-library.a"))
    call(compiler, "t.pipe", "--runtime=-library.a", "-o=-linked")
    tally.check("schedule    pipe on 2 rank" in call("./-linked", "--info").stdout, "names that begin like options")


def main():
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    write("t.pipe", SOURCE)
    write("imported.pipe", IMPORTED)
    write("bad.pipe", SOURCE + "}")
    call(compiler, "t.pipe", *harness.RUNTIME, "-o", "program")
    call("./program", "--in-process", "--data", "random", "--steps", "4", "--trace", "run.trace", "--profile",
         "run.json")
    tally.check(json.loads(read("run.json"))["made_from"] == json.loads(read("run.trace"))["made_from"],
                "profile and trace say what they were made from")
    options()
    also()
    names()
    verbs()
    codes()
    colours()
    emitted()
    streams()
    outputs()
    links()
    full()
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
