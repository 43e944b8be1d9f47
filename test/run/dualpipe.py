#!/usr/bin/env python3
"""Holds stdlib/dualpipe.pipe against DualPipe's eight steps written down here, and those against the paper's bubble."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: dualpipe.py PP_COMPILE FOLDER
# `steps` is the order of github.com/deepseek-ai/DualPipe (dualpipe.py, DualPipe.step); `idle` runs it as soon as it
# can, with pairs that begin and end at once, as the DeepSeek-V3 technical report draws them. Its Table 2 says that a
# rank is then idle for (p/2 - 1)(F&B + B - 3W), where F&B is the time of a pair and B that of a whole backward.
import sys
import harness


def steps(p, m, r):
    """A list of units that run side by side: (phase, stage, microbatch). F0 and B0 are of the rank's stage that is
    `near` the end of the ranks where its pipeline begins; F1 and B1 are of the other stage, and the other pipeline."""
    near = min(r, p - 1 - r)
    far = p // 2 - 1 - near  # ranks from here to the middle
    order, owed, done = [], [], {}

    def unit(phase, k):
        stage = p - 1 - near if k else near
        number = done.get((phase == "F", k), 0)
        done[phase == "F", k] = number + 1
        microbatch = 2 * number + (0 if stage == r else 1)
        if phase == "I":
            owed.append(("W", stage, microbatch))
        return phase, stage, microbatch

    def run(text):
        for word in text.split():
            order.append([owed.pop(0)] if word == "W" else [unit(phase, int(k)) for phase, k in zip(*[iter(word)] * 2)])

    for _ in range(2 * far):
        run("F0")
    for _ in range(near + 1):
        run("F0 F1")
    for _ in range(far):
        run("I1 W F1")
    for step in range(m // 2 - p + near + 1):
        run("F0 B1 F1B0" if step == far == 0 else "F0B1 F1B0")  # the two in the middle do not wait for a whole pair
    for _ in range(far):
        run("B1 F1B0")
    for number in range(2 * (near + 1)):
        run("BI"[number > near] + "10"[number % 2])  # the second half leave their weight passes for later
    for _ in range(far):
        run("W I0")
    for _ in range(near + 1):
        run("W")
    return order, owed


def idle(p, m, forward, backward, weight, pair):
    """How long each rank does nothing until all have ended."""
    cost = {"F": forward, "B": backward, "I": backward - weight, "W": weight}
    orders = [steps(p, m, r)[0] for r in range(p)]
    ended, position, clock, busy = {}, [0] * p, [0] * p, [0] * p
    while any(position[r] < len(orders[r]) for r in range(p)):
        before = list(position)
        for r in range(p):
            while position[r] < len(orders[r]):
                units = orders[r][position[r]]
                needed = [("F", s - 1, i) for phase, s, i in units if phase == "F" and s > 0]
                needed += [("I", s + 1, i) for phase, s, i in units if phase in "BI" and s < p - 1]
                needed += [("F", s, i) for phase, s, i in units if phase in "BI"]
                if any(unit not in ended for unit in needed):
                    break
                time = pair if len(units) > 1 else cost[units[0][0]]
                clock[r] = max([clock[r]] + [ended[unit] for unit in needed]) + time
                busy[r] += time
                for phase, s, i in units:
                    ended["I" if phase == "B" else phase, s, i] = clock[r]
                position[r] += 1
        assert position != before, f"{p} ranks, {m} microbatches: the order is stuck at {position}"
    return [max(clock) - time for time in busy]


def main():
    compiler = sys.argv[1]
    tally = harness.Tally()
    sizes = [(p, m) for p in (2, 4, 6, 8, 16) for m in (2 * p, 2 * p + 2, 3 * p, 4 * p)]
    for p, m in sizes:
        what = f"{p} ranks, {m} microbatches:"
        mine = [steps(p, m, r) for r in range(p)]
        tally.check(not any(owed for _, owed in mine), f"{what} every weight pass has run")
        units = [f"{stage}{phase}{i}" for phase in "FIW" for stage in range(p) for i in range(m)]
        told = [text for order, _ in mine for group in order for phase, stage, i in group
                for text in ([f"{stage}I{i}", f"{stage}W{i}"] if phase == "B" else [f"{stage}{phase}{i}"])]
        tally.check(sorted(told) == sorted(units), f"{what} every unit has run once")
        defines = [word for name in (f"ranks={p}", f"microbatches={m}", f"layers={p}") for word in ("-D", name)]
        tasks = harness.call([compiler, f"{harness.ROOT}/stdlib/dualpipe.pipe", "--schedule=dualpipe", *defines,
                              "--fuse=false", "--emit=tasks"]).stdout
        expected = [",".join(f"{stage}{phase}{i}" for group in order for phase, stage, i in group) for order, _ in mine]
        tally.check(tasks.split() == expected, f"{what} the library has the same order")
        # F = I = W, as the closed form takes it: with other costs ranks wait less than it says.
        for forward, pair in ((1, 3), (1, 2), (2, 5), (3, 7)):
            backward, weight = 2 * forward, forward
            paper = (p // 2 - 1) * (pair + backward - 3 * weight)
            found = max(idle(p, m, forward, backward, weight, pair))
            tally.check(found == paper, f"{what} idle for {found}, in Table 2 {paper}, F {forward}, a pair {pair}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
