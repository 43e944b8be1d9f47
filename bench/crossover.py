#!/usr/bin/env python3
"""Simulates 1F1B and WeiPipe over sequence lengths on every cluster, to see where weights travel cheaper than activations."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/crossover.py [-c PP_COMPILE] [--svg FILE] [--hidden H] [--ranks P]
# WeiPipe's rule (section 3): a stage's output, G S H numbers, outweighs a layer's weights, 12 H^2, where G S / 12 H > 1.
# The table has tokens/s of WeiPipe (weights and gradients in 16 bits, prefetched) over those of 1F1B, one layer a rank,
# two microbatches a rank in flight, recomputation on; --svg draws its rows as curves over G S / 12 H.
import argparse, json, math, os, sys
from simulate import cluster_in, compile_text

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLUSTERS = ["a800_nvlink_10gbe", "a800_pcie_10gbe", "a800_hdr", "h20_ndr", "h100_ndr"]
SCHEDULES = {"1f1b": "one_f_one_b(ranks = {p}, microbatches = {m})",
             "weipipe": "weipipe_interleave(ranks = {p}, microbatches = {m}, prefetch = true)"}
PROGRAM = """import "std/1f1b.pipe"
import "std/clusters.pipe"
import "std/models/llama.pipe"
import "std/weipipe.pipe"
train crossover {{
  model llama(layers = {p}, hidden = {hidden}, heads = 32, ffn = {ffn}, vocab = 256)
  schedule {schedule}
  data microbatch = 1, sequence = {sequence}
  optimizer adamw(lr = 3e-4)
  precision bf16
  gradients bf16
  cluster {cluster}
  recompute pre, qkv, attn, post
}}
"""
COLOURS = ["#4269d0", "#ff725c", "#3ca951", "#a463f2", "#9c6b4e"]


def ranks_of(arguments, cluster, schedule, sequence):
    sizes = dict(p=arguments.ranks, m=4 * arguments.ranks, hidden=arguments.hidden, ffn=arguments.hidden * 8 // 3 // 64 * 64)
    text = PROGRAM.format(schedule=SCHEDULES[schedule].format(**sizes), cluster=cluster, sequence=sequence, **sizes)
    ranks, error = compile_text(arguments.compiler, text, "ranks", "--memory-limit=1e14")
    return ranks or sys.exit(error)


def steps(arguments, figures, schedule, sequence):
    """Seconds of a step on every cluster: the rank programs are the same on all, but for the cluster's figures."""
    ranks = ranks_of(arguments, CLUSTERS[0], schedule, sequence)
    begin, end = cluster_in(ranks)
    return [json.loads(compile_text(arguments.compiler, ranks[:begin] + one + ranks[end:], "stats", suffix=".mlir")[0])["step"] for one in figures]


def draw(path, ratios, curves, hidden):
    """Curves over G S / 12 H, both axes logarithmic; a rule at 1 each way."""
    width, height, left, top = 620, 360, 60, 40
    low, high = math.log2(ratios[0]), math.log2(ratios[-1])
    span = max(0.5, *(abs(math.log2(y)) for curve in curves.values() for y in curve)) * 1.08
    x = lambda ratio: left + (math.log2(ratio) - low) / (high - low) * width
    y = lambda speed: top + (1 - (math.log2(speed) / span + 1) / 2) * height
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 160}" height="{top + height + 50}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="22" font-size="14">tokens/s of WeiPipe over 1F1B, hidden {hidden}</text>']
    for ratio in ratios:
        out.append(f'<line x1="{x(ratio):.1f}" x2="{x(ratio):.1f}" y1="{top}" y2="{top + height}" stroke="{"#888" if ratio == 1 else "#eee"}"/>'
                   f'<text x="{x(ratio):.1f}" y="{top + height + 16}" text-anchor="middle">{ratio:g}</text>')
    tick = math.ceil(-span)
    while tick <= span:
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y(2 ** tick):.1f}" y2="{y(2 ** tick):.1f}" stroke="{"#888" if tick == 0 else "#eee"}"/>'
                   f'<text x="{left - 6}" y="{y(2 ** tick) + 4:.1f}" text-anchor="end">{2 ** tick:g}</text>')
        tick += 1
    ends = []  # labels at the right, pushed apart
    for colour, (name, curve) in sorted(zip(COLOURS, curves.items()), key=lambda item: y(item[1][1][-1])):
        points = " ".join(f"{x(ratio):.1f},{y(speed):.1f}" for ratio, speed in zip(ratios, curve))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        ends.append(max(y(curve[-1]) + 4, ends[-1] + 15 if ends else 0))
        out.append(f'<text x="{left + width + 6}" y="{ends[-1]:.1f}" fill="{colour}">{name}</text>')
    out.append(f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">G S / 12 H</text></svg>')
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--svg", metavar="FILE")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=16)
    arguments = parser.parse_args()
    ratios = [2.0 ** k for k in range(-3, 5)]
    print("| cluster | " + " | ".join(f"{ratio:g}" for ratio in ratios) + " |\n|---|" + "---:|" * len(ratios))
    figures = []
    for cluster in CLUSTERS:
        ranks = ranks_of(arguments, cluster, "1f1b", 16)
        begin, end = cluster_in(ranks)
        figures.append(ranks[begin:end])
    columns = []
    for ratio in ratios:
        sequence = round(ratio * 12 * arguments.hidden)
        columns.append([a / b for a, b in zip(steps(arguments, figures, "1f1b", sequence), steps(arguments, figures, "weipipe", sequence))])
    curves = {cluster: [column[i] for column in columns] for i, cluster in enumerate(CLUSTERS)}
    for cluster, curve in curves.items():
        print(f"| `{cluster}` | " + " | ".join(f"{value:.2f}" for value in curve) + " |")
    if arguments.svg:
        draw(arguments.svg, ratios, curves, arguments.hidden)


if __name__ == "__main__":
    sys.exit(main())
