"""Cuts a model into the stages of a program by the names of its modules, which stay the model's."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from __future__ import annotations
import copy, functools
from collections.abc import Callable, Sequence
import torch
from ..refused import Refused
from .shared import Program
from .vocabulary import shard


def shares(children, stages):
    """Names in `stages` runs, as even as can be; later runs are the longer ones."""
    cuts = [len(children) * stage // stages for stage in range(stages + 1)]
    return [children[a:b] for a, b in zip(cuts, cuts[1:])]


class Path:
    """What the forward of a stage hands from one named module to the next. A model's own code between two modules runs
    in every stage that has it, so between modules of other stages there must be none: a scale of embeddings would be
    applied twice, a sum with positions be made of what is no position."""

    def __init__(self, stage, first):
        self.stage, self.first, self.last, self.gone, self.runs = stage, first, None, "", False

    def __deepcopy__(self, memo):
        return self

    def begin(self, module, inputs):
        """The forward of the stage begins with what the stage before made."""
        self.last, self.gone, self.runs = (None if self.first or not inputs else inputs[0]), "its input", True

    def enter(self, name, x):
        """Before a named module nothing may have changed what a module of another stage passed on. (A backward that
        recomputes calls modules alone.)"""
        if self.runs and self.last is not None and not same(x, self.last):
            raise Refused(f"stage {self.stage}: between {self.gone} and {name} the model computes something, which "
                          "other stages would do again; give stages modules of their own, or cut elsewhere")

    def call(self, name, module, inputs, named):
        self.enter(f"`{name}`", next(iter((*inputs, *named.values())), None))

    def done(self, *_):
        """A module of this stage has run; what follows may be its own."""
        self.last = None

    def passed(self, name, x):
        self.enter(f"`{name}`", x)
        self.last, self.gone = x, f"`{name}` (of another stage)"

    def end(self, module, inputs, outputs):
        """The forward of the stage ends with what the last named module returned; of a dictionary the one tensor
        counts, such as the logits of transformers."""
        if isinstance(outputs, dict):
            tensors = {key: value for key, value in outputs.items() if isinstance(value, torch.Tensor)}
            if len(tensors) != 1:
                raise Refused(f"stage {self.stage} returns a dictionary with the tensors {list(tensors)}; expected "
                              "one, or a tuple")
            outputs = next(iter(tensors.values()))
        self.enter("the end of the stage", outputs if isinstance(outputs, torch.Tensor) else outputs[0])
        self.last, self.runs = None, False
        return outputs


def same(x, y):
    """Whether two tensors are one, views of all of it, or one is a cast of the other, such as FSDP2 makes of inputs."""
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.shape != y.shape:
        return False
    if x.dtype != y.dtype:
        return x.is_meta or torch.equal(x, y.to(x.dtype))
    return x is y or x.data_ptr() == y.data_ptr() and x.stride() == y.stride()


class Elsewhere(torch.nn.Module):
    """Stands for a module of another stage, and gives its first argument on."""

    def __init__(self, name, path):
        super().__init__()
        self.name, self.path = name, path

    def forward(self, *inputs, **named):
        x = (*inputs, *named.values())[0]
        self.path.passed(self.name, x)
        return x

    def __getattr__(self, what):
        try:
            return super().__getattr__(what)
        except AttributeError as error:
            raise AttributeError(f"`{self.name}` is a module of another stage, and this stage asks for its `{what}`"
                                 ) from error


def keep(module, wanted, path, prefix=""):
    """Takes away all modules below `module` that are not wanted and have nothing wanted below them."""
    for name, child in list(module.named_children()):
        full = prefix + name
        if full in wanted:
            continue
        if any(one.startswith(full + ".") for one in wanted):
            keep(child, wanted, path, full + ".")
        elif isinstance(module, (torch.nn.Sequential, torch.nn.ModuleDict)):
            del module._modules[name]
        else:
            module._modules[name] = Elsewhere(full, path)


def watch(part, names, stage, path):
    """Lets the path know of the calls of the stage and of its named modules."""
    for name in names:
        module = part.get_submodule(name)
        module.register_forward_pre_hook(functools.partial(path.call, name), with_kwargs=True)
        module.register_forward_hook(path.done)
    part.register_forward_pre_hook(path.begin)
    part.register_forward_hook(path.end)


def split(model: torch.nn.Module, program: Program,
          names: Sequence[Sequence[str]] | None = None) -> Callable[[int], torch.nn.Module]:
    """Returns a function of a stage's number. It copies the model and keeps the modules of that stage alone.

    `names` has a list of module names for each stage, such as `[["embed", "layers.0"], ["layers.1", "head"]]`. Without
    it the children of an `nn.Sequential` are dealt out evenly. What several stages name, such as rotary positions, has
    no parameters. A stage runs the model's own forward: entries of an nn.Sequential or nn.ModuleDict leave it, other
    modules of other stages pass their first argument on. Code of the model between two such modules is refused at the
    first step. Where ends are cut by the vocabulary, the first nn.Embedding that `names` gives to the first stage and
    the last nn.Linear that it gives to the last one are cut into the shards "embed 0", .., "head 0", .., and these
    stages run without them. Parameters that two stages have are refused unless the program ties them. Names of
    parameters stay the model's, so state dicts need no map. Raises `Refused` where names and stages do not fit; the
    model itself is not changed, and parameters of other stages are not copied.
    """
    stages = sum(piece["kind"] == "stage" for piece in program.pieces)
    cut = "vocabulary" in program.needs
    ends = {"embed", "head"} if cut else set()
    if any(piece["kind"] != "stage" and piece["part"] not in ends for piece in program.pieces):
        raise Refused("`split` cuts stages; this program has parts of layers as pieces")
    if names is None:
        if not isinstance(model, torch.nn.Sequential):
            raise Refused("`split` deals out the children of an nn.Sequential; of other models `names` says which "
                          "modules a stage has")
        names = [name for name, _ in model.named_children()]
        names = shares(names[cut:len(names) - cut], stages) if len(names) > 2 * cut else [[]] * stages
        names = [list(model._modules)[:cut] + names[0], *names[1:]]
        names[-1] = names[-1] + list(model._modules)[-1:] * cut
    if len(names) != stages or not all(names):
        full = sum(map(bool, names))
        raise Refused(f"`names` has {len(names)} stages, {full} of them with modules; the program has {stages}")
    known = dict(model.named_modules())
    for name in [name for stage in names for name in stage]:
        if name not in known:
            raise Refused(f"`{name}` is no module of the model")
    owned(model, program, names, known)
    ends, names = cut_ends(program, names, known) if cut else ({}, names)
    shared = {name for stage in names for name in stage if sum(name in other for other in names) > 1}

    def build(stage):
        word, _, number = str(stage).partition(" ")
        if word in ends:
            part = shard(known[ends[word]], int(number), sum(piece["part"] == word for piece in program.pieces))
            part.pp_whole_names, part.pp_prefix = True, ends[word] + "."
            return part
        meta = {id(tensor): torch.nn.Parameter(tensor.detach().to("meta"), tensor.requires_grad)
                for tensor in model.parameters()}
        mine = {id(tensor) for name in names[stage] for tensor in known[name].parameters()}
        memo = {key: empty for key, empty in meta.items() if key not in mine}
        part = copy.deepcopy(model, memo)          # parameters of other stages are never copied
        path = Path(stage, stage == 0 and "embed" not in ends)
        keep(part, set(names[stage]), path)
        if not isinstance(part, torch.nn.Sequential):
            watch(part, [name for name in names[stage] if name not in shared], stage, path)
        part.pp_whole_names = True
        return part
    return build


def cut_ends(program, names, known):
    """{"embed": the name of the embedding, "head": that of the head}, where the program cuts them; and the names of
    stages without them."""
    ends, names = {}, [list(stage) for stage in names]
    for word, stage, kind, order in (("embed", 0, torch.nn.Embedding, 1), ("head", -1, torch.nn.Linear, -1)):
        if any(piece["part"] == word for piece in program.pieces):
            found = [name for name in names[stage][::order] if isinstance(known[name], kind)]
            if not found:
                raise Refused(f"the program cuts `{word}` by the vocabulary, and `names` gives no nn.{kind.__name__} "
                              f"to the {'first' if stage == 0 else 'last'} stage: {names[stage]}")
            ends[word] = found[0]
            names[stage].remove(found[0])
            if not names[stage]:
                raise Refused(f"`names` gives nothing but `{found[0]}` to the {'first' if stage == 0 else 'last'} "
                              "stage, and it is cut by the vocabulary")
    return ends, names


def owned(model, program, names, known):
    """Refuses parameters of two stages that the program does not tie, and modules of none."""
    owners = {}
    for stage, wanted in enumerate(names):
        for name in wanted:
            for parameter, tensor in known[name].named_parameters(name):
                first = owners.setdefault(id(tensor), (stage, parameter))
                if first[0] != stage and not program.ties:
                    raise Refused(f"stage {first[0]} and stage {stage} share a weight (`{first[1]}`, `{parameter}`), "
                                  "and the program ties none: its proof of gradients is about another model. A `train` "
                                  "program says so to pp: its model is `opaque(.., tied = true)`")
    some = {name for wanted in names for name in wanted}
    for name in known:
        parent = name.rpartition(".")[0]
        inside = any(one == name or one.startswith(name + ".") or name.startswith(one + ".") for one in some)
        if name and not inside and (not parent or any(one.startswith(parent + ".") for one in some)):
            raise Refused(f"`names` leaves `{name}` to no stage; every stage that calls it may name it if it has no "
                          "parameters")
