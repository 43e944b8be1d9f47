#!/usr/bin/env python3
"""Compares traces: the planned one and that of a run have the same units, messages, arrows and lines."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: traces.py PP_COMPILE FOLDER
import json, os, re, sys
import harness

SIZES = dict(ranks=4, microbatches=4, layers=8, hidden=16, heads=2, kv_heads=2, ffn=32, vocab=256, sequence=16,
             microbatch=1)
CASES = [("1f1b", "threads", {}), ("zb_v", "threads", {}), ("weipipe_interleave", "mpi", {}),
         ("tawpipe", "threads", {}), ("interleaved", "threads", {}), ("zb_h1", "streams/3", {})]


def read(path):
    with open(path) as file:
        return json.load(file)["traceEvents"]


def ids(events):
    """What a planned and a measured trace must share: units, messages on their lines, ends of arrows, names of
    lines."""
    return {
        "units": sorted((e["pid"], e["tid"], e["name"]) for e in events if e["ph"] == "X" and e["cat"] in "FBIWRU"),
        "messages": sorted((e["pid"], e["tid"], e["args"]["message"], e["name"], e["cat"],
                            0 if e["cat"] == "sum" else e["args"]["bytes"])  # a sum's slot is larger than its number
                           for e in events if e["ph"] == "X"
                           and e["cat"] in ("send", "recv", "sum", "broadcast", "gather")),
        "arrows": sorted((e["ph"], e["id"], e["pid"], e["tid"], e["name"]) for e in events if e["ph"] in "sf"),
        "lines": sorted((e["pid"], e["tid"], e["name"], str(e["args"])) for e in events
                        if e["ph"] == "M" and e["tid"] <= 1 + 2 * SIZES["ranks"]),
    }


def problems(events):
    """What a viewer would not show: slices that overlap without nesting, arrows with one end or nothing at an end."""
    found, lines = [], {}
    for event in events:
        if event["ph"] == "X":
            lines.setdefault((event["pid"], event["tid"]),
                             []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for line, slices in lines.items():
        open_ends = []
        for start, end, name in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_ends and open_ends[-1] <= start + 0.002:  # times are rounded to nanoseconds
                open_ends.pop()
            if open_ends and end > open_ends[-1] + 0.002:
                found.append(f"{name} on {line} at {start} ends after what it began in")
            open_ends.append(end)
    arrows = {}
    for event in events:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(event["ph"])
            if not any(start - 0.002 <= event["ts"] <= end for start, end, _ in lines[(event["pid"], event["tid"])]):
                found.append(f"an arrow {event} has no slice")
    return found + [f"arrow {number} has the ends {ends}" for number, ends in arrows.items()
                    if sorted(ends) != ["f", "s"]]


def compared(compiler, defines, trace, schedule):
    """The report draws under the plan what the run did in one of its steps: the same units, in seconds, in order."""
    page = harness.call([compiler, harness.TRAIN, *defines, "--emit=report", "--compare", trace]).stdout
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])
    plan, run = data["ranks"], data["measured"]["ranks"]
    same = [rank["name"] for rank in plan] == [rank["name"] for rank in run]
    ordered = all(end <= start for rank in run for end, start in zip(rank["end"], rank["start"][1:]))
    events = [e for e in read(trace) if e["ph"] == "X" and e["cat"] == "step"]
    lengths = [max(e["ts"] + e["dur"] for e in events if e["name"] == name) - min(e["ts"] for e in events
                                                                                  if e["name"] == name)
               for name in ("step 2", "step 3")]
    # Plan and run have the same work, so the page gives the length of the plan's unit of time in milliseconds.
    unit = float(re.search("a unit is ([0-9.e+-]+) ms", data["costs"])[1])
    step = data["measured"]["step"] / data["ticks"] * unit * 1000
    return (same and ordered and min(lengths) * 0.5 <= step <= max(lengths) * 1.01,
            f"{schedule}: a step of {step:.0f} us under the plan, steps took {lengths[0]:.0f} and {lengths[1]:.0f}")


def main():
    compiler, folder = sys.argv[1:3]
    text, tally = harness.write_text(folder), harness.Tally()
    for schedule, transport, more in CASES:
        values = SIZES | more | dict(schedule=schedule)
        planned, measured = (os.path.join(folder, f"{schedule}.{end}.json") for end in ("planned", "measured"))
        program = harness.compile_train(compiler, os.path.join(folder, schedule), values)
        defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
        harness.call([compiler, harness.TRAIN, *defines, "--emit=trace", "-o", planned])
        run = [*harness.launch(program, values["ranks"], transport), "--data", text, "--steps"]
        harness.call([*run, "1", "--trace", measured])
        ours, theirs = ids(read(planned)), ids(read(measured))
        for what in ours:
            tally.check(ours[what] and ours[what] == theirs[what],
                        f"{schedule} over {transport}: {len(ours[what])} {what} planned, {len(theirs[what])} measured")
        harness.call([*run, "3", "--trace", measured])
        for name, events in (("planned", read(planned)), ("measured, 3 steps", read(measured))):
            found = problems(events)
            tally.check(not found, f"{schedule}, {name}: {len(events)} events a viewer can show {found[:2] or ''}")
        tally.check(*compared(compiler, defines, measured, schedule))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
