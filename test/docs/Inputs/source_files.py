"""Which files of a source tree the documentation tests read: what is tracked, without build folders."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import os


def files(root):
    """Paths relative to the root; folders that start with a dot or `build` and Python's caches are no sources."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "build")) and f != "__pycache__")
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root)


def lines(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read().splitlines()


def report(problems):
    """Prints the problems; the exit status of the test."""
    for problem in problems:
        print(problem)
    return 1 if problems else 0
