"""Judges layouts and schedules for a training job: each is compiled, proved and simulated by pp."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import subprocess
import tempfile
import time
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from . import layout
from .arguments import Unreadable
from .training import Training


@dataclasses.dataclass
class Row:
    """One candidate; times in seconds, bytes of each rank."""
    name: str
    options: Tuple[str, ...]
    step: float
    bubble: float
    busy: List[float]
    peaks: List[int]
    roles: List[Dict[str, int]]
    stages: Optional[List[str]] = None  #: of a layout

    def fits(self, limit: Optional[int]) -> bool:
        return limit is None or max(self.peaks) <= limit


class Judge:
    """Compiles variants of one program. `seconds`: after which no further one is begun."""

    def __init__(self, training: Training, binary: str, options: Sequence[str], seconds: float):
        self.training, self.binary, self.options = training, binary, tuple(options)
        self.end = time.monotonic() + seconds
        self.seen: Dict[Tuple[str, ...], Optional[Row]] = {}
        self.refusals: Dict[str, str] = {}
        self.folder = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.folder.name, "advised.pipe")
        with open(self.file, "w", encoding="utf-8") as file:
            file.write(training.program())

    def run(self, *options: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([self.binary, self.file, *self.options, *options], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False)

    def proof(self, options: Sequence[str], channels: str) -> dict:
        """What pp proves of it, or a sentence why not under the key `error`."""
        done = self.run(*options, "--prove=json", f"--channels={channels}")
        return json.loads(done.stdout) if done.returncode == 0 else {"error": error_of(done.stderr)}

    def row(self, name: str, options: Tuple[str, ...], stages: Optional[List[str]] = None) -> Optional[Row]:
        if options not in self.seen:
            done = self.run(*options, "--emit=stats")
            if done.returncode:
                self.refusals[name] = error_of(done.stderr)
                self.seen[options] = None
            else:
                stats = json.loads(done.stdout)
                ranks = stats["per_rank"]
                self.seen[options] = Row(
                    name, options, stats["step"], stats["bubble"], [rank["busy"] for rank in ranks],
                    [rank["peak_bytes"]["total"] + rank["outside_bytes"]["total"] for rank in ranks],
                    [rank["peak_bytes"] for rank in ranks], stages)
        return self.seen[options]

    def of_layout(self, stages: Sequence[str]) -> Optional[Row]:
        text = layout.text_of(stages)
        return self.row(text, ("-D", f"layout={text}"), list(stages))

    def all(self, layouts: Iterable[Sequence[str]]) -> List[Row]:
        """Those that compile, of as many as there is time for."""
        def one(stages: Sequence[str]) -> Optional[Row]:
            return self.of_layout(stages) if time.monotonic() < self.end else None
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return [row for row in pool.map(one, layouts) if row]


def error_of(said: str) -> str:
    return next((line.partition("error: ")[2] for line in said.splitlines() if "error: " in line),
                said.strip() or "it ended without a word")


def as_given(judge: Judge) -> Row:
    row = judge.of_layout(judge.training.counted())
    if row is None:
        raise Unreadable("pp refuses it as it is: " + next(iter(judge.refusals.values())))
    return row


def better_layouts(judge: Judge, given: Row, limit: Optional[int]) -> List[Row]:
    """The fastest layout that fits for each number of stages, fewest first: as many as are given and, where
    microbatches go round the ranks, one, two or four on a rank."""
    ranks, stages = judge.training.ranks, given.stages or []
    counts = {len(stages)}
    if judge.training.microbatches % ranks == 0:
        counts |= {ranks * chunks for chunks in (1, 2, 4) if ranks * chunks <= sum(layout.layers_of(stages)) + 2}
    found = []
    for count in sorted(counts):
        begin = given if count == len(stages) else next(iter(judge.all([resized(stages, count)])), None)
        rows = [row for row in climb(judge, begin, limit) if row.fits(limit)] if begin else []
        found += sorted(rows, key=lambda row: row.step)[:1]
    return found


def resized(stages: Sequence[str], count: int) -> List[str]:
    """The same layers, as even as can be, in another number of stages."""
    letters = "".join(stages)
    return layout.stages_with(layout.even(letters.count("t"), count, 0, letters.count("m")), letters.count("m"))


def climb(judge: Judge, row: Row, limit: Optional[int]) -> List[Row]:
    """Layers go from where the work is to where it is not, as long as that makes the step shorter."""
    ranks, seen = judge.training.ranks, [row]
    work = [(stage.count("t"), row.busy[number % ranks] * share(row, number, ranks))
            for number, stage in enumerate(row.stages or [])]
    seen += judge.all([layout.with_layers(row.stages or [], layout.balanced(row.stages or [], work))])
    key = lambda each: (not each.fits(limit), each.step)  # noqa: E731
    best = min(seen, key=key)
    while time.monotonic() < judge.end:
        made = judge.all(shifts(best, ranks))
        seen += made
        if not made or key(min(made, key=key)) >= key(best):
            return seen
        best = min(made, key=key)
    return seen


def share(row: Row, number: int, ranks: int) -> float:
    """Of its rank's work, what a stage has: as its layers, and the ends of the model count as two."""
    weight = [stage.count("t") + 2 * ("L" in stage) for stage in row.stages or []]
    return weight[number] / max(1, sum(weight[number % ranks::ranks]))


def shifts(row: Row, ranks: int) -> List[List[str]]:
    """One layer from a stage of the busiest two ranks to each of the others, or to the first from any."""
    stages = row.stages or []
    cut = layout.layers_of(stages)
    order = sorted(range(ranks), key=lambda rank: -row.busy[rank])
    givers = [number for number in range(len(cut)) if cut[number] and number % ranks in order[:2]]
    takers = [number for number in range(len(cut)) if number % ranks in order[-3:] or len(cut) <= 8]
    made = []
    for giver in givers:
        for taker in takers:
            if giver != taker:
                moved = list(cut)
                moved[giver] -= 1
                moved[taker] += 1
                made.append(layout.with_layers(stages, moved))
    return made


def other_schedules(judge: Judge, limit: Optional[int]) -> List[Row]:
    """Schedules of the library that take stages in turn, forth and back, or cut backwards; the fastest comes first."""
    rows = []
    for file, name in (("zb_v", "zb_v"), ("dualpipev", "dualpipe_v"), ("zb_h", "zb_h"), ("v_half", "v_half")):
        options = (f"--schedule=std/{file}.pipe:{name}", "-D", f"ranks={judge.training.ranks}", "-D",
                   f"microbatches={judge.training.microbatches}")
        if time.monotonic() < judge.end + 5:
            row = judge.row(name, options)
            rows += [row] if row and row.fits(limit) else []
    return sorted(rows, key=lambda row: row.step)
