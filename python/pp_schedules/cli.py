"""The commands `pp` and `pp-schedules`: two verbs in Python, and the compiler, which takes the place of Python."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from __future__ import annotations

import os, sys
from typing import Sequence
from . import binary
from .refused import Refused


def main() -> int:
    """Does what the arguments of this process say; returns the exit code.

    `verify FILE.json` checks a program and `advise` reads a job of Megatron-LM or torchtitan, in Python. All else is
    the compiler's, and does not return: its process replaces this one.
    """
    if sys.argv[1:2] == ["verify"]:
        return check(sys.argv[2:])
    if sys.argv[1:2] == ["advise"]:
        from .advise import main as advise
        return advise(sys.argv[2:])
    try:
        found = binary.find()
        os.execv(found, [found, *sys.argv[1:]])
    except Refused as refused:
        print(f"pp: error: {refused}", file=sys.stderr)
    except OSError as error:
        print(f"pp: error: `{found}` cannot be run: {error.strerror}", file=sys.stderr)
    return 1


def check(paths: Sequence[str]) -> int:
    """Checks programs of the format pp.program/1, prints what was counted, and returns the exit code."""
    from .program import Program
    if not paths or paths[0] in ("-h", "--help"):
        print("usage: pp verify FILE.json..", file=sys.stdout if paths else sys.stderr)
        return 0 if paths else 2
    for path in paths:
        try:
            facts = Program.load(path).verify()
        except (OSError, Refused) as refused:
            print(f"{path}: error: {refused}", file=sys.stderr)
            return 1
        counted = f"{facts['units']} units and {facts['messages']} messages"
        print(f"{path}: good: {counted}, with lanes by {', '.join(facts['maps'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
