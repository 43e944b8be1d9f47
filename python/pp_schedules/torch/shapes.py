"""Shapes, dtypes and sizes of stashes, which every rank knows before the first message of a step."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import hashlib
import torch
import torch.distributed as dist
from ..refused import Refused
from .agree import called
from .boxes import Boxes
from .memory import bytes_of
from .units import random_state, tensors_of, with_keys


class Meta:
    """What a stage makes: `outputs`, [(shape, dtype, has a gradient)]; bytes of its stash that are `held` and `sent`,
    None where nobody ran it; whether it writes into its inputs; whether it has parameters to train; bytes of keys;
    `loss`: bytes that the loss keeps beside the stash, and its largest tensor, once the rank that has it knows them."""

    def __init__(self, outputs, held=None, sent=None, writes=False, trains=False, keys=0):
        self.outputs, self.held, self.sent, self.writes, self.trains = outputs, held, sent, writes, trains
        self.keys, self.loss = keys, None
        self.shapes, self.dtypes, self.grads = ([output[k] for output in outputs] for k in range(3))


class Shapes:
    """`of` gives [Meta of each stage] for each microbatch.

    "first step": stages run once on microbatch 0, in their order, and all microbatches have its shapes. "sent": every
    step begins with one message of an int64 for each microbatch, which tells the shapes of its inputs; stages run once
    on shapes that are new. A list has the outputs of each stage but the last: a tensor or a tuple of tensors, which may
    be on `meta`; no stage runs for it.
    """

    def __init__(self, pipe, how):
        self.pipe, self.how, self.known = pipe, how, {}
        self.runner = {(a[3], pipe.unit(a[4], a[-1])): r["rank"] for r in pipe.program.data["programs"]
                       for a in r["actions"] if a[:2] == ["run", "F"]}
        self.word = {"first step": "those of the first microbatch", "sent": "those that were sent"}.get(
            how if isinstance(how, str) else None, "the declared ones")
        self.hint = "; `shapes=\"sent\"` sends them along" if how == "first step" else ""
        if isinstance(how, str) and how not in ("first step", "sent"):
            raise Refused("`shapes`: expected `first step`, `sent` or a list with the outputs of each stage, got "
                          f"`{how}`")
        if not isinstance(how, str):
            self._declared(how)

    def _declared(self, outputs):
        if len(outputs) != len(self.pipe.program.pieces) - 1:
            raise Refused(f"`shapes` has {len(outputs)} stages, expected all but the last of "
                          f"{len(self.pipe.program.pieces)}")
        if any(m["role"] == "stash" and m["kind"] != "host" for m in self.pipe.program.data["messages"]):
            raise Refused(f"`{self.pipe.program.name}` sends stashes, whose sizes declared shapes do not tell")
        if "vocabulary" in self.pipe.program.needs:
            raise Refused("`shapes` is a list, which does not tell the columns of the shards of a head")
        tensors = [tensors_of(y, f"`shapes` has for stage {i}") for i, y in enumerate(outputs)]
        self.known[None] = [Meta([(tuple(t.shape), t.dtype, t.requires_grad) for t in y], trains=not piece["frozen"])
                            for y, piece in zip(tensors, self.pipe.program.pieces)] + [Meta([])]

    def of(self, inputs, extra):
        """A collective of the pipeline, but where the shapes are known for good."""
        count = self.pipe.program.microbatches * self.pipe.slices
        if self.how != "sent":
            if not self.known:
                self.known[None] = self._run(0, inputs, extra)
            return [self.known[None]] * count
        header = torch.zeros(count, dtype=torch.int64, device=self.pipe.device)
        for mb in [self.pipe.unit(mb, k) for mb in self.pipe.reads["inputs"] for k in range(self.pipe.slices)]:
            told = [(tuple(t.shape), str(t.dtype)) for t in inputs[mb]], sorted(
                (word, tuple(t.shape)) for word, t in (extra[mb] if extra else {}).items() if hasattr(t, "shape"))
            header[mb] = int.from_bytes(hashlib.sha256(repr(told).encode()).digest()[:7], "big")
        dist.all_reduce(header, dist.ReduceOp.MAX, group=self.pipe.group)
        keys = header.tolist()
        for mb, key in enumerate(keys):
            if key not in self.known:
                self.known[key] = self._run(mb, inputs, extra)
        return [self.known[key] for key in keys]

    def train(self, metas):
        """Refuses a stage behind which nothing is told what its gradient is."""
        trained = None
        for i, meta in enumerate(metas[:-1]):
            trained = i if meta.trains else trained
            if trained is not None and not any(grad for *_, grad in meta.outputs):
                here, before = called(self.pipe.program, i), called(self.pipe.program, trained)
                raise Refused(f"no output of {here} has a gradient, so {before} would not train; " + (
                    "if that is meant, say `requires_grad_(False)` to its parameters" if isinstance(self.how, str) else
                    "in `shapes`, `requires_grad=True` says which output has one"))

    def _run(self, mb, inputs, extra):
        """Runs all stages on one microbatch, each on the rank that has to; the others hear what came of it."""
        metas, pipe = [], self.pipe
        for i in range(len(pipe.program.pieces)):
            told, runner = [None], self.runner[i, mb]
            if runner == pipe.rank:
                try:
                    incoming = metas[pipe.before[i]].outputs if pipe.lead[i] else None
                    told = [self._stage(pipe.pieces[i], mb, incoming, inputs, extra[mb] if extra else {})]
                except Exception as error:         # every rank must hear of it, or the others wait for ever
                    kind = "" if isinstance(error, Refused) else f"{type(error).__name__}: "
                    told = [f"{called(pipe.program, i)} on microbatch {mb}: {kind}{error}"]
            dist.broadcast_object_list(told, pipe.lanes.ranks[runner], group=pipe.group)
            if isinstance(told[0], str):
                raise Refused(told[0])
            metas.append(Meta(*told[0]))
            first = metas[pipe.lead[i]].outputs
            if i != pipe.lead[i] and pipe.lead[i] == 0 and metas[i].outputs != first:
                raise Refused(f"{called(pipe.program, i)} makes {metas[i].outputs}, and {called(pipe.program, 0)} "
                              f"{first}: the shards of an embedding make terms of one sum")
            if i in pipe.pieces:
                pipe.pieces[i].writes |= metas[i].writes
        return metas

    def _stage(self, p, mb, incoming, inputs, words):
        """Runs a stage on zeros of the told shapes, as it trains; generator and buffers are put back."""
        pipe, away = self.pipe, p.visitor and any(t.numel() for t in p.like)
        where = torch.device("meta") if away else pipe.device
        last, trains = p.number == len(pipe.lead) - 1 == pipe.lead[-1], any(q.requires_grad for q in p.parameters)
        if last and pipe.loss is None:
            return [], 0, 0, False, trains         # the module would want targets, and nobody needs the shape of a loss
        keys = {"keys": []} if p.number in pipe.keyed else {}
        kept = {name: b.clone() for name, b in p.module.named_buffers()}

        def made():
            if incoming is None:
                return tuple(t.to(where, copy=True) for t in inputs[mb])
            return tuple((torch.zeros if dtype.is_floating_point else torch.ones)(
                shape, dtype=dtype, device=where).requires_grad_(grad) for shape, dtype, grad in incoming)

        def run(x, hooks=True):
            boxes = Boxes(p.parameters)
            with random_state(pipe.device, pipe.seed), boxes.hooks() if hooks else torch.enable_grad():
                with torch.enable_grad(), pipe.context() if pipe.context else torch.enable_grad():
                    if not away:
                        return p.module(*x, **words, **keys), boxes if hooks else None
                    empty = {path: t.detach().requires_grad_(q.requires_grad) for path, t, q in zip(
                        p.paths, p.like, p.parameters)} | {name: b.to("meta") for name, b in kept.items()}
                    there = {key: t.to(where) if isinstance(t, torch.Tensor) else t for key, t in words.items()}
                    return torch.func.functional_call(p.module, empty, x, {**there, **keys}), boxes

        x, writes = made(), False
        versions = [t._version for t in x]
        try:
            y, boxes = run(x)
            writes = versions != [t._version for t in x]
        except RuntimeError as error:
            if "saved tensor hooks" in str(error) and p.number not in pipe.moved:  # those of torch.func take none
                y, boxes = run(made(), False)
            elif "in-place" in str(error):         # what autograd says of a leaf that is written
                writes = True
                y, boxes = run(tuple(t.clone() for t in made()))
            else:
                raise
        y, own = with_keys(y) if keys else (y, ())
        outputs = [] if last and y is not None else [
            (tuple(t.shape), t.dtype, t.requires_grad) for t in tensors_of(y)]  # at the end `loss` takes what it takes
        with torch.no_grad():
            for name, b in p.module.named_buffers():
                b.copy_(kept[name])
        held, sent = (None, None) if boxes is None else (boxes.held(), boxes.sent())
        if held is not None and p.number in pipe.heads:  # logits wait in the stash for the statistics of all shards
            held += bytes_of(tensors_of(y))
        return outputs, held, sent, writes, trains, bytes_of(own)
