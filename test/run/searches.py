"""Tries every cut into stages with every saving of memory on two ranks: --search finds the best, or comes near."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: searches.py PP_COMPILE FOLDER [--all]
# The schedules are written here, planned one by one and simulated; --search knows nothing of this list. Without --all:
# one stage on each rank. --all: also two, as a loop and as a V, and more sets of parts.
#
# NEAR is how much longer a step of --search may be. One stage on each rank: not at all; the table has four digits. Else
# its local search may miss choices: for each cut it compiles three that the planner's model finds best, and then single
# changes of one schedule.
import concurrent.futures, itertools, json, os, re, sys
from harness import Tally, call

COMPILER, FOLDER = sys.argv[1:3]
ALL = "--all" in sys.argv
NEAR = 1.02 if ALL else 1.0005
RANKS, MICROBATCHES = 2, 4
# With three layers there is room for one stage on each rank only.
LAYERS, LIMITS = (4, ["5500KiB", "6500KiB"]) if ALL else (3, ["5200KiB", "6000KiB"])
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


def candidates():
    for places in [[0, 1], [0, 1, 0, 1], [0, 1, 1, 0]] if ALL else [[0, 1]]:
        its = SAVINGS[:3] if len(places) > 2 else SAVINGS + MORE if ALL else SAVINGS
        for layers in cuts(len(places)):
            for savings in itertools.product(its, repeat=len(places)):
                if all(holds(stage, layers, saving) for stage, saving in enumerate(savings)):
                    yield places, layers, savings


def step(job):
    """Of the planned candidate, in seconds; nothing if it does not fit or cannot be."""
    number, limit, candidate = job
    path = program("tried", written(*candidate), number)
    done = call([COMPILER, path, "--cluster=cpu", "--plan", f"--memory-limit={limit}", "--emit=stats"], expect=None)
    os.remove(path)
    return json.loads(done.stdout)["step"] if done.returncode == 0 else None


def searched(limit):
    """The step of the best that --search planned, from its program, and its name."""
    path = program("one_f_one_b", "", "")
    options = ["--cluster=cpu", "--search", f"--memory-limit={limit}"]
    table = call([COMPILER, path, *options]).stdout
    rows = re.findall(r"^ *\d+ +([\d.]+) (us|ms|s) .* (?:%|-)  ((?:a |V|\d waves).*): ", table, re.M)
    value, unit, what = rows[0]
    return float(value) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit], what


def main():
    os.makedirs(FOLDER, exist_ok=True)
    tally = Tally()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for limit in LIMITS:
            every = list(candidates())
            steps = list(pool.map(step, [(number, limit, candidate) for number, candidate in enumerate(every)]))
            fitting = [(its, candidate) for its, candidate in zip(steps, every) if its is not None]
            if not fitting:
                raise SystemExit(f"{limit}: nothing fits")
            best, winner = min(fitting)
            found, what = searched(limit)
            tally.check(found <= best * NEAR, f"{limit}: --search finds {found * 1e3:.4g} ms ({what}), and {winner} of "
                        f"{len(fitting)} that fit, of {len(every)}, takes {best * 1e3:.4g} ms")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
