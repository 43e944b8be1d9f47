#!/usr/bin/env python3
"""Judges programs as JSON (report/PROGRAM.md) by what they say alone, and their swaps of posts by a test for cycles."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Of every schedule: text, hash, values that are there when they are read, counts, and progress on each map of lanes.
# The test for cycles shares no code with pp's execution. A swap exchanges two neighbouring posts of a rank.
#
# usage: programs.py PP_COMPILE FOLDER [--sizes P,M ..] [--every N]
# `--sizes` are ranks and microbatches; one swap of N is tried. By hand, for all:
#   programs.py build/bin/pp-compile build/programs --sizes 2,2 2,4 2,8 4,4 4,8 4,16 8,8 8,16 8,32 --every 1
import argparse, graphlib, hashlib, json, os, re, sys
import harness

SMALL = dict(hidden=8, heads=1, ffn=8, vocab=8, sequence=8, microbatch=1)
MAPS = ["edge", "pair", "direction", "rank", "serial"]
PEAKS = dict(weights="weight", grads="grad", acts="act", dacts="dact")


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(program):
    kept = {key: value for key, value in program.items() if key not in ("fingerprint", "compiler", "files")}
    return hashlib.sha256(canonical(kept).encode()).hexdigest()


def lane_of(channels, message, end):
    """The queue of a rank in which a message stands; the ends of a way to the host's memory have one each."""
    if message["kind"] == "host":
        return end
    if channels in ("rank", "serial"):
        return "all"
    if channels == "direction":
        return message["role"] in ("dact", "dkv", "grad")
    return tuple(message["ranks"] if channels == "edge" or message["kind"] != "p2p" else sorted(message["ranks"]))


def batches_of(actions, messages, channels):
    """By number of a post the messages that go through its lane as one; and of each batch the one before it."""
    batches, before, last = {}, [], {}
    for i, action in enumerate(actions):
        if action[0] == "post":
            message = messages[action[1]]
            lane, together = lane_of(channels, message, action[2]), message["together"]
            batch = last.get(lane)
            joins = (channels != "edge" and together is not None and batch is not None and batch[0] == together
                     and (channels != "serial" or actions[i - 1][0] == "post"))
            if not joins:
                last[lane] = [together, []]
                before.append((last[lane][1], batch[1] if batch else []))
                batch = last[lane]
            batch[1].append(action[1])
            batches[i] = batch[1]
    return batches, before


def progresses(program, channels):
    """Whether no event waits for itself: actions `(rank, i)` that are passed, and messages that have gone."""
    waits, messages = {}, program["messages"]
    after = lambda event, others: waits.setdefault(event, set()).update(others)
    for rank, actions in enumerate(one["actions"] for one in program["programs"]):
        batches, before = batches_of(actions, messages, channels)
        posts, blocks = {}, None  # `blocks`: the batch in which the rank stands, where posts block
        for i, action in enumerate(actions):
            after((rank, i), [(rank, i - 1)] if i else [])
            if blocks is not None and batches.get(i) is not blocks:
                after((rank, i), blocks)
                blocks = None
            if action[0] == "post":
                after(action[1], [(rank, i)])
                posts[action[1], action[2]] = batches[i]
                if channels == "serial" and messages[action[1]]["kind"] != "host":
                    blocks = batches[i]
            elif action[0] == "wait":
                after((rank, i), posts[action[1], action[2]])
        for batch, earlier in before:
            for message in batch:
                after(message, earlier)
    try:
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError:
        return False
    return True


def touched(action, messages, rank):
    """The values that an action reads, and those that it makes."""
    if action[0] == "run":
        return action[5], action[6]
    if action[0] == "wait":
        return [], []
    message, value, shard = messages[action[1]], action[3], action[4]
    writes = {"receive": True, "send": False}.get(action[2], message["kind"] in ("all_gather", "broadcast"))
    if message["kind"] == "broadcast":
        writes = message["root"] != rank
    if shard is None:
        return ([], [value]) if writes else ([value], [])
    return ([shard], [value]) if writes else ([value], [shard])


