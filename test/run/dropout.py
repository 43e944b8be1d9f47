#!/usr/bin/env python3
"""Judges dropout: one mask on every schedule, slice, microbatch and recompute; none in evaluation."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: dropout.py PP_COMPILE FOLDER
import os, sys
import documents, harness
from gradients import difference

SIZES = dict(model="gpt2", layers=8, hidden=20, heads=4, ffn=33, vocab=256, context=32, sequence=16, microbatch=1,
             microbatches=8, precision="f64")
RATES = {"model.embed_rate": 0.1, "model.residual_rate": 0.25, "model.attention_rate": 0.3}
# All but the first run on four ranks. The last ones have other microbatches of the same eight sequences.
PROGRAMS = [dict(schedule="single"), *(dict(schedule=name, ranks=4) for name in (
    "1f1b", "1f1b_recompute", "zb_v", "weipipe_interleave", "tawpipe", "terapipe", "slimpipe", "helixpipe",
    "dualpipe_v", "fsdp", "1f1b_vocabulary", "ring_attention")), dict(schedule="slimpipe", ranks=4, exchange="true"),
    dict(schedule="single", microbatch=8, microbatches=1),
    dict(schedule="data_parallel", ranks=4, microbatch=2, microbatches=4)]
# Words of dropout's counters begin anywhere in rows of 15 keys; a query sees its document's last five.
BOUNDED = [dict(schedule=name, ranks=ranks, sequence=15) for name, ranks in
           (("single", 1), ("slimpipe", 3), ("terapipe", 3), ("zb_v", 4), ("helixpipe", 4))]


class Dropped:
    def __init__(self, compiler, folder):
        self.compiler, self.folder, self.text = compiler, folder, harness.write_text(folder)
        self.short = os.path.join(folder, "short.txt")
        with open(self.text, "rb") as text, open(self.short, "wb") as short:
            short.write(text.read(2000))

    def compile(self, name, train=harness.TRAIN, **values):
        return harness.compile_train(self.compiler, os.path.join(self.folder, name), SIZES | RATES | values, train)

    def windowed(self):
        """examples/train.pipe with a GPT-2 whose queries see five keys, of rows of documents."""
        root = os.path.dirname(os.path.dirname(harness.TRAIN))
        with open(os.path.join(root, "stdlib", "models", "gpt2.pipe")) as file:
            model = file.read()
        with open(harness.TRAIN) as file:
            train = file.read()
        assert model.count("causal = true,") == 1 and train.count('"std/models/gpt2.pipe"') == 1
        with open(os.path.join(self.folder, "windowed.pipe"), "w") as file:
            file.write(model.replace("causal = true,", "causal = true, window = 5,"))
        path = os.path.join(self.folder, "train.pipe")
        with open(path, "w") as file:
            file.write(train.replace('"std/models/gpt2.pipe"', '"windowed.pipe"'))
        return path

    def run(self, program, *options, data=None):
        log, grads = program + ".jsonl", program + ".grads"
        harness.call([program, "--in-process", "--data", data or self.text, "--steps", "2", "--log", log,
                      "--grads", grads, *options])
        return harness.read_log(log), {name: values for name, (_, values) in harness.read_safetensors(grads).items()}


def check_equal(tally, runs):
    """Losses and gradients of all are those of the first, which are returned."""
    first, wanted = None, None
    for values, (lines, gradients) in runs:
        losses = [line["loss"] for line in lines]
        if first is None:
            first, wanted = losses, gradients
            continue
        error, off = harness.apart(losses, first), difference(gradients, wanted)[0]
        tally.check(error <= 1e-12 * first[0] and off <= 1e-10, f"{values}: losses {error:.1e}, gradients {off:.1e}")
    return first


def main():
    compiler, folder = sys.argv[1:]
    tests, tally = Dropped(compiler, folder), harness.Tally()
    first = check_equal(tally, ((values, tests.run(tests.compile(f"program{number}", **values)))
                                for number, values in enumerate(PROGRAMS)))
    train = tests.windowed()
    data = documents.write_dataset(folder, "documents.safetensors", *documents.random_documents(3, 60, 24))
    check_equal(tally, ((values, tests.run(tests.compile(
        f"bounded{number}", train, **values, **{"data.documents": "true"}), "--pack", "split", data=data))
        for number, values in enumerate(BOUNDED)))
    with_it = os.path.join(folder, "program0")
    without = tests.compile("without", schedule="single", **{"model.dropout": 0})
    plain = tests.compile("plain", schedule="single", **{name: 0 for name in RATES})
    alone = tests.compile("alone", schedule="single", **{name: 0 for name in RATES if "attention" not in name})
    off, none = tests.run(without), tests.run(plain)
    tally.check(off[0][0]["loss"] == none[0][0]["loss"] and off[1] == none[1], "`model.dropout=0`: as without rates")
    tally.check(abs(off[0][0]["loss"] - first[0]) > 1e-6, "dropout changes the loss")
    tally.check(abs(tests.run(alone)[0][0]["loss"] - off[0][0]["loss"]) > 1e-6, "and so does that of attention alone")
    lines = [tests.run(program, "--lr", "0", "--eval", tests.short)[0][-1] for program in (with_it, without)]
    tally.check(lines[0]["eval_loss"] == lines[1]["eval_loss"], "evaluation drops nothing")
    again = [line["loss"] for line in tests.run(with_it, "--lr", "0")[0]]
    tally.check(abs(again[0] - first[0]) == 0, "the same seed has the same masks")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
