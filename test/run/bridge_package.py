"""Runs the part of `pp_schedules` that needs no torch: programs, schedules, refusals, the command, the wheel."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bridge_package.py PP_COMPILE FOLDER
import importlib.util, json, os, re, shutil, subprocess, sys, tarfile, zipfile
from bridge_programs import program_of
from harness import ROOT, draws
import pp_schedules

BAD = """schedule stuck(ranks p, microbatches m) {
  stage s of p at s
  for r in ranks { on r { repeat m { F(r) } } }
}
"""

ELSEWHERE = """import "std/models/opaque.pipe"
import "std/1f1b.pipe"
cluster even {
  ranks 2  memory 1e9
  device f32 = 1e12, bandwidth = 1e15  inside bandwidth = 1e15
}
train t {
  model     opaque(layers = 2, flops = [1000000000, 3000000000], weights = [5000], bytes = [40000],
                   hidden = 4, vocab = 4)
  schedule  one_f_one_b(ranks = 2, microbatches = 4)
  data      microbatch = 1, sequence = 1
  cluster   even
}
"""


def refused(what, call, *words):
    """Whether the call is refused with a text that has all of the words."""
    try:
        call()
    except pp_schedules.Refused as error:
        missing = [word for word in words if word not in str(error)]
        return f"{what}: the refusal lacks {missing}: {error}" if missing else None
    return f"{what} was not refused"


def programs(compiler, folder):
    """Saves, loads and changes a program."""
    path = os.path.join(folder, "saved.json")
    file = os.path.join(ROOT, "stdlib", "1f1b.pipe")
    program = pp_schedules.Program(file, "one_f_one_b", pp=compiler, ranks=4, microbatches=8, layers=4)
    data = program_of(compiler, folder, "1f1b", 4, 8)
    made = pp_schedules.program.fingerprint(data)
    if {program.fingerprint, made} != {data["fingerprint"]}:
        yield "the fingerprint is not that of the compiler"
    program.save(path)
    if pp_schedules.Program.load(path).data != program.data:
        yield "a saved program is another one"
    if (program.ranks, program.microbatches, len(program.pieces)) != (4, 8, 4) or program.verify()["units"] != 4 * 17:
        yield f"{program}: expected 4 ranks with 8 F, 8 B and one U each"
    action = next(a for a in program.data["programs"][1]["actions"] if a[0] == "run")
    if not re.fullmatch(r"F\(1, 0\) at 1f1b\.pipe:\d+:\d+", program.story(action, program.data["messages"])):
        yield f"the first unit of rank 1 is told as {program.story(action, program.data['messages'])}"
    changed = json.loads(json.dumps(program.data))
    changed["name"] = "another"
    yield refused("a changed program", lambda: pp_schedules.Program.of(changed), "fingerprint")
    yield refused("another format", lambda: pp_schedules.Program.of({"format": "pp.program/2"}), "pp.program/2")
    changed["needs"] = ["wings"]
    yield refused("an unknown need", lambda: pp_schedules.Program.of(changed), "`wings`")


def limits(compiler):
    """Closed forms: 1F1B and GPipe take 3 (m + p - 1), which no order beats; with halves it is 3 m + p - 1."""
    for p, m in ((2, 4), (4, 8)):
        sizes, whole = dict(ranks=p, microbatches=m, layers=p), 3 * (m + p - 1)
        for file, more, step, stashes in (("1f1b", {}, whole, min(m, p)), ("gpipe", {}, whole, m),
                                          ("zb_h", {"name": "zb_h", "k": 1}, 3 * m + p - 1, None)):
            schedule = pp_schedules.Schedule(f"std/{file}.pipe", pp=compiler, **sizes, **more)
            made, bubble = schedule.limits(), 1 - 3 * m / step
            if (made["makespan"], made["bound"], made["rank"], made["work"]) != (step, step, p - 1, 3 * m):
                yield f"{file}, {p} x {m}: the step is bound by {step}, not as in {made}"
            if max(abs(made["bubble"] - bubble), abs(made["least_bubble"] - bubble)) > 1e-9:
                yield f"{file}, {p} x {m}: the bubble is {bubble}, not as in {made}"
            if stashes and made["stashes"] != stashes or f"than {step}: rank {p - 1} has" not in str(made):
                yield f"{file}, {p} x {m}: {stashes} stashes, not as in {made}"
    both = schedule.compare("std/1f1b.pipe", "one_f_one_b", k=None)
    if both._repr_html_().count("<svg") != 2 or not re.search(r"step +27 +33\n", both):
        yield f"two schedules are not compared: {both}"
    yield refused("a file that the library lacks", lambda: schedule.compare("std/wings.pipe"), "`std/wings.pipe`")


def schedules(compiler, folder):
    file = os.path.join(ROOT, "stdlib", "zb_v.pipe")
    schedule = pp_schedules.Schedule(file, "zb_v", pp=compiler, ranks=4, microbatches=8, layers=8)
    drawing = schedule.timeline(messages=True)
    if "F" not in drawing or not drawing._repr_svg_().startswith("<svg") or "<svg" not in schedule._repr_svg_():
        yield "a schedule has no drawing"
    if "progress" not in schedule.prove("rank") or "units" not in [proof["name"] for proof in schedule.proofs()]:
        yield "the proofs are not shown"
    if not 0 < schedule.stats()["bubble"] < 1 or schedule.csv(comms=True).count("\n") < 4:
        yield "no statistics or no CSV"
    yield from limits(compiler)
    if schedule.program().verify()["units"] < 8 * 8 * 2 or "<html" not in schedule.report():
        yield "no program or no report"
    bad = os.path.join(folder, "bad.pipe")
    with open(bad, "w") as text:
        text.write(BAD)
    stuck = pp_schedules.Schedule(bad, pp=compiler, ranks=2, microbatches=2, layers=2)
    yield refused("a schedule without backwards", stuck.prove, "bad.pipe:", "error:")
    yield refused("a compiler that is not there", pp_schedules.Schedule(file, pp="/nowhere/pp").prove, "/nowhere/pp")


def elsewhere(compiler, folder):
    """`model opaque`: times and bytes are those that are given, and ties and frozen weights reach the program."""
    path = os.path.join(folder, "elsewhere.pipe")
    with open(path, "w") as file:
        file.write(ELSEWHERE)

    def schedule(**parameters):
        return pp_schedules.Schedule(path, pp=compiler, **parameters)
    stats = schedule().stats()
    # Of 4 microbatches F is 1 and 3 ms, B twice that: rank 0's first F, rank 1's work, rank 0's last B.
    if abs(stats["makespan"] - (1 + 4 * 9 + 2) / 1e3) > 1e-8:
        yield f"the step takes {stats['makespan']} s, expected 0.039"
    stash = [rank["peak_bytes"]["stash"] for rank in stats["per_rank"]]
    if not all(bytes <= got < bytes + 1000 for bytes, got in zip((2 * 40_000, 1 * 40_000), stash)):
        yield f"the stashes take {stash} bytes, expected two of 40 kB, and one"
    program = schedule().program()
    program.verify()
    if program.ties or any(piece["frozen"] for piece in program.pieces):
        yield f"ties or frozen weights that nobody asked for: {program.ties}"
    tied = schedule(model__tied=True).program()
    if [tie["sharers"] for tie in tied.ties] != [[1]] or "ties" not in tied.needs:
        yield f"tied ends make {tied.ties}"
    frozen = schedule(freeze="layers.1.,head.").program()
    if [piece["frozen"] for piece in frozen.pieces] != [False, True]:
        yield f"frozen pieces: {[piece['frozen'] for piece in frozen.pieces]}"
    limited = lambda: pp_schedules.binary.run(path, None, {}, ["--prove", "--memory-limit=100k"], compiler)
    yield refused("a step above the limit of memory", limited, "elsewhere.pipe:", "100000")
    coded = lambda: pp_schedules.binary.run(path, None, {}, ["--emit=obj", "-o", folder], compiler)
    yield refused("an executable", coded, "elsewhere.pipe:8:13", "no executable can be made of it")


def command(compiler, folder):
    """The console entry, in a process of its own, which must not import torch."""
    environment = {**os.environ, "PP": compiler, "PYTHONPATH": os.path.join(ROOT, "python")}
    program_of(compiler, folder, "zb_h1", 4, 8)

    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "pp_schedules.cli", *arguments], env=environment, text=True,
                              capture_output=True)

    good = run("verify", os.path.join(folder, "zb_h1-4-8.json"))
    if good.returncode or ": good:" not in good.stdout:
        yield f"verify: {good.stdout}{good.stderr}"
    with open(os.path.join(folder, "broken.json"), "w") as file:
        file.write("{")
    if run("verify", os.path.join(folder, "broken.json")).returncode != 1 or run("verify").returncode != 2:
        yield "verify accepts what is no program"
    if run("--version").returncode or not run("--version").stdout.startswith("pp"):
        yield "the compiler is not run"
    says = subprocess.run([sys.executable, "-c", "import pp_schedules, sys; print('torch' in sys.modules)"],
                          env=environment, text=True, capture_output=True)
    if says.stdout.strip() != "False":
        yield f"the core imports torch, or nothing: {says.stdout}{says.stderr}"


def wheel(compiler, folder):
    """`pip wheel .` without a network, the same bytes twice, and the wheel in an empty environment."""
    if not all(importlib.util.find_spec(name) for name in ("pip", "ensurepip")):
        print("this Python has no pip or no ensurepip: the wheel was not tried")
        return
    environment = {**os.environ, "PP_BUILD": os.path.dirname(os.path.dirname(os.path.abspath(compiler))),
                   "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INDEX": "1"}
    environment = {key: value for key, value in environment.items() if key not in ("PP", "PYTHONPATH")}
    made = []
    for number in (1, 2):
        where = os.path.join(folder, f"wheel{number}")
        shutil.rmtree(where, ignore_errors=True)
        call([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", ROOT, "-w", where], environment)
        made.append(os.path.join(where, os.listdir(where)[0]))
    with open(made[0], "rb") as first, open(made[1], "rb") as second:
        if first.read() != second.read():
            yield "two wheels of one build differ"
    with zipfile.ZipFile(made[0]) as archive:
        info = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    needs = sorted(re.findall(r'^Requires-Dist: (\w+).*; extra == "torch"$', info, re.M))
    if needs != ["numpy", "torch"]:                # what PyTorch's exchange of objects asks for, without saying so
        yield f"`[torch]` brings {needs}"
    venv = os.path.join(folder, "venv")
    shutil.rmtree(venv, ignore_errors=True)
    call([sys.executable, "-m", "venv", venv], environment)
    call([os.path.join(venv, "bin", "pip"), "install", "-q", made[0]], environment)
    source = os.path.join(os.path.abspath(folder), "mine.pipe")
    shutil.copy(os.path.join(ROOT, "stdlib", "1f1b.pipe"), source)
    said = call([os.path.join(venv, "bin", "python"), "-c",
                 "import pp_schedules as pp, sys\n"
                 f"s = pp.Schedule({source!r}, ranks=4, microbatches=8, layers=4)\n"
                 "print(s.program().verify()['units'], pp.binary.find().startswith(sys.prefix))"], environment, folder)
    if said.split() != ["68", "True"]:
        yield f"the installed package says {said}"
    sizes = ["-D", "ranks=2", "-D", "microbatches=4", "-D", "layers=2"]
    for name in ("pp", "pp-schedules"):
        drawn = call([os.path.join(venv, "bin", name), "draw", source, *sizes], environment)
        if "F" not in drawn:
            yield f"`{name} draw` draws nothing: {drawn}"
    call([os.path.join(venv, "bin", "pp"), "json", source, *sizes, "-o", "mine.json"], environment, folder)
    if ": good: " not in call([os.path.join(venv, "bin", "pp"), "verify", "mine.json"], environment, folder):
        yield "`pp verify` says nothing"
    if "--megatron" not in call([os.path.join(venv, "bin", "pp"), "advise", "--help"], environment):
        yield "`pp advise` is not found"
    yield from without_build(folder, environment)


def without_build(folder, environment):
    """A clone without a build, and the sources that carry no program, say in one sentence what to do."""
    alone = {**environment, "PP_BUILD": folder, "PYTHONPATH": os.path.join(ROOT, "python")}
    no_build = subprocess.run([sys.executable, "-c", "import pack; pack.build_wheel('.')"], text=True,
                              capture_output=True, env=alone)
    if no_build.returncode != 1 or "run tools/build.sh in a clone first" not in no_build.stderr:
        yield f"without a build: {no_build.stderr}"
    packed = call([sys.executable, "-c", "import pack; print(pack.build_sdist('.'))"], alone, folder).strip()
    with tarfile.open(os.path.join(folder, packed)) as archive:
        names = archive.getnames()
        archive.extractall(os.path.join(folder, "sources"))
    if [name for name in names if "/bin/" in name] or not [name for name in names if "stdlib/1f1b.pipe" in name]:
        yield f"the sources have a program, or no library: {names[:9]}"
    root = os.path.join(folder, "sources", packed[:-len(".tar.gz")])
    del alone["PP_BUILD"]
    no_build = subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", root, "-w", folder], text=True,
                              capture_output=True, env=alone)
    if no_build.returncode != 1 or "run tools/build.sh in a clone first" not in no_build.stderr:
        yield f"a wheel of the sources alone: {no_build.stderr}"


def call(command, environment, folder=None):
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def main():
    arguments = draws()
    checks, problems = [programs, schedules, elsewhere, command, wheel], []
    for check in checks:
        problems += [problem for problem in check(arguments.compiler, arguments.folder) if problem]
    for problem in problems:
        print(problem)
    print(f"{len(checks)} passed, {len(problems)} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
