#!/usr/bin/env python3
"""Prints what a rank keeps of its forwards by sequence length: 1F1B, TeraPipe, SlimPipe by slices, and HelixPipe."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/slices.py [-c PP_COMPILE] [-D name=value].. [--run TOKENS] [--svg FILE]
# Four ranks, four microbatches, a llama of four layers with four query heads for each head of keys. `kept` is the
# planned sum of stashes and chunks of keys of the rank with the most; `claim` is what the papers' formulas make of
# 1F1B's: slice units of a stage on rank r, min(nm, n + 2(p-1-r)) for SlimPipe (docs/schedules.md), nm for TeraPipe.
# `dkv`: sums of keys' gradients, which the papers do not count. `peak` is the whole arena. Sequences of up to TOKENS
# are run for a step: `used` is what the run touched of the arena. The last column draws `kept`. HelixPipe with `forget`
# has no claim: 4 of 16 is the paper's count of tensors, ours are others; `mlp_chunks` is `mlp chunks`, which leaves
# `kept` and lowers `peak`. FILE gets the arenas as a picture: lines are planned, filled marks measured.
import argparse, json, math, os, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RANKS = MICROBATCHES = 4
TOKENS = (4096, 8192, 16384, 32768, 65536)
SYSTEMS = (("1f1b", 1), ("terapipe", RANKS), ("slimpipe", RANKS), ("slimpipe", 2 * RANKS), ("slimpipe", 4 * RANKS),
           ("helixpipe", 1), ("helixpipe/forget=true", 1), ("helixpipe/forget=true/mlp_chunks=16", 1))
COLOURS = ("#444444", "#999999", "#f0a500", "#d9480f", "#a61e4d", "#1971c2", "#74b816", "#2f9e44")


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


class Row:
    def __init__(self, arguments, schedule, slices, sequence):
        values = [f"schedule={schedule.split('/')[0]}", *schedule.split("/")[1:], f"slices={slices}",
                  f"sequence={sequence}", f"ranks={RANKS}",
                  f"microbatches={MICROBATCHES}", "layers=4", "hidden=32", "ffn=88", "heads=4", "kv_heads=1",
                  "microbatch=1"]
        defines = [word for value in values + arguments.defines for word in ("-D", value)]
        self.command = [arguments.compiler, os.path.join(ROOT, "examples", "train.pipe"), *defines]
        self.schedule, self.slices, self.sequence = schedule, slices, sequence
        self.ranks = [rank["peak_bytes"] for rank in json.loads(call(self.command + ["--emit=stats"]))["per_rank"]]
        self.used = self.run() if sequence <= arguments.run else None

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            program, text = os.path.join(folder, "program"), os.path.join(folder, "text")
            with open(text, "w") as file:
                file.write("some text to read " * (self.sequence * MICROBATCHES // 18 + 2))
            call(self.command + ["-o", program])
            lines = call([program, "--in-process", "--data", text, "--steps", "1"]).splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("rank ") and "used B" in line)
        return max(int(line.split()[2]) for line in lines[first + 1:first + 1 + RANKS])

    def total(self):
        return max(rank["total"] for rank in self.ranks)

    def kept(self, rank):
        return self.ranks[rank]["stash"] + self.ranks[rank].get("kv", 0)

    def claim(self, rank, stage):
        """`stage`: what one microbatch leaves on this rank."""
        n, m, p = self.slices, MICROBATCHES, RANKS
        units = {"1f1b": min(m, p - rank), "terapipe": n * m, "slimpipe": min(n * m, n + 2 * (p - 1 - rank)),
                 "helixpipe": m}
        return units[self.schedule] * stage / n if self.schedule in units else 0


def name(schedule, slices):
    return schedule.replace("/", ", ") + (f", {slices} slices" if slices > 1 else "")


def draw(rows, path):
    """Bytes of the arena over tokens, a line for each system; a mark is filled where a run has touched so much."""
    width, height, left, top = 560, 420, 70, 30
    most = max(row.total() for row in rows)
    tick = 10 ** math.floor(math.log10(most / 2))
    tick *= next(times for times in (1, 2, 5) if most / (times * tick) < 6)
    x = lambda tokens: left + width * tokens / TOKENS[-1]
    y = lambda value: top + height * (1 - value / most)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 230} {top + height + 60}" '
           'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="18" font-size="14">Memory of the rank with the most, MB, over tokens of a '
           f'sequence</text>',
           f'<path d="M{left} {top}V{top + height}H{left + width}" fill="none" stroke="black"/>']
    out += [f'<text x="{x(t)}" y="{top + height + 18}" text-anchor="middle">{t // 1024}k</text>' for t in TOKENS]
    for value in range(0, int(most) + 1, tick):
        out.append(f'<text x="{left - 6}" y="{y(value) + 4}" text-anchor="end">{value / 1e6:.0f}</text>'
                   f'<path d="M{left} {y(value)}h{width}" stroke="#dddddd"/>')
    labels = []
    for (schedule, slices), colour in zip(SYSTEMS, COLOURS):
        line = [row for row in rows if (row.schedule, row.slices) == (schedule, slices)]
        points = " ".join(f"{x(row.sequence):.1f},{y(row.total()):.1f}" for row in line)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for row in line:
            value, fill = (row.used, colour) if row.used else (row.total(), "white")
            out.append(f'<circle cx="{x(row.sequence):.1f}" cy="{y(value):.1f}" r="4" fill="{fill}" '
                       f'stroke="{colour}"/>')
        labels.append([y(line[-1].total()) + 4, colour, name(schedule, slices)])
    last = 0
    for at, colour, text in sorted(labels):  # no two on one another
        last = max(at, last + 14)
        out.append(f'<text x="{left + width + 10}" y="{last:.1f}" fill="{colour}">{text}</text>')
    out.append(f'<text x="{left}" y="{top + height + 44}">filled: bytes that a run touched; hollow: planned '
               f'only</text></svg>')
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="name=value")
    parser.add_argument("--run", type=int, default=0, metavar="TOKENS")
    parser.add_argument("--svg", metavar="FILE")
    arguments = parser.parse_args()
    print("| tokens | schedule | slices | kept MB | claim MB | of 1F1B | dkv MB | peak MB | used MB | |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|---|")
    rows = []
    for sequence in TOKENS:
        base = None
        for schedule, slices in SYSTEMS:
            row = Row(arguments, schedule, slices, sequence)
            rows.append(row)
            base = base or row
            kept = [row.kept(rank) for rank in range(RANKS)]
            claims = [row.claim(rank, base.kept(rank) / min(MICROBATCHES, RANKS - rank)) for rank in range(RANKS)]
            share = max(kept) / max(base.kept(rank) for rank in range(RANKS))
            of = lambda values: f"{max(values) / 1e6:.2f}"
            cells = (sequence, f"`{schedule}`", slices if slices > 1 else "", of(kept),
                     of(claims) if any(claims) else "", f"{share:.3f}",
                     of(rank.get("dkv", 0) for rank in row.ranks), of(rank["total"] for rank in row.ranks),
                     of([row.used]) if row.used else "", "#" * round(20 * share * sequence / 65536))
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    if arguments.svg:
        draw(rows, arguments.svg)


if __name__ == "__main__":
    sys.exit(main())
