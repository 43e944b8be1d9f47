#!/usr/bin/env python3
"""Counts the bytes that come to every rank, over MPI and by threads: as the plan says, and as the papers count them."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: economy.py PP_COMPILE FOLDER
# A chunk is the weights or the gradient of one stage; what a collective brings is counted as far as it comes from
# others. Between nodes: chunks as docs/schedules.md has them for 24 ranks on 3 nodes, and on 2 nodes of 2 ranks the
# bytes that a run's own trace says were sent to the other node.
import json, os, sys
import harness

SIZES = dict(layers=4, hidden=32, heads=2, kv_heads=2, ffn=32, vocab=256, sequence=8, microbatch=1, ranks=4,
             microbatches=8)
CASES = [("weipipe_naive", {}), ("weipipe_interleave", {}), ("wzb1", {}), ("wzb2", {}), ("tawpipe", {}),
         ("tawpipe", dict(ring="true")), ("fsdp", dict(ahead=0)), ("fsdp", dict(ahead=1)), ("zero1", {}), ("zero2", {}),
         ("data_parallel", {}), ("1f1b", {})]


def chunks(schedule, more, p, m):
    """What a rank gets, mean over the ranks; None: no closed form. WeiPipe's new weights come to two homes each."""
    rounds = m // p
    if schedule == "weipipe_naive":
        return 3 * (2 * m - 2) + 2
    if schedule == "weipipe_interleave":
        return 3 * (m + p - 2) + 2
    # Every group gets every load by a broadcast, and before it from the owner if that is in another group.
    if schedule == "tawpipe" and not more:
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
    if schedule in ("zero1", "zero2"):  # a sum of every stage in each round, or in the last; and a gather of it
        return (1 + (1 if schedule == "zero1" else rounds)) * (p - 1) / p * p
    if schedule == "data_parallel":  # the gradients of all others
        return (p - 1) * p
    return None


# docs/schedules.md, "Passing weights": 96 microbatches on 24 ranks in 3 nodes: received by a rank for each microbatch
# and stage, to the two digits printed; sent from node to node in all.
PRINTED = [("weipipe_naive", {}, 5.96, 1732), ("weipipe_interleave", {}, 3.71, 1084), ("wzb1", {}, 4.97, 1460),
           ("wzb2", {}, 2.92, 756), ("tawpipe", dict(groups=3), 2.81, 562),
           ("tawpipe", dict(groups=3, ring="true"), 2.92, 750), ("fsdp", dict(ahead=0), 2.88, 828)]
LARGE = dict(layers=24, hidden=24, heads=1, kv_heads=1, ffn=24, vocab=4, sequence=2, microbatch=1, ranks=24,
             microbatches=96)
# Bytes of the clip norm's sum over four ranks, a slot of 64, that pass the two ways between two nodes.
NORM = 2 * 3 / 2 * 64
TWO_NODES = """
cluster two_nodes {
  ranks   2
  memory  80e9
  device  f32 = 1e12, bandwidth = 1e12
  inside  bandwidth = 1e11, latency = 1e-6
  between bandwidth = 1e9, latency = 1e-6
}
"""


def between_nodes(stats, unit):
    """Over all links from one node to another."""
    return sum(link.get(unit, 0) for link in stats["links"] if link["name"].startswith("node ")
               and link["name"].endswith(" out"))


def check_section_9(compiler, tally):
    for schedule, more, each, total in PRINTED:
        defines = [word for key, value in (LARGE | dict(schedule=schedule) | more).items()
                   for word in ("-D", f"{key}={value}")]
        stats = json.loads(harness.call([compiler, harness.TRAIN, "--emit=stats", "--cluster=a800_nvlink_10gbe",
                                         *defines]).stdout)
        mean = sum(rank["chunks_received"] for rank in stats["per_rank"]) / LARGE["ranks"] / LARGE["microbatches"]
        crossed = between_nodes(stats, "chunks")
        tally.check(abs(mean - each) < 0.0051 and abs(crossed - total) < 1e-6,
                    f"24 ranks, {schedule} {more or ''}: {mean:.4f} chunks a rank, {crossed:g} between nodes; {each}, "
                    f"{total}")


def sent_to_other_nodes(trace, steps):
    """Bytes a step, by the lines `send to N` of a run's trace, with two ranks on a node."""
    with open(trace) as file:
        events = json.load(file)["traceEvents"]
    lines = {(event["pid"], event["tid"]): event["args"]["name"] for event in events
             if event.get("name") == "thread_name"}
    sends = [event for event in events if event["ph"] == "X" and event["cat"] == "send"]
    return sum(event["args"]["bytes"] for event in sends
               if int(lines[event["pid"], event["tid"]].split()[-1]) // 2 != event["pid"] // 2) / steps


def main():
    compiler, folder = sys.argv[1:]
    text, tally = harness.write_text(folder), harness.Tally()
    train = os.path.join(folder, "two_nodes.pipe")
    with open(harness.TRAIN) as source, open(train, "w") as file:
        file.write(source.read() + TWO_NODES)
    check_section_9(compiler, tally)
    for schedule, more in CASES:
        values = SIZES | dict(schedule=schedule) | more
        defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
        stats = json.loads(harness.call([compiler, train, "--emit=stats", "--cluster=two_nodes", *defines]).stdout)
        planned = [rank["bytes_received"] for rank in stats["per_rank"]]
        program = harness.compile_train(compiler, os.path.join(folder, "_".join([schedule, *map(str, more.values())])),
                                        values)
        for transport in ("threads", "mpi"):
            trace = f"{program}.{transport}.json"
            out = harness.call([*harness.launch(program, 4, transport), "--data", text, "--steps", "2", "--trace",
                                trace]).stdout
            rows = out[out.index("received B/step"):].splitlines()[1:5]
            counted = [int(row.split()[4]) for row in rows]
            tally.check(counted == planned,
                        f"{schedule} {more or ''} over {transport}: planned {planned}, counted {counted}")
            # Sums and gathers of these go over nodes in ways that the transport chooses.
            if schedule not in ("fsdp", "zero1", "zero2", "data_parallel"):
                crossed, sent = between_nodes(stats, "bytes"), sent_to_other_nodes(trace, 2)
                norm = NORM * ("all_reduce" in stats["per_rank"][0]["collectives_joined"])
                tally.check(sent and crossed - sent == norm,
                            f"{schedule} {more or ''} over {transport}: between nodes {sent:.0f} B, planned {crossed}")
        wanted = chunks(schedule, more, 4, 8)
        if wanted is not None:
            got = sum(rank["chunks_received"] for rank in stats["per_rank"]) / 4
            tally.check(abs(wanted - got) < 0.02 * wanted,
                        f"{schedule} {more or ''}: {wanted} chunks a rank, got {got:.2f}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
