#!/usr/bin/env python3
"""Judges mixtures of experts: the three losses and the gradients against those of transformers and of autograd."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: experts.py PP_COMPILE FOLDER
# Inputs/experts_sequence.json and experts_microbatch.json are what experts_oracle.py has, as mtp.py says of its file:
# transformers makes the logits of routers and of tokens, and the oracle the balance and z of docs/experts.md.
import os, sys
import mtp

ROWS, OF_A_MICROBATCH = 8, 2
COMMON = dict(layers=4, hidden=20, heads=2, kv_heads=1, ffn=11, vocab=256, sequence=18, experts=6, top=3)
# By the name of the expected numbers: the model with the weights of its losses, and the schedules.
CASES = {
    "experts_sequence": (COMMON | dict(model="mixtral", balance=0.7, z=0.05, balance_over="sequence"), (
        dict(schedule="single", ranks=1), dict(schedule="1f1b"), dict(schedule="zb_v", ranks=2),
        dict(schedule="weipipe_interleave"), dict(schedule="fsdp"), dict(schedule="helixpipe"),
        dict(schedule="1f1b_recompute"), dict(schedule="1f1b", ranks=2, microbatches=2, **{"mesh.data": 2}))),
    "experts_microbatch": (COMMON | dict(model="olmoe", balance=0.7, z=0.05, balance_over="microbatch"), (
        dict(schedule="single", ranks=1), dict(schedule="gpipe"), dict(schedule="interleaved", ranks=2),
        dict(schedule="tawpipe"), dict(schedule="dualpipev", ranks=2))),
}


def main():
    compiler, folder = sys.argv[1:3]
    failed = 0
    for name, (sizes, schedules) in CASES.items():
        place = os.path.join(folder, name)
        os.makedirs(place, exist_ok=True)
        failed |= mtp.judge(compiler, place, name, schedules, sizes)
    return failed


if __name__ == "__main__":
    sys.exit(main())
