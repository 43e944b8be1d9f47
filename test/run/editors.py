"""Judges what editors get beside the server: colours for VS Code and vim, and VS Code's extension with its .vsix."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: editors.py PP_COMPILE FOLDER        what needs vim or node is left out, and said, where there is none
import filecmp, glob, json, os, re, shutil, sys, zipfile
import xml.dom.minidom
from harness import ROOT, Tally, call
from language_server import EAGER

COMPILER, FOLDER = sys.argv[1:3]
EDITOR = os.path.join(ROOT, "tools", "editor")
TALLY = Tally()
FILES = sorted(glob.glob(os.path.join(ROOT, "stdlib", "**", "*.pipe"), recursive=True) +
               glob.glob(os.path.join(ROOT, "examples", "*.pipe")))
SAMPLE = """# a comment with for and F(1)
import "std/1f1b.pipe"
schedule small(ranks p, microbatches m) {
  let F1 = 2, mesh = 1.5e-3
  on r in ranks { limit stash min(m, 2) F(r, 0) move act(mesh) to 1 .. p - 1 }
}
train t { mesh shards = 2 freeze "wte" }
"""
# What each word of it is: by vim's groups, and by the last words of VS Code's scopes. The same in both but for names.
EXPECTED = (("comment", "Comment", "number-sign"), ("F(1)", "Comment", "number-sign"),
            ("import", "Declaration", "declaration"), ("std", "String", "double"),
            ("schedule", "Declaration", "declaration"), ("small", "", "function"), ("ranks p", "Role", "language"),
            ("let", "Statement", "control"), ("F1", "", "other"), ("2, mesh", "Number", "numeric"),
            ("mesh = 1", "", "other"), ("1.5e-3", "Number", "numeric"), ("in ranks", "Operator", "word"),
            ("stash", "", "thing"), ("min", "", "other"), ("F(r", "Unit", "unit"), ("act(", "Thing", "thing"),
            ("mesh)", "", "other"), ("..", "Mark", "operator"), ("mesh sh", "Contextual", "other"),
            ("freeze", "Contextual", "other"))


def check(good, what):
    TALLY.check(bool(good), what)


def scopes(grammar, text):
    """What VS Code's tokenizer does with a grammar that is flat: the pattern counts that matches first in a line."""
    for number, line in enumerate(text.split("\n")):
        at = 0
        while at < len(line):
            found = [(match.start(), order, match, its) for order, its in enumerate(grammar["patterns"])
                     if (match := re.compile(its.get("match") or its["begin"]).search(line, at))]
            if not found:
                break
            begin, _, match, its = min(found, key=lambda each: each[:2])
            end = match.end()
            if "begin" in its:
                end = re.compile(its["end"]).search(line, end).end()
            for group, one in (its.get("captures") or {"0": its}).items():
                span = (begin, end) if group == "0" else match.span(int(group))
                yield number, *span, one["name"]
            at = max(end, at + 1)


def colours():
    made = os.path.join(FOLDER, "made")
    call([sys.executable, os.path.join(EDITOR, "grammar.py"), made])
    for name in ("vscode/pipe.tmLanguage.json", "vim/syntax/pipe.vim"):
        check(filecmp.cmp(os.path.join(made, name), os.path.join(EDITOR, name), shallow=False),
              f"{name} is what grammar.py makes of the grammar")
    with open(os.path.join(EDITOR, "vscode", "pipe.tmLanguage.json")) as file:
        grammar = json.load(file)
    with open(os.path.join(ROOT, "frontend", "syntax", "Lexer.cpp")) as file:
        lexer = re.search(r"kKeywords\[\] = \{(.*?)\};", file.read(), re.S)[1]
    reserved = re.findall(r'"(\w+)"', lexer) + list("FBIWRU")
    plain = [word for word in reserved if {name for *_, name in scopes(grammar, word)} & {"variable.other.pipe"}]
    check(len(reserved) == 51 and not plain, f"{len(reserved)} words of the lexer have colours, but for {plain}")
    invalid, names = [], set()
    for path in FILES:
        with open(path) as file:
            for row, begin, _, name in scopes(grammar, file.read()):
                names.add(name)
                if "invalid" in name:
                    invalid.append(f"{os.path.basename(path)}:{row + 1}:{begin + 1}")
    check(len(FILES) > 40 and not invalid, f"{len(FILES)} files without what is invalid: {invalid[:5]}")
    declared = {its["name"] for its in grammar["patterns"] if "name" in its and "invalid" not in its["name"]}
    check(declared <= names, f"each pattern has a word in them: {declared - names}")
    for wrong in ("let a = 8x", "F(s) ? B(s)", "é"):
        check(any("invalid" in name for *_, name in scopes(grammar, wrong)), f"`{wrong}` is invalid")
    every = list(scopes(grammar, SAMPLE))
    for text, _, wanted in EXPECTED:
        row, column = placed(text)
        got = [name.split(".")[-2] for line, begin, end, name in every if line == row and begin <= column < end]
        check(got == [wanted], f"VS Code: `{text}` is {got}, expected {wanted}")


def placed(text):
    before = SAMPLE[:SAMPLE.index(text)]
    return before.count("\n"), len(before) - before.rfind("\n") - 1


