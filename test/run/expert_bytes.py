#!/usr/bin/env python3
"""Compares what devices with experts of their own keep and exchange, as the compiler plans it, with formulas."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: expert_bytes.py PP_COMPILE FOLDER [--cases N] [--seed S]
# Random sizes of mixtral on 1F1B. Of n experts each of E devices has v = n / E. A device has T tokens, each with k
# choices, and E sections of T min(k, v) rows, Q in all; without `expert` Q = T k.
#   a layer keeps  x, y, two statistics; q, k, v, o, lse; of the router p, w, sel, places, with z the log of the sum;
#                  how many rows each expert has, gate and up of Q rows; with `expert` the weights of the rows; with
#                  `again = "nothing"` the rows as they came
#   F    over expert: rows, their weights and counts go there, rows come back
#   B    gradients of rows and of their weights; unless they are kept the rows once more
#   U    where several groups have the same experts, a sum of each gradient; of the norm one number
# An all_to_all brings a device (E - 1) / E of what it has, an all_reduce of n devices 2 (n - 1) / n.
import sys
import harness
from mesh_bytes import aligned, planned


class Case:
    """One program's sizes, and what they lead to."""

    def __init__(self, draw):
        self.expert = draw.choice((1, 2, 3, 4))
        self.context, self.data = draw.choice([(c, d) for c in (1, 2, 3, 4) for d in (1, 2, 3, 4) if c * d > 1 and (
            c % self.expert == 0 or self.expert % c == 0 and d % (self.expert // c) == 0)])
        self.tensor, self.ranks = draw.choice((1, 1, 2)), draw.choice((1, 2))
        self.own = draw.choice((1, 2, 3))
        self.experts = self.own * self.expert
        self.top = draw.randint(1, self.experts)
        self.heads, self.width = 4, 2 * draw.choice((2, 3))
        self.hidden, self.ffn = self.heads * self.width, self.tensor * draw.choice((8, 11, 16))
        self.layers = self.ranks * draw.choice((1, 2))
        self.batch, self.microbatches = draw.choice((1, 2)), self.ranks * draw.choice((1, 2))
        self.length = 2 * self.context * draw.choice((2, 3, 4))
        self.precision, self.again = draw.choice(("f32", "bf16", "f64")), draw.choice(("nothing", "inputs", "all"))
        self.balance, self.z = draw.choice((0, 0.1)), draw.choice((0, 0.1))
        self.bytes, self.sums = {"f32": (4, 4), "bf16": (2, 4), "f64": (8, 8)}[self.precision]
        self.tokens = self.batch * self.length // self.context
        self.rows = self.tokens * (self.top if self.expert == 1 else self.expert * min(self.top, self.own))

    def defines(self):
        named = dict(schedule="1f1b" if self.ranks > 1 else "single", model="mixtral", layers=self.layers,
                     hidden=self.hidden, heads=self.heads, kv_heads=self.heads, ffn=self.ffn, experts=self.experts,
                     top=self.top, balance=self.balance, z=self.z, microbatches=self.microbatches,
                     microbatch=self.batch, sequence=self.length, precision=self.precision, vocab=64)
        named |= {"ranks": self.ranks} if self.ranks > 1 else {}
        axes = ("tensor", "context", "data", "expert", "again")
        return named | {f"mesh.{axis}": getattr(self, axis) for axis in axes}

    def stash(self):
        """What a device of the first rank keeps of one microbatch: of each layer, and what goes into the head."""
        kept, t = [self.tokens * self.hidden * self.bytes] * 2 + [self.tokens * self.sums] * 2, self.tensor
        seen = self.context if self.again == "nothing" else 1
        kept += [self.tokens * self.hidden // t * self.bytes] * 2
        kept += [seen * self.tokens * self.hidden // t * self.bytes] * 2 + [self.tokens * self.heads // t * self.sums]
        kept += [self.tokens * self.experts * self.sums, self.tokens * self.top * self.sums]
        kept += [self.tokens * self.top * 4] * 2 + [self.experts * 4] + [self.tokens * self.sums] * (self.z > 0)
        kept += [self.rows * self.ffn // t * self.bytes] * 2
        if self.expert > 1:
            kept += [self.rows * self.sums] + [self.rows * self.hidden * self.bytes] * (self.again == "nothing")
        return sum(map(aligned, kept)) * self.layers // self.ranks + aligned(kept[0]) * (self.ranks == 1)

    def exchanges(self):
        """By phase and kind, of the experts of a rank: how many a step has, and the bytes that come to a device."""
        wide, narrow = self.rows * self.hidden * self.bytes, self.rows * self.sums
        moved = {"F": [wide, narrow, self.experts * 4, wide],
                 "B": [wide, narrow, wide] + [wide] * (self.again != "nothing")}
        layers, copies = self.layers // self.ranks, self.data * self.context // self.expert
        found = {}
        for phase, each in moved.items() if self.expert > 1 else ():
            found[phase] = {"expert.all_to_all": [
                len(each) * layers * self.microbatches,
                sum(size * (self.expert - 1) // self.expert for size in each) * layers * self.microbatches]}
        if self.expert > 1 and copies > 1:
            weight = self.own * self.hidden * self.ffn // self.tensor * self.sums
            found["U"] = {"copies.all_reduce": [3 * layers, 3 * layers * (2 * (copies - 1) * weight // copies)]}
        return found


def main():
    arguments, tally = harness.draws(cases=24, seed=17), harness.Tally()
    for case, said, ranks in planned(arguments, tally, Case):
        for rank, its in enumerate(ranks):
            found = {phase: {kind: moved for kind, moved in kinds.items()
                             if kind in ("expert.all_to_all", "copies.all_reduce")}
                     for phase, kinds in its.get("exchanges", {}).items()}
            found = {phase: kinds for phase, kinds in found.items() if kinds}
            expected = case.exchanges()
            if case.expert > 1:  # from all tokens of its group those choices that are of its experts
                found["rows"] = its["expert_rows"]
                expected["rows"] = [case.tokens * case.top, case.rows]
            tally.check(found == expected, f"{said}: exchanges of rank {rank}"
                                           + ("" if found == expected else f" {found}, expected {expected}"))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
