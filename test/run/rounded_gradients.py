#!/usr/bin/env python3
"""Judges `gradients bf16` and `f16`, sums that are rounded task by task, against sums in f32 on one rank."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: rounded_gradients.py PP_COMPILE FOLDER
# Of m microbatches every partial sum is rounded once, by at most 2^-9 of it, and so are those of tied weights' shares:
# the bound is (m + 1) 2^-8 of the largest gradient of the tensor, in f16 an eighth of that. A body that loses a term is
# off by 1/m, one that is not rounded at all by nothing; both fail. The messages of a ring, two weights and a gradient a
# turn, shrink from 8 to 6 bytes.
import os, sys
import harness
from gradients import SMALL, difference

INPUTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs", "rounded.pipe")
M = 8


def run(compiler, folder, text, schedule, ranks, gradients, model, precision):
    values = dict(schedule=schedule, ranks=ranks, gradients=gradients, microbatches=M, model=model, precision=precision)
    path = os.path.join(folder, "_".join(map(str, values.values())))
    if precision == "f16":  # sums over microbatches must not overflow
        values["optimizer.loss_scale"] = 1024
    harness.compile_train(compiler, path, SMALL | values, INPUTS)
    transport = "mpi" if schedule in ("tawpipe", "fsdp") else "threads"  # both sum in their collectives
    harness.call([*harness.launch(path, ranks, transport), "--sends=rendezvous", "--data", text, "--steps", "3",
                  "--grads", path + ".grads", "--log", path + ".jsonl"])
    grads = {name: values for name, (_, values) in harness.read_safetensors(path + ".grads").items()}
    return grads, [line["loss"] for line in harness.read_log(path + ".jsonl")]


def main():
    compiler, folder = sys.argv[1:]
    tally, text = harness.Tally(), harness.write_text(folder)
    every = (("1f1b", 2), ("zb_h1", 4), ("weipipe", 4), ("tawpipe", 4), ("fsdp", 4), ("zero1", 2), ("zero2", 4),
             ("single", 1))
    for precision, model, schedules in (("bf16", "llama", every), ("bf16", "gpt2", every),
                                        ("f16", "llama", every[2:7:2])):
        finer = 8 if precision == "f16" else 1
        grads, losses = run(compiler, folder, text, "single", 1, "f32", model, precision)
        for schedule, ranks in schedules:
            ours, our_losses = run(compiler, folder, text, schedule, ranks, precision, model, precision)
            worst, where = difference(ours, grads)
            drift = harness.drift(our_losses, losses)
            good = 1e-4 / finer < worst <= (M + 1) / 256 / finer and our_losses[0] == losses[0] and drift < 1e-3
            tally.check(good, f"{precision} {model} {schedule} on {ranks}: gradients {worst:.1e} ({where}), losses "
                              f"{drift:.1e}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
