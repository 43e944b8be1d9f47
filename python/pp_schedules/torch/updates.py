"""Makes of what stands around an update a function: sums, norm, clipping, ties, shards, and the optimizer's step."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import functools
import math
import torch
import torch.distributed as dist
from ..refused import Refused


def full(tensor):
    """A DTensor whole."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def values(gradient):
    """The real numbers of a gradient, each once."""
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


class Updates:
    """Functions of the actions U of one rank."""

    def __init__(self, pipe, env, values, landing):
        self.pipe, self.env, self.values, self.now, self.land = pipe, env, values, pipe.now, landing

    def ids(self, role, ids):
        return [v for v in ids if self.values[v]["role"] == role]

    def make(self, variant, piece, reads, makes):
        maker = getattr(self, "_" + variant, None)
        if maker is None:
            raise Refused(f"an update of the kind `{variant}`")
        return maker(piece, self.pipe.pieces[piece], reads, makes)

    def left(self, action):
        """An action of `backward`: gradients are added to `.grad`; there is no norm and no update."""
        if action[0] != "run" or action[2].startswith("norm"):
            return lambda: None
        if action[2] != "plain":
            return self.make(action[2], action[3], *action[5:7])
        p, grad = self.pipe.pieces[action[3]], self.ids("grad", action[5])[0]

        def leave():
            self._sum_replicas(grad)
            self._unscale(self.env[grad])
            for q, kept, g in zip(p.parameters, p.kept, self.env[grad]):
                if q.requires_grad:
                    g = g if g is None else g.to(q.dtype)
                    q.grad = g if kept is None else kept if g is None else kept.add_(g)
        return leave

    def tie(self, piece, value, owned):
        """The tie of a value that holds what a tie shares."""
        ties = self.pipe.program.ties
        mine = [t for t, tie in enumerate(ties) if (tie["owner"] == piece if owned else piece in tie["sharers"])]
        return self.pipe.tied_values.get(value, mine[0])

    def _zero(self, piece, p, reads, makes):
        def update():
            self.env[makes[0]] = p.flat(like=p.sums)
        return update

    def _sum(self, piece, p, reads, makes):
        def update():
            self._add(self.env[reads[0]], self.env[reads[1]], range(len(self.env[reads[1]])))
        return update

    @staticmethod
    def _add(into, other, places):
        for place, gradient in zip(places, other):
            if gradient is not None:
                into[place] = gradient.clone() if into[place] is None else into[place].add_(gradient)

    def _part(self, owned, piece, p, reads, makes):
        """What of a piece's tensors a tie shares, side by side."""
        places, like = p.tied[self.tie(piece, makes[0], owned)], p.like if owned else p.sums

        def update():
            self.env[makes[0]] = p.flat(places, like=like).fill(p.some(self.env[reads[0]], places))
        return update

    _tie_out = functools.partialmethod(_part, False)
    _tie_fresh = functools.partialmethod(_part, True)

    def _tie_in(self, piece, p, reads, makes):
        places = p.tied[self.tie(piece, reads[1], True)]

        def update():
            self._add(self.env[reads[0]], self.env[reads[1]], places)
        return update

    def _copy(self, piece, p, reads, makes):
        return lambda: self.land(makes[0], self.env[reads[0]])

    def _cut(self, piece, p, reads, makes):
        def update():
            self.env[makes[0]] = [p.shard.data.copy_(p.own_cut(self.env[reads[0]]))]
        return update

    def _norm(self, piece, p, reads, makes):
        """Adds the squares of a gradient. A piece that shares weights of a tie leaves them to their owner."""
        grad, stat = self.ids("grad", reads)[0], (self.ids("stat", makes) or self.ids("stat", reads))[0]
        first, ties = bool(makes), enumerate(self.pipe.program.ties)
        device = self.pipe.device
        skip = {place for t, tie in ties if piece in tie["sharers"] for place in p.tied[t]}
        if piece in self.pipe.sharded:
            skip = set()

        def update():
            self._sum_replicas(grad)
            there = [values(g) for place, g in enumerate(self.env[grad]) if g is not None and place not in skip]
            if any(hasattr(g, "full_tensor") for g in there):
                norms = [full(torch.linalg.vector_norm(g, dtype=torch.double)) for g in there]
            else:
                norms = torch._foreach_norm(there, 2, torch.double) if there else [
                    torch.zeros((), dtype=torch.double, device=device)]
            new = torch.stack(norms).square().sum(0, keepdim=True) if len(norms) > 1 else norms[0].square().view(1)
            self.env[stat] = new if first else self.env[stat] + new
        return update

    _norm_first = _norm

    def _sum_replicas(self, v):
        """Pipelines side by side count in one whole; each gradient is summed over them once."""
        if self.pipe.replicas is not None and v not in self.now.reduced:
            self.now.reduced.add(v)
            held = self.env[v]
            tensors = [held.buffer] if hasattr(held, "buffer") else [g for g in held if g is not None]
            for work in [dist.all_reduce(g, group=self.pipe.replicas, async_op=True) for g in tensors]:
                work.wait()

    def _unscale(self, gradients):
        """Takes the scale of the loss out of sums."""
        if self.now.scale != 1.0:
            for g in [gradients.buffer] if hasattr(gradients, "buffer") else [g for g in gradients if g is not None]:
                g.mul_(1 / self.now.scale)

    def _skipped(self, norm):
        """All ranks leave out all updates of this step; the first says so once, and all count."""
        pipe = self.pipe
        if self.now.skips:
            return
        self.now.skips, pipe.skipped = True, pipe.skipped + 1
        speaker = min(r["rank"] for r in pipe.program.data["programs"] if any(a[1:3] == ["U", "plain"]
                                                                              for a in r["actions"]))
        if pipe.rank == speaker:
            pipe.tell("skipped", f"step {pipe.steps}: the norm of the gradients is {norm}: no update; `skipped` counts "
                      "such steps")

    def _plain(self, piece, p, reads, makes):
        env, pipe, now = self.env, self.pipe, self.now
        weights, grad, stat = self.ids("weight", reads), self.ids("grad", reads)[0], self.ids("stat", reads)
        shares = [t for t, tie in enumerate(pipe.program.ties) if piece in tie["sharers"]]
        sharded = piece in pipe.sharded
        frozen = sharded and not all(q.requires_grad for q in p.parameters)

        def update():
            if pipe.replicas is not None:
                self._sum_replicas(grad)
            if stat and now.norm is None:
                now.norm = math.sqrt(env[stat[0]].item()) / now.scale
            self._unscale(env[grad])
            factor = min(1.0, pipe.clip / (now.norm + 1e-6)) if pipe.clip and stat else 1.0
            scaled = factor != 1.0
            held, gradients = env[weights[0]], env[grad]
            if not math.isfinite(now.norm or 0):
                self._skipped(now.norm)
            elif p.optimizer is not None:
                if not sharded:
                    p.bind(held)
                targets = [p.shard] if sharded else p.parameters
                pairs = [(q, g) for q, g in zip(targets, gradients) if g is not None and q.requires_grad]
                given = [g for _, g in pairs]
                given = torch._foreach_mul(given, factor) if scaled and given else given
                for (q, _), g in zip(pairs, given):
                    q.grad = g.to(q.dtype)
                old = p.shard.detach().clone() if frozen else None
                p.optimizer.step()
                if frozen:                         # a shard goes across frozen weights, which decay would move
                    p.shard.data.copy_(torch.where(p.trained(), p.shard.data, old))
            if not sharded and (scaled or p.optimizer is None or now.skips):
                for q, g in zip(p.parameters, gradients):
                    if q.requires_grad:
                        q.grad = g if g is None else g.to(q.dtype)
            for t, fresh in zip(shares, weights[1:]):
                for place, tensor in zip(p.tied[t], env[fresh]):
                    held[place].copy_(tensor)
        return update
