"""Checks that every pass of passes/Passes.td is a source file, is in the pipeline, and has a lit test of its name."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: passes_have_tests.py ROOT
import glob, os, re, sys
from source_files import lines, report


def main():
    root = sys.argv[1]
    pipeline = "\n".join(lines(root, "passes/Pipeline.cpp"))
    problems = []
    passes = re.findall(r'^def (\w+) : PpPass<"([a-z-]+)">', "\n".join(lines(root, "passes/Passes.td")), re.M)
    for name, argument in passes:
        expected = re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
        if argument != expected:
            problems.append(f"passes/Passes.td: {name} is called `{argument}`; its name says `{expected}`")
        if not glob.glob(os.path.join(root, "passes", "*", name + ".cpp")):
            problems.append(f"passes/*/{name}.cpp does not exist")
        if f"create{name}(" not in pipeline:
            problems.append(f"passes/Pipeline.cpp does not run {name}")
        if not any(glob.glob(os.path.join(root, "test", "passes", f"{expected}{end}")) for end in (".*", "-*")):
            problems.append(f"test/passes/{expected}.mlir does not exist: the pass has no test")
    if not passes:
        problems.append("passes/Passes.td: no passes found")
    return report(problems)


if __name__ == "__main__":
    sys.exit(main())
