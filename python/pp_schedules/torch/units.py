"""Makes of each unit of a rank a function without arguments: its slots, module and variant are known beforehand."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import contextlib
from collections.abc import Mapping
import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge
from ..refused import Refused
from .backward import Pending, products
from .boxes import Boxes
from .memory import saved_by
from .shared import current
from .vocabulary import dlogits_of, nll_of, said


class Stash:
    """What a unit keeps from F to its backward. Of outputs these are their edges in autograd's graph, not the tensors,
    which may be gone when they were sent; `loss` is that of the last stage, `queue` what waits of its linears."""
    __slots__ = ("inputs", "edges", "loss", "boxes", "queue", "logits", "keys")

    def __init__(self, inputs, boxes, queue):
        self.inputs, self.boxes, self.queue, self.edges, self.loss = inputs, boxes, queue, None, None


class Half:
    """What I leaves where it made all gradients itself, or all but those of linears."""
    __slots__ = ("made", "queue")

    def __init__(self, made, queue):
        self.made, self.queue = made, queue


def in_words(y):
    """What is no tensor of a stage, for a sentence."""
    if isinstance(y, torch.Tensor):
        return f"a tensor of the shape {list(y.shape)}"
    if isinstance(y, (tuple, list)):
        return f"a {type(y).__name__} of {[type(t).__name__ for t in y]}"
    keys = f" with the keys {list(y)}" if isinstance(y, Mapping) else ""
    return f"`{y!r}`" if y is None or isinstance(y, (bool, int, float)) else f"a `{type(y).__name__}`{keys}"


def tensors_of(y, who="the module returns"):
    """What a module returned, as a tuple of tensors."""
    if isinstance(y, torch.Tensor):
        return (y,)
    if isinstance(y, (tuple, list)) and y and all(isinstance(t, torch.Tensor) for t in y):
        return tuple(y)
    raise Refused(f"{who} {in_words(y)}; expected a tensor, or a tuple of tensors")


def with_keys(made):
    """What a module returned that hands keys over: its output, and a tuple of tensors for the slices behind this."""
    if not isinstance(made, tuple) or len(made) != 2:
        raise Refused(f"the module returns {in_words(made)}; expected its output, and the keys of this slice")
    return made[0], tensors_of(made[1], "the module returns as the keys of this slice")


def edge_of(t):
    """The tensor's edge in autograd's graph. A node of C++ keeps its graph alive; others need what PyTorch adds."""
    node = t.grad_fn
    own = node is None or isinstance(node, BackwardCFunction)
    return get_gradient_edge(t) if own else GradientEdge(node, t.output_nr)


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

    def __init__(self, pipe, env, values, training):
        self.pipe, self.env, self.values, self.now, self.training = pipe, env, values, pipe.now, training
        self.last = {a[3]: pipe.unit(a[4], a[-1]) for a in pipe.me["actions"] if a[:2] in (["run", "B"], ["run", "I"])}
        self.slice_of = self.slices()
        self.before = {(a[3], pipe.unit(a[4], a[-1])) for a in pipe.me["actions"]  # units that run before their R
                       if training and a[:2] == ["run", "F"] and (
                           pipe.lead[a[3]] == 0 or self.slot("act", a[5]) is not None)}

    def slot(self, role, ids):
        """The first value of a role, or None. Slots behind the program's are the driver's own, for stashes."""
        return next((v for v in ids if (self.values[v]["role"] if v < len(self.values) else "stash") == role), None)

    def slices(self):
        """The slice that a gradient of keys belongs to. Those that a backward begins are in the order of slices."""
        found = {}
        for a in self.pipe.me["actions"] if self.training else ():
            begun = [v for v in a[6] if self.values[v]["role"] == "dkv"] if a[0] == "run" else []
            if begun:
                there = {found[v] for v in a[5] if v in found}
                found.update(zip(begun, [k for k in range(a[-1]) if k not in there]))
        return found

    def make(self, phase, variant, piece, mb, reads, makes):
        if phase in ("F", "R"):
            return self.forward(phase, piece, mb, reads, makes)
        if phase in ("B", "I"):
            if not self.training:                  # the loss of a head that is cut by the vocabulary
                return self.judge(piece, mb, reads)
            return self.backward(phase, piece, mb, reads, makes)
        return self.weights(piece, reads, makes)

    def contexts(self, phase, piece, mb, keeps, moves):
        """A function from a stash to the context manager of a forward, or None: the user's, dropout by the seed, and
        what fills the stash. R leaves buffers as F left them, and without a seed it has the masks of F."""
        pipe, now, key = self.pipe, self.now, (piece, mb)

        @contextlib.contextmanager
        def buffers(_):
            kept = [(part, name, b, b.clone()) for part in pipe.pieces[piece].module.modules()
                    for name, b in part._buffers.items() if b is not None]
            yield
            for part, name, b, before in kept:
                part._buffers[name] = b
                b.data.copy_(before)               # not b itself, of which autograd may have kept the version

        @contextlib.contextmanager
        def remembered(_):
            cuda = torch.cuda.get_rng_state(pipe.device) if pipe.device.type == "cuda" else None
            now.states[key] = torch.get_rng_state(), cuda
            yield

        @contextlib.contextmanager
        def together(stash):
            with contextlib.ExitStack() as stack:
                for make in makers:
                    stack.enter_context(make(stash))
                yield

        makers = [lambda _: pipe.context()] if pipe.context else []
        if pipe.seed is not None:
            makers.append(lambda _: random_state(pipe.device, seed_of(pipe.seed, pipe.steps, piece, mb)))
        elif phase == "R":
            makers.append(lambda _: random_state(pipe.device, state=now.states.pop(key)) if key in now.states else
                          contextlib.nullcontext())
        elif not keeps and self.training and piece in pipe.redone:
            makers.append(remembered)
        makers += [buffers] * (phase == "R" and key in self.before)
        makers += [lambda _: torch.no_grad()] * (not keeps and self.training)
        makers += [lambda stash: stash.boxes.hooks()] * moves
        return together if len(makers) > 1 else next(iter(makers), None)

    def module(self, piece, mb, keeps):
        """A function from the inputs of a unit to the tensors that the stage makes of them: at the end the loss."""
        now, pipe, module = self.now, self.pipe, self.pipe.pieces[piece].module
        last, loss = self.whole_end(piece), self.pipe.loss

        keyed, none = piece in pipe.keyed, ()

        def run(x, keys):
            words, own = now.extra[mb] if now.extra is not None else {}, none
            if last and loss is None:
                x = *x, *now.targets[mb]
            y = module(*x, **words, keys=keys) if keyed else module(*x, **words)
            if keyed:
                y, own = with_keys(y)
            if not last:
                return (y,) if isinstance(y, torch.Tensor) else tensors_of(y), own
            given, y = () if loss is None else y, y if loss is None else loss(
                y if y is not None else tensors_of(y), *now.targets[mb])
            y, meta = self.scalar(y, keeps), now.metas[mb][piece]
            if keeps and meta.loss is None:        # the first time with these shapes
                meta.loss = saved_by(y, given, pipe.pieces[piece].parameters)
            return (y,), own
        return run

    def scalar(self, y, trains):
        """A loss; refuses what is none."""
        who = "the last stage, which has no `loss=`," if self.pipe.loss is None else "`loss`"
        if not isinstance(y, torch.Tensor) or y.dim():
            raise Refused(f"{who} returns {in_words(y)}; expected a tensor without dimensions")
        if trains and not y.requires_grad:
            raise Refused(f"{who} returns a tensor without a gradient, so no stage would train; `eval` runs "
                          "forwards alone")
        return y

    def forward(self, phase, piece, mb, reads, makes):
        env, now, pipe, p = self.env, self.now, self.pipe, self.pipe.pieces[piece]
        first, last, source_piece = pipe.lead[piece] == 0, self.whole_end(piece), pipe.before[piece]
        weight, source = self.slot("weight", reads), self.slot("act", reads)
        act, stash, stat = self.slot("act", makes), self.slot("stash", makes), self.slot("stat", makes)
        if not first and source is None:           # the last stage's F where R or B runs it
            return lambda: None
        keeps, moves = stash is not None, piece in pipe.moved and stash is not None
        linears = p.linears if pipe.splits[piece] == "linears" and piece in pipe.halved and keeps else None
        context, run = self.contexts(phase, piece, mb, keeps, moves), self.module(piece, mb, keeps)
        before, handed = [v for v in reads if self.values[v]["role"] == "kv"], self.slot("kv", makes)
        before = before[:mb % pipe.slices]         # R is told of its own, too, and makes them again
        light = self.training and not keeps

        def unit():
            if weight is not None and env[weight] is not p.bound:
                p.bind(env[weight])
            x = now.inputs[mb] if first else [t.detach().requires_grad_(grad) for t, grad in zip(
                env[source], now.metas[mb][source_piece].grads)]
            given, current.weight = [t.clone() for t in x] if p.writes else x, now.seeds[mb]
            keys = [[t.detach().requires_grad_(t.requires_grad) for t in env[v]] for v in before]
            kept = Stash(x, Boxes(p.parameters) if moves else None, None if linears is None else [])
            if linears is not None:
                linears.enter(kept.queue, False)
            try:
                if context is None:
                    y, own = run(given, keys)
                else:
                    with context(kept):
                        y, own = run(given, keys)
            finally:
                if linears is not None:
                    linears.leave()
            if last:
                kept.loss = y[0].detach()
                now.losses.setdefault(mb, kept.loss)
            elif act is not None:
                if [(t.shape, t.dtype, t.requires_grad) for t in y] != now.metas[mb][piece].outputs:
                    self.check(y, now.metas[mb][piece], keeps)
                env[act] = [t.detach() for t in y]
            elif stat is not None:
                kept.logits, env[stat] = said(y, now.targets[mb], self.columns(piece, mb))
            if handed is not None:
                env[handed] = [t.detach().requires_grad_(t.requires_grad or light and t.is_floating_point())
                               for t in own]
            if keeps:
                kept.keys = keys
                kept.edges = [edge_of(t) if t.requires_grad else None for t in (*y, *own)]
                env[stash] = kept
        return unit

    def check(self, y, meta, keeps):
        """Refuses what is not as told: the receiver has room for what it was told, and sends gradients for no more."""
        shapes = self.pipe.shapes
        for what, got, told in (("shapes", [t.shape for t in y], meta.shapes),
                                ("dtypes", [t.dtype for t in y], meta.dtypes)):
            if got != told:
                got = [tuple(one) for one in got] if what == "shapes" else got
                raise Refused(f"the {what} {got} are not {shapes.word}, {told}{shapes.hint}")
        for place, (t, grad) in enumerate(zip(y, meta.grads)):
            if keeps and t.requires_grad and not grad:
                raise Refused(f"output {place} has a gradient, and none in {shapes.word}: nothing would come back for "
                              "it")

    def backward(self, phase, piece, mb, reads, makes):
        env, now, p = self.env, self.now, self.pipe.pieces[piece]
        last, split, stat = self.whole_end(piece), self.pipe.splits[piece], self.slot("stat", reads)
        weight, kept, incoming = self.slot("weight", reads), self.slot("stash", reads), self.slot("dact", reads)
        read, made = self.slot("grad", reads), self.slot("grad", makes)
        dact, pending = self.slot("dact", makes), self.slot("stash", makes)
        halves, whole = phase == "I" and split == "halves" and pending is not None, phase == "B"
        before, sharded = None, p.changes and self.pipe.reduces == "last"
        reduces, keyed, k = self.last.get(piece) == mb, piece in self.pipe.keyed, mb % self.pipe.slices
        sums_of = {self.slice_of[v]: v for v in (*reads, *makes) if v in self.slice_of}
        own, into = sums_of.get(k), [sums_of[j] for j in range(k)] if keyed else ()
        if kept is None:                           # a head, whose F is in its B; an embedding, which looks up again
            kept = len(env)
            env.append(None)
            before = self.forward("R" if (piece, mb) in self.before else "F", piece, mb, reads, [kept])

        def unit():
            if before is not None:
                before()
            if sharded:
                p.reduce(reduces)
            if weight is not None and env[weight] is not p.bound:
                p.bind(env[weight])
            stash, held = env[kept], env[read] if read is not None else None
            if last:
                edges, seeds = stash.edges, [torch.full_like(stash.loss, now.seeds[mb])]
            elif stat is not None:
                edges, seeds = stash.edges, [self.seed(piece, mb, stash.logits, env[stat])]
                stash.logits = None
            else:
                edges, seeds = stash.edges, env[incoming]
            inputs = stash.inputs
            if keyed:
                seeds = [*seeds, *(env[own] if own is not None else [None] * len(edges))]
                edges = [e if g is not None else None for e, g in zip(edges, seeds)]
                inputs = [*inputs, *(t for keys in stash.keys for t in keys)]
            if None in edges:
                edges, seeds = [e for e in edges if e is not None], [g for e, g in zip(edges, seeds) if e is not None]
            if halves:
                env[pending] = half = Pending(edges, seeds, inputs, p.places)
                dx = half.dinputs
            else:
                dx, sums = self._whole(p, edges, seeds, stash, inputs, held if whole and p.wide is None else None)
                if whole and (read is not None or made is not None):
                    if p.wide is not None:         # `.grad` has the parameter's type, so the sum is kept beside it
                        new, sums = sums, list(held or [None] * len(sums))
                        add_all(adder(sums, p.wide), new)
                    elif held is None or any(g is None for g in held):
                        sums = apart(sums, (*dx, *seeds))
                    if stash.queue is not None:
                        products(stash.queue, p.places, adder(sums, p.wide))
                    self.store(read, made, held, sums)
                elif pending is not None:
                    env[pending] = Half(sums, stash.queue)
            if dact is not None:
                env[dact] = [torch.zeros_like(x) if g is None else g for g, x in zip(dx, stash.inputs)]
            if keyed:
                rest = iter(dx[len(stash.inputs):])
                for v, keys in zip(into, stash.keys):
                    env[v] = [add_up(old, next(rest)) for old in env[v] or [None] * len(keys)]
            stash.edges = stash.inputs = stash.keys = None
            if before is not None:
                env[kept] = None
        return unit

    # A head that is cut by the vocabulary.

    def whole_end(self, piece):
        """Whether a piece ends the model alone."""
        return piece == len(self.pipe.lead) - 1 == self.pipe.lead[piece]

    def columns(self, piece, mb):
        """The first column of a shard."""
        metas = self.now.metas[mb]
        return sum(metas[i].outputs[0][0][-1] for i in range(self.pipe.lead[piece], piece))

    def loss_of(self, piece, mb, stats):
        """The loss by the statistics of all shards, and the negative log-likelihood of each token, of which it is made.
        Each shard has them; the last one tells."""
        nll = nll_of(stats).view(self.now.targets[mb][0].shape)
        loss = self.scalar(self.pipe.loss(nll.requires_grad_(self.training), *self.now.targets[mb]), self.training)
        if piece == len(self.pipe.lead) - 1:
            self.now.losses[mb] = loss.detach()
        return loss, nll

    def seed(self, piece, mb, logits, stats):
        loss, nll = self.loss_of(piece, mb, stats)
        dnll = torch.autograd.grad(loss, nll)[0] * self.now.seeds[mb]
        return dlogits_of(logits, stats, dnll.view(logits.shape[:-1]), self.now.targets[mb], self.columns(piece, mb))

    def judge(self, piece, mb, reads):
        stat = self.slot("stat", reads)
        return lambda: self.loss_of(piece, mb, self.env[stat])

    @staticmethod
    def _whole(p, edges, seeds, stash, inputs, held):
        """Runs autograd over all; the sums of gradients lie under `.grad` meanwhile, for hooks expect them there."""
        if held is not None:
            for q, g in zip(p.parameters, held):
                q.grad = g
        if edges and stash.queue is not None:
            p.linears.enter(stash.queue, True)     # what checkpoints run again must save what F saved
            try:
                torch.autograd.backward(edges, seeds)
            finally:
                p.linears.leave()
        elif edges:
            torch.autograd.backward(edges, seeds)
        dx, sums = [x.grad for x in inputs], [q.grad for q in p.parameters]
        for q in p.parameters:
            q.grad = None
        return dx, sums

    def weights(self, piece, reads, makes):
        env, p = self.env, self.pipe.pieces[piece]
        kept, read, made = self.slot("stash", reads), self.slot("grad", reads), self.slot("grad", makes)

        def unit():
            half, held = env[kept], env[read] if read is not None else None
            sums = list(held) if held is not None else [None] * len(p.parameters)
            add = adder(sums, p.wide)
            if isinstance(half, Pending):
                half.weights(add)
            else:
                add_all(add, half.made)
                if half.queue is not None:
                    products(half.queue, p.places, add)
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


def add_up(old, new):
    """A sum in a tensor of its own: what autograd gives may be the gradient of something else, too."""
    return new if old is None else old if new is None else old + new


def apart(gradients, others):
    """Gradients without a storage in common: of `stack([a, b]).sum(0)` autograd makes one for both, to which PyTorch's
    next backward would add twice. Nor do they share one with `others`, which may be on their way then."""
    seen = {g.data_ptr() for g in others if g is not None and g.layout == torch.strided}
    for place, gradient in enumerate(gradients):
        if gradient is not None and gradient.layout == torch.strided:
            start = gradient.data_ptr() if gradient.numel() else 0
            if start in seen and start:
                gradients[place] = gradient.clone()
            seen.add(start)
    return gradients


def add_all(add, gradients):
    for place, gradient in enumerate(gradients):
        if gradient is not None:
            add(place, gradient)


def adder(sums, wide=None):
    """A function that adds a gradient to the sum of a parameter. `own`: nobody else has this tensor. Otherwise it may
    be the gradient of another weight or of an input, too, or one number that is seen many times, so it is copied.
    `wide`: the type of sums of floating-point gradients, if it is not theirs."""
    def add(place, gradient, own=False):
        if sums[place] is None and wide is not None and gradient.is_floating_point() and gradient.dtype != wide:
            sums[place] = gradient.to(wide)
        elif sums[place] is None:
            sums[place] = gradient if own else gradient.clone()
        else:
            sums[place].add_(gradient)
    return add
