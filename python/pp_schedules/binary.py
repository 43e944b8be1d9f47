"""Finds the compiler and runs it: what it refuses is an exception with its diagnostics."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import os, shutil, subprocess
from .refused import Refused

HERE = os.path.dirname(os.path.abspath(__file__))


def find(pp=None):
    """The path of the compiler: `pp`, the environment's PP, the one in this package, or `pp-compile` on PATH."""
    inside = os.path.join(HERE, "bin", "pp")
    found = pp or os.environ.get("PP") or (inside if os.path.exists(inside) else shutil.which("pp-compile"))
    if not found:
        raise Refused("there is no compiler: this package was built without `bin/pp`, PP is not set, and `pp-compile` "
                      "is not on PATH")
    return found


def library():
    """The option that names the library of this package; none where the compiler finds its own."""
    folder = os.path.join(HERE, "stdlib")
    return [f"--stdlib={folder}"] if os.path.isdir(folder) else []


def run(file, name, parameters, options, pp=None):
    """Standard output of the compiler as text; raises `Refused` where it does not end with 0."""
    command = [find(pp), os.fspath(file), *([f"--schedule={name}"] if name else []), *library()]
    for key, value in parameters.items():
        value = str(value).lower() if isinstance(value, bool) else value
        command += ["-D", f"{key.replace('__', '.')}={value}"]
    try:
        done = subprocess.run([*command, *options], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise Refused(f"`{command[0]}` cannot be run: {error.strerror}") from error
    if done.returncode:
        raise Refused(done.stderr.strip() or f"`{command[0]}` ended with {done.returncode}")
    return done.stdout
