#!/usr/bin/env python3
"""Holds TeraPipe's and SlimPipe's lists, messages and pools of keys against their specification, at many sizes."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: slice_orders.py PP_COMPILE FOLDER
# The lists are made here from the index maps of docs/schedules.md, unit number to (microbatch, slice, chunk of stages),
# not from the library's phases. Messages: one activation and one gradient for every unit but those of the ends, of a
# slice each. Keys: as many chunks as live units; their gradients: all chunks but the last of one microbatch a stage.
import json, os, sys
import harness

WIDTH, LENGTH = 8, 4  # of activations; tokens of a slice
SIZES = dict(hidden=WIDTH, heads=4, kv_heads=1, ffn=8, vocab=16, microbatch=1, precision="f64")


def forward(f, p, n, v):
    """Microbatch, slice and chunk of forward unit f."""
    j = f % (n * v)
    if v == 1:
        return f // n, j, 0
    g, w = j // (p * v), j % (p * v)
    return f // (n * v), g * p + w % p, w // p


def slimpipe(r, p, m, n, v):
    units = n * m * v
    ahead = min(units, n * v - 1 + 2 * (p - 1 - r))

    def cell(phase, number):
        microbatch, slice, chunk = forward(number, p, n, v)
        if phase == "B":
            slice, chunk = n - 1 - slice, v - 1 - chunk
        return f"s{slice}.{chunk * p + r}{phase}{microbatch}"

    cells = [cell("F", f) for f in range(ahead)]
    for k in range(units - ahead):
        cells += [cell("F", ahead + k), cell("B", k)]
    return cells + [cell("B", k) for k in range(units - ahead, units)]


def terapipe(r, p, m, n, v):
    units = [(i, k) for i in range(m) for k in range(n)]
    return [f"s{k}.{r}F{i}" for i, k in units] + [f"s{k}.{r}B{i}" for i, k in reversed(units)]


def errors(compiler, schedule, rows, live, p, m, n, v):
    values = SIZES | dict(schedule=schedule, ranks=p, microbatches=m, slices=n, chunks=v, layers=p * v,
                          sequence=LENGTH * n)
    command = [compiler, harness.TRAIN] + [word for k, value in values.items() for word in ("-D", f"{k}={value}")]
    lists = [row.split(",") for row in harness.call(command + ["--emit=tasks"]).stdout.splitlines()]
    ranks = json.loads(harness.call(command + ["--emit=stats"]).stdout)["per_rank"]
    pairs = [(f"list of rank {r}", rows(r, p, m, n, v), lists[r]) for r in range(p)]
    chunk = 2 * LENGTH * WIDTH // 4 * 8  # keys and values of one head of four
    for role in ("act", "dact"):
        count = (p * v - 1) * n * m
        pairs.append((f"{role} messages", count, sum(rank["messages_sent_by_role"].get(role, 0) for rank in ranks)))
        pairs.append((f"{role} bytes", count * LENGTH * WIDTH * 8,
                      sum(rank["bytes_sent"].get(role, 0) for rank in ranks)))
    for r, rank in enumerate(ranks):
        pairs.append((f"keys on rank {r}", live(r, p, m, n, v) * chunk, rank["peak_bytes"]["kv"]))
        if v == 1 and n > 1:
            pairs.append((f"gradients of keys on rank {r}", (n - 1) * chunk, rank["peak_bytes"]["dkv"]))
    return [f"p = {p}, m = {m}, n = {n}, v = {v}: {what}: expected {expected}, got {got}"
            for what, expected, got in pairs
            if expected != got]


CASES = (("terapipe", terapipe, lambda r, p, m, n, v: n * m,
          [(p, m, n, 1) for p in (2, 5) for m in (1, 3) for n in (1, 6)]),
         ("slimpipe", slimpipe, lambda r, p, m, n, v: min(n * m, n + 2 * (p - 1 - r)),
          [(p, m, n, 1) for p in (2, 3, 8) for m in (1, 2, 3) for n in (p, p + 1, 3 * p)]),
         ("slimpipe_interleaved", slimpipe, lambda r, p, m, n, v: min(n * m * v, n * v + 2 * (p - 1 - r)),
          [(p, m, n, v) for p in (2, 4) for m in (1, 2, 4) for n in (p, 3 * p) for v in (2, 3)]))


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    tally = harness.Tally()
    for schedule, rows, live, sizes in CASES:
        wrong = [error for size in sizes for error in errors(compiler, schedule, rows, live, *size)]
        for line in wrong[:10]:
            print("     " + line)
        tally.check(not wrong, f"{schedule}: {len(sizes)} sizes, {len(wrong)} differences")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
