"""Pipeline-parallel schedules that pp proved: to draw, to count, to check again, and to run on PyTorch modules."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from .refused import Refused, Unproved
from .verify import MAPS, verify

__all__ = ["MAPS", "Refused", "Unproved", "verify"]
