"""Executes a program of the format pp.program/1 on numbers of a prime field, as plainly as can be, for tests."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# A piece multiplies what it gets by the sum of j * w[j]; the loss of a microbatch is half the square of what is left
# minus its target. Shards of an end that is cut by the vocabulary make terms of such a sum. So gradients follow from
# the chain rule, and a lost, doubled or exchanged value is another number. Where sequences are in slices, a piece adds
# to what it gets the keys of earlier slices, three times what it got there, each times a number of its slice.
PRIME = 2 ** 61 - 1


class Wrong(Exception):
    """The program hangs, reads what is not there, or ends with other weights than one process."""


def start(program):
    """Weights of each piece, inputs and targets of each microbatch. The last number of a weight is what ties share."""
    sizes = [max(2, len(piece["owner"]["ranks"])) for piece in program["pieces"]]
    weights = [[3 + 7 * i + 11 * j for j in range(size)] for i, size in enumerate(sizes)]
    for tie in program["ties"]:
        for sharer in tie["sharers"]:
            weights[sharer][-1] = weights[tie["owner"]][-1]
    every, slices = range(program["microbatches"]), range(program["slices"] or 1)
    return (weights, *([[a + b * mb + c * k for k in slices] for mb in every] for a, b, c in (
        (101, 13, 17), (977, 29, 31))))


def dead(action):
    return action[8 if action[0] == "run" else -1]


def hands_over(program):
    """The pieces that hand keys over."""
    return {a[3] for rank in program["programs"] for a in rank["actions"] if a[0] == "run" and any(
        rank["values"][v]["role"] == "kv" for v in a[6] if v < len(rank["values"]))}


def scale(weight):
    return sum((j + 1) * w for j, w in enumerate(weight)) % PRIME


def stepped(weight, grad, norm):
    return [(w - 5 * g * (norm + 1)) % PRIME for w, g in zip(weight, grad)]


def model(program):
    """The pieces in the order of the model; shards of one part are at one place."""
    places = []
    for i, piece in enumerate(program["pieces"]):
        if i and piece["part"] and piece["part"] == program["pieces"][i - 1]["part"]:
            places[-1].append(i)
        else:
            places.append([i])
    return places


def one_process(program):
    """The weights after a step, and the sum of the losses' derivatives, by the chain rule."""
    weights, inputs, targets = start(program)
    grads = [[0] * len(weight) for weight in weights]
    keyed, places = hands_over(program), model(program)
    scales = [sum(scale(weights[i]) for i in place) for place in places]
    for xs, target in zip(inputs, targets):
        stashes = []
        for place, factor in zip(places, scales):
            if place[0] in keyed:
                xs = [x + sum((j + 2) * 3 * xs[j] for j in range(k)) for k, x in enumerate(xs)]
            stashes.append(xs)
            xs = [x * factor % PRIME for x in xs]
        dys = [x - t for x, t in zip(xs, target)]
        for place, factor, xs in reversed([*zip(places, scales, stashes)]):
            for i in place:
                for j in range(len(grads[i])):
                    grads[i][j] += sum(dy * x for dy, x in zip(dys, xs)) * (j + 1)
            dys = [dy * factor % PRIME for dy in dys]
            if place[0] in keyed:
                dys = [dy + 3 * (j + 2) * sum(dys[j + 1:]) for j, dy in enumerate(dys)]
    shared = {sharer: tie["owner"] for tie in program["ties"] for sharer in tie["sharers"]}
    for sharer, owner in shared.items():
        grads[owner][-1] += grads[sharer][-1]
    trained = [not piece["frozen"] for piece in program["pieces"]]
    norm = sum(g * g for i, grad in enumerate(grads) if trained[i] for g in (grad[:-1] if i in shared else grad))
    new = [stepped(w, g, norm % PRIME) if t else w for w, g, t in zip(weights, grads, trained)]
    for sharer, owner in shared.items():
        new[sharer][-1] = new[owner][-1]
    return new


