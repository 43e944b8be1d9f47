#!/usr/bin/env python3
"""Checks that weights cut by the vocabulary begin and are saved as on one rank; the z-loss of whole and cut logits."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: vocabulary.py PP_COMPILE FOLDER
# 250 rows on four ranks are 62 or 63 each: rows of gpt2's one table, rows and columns of llama's two.
import math, os, sys
import harness
from gradients import difference

SIZES = dict(ranks=4, microbatches=4, layers=4, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=250, sequence=24,
             microbatch=2, precision="f32")


# Whole rows of logits, rows cut over ranks and over devices, slices, and a head whose two backwards are apart.
CUTS = (dict(schedule="single", ranks=1), dict(schedule="1f1b_vocabulary"), dict(schedule="zb_v", ranks=2),
        dict(schedule="slimpipe", ranks=2, vocabulary="true"), dict(schedule="1f1b", ranks=2, **{"mesh.tensor": 2}),
        dict(schedule="1f1b_vocabulary", ranks=2, **{"mesh.tensor": 2}))


def check_z_loss(compiler, folder, text, tally):
    """The square of lse is that of equal logits where the output layer is 0. Elsewhere the loss is the one without
    z-loss, and all cuts have one z-loss and one gradient, which finite_differences.py judges on one rank."""
    values = SIZES | dict(model="llama", vocab=252, hidden=16, kv_heads=4, ffn=16, precision="f64")
    expected, weights = None, os.path.join(folder, "z.safetensors")
    for number, cut in enumerate((None, *CUTS)):
        more = {} if cut is None else {"model.z_loss": 0.5}
        its = values | (cut or CUTS[0]) | more
        program = harness.compile_train(compiler, os.path.join(folder, f"z{number}"), its,
                                        options=["-D", "data.documents=true"] if number % 2 else [])
        log, grads = program + ".jsonl", program + ".grads"
        run = [*harness.launch(program, its["ranks"], "threads"), "--data", text, "--steps", "1", "--lr", "0", "--log",
               log]
        harness.call([*run, "--grads", grads, "--eval", text])
        line = harness.read_log(log)[0]
        if cut is None:
            expected = line
            tally.check("z_loss" not in line, "no z-loss, no column")
            continue
        gradients = {name: values for name, (_, values) in harness.read_safetensors(grads).items()}
        if number == 1:
            expected |= {"z_loss": line["z_loss"]}
            alone = gradients
            shapes = harness.read_safetensors(grads)
            harness.write_safetensors(weights, {name: (shape, [0.0 if name == "lm_head.weight" else 1.0] * len(values))
                                                for name, (shape, values) in shapes.items()})
        drift = harness.drift(*([one[key] for key in ("loss", "eval_loss", "z_loss")] for one in (line, expected)))
        worst, _ = difference(gradients, alone)
        tally.check(drift < 1e-12 and worst < 1e-12,
                    f"z-loss, {cut}: losses differ by {drift:.1e}, gradients {worst:.1e}")
        harness.call([*run, "--load", weights])
        line = harness.read_log(log)[0]
        error = abs(line["z_loss"] / (0.5 * math.log(values["vocab"]) ** 2) - 1)
        tally.check(error < 1e-12, f"z-loss, {cut}: of equal logits off by {error:.1e}")


def main():
    compiler, folder = sys.argv[1:3]
    text, tally = harness.write_text(folder), harness.Tally()
    with open(text, "rb") as file, open(os.path.join(folder, "z.txt"), "wb") as short:
        short.write(bytes(byte % 250 for byte in file.read()[:1000]))
    tally.attempt("check_z_loss", check_z_loss, compiler, folder, short.name, tally)
    for model in ("llama", "gpt2"):
        runs = {}
        for schedule, ranks in (("single", 1), ("1f1b_vocabulary", 4)):
            path = os.path.join(folder, f"{model}-{schedule}")
            program = harness.compile_train(compiler, path, SIZES | dict(schedule=schedule, model=model, ranks=ranks))
            runs[schedule] = [*harness.launch(program, ranks, "threads"), "--data", text]

        def run(schedule, name, *options):
            path = os.path.join(folder, f"{model}-{schedule}-{name}")
            if os.path.exists(path + ".log"):
                os.remove(path + ".log")
            harness.call([*runs[schedule], *options, "--save", path, "--log", path + ".log"])
            return path

        # A step at rate 0 leaves the first weights.
        first = {s: harness.read_safetensors(os.path.join(run(s, "first", "--steps", "1", "--lr", "0"),
                                                          "model.safetensors"))
                 for s in runs}
        tally.check(first["single"] == first["1f1b_vocabulary"], f"{model}: the first weights are those of one rank")
        for begun, other in (("single", "1f1b_vocabulary"), ("1f1b_vocabulary", "single")):
            half = run(begun, "half", "--steps", "4", "--stop-at", "2")
            losses = [[line["loss"] for line in harness.read_log(run(s, "from-" + begun, "--resume", half) + ".log")]
                      for s in (begun, other)]
            drift = harness.drift(*losses)
            tally.check(len(losses[0]) == 2 and drift < 1e-5,
                        f"{model}: begun as {begun}, resumed as {other}: losses differ by {drift:.1e}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
