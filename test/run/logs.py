#!/usr/bin/env python3
"""Reads what runs write of their steps: the learning rate in its four ways, JSON lines, and TensorBoard's events."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: logs.py PP_COMPILE FOLDER
# The rates are written here once more, from the pages of transformers (get_linear_schedule_with_warmup and its
# neighbours) for lag = 1; the event files are read by the format of TFRecord and of event.proto, CRCs bit by bit.
import glob, math, os, struct, sys
import harness

SIZES = dict(schedule="1f1b", ranks=2, microbatches=2, layers=2, hidden=16, heads=2, kv_heads=2, ffn=32, vocab=256,
             sequence=16, microbatch=1, lr=2e-3)
STEPS = 12


def cosine(progress):
    return 0.5 * (1 + math.cos(math.pi * min(max(progress, 0), 1)))


def rate(step, way, warmup, least, lag, end=STEPS, decay=0):
    """The share of `lr`."""
    number = step - lag
    if number < warmup or number == warmup >= end:
        begun = number / warmup
        return begun * (1 - least) + least if way == "wsd" else begun
    progress = (number - warmup) / max(1, end - warmup)
    if way == "constant":
        return 1
    if way == "linear":
        return max(0, 1 - progress) * (1 - least) + least
    if way == "cosine":
        return cosine(progress) * (1 - least) + least
    return 1 if number < end - decay else cosine((number - end + decay) / decay) * (1 - least) + least


RATES = [dict(way="cosine", warmup=3, least=0.1, lag=0), dict(way="linear", warmup=3, least=0, lag=1),
         dict(way="linear", warmup=0, least=0.25, lag=0, end=8), dict(way="constant", warmup=4, least=0.1, lag=1),
         dict(way="wsd", warmup=2, least=0.2, lag=0, decay=5), dict(way="cosine", warmup=5, least=0, lag=1),
         dict(way="cosine", warmup=4, least=0.1, lag=0, end=4)]


def check_rate(compiler, folder, data, case):
    more = {"schedule": case["way"], "lag": case["lag"], "decay": case.get("decay", 0)}
    values = SIZES | dict(warmup=case["warmup"], min_lr=case["least"], decay_steps=case.get("end", 0))
    values |= {f"optimizer.{name}": value for name, value in more.items()}
    program = harness.compile_train(compiler, os.path.join(folder, "rate"), values)
    log = os.path.join(folder, "rate.jsonl")
    harness.call([program, "--in-process", "--data", data, "--steps", str(STEPS), "--log", log])
    for line in harness.read_log(log):
        expected = SIZES["lr"] * rate(line["step"], **case)
        assert abs(line["lr"] - expected) <= 1e-15, f"step {line['step']}: rate {line['lr']}, expected {expected}"


def crc(data):
    rest = 0xffffffff
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (0x82f63b78 if rest & 1 else 0)
    rest ^= 0xffffffff
    return ((rest >> 15 | rest << 17) + 0xa282ead8) & 0xffffffff


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """(number, value) of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        else:
            size = 8 if wire == 1 else 4
            value, at = struct.unpack("<d" if wire == 1 else "<f", data[at:at + size])[0], at + size
        yield number, value


def read_events(path):
    """{step: {tag: value}}"""
    with open(path, "rb") as file:
        data = file.read()
    at, steps, first = 0, {}, True
    while at < len(data):
        length, = struct.unpack("<Q", data[at:at + 8])
        body = data[at + 12:at + 12 + length]
        assert struct.unpack("<I", data[at + 8:at + 12])[0] == crc(data[at:at + 8]), "CRC of a length"
        assert struct.unpack("<I", data[at + 12 + length:at + 16 + length])[0] == crc(body), "CRC of an event"
        at += 16 + length
        event = dict(fields(body))
        assert event[1] > 1.6e9, "the time of an event"
        if first:
            assert event[3] == b"brain.Event:2", event
        else:
            values = [dict(fields(value)) for number, value in fields(event[5]) if number == 1]
            steps[event[2]] = {value[1].decode(): value[2] for value in values}
        first = False
    return steps


def check_files(compiler, folder, data):
    program = harness.compile_train(compiler, os.path.join(folder, "logged"), SIZES)
    log, board, saved = (os.path.join(folder, name) for name in ("logged.jsonl", "board", "saved"))
    for path in glob.glob(os.path.join(board, "*")):
        os.remove(path)
    peak = 1e12
    common = [program, "--in-process", "--data", data, "--log", log, "--tensorboard", board, "--peak-flops", str(peak)]
    done = harness.call([*common, "--steps", "8", "--stop-at", "5", "--save", saved])
    assert "% of peak" in done.stdout, done.stdout
    harness.call([*common, "--resume", saved])
    lines = harness.read_log(log)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7, 8], lines
    files = glob.glob(os.path.join(board, "events.out.tfevents.*"))
    assert len(files) == 2, f"a run and the one that resumes it have a file each, got {files}"
    events = {}
    for path in files:
        events |= read_events(path)
    for line in lines:
        assert math.isclose(line["ppl"], math.exp(line["loss"]), rel_tol=1e-12), line
        assert line["tokens"] == SIZES["microbatches"] * SIZES["microbatch"] * SIZES["sequence"], line
        assert math.isclose(line["tokens_per_s"], line["tokens"] / line["seconds"], rel_tol=1e-12), line
        assert math.isclose(line["mfu"], line["flop_per_s"] / (SIZES["ranks"] * peak), rel_tol=1e-12), line
        assert (line["eta_s"] == 0) == (line["step"] in (5, 8)), line
        event = events[line["step"]]
        for tag, key in (("loss", "loss"), ("lr", "lr"), ("grad_norm", "grad_norm"), ("tokens_per_s", "tokens_per_s")):
            assert math.isclose(event["train/" + tag], line[key], rel_tol=1e-6), (event, line)


def check_refused(compiler, folder, data):
    """What has no effect, or cannot be, is an error."""
    for given, expected in (({"schedule": "wsd"}, 'needs `decay = N`'), ({"decay": 3}, '`decay` is for'),
                            ({"schedule": "exp"}, 'expected one of "cosine", "linear", "constant", "wsd"'),
                            ({"lag": 2}, "expected 0 or 1 for `lag`, got 2"),
                            ({"schedule": "constant", "decay_steps": 9}, "`decay_steps` has no effect")):
        defines = [word for key, value in given.items() for word in ("-D", f"optimizer.{key}={value}")]
        done = harness.call([compiler, harness.TRAIN, *defines, "-o", os.path.join(folder, "none")], expect=2)
        assert expected in done.stderr, done.stderr
    program = os.path.join(folder, "logged")
    done = harness.call([program, "--in-process", "--data", data, "--tensorboard", os.path.join(program, "in a file")],
                        expect=2)
    assert "of --tensorboard" in done.stderr, done.stderr


def main():
    compiler, folder = sys.argv[1:]
    data, tally = harness.write_text(folder), harness.Tally()
    for case in RATES:
        tally.attempt(f"the rate of {case}", check_rate, compiler, folder, data, case)
    tally.attempt("what is written of each step", check_files, compiler, folder, data)
    tally.attempt("what is refused", check_refused, compiler, folder, data)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
