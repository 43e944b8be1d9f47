#!/usr/bin/env python3
"""Judges `products fp8_row` and `fp8_tile`: loss and gradients against torch, which rounds by a type of its own."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: fp8.py PP_COMPILE FOLDER
# A small model with two linears in each layer is trained for a step in f64 with products of 8 bits. Torch computes the
# same: it rounds with torch.float8_e4m3fn, in blocks with the scales of docs/fp8.md. Loss and gradients must be
# torch's to 1e-12 of the largest gradient of a tensor, under schedules that split, recompute, interleave and cut
# sequences, and on meshes that do not cut rows. Without torch layouts are compared with one rank alone, and the script
# ends with 77.
import math, os, random, sys
import harness
from formulas import distance

try:
    import torch
except ImportError:
    torch = None

TOLERANCE = 1e-12
SIZES = dict(microbatches=4, microbatch=1, sequence=8, layers=4, hidden=140, ffn=150, vocab=50, precision="f64",
             heads=1, kv_heads=1)
MODEL = """model plain(layers, hidden, heads, kv_heads, ffn, vocab) {
  part embed(tokens) {
    weight wte[vocab, hidden] init normal(0.5)
    return embedding(tokens, wte)
  }
  layer {
    part mlp(x) {
      weight wi[hidden, ffn] init normal(0.3), b[ffn] init zero, wo[hidden, ffn] init normal(0.3)
      return x + linear(silu(linear(x, wi, b)), transpose(wo))
    }
  }
  part head(x, targets) {
    weight wout[hidden, vocab] init normal(0.4)
    return cross_entropy(linear(x, wout), targets)
  }
}
"""
LAYOUTS = (dict(schedule="single"), dict(schedule="zb_h1", ranks=2), dict(schedule="1f1b_recompute", ranks=2),
           dict(schedule="interleaved", ranks=2), dict(schedule="slimpipe", ranks=2, slices=2),
           dict(schedule="fsdp", ranks=2), dict(schedule="single") | {"mesh.context": 2},
           dict(schedule="1f1b", ranks=2) | {"mesh.data": 2, "mesh.zero": 1})


def rounded(x, rows, columns):
    """Each block of x [R, C] to 8 bits by a power of two and back; 0: all."""
    out, high, wide = torch.empty_like(x), rows or x.shape[0], columns or x.shape[1]
    for i in range(0, x.shape[0], high):
        for j in range(0, x.shape[1], wide):
            block = x[i:i + high, j:j + wide]
            scale = 2.0 ** torch.floor(torch.log2(448 / block.abs().max()))
            # From f64 torch rounds twice, by way of f32: no number of these tests is that near to the middle.
            out[i:i + high, j:j + wide] = (block * scale).to(torch.float8_e4m3fn).double() / scale
    return out


def product_of(recipe):
    across, single = (0, 1) if recipe == "fp8_row" else (128, 128)

    class Product(torch.autograd.Function):
        """x w, and its gradients: dx of what is rounded along w's columns, dw of what was not rounded."""

        @staticmethod
        def forward(context, x, w):
            context.save_for_backward(x, w)
            return rounded(x, 1, across) @ rounded(w, across, single)

        @staticmethod
        def backward(context, dy):
            x, w = context.saved_tensors
            return rounded(dy, 1, across) @ rounded(w, single, across).T, x.T @ dy

    return Product.apply if recipe != "none" else torch.matmul


def reference(weights, tokens, targets, recipe):
    """Loss and gradients of torch; rows are one sequence behind the other, and no op looks at another row."""
    its = {name: torch.tensor(values, dtype=torch.float64).view(shape).requires_grad_()
           for name, (shape, values) in weights.items()}
    own = lambda end: next(value for name, value in its.items() if name.endswith(end))
    product, x = product_of(recipe), own("wte")[tokens]
    for layer in range(SIZES["layers"]):
        hidden = product(x, own(f".{layer}.wi")) + own(f".{layer}.b")
        x = x + product(torch.nn.functional.silu(hidden), own(f".{layer}.wo").T)
    loss = torch.nn.functional.cross_entropy(x @ own("wout"), targets)
    loss.backward()
    return {name: (list(value.shape), value.grad.flatten().tolist()) for name, value in its.items()}, loss.item()


