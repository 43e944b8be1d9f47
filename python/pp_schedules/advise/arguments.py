"""Reads what a training job is started with: words of a command line, a shell script, YAML, or TOML."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from __future__ import annotations

import os
import re
import shlex
from typing import Dict, List, Optional


class Unreadable(Exception):
    """What was given cannot be understood; the text says where and why."""


#: By name, with `-` in place of `_`: the words behind it. A switch has none.
Arguments = Dict[str, List[str]]


def read_arguments(given: str) -> Arguments:
    """Of a file (`.yaml`, `.yml`, `.toml`, else the text of a script), or of a command line, which has `--` in it."""
    if os.path.isfile(given):
        with open(given, encoding="utf-8") as file:
            text = file.read()
        if given.endswith((".yaml", ".yml")):
            return of_yaml(text, given)
        if given.endswith(".toml"):
            return of_toml(text, given)
        return of_words(words_of_script(text))
    if "--" not in given:
        raise Unreadable(f"`{given}` is no file, and no command line: that has words that begin with `--`")
    return of_words(words_of_script(given))


def words_of_script(text: str) -> List[str]:
    """The words of a shell script, with the variables that it sets to plain values; its commands are not run."""
    text = re.sub(r"(?m)^\s*#.*$", "", text.replace("\\\n", " "))
    variables: Dict[str, str] = {}

    def value_of(match: "re.Match[str]") -> str:
        name, default = match.group(1) or match.group(3), match.group(2)
        return variables.get(name, default if default is not None else match.group(0))

    def filled(word: str) -> str:
        return re.sub(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)", value_of, word)

    words: List[str] = []
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();&|")
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        for word in lexer:
            assignment = re.fullmatch(r"(\w+)=([^$(]*|.*)", word)
            if assignment and not word.startswith("-"):
                variables[assignment.group(1)] = filled(assignment.group(2))
            elif not re.fullmatch(r"[();&|]+", word):
                words.append(filled(word))
    except ValueError as error:
        raise Unreadable(f"the command line cannot be cut into words: {error}") from None
    return words


def of_words(words: List[str]) -> Arguments:
    arguments: Arguments = {}
    values: Optional[List[str]] = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            values = arguments[name.replace("_", "-")] = [value] if equals else []
        elif values is not None:
            values.append(word)
    return arguments


def of_yaml(text: str, path: str) -> Arguments:
    """Reads `name: value`, at any depth, and lists in brackets or with `- ` before each item."""
    arguments: Arguments = {}
    name = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        if not line.strip() or line.strip() == "---":
            continue
        item = re.fullmatch(r"\s*-\s+(.+)", line)
        pair = re.fullmatch(r"\s*[\"']?([\w.-]+)[\"']?\s*:(?:\s+(.*))?", line)
        if pair:
            name = pair.group(1).lstrip("-").replace("_", "-")
            if pair.group(2):  # else it has a list, or names of its own
                add(arguments, name, pair.group(2))
        elif item and name:
            arguments.setdefault(name, []).append(plain(item.group(1)))
        else:
            raise Unreadable(f"{path}:{number}: expected `name: value`, got `{line.strip()}`")
    return arguments


def of_toml(text: str, path: str) -> Arguments:
    """Names with their section before them: `parallelism.pipeline-parallel-degree`."""
    arguments: Arguments = {}
    section = ""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        line = re.sub(r"(^|\s)#.*$", "", line).strip()
        if not line:
            continue
        header = re.fullmatch(r"\[([\w.-]+)\]", line)
        pair = re.fullmatch(r"([\w.-]+)\s*=\s*(.*)", line)
        if header:
            section = header.group(1) + "."
        elif pair:
            value = pair.group(2)
            while value.count("[") > value.count("]"):
                following = next(lines, None)
                if following is None:
                    raise Unreadable(f"{path}:{number}: the list has no end")
                value += " " + following[1].strip()
            add(arguments, (section + pair.group(1)).replace("_", "-"), value)
        else:
            raise Unreadable(f"{path}:{number}: expected `name = value` or `[section]`, got `{line}`")
    return arguments


def plain(value: str) -> str:
    return value.strip().strip("\"'")


def add(arguments: Arguments, name: str, value: str) -> None:
    value = value.strip()
    if value.lower() in ("true", ""):
        arguments[name] = []
    elif value.lower() not in ("false", "null", "none", "~"):
        inner = value[1:-1] if value.startswith("[") and not value.startswith("[[") else None
        arguments[name] = [plain(each) for each in inner.split(",") if each.strip()] if inner is not None else [
            plain(value)]


class Reader:
    """Takes arguments by name, and knows which nobody took."""

    def __init__(self, arguments: Arguments, prefix: str = "--"):
        self.arguments, self.prefix, self.taken = arguments, prefix, set()

    def text(self, *names: str) -> Optional[str]:
        """The first word behind the first of these names that is there; "" for a switch."""
        for name in names:
            if name in self.arguments:
                self.taken.add(name)
                return next(iter(self.arguments[name]), "")
        return None

    def flag(self, *names: str) -> bool:
        found = [self.text(name) for name in names]
        return any(text is not None and text.lower() not in ("false", "0") for text in found)

    def number(self, *names: str, default: Optional[int] = None, least: int = 1) -> Optional[int]:
        text = self.text(*names)
        if text is None:
            return default
        try:
            value = int(text.replace("_", ""))
        except ValueError:
            value = least - 1
        if value < least:
            raise Unreadable(f"`{self.prefix}{names[0]}` expects a whole number of at least {least}, got `{text}`")
        return value

    def left(self) -> List[str]:
        return [name for name in self.arguments if name not in self.taken]
