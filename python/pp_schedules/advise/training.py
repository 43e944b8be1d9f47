"""A training job as the advice sees it: a model, its pipeline, its mesh; and the program for pp that stands for it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from __future__ import annotations

import dataclasses
from typing import Dict, List

from .layout import text_of


@dataclasses.dataclass
class Model:
    """Sizes of a decoder. `ffn` is of one expert where there are experts; `vocab` is padded."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    experts: int = 0
    top: int = 2
    further: int = 0  #: layers for further tokens
    gated: bool = True  #: an MLP as llama's; else as GPT-2's

    def text(self, mesh: bool, length: int) -> str:
        """The call of the library's model that has as much work for sequences of `length` tokens."""
        sizes = f"layers = {self.layers}, hidden = {self.hidden}, heads = {self.heads}"
        if not self.gated:
            return f"gpt2({sizes}, vocab = {self.vocab}, context = {length}, ffn = {self.ffn})"
        sizes += f", kv_heads = {self.kv_heads}, ffn = {self.ffn}"
        if self.experts:
            return f"mixtral({sizes}, experts = {self.experts}, top = {self.top}, vocab = {self.vocab})"
        name = {1: "llama_mtp", 2: "llama_mtp2"}.get(0 if mesh else self.further, "llama")
        return f"{name}({sizes}, vocab = {self.vocab})"


@dataclasses.dataclass
class Training:
    """`stages`: the letters of each (layout.py); stage s is on rank s mod `ranks`."""
    model: Model
    ranks: int
    stages: List[str]
    microbatch: int
    microbatches: int
    sequence: int
    precision: str = "bf16"
    tensor: int = 1
    context: int = 1
    data: int = 1
    expert: int = 1
    rows: bool = False  #: rows between products are cut over the tensor axis, too
    zero: int = 0
    recompute: str = ""  #: `stage`, or names of parts
    schedule: str = ""  #: how its owner calls it
    titan: bool = False
    near: List[str] = dataclasses.field(default_factory=list)  #: what is only nearly so
    ignored: List[str] = dataclasses.field(default_factory=list)  #: does not change the pipeline
    unknown: List[str] = dataclasses.field(default_factory=list)

    @property
    def devices(self) -> int:
        return self.ranks * self.tensor * self.context * self.data

    def mesh(self) -> str:
        axes: Dict[str, int] = {"tensor": self.tensor, "context": self.context, "data": self.data,
                                "expert": self.expert}
        clauses = [f"{name} = {size}" for name, size in axes.items() if size > 1]
        if self.rows and self.tensor > 1:
            clauses.append("sequence = true")
        if self.zero and self.data > 1:
            clauses.append(f"zero = {self.zero}")
        return ", ".join(clauses)

    def call(self) -> str:
        """Of the model; where none has layers for further tokens, it has as many layers more."""
        more = 0 if self.has_further() else self.model.further
        return dataclasses.replace(self.model, layers=self.model.layers + more).text(
            self.tensor * self.context > 1, self.sequence)

    def has_further(self) -> bool:
        return self.model.text(self.tensor * self.context > 1, self.sequence).startswith("llama_mtp")

    def counted(self) -> List[str]:
        """The letters of the program's stages."""
        return self.stages if self.has_further() else [stage.replace("m", "t") for stage in self.stages]

    def program(self) -> str:
        """The text of a `.pipe` file; its parameter `layout` may be set by -D."""
        mesh, model, stages = self.mesh(), self.call(), self.counted()
        name = model.partition("(")[0]
        lines = [f'import "std/models/{name}.pipe"', 'import "std/megatron.pipe"', "",
                 f'train advised(layout = "{text_of(stages)}") {{', f"  model     {model}",
                 f"  schedule  megatron(ranks = {self.ranks}, microbatches = {self.microbatches}, layout = layout)",
                 f"  data      microbatch = {self.microbatch}, sequence = {self.sequence}",
                 "  optimizer adamw(lr = 1e-4)", f"  precision {self.precision}"]
        lines += [f"  mesh      {mesh}"] if mesh else []
        lines += [f"  recompute {self.recompute}"] if self.recompute else []
        return "\n".join(lines + ["}", ""])
