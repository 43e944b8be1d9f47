#!/usr/bin/env python3
"""Holds SlimPipe's exchange of attention against its specification: two tables, rules, messages and volumes."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: exchange.py PP_COMPILE FOLDER
# Rules G and P are made here from docs/schedules.md, not from the library. Volumes count both ends of a message,
# forward only, in hidden states of a whole sequence, all layers: keys and values of each slice that is helped with,
# queries, outputs. The numbers beside the sizes are the specification's, and so is the bound, eq. (2), where ranks
# without a unit do not help.
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
                work[r] = (chunk * p + r, microbatch, slice) if ahead else ((v - 1 - chunk) * p + r, microbatch,
                                                                            n - 1 - slice)
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
    values = SIZES | dict(schedule="slimpipe_interleaved" if v > 1 else "slimpipe", ranks=p, microbatches=m, slices=n,
                          chunks=v, layers=p * v * layers, sequence=LENGTH * n, exchange="true") | more
    return [compiler, harness.TRAIN] + [word for k, value in values.items() for word in ("-D", f"{k}={value}")]


def tasks(compiler, *sizes, **more):
    return [line.split(",") for line in harness.call(command(compiler, *sizes, **more)
                                                     + ["--emit=tasks"]).stdout.splitlines()]


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
    for p, m, n, v, layers in ((2, 2, 4, 1, 1), (2, 1, 4, 1, 2), (3, 2, 6, 1, 1), (5, 1, 5, 1, 1), (4, 2, 8, 2, 1),
                               (4, 1, 16, 1, 1)):
        for idle, name, early in (("off", "greedy", True), ("all", "greedy", False), ("tail", "pairs", True)):
            steps = list(phases(p, m, n, v, idle, rules[name]))
            more = dict(idle=idle, rule=name, early=str(early).lower())
            wrong = differences(rows(p, [step[:3] for step in steps], layers),
                                tasks(compiler, p, m, n, v, layers, **more))
            stats = json.loads(harness.call(command(compiler, p, m, n, v, layers, **more)
                                            + ["--emit=stats"]).stdout)["per_rank"]
            wrong += messages(steps, stats, layers)
            print(*wrong[:6], sep="\n", end="\n" * bool(wrong))
            tally.check(not wrong, f"p = {p}, m = {m}, n = {n}, v = {v}, {layers} a stage, idle={idle}, {name}, "
                                   f"early={early}")


def messages(steps, ranks, layers):
    """The table of docs/schedules.md, in bytes that each rank sends."""
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
    for p, n, theta, given in ((4, 8, 1.375, (0.98, 1.22, 1.484)), (8, 16, 1.4375, (0.98, 1.17, 1.422)),
                               (8, 32, 1.65625, (1.18, 1.42, 1.658))):
        for (rule, idle), wanted in zip((("pairs", "off"), ("greedy", "off"), ("greedy", "tail")), given):
            found = volume(tasks(compiler, p, 4, n, idle=idle, rule=rule), p, n, 4)
            bound = theta if idle == "off" else 2
            tally.check(abs(found - wanted) <= 0.006 and found <= bound,
                        f"p = {p}, n = {n}, {rule}, idle={idle}: volume {found:.3f}, specification {wanted}, bound "
                        f"{bound:.3f}")


def attended(p, m, n, v, idle, rule, strict):
    """Bubble of attention alone by the specification's slot rule: a phase's messages are posted by both ends behind it,
    in one group. It is waited for before its use, or, strict, at once: then no rank begins a phase before its
    neighbours have come to it."""
    times, arrived = [0] * p, {True: [0] * p, False: [0] * p}
    for ahead, work, plan, _ in phases(p, m, n, v, idle, rule):
        cost = 1 if ahead else 2
        begin = times = [max(times[r], arrived[ahead][r]) if r in work and not strict else times[r] for r in range(p)]
        own = {r: work[r][2] + 1 for r in work}
        for d, _, lo, hi in plan:
            own[d] -= hi - lo
        ends = [begin[r] + cost * own.get(r, 0) for r in range(p)]
        back = list(ends)
        for d, h, lo, hi in plan:
            ends[h] = max(ends[h], begin[d]) + cost * (hi - lo)
            back[d] = max(back[d], ends[h])
        times = [max(pair) for pair in zip(ends, back)]
        group = list(times)
        for r in work:
            to = work[r][0] + (1 if ahead else -1)
            for end in (r, to % p) if 0 <= to < p * v else ():
                group[end] = max(group[end], times[r], times[to % p])
        times, arrived[ahead] = (group if strict else times), group
    return max(times) / (3 * m * v * n * (n + 1) / 2) - 1


def in_phases(p, m, n, v, idle, rule, rest):
    """Bubble where every phase waits for the last rank; the diagonal block costs half, all but the attention `rest`."""
    length = 0
    for ahead, work, plan, loads in phases(p, m, n, v, idle, rule):
        for d, h, lo, hi in plan:
            loads[d], loads[h] = loads[d] - (hi - lo), loads[h] + (hi - lo)
        length += (1 if ahead else 2) * (rest + max(loads[r] - (r in work) / 2 for r in loads))
    return length / (3 * m * v * n * (rest + n / 2)) - 1


# docs/schedules.md, attention only: p, m, n, v; without exchange, then rule G with idle=off, tail, all.
SETTINGS = (("false", "off", lambda loads: []), *(("true", idle, greedy) for idle in ("off", "tail", "all")))
IN_PHASES = {(4, 2, 8, 1): (0.583, 0.292, 0.139, 0.125), (4, 2, 8, 2): (None, 0.201, 0.125, 0.118),
             (4, 2, 32, 1): (None, None, 0.032, None)}
STRICT = {(4, 2, 8, 1): (0.542, 0.278, 0.139, 0.125), (8, 4, 32, 1): (0.355,)}
HALF_DIAGONAL = {(4, 2, 8, 1): (0.254, 0.165, 0.161), (4, 2, 32, 1): (0.073, 0.035, 0.034),
                 (8, 4, 32, 1): (0.081, 0.038, 0.036)}


def check_times(compiler, tally):
    """The specification counts in phases; here ranks wait for what they need only, unless collectives hold all of them
    together."""
    def bubble(size, exchange, idle, *options, **more):
        more |= dict(exchange=exchange, idle=idle)
        stats = json.loads(harness.call(command(compiler, *size, **more)
                                        + ["--emit=stats", "--costs=attn=1,rest=0", *options]).stdout)
        return stats["makespan"] / (sum(rank["busy"] for rank in stats["per_rank"]) / size[0]) - 1

    for size, given in IN_PHASES.items():
        for (exchange, idle, _), wanted in zip(SETTINGS, given):
            if wanted is not None:
                found = bubble(size, exchange, idle, "--lockstep")
                tally.check(abs(found - wanted) <= 0.0005,
                            f"{size}, exchange={exchange}, idle={idle}, in lockstep: bubble {found:.4f}, specification "
                            f"{wanted}")
    for size, given in STRICT.items():
        for (_, idle, rule), wanted in zip(SETTINGS, given):
            found = attended(*size, idle, rule, True)
            tally.check(abs(found - wanted) <= 0.0005,
                        f"{size}, idle={idle}, strict slots: {found:.4f}, specification {wanted}")
    for size, given in HALF_DIAGONAL.items():
        for idle, wanted in zip(("off", "tail", "all"), given):
            found = in_phases(*size, idle, greedy, 3)
            tally.check(abs(found - wanted) <= 0.0006,
                        f"{size}, idle={idle}, pre and post, half a diagonal: {found:.4f}, specification {wanted}")
    size = (4, 2, 8, 1)
    for exchange, idle, rule in SETTINGS:
        found, wanted = bubble(size, exchange, idle), attended(*size, idle, rule, False)
        held = bubble(size, exchange, idle, vocabulary="true")
        tally.check(abs(found - wanted) < 1e-9
                    and (idle in ("tail", "all")) == (found < (size[0] - 1) / (size[2] * size[1])),
                    f"exchange={exchange}, idle={idle}: bubble {found:.4f}, by the slot rule {wanted:.4f}")
        tally.check(abs(held - IN_PHASES[size][SETTINGS.index((exchange, idle, rule))]) <= 0.0005,
                    f"exchange={exchange}, idle={idle}, with the vocabulary's collectives: bubble {held:.4f}")


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
