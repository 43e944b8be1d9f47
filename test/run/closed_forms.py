#!/usr/bin/env python3
"""Holds the simulator against the closed forms of the papers, exactly, in unit time (F 1, B 2, I 1, W 1), 2 to 16 ranks."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: closed_forms.py PP_COMPILE FOLDER
# A row of FORMS says for one schedule which microbatches to try on p ranks, and what must come out: numbers of the whole
# program (p, m) -> number, and of rank r (p, m, r) -> number. `bubble` is checked for all from makespan and work.
import fractions, json, os, sys
import harness

SIZES = dict(hidden=4, heads=1, kv_heads=1, ffn=4, vocab=4, sequence=2, microbatch=1)


class Form:
    def __init__(self, schedule, microbatches, makespan, span, barrier=lambda p, m: 0, defines={}, ranks=range(2, 17),
                 layers=lambda p: p, work=lambda m: 3 * m, **peaks):
        self.schedule, self.microbatches, self.defines, self.ranks, self.layers = schedule, microbatches, defines, ranks, layers
        self.makespan, self.span, self.barrier, self.work, self.peaks = makespan, span, barrier, work, peaks

    def sizes(self):
        return [(p, m) for p in self.ranks for m in self.microbatches(p)]

    def errors(self, p, m, stats):
        """What differs: name, expected, got."""
        makespan, work = self.makespan(p, m), self.work(m)
        whole = {"makespan": makespan, "step": makespan, "span": max(self.span(p, m, r) for r in range(p))}
        pairs = [(name, value, stats[name]) for name, value in whole.items()]
        pairs.append(("bubble", float(fractions.Fraction(makespan - work, makespan)), round(stats["bubble"], 12)))
        pairs.append(("cost of the barrier", self.barrier(p, m), stats["barrier_cost"]))
        for r, rank in enumerate(stats["per_rank"]):
            pairs += [(f"rank {r}: busy", work, rank["busy"]), (f"rank {r}: idle", makespan - work, rank["idle"]),
                      (f"rank {r}: span", self.span(p, m, r), rank["span"]),
                      (f"rank {r}: idle by cause", makespan - work, sum(rank["idle_by_cause"].values()))]
            pairs += [(f"rank {r}: {role}", peak(p, m, r), rank["peak_values"][role]) for role, peak in self.peaks.items()
                      if peak(p, m, r) is not None]
        return [f"{name}: expected {expected}, got {got}" for name, expected, got in pairs if abs(expected - got) > 1e-11]


# weight_passing.md section 8 (stage-level F 1 and BW 2): from two rounds on as 1F1B; in one round no rank ever has both.
def interleave(p, m):
    return 3 * (m + p - 1) if m > p else 5 * p - 2


FORMS = (
    # Huang et al. 2019 and Narayanan et al. 2021: bubble (p-1)/(m+p-1) of the makespan for both, peaks m and min(m, p-r).
    # Rank r starts r after rank 0, which ends last, and ends 2r before it.
    Form("gpipe", lambda p: (1, p, 2 * p + 1), lambda p, m: 3 * (m + p - 1), lambda p, m, r: 3 * (m + p - 1 - r),
         stash=lambda p, m, r: m),
    Form("1f1b", lambda p: (1, p, 2 * p + 1), lambda p, m: 3 * (m + p - 1), lambda p, m, r: 3 * (m + p - 1 - r),
         stash=lambda p, m, r: min(m, p - r)),
    # WeiPipe (PPoPP 2025), Interleave: rank r starts r after rank 0 and, in turns that are all backward by then, ends
    # 2 (p-1-r) before rank p-1. Two weights and their successors, one gradient and its (section 7 of the specification; with
    # one round only, the last rank of two or three never has all four).
    Form("weipipe_interleave", lambda p: (p, 2 * p, 3 * p), interleave,
         lambda p, m, r: interleave(p, m) - 2 * (p - 1) + r,
         stash=lambda p, m, r: p, weight=lambda p, m, r: 4 if m > p else None, grad=lambda p, m, r: 2),
)


def main():
    compiler, folder = sys.argv[1:3]
    os.makedirs(folder, exist_ok=True)
    tally = harness.Tally()
    for form in FORMS:
        wrong = []
        for p, m in form.sizes():
            values = SIZES | dict(schedule=form.schedule, ranks=p, microbatches=m, layers=form.layers(p)) | form.defines
            defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
            stats = json.loads(harness.call([compiler, harness.TRAIN, "--emit=stats", *defines]).stdout)
            wrong += [f"p = {p}, m = {m}: {error}" for error in form.errors(p, m, stats)]
        for line in wrong[:10]:
            print("     " + line)
        tally.check(not wrong, f"{form.schedule}: {len(form.sizes())} sizes, {len(wrong)} numbers differ")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
