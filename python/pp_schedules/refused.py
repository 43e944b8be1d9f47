"""What this package refuses, as one exception whose text says why and where."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception


class Refused(Exception):
    """pp, the checker or the driver will not run this. The text is pp's diagnostics, or a sentence with the place."""


class Unproved(Refused):
    """A program does not hold what it claims.

    `claim` is the name of what is broken: form, channels, progress, values, gradients, units, lives,
    counts or time.
    """

    def __init__(self, claim, text):
        super().__init__(f"{claim}: {text}")
        self.claim = claim
