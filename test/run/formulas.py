#!/usr/bin/env python3
"""Judges formulas of models: gradients on several ranks against one rank, and of random formulas against torch."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: formulas.py PP_COMPILE FOLDER [--groups N] [--seed N] [--each N]
# The models of Inputs/formulas.pipe and models of random formulas are trained for a step in f64 under schedules that
# split, recompute and interleave, and on two devices. Gradients and losses must be those of one rank; those of random
# formulas must be torch's, too, to 1e-11 of the largest gradient of a tensor. Without torch that part is left out, and
# the script ends with 77. finite_differences.py judges the models without torch.
import os, random, sys
import harness

try:
    import torch
except ImportError:
    torch = None

MODELS = os.path.join(harness.ROOT, "test/run/Inputs/formulas.pipe")
TOLERANCE = 1e-11
HEADS = 4
COLUMNS = 4, 1, 11, 37  # of a head; random formulas take them in turn, all else the first
SIZES = dict(microbatches=4, microbatch=1, sequence=8, layers=4, hidden=HEADS * COLUMNS[0], heads=HEADS,
             kv_heads=HEADS, ffn=16, vocab=256, precision="f64")
LAYOUTS = (dict(schedule="single"), dict(schedule="zb_h1", ranks=2), dict(schedule="1f1b_recompute", ranks=2),
           dict(schedule="interleaved", ranks=2), dict(schedule="slimpipe", ranks=2, slices=2),
           dict(schedule="single") | {"mesh.tensor": 2},
           dict(schedule="single") | {"mesh.tensor": HEADS, "mesh.sequence": "true"},
           dict(schedule="single") | {"mesh.context": 2})


def distance(ours, theirs):
    """The largest difference of two sets of gradients, relative to the largest of each tensor, or of all where that is
    far larger."""
    worst, least = ("", 0.0), 1e-3 * max(max(map(abs, values)) for _, values in theirs.values())
    for name, (_, values) in theirs.items():
        error = harness.apart(list(ours[name][1]), list(values)) / max(max(map(abs, values)), least)
        worst = max(worst, (name, error), key=lambda each: each[1])
    return worst


class Run:
    def __init__(self, compiler, folder, train, model, columns=COLUMNS[0]):
        self.compiler, self.folder, self.train, self.model = compiler, folder, train, model
        self.sizes = SIZES | dict(model=model, hidden=HEADS * columns)
        path = os.path.join(folder, "data")  # the text of other tests begins with blanks
        with open(path, "wb") as file:
            file.write(random.Random(1).randbytes(4096))
        self.text = "u8:" + path

    def step(self, layout, *more, program=None):
        """The program, which may be there already, and gradients and the loss of its first step."""
        program = program or harness.compile_train(self.compiler, os.path.join(self.folder, self.model),
                                                   self.sizes | layout, self.train)
        grads, log = os.path.join(self.folder, "grads"), os.path.join(self.folder, "log")
        harness.call([program, "--in-process", "--data", self.text, "--steps", "1", "--grads", grads, "--log", log,
                      *more])
        return program, harness.read_safetensors(grads), harness.read_log(log)[0]["loss"]


def judge_layouts(run, tally, *more, program=None, layouts=LAYOUTS):
    """Every layout against the first one, whose gradients and loss it returns. `program`: that of the first one."""
    first = None
    for layout in layouts:
        _, grads, loss = run.step(layout, *more, program=None if first else program)
        first = first or (grads, loss)
        name, error = distance(grads, first[0])
        said = " ".join(f"{key} {value}" for key, value in layout.items())
        tally.check(error <= TOLERANCE and abs(loss - first[1]) <= TOLERANCE * abs(first[1]),
                    f"{run.model:8} {said:36} loss {loss:.6f} gradients {error:.1e} {name}")
    return first


def judge_bits(run, tally, layouts):
    """What a schedule splits or makes again has the bits of one rank, in bf16, too."""
    first = None
    for layout in layouts:
        _, grads, loss = run.step(layout | dict(precision="bf16"))
        first = first or (grads, loss)
        same = loss == first[1] and all(list(values) == list(first[0][name][1]) for name, (_, values) in grads.items())
        tally.check(same, f"{run.model:8} schedule {layout['schedule']:14} bf16: the bits of one rank")


def soft(x):
    """Bounded, and unlike tanh with a slope that does not vanish, which would be all rounding."""
    return x / (1 + torch.abs(x))


class Formulas:
    """Draws formulas: each is a text and what torch makes of the values of its names."""

    def __init__(self, draw, columns):
        self.draw, self.columns = draw, columns

    def leaves(self, number):
        name = lambda letter: f"{letter}{number}"
        # A weight of one element is a number, which `every_head` refuses.
        return [("x", "thd", lambda its: its["x"]), ("p", "thd", lambda its: its["p"]),
                (name("w"), "hd", lambda its: its[name("w")].view(1, HEADS, self.columns)),
                (name("g") if self.columns == 1 else f"every_head({name('g')}, {HEADS})", "d",
                 lambda its: its[name("g")].view(1, 1, self.columns)),
                (f"of_heads({name('s')}, {HEADS})", "h", lambda its: its[name("s")].view(1, HEADS, 1)),
                (name("t"), "", lambda its: its[name("t")].view(1, 1, 1))]

    def unary(self, a):
        f, (text, axes, of) = torch.nn.functional, a
        half = lambda x: 0.5 + x * x
        kinds = {"tanh({})": torch.tanh, "sigmoid({})": torch.sigmoid, "silu({})": f.silu, "erf({})": torch.erf,
                 "softplus({})": lambda x: f.softplus(x, threshold=1e9), "logsigmoid({})": f.logsigmoid,
                 "abs({})": torch.abs, "exp(-abs({}))": lambda x: torch.exp(-torch.abs(x)), "sign({})": torch.sign,
                 "log(0.5 + square({}))": lambda x: torch.log(half(x)), "power({}, 3)": lambda x: x ** 3,
                 "sqrt(0.5 + square({}))": lambda x: half(x).sqrt(), "log1p(square({}))": lambda x: torch.log1p(x * x),
                 "rsqrt(0.5 + square({}))": lambda x: half(x).rsqrt(),
                 "power(0.5 + square({}), -1.5)": lambda x: half(x) ** -1.5,
                 "expm1(tanh({}))": lambda x: torch.expm1(torch.tanh(x)), "relu({})": f.relu, "-{}": torch.neg,
                 "max({}, 0)": f.relu, "clamp({}, -0.5, 0.75)": lambda x: f.hardtanh(x, -0.5, 0.75),
                 "stop({})": lambda x: x.detach()}
        form = self.draw.choice(list(kinds))
        return form.format(text), axes, lambda its: kinds[form](of(its))

    def binary(self, a, b, c, d):
        names = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "max": torch.maximum,
                 "min": torch.minimum, "/": lambda x, y: x / (1.5 + y * y), "where": None}
        kind = self.draw.choice("++--***/") if self.draw.random() < 0.7 else self.draw.choice(["max", "min", "where"])
        if kind == "where":
            axes = set(a[1]) | set(b[1]) | set(c[1]) | set(d[1])
            return (f"where({a[0]} > {b[0]} and not {c[0]} < 0, {c[0]}, {d[0]})", axes,
                    lambda its: torch.where((a[2](its) > b[2](its)) & ~(c[2](its) < 0), c[2](its), d[2](its)))
        text = (f"{kind}({a[0]}, {b[0]})" if kind in ("max", "min") else f"({a[0]} / (1.5 + square({b[0]})))"
                if kind == "/" else f"({a[0]} {kind} {b[0]})")
        return text, set(a[1]) | set(b[1]), lambda its: names[kind](a[2](its), b[2](its))

    def reduced(self, a):
        heads = self.draw.random() < 0.5
        dims, more = ((2,), f", heads = {HEADS}") if heads else ((1, 2), "")
        wide = lambda x: x.expand(x.shape[0], HEADS, self.columns)
        kinds = {"sum": lambda x: x.sum(dims, keepdim=True), "mean": lambda x: x.mean(dims, keepdim=True),
                 "max": lambda x: torch.amax(x, dims, keepdim=True), "min": lambda x: torch.amin(x, dims, keepdim=True),
                 "variance": lambda x: x.var(dims, keepdim=True, correction=0),
                 "logsumexp": lambda x: torch.logsumexp(x, dims, keepdim=True),
                 "softmax": lambda x: (x - torch.logsumexp(x, dims, keepdim=True)).exp()}
        kind = self.draw.choice(list(kinds))
        axes = set("thd") if kind == "softmax" else set("th") if heads else set("t")
        return f"{kind}({a[0]}{more})", axes, lambda its: kinds[kind](wide(a[2](its)))

    def drawn(self, number):
        pool = self.leaves(number)
        for _ in range(self.draw.randint(3, 8)):
            full = [each for each in pool if {"t", "d"} <= set(each[1])]
            kind = self.draw.random()
            if kind < 0.35:
                pool.append(self.unary(self.draw.choice(pool)))
            elif kind < 0.8:
                pool.append(self.binary(*(self.draw.choice(pool) for _ in range(4))))
            else:
                pool.append(self.reduced(self.draw.choice(full)))
        made = pool[-1]
        for each in pool[-3:-1]:
            made = (f"({made[0]} + {each[0]} / (1 + abs({each[0]})))", set(made[1]) | set(each[1]),
                    lambda its, a=made[2], b=each[2]: a(its) + soft(b(its)))
        return f"{made[0]} / (1 + abs({made[0]})) * x", lambda its, of=made[2]: soft(of(its)) * its["x"]


def write_random(folder, formulas):
    """A model with these formulas in every layer, each in front of linears of its own."""
    weights = "".join(f", w{i}[hidden], g{i}[hidden // heads], s{i}[heads], t{i}[1], a{i}[hidden, 4], o{i}[4, hidden]"
                      for i in range(len(formulas)))
    lets = "".join(f"      let y{i} = {text}\n" for i, (text, _) in enumerate(formulas))
    terms = "".join(f" + linear(linear(y{i}, a{i}), o{i})" for i in range(len(formulas)))
    path = os.path.join(folder, "drawn.pipe")
    with open(path, "w") as file:
        file.write("model drawn(layers, hidden, heads, kv_heads, ffn, vocab) {\n"
                   "  part embed(tokens) {\n    weight wte[vocab, hidden]\n    return embedding(tokens, wte)\n  }\n"
                   "  layer {\n    part mix(x) {\n      weight wp[hidden, hidden] init normal(0.3)" + weights + "\n"
                   "      let p = linear(x, wp)\n" + lets + "      return x" + terms + "\n    }\n  }\n"
                   "  part head(x, targets) {\n    weight wout[hidden, vocab] init normal(0.2)\n"
                   "    return cross_entropy(linear(x, wout), targets)\n  }\n}\n")
    return path


def reference(formulas, weights, batches):
    """Loss and gradients of torch."""
    its = {name: torch.tensor(values, dtype=torch.float64).view(shape).requires_grad_()
           for name, (shape, values) in weights.items()}
    # One step reads all rows of the file of batches.
    tokens, targets = (torch.tensor(list(batches[name][1]), dtype=torch.long) for name in ("tokens", "targets"))
    x = next(value for name, value in its.items() if name.endswith("wte"))[tokens]
    for layer in range(SIZES["layers"]):
        own = {name.split(".")[-1]: value for name, value in its.items() if f".{layer}." in name}
        values = own | {"x": x.unflatten(1, (HEADS, -1)), "p": (x @ own["wp"]).unflatten(1, (HEADS, -1))}
        x = x + sum(of(values).flatten(1) @ own[f"a{i}"] @ own[f"o{i}"] for i, (_, of) in enumerate(formulas))
    logits = x @ next(value for name, value in its.items() if name.endswith("wout"))
    loss = torch.nn.functional.cross_entropy(logits, targets)
    loss.backward()
    return loss.item(), {name: (list(value.shape), [0.0] * value.numel() if value.grad is None
                                else value.grad.flatten().tolist()) for name, value in its.items()}


def judge_random(compiler, folder, tally, seed, each):
    draw = random.Random(seed)
    columns = COLUMNS[seed % len(COLUMNS)]
    formulas = [Formulas(draw, columns).drawn(i) for i in range(each)]
    run = Run(compiler, folder, harness.add_models(folder, write_random(folder, formulas)), "drawn", columns)
    program, grads, _ = run.step(LAYOUTS[0])
    base, batches = os.path.join(folder, "base.safetensors"), os.path.join(folder, "batches.safetensors")
    weights = {}
    for name, (shape, values) in grads.items():  # ties, and elements that are 0
        grid = 4 if name.endswith("wte") or len(shape) == 1 else 1 << 40
        weights[name] = (shape, [round(draw.gauss(0, 0.5 if grid == 4 else 0.2) * grid) / grid for _ in values])
    harness.write_safetensors(base, weights)
    harness.call([program, "--in-process", "--data", run.text, "--steps", "1", "--batches", batches])
    loss, wanted = reference(formulas, weights, harness.read_safetensors(batches))
    grads, ours = judge_layouts(run, tally, "--load", base, program=program)
    name, error = distance(grads, wanted)
    tally.check(error <= TOLERANCE and abs(ours - loss) <= TOLERANCE * abs(loss),
                f"drawn    seed {seed}: {each} formulas on heads of {columns} as torch: loss {loss:.6f} gradients "
                f"{error:.1e} {name}")


def main():
    its = harness.draws(groups=1, seed=0, each=10)
    tally = harness.Tally()
    train = harness.add_models(its.folder, MODELS)
    every = its.groups > 1
    for number, model in enumerate(("relu2", "gated", "ngpt")):
        run = Run(its.compiler, its.folder, train, model)
        # Two of three models have each layout; random formulas have all.
        some = [layout for place, layout in enumerate(LAYOUTS) if every or place == 0 or (place + number) % 3]
        judge_layouts(run, tally, layouts=some)
        judge_bits(run, tally, LAYOUTS[:3] if every else [LAYOUTS[0], LAYOUTS[1 + number % 2]])
    for group in range(its.groups if torch else 0):
        judge_random(its.compiler, its.folder, tally, its.seed + group, its.each)
    return tally.close() or (0 if torch else 77)


if __name__ == "__main__":
    sys.exit(main())
