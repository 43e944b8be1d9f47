"""Ends of a model that are cut by the vocabulary: shards of an embedding and of a head, and the loss of all shards."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import torch
from torch import nn
from torch.nn import functional
from ..refused import Refused


class Rows(nn.Module):
    """Some rows of an embedding: zeros for tokens that are not among them, so the shards' outputs add up."""

    def __init__(self, whole, first, last):
        super().__init__()
        self.first, self.pp_rows = first, (first, len(whole.weight))
        self.weight = nn.Parameter(whole.weight.detach()[first:last].clone(), whole.weight.requires_grad)

    def forward(self, tokens):
        place, mine = within(tokens, self.first, len(self.weight))
        return functional.embedding(place, self.weight).masked_fill(~mine[..., None], 0)


def shard(module: nn.Module, number: int, shards: int) -> nn.Module:
    """Shard `number` of `shards` of an nn.Embedding, or of an nn.Linear that makes logits: for the pieces `embed 0`,
    `head 0`, .. of a program whose ends are cut by the vocabulary. Shards may have unlike numbers of rows. The weights
    are copied. What it returns has `pp_rows`, (its first row, rows of the whole), by which checkpoints get whole
    weights; a module of your own may have it, too: then all parameters of its own are cut like that."""
    rows = len(module.weight) if isinstance(module, (nn.Embedding, nn.Linear)) else 0
    first, last = (rows * i // shards for i in (number, number + 1))
    if not (0 <= number < shards and first < last):
        raise Refused(f"shard {number} of {shards}: expected an nn.Embedding or an nn.Linear with at least {shards} "
                      f"rows, got `{module}`")
    if isinstance(module, nn.Embedding):
        if module.padding_idx is not None or module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise Refused(f"`{module}` has options beside its size; give modules of your own for its shards")
        return Rows(module, first, last)
    part = nn.Linear(module.in_features, last - first, module.bias is not None, device="meta")
    part.pp_rows = first, rows
    for name, tensor in module.named_parameters():
        setattr(part, name, nn.Parameter(tensor.detach()[first:last].clone(), tensor.requires_grad))
    return part


def within(tokens, first, count):
    """Places of tokens among `count` that begin with `first`, and which of them are there."""
    place = tokens - first
    return place.clamp(0, count - 1), (place >= 0) & (place < count)


def said(y, targets, first):
    """What the shard of a head makes: its logits, and of each token the largest of them, the sum of their exponentials
    over that, and the target's logit, 0 if another shard has it. Half precision is summed in f32."""
    logits, rows = y[0].detach(), y[0].shape[:-1]
    if len(y) > 1 or targets[0].numel() != rows.numel():
        raise Refused(f"the shard of the head returns {[list(t.shape) for t in y]}; expected a tensor of logits for "
                      f"the targets, {list(targets[0].shape)}")
    place, mine = within(targets[0].reshape(rows), first, logits.shape[-1])
    wide = logits if logits.dtype == torch.double else logits.float()
    top = wide.amax(-1)
    return logits, torch.stack([top, (wide - top[..., None]).exp().sum(-1),
                                wide.gather(-1, place[..., None])[..., 0].masked_fill(~mine, 0)])


def logsumexp_of(stats):
    tops, sums, _ = torch.stack(stats).unbind(1)
    top = tops.amax(0)
    return top + (sums * (tops - top).exp()).sum(0).log()


def nll_of(stats):
    """The negative log-likelihood of each target by the statistics of all shards; of a target that no shard has it is
    the logarithm of the sum of all exponentials, which the loss leaves out."""
    return logsumexp_of(stats) - torch.stack(stats)[:, 2].sum(0)


def dlogits_of(logits, stats, dnll, targets, first):
    """The gradient of a shard's logits."""
    place, mine = within(targets[0].reshape(dnll.shape), first, logits.shape[-1])
    dlogits = (logits.to(dnll.dtype) - logsumexp_of(stats)[..., None]).exp() * dnll[..., None]
    return dlogits.scatter_add(-1, place[..., None], -(dnll * mine)[..., None]).to(logits.dtype)
