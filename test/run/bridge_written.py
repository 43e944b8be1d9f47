"""Programs that pp did not write: `pp_schedules.verify` takes one by hand, and says what is wrong with broken ones."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bridge_written.py PP_COMPILE FOLDER [--edits N] [--seed N]
# Random edits of the program by hand and of four that pp wrote must be taken, or refused by an exception of the
# package, within seconds; so must texts that are no programs.
import copy, json, os, random, sys, time
from bridge_programs import judged, program_of
from harness import ROOT, Tally, draws
import pp_schedules

WRITTEN = os.path.join(ROOT, "test", "run", "Inputs", "written.json")
F1, B0, WAIT0, POST0 = 2, 5, 2, 1  # places of actions: F and B of rank 1 and 0, the wait and the post of rank 0


def actions(program, rank):
    return program["programs"][rank]["actions"]


def exchange(program):
    """Both ranks receive first."""
    own = actions(program, 0)
    own[1:5] = own[3:5] + own[1:3]


def starts(*first):
    """Simulated starts of rank 0; rank 1 does all at once."""
    return {"makespan": 9, "start": [list(first), [0] * 7]}


# What is done to the program by hand, the claim that it breaks, and what the sentence must say.
BROKEN = [
    ("F of rank 1 is missing", lambda p: actions(p, 1).pop(F1), "values", ["rank 1, B(1, 0) at hand.pipe:5:1"]),
    ("a unit of no microbatch", lambda p: actions(p, 0)[0].__setitem__(4, -1), "values", ["rank 0, F(0)"]),
    ("B reads no stash", lambda p: actions(p, 0)[B0][5].remove(4), "values", ["B(0, 0)", "'stash', 0, 0"]),
    ("the first piece reads targets", lambda p: p["programs"][0]["values"][2]["bind"].update(kind="targets"), "values",
     ["rank 0, F(0, 0) at hand.pipe:4:1: does not read ('data', None, 0"]),
    ("a second B", lambda p: actions(p, 0).insert(B0 + 1, actions(p, 0)[B0]), "units",
     ["B(0, 0), of the piece at hand.pipe:3:1, runs 2"]),
    ("U before B", lambda p: actions(p, 0).insert(B0, actions(p, 0).pop()), "values", ["U(0)", "g0", "not there"]),
    ("nobody waits", lambda p: actions(p, 0).pop(WAIT0), "channels", ["wait of act(0, 0) (send)", "never"]),
    ("a post is missing", lambda p: actions(p, 0).pop(POST0), "channels", ["wait of act(0, 0) (send)", "4:9"]),
    ("both receive first", exchange, "progress", ["`edge`", "rank 0 at the wait of dact(1, 0)", "rank 1"]),
    ("a value that dies too late", lambda p: actions(p, 1)[F1].__setitem__(8, []), "lives", ["y0"]),
    ("a count that is too small", lambda p: p["counts"][1].update(stashes=0), "counts", ["rank 1", "1 stashes", "0"]),
    ("another format", lambda p: p.update(format="pp.program/2"), "form", ["`pp.program/1`", "'pp.program/2'"]),
    ("an unknown need", lambda p: p.update(needs=["wings"]), "form", ["`wings`", "does not know"]),
    ("a need that is not checked", lambda p: p.update(needs=["cuts"]), "form", ["`cuts`", "not checked"]),
    ("a missing field", lambda p: p["messages"][0].pop("lane"), "form", ["messages[0].lane", "expected", "nothing"]),
    ("a number out of range", lambda p: actions(p, 0)[0][5].append(7), "form", ["programs[0].actions[0][5][2]", "7"]),
    ("a milliard of ranks", lambda p: p.update(ranks=10 ** 9), "form", ["ranks: expected 2, got 1000000000"]),
    ("a milliard of microbatches", lambda p: p.update(microbatches=10 ** 9), "form", ["microbatches: expected 1 to"]),
    ("NaN", lambda p: actions(p, 0)[0].__setitem__(3, float("nan")), "form", ["programs[0].actions[0][3]", "nan"]),
    ("a message on another lane", lambda p: p["messages"][0].update(lane=1), "form", ["messages[0]", "lane"]),
    ("a weight that nobody saves", lambda p: p["programs"][0]["values"][0]["bind"].update(save=True), "values",
     ["rank 1", "piece 1"]),
    ("starts that go back", lambda p: p.update(time=starts(0, 1, 1, 1, 1, 5, 4)), "time", ["rank 0"]),
    ("a start before the message", lambda p: p.update(time=starts(0, 1, 1, 2, 2, 5, 6)), "time",
     ["rank 1, wait of act(0, 0)"])]
def early(program):
    """On rank 0 the backward of slice 0 runs before that of slice 1, whose term its keys lack. Nothing dies early."""
    own = actions(program, 0)
    later, first = [next(a for a in own if a[:5] == ["run", "B", "plain", 0, 1] and a[9] == k) for k in (1, 0)]
    at = own.index(first)
    shared = set(first[8]) & set(later[5])
    later[8] += shared
    first[8] = [v for v in first[8] if v not in shared]
    own.remove(later)
    own.insert(at, later)


TEXTS = ["", "{", "[]", "null", "7", '{"format":', '"pp.program/1"', "[" * 100000, '{"a":NaN}', "\ufeff{}",
         '{"format":1}', '{"format":"pp.program/1"}', '{"format":"pp.program/1","needs":[],"microbatches":Infinity}']
POOL = [None, True, -1, 0, 1, 2, 7, 10 ** 9, 10 ** 30, 0.5, 1e308, float("nan"), float("inf"), "", "all", "host",
        "send", "all_reduce", "weight", [], {}, [0], [[]], {"kind": "edge"}, [0, 1], "U", "W", "plain", "x" * 1000]


def places(value, found):
    """All containers of a program with the keys in them."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        found.append((value, key))
        if isinstance(inner, (dict, list)):
            places(inner, found)
    return found


