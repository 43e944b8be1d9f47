#!/usr/bin/env python3
"""Trains for real: after 60 steps a byte costs less than its entropy; a run that is stopped and resumed is the same."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: training.py PP_COMPILE FOLDER
import collections, math, os, re, sys
import harness

SIZES = dict(model="llama", ranks=4, microbatches=8, layers=4, hidden=64, heads=4, kv_heads=2, ffn=176, vocab=256,
             sequence=64, microbatch=4, lr=6e-3, warmup=10)


def main():
    compiler, folder = sys.argv[1:3]
    text, tally = harness.write_text(folder), harness.Tally()
    with open(text, "rb") as file:
        data = file.read()
    # The loss of a model that knows the frequency of each byte, and nothing of the bytes before: 3.2 nats.
    entropy = sum(-n / len(data) * math.log(n / len(data)) for n in collections.Counter(data).values())
    for schedule, transport in (("1f1b", "mpi"), ("weipipe_interleave", "threads"), ("fsdp", "mpi")):
        program = harness.compile_train(compiler, os.path.join(folder, schedule), SIZES | dict(schedule=schedule))
        base = [*harness.launch(program, 4, transport), "--data", text]
        path = lambda end: os.path.join(folder, schedule + end)
        if os.path.exists(path(".rest")):  # a resumed run adds to its log
            os.remove(path(".rest"))
        said = harness.call([*base, "--steps", "60", "--log", path(".whole"), "--save", path(".ckpt.whole")]).stdout
        memory = [tuple(map(int, row)) for row in re.findall(r"^ +[0-9]+ +([0-9]+) +([0-9]+) +[0-9]+ ", said, re.M)]
        # Pages of the arena that the run touched: all but the gaps that alignment leaves.
        tally.check(len(memory) == 4 and all(0.98 * planned <= used <= planned for planned, used in memory),
                    f"{schedule} over {transport}: planned and used bytes {memory}")
        harness.call([*base, "--steps", "60", "--stop-at", "30", "--log", path(".half"), "--save", path(".ckpt")])
        harness.call([*base, "--resume", path(".ckpt"), "--log", path(".rest"), "--save", path(".ckpt.rest")])
        whole, half, rest = (harness.read_log(path(end)) for end in (".whole", ".half", ".rest"))
        tally.check(whole[-1]["loss"] < entropy - 0.3,
                    f"{schedule} over {transport}: loss {whole[0]['loss']:.3f} -> {whole[-1]['loss']:.3f}")
        same = [(a["step"], a["loss"], a["grad_norm"]) for a in whole] == [
            (a["step"], a["loss"], a["grad_norm"]) for a in half + rest]
        tally.check(same and len(rest) == 30, f"{schedule}: steps 31 to 60 after resuming equal the whole run's")
        for name in ("model.safetensors", "optimizer.safetensors"):
            with open(os.path.join(path(".ckpt.whole"), name), "rb") as a, open(os.path.join(path(".ckpt.rest"), name),
                                                                                "rb") as b:
                tally.check(a.read() == b.read(), f"{schedule}: {name} is the same to the bit")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
