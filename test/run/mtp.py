#!/usr/bin/env python3
"""Judges llama_mtp.pipe and llama_mtp2.pipe, which predict further tokens: losses and gradients of transformers."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: mtp.py PP_COMPILE FOLDER
# Inputs/mtp.json and mtp2.json hold what mtp_oracle.py has from transformers for the same weights and rows, in f64: by
# kind of weight the norm of the gradient, and its product with a direction.
import json, os, sys
import families, harness

SIZES = dict(layers=4, hidden=20, heads=2, kv_heads=1, ffn=33, vocab=256, sequence=18)
ROWS, WEIGHT = 8, 0.3
# The further layers are in the last stage, with the loss.
SCHEDULES = (dict(schedule="single", ranks=1), dict(schedule="1f1b"), dict(schedule="zb_v", ranks=2),
             dict(schedule="weipipe_interleave"), dict(schedule="fsdp"), dict(schedule="helixpipe"),
             dict(schedule="slimpipe", slices=4), dict(schedule="megatron", layout="Et|tt|t|mL"),
             dict(schedule="interleaved", ranks=2), dict(schedule="1f1b_recompute"),
             dict(schedule="1f1b", microbatches=2, **{"mesh.data": 2}),
             dict(schedule="weipipe_interleave", ranks=2, microbatches=2, **{"mesh.data": 2}),
             dict(schedule="1f1b", ranks=2, **{"mesh.context": 3}))
TWICE = (dict(schedule="single", ranks=1), dict(schedule="1f1b"), dict(schedule="zb_v", ranks=2),
         dict(schedule="weipipe_interleave"), dict(schedule="fsdp"), dict(schedule="slimpipe", slices=4),
         dict(schedule="megatron", layout="Et|tt|t|m*2L"),
         dict(schedule="zb_v", ranks=2, **{"mesh.context": 3}))
TOLERANCE = 1e-9


def judge(compiler, folder, name, schedules, sizes, train=harness.TRAIN):
    """Runs a step of every schedule with the weights of the oracle, and compares with its losses and gradients."""
    tally = harness.Tally()
    text, weights = os.path.join(folder, "text.txt"), os.path.join(folder, "weights.safetensors")
    with open(text, "wb") as file:
        file.write(families.TEXT)
    with open(os.path.join(harness.ROOT, "test", "run", "Inputs", name + ".json")) as file:
        expected = json.load(file)
    for number, schedule in enumerate(schedules):
        defines = sizes | dict(precision="f64", microbatch=2, microbatches=4, ranks=4) | schedule
        program = harness.compile_train(compiler, os.path.join(folder, f"program{number}"), defines, train)
        grads, log = program + ".grads", program + ".jsonl"
        run = [*harness.launch(program, defines["ranks"], "threads"), "--data", text, "--grads", grads, "--log", log]
        if number == 0:
            harness.call([*run, "--steps", "1"])
            shapes = {name: shape for name, (shape, _) in harness.read_safetensors(grads).items()}
            harness.write_safetensors(weights, {name: families.weight_of(name, shape)
                                                for name, shape in shapes.items()})
        harness.call([*run, "--steps", "1", "--load", weights])
        line = harness.read_log(log)[0]
        for key in expected.keys() - {"gradients"}:
            error = abs(line[key] - expected[key])
            tally.check(error <= 1e-12, f"{schedule} {key} {line[key]} off by {error:.1e}")
        ours = families.summary(harness.read_safetensors(grads))
        same = ours.keys() == expected["gradients"].keys()
        worst = max((abs(a - b) / max(wanted[0], 1e-30), name) for name, wanted in expected["gradients"].items()
                    for a, b in zip(ours.get(name, [float("inf")] * 2), wanted))
        tally.check(same and worst[0] <= TOLERANCE, f"{schedule} gradients off by {worst[0]:.1e} in {worst[1]}")
    return tally.close()


def main():
    compiler, folder = sys.argv[1:3]
    os.makedirs(folder, exist_ok=True)
    models = os.path.join(harness.ROOT, "stdlib", "models")
    train = harness.add_models(folder, os.path.join(models, "llama_mtp.pipe"), os.path.join(models, "llama_mtp2.pipe"))
    status = judge(compiler, folder, "mtp", SCHEDULES, SIZES | dict(model="llama_mtp"), train)
    return judge(compiler, folder, "mtp2", TWICE, SIZES | dict(model="llama_mtp2"), train) or status


if __name__ == "__main__":
    sys.exit(main())
