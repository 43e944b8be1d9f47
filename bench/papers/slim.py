#!/usr/bin/env python3
"""Plans what SlimPipe's paper counts and measures of memory, and prints it beside the paper's figures and formulas."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/papers/slim.py [-c PP_COMPILE] [--attention E] [arithmetic] [slices] [sizes] [hybrid]
# A rank is 8 GPUs (the paper's tensor parallelism with sequence parallelism divides all of a layer's memory by 8), so
# GiB are a GPU's; in `hybrid` it is a mesh. bf16 weights, sums of gradients and optimizer in f32, a vocabulary of
# 128000, microbatches of one sequence. M_a is what one microbatch keeps on all ranks together. M_t is the arena of a
# single rank that trains the whole model. The logits are bf16 here, and their gradient takes their place; the paper's
# logits are f32. In `sizes`, the last rank has the whole head and the first one the whole embedding; the paper cuts
# both by the vocabulary. hybrid: Table 4, 16M tokens a step on nodes of 8 Hopper. Queries and keys meet by heads, for
# the paper's commutated context parallelism is not built. Up projection and SwiGLU run again in the backward, as in the
# paper: `up` is a part, with a norm of its own, so that it begins at the residual stream. MFU counts causal pairs; with
# the full square attention alone would be at 90 % of the peak. Products reach 0.6 of the peak, as for other papers.
# Attention's share is chosen so that the first row has the printed MFU, from two runs between which 1 / MFU is linear
# in 1 / share, unless --attention says it. A program takes minutes to compile. --models Llama prints these rows alone.
# Mixtral: 8 experts on the 8 devices of a node, of which a token goes through 2, all chosen equally often; MFU counts
# these 2. Router and experts are a part of their own, `moe`, all of which runs again in the backward but for the
# choices: it keeps the residual stream alone, where the paper keeps the gate's product, too. Messages have room for all
# choices that could fall on one device, 4 times as many as there are (of each token 1 row for each of 8 devices, not 2
# in all). `exchanged` are the seconds of a step in which rank 0 sends and gets such rows; `by count` is the MFU if it
# were a quarter of them, by arithmetic. Sequences of 8x22B are 112 slices of 18720 tokens, 512 tokens short of 2048K,
# for context cuts each slice in 16 equal runs.
import argparse, os, sys
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from simulate import simulate

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


class Hybrid(NamedTuple):
    """A row of Table 4. All have 8 heads of keys."""
    name: str
    layers: int
    heads: int
    hidden: int
    ffn: int
    sequence: int
    tensor: int
    context: int
    expert: int
    ranks: int
    slices: int
    offload: int  # percent in host memory
    printed: float  # MFU


HYBRID = (Hybrid("Llama 70B", 80, 64, 8192, 28672, 2 * 2**20, 4, 4, 1, 16, 64, 75, 45.0),
          Hybrid("Llama 149B", 96, 96, 12288, 32768, 2**20, 4, 2, 1, 32, 64, 80, 43.7),
          Hybrid("Mixtral 8x22B", 56, 48, 6144, 16384, 112 * 18720, 1, 8, 8, 28, 112, 100, 42.0),
          Hybrid("Mixtral 8x7B", 32, 32, 4096, 14336, 4 * 2**20, 1, 16, 8, 16, 64, 95, 40.0))
TOKENS, PEAK, EXPERTS, TOP = 16 * 2**20, 989e12, 8, 2
DENSE = """    part post(o, x) {{
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
    }}"""
MIXTURE = """    part post(o, x) {{
      weight wo[hidden, hidden] init normal(0.02)
      return x + linear(o, wo)
    }}
    part moe(y) {{
      weight g[hidden] init one, wr[hidden, {experts}] init normal(0.02),
             w_gate[{experts}, hidden, ffn] init normal(0.02), w_up[{experts}, hidden, ffn] init normal(0.02),
             w_down[{experts}, ffn, hidden] init normal(0.02)
      return y + experts(rmsnorm(y, g), wr, w_gate, w_up, w_down, top = {top}, renormalise = true)
    }}"""
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
{mlp}
  }}
  part head(x, targets) {{
    weight g[hidden] init one, wout[hidden, vocab] init normal(0.02)
    return cross_entropy(linear(rmsnorm(x, g), wout), targets)
  }}
}}
train paper {{
  model layers_up(layers = {layers}, heads = {heads}, keys = 8, hidden = {hidden}, ffn = {ffn}, vocab = 128000)
  schedule slimpipe(ranks = {ranks}, microbatches = {microbatches}, slices = {slices}, offload = {offload})
  mesh tensor = {tensor}, context = {context}, expert = {expert}, sequence = {rows}, attention = "heads"
  data microbatch = 1, sequence = {sequence}
  optimizer adamw(lr = 3e-4)
  precision bf16
  cluster nodes
}}
"""
# The library's, with one line more.
with open(os.path.join(ROOT, "stdlib", "slimpipe.pipe")) as file:
    SLIMPIPE = file.read().replace("  stage s of", "  recompute {part}\n  stage s of")


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
    # If 2 microbatches have fewer units than n + 2(p-1), as with n = 4, rank 0 keeps them all: 8 of 16, not 10.
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
    """Causal MFU in percent, the bytes of the fullest device, the seconds in which rank 0 exchanges rows of experts,
    and the MFU if messages were as long as the rows in them."""
    mlp, part = (MIXTURE.format(experts=EXPERTS, top=TOP), "moe") if row.expert > 1 else (DENSE.format(), "up")
    microbatches = TOKENS // row.sequence
    text = MESH.format(slimpipe=SLIMPIPE.replace("{part}", part), attention=attention, mlp=mlp,
                       rows=str(row.tensor > 1).lower(), microbatches=microbatches,
                       **row._asdict() | dict(offload=offload))
    stats, error = simulate(arguments.compiler, text)
    if error:
        sys.exit(error)
    active, router = (TOP, row.hidden * EXPERTS) if row.expert > 1 else (1, 0)
    products = row.layers * (2 * row.hidden**2 + 2 * row.hidden * 8 * (row.hidden // row.heads)
                             + active * 3 * row.hidden * row.ffn + router) + 128000 * row.hidden
    flops = (6 * products + 6 * row.layers * row.hidden * row.sequence) * microbatches * row.sequence
    exchanged = exchange_seconds(stats["per_rank"][0])
    mfu, by_count = (100 * flops / seconds / (row.ranks * row.tensor * row.context * PEAK)
                     for seconds in (stats["step"], stats["step"] - exchanged * (1 - TOP / EXPERTS)))
    return mfu, max(rank["peak_bytes"]["total"] for rank in stats["per_rank"]), exchanged, by_count


def exchange_seconds(rank):
    """How long a rank exchanges rows of experts, as the simulator counts it: for 8 devices of a node 6 latencies, and
    what comes to one at the speed of its link."""
    entries = [entry for kinds in rank.get("exchanges", {}).values() for kind, entry in kinds.items()
               if kind == "expert.all_to_all"]
    return sum(count * 6 * 8e-6 + received / 200e9 for count, received in entries)


def calibrate(arguments):
    """Attention's share of the peak with which the first row has its MFU."""
    first, (low, high) = HYBRID[0], (0.5, 0.65)
    below, above = (1 / run_hybrid(arguments, share, first, first.offload)[0] for share in (low, high))
    place = (1 / first.printed - below) / (above - below)
    return round(1 / (1 / low + place * (1 / high - 1 / low)), 3)


def hybrid(arguments):
    attention = arguments.attention or calibrate(arguments)
    print(f"\nTable 4: attention reaches {attention} of the peak; GB of the fullest device, also without offload\n\n"
          "| | tokens | ranks x tensor x context | slices | offload | GB | without | exchanged | by count | "
          "MFU, causal | printed |\n|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for row in HYBRID:
        if arguments.models not in row.name:
            continue
        speed, peak, exchanged, by_count = run_hybrid(arguments, attention, row, row.offload)
        whole = run_hybrid(arguments, attention, row, 0)[1]
        columns = f"{exchanged:.1f} s | {by_count:.1f}" if row.expert > 1 else " | "
        print(f"| {row.name} | {row.sequence / 1024:.0f}K | {row.ranks} x {row.tensor} x {row.context} | "
              f"{row.slices} | {row.offload} % | {peak / 1e9:.0f} | {whole / 1e9:.0f} | {columns} | {speed:.1f} | "
              f"{row.printed} |", flush=True)


TABLES = {"arithmetic": arithmetic, "slices": slices, "sizes": sizes, "hybrid": hybrid}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--attention", type=float, help="share of the peak in `hybrid`; by default from its first row")
    parser.add_argument("--models", default="", help="a part of the names of rows in `hybrid`; by default all")
    parser.add_argument("tables", nargs="*", default=list(TABLES), help=f"{', '.join(TABLES)}; all by default")
    arguments = parser.parse_args()
    for table in arguments.tables:
        TABLES[table](arguments)


if __name__ == "__main__":
    sys.exit(main())