def lives_of(rank, messages):
    """`(value, first, last)` of all that values hold. What is read must be there, and what is dead must have been."""
    lives, values, actions = [], rank["values"], rank["actions"]
    first = {}  # by value whether it is read before it is made
    for action in actions:
        read, made = touched(action, messages, rank["rank"])
        for v in read + made:
            first.setdefault(v, v in read)
    there = {v: 0 for v, value in enumerate(values) if value["bind"] and first.get(v, True)}
    for i, action in enumerate(actions):
        read, made = touched(action, messages, rank["rank"])
        for v in read:
            assert v in there, f"rank {rank['rank']}: action {i} reads {values[v]['label']}, which is not there"
        for v in made:
            assert v not in there, f"rank {rank['rank']}: action {i} makes {values[v]['label']}, which is there"
            there[v] = i
        for v in {"run": lambda: action[8], "post": lambda: action[6], "wait": lambda: action[4]}[action[0]]():
            lives.append((v, there.pop(v), i))
    for v, begin in there.items():
        assert values[v]["bind"], f"rank {rank['rank']}: {values[v]['label']} is never dead"
        lives.append((v, begin, len(actions)))
    return lives


def most(lives):
    """The largest number of lives that share an action."""
    events = sorted([(first, 1) for first, _ in lives] + [(last + 1, -1) for _, last in lives])
    now = peak = 0
    for _, change in events:
        now += change
        peak = max(peak, now)
    return peak


def stashes_of(rank, lives):
    """By units: from the first of a unit's stashes on the device to the end of its last one."""
    units = {}
    for v, first, last in lives:
        value = rank["values"][v]
        if value["role"] == "stash" and not value["host"]:
            units.setdefault((value["piece"], value["mb"], value["label"]), []).append((first, last))
    merged = []
    for own in map(sorted, units.values()):
        merged.append(own[0])
        for first, last in own[1:]:
            if first <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(last, merged[-1][1])
            else:
                merged.append((first, last))
    return merged


def counts_of(rank, messages):
    values, actions = rank["values"], rank["actions"]
    shards = {a[4] for a in actions if a[0] == "post"} | {v for v, value in enumerate(values)
                                                         if "shard" in (value["bind"] or {})}
    used = {v for a in actions if a[0] == "run" for v in a[5] + a[6]}
    came = {a[3] for a in actions if a[0] == "post" and a[2] == "receive" and messages[a[1]]["kind"] != "host"}
    lives = lives_of(rank, messages)
    peak = lambda which: most([(first, last) for v, first, last in lives if which(v)])
    counts = {name: peak(lambda v: values[v]["role"] == role and v not in shards) for name, role in PEAKS.items()}
    posts = {tuple(a[1:3]): i for i, a in enumerate(actions) if a[0] == "post"}
    return counts | dict(
        guests=peak(lambda v: values[v]["role"] == "stash" and not values[v]["host"] and v in came - used),
        host_stashes=peak(lambda v: values[v]["host"]), stashes=most(stashes_of(rank, lives)),
        messages=most([(posts[tuple(a[1:3])], i) for i, a in enumerate(actions) if a[0] == "wait"]))


def check(program, text):
    assert canonical(program) == text.replace("\n", ""), "the text is not canonical"
    assert fingerprint(program) == program["fingerprint"], "the fingerprint is another one"
    assert program["channels"] == MAPS, f"proved for {program['channels']}"
    for channels in MAPS:
        assert progresses(program, channels), f"a cycle with --channels={channels}"
    for rank, counts in zip(program["programs"], program["counts"]):
        again = counts_of(rank, program["messages"])
        assert again == counts, f"rank {rank['rank']} has {again}, and the program says {counts}"
    for rank in program["forward"]["programs"]:
        lives_of(rank, program["forward"]["messages"])
    assert progresses(program["forward"] | {"ranks": program["ranks"]}, "serial"), "the forward program has a cycle"
    for rank, start in zip(program["programs"], program["time"]["start"]):
        assert len(start) == len(rank["actions"]) and start == sorted(start), "starts do not ascend"


def options_of(schedule, ranks, microbatches):
    values = SMALL | dict(schedule=schedule, ranks=ranks, microbatches=microbatches, layers=2 * ranks)
    return [word for key, value in values.items() for word in ("-D", f"{key}={value}")]


def judge(compiler, schedule, ranks, microbatches):
    """False if the schedule does not take these sizes."""
    command = [compiler, harness.TRAIN, *options_of(schedule, ranks, microbatches)]
    done = harness.call([*command, "--channels=all", "--emit=json"], expect=None)
    if done.returncode and harness.call([*command, "--emit=actions"], expect=None).returncode:
        return False
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout), done.stdout)
    return True


