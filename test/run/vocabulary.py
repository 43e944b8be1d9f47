#!/usr/bin/env python3
"""Checks that weights cut by the vocabulary begin and are saved as on one rank: checkpoints do not know the cut."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: vocabulary.py PP_COMPILE FOLDER
# 250 rows on four ranks are 62 or 63 each: rows of gpt2's one table, rows and columns of llama's two.
import os, sys
import harness

SIZES = dict(ranks=4, microbatches=4, layers=4, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=250, sequence=24,
             microbatch=2, precision="f32")


def main():
    compiler, folder = sys.argv[1:3]
    text, tally = harness.write_text(folder), harness.Tally()
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
