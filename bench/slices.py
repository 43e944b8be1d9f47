#!/usr/bin/env python3
"""Prints what a rank keeps of its forwards (stashes and keys) against sequence length: 1F1B, TeraPipe and SlimPipe by slices."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/slices.py [-c PP_COMPILE] [-D name=value].. [--run TOKENS]
# Four ranks, four microbatches, a llama of four layers with four query heads for each head of keys. `kept` is the planned sum
# of stashes and chunks of keys of the rank with the most; `claim` is what the papers' formulas make of 1F1B's: slice units of a
# stage on rank r, min(nm, n + 2(p-1-r)) for SlimPipe (helix_slim.md 2.3), nm for TeraPipe. `dkv`: sums of keys' gradients,
# which the papers do not count. `peak` is the whole arena. Sequences of up to TOKENS are run for a step: `used` is what the
# run touched of the arena. The last column draws `kept`.
import argparse, json, os, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RANKS = MICROBATCHES = 4
SYSTEMS = (("1f1b", 1), ("terapipe", RANKS), ("slimpipe", RANKS), ("slimpipe", 2 * RANKS), ("slimpipe", 4 * RANKS))


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


class Row:
    def __init__(self, arguments, schedule, slices, sequence):
        values = [f"schedule={schedule}", f"slices={slices}", f"sequence={sequence}", f"ranks={RANKS}",
                  f"microbatches={MICROBATCHES}", "layers=4", "hidden=32", "ffn=88", "heads=4", "kv_heads=1", "microbatch=1"]
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

    def kept(self, rank):
        return self.ranks[rank]["stash"] + self.ranks[rank].get("kv", 0)

    def claim(self, rank, stage):
        """`stage`: what one microbatch leaves on this rank."""
        n, m, p = self.slices, MICROBATCHES, RANKS
        units = {"1f1b": min(m, p - rank), "terapipe": n * m, "slimpipe": min(n * m, n + 2 * (p - 1 - rank))}[self.schedule]
        return units * stage / n


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="name=value")
    parser.add_argument("--run", type=int, default=0, metavar="TOKENS")
    arguments = parser.parse_args()
    print("| tokens | schedule | slices | kept MB | claim MB | of 1F1B | dkv MB | peak MB | used MB | |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|---|")
    for sequence in (4096, 8192, 16384, 32768, 65536):
        base = None
        for schedule, slices in SYSTEMS:
            row = Row(arguments, schedule, slices, sequence)
            base = base or row
            kept = [row.kept(rank) for rank in range(RANKS)]
            claims = [row.claim(rank, base.kept(rank) / min(MICROBATCHES, RANKS - rank)) for rank in range(RANKS)]
            share, of = max(kept) / max(base.kept(rank) for rank in range(RANKS)), lambda values: f"{max(values) / 1e6:.2f}"
            cells = (sequence, f"`{schedule}`", slices if schedule != "1f1b" else "", of(kept), of(claims), f"{share:.3f}",
                     of(rank.get("dkv", 0) for rank in row.ranks), of(rank["total"] for rank in row.ranks),
                     of([row.used]) if row.used else "", "#" * round(20 * share * sequence / 65536))
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
