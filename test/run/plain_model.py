"""A llama, and a mixtral, in plain Python: losses and gradients in f64, written from the papers, with nothing of pp."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Derivatives are those of numbers that remember how they were made (reverse mode, one number at a time). A document is
# a list of (token, target) with None for a target that does not count; documents are alone in the world here, so what
# another document, a padded row, a microbatch or a device could do wrong cannot be done.
import math


class Number:
    """A value, and the numbers that it was made of with the slope along each of them."""
    __slots__ = ("value", "slope", "parents")
    made = []

    def __init__(self, value, parents=()):
        self.value, self.slope, self.parents = value, 0.0, parents
        if parents:
            Number.made.append(self)

    def __add__(self, other):
        return Number(self.value + other.value, ((self, 1.0), (other, 1.0)))

    def __mul__(self, other):
        return Number(self.value * other.value, ((self, other.value), (other, self.value)))

    def times(self, factor):
        return Number(self.value * factor, ((self, factor),))

    def power(self, exponent):
        return Number(self.value ** exponent, ((self, exponent * self.value ** (exponent - 1)),))

    def log(self):
        return Number(math.log(self.value), ((self, 1 / self.value),))

    def exp(self, less=0.0):
        value = math.exp(self.value - less)
        return Number(value, ((self, value),))

    def silu(self):
        gate = 1 / (1 + math.exp(-self.value))
        return Number(self.value * gate, ((self, gate * (1 + self.value * (1 - gate))),))

    def hand_back(self):
        for parent, along in self.parents:
            parent.slope += along * self.slope


class Dot(Number):
    """The product of two rows; parents are the rows."""
    __slots__ = ()

    def hand_back(self):
        for x, y in zip(*self.parents):
            x.slope += y.value * self.slope
            y.slope += x.value * self.slope


def total(numbers):
    return Number(math.fsum(n.value for n in numbers), tuple((n, 1.0) for n in numbers))


def dot(xs, ys):
    return Dot(sum([x.value * y.value for x, y in zip(xs, ys)]), (xs, ys))


def linear(matrix, x):
    """The rows of a matrix are its outputs, as in files."""
    return [dot(row, x) for row in matrix]


def sum_rows(xs, ys):
    return [x + y for x, y in zip(xs, ys)]


def rmsnorm(x, gain, epsilon=1e-5):
    square = dot(x, x)
    scale = Number(square.value / len(x) + epsilon, ((square, 1 / len(x)),)).power(-0.5)
    return [xi * scale * gi for xi, gi in zip(x, gain)]


def softmax(scores):
    """The probabilities, and the logarithm of the sum of the exponentials."""
    most = max(score.value for score in scores)
    powers = [score.exp(most) for score in scores]
    everything = total(powers)
    inverse = everything.power(-1)
    log = everything.log()
    return [power * inverse for power in powers], Number(log.value + most, ((log, 1.0),))


def turn(head, position, theta):
    """Rotary positions: the pair (j, j + half) by the angle position * theta ** (-2 j / width)."""
    half, out = len(head) // 2, list(head)
    for j in range(half):
        angle = position * theta ** (-2 * j / len(head))
        a, b, cos, sin = head[j], head[j + half], math.cos(angle), math.sin(angle)
        out[j] = Number(a.value * cos - b.value * sin, ((a, cos), (b, -sin)))
        out[j + half] = Number(b.value * cos + a.value * sin, ((b, cos), (a, sin)))
    return out


def matrix_of(flat, shape):
    return [flat[i * shape[1]:(i + 1) * shape[1]] for i in range(shape[0])]


class Model:
    """weights: name -> (shape, values), named and laid out as in published folders."""

    def __init__(self, weights, heads, kv_heads, layers, theta=10000.0, window=0, experts=0, top=2, balance=0.0, z=0.0):
        self.flat = {name: [Number(value) for value in values] for name, (_, values) in weights.items()}
        self.weights = {name: self.flat[name] if len(shape) == 1 else matrix_of(self.flat[name], shape)
                        for name, (shape, _) in weights.items()}
        self.heads, self.kv_heads, self.layers, self.theta, self.window = heads, kv_heads, layers, theta, window
        self.experts, self.top, self.balance, self.z = experts, top, balance, z

    def layer(self, number, name):
        return self.weights[f"model.layers.{number}.{name}"]

    def projections(self, l, names, fused):
        """The matrices of these names, or the runs of rows of one that holds all of them, in this order."""
        if f"model.layers.{l}.{names[0]}.weight" in self.weights:
            return [self.layer(l, name + ".weight") for name in names]
        rows, width = self.layer(l, fused + ".weight"), len(self.layer(l, "self_attn.o_proj.weight")[0])
        if len(names) == 2:
            return [rows[:len(rows) // 2], rows[len(rows) // 2:]]
        shared = width // self.heads * self.kv_heads
        return [rows[:width], rows[width:width + shared], rows[width + shared:]]

    def attention(self, l, xs):
        normed = [rmsnorm(x, self.layer(l, "input_layernorm.weight")) for x in xs]
        wq, wk, wv = self.projections(l, [f"self_attn.{n}_proj" for n in "qkv"], "self_attn.qkv_proj")
        width = len(wq) // self.heads
        cut = lambda row, head: row[head * width:(head + 1) * width]
        queries, keys, values = ([linear(w, x) for x in normed] for w in (wq, wk, wv))
        sinks = self.weights.get(f"model.layers.{l}.self_attn.sinks")
        outs = [[] for _ in xs]
        for head in range(self.heads):
            shared = head * self.kv_heads // self.heads
            turned = [turn(cut(k, shared), t, self.theta) for t, k in enumerate(keys)]
            for t, q in enumerate(queries):
                first = max(0, t + 1 - self.window) if self.window else 0
                q = turn(cut(q, head), t, self.theta)
                scores = [dot(q, turned[s]).times(width ** -0.5) for s in range(first, t + 1)]
                shares, _ = softmax(scores + ([sinks[head]] if sinks else []))
                seen = [cut(values[s], shared) for s in range(first, t + 1)]
                outs[t] += [dot(shares[:len(seen)], column) for column in zip(*seen)]
        return [sum_rows(x, linear(self.layer(l, "self_attn.o_proj.weight"), o)) for x, o in zip(xs, outs)]

    def mlp(self, l, x):
        gate, up = self.projections(l, ["mlp.gate_proj", "mlp.up_proj"], "mlp.gate_up_proj")
        between = [p.silu() * q for p, q in zip(linear(gate, x), linear(up, x))]
        return linear(self.layer(l, "mlp.down_proj.weight"), between)

    def mixture(self, l, xs):
        """The experts' outputs for the rows of one document; of each row p, the experts chosen, and z."""
        moe, outs, routed = "block_sparse_moe.", [], []
        for x in xs:
            p, log = softmax(linear(self.layer(l, moe + "gate.weight"), x))
            chosen = sorted(range(self.experts), key=lambda e: (-p[e].value, e))[:self.top]
            inverse = total([p[e] for e in chosen]).power(-1)
            terms = []
            for e in chosen:
                w1, w3, w2 = (self.layer(l, f"{moe}experts.{e}.w{i}.weight") for i in (1, 3, 2))
                between = [a.silu() * b for a, b in zip(linear(w1, x), linear(w3, x))]
                share = p[e] * inverse
                terms.append([y * share for y in linear(w2, between)])
            outs.append([total(column) for column in zip(*terms)])
            routed.append((p, chosen, log * log))
        return outs, routed

    def router_losses(self, routed, tokens):
        """Balance and z of one group of rows in one layer, as shares of all tokens."""
        shares = [total([p[e] for p, _, _ in routed]).times(sum(e in chosen for _, chosen, _ in routed) / len(routed))
                  for e in range(self.experts)]
        return (total(shares).times(self.balance * self.experts / self.top / tokens),
                total([square for _, _, square in routed]).times(self.z / tokens))

    def document(self, tokens):
        """The logits of every token, and what the router of each layer found."""
        xs, routers = [self.weights["model.embed_tokens.weight"][token] for token in tokens], []
        for l in range(self.layers):
            xs = self.attention(l, xs)
            normed = [rmsnorm(x, self.layer(l, "post_attention_layernorm.weight")) for x in xs]
            if self.experts:
                outs, routed = self.mixture(l, normed)
                routers.append(routed)
            else:
                outs = [self.mlp(l, x) for x in normed]
            xs = [sum_rows(x, out) for x, out in zip(xs, outs)]
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return [linear(head, rmsnorm(x, self.weights["model.norm.weight"])) for x in xs], routers

    def run(self, documents, rows=None):
        """Of documents of (token, target): the loss of each as a sum, its targets, the losses of routers and all
        gradients of the mean over all targets. rows: the documents that share a row, for the balance of routers."""
        Number.made.clear()
        losses, counts, routers, tokens = [], [], [], sum(map(len, documents))
        for document in documents:
            logits, found = self.document([token for token, _ in document])
            terms = []
            for row, (_, target) in zip(logits, document):
                if target is not None:
                    _, log = softmax(row)
                    terms.append(log + row[target].times(-1))
            losses.append(total(terms))
            counts.append(len(terms))
            routers.append(found)
        loss = total(losses).times(1 / max(1, sum(counts)))
        groups = [sum((routers[number][l] for number in row), [])
                  for row in rows or [[i] for i in range(len(documents))]
                  for l in range(self.layers if self.experts else 0)]
        balance, z = (total(parts) for parts in zip(*[self.router_losses(group, tokens) for group in groups])) \
            if groups else (Number(0.0), Number(0.0))
        backward(total([loss, balance, z]))
        gradients = {name: [number.slope for number in flat] for name, flat in self.flat.items()}
        return dict(loss=loss.value, losses=[one.value for one in losses], counts=counts, balance=balance.value,
                    z=z.value, gradients=gradients, norm=norm_of(gradients.values()))


def backward(end):
    end.slope = 1.0
    for number in reversed(Number.made):
        if number.slope:
            number.hand_back()


def norm_of(gradients):
    return math.sqrt(math.fsum(value * value for values in gradients for value in values))
