#!/usr/bin/env python3
"""Holds the order of units, their starts, and every message of HelixPipe against the tables of its specification."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: tables.py PP_COMPILE FOLDER
# A table has these rows. `r0 F:` and `r0 B:` list the units of a rank in order; `r0:` lists units with their starts.
# `forward:` and `backward:` list messages as tag(layer, offset): from->to. `x+y` are two units that follow each other.
# The tables have no unit for the head: its loss runs between two units.
import json, os, re, sys
import harness

SIZES = dict(hidden=4, heads=1, kv_heads=1, ffn=4, vocab=4, sequence=2, microbatch=1)
LETTERS = {"pre": "i", "attn": "a", "post": "o"}
TAGS = {"act.pre": "q", "act.attn": "o", "dact.post": "do", "dact.attn": "dq"}


def read_tables():
    with open(os.path.join(harness.ROOT, "test", "run", "Inputs", "helixpipe.txt")) as lines:
        for line in lines:
            words = line.split()
            if words[0] == "table":
                yield words[1], dict(word.split("=") for word in words[2:]), None, None
            elif words[0] != "#":
                key, _, text = line.partition(":")
                yield None, None, key, text.strip()


def units_of(events, rank, phases):
    """`i0.1@0` for every unit of these phases on this rank, in order of time."""
    units = []
    for event in events:
        match = re.fullmatch(r"(pre|attn|post)\.(\d+)([FB])(\d+)", event["name"])
        if match and event["pid"] == rank and match[3] in phases:
            letter = LETTERS[match[1]] if match[3] == "F" else LETTERS[match[1]].upper()
            units.append(f"{letter}{match[2]}.{match[4]}@{event['ts'] / 1000:g}")
    return units


def messages_of(rows, forward):
    """The messages of one direction as the tables write them; there is one microbatch for each offset."""
    found = []
    for rank, row in enumerate(rows):
        for role, layer, microbatch, to in re.findall(r"(?:^|,)(d?act\.\w+)\.(\d+)\.(\d+)>(\d+)", row):
            if role.startswith("d") != forward:
                found.append(f"{TAGS[role]}({layer},d{microbatch}): {rank}->{to}")
    return found


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    tally, name, events, rows = harness.Tally(), "", [], []
    for table, sizes, key, text in read_tables():
        if table:
            name = table
            values = SIZES | dict(schedule="helixpipe") | sizes
            command = [compiler, harness.TRAIN] + [word for k, v in values.items() for word in ("-D", f"{k}={v}")]
            trace = harness.call(command + ["--emit=trace", "--costs=pre=1,attn=3,post=2,rest=0"])
            events = [event for event in json.loads(trace.stdout)["traceEvents"] if event["ph"] == "X"]
            rows = harness.call(command + ["--emit=comms"]).stdout.splitlines()
            continue
        if key in ("forward", "backward"):
            expected, found = sorted(text.split(", ")), sorted(messages_of(rows, key == "forward"))
        else:
            rank, phases = int(key[1]), key[3:] or "F"
            expected, found = text.replace("+", " ").split(), units_of(events, rank, phases)
            if len(key) > 2:
                found = [unit.split("@")[0] for unit in found]
        tally.check(found == expected, f"{name} {key}" + ("" if found == expected else f"\n  {found}\n  {expected}"))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
