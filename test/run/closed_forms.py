#!/usr/bin/env python3
"""Holds the simulator against the closed forms of the papers, exactly: unit time (F, I, W 1, B 2), 2 to 16 ranks."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: closed_forms.py PP_COMPILE FOLDER [--quick] [SCHEDULE..]
# A row of FORMS says for one schedule which microbatches to try on p ranks, and what must come out: numbers of the
# whole program (p, m) -> number, and of rank r (p, m, r) -> number. `bubble` is checked for all from makespan and work.
# --quick: at most 5 ranks.
import fractions, itertools, json, os, sys
import harness

SIZES = dict(hidden=4, heads=1, kv_heads=1, ffn=4, vocab=4, sequence=2, microbatch=1)


class Form:
    """None: no closed form. `idle` is the longest wait inside a rank's span by p, `top` the most stashes on any rank,
    `last` the work of the last rank where it is not that of the others, `costs` what the simulator counts in."""

    def __init__(self, schedule, microbatches, makespan, span, barrier=lambda p, m: 0, defines={}, ranks=range(2, 17),
                 layers=lambda p: p, work=lambda m: 3 * m, last=None, idle=None, top=None, costs="units", **peaks):
        self.schedule, self.microbatches, self.defines = schedule, microbatches, defines
        self.ranks, self.layers = ranks, layers
        self.makespan, self.span, self.barrier, self.work, self.peaks = makespan, span, barrier, work, peaks
        self.last, self.idle, self.top, self.costs = last or work, idle, top, costs

    def sizes(self):
        return [(p, m) for p in self.ranks for m in self.microbatches(p)]

    def errors(self, p, m, stats):
        """What differs: name, expected, got."""
        makespan, work, ranks = self.makespan and self.makespan(p, m), self.work(m), stats["per_rank"]
        pairs = []
        if makespan is not None:
            pairs += [("makespan", makespan, stats["makespan"]), ("step", makespan, stats["step"])]
            idle = p * makespan - (p - 1) * work - self.last(m)
            bubble = float(fractions.Fraction(idle, p * makespan))
            pairs.append(("bubble", round(bubble, 12), round(stats["bubble"], 12)))
        if self.barrier:
            pairs.append(("cost of the barrier", self.barrier(p, m), stats["barrier_cost"]))
        if self.idle:
            pairs.append(("longest wait", self.idle[p], max(rank["span"] for rank in ranks) - work))
        if self.top:
            pairs.append(("stash", self.top(p), max(rank["peak_values"]["stash"] for rank in ranks)))
        for r, rank in enumerate(ranks):
            its = self.last(m) if r == p - 1 else work
            idle = stats["makespan"] - its
            pairs += [(f"rank {r}: busy", its, rank["busy"]), (f"rank {r}: idle", idle, rank["idle"]),
                      (f"rank {r}: span", self.span(p, m, r), rank["span"]),
                      (f"rank {r}: idle by cause", idle, sum(rank["idle_by_cause"].values()))]
            pairs += [(f"rank {r}: {role}", peak(p, m, r), rank["peak_values"][role])
                      for role, peak in self.peaks.items()]
        return [f"{name}: expected {expected}, got {got}" for name, expected, got in pairs
                if expected is not None and abs(expected - got) > 1e-11]


# WeiPipe interleave, docs/schedules.md (stage-level F 1 and BW 2): from two rounds on as 1F1B; in one round no rank
# ever has both.
def interleave(p, m):
    return 3 * (m + p - 1) if m > p else 5 * p - 2


# HelixPipe (docs/schedules.md) with pre 1, attention 3, post 2, so u = 3, and B twice F: what a rank computes for k
# layers of each rank, and the bubble added to it.
def helix(bubble, k=1, folds=1, again=0, ranks=range(2, 9), **defines):
    return Form("helixpipe", lambda p: (folds * p, 2 * folds * p), lambda p, m: k * m * (18 + again) + bubble(p),
                lambda p, m, r: None, barrier=None, defines=dict(folds=folds, **defines), ranks=ranks,
                layers=lambda p: k * p, work=lambda m: k * m * (18 + again), costs="pre=1,attn=3,post=2,rest=0")


def bpipe(p, r):
    most = -(-(p + 2) // 2)
    return min(p - r, most) if r + 1 <= most else p + 2 - most


def naive(p, m):
    return p + m // p - 1 + 2 * (m + (p - 1) * m // p)


def tawpipe(p, m, d):
    return p + (m // p - 1) * (p - d + 1) + 2 * (m + (d - 1) * m // p)


FORMS = (
    # Huang et al. 2019 and Narayanan et al. 2021: bubble (p-1)/(m+p-1) of the makespan for both, peaks m and min(m,
    # p-r). Rank r starts r after rank 0, which ends last, and ends 2r before it.
    Form("gpipe", lambda p: (1, p, 2 * p + 1), lambda p, m: 3 * (m + p - 1), lambda p, m, r: 3 * (m + p - 1 - r),
         stash=lambda p, m, r: m),
    # The same with stashes in host memory while messages are free: at most two are on the device.
    Form("gpipe_offload", lambda p: (1, p, 2 * p + 1), lambda p, m: 3 * (m + p - 1),
         lambda p, m, r: 3 * (m + p - 1 - r), stash=lambda p, m, r: min(m, 2)),
    Form("1f1b", lambda p: (1, p, 2 * p + 1), lambda p, m: 3 * (m + p - 1), lambda p, m, r: 3 * (m + p - 1 - r),
         stash=lambda p, m, r: min(m, p - r)),
    # The last rank runs m F and m B without a pause from p - 1 on; then the last B goes back through p - 1 ranks.
    Form("1f1b_overlap", lambda p: (1, p, 2 * p + 1), lambda p, m: 3 * (m + p - 1),
         lambda p, m, r: 3 * (m + p - 1 - r), stash=lambda p, m, r: min(m, 2 * (p - r))),
    # Kim et al. 2023: 1F1B, and no rank has more than ceil((p+2)/2) stashes, its own and its guests. A rank that would
    # have more in 1F1B has exactly that many. The rank that takes its guests has so many that both together have one
    # more than in 1F1B.
    Form("bpipe", lambda p: (p, 2 * p + 1), lambda p, m: 3 * (m + p - 1), lambda p, m, r: 3 * (m + p - 1 - r),
         stash=lambda p, m, r: bpipe(p, r)),
    # Narayanan et al. 2021: 2BW does not drain between updates, so all microbatches of a step are one 1F1B; two
    # weights.
    *(Form("pipedream_2bw", lambda p, b=b: (b * p, b * (p + 1)), lambda p, m: 3 * (m + p - 1),
           lambda p, m, r: 3 * (m + p - 1 - r),
           defines=dict(batches=b, clip=0), stash=lambda p, m, r: min(m, p - r), weight=lambda p, m, r: 2)
      for b in (1, 2, 4)),
    # All stages run F again, of one unit. The last rank has the loss in B, so its F makes nothing and takes no time: it
    # works R and B, 3m without a pause for up to three microbatches, and then waits for the F of the rank before it,
    # which needs 4 a microbatch. Every rank before it ends 2 later, for its R runs while it waits for the gradient.
    # Before R a unit leaves only its input.
    Form("1f1b_recompute", lambda p: (1, p, 2 * p + 1), lambda p, m: max(3 * m + 3 * p - 3, 4 * m + 3 * p - 5),
         lambda p, m, r: max(3 * m, 4 * m - 3) if r == p - 1 else max(3 * m + 2, 4 * m) + 3 * (p - 1 - r) - 2,
         work=lambda m: 4 * m, last=lambda m: 3 * m, stash=lambda p, m, r: 1),
    # Megatron-LM's layouts: a layer a stage, the loss with the last, is 1F1B, and with two stages a rank its
    # interleaved form.
    Form("megatron", lambda p: (1, p, 2 * p + 1), lambda p, m: 3 * (m + p - 1), lambda p, m, r: 3 * (m + p - 1 - r),
         defines=lambda p: dict(layout="E" + "t|" * (p - 1) + "tL"), stash=lambda p, m, r: min(m, p - r)),
    Form("megatron", lambda p: (p, 2 * p), lambda p, m: 3 * (2 * m + p - 1), lambda p, m, r: None,
         layers=lambda p: 2 * p, defines=lambda p: dict(layout="E" + "t|" * (2 * p - 1) + "tL"), work=lambda m: 6 * m,
         stash=lambda p, m, r: min(2 * m, 2 * (p - 1 - r) + p + 1)),
    # Here the loss has its own rank: F computes nothing there, and B does the work of both and takes 3. The times are
    # those of 1F1B, where the last rank runs B right behind F.
    Form("megatron", lambda p: (1, p, 2 * p + 1), lambda p, m: 3 * (m + p - 1), lambda p, m, r: 3 * (m + p - 1 - r),
         layers=lambda p: p - 1,
         defines=lambda p: dict(layout="E" + "t|" * (p - 1) + "L"), stash=lambda p, m, r: min(m, p - r)),
    # WeiPipe (PPoPP 2025), Interleave: rank r starts r after rank 0. It ends 2 (p-1-r) before rank p-1, because all its
    # last turns are backwards. A rank has two weights and their successors, one gradient and its successor (section 7
    # of the specification; with one round only, the last rank of two or three never has all four weights).
    Form("weipipe_interleave", lambda p: (p, 2 * p, 3 * p), interleave,
         lambda p, m, r: interleave(p, m) - 2 * (p - 1) + r,
         stash=lambda p, m, r: p, weight=lambda p, m, r: 4 if m > p else None, grad=lambda p, m, r: 2),
    # The others of section 8: one F or B a turn; pairs of stages, an even number of rounds; one chain without a gap,
    # where the last rank owns all and sums what arrives.
    Form("weipipe_naive", lambda p: (p, 2 * p, 3 * p), naive, lambda p, m, r: None, barrier=None, ranks=(2, 3, 4, 6, 8),
         stash=lambda p, m, r: p, weight=lambda p, m, r: 4 if p > 3 else None, grad=lambda p, m, r: 2),
    Form("wzb1", lambda p: (2 * p, 4 * p), lambda p, m: 3 * m + 2 * (p - 1), lambda p, m, r: None, barrier=None,
         ranks=(2, 4, 6, 8), top=lambda p: p + p // 2),
    Form("wzb2", lambda p: (p, 2 * p, 4 * p), lambda p, m: 3 * m + p - 1, lambda p, m, r: 3 * m, barrier=None,
         ranks=(2, 3, 4, 6, 8), stash=lambda p, m, r: p),
    # TawPipe without prefetch, where a group waits for its turn, and in a ring of single ranks.
    *(Form("tawpipe", lambda p, d=d: (p, 2 * p, 3 * p), lambda p, m, d=d: tawpipe(p, m, d), lambda p, m, r: None,
           barrier=None, ranks=ranks, defines=dict(groups=d, prefetch="false"), stash=lambda p, m, r: p)
      for d, ranks in ((1, (2, 3, 4, 6)), (2, (2, 4, 6, 8)), (3, (3, 6)), (4, (4, 8)), (6, (6,)))),
    Form("tawpipe", lambda p: (p, 2 * p), naive, lambda p, m, r: None, barrier=None, ranks=(2, 4, 6),
         defines=dict(groups=1, ring="true", prefetch="false"), stash=lambda p, m, r: p),
    # FSDP: nobody waits, every rank runs its microbatches through all stages.
    *(Form("fsdp", lambda p: (p, 2 * p), lambda p, m: 3 * m, lambda p, m, r: 3 * m, barrier=None, ranks=(2, 3, 4, 8),
           defines=dict(ahead=ahead, hidden=16), stash=lambda p, m, r: p, weight=lambda p, m, r, a=ahead: a + 1)
      for ahead in (0, 1)),
    # Narayanan et al. 2021, interleaved: (p-1)/(vm) of the work, with v stages a rank of unit time each. The warm-up is
    # 2 (p-1-r) + (v-1) p forwards, all of them with one group of microbatches.
    *(Form("interleaved", lambda p: (p, 2 * p), lambda p, m, v=v: 3 * (v * m + p - 1),
           lambda p, m, r, v=v: None, defines=dict(chunks=v), layers=lambda p, v=v: v * p,
           work=lambda m, v=v: 3 * v * m,
           ranks=ranks, stash=lambda p, m, r, v=v: m * v if m == p else min(m * v, 2 * (p - 1 - r) + (v - 1) * p + 1))
      for v, ranks in ((1, (2, 5)), (2, range(2, 17)), (3, (2, 3, 8)), (4, (4, 7)))),
    # Lamy-Poirier 2023: the same bubble, all stashes at once.
    Form("looped_bfs", lambda p: (p, 2 * p + 1), lambda p, m: 3 * (2 * m + p - 1), lambda p, m, r: None,
         layers=lambda p: 2 * p, work=lambda m: 6 * m, stash=lambda p, m, r: 2 * m),
    # Qi et al. 2023 (docs/schedules.md): rank r starts at r and ends with all others; ZB-H2's ranks never wait once
    # they began.
    Form("zb_h1", lambda p: (p, 2 * p + 1), lambda p, m: 3 * m + p - 1, lambda p, m, r: 3 * m + p - 1 - r,
         stash=lambda p, m, r: p),
    Form("zb_h2", lambda p: (2 * p - 1, 3 * p), lambda p, m: 3 * m + p - 1, lambda p, m, r: 3 * m,
         barrier=lambda p, m: p - 1, stash=lambda p, m, r: 2 * p - 1),
    # Qi et al. 2024: two stages of unit time a rank, no wait inside a rank's span, the memory of 1F1B.
    Form("zb_v", lambda p: (2 * p - 1, 3 * p), lambda p, m: 6 * m + p - 1, lambda p, m, r: 6 * m,
         barrier=lambda p, m: p - 1, layers=lambda p: 2 * p, work=lambda m: 6 * m, stash=lambda p, m, r: 2 * p),
    # V-Half and V-Min: peaks, and the longest wait inside a span for m = 3p, of the paper's algorithm for p = 2, 3, 4,
    # 5, 6, 8, 16.
    *(Form(name, lambda p: (3 * p,), None, lambda p, m, r: None, idle=idle, barrier=None, layers=lambda p: 2 * p,
           work=lambda m: 6 * m, ranks=idle, top=peak)
      for name, peak, idle in (("v_half", lambda p: p + 2 - p % 2, {2: 1, 3: 5, 4: 5, 5: 11, 6: 11, 8: 17, 16: 41}),
                               ("v_min", lambda p: 2 * -(-(p + 2) // 3),
                                {2: 3, 3: 5, 4: 11, 5: 15, 6: 17, 8: 27, 16: 59}))),
    # Li et al. 2021 and SlimPipe (docs/schedules.md), n slices, v chunks: (p-1)/(nm) and (p-1)/(nvm) of the work; all
    # slices at once, and nv + 2(p-1-r) slices of a stage.
    *(Form("terapipe", lambda p: (1, 3), lambda p, m, n=n: 3 * (n * m + p - 1), lambda p, m, r: None,
           defines=dict(slices=n, sequence=16), ranks=(2, 4, 7), work=lambda m, n=n: 3 * n * m,
           stash=lambda p, m, r, n=n: n * m) for n in (1, 4, 16)),
    *(Form(schedule, lambda p: (1, 2, 5), lambda p, m, n=n, v=v: 3 * (n * v * m + p - 1), lambda p, m, r: None,
           defines=dict(slices=n, chunks=v, sequence=16), ranks=ranks, layers=lambda p, v=v: v * p,
           work=lambda m, n=n, v=v: 3 * n * v * m,
           stash=lambda p, m, r, n=n, v=v: min(n * m * v, n * v + 2 * (p - 1 - r)))
      for schedule, v, n, ranks in (("slimpipe", 1, 4, (2, 3, 4)), ("slimpipe", 1, 9, (2, 4, 5)),
                                    ("slimpipe", 1, 16, (4, 8)),
                                    ("slimpipe_interleaved", 2, 8, (2, 4, 8)),
                                    ("slimpipe_interleaved", 3, 12, (3, 4)))),
    # DeepSeek 2025, a pair of F and B one after the other: as ZB-V, one chunk more on the ranks that begin with pairs.
    Form("dualpipe_v", lambda p: (2 * p, 2 * p + 1), lambda p, m: 6 * m + p - 1, lambda p, m, r: None,
         barrier=None, layers=lambda p: 2 * p, work=lambda m: 6 * m, top=lambda p: 2 * p + 1),
    # DeepSeek-V3, 2024: half of the ranks run as dualpipe_v does on p/2 ranks with m/2 microbatches, in stages of unit
    # time; twice the weights, p + 1 stashes. dualpipe.py holds the report's own bubble.
    Form("dualpipe", lambda p: (2 * p, 2 * p + 2, 3 * p), lambda p, m: 3 * m + p // 2 - 1, lambda p, m, r: None,
         barrier=None, ranks=range(2, 17, 2), stash=lambda p, m, r: p + 1, weight=lambda p, m, r: 2),
    # Li & Hoefler 2021, B = 2F: 2 (p-2) for the first group of p microbatches, which is the paper's bubble
    # (p-2)/(3p/2+p-2), and p-2 for each that is concatenated directly. Peaks from p/2 + 1 to p.
    Form("chimera", lambda p: (p, 2 * p, 3 * p), lambda p, m: 3 * m + (m // p + 1) * (p - 2), lambda p, m, r: None,
         barrier=None, ranks=(2, 4, 6, 8, 16), stash=lambda p, m, r: p // 2 + 1 + min(r, p - 1 - r)),
    # Liu et al. 2023, w waves: as a Chimera of 2p ranks for one, in slots of half a stage; peaks from 2wp - p + 1 to
    # 2wp.
    *(Form("hanayo", lambda p: (p, 2 * p, 3 * p), lambda p, m, w=w: 6 * w * m
           + 2 * (m // p + 1) * (p - 1), lambda p, m, r: None,
           barrier=None, ranks=ranks, defines=dict(waves=w), layers=lambda p, w=w: 2 * w * p,
           work=lambda m, w=w: 6 * w * m,
           stash=lambda p, m, r, w=w: 2 * w * p - p + 1 + r)
      for w, ranks in ((1, (2, 3, 4, 6, 8, 16)), (2, (2, 4, 5, 8)), (4, (2, 4)))),
    # Pipelines side by side: 1F1B of p/d stages and m/d microbatches, whatever the replicas share.
    *(Form(schedule, lambda p, d=d: (d, p, 2 * p), lambda p, m, d=d: 3 * (m // d + p // d - 1),
           lambda p, m, r, d=d: 3 * (m // d + p // d - 1 - r % (p // d)), ranks=ranks,
           defines=dict(replicas=d, hidden=16),
           layers=lambda p, d=d: p // d, work=lambda m, d=d: 3 * (m // d),
           stash=lambda p, m, r, d=d: min(m // d, p // d - r % (p // d)))
      for schedule, d, ranks in (("replicated_1f1b", 2, (2, 4, 8, 16)), ("replicated_1f1b", 4, (4, 8)),
                                 ("replicated_zero1", 2, (4, 8)), ("replicated_zero2", 3, (6, 12)))),
    # HelixPipe: 3 (p-1) u one by one, whatever the number of layers and loops, weights shipped or not. The paper counts
    # 4 (p-1) u with recomputation after the gradient has come; R runs before here, which saves one pre.
    helix(lambda p: 9 * (p - 1)), helix(lambda p: 9 * (p - 1), k=2, ranks=(2, 4), ship="false"),
    helix(lambda p: 12 * (p - 1) - 1, again=3, ranks=(2, 4, 8), forget="true"),
    # Two-fold: the paper's 6 (p-1) u and 8 (p-1) u are bounds, for pairs that move as one. With messages after each
    # fold it is 3 u and 4 u for two ranks, 6 (p-2) u and 8 (p-2) u + u from four on, again less one pre with
    # recomputation.
    helix(lambda p: 9 if p == 2 else 18 * (p - 2), folds=2, ranks=(2, 4, 5, 6, 8)),
    helix(lambda p: (12 if p == 2 else 24 * (p - 2) + 3) - 1, folds=2, again=3, ranks=(2, 4, 8), forget="true"),
    helix(lambda p: 9 if p == 2 else 18 * (p - 2), folds=2, ranks=(2, 4), cached="true"),
    helix(lambda p: 9 if p == 2 else 18 * (p - 2), k=3, folds=2, ranks=(2, 4)),
    # Three folds: 5 u, 8 u and 17 u of forward (docs/schedules.md), below the 3 (p-1) u of triples that move as one.
    # One rank has no bubble.
    helix({4: 45, 5: 72, 8: 153}.get, folds=3, ranks=(4, 5, 8)), helix(lambda p: 0, k=2, folds=3, ranks=(1,)),
)


# HelixPipe's memory (docs/schedules.md): what one more microbatch adds to the stash and to the activations of every
# rank, in activations of a layer, where only {a, o} of an attention and {x, o} of a unit are kept, or {q, k, v, o}
# where the weights are not shipped.
def helix_memory(compiler):
    hidden, heads, tokens = 64, 4, 64
    for ranks, layers, ship in ((2, 2, "true"), (4, 8, "true"), (4, 4, "false")):
        bytes_of = []
        for microbatches in (2 * ranks, 4 * ranks):
            values = dict(schedule="helixpipe", model="gpt2", hidden=hidden, heads=heads, ffn=256, vocab=64,
                          sequence=32,
                          microbatch=2, ranks=ranks, layers=layers, ship=ship, forget="true", microbatches=microbatches)
            defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
            stats = json.loads(harness.call([compiler, harness.TRAIN, "--emit=stats", *defines]).stdout)
            bytes_of.append([[rank["peak_bytes"][role] for role in ("stash", "act")] for rank in stats["per_rank"]])
        added = 2 * ranks * layers // ranks  # layers' worth of microbatches on a rank
        lse = 4 * tokens * heads
        expected = [added * ((2 if ship == "true" else 4) * 4 * tokens * hidden + lse), added * 2 * 4 * tokens * hidden]
        found = [[more - less for less, more in zip(*pair)] for pair in zip(*bytes_of)]
        what = f"helixpipe: bytes, {ranks} ranks, {layers} layers, ship {ship}: {found}, {expected}"
        yield found == [expected] * ranks, what


# Checks what every rank computes, sends and keeps in ring attention. Times are pre 1, attn 3, post 2, B = 2F; attn is
# one slice with the keys of one slice. With one slice for each rank, rank r attends r + 1 slices, and the last rank
# sets the pace. With two slices in a zigzag, each rank attends 2p + 1, and none waits.
def ring_attention(compiler):
    layers, m, hidden, tokens = 2, 2, 16, 32
    for p, zigzag in itertools.product((1, 2, 3, 4, 8), (False, True)):
        n = 2 * p if zigzag else p
        values = dict(schedule="ring_attention_zigzag" if zigzag else "ring_attention", ranks=p, microbatches=m,
                      layers=layers, hidden=hidden,
                      heads=2, kv_heads=1, ffn=16, vocab=16, sequence=2 * tokens, microbatch=1)
        defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
        stats = json.loads(harness.call([compiler, harness.TRAIN, "--emit=stats", "--costs=pre=1,attn=3,post=2,rest=0",
                                         *defines]).stdout)
        attended = [2 * p + 1 if zigzag else r + 1 for r in range(p)]
        busy = [3 * m * layers * (3 * (n // p) + 3 * count) for count in attended]
        # Keys of slice j < p go round until the last rank has seen them; those of 2p-1-s end on rank s-1, and those of
        # 2p-1 stay.
        keys = [(2 * p - 3 + (r == p - 1) if zigzag else r + 1 if r < p - 1 else 0) if p > 1 else 0 for r in range(p)]
        sums = [p - 1 + p - 1 - r if zigzag else r for r in range(p)]
        chunk = 2 * (2 * tokens // n) * (hidden // 2) * 4  # k and v, f32
        expected = [max(busy), busy, [2 * m * layers * count for count in keys], [m * layers * count for count in sums]]
        sent = lambda role: [rank["messages_sent_by_role"].get(role, 0) for rank in stats["per_rank"]]
        found = [stats["makespan"], [rank["busy"] for rank in stats["per_rank"]], sent("kv"), sent("dkv")]
        size = 2 * tokens % n == 0
        bytes_sent = [rank["bytes_sent"].get("kv", 0) for rank in stats["per_rank"]]
        held = max(rank["peak_bytes"].get("kv", 0) for rank in stats["per_rank"]) / chunk
        yield found == expected, f"ring_attention: {p} ranks, {n} slices: {found}, {expected}"
        if size:
            what = f"ring_attention: {p} ranks, {n} slices:"
            yield bytes_sent == [chunk * count for count in expected[2]], f"{what} {bytes_sent} bytes"
            yield held <= (layers + 4) * (n // p), f"{what} keys of {held} slices at once"


def main():
    compiler, folder, *chosen = sys.argv[1:]
    most = 16
    if "--quick" in chosen:
        chosen.remove("--quick")
        most = 5
    os.makedirs(folder, exist_ok=True)
    tally = harness.Tally()
    for good, text in helix_memory(compiler) if not chosen or "helixpipe" in chosen else ():
        tally.check(good, text)
    for good, text in ring_attention(compiler) if not chosen or "ring_attention" in chosen else ():
        tally.check(good, text)
    for form in FORMS:
        if chosen and form.schedule not in chosen:
            continue
        wrong = []
        sizes = [(p, m) for p, m in form.sizes() if p <= most]
        for p, m in sizes:
            more = form.defines(p) if callable(form.defines) else form.defines
            values = SIZES | dict(schedule=form.schedule, ranks=p, microbatches=m, layers=form.layers(p)) | more
            defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
            stats = json.loads(harness.call([compiler, harness.TRAIN, "--emit=stats", f"--costs={form.costs}",
                                             *defines]).stdout)
            wrong += [f"p = {p}, m = {m}: {error}" for error in form.errors(p, m, stats)]
        for line in wrong[:10]:
            print("     " + line)
        tally.check(not wrong, f"{form.schedule}: {len(sizes)} sizes, {len(wrong)} numbers differ")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
