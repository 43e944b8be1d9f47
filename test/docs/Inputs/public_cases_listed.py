"""Checks that docs/what-goes-wrong.md has one whole line for each case of test/run/public_cases.py, and no other."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: public_cases_listed.py ROOT
import os, re, subprocess, sys
from source_files import lines, report

PAGE, SCRIPT = "docs/what-goes-wrong.md", "test/run/public_cases.py"


def problems(root):
    listed = subprocess.run([sys.executable, os.path.join(root, SCRIPT), "--list"], capture_output=True, text=True,
                            check=True).stdout.split()
    found = []
    for number, line in enumerate(lines(root, PAGE), 1):
        match = re.match(r"\| `([a-z0-9-]+)` \|", line)
        if match:
            name, columns = match[1], [column for column in line.strip("|").split(" | ") if column.strip(" |")]
            if name not in listed:
                yield f"{PAGE}:{number}: `{name}` is no case of {SCRIPT}"
            if len(columns) != 4:
                yield f"{PAGE}:{number}: expected 4 columns with text, got {len(columns)}"
            if name in found:
                yield f"{PAGE}:{number}: `{name}` stands twice"
            found.append(name)
    for name in listed:
        if name not in found:
            yield f"{PAGE} has no line of the case `{name}`"


if __name__ == "__main__":
    sys.exit(report(list(problems(sys.argv[1]))))
