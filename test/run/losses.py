#!/usr/bin/env python3
"""Judges losses that a model's text computes of its tokens: loss and gradients of several layouts against torch."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: losses.py PP_COMPILE FOLDER [--every 1] [--random 3] [--seed 1]
# Each loss is that of a small model, which is trained for a step in f64. Loss and gradients must be those of torch to
# 1e-11 of the largest gradient of a tensor, with documents and without, under schedules that split, recompute and
# interleave, and on two devices. Where the vocabulary is cut, in two and three shards and unevenly, they are also those
# of whole logits to 1e-12; every other loss in one such cut, with `--every 1` each loss in all of them, and over
# `context`. `--random`: so many losses are drawn, of all that tokens have. Without torch layouts are compared with one
# rank alone, and the script ends with 77.
import array, math, os, random, sys
import harness
from formulas import LAYOUTS, SIZES, TOLERANCE, distance

try:
    import torch
    cross_entropy = torch.nn.functional.cross_entropy
except ImportError:
    torch = None

VOCAB = SIZES["vocab"]
MODEL = """model {name}(layers, hidden, heads, kv_heads, ffn, vocab) {{
  column old = -5, ref = -5, adv = 1, w = 1, ids[4] int = 0, lq[4] = -2
  part embed(tokens) {{
    weight wte[vocab, hidden] init normal(0.5)
    return embedding(tokens, wte)
  }}
  layer {{
    part mlp(x) {{
      weight wi[hidden, ffn] init normal(0.3), wo[ffn, hidden] init normal(0.3)
      return x + linear(silu(linear(x, wi)), wo)
    }}
  }}
  part head(x, targets) {{
    weight wout[hidden, vocab] init normal(0.4)
    let z = linear(x, wout)
    {text}
  }}
}}
"""


class Tokens:
    """What torch makes of the logits: of tokens that have a target. `segments` numbers their documents."""

    def __init__(self, z, targets, weights, segments, columns):
        has = targets >= 0
        self.z, self.targets, self.weights = z[has], targets[has], weights[has]
        self.segments = torch.unique(segments[has], return_inverse=True)[1]
        self.columns = {name: values[has] for name, values in columns.items()}

    def __getattr__(self, name):
        return self.columns[name]

    def of(self, z):
        its = Tokens.__new__(Tokens)
        its.__dict__ = self.__dict__ | {"z": z}
        return its

    def capped(self, cap):
        return self.of(cap * torch.tanh(self.z / cap))

    def lp(self, ids=None):
        ids = self.targets[:, None] if ids is None else ids
        return self.z.log_softmax(-1).gather(-1, ids).squeeze(-1)

    def sums(self, values):
        """One for each document."""
        return torch.zeros(int(self.segments.max()) + 1, dtype=torch.float64).index_add(0, self.segments, values)

    def of_groups(self, values):
        """Their sums, one for each group."""
        each = torch.unique(self.group, return_inverse=True)[1]
        return torch.zeros(int(each.max()) + 1, dtype=torch.float64).index_add(0, each, values)

    def means(self, values):
        return self.sums(values) / self.sums(torch.ones_like(values))

    def lse(self):
        return self.z.logsumexp(-1)

    def entropy(self):
        return -(self.z.softmax(-1) * self.z.log_softmax(-1)).sum(-1)

    def mean(self, values):
        """Of values of tokens by their weights; what is one number is the loss itself."""
        return values if values.dim() == 0 else (self.weights * values).sum() / self.weights.sum()


def clipped(ratio, advantage):
    return torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)


def grpo(its):
    ratio, ahead = torch.exp(its.lp() - its.old), its.ref - its.lp()
    return 0.05 * (torch.exp(ahead) - ahead - 1) - clipped(ratio, its.adv)


def gspo(its):
    return -clipped(torch.exp(its.means(its.lp() - its.old)), its.means(its.adv)).mean()


def distilled(its):
    l, q = its.lp(its.ids), its.lq.exp()
    rest = torch.clamp(1 - q.sum(-1), min=1e-6)
    return (q * (its.lq - l)).sum(-1) + rest * (rest.log() - torch.clamp(1 - l.exp().sum(-1), min=1e-6).log())


# name, text behind `let z = ..`, what torch computes
CASES = (
    ("plain", "return mean(-logprob(z, targets))", lambda its: cross_entropy(its.z, its.targets, reduction="none")),
    ("smooth", "return mean(smoothed(z, targets, 0.1))",
     lambda its: cross_entropy(its.z, its.targets, reduction="none", label_smoothing=0.1)),
    ("zloss", "return mean(0.01 * z_loss(z) - logprob(z, targets))",
     lambda its: -its.lp() + 0.01 * its.lse() ** 2),
    ("bonus", "return mean(-logprob(z, targets)) - 0.3 * mean(entropy(z))",
     lambda its: -its.lp() - 0.3 * its.entropy()),
    ("easy", "return mean(focal(logprob(z, targets), 2))",
     lambda its: -(1 - its.lp().exp()) ** 2 * its.lp()),
    ("capped", "let lp = logprob(z, targets, softcap = 3)\n"
               "    return mean(where(lp < -5, -5 * lp, square(lp)) + 0.1 * entropy(z, softcap = 3))",
     lambda its: (lambda own: torch.where(own.lp() < -5, -5 * own.lp(), own.lp() ** 2) + 0.1 * own.entropy())(
         its.capped(3.0))),
    ("mixed", "let a = 0.5 * cross_entropy(z, targets)\n    let b = mean(-logsigmoid(logprob(z, targets) + 2)) / 4\n"
              "    return a + b", lambda its: -0.5 * its.lp() - torch.nn.functional.logsigmoid(its.lp() + 2) / 4),
    ("softened", "let h = 0.7 * z\n    return mean(max(-logprob(h, targets), 4) - mean(h) * 0.1 + 0.01 * logsumexp(h))",
     lambda its: (lambda own: torch.clamp(-own.lp(), min=4) - 0.1 * own.z.mean(-1) + 0.01 * own.lse())(
         its.of(0.7 * its.z))),
    ("policy", "let lp = logprob(z, targets)\n    report apart = mean(kl(lp, ref))\n"
               "    report cut = mean(where(abs(exp(lp - old) - 1.04) > 0.24, 1, 0))\n"
               "    report spread = 2 * mean(entropy(z)) - mean(square(lp)) / 4\n"
               "    return mean(0.05 * kl(lp, ref) + grpo(lp, old, adv, 0.2, 0.28))", grpo),
    ("distil", "return mean(distilled(z, ids, lq))", distilled),
    ("weighted", "return mean(-logprob(z, targets), weight = w) - 0.1 * total(entropy(z)) / 32",
     lambda its: -((its.weights * its.w * its.lp()).sum() / (its.weights * its.w).sum()) -
     0.1 * (its.weights * its.entropy()).sum() / 32),
    ("both", "let lp = logprob(z, targets)\n"
             "    let a = mean(-lp, weight = w)\n    report weighed = a\n"
             "    report twice = a - 3 * mean(lp, weight = w)\n"
             "    report summed = total(lp) / 5\n"
             "    return a + 0.3 * cross_entropy(z, targets) + 0.1 * mean(entropy(z))",
     lambda its: -((its.weights * its.w * its.lp()).sum() / (its.weights * its.w).sum()) +
     its.mean(-0.3 * its.lp() + 0.1 * its.entropy())))
OVER_DOCUMENTS = (
    ("ratios", "return mean(gspo(logprob(z, targets), old, adv, 0.2, 0.28))", gspo),
    ("sums", "let lp = logprob(z, targets)\n    report each = mean(square(sum(lp, over = document)))\n"
             "    return mean(square(sum(lp, over = document)) * 0.01 - lp)",
     lambda its: 0.01 * its.sums(its.lp())[its.segments] ** 2 - its.lp()),
    ("each", "report plain = mean(logprob(z, targets))\n    return mean(mean(-logprob(z, targets), over = document))",
     lambda its: its.means(-its.lp()).mean()))

# What the models of these names report, by torch; one number is the value itself.
REPORTS = {
    "policy": {"apart": lambda its: torch.exp(its.ref - its.lp()) - (its.ref - its.lp()) - 1,
               "cut": lambda its: (abs(torch.exp(its.lp() - its.old) - 1.04) > 0.24).double(),
               "spread": lambda its: 2 * its.entropy() - its.lp() ** 2 / 4},
    "both": {"weighed": lambda its: -(its.weights * its.w * its.lp()).sum() / (its.weights * its.w).sum(),
             "twice": lambda its: -4 * (its.weights * its.w * its.lp()).sum() / (its.weights * its.w).sum(),
             "summed": lambda its: (its.weights * its.lp()).sum() / 5},
    "sums": {"each": lambda its: (its.sums(its.lp()) ** 2).mean()},
    "each": {"plain": lambda its: its.lp()}}

# Layouts in which a rank or a device has columns of the logits: 257 of them are cut in 128 and 129, in 85, 86 and 86,
# or in 129 and 128 with one of padding; 264 in 132 and 132, each of them in two.
ODD = {"vocab": 257}
CUT = (dict(schedule="1f1b_vocabulary", ranks=2), dict(schedule="1f1b_vocabulary", ranks=3),
       dict(schedule="zb_h1", ranks=2) | {"mesh.tensor": 2})
TWICE = dict(schedule="1f1b_vocabulary", ranks=2) | {"mesh.tensor": 2}
CONTEXT = (dict(schedule="1f1b", ranks=2) | {"mesh.context": 2}, dict(schedule="single") | {"mesh.context": 4},
           dict(schedule="zb_h1", ranks=2) | {"mesh.context": 2, "mesh.tensor": 2},
           dict(schedule="1f1b_vocabulary", ranks=2) | {"mesh.context": 2})
CUT_TOLERANCE = 1e-12

PAIR = {"data.documents": "true", "data.group": 2, "sequence": 16}
OVER_GROUPS = (
    ("pairs", PAIR, "return mean(dpo(logprob(z, targets), ref, member, 0.4))",
     lambda its: -torch.nn.functional.logsigmoid(
         0.4 * its.of_groups((1 - 2 * its.member) * (its.lp() - its.ref))).mean()),
    ("chosen", PAIR, "let lp = logprob(z, targets)\n    let d = preferred(lp - ref, member)\n"
                     "    return mean(square(d)) * 0.01 - 0.2 * total(where(member == 0, lp, 0)) / 7",
     lambda its: 0.01 * (its.of_groups((1 - 2 * its.member) * (its.lp() - its.ref)) ** 2).mean() -
     0.2 * (its.weights * its.lp())[its.member == 0].sum() / 7),
    ("threes", PAIR | {"data.group": 3, "sequence": 24},
     "let lp = logprob(z, targets)\n"
     "    return mean(mean(lp * (1 + member), over = group) * sum(lp, over = group) * 0.01)",
     lambda its: (0.01 * its.of_groups(its.lp() * (1 + its.member)) / its.of_groups(torch.ones_like(its.member)) *
                  its.of_groups(its.lp())).mean()))

# Its mean has a column as the divisor, and no other; what they report is a total, and a mean that has it, too.
SHARES = MODEL.format(name="shares", text="return mean(-logprob(z, targets), weight = w)")
TOTALS = MODEL.format(name="totals", text="let lp = logprob(z, targets)\n    report summed = total(lp) / 5\n"
                                          "    report weighed = mean(lp, weight = w)\n    return mean(-lp)")


class Drawn:
    """A random loss: its text is that of the model, and of Python, which computes it with torch."""

    def __init__(self, draw, number):
        self.name, self.draw = f"drawn{number}", draw
        self.cap = draw.choice([0, 0, 3])
        self.value = f"(0.1 * lp + {self.formula(3)})"
        self.bonus = draw.choice(["", " - 0.2 * mean(en)", " + 0.1 * mean(abs(mz) * w, weight = w)"])
        over = draw.choice([None, None, "sum(v, over = document) * 0.1", "mean(v, over = document)"])
        self.over = over
        cap = f", softcap = {self.cap}" if self.cap else ""
        capped = f"softcap = {self.cap}" if self.cap else ""
        of = lambda name: f"{name}(z{', ' + capped if capped else ''})"
        lets = dict(lp=f"logprob(z, targets{cap})", en=of("entropy"), ls=of("logsumexp"), mz=of("mean"),
                    near=f"sum(exp(lq) * logprob(z, ids{cap}))", v=self.value)
        self.text = "\n    ".join([f"let {name} = {value}" for name, value in lets.items()] +
                                  ["report own = mean(v)", f"return mean({over or 'v'}){self.bonus}"])

    def formula(self, depth):
        draw = self.draw
        if depth == 0 or draw.random() < 0.15:
            return draw.choice(["lp", "lp", "en", "ls", "mz", "near", "old", "adv", f"(lp + {draw.uniform(0, 2):.2f})"])
        kind, below = draw.randrange(4), lambda: self.formula(depth - 1)
        if kind == 0:
            return f"{draw.choice(['tanh', 'sigmoid', 'square', 'abs', 'expm1'])}(0.3 * {below()})"
        if kind == 1:
            return f"{draw.choice(['min', 'max'])}({below()}, {below()})"
        if kind == 2:
            return f"where({below()} < {below()}, {below()}, {below()})"
        return f"({below()} {draw.choice('+-*')} 0.2 * {below()})"

    def values(self, its):
        its = its.capped(self.cap) if self.cap else its
        lp = its.lp()
        row = lambda x: x if torch.is_tensor(x) else torch.full_like(lp, x)
        names = {name: getattr(torch, name) for name in ("tanh", "sigmoid", "square", "abs", "expm1")}
        names = {name: (lambda f: lambda x: f(row(x)))(f) for name, f in names.items()}
        names |= dict(min=lambda x, y: torch.minimum(row(x), row(y)), max=lambda x, y: torch.maximum(row(x), row(y)),
                      where=lambda c, x, y: torch.where(row(c).bool(), row(x), row(y)),
                      lp=lp, en=its.entropy(), ls=its.lse(), mz=its.z.mean(-1))
        if {"ids", "lq"} <= set(its.columns):
            names["near"] = (its.lq.exp() * its.lp(its.ids)).sum(-1)
        return row(eval(self.value, names | its.columns))

    def of(self, its):
        v = self.values(its)
        made = its.capped(self.cap) if self.cap else its
        loss = (its.mean(v) if not self.over else 0.1 * its.sums(v).mean() if "sum(" in self.over else
                its.means(v).mean())
        if "en)" in self.bonus:
            loss = loss - 0.2 * its.mean(made.entropy())
        if "mz" in self.bonus:
            share = its.weights * its.w
            loss = loss + 0.1 * (share * made.z.mean(-1).abs() * its.w).sum() / share.sum()
        return loss


def write_models(folder, drawn=()):
    path = os.path.join(folder, "losses.pipe")
    with open(path, "w") as file:
        file.write('import "std/losses.pipe"\n')
        file.writelines(MODEL.format(name=name, text=text) for name, text, _ in CASES + OVER_DOCUMENTS)
        file.writelines(MODEL.format(name=name, text=text) for name, _, text, _ in OVER_GROUPS)
        file.writelines(MODEL.format(name=its.name, text=its.text) for its in drawn)
        file.write(SHARES + TOTALS)
    return harness.add_models(folder, path)


def write_data(folder, most=11, count=None):
    """A text, and documents of 1 to `most` tokens, of which some count as no target and others by a weight. `count`: a
    multiple of the number of documents."""
    draw, text = random.Random(1), os.path.join(folder, "text")
    tokens = draw.randbytes(600)
    with open(text, "wb") as file:
        file.write(tokens)
    begins = [0]
    while begins[-1] < len(tokens):
        begins.append(min(begins[-1] + draw.randint(1, most), len(tokens)))
    while count and (len(begins) - 1) % count:
        begins.append(len(tokens))  # documents without tokens
    counted = [draw.choice([0, 0.25, 1, 2]) for _ in tokens]
    documents = os.path.join(folder, "documents")
    pack = lambda kind, values: array.array(kind, values).tobytes()
    number = lambda: [draw.gauss(0, 1) for _ in tokens]
    tokens_of = [draw.sample(range(VOCAB), 4) for _ in tokens]
    shares = [[-draw.uniform(1.5, 4) for _ in range(4)] for _ in tokens]
    columns = {"old": [x / 2 - 6 for x in number()], "ref": [x / 2 - 6 for x in number()], "adv": number(),
               "w": [x * x for x in number()], "lq": sum(shares, [])}
    tensors = {"tokens": ("I32", [len(tokens)], pack("i", list(tokens))),
               "documents": ("I64", [len(begins)], pack("q", begins)),
               "counted": ("F32", [len(tokens)], pack("f", counted))}
    further = {name: ("F32", [len(tokens)] + [4] * (name == "lq"), pack("f", values))
               for name, values in columns.items()} | {"ids": ("I32", [len(tokens), 4], pack("i", sum(tokens_of, [])))}
    with open(documents + ".safetensors", "wb") as file:
        file.write(harness.pack_tensors(tensors))
    with open(documents + ".columns.safetensors", "wb") as file:
        file.write(harness.pack_tensors(tensors | further))
    return "u8:" + text, documents


def pack_groups(begins, group, sequence, rows):
    """The document of each place of the first rows, and -1 where there is none: groups side by side, never cut."""
    out, row = [], []
    for first in range(0, len(begins) - 1, group):
        if len(row) + begins[first + group] - begins[first] > sequence:
            out.append(row + [-1] * (sequence - len(row)))
            row = []
        for document in range(first, first + group):
            row = row + [document] * (begins[document + 1] - begins[document])
    out.append(row + [-1] * (sequence - len(row)))
    return sum(out[:rows], [])


class Run:
    def __init__(self, its, train):
        self.compiler, self.folder, self.train = its.compiler, its.folder, train

    def compile(self, model, layout):
        return harness.compile_train(self.compiler, os.path.join(self.folder, model), SIZES | layout | {"model": model},
                                     self.train)

    def step(self, program, data, *more):
        grads, log, batches = (os.path.join(self.folder, name) for name in ("grads", "log", "batches"))
        common = [program, "--in-process", "--data", data, "--steps", "1", *more]
        harness.call([*common, "--grads", grads, "--log", log])
        self.logged = harness.read_log(log)[0]
        return harness.read_safetensors(grads), self.logged["loss"]

    def batches(self, program, data):
        path = os.path.join(self.folder, "batches")
        harness.call([program, "--in-process", "--data", data, "--steps", "1", "--batches", path])
        return harness.read_safetensors(path)


def reference(weights, batches, of, documents=None, group=1, reports={}):
    """Loss, gradients and reports of torch. `documents`: of each place, if groups of these are read."""
    its = {name: torch.tensor(values, dtype=torch.float64).view(shape).requires_grad_()
           for name, (shape, values) in weights.items()}
    own = lambda end: next(value for name, value in its.items() if name.endswith(end))
    tokens, targets = (torch.tensor(list(batches[name][1]), dtype=torch.long) for name in ("tokens", "targets"))
    counts = list(batches["weights"][1]) if "weights" in batches else [1.0] * len(targets)
    starts = torch.tensor(list(batches["starts"][1])) + torch.arange(len(targets)) // SIZES["sequence"] * 1000
    columns = {name.split(".")[1]: torch.tensor(list(values), dtype=torch.long if name.endswith("ids")
                                                else torch.float64).view(len(targets), *shape[2:])
               for name, (shape, values) in batches.items() if name.startswith("column.")}
    if documents:
        its_documents = torch.tensor(documents)
        columns |= {"group": its_documents // group, "member": (its_documents % group).double()}
    x = own("wte")[tokens]
    for layer in range(SIZES["layers"]):
        x = x + torch.nn.functional.silu(x @ own(f".{layer}.wi")) @ own(f".{layer}.wo")
    tokens = Tokens(x @ own("wout"), targets, torch.tensor(counts, dtype=torch.float64), starts, columns)
    loss = tokens.mean(of(tokens))
    loss.backward()
    told = {name: tokens.mean(value(tokens)).item() for name, value in reports.items()}
    return {name: (list(value.shape), value.grad.flatten().tolist()) for name, value in its.items()}, loss.item(), told


def judge(run, tally, name, of, data, more, layouts, documents=None, whole=None):
    """`whole`: how far gradients and loss may be from those of the first layout."""
    first = own = None
    for layout in layouts:
        program = run.compile(name, layout | more)
        if not first:
            draw = random.Random(name)
            weights = {key: (shape, [draw.gauss(0, 0.3) for _ in values])
                       for key, (shape, values) in run.step(program, data)[0].items()}
            base = os.path.join(run.folder, "base")
            harness.write_safetensors(base, weights)
        grads, loss = run.step(program, data, "--load", base)
        if not first:
            batches, group = run.batches(program, data), more.get("data.group", 1)
            reports = REPORTS.get(name, {})
            first = (reference(weights, batches, of, documents, group, reports) if torch else
                     (grads, loss, {report: run.logged[report] for report in reports}))
        where, error = distance(grads, first[0])
        said = " ".join(f"{key} {value}" for key, value in (layout | more).items())
        own = own or (grads, loss)
        if whole and (distance(grads, own[0])[1] > whole or abs(loss - own[1]) > whole * abs(own[1])):
            tally.check(False, f"{name:9} {layout}: from whole logits {distance(grads, own[0])}, {loss - own[1]:.1e}")
        far = max((abs(run.logged[report] - value) / max(abs(value), 1e-3) for report, value in first[2].items()),
                  default=0)
        tally.check(error <= TOLERANCE and abs(loss - first[1]) <= TOLERANCE * abs(first[1]) and far <= TOLERANCE,
                    f"{name:9} {said:60} loss {loss:.6f} gradients {error:.1e} {where}" +
                    (f" reports {far:.1e}" if first[2] else ""))


def judge_cuts(run, tally, text, data, drawn, every):
    """Shards of the vocabulary, and of sequences: every other loss in one layout of each, or every loss in all."""
    documents = {"data.documents": "true"}
    has_columns = ("policy", "distil", "weighted", "both", "ratios")
    cases = [(name, of, data + (".columns" if name in has_columns else "") + ".safetensors" if more else text, more,
              None)
             for more, its in (({}, CASES), (documents, OVER_DOCUMENTS)) for name, _, of in its]
    cases = [(name, of, data + ".columns.safetensors", documents, None) if name in has_columns else
             (name, of, path, more, groups) for name, of, path, more, groups in cases]
    for name, more, _, of in OVER_GROUPS:
        group, sequence, rows = more["data.group"], more["sequence"], SIZES["microbatches"] * SIZES["microbatch"]
        folder = os.path.join(run.folder, name + ".data")
        os.makedirs(folder, exist_ok=True)
        path = write_data(folder, most=sequence // group, count=group)[1] + ".columns.safetensors"
        begins = list(harness.read_safetensors(path)["documents"][1])
        cases.append((name, of, path, more, pack_groups(begins, group, sequence, rows)))
    cases += [(its.name, its.of, data + ".columns.safetensors", documents, None) for its in drawn]
    for number, (name, of, path, more, groups) in enumerate(cases if every else cases[::2]):
        cuts, contexts = (CUT, CONTEXT) if every else ((CUT[number % 3],), (CONTEXT[number % 4],) if more else ())
        vocab = {"vocab": 258} if name == "softened" else ODD  # a formula of logits has no padding
        judge(run, tally, name, of, path, more | vocab, (LAYOUTS[0], *cuts), groups, CUT_TOLERANCE)
        if every or number % 4 == 0:
            judge(run, tally, name, of, path, more | {"vocab": 264}, (LAYOUTS[0], TWICE), groups, CUT_TOLERANCE)
        if contexts:
            judge(run, tally, name, of, path, more, (LAYOUTS[0], *contexts), groups, CUT_TOLERANCE)


def judge_groups(run, tally, folder):
    """Means and sums over groups of documents, and the rows that they lie in."""
    for number, (name, more, _, of) in enumerate(OVER_GROUPS):
        group, sequence, rows = more["data.group"], more["sequence"], SIZES["microbatches"] * SIZES["microbatch"]
        _, data = write_data(folder, most=sequence // group, count=group)
        data += ".columns.safetensors"
        begins = list(harness.read_safetensors(data)["documents"][1])
        documents = pack_groups(begins, group, sequence, rows)
        judge(run, tally, name, of, data, more, (LAYOUTS[0], LAYOUTS[1 + number], LAYOUTS[5 + number % 2]), documents)
        program = run.compile(name, LAYOUTS[0] | more)
        batches = run.batches(program, data)
        row = lambda name, i: list(batches[name][1])[i * sequence:(i + 1) * sequence]
        right = True
        for i in range(rows):
            its = documents[i * sequence:(i + 1) * sequence]
            starts, members, groups = row("starts", i), row("column.member", i), row("column.group", i)
            for at, document in enumerate(its):
                if document >= 0:
                    right &= (starts[at] == its.index(document) and members[at] == document % group and
                              groups[at] == [each // group for each in its].index(document // group))
        tally.check(right, f"{name:9} rows of groups of {group}")
        log, saved = os.path.join(folder, "log"), os.path.join(folder, "saved")
        common = ["--in-process", "--data", data, "--shuffle", "--log", log]
        harness.call([program, *common, "--steps", "9"])
        whole = [line["loss"] for line in harness.read_log(log)]
        harness.call([program, *common, "--steps", "9", "--stop-at", "5", "--save", saved])
        harness.call([program, "--in-process", "--data", data, "--resume", saved, "--log", log])
        rest = [line["loss"] for line in harness.read_log(log)][-4:]
        tally.check(rest == whole[5:], f"{name:9} --shuffle, stopped and resumed: {rest[-1]:.6f}")


def judge_column_of_logprobs(run, tally):
    """The dataset with the log-probabilities of its own tokens: the loss of pairs is log 2 with them."""
    _, data = write_data(run.folder, most=8, count=2)
    data, log, rows, ready = (data + ".safetensors", *(os.path.join(run.folder, name) for name in
                                                       ("log", "rows", "ready.safetensors")))
    program, common = run.compile("pairs", LAYOUTS[3] | PAIR), ["--in-process", "--steps", "1", "--lr", "0"]
    harness.call([program, *common, "--data", data, "--logprobs", rows])
    harness.call([program, *common, "--data", data, "--shuffle", "--logprobs", ready, "--logprobs-column", "ref"])
    harness.call([program, *common, "--data", ready, "--log", log])
    given, got, rows = (harness.read_safetensors(path) for path in (data, ready, rows))
    begins = list(given["documents"][1])
    documents = pack_groups(begins, 2, 16, rows["tokens"][0][0])
    expected, token = [0.0] * len(given["tokens"][1]), 0  # documents stand in the rows in their order
    for place, document in enumerate(documents):
        if document >= 0:
            if token + 1 < begins[document + 1]:
                expected[token + 1] = rows["logprobs"][1][place]
            token += 1
    tally.check(list(got["ref"][1]) == expected and any(expected) and
                all(list(values) == list(got[name][1]) for name, (_, values) in given.items()),
                "pairs     --logprobs-column writes each token's own")
    loss = harness.read_log(log)[0]["loss"]
    tally.check(abs(loss - math.log(2)) < 1e-6, f"pairs     beside its own log-probabilities: {loss:.7f}")


def judge_evaluations(run, tally):
    """Loss and reports over a file are the same in many steps and in one, whatever their divisors are; and in one step
    they are what a step that trains logs, which torch has judged."""
    _, data = write_data(run.folder, most=8, count=2)
    log = os.path.join(run.folder, "log")
    for name in ("plain", "each", "shares", "ratios", "pairs", "policy", "sums", "totals"):
        logs, file = [], data + (".safetensors" if name in ("plain", "each", "sums") else ".columns.safetensors")
        for microbatches in (3, 64):
            program = run.compile(name, LAYOUTS[2] | PAIR | {"microbatches": microbatches})
            harness.call([program, "--in-process", "--data", file, "--epochs", "1", "--lr", "0", "--eval", file,
                          "--log", log])
            logs.append(harness.read_log(log)[-1])
        for value in ("loss", *REPORTS.get(name, ("summed", "weighed") * (name == "totals"))):
            found = [its["eval_" + value] for its in logs] + [logs[-1][value]]
            apart = max(found) - min(found)
            tally.check(apart <= 1e-12 * abs(found[0]), f"{name:9} {value:6} of --eval in steps of 3 and 64 rows, "
                        f"and of a step of all: {found[0]:.6f}, apart {apart:.1e}")


def judge_refused_groups(run, tally, folder):
    program = run.compile("pairs", LAYOUTS[0] | PAIR)
    text, odd = write_data(folder, most=8, count=2)
    tensors = harness.read_safetensors(odd + ".columns.safetensors")
    def written(begins):
        path = os.path.join(folder, "refused.safetensors")
        kinds = {"tokens": ("I32", "i"), "documents": ("I64", "q"), "ids": ("I32", "i")}
        with open(path, "wb") as file:
            file.write(harness.pack_tensors({
                name: (kind, shape if name != "documents" else [len(begins)], array.array(letter, values).tobytes())
                for name, (shape, values) in (tensors | {"documents": ([len(begins)], begins)}).items()
                for kind, letter in [kinds.get(name, ("F32", "f"))]}))
        return path
    begins = list(tensors["documents"][1])
    for data, more, said in (
            (begins[:1] + begins[2:], [], f"has {len(begins) - 2} documents; the program reads groups of 2"),
            ([0, 9, 17] + [begins[-1]] * 2, [], "documents 0 to 1 of `"),
            ([0, 9, 17] + [begins[-1]] * 2, [], "` are a group of 17 tokens; a row of this program has 16, and groups "
             "are not cut: compile it with a larger `data.sequence`"),
            (odd + ".columns.safetensors", ["--pack", "split"],
             "`--pack split`: this program reads groups of 2 documents, which are not cut"),
            (text, [], "has no documents; this program reads groups of 2")):
        data = data if isinstance(data, str) else written(data)
        done = harness.call([program, "--in-process", "--data", data, "--steps", "1", *more], expect=None)
        tally.check(done.returncode == 1 and said in done.stderr, f"pairs     refused: {said[:60]}")


def judge_logprobs(run, tally, text):
    """--logprobs writes those of the loss, and nothing where the model computes none of its targets."""
    path, log = os.path.join(run.folder, "logprobs"), os.path.join(run.folder, "log")
    common = ["--in-process", "--data", text, "--steps", "1", "--lr", "0", "--logprobs", path, "--log", log]
    harness.call([run.compile("plain", LAYOUTS[0]), *common])
    count = SIZES["microbatches"] * SIZES["microbatch"] * SIZES["sequence"]
    mean, loss = (sum(list(harness.read_safetensors(path)["logprobs"][1])[:count]) / count,
                  harness.read_log(log)[0]["loss"])
    tally.check(abs(mean + loss) <= 1e-6 * loss, f"plain     --logprobs of the first step: {mean:.6f}, loss {loss:.6f}")
    plain = [run.compile("plain", LAYOUTS[0]), "--in-process", "--data", text, "--steps", "1", "--logprobs-column"]
    for more, said in ((["ref", "--logprobs", path], "is no .safetensors file"), (["ref"], "needs `--logprobs FILE`"),
                       (["documents", "--logprobs", path], "expects the name of a column, got `documents`")):
        done = harness.call([*plain, *more], expect=None)
        tally.check(done.returncode == 1 and said in done.stderr, f"plain     --logprobs-column: {said}")
    for value in ("1.5", str(VOCAB), "-1"):
        done = harness.call([run.compile("distil", LAYOUTS[0]), *common, "--columns", f"ids={value}"], expect=None)
        tally.check(done.returncode == 1 and f"`--columns ids={value}`: the column has tokens of the vocabulary, 0 to "
                    f"{VOCAB - 1}" in done.stderr, f"distil    --columns ids={value} is refused")
    done = harness.call([run.compile("distil", LAYOUTS[0]), *common], expect=None)
    tally.check(done.returncode == 1 and "the model computes no log-probabilities of its targets" in done.stderr,
                "distil    --logprobs is refused")


def main():
    its = harness.draws(every=0, random=3, seed=1)
    draw = random.Random(its.seed)
    drawn = [Drawn(draw, number) for number in range(its.random)]
    tally, run = harness.Tally(), Run(its, write_models(its.folder, drawn))
    REPORTS.update({each.name: {"own": each.values} for each in drawn})
    text, documents = write_data(its.folder)
    for number, (name, _, of) in enumerate(CASES):
        # Each loss under two of the layouts beside one rank, and one of them with documents.
        others = (LAYOUTS[1 + number % 7], LAYOUTS[1 + (number + 3) % 7])
        judge(run, tally, name, of, text, {}, (LAYOUTS[0], others[0]))
        has_columns = name in ("policy", "distil", "weighted", "both")
        data = documents + (".columns.safetensors" if has_columns else ".safetensors")
        judge(run, tally, name, of, data, {"data.documents": "true"}, (LAYOUTS[0], others[1]))
    judge_logprobs(run, tally, text)
    for number, (name, _, of) in enumerate(OVER_DOCUMENTS):
        layouts = (LAYOUTS[0], LAYOUTS[1 + number], LAYOUTS[5 + number % 2])
        data = documents + (".columns.safetensors" if name == "ratios" else ".safetensors")
        judge(run, tally, name, of, data, {"data.documents": "true"}, layouts)
    judge_cuts(run, tally, text, documents, drawn, its.every)
    judge_groups(run, tally, its.folder)
    judge_column_of_logprobs(run, tally)
    judge_evaluations(run, tally)
    judge_refused_groups(run, tally, its.folder)
    return tally.close() or (0 if torch else 77)


if __name__ == "__main__":
    sys.exit(main())
