#!/usr/bin/env python3
"""Rows that are no tokens count for nothing in routers: row lengths, empty microbatches and meshes give one result."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: padding.py PP_COMPILE FOLDER [quick]
# Each document fills more than half of a row, so that rows of 16 and of 24 tokens hold the same documents. All in f64.
# `quick`: few of the schedules, for kernels that take long.
import json, os, random, sys
import documents, families, harness

SIZES = dict(model="mixtral", layers=4, hidden=16, heads=2, kv_heads=2, ffn=8, vocab=256, experts=4, top=2, balance=0.3,
             z=0.05, microbatch=1, microbatches=8, ranks=1, schedule="single", precision="f64", sequence=16, clip=0)
PAIRS = dict(model="olmoe", balance_over="microbatch", microbatch=2, microbatches=4)
STEERED = {"model": "glm4_moe", "z": 0, "layers": 4, "ffn": 16, "model.rate": 0.25}
DROPS = {"microbatches": 4, "mesh.data": 2, "mesh.expert": 2, "model.capacity": 1, "experts": 6, "top": 3}
LENGTHS = (13, 16, 14, 16, 13, 15, 16, 14)
# Each entry: the settings that all its cases share, and those of each case. All cases must have the results of the
# first one, whose rows have no padding.
CASES = (
    ({}, ({}, dict(sequence=24), dict(sequence=24, schedule="1f1b_recompute", ranks=2),
          dict(sequence=24, schedule="zb_v", ranks=2), dict(sequence=24, schedule="weipipe_interleave", ranks=2),
          {"sequence": 24, "schedule": "1f1b", "ranks": 2, "microbatches": 4, "mesh.data": 2, "mesh.expert": 2},
          {"sequence": 24, "mesh.context": 2}, {"sequence": 24, "mesh.tensor": 2},
          {"sequence": 24, "microbatches": 4, "mesh.data": 2, "mesh.context": 2, "mesh.expert": 4})),
    (dict(balance=0), ({}, dict(sequence=24, schedule="slimpipe", ranks=2, slices=4),
                       {"sequence": 24, "schedule": "slimpipe", "ranks": 2, "slices": 2, "mesh.context": 2})),
    (PAIRS, ({}, dict(sequence=24), {"sequence": 24, "microbatch": 1, "mesh.data": 2})),
    (STEERED, ({}, dict(sequence=24), dict(sequence=24, schedule="fsdp", ranks=2),
               {"sequence": 24, "microbatches": 4, "mesh.data": 2, "mesh.zero": 1},
               {"sequence": 24, "microbatches": 4, "mesh.data": 2, "mesh.zero": 2},
               {"sequence": 24, "mesh.context": 2, "mesh.zero": 1, "mesh.expert": 2, "schedule": "1f1b", "ranks": 2})),
    (DROPS, ({}, dict(sequence=24))),
)


def drawn():
    draw = random.Random(5)
    return [[draw.randrange(97, 123) for _ in range(length)] for length in LENGTHS]


class Judge:
    def __init__(self, compiler, folder):
        os.makedirs(folder, exist_ok=True)
        self.compiler, self.folder, self.count = compiler, folder, 0
        self.documents = drawn()

    def data(self, name, rows):
        return documents.write_dataset(self.folder, name + ".safetensors", rows)

    def step(self, path, *options, **values):
        """The line of the log and the gradients of one step over all rows."""
        self.count += 1
        program = os.path.join(self.folder, f"program{self.count}")
        harness.compile_train(self.compiler, program, SIZES | values, options=["-D", "data.documents=true"])
        return self.run(program, path, *options)

    def run(self, program, path, *options):
        grads, log = program + ".grads", program + ".jsonl"
        harness.call([program, "--in-process", "--data", path, "--epochs", "1", "--grads", grads, "--log", log,
                      *options])
        (line,) = harness.read_log(log)
        return line, {name: values for name, (_, values) in harness.read_safetensors(grads).items()}


def difference(one, other):
    """The largest, in shares of what is logged or of the largest element of a gradient."""
    (line, gradients), (lines, others) = one, other
    if gradients.keys() != others.keys() or line["tokens"] != lines["tokens"]:
        return float("inf"), "tensors or targets"
    worst = [(abs(line[name] - lines[name]) / max(abs(lines[name]), 1e-9), name)
             for name in ("loss", "balance", "z", "grad_norm", "dropped")]
    for name, values in others.items():
        most = max(map(abs, values)) or 1
        worst.append((harness.apart(gradients[name], values) / most, name))
    return max(worst)


def check_cases(judge, tally, quick):
    path = judge.data("all", judge.documents)
    for common, cases in CASES:
        expected = judge.step(path, **common | cases[0])
        if "model.capacity" in common:
            tally.check(0.02 < expected[0]["dropped"] < 0.5, f"{expected[0]['dropped']:.3f} of all choices are dropped")
        for case in cases[1:2 if quick else None]:
            worst, name = difference(judge.step(path, **common | case), expected)
            tally.check(worst < 1e-11, f"{common} {case}: off by {worst:.1e} in {name}")


def check_empty(judge, tally):
    """Six of eight microbatches have no token: as if there were two, in losses, gradients and rows of experts."""
    path = judge.data("two", judge.documents[:2])
    for more in ({}, dict(balance_over="microbatch"), STEERED):
        few, many = (judge.step(path, **more | dict(microbatches=count)) for count in (2, 8))
        worst, name = difference(many, few)
        tally.check(worst < 1e-12 and few[0]["rows"] == many[0]["rows"],
                    f"empty microbatches {more}: off by {worst:.1e} in {name}, rows {many[0]['rows']}")


def check_targets(judge, tally):
    """Documents of one token have no target: nothing is trained."""
    line, gradients = judge.step(judge.data("ones", [[97 + i] for i in range(8)]))
    largest = max(max(map(abs, values)) for values in gradients.values())
    tally.check(line["tokens"] == 0 and line["grad_norm"] == 0 == largest and line["balance"] > 0,
                f"no targets: norm {line['grad_norm']}, largest element {largest}")


def check_slopes(judge, tally):
    """Finite differences of the losses in the log, along a random direction in all weights."""
    path = judge.data("slopes", judge.documents)
    for more in (dict(balance=2), PAIRS | dict(z=0.3, balance=2), {"model": "glm4_moe", "z": 0, "balance": 2}):
        program, base = os.path.join(judge.folder, "slopes"), os.path.join(judge.folder, "base.safetensors")
        harness.compile_train(judge.compiler, program, SIZES | dict(sequence=24) | more,
                              options=["-D", "data.documents=true"])
        judge.run(program, path)
        shapes = {name: shape for name, (shape, _) in harness.read_safetensors(program + ".grads").items()}
        weights = {name: families.weight_of(name, shape) for name, shape in shapes.items()}
        way = {name: families.noise("way " + name, len(values)) for name, (_, values) in weights.items()
               if not name.endswith("e_score_correction_bias")}

        def at(step):
            harness.write_safetensors(base, {name: (shape, [value + step * along for value, along in zip(
                values, way.get(name, [0] * len(values)))]) for name, (shape, values) in weights.items()})
            line, gradients = judge.run(program, path, "--load", base)
            return line["loss"] + line["balance"] + line["z"], gradients

        step = 1e-6  # larger ones change choices
        slope = (8 * (at(step)[0] - at(-step)[0]) - (at(2 * step)[0] - at(-2 * step)[0])) / (12 * step)
        gradients = at(0)[1]
        exact = sum(g * along for name, values in way.items() for g, along in zip(gradients[name], values))
        tally.check(abs(slope - exact) < 1e-6 * abs(exact), f"slopes {more}: {slope}, expected {exact}")


def check_neighbours(judge, tally):
    """The log-probabilities of a document have the same bits whatever document stands behind it in the row: how many
    rows an expert has differs, once in a while it is one."""
    draw = random.Random(3)
    text = lambda: [draw.randrange(97, 123) for _ in range(16)]
    program, first = os.path.join(judge.folder, "neighbours"), text()
    sizes = SIZES | dict(layers=1, hidden=256, ffn=1024, experts=16, heads=4, kv_heads=4, sequence=32, microbatches=1)
    for precision in ("f32", "bf16"):
        harness.compile_train(judge.compiler, program, sizes | dict(precision=precision),
                              options=["-D", "data.documents=true"])
        seen = set()
        for _ in range(8):
            harness.call([program, "--in-process", "--data", judge.data("pair", [first, text()]), "--steps", "1",
                          "--lr", "0", "--logprobs", program + ".logprobs"])
            seen.add(tuple(harness.read_safetensors(program + ".logprobs")["logprobs"][1][:15]))
        tally.check(len(seen) == 1, f"a document beside 8 others, {precision}: {len(seen)} results")


def check_transformers(judge, tally):
    """The balance of load_balancing_loss_func with its attention_mask (padding_oracle.py): of one layer and microbatch
    it is our balance times k."""
    with open(os.path.join(harness.ROOT, "test", "run", "Inputs", "padding.json")) as file:
        expected = json.load(file)
    sizes = SIZES | dict(layers=1, balance=1, z=0, balance_over="microbatch", microbatch=8, microbatches=1)
    program, base = os.path.join(judge.folder, "masked"), os.path.join(judge.folder, "masked.safetensors")
    harness.compile_train(judge.compiler, program, sizes | dict(sequence=24), options=["-D", "data.documents=true"])
    path = judge.data("masked_rows", judge.documents)
    judge.run(program, path)
    harness.write_safetensors(base, {name: families.weight_of(name, shape) for name, (shape, _) in
                                     harness.read_safetensors(program + ".grads").items()})
    line, _ = judge.run(program, path, "--load", base)
    error = abs(line["balance"] * sizes["top"] - expected["aux_loss"])
    tally.check(error < 1e-12 and abs(line["loss"] - expected["loss"]) < 1e-12,
                f"transformers: balance {line['balance']} times {sizes['top']} off by {error:.1e}")


def main():
    compiler, folder, *quick = sys.argv[1:]
    judge, tally = Judge(compiler, folder), harness.Tally()
    check_cases(judge, tally, quick)
    check_empty(judge, tally)
    check_targets(judge, tally)
    check_slopes(judge, tally)
    check_transformers(judge, tally)
    if not quick:
        check_neighbours(judge, tally)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
