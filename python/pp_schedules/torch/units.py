"""Makes of each unit of a rank a function without arguments: its slots, module and variant are known beforehand."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import contextlib
import torch
from ..refused import Refused
from .backward import Linears, Pending
from .boxes import Boxes


class Stash:
    """What a unit keeps from F to its backward."""
    __slots__ = ("inputs", "outputs", "boxes", "linears")

    def __init__(self, inputs, outputs, boxes, linears):
        self.inputs, self.outputs, self.boxes, self.linears = inputs, outputs, boxes, linears


class Half:
    """What I leaves where it made all gradients itself, or all but those of linears."""
    __slots__ = ("made", "linears")

    def __init__(self, made, linears):
        self.made, self.linears = made, linears


@contextlib.contextmanager
def random_state(device, seed=None, state=None):
    """Runs under the generator's state of a seed, or a given one, and restores the state of before."""
    cuda = device.type == "cuda"
    old = torch.get_rng_state(), torch.cuda.get_rng_state(device) if cuda else None
    if seed is not None:
        torch.manual_seed(seed)
    elif state is not None:
        torch.set_rng_state(state[0])
        if cuda:
            torch.cuda.set_rng_state(state[1], device)
    try:
        yield
    finally:
        torch.set_rng_state(old[0])
        if cuda:
            torch.cuda.set_rng_state(old[1], device)


def seed_of(seed, step, piece, mb):
    """The seed of a unit: a function of no schedule, rank or placement, so one process can make the same masks."""
    return ((seed * 1000003 + step) * 1000003 + piece) * 1000003 + mb


