"""Pipeline-parallel schedules that pp proved: to draw, to count, to check again, and to run on PyTorch modules."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from .program import Program  # the package's own names
from .refused import Refused, Unproved  # the package's own names
from .schedule import Schedule  # the package's own names
from .verify import MAPS, verify  # the package's own names

__all__ = ["MAPS", "Program", "Refused", "Schedule", "Unproved", "verify"]
