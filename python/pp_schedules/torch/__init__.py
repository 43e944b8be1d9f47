"""Runs a proved program on the user's own PyTorch modules: pp says what, where, when, and PyTorch does it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from ..refused import Refused  # the package's own names
from .cut import split  # the package's own names
from .pipeline import Pipeline  # the package's own names
from .shared import Program, add_loss  # the package's own names
from .trial import check  # the package's own names
from .vocabulary import shard  # the package's own names

__all__ = ["Pipeline", "Program", "Refused", "add_loss", "check", "shard", "split"]
