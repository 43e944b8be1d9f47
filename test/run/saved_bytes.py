#!/usr/bin/env python3
"""Counts what F saves and what W waits for, for a layer of gpt2 and llama, by the formulas of docs/derivatives.md."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: saved_bytes.py PP_COMPILE FOLDER
# A = tokens x hidden. phi = ffn / hidden, kappa = kv_heads / heads. The stage in the middle of three holds one layer;
# its input x is the activation that came in, the gradient of its output the one that came back: neither is counted.
#   F saves:     gpt2 q k v o y u = 5 + phi, llama q k v o y p q = 3 + 2 kappa + 2 phi, and statistics
#   I leaves W:  gpt2 a dqkv o dy n du g = 7 + 2 phi, llama a dq dk dv o dy n dp dq a = 5 + 2 kappa + 3 phi, and hands
import json, re, sys
import harness

BYTES = {"f32": 4, "f64": 8, "bf16": 2, "i32": 4, "i8": 1}
CASES = [("gpt2", dict(hidden=64, heads=4, ffn=256)), ("gpt2", dict(hidden=128, heads=8, ffn=384)),
         ("llama", dict(hidden=64, heads=4, kv_heads=2, ffn=128)),
         ("llama", dict(hidden=128, heads=8, kv_heads=8, ffn=320))]
# Its number in the stash, after the norm's statistics and q, k, v, which gpt2 has in one tensor; it is the first of
# what waits.
O = dict(gpt2=3, llama=4)
COMMON = dict(ranks=3, microbatches=6, layers=3, microbatch=2, sequence=32, vocab=64)


def tensors_of(payload, aliases):
    name = re.fullmatch(r"<!(\w+)>", payload)
    text = aliases[name.group(1)] if name else payload
    return [([int(size) for size in shape.split("x") if size], element)
            for shape, element in re.findall(r"tensor<((?:\d+x)*)(\w+)>", text)]


def elements(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def bytes_of(tensors):
    return sum(-(-elements(shape) * BYTES[element] // 64) * 64 for shape, element in tensors)


def expected(model, values):
    """Elements of the stash and of what waits for W: those of activations' shape, then the others."""
    hidden, tokens = values["hidden"], values["microbatch"] * values["sequence"]
    phi, kappa = values["ffn"] / hidden, values.get("kv_heads", values["heads"]) / values["heads"]
    logs = values["heads"] * tokens
    if model == "gpt2":
        return tokens * hidden * (5 + phi), 4 * tokens + logs, tokens * hidden * (7 + 2 * phi), 4 * hidden
    return (tokens * hidden * (3 + 2 * kappa + 2 * phi), 2 * tokens + logs,
            tokens * hidden * (5 + 2 * kappa + 3 * phi), 2 * hidden)


def split(tensors, values):
    big = sum(elements(shape) for shape, _ in tensors if len(shape) == 3 and shape[1] == values["sequence"])
    return big, sum(elements(shape) for shape, _ in tensors) - big


def peak(units, stash, pending, handed):
    """The largest sum of stashes and of what waits for W, from the list of a rank: during I both are there, what it
    hands on once."""
    alive = most = 0
    for phase in re.findall(r"\d+([FIW])\d+", units):
        alive += {"F": stash, "I": pending - handed, "W": 0}[phase]
        most = max(most, alive)
        alive -= {"F": 0, "I": stash - handed, "W": pending}[phase]
    return most


def main():
    compiler, tally = sys.argv[1], harness.Tally()
    for model, sizes in CASES:
        values = COMMON | sizes
        for schedule in ("zb_h1", "zb_h2"):
            defines = [word for key, value in (values | dict(model=model, schedule=schedule)).items()
                       for word in ("-D", f"{key}={value}")]
            emit = lambda form: harness.call([compiler, harness.TRAIN, f"--emit={form}", *defines]).stdout
            text, stats, units = emit("ranks"), json.loads(emit("stats"))["per_rank"][1], emit("tasks").splitlines()[1]
            aliases = dict(re.findall(r"^!(\w+) = (tuple<.*>)$", text, re.M))
            program = text.split("pipeline.rank 1 ")[1].split("pipeline.rank 2 ")[0]
            slots = re.findall(r'pipeline.slot stash "stash\(1, 0\)".* : (<.*>)$', program, re.M)
            stash, pending = (tensors_of(slot, aliases) for slot in slots)
            ours, theirs = (*split(stash, values), *split(pending, values)), expected(model, values)
            name = f"{model} {sizes} {schedule}"
            tally.check(ours == theirs, f"{name}: stash and pending, elements {ours}, expected {theirs}")
            handed = re.search(r"launch @s1\.I <.* handed \[([\d, ]+)\]", program)
            numbers = [int(number) for number in handed.group(1).split(",")] if handed else []
            tally.check((O[model], 0) in zip(numbers[1::4], numbers[3::4]), f"{name}: o stays where it is: {numbers}")
            kept = bytes_of(stash[tensor] for tensor in numbers[1::4])
            planned, wanted = stats["peak_bytes"]["stash"], peak(units, bytes_of(stash), bytes_of(pending), kept)
            tally.check(planned == wanted, f"{name}: planned {planned} bytes of both, expected {wanted}")
            tally.check(stats["peak_values"]["grad"] == 1, f"{name}: one gradient for all microbatches")
            reads = re.search(r'@s1\.W\(.*?pipeline\.inputs = #pipeline\.groups<(.*?)>', text)
            tally.check(reads and "weight" not in reads.group(1),
                        f"{name}: W reads no weight: {reads and reads.group(1)}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
