"""Layouts in the notation of Megatron-LM: which layers, embedding and losses each stage holds."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# `Et*3|(tt|)*29,m|L`: E the embedding, t a layer, m a layer for a further token, L the loss, `|` the end of a stage,
# `*N` the letter or the group before it N times; commas are not read.
from __future__ import annotations

import itertools
import re
from typing import List, Sequence, Tuple

from .arguments import Unreadable


def stages_of(layout: str) -> List[str]:
    """The letters of each stage: `Et*2|L` has `Ett` and `L`. Raises Unreadable."""
    text = re.sub(r"[,\s]", "", layout)
    group = re.compile(r"\(([^()]*)\)(?:\*(\d+))?")
    while group.search(text):
        text = group.sub(lambda match: match.group(1) * int(match.group(2) or 1), text)
    text = re.sub(r"([EtmL|])\*(\d+)", lambda match: match.group(1) * int(match.group(2)), text)
    wrong = re.search(r"[^EtmL|]", text)
    if wrong:
        raise Unreadable(f"layout `{layout}`: `{wrong.group(0)}` is none of E, t, m, L, `|`, `*N` and groups")
    stages = text.split("|")
    joined = "".join(stages)
    if joined.count("E") != 1 or joined.count("L") != 1 or not re.fullmatch(r"Et*m*L", joined):
        raise Unreadable(f"layout `{layout}`: expected one E before the layers, and one L behind them")
    return stages


def text_of(stages: Sequence[str]) -> str:
    """`Et*8|t*8|t*7L`."""
    def run(letter: str, count: int) -> str:
        return letter if count == 1 else f"{letter}*{count}"
    return "|".join("".join(run(letter, len(list(same))) for letter, same in itertools.groupby(stage))
                    for stage in stages)


def layers_of(stages: Sequence[str]) -> List[int]:
    return [stage.count("t") for stage in stages]


def with_layers(stages: Sequence[str], layers: Sequence[int]) -> List[str]:
    """The same E, m and L, and so many layers in each stage."""
    made = []
    for stage, count in zip(stages, layers):
        first = "E" if "E" in stage else ""
        made.append(first + "t" * count + "".join(letter for letter in stage if letter in "mL"))
    return made


def even(layers: int, count: int, first: float = 0, last: float = 0) -> List[int]:
    """Layers of `count` stages so that the largest is least, where the ends have work of `first` and `last` layers
    more. Of equally good stages the earlier ones get more."""
    cut, load = [0] * count, [0.0] * count
    load[0] += first
    load[-1] += last
    for _ in range(layers):
        stage = min(range(count), key=lambda number: (load[number], number))
        cut[stage] += 1
        load[stage] += 1
    return cut


def stages_with(cut: Sequence[int], further: int) -> List[str]:
    stages = ["t" * count for count in cut]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * further + "L"
    return stages


def modules_of(stages: Sequence[str]) -> List[List[str]]:
    """The same for torchtitan: `module_fqns_per_model_part`."""
    parts, layer = [], 0
    for stage in stages:
        part = ["tok_embeddings"] if "E" in stage else []
        part += [f"layers.{layer + number}" for number in range(stage.count("t"))]
        layer += stage.count("t")
        parts.append(part + (["norm", "lm_head"] if "L" in stage else []))
    return parts


def of_modules(parts: Sequence[Sequence[str]]) -> List[str]:
    """The letters of torchtitan's parts of a model."""
    stages = []
    for part in parts:
        letters = "E" if any(name.startswith("tok_embeddings") for name in part) else ""
        letters += "t" * sum(bool(re.fullmatch(r"layers\.\d+", name)) for name in part)
        stages.append(letters + ("L" if any(name in ("output", "lm_head") for name in part) else ""))
    return stages


def balanced(stages: Sequence[str], work: Sequence[Tuple[int, float]]) -> List[int]:
    """Layers by which the stages' work is as even as can be. `work`: of each stage its layers and its time."""
    inner = [(layers, time) for number, (layers, time) in enumerate(work) if layers and 0 < number < len(work) - 1]
    inner = inner or [pair for pair in work if pair[0]]
    layer = sum(time for _, time in inner) / sum(layers for layers, _ in inner)
    ends = [max(0.0, time / layer - layers) for layers, time in (work[0], work[-1])]
    return even(sum(layers_of(stages)), len(stages), *ends)
