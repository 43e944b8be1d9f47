"""Estimates the peak of a rank: its list is walked once, and each value has the bytes that the first step saw."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from collections.abc import Mapping
import torch


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def of_outputs(outputs):
    return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype, _ in outputs)


def saved_by(loss, given, parameters):
    """What autograd keeps for a loss of `given`, the outputs of a module: (bytes, those of the largest tensor). If
    nothing is given, the module made the loss, and all that it keeps counts but its weights."""
    given = given.values() if isinstance(given, Mapping) else given if isinstance(given, (tuple, list)) else [given]
    seen = {t.grad_fn for t in given if isinstance(t, torch.Tensor)} | {None}
    weights = {q.untyped_storage().data_ptr() for q in parameters if not hasattr(q, "to_local")}
    todo, found = [loss.grad_fn], {}
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [other for other, _ in node.next_functions]
            for name in dir(node):
                try:
                    kept = getattr(node, name) if name.startswith("_raw_saved_") else ()
                    tensors = [one.data for one in (kept if isinstance(kept, (tuple, list)) else [kept])]
                except (AttributeError, RuntimeError):  # older than PyTorch 2.15; a backward was here
                    continue
                for t in tensors:                  # what a checkpoint keeps is no tensor
                    if isinstance(t, torch.Tensor) and not hasattr(t, "to_local"):
                        found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    sizes = [size for place, size in found.items() if place not in weights]
    return sum(sizes), max(sizes, default=0)


def lost(meta):
    return meta.loss or (0, 0)


class Sizes:
    """Bytes of the values of a rank. Of shapes that differ from microbatch to microbatch it takes the largest."""

    def __init__(self, pipe):
        self.pipe, self.metas = pipe, list(pipe.shapes.known.values())

    def largest(self, piece, size):
        sizes = [size(metas[piece]) for metas in self.metas]
        return None if None in sizes else max(sizes)

    def of(self, v, value):
        """(what, bytes, or None where no stage was run)."""
        role, piece, pipe = value["role"], value["piece"], self.pipe
        if role in ("weight", "grad"):
            return role + "s", self.weights(v, value)
        if role in ("act", "dact"):
            piece = pipe.before[piece] if role == "dact" else piece
            return "acts", self.largest(piece, lambda meta: of_outputs(meta.outputs))
        if role == "stash":
            return "stashes", self.largest(piece, lambda meta: meta.sent if piece not in pipe.pieces else
                                           meta.held if meta.held is None else meta.held + lost(meta)[0])
        if role in ("kv", "dkv"):
            return "keys", self.largest(piece, lambda meta: meta.keys)
        return "others", 0

    def beside(self, action):
        """What is there beside values: a gradient that is added to its sum; twice that in an update, as Adam has it.
        Where the loss is made, what the module returns, and in its backward two gradients of that size."""
        piece, p = action[3], self.pipe.pieces.get(action[3])
        if p is None or not p.like:
            return 0
        if action[1] == "U":
            largest = max(bytes_of([t]) for t in ([p.shard] if p.shard is not None else p.like))
            return 2 * largest if action[2] == "plain" and p.optimizer else 0
        beside = self.largest(piece, lambda meta: lost(meta)[1]) * (1 if action[1] in "FR" else 2 * (action[1] != "W"))
        added = action[1] in "BW" and action[2] != "first"
        return max(beside, max(bytes_of([t]) for t in p.like) if added else 0)

    def weights(self, v, value):
        pipe, bind = self.pipe, value["bind"]
        if value["piece"] not in pipe.pieces:
            return 0
        p = pipe.pieces[value["piece"]]
        like = p.sums if value["role"] == "grad" else p.like
        if v in pipe.tied_values and len(p.tied):
            return bytes_of(p.some(like, p.tied.get(pipe.tied_values[v], [])))
        shards = p.cut[1] if bind and bind.get("shard") is not None else 1
        return -(-bytes_of(like) // shards)


def peak(pipe):
    """{what: bytes} at the moment of the largest sum of a step, and their sum."""
    sizes, values = Sizes(pipe), pipe.me["values"]
    kinds = [sizes.of(v, value) for v, value in enumerate(values)]
    known = {what for what, size in kinds if size is None}
    kinds = [(what, size or 0) for what, size in kinds]
    state = sum(bytes_of(t for held in p.optimizer.state.values() for t in held.values() if isinstance(t, torch.Tensor))
                for p in pipe.pieces.values() if p.optimizer is not None)
    alive = {v for v, value in enumerate(values) if value["bind"] and value["bind"]["kind"] == "weight"}
    now, best = {"optimizers": state}, None
    for v in alive:
        now[kinds[v][0]] = now.get(kinds[v][0], 0) + kinds[v][1]
    for a in pipe.me["actions"]:
        born = a[6] if a[0] == "run" else [a[3]] if a[0] == "post" and a[2] != "send" else []
        for v in set(born) - alive:
            alive.add(v)
            now[kinds[v][0]] = now.get(kinds[v][0], 0) + kinds[v][1]
        sums = [kinds[v][1] for v in a[5] if values[v]["role"] == "grad"] if a[0] == "run" else []
        clipped = pipe.clip and a[1:3] == ["U", "plain"]  # `.grad` keeps what the optimizer gets in a scaled copy
        there = dict(now, updates=max(sums) if clipped else 0, temporaries=sizes.beside(a) if a[0] == "run" else 0)
        if best is None or sum(there.values()) > sum(best.values()):
            best = there
        for v in set(a[8] if a[0] == "run" else a[-1]) & alive:
            alive.discard(v)
            now[kinds[v][0]] -= kinds[v][1]
    return {what: size for what, size in best.items() if size and what not in known} | {"peak": sum(best.values())}
