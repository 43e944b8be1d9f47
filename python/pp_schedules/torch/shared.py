"""What ranks share before a step, the program that one of them compiles; and losses of stages before the last."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from __future__ import annotations
import os
from types import SimpleNamespace
from typing import Any
import torch
import torch.distributed as dist
from .. import program as core
from ..refused import Refused


class Program(core.Program):
    """A `pp_schedules.Program` that rank 0 of the world compiles; others need neither the compiler nor the file.

    `Program("mine.pipe", ranks=4, microbatches=8)`: parameters and options are those of `pp_schedules.Program`. It is a
    collective of the world where there is a process group. Raises `Refused`, with the compiler's diagnostics, on every
    rank.
    """

    def __init__(self, file: str | os.PathLike, name: str | None = None, **parameters: Any):
        if not dist.is_initialized():
            super().__init__(file, name, **parameters)
            return
        said = [None]
        if dist.get_rank() == 0:
            try:
                super().__init__(file, name, **parameters)
                said = [self.data]
            except Refused as refused:
                said = [str(refused)]
        dist.broadcast_object_list(said, 0)
        if isinstance(said[0], str):
            raise Refused(said[0])
        self._take(said[0])


current = SimpleNamespace(weight=1.0)              # of the microbatch whose unit runs; the driver sets it


class Added(torch.autograd.Function):
    """Passes a tensor on, and gives a loss beside it the weight of its microbatch as its gradient."""

    @staticmethod
    def forward(ctx, x, loss):
        ctx.weight, ctx.loss = current.weight, loss
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        return dx, torch.full_like(ctx.loss, ctx.weight)


def add_loss(x: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    """Returns x, and adds `loss` (a scalar, such as that of a router) to the loss of the step, with its microbatch's
    weight. x must go on into what the stage returns. It counts in gradients; the number that `step` returns is that of
    the last stage."""
    return Added.apply(x, loss)
