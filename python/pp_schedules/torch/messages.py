"""Makes of each post and each wait of a rank a function: what goes, where it lands, and on which communicator."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import torch
import torch.distributed as dist
from ..refused import Refused
from .pieces import Flat
from .units import Stash


class Messages:
    """Functions of the messages of one rank. A post never blocks; what a post began, its wait ends."""

    def __init__(self, pipe, env, values, messages):
        self.pipe, self.env, self.values, self.messages = pipe, env, values, messages
        self.work, self.lent = {}, {}
        self.home = torch.device("cpu")

    # What travels.

    def tensors(self, message):
        """A function that gives (shape, dtype, has a gradient) of each tensor of an act or a dact in this step, and
        whether all of them travel, or those alone that have a gradient."""
        now, mb, place = self.pipe.now, message["mb"], message["piece"]
        place = self.pipe.before[place] if message["role"] == "dact" else place
        return (lambda: now.metas[mb][place].outputs), message["role"] == "act"

    def like(self, message):
        """The tensors of a message with weights or gradients, on `meta`."""
        def of(p):
            return p.sums if message["role"] == "grad" else p.like
        if message["of"] == "all":
            return of(self.pipe.pieces[message["piece"]])
        for p in self.pipe.pieces.values():
            if message["of"] in p.tied:
                return p.some(of(p), p.tied[message["of"]])
        raise Refused(f"no stage of rank {self.pipe.rank} has the weights of tie {message['of']}")

    def payload(self, message):
        """A function from the value that is sent to a list of tensors."""
        role = message["role"]
        if role in ("act", "dact"):
            outputs, every = self.tensors(message)
            if every:
                return lambda value: [t.contiguous() for t in value]
            return lambda value: [t.contiguous() for t, (_, _, grad) in zip(value, outputs()) if grad]
        if role == "stash":
            return lambda value: [self.lend(message, value)] if isinstance(value, Stash) else [value]
        if role == "stat":
            return lambda value: [value]
        like = self.like(message)
        return lambda value: [value.buffer if isinstance(value, Flat) else Flat(
            like, device=self.pipe.device).fill(value).buffer]

    def lend(self, message, stash):
        flat, expected = stash.boxes.take(), self.sent(message)
        self.lent[message["piece"], message["mb"]] = stash
        if flat.numel() != expected:               # a longer message would end the receiver's process
            raise Refused(f"the stash has {flat.numel()} bytes, and {expected} were told")
        return flat

    def sent(self, message):
        return self.pipe.now.metas[message["mb"]][message["piece"]].sent

    def room(self, message):
        """A function that makes empty tensors for what arrives."""
        device, role = self.pipe.device, message["role"]
        if role in ("act", "dact"):
            outputs, every = self.tensors(message)
            return lambda: [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, grad in outputs()
                            if every or grad]
        if role == "stash":
            return lambda: [torch.empty(self.sent(message), dtype=torch.uint8, device=device)]
        if role == "stat":
            return lambda: [torch.empty(1, dtype=torch.double, device=device)]
        like = self.like(message)
        size, dtype = sum(t.numel() for t in like), like[0].dtype
        return lambda: [torch.empty(size, dtype=dtype, device=device)]

    def arrival(self, message):
        """A function from the tensors that arrived to the value."""
        role = message["role"]
        if role in ("act", "dact"):
            outputs, every = self.tensors(message)

            def value(tensors):
                rest = iter(tensors)
                return tuple([next(rest) if grad else None for _, _, grad in outputs()])
            return tuple if every else value
        if role == "stash":
            def stash(tensors):
                mine = self.lent.pop((message["piece"], message["mb"]), None)
                if mine is not None:
                    mine.boxes.give(tensors[0])
                return tensors[0] if mine is None else mine
            return stash
        if role == "stat":
            return lambda tensors: tensors[0]
        like = self.like(message)
        return lambda tensors: Flat(like, tensors[0])

    def land(self, v, value):
        """Puts what arrived into slot v. Where the trainer looks, at a weight's home, the storage stays the same."""
        bind = self.values[v]["bind"]
        if bind and bind["kind"] == "weight" and bind.get("shard") is None:
            for own, t in zip(self.pipe.pieces[bind["piece"]].home, value):
                own.copy_(t)
            value = self.pipe.pieces[bind["piece"]].home
        self.env[v] = value

    # Posts and waits.

    def batch(self, actions, place):
        """The posts that go as one with the post at `place`: neighbours of one `together` on one lane that both ends
        share. Lanes of edges need none, for there a post of one end stands before no post of the other."""
        message = self.messages[actions[place][1]]
        if self.pipe.lanes.kind != "pair" or message["kind"] != "p2p" or message["together"] is None:
            return []

        def belongs(action):
            other = self.messages[action[1]] if action[0] == "post" else message
            return action[0] == "post" and other["together"] == message["together"]
        first, last = place, place
        while first and belongs(actions[first - 1]):
            first -= 1
        while last + 1 < len(actions) and belongs(actions[last + 1]):
            last += 1
        lane = self.pipe.lanes.of(message)
        same = [a for a in actions[first:last + 1] if self.messages[a[1]]["kind"] == "p2p" and
                self.pipe.lanes.of(self.messages[a[1]]) is lane]
        return same if len(same) > 1 else []

    def post(self, number, end, v, shard, batch):
        """`batch`: the posts that go as one with this one, which their last does."""
        message, work = self.messages[number], self.work
        if message["kind"] == "host":
            return self.to_host(number, end, v)
        if message["kind"] != "p2p":
            return self.collective(message, number, v, shard)
        group = self.pipe.lanes.of(message)
        if batch and batch[-1][1:3] != [number, end]:
            return lambda: None
        if batch:
            return self.as_one(group, batch)
        tensors, peer = self.ready(number, end, v), self.pipe.lanes.peer(message, message["ranks"][end == "send"])
        go, tag = group.send if end == "send" else group.recv, 0

        def send():
            mine = tensors()
            work[number, end] = [go([t], peer, tag) for t in mine], mine
        return send

    def ready(self, number, end, v):
        """A function that gives the tensors that a post sends, or into which it receives."""
        message, env = self.messages[number], self.env
        if end == "receive":
            return self.room(message)
        payload = self.payload(message)
        return lambda: payload(env[v])

    def as_one(self, group, batch):
        lanes, parts = self.pipe.lanes, []
        for _, number, end, v, *_ in batch:
            message = self.messages[number]
            parts.append(((number, end), dist.isend if end == "send" else dist.irecv, self.ready(number, end, v),
                          lanes.peer(message, message["ranks"][end == "send"])))

        def send():
            filled = [(key, op, tensors(), peer) for key, op, tensors, peer in parts]
            handles = dist.batch_isend_irecv([dist.P2POp(op, t, group=group, group_peer=peer)
                                              for _, op, tensors, peer in filled for t in tensors])
            at = 0
            for key, _, tensors, _ in filled:      # a backend that coalesces has one handle for all
                own = handles[at:at + len(tensors)] if len(handles) > 1 else handles
                self.work[key], at = (own, tensors), at + len(tensors)
        return send

    def wait(self, number, end, v):
        """`v` is the value of this message's post."""
        message, work = self.messages[number], self.work
        if message["kind"] == "host":
            return self.from_host(number, end, v)
        if message["kind"] != "p2p":
            return self.finished(message, number, v)
        arrival = self.arrival(message) if end == "receive" else None
        plain = arrival is not None and message["role"] in ("act", "dact")

        def wait():
            handles, tensors = work.pop((number, end))
            for handle in handles:
                handle.wait()
            if plain:
                self.env[v] = arrival(tensors)
            elif arrival is not None:
                self.land(v, arrival(tensors))
        return wait

    def to_host(self, number, end, v):
        """Moves a stash to host memory or back: the send's post copies it, and the receive's wait hands it on."""
        def post():
            if end == "send":
                self.env[v].boxes.to(self.pipe.device if self.values[v]["host"] else self.home)
                self.lent[number] = self.env[v]
        return post

    def from_host(self, number, end, v):
        def wait():
            if end == "receive":
                self.env[v] = self.lent.pop(number)
        return wait

    def collective(self, message, number, v, shard):
        env, work, pipe, kind = self.env, self.work, self.pipe, message["kind"]
        group, count = pipe.lanes.of(message), len(message["ranks"])
        if message["mb"] >= 0:
            return self.among_shards(message, number, v, shard, group)
        if message["role"] == "stat":
            def post():
                work[number, "member"] = dist.all_reduce(env[v], group=group, async_op=True), env[v]
            return post
        gives = kind != "all_gather" and (kind != "broadcast" or message["root"] == pipe.rank)
        root, like = pipe.lanes.ranks[message["root"] or 0], self.like(message)
        cut = kind in ("all_gather", "reduce_scatter")
        mine = message["ranks"].index(pipe.rank)

        def post():
            flat = Flat(like, None, count if cut else 1, pipe.device)
            if gives:
                flat.fill(env[v])
            parts = list(flat.buffer.view(count, -1).unbind()) if cut else None
            if kind == "broadcast":
                handle = dist.broadcast(flat.buffer, root, group=group, async_op=True)
            elif kind == "reduce":
                handle = dist.reduce(flat.buffer, root, group=group, async_op=True)
            elif kind == "all_gather":
                handle = dist.all_gather(parts, env[shard][0].detach(), group=group, async_op=True)
            else:                                  # a reduce_scatter, too: gloo has none in every version
                handle = dist.all_reduce(flat.buffer, group=group, async_op=True)
            work[number, "member"] = handle, [parts[mine]] if kind == "reduce_scatter" else flat
        return post

    def among_shards(self, message, number, v, shard, group):
        """A sum of terms, or an input, of the shards of a part that is cut by the vocabulary; or their statistics."""
        env, kind, root = self.env, message["kind"], self.pipe.lanes.ranks[message["root"] or 0]
        if message["role"] != "stat":
            payload, room = self.payload(message), self.room(message)
        sends, count = message["root"] == self.pipe.rank, len(message["ranks"])

        def post():
            if kind == "all_gather":
                tensors = [torch.empty_like(env[shard]) for _ in range(count)]
                handles = [dist.all_gather(tensors, env[shard], group=group, async_op=True)]
            elif kind == "reduce":                 # in a copy: autograd may have kept the term
                tensors = [t.clone() for t in payload(env[v])]
                handles = [dist.reduce(t, root, group=group, async_op=True) for t in tensors]
            else:
                tensors = payload(env[v]) if sends else room()
                handles = [dist.broadcast(t, root, group=group, async_op=True) for t in tensors]
            self.work[number, "member"] = handles, tensors
        return post

    def from_shards(self, message, number, v):
        arrival = list if message["role"] == "stat" else self.arrival(message)
        lands = message["kind"] == "all_gather" or (message["root"] == self.pipe.rank) == (message["kind"] == "reduce")

        def wait():
            handles, tensors = self.work.pop((number, "member"))
            for handle in handles:
                handle.wait()
            if lands:
                self.env[v] = arrival(tensors)
        return wait

    def finished(self, message, number, v):
        """What the wait of a collective does with its result. For a reduce_scatter `v` is the shard."""
        if message["mb"] >= 0:
            return self.from_shards(message, number, v)
        kind, root = message["kind"], message["root"] == self.pipe.rank
        keeps = message["role"] == "stat" or kind == "broadcast" and root or kind == "reduce" and not root

        def wait():
            handle, value = self.work.pop((number, "member"))
            handle.wait()
            if keeps:
                return
            if kind in ("all_gather", "broadcast"):
                self.land(v, value)
            else:
                self.env[v] = value
        return wait
