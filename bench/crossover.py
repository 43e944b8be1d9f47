#!/usr/bin/env python3
"""Simulates 1F1B and WeiPipe over sequence lengths on every cluster, to see where weights cost less."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/crossover.py [-c PP_COMPILE] [--svg FILE] [--hidden H] [--ranks P]
# WeiPipe's rule (section 3): a stage's output, G S H numbers, outweighs a layer's weights, 12 H^2, where G S / 12 H >
# 1. The tables have tokens/s of WeiPipe (weights and gradients in 16 bits, prefetched) over those of 1F1B, one layer a
# rank, four microbatches a rank, recomputation on; first with a 1F1B whose messages are behind its tasks, then with one
# that does one thing at a time, as Megatron's. --svg draws their rows as curves over G S / 12 H and marks where they
# pass 1.
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
STROKES = [("#4269d0", ""), ("#ff725c", "7 5"), ("#3ca951", ""), ("#a463f2", ""),
           ("#9c6b4e", "")]  # where two lie on each other, one is dashed
WIDTH, HEIGHT, TOP = 420, 300, 70


def ranks_of(arguments, cluster, schedule, sequence):
    sizes = dict(p=arguments.ranks, m=4 * arguments.ranks, hidden=arguments.hidden,
                 ffn=arguments.hidden * 8 // 3 // 64 * 64)
    text = PROGRAM.format(schedule=SCHEDULES[schedule].format(**sizes), cluster=cluster, sequence=sequence, **sizes)
    ranks, error = compile_text(arguments.compiler, text, "ranks", "--memory-limit=1e14")
    return ranks or sys.exit(error)


def steps(arguments, figures, schedule, sequence, overlaps):
    """Seconds of a step, by `overlap` and cluster: the rank programs are the same on all, but for the cluster's
    figures."""
    ranks = ranks_of(arguments, CLUSTERS[0], schedule, sequence)
    begin, end = cluster_in(ranks)
    stats = lambda one, overlap: json.loads(compile_text(arguments.compiler, ranks[:begin] + one + ranks[end:], "stats",
                                                         f"--overlap={overlap}", suffix=".mlir")[0])
    return [[stats(one, overlap)["step"] for one in figures] for overlap in overlaps]


def crossings(ratios, curve):
    """Where the curve passes 1, between two ratios: on a straight line of the logarithms."""
    points = list(zip(map(math.log2, ratios), map(math.log2, curve)))
    return [2 ** (x0 + (x1 - x0) * y0 / (y0 - y1)) for (x0, y0), (x1, y1) in zip(points, points[1:])
            if (y0 < 0) != (y1 < 0)]


def fraction(value):
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"


def panel(out, left, title, ratios, curves, bottom, peak):
    """One plot, both axes logarithmic: above the rule at 1 weight passing is faster."""
    low, high = math.log2(ratios[0]), math.log2(ratios[-1])
    x = lambda ratio: left + (math.log2(ratio) - low) / (high - low) * WIDTH
    y = lambda speed: TOP + (peak - math.log2(speed)) / (peak - bottom) * HEIGHT
    out += [f'<text x="{left}" y="{TOP - 12}" font-weight="bold">{title}</text>',
            f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{y(1) - TOP:.1f}" fill="#f3f7f0"/>',
            f'<text x="{left + 6}" y="{TOP + 16}" fill="#577">weights travel cheaper</text>',
            f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 38}" text-anchor="middle">G S / 12 H</text>']
    for ratio in ratios:
        out.append(f'<line x1="{x(ratio):.1f}" x2="{x(ratio):.1f}" y1="{TOP}" y2="{TOP + HEIGHT}" '
                   f'stroke="{"#999" if ratio == 1 else "#e4e4e4"}"/>'
                   f'<text x="{x(ratio):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{fraction(ratio)}</text>')
    for tick in range(bottom, peak + 1):
        out.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y(2.0 ** tick):.1f}" y2="{y(2.0 ** tick):.1f}" '
                   f'stroke="{"#999" if tick == 0 else "#e4e4e4"}"/>'
                   f'<text x="{left - 6}" y="{y(2.0 ** tick) + 4:.1f}" '
                   f'text-anchor="end">{fraction(2.0 ** tick)}</text>')
    for (name, curve), (colour, dashes) in zip(curves.items(), STROKES):
        points = " ".join(f"{x(ratio):.1f},{y(speed):.1f}" for ratio, speed in zip(ratios, curve))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
                   f'stroke-dasharray="{dashes}"/>')
    for (name, curve), (colour, dashes) in zip(curves.items(), STROKES):
        out += [f'<circle cx="{x(at):.1f}" cy="{y(1):.1f}" r="4" fill="{colour}"/>' for at in crossings(ratios, curve)]


def draw(path, ratios, panels, arguments):
    left, gap = 50, 60
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 2 * WIDTH + gap + 20}" '
           f'height="{TOP + HEIGHT + 90}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="24" font-size="15">Tokens/s of WeiPipe over those of 1F1B: hidden {arguments.hidden}, '
           f'{arguments.ranks} ranks</text>']
    heights = [math.log2(value) for curves in panels.values() for curve in curves.values() for value in curve]
    for i, (title, curves) in enumerate(panels.items()):
        panel(out, left + i * (WIDTH + gap), title, ratios, curves, math.floor(min(heights)),
              math.ceil(max(0.5, *heights)))
    for i, (name, (colour, dashes)) in enumerate(zip(CLUSTERS, STROKES)):
        at, line = left + i * (2 * WIDTH + gap) / len(CLUSTERS), TOP + HEIGHT + 68
        out.append(f'<line x1="{at}" x2="{at + 28}" y1="{line}" y2="{line}" stroke="{colour}" stroke-width="2" '
                   f'stroke-dasharray="{dashes}"/>'
                   f'<text x="{at + 34}" y="{line + 4}">{name}</text>')
    with open(path, "w") as file:
        file.write("\n".join(out + ["</svg>"]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--svg", metavar="FILE")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=16)
    arguments = parser.parse_args()
    ratios = [2.0 ** k for k in range(-3, 5)]
    figures = []
    for cluster in CLUSTERS:
        ranks = ranks_of(arguments, cluster, "1f1b", 16)
        begin, end = cluster_in(ranks)
        figures.append(ranks[begin:end])
    ways = {"1F1B sends behind its tasks": "true", "1F1B does one thing at a time": "false"}
    columns = []
    for ratio in ratios:
        sequence = round(ratio * 12 * arguments.hidden)
        weipipe = steps(arguments, figures, "weipipe", sequence, ["true"])[0]
        columns.append([[a / b for a, b in zip(way, weipipe)]
                        for way in steps(arguments, figures, "1f1b", sequence, ways.values())])
    panels = {title: {cluster: [column[way][i] for column in columns] for i, cluster in enumerate(CLUSTERS)}
              for way, title in enumerate(ways)}
    for title, curves in panels.items():
        print(f"| {title} | " + " | ".join(map(fraction, ratios)) + " | passes 1 at |\n|---|"
              + "---:|" * (len(ratios) + 1))
        for cluster, curve in curves.items():
            at = ", ".join(f"{value:.2f}" for value in crossings(ratios, curve))
            print(f"| `{cluster}` | " + " | ".join(f"{value:.2f}" for value in curve) + f" | {at} |")
        print()
    if arguments.svg:
        draw(arguments.svg, ratios, panels, arguments)


if __name__ == "__main__":
    sys.exit(main())
