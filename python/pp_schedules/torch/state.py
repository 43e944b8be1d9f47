"""Weights, buffers and optimizers' states by the names of the whole model, whichever schedule wrote them."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Shards of a vocabulary are joined, so their weights have one name and all rows, on the rank of the first shard.
# Keys: NAME of a weight or a buffer; optimizer.state.NAME.KEY; optimizer.options.NAME.KEY, such as a learning rate;
# pp.steps; pp.fingerprint, that of the program that wrote it.
import torch
import torch.distributed as dist
from ..refused import Refused
from .agree import together
from .pieces import Flat, plain


def buffers(module):
    """(name, buffer) of those that belong to a state."""
    for path, part in module.named_modules():
        for name, b in part._buffers.items():
            if b is not None and name not in part._non_persistent_buffers_set:
                yield plain(f"{path}.{name}" if path else name), b


def gathered(pipe, i, shard):
    """The tensors of a piece from the shards of its owners; a collective of them."""
    p, (_, count) = pipe.pieces[i], pipe.pieces[i].cut
    flat = Flat(p.like, torch.empty(count * shard.numel(), dtype=shard.dtype, device=shard.device))
    if pipe.closed:
        raise Refused("this pipeline is closed: what is in shards cannot be gathered")
    group = pipe.lanes.groups[("group", *sorted(pipe.program.pieces[i]["owner"]["ranks"]))]
    dist.all_gather(list(flat.buffer.view(count, -1).unbind()), shard.detach().contiguous(), group=group)
    return flat


def joined(pipe, i, place, t):
    """What a shard of the vocabulary has, with the rows of the others: on the rank of the first shard; else None. A
    collective of the shards' ranks."""
    if place not in pipe.pieces[i].rows:
        return t
    if pipe.closed:
        raise Refused("this pipeline is closed: shards of a vocabulary cannot be joined")
    lead, group, whole = pipe.lead[i], pipe.lanes.groups[pipe.lanes.all], None
    root = pipe.program.pieces[lead]["homes"]["ranks"][0]
    if i == lead:
        whole = t.new_empty(pipe.pieces[i].whole(place))
    for j in [j for j, of in enumerate(pipe.lead) if of == lead] if i == lead else [i]:
        if j == lead:
            first, rows = pipe.pieces[i].rows[place][0], t.detach()
        elif i == lead:
            at = pipe.lanes.ranks[pipe.program.pieces[j]["homes"]["ranks"][0]]
            told = torch.empty(2, dtype=torch.int64, device=pipe.device)
            dist.recv(told, at, group=group)
            first, count = told.tolist()
            rows = t.new_empty(count, *t.shape[1:])
            dist.recv(rows, at, group=group)
        else:
            told = torch.tensor([pipe.pieces[i].rows[place][0], len(t)], device=pipe.device)
            dist.send(told, pipe.lanes.ranks[root], group=group)
            dist.send(t.detach().contiguous(), pipe.lanes.ranks[root], group=group)
            return None
        whole[first:first + len(rows)] = rows
    return whole


def trained(pipe, i):
    """(name, place, what its optimizer holds) of the parameters of a piece that this rank updates."""
    p = pipe.pieces[i]
    if p.optimizer is None:
        return
    held = {id(q) for group in p.optimizer.param_groups for q in group["params"]}
    for place, q in enumerate(p.parameters):
        if i in pipe.sharded and q.requires_grad or id(q) in held:
            yield pipe.key(i, place), place, p.shard if i in pipe.sharded else q


def written(pipe, i):
    """The weights of a piece by name, and its optimizer's state, if this rank saves them."""
    p, layout, state = pipe.pieces[i], pipe.program.pieces[i]["homes"]["layout"], {}
    sharded = i in pipe.sharded
    tensors = gathered(pipe, i, p.shard) if sharded and layout == "shard" else p.home
    if i in pipe.saved and (sharded and layout == "shard" or not p.visitor):
        state.update((pipe.key(i, place), joined(pipe, i, place, t)) for place, t in enumerate(tensors))
        state.update((pipe.names(i, name), b) for name, b in buffers(p.module))
    saves = i in pipe.saved if sharded else pipe.program.pieces[i]["owner"]["ranks"][0] == pipe.rank
    whole = {key: gathered(pipe, i, t) for key, t in sorted(p.optimizer.state[p.shard].items()) if
             isinstance(t, torch.Tensor) and t.shape == p.shard.shape} if sharded and p.optimizer else {}
    for name, place, q in trained(pipe, i) if saves else ():
        for key, t in p.optimizer.state[q].items():
            t = joined(pipe, i, place, t) if isinstance(t, torch.Tensor) and t.shape == q.shape else t
            state[f"optimizer.state.{name}.{key}"] = whole[key][place] if key in whole else t
        if place in p.rows and i != pipe.lead[i]:  # the first shard tells what all have
            state = {key: t for key, t in state.items() if not key.startswith(f"optimizer.state.{name}.")}
            continue
        options = next(group for group in p.optimizer.param_groups if any(q is one for one in group["params"]))
        state.update((f"optimizer.options.{name}.{key}", t.item() if isinstance(t, torch.Tensor) else t)
                     for key, t in options.items() if key != "params")
    return {key: t for key, t in state.items() if t is not None}


