"""Stashes as things that can be counted and moved: every tensor that autograd saves lies in a box of the driver's."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import torch
from torch.autograd.graph import saved_tensors_hooks


class Box:
    """A place for one saved tensor."""
    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor


class Boxes(list):
    """The boxes of one stash. Weights are the stage's, whatever the unit, and are not put into boxes."""

    def __init__(self, parameters=()):
        super().__init__()
        self.weights = {p.untyped_storage().data_ptr() for p in parameters if not hasattr(p, "to_local")}
        self.same, self.metas = {}, []

    def hooks(self):
        """The context manager under which a forward fills the boxes."""
        def pack(tensor):
            if not tensor.numel() or hasattr(tensor, "to_local") or tensor.untyped_storage().data_ptr() in self.weights:
                return tensor
            key = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
            if key not in self.same:
                self.same[key] = Box(tensor.detach())
                self.append(self.same[key])
            return self.same[key]
        return saved_tensors_hooks(pack, lambda box: box.tensor if isinstance(box, Box) else box)

    def held(self):
        """Bytes of the storages that the boxes keep alive."""
        storages = [box.tensor.untyped_storage() for box in self]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def sent(self):
        """Bytes that `take` gives."""
        return sum(box.tensor.numel() * box.tensor.element_size() for box in self)

    def to(self, device):
        """Moves to host memory or back; between one memory and itself it copies, so that tests move something."""
        self.same = {}
        for box in self:
            same = box.tensor.device == device
            box.tensor = box.tensor.clone() if same else box.tensor.to(device, non_blocking=True)

    def take(self):
        """All tensors as one of bytes, for another rank. The boxes are empty until `give`."""
        self.same, self.metas = {}, [(box.tensor.dtype, box.tensor.shape) for box in self]
        flat = torch.cat([box.tensor.contiguous().reshape(-1).view(torch.uint8) for box in self])
        for box in self:
            box.tensor = None
        return flat

    def give(self, flat):
        """Fills the boxes again from what `take` gave."""
        at = 0
        for box, (dtype, shape) in zip(self, self.metas):
            size = shape.numel() * dtype.itemsize
            box.tensor = flat[at:at + size].clone().view(dtype).view(shape)
            at += size
