"""A stage's module on this rank, and tensors of a piece that travel as one buffer."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import torch


class Flat(list):
    """Tensors of one piece (weights or gradients) one after the other in one buffer; what travels is the buffer."""

    def __init__(self, like, buffer=None, shards=1, device="cpu"):
        super().__init__()
        size = sum(t.numel() for t in like)
        if buffer is None:
            buffer = torch.zeros(-(-size // shards) * shards, dtype=like[0].dtype, device=device)
        self.buffer, at = buffer, 0
        for t in like:
            self.append(buffer[at:at + t.numel()].view(t.shape))
            at += t.numel()

    def fill(self, tensors):
        """Copies tensors in; None is zero."""
        for own, t in zip(self, tensors):
            own.zero_() if t is None else own.copy_(t)
        return self


class Piece:
    """The module of a piece. `bind` makes its parameters use the tensors of a slot. On the rank that is the weights'
    home these are the parameters' own tensors. On other ranks the piece holds no weights between steps."""

    def __init__(self, number, module, device):
        self.number, self.module, self.device = number, module, device
        named = list(module.named_parameters())
        self.names, self.parameters = [name for name, _ in named], [p for _, p in named]
        self.places = {id(p): place for place, p in enumerate(self.parameters)}
        self.home = [p.data for p in self.parameters]
        self.like = [torch.empty_like(t, device="meta") for t in self.home]
        self.bound, self.optimizer, self.shard, self.cut = self.home, None, None, (0, 1)
        self.tied = {}                             # of a tie: places of the parameters that it shares

    def flat(self, places=None, shards=1):
        """An empty Flat for all parameters, or for those of a tie."""
        return Flat(self.some(self.like, places), None, shards, self.device)

    def some(self, tensors, places):
        return tensors if places is None else [tensors[place] for place in places]

    def bind(self, tensors):
        if tensors is not self.bound:
            for p, t in zip(self.parameters, tensors):
                p.data = t
            self.bound = tensors

    def make_shard(self):
        """The parameter that an optimizer gets of a piece that is updated in shards: equal cuts of the flat buffer."""
        rank, count = self.cut
        whole = self.flat(shards=count).fill(self.home).buffer
        self.shard = torch.nn.Parameter(whole.view(count, -1)[rank].clone())

    def empty_home(self):
        """The weights are elsewhere between steps."""
        self.home = [t.new_empty(0) for t in self.home]
        self.bind(self.home)

    def trained(self):
        """Where the shard has weights that are trained."""
        rank, count = self.cut
        flags = [torch.full(t.shape, float(p.requires_grad), device=self.device)
                 for p, t in zip(self.parameters, self.like)]
        return self.flat(shards=count).fill(flags).buffer.view(count, -1)[rank] != 0
