"""Checks that no expectation in a lit file is dead: FileCheck reads every prefix, every error is verified."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: checks_are_run.py ROOT
import re, sys
from source_files import files, lines, report

DIRECTIVE = re.compile(r"^\s*(?://|#)\s*([A-Z][A-Z0-9_-]*?)"
                       r"(?:-(?:NEXT|SAME|NOT|DAG|LABEL|EMPTY|COUNT-\d+))?(?:\{LITERAL\})?:")
NOT_OURS = {"RUN", "XFAIL", "REQUIRES", "UNSUPPORTED", "END", "DEFINE", "REDEFINE", "COM", "NOTE"}
EXPECTED = re.compile(r"expected-(error|warning|remark|note)(-re)?\s*[@{+]")


def commands(text):
    """The RUN lines, those that end with a backslash joined with the next."""
    joined, going_on = [], False
    for line in text:
        match = re.match(r"\s*(?://|#)\s*RUN:\s*(.*)", line)
        if not match:
            continue
        if going_on:
            joined[-1] = joined[-1][:-1] + match[1]
        else:
            joined.append(match[1])
        going_on = joined[-1].endswith("\\")
    return joined


def checked_prefixes(runs):
    """The prefixes that these commands read from this file (not from another one)."""
    prefixes = set()
    for call in re.findall(r"\bFileCheck\b[^|]*", " | ".join(runs)):
        named = re.findall(r"-check-prefix(?:es)?[= ]([\w,-]+)", call)
        prefixes |= {prefix for names in named for prefix in names.split(",")} or {"CHECK"}
    return prefixes


def problems_of(path, text):
    runs = commands(text)
    if not runs:
        yield f"{path}:1: expected a RUN line"
        return
    prefixes = checked_prefixes(runs)
    verified = any("verify-diagnostics" in run for run in runs)
    used, expects = set(), False
    for number, line in enumerate(text, 1):
        match = DIRECTIVE.match(line)
        if match and match[1] not in NOT_OURS:
            used.add(match[1])
            if match[1] not in prefixes:
                yield f"{path}:{number}: no RUN line has FileCheck read `{match[1]}`"
        if EXPECTED.search(line):
            expects = True
            if not verified:
                yield f"{path}:{number}: an expected diagnostic, but no RUN line has `verify-diagnostics`"
    for prefix in sorted(prefixes - used):
        yield f"{path}: FileCheck reads `{prefix}`, but nothing here starts with it"
    if verified and not expects and not used:
        yield f"{path}: diagnostics are verified, but none is expected"


def main():
    root = sys.argv[1]
    problems = []
    for path in files(root):
        if path.startswith("test/") and path.endswith((".mlir", ".pipe", ".test")) and "/Inputs/" not in path:
            text = lines(root, path)
            if not any("split-file" in run for run in commands(text)):  # parts of it are other files
                problems += problems_of(path, text)
    return report(problems)


if __name__ == "__main__":
    sys.exit(main())
