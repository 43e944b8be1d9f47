#!/usr/bin/env python3
"""Judges runs of GRPO and DPO, as docs/post-training.md writes them: 50 steps beside a plain torch loop, in f64."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: post_training.py PP_COMPILE FOLDER [--steps N]
# The loop knows nothing of rows: it computes each document by itself, padded, with attention of its own, and trains
# with torch.optim.AdamW. It has the documents of a step from a second packing of the file. The loss of each step must
# be the program's to 1e-8. Without torch the script ends with 77.
import array, os, random, re, sys
import harness
from losses import pack_groups

try:
    import torch
except ImportError:
    torch = None

SEQUENCE, ROWS, HEADS, VOCAB, LAYERS = 64, 8, 4, 256, 3
OPTIMIZER = dict(lr=1e-3, weight_decay=0.1, clip=1, warmup=0, decay_steps=0, schedule="constant")


def programs():
    """The page's program, and the lines that make DPO of it."""
    with open(os.path.join(harness.ROOT, "docs/post-training.md")) as page:
        page = page.read()
    grpo = re.search(r"```pipe grpo.pipe\n(.*?)```", page, re.S)[1]
    column, result, data, report = re.search(r"## DPO.*?```text\n(.*?)\n```", page, re.S)[1].split("\n")
    dpo = re.sub(r"\n  column .*", "\n" + column, grpo)
    dpo = re.sub(r"\n    report .*", "", dpo)
    dpo = re.sub(r"\n    let lp = .*", "\n    let lp = logprob(z, targets)\n" + report, dpo)
    dpo = re.sub(r"\n    return mean\(grpo.*", "\n" + result.replace("logprob(z, targets)", "lp"), dpo)
    return {"grpo": grpo, "dpo": re.sub(r"\n  data .*", "\n" + data, dpo)}


def draw_documents(draw, prompts, answers):
    """(tokens, length of the prompt), with so many answers to each prompt."""
    out = []
    for _ in range(prompts):
        prompt = [draw.randrange(VOCAB) for _ in range(draw.randint(2, 8))]
        for _ in range(answers):
            out.append((prompt + [draw.randrange(VOCAB) for _ in range(draw.randint(3, 20))], len(prompt)))
    return out