def save(pipe):
    """The state of this rank; see `Pipeline.state_dict`."""
    state = {"pp.steps": pipe.steps, "pp.fingerprint": pipe.program.fingerprint} if pipe.rank == 0 else {}
    for i in pipe.pieces:
        state.update(written(pipe, i))
    return state


def put(own, t):
    """Copies a tensor into another one, which may be distributed."""
    if hasattr(own, "device_mesh") and not hasattr(t, "device_mesh"):
        t = torch.distributed.tensor.distribute_tensor(t.to(own.device), own.device_mesh, own.placements)
    with torch.no_grad():
        own.copy_(t)


def check(pipe, state):
    """Refuses a state that lacks a weight, or has another shape for it."""
    for i, p in pipe.pieces.items():
        for place in range(len(p.names)):
            name, shape = pipe.key(i, place), p.whole(place)
            if name not in state:
                raise Refused(f"the state has no `{name}`")
            if shape != state[name].shape:
                raise Refused(f"`{name}`: expected the shape {tuple(shape)}, got {tuple(state[name].shape)}")


def load(pipe, state):
    """Takes what this rank has out of a state of the whole model."""
    check(pipe, state)
    held, options = {}, {}                         # {name: {key: what an optimizer holds, or was told}}
    for key, t in state.items():
        for prefix, into in (("optimizer.state.", held), ("optimizer.options.", options)):
            if key.startswith(prefix):
                name, _, last = key.removeprefix(prefix).rpartition(".")
                into.setdefault(name, {})[last] = t
    pipe.steps = state.get("pp.steps", pipe.steps)
    for i, p in pipe.pieces.items():
        given = [p.own_rows(place, state[pipe.key(i, place)]) for place in range(len(p.names))]
        if p.shard is not None:
            p.shard.data.copy_(p.own_cut(given))
        for own, t in () if p.visitor else zip(p.home, given):
            put(own, t)
        for name, b in buffers(p.module):
            if pipe.names(i, name) in state:
                put(b, state[pipe.names(i, name)])
        if any(name in options for name, _, _ in trained(pipe, i)):
            load_optimizer(pipe, i, held, options)


def load_optimizer(pipe, i, given, options):
    p = pipe.pieces[i]
    mine = [(name, place, q, given.get(name, {})) for name, place, q in trained(pipe, i)]
    if i in pipe.sharded:
        (rank, count), held = p.cut, {}
        for key, t in mine[0][3].items():
            held[key] = t.clone() if isinstance(t, torch.Tensor) else t
            if isinstance(t, torch.Tensor) and t.shape == p.like[mine[0][1]].shape:
                flat = Flat(p.like, torch.zeros(count * p.shard.numel(), dtype=t.dtype, device=p.shard.device))
                for _, place, _, others in mine:
                    flat[place].copy_(others[key])
                held[key] = flat.buffer.view(count, -1)[rank].clone()
        p.optimizer.state[p.shard] = held
    for _, place, q, held in () if i in pipe.sharded else mine:
        new = {}
        for key, t in held.items():
            t = p.own_rows(place, t) if isinstance(t, torch.Tensor) else t
            new[key] = t.clone() if isinstance(t, torch.Tensor) else t
            if isinstance(t, torch.Tensor) and t.shape == q.shape:
                new[key] = torch.empty_like(q, dtype=t.dtype, requires_grad=False)
                put(new[key], t)
        p.optimizer.state[q] = new
    for group in p.optimizer.param_groups:
        names = [name for name, _, q, _ in mine if any(q is one for one in group["params"])]
        told = [(name, options[name]) for name in names if name in options]
        for name, one in told:
            if one != told[0][1]:
                raise Refused(f"`{told[0][0]}` and `{name}` have different options in the state, and are in one group "
                              "of the optimizer")
        group.update(told[0][1] if told else {})


def save_folder(pipe, folder):
    import torch.distributed.checkpoint as checkpoint
    checkpoint.save(save(pipe), checkpoint_id=folder)


def load_folder(pipe, folder):
    """Reads what this rank needs of a folder that any schedule, on any number of ranks, wrote."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    there = checkpoint.FileSystemReader(folder).read_metadata().state_dict_metadata
    own = {pipe.key(i, place): q for i, p in pipe.pieces.items() for place, q in enumerate(p.parameters)}
    own |= {pipe.names(i, name): b for i, p in pipe.pieces.items() for name, b in buffers(p.module)}
    updated = {name for i in pipe.pieces for name, _, _ in trained(pipe, i)}
    together(pipe.group, lambda: missing(own, there))
    state = {}
    for key, meta in there.items():
        name = key
        if key.startswith("optimizer."):
            name = key.split(".", 2)[2].rpartition(".")[0]
            if name not in updated:
                continue
        elif key not in own and not key.startswith("pp."):
            continue
        state[key] = None
        if isinstance(meta, TensorStorageMetadata):
            q = own[name]
            like = hasattr(q, "device_mesh") and q.shape == meta.size
            state[key] = torch.empty_like(q, dtype=meta.properties.dtype, requires_grad=False) if like else \
                torch.empty(meta.size, dtype=meta.properties.dtype, device=pipe.device)
    checkpoint.load(state, checkpoint_id=folder)
    load(pipe, state)


def missing(own, there):
    for name in own:
        if name not in there:
            raise Refused(f"the state has no `{name}`")
