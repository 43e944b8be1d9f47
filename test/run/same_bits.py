#!/usr/bin/env python3
"""Judges by execution what may not change a bit: running parts again, where the QKV weights go, and both of an MLP in chunks."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: same_bits.py PP_COMPILE FOLDER
# R makes from the same inputs what F would have kept, with the same kernels on the same shapes: gradients, losses and trained
# weights of three steps are those of the schedule that keeps everything, bit for bit. Chunks are other shapes: against the
# whole MLP gradients.py judges them to rounding.
import os, sys
import harness
from gradients import Runner

GROUPS = (("gpt2", "f32", ("helixpipe/folds=2", "helixpipe/folds=2/forget=true", "helixpipe/folds=2/cached=true/forget=true",
                           "helixpipe/folds=2/ship=false/forget=true")),
          ("llama", "bf16", ("helixpipe", "helixpipe/forget=true")),
          ("llama", "f64", ("helixpipe/folds=2/mlp_chunks=5", "helixpipe/folds=2/mlp_chunks=5/forget=true")),
          ("gpt2", "bf16", ("1f1b/mlp_chunks=3", "1f1b_recompute/mlp_chunks=3")),
          ("llama", "f32", ("1f1b", "1f1b_recompute")))


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    runner, tally = Runner(compiler, folder), harness.Tally()
    for model, precision, schedules in GROUPS:
        first = None
        for schedule in schedules:
            program = runner.compile(schedule=schedule, model=model, precision=precision, ranks=4, microbatches=8)
            found = runner.run(program, 4, "threads", "rendezvous")
            first = first or found
            tally.check(found == first, f"{model} {precision} {schedule}: the bits of {schedules[0]}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