class Llama:
    """As the page's model computes it, of weights by their names; rows [n, s] hold one document each."""

    def __init__(self, weights):
        self.weights = weights

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T

    def norm(self, x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weights[f"{name}.weight"]

    def rope(self, x):
        """Turns pairs (i, i + d / 2) of each head."""
        half, length = x.shape[-1] // 2, x.shape[-2]
        angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0 ** (
            -torch.arange(half, dtype=torch.float64) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def logprobs(self, tokens):
        x = self.weights["model.embed_tokens.weight"][tokens]
        n, s, h = x.shape
        for layer in range(LAYERS):
            at = f"model.layers.{layer}."
            a = self.norm(x, at + "input_layernorm")
            q, k, v = (self.linear(a, f"{at}self_attn.{name}_proj").view(n, s, HEADS, h // HEADS).transpose(1, 2)
                       for name in "qkv")
            scores = self.rope(q) @ self.rope(k).transpose(-1, -2) / (h // HEADS) ** 0.5
            scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -torch.inf)
            x = x + self.linear((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, s, h), at + "self_attn.o_proj")
            a = self.norm(x, at + "post_attention_layernorm")
            gate, up = (self.linear(a, f"{at}mlp.{name}_proj") for name in ("gate", "up"))
            x = x + self.linear(torch.nn.functional.silu(gate) * up, at + "mlp.down_proj")
        z = self.linear(self.norm(x, "model.norm"), "lm_head")
        all_lp = z[:, :-1].log_softmax(-1)
        self.entropy = -(all_lp.exp() * all_lp).sum(-1).detach()
        return all_lp.gather(-1, tokens[:, 1:, None]).squeeze(-1)


def counted(tokens, prompt):
    return [0] * prompt + [1] * (len(tokens) - prompt)


def padded(lists):
    longest = max(map(len, lists))
    return torch.tensor([its + [0] * (longest - len(its)) for its in lists])


def loss_of(kind, model, documents, columns, numbers):
    """Of the documents with these numbers; a prompt's tokens count for nothing. And what the program reports."""
    tokens = padded([documents[i][0] for i in numbers])
    lp = model.logprobs(tokens)
    counts = padded([counted(*documents[i]) for i in numbers])[:, 1:] > 0
    old, adv, ref = (padded([columns[name][i] for i in numbers])[:, 1:] for name in ("old", "adv", "ref"))
    if kind == "dpo":
        sums = torch.where(counts, lp - ref, 0.0).sum(-1)
        apart = sums[0::2] - sums[1::2]
        return -torch.nn.functional.logsigmoid(0.1 * apart).mean(), {"right": (apart > 0).double().mean()}
    ratio, divergence = torch.exp(lp - old), torch.exp(ref - lp) - (ref - lp) - 1
    each = -torch.min(ratio * adv, ratio.clamp(0.8, 1.28) * adv) + 0.04 * divergence
    return each[counts].mean(), {"divergence": divergence[counts].mean(), "entropy": model.entropy[counts].mean(),
                                 "clipped": ((ratio < 0.8) | (ratio > 1.28))[counts].double().mean()}


def rounded(values):
    return list(array.array("f", values))


def write_data(path, documents, columns):
    begins = [0]
    for tokens, _ in documents:
        begins.append(begins[-1] + len(tokens))
    raw = lambda kind, lists: array.array(kind, sum(lists, [])).tobytes()
    count = [begins[-1]]
    tensors = {"tokens": ("I32", count, raw("i", [tokens for tokens, _ in documents])),
               "documents": ("I64", [len(begins)], array.array("q", begins).tobytes()),
               "counted": ("U8", count, raw("B", [counted(*each) for each in documents]))}
    with open(path, "wb") as file:
        file.write(harness.pack_tensors(tensors | {name: ("F32", count, raw("f", values))
                                                   for name, values in columns.items()}))
    return begins


def judge(compiler, folder, tally, kind, text, steps):
    draw = random.Random(kind)
    source, program, base, data, log = (os.path.join(folder, kind + end) for end in (
        ".pipe", "", ".base", ".safetensors", ".log"))
    with open(source, "w") as file:
        file.write(text.replace("\n  optimizer", "\n  precision f64\n  optimizer"))
    defines = {"model.layers": LAYERS} | {f"optimizer.{name}": value for name, value in OPTIMIZER.items()}
    harness.call([compiler, source, *(word for key, value in defines.items() for word in ("-D", f"{key}={value}")),
                  "-o", program])
    grads = os.path.join(folder, "grads")
    harness.call([program, "--in-process", "--data", "random", "--steps", "1", "--grads", grads])
    weights = {name: (shape, [draw.gauss(1, 0.1) if len(shape) == 1 else draw.gauss(0, 0.05) for _ in values])
               for name, (shape, values) in harness.read_safetensors(grads).items()}
    harness.write_safetensors(base, weights)
    its = {name: torch.tensor(values, dtype=torch.float64).view(shape).requires_grad_()
           for name, (shape, values) in weights.items()}
    model, documents = Llama(its), draw_documents(draw, 45, 2 if kind == "dpo" else 1)
    with torch.no_grad():  # of the policy that wrote the answers, and of another one
        first = [[0.0] + model.logprobs(torch.tensor([tokens]))[0].tolist() for tokens, _ in documents]
    columns = {"ref": [rounded(values) for values in first],
               "old": [rounded([value + draw.gauss(0, 0.1) for value in values]) for values in first],
               "adv": [[rounded([draw.gauss(0, 1)])[0]] * len(values) for values in first]}
    begins = write_data(data, documents, {name: columns[name] for name in re.search(
        r"\n  column (.*)", text)[1].replace(" = 0", "").split(", ")})
    harness.call([program, "--in-process", "--data", data, "--load", base, "--steps", str(steps), "--log", log])
    ours = harness.read_log(log)
    epoch = pack_groups(begins, 2 if kind == "dpo" else 1, SEQUENCE, len(begins))
    rows = [epoch[i:i + SEQUENCE] for i in range(0, len(epoch), SEQUENCE)]
    optimizer = torch.optim.AdamW(
        [{"params": [value for value in its.values() if value.dim() > 1], "weight_decay": OPTIMIZER["weight_decay"]},
         {"params": [value for value in its.values() if value.dim() == 1], "weight_decay": 0}],
        lr=OPTIMIZER["lr"], betas=(0.9, 0.95), eps=1e-8)
    theirs = []
    for step in range(steps):
        read = sum((rows[i % len(rows)] for i in range(step * ROWS, (step + 1) * ROWS)), [])
        numbers = [number for i, number in enumerate(read) if number >= 0 and (i == 0 or read[i - 1] != number)]
        optimizer.zero_grad()
        loss, reports = loss_of(kind, model, documents, columns, numbers)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(its.values()), OPTIMIZER["clip"])
        optimizer.step()
        theirs.append({"loss": loss.item()} | {name: value.item() for name, value in reports.items()})
    for name in theirs[0]:
        worst = max(abs(a[name] - b[name]) / max(abs(b[name]), 1e-3) for a, b in zip(ours, theirs, strict=True))
        tally.check(worst < 1e-8, f"{kind}: {steps} steps, {name} {theirs[0][name]:.6f} to {theirs[-1][name]:.6f}, "
                    f"worst {worst:.1e}")


def main():
    its = harness.draws(steps=50)
    if not torch:
        print("no torch: nothing is judged")
        return 77
    tally = harness.Tally()
    for kind, text in programs().items():
        judge(its.compiler, its.folder, tally, kind, text, its.steps)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
