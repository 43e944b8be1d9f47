#!/usr/bin/env python3
"""Judges models that the library's two do not cover: by finite differences, and schedules against one rank."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: models.py PP_COMPILE FOLDER [MODEL..]
# The models are those of Inputs/*.pipe below; examples/train.pipe with a line for each of them is the program.
import os, sys
import finite_differences, harness
from gradients import Runner, agreement

INPUTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs")
# By model: its file and its call (None if the program has the model itself), and the schedules that are compared, each
# as `NAME[/PARAMETER=VALUE..]`.
MODELS = {
    "mixed": ("mixed.pipe", "mixed(layers, hidden, heads, kv_heads, ffn, vocab)",
              "1f1b zb_v interleaved weipipe_interleave helixpipe/folds=2/forget=true slimpipe/exchange=true tawpipe "
              "fsdp "
              "1f1b_recompute 1f1b_vocabulary megatron/layout=E|ttt|tt|tttL"),
    "two_losses": ("losses.pipe", "two_losses(layers, hidden, heads, ffn, vocab)",
                   "1f1b zb_h1 fsdp slimpipe helixpipe"),
    "half_loss": ("losses.pipe", "half_loss(layers, hidden, ffn, vocab)", "1f1b_vocabulary"),
    "encoder_decoder": (None, None, "1f1b gpipe zb_h1 interleaved dualpipe_v weipipe_interleave "
                                    "helixpipe/folds=2/forget=true fsdp gpipe_offload"),
}


def write_train(folder):
    """examples/train.pipe with these models."""
    with open(harness.TRAIN) as file:
        text = file.read()
    for name, (source, call, _) in MODELS.items():
        text = text if source is None else text.replace("model choose model {",
                                                        f'model choose model {{\n    "{name}" {call}', 1)
    for source in {source for source, _, _ in MODELS.values() if source}:
        text = f'import "{os.path.join(INPUTS, source)}"\n' + text
    path = os.path.join(folder, "train.pipe")
    with open(path, "w") as file:
        file.write(text)
    return path


def compare(runner, tally, train, model, schedule, mode, references):
    sizes = dict(model=model, precision="f64", ranks=4, microbatches=8)
    if model not in references:
        single = runner.compile(train, schedule="single", **sizes | dict(ranks=1))
        references[model] = runner.run(single, 1, "threads", "rendezvous")
    ours = runner.run(runner.compile(train, schedule=schedule, **sizes), 4, *mode)
    good, far = agreement(ours, references[model])
    tally.check(good, f"{model} {schedule:32} {mode[0]:9} {far}")


def check_source(compiler, folder, tally, text):
    """The encoder reads the window before the decoder's; a file of those windows, given with `--source`, is the same,
    to the bit."""
    sizes, sequence = finite_differences.SIZES | dict(layers=2, sequence=32), 32
    program = harness.compile_train(compiler, os.path.join(folder, "source"), sizes | dict(model="encoder_decoder"))
    with open(text, "rb") as file:
        data = file.read()
    windows = (len(data) - 1) // sequence
    shifted, other = os.path.join(folder, "shifted.txt"), os.path.join(folder, "other.txt")
    with open(shifted, "wb") as file:
        file.write(data[(windows - 1) * sequence:windows * sequence] + data)
    with open(other, "wb") as file:
        file.write(data[::-1])

    def losses(*more):
        log = os.path.join(folder, "source.jsonl")
        harness.call([program, "--in-process", "--data", text, "--steps", "3", "--log", log, *more])
        return [line["loss"] for line in harness.read_log(log)]

    alone = losses()
    tally.check(alone == losses("--source", shifted),
                "without --source the encoder reads the window before the decoder's")
    tally.check(alone != losses("--source", other), "with --source it reads that file")
    program = harness.compile_train(compiler, os.path.join(folder, "plain"), sizes | dict(model="llama"))
    refused = harness.call([program, "--in-process", "--data", text, "--steps", "1", "--source", other], expect=None)
    tally.check(refused.returncode != 0 and "this model has no encoder" in refused.stderr,
                "a model without encoder refuses --source")


def main():
    compiler, folder, *chosen = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    runner, tally, references, train = Runner(compiler, folder), harness.Tally(), {}, write_train(folder)
    for model in chosen or MODELS:
        finite_differences.judge(compiler, folder, tally, model, train)
        for number, schedule in enumerate(MODELS[model][2].split()):
            mode = (("mpi", "rendezvous"), ("threads", "rendezvous"), (f"streams/{number}", "rendezvous"))[number % 3]
            compare(runner, tally, train, model, schedule, mode, references)
    if not chosen:
        check_source(compiler, folder, tally, runner.text)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
