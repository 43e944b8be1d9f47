"""Compares what a program says of itself with what it does: units, saved weights, lives, counts, and starts."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import collections
from .form import name_of, place_of
from .refused import Unproved


def units(checker):
    """Every unit ran, and every update where the owners are; returns how many."""
    expected = collections.Counter()
    for i, piece in enumerate(checker.pieces):
        for mb in checker.every:
            halves = checker.ran["I", i, mb] > 0
            expected.update([("F", i, mb)] + [("I" if halves else "B", i, mb)] * any(checker.trained[:i + 1]) +
                            [("W", i, mb)] * (halves and checker.trained[i]) +
                            [("I", i, mb)] * (checker.judges and i == len(checker.pieces) - 1))
        expected.update(("U", i, rank) for rank in (piece["owner"]["ranks"] if checker.trained[i] else ()))
    for phase, piece, mb in {**expected, **checker.ran}:
        wanted, ran = expected[phase, piece, mb], checker.ran[phase, piece, mb]
        if wanted != ran and phase != "R":
            number = mb[0] if isinstance(mb, tuple) else mb
            name = name_of(checker.program, phase, piece, number if phase != "U" else -1)
            where = place_of(checker.program, checker.pieces[piece]["line"]) or checker.pieces[piece]["name"]
            rank = f" on rank {mb}" if phase == "U" else ""
            raise Unproved("units", f"{name}, of the piece at {where}, runs {ran} times{rank}, expected {wanted}")
    return sum(expected.values())


def saves(checker):
    """If some copies of weights are said to be saved, a checkpoint has each weight, or each of its shards, once."""
    copies, checker.action = collections.Counter(), None
    for checker.rank, binds in enumerate(checker.binds):
        for bind in binds:
            if bind.get("kind") == "weight":
                copies[bind["piece"], bind.get("shard")] += bool(bind.get("save"))
                if copies[bind["piece"], bind.get("shard")] > 1:
                    checker.fail("values", f"saves the weights of piece {bind['piece']}, which are saved already")
    lacking = [piece for (piece, _), times in copies.items() if not times]
    if lacking and any(copies.values()):
        checker.fail("values", f"neither this rank nor one before it saves the weights of piece {lacking[0]}")


def lives(checker, counts):
    """Values are said to be dead behind their last use, and the most that are alive at once is as stated."""
    for checker.rank, program in enumerate(checker.programs):
        names, things = [value["label"] for value in program["values"]], list(kinds(checker, program))
        uses, first, alive, now, peaks = [], {}, set(), collections.Counter(), collections.Counter()
        for a in program["actions"]:               # what it reads and writes; a wait uses what its post did
            reads, writes = a[5:7] if a[0] == "run" else checker.ends[checker.rank, a[1], a[2]]
            uses.append((a, reads, writes) if a[0] != "wait" else (a, reads + writes, ()))
        for _, reads, writes in reversed(uses):
            first.update({**dict.fromkeys(writes, False), **dict.fromkeys(reads, True)})

        def step(v, by):
            for thing in things[v]:
                now[thing] += by
                if now[thing] == (by > 0):
                    now[thing[0]] += by
                    peaks[thing[0]] = max(peaks[thing[0]], now[thing[0]])

        for v in [v for v, there in first.items() if there]:  # those that the step reads before it writes them
            alive.add(v)
            step(v, 1)
        for checker.action, reads, writes in uses:
            for v in reads:
                if v not in alive:
                    checker.fail("lives", f"uses {names[v]}, which is said to be dead")
            for v in writes:
                if v not in alive:
                    alive.add(v)
                    step(v, 1)
                elif v not in reads:
                    checker.fail("lives", f"writes {names[v]}, which is not said to be dead")
            now["messages"] += {"post": 1, "wait": -1}.get(checker.action[0], 0)
            peaks["messages"] = max(peaks["messages"], now["messages"])
            for v in checker.action[8 if checker.action[0] == "run" else -1]:
                if v not in alive or v not in reads and v not in writes:
                    checker.fail("lives", f"{names[v]} is said to be dead, and is not used here")
                alive.remove(v)
                step(v, -1)
        checker.action = None
        for v in alive ^ {v for v in first if checker.bound(checker.binds[checker.rank][v], True)}:
            checker.fail("lives", f"{names[v]} is {'not ' * (v in alive)}said to be dead when the step ends")
        for what, number in counts[checker.rank].items() if counts else ():
            if peaks[what] != number:
                checker.fail("counts", f"holds up to {peaks[what]} {what}, stated are {number}")


def kinds(checker, program):
    """Of each value in which of the counts it is, and as what: stashes count by units, and shards do not count."""
    runs = {v for a in program["actions"] if a[0] == "run" for v in a[5] + a[6]}
    slices = {v: a[-1] for a in program["actions"] if a[0] == "run" for v in a[6]} if checker.slices else {}
    shards = {a[4] for a in program["actions"] if a[0] == "post"}
    for v, value in enumerate(program["values"]):
        if value["host"]:
            yield [("host_stashes", v)]
        elif value["role"] == "stash":
            yield [("stashes", (value["piece"], value["mb"], slices.get(v)))] + [("guests", v)] * (v not in runs)
        else:
            yield [(value["role"] + "s", v)] * (v not in shards and checker.binds[checker.rank][v].get("shard") is None)


def times(checker, time):
    """Starts go up on every rank, and no unit starts behind the makespan (updates may). Nothing behind a wait starts
    before all ends have posted the message."""
    posted, starts = collections.Counter(), time["start"] if time else ()
    for checker.rank, (program, start) in enumerate(zip(checker.programs, starts)):
        units = [now for a, now in zip(program["actions"], start) if a[0] == "run" and a[1] != "U"]
        ascends = all(a <= b for a, b in zip([0, *start], start)) and units[-1:] <= [time["makespan"]]
        if len(start) != len(program["actions"]) or not ascends:
            checker.fail("time", "expected a start for each action, in their order, and no unit's behind the makespan")
        for action, now in zip(program["actions"], start):
            if action[0] == "post":
                posted[action[1]] = max(posted[action[1]], now)
    for checker.rank, (program, start) in enumerate(zip(checker.programs, starts)):
        for checker.action, later in zip(program["actions"], start[1:]):
            if checker.action[0] == "wait" and later < posted[checker.action[1]]:
                checker.fail("time", f"ends at {later}, and an end is posted at {posted[checker.action[1]]}")
