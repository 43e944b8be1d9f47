#!/usr/bin/env python3
"""Judges SlimPipe by execution, at the sizes and with the options of its specification: gradients against one rank."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: slimpipe.py PP_COMPILE FOLDER [--quick]
# SIZES are ranks, slices, microbatches, chunks a rank, and layers a stage. Exchanges are rule G with idle ranks that
# help never, at the ends, or always, rule P, and none. Keys are early or late, the vocabulary cut or whole, sends
# strict (rendezvous) or buffered. All combinations run in f64, on a llama with four query heads for one of keys.
# --quick runs half of the pairs of a size and a rule, so that each size has two rules or more and each rule four sizes,
# the other options in turn, and all ways to send in every sixth case. Then
# odd sizes: slices of unequal length, fewer slices or microbatches than ranks, one rank alone; some of the stashes in
# host memory.
import itertools, os, sys
import harness
from gradients import TOLERANCE, Runner, difference

SIZES = ((2, 2, 2, 1, 1), (2, 4, 2, 1, 2), (4, 4, 2, 1, 1), (4, 8, 2, 1, 1), (4, 8, 2, 2, 1), (2, 4, 3, 2, 1),
         (3, 6, 1, 1, 1), (3, 9, 2, 1, 1))
RULES = (dict(exchange="false"), *(dict(exchange="true", rule="greedy", idle=idle) for idle in ("off", "tail", "all")),
         dict(exchange="true", rule="pairs", idle="tail"))
ODD = ((4, 2, 1, 1, 1), (4, 3, 2, 1, 1), (2, 5, 1, 1, 1), (1, 4, 2, 2, 1))
SENDS = (("mpi", "rendezvous"), ("threads", "rendezvous"), ("threads", "buffered"))


def cases(quick):
    """A size, options, and the ways to send."""
    for (i, size), (j, rule) in itertools.product(enumerate(SIZES), enumerate(RULES)):
        rest = [dict(early=early, vocabulary=cut) for early in ("true", "false")[:1 + (j > 0)]
                for cut in ("true", "false")]
        for k, options in enumerate(rest):
            if not quick:
                yield size, rule | options, SENDS
            elif (i + j) % 2 == 0 and k == (i + j) // 2 % len(rest):
                yield size, rule | options, SENDS if (i + j) % 6 == 0 else SENDS[1 + j % 2:2 + j % 2]
    for size in ODD:
        rest = dict(exchange="true", rule="greedy", idle="tail", vocabulary="true", offload=60)
        yield size, rest, SENDS[quick:1 + quick]


def main():
    compiler, folder = sys.argv[1:3]
    os.makedirs(folder, exist_ok=True)
    runner, tally, references = Runner(compiler, folder), harness.Tally(), {}
    for (p, n, m, v, depth), options, ways in cases("--quick" in sys.argv):
        model = dict(model="llama", precision="f64", hidden=16, heads=4, kv_heads=1, ffn=24, vocab=131, microbatches=m,
                     layers=p * v * depth, sequence=3 * n + ((p, n, m, v, depth) in ODD))
        key = tuple(model.values())
        if key not in references:
            references[key] = runner.run(runner.compile(schedule="single", ranks=1, **model), 1, "threads",
                                         "rendezvous", 2)
        program = runner.compile(schedule="slimpipe_interleaved", ranks=p, slices=n, chunks=v, **model, **options)
        for transport, sends in ways:
            gradients, losses, _ = runner.run(program, p, transport, sends, 2)
            worst, where = difference(gradients, references[key][0])
            drift = harness.drift(losses, references[key][1])
            tally.check(worst <= TOLERANCE["f64"] and drift <= TOLERANCE["f64"],
                        f"p = {p}, n = {n}, m = {m}, v = {v}, {depth} a stage, "
                        f"{' '.join(f'{k}={x}' for k, x in options.items())}, "
                        f"{transport} {sends}: gradients {worst:.1e} ({where}), losses {drift:.1e}")
        runner.clean(program)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
