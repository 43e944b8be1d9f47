#!/usr/bin/env python3
"""Judges attention with sinks, in windows and without: the loss and gradients against those of transformers."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: sinks.py PP_COMPILE FOLDER
# Inputs/sinks.json is what sinks_oracle.py has from transformers, as mtp.py says of its file. gpt_oss.json beside it is
# of GPT-OSS with an MLP in the place of its experts: besides sinks and windows it has biases, and rotary positions by
# YaRN with `truncate` false.
import math, os, sys
import harness, mtp

SIZES = dict(layers=4, hidden=24, heads=4, kv_heads=2, ffn=33, vocab=256, sequence=18)
ROWS, WINDOWS = 8, [5, 0, 5, 0]
YARN = dict(theta=500.0, factor=4.0, original=16, fast=32.0, slow=1.0)
SCHEDULES = (dict(schedule="single", ranks=1), dict(schedule="zb_v", ranks=2), dict(schedule="weipipe_interleave"),
             dict(schedule="slimpipe", slices=6, ranks=2, exchange="true"), dict(schedule="helixpipe"),
             dict(schedule="1f1b_recompute"))


def main():
    compiler, folder = sys.argv[1:3]
    os.makedirs(folder, exist_ok=True)
    sizes = SIZES | {"model": "llama", "model.sinks": "true", "model.windows": str(WINDOWS)}
    status = mtp.judge(compiler, folder, "sinks", SCHEDULES, sizes)
    rope = [YARN["theta"], SIZES["hidden"] // SIZES["heads"], YARN["factor"], YARN["original"], YARN["fast"],
            YARN["slow"], 0.1 * math.log(YARN["factor"]) + 1]
    model = os.path.join(folder, "yarn.pipe")
    with open(os.path.join(harness.ROOT, "stdlib", "models", "llama.pipe")) as read, open(model, "w") as file:
        table = f"rope_yarn({', '.join(map(str, rope))}, false)"
        file.write(read.read().replace("model llama(", "model yarn(").replace("rope = []", "rope = " + table))
    sizes |= {"model": "yarn", "model.qkv_bias": "true", "model.out_bias": "true"}
    return mtp.judge(compiler, folder, "gpt_oss", SCHEDULES, sizes, harness.add_models(folder, model)) or status


if __name__ == "__main__":
    sys.exit(main())
