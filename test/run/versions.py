#!/usr/bin/env python3
"""Judges several updates a step and older weights: against one rank, and against an AdamW that is written here."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: versions.py PP_COMPILE FOLDER
# 1. Trained weights, gradients and losses of each schedule equal those of one rank that uses the same versions.
# 2. The delays are right: a program without versions loads W(t-1) and one batch and gives the gradients of W(t-1). This
#    script applies AdamW to W(t), with the schedule of the rate, clipping and bias corrections. It does the same for
#    updates without old weights.
# 3. How updates are cut into steps changes no bit, nor does a run that is stopped and resumed.
import math, os, shutil, sys
import harness
from gradients import difference

TRAIN = os.path.join(harness.ROOT, "test", "run", "Inputs", "versions.pipe")
LR, BETA1, BETA2, EPSILON, DECAY, MIN_LR = 3e-3, 0.9, 0.95, 1e-8, 0.1, 0.1
WARMUP, DECAY_STEPS, SEQUENCE, MICROBATCH = 3, 20, 16, 2


class Runner:
    def __init__(self, compiler, folder):
        self.compiler, self.folder, self.text = compiler, folder, harness.write_text(folder)
        self.programs = {}

    def compile(self, **values):
        key = "_".join(f"{name}{value}" for name, value in values.items())
        if key not in self.programs:
            self.programs[key] = harness.compile_train(self.compiler, os.path.join(self.folder, key), values, TRAIN)
        return self.programs[key]

    def run(self, program, ranks, transport, name, *options, data=None):
        result = os.path.join(self.folder, name)
        for end in (".jsonl", ".grads"):
            if os.path.exists(result + end):
                os.remove(result + end)
        shutil.rmtree(result + ".saved", ignore_errors=True)
        outputs = ["--grads", result + ".grads", "--log", result + ".jsonl", "--save", result + ".saved"]
        harness.call([*harness.launch(program, ranks, transport), "--data", data or self.text, *map(str, options),
                      "--sends=rendezvous", *outputs])
        return result


def weights_of(result):
    return harness.read_safetensors(os.path.join(result + ".saved", "model.safetensors"))


def values_of(tensors):
    return {name: values for name, (_, values) in tensors.items()}


def file_of(result, name):
    with open(os.path.join(result + ".saved", name), "rb") as file:
        return file.read()


def compare(tally, runner, schedule, alone, ranks, transports, steps=3, tolerance=1e-11, **sizes):
    """Several ranks against one."""
    single = runner.compile(schedule=alone, ranks=1, **sizes)
    reference = runner.run(single, 1, "threads", "reference", "--steps", steps)
    losses = [line["loss"] for line in harness.read_log(reference + ".jsonl")]
    program = runner.compile(schedule=schedule, ranks=ranks, **sizes)
    for transport in transports:
        result = runner.run(program, ranks, transport, "result", "--steps", steps)
        grads = [values_of(harness.read_safetensors(run + ".grads")) for run in (result, reference)]
        weights = [values_of(weights_of(run)) for run in (result, reference)]
        errors = [difference(*grads)[0], difference(*weights)[0],
                  harness.apart([line["loss"] for line in harness.read_log(result + ".jsonl")], losses)]
        tally.check(max(errors) <= tolerance,
                    f"{schedule} {sizes} {ranks} ranks {transport}: gradients {errors[0]:.1e} "
                                              f"weights {errors[1]:.1e} losses {errors[2]:.1e}")


def rate(update):
    if update <= WARMUP:
        return LR * update / WARMUP
    progress = min(1.0, (update - WARMUP) / (DECAY_STEPS - WARMUP))
    return LR * (MIN_LR + (1 - MIN_LR) * 0.5 * (1 + math.cos(math.pi * progress)))


def adamw(weights, gradients, moments, update, clip):
    """One update in f64; decay for matrices alone."""
    norm = math.sqrt(sum(g * g for values in gradients.values() for g in values))
    gamma = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
    for name, (shape, values) in weights.items():
        m, v = moments.setdefault(name, ([0.0] * len(values), [0.0] * len(values)))
        decay = DECAY if len(shape) >= 2 else 0.0
        for i, g in enumerate(gradients[name]):
            g *= gamma
            m[i] = BETA1 * m[i] + (1 - BETA1) * g
            v[i] = BETA2 * v[i] + (1 - BETA2) * g * g
            step = m[i] / (1 - BETA1 ** update) / (math.sqrt(v[i] / (1 - BETA2 ** update)) + EPSILON)
            values[i] -= rate(update) * (step + decay * values[i])
    return norm


def copy_of(weights):
    return {name: (shape, values[:]) for name, (shape, values) in weights.items()}


def delays(tally, runner, schedule, ranks, delay, batches, steps, **sizes):
    """W(t+1) = AdamW(W(t), grad(W(t - delay)))."""
    each = sizes["microbatches"] // batches
    program = runner.compile(schedule=schedule, ranks=ranks, batches=batches, **sizes)
    result = runner.run(program, ranks, "threads", "result", "--steps", steps)
    oracle = runner.compile(schedule="single", ranks=1, **sizes | dict(microbatches=each))
    start = runner.run(oracle, 1, "threads", "start", "--steps", 1, "--lr", 0)
    newest = weights_of(start)
    versions, moments, losses = [newest] * (delay + 1), {}, []
    with open(runner.text, "rb") as file:
        text = file.read()
    part, loaded = os.path.join(runner.folder, "part.txt"), os.path.join(runner.folder, "loaded.safetensors")
    tokens = each * MICROBATCH * SEQUENCE
    for update in range(1, batches * steps + 1):
        with open(part, "wb") as file:
            file.write(text[(update - 1) * tokens:update * tokens + 1])
        harness.write_safetensors(loaded, versions[-1 - delay])
        one = runner.run(oracle, 1, "threads", "one", "--steps", 1, "--load", loaded, data=part)
        losses.append(harness.read_log(one + ".jsonl")[0]["loss"])
        fresh = copy_of(versions[-1])
        gradients = values_of(harness.read_safetensors(one + ".grads"))
        norm = adamw(fresh, gradients, moments, update, sizes.get("clip", 1.0))
        versions.append(fresh)
    error, where = difference(values_of(weights_of(result)), values_of(versions[-1]))
    log = harness.read_log(result + ".jsonl")
    wrong = harness.apart([line["loss"] for line in log],
                          [sum(losses[batches * i:batches * (i + 1)]) / batches for i in range(steps)])
    tally.check(error <= 1e-10 and wrong <= 1e-12 and abs(log[-1]["grad_norm"] - norm) <= 1e-10 * norm and
                abs(log[-1]["lr"] - rate(batches * steps)) <= 1e-15,
                f"{schedule} {sizes} batches {batches}: delay {delay} by AdamW done here: weights {error:.1e} {where} "
                f"losses {wrong:.1e}")
    stale = difference(values_of(weights_of(result)), values_of(versions[-2]))[0]
    tally.check(stale > 1e-6, f"{schedule}: one update less differs by {stale:.1e}")


def same_bits(tally, runner, **sizes):
    """12 updates as 6 steps of 2, 3 of 4; and stopped after half."""
    few = runner.compile(schedule="pipedream_2bw", ranks=2, microbatches=4, batches=2, **sizes)
    many = runner.compile(schedule="pipedream_2bw", ranks=2, microbatches=8, batches=4, **sizes)
    whole = runner.run(few, 2, "mpi", "whole", "--steps", 6)
    cut = runner.run(many, 2, "threads", "cut", "--steps", 3)
    files = ("model.safetensors", "optimizer.safetensors")
    tensors = lambda run, name: harness.read_safetensors(os.path.join(run + ".saved", name))
    tally.check(all(tensors(whole, name) == tensors(cut, name) for name in files),
                f"{sizes}: 6 steps of 2 updates are 3 of 4 to the bit")
    half = runner.run(few, 2, "threads", "half", "--steps", 6, "--stop-at", 3)
    rest = runner.run(few, 2, "threads", "rest", "--resume", half + ".saved")
    tally.check(all(file_of(whole, name) == file_of(rest, name) for name in files),
                f"{sizes}: stopped after 3 steps and resumed is the same run to the bit")
    other = [*harness.launch(many, 2, "threads"), "--data", runner.text, "--resume", half + ".saved"]
    wrong = harness.call(other, expect=None)
    tally.check(wrong.returncode != 0 and "cannot resume" in wrong.stderr,
                f"{sizes}: another number of updates is refused")


def main():
    compiler, folder = sys.argv[1:3]
    os.makedirs(folder, exist_ok=True)
    tally, runner = harness.Tally(), Runner(compiler, folder)
    judge = lambda *names, **sizes: compare(tally, runner, *names, **sizes)
    judge("pipedream_2bw", "delayed", 4, ("mpi", "threads", "streams/1"), model="llama", microbatches=8, batches=2)
    judge("pipedream_2bw", "delayed", 2, ("threads", "staged/2"), model="gpt2", microbatches=12, batches=4, clip=0)
    judge("pipedream_2bw", "delayed", 2, ("threads",), model="gpt2", microbatches=2, batches=1)
    judge("pipedream_2bw", "delayed", 2, ("threads",), model="llama", microbatches=4, batches=2, precision="f32",
          tolerance=1e-3)
    judge("stashed", "alone", 4, ("mpi", "threads"), model="llama", microbatches=8, stages=4, clip=0)
    judge("stashed", "alone", 4, ("threads",), model="llama", microbatches=2, stages=4, clip=0)
    delays(tally, runner, "pipedream_2bw", 2, 1, 2, 3, model="gpt2", microbatches=4)
    delays(tally, runner, "pipedream_2bw", 2, 1, 3, 2, model="llama", microbatches=6, clip=0)
    delays(tally, runner, "drained", 2, 0, 2, 3, model="llama", microbatches=8)
    same_bits(tally, runner, model="gpt2")
    same_bits(tally, runner, model="llama", precision="bf16")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
