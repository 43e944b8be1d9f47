"""Modules for the tests of `pp_schedules.torch`: a llama in stages, and small stages with what is hard, in f64."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH = 24, 8


class Layer(nn.Module):
    """A layer of a llama without rotations."""

    def __init__(self):
        super().__init__()
        self.before, self.after = (nn.RMSNorm(WIDTH, dtype=torch.double) for _ in range(2))
        sizes = (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 12), (WIDTH, 12), (12, WIDTH)
        self.qkv, self.out, self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False, dtype=torch.double) for a, b in sizes)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.after(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A stage of a llama: one layer, and the ends of the model at its ends."""

    def __init__(self, stage, stages):
        super().__init__()
        torch.manual_seed(stage)
        self.embed = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.double) if stage == 0 else None
        self.layer = Layer()
        last = stage == stages - 1
        self.norm = nn.RMSNorm(WIDTH, dtype=torch.double) if last else None
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.double) if last else None

    def forward(self, x):
        x = self.layer(x if self.embed is None else self.embed(x))
        return x if self.head is None else self.head(self.norm(x))


class Part(nn.Module):
    """A part of a layer of a llama: `pre` and `attn` hand on the residual beside what they make, and `post` adds it.
    The embedding is in the first `pre`; the head is a part."""

    def __init__(self, number, parts):
        super().__init__()
        torch.manual_seed(number)
        kind, layer = ("head", ()) if number == parts - 1 else (("pre", "attn", "post")[number % 3], Layer())
        self.embed = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.double) if number == 0 else None
        self.qkv = layer.qkv if kind == "attn" else None
        self.kind, self.first = kind, layer.before if kind == "pre" else None
        if kind == "post":
            self.out, self.after, self.gate, self.up, self.down = (
                layer.out, layer.after, layer.gate, layer.up, layer.down)
        if kind == "head":
            self.norm = nn.RMSNorm(WIDTH, dtype=torch.double)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.double)

    def forward(self, x, y=None):
        if self.kind == "head":
            return self.head(self.norm(x))
        if self.kind == "pre":
            x = x if self.embed is None else self.embed(x)
            return x, self.first(x)
        if self.kind == "attn":
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(y).chunk(3, -1))
            return x, functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        y = self.after(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Odd(nn.Module):
    """Two outputs, one of which has no gradient; a weight that is used twice on one path; a module that is called
    twice; dropout; a frozen weight."""

    def __init__(self, stage, stages):
        super().__init__()
        made = torch.Generator().manual_seed(100 + stage)

        def weight(*sizes):
            return nn.Parameter(torch.randn(*sizes, generator=made, dtype=torch.double) / sizes[-1] ** 0.5)

        last = stage == stages - 1
        self.embed = weight(VOCABULARY, WIDTH) if stage == 0 else None
        self.twice, self.norm = weight(WIDTH, WIDTH), nn.LayerNorm(WIDTH, dtype=torch.double)
        self.frozen = weight(WIDTH, WIDTH).requires_grad_(False)
        self.head = weight(VOCABULARY, WIDTH) if last else None
        self.dropout = nn.Dropout(0.2)

    def forward(self, x, mask=None):
        if self.embed is not None:
            mask, x = x % 3 != 0, self.embed[x]
        y = torch.tanh(self.norm(x) @ self.twice) @ self.twice
        x = x + self.dropout(self.norm(y)) @ self.frozen * mask[..., None]
        return (x, mask) if self.head is None else functional.linear(x, self.head)


def tie(stages):
    """The embedding and the head are one weight."""
    stages[-1].head.weight = stages[0].embed.weight
    return stages


def counted_sum(logits, targets):
    """The sum over the targets that count; -100 does not."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum", ignore_index=-100)


def batch(count, rows=2, length=5):
    """Inputs, targets and the weight of each microbatch: unequal counts of targets, and one without any."""
    made = torch.Generator().manual_seed(3)
    x, y = (torch.randint(0, VOCABULARY, (count, rows, length), generator=made) for _ in range(2))
    for i in range(count):
        if i % 3 == 1:
            y[i, :, 1:] = -100
    y[count // 2] = -100
    return [(t,) for t in x], [(t,) for t in y], 1 / int((y != -100).sum())


class Formula(nn.Module):
    """Modules of parameters by name, and a function of them."""

    def __init__(self, function, tokens=False, **parts):
        super().__init__()
        self.function, self.tokens = function, tokens
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, torch.Tensor) else part)

    def forward(self, x):
        return self.function(self, x)


def graphs():
    """Graphs that a backward in two halves may get wrong, by name. Inputs have width 6, or are tokens below 9."""
    def linear(a, b, bias=True):
        return nn.Linear(a, b, bias=bias)

    def frozen(module):
        return module.requires_grad_(False)

    def chunks(s, x):
        q, k, v = s.l(x).chunk(3, -1)
        return s.o(q * k + v) + x

    def nest(s, x):
        x = s.e(x)
        return s.l(x * 2 + x) + x * 2 * x

    w = torch.randn
    return {
        "one weight twice on a path": Formula(lambda s, x: torch.tanh(x @ s.w) @ s.w, w=w(6, 6)),
        "modules that are called twice": Formula(
            lambda s, x: s.n(s.l(torch.tanh(s.n(s.l(x))))) + x, l=linear(6, 6), n=nn.LayerNorm(6)),
        "a weight, and a product of it": Formula(
            lambda s, x: functional.gelu(functional.linear(x, s.w)) @ (s.w * s.g), w=w(8, 6), g=w(6)),
        "chunks": Formula(chunks, l=linear(6, 18), o=linear(6, 6, False)),
        "an embedding as the head": Formula(
            lambda s, x: functional.linear(torch.tanh(s.l(s.e(x) + s.p))[..., :6], s.e.weight), tokens=True,
            e=nn.Embedding(9, 6), p=w(5, 6), l=linear(6, 9)),
        "an embedding alone": Formula(lambda s, x: torch.tanh(s.e(x)), tokens=True, e=nn.Embedding(9, 6)),
        "an embedding with three readers": Formula(nest, tokens=True, e=nn.Embedding(9, 6), l=linear(6, 6)),
        "frozen weights": Formula(lambda s, x: s.b(torch.relu(s.a(x))), a=frozen(linear(6, 6)), b=linear(6, 6)),
        "weight norm": Formula(lambda s, x: s.l(x), l=nn.utils.parametrizations.weight_norm(linear(6, 6))),
        "a recurrent layer": Formula(lambda s, x: s.g(x)[0], g=nn.GRU(6, 6, batch_first=True)),
        "a layer of attention twice": Formula(lambda s, x: s.g(s.g(x)), g=nn.TransformerEncoderLayer(
            6, 2, 12, dropout=0.0, batch_first=True))}


class Hard(nn.Module):
    """A stage with a module that a driver may get wrong, between the ends of a model."""

    def __init__(self, name, stage, stages):
        super().__init__()
        torch.manual_seed(stage)
        self.embed = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.double) if stage == 0 else None
        self.body = HARD[name]()
        self.head = nn.Linear(WIDTH, VOCABULARY, dtype=torch.double) if stage == stages - 1 else None

    def forward(self, x):
        x = self.body(x if self.embed is None else self.embed(x))
        return x if self.head is None else self.head(x)


def hard(function, **parts):
    """A function that makes a `Formula`; of a tuple of sizes it makes a weight, of a word a linear of that type."""
    def make():
        made = {}
        for name, part in parts.items():
            if isinstance(part, tuple):
                part = torch.randn(*part, dtype=torch.double) / 3
            made[name] = nn.Linear(WIDTH, WIDTH, dtype=getattr(torch, part)) if isinstance(part, str) else part() if \
                callable(part) else part
        return Formula(function, **made)
    return make


def spectral():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH, dtype=torch.double))


def hooked(attach):
    """A linear with a hook on its weight."""
    def make():
        linear = nn.Linear(WIDTH, WIDTH, dtype=torch.double)
        attach(linear.weight)
        return linear
    return make


def penalty(create):
    """A gradient inside a forward; with `create` it is itself differentiated."""
    def run(s, x):
        y = x if create and x.requires_grad else x.detach().requires_grad_()
        slope = torch.autograd.grad(s.b(torch.tanh(s.a(y))).pow(2).sum(), y, create_graph=create)[0]
        return s.b(torch.tanh(s.a(x))) + 0.1 * slope
    return run


def cast(s, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = s.a(x.float())
    return y.double() + s.b(x)


# What a split backward or the driver's own linears got wrong once, or may: {name: a function that makes the module}.
HARD = {
    "a weight, and a number made of it": hard(lambda s, x: s.l(x) + x, l=spectral),
    "a sum of two weights": hard(lambda s, x: torch.tanh(x @ (s.a + s.b)) + x, a=(WIDTH, WIDTH), b=(WIDTH, WIDTH)),
    "weights like the activation": hard(lambda s, x: s.l(x) + s.a + s.b, a=(2, 5, WIDTH), b=(2, 5, WIDTH), l="double"),
    "a sum over a weight": hard(lambda s, x: s.l(x) + s.a.sum(), a=(4, WIDTH), l="double"),
    "a gradient inside": hard(penalty(False), a="double", b="double"),
    "a gradient of a gradient": hard(penalty(True), a="double", b="double"),
    "a hook on a weight": hard(lambda s, x: s.l(x) + x, l=hooked(lambda w: w.register_hook(lambda g: g * 0.5))),
    "a hook behind a gradient": hard(lambda s, x: s.l(x) + x, l=hooked(
        lambda w: w.register_post_accumulate_grad_hook(lambda p: None))),
    "autocast inside": hard(cast, a="float", b="double"),
    "vmap": hard(lambda s, x: torch.func.vmap(lambda t: torch.tanh(s.l(t)))(x) + x, l="double"),
    "torch.func.grad": hard(lambda s, x: torch.func.grad(lambda t: torch.tanh(s.l(t)).sum())(x) + x, l="double"),
    "complex weights": hard(lambda s, x: torch.fft.fft(s.l(x.to(torch.complex128))).real * 0.3 + x, l="complex128"),
    "sparse gradients": hard(lambda s, x: s.l(x) + s.e(torch.arange(5) % 7), l="double", e=lambda: nn.Embedding(
        7, WIDTH, sparse=True, dtype=torch.double)),
    "a keyword": hard(lambda s, x: s.l(input=x) + x, l="double")}
