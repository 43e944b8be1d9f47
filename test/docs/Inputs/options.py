"""Checks that tools/OPTIONS.md names every option of the tools, with its values, verb of pp, and family of folders."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: options.py ROOT, with the tools in PATH
import re, subprocess, sys
from source_files import lines, report


def options(tool):
    """The options in the order of `--help`, without those that every tool of LLVM has."""
    text = subprocess.run([tool, "--help"], check=True, capture_output=True, text=True).stdout
    yield from re.findall(r"^  ([a-z-]+) +- ", text.partition("verbs:")[2], re.M)
    sections = re.split(r"^(\w+ [Oo]ptions):$", text, flags=re.M)
    ours = "".join(text for heading, text in zip(sections[1::2], sections[2::2]) if heading != "Generic Options")
    current = ""
    for option in re.findall(r"^  (-[-\w]+)|^    =(\w+)", ours, re.M):
        current = option[0] or current
        yield current if option[0] else f"{current}={option[1]}"


def main():
    page = "\n".join(lines(sys.argv[1], "tools/OPTIONS.md"))
    problems = []
    for tool in ("pp", "pp-compile", "pp-translate"):
        named = re.search(rf"^## {tool}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
        for option in options(tool):
            if not named or not re.search(rf"`{re.escape(option)}(?![-\w])", named[1]):
                problems.append(f"tools/OPTIONS.md lacks {tool}'s option `{option}`")
    library = "\n".join(lines(sys.argv[1], "stdlib/models/families.pipe"))
    table = "\n".join(lines(sys.argv[1], "docs/families.md"))
    problems += [f"docs/families.md lacks the family `{family}`"
                 for family in re.findall(r'^family "(\w+)" (?:\{|with|inside)', library, re.M)
                 if family != "any" and not re.search(rf"^\| \w+(\.\d)? \| {family} \| \d", table, re.M)]
    return report(problems)


if __name__ == "__main__":
    sys.exit(main())