def judge_errors(compiler, folder, text, tally):
    """In bf16, where products of 8 bits belong: near the gradients of bf16, and the bits of one rank wherever bf16 has
    them. Torch finds 0.08 and 0.997 for larger models of random weights; the bounds are twice as far. All experts are
    chosen: a router that chooses others has other gradients."""
    sizes = dict(microbatches=4, microbatch=1, sequence=64, layers=4, hidden=128, heads=4, kv_heads=4, ffn=344,
                 vocab=256, experts=4, top=4, precision="bf16")
    grads, log = os.path.join(folder, "grads"), os.path.join(folder, "log")

    def step(**more):
        program = harness.compile_train(compiler, os.path.join(folder, "program"), sizes | more)
        harness.call([program, "--in-process", "--data", "u8:" + text, "--steps", "1", "--grads", grads, "--log", log])
        tensors = harness.read_safetensors(grads)
        return [x for name in sorted(tensors) for x in tensors[name][1]], harness.read_log(log)[0]["loss"]

    dot = lambda x, y: math.fsum(a * b for a, b in zip(x, y))
    for model, schedules in (("llama", ("zb_h1", "weipipe_interleave", "slimpipe")),
                             ("gpt2", ("zb_h1",)), ("mixtral", ("zb_v", "tawpipe"))):
        runs = {}
        for recipe in ("none", "fp8_row", "fp8_tile"):
            ours, loss = step(model=model, schedule="single", products=recipe)
            same = [schedule for schedule in schedules
                    if step(model=model, schedule=schedule, ranks=2, products=recipe) == (ours, loss)]
            runs[recipe] = ours, loss, same
            if recipe == "none":
                continue
            expected, whole, plain = runs["none"]
            cosine = dot(ours, expected) / math.sqrt(dot(ours, ours) * dot(expected, expected))
            error = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(ours, expected)) / dot(expected, expected))
            tally.check(1e-3 < error <= 0.16 and cosine >= 0.99 and abs(loss / whole - 1) <= 5e-3,
                        f"{recipe:8} {model:8} beside bf16: gradients {error:.4f}, cosine {cosine:.5f}, "
                        f"loss {loss / whole - 1:+.1e}")
            tally.check(set(plain) <= set(same), f"{recipe:8} {model:8} the bits of one rank, and in bf16 alone: "
                        f"{', '.join(same) or 'none'} ({', '.join(plain) or 'none'})")


def main():
    its = harness.draws()
    compiler, folder = its.compiler, its.folder
    model, text, base = (os.path.join(folder, name) for name in ("plain.pipe", "data", "base"))
    grads, log, batches = (os.path.join(folder, name) for name in ("grads", "log", "batches"))
    with open(model, "w") as file:
        file.write(MODEL)
    with open(text, "wb") as file:
        file.write(bytes(random.Random(2).randrange(SIZES["vocab"]) for _ in range(4096)))
    train = harness.add_models(folder, model)
    tally = harness.Tally()
    firsts, weights = {}, None
    for recipe in ("fp8_row", "fp8_tile", "none"):
        first = None
        # One rank, and each of the other layouts with one of the recipes.
        others = LAYOUTS[1:]["fp8_row fp8_tile".split().index(recipe)::2] if recipe != "none" else ()
        for layout in (LAYOUTS[0], *others):
            program = harness.compile_train(compiler, os.path.join(folder, "program"),
                                            SIZES | layout | dict(model="plain", products=recipe), train)
            common = [program, "--in-process", "--data", "u8:" + text, "--steps", "1"]
            if not weights:
                harness.call([*common, "--grads", grads])
                draw = random.Random(3)
                weights = {name: (shape, [draw.gauss(0, 0.1) for _ in values])
                           for name, (shape, values) in harness.read_safetensors(grads).items()}
                harness.write_safetensors(base, weights)
            harness.call([*common, "--load", base, "--grads", grads, "--log", log])
            ours, loss = harness.read_safetensors(grads), harness.read_log(log)[0]["loss"]
            if not first:
                harness.call([*common, "--batches", batches])
                data = harness.read_safetensors(batches)
                tokens, targets = (list(data[name][1]) for name in ("tokens", "targets"))
                first = (reference(weights, torch.tensor(tokens).long(), torch.tensor(targets).long(), recipe)
                         if torch else (ours, loss))
                firsts[recipe] = first
            where, error = distance(ours, first[0])
            said = " ".join(f"{key} {value}" for key, value in layout.items())
            tally.check(error <= TOLERANCE and abs(loss - first[1]) <= TOLERANCE * abs(first[1]),
                        f"{recipe:8} {said:44} loss {loss:.6f} gradients {error:.1e} {where}")
    for one, other, least in (("fp8_row", "none", 1e-3), ("fp8_tile", "none", 1e-3), ("fp8_row", "fp8_tile", 1e-9)):
        name, error = distance(firsts[one][0], firsts[other][0])
        tally.check(least < error < 0.5, f"{one} and {other} are apart by {error:.1e} {name}")
    judge_errors(compiler, folder, text, tally)
    return tally.close() or (0 if torch else 77)


if __name__ == "__main__":
    sys.exit(main())
