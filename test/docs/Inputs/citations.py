"""Checks that every link of a page leads somewhere, that a page links to each page of docs/, and names of files."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: citations.py ROOT
# A link of a Markdown page is `[..](path#heading)`. Elsewhere a file is named where a word ends in `.md`, or is a path
# that ends as our sources do. Paths begin at the root, at the naming file, or with `std/`. A `*` or `<name>` stands for
# any name. Programs in test/ name files that they make; there only `.md` counts.
import fnmatch, os, re, sys
from source_files import files, lines, report

TEXT = (".md", ".cpp", ".h", ".h.in", ".td", ".def", ".cu", ".py", ".sh", ".pipe", ".mlir", ".test", ".txt", ".cmake",
        ".ebnf", ".c", ".html")
NAMED = re.compile(r"(?<![\w/.$%{}'+~-])((?:[\w.*<>-]+/)*[\w*<>-]+\."
                   r"(?:md|cpp|h|td|def|cu|py|sh|pipe|ebnf|cmake))(?![\w/.]*\w)")
# Of LLVM, what a build writes, or what a reader of a page writes.
ELSEWHERE = re.compile(r"(mlir|llvm|build|share|FOLDER)/|runtime/Commit\.h")


def heading(text):
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", text).strip().lower()).replace(" ", "-")


def links(root, path, text):
    fenced = False
    for number, line in enumerate(text, 1):
        fenced ^= line.startswith("```")
        for target in () if fenced else re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            to = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
            if not os.path.exists(os.path.join(root, to)):
                yield f"{path}:{number}: the link `{target}` leads nowhere"
            elif anchor and anchor not in {heading(line.lstrip("#")) for line in lines(root, to)
                                           if line.startswith("#")}:
                yield f"{path}:{number}: `{to}` has no heading `{anchor}`"


def unlinked(root, known):
    """Pages of docs/ to which no other page links."""
    pages = {path: "\n".join(lines(root, path)) for path in known if path.endswith(".md")}
    targets = {(path, os.path.normpath(os.path.join(os.path.dirname(path), target)))
               for path, text in pages.items() for target in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", text)}
    for page in sorted(pages):
        if page.startswith("docs/") and not any(to == page != path for path, to in targets):
            yield f"{page}: no other page links to it"


def exists(known, path, named):
    named = re.sub(r"<\w+>", "*", named)
    named = "stdlib" + named[3:] if named.startswith("std/") else named
    beside = os.path.normpath(os.path.join(os.path.dirname(path), named))
    if "*" in named:
        return any(fnmatch.fnmatch(file, pattern) for pattern in (named, beside) for file in known)
    return named in known or beside in known or named + ".in" in known


def names(known, path, text):
    for number, line in enumerate(text, 1):
        for named in () if line.startswith("#include <") else NAMED.findall(re.sub(r"\[[^]]*\]\([^)]*\)", "", line)):
            if ELSEWHERE.match(named) or not named.endswith(".md") and ("/" not in named or path.startswith("test/")):
                continue
            if not exists(known, path, named):
                yield f"{path}:{number}: `{named}` is not in the tree"


def main():
    root, problems = sys.argv[1], []
    known = set(files(root))
    for path in sorted(known):
        if path.endswith(TEXT) and not path.startswith("test/docs/"):
            text = lines(root, path)
            problems += names(known, path, text)
            if path.endswith(".md"):
                problems += links(root, path, text)
    return report([*problems, *unlinked(root, known)])


if __name__ == "__main__":
    sys.exit(main())
