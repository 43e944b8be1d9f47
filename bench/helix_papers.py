#!/usr/bin/env python3
"""Simulates HelixPipe and 1F1B on the paper's clusters, beside the gains and the memory that it prints."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/helix_papers.py [-c PP_COMPILE] [--gemm 0.6] [--attention 0.55]
# A rank is a node of 8 GPUs, as the paper's stage is (Megatron's sequence parallelism inside a node takes no time here): eight
# times the device, the NICs of a node together. Microbatches of one sequence, twice as many as ranks. HelixPipe is two-fold,
# with shipped weights and without its attentions run again; 1F1B keeps everything, as the paper's baseline does where it fits.
import argparse, os, sys
from simulate import simulate

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = {"1.3B": (24, 16, 2048), "3B": (16, 32, 4096), "7B": (32, 32, 4096)}  # layers, heads, hidden
# FLOP/s in bf16 and bytes/s of memory of a device; bytes/s of a node's NICs together; printed gains at 128k tokens, 8 ranks.
CLUSTERS = {"H20": (148e12, 4.0e12, 100e9, {"1.3B": 28, "3B": 20, "7B": 26}),
            "A800": (312e12, 2.039e12, 50e9, {"1.3B": 16, "3B": 13, "7B": 13})}
PROGRAM = """import "std/1f1b.pipe" import "std/helixpipe.pipe" import "std/models/gpt2.pipe"
cluster nodes {{
  ranks      1
  memory     1e15
  device     bf16 = {flops}, f32 = {flops}, bandwidth = {memory}, launch = 3e-6
  efficiency gemm = {gemm}, attention = {attention}, bandwidth = 0.8
  between    bandwidth = {network}, latency = 10e-6
}}
train paper {{
  model gpt2(layers = {layers}, hidden = {hidden}, heads = {heads}, vocab = 50257, context = {sequence})
  schedule {schedule}
  data microbatch = 1, sequence = {sequence}
  optimizer adamw(lr = 3e-4)
  precision bf16
  cluster nodes
}}
"""


def simulate(arguments, cluster, model, sequence, ranks, schedule):
    flops, memory, network, _ = CLUSTERS[cluster]
    layers, heads, hidden = MODELS[model]
    text = PROGRAM.format(flops=8 * flops, memory=8 * memory, network=network, gemm=arguments.gemm, layers=layers, heads=heads,
                          hidden=hidden, attention=arguments.attention, sequence=sequence, schedule=schedule)
    # In sequence x hidden^2: products of QKV 6, of O and the MLP 18; the attention 2 sequence / hidden, causal.
    attention = (6 + 2 * sequence / hidden * arguments.gemm / arguments.attention) / 18
    order = [f"--order=pre=0.05,attn={attention:.3f},post=1"] if schedule.startswith("helix") else []
    stats, error = simulate(arguments.compiler, text, *order)
    return stats or sys.exit(error)


def compare(arguments, cluster, model, sequence, ranks):
    """Stats of 1F1B and HelixPipe."""
    sizes = f"ranks = {ranks}, microbatches = {2 * ranks}"
    return [simulate(arguments, cluster, model, sequence, ranks, schedule)
            for schedule in (f"one_f_one_b({sizes})", f"helixpipe({sizes}, folds = 2, forget = true)")]


def activations(stats):
    """GiB a GPU of every rank: stashes and activations at their peaks."""
    return " ".join(f"{(rank['peak_bytes']['stash'] + rank['peak_bytes']['act']) / 8 / 2**30:.1f}" for rank in stats["per_rank"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--gemm", type=float, default=0.6, help="share of the peak that products reach")
    parser.add_argument("--attention", type=float, default=0.55, help="share that attention reaches")
    arguments = parser.parse_args()
    print("HelixPipe over 1F1B, in percent: simulated by sequence on 8 ranks, at 128k on 2, 4, 8 ranks; printed at 128k on 8")
    print("| cluster | model | 32k | 64k | 96k | 128k | 2 | 4 | 8 | printed |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for cluster, (_, _, _, printed) in CLUSTERS.items():
        for model in MODELS:
            gains = []
            for kilo, ranks in [(32, 8), (64, 8), (96, 8), (128, 8), (128, 2), (128, 4)]:
                base, ours = compare(arguments, cluster, model, kilo * 1024, ranks)
                gains.append(f"{100 * (base['step'] / ours['step'] - 1):.1f}")
                if (cluster, model, kilo, ranks) == ("H20", "3B", 128, 8):
                    memory = base, ours
            gains.append(gains[3])
            print(f"| {cluster} | {model} | " + " | ".join(gains) + f" | {printed[model]} |", flush=True)
    print("\nGiB of activations a GPU, 3B, 128k tokens, 8 ranks (printed: 1F1B 32 to 4, HelixPipe 16 on all)")
    for name, stats in zip(("1F1B", "HelixPipe"), memory):
        print(f"{name:10}{activations(stats)}")


if __name__ == "__main__":
    sys.exit(main())