class Field:
    """The ranks, with zero buffering and lanes by one of the five maps."""

    def __init__(self, program, which):
        self.program, self.which, self.messages = program, which, program["messages"]
        self.weights, self.inputs, self.targets = start(program)
        self.first, *_, self.last = model(program) if len(program["pieces"]) > 1 else [[0], [0]]
        self.sharers = {sharer for tie in program["ties"] for sharer in tie["sharers"]}
        self.values, self.lanes, self.posted, self.gone = [], {}, {}, set()
        for rank in program["programs"]:
            binds = [value["bind"] or {"kind": None} for value in rank["values"]]
            self.values.append([self.bound(bind) for bind in binds])

    def bound(self, bind):
        if bind["kind"] in ("tokens", "targets"):
            return (self.inputs if bind["kind"] == "tokens" else self.targets)[bind["mb"]][bind.get("slice", 0)]
        if bind["kind"] != "weight":
            return 0 if bind["kind"] == "opt" else None
        weight = self.weights[bind["piece"]]
        return [weight[bind["shard"]]] if bind.get("shard") is not None else list(weight)

    def run(self):
        """Executes every rank as far as it goes, again and again, until nothing changes."""
        at, moved = [0] * len(self.values), True
        while moved:
            moved = False
            for rank, program in enumerate(self.program["programs"]):
                while at[rank] < len(program["actions"]) and self.does(rank, program["actions"], at[rank]):
                    at[rank] += 1
                    moved = True
        if any(place < len(p["actions"]) for place, p in zip(at, self.program["programs"])):
            raise Wrong(f"hangs with lanes by {self.which}, at {at}")
        for rank, program in enumerate(self.program["programs"]):
            for value, now in zip(program["values"], self.values[rank]):
                bind = value["bind"]
                if bind and bind["kind"] == "weight":
                    new = self.wanted[bind["piece"]]
                    if now != ([new[bind["shard"]]] if bind.get("shard") is not None else new):
                        raise Wrong(f"rank {rank} ends with another weight {bind['piece']}")

    def compare(self):
        self.wanted = one_process(self.program)
        self.run()

    def does(self, rank, actions, place):
        """Whether the action could be done."""
        action, values = actions[place], self.values[rank]
        if self.which == "serial" and place and actions[place - 1][0] == "post":
            before = self.messages[actions[place - 1][1]]
            joins = action[0] == "post" and before["together"] is not None and before["together"] == self.messages[
                action[1]]["together"]
            if not joins and before["kind"] != "host" and actions[place - 1][1] not in self.gone:
                return False
        if action[0] == "run":
            self.unit(rank, action)
        elif action[0] == "post":
            self.post(rank, action)
        elif not all(number in self.gone for number in self.mates(rank, actions[:place], action[1])):
            return False
        else:
            self.wait(rank, *action[1:3])
        for value in dead(action):
            values[value] = None
        return True

    def mates(self, rank, before, number):
        """The messages that a wait waits for: its own, and those of its `together` that are posted."""
        together = self.messages[number]["together"]
        if together is None or self.which == "edge":
            return [number]
        return [number] + [a[1] for a in before if a[0] == "post" and self.messages[a[1]]["together"] == together
                           and self.lane(rank, a[1]) == self.lane(rank, number)]

    def lane(self, rank, number):
        message = self.messages[number]
        group = message["kind"] not in ("p2p", "host")
        if message["kind"] == "host":
            return rank, "host", number
        if self.which in ("rank", "serial"):
            return (rank,)
        if self.which == "direction":
            return rank, message["role"] in ("dact", "grad")
        if self.which == "pair" and not group:
            return rank, "pair", tuple(sorted(message["ranks"]))
        return rank, "lane", tuple(message["ranks"]), group

    def post(self, rank, action):
        _, number, end, value, shard = action[:5]
        key, message = (number, rank, end), self.messages[number]
        held = self.values[rank][shard if message["kind"] == "all_gather" else value]
        if end == "send" or end == "member" and (message["root"] in (None, rank) or message["kind"] != "broadcast"):
            if held is None:
                raise Wrong(f"rank {rank} sends what is not there: {action}")
            held = list(held) if isinstance(held, list) else held
        self.posted[key] = held, value, shard
        if end == "receive":
            self.values[rank][value] = None
        queue = self.lanes.setdefault(self.lane(rank, number), [])
        queue.append(number)
        self.flush()

    def heads(self, queue):
        """What is at the head of a lane: a message, or those of one `together`."""
        together = self.messages[queue[0]]["together"]
        many = [number for number in queue if together is not None and self.messages[number]["together"] == together]
        return many if self.which != "edge" and many and many == queue[:len(many)] else queue[:1]

    def flush(self):
        again = True
        while again:
            again = False
            for queue in self.lanes.values():
                for number in self.heads(queue) if queue else ():
                    ranks = self.messages[number]["ranks"]
                    ends = [self.lanes.get(self.lane(rank, number), []) for rank in ranks]
                    posts = [key for key in self.posted if key[0] == number]
                    if len(posts) == len(ranks) and all(number in (self.heads(q) if q else ()) for q in ends):
                        for other in ends:
                            if number in other:
                                other.remove(number)
                        self.gone.add(number)
                        again = True
                        break

    def wait(self, rank, number, end):
        held, value, shard = self.posted[number, rank, end]
        message, values = self.messages[number], self.values[rank]
        given = [self.posted[key][0] for key in sorted(self.posted) if key[0] == number]
        kind = message["kind"]
        if end == "send":
            return
        if end == "receive":
            new = next(self.posted[key][0] for key in self.posted if key[0] == number and key[2] == "send")
        elif kind == "broadcast":
            new = self.posted[number, message["root"], "member"][0]
        elif kind == "all_gather":
            new = [x for part in given for x in (part if isinstance(part, list) else [part])]
        elif isinstance(held, list):
            new = [sum(column) % PRIME for column in zip(*given)]
        else:
            new = sum(given) % PRIME
        if kind == "reduce" and message["root"] != rank or kind == "broadcast" and message["root"] == rank:
            return
        if kind == "reduce_scatter":
            values[value], value, new = None, shard, [new[message["ranks"].index(rank)]]
        values[value] = list(new) if isinstance(new, list) else new

    def unit(self, rank, action):
        _, phase, variant, piece, mb, reads, makes = action[:7]
        values, kinds = self.values[rank], self.program["programs"][rank]["values"]
        got = {}
        for v in reads:
            if values[v] is None:
                raise Wrong(f"rank {rank} reads what is not there: {action}")
            got.setdefault(kinds[v]["role"], []).append(v)
        made = {kinds[v]["role"]: v for v in makes}

        def value(role, number=0):
            if len(got.get(role, ())) <= number:
                raise Wrong(f"rank {rank} has no {role}: {action}")
            return values[got[role][number]]

        if phase == "U":
            return self.update(variant, piece, rank, got, made, value, values)
        first, last, cut = piece in self.first, piece in self.last, piece in self.last and len(self.last) > 1
        if phase in "FR":
            if not reads:
                return
            x = value("data" if first else "act")
            self.put(values, made, "kv", 3 * x)
            x += sum((j + 2) * values[v] for j, v in enumerate(got.get("kv", ())))
            self.put(values, made, "act", x * scale(value("weight")) % PRIME)
            self.put(values, made, "stash", x)
            self.put(values, made, "stat", x * scale(value("weight")) % PRIME if cut else 0)
        elif phase in "BI":
            x = value("stash") if "stash" in got else value("data" if first else "act")
            x = x if isinstance(x, int) else x[0]
            if last:
                dy = ((sum(value("stat")) if cut else x * scale(value("weight"))) - value("data")) % PRIME
            else:
                dy = value("dact")
            dx = dy * scale(value("weight")) if "dact" in made or "kv" in got else 0
            if "kv" in got:
                dx += 3 * self.keys(values, got.get("dkv", []), [v for v in makes if kinds[v]["role"] == "dkv"], dx,
                                    action[9])
            self.put(values, made, "dact", dx % PRIME)
            self.put(values, made, "stash", (x, dy))
            self.put(values, made, "stat", 0)
            if phase == "B":
                self.add(values, variant, got, made, [dy * x * (j + 1) for j in range(len(self.weights[piece]))])
        else:
            x, dy = value("stash") if isinstance(value("stash"), tuple) else (value("stash"), 0)
            self.add(values, variant, got, made, [dy * x * (j + 1) for j in range(len(self.weights[piece]))])

    def keys(self, values, read, made, dx, k):
        """Adds to the gradients of earlier slices' keys, or begins them; returns that of this slice's."""
        own = values[read.pop()] if k + 1 < self.program["slices"] else 0
        if len(made or read) != k or made and read:
            raise Wrong(f"{len(made)} gradients of keys are made, and {len(read)} read, of slice {k}")
        for j, v in enumerate(made or read):
            values[v] = ((j + 2) * dx + (0 if made else values[v])) % PRIME
        return own

    @staticmethod
    def put(values, made, role, new):
        if role in made:
            values[made[role]] = new

    @staticmethod
    def add(values, variant, got, made, terms):
        if "grad" in made:
            values[made["grad"]] = [t % PRIME for t in terms]
        elif "grad" in got:
            v = got["grad"][0]
            values[v] = [(a + b) % PRIME for a, b in zip(values[v], terms)]

    def update(self, variant, piece, rank, got, made, value, values):
        owners = sorted(self.program["pieces"][piece]["owner"]["ranks"])
        if variant == "zero":
            self.put(values, made, "grad", [0] * len(self.weights[piece]))
        elif variant in ("sum", "tie_in"):
            into, other = value("grad"), value("grad", 1)
            offset = len(into) - len(other)
            other = [0] * offset + other
            values[got["grad"][0]] = [(a + b) % PRIME for a, b in zip(into, other)]
        elif variant == "tie_out":
            self.put(values, made, "grad", value("grad")[-1:])
        elif variant == "tie_fresh":
            self.put(values, made, "weight", value("weight")[-1:])
        elif variant in ("copy", "cut"):
            whole = value("weight")
            self.put(values, made, "weight", list(whole) if variant == "copy" else [whole[owners.index(rank)]])
        elif variant in ("norm", "norm_first"):
            square = sum(g * g for g in (value("grad")[:-1] if piece in self.sharers else value("grad")))
            if variant == "norm":
                values[got["stat"][0]] = (value("stat") + square) % PRIME
            else:
                self.put(values, made, "stat", square % PRIME)
        else:
            new = stepped(value("weight"), value("grad"), value("stat"))
            if len(got["weight"]) > 1:
                new[-1] = value("weight", 1)[0]
            values[got["weight"][0]] = new


def harmless(program, which):
    """Runs the step; raises `Wrong` if it does not end as one process does. What breaks this code is wrong, too."""
    try:
        Field(program, which).compare()
    except (IndexError, KeyError, StopIteration, TypeError, ValueError) as error:
        raise Wrong(f"{type(error).__name__}: {error}") from error
