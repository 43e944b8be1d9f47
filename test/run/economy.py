#!/usr/bin/env python3
"""What comes to every rank: bytes counted by a run over MPI and by threads, as the plan says, and in chunks as the papers count."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: economy.py PP_COMPILE FOLDER
# A chunk is the weights or the gradient of one stage; what a collective brings is counted as far as it comes from others.
import json, os, sys
import harness

SIZES = dict(layers=4, hidden=32, heads=2, kv_heads=2, ffn=32, vocab=256, sequence=8, microbatch=1, ranks=4, microbatches=8)
CASES = [("weipipe_naive", {}), ("weipipe_interleave", {}), ("wzb1", {}), ("wzb2", {}), ("tawpipe", {}),
         ("tawpipe", dict(ring="true")), ("fsdp", dict(ahead=0)), ("fsdp", dict(ahead=1)), ("1f1b", {})]


def chunks(schedule, more, p, m):
    """What a rank gets, mean over the ranks; None: no closed form. WeiPipe's new weights come to two homes each."""
    rounds = m // p
    if schedule == "weipipe_naive":
        return 3 * (2 * m - 2) + 2
    if schedule == "weipipe_interleave":
        return 3 * (m + p - 2) + 2
    if schedule == "tawpipe" and not more:  # every load of every group: broadcast, and from the owner if that is elsewhere
        groups, size, total = 2, p // 2, 0
        for k in range(groups):
            for turn in range(2 * m):
                stage = lambda q: q % (2 * p) if q % (2 * p) < p else 2 * p - 1 - q % (2 * p)
                apart = stage(turn) % groups != k
                total += (size - 1 + apart) * (turn == 0 or stage(turn) != stage(turn - 1))
                total += (size - 1 + apart) * (turn % (2 * p) >= p)
        return total / p
    if schedule == "fsdp":  # two gathers and a sum of every stage in every round
        return 3 * (p - 1) / p * p * rounds - more["ahead"] * (p - 1) / p * (2 * rounds - 1)
    return None


def main():
    compiler, folder = sys.argv[1:]
    text, tally = harness.write_text(folder), harness.Tally()
    for schedule, more in CASES:
        values = SIZES | dict(schedule=schedule) | more
        defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
        stats = json.loads(harness.call([compiler, harness.TRAIN, "--emit=stats", *defines]).stdout)
        planned = [rank["bytes_received"] for rank in stats["per_rank"]]
        program = harness.compile_train(compiler, os.path.join(folder, "_".join([schedule, *map(str, more.values())])), values)
        for transport in ("threads", "mpi"):
            out = harness.call([*harness.launch(program, 4, transport), "--data", text, "--steps", "2"]).stdout
            rows = out[out.index("received B/step"):].splitlines()[1:5]
            counted = [int(row.split()[4]) for row in rows]
            tally.check(counted == planned, f"{schedule} {more or ''} over {transport}: planned {planned}, counted {counted}")
        wanted = chunks(schedule, more, 4, 8)
        if wanted is not None:
            got = sum(rank["chunks_received"] for rank in stats["per_rank"]) / 4
            tally.check(abs(wanted - got) < 0.02 * wanted, f"{schedule} {more or ''}: {wanted} chunks a rank, got {got:.2f}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
