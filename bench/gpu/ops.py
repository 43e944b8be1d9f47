#!/usr/bin/env python3
"""What each kind of op took in a run beside what a cluster's figures predict, the longest first."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: ops.py PROFILE STATS [ROWS]     PROFILE of a run with --profile-ops; STATS of `pp-compile PROGRAM
#                                        --cluster=NAME --emit=stats`, of the same program
# An emitted program updates its weights in one call where STATS have one for each: a kind that the other file lacks has
# the times of all ops of its kernel, under both of its names (adamw, adamw_all).
import collections, json, sys


def kinds(path, steps):
    """Seconds and calls of a step by kernel, type, dims and flags."""
    with open(path) as file:
        told = json.load(file)
    steps = told["steps"] if steps is None else steps
    return {(op["kernel"], op["type"], tuple(op["dims"]), tuple(op["flags"])):
            (op["count"] * op["mean"] / steps, op["count"] / steps) for op in told["ops"]}


def merged(of, others):
    """With the kinds that only one side has as one for each kernel."""
    rows = collections.defaultdict(lambda: (0.0, 0.0))
    for key, (seconds, calls) in of.items():
        if key not in others:
            key = (key[0].removesuffix("_all"), key[1], (), ())
        rows[key] = (rows[key][0] + seconds, rows[key][1] + calls)
    return rows


def table(profile, stats, rows=12):
    ran, planned = kinds(profile, None), kinds(stats, 1)
    ran, planned = merged(ran, planned), merged(planned, ran)
    all_ran, all_planned = (sum(seconds for seconds, _ in its.values()) for its in (ran, planned))
    lines = ["| op | calls a step | ms a step | share | predicted, ms | measured / predicted |", "|---|" + "---:|" * 5]
    for key in sorted(ran, key=lambda key: -ran[key][0])[:rows]:
        seconds, calls = ran[key]
        predicted = planned[key][0] if key in planned else 0
        name = " ".join([key[0], key[1], *map(str, key[2]), *key[3]])
        lines.append(f"| {name} | {calls:.0f} | {1e3 * seconds:.3f} | {100 * seconds / all_ran:.1f} % | "
                     f"{1e3 * predicted:.3f} | {f'{seconds / predicted:.2f}' if predicted else ''} |")
    lines.append(f"| all {len(ran)} kinds | {sum(calls for _, calls in ran.values()):.0f} | {1e3 * all_ran:.3f} | | "
                 f"{1e3 * all_planned:.3f} | {all_ran / all_planned:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(*sys.argv[1:3], *map(int, sys.argv[3:])))
