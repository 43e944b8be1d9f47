#!/usr/bin/env python3
"""Judges the biases of routers: updates by the signs of a step's counts, saved and resumed, and what they change."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: steers.py PP_COMPILE FOLDER
# glm4_moe in f64. The counts are those that --grads writes as the gradient of a bias; families.py judges these against
# transformers. Here one step must move each bias by the rate against their sign, on every schedule and mesh, whatever
# the clipping, the learning rate and the weight decay are; the sums of a step are the same on all of them.
import os, sys
import harness

RATE = 0.25
SIZES = dict(model="glm4_moe", layers=4, hidden=16, heads=2, ffn=12, vocab=256, experts=6, top=2, balance=0,
             sequence=16, microbatch=2, microbatches=4, precision="f64", weight_decay=0.5, clip=0.001)
CASES = (dict(schedule="single", ranks=1), dict(schedule="1f1b"), dict(schedule="zb_v"),
         dict(schedule="weipipe_interleave"), dict(schedule="fsdp"), dict(schedule="slimpipe"),
         dict(schedule="1f1b_recompute"), dict(schedule="1f1b", microbatches=2, **{"mesh.data": 2}),
         dict(schedule="data_parallel"), dict(schedule="replicated_1f1b", ranks=4))


def biases(path):
    return {name: list(values) for name, (_, values) in harness.read_safetensors(path).items()
            if name.endswith("e_score_correction_bias")}


class Judge:
    def __init__(self, compiler, folder, tally):
        os.makedirs(folder, exist_ok=True)
        self.compiler, self.folder, self.tally = compiler, folder, tally
        self.text = harness.write_text(folder)

    def compile(self, name, **values):
        return harness.compile_train(self.compiler, os.path.join(self.folder, name),
                                     SIZES | dict(ranks=2) | {"model.rate": RATE} | values)

    def run(self, program, name, steps, *more):
        saved = os.path.join(self.folder, name)
        harness.call([program, "--in-process", "--data", self.text, "--steps", str(steps), "--lr", "0.01", "--save",
                      saved, "--log", saved + ".jsonl", *more])
        return os.path.join(saved, "model.safetensors")

    def one_step(self, number, case):
        grads = os.path.join(self.folder, f"{number}.grads")
        saved = biases(self.run(self.compile(str(number), **case), f"{number}.saved", 1, "--grads", grads))
        loads = biases(grads)
        moved = all(bias == -RATE * ((load > 0) - (load < 0)) for name in saved
                    for bias, load in zip(saved[name], loads[name]))
        same = number == 0 or loads == self.loads
        if number == 0:
            self.loads = loads
        # 8 sequences of 16 tokens have 256 choices of 6 experts, in thirds: an expert with none has -128 of them.
        self.tally.check(len(saved) == 3 and moved and same and any(any(load) for load in loads.values()) and all(
            sum(load) == 0 and min(load) >= -128 for load in loads.values()),
            f"{case} biases {'moved' if moved else 'are wrong'}, counts {'equal' if same else 'differ'}")

    def resumed(self):
        program = self.compile("resumed", schedule="zb_v")
        whole = biases(self.run(program, "whole", 4))
        self.run(program, "half", 4, "--stop-at", "2")
        resumed = biases(self.run(program, "half", 4, "--resume", os.path.join(self.folder, "half")))
        self.tally.check(whole == resumed and any(abs(b) >= 2 * RATE for v in whole.values() for b in v),
                         "a run that was resumed has the biases of one that was not")

    def rows(self):
        """Where a bias moves, the expert with most rows has fewer of them, on average over the last 20 of 60 steps."""
        most = []
        for number, rate in enumerate((0, 0.02)):
            program = self.compile(f"rows{number}", schedule="1f1b", clip=1, sequence=64, microbatch=4,
                                   microbatches=2, **{"model.rate": rate})
            self.run(program, f"rows{number}.saved", 60)
            lines = harness.read_log(os.path.join(self.folder, f"rows{number}.saved.jsonl"))
            most.append(sum(line["rows"]["max"] for line in lines[-20:]) / 20)
        self.tally.check(most[1] < 0.9 * most[0], f"most rows of an expert {most[0]:.1f}, with biases {most[1]:.1f}")


def main():
    compiler, folder = sys.argv[1:3]
    tally = harness.Tally()
    judge = Judge(compiler, folder, tally)
    for number, case in enumerate(CASES):
        judge.one_step(number, case)
    judge.resumed()
    judge.rows()
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