def vim():
    sample, out, script = (os.path.join(os.path.realpath(FOLDER), name)
                           for name in ("sample.pipe", "vim.txt", "ask.vim"))
    with open(sample, "w") as file:
        file.write(SAMPLE)
    asked = "".join(f"call add(said, synIDattr(synID({row + 1}, {column + 1}, 1), 'name'))\n"
                    for row, column in (placed(text) for text, _, _ in EXPECTED))
    with open(script, "w") as file:
        file.write(f"set nocompatible\nset runtimepath^={EDITOR}/vim\nfiletype plugin on\nsyntax on\nedit {sample}\n"
                   f"let said = [&filetype, &commentstring]\n{asked}call writefile(said, '{out}')\nqa!\n")
    call(["vim", "-N", "-u", "NONE", "-es", "-S", script], timeout=30)
    with open(out) as file:
        kind, comment, *groups = file.read().split("\n")
    check((kind, comment) == ("pipe", "# %s"), f"vim knows the file: {kind}, {comment}")
    for (text, wanted, _), group in zip(EXPECTED, groups):
        check(group.removeprefix("pipe") == wanted, f"vim: `{text}` is `{group}`, expected {wanted or 'nothing'}")


def packed():
    paths = [os.path.join(FOLDER, name) for name in ("a.vsix", "b.vsix")]
    for path in paths:
        call([sys.executable, os.path.join(EDITOR, "vsix.py"), path])
    check(filecmp.cmp(*paths, shallow=False), "the same extension is packed as the same bytes")
    with zipfile.ZipFile(paths[0]) as made:
        check(made.testzip() is None, "a zip")
        names = set(made.namelist())
        package = json.loads(made.read("extension/package.json"))
        manifest = xml.dom.minidom.parseString(made.read("extension.vsixmanifest"))
        types = xml.dom.minidom.parseString(made.read("[Content_Types].xml"))
    said = [package["main"], package["contributes"]["languages"][0]["configuration"],
            package["contributes"]["grammars"][0]["path"]]
    said = {os.path.normpath(os.path.join("extension", name)) for name in said}
    said |= {node.getAttribute("Path") for node in manifest.getElementsByTagName("Asset")}
    check(said <= names, f"the files that the manifests name: {said - names}")
    ends = {node.getAttribute("Extension").lstrip(".") for node in types.getElementsByTagName("Default")}
    check({name.rsplit(".")[-1] for name in names} - {"xml"} <= ends, f"each file has a type: {ends}")
    its = manifest.getElementsByTagName("Identity")[0]
    check([its.getAttribute(key) for key in ("Id", "Version", "Publisher")] ==
          [package[key] for key in ("name", "version", "publisher")], "both manifests name the same extension")
    with zipfile.ZipFile(paths[0]) as made:
        made.extractall(os.path.join(FOLDER, "unpacked"))


def extension():
    texts = {}
    for name, text in (("right", EAGER.format(ahead=0)), ("wrong", EAGER.format(ahead=1))):
        texts[name] = os.path.join(os.path.realpath(FOLDER), name + ".txt")
        with open(texts[name], "w") as file:
            file.write(text)
    path = os.path.join(os.path.realpath(FOLDER), "eager.pipe")
    got = json.loads(call(["node", os.path.join(ROOT, "test", "run", "Inputs", "vscode.js"),
                           os.path.realpath(os.path.join(FOLDER, "unpacked", "extension", "extension.js")),
                           os.path.realpath(COMPILER), path, texts["right"], texts["wrong"]], timeout=90).stdout)
    check((got["right"], got["restarted"]) == (0, 0), "no error, also of the server that is started again")
    figure = call([COMPILER, texts["right"], "-D", "ranks=4", "-D", "microbatches=8", "-D", "layers=8",
                   "--emit=svg"]).stdout
    check(got["first"] == figure == got["again"], f"the timeline is that of --emit=svg, {len(figure)} bytes")
    nonce = re.search(r"script-src 'nonce-(\w+)'", got["page"])[1]
    check(got["page"].count(f'<script nonce="{nonce}">') == 1 == got["page"].count("<script"), "one script runs there")
    check("schedule eager(ranks p" in got["hover"] and "1F1B whose ranks" in got["hover"], got["hover"])
    where = got["definition"]
    check([where[key] for key in "0123"] == [1, 9, 1, 14], f"the definition: {where}")
    kinds = {item["label"]: item["kind"] for item in got["completion"]}
    check((kinds["eager"], kinds["repeat"]) == (5, 13), "a name is a variable and a word a keyword")
    wrong = got["wrong"][0]
    check(wrong["severity"] == 0 and "rank 0 holds 5 stashes" in wrong["message"] and wrong["source"] == "pp" and
          len(wrong["relatedInformation"]) == 2, f"the proof's error: {wrong}")
    check(len(got["errors"]) == 1 and "cannot start `/no/such/program`" in got["errors"][0], f"said: {got['errors']}")


def main():
    os.makedirs(FOLDER, exist_ok=True)
    colours()
    packed()
    for program, part in (("vim", vim), ("node", extension)):
        if shutil.which(program):
            part()
        else:
            print(f"there is no {program}: what needs it is not tried")
    return TALLY.close()


if __name__ == "__main__":
    sys.exit(main())
