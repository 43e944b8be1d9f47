"""Cuts a model into the stages of a program by the names of its modules, which stay the model's."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from __future__ import annotations
import copy
from collections.abc import Callable, Sequence
import torch
from ..refused import Refused
from .shared import Program


def shares(children, stages):
    """Names in `stages` runs, as even as can be; the first runs are the longer ones."""
    cuts = [len(children) * stage // stages for stage in range(stages + 1)]
    return [children[a:b] for a, b in zip(cuts, cuts[1:])]


def keep(module, wanted, prefix=""):
    """Deletes all modules below `module` that are not wanted and have nothing wanted below them. A container loses the
    entry; anything else gets None in its place, which its forward must expect, as that of torchtitan's models does."""
    for name, child in list(module.named_children()):
        path = prefix + name
        if path in wanted:
            continue
        if any(one.startswith(path + ".") for one in wanted):
            keep(child, wanted, path + ".")
        elif isinstance(module, (torch.nn.Sequential, torch.nn.ModuleDict)):
            del module._modules[name]
        elif isinstance(module, torch.nn.ModuleList):
            raise Refused(f"`{path}`: a ModuleList is renumbered where entries leave it; use a ModuleDict")
        else:
            setattr(module, name, None)


def split(model: torch.nn.Module, program: Program,
          names: Sequence[Sequence[str]] | None = None) -> Callable[[int], torch.nn.Module]:
    """Returns a function of a stage's number. It copies the model and keeps the modules of that stage alone.

    `names` has a list of module names for each stage, such as `[["embed", "layers.0"], ["layers.1", "head"]]`. Without
    it the children of an `nn.Sequential` are dealt out evenly. Parameters that two stages have are refused unless the
    program ties them. Names of parameters stay the model's, so state dicts need no map. Raises `Refused` where names
    and stages do not fit; the model itself is not changed, and parameters of other stages are not copied.
    """
    stages = len(program.pieces)
    if any(piece["kind"] != "stage" for piece in program.pieces):
        raise Refused("`split` cuts stages; this program has parts of layers as pieces")
    if names is None:
        if not isinstance(model, torch.nn.Sequential):
            raise Refused("`split` deals out the children of an nn.Sequential; of other models `names` says which "
                          "modules a stage has")
        names = shares([name for name, _ in model.named_children()], stages)
    if len(names) != stages or not all(names):
        full = sum(map(bool, names))
        raise Refused(f"`names` has {len(names)} stages, {full} of them with modules; the program has {stages}")
    known = dict(model.named_modules())
    for name in [name for stage in names for name in stage]:
        if name not in known:
            raise Refused(f"`{name}` is no module of the model")
    owners = {}
    for stage, wanted in enumerate(names):
        for name in wanted:
            for parameter, tensor in known[name].named_parameters(name):
                first = owners.setdefault(id(tensor), (stage, parameter))
                if first[0] != stage and not program.ties:
                    raise Refused(f"stage {first[0]} and stage {stage} share a weight (`{first[1]}`, `{parameter}`), "
                                  "and the program ties none: its proof of gradients is about another model")

    def build(stage):
        meta = {id(tensor): torch.nn.Parameter(tensor.detach().to("meta"), tensor.requires_grad)
                for tensor in model.parameters()}
        mine = {id(tensor) for name in names[stage] for tensor in known[name].parameters()}
        memo = {key: empty for key, empty in meta.items() if key not in mine}
        part = copy.deepcopy(model, memo)          # parameters of other stages are never copied
        keep(part, set(names[stage]))
        part.pp_whole_names = True
        return part
    return build
