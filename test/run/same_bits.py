#!/usr/bin/env python3
"""Judges by execution what changes no bit: to run parts of the model again, and a schedule with the same sums."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: same_bits.py PP_COMPILE FOLDER
# R makes from the same inputs what F would have kept, with the same kernels on the same shapes: gradients, losses and
# trained weights of three steps are those of the schedule that keeps everything, bit for bit. If HelixPipe ships the
# weights of QKV, shares of their gradients come back and are added up in another order, because units have other
# lengths. There the test judges the gradients of all other weights and the first loss. Chunks have other shapes:
# gradients.py compares them with the whole MLP, up to rounding.
#
# Schedules that add up the gradients of a weight in the same order make the same bits. A run that is resumed under such
# a schedule goes on as if nothing had changed (runtime/README.md, "Data").
import os, sys
import harness
from gradients import Runner

CLASSES = (("single", "1f1b", "interleaved", "bpipe", "hanayo", "zb_h2", "zb_v", "v_min", "dualpipe_v", "weipipe_naive",
            "weipipe_interleave", "wzb1"), ("gpipe", "gpipe_offload", "looped_bfs", "helixpipe"),
           ("fsdp", "zero2"), ("slimpipe", "slimpipe_interleaved"))
SHIPPED = ("c_attn", "q_proj", "k_proj", "v_proj")
GROUPS = (("gpt2", "f32", "helixpipe/folds=2", SHIPPED),
          ("gpt2", "f32", "helixpipe/folds=2/ship=false", ()),
          ("llama", "bf16", "helixpipe/ship=false", ()),
          ("llama", "f64", "helixpipe/folds=2/ship=false/mlp_chunks=5", ()),
          ("gpt2", "bf16", "1f1b/mlp_chunks=3", ()),
          ("llama", "f32", "1f1b", ()), ("delta", "bf16", "1f1b", ()))


def judged(found, but):
    gradients, losses, weights = found
    gradients = {name: values for name, values in gradients.items() if not any(word in name for word in but)}
    return (gradients, losses[0]) if but else (gradients, losses, weights)


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    runner, tally = Runner(compiler, folder), harness.Tally()
    for model, precision, kept, but in GROUPS:
        again = kept + "/forget=true" if "helixpipe" in kept else kept.replace("1f1b", "1f1b_recompute")
        sizes = dict(model=model, precision=precision, ranks=4, microbatches=8)
        first, second = (judged(runner.run(runner.compile(schedule=name, **sizes), 4, "threads", "rendezvous"), but)
                         for name in (kept, again))
        tally.check(first == second, f"{model} {precision} {again}: the bits of {kept}")
    for first, *others in CLASSES:
        sizes = dict(model="llama", precision="f32", ranks=4, microbatches=8)
        bits = {name: runner.run(runner.compile(schedule=name, **sizes), 4, "threads", "rendezvous")
                for name in (first, *others)}
        for name in others:
            tally.check(bits[name] == bits[first], f"{name}: the bits of {first}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