def edit(draw, program):
    """One or several edits: a value in place of another one, nothing, once more, or exchanged with one elsewhere."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        found = places(program, [])
        where, key = draw.choice(found)
        kind = draw.randrange(5)
        if kind < 2:
            where[key] = copy.deepcopy(draw.choice(POOL))
        elif kind == 2:
            del where[key]
        elif kind == 3 and isinstance(where, list):
            where.insert(key, copy.deepcopy(where[key]))
        else:
            other, there = draw.choice(found)
            where[key], other[there] = copy.deepcopy(other[there]), copy.deepcopy(where[key])


def main():
    arguments, tally = draws(edits=1500, seed=1), Tally()
    with open(WRITTEN) as file:
        program = json.load(file)
    tally.check(judged(program) is None, f"the program by hand: {judged(program)}")
    for name, change, claim, words in BROKEN:
        broken = copy.deepcopy(program)
        change(broken)
        said = judged(broken)
        good = said is not None and said.claim == claim and all(word in str(said) for word in words)
        tally.check(good, f"{name}: expected {claim} with {words}, got {said}")
    sliced = program_of(arguments.compiler, arguments.folder, "terapipe", 2, 2)
    broken = copy.deepcopy(sliced)
    early(broken)
    said = str(judged(broken))
    tally.check(said.startswith("gradients: rank 0, B(0, 1)") and "gradients of the keys" in said, said)
    path = os.path.join(arguments.folder, "text.json")
    for text in TEXTS + [json.dumps({**program, "fingerprint": "0"}), json.dumps(program)]:
        with open(path, "w") as file:
            file.write(text)
        try:
            pp_schedules.Program.load(path)
            tally.check(False, f"{text[:40]} is a program")
        except pp_schedules.Refused as refused:
            tally.check(len(str(refused)) < 300, f"text {text[:30]!r}: {refused}")
    program["fingerprint"] = pp_schedules.program.fingerprint(program)
    with open(path, "w") as file:
        json.dump(program, file)
    tally.check(pp_schedules.Program.load(path).verify()["units"] == 6, "F, B and U of two pieces are six units")
    draw, slowest, taken = random.Random(arguments.seed), 0, 0
    bases = [program, program_of(arguments.compiler, arguments.folder, "chimera", 2, 2, True),
             program_of(arguments.compiler, arguments.folder, "zero2", 2, 2), sliced,
             program_of(arguments.compiler, arguments.folder, "1f1b_vocabulary", 2, 2)]
    for number in range(arguments.edits):
        edited = copy.deepcopy(draw.choice(bases))
        edit(draw, edited)
        start = time.process_time()
        try:
            taken += judged(edited) is None
        except Exception as error:  # a traceback where a sentence is due
            tally.check(False, f"edit {number}: {type(error).__name__}: {error}")
        slowest = max(slowest, time.process_time() - start)
    tally.check(slowest < 3, f"an edited program takes {slowest:.1f} s")
    tally.check(0 < taken < arguments.edits // 2, f"{taken} of {arguments.edits} edits are taken")
    print(f"{arguments.edits} edits, {taken} of them taken; at most {slowest:.2f} s")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
