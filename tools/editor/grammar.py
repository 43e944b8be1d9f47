#!/usr/bin/env python3
"""Makes the TextMate grammar of VS Code and the syntax file of vim from frontend/grammar.ebnf."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: grammar.py [FOLDER]       writes FOLDER/vscode/pipe.tmLanguage.json and FOLDER/vim/syntax/pipe.vim; without a
#                                  FOLDER beside this script
# What a word is follows from the place where the grammar has it:
#   declaration   the first word of a `decl`, and of what a model, a train and a cluster hold
#   statement     the first word of a statement, and the other words of statements
#   operator, constant, role, unit letter, thing, mark: the quoted texts of `or` .. `compare`, `primary`, `param`, ..
#   contextual    a word that is not reserved: it is a keyword only before a name, a text or a brace
import json, os, re, sys

HERE = os.path.dirname(os.path.abspath(__file__))
GRAMMAR = os.path.join(HERE, "..", "..", "frontend", "grammar.ebnf")
DECLARATIONS = ("import", "function", "schedule", "model", "mblock", "train", "cluster", "family", "common")


def read(path=GRAMMAR):
    """The classes of words, and the marks."""
    with open(path) as file:
        text = file.read()
    reserved = re.search(r"Reserved +(.*?), and the unit letters ([A-Z ]+)\.", text, re.S)
    things = re.search(r"^thing .*\(\* ([a-z ]+) \*\)", text, re.M)[1].split()
    rules = {}
    for name, body in re.findall(r"^(\w+) += (.*?) ;", re.sub(r"\(\*.*?\*\)", "", text, flags=re.S), re.S | re.M):
        rules.setdefault(name, []).extend(re.findall(r'"([^"]+)"', body))
    quoted = {word for words in rules.values() for word in words}
    words = {word for word in quoted if re.fullmatch(r"\w+", word)}
    names = reserved[1].split()
    made = {"unit": reserved[2].split(), "thing": things,
            "constant": [word for word in rules["primary"] if word in ("true", "false")],
            "role": [word for word in rules["param"] if word in words],
            "operator": [word for rule in ("or", "and", "not", "compare") for word in rules[rule] if word in words],
            "declaration": sorted({rules[rule][0] for rule in DECLARATIONS}),
            "contextual": sorted(words - set(names) - set(reserved[2].split()))}
    known = {word for each in made.values() for word in each} - set(things)
    made["statement"] = [word for word in names if word not in known]
    if missing := words - {word for each in made.values() for word in each}:
        sys.exit(f"grammar.py: no class has {sorted(missing)}")
    made["contextual"] = [word for word in made["contextual"] if word not in made["declaration"]]
    made["mark"] = sorted(quoted - words, key=lambda mark: (-len(mark), mark))
    return made


def operators(words):
    return [mark for mark in words["mark"] if mark not in "(){}[],"]


def textmate(words):
    """Flat: what matches first at a place counts. An unknown character is invalid, as in the lexer."""
    def pattern(name, match):
        return {"name": f"{name}.pipe", "match": match}

    def word(name, kind, before="", after=""):
        return pattern(name, rf"{before}\b(?:{'|'.join(words[kind])})\b{after}")

    heads = "|".join(word for word in (*words["declaration"], "stage", "part", "weight") if word != "import")
    return {
        "name": "pipe", "scopeName": "source.pipe", "fileTypes": ["pipe"],
        "patterns": [
            pattern("comment.line.number-sign", "#.*$"),
            {"name": "string.quoted.double.pipe", "begin": '"', "end": '"|$'},
            pattern("constant.numeric", r"\b\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\b"),
            pattern("invalid.illegal", r"\b\d\w*"),
            {"match": rf"\b({heads})\s+([A-Za-z_]\w*)\b(?!\s*=)",
             "captures": {"1": {"name": "keyword.declaration.pipe"}, "2": {"name": "entity.name.function.pipe"}}},
            word("keyword.declaration", "declaration"), word("constant.language", "constant"),
            word("keyword.operator.word", "operator"), word("variable.language", "role"),
            word("support.function.unit", "unit"), word("support.type.thing", "thing", after=r"(?=\s*\()"),
            word("support.type.thing", "thing", before=r"(?<=\blimit )"), word("keyword.control", "statement"),
            word("keyword.other", "contextual",
                 after=rf"""(?=\s*\{{|\("|\s+(?!(?:{'|'.join(words['operator'])}|then|else|for)\b)[A-Za-z_"0-9\[])"""),
            pattern("keyword.operator", "|".join(map(re.escape, operators(words)))),
            pattern("punctuation", r"[(){}\[\],]"), pattern("variable.other", r"[A-Za-z_]\w*"),
            pattern("invalid.illegal", r"[^\sA-Za-z0-9_]"),
        ]}


def vim(words):
    def one_of(those):
        return r"\%(" + r"\|".join(re.sub(r"([][*.~/^$\\])", r"\\\1", each) for each in those) + r"\)"

    groups = (("Declaration", "declaration", "Structure"), ("Statement", "statement", "Statement"),
              ("Operator", "operator", "Operator"), ("Constant", "constant", "Boolean"), ("Role", "role", "Identifier"))
    others = one_of((*words["operator"], "then", "else", "for"))
    links = [(group, link) for group, _, link in groups] + [
        ("Contextual", "Keyword"), ("Unit", "Function"), ("Thing", "Type"), ("Number", "Number"), ("Mark", "Operator"),
        ("String", "String"), ("Comment", "Comment")]
    return "\n".join([
        '" Colours of `.pipe` files, which tools/editor/grammar.py makes from frontend/grammar.ebnf.',
        'if exists("b:current_syntax")', "  finish", "endif",
        rf"syntax match pipeContextual /\<{one_of(words['contextual'])}\>\ze"
        rf'\%(\s*{{\|("\|\s\+\%({others}\>\)\@![A-Za-z_"0-9\[]\)/',
        rf"syntax match pipeThing /\<{one_of(words['thing'])}\>\ze\s*(/",
        *(f"syntax keyword pipe{group} {' '.join(words[kind])}" for group, kind, _ in groups),
        rf"syntax match pipeUnit /\<[{''.join(words['unit'])}]\>/",
        r"syntax match pipeNumber /\<\d\+\%(\.\d\+\)\?\%([eE][-+]\?\d\+\)\?\>/",
        f"syntax match pipeMark /{one_of(operators(words))}/",
        'syntax region pipeString start=/"/ end=/"/ oneline', "syntax match pipeComment /#.*$/ contains=@Spell",
        *(f"highlight default link pipe{group} {link}" for group, link in links), 'let b:current_syntax = "pipe"', ""])


def main():
    folder, words = (sys.argv[1:] + [HERE])[0], read()
    for path, text in (("vscode/pipe.tmLanguage.json", json.dumps(textmate(words), indent=2) + "\n"),
                       ("vim/syntax/pipe.vim", vim(words))):
        full = os.path.join(folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()
