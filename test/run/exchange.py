#!/usr/bin/env python3
"""Holds SlimPipe's exchange of attention against its specification: the two tables, and rules, messages and volumes at many sizes."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: exchange.py PP_COMPILE FOLDER
# Rules G and P are made here from helix_slim.md 2.5, not from the library. Volumes count both ends of a message, forward only,
# in hidden states of a whole sequence, all layers: keys and values of each slice that is helped with, queries, outputs. The
# numbers beside the sizes are the specification's, and so is the bound, eq. (2), where ranks without a unit do not help.
import json, os, re, sys
import harness
from slice_orders import forward

TABLES = os.path.join(harness.ROOT, "test", "run", "Inputs", "slimpipe_exchange.txt")
WIDTH, LENGTH, HEADS, KV_HEADS = 8, 4, 4, 1
SIZES = dict(hidden=WIDTH, heads=HEADS, kv_heads=KV_HEADS, ffn=8, vocab=16, microbatch=1, precision="f64")


def greedy(loads):
    order = sorted(loads, key=lambda r: (-loads[r], r))
    share, rest = divmod(sum(loads.values()), max(1, len(order)))
    target = {r: share + (i < rest) for i, r in enumerate(order)}
    give = [[r, loads[r] - target[r]] for r in order if loads[r] > target[r]]
    take = [[r, target[r] - loads[r]] for r in reversed(order) if loads[r] < target[r]]
    plan, given = [], {}
    while give:
        count, lo = min(give[0][1], take[0][1]), given.get(give[0][0], 0)
        plan.append((give[0][0], take[0][0], lo, lo + count))
        given[give[0][0]] = lo + count
        for side in (give, take):
            side[0][1] -= count
            if side[0][1] == 0:
                side.pop(0)
    return plan


def pairs(loads):
    order = sorted(loads, key=lambda r: (-loads[r], r))
    halves = [(a, b, (loads[a] - loads[b]) // 2) for a, b in zip(order, reversed(order[len(order) - len(order) // 2:]))]
    return [(a, b, 0, count) for a, b, count in halves if count > 0]


def phases(p, m, n, v, idle, rule):
    """In order: the direction, each rank's (stage, microbatch, slice), and the plan."""
    units, number = n * m * v, [0, 0]
    lead = min(n * v + p - 2, units + p - 2)
    order = [(True, t) for t in range(lead + 1)]
    later = [(True, t) for t in range(lead + 1, units + p - 1)]
    for b in range(units + p - 1):
        order += [(False, b)] + ([later.pop(0)] if later else [])
    for ahead, t in order:
        work = {}
        for r in range(p):
            u = t - r if ahead else t - (p - 1 - r)
            if 0 <= u < units:
                microbatch, slice, chunk = forward(u, p, n, v)
                work[r] = (chunk * p + r, microbatch, slice) if ahead else ((v - 1 - chunk) * p + r, microbatch, n - 1 - slice)
        helps = idle == "all" or (idle == "tail" and (t >= units if ahead else t < p - 1))
        loads = {r: work[r][2] + 1 if r in work else 0 for r in range(p) if r in work or helps}
        yield ahead, work, rule(loads), loads


def rows(p, steps, layers=1):
    lists = [[] for _ in range(p)]
    for ahead, work, plan in steps:
        cell = lambda r: f"s{work[r][2]}.{work[r][0]}{'F' if ahead else 'B'}{work[r][1]}"
        for r in work:
            lists[r].append(cell(r))
        for d, h, lo, hi in plan * layers:
            lists[h].append(f"{cell(d)}[{lo}to{hi}]")
    return lists


def command(compiler, p, m, n, v=1, layers=1, **more):
    values = SIZES | dict(schedule="slimpipe_interleaved" if v > 1 else "slimpipe", ranks=p, microbatches=m, slices=n, chunks=v,
                          layers=p * v * layers, sequence=LENGTH * n, exchange="true") | more
    return [compiler, harness.TRAIN] + [word for k, value in values.items() for word in ("-D", f"{k}={value}")]


def tasks(compiler, *sizes, **more):
    return [line.split(",") for line in harness.call(command(compiler, *sizes, **more) + ["--emit=tasks"]).stdout.splitlines()]


def read_tables():
    tables = {"off": [], "tail": []}
    for line in open(TABLES):
        if match := re.match(r"(off|tail) +([FB])(\d+) +(.*)\| ?(.*)", line):
            idle, direction, number, units, plan = match.groups()
            work = {r: (r, *map(int, unit.split("."))) for r, unit in enumerate(units.split()) if unit != "-"}
            helps = [tuple(map(int, re.findall(r"\d+", entry))) for entry in plan.split()]
            tables[idle].append((direction + number, direction == "F", work, helps))
    changed = {name: rest for name, *rest in tables["tail"]}
    tables["tail"] = [(name, *changed.get(name, rest)) for name, *rest in tables["off"]]
    return tables


def differences(expected, got):
    return [f"rank {r}: expected {a}, got {b}" for r, (a, b) in enumerate(zip(expected, got)) if a != b]


