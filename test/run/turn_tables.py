#!/usr/bin/env python3
"""Holds every turn of the weight-passing schedules against their specification: units, messages, weights held."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: turn_tables.py PP_COMPILE FOLDER
# A rank's list of --emit=comms is cut into turns: as many cells as the table has units and messages of that rank in
# that turn. They must be the same ones, units in the same order, and messages before or after them as ORDER says. Then
# what --emit=stats counts: messages by role, stashes, and weights and gradients at most as many as the specification's
# buffers; and that `limit` means the same by them.
import collections, json, os, re, shutil, sys
import harness

SIZES = dict(hidden=4, heads=1, kv_heads=1, ffn=4, vocab=4, sequence=2, microbatch=1)
SCHEDULES = {"naive": dict(schedule="weipipe_naive"), "interleave": dict(schedule="weipipe_interleave"),
             "wzb1": dict(schedule="wzb1"), "wzb2": dict(schedule="wzb2"), "taw": dict(schedule="tawpipe"),
             "taw_nogwps": dict(schedule="tawpipe", ring="true"),
             "taw_nocco": dict(schedule="tawpipe", prefetch="false"),
             "fsdp": dict(schedule="fsdp", ahead=0, hidden=16, ffn=16)}
# The order inside a turn. In a ring the exchange ends the turn. In TawPipe (section 5) messages between groups run
# behind the compute; then come the sum inside the group and the broadcast for the next turn. Without CCO weights come
# before the compute, and gradients go after it.
RING = dict(unit=0, weight=1, grad=1)
TAW = dict(weight=0, grad=0, unit=1, sum=2, broadcast=3)
ORDER = collections.defaultdict(lambda: RING, taw=TAW, taw_nogwps=TAW,
                                taw_nocco=dict(weight=0, broadcast=1, unit=2, sum=3, grad=4),
                                fsdp=dict(broadcast=0, unit=1, sum=2))
# Section 7, per rank r of p: stage-activations, weight and gradient buffers.
PEAKS = {"naive": lambda p, r: (p, 4, 2), "interleave": lambda p, r: (p, 4, 2), "wzb1": lambda p, r: (3 * p // 2, 4, 2),
         "wzb2": lambda p, r: (p, p + 2 if r == p - 1 else 2, 1 if r == 0 else p + 2 if r == p - 1 else 2),
         "taw": lambda p, r: (p, 3, 3), "taw_nogwps": lambda p, r: (p, 3, 4), "taw_nocco": lambda p, r: (p, 3, 3),
         "fsdp": lambda p, r: (p, 1, 1)}
ROLES = {"W": "weight", "D": "grad"}


class Turn:
    """By rank: units as --emit=comms writes them, updates, weights and gradients held, messages as cells."""

    def __init__(self, ranks):
        self.units, self.updates, self.held = ([[] for _ in range(ranks)] for _ in range(3))
        self.messages = [collections.Counter() for _ in range(ranks)]

    def read_ranks(self, cells):
        for rank, cell in enumerate(cells):
            names, _, held = re.sub(r"^ ?r\d+ ", "", cell).partition("{")
            self.held[rank] = re.findall(r":([WD]\d+)", held)
            for name in names.replace("-", "").split():
                phase, stage, microbatch = re.fullmatch(r"([A-Z]+)(\d+)(?:\.m(\d+))?", name).groups()
                if phase == "U":
                    self.updates[rank].append(stage)
                else:
                    letter = {"F": "F", "BW": "B", "B": "I", "W": "W"}[phase]
                    self.units[rank].append(f"{stage}{letter}{microbatch}")

    def read_messages(self, text):
        for source, target, verb, things in re.findall(r"([\d(,)]+)->([\d(,)]+) (bcast |reduce )?([WD\d+]+)", text):
            for thing in things.split("+"):
                name = f"{ROLES[thing[0]]}.{thing[1:]}"
                members = sorted(map(int, re.findall(r"\d+", source + " " + target)))
                if verb:
                    for rank in members:
                        self.messages[rank][f"{name}+{':'.join(map(str, members))}"] += 1
                else:
                    self.messages[int(source)][f"{name}>{target}"] += 1
                    self.messages[int(target)][f"{name}<{source}"] += 1


def read_tables():
    """Name, sizes, turns."""
    tables = []
    with open(os.path.join(harness.ROOT, "test", "run", "Inputs", "weight_passing.txt")) as lines:
        for line in map(str.rstrip, lines):
            if line.startswith("table"):
                _, name, *sizes = line.split()
                tables.append((name, dict(word.split("=") for word in sizes), []))
            elif line.startswith("t="):
                tables[-1][2].append(Turn(int(tables[-1][1]["ranks"])))
                tables[-1][2][-1].read_ranks(line.split(" |")[1:])
            elif line.startswith(" msgs:"):
                tables[-1][2][-1].read_messages(line)
    return tables


def complete(name, turns):
    """What the tables leave to the text: FSDP's collectives (section 6); a rank that needs a weight twice gets it
    once."""
    everyone = ":".join(map(str, range(len(turns[0].units))))
    for number, turn in enumerate(turns):
        for rank, units in enumerate(turn.units if name == "fsdp" else ()):
            for unit in units:
                turn.messages[rank][f"weight.{unit[0]}+{everyone}"] += 1
                turn.messages[rank][f"grad.{unit[0]}+{everyone}"] += unit[1] == "B"
            turn.messages[rank] += collections.Counter()
        if number >= len(turns) - 2 and not any(turn.units):
            turn.messages = [collections.Counter(set(messages)) for messages in turn.messages]
    return turns


def kind(cell):
    """`unit`, a message's role, or for those of groups `broadcast` (of weights, or a gather) and `sum`."""
    role, sign = re.match(r"(\w*)[^<>+]*(.?)", cell).groups()
    if sign == "+":
        return "broadcast" if role == "weight" else "sum"
    return role if sign else "unit"


