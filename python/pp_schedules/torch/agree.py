"""What a program, the modules and the processes must have in common; what they have not is refused with a sentence."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import inspect
import torch
import torch.distributed as dist
from ..form import part_of
from ..refused import Refused, Unproved
from ..verify import MAPS, verify
from .backward import Linears
from .pieces import Piece
from .units import in_words

REFUSED = {
    "cuts": "units that are cut at their attentions run in pp's own programs only",
    "states": "states of scans that go on from slice to slice are in pp's own programs only",
    "skips": "values that skip pieces are not handed over yet",
    "updates": "`updates` above 1: a module of PyTorch has one version of its weights",
    "versions": "several versions of weights: a module of PyTorch has one",
    "redo": "updates that may be taken back run in pp's own programs only"}


# Optimizers that read a weight as a matrix, or its norm; on a part of it they make another update without a word.
MATRICES = "Muon", "Shampoo", "DistributedShampoo", "SOAP", "Adafactor", "LAMB", "Lamb", "LARS", "Lars"


def together(group, make):
    """Calls `make`; what one rank refuses all refuse, or the others would wait for it. Its other errors it keeps."""
    mine, said = None, [None] * dist.get_world_size(group)
    try:
        make()
    except Exception as error:
        mine = error
    text = None if mine is None else str(mine) if isinstance(mine, Refused) else f"{type(mine).__name__}: {mine}"
    dist.all_gather_object(said, text, group=group)
    if mine is not None:
        raise mine
    if any(said):
        raise Refused(next(f"rank {rank}: {text}" for rank, text in enumerate(said) if text))


def on_program(program, group, lanes, unsafe_lanes, made):
    """Every rank has the same program, which a driver of PyTorch modules can run, and which holds what it claims.
    Returns the most pipelines that a rank has made, so that this one gets a number that all know."""
    ranks = dist.get_world_size(group)
    if ranks != program.ranks:
        raise Refused(f"the program has {program.ranks} ranks, and the group has {ranks} processes")
    said = [None] * ranks
    dist.all_gather_object(said, (program.fingerprint, made), group=group)
    prints = [one for one, _ in said]
    if len(set(prints)) > 1:
        raise Refused(f"the ranks have different programs: {[one[:12] for one in prints]}")
    for word in program.needs:
        if word in REFUSED:
            raise Refused(REFUSED[word])
    try:
        verify(program, ("edge",) + ("pair",) * (lanes == "pair") if unsafe_lanes else MAPS)
    except Unproved as unproved:
        if unproved.claim != "progress" or unsafe_lanes:
            raise
        raise Refused(f"{unproved}; edge lanes may be proved, but NCCL may serialise streams: `unsafe_lanes=True` "
                      "takes the risk") from unproved
    return max(number for _, number in said)


def modules(program, stages, numbers, ties, device):
    """{piece: Piece} of the pieces that a rank runs or updates: stages, or parts of layers, which have names."""
    build = builder(program, stages)
    if bool(ties) != bool(program.ties):
        raise Refused("the program ties weights, and `ties` names none" if program.ties else
                      "`ties` names weights that two stages share, and the program was not told: its proof of "
                      "gradients does not hold for this model")
    pieces = {}
    for i in sorted(numbers):
        of, what = program.pieces[i], called(program, i)
        try:
            module = build(part_of(of) if of["part"] else of["index"])
        except LookupError as error:
            raise Refused(f"`stages` has no {what}") from error
        if not isinstance(module, torch.nn.Module):
            raise Refused(f"{what} is {in_words(module)}; expected an nn.Module")
        if not any(p.is_meta for p in module.parameters()):
            module = module.to(device)
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            raise Refused(f"{what} is a DistributedDataParallel, which sums at every backward; use `replicas`")
        for name, p in module.named_parameters():
            if torch.nn.parameter.is_lazy(p):
                raise Refused(f"{what}: `{name}` has no shape yet; run the lazy module once before")
        piece = pieces[i] = Piece(i, what, module, device)
        if not piece.parameters:
            raise Refused(f"{what} has no parameters")
        if of["frozen"] and any(p.requires_grad for p in piece.parameters):
            raise Refused(f"the program was told that {what} is frozen, and its module has parameters to train")
        tie(program, i, piece, ties)
    return pieces


def called(program, i):
    """A piece in words."""
    of = program.pieces[i]
    return f"stage {of['index']}" if of["kind"] == "stage" else f"part `{part_of(of)}`"


def builder(program, stages):
    """A function of a stage's number, or of a part's name."""
    parts = any(piece["kind"] != "stage" for piece in program.pieces)
    if isinstance(stages, (list, tuple, torch.nn.ModuleList)):
        if len(stages) != len(program.pieces) or parts:
            raise Refused(f"`stages` has {len(stages)} modules; the program has {len(program.pieces)} " + (
                "parts, which have names: expected a function or a dictionary" if parts else "stages"))
    elif isinstance(stages, torch.nn.Module) or not callable(stages) and not hasattr(stages, "__getitem__"):
        raise Refused(f"`stages` is {in_words(stages)}; expected a function of a stage's number, or a list of modules; "
                      "`split` makes one of a whole model")
    return stages if callable(stages) and not isinstance(stages, torch.nn.ModuleList) else stages.__getitem__


def tie(program, i, piece, ties):
    mine = [t for t, tie in enumerate(program.ties) if i == tie["owner"] or i in tie["sharers"]]
    given = list(ties.get(i, ()))
    missing = [name for name in given if name not in piece.names]
    if bool(mine) != bool(given) or missing or len(mine) > 1 and len(mine) != len(given):
        raise Refused(f"stage {i} has {len(mine)} ties in the program, and `ties` names {given} for it" + (
            f"; `{missing[0]}` is none of its parameters" if missing else ""))
    places = [piece.names.index(name) for name in given]
    piece.tied = {t: places if len(mine) == 1 else [places[k]] for k, t in enumerate(mine)}


def arguments(program, **given):
    """Refuses words that are not known, what is no function, and clipping without an update or without a norm."""
    known = {"lanes": ("edge", "pair"), "sends": ("proved", "lazy"), "reduces": ("each", "last"),
             "split": ("linears", "halves", "whole")}
    for what, words in known.items():
        for word in given[what].values() if isinstance(given[what], dict) else [given[what]]:
            if word not in words:
                told = ", ".join(f"`{one}`" for one in words[:-1])
                raise Refused(f"`{what}`: expected {told} or `{words[-1]}`, got `{word}`")
    for what in ("loss", "optimizer", "context"):
        if given[what] is not None and not callable(given[what]):
            raise Refused(f"`{what}`: expected a function, got {in_words(given[what])}")
    scale, wide = given["loss_scale"], given["grad_dtype"]
    if scale is not None and not (isinstance(scale, (int, float)) and 0 < scale < float("inf")):
        raise Refused(f"`loss_scale`: expected a positive number, got {in_words(scale)}")
    if wide is not None and not (isinstance(wide, torch.dtype) and wide.is_floating_point):
        raise Refused(f"`grad_dtype`: expected a floating-point torch.dtype, got `{wide}`")
    if given["loss"] is None and "vocabulary" in program.needs:
        raise Refused("`loss`: the head is cut by the vocabulary; expected a function of the negative log-likelihood "
                      "of each token, and of the targets")
    if given["clip"] and given["optimizer"] is None:
        raise Refused("`clip` is for the update of `optimizer`, and none is given; a loop that updates itself clips "
                      "itself")
    what = "clip" if given["clip"] else "loss_scale" if scale and given["optimizer"] is not None else None
    for rank in program.data["programs"] if what else ():
        stats = {v for v, value in enumerate(rank["values"]) if value["role"] == "stat"}
        if any(a[1:3] == ["U", "plain"] and not stats & set(a[5]) for a in rank["actions"]):
            raise Refused(f"`{what}`: `{program.name}` updates without the norm of the gradients (`clip = 0`)")


def updater(p, make, parameters, sharded):
    """The optimizer of a piece, which holds some of the parameters that it is asked for, and no others. Those that need
    whole matrices are refused on shards: of a flat buffer with all weights, or of a vocabulary."""
    what, cut = p.what, sharded or p.rows
    try:
        optimizer = make(parameters)
    except ValueError as error:
        if sharded:
            raise Refused(f"{what} is updated in shards, which `optimizer` does not take: {error}") from error
        raise
    name = next((one.__name__ for one in type(optimizer).__mro__ if one.__name__ in MATRICES), None)
    if cut and name:
        raise Refused(f"{what} is {'updated in shards' if sharded else 'a shard'}, and `{name}` needs whole matrices")
    if not hasattr(optimizer, "param_groups"):
        raise Refused(f"`optimizer` returns {in_words(optimizer)}; expected a torch.optim.Optimizer")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise Refused(f"{what}: `{type(optimizer).__name__}` runs the model again in its `step`, and an update has no "
                      "closure to give it")
    held = {id(q) for group in optimizer.param_groups for q in group["params"]}
    if not held or held - {id(q) for q in parameters}:
        raise Refused(f"`optimizer` was called with the parameters of {what}, and returns an optimizer of others")
    return optimizer


def undivided(p):
    """Why a backward must stay one, or None: halves would run a compiled node twice, and hooks of FSDP2, or the user's
    on a weight, see whole gradients."""
    if any(m._compiled_call_impl is not None or "_orig_mod" in m._modules for m in p.parts):
        return "is compiled"
    if any(hasattr(m, "set_requires_gradient_sync") for m in p.parts):
        return "is sharded by FSDP2"
    hooked = next((name for name, q in zip(p.names, p.parameters) if q._backward_hooks or getattr(
        q, "_post_accumulate_grad_hooks", None)), None)
    return None if hooked is None else f"has a hook on the weight `{hooked}`"


def asked(split, i):
    """The way to share a backward that was asked for."""
    return split.get(i, "linears") if isinstance(split, dict) else split


def splits(pieces, split, context):
    """{stage: how I and W share its backward}, of modules as they are at the first step."""
    chosen = {}
    for i, p in pieces.items():
        way, p.why = asked(split, i), undivided(p)
        if p.why is not None:
            way = "whole"
        elif way == "linears":
            p.linears = Linears(p.module)
            if context is not None or not p.linears.found:
                way = "halves"                     # autocast must see the linear itself
        chosen[i] = way
    return chosen


def on_backward(program):
    """Whether gradients may be left to a loop that clips and updates itself."""
    for rank in program.data["programs"]:
        behind = False
        for a in rank["actions"]:
            message = program.data["messages"][a[1]] if a[0] == "post" else {"role": None}
            if behind and message["role"] == "weight" or a[1:3] in (["U", "cut"], ["U", "tie_fresh"]):
                raise Refused(f"`{program.name}` moves new weights behind its updates; give `optimizer` and call "
                              "`step`")
            behind = behind or a[1:3] == ["U", "plain"]
    if any(piece["owner"]["layout"] == "shard" for piece in program.pieces):
        raise Refused(f"`{program.name}` updates in shards; give `optimizer` and call `step`")
