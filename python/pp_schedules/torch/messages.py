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

    def metas(self, message):
        """(shape, dtype, has a gradient) of each tensor of an act or a dact."""
        return self.pipe.meta[message["piece"] - (message["role"] == "dact")].outputs

    def like(self, message):
        """The tensors of a message with weights or gradients, on `meta`."""
        if message["of"] == "all":
            return self.pipe.pieces[message["piece"]].like
        for p in self.pipe.pieces.values():
            if message["of"] in p.tied:
                return p.some(p.like, p.tied[message["of"]])
        raise Refused(f"no stage of rank {self.pipe.rank} has the weights of tie {message['of']}")

    def payload(self, message):
        """A function from the value that is sent to a list of tensors."""
        role = message["role"]
        if role in ("act", "dact"):
            picks = [role == "act" or grad for _, _, grad in self.metas(message)]
            return lambda value: [t.contiguous() for t, pick in zip(value, picks) if pick]
        if role == "stash":
            return lambda value: [self.lend(message, value)] if isinstance(value, Stash) else [value]
        if role == "stat":
            return lambda value: [value]
        like = self.like(message)
        return lambda value: [value.buffer if isinstance(value, Flat) else Flat(
            like, device=self.pipe.device).fill(value).buffer]

    def lend(self, message, stash):
        flat, expected = stash.boxes.take(), self.pipe.meta[message["piece"]].sent
        self.lent[message["piece"], message["mb"]] = stash
        if flat.numel() != expected:               # a longer message would end the receiver's process
            raise Refused(f"the stash has {flat.numel()} bytes, and that of the first microbatch has {expected}")
        return flat

    def room(self, message):
        """A function that makes empty tensors for what arrives."""
        device, role = self.pipe.device, message["role"]
        if role in ("act", "dact"):
            wanted = [(shape, dtype) for shape, dtype, grad in self.metas(message) if role == "act" or grad]
            return lambda: [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in wanted]
        if role == "stash":
            return lambda: [torch.empty(self.pipe.meta[message["piece"]].sent, dtype=torch.uint8, device=device)]
        if role == "stat":
            return lambda: [torch.empty(1, dtype=torch.double, device=device)]
        like = self.like(message)
        size, dtype = sum(t.numel() for t in like), like[0].dtype
        return lambda: [torch.empty(size, dtype=dtype, device=device)]

    def arrival(self, message):
        """A function from the tensors that arrived to the value."""
        role = message["role"]
        if role in ("act", "dact"):
            picks = [role == "act" or grad for _, _, grad in self.metas(message)]

            def value(tensors):
                rest = iter(tensors)
                return tuple(next(rest) if pick else None for pick in picks)
            return value
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

    def post(self, number, end, v, shard):
        message, env, work, lanes = self.messages[number], self.env, self.work, self.pipe.lanes
        if message["kind"] == "host":
            return self.to_host(number, end, v)
        if message["kind"] != "p2p":
            return self.collective(message, number, v, shard)
        group, peer = lanes.of(message), lanes.peer(message, message["ranks"][end == "send"])
        if end == "send":
            payload = self.payload(message)

            def send():
                tensors = payload(env[v])
                work[number, end] = [dist.isend(t, group=group, group_dst=peer) for t in tensors], tensors
        else:
            room = self.room(message)

            def send():
                tensors = room()
                work[number, end] = [dist.irecv(t, group=group, group_src=peer) for t in tensors], tensors
        return send

    def wait(self, number, end, v):
        """`v` is the value of this message's post."""
        message, work = self.messages[number], self.work
        if message["kind"] == "host":
            return self.from_host(number, end, v)
        if message["kind"] != "p2p":
            return self.finished(message, number, v)
        arrival = self.arrival(message) if end == "receive" else None

        def wait():
            handles, tensors = work.pop((number, end))
            for handle in handles:
                handle.wait()
            if arrival is not None:
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

    def finished(self, message, number, v):
        """What the wait of a collective does with its result. For a reduce_scatter `v` is the shard."""
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
