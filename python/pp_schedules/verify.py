"""Checks a program of `--emit=json` again, from the JSON alone, and shares no code with the compiler.

The programs of the ranks are straight lists. So they can be executed with labels in place of tensors, which decides
what each value holds, which terms a gradient has, and where each rank stands when nothing can go on.
"""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import collections, gc
from .form import UNCHECKED, check, leads, story
from .joints import channels, keys, states
from .progress import MAPS, progress
from .refused import Unproved
from .stated import lives, saves, times, units

# What a unit makes, by the role of the value: a `stat` is a loss. What messages carry, if not their role.
MAKES = {"F": {"act": "act", "stash": "stash", "stat": "loss", "kv": "kv", "state": "state"}, "W": {},
         "R": {"act": "act", "stash": "stash"},
         "B": {"dact": "dact", "stat": "loss"}, "I": {"dact": "dact", "stash": "pending", "stat": "loss"}}
CARRIES = {"stash": ("stash", "kept", "pending"), "stat": ("norm", "loss", "stat")}


class Checker:
    """One of the two programs of a file: the training step, or the forward program.

    A label is (what, piece, number, shard). The number is the microbatch of what belongs to a unit, with the slice if
    sequences are in slices, and of weights and states how often the step has updated them. A sum's label also has the
    set of its terms. Pieces with a tie exchange a `share` of a gradient and `fresh` weights. The shards of a part that
    is cut by the vocabulary make terms of one `act` or `dact`, and `stat`, by which each of them knows the loss.
    """

    def __init__(self, program, forward):
        side = program["forward"] if forward else program
        self.program, self.messages, self.programs = program, side["messages"], side["programs"]
        self.pieces, self.ties, self.slices = program["pieces"], program["ties"], program["slices"]
        self.every = [self.number(mb, k) for mb in range(program["microbatches"]) for k in range(self.slices or 1)]
        self.rank, self.action, self.steps = 0, None, []  # what is looked at, for an error; posts and waits of ranks
        self.binds = [[value["bind"] or {} for value in rank["values"]] for rank in self.programs]
        self.weighted = {bind["piece"] for binds in self.binds for bind in binds if bind.get("kind") == "weight"}
        self.trained, self.shards, self.whole, self.kept = [], [], [], collections.defaultdict(set)
        for i, piece in enumerate(self.pieces):
            self.trained.append(i in self.weighted and not forward and not piece["frozen"] and bool(piece["owner"]))
            cut = piece["owner"] and piece["owner"]["layout"] == "shard"
            self.shards.append(sorted(piece["owner"]["ranks"]) if cut else [None])
            users = {i}.union(*(tie["sharers"] for tie in self.ties if tie["owner"] == i))
            self.whole.append(frozenset((user, mb) for user in users for mb in self.every))
        self.lead = leads(self.pieces)
        self.cut = {lead: frozenset(i for i, one in enumerate(self.lead) if one == lead)
                    for lead, count in collections.Counter(self.lead).items() if count > 1}
        self.judges = forward and self.lead[-1] in self.cut  # the last shard makes the loss in a unit of its own
        states = {bind["piece"] for binds in self.binds for bind in binds if bind.get("kind") == "opt"}
        self.borrowers = {i for tie in self.ties for i in tie["sharers"]} - states  # all of their weights are others'
        self.norm = frozenset((i, s) for i in self.weighted if self.trained[i] for s in range(len(self.shards[i])))
        for rank in self.programs:
            self.steps.append([(place, *a[:3]) for place, a in enumerate(rank["actions"]) if a[0] != "run"])
            for a in rank["actions"]:
                if a[0] == "run" and a[1] in "FR" and any(rank["values"][v]["role"] == "stash" for v in a[6]):
                    mb = self.number(a[4], a[-1])
                    self.kept[a[3], mb].add(("kept" if a[2] == "light" else "stash", a[3], mb, None))

    def fail(self, claim, text):
        at = f", {story(self.program, self.messages, self.action)}" if self.action else ""
        raise Unproved(claim, f"rank {self.rank}{at}: {text}")

    def number(self, mb, k):
        return (mb, k) if self.slices and mb >= 0 else mb

    def progress(self, which):
        """Every rank comes to its end with lanes by the map `which`; returns an order of the places where it waits."""
        order, stuck = progress(which, self.messages, self.steps)
        if stuck:
            raise Unproved("progress", f"with lanes by `{which}` nothing can go on: " + ", ".join(
                f"rank {rank} at the {story(self.program, self.messages, self.programs[rank]['actions'][place])}"
                for rank, place in sorted(stuck.items())))
        return order

    def values(self, order):
        """Executes the programs with labels, in an order in which messages go before they are waited for."""
        self.held = [[self.bound(bind, False) for bind in binds] for binds in self.binds]
        self.flying = [collections.Counter() for _ in self.programs]  # by value: sends that read it; -1: it arrives
        self.ran, self.sent, at = collections.Counter(), collections.defaultdict(list), [0] * len(self.programs)
        self.keyed = set()                         # units whose keys others read
        self.carriers = {v["piece"] for rank in self.programs for v in rank["values"] if v["role"] == "state"}
        for self.rank, place in [(rank, -1) for rank in range(len(at))] + order:
            actions = self.programs[self.rank]["actions"]
            while at[self.rank] < len(actions) and (at[self.rank] <= place or actions[at[self.rank]][0] != "wait"):
                self.action = actions[at[self.rank]]
                at[self.rank] += 1
                if self.action[0] == "run":
                    run = self.update if self.action[1] == "U" else self.unit
                    run(*self.action[1:4], self.number(self.action[4], self.action[-1]), *self.action[5:7],
                        [self.read(v) for v in self.action[5]])
                else:
                    (self.post if self.action[0] == "post" else self.wait)(*self.action[1:3])
        self.action = None
        for self.rank, binds in enumerate(self.binds):
            for bind, value, label in zip(binds, self.programs[self.rank]["values"], self.held[self.rank]):
                wanted = self.bound(bind, True)
                if wanted and label != wanted:
                    self.fail("values", f"{value['label']} ends the step as {label}, expected {wanted}")

    def bound(self, bind, after):
        """The label of a value that the trainer fills before the step, or reads after it; else None."""
        if not bind:
            return None
        kind, piece, mb, shard = (bind.get(key) for key in ("kind", "piece", "mb", "shard"))
        if kind in ("weight", "opt"):
            return kind, piece, int(after and self.trained[piece]), shard
        results = {"grad": ("grad", piece, None, shard, self.whole[piece or 0]),
                   "norm": ("norm", None, None, None, self.norm), "loss": ("loss", len(self.pieces) - 1, mb, None)}
        mb = self.number(mb, bind["slice"]) if {"mb", "slice"} <= bind.keys() else mb
        return results.get(kind) if after else None if kind in results else (kind, None, mb, None)

    def read(self, v):
        value, label = self.programs[self.rank]["values"][v], self.held[self.rank][v]
        if label is None or self.flying[self.rank][v] < 0 or value["host"] and self.action[0] == "run":
            self.fail("values", f"reads {value['label']}, which is not there")
        return label

    def write(self, v, label):
        value = self.programs[self.rank]["values"][v]
        if self.flying[self.rank][v] or value["host"]:
            self.fail("values", f"writes {value['label']}, which is not free")
        self.held[self.rank][v] = label

    def add(self, v, label, terms):
        if label[4] & terms:
            self.fail("gradients", f"adds {sorted(label[4] & terms)[0]} to {label[:2]} a second time")
        self.write(v, (*label[:4], label[4] | terms))

    def unit(self, phase, variant, piece, mb, reads, makes, got):
        """F, B, I, W or R reads what it needs and nothing of other units; B and W add their term to the gradient."""
        self.ran[phase, piece, mb] += 1
        if self.slices and mb == -1:
            self.fail("values", "has no microbatch")
        roles, lead = [self.programs[self.rank]["values"][v]["role"] for v in makes], self.lead[piece]
        last, cut = lead == self.lead[-1], self.cut.get(lead, ())
        inputs = [label for label in got if label[1] is None and label[2] == mb and (last or label[0] != "targets")]
        data = inputs[0] if inputs else ("data", None, mb, None)
        source, kept = ("act", self.lead[lead - 1], mb, None) if lead else data, self.kept[piece, mb]
        uses = piece in self.weighted and phase != "W" and (reads or makes)
        if phase in "BI":
            other = ("dact", max(cut or [piece]) + 1, mb, None) if not last else ("stat", lead, mb, None)
            needs = (kept or {source} if uses else kept) | ({other} if cut or not last else set())
            uses = uses and (lead or self.pieces[piece]["layers"])  # else it is an embedding alone
            uses = uses and ("dact" in roles or not cut)
        else:
            needs = {"F": {source}, "R": {one for one in kept if one[0] == "kept"} or {source},
                     "W": {("pending", piece, mb, None)}}[phase] if reads or makes else set()
        needs = needs | ({("weight", piece, 0, None)} if uses else set()) | set([data] * bool(last and cut))
        keyed = [label for label in got if label[0] in ("kv", "dkv")] if self.slices else []
        if (piece, mb) in self.keyed or keyed or "kv" in roles:
            keys(self, phase, piece, mb, reads, [v for v, role in zip(makes, roles) if role == "dkv"], keyed)
        if piece in self.carriers:
            keyed += states(self, phase, piece, mb, [v for v, role in zip(makes, roles) if role == "dstate"], got)
        for label in needs.difference(got):
            self.fail("values", f"does not read {label}")
        if len(set(got)) < len(got):
            self.fail("values", "reads one thing twice")
        for what, of, number, *_ in set(got) - needs - set(inputs) - set(keyed):
            skips = what == "act" and of < piece or what == "dact" and of > piece and phase not in "FR"
            if what != "grad" and (number != mb or not skips):
                self.fail("values", f"reads {(what, of, number)}, which is another unit's")
        for v, role in zip(makes, roles):
            what = "kept" if (role, variant) == ("stash", "light") else MAKES[phase].get(role)
            if not what and role not in ("grad", "dkv", "dstate"):
                self.fail("values", f"makes a `{role}`")
            term = cut and (role in ("act", "dact") or (phase, role) == ("F", "stat"))
            if role == "kv":
                self.keyed.add((piece, mb))
            if role not in ("grad", "dkv", "dstate"):
                self.write(v, (role, lead, mb, None, frozenset([piece])) if term else (
                    what, piece, mb[0] if what == "loss" and self.slices else mb, None))
        made, adds = [v for v, role in zip(makes, roles) if role == "grad"], phase in "BW" and self.trained[piece]
        sums = [v for v, label in zip(reads, got) if label[0] == "grad"]
        if (len(made), len(sums)) != (adds and variant == "first", adds and variant != "first"):
            self.fail("gradients", "expected to begin a gradient, or to add to one, as the variant says")
        for v in made + sums:
            label = self.held[self.rank][v] if sums else ("grad", piece, None, None, frozenset())
            if label[:4] != ("grad", piece, None, None):
                self.fail("gradients", f"adds to {label[:4]}, which is not the gradient of its piece")
            self.add(v, label, {(piece, mb)})

    def update(self, phase, variant, piece, mb, reads, makes, got):
        """What is done around an update reads exactly these things; sums are complete where they are used."""
        if not self.trained[piece]:
            self.fail("units", "its piece is not trained")
        owners, shards = self.pieces[piece]["owner"]["ranks"], self.shards[piece]
        shard = shards.index(self.rank) if self.rank in shards else None
        whole, grad, norm = ("grad", piece, None, None), ("grad", piece, None, shard), ("norm", None, None, None)
        old, new = ("weight", piece, 0, None), ("weight", piece, 1, None)
        plain = [("weight", piece, 0, shard), grad, ("opt", piece, 0, shard)]
        fresh = [("fresh", tie["owner"], 1, None) for tie in self.ties if piece in tie["sharers"]]
        shares = [("share", i, None, None) for tie in self.ties if tie["owner"] == piece for i in tie["sharers"]]
        known = {"zero": [[]], "sum": [[grad, grad], [whole, whole]], "tie_out": [[whole]] * len(fresh),
                 "tie_in": [[whole, share] for share in shares], "tie_fresh": [[new]] * len(shares),
                 "copy": [[old], [new]], "cut": [[old], [new]], "norm_first": [[grad]], "norm": [[grad, norm]],
                 "plain": [plain + fresh, plain + [norm] + fresh] if self.rank in owners else []}
        if piece in self.borrowers and self.rank in owners:
            known["plain"] = [plain[:1] + fresh]
        if [label[:4] for label in got] not in known.get(variant, []):
            self.fail("values", f"reads {[label[:4] for label in got]}, which is not what `{variant}` reads")
        complete = {grad} if variant in ("norm", "norm_first") else {grad, norm} if variant == "plain" else set()
        for label in got:
            lacks = label[:4] in complete and label[4] ^ (self.norm if label[0] == "norm" else self.whole[piece])
            if lacks:
                self.fail("gradients", f"reads {label[:2]}, whose terms lack or double {sorted(lacks)[0]}")
        first = got[0] if got else whole
        made = {"zero": (*whole, frozenset()), "tie_out": ("share", piece, None, None, *first[4:]), "copy": first,
                "cut": (*first[:3], shard), "tie_fresh": ("fresh", piece, 1, None),
                "norm_first": (*norm, frozenset([(piece, shard or 0)]))}.get(variant)
        if len(makes) != (made is not None):
            self.fail("values", f"makes {len(makes)} values")
        if variant == "norm":
            self.add(reads[1], got[1], {(piece, shard or 0)})
        elif variant in ("sum", "tie_in"):
            self.add(reads[0], first, got[1][4])
        elif variant == "plain":
            self.ran["U", piece, self.rank] += 1
            for v, what in zip(reads[::2], ("weight", "opt")):
                self.write(v, (what, piece, 1, shard))
        for v in makes:
            self.write(v, made)

    def post(self, number, end):
        message, flying = self.messages[number], self.flying[self.rank]
        role, ranks, piece = message["role"], message["ranks"], message["piece"]
        mb = self.number(message["mb"], message.get("slice"))
        tie = self.ties[message["of"]] if message["of"] != "all" else None
        reads, writes = self.ends[self.rank, number, end]
        for v in reads:
            what, of, count, *_ = label = self.read(v)
            if tie:
                fits = (what, of) == ("fresh", tie["owner"]) or what == "share" and of in tie["sharers"]
            else:
                fits = what in CARRIES.get(role, (role,)) and of == piece and (count == mb or mb == -1)
            cuts = message["kind"] in ("all_gather", "reduce_scatter") and what != "stat"
            if not fits or cuts and (ranks != self.shards[of or 0] or message["kind"] == "all_gather" and
                                     label[3] != ranks.index(self.rank)):
                self.fail("channels", f"sends {label[:4]} in place of it")
            self.sent[number].append(label)
        if any(flying[v] for v in writes):
            self.fail("values", "its value is in a message already")
        for v in reads:
            flying[v] += 1
        for v in writes:
            flying[v] = -1

    def wait(self, number, end):
        message, flying, held = self.messages[number], self.flying[self.rank], self.held[self.rank]
        reads, writes = self.ends[self.rank, number, end]
        label, *rest = self.sent[number]
        for other in rest:
            gathers = message["kind"] == "all_gather" and label[0] != "stat"
            if label[:3] != other[:3] or not gathers and (len(label) < 5 or label[4] & other[4]):
                self.fail("gradients", f"joins {label} and {other}")
            label = (*label[:3], None) if gathers else (*label[:4], label[4] | other[4])
        if label[0] in ("act", "dact", "stat") and label[4:] == (self.cut.get(label[1]),):
            label = label[:4]                      # all shards have added theirs
        self.sent[number] = [label]
        for v in {*reads, *writes}:
            flying[v] = 0 if v in writes else flying[v] - 1
        for v in writes:
            held[v] = label
        if message["kind"] == "reduce_scatter":
            held[writes[0]], held[writes[1]] = None, (*label[:3], message["ranks"].index(self.rank), label[4])



