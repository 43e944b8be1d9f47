"""What the driver says once before the first step, for it may be a mistake: whole backwards, ties, BatchNorm."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import hashlib
import sys
import torch
import torch.distributed as dist
from .agree import called


def say(text):
    print(f"pp: {text}", file=sys.stderr, flush=True)


def whole(p, split):
    """The notice that a stage does not get the split that was asked for."""
    return (f"{p.what} {p.why}, so its backward is `whole` and not `{split}`: I makes all gradients, and W has nothing "
            "to do")


def norms(pipe, i):
    """The notice about running statistics. (A module that is not told of microbatches has those of each.)"""
    p = pipe.pieces[i]
    name = next((name for name, part in p.module.named_modules() if isinstance(
        part, torch.nn.modules.batchnorm._BatchNorm) and part.track_running_stats), None)
    return [] if name is None else [
        f"{p.what}: `{name}` is a BatchNorm: it normalizes each microbatch by itself, and its running statistics see "
        "microbatches in the order of the schedule"]


def sample(t):
    """A hash of at most 4096 numbers of a weight; None where all are equal, as gains and biases begin."""
    t = (t.to_local() if hasattr(t, "to_local") else t).detach().reshape(-1)
    t = t[::max(1, t.numel() // 4096)]
    if t.numel() < 2 or bool((t == t[0]).all()):
        return None
    return hashlib.sha256(t.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def weights(pipe):
    """[(piece, name in the module, name in state dicts, storage, shape, hash)] of the weights that this rank saves. A
    sharer leaves out what the program ties."""
    found = []
    for i, p in pipe.pieces.items():
        sharers = {place for t, tie in enumerate(pipe.program.ties) if i in tie["sharers"] for place in p.tied[t]}
        for place, t in enumerate(p.home) if i in pipe.saved and not p.visitor else ():
            if place in sharers or place in p.rows or not t.numel():
                continue
            storage = None if hasattr(t, "to_local") else (pipe.rank, t.device.type, t.data_ptr())
            found.append((i, p.names[place], pipe.key(i, place), storage, (str(t.dtype), *t.shape), sample(t)))
    return found


def ties(program, found):
    """Notices of two stages that seem to share a weight of which the program was not told."""
    told, first = [], {}
    for i, name, key, storage, shape, held in found:
        last, said = name.rpartition(".")[2], False
        for sign, what in ((storage, "are one tensor"), (key and ("key", key), f"are both `{key}` in state dicts"),
                           (held and (last, shape, held), "have one content")):
            j, other = first.setdefault(sign, (i, name)) if sign else (i, name)
            if j != i and not said:
                said = True
                told.append((j, i, f"{called(program, j)}, `{other}`, and {called(program, i)}, `{name}`, {what}, and "
                             "the program does not tie them"))
    pairs = sorted({(j, i) for j, i, _ in told})
    for pair in pairs:                             # two stages that are copies have many such weights
        texts = [text for j, i, text in told if (j, i) == pair]
        more = f" ({len(texts) - 1} more such weights)" if len(texts) > 1 else ""
        yield f"{texts[0]}{more}: if it is one weight, tell the program, and name it in `ties`; else they train apart"


def tell(pipe, asked):
    """A collective of the pipeline: its first rank says each notice once. `asked`: {piece: the split asked for}."""
    mine = {"told": [], "weights": weights(pipe)}
    for i, p in pipe.pieces.items():
        if i in pipe.halved and pipe.splits[i] == "whole" != asked[i]:
            mine["told"].append((i, whole(p, asked[i])))
        mine["told"] += [(i, text) for text in norms(pipe, i)]
    everyone = [None] * pipe.program.ranks
    dist.all_gather_object(everyone, mine, group=pipe.group)
    first = pipe.replicas is None or dist.get_rank(pipe.replicas) == 0
    if pipe.rank == 0 and first:
        told = sorted({pair for one in everyone for pair in one["told"]})
        shared = ties(pipe.program, [weight for one in everyone for weight in one["weights"]])
        for text in (*(text for _, text in told), *shared):
            pipe.tell(text, text)