def swaps(lines, program):
    """Programs in which one post of a rank stands right behind the next one, as text and as data."""
    rank, places = -1, []
    for number, line in enumerate(lines):
        if re.match(r" *pipeline\.rank ", line):
            rank, places = rank + 1, []
        elif re.match(r" *%\w+ = pipeline\.post ", line):
            places.append(number)
            if len(places) < 2:
                continue
            actions = program["programs"][rank]["actions"]
            a, b = [i for i, action in enumerate(actions) if action[0] == "post"][len(places) - 2:len(places)]
            if ["wait", *actions[a][1:3]] in [action[:3] for action in actions[a:b]]:
                continue
            moved = actions[:a] + actions[a + 1:b + 1] + [actions[a]] + actions[b + 1:]
            ranks = [one | {"actions": moved} if one["rank"] == rank else one for one in program["programs"]]
            first, second = places[-2:]
            yield (lines[:first] + lines[first + 1:second + 1] + [lines[first]] + lines[second + 1:],
                   program | {"programs": ranks})


def judge_stashes(compiler, tally):
    """Numbers by hand. 1F1B of four stages keeps min(m, p - r) stashes; a first stage that trains nothing keeps none.
    HelixPipe of eight layers keeps on each rank what two layers of eight microbatches keep, three parts each, for all
    forwards come first; the head runs in its backward and keeps none. A stage that is an embedding or the loss alone
    keeps none: their inputs are activations and data."""
    def stated(schedule, **more):
        defines = [word for name, value in more.items() for word in ("-D", f"{name}={value}")]
        words = [*options_of(schedule, 4, 8), *defines]
        program = json.loads(harness.call([compiler, harness.TRAIN, *words, "--emit=json"]).stdout)
        return [counts["stashes"] for counts in program["counts"]]

    for wanted, schedule, more in (([4, 3, 2, 1], "one_f_one_b", {}),
                                   ([0, 3, 2, 1], "one_f_one_b", {"freeze": "embed_tokens,layers.0.,layers.1."}),
                                   ([48] * 4, "helixpipe", {}),
                                   ([0, 3, 2, 0], "megatron", {"layout": "E|t*4|t*4|L"})):
        got = stated(schedule, **more)
        tally.check(got == wanted, f"stashes of {schedule} {more}: expected {wanted}, got {got}")


def judge_swaps(compiler, folder, every, tally):
    """Where pp says that the ranks wait for each other there is a cycle, and nowhere else."""
    options, path = options_of("interleaved", 4, 4), os.path.join(folder, "swapped.mlir")
    lines = harness.call([compiler, harness.TRAIN, *options, "--emit=ranks"]).stdout.splitlines(keepends=True)
    program = json.loads(harness.call([compiler, harness.TRAIN, *options, "--emit=json"]).stdout)
    told, wrong = dict.fromkeys(("serial", "rank"), 0), []
    tried = list(swaps(lines, program))[::every]
    for number, (text, swapped) in enumerate(tried):
        with open(path, "w") as file:
            file.writelines(text)
        for channels in told:
            done = harness.call([compiler, path, "--prove", f"--channels={channels}"], expect=None)
            hangs = "the ranks wait for each other" in done.stderr
            told[channels] += hangs
            if done.returncode == 0 or hangs:  # else another proof refuses it
                wrong += [] if hangs != progresses(swapped, channels) else [(number, channels, hangs)]
    tally.check(not wrong and told["serial"], f"{len(tried)} swaps: {told} hang; judged otherwise: {wrong}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("folder")
    parser.add_argument("--sizes", nargs="*", default=["4,8"])
    parser.add_argument("--every", type=int, default=9)
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    with open(harness.TRAIN) as train:
        schedules = re.findall(r'^    "(\w+)".* \w+\(', train.read().split("schedule choose")[1], re.M)
    tally = harness.Tally()
    for size in arguments.sizes:
        taken = []
        for schedule in schedules:
            tally.attempt(f"{schedule} {size}", lambda one: taken.append(
                judge(arguments.compiler, one, *map(int, size.split(",")))), schedule)
        tally.check(sum(taken) > len(schedules) * 3 // 4, f"{sum(taken)} of {len(schedules)} schedules take {size}")
    judge_stashes(arguments.compiler, tally)
    judge_swaps(arguments.compiler, arguments.folder, arguments.every, tally)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
