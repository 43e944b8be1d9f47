#!/usr/bin/env python3
"""Judges attention with sinks, in windows and without: the loss and gradients against those of transformers."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: sinks.py PP_COMPILE FOLDER
# Inputs/sinks.json is what sinks_oracle.py has from transformers, as mtp.py says of its file.
import os, sys
import mtp

SIZES = dict(layers=4, hidden=24, heads=4, kv_heads=2, ffn=33, vocab=256, sequence=18)
ROWS, WINDOWS = 8, [5, 0, 5, 0]
SCHEDULES = (dict(schedule="single", ranks=1), dict(schedule="zb_v", ranks=2), dict(schedule="weipipe_interleave"),
             dict(schedule="slimpipe", slices=6, ranks=2, exchange="true"), dict(schedule="helixpipe"),
             dict(schedule="1f1b_recompute"))


def main():
    compiler, folder = sys.argv[1:3]
    os.makedirs(folder, exist_ok=True)
    sizes = SIZES | {"model": "llama", "model.sinks": "true", "model.windows": str(WINDOWS)}
    return mtp.judge(compiler, folder, "sinks", SCHEDULES, sizes)


if __name__ == "__main__":
    sys.exit(main())
