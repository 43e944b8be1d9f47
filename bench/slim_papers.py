#!/usr/bin/env python3
"""Plans what SlimPipe's paper counts and measures of memory, and prints it beside the paper's figures and formulas."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/slim_papers.py [-c PP_COMPILE] [arithmetic] [slices] [sizes]
# A rank is 8 GPUs (the paper's tensor parallelism with sequence parallelism divides all of a layer's memory by 8), so
# GiB are a GPU's. bf16 weights, sums of gradients and optimizer in f32, a vocabulary of 128000, microbatches of one
# sequence. M_a: what one microbatch leaves on all ranks together; M_t: the arena of one rank that trains the same
# alone. The logits are bf16 here, and their gradient takes their place; the paper's are f32. Head and embedding are
# whole on the last and the first rank in `sizes`, the paper's are cut by the vocabulary.
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


TABLES = {"arithmetic": arithmetic, "slices": slices, "sizes": sizes}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("tables", nargs="*", default=list(TABLES), help="arithmetic, slices, sizes; all by default")
    arguments = parser.parse_args()
    for table in arguments.tables:
        TABLES[table](arguments)


if __name__ == "__main__":
    sys.exit(main())