class Units:
    """Functions of the units of one rank. `pipe` is the Pipeline, `env` the values, `now` what is true of this step."""

    def __init__(self, pipe, env, values):
        self.pipe, self.env, self.values, self.now = pipe, env, values, pipe.now

    def slot(self, role, ids):
        """The first value of a role, or None."""
        return next((v for v in ids if self.values[v]["role"] == role), None)

    def make(self, phase, variant, piece, mb, reads, makes):
        if phase in ("F", "R"):
            return self.forward(phase, piece, mb, reads, makes)
        if phase in ("B", "I"):
            return self.backward(phase, piece, mb, reads, makes)
        return self.weights(piece, reads, makes)

    def forward(self, phase, piece, mb, reads, makes):
        env, now, pipe, p = self.env, self.now, self.pipe, self.pipe.pieces[piece]
        first, last = piece == 0, piece == len(pipe.program.pieces) - 1
        weight, source = self.slot("weight", reads), self.slot("act", reads)
        act, stash = self.slot("act", makes), self.slot("stash", makes)
        if not first and source is None:           # the last stage's F where R runs it again
            return lambda: None
        keeps, moves, split = stash is not None, piece in pipe.moved, pipe.splits[piece]
        trains = None if first else [grad for _, _, grad in pipe.meta[piece - 1].outputs]
        shapes = [shape for shape, _, _ in pipe.meta[piece].outputs]
        linear = split == "linears" and piece in pipe.halved and keeps

        def modules(x):
            words = now.extra[mb] if now.extra is not None else {}
            if not last:
                return p.module(*x, **words)
            if pipe.loss is None:
                return p.module(*x, *now.targets[mb], **words)
            return pipe.loss(p.module(*x, **words), *now.targets[mb])

        def unit():
            if weight is not None:
                p.bind(env[weight])
            x = now.inputs[mb] if first else env[source]
            x = tuple(x) if first else tuple(t.detach().requires_grad_(g) for t, g in zip(x, trains))
            boxes, linears = Boxes(p.parameters) if moves and keeps else None, Linears() if linear else None
            with contextlib.ExitStack() as stack:
                pipe.random(stack, phase, piece, mb, keeps)
                stack.enter_context(torch.set_grad_enabled(keeps and now.training))
                for context in (pipe.context and pipe.context(), boxes is not None and boxes.hooks(), linears):
                    if context is not None and context is not False:
                        stack.enter_context(context)
                y = modules(x)
            y = (y,) if isinstance(y, torch.Tensor) else tuple(y)
            if last and mb not in now.losses:
                now.losses[mb] = y[0].detach()
                now.total += now.losses[mb].double() * now.weights[mb]
            if act is not None:
                if [tuple(t.shape) for t in y] != shapes:
                    raise Refused(f"the shapes {[tuple(t.shape) for t in y]} are not those of the first microbatch, "
                                  f"{shapes}")
                env[act] = tuple(t.detach() for t in y)
            if keeps:
                env[stash] = Stash(x, y, boxes, linears)
        return unit

    def backward(self, phase, piece, mb, reads, makes):
        env, now, p = self.env, self.now, self.pipe.pieces[piece]
        last, split = piece == len(self.pipe.program.pieces) - 1, self.pipe.splits[piece]
        weight, kept, incoming = self.slot("weight", reads), self.slot("stash", reads), self.slot("dact", reads)
        read, made = self.slot("grad", reads), self.slot("grad", makes)
        dact, pending = self.slot("dact", makes), self.slot("stash", makes)
        halves, whole = phase == "I" and split == "halves" and pending is not None, phase == "B"

        def unit():
            if weight is not None:
                p.bind(env[weight])
            stash, held = env[kept], env[read] if read is not None else None
            if last:
                outputs, seeds = [stash.outputs[0]], [torch.full_like(stash.outputs[0], now.weights[mb])]
            else:
                pairs = [(y, g) for y, g in zip(stash.outputs, env[incoming]) if y.requires_grad]
                outputs, seeds = [y for y, _ in pairs], [g for _, g in pairs]
            if halves:
                env[pending] = half = Pending(outputs, seeds, stash.inputs, p.parameters)
                dx = half.dinputs
            else:
                dx, sums = self._whole(p, outputs, seeds, stash, held if whole else None)
                if whole and (read is not None or made is not None):
                    if stash.linears:
                        stash.linears.weights(p.places, adder(sums))
                    self.store(read, made, held, sums)
                elif pending is not None:
                    env[pending] = Half(sums, stash.linears)
            if dact is not None:
                env[dact] = tuple(torch.zeros_like(x) if g is None else g for g, x in zip(dx, stash.inputs))
            stash.outputs = stash.inputs = None
        return unit

    @staticmethod
    def _whole(p, outputs, seeds, stash, held):
        """Runs autograd over all; the sums of gradients lie under `.grad` meanwhile, for hooks expect them there."""
        for place, q in enumerate(p.parameters):
            q.grad = held[place] if held is not None else None
        if outputs:
            torch.autograd.backward(outputs, seeds)
        dx, sums = [x.grad for x in stash.inputs], [q.grad for q in p.parameters]
        for q in p.parameters:
            q.grad = None
        for x in stash.inputs:
            x.grad = None
        return dx, sums

    def weights(self, piece, reads, makes):
        env, p = self.env, self.pipe.pieces[piece]
        kept, read, made = self.slot("stash", reads), self.slot("grad", reads), self.slot("grad", makes)

        def unit():
            half, held = env[kept], env[read] if read is not None else None
            sums = list(held) if held is not None else [None] * len(p.parameters)
            add = adder(sums)
            if isinstance(half, Pending):
                half.weights(add)
            else:
                for place, gradient in enumerate(half.made):
                    if gradient is not None:
                        add(place, gradient)
                if half.linears:
                    half.linears.weights(p.places, add)
            self.store(read, made, held, sums)
        return unit

    def store(self, read, made, held, sums):
        """Where the sum of a gradient is now. A buffer that came from elsewhere stays that buffer."""
        if hasattr(held, "buffer"):
            for own, gradient in zip(held, sums):
                if gradient is not None and gradient.data_ptr() != own.data_ptr():
                    own.copy_(gradient)
        else:
            self.env[read if made is None else made] = sums


def adder(sums):
    """A function that adds a gradient to the sum of a parameter."""
    def add(place, gradient):
        sums[place] = gradient if sums[place] is None else sums[place].add_(gradient)
    return add
