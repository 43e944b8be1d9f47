"""Compares the copies of each weight on several ranks: replicated stages, data-parallel copies, weights of ties."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import hashlib
import torch
import torch.distributed as dist


def digest(t):
    """A hash of all bytes of a tensor."""
    t = (t.to_local() if hasattr(t, "to_local") else t).detach().reshape(-1).contiguous()
    return hashlib.sha256(t.view(torch.uint8).cpu().numpy()).hexdigest()


def held(pipe):
    """{what: (name, hash)} of the weights that this rank has between steps. What ties share is one thing, whatever the
    stage; shards are things of their own."""
    found = {}
    for i, p in pipe.pieces.items():
        what = {place: (t, k) for t, places in p.tied.items() for k, place in enumerate(places)}
        for place, t in enumerate(() if p.visitor else p.home):
            tie, name = what.get(place), f"{p.what}, `{p.names[place]}`"
            found.setdefault(("tie", *tie) if tie else ("piece", i, place), []).append((name, digest(t)))
        if p.shard is not None:
            found["shard", i, p.cut[0]] = [(f"{p.what}, shard {p.cut[0]}", digest(p.shard))]
    return found


def compare(group, found):
    """A sentence about the first thing that differs among the ranks of a group, or None; the same on all of them."""
    everyone, seen = [None] * dist.get_world_size(group), {}
    dist.all_gather_object(everyone, found, group=group)
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    for rank, one in zip(ranks, everyone):
        for what, copies in one.items():
            for name, mine in copies:
                first, other, hashed = seen.setdefault(what, (rank, name, mine))
                if hashed != mine:
                    other = "" if other == name else f" ({other})"
                    return f"{name}: the copy on rank {rank} is not that on rank {first}{other}"
    return None


def check(pipe):
    """Raises on every rank of all pipelines that have a copy in common."""
    mine, texts = held(pipe), [None] * pipe.program.ranks
    text = compare(pipe.replicas, mine) if pipe.replicas is not None else None
    dist.all_gather_object(texts, text, group=pipe.group)
    text = next((one for one in texts if one), None) or compare(pipe.group, mine)
    if text:
        raise RuntimeError(f"behind step {pipe.steps}, {text}; `check_copies` compares them")