def cut(row, rank, name, turns):
    """The row's cells by turn, and what is wrong."""
    cells, wrong, by_turn = [cell for cell in row.split(",") if not cell.startswith("norm+")], [], []
    for number, turn in enumerate(turns):
        units, messages = turn.units[rank], turn.messages[rank]
        size = len(units) + sum(messages.values())
        mine, cells = cells[:size], cells[size:]
        by_turn.append(mine)
        if [cell for cell in mine
            if kind(cell) == "unit"] != units or collections.Counter(mine) != messages + collections.Counter(units):
            wrong.append(f"row {number}: {mine}, expected {units} and {dict(messages)}")
        places = [ORDER[name][kind(cell)] for cell in mine]
        if places != sorted(places):
            wrong.append(f"row {number}: {mine} in another order within the turn")
    return by_turn, wrong + ([f"left: {cells}"] if cells else [])


def held_wrongly(by_turn, name, rank, turns):
    """A copy is held from its arrival to its last use or departure; the table must have it in one of the rank's slots.
    The owner of all stages (WZB2) is left out: the tables name what it uses, not what it owns."""
    if name == "wzb2" and rank == len(turns[0].held) - 1:
        return []
    wrong, needed = [], collections.Counter()
    for number in reversed(range(len(turns))):
        for cell in by_turn[number]:
            if kind(cell) in ROLES.values() and "<" in cell:
                needed[cell.split("<")[0]] = 0
        for cell in by_turn[number]:
            if kind(cell) == "unit":
                needed[("grad." if cell[1] == "W" else "weight.") + cell[0]] = 1
            elif ">" in cell:
                needed[cell.split(">")[0]] = 1
        held = {f"{ROLES[slot[0]]}.{slot[1:]}" for slot in turns[number].held[rank]}
        missing = {thing for thing, copies in needed.items() if copies} - held
        if name == "wzb2" and rank == 0:  # a sum begins with its W
            missing = {thing for thing in missing if thing.startswith("weight")}
        if missing and held:
            wrong.append(f"row {number}: needs {sorted(missing)}, the table has {sorted(held)}")
    return wrong


def owners_of(trace):
    """The rank that updates each stage."""
    updates = {int(event["args"]["stage"]): event["pid"] for event in json.loads(trace)["traceEvents"]
               if event["ph"] == "X" and event.get("cat") == "U" and event["args"]["task"].endswith(".U")}
    return [updates[stage] for stage in sorted(updates)]


