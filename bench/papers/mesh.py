#!/usr/bin/env python3
"""Simulates the hybrid runs of JaxPP's Table 1 on meshes; prints step, speed and memory beside the paper's."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/papers/mesh.py [-c PP_COMPILE] [--share S]
# JaxPP (arXiv 2412.14374), Table 1: GPT-3 175B and Llama 2 70B in bf16 on nodes of 8 H100. Products and attention reach
# one share of the device's peak, which is chosen so that the first row has the printed step; everything else follows.
# GPT-3's circular repeat is 6 (Figure 8). The paper does not print that of 70B; we take 5, which divides 20 layers.
# NeMo's rows are simulated with the same schedule and with its distributed optimizer (`zero = 1`): without it weights
# and their state alone fill a device. If products are cut, the rows between them are cut, too (`sequence`). SPMD is
# GPipe, which runs its layers again in the backward. FSDP, whose replicas fill nodes, does so, too: else its plan is
# 143 GB. The paper does not say how much of its gathers and sums FSDP hides; here it hides none (`ahead = 0`). TFLOPS
# are computed as in the paper: (6 parameters of products + 12 layers hidden sequence) tokens, divided by GPUs and step
# time. The paper's 13 rows agree with this formula within 1. No limit bounds the peaks.
import argparse, os, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from simulate import simulate

GPT3 = dict(text="gpt2(layers = 96, hidden = 12288, heads = 96, vocab = 50304, context = 2048)", sequence=2048,
            layers=96, hidden=12288, products=96 * 12 * 12288**2 + 50304 * 12288)
LLAMA = dict(text="llama(layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, vocab = 32000)",
             sequence=4096, layers=80, hidden=8192,
             products=80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672) + 32000 * 8192)
PROGRAM = """import "std/interleaved.pipe" import "std/models/{library}.pipe"
cluster nodes {{
  ranks      8
  memory     1e15
  device     bf16 = 989e12, f32 = 67e12, bandwidth = 3.35e12, launch = 3e-6     # H100-SXM's data sheet
  efficiency gemm = {share}, attention = {share}, bandwidth = 0.8
  inside     bandwidth = 450e9, latency = 8e-6                                  # NVLink, each way
  between    bandwidth = 50e9, latency = 10e-6, nics = 8                        # NDR, 400 Gb/s
}}
schedule gpipe_recompute(ranks p, microbatches m) {{
  stage s of p at s
  recompute pre, qkv, attn, post
  for i in microbatches           {{ for s in 0 .. p           {{ F(s, i) }} }}
  for i in reversed(microbatches) {{ for s in reversed(0 .. p) {{ B(s, i) }} }}
}}
{fsdp}
train paper {{
  model {model}
  schedule {schedule}
  mesh tensor = {tensor}, data = {data}, sequence = {rowwise}, zero = {zero}, order = "{order}"
  data microbatch = {rows}, sequence = {sequence}
  optimizer adamw(lr = 3e-4)
  precision bf16
  cluster nodes
}}
"""
# The library's, with one line more.
with open(os.path.join(ROOT, "stdlib", "fsdp.pipe")) as file:
    FSDP = file.read().replace("  stage s of", "  recompute pre, qkv, attn, post\n  stage s of")
# System, model, sequences a step, microbatches of a replica, ranks, tensor, data, printed seconds and TFLOPS.
ROWS = (
    ("JaxPP", GPT3, 256, 32, 8, 8, 2, 9.22, 478), ("JaxPP", GPT3, 512, 32, 8, 8, 4, 9.24, 477),
    ("JaxPP", GPT3, 1024, 32, 8, 8, 8, 9.32, 473), ("JaxPP", GPT3, 2048, 32, 8, 8, 16, 9.37, 470),
    ("FSDP", GPT3, 256, 1, 128, 1, 1, 10.70, 412), ("FSDP", GPT3, 512, 1, 128, 1, 2, 10.91, 404),
    ("FSDP", GPT3, 1024, 1, 128, 1, 4, 11.01, 400), ("FSDP", GPT3, 2048, 1, 128, 1, 8, 11.30, 390),
    ("SPMD", GPT3, 256, 128, 16, 4, 2, 13.96, 316), ("NeMo", GPT3, 256, 64, 8, 4, 4, 8.82, 500),
    ("JaxPP", LLAMA, 128, 16, 4, 8, 2, 7.42, 490), ("FSDP", LLAMA, 128, 1, 64, 1, 1, 8.44, 431),
    ("NeMo", LLAMA, 128, 32, 4, 4, 4, 7.02, 519),
)


def schedule_of(system, model, microbatches, ranks):
    if system == "FSDP":
        return f"fsdp(ranks = {ranks}, microbatches = {ranks * microbatches}, ahead = 0)"
    if system == "SPMD":
        return f"gpipe_recompute(ranks = {ranks}, microbatches = {microbatches})"
    return f"interleaved_1f1b(ranks = {ranks}, microbatches = {microbatches}, chunks = {6 if model is GPT3 else 5})"


def run(arguments, share, system, model, batch, microbatches, ranks, tensor, data):
    replicas = data * (ranks if system == "FSDP" else 1)
    text = PROGRAM.format(library="gpt2" if model is GPT3 else "llama", model=model["text"], share=share,
                          sequence=model["sequence"], tensor=tensor, data=data, rowwise=str(tensor > 1).lower(),
                          zero=int(system == "NeMo"),
                          schedule=schedule_of(system, model, microbatches, ranks), fsdp=FSDP,
                          order=f"tensor context {'pipeline data' if system == 'FSDP' else 'data pipeline'}",
                          rows=batch // (microbatches * replicas))
    stats, error = simulate(arguments.compiler, text)
    return stats or sys.exit(error)


def calibrate(arguments):
    """The share of the peak with which the first row has its printed step; 1 where none is enough."""
    *row, printed, _ = ROWS[0]
    low, high = 0.3, 1.0
    if run(arguments, high, *row)["step"] > printed:
        return high
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if run(arguments, middle, *row)["step"] < printed else (middle, high)
    return round((low + high) / 2, 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--share", type=float, help="of the peak; by default that of the first row")
    arguments = parser.parse_args()
    share = arguments.share or calibrate(arguments)
    print(f"products and attention reach {share} of the peak\n\n| | model | sequences | ranks x tensor x data | step | "
          "printed | off by | TFLOPS | printed | peak GB |\n|---|---|---:|---|---:|---:|---:|---:|---:|---:|")
    for *row, printed, speed in ROWS:
        system, model, batch, _, ranks, tensor, data = row
        stats = run(arguments, share, *row)
        tokens = batch * model["sequence"]
        flops = (6 * model["products"] + 12 * model["layers"] * model["hidden"] * model["sequence"]) * tokens
        peak = max(rank["peak_bytes"]["total"] for rank in stats["per_rank"])
        name = "GPT-3" if model is GPT3 else "Llama 2 70B"
        print(f"| {system} | {name} | {batch} | {ranks} x {tensor} x {data} | "
              f"{stats['step']:.2f} | {printed:.2f} | {100 * (stats['step'] / printed - 1):+.0f} % | "
              f"{flops / stats['step'] / (ranks * tensor * data) / 1e12:.0f} | {speed} | {peak / 1e9:.0f} |",
              flush=True)


if __name__ == "__main__":
    sys.exit(main())