def verify(program, maps=MAPS):
    """Checks a program (a dictionary of the format pp.program/1, or a `Program`) and returns what was counted.

    Every unit runs once, on inputs that are there; gradients are complete where they are read; ends agree in the order
    of messages; there is no deadlock with lanes by each of `maps`; lives, counts and starts are as stated. Raises
    `Unproved`, which names the claim that is broken, the rank, the action and its line.
    """
    data, facts, collects = getattr(program, "data", program), {"maps": list(maps)}, gc.isenabled()
    gc.disable()                                   # nothing here is a cycle, and the many labels cost collections
    try:
        check(data)
        for need in data["needs"] + ["updates"] * (data["updates"] != 1):
            if need in UNCHECKED:
                raise Unproved("form", f"the program needs `{need}`, which is not checked")
        for forward in (False, True) if data["forward"] else (False,):
            checker = Checker(data, forward)
            channels(checker)
            orders = [checker.progress(which) for which in maps or MAPS[:1]]
            checker.values(orders[0])
            facts["forward units" if forward else "units"] = units(checker)
            facts["forward messages" if forward else "messages"] = len(checker.messages)
            saves(checker)
            lives(checker, None if forward else data["counts"])
            times(checker, None if forward else data.get("time"))
    finally:
        if collects:
            gc.enable()
    return facts