def check_tables(compiler, tally):
    for idle, steps in read_tables().items():
        wrong = differences(rows(4, [step[1:] for step in steps]), tasks(compiler, 4, 2, 8, idle=idle))
        print(*wrong, sep="\n", end="\n" * bool(wrong))
        tally.check(not wrong and len(steps) == 38, f"table of {len(steps)} phases, idle={idle}")


def check_sizes(compiler, tally):
    rules = dict(greedy=greedy, pairs=pairs)
    for p, m, n, v, layers in ((2, 2, 4, 1, 1), (2, 1, 4, 1, 2), (3, 2, 6, 1, 1), (5, 1, 5, 1, 1), (4, 2, 8, 2, 1), (4, 1, 16, 1, 1)):
        for idle, name, early in (("off", "greedy", True), ("all", "greedy", False), ("tail", "pairs", True)):
            steps = list(phases(p, m, n, v, idle, rules[name]))
            more = dict(idle=idle, rule=name, early=str(early).lower())
            wrong = differences(rows(p, [step[:3] for step in steps], layers), tasks(compiler, p, m, n, v, layers, **more))
            stats = json.loads(harness.call(command(compiler, p, m, n, v, layers, **more) + ["--emit=stats"]).stdout)["per_rank"]
            wrong += messages(steps, stats, layers)
            print(*wrong[:6], sep="\n", end="\n" * bool(wrong))
            tally.check(not wrong, f"p = {p}, m = {m}, n = {n}, v = {v}, {layers} a stage, idle={idle}, {name}, early={early}")


def messages(steps, ranks, layers):
    """Section 2.5's table, in bytes that each rank sends."""
    e, keys, statistic = LENGTH * WIDTH * 8, LENGTH * WIDTH * KV_HEADS // HEADS * 8, LENGTH * HEADS * 8
    sent = [dict(kv=0, query=0, part=0) for _ in ranks]
    for ahead, _, plan, _ in steps:
        for d, h, lo, hi in plan:
            k = hi - lo
            sent[d]["kv"] += layers * 2 * k * keys
            sent[d]["query"] += layers * (e if ahead else 2 * e + 2 * statistic)
            sent[h]["part"] += layers * (e + statistic if ahead else e + 2 * k * keys)
    return [f"rank {r} sends {rank['bytes_sent'].get(role, 0)} bytes of {role}, expected {expected[role]}"
            for r, (rank, expected) in enumerate(zip(ranks, sent)) for role in expected
            if rank["bytes_sent"].get(role, 0) != expected[role]]


def volume(cells, p, n, m):
    """Of the forward, at the rank that sends and receives most, from the lists that pp-compile printed."""
    ends = [0] * p
    for h, row in enumerate(cells):
        for cell in row:
            if match := re.match(r"s\d+\.(\d+)F\d+\[(\d+)to(\d+)\]", cell):
                d, lo, hi = map(int, match.groups())
                for r in (d % p, h):
                    ends[r] += 2 * (hi - lo) + 2
    return max(ends) / n / m / p


def check_volumes(compiler, tally):
    for p, n, theta, given in ((4, 8, 1.375, (0.98, 1.22, 1.484)), (8, 16, 1.4375, (0.98, 1.17, 1.422)), (8, 32, 1.65625, (1.18, 1.42, 1.658))):
        for (rule, idle), wanted in zip((("pairs", "off"), ("greedy", "off"), ("greedy", "tail")), given):
            found = volume(tasks(compiler, p, 4, n, idle=idle, rule=rule), p, n, 4)
            bound = theta if idle == "off" else 2
            tally.check(abs(found - wanted) <= 0.006 and found <= bound,
                        f"p = {p}, n = {n}, {rule}, idle={idle}: volume {found:.3f}, specification {wanted}, bound {bound:.3f}")


def check_times(compiler, tally):
    """Attention only, as in section 4.3. There every phase waits for the last rank, here ranks wait for what they need."""
    p, m, n = 4, 2, 8
    for exchange, idle, limit in (("false", "off", 0.417), ("true", "off", 0.278), ("true", "tail", 0.139), ("true", "all", 0.125)):
        options = ["--emit=stats", "--costs=attn=1"]
        stats = json.loads(harness.call(command(compiler, p, m, n, exchange=exchange, idle=idle) + options).stdout)
        bubble = stats["makespan"] / (sum(rank["busy"] for rank in stats["per_rank"]) / p) - 1
        exact = exchange == "false"
        good = abs(bubble - limit) <= 0.0005 if exact else bubble <= limit
        tally.check(good and (idle in ("tail", "all")) == (bubble < (p - 1) / (n * m)),
                    f"exchange={exchange}, idle={idle}: bubble {bubble:.3f} of the work, in phases {limit}")


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    tally = harness.Tally()
    check_tables(compiler, tally)
    check_sizes(compiler, tally)
    check_volumes(compiler, tally)
    check_times(compiler, tally)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