def check_stats(tally, title, name, stats, turns):
    for rank, got in enumerate(stats["per_rank"]):
        sent = collections.Counter()
        for turn in turns:
            for cell, count in turn.messages[rank].items():
                sent[kind(cell)] += count * (">" in cell)
        counted = {role: got["messages_sent_by_role"].get(role, 0) for role in ROLES.values()}
        tally.check(counted == {role: sent[role] for role in counted}, f"{title}: rank {rank} sends {counted}")
        limits = PEAKS[name](len(stats["per_rank"]), rank)
        # TawPipe's and FSDP's sums run behind the next B, which takes a slot more than the paper's turn by turn.
        peak = got["peak_values"] | (got["peak_slots"] if ORDER[name] is RING and name != "wzb2" else {})
        found = tuple(peak[role] for role in ("stash", "weight", "grad"))
        tally.check(found[0] == limits[0] and found[1] <= limits[1] and found[2] <= limits[2],
                    f"{title}: rank {rank} holds {found} stashes, weights, gradients, of {limits}")


def check_limits(tally, compiler, folder, name):
    """`limit` counts what --emit=stats calls peak_values: the schedule compiles with just these limits, not with one
    less."""
    library = os.path.join(folder, "stdlib")
    values = SIZES | dict(ranks=4, microbatches=8, layers=4) | SCHEDULES[name]
    command = [compiler, harness.TRAIN,
               "--emit=stats"] + [word for k, v in values.items() for word in ("-D", f"{k}={v}")]
    ranks = json.loads(harness.call(command).stdout)["per_rank"]
    peaks = {role: max(rank["peak_values"][role] for rank in ranks) for role in ("stash", "weight", "grad")}
    for less in (None, *peaks):
        limits = ", ".join(f"{role} {count - (role == less)}" for role, count in peaks.items())
        shutil.copytree(os.path.join(harness.ROOT, "stdlib"), library, dirs_exist_ok=True)
        for file in ("weipipe", "wzb1", "wzb2", "tawpipe", "fsdp"):
            with open(os.path.join(library, file + ".pipe"), "r+") as text:
                changed = re.sub(r"^ *(?:on r in ranks \{ )?limit .*$", f"  limit {limits}", text.read(), flags=re.M)
                text.seek(0)
                text.truncate()
                text.write(changed)
        done = harness.call(command + [f"--stdlib={library}"], expect=None)
        wanted = f"holds {less and peaks[less]} {less}"
        tally.check(done.returncode == 0 if not less else done.returncode and wanted in done.stderr,
                    f"{name}: limit {limits}")


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    tally = harness.Tally()
    for name, sizes, turns in read_tables():
        turns, owners = complete(name, turns), sizes.pop("owners", None)
        title = f"{name} {sizes['ranks']} ranks {sizes['microbatches']} microbatches" + (f" {sizes['groups']} groups"
                                                                                         if "groups" in sizes else "")
        values = SIZES | dict(layers=sizes["ranks"]) | sizes | SCHEDULES[name]
        command = [compiler, harness.TRAIN] + [word for k, v in values.items() for word in ("-D", f"{k}={v}")]
        rows = harness.call(command + ["--emit=comms"]).stdout.splitlines()
        tally.check(len(rows) == int(sizes["ranks"]), f"{title}: a row for every rank")
        for rank, row in enumerate(rows):
            by_turn, wrong = cut(row, rank, name, turns)
            wrong += held_wrongly(by_turn, name, rank, turns) if ORDER[name] is RING and not wrong else []
            tally.check(not wrong, "\n  ".join([f"{title}: rank {rank}, {len(turns)} turns", *wrong[:4]]))
        if owners:
            found = owners_of(harness.call(command + ["--emit=trace"]).stdout)
            tally.check(found == json.loads(f"[{owners}]"), f"{title}: owners {found}")
        check_stats(tally, title, name, json.loads(harness.call(command + ["--emit=stats"]).stdout), turns)
    for name in SCHEDULES:
        check_limits(tally, compiler, folder, name)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
