"""Holds --search against all cuts and savings of two ranks, its rows against their command lines, and its ^C."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: searches.py PP_COMPILE FOLDER [--all]
# The schedules are written here, planned one by one and simulated; --search knows nothing of this list. Without --all:
# one stage on each rank; on devices of two kinds all of it is recomputed, or nothing. --all: also two, as a loop and as
# a V, and more sets of parts; what is said where nothing fits, and of recomputed stages, with all meshes and schedules.
#
# NEAR is how much longer a step of --search may be. With one stage on each rank it may not be longer (the table has
# four digits). Else the local search may miss choices: for each cut it compiles the three that the planner's model
# finds best, and then single changes of one schedule.
import concurrent.futures, itertools, json, math, os, re, shlex, signal, subprocess, sys, time
from harness import TRAIN, Tally, call

COMPILER, FOLDER = sys.argv[1:3]
ALL = "--all" in sys.argv
NEAR = 1.02 if ALL else 1.0005
RANKS, MICROBATCHES = 2, 4
# With three layers there is room for one stage on each rank only.
LAYERS, LIMITS = (4, ["5500KiB", "6500KiB"]) if ALL else (3, ["5200KiB", "6000KiB"])
# Clusters with devices of two kinds: their memories, which are the limits, and their speeds.
KINDS = {"slow": ([16e6, 16e6], "f32 = [228e9, 57e9], bandwidth = [12e9, 4e9]"),
         "small": ([16e6, 4.4e6], "f32 = 228e9, bandwidth = 12e9"),
         "fast_is_small": ([4.4e6, 16e6], "f32 = [228e9, 76e9], bandwidth = 12e9")}
SAVINGS = ["", "all", "host", "post", "embed"]
MORE = ["pre", "qkv", "attn", "embed, post", "post, attn", "pre, qkv, post"]
PROGRAM = """import "std/models/llama.pipe"
import "std/1f1b.pipe"
{schedule}
train test {{
  model     llama(layers = {layers}, hidden = 64, heads = 2, ffn = 256, vocab = 512)
  schedule  {name}({ranks}, {microbatches})
  data      microbatch = 2, sequence = 64
  optimizer adamw(lr = 1e-3)
  precision f32
}}
"""
LINKS = "inside bandwidth = 11e9, latency = 3e-7  host bandwidth = 11e9, latency = 3e-7"
PROGRAM += "".join(f"cluster {name} {{{{ ranks 2  memory {memory}  device {device}  {LINKS} }}}}\n"
                   for name, (memory, device) in KINDS.items())


def written(places, layers, savings):
    """One microbatch after the other."""
    text = f"schedule tried(ranks p, microbatches m) {{\n  stage s of {len(places)} at {places}[s] layers {layers}[s]\n"
    for stage, saving in enumerate(savings):
        if saving not in ("", "host"):
            text += f"  recompute {'' if saving == 'all' else saving + ' of '}stage({stage})\n"
    text += "  for i in microbatches {\n"
    for stage, rank in enumerate(places):
        moves = f" move stash({stage}, i) to host({rank})" if savings[stage] == "host" else ""
        text += f"    on {rank} {{ F({stage}, i){moves} }}\n"
    for stage, rank in reversed(list(enumerate(places))):
        moves = f"move stash({stage}, i) from host({rank}) to {rank} " if savings[stage] == "host" else ""
        text += f"    on {rank} {{ {moves}B({stage}, i) }}\n"
    return text + "  }\n}"


def within(limit):
    """A limit on `cpu`, or the name of a cluster with its own."""
    return [f"--cluster={limit}"] if limit in KINDS else ["--cluster=cpu", f"--memory-limit={limit}"]


def program(name, schedule, number):
    path = os.path.join(FOLDER, f"{name}{number}.pipe")
    with open(path, "w") as file:
        file.write(PROGRAM.format(schedule=schedule, name=name, layers=LAYERS, ranks=RANKS, microbatches=MICROBATCHES))
    return path


def cuts(stages):
    """All numbers of layers; stages at the ends may have none, for they have the embedding and the head."""
    for layers in itertools.product(range(LAYERS + 1), repeat=stages):
        if sum(layers) == LAYERS and all(layers[1:-1]):
            yield list(layers)


def holds(stage, layers, saving):
    """Whether the stage has the parts of the saving."""
    return saving in ("", "all", "host") or (layers[stage] > 0 or saving == "embed") and (
        stage == 0 or "embed" not in saving)


def candidates(limit):
    for places in [[0, 1], [0, 1, 0, 1], [0, 1, 1, 0]] if ALL else [[0, 1]]:
        its = SAVINGS[:3] if len(places) > 2 else SAVINGS + MORE if ALL else SAVINGS[:2] if limit in KINDS else SAVINGS
        for layers in cuts(len(places)):
            for savings in itertools.product(its, repeat=len(places)):
                if all(holds(stage, layers, saving) for stage, saving in enumerate(savings)):
                    yield places, layers, savings


def step(job):
    """Of the planned candidate, in seconds; nothing if it does not fit or cannot be."""
    number, limit, candidate = job
    path = program("tried", written(*candidate), number)
    done = call([COMPILER, path, *within(limit), "--plan", "--emit=stats"], expect=None)
    os.remove(path)
    return json.loads(done.stdout)["step"] if done.returncode == 0 else None


UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def rows(table):
    """What --search printed: of each row the step, the bound and the peak, its words and its command line."""
    row = r"^ *\d+ +([\d.]+) (\w+) +([\d.]+) (\w+) +[\d.]+ +([\d.]+) (\w+) +(.*)\n +pp(?:-compile)? (.*)$"
    found = re.findall(row, table, re.M)
    if not found:
        raise SystemExit(f"no rows in\n{table}")
    return [{"step": float(step) * UNITS[a], "bound": float(bound) * UNITS[b], "peak": float(peak) * UNITS[c],
             "what": what, "command": shlex.split(command)} for step, a, bound, b, peak, c, what, command in found]


def near(a, b):
    """As near as the digits of the table say."""
    return abs(a - b) <= 3e-3 * abs(b)


def stats(words):
    done = call([COMPILER, *words])
    its = json.loads(done.stdout[done.stdout.index("{"):])
    return its, its["step"], (max(rank["peak_bytes"]["total"] for rank in its["per_rank"]) +
                              max(rank["outside_bytes"]["total"] for rank in its["per_rank"]))


def check_rows(tally):
    """Of all meshes: each row is made again by its command line, trains as many sequences on as many devices, is above
    its bound and no worse than another row in time and memory. No schedule of the library is faster by hand."""
    sizes = [TRAIN, "-D", "model=gpt2", "-D", "vocab=512", "-D", "layers=8", "-D", "hidden=64", "-D", "microbatches=8",
             "-D", "microbatch=2", "--cluster=h100_ndr"]
    done = call([COMPILER, *sizes, "--search", "--search-seconds=20"])
    found = rows(done.stdout)
    for row in found:
        its, step, peak = stats(row["command"])
        given = dict(word.split("=", 1) for word in row["command"] if "=" in word and not word.startswith("--"))
        tally.check(near(row["step"], step) and near(row["peak"], peak), f"{row['what']}: the row says "
                    f"{row['step']:.4g} s and {row['peak']:.4g} bytes, its command line {step:.4g} s and {peak:.4g}")
        sequences = its["microbatches"] * int(given.get("data.microbatch", 2)) * int(given.get("mesh.data", 1))
        tally.check(sequences == 16 and its.get("devices", its["ranks"]) == 4,
                    f"{row['what']}: {sequences} of 16 sequences, {its.get('devices', its['ranks'])} of 4 devices")
        tally.check(row["bound"] <= row["step"] * 1.001, f"{row['what']}: its bound is {row['bound']:.4g} s")
    worse = [b["what"] for a, b in itertools.permutations(found, 2)
             if a["step"] < 0.997 * b["step"] and a["peak"] < 0.997 * b["peak"]]
    tally.check(not worse, f"rows that another one is better than: {worse}")
    tally.check([row["step"] for row in found] == sorted(row["step"] for row in found), "rows by step")
    for name in ["zb_v", "zb_h1", "zb_h2", "dualpipe_v", "dualpipe", "chimera", "interleaved", "fsdp", "zero1",
                 "replicated_1f1b", "slimpipe", "helixpipe", "v_half", "data_parallel"]:
        its, step, peak = stats([*sizes, "-D", f"schedule={name}", "--emit=stats"])
        tally.check(found[0]["step"] <= step * 1.0005,
                    f"{name} by hand takes {step:.4g} s, the best row {found[0]['step']:.4g}")
    # Rows are said as they are found, off a terminal, too.
    tally.check(len(re.findall(r"^ *[\d.]+ s: step", done.stderr, re.M)) >= len(found), "rows as they come")


def check_speeds(tally):
    """Two of four ranks are three times as slow: no split by hand is faster, and the even one is far from the best."""
    path = os.path.join(FOLDER, "speeds.pipe")
    speeds = "f32 = [228e9, 228e9, 76e9, 76e9], bandwidth = [12e9, 12e9, 4e9, 4e9]"
    with open(path, "w") as file:
        file.write(f"{open(TRAIN).read()}cluster speeds {{ ranks 4  memory 1e9  device {speeds}  {LINKS} }}\n")
    sizes = [path, "-D", "layers=8", "-D", "ranks=4", "-D", "microbatches=8", "-D", "hidden=64", "--cluster=speeds"]
    best = rows(call([COMPILER, *sizes, "--search=stages", "--search-seconds=30"]).stdout)[0]
    for held in ([3, 3, 1, 1], [4, 2, 1, 1], [2, 4, 1, 1], [3, 2, 2, 1], [4, 3, 1, 0], [2, 2, 2, 2]):
        _, step, _ = stats([*sizes, "--schedule=std/stages.pipe:stages", "-D", f"schedule.held={held}".replace(" ", ""),
                            "-D", "schedule.ranks=4", "-D", "schedule.microbatches=8", "--plan", "--emit=stats"])
        tally.check(best["step"] <= step * 1.0005,
                    f"{held} by hand takes {step:.4g} s, --search finds {best['step']:.4g} s ({best['what']})")
    tally.check(best["step"] < 0.6 * step, f"as even as can be: {step:.4g} s, --search finds {best['step']:.4g} s")


def check_meshes_of_kinds(tally):
    """One of two nodes is a third as fast. The library cuts evenly, so none of its rows says that two ranks are best,
    each on the two devices of a node; layers by hand do."""
    path = os.path.join(FOLDER, "nodes.pipe")
    speeds = "f32 = [228e9, 228e9, 76e9, 76e9], bandwidth = [12e9, 12e9, 4e9, 4e9]"
    with open(path, "w") as file:
        file.write(f"{open(TRAIN).read()}cluster nodes {{ ranks 2  memory 1e9  device {speeds}  {LINKS}  "
                   "between bandwidth = 5e9, latency = 3e-6 }\n")
    sizes = [path, "-D", "layers=8", "-D", "hidden=64", "--cluster=nodes"]
    best = rows(call([COMPILER, *sizes, "-D", "ranks=4", "--search", "--search-seconds=30"]).stdout)[0]
    hand = {}
    for held, mesh in itertools.product(([2, 2, 2, 2], [3, 3, 1, 1], [4, 4], [6, 2], [7, 1]), ("data", "tensor")):
        ranks = len(held)
        microbatches = 4 if ranks == 2 and mesh == "data" else 8
        words = [] if ranks == 4 else ["-D", f"mesh.{mesh}=2"]
        words += ["-D", f"schedule.held={held}".replace(" ", ""), "-D", f"schedule.ranks={ranks}", "--emit=stats",
                  "-D", f"schedule.microbatches={microbatches}", "--schedule=std/stages.pipe:stages", "--plan"]
        hand[str(held), mesh] = stats([*sizes, *words])[1]
    winner = min(hand, key=hand.get)
    tally.check(winner == ("[6, 2]", "data") and best["step"] <= hand[winner] * 1.0005,
                f"{winner} by hand takes {hand[winner]:.4g} s, --search finds {best['step']:.4g} s ({best['what']})")


def check_pairs(tally):
    """Units side by side: few microbatches have few pairs, so a short step says too much of a long one. DualPipe-V is
    shorter than ZB-V here by 0.8 %, and must be found from there, before stages are planned."""
    path = os.path.join(FOLDER, "pairs.pipe")
    with open(path, "w") as file:
        file.write(f"{open(TRAIN).read()}cluster pairs {{ ranks 8  memory 1e9  device f32 = 228e9, bandwidth = 16e9  "
                   "inside bandwidth = 11e9, latency = 3e-7 }\n")
    values = dict(layers=16, hidden=64, vocab=256, sequence=128, ffn=256, ranks=4, microbatches=32, microbatch=1)
    values |= {"mesh.tensor": 2, "mesh.sequence": "true"}
    sizes = [path, "--cluster=pairs", *(word for item in values.items() for word in ("-D", "{}={}".format(*item)))]
    zb_v, dualpipe_v = (stats([*sizes, "-D", f"schedule={name}", "--emit=stats"])[1]
                        for name in ("zb_v", "dualpipe_v"))
    tally.check(dualpipe_v < 0.998 * zb_v, f"by hand: DualPipe-V takes {dualpipe_v:.5g} s, ZB-V {zb_v:.5g} s")
    run = subprocess.Popen([COMPILER, *sizes, "-D", "schedule=zb_v", "--search=schedule", "--search-seconds=300"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in run.stderr:
        if re.search(r"dualpipe_v\(|  (V|a stage|a loop|2 waves)", line):
            break
    run.send_signal(signal.SIGINT)
    best = rows(run.communicate(timeout=120)[0])[0]
    tally.check(near(best["step"], dualpipe_v) and "dualpipe_v(" in best["what"],
                f"--search finds {best['step']:.5g} s ({best['what']}) before it plans stages")


def check_time(tally):
    """A search that says that its time was over has used it: steps that were cut off get what later ones leave."""
    begin = time.monotonic()
    done = call([COMPILER, TRAIN, "-D", "ranks=7", "-D", "microbatches=14", "--cluster=h100_ndr", "--search",
                 "--search-seconds=3"])
    took = time.monotonic() - begin
    tally.check("time was over" not in done.stdout or took >= 3, f"time was over after {took:.1f} of 3 s")


def check_nearest(tally):
    """Where nothing fits, the message says how much is missing: with so much memory, and 1 % more, something fits."""
    sizes = [TRAIN, "-D", "layers=2", "-D", "hidden=32", "-D", "vocab=64", "-D", "sequence=32", "-D", "ranks=2", "-D",
             "microbatches=2", "--cluster=cpu", "--search" if ALL else "--search=stages"]
    said = call([COMPILER, *sizes, "--memory-limit=100KiB"], expect=1).stderr
    times = float((re.search(r"which needs at least ([\d.]+) times as much", said) or [0, "0"])[1])
    tally.check(times > 1, f"no word on what is missing:\n{said}")
    fits = call([COMPILER, *sizes, f"--memory-limit={round(100 * times * 1.01)}KiB"], expect=None)
    tally.check(fits.returncode == 0, f"{times} times 100 KiB: {fits.stderr}")


def check_refused(tally):
    """Each candidate is refused once, however often it is tried. One device trains 4 sequences in microbatches of 4, of
    2 or of 1, and only the last ones fit: two are not possible, each with all recomputed."""
    sizes = [TRAIN, *"-D schedule=single -D layers=2 -D hidden=16 -D vocab=64 -D sequence=64 -D microbatches=1".split(),
             "-D", "microbatch=4", "--cluster=cpu", "--search"]
    said = call([COMPILER, *sizes, "--memory-limit=100KiB"], expect=1).stderr
    limit = round(101 * float(re.search(r"which needs at least ([\d.]+) times", said)[1]))
    said = call([COMPILER, *sizes, f"--memory-limit={limit}KiB"]).stdout
    tally.check("not possible: 2, for 1 reason:\n    2  single(" in said, f"two candidates are not possible:\n{said}")


def check_recomputed(tally):
    """Where the program recomputes a stage, rows say whether they do so, too, or recompute nothing: they are tried each
    for itself."""
    path = os.path.join(FOLDER, "recomputes.pipe")
    with open(path, "w") as file:
        file.write('import "std/models/llama.pipe"\nimport "std/1f1b.pipe"\ntrain t {\n'
                   "  model llama(layers = 4, hidden = 64, heads = 4, ffn = 128, vocab = 64)\n"
                   "  schedule one_f_one_b(ranks = 2, microbatches = 4)\n  data microbatch = 2, sequence = 64\n"
                   "  optimizer adamw(lr = 1e-3)\n  recompute stage(0)\n}\n")
    table = call([COMPILER, path, "--cluster=cpu", "--search" if ALL else "--search=schedule"]).stdout
    found = [("nothing recomputed" in row["what"], "recompute=" in row["command"]) for row in rows(table)]
    tally.check((True, True) in found and all(said == asked for said, asked in found), f"rows that recompute: {found}")


def check_interrupt(tally):
    """SIGINT prints what was found, and the exit code says so."""
    sizes = ["-D", "layers=32", "-D", "ranks=8", "-D", "microbatches=64"]
    command = [COMPILER, TRAIN, *sizes, "--cluster=h100_ndr", "--search"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in run.stderr:
        if ": step" in line:
            break
    run.send_signal(signal.SIGINT)
    table, _ = run.communicate(timeout=120)
    tally.check(run.returncode == 130 and len(rows(table)) >= 1 and "then interrupted" in table,
                f"exit code {run.returncode} and\n{table}")


def check_outputs(tally):
    """Of the best row: PyTorch's CSV, and Megatron's layout, whose stages are those of the row."""
    sizes = [TRAIN, "-D", "layers=6", "-D", "ranks=2", "-D", "microbatches=4", "-D", "vocab=4096", "--cluster=cpu",
             "--search=stages"]
    done = call([COMPILER, *sizes, "--emit=tasks"])
    units = sorted(re.findall(r"\d+[FBIW]\d+", done.stdout))
    stages = {int(re.match(r"\d+", unit)[0]) for unit in units}
    forwards = [unit for unit in units if "F" in unit]
    tally.check(len(forwards) == 4 * len(stages) and len(set(units)) == len(units) and
                len(done.stdout.splitlines()) == 2, f"no step as CSV:\n{done.stdout}")
    layout = re.search(r"Megatron lays them out: (\S+)", done.stderr)
    best = rows(done.stderr)[0]
    held = re.search(r"held=\[([\d,]+)\]", " ".join(best["command"]))
    if layout and held:
        again = [int(more or 1) if letter else 0 for letter, more in
                 (re.search(r"(t?)(?:\*(\d+))?", stage.strip("EL")).groups() for stage in layout[1].split("|"))]
        tally.check(again == [int(n) for n in held[1].split(",")], f"{layout[1]} is not {held[1]}")
        made = call([COMPILER, TRAIN, *sizes[1:7], "-D", "vocab=4096", "-D", "schedule=megatron", "-D",
                     f"layout={layout[1]}", "--emit=tasks"]).stdout
        tally.check(sorted(re.findall(r"\d+F\d+", made)) == forwards, "Megatron's layout has other units")
    tally.check(layout or not held or re.search(r"^  1 .*(V|waves)", done.stderr, re.M), "no layout for stages in turn")


def searched(limit):
    """The step of the best that --search planned, from its program, its name, and the bytes that each rank needs."""
    path = program("one_f_one_b", "", "")
    best = rows(call([COMPILER, path, *within(limit), "--search=stages"]).stdout)[0]
    needs = [rank["peak_bytes"]["total"] + rank["outside_bytes"]["total"]
             for rank in stats(best["command"])[0]["per_rank"]]
    return best["step"], best["what"], needs


def main():
    os.makedirs(FOLDER, exist_ok=True)
    tally = Tally()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for limit in [*LIMITS, *KINDS]:
            every = list(candidates(limit))
            steps = list(pool.map(step, [(number, limit, candidate) for number, candidate in enumerate(every)]))
            fitting = [(its, candidate) for its, candidate in zip(steps, every) if its is not None]
            if not fitting:
                raise SystemExit(f"{limit}: nothing fits")
            best, winner = min(fitting)
            found, what, needs = searched(limit)
            tally.check(found <= best * NEAR, f"{limit}: --search finds {found * 1e3:.4g} ms ({what}), and {winner} of "
                        f"{len(fitting)} that fit, of {len(every)}, takes {best * 1e3:.4g} ms")
            has = KINDS.get(limit, ([math.inf] * RANKS,))[0]
            tally.check(all(need <= its for need, its in zip(needs, has)), f"{limit}: {what} needs {needs} of {has}")
    check_nearest(tally)
    check_recomputed(tally)
    if not ALL:
        check_rows(tally)
        check_speeds(tally)
        check_meshes_of_kinds(tally)
        check_pairs(tally)
        check_time(tally)
        check_refused(tally)
        check_interrupt(tally)
        check_outputs(tally)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
