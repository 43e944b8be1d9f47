#!/usr/bin/env python3
"""Plans what SlimPipe's paper counts and measures of memory, and prints it beside the paper's figures and formulas."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/slim_papers.py [-c PP_COMPILE] [--attention E] [arithmetic] [slices] [sizes] [hybrid]
# A rank is 8 GPUs (the paper's tensor parallelism with sequence parallelism divides all of a layer's memory by 8), so
# GiB are a GPU's; in `hybrid` it is a mesh. bf16 weights, sums of gradients and optimizer in f32, a vocabulary of
# 128000, microbatches of one sequence. M_a: what one microbatch leaves on all ranks together; M_t: the arena of one
# rank that trains the same alone. The logits are bf16 here, and their gradient takes their place; the paper's are f32.
# Head and embedding are whole on the last and the first rank in `sizes`, the paper's are cut by the vocabulary.
# hybrid: Table 4, 16M tokens a step on nodes of 8 Hopper. Queries and keys meet by heads, for the paper's commutated
# context parallelism is not built. Up projection and SwiGLU run again in the backward, as in the paper: `up` is a part,
# with a norm of its own, so that it begins at the residual stream. MFU counts causal pairs; with the full square
# attention alone would be at 90 % of the peak. Products reach 0.6 of the peak, as for other papers. Attention's share
# is chosen so that the first row has the printed MFU, from two runs between which 1 / MFU is linear in 1 / share,
# unless --attention says it. A program takes minutes to compile.
import argparse, os, sys
from simulate import simulate

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = {"13B": (40, 40, 40, 5120, 13824),
          "70B": (80, 64, 8, 8192, 28672)}  # layers, heads, of keys, hidden, ffn (Table 3)
PROGRAM = """import "std/1f1b.pipe" import "std/slimpipe.pipe" import "std/single.pipe" import "std/models/llama.pipe"
train paper {{
  model llama(layers = {0}, heads = {1}, kv_heads = {2}, hidden = {3}, ffn = {4}, vocab = 128000)
  schedule {schedule}
  data microbatch = 1, sequence = {sequence}
  optimizer adamw(lr = 3e-4)
  precision bf16
}}
schedule by_layer(ranks p = 1, microbatches m = 1) {{       # every layer keeps what enters it; the loss beside them
  stage s of layers at 0
  part head at 0
  for s in 0 .. layers {{ recompute stage(s) }}
  for s in 0 .. layers {{ F(s, 0) }}
  F(head, 0) B(head, 0)
  for s in reversed(0 .. layers) {{ B(s, 0) }}
}}
"""


# Model, layers, heads, hidden, ffn; tokens of a sequence, tensor, context, ranks, slices, percent in host memory, MFU.
HYBRID = (("Llama 70B", 80, 64, 8192, 28672, 2 * 2**20, 4, 4, 16, 64, 75, 45.0),
          ("Llama 149B", 96, 96, 12288, 32768, 2**20, 4, 2, 32, 64, 80, 43.7))
TOKENS, PEAK = 16 * 2**20, 989e12
MESH = """{slimpipe}
cluster nodes {{
  ranks      8
  memory     1e15                                                                # no limit bounds the peaks
  device     bf16 = 989e12, f32 = 67e12, bandwidth = 3.35e12, launch = 3e-6      # h100_ndr of std/clusters.pipe
  efficiency gemm = 0.6, attention = {attention}, bandwidth = 0.8
  inside     bandwidth = 200e9, latency = 8e-6
  between    bandwidth = 50e9, latency = 10e-6, nics = 8
  host       bandwidth = 63e9, latency = 10e-6
}}
model layers_up(layers, heads, keys, hidden, ffn, vocab) {{
  weight wte[vocab, hidden] init normal(0.02)
  part embed(tokens) {{ return embedding(tokens, wte) }}
  layer {{
    part pre(x) {{
      weight g[hidden] init one
      return rmsnorm(x, g), x
    }}
    part qkv(a, x) {{
      weight wq[hidden, hidden] init normal(0.02), wk[hidden, keys * (hidden // heads)] init normal(0.02),
             wv[hidden, keys * (hidden // heads)] init normal(0.02)
      return rope(linear(a, wq), heads = heads), rope(linear(a, wk), heads = keys), linear(a, wv), x
    }}
    part attn(q, k, v, x) {{ return attention(q, k, v, heads = heads, kv_heads = keys, causal = true), x }}
    part post(o, x) {{
      weight wo[hidden, hidden] init normal(0.02), g[hidden] init one, w_gate[hidden, ffn] init normal(0.02)
      let y = x + linear(o, wo)
      return linear(rmsnorm(y, g), w_gate), y
    }}
    part up(p, y) {{
      weight g[hidden] init one, w_up[hidden, ffn] init normal(0.02)
      return swiglu(p, linear(rmsnorm(y, g), w_up)), y
    }}
    part down(z, y) {{
      weight w_down[ffn, hidden] init normal(0.02)
      return y + linear(z, w_down)
    }}
  }}
  part head(x, targets) {{
    weight g[hidden] init one, wout[hidden, vocab] init normal(0.02)
    return cross_entropy(linear(rmsnorm(x, g), wout), targets)
  }}
}}
train paper {{
  model layers_up(layers = {layers}, heads = {heads}, keys = 8, hidden = {hidden}, ffn = {ffn}, vocab = 128000)
  schedule slimpipe(ranks = {ranks}, microbatches = {microbatches}, slices = {slices}, offload = {offload})
  mesh tensor = {tensor}, context = {context}, sequence = true, attention = "heads"
  data microbatch = 1, sequence = {sequence}
  optimizer adamw(lr = 3e-4)
  precision bf16
  cluster nodes
}}
"""
# The library's, with one line more.
with open(os.path.join(ROOT, "stdlib", "slimpipe.pipe")) as file:
    SLIMPIPE = file.read().replace("  stage s of", "  recompute up\n  stage s of")


def plan(arguments, model, sequence, schedule):
    text = PROGRAM.format(*MODELS[model], schedule=schedule, sequence=sequence)
    stats, error = simulate(arguments.compiler, text)
    return stats or sys.exit(error)


def gib(value):
    return f"{value / 8 / 2**30:.2f}"


def kept(rank):
    return rank["peak_bytes"]["stash"] + rank["peak_bytes"].get("kv", 0)


def arithmetic(arguments):
    print("GiB a GPU: ours, printed")
    full = plan(arguments, "70B", 2**20, "by_layer()")["per_rank"][0]["peak_bytes"]
    print(f"70B, 1M tokens, every layer run again, kept (section 3): {gib(full['act'])}, 160")
    logits = plan(arguments, "13B", 2**18, "by_layer()")["per_rank"][0]["peak_bytes"]
    print(f"256K tokens, scratch memory, with the logits as the largest part (4.3.1): {gib(logits['temporary'])}, 15.6")


def slices(arguments):
    print("\n13B, 128K tokens, 4 ranks, 2 microbatches (Figure 6): share of M_a on rank 0 and 3, bubble; by formula")
    # Where 2 microbatches have fewer units than n + 2(p-1), n = 4, rank 0 keeps them all: 8 of 16, not 10.
    print("| slices | rank 0 | rank 3 | 1/p + 2(p-1)/np | 1/p | bubble | (p-1)/nm "
          "|\n|---:|---:|---:|---:|---:|---:|---:|")
    whole = plan(arguments, "13B", 2**17, "one_f_one_b(ranks = 4, microbatches = 2)")["per_rank"]
    whole = [kept(rank) / min(2, 4 - i) for i, rank in enumerate(whole)]
    for n in 4, 8, 16, 32:
        stats = plan(arguments, "13B", 2**17,
                     f"slimpipe(ranks = 4, microbatches = 2, slices = {n}, exchange = false, vocabulary = false)")
        first, last = (kept(stats["per_rank"][rank]) / (4 * whole[rank]) for rank in (0, 3))
        print(f"| {n} | {first:.4f} | {last:.4f} | {1 / 4 + 6 / (4 * n):.4f} | 0.2500 | "
              f"{stats['makespan'] / (6 * n) - 1:.4f} | {3 / (2 * n):.4f} |",
              flush=True)


def sizes(arguments):
    print("\n13B, a stage a layer, slices = ranks, 2 microbatches (Figure 10): GiB a GPU of the whole arena")
    print("| tokens | ranks | first | last | M_t / p | first over M_t / p | gap | 2(p-1) M_a / nvp "
          "|\n|---:|---:|---:|---:|---:|---:|---:|---:|")
    for kilo in 32, 64, 96:
        one = plan(arguments, "13B", kilo * 1024, "single(microbatches = 1)")["per_rank"][0]
        for p in 2, 4, 8:
            stats = plan(arguments, "13B", kilo * 1024,
                         f"slimpipe(ranks = {p}, microbatches = 2, slices = {p}, chunks = {40 // p}, vocabulary = "
                         f"false)")
            first, last = (stats["per_rank"][rank]["peak_bytes"]["total"] for rank in (0, p - 1))
            share, gap = one["peak_bytes"]["total"] / p, 2 * (p - 1) * kept(one) / (40 * p)
            print(f"| {kilo}K | {p} | {gib(first)} | {gib(last)} | {gib(share)} | {first / share:.2f} | "
                  f"{gib(first - last)} | {gib(gap)} |", flush=True)


def run_hybrid(arguments, attention, row, offload):
    """Causal MFU in percent, and the bytes of the fullest device."""
    _, layers, heads, hidden, ffn, sequence, tensor, context, ranks, slices, *_ = row
    text = MESH.format(slimpipe=SLIMPIPE, attention=attention, layers=layers, heads=heads, hidden=hidden, ffn=ffn,
                       sequence=sequence, tensor=tensor, context=context, ranks=ranks, slices=slices, offload=offload,
                       microbatches=TOKENS // sequence)
    stats, error = simulate(arguments.compiler, text)
    if error:
        sys.exit(error)
    products = layers * (2 * hidden**2 + 2 * hidden * 8 * (hidden // heads) + 3 * hidden * ffn) + 128000 * hidden
    flops = (6 * products + 6 * layers * hidden * sequence) * TOKENS
    return (100 * flops / stats["step"] / (ranks * tensor * context * PEAK),
            max(rank["peak_bytes"]["total"] for rank in stats["per_rank"]))


def calibrate(arguments):
    """Attention's share of the peak with which the first row has its MFU."""
    *_, offload, printed = HYBRID[0]
    low, high = 0.5, 0.65
    first, second = (1 / run_hybrid(arguments, share, HYBRID[0], offload)[0] for share in (low, high))
    place = (1 / printed - first) / (second - first)
    return round(1 / (1 / low + place * (1 / high - 1 / low)), 3)


def hybrid(arguments):
    attention = arguments.attention or calibrate(arguments)
    print(f"\nTable 4: attention reaches {attention} of the peak; GB of the fullest device, also without offload\n\n"
          "| | tokens | ranks x tensor x context | slices | offload | GB | without | MFU, causal | printed "
          "|\n|---|---:|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for row in HYBRID:
        name, *_, sequence, tensor, context, ranks, slices, offload, printed = row
        speed, peak = run_hybrid(arguments, attention, row, offload)
        whole = run_hybrid(arguments, attention, row, 0)[1]
        print(f"| {name} | {sequence // 1024}K | {ranks} x {tensor} x {context} | {slices} | {offload} % | "
              f"{peak / 1e9:.0f} | {whole / 1e9:.0f} | {speed:.1f} | {printed} |", flush=True)
    print("Mixtral 8x7B and 8x22B: not simulated, for `mesh expert` is not built")


TABLES = {"arithmetic": arithmetic, "slices": slices, "sizes": sizes, "hybrid": hybrid}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--attention", type=float, help="share of the peak in `hybrid`; by default from its first row")
    parser.add_argument("tables", nargs="*", default=list(TABLES), help=f"{', '.join(TABLES)}; all by default")
    arguments = parser.parse_args()
    for table in arguments.tables:
        TABLES[table](arguments)


if __name__ == "__main__":
    sys.exit(main())
