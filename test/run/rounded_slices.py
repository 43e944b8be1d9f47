#!/usr/bin/env python3
"""Judges slices, attention exchanges and cut vocabularies in 16 bits: as far from f32 as one rank, not farther."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: rounded_slices.py PP_COMPILE FOLDER
# One rank in f32 says what is right, the same in bf16 or f16 how far rounding leads from it. An output of attention
# that is merged, or a sum over shards of the vocabulary, is rounded twice where that of one rank is rounded once: twice
# its distance is the bound. Gradients that are kept in bf16 are those of the same schedule in f32 but for N roundings
# of their sums, one a unit, each by at most 2^-9 and either way: 3 sqrt(N) 2^-9. Both bounds are below 1/16, by which a
# term would be off that is lost or twice there.
import os, sys
import harness
from gradients import SMALL, difference

INPUTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs", "rounded.pipe")
M, SLICES = 8, 4
CASES = (("1f1b_vocabulary", 4, {}), ("slimpipe", 4, dict(vocabulary="true")), ("slimpipe", 4, dict(exchange="true")),
         ("slimpipe", 2, dict(exchange="true", vocabulary="true")), ("helped_split", 2, {}), ("ring", 4, {}),
         ("ring", 2, {}))


def run(compiler, folder, text, **values):
    path = os.path.join(folder, "_".join(map(str, values.values())))
    harness.compile_train(compiler, path, SMALL | dict(layers=4, vocab=250, microbatches=M, slices=SLICES) | values,
                          INPUTS)
    harness.call([*harness.launch(path, values["ranks"], "threads"), "--sends=rendezvous", "--data", text, "--steps",
                  "3", "--grads", path + ".grads", "--log", path + ".jsonl"])
    grads = {name: values for name, (_, values) in harness.read_safetensors(path + ".grads").items()}
    return grads, [line["loss"] for line in harness.read_log(path + ".jsonl")]


def judge(tally, start, model, precision, cases):
    one = dict(schedule="single", ranks=1, model=model, gradients="f32")
    right, right_losses = start(**one, precision="f32")
    compare = lambda grads, losses: (*difference(grads, right),
                                     harness.drift(losses, right_losses))
    bound, _, drift_bound = compare(*start(**one, precision=precision))
    for schedule, ranks, more in cases:
        case, name = dict(schedule=schedule, ranks=ranks, model=model, precision=precision,
                          **more), f"{precision} {model} {schedule} {more} on {ranks}"
        grads, losses = start(gradients="f32", **case)
        worst, where, drift = compare(grads, losses)
        tally.check(worst <= 2 * bound < 1 / 16 and drift <= 2 * drift_bound,
                    f"{name}: {worst:.1e} ({where}), one rank {bound:.1e}; losses {drift:.1e}, one rank "
                    f"{drift_bound:.1e}")
        if precision == "f16":
            continue
        kept, kept_losses = start(gradients="bf16", **case)
        worst, where = difference(kept, grads)
        limit = 3 * (M * (1 if schedule == "1f1b_vocabulary" else SLICES)) ** 0.5 / 512
        tally.check(1e-4 < worst <= limit < 1 / 16 and kept_losses[0] == losses[0],
                    f"{name}, gradients in bf16: {worst:.1e} ({where}), bound {limit:.1e}")


def main():
    compiler, folder = sys.argv[1:]
    tally, text = harness.Tally(), harness.write_text(folder)
    start = lambda **values: run(compiler, folder, text, **values)
    for model, precision, cases in (("llama", "bf16", CASES[2:4]), ("gpt2", "bf16", CASES), ("gpt2", "f16", CASES)):
        judge(tally, start, model, precision, cases)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
