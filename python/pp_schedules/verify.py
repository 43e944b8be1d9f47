"""Checks a program of `--emit=json` again, from the JSON alone, and shares no code with the compiler.

The programs of the ranks are straight lists. So they can be executed with labels in place of tensors, which decides
what each value holds, which terms a gradient has, and where each rank stands when nothing can go on.
"""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import collections, gc
from .refused import Unproved

MAPS = ("edge", "pair", "direction", "rank", "serial")
HOLDS = ("weight", "grad", "act", "dact")
MAKES = {"F": ("act", "stash", "stat"), "R": ("stash",), "B": ("dact", "grad", "stat"), "I": ("dact", "stash", "stat"),
         "W": ("grad",)}
# Of the end of a message, or of the root and the other members of a group: does it give a value, does it get one.
BOTH = ("gives gets", "gives gets")
GROUPS = {"all_reduce": BOTH, "all_gather": BOTH, "reduce_scatter": BOTH, "broadcast": ("gives", "gets"),
          "reduce": ("gives gets", "gives")}
ENDS = {"send": ("gives", "gives"), "receive": ("gets", "gets"), **GROUPS}


class Checker:
    """One of the two programs of a file: the training step, or the forward program.

    Labels: ("act" or "dact", piece, microbatch), ("stash", piece, microbatch, what is in it), ("weight" or "opt",
    piece, version, shard or None), ("grad" or "stat", piece, tie or "all", shard or None, terms that are added).
    """

    def __init__(self, program, forward):
        side, self.every = program["forward"] if forward else program, range(program["microbatches"])
        self.forward, self.pieces, self.ties, self.lanes = forward, program["pieces"], program["ties"], program["lanes"]
        self.messages, self.programs = side["messages"], side["programs"]
        self.trained = [not forward and not piece["frozen"] for piece in self.pieces]
        self.whole = [{(i, mb) for mb in self.every} for i in range(len(self.pieces))]
        for tie in self.ties:
            self.whole[tie["owner"]] |= {(sharer, mb) for sharer in tie["sharers"] for mb in self.every}
        self.norm = {(i, shard) for i, piece in enumerate(self.pieces) if self.trained[i] for shard in (
            range(len(piece["owner"]["ranks"])) if piece["owner"]["layout"] == "shard" else [None])}
        self.rank, self.action = 0, None           # what is looked at, for an error

    def thing(self, role, piece, mb=-1):
        name = "norm" if piece is None else self.pieces[piece]["part"] or self.pieces[piece]["index"]
        return f"{role}({name}, {mb})" if mb >= 0 else f"{role}({name})"

    def story(self, action):
        if action[0] == "run":
            return self.thing(action[1], action[3], action[4])
        message = self.messages[action[1]]
        return f"{action[0]} of {self.thing(message['role'], message['piece'], message['mb'])} ({action[2]})"

    def fail(self, claim, text):
        where = f", {self.story(self.action)}" if self.action else ""
        raise Unproved(claim, f"rank {self.rank}{where}: {text}")

    def channels(self):
        """Every message fits its lane. Both ends post it, once and in the lane's order, and wait for it once."""
        posts = collections.Counter()
        for message in self.messages:
            lane, ranks, kind = self.lanes[message["lane"] or 0], message["ranks"], message["kind"]
            if kind == "host" and len(ranks) == 2 and ranks[0] == ranks[1]:
                continue
            ends = lane["ranks"] if kind in GROUPS else [lane["from"], lane["to"]]
            if ranks != ends or ranks != sorted(set(ranks)) and len(set(ranks)) < 2 or kind not in (*GROUPS, "p2p"):
                raise Unproved("form", f"a message does not fit its lane: {message}")
        for self.rank, program in enumerate(self.programs):
            places, state = collections.Counter(), {}
            for self.action in program["actions"]:
                word, number, end = self.action[:3]
                if word not in ("run", "post", "wait") or min(self.action[3] if word == "run" else number, 0) < 0:
                    raise Unproved("form", f"rank {self.rank}: an unknown action, {self.action}")
                if word == "run":
                    continue
                message, before = self.messages[number], {"post": None, "wait": "post"}[word]
                here = {"send": message["ranks"][0], "receive": message["ranks"][-1]}.get(end, self.rank)
                if (end == "member") != (message["kind"] in GROUPS) or here != self.rank or self.rank not in \
                        message["ranks"] or state.get((number, end)) != before:
                    self.fail("channels", "this rank has not that end of the message, or not at this place")
                state[number, end] = word
                if word == "post":
                    lane = *message["ranks"], end  # not the number: two numbers may name one lane
                    if message["kind"] != "host" and message["place"] != places[lane]:
                        self.fail("channels", f"expected place {places[lane]} of its lane")
                    places[lane] += 1
                    posts[number] += 1
            self.action = None
            for number, end in [key for key, word in state.items() if word == "post"]:
                self.fail("channels", f"nobody waits for the {self.story(['post', number, end])}")
        for number, message in enumerate(self.messages):
            if posts[number] != len(message["ranks"]):
                raise Unproved("channels", f"an end is missing: {self.story(['post', number, posts[number]])}")

    def lane(self, which, number, end):
        """The lane of a message at this rank, if lanes are made by the map `which`."""
        message = self.messages[number]
        if message["kind"] == "host":
            return "host", number, end
        if which in ("rank", "serial"):
            return 0
        if which == "direction":
            return message["role"] in ("dact", "grad")
        if which == "pair" and message["kind"] not in GROUPS:
            return sum(message["ranks"]) - self.rank
        return *message["ranks"], message["kind"] in GROUPS

    def progress(self, which):
        """A post blocks nothing, but with `serial` all behind it. A message goes when its ends have posted it and what
        is before it on its lanes has gone. A wait blocks until the message has gone, with those of its `together`."""
        needs, after = [len(message["ranks"]) for message in self.messages], [[] for _ in self.messages]
        lists, elements = [], [[] for _ in self.messages]
        for self.rank, program in enumerate(self.programs):
            lanes, mine, steps = {}, {}, []        # an element of a lane: messages not gone, rank, all, those before it
            for word, number, end, *_ in program["actions"]:
                if word == "post":
                    lane, together = self.lane(which, number, end), self.messages[number]["together"]
                    last = lanes.get(lane, [0, self.rank, [], []])
                    if last[2] and (which == "edge" or together is None or
                                    together != self.messages[last[2][0]]["together"]):
                        steps += [(None, last)] if which == "serial" and lane == 0 else []
                        last = [0, self.rank, [], last[2]]
                    lanes[lane] = mine[number, end] = last
                    needs[number] += len(last[3])
                    for other in last[3]:
                        after[other].append(number)
                    last[2].append(number)
                    elements[number].append(last)
                    steps.append((number, last))
                elif word == "wait":
                    steps.append((None, mine[number, end]))
            lists.append(steps + [(None, lanes[0])] if which == "serial" and 0 in lanes else steps)
        at, blocked, todo = [0] * len(lists), [None] * len(lists), list(range(len(lists)))
        while todo:
            rank = todo.pop()
            blocked[rank] = None
            for place in range(at[rank], len(lists[rank])):
                number, element = lists[rank][place]
                if number is None and element[0]:
                    blocked[rank], at[rank] = element, place
                    break
                if number is not None:
                    element[0] += 1
                    needs[number] -= 1
                    for gone in (going := [] if needs[number] else [number]):
                        for element in elements[gone]:
                            element[0] -= 1
                            if not element[0] and blocked[element[1]] is element:
                                todo.append(element[1])
                        for other in after[gone]:
                            needs[other] -= 1
                            going += [] if needs[other] else [other]
        stuck = [f"rank {rank} at {self.story(['wait', element[2][0], 'its end'])}"
                 for rank, element in enumerate(blocked) if element]
        if stuck:
            raise Unproved("progress", f"with lanes by `{which}` nothing can go on: " + ", ".join(stuck))

    def values(self):
        """Executes the programs with labels; `progress` says that this ends."""
        self.held, self.flying, self.ends = [], [collections.Counter() for _ in self.programs], {}
        self.ran, self.sent, self.arrived = collections.Counter(), collections.defaultdict(list), {}
        self.posts, self.at, waiting, todo = [0] * len(self.messages), [0] * len(self.programs), {}, [*self.programs]
        self.stashed = {(a[3], a[4]) for r in self.programs for a in r["actions"] if a[0] == "run" and any(
            r["values"][v]["role"] == "stash" for v in a[6])}
        for program in self.programs:
            binds = [value["bind"] or {"kind": None} for value in program["values"]]
            self.held.append([(b["kind"], b["piece"], 0, b.get("shard")) if b["kind"] in ("weight", "opt") else (
                b["kind"], None, b["mb"]) if b["kind"] in ("tokens", "targets") else None for b in binds])
        self.tied = {(rank, a[3]): self.messages[a[1]]["of"] for rank, program in enumerate(self.programs)
                     for a in program["actions"] if a[0] == "post" and self.messages[a[1]]["of"] != "all"}
        while todo:
            self.rank = todo.pop()["rank"]
            actions = self.programs[self.rank]["actions"]
            for place in range(self.at[self.rank], len(actions)):
                self.action = action = actions[place]
                if action[0] == "run":
                    got = [self.read(v) for v in action[5]]
                    (self.update if action[1] == "U" else self.unit)(*action[1:7], got)
                elif action[0] == "post":
                    todo += waiting.pop(action[1], []) if self.post(*action[1:5]) else []
                elif self.posts[action[1]] == len(self.messages[action[1]]["ranks"]):
                    self.wait(*action[1:3])
                else:
                    waiting.setdefault(action[1], []).append(self.programs[self.rank])
                    self.at[self.rank] = place
                    break
        self.action = None
        for self.rank, held in enumerate(self.held):
            for value, label in zip(self.programs[self.rank]["values"], held):
                kind, piece = (value["bind"] or {"kind": None})["kind"], (value["bind"] or {}).get("piece")
                if kind in ("weight", "opt") and label != (
                        kind, piece, int(self.trained[piece]), value["bind"].get("shard")):
                    self.fail("values", f"{value['label']} ends the step as {label}")

    def read(self, value):
        label, host = self.held[self.rank][value], self.programs[self.rank]["values"][value]["host"]
        if value < 0 or label is None or self.flying[self.rank].get(value, 0) < 0 or host and self.action[0] == "run":
            self.fail("values", f"reads {self.programs[self.rank]['values'][value]['label']}, which is not there")
        return label

    def write(self, value, label):
        if value < 0 or self.flying[self.rank].get(value) or self.programs[self.rank]["values"][value]["host"]:
            self.fail("values", f"writes {self.programs[self.rank]['values'][value]['label']}, which is not free")
        self.held[self.rank][value] = label

    def unit(self, phase, variant, piece, mb, reads, makes, got):
        last, values = piece == len(self.pieces) - 1, self.programs[self.rank]["values"]
        self.ran[phase, piece, mb] += 1
        if phase not in MAKES or mb not in self.every:
            self.fail("units", "is no unit")
        source = ("act", piece - 1, mb) if piece else ("tokens", None, mb)
        stash = ("stash", piece, mb, "pending" if phase == "W" else "saved")
        needed = {("weight", piece, 0, None)} if self.pieces[piece]["homes"] and phase != "W" else set()
        if phase in "FR":
            needed = needed | {source} if reads or makes or not last else set()
        else:
            needed.add(stash if phase == "W" or (piece, mb) in self.stashed else source)
            needed |= {("dact", piece + 1, mb)} if not last and phase != "W" else set()
        for label in needed.difference(got):
            self.fail("values", f"does not read {label}")
        for label in got:
            ahead = label[0] == "dact" and label[1] >= piece and phase not in "FR"
            if label not in needed and label[0] != "grad" and label not in (source, ("targets", None, mb)) and not (
                    label[2] == mb and (ahead or label[0] == "act" and label[1] < piece)):
                self.fail("values", f"reads {label}, which is another unit's")
        for v in makes:
            role = values[v]["role"]
            if role not in MAKES[phase]:
                self.fail("values", f"makes {values[v]['label']}")
            if role != "grad":
                kept = () if role != "stash" else ("pending",) if phase == "I" else ("saved",)
                self.write(v, (role, piece, mb, *kept))
        sums = [v for v, label in zip(reads, got) if label[0] == "grad"]
        made = [v for v in makes if values[v]["role"] == "grad"]
        term, empty = {(piece, mb)}, ("grad", piece, "all", None, frozenset())
        if (len(made), len(sums)) != ((0, 0) if phase not in "BW" or not self.trained[piece] else (1, 0) if variant ==
                                      "first" else (0, 1)) or sums and self.read(sums[0])[:4] != empty[:4]:
            self.fail("gradients", "expected to add to the gradient of its piece, and to no other")
        for v in made + sums:
            self.add(v, empty if made else self.read(v), term)

    def add(self, value, label, terms):
        if label[4] & terms:
            self.fail("gradients", f"adds {sorted(label[4] & terms, key=str)[0]} a second time")
        self.write(value, (*label[:4], label[4] | terms))

    def update(self, phase, variant, piece, mb, reads, makes, got):
        owner, sharers = self.pieces[piece]["owner"], {t: tie["sharers"] for t, tie in enumerate(self.ties)}
        shared = [t for t in sharers if piece in sharers[t]]
        owned = [t for t in sharers if piece == self.ties[t]["owner"]]
        cut = owner["layout"] == "shard" and self.rank in owner["ranks"]
        shard = sorted(owner["ranks"]).index(self.rank) if cut else None
        whole, grad, stat = ("grad", piece, "all", None), ("grad", piece, "all", shard), ("stat", None, "all", None)
        old, new = [("weight", piece, version, None) for version in (0, 1)]
        plain = [("weight", piece, 0, shard), grad, ("opt", piece, 0, shard)], [("tied", t, 1) for t in shared]
        known = {"zero": [[]], "sum": [[grad] * 2, [whole] * 2], "tie_out": [[whole]] * len(shared), "tie_in": [
            [whole, ("grad", sharer, t, None)] for t in owned for sharer in sharers[t]],
            "tie_fresh": [[new]] * len(owned), "copy": [[old], [new]], "cut": [[old], [new]], "norm_first": [[grad]],
            "norm": [[grad, stat]],
            "plain": [plain[0] + plain[1], plain[0] + [stat] + plain[1]] if self.rank in owner["ranks"] else []}
        if [label[:4] for label in got] not in known.get(variant, []) or not self.trained[piece]:
            self.fail("values", f"reads {[label[:4] for label in got]}, which is not what `{variant}` reads")
        tie = self.tied.get((self.rank, *makes[:1]), (shared if variant == "tie_out" else owned or [None])[0] if (
            variant in ("tie_out", "tie_fresh")) else None)
        made = {"zero": lambda: (*whole, frozenset()), "tie_out": lambda: ("grad", piece, tie, None, got[0][4]),
                "tie_fresh": lambda: ("tied", tie, 1), "copy": lambda: got[0], "cut": lambda: (*got[0][:3], shard),
                "norm_first": lambda: (*stat, frozenset([(piece, shard)]))}.get(variant)
        if len(makes) != (made is not None):
            self.fail("values", f"makes {len(makes)} values")
        for label in got if variant in ("plain", "norm", "norm_first") else ():
            missing = label[4] ^ (self.whole[piece] if label[0] == "grad" else self.norm) if label[:4] == grad or (
                    label[:4] == stat and variant == "plain") else ()
            if missing:
                self.fail("gradients", f"reads {label[:2]}, whose terms lack or double {sorted(missing, key=str)[0]}")
        if variant == "plain":
            self.ran["U", piece, self.rank] += 1
            for v, label in zip(reads, got):
                if label[0] in ("weight", "opt"):
                    self.write(v, (*label[:2], 1, shard))
        elif variant in ("sum", "tie_in", "norm"):
            self.add(*((reads[1], got[1], {(piece, shard)}) if variant == "norm" else (reads[0], got[0], got[1][4])))
        for v in makes:
            self.write(v, made())

    def post(self, number, end, value, shard):
        message, flying, ranks = self.messages[number], self.flying[self.rank], self.messages[number]["ranks"]
        kind, role, piece, mb, tie = (message[key] for key in ("kind", "role", "piece", "mb", "of"))
        does = ENDS[kind if end == "member" else end][message["root"] not in (None, self.rank)]
        gives = [shard if kind == "all_gather" else value] if "gives" in does else []
        gets = [value] + [shard] * (kind == "reduce_scatter") if "gets" in does else []
        if (shard is None) == (kind in ("all_gather", "reduce_scatter")):
            self.fail("form", "a shard where the message has none, or none where it has one")
        for label in map(self.read, gives):
            if role in ("grad", "stat"):
                good = (label[0], label[2]) == (role, tie) and (label[1] == piece or tie != "all")
            else:
                good = label[:2] == ((role, piece) if tie == "all" else ("tied", tie)) and (
                    role == "weight" or label[2] == mb)
            if not good or kind == "all_gather" and label[3] != ranks.index(self.rank):
                self.fail("channels", f"sends {label} in place of it")
            self.sent[number].append(label)
        for v in {*gets, *gives}:
            if flying[v] < 0 or flying[v] and v in gets:
                self.fail("values", "its value is in a message already")
            flying[v] = -1 if v in gets else flying[v] + 1
        self.ends[number, end, self.rank] = value, shard, gives, gets
        self.posts[number] += 1
        return self.posts[number] == len(ranks)

    def wait(self, number, end):
        value, shard, gives, gets = self.ends[number, end, self.rank]
        kind, flying, held = self.messages[number]["kind"], self.flying[self.rank], self.held[self.rank]
        if number not in self.arrived:
            label, *rest = self.sent[number]
            for other in rest:
                if label[:3] != other[:3] or kind != "all_gather" and label[4] & other[4]:
                    self.fail("gradients", f"joins {label} and {other}")
                label = (*label[:3], None) if kind == "all_gather" else (*label[:4], label[4] | other[4])
            self.arrived[number] = label
        label = self.arrived[number]
        for v in {*gets, *gives}:
            flying[v] = 0 if v in gets else flying[v] - 1
        for v in gets:
            held[v] = label if kind != "reduce_scatter" else None if v == value else (
                *label[:3], self.messages[number]["ranks"].index(self.rank), label[4])

    def units(self):
        """Every unit ran, and every update where the owners are; returns how many."""
        expected = collections.Counter()
        for i, piece in enumerate(self.pieces):
            for mb in self.every:
                halves = self.ran["I", i, mb] > 0
                expected.update([("F", i, mb)] + [("I" if halves else "B", i, mb)] * any(self.trained[:i + 1]) +
                                [("W", i, mb)] * (halves and self.trained[i]))
            expected.update(("U", i, rank) for rank in (piece["owner"]["ranks"] if self.trained[i] else ()))
        for phase, piece, mb in {**expected, **self.ran}:
            if expected[phase, piece, mb] != self.ran[phase, piece, mb] and phase != "R":
                raise Unproved("units", f"{self.thing(phase, piece, mb)} runs {self.ran[phase, piece, mb]} times")
        return sum(expected.values())

    def lives(self, counts):
        """Values die behind their last use before they are written anew, and what is alive at once is as stated."""
        for self.rank, program in enumerate(self.programs):
            values, posted, uses = program["values"], {}, []
            kept = [(value["bind"] or {"kind": None})["kind"] not in (None, "tokens", "targets") for value in values]
            for a in program["actions"]:           # what an action uses, and what of it is written anew
                if a[0] == "post":
                    gives, gets = self.ends[a[1], a[2], self.rank][2:]
                    posted[a[1], a[2]] = {v for v in a[3:5] if v is not None}
                    uses.append((posted[a[1], a[2]], {*gets}.difference(gives)))
                else:
                    uses.append(({*a[5], *a[6]}, a[6]) if a[0] == "run" else (posted[a[1], a[2]], ()))
            needed = {v for v, keep in enumerate(kept) if keep}
            for self.action, (used, made) in zip(reversed(program["actions"]), reversed(uses)):
                if sorted(used - needed) != sorted(self.action[-1]):
                    self.fail("lives", f"{[values[v]['label'] for v in self.action[-1]]} are said to be dead, not "
                              f"{[values[v]['label'] for v in used - needed]}")
                needed |= used
                needed.difference_update(made)
            if not self.forward:
                self.count(program, uses, needed, counts[self.rank])

    def count(self, program, uses, alive, stated):
        """The most things of a kind that are alive at one action; `alive` when the step begins."""
        values, actions = program["values"], program["actions"]
        now, peaks = collections.Counter(), collections.Counter()
        read = {v for a in actions if a[0] == "run" for v in a[5] + a[6]}
        shards = {v for a in actions if a[0] == "post" or a[1:3] == ["U", "cut"] for v in (
            a[4:5] if a[0] == "post" else a[6])}
        kinds = [[] for _ in values]               # stashes count by units, and a shard is no thing of its own
        for v, value in enumerate(values):
            role, unit = value["role"], (value["piece"], value["mb"])
            if value["host"]:
                kinds[v] = [("host_stashes", v)]
            elif role == "stash":
                kinds[v] = [("stashes", unit)] + [("guests", v)] * (v not in read)
            elif role in HOLDS and v not in shards and (value["bind"] or {}).get("shard") is None:
                kinds[v] = [(role + "s", v)]
        held, flying = collections.Counter(), 0

        def step(v, by):
            for what, thing in kinds[v]:
                held[what, thing] += by
                if held[what, thing] == (by > 0):
                    now[what] += by
                    peaks[what] = max(peaks[what], now[what])

        for v in alive:
            step(v, 1)
        for action, (used, _) in zip(actions, uses):
            flying += {"post": 1, "wait": -1}.get(action[0], 0)
            peaks["messages"] = max(peaks["messages"], flying)
            for v in used - alive:
                step(v, 1)
            alive |= used
            for v in action[-1]:
                step(v, -1)
            alive.difference_update(action[-1])
        for what, number in stated.items():
            if peaks[what] > number or peaks[what] < number and what != "stashes":
                raise Unproved("counts", f"rank {self.rank} holds up to {peaks[what]} {what}, stated are {number}")


def verify(program, maps=MAPS):
    """Checks a program (a dictionary of the format pp.program/1, or a `Program`) and returns what was counted.

    Checked: every unit once, and on inputs that are there; every gradient complete when it is read; channels in one
    order on both ends; no deadlock with lanes by each of `maps`; lives and counts as stated. Raises `Unproved`, which
    names the claim that is broken and the place.
    """
    program, facts, collects = getattr(program, "data", program), {"maps": list(maps)}, gc.isenabled()
    gc.disable()                                   # nothing here is a cycle, and the many labels cost collections
    try:
        for forward in (False, True) if program["forward"] else (False,):
            checker = Checker(program, forward)
            if [rank["rank"] for rank in checker.programs] != list(range(program["ranks"])) or program["slices"]:
                raise Unproved("form", f"expected the ranks 0 to {program['ranks'] - 1} in order, and no slices")
            checker.channels()
            for which in maps:
                checker.progress(which)
            checker.values()
            facts["forward units" if forward else "units"] = checker.units()
            facts["forward messages" if forward else "messages"] = len(checker.messages)
            checker.lives(program["counts"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Unproved("form", f"not of the format pp.program/1 ({type(error).__name__}: {error})") from error
    finally:
        if collects:
            gc.enable()
    return facts
