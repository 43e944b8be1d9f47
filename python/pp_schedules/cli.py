"""The commands `pp` and `pp-schedules`: the compiler in this package, which takes the place of Python."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import os, sys
from . import binary
from .refused import Refused


def main():
    """Runs the compiler with the arguments of this process. `verify FILE.json` checks a program, `advise` reads a job
    of Megatron-LM or torchtitan."""
    if sys.argv[1:2] == ["verify"]:
        return check(sys.argv[2:])
    if sys.argv[1:2] == ["advise"]:
        from .advise import main as advise
        return advise(sys.argv[2:])
    try:
        found = binary.find()
    except Refused as refused:
        print(f"pp-schedules: {refused}", file=sys.stderr)
        return 1
    given = any(argument.startswith("--stdlib") for argument in sys.argv)
    more = binary.library() if len(sys.argv) > 2 and not given else []
    os.execv(found, [found, *sys.argv[1:], *more])


def check(paths):
    """Checks programs of the format pp.program/1 and prints what was counted."""
    from .program import Program
    if not paths:
        print("usage: pp-schedules verify FILE.json..", file=sys.stderr)
        return 2
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
