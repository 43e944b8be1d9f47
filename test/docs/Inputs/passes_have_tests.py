"""Checks that every pass of passes/Passes.td has a source, a place in the pipeline, a test, and a test of its level."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: passes_have_tests.py ROOT
import glob, os, re, sys
from source_files import lines, report


def main():
    root = sys.argv[1]
    pipeline = "\n".join(lines(root, "passes/Pipeline.cpp"))
    problems = []
    levels = "\n".join(lines(root, "test/passes/levels-invalid.mlir"))
    passes = re.findall(r'^def (\w+) : Pp(\w*)Pass<"([a-z-]+)"', "\n".join(lines(root, "passes/Passes.td")), re.M)
    for name, kind, argument in passes:
        expected = re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
        if argument != expected:
            problems.append(f"passes/Passes.td: {name} is called `{argument}`; its name says `{expected}`")
        if not glob.glob(os.path.join(root, "passes", "*", name + ".cpp")):
            problems.append(f"passes/*/{name}.cpp does not exist")
        if f"create{name}(" not in pipeline:
            problems.append(f"passes/Pipeline.cpp does not run {name}")
        if not any(glob.glob(os.path.join(root, "test", "passes", f"{expected}{end}")) for end in (".*", "-*")):
            problems.append(f"test/passes/{expected}.mlir does not exist: the pass has no test")
        if not kind and f"-DPASS={expected} " not in levels:
            problems.append(f"test/passes/levels-invalid.mlir does not give {expected} a program of another level")
    if not passes:
        problems.append("passes/Passes.td: no passes found")
    return report(problems)


if __name__ == "__main__":
    sys.exit(main())
