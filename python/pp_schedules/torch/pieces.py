"""A stage's module on this rank, and tensors of a piece that travel as one buffer."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import torch
from ..refused import Refused


def plain(name):
    """A name without what torch.compile and wrappers of checkpoints put into it."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


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

    def __init__(self, number, what, module, device):
        self.number, self.what, self.module, self.device = number, what, module, device
        self.bound, self.optimizer, self.shard, self.cut, self.settled = None, None, None, (0, 1), False
        self.visitor = False                       # the weights are elsewhere between steps
        self.writes = False                        # the module writes into its inputs, so it gets copies
        self.tied = {}                             # of a tie: places of the parameters that it shares
        self.rows = {}                             # places of cut parameters: (first row, rows of the whole)
        self.wide = None                           # the type of sums of gradients, where it is not the parameters'
        self.linears = None                        # those whose weights' gradients may wait for W
        self._read()

    def _read(self):
        named = list(self.module.named_parameters())
        self.paths, self.parameters = [path for path, _ in named], [p for _, p in named]
        self.names = [plain(path) for path in self.paths]
        self.places = {id(p): place for place, p in enumerate(self.parameters)}
        self.like = [torch.empty_like(p.data, device="meta") for p in self.parameters]

    def settle(self):
        """Takes the parameters as they are at the first use. Since the Pipeline was made, a trainer may have given them
        storage (`to_empty`), other objects and other types, but the same names."""
        before = self.names
        self._read()
        if self.names != before:
            raise Refused(f"{self.what} had the parameters {before} when the Pipeline was made, and has "
                          f"{self.names} at the first step")
        empty = next((name for name, p in zip(self.names, self.parameters) if p.is_meta), None)
        if empty is not None:
            raise Refused(f"{self.what}: `{empty}` is on `meta` at the first step; it needs storage and values")
        parts = dict(self.module.named_modules())
        self.parts = list(parts.values())
        self.owners = [(parts[path], last) for path, _, last in (name.rpartition(".") for name in self.paths)]
        for place, (part, _) in enumerate(self.owners):
            if hasattr(part, "pp_rows"):
                self.rows[place] = part.pp_rows
        self.changes = any(hasattr(part, "set_requires_gradient_sync") for part in parts.values())  # FSDP2's do inside
        self.home = self.bound = [p.data for p in self.parameters]
        self.settled = True

    def whole(self, place):
        """The shape of a parameter in a state: that of the whole where it is cut by rows."""
        shape = self.like[place].shape
        return torch.Size((self.rows[place][1], *shape[1:])) if place in self.rows else shape

    def own_rows(self, place, t):
        """What of a tensor in a state this piece has: its rows, if the parameter is cut and the tensor is like it."""
        if place not in self.rows or t.shape != self.whole(place):
            return t
        first = self.rows[place][0]
        return t[first:first + len(self.like[place])]

    def refresh(self):
        """Takes storage that somebody has replaced between steps. Another Parameter is refused, for an optimizer has
        the old one."""
        if self.changes:
            return
        for name, p, (part, last) in zip(self.names, self.parameters, self.owners):
            if part._parameters.get(last, p) is not p:
                raise Refused(f"{self.what}: `{name}` is another Parameter than at the first step; copy into "
                              "the old one")
        if not self.visitor:
            self.home = self.bound = [p.data for p in self.parameters]

    def reduce(self, now):
        """Whether the backward that follows sums gradients over the shards of FSDP2."""
        for part in self.module.modules():
            if hasattr(part, "set_requires_gradient_sync"):
                part.set_requires_gradient_sync(now, recurse=False)

    def take_grads(self, keeps):
        """A step begins without gradients; `keeps`: those of before are kept, and `backward` adds to them."""
        self.kept = [p.grad if keeps else None for p in self.parameters]
        for p in self.parameters:
            p.grad = None

    @property
    def sums(self):
        """The sums of gradients, on `meta`."""
        return self.like if self.wide is None else [t.to(self.wide) if t.is_floating_point() else t for t in self.like]

    def flat(self, places=None, shards=1, like=None):
        """An empty Flat for all parameters (or what is `like` them), or for those of a tie."""
        return Flat(self.some(like or self.like, places), None, shards, self.device)

    def some(self, tensors, places):
        return tensors if places is None else [tensors[place] for place in places]

    def bind(self, tensors):
        if tensors is not self.bound:
            for p, t in zip(self.parameters, tensors):
                p.data = t
            self.bound = tensors

    def make_shard(self):
        """The parameter that an optimizer gets of a piece that is updated in shards: equal cuts of the flat buffer."""
        self.shard = torch.nn.Parameter(self.own_cut(self.home).clone())

    def own_cut(self, tensors):
        """What of these tensors, one after the other, is in this rank's shard."""
        rank, count = self.cut
        return self.flat(shards=count).fill(tensors).buffer.view(count, -1)[rank]

    def empty_home(self):
        """The weights are elsewhere between steps."""
        self.home, self.visitor = [t.new_empty(0) for t in self.home], True
        self.bind(self.home)

    def trained(self):
        """Where the shard has weights that are trained."""
        flags = [torch.full(t.shape, float(p.requires_grad), device=self.device)
                 for p, t in zip(self.parameters, self.like)]
        return self.own_cut(flags) != 0
