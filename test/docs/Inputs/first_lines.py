"""Checks that every source file opens with one full sentence on what it is for, and that code names its licence."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: first_lines.py ROOT
import re, sys
from source_files import files, lines, report

MARKS = {".cpp": "// ", ".h": "// ", ".h.in": "// ", ".td": "// ", ".def": "// ", ".mlir": "// ", ".py": '"""',
         ".cfg.py": "# ", ".py.in": "# ", ".sh": "# ", ".cmake": "# ", "CMakeLists.txt": "# ", ".pipe": "# ",
         ".test": "# ", ".ebnf": "(* "}
LICENSED = (".cpp", ".h", ".h.in", ".td", ".def", ".py")


def opening(path, text):
    """The line that has to be a sentence; in a .pipe file the sentence may take up to three lines."""
    if text and text[0].startswith("#!"):
        text = text[1:]
    said = text[0] if text else ""
    for line in text[1:3] if path.endswith(".pipe") else ():
        if said.endswith((".", ":")) or not line.startswith("# "):
            break
        said += " " + line[2:]
    return said


def problem(path, text, end):
    mark, said = MARKS[end], opening(path, text)
    if not said.startswith(mark):
        return f"expected the first line to start with `{mark.strip()}`, got `{said[:60]}`"
    said = said[len(mark):].removesuffix('"""').removesuffix("*)").rstrip()
    if not re.match(r"[A-Z0-9`\"]|[a-z0-9]+(-[a-z0-9]+)+\b", said) or len(said.split()) < 4:
        return f"expected a sentence, got `{said[:60]}`"
    # In a .pipe file a drawing or a command may follow a colon, and a second sentence may begin on the same line.
    if not (said.endswith(".") or end == ".pipe" and (said.endswith(":") or ". " in said)):
        return f"expected a sentence with a full stop, got `.. {said[-60:]}`"
    if end in LICENSED and not any("SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception" in line
                                   for line in text[:60]):
        return "expected an SPDX line"
    return None


def main():
    root, problems = sys.argv[1], []
    for path in files(root):
        end = next((end for end in sorted(MARKS, key=len, reverse=True) if path.endswith(end)), None)
        found = end and problem(path, lines(root, path), end)
        if found:
            problems.append(f"{path}:1: {found}")
    return report(problems)


if __name__ == "__main__":
    sys.exit(main())
