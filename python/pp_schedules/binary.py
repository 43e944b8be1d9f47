"""Finds the compiler and runs it: what it refuses is an exception with its diagnostics."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from __future__ import annotations

import os, shutil, subprocess
from typing import Mapping, Optional, Sequence, Union
from .refused import Refused

INSIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "pp")
Parameter = Union[bool, int, float, str]


def find(pp: Optional[str] = None) -> str:
    """The path of the compiler: `pp`, the environment's PP, the one in this package, or `pp-compile` on PATH.

    Raises `Refused` where there is none.
    """
    found = pp or os.environ.get("PP") or (INSIDE if os.path.exists(INSIDE) else shutil.which("pp-compile"))
    if not found:
        raise Refused("there is no compiler: this package was built without `bin/pp`, PP is not set, and `pp-compile` "
                      "is not on PATH")
    return shutil.which(found) or found            # a name is looked up on PATH


def source(file: Union[str, os.PathLike[str]], found: str) -> str:
    """The path of a file: `std/zb_v.pipe` is the one of the library beside the compiler `found`, if there is no other.

    Raises `Refused` if the library has none of this name.
    """
    path = os.fspath(file)
    if not path.startswith("std/") or os.path.exists(path):
        return path
    inside = os.path.join(os.path.dirname(os.path.realpath(found)), "..", "share", "pp", "stdlib", path[len("std/"):])
    if not os.path.exists(inside):
        raise Refused(f"the library has no `{path}`")
    return inside


def run(file: Union[str, os.PathLike[str]], name: Optional[str], parameters: Mapping[str, Parameter],
        options: Sequence[str], pp: Optional[str] = None) -> str:
    """Runs the compiler on a file and returns its standard output.

    `name` is a schedule of the file, or None. `parameters` are values of -D: `model__layers` stands for
    `model.layers`. Raises `Refused`, with what the compiler says, where it does not end with 0 or cannot be run.
    """
    found = find(pp)
    command = [found, source(file, found), *([f"--schedule={name}"] if name else [])]
    for key, value in parameters.items():
        text = str(value).lower() if isinstance(value, bool) else value
        command += ["-D", f"{key.replace('__', '.')}={text}"]
    try:
        done = subprocess.run([*command, *options], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise Refused(f"`{command[0]}` cannot be run: {error.strerror}") from error
    if done.returncode:
        raise Refused(done.stderr.strip() or f"`{command[0]}` ended with {done.returncode}")
    return done.stdout
