#!/usr/bin/env python3
"""Compares what devices of tensor and context keep and exchange, as the compiler plans it, with formulas, by bytes."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: mesh_bytes.py PP_COMPILE FOLDER [--cases N] [--seed S]
# Random sizes of llama and gpt2 on 1F1B; t devices (Korthikanti et al. 2022, section 4, without dropout, and with what
# docs/derivatives.md makes again):
#   a layer keeps  llama: x, y, two statistics; q, k, v, o, lse, gate, up       gpt2: x, y, four; q, k, v, o, lse, u
#   F    two all_reduce, or with `sequence` two gathers and two scatters; one more for the embeddings
#   B    the same; with `again = "inputs"` two gathers more; of heads of keys with copies two weights; in the head
#        statistics of all devices; with `zero 2` of each norm's gain and each bias behind a sum a vector
#   U    without `zero 2` these vectors, once a step
# C devices of context have 1 / C of the tokens each, and of every layer (Grattafiori et al. 2024, section 3.3.2):
#   F    two gathers, of k and v     B    the same unless `again = "nothing"` keeps them, and two scatters
# or with `attention = "heads"` (Jacobs et al. 2023, DeepSpeed-Ulysses, 3.2), whole sequences of 1 / C of the heads, so
# as many bytes of q, k, v, o and lse, but of a head of keys at least; `again = "nothing"` keeps o of the own rows, too:
#   F    four all_to_all, of q, k, v and o, where k and v have C heads at least, copies among them
#   B    of their gradients, and unless it is kept o once more
# Of n devices of data and context, with the weights of a stage one behind the other from multiples of 32 elements on,
# and S elements a shard (Rajbhandari et al. 2020, ZeRO, 5.1, 5.2), a device keeps in the type of sums
#   zero 0   all gradients and all states     zero 1   states of S     zero 2   S sums, too; all gradients for a while
# and with zero 2 a stage scatters each microbatch's. Of a tied table the last rank sums its gradients whole, and in the
# end sends them to the first one: once more its bytes on both.
# On slices a device keeps keys as they were exchanged, once: with "gather" those of all devices, whatever `again` says.
# An all_reduce brings a device 2 (t - 1) / t of the value, a gather or a scatter half of that; an all_to_all
# (C - 1) / C of what the device has.
import json, random, sys
import harness


def aligned(size):
    return (size + 63) // 64 * 64


class Case:
    """One program's sizes, and what they lead to."""

    def __init__(self, draw):
        self.context, self.model = draw.choice((1, 1, 2, 3)), draw.choice(("llama", "gpt2"))
        self.tensor = draw.choice((2, 3, 4) if self.context == 1 else (1, 1, 2, 3))
        self.swaps = self.context > 1 and draw.random() < 0.5
        share = self.context if self.swaps else 1
        heads, width = self.tensor * share * draw.choice((1, 2)), 2 * draw.choice((2, 4, 5))
        self.keys = draw.choice([count for count in range(1, heads + 1) if heads % count == 0 and
                                 (count % self.tensor == 0 or self.tensor % count == 0) and
                                 (max(count // self.tensor, 1) % share == 0 or
                                  share % max(count // self.tensor, 1) == 0)])
        self.keys = self.keys if self.model == "llama" else heads
        self.heads, self.width, self.hidden = heads, width, heads * width
        self.ffn = self.tensor * draw.choice((8, 11, 16))
        self.ranks = draw.choice((1, 2))
        self.layers = self.ranks * draw.choice((1, 2, 3))
        self.batch, self.microbatches = draw.choice((1, 2, 3)), self.ranks * draw.choice((1, 2))
        self.length = 2 * self.context * self.tensor * draw.choice((2, 3, 4))
        self.precision = draw.choice(("f32", "bf16", "f64"))
        self.rows = draw.random() < 0.7 and self.tensor > 1
        self.again = draw.choice(("nothing", "inputs", "all"))
        self.vocab = draw.choice((64, 97))
        self.data = draw.choice((1, 2, 2, 3))
        self.zero = draw.choice((0, 1, 2, 2)) if self.data * self.context > 1 else 0
        self.bytes, self.sums = {"f32": (4, 4), "bf16": (2, 4), "f64": (8, 8)}[self.precision]

    def defines(self):
        named = dict(schedule="1f1b" if self.ranks > 1 else "single", model=self.model, layers=self.layers,
                     hidden=self.hidden, heads=self.heads, ffn=self.ffn, microbatches=self.microbatches,
                     microbatch=self.batch, sequence=self.length, precision=self.precision, vocab=self.vocab)
        named |= {"kv_heads": self.keys} if self.model == "llama" else {}
        named |= {"ranks": self.ranks} if self.ranks > 1 else {}
        return named | {"mesh.tensor": self.tensor, "mesh.context": self.context, "mesh.again": self.again,
                        "mesh.sequence": str(self.rows).lower(), "mesh.data": self.data, "mesh.zero": self.zero,
                        "mesh.attention": "heads" if self.swaps else "gather"}

    def stash(self):
        """What a device of the first rank keeps of one microbatch: of each layer, and what goes into the head."""
        tokens, t = self.batch * self.length // self.context, self.tensor
        seen = self.context if self.again == "nothing" and not self.swaps else 1
        own = tokens // t if self.rows else tokens  # rows of the residual stream
        keys = max(self.keys // t, self.context if self.swaps else 1) * self.width
        wide = 2 if self.model == "llama" else 1
        kept = [own * self.hidden * self.bytes] * 2 + [own * self.sums] * (2 if self.model == "llama" else 4)
        kept += [tokens * self.hidden // t * self.bytes] * 2 + [seen * tokens * keys * self.bytes] * 2
        kept += [tokens * self.heads // t * self.sums] + [tokens * self.ffn // t * self.bytes] * wide
        kept += [tokens * self.hidden * self.bytes] * 2 if self.rows and self.again == "nothing" else []
        kept += [tokens * self.hidden // t * self.bytes] if self.swaps and self.again == "nothing" else []
        return sum(map(aligned, kept)) * self.layers // self.ranks + aligned(kept[0]) * (self.ranks == 1)

    def weights(self, rank):
        """The elements of each weight that the rank updates, and of copies of those of others."""
        h, ffn, t = self.hidden, self.ffn // self.tensor, self.tensor
        table, keys = (self.vocab + t - 1) // t * h, h * max(self.keys // t, 1) * self.width
        first, last = rank == 0, rank == self.ranks - 1
        if self.model == "llama":
            own = [h, h * h // t, keys, keys, h * h // t, h, h * ffn, h * ffn, h * ffn] * (self.layers // self.ranks)
            return own + [table] * first + [h, table] * last, []
        own = [h, h, 3 * h * h // t, 3 * h // t, h * h // t, h, h, h, h * ffn, ffn, h * ffn, h]
        own = own * (self.layers // self.ranks) + [table, 1024 * h] * first + [h, h] * last
        return own, [table] * (last and not first)

    def updates(self, rank):
        """Bytes of gradients at most, bytes of states, and gradients that are scattered in a step."""
        own, copies = self.weights(rank)
        whole, copied = (sum(aligned(count * self.sums) for count in counts) for counts in (own, copies))
        devices, states = self.data * self.context, 2 + (self.bytes == 2)
        shard = -(-sum((count + 31) // 32 for count in own) // devices) * 32 * self.sums
        table = sum(aligned(count * self.sums) for count in self.weights(self.ranks - 1)[1])
        sent = table * (rank in (0, self.ranks - 1))
        gradients = whole + copied + sent
        if self.zero == 2:
            gradients = shard + copied + max(whole + (sent if rank == 0 else copied), sent)
        return {"grad": gradients, "opt": states * (aligned(shard) if self.zero else whole),
                "scattered": (0, 1, self.microbatches)[self.zero]}

    def vector(self):
        """What comes to a device where gradients of a gain are summed over tensor."""
        return 2 * (self.tensor - 1) * self.hidden * self.sums // self.tensor

    def vectors(self, rank):
        """Gains, and biases behind sums."""
        last = rank == self.ranks - 1
        return (self.layers // self.ranks * (2 if self.model == "llama" else 6)
                + last * (1 if self.model == "llama" else 2)) * self.rows

    def exchanges(self, rank):
        """By phase and kind: how many a step has, and the bytes that come to a device."""
        t, layers = self.tensor, self.layers // self.ranks
        first, last = rank == 0, rank == self.ranks - 1
        tokens = self.batch * self.length // self.context
        whole = tokens * self.hidden * self.bytes * (t - 1) // t
        forward, backward = {"ar": [], "ag": [], "rs": []}, {"ar": [], "ag": [], "rs": []}
        vectors = self.vectors(rank)
        if self.rows:
            forward["ag"] += [whole] * 2 * layers
            forward["rs"] += [whole] * (2 * layers + (first and self.model == "llama"))
            forward["ar"] += [2 * whole] * (first and self.model == "gpt2")
            again = 0 if self.again == "nothing" else 2
            backward["ag"] += [whole] * ((2 + again) * layers + first + last)
            backward["rs"] += [whole] * (2 * layers + last)
            backward["ar"] += [self.vector()] * vectors * (self.zero == 2)
        elif t > 1:
            forward["ar"] += [2 * whole] * (2 * layers + first)
            backward["ar"] += [2 * whole] * (2 * layers + last)
        if t > self.keys:
            copies = t // self.keys
            backward["ar"] += [2 * (copies - 1) * self.hidden * self.width * self.sums // copies] * 2 * layers
        if last and t > 1:
            backward["ag"] += [3 * self.sums * tokens * (t - 1)]
        if self.swaps:
            wide = tokens * self.hidden // t * self.bytes
            narrow = tokens * max(self.keys // t, self.context) * self.width * self.bytes
            moved = [part * (self.context - 1) // self.context for part in (wide, wide, narrow, narrow)]
            forward["swaps"] = moved * layers
            backward["swaps"] = (moved + moved[:1] * (self.again != "nothing")) * layers
        elif self.context > 1:
            keys = [(self.context - 1) * tokens * max(self.keys // t, 1) * self.width * self.bytes] * 2 * layers
            forward["keys"], backward["slopes"] = keys, keys
            backward["keys"] = [] if self.again == "nothing" else keys
        names = {"ar": "tensor.all_reduce", "ag": "tensor.all_gather", "rs": "tensor.reduce_scatter",
                 "keys": "context.all_gather", "slopes": "context.reduce_scatter", "swaps": "context.all_to_all"}
        return {phase: {names[kind]: [len(each) * self.microbatches, sum(each) * self.microbatches]
                        for kind, each in kinds.items() if each}
                for phase, kinds in (("F", forward), ("B", backward)) if any(kinds.values())}


def sliced(compiler, tally):
    """TeraPipe, whose first rank has all microbatches in flight: keys of all slices, and what comes to a device."""
    for context, attention, keys, slices, again in ((2, "gather", 6, 4, "inputs"), (3, "gather", 6, 2, "nothing"),
                                                    (2, "gather", 1, 8, "all"), (3, "heads", 6, 4, "inputs"),
                                                    (2, "heads", 2, 4, "nothing")):
        rows, hidden, microbatches, own = 192 // context, 48, 2, attention == "heads"
        values = dict(schedule="terapipe", ranks=2, microbatches=microbatches, layers=2, heads=6, kv_heads=keys,
                      hidden=hidden, sequence=192, slices=slices, microbatch=1, precision="f32")
        mesh = {"mesh.context": context, "mesh.attention": attention, "mesh.again": again}
        given = [word for name, value in (values | mesh).items() for word in ("-D", f"{name}={value}")]
        made = harness.call([compiler, harness.TRAIN, *given, "--emit=stats"])
        its = json.loads(made.stdout)["per_rank"][0]
        wide, narrow = rows * hidden * 4, rows * keys * 8 * 4
        moved = (2 * wide + 2 * narrow) * (context - 1) // context if own else 2 * narrow * (context - 1)
        more = wide * (context - 1) // context if own and again != "nothing" else 0
        found = [sum(size for _, size in its["exchanges"][phase].values()) for phase in "FB"]
        found.append(its["peak_bytes"]["kv"])
        expected = [moved * microbatches, (moved + more) * microbatches,
                    2 * narrow * (1 if own else context) * microbatches]
        tally.check(found == expected, f"slices {values | mesh}: F, B, keys {found}, expected {expected}")


def planned(arguments, tally, make):
    """Of each drawn case that compiles the sizes, as text, too, and what the compiler plans by rank; checks stashes."""
    draw = random.Random(arguments.seed)
    for _ in range(arguments.cases):
        case = make(draw)
        given = [word for name, value in case.defines().items() for word in ("-D", f"{name}={value}")]
        made = harness.call([arguments.compiler, harness.TRAIN, *given, "--emit=stats"], expect=None)
        said = " ".join(given[1::2])
        if made.returncode:
            tally.check(False, f"{said}: {made.stderr[-300:]}")
            continue
        ranks = json.loads(made.stdout)["per_rank"]
        kept, found = case.stash() * min(case.ranks, case.microbatches), ranks[0]["peak_bytes"]["stash"]
        tally.check(found == kept, f"{said}: stash {found}, expected {kept}")
        yield case, said, ranks


def main():
    arguments, tally = harness.draws(cases=24, seed=17), harness.Tally()
    for case, said, ranks in planned(arguments, tally, Case):
        for rank, its in enumerate(ranks):
            found = {phase: kinds for phase, kinds in its["exchanges"].items() if phase in "FB"}
            expected = case.exchanges(rank)
            merged = its["exchanges"].get("U", {}).get("tensor.all_reduce", [0, 0])
            vectors = case.vectors(rank) * (case.zero < 2)
            norm = [1, 2 * (case.tensor - 1) * 8 // case.tensor] if case.tensor > 1 and case.zero == 0 else [0, 0]
            found["U"], expected["U"] = merged, [vectors + norm[0], vectors * case.vector() + norm[1]]
            tally.check(found == expected, f"{said}: exchanges of rank {rank}"
                                           + ("" if found == expected else f" {found}, expected {expected}"))
            found = {role: its["peak_bytes"][role] for role in ("grad", "opt")}
            found["scattered"] = its["collectives_joined"].get("reduce_scatter", 0)
            expected = case.updates(rank)
            tally.check(found == expected, f"{said}: updates of rank {rank}"
                                           + ("" if found == expected else f" {found}, expected {expected}"))
    sliced(arguments.compiler, tally)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
