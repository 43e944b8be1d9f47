#!/usr/bin/env python3
"""Writes the manual pages of tools and the completions of their options, from what --help and --version of each say."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: manual.py SHARE PROGRAM..     writes below the folder SHARE, where they are installed
# What --help is understood to be: a heading ends in a colon at the start of a line; below it stand options,
# `  --name=<value>   - what it does`, their values, `    =exe   - an executable`, below `verbs:` verbs, and other text.
# The help texts of Python's argparse are converted to this form first. The version is that of the first program.
import os, re, subprocess, sys
from dataclasses import dataclass, field


@dataclass
class Option:
    name: str  # with its dashes
    value: str  # `<FILE>`, or nothing
    text: str
    values: list = field(default_factory=list)  # pairs of a value and what it means


def as_llvm(text, name):
    """The --help of a Python program, as LLVM would write it."""
    usage, overview, *rest = text.split("\n\n")
    lines = [f"OVERVIEW: {name}: {' '.join(overview.split())}", "",
             "USAGE: " + " ".join(usage.removeprefix("usage: ").replace("[-h] ", "").split())]
    for line in "\n\n".join(rest).splitlines():
        option = re.match(r"  (?:-h, )?(-{1,2}[A-Za-z][\w-]*)(?: ([A-Z][\w.]*))?(?: {2,}(.*))?$", line)
        lines.append(f"  {option[1]}{f' <{option[2]}>' if option[2] else ''} - {option[3] or ''}" if option else line)
    return "\n".join(lines)


def read_help(text):
    """Heading -> options and lines of text, in order; what stands before the first heading is under ''."""
    sections = {"": []}
    current, last = sections[""], None
    for line in text.splitlines():
        option = re.match(r" {1,4}(-{1,2}[A-Za-z][\w-]*)((?:[ =]<.*?>|\[=<.*?>\])?) +- (.*)$", line)
        value = re.match(r" +=([^\s<]\S*) +- +(.*)$", line)
        heading = re.match(r"(\S.*):$", line)
        verb = re.match(r"  ([a-z-]+) +- (.*)$", line) if current is sections.get("verbs") else None
        more = re.match(r" {12,}(\S.*)$", line)
        if heading:
            current, last = sections.setdefault(heading[1], []), None
        elif option or verb:
            last = Option(option[1], option[2], option[3]) if option else Option(verb[1], "", verb[2])
            current.append(last)
        elif value and last:
            last.values.append([value[1], value[2]])
        elif more and last:  # the text of an option that is longer than a line
            place = last.values[-1] if last.values else None
            if place:
                place[1] += " " + more[1]
            else:
                last.text = (last.text + " " + more[1]).strip()
        elif line.strip() or current and isinstance(current[-1], str):
            current.append(line.strip())
            last = None
    return sections


def options_of(sections):
    """Each name once: an option whose value may be left out is listed twice."""
    found = {}
    for entries in sections.values():
        for entry in entries:
            if isinstance(entry, Option) and (entry.name not in found or entry.values):
                found[entry.name] = entry
    return list(found.values())


def roff(text):
    return re.sub(r"^(['.])", r"\\&\1", text.replace("\\", r"\e").replace("-", r"\-"))


def manual(name, version, sections, tools):
    overview = next((line.removeprefix("OVERVIEW: ") for line in sections[""] if line.startswith("OVERVIEW")),
                    name + ": a tool of pp")
    usage = next((line.removeprefix("USAGE: ") for line in sections[""] if line.startswith("USAGE")),
                 name + " [options]")
    what = overview.split(": ", 1)[-1]
    lines = [f'.TH {name.upper()} 1 "" "pp {version.split()[1]}"', ".SH NAME",
             roff(f"{name} - {what}").replace(r" \- ", r" \- ", 1), ".SH SYNOPSIS", roff(usage)]
    for heading, entries in sections.items():
        entries = [entry for entry in entries if isinstance(entry, Option)
                   or not entry.startswith(("OVERVIEW", "USAGE"))]
        if not any(entries):
            continue
        lines.append(".SH " + ("EXIT STATUS" if heading == "exit codes" else roff(heading.upper()) if heading
                               else "DESCRIPTION"))
        for entry in entries:
            if isinstance(entry, str):
                lines += [roff(entry), ".br"] if entry else [".PP"]
                continue
            lines += [".TP", r"\fB" + roff(entry.name) + r"\fR" + roff(entry.value), roff(entry.text)]
            for value, text in entry.values:
                lines += [".RS", ".TP", r"\fB" + roff(value) + r"\fR", roff(text), ".RE"]
    lines += [".SH FILES", "The library, examples and the text of the language lie below the folder of the program:",
              roff("../share/pp/stdlib, ../share/pp/examples, ../share/doc/pp-compiler."), ".SH SEE ALSO",
              roff(", ".join(f"{tool}(1)" for tool in tools if tool != name) + ", mpirun(1)")]
    return "\n".join(lines) + "\n"


def bash(name, options):
    function = "_" + name.replace("-", "_")
    verbs = " ".join(option.name for option in options if not option.name.startswith("-"))
    cases = [f"    {option.name}) words='{' '.join(value for value, _ in option.values)}' ;;" for option in options
             if option.values]
    names = " ".join(option.name + ("=" if option.value.startswith("=") or option.values else "") for option in options
                     if option.name.startswith("-"))
    return f"""# How bash completes the command line of {name}.
{function}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} option= words=
  if [ "$word" = "=" ]; then
    option=${{COMP_WORDS[COMP_CWORD - 1]}} word=
  elif [ "$COMP_CWORD" -ge 2 ] && [ "${{COMP_WORDS[COMP_CWORD - 1]}}" = "=" ]; then
    option=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  case $option in
{chr(10).join(cases)}
  esac
  if [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  elif [ -z "$option" ] && [ "${{word#-}}" != "$word" ]; then
    COMPREPLY=($(compgen -W "{names}" -- "$word"))
    [ "${{COMPREPLY[0]%=}}" = "${{COMPREPLY[0]}}" ] || compopt -o nospace
  else
    COMPREPLY=($(compgen -f -- "$word"))
    [ "$COMP_CWORD" != 1 ] || COMPREPLY+=($(compgen -W "{verbs}" -- "$word"))
    compopt -o filenames
  fi
}}
complete -F {function} {name}
"""


def zsh(name, options):
    def quoted(text):
        return text.replace("'", "").replace("[", "(").replace("]", ")").replace(":", ";").replace("\\", "")
    lines = []
    verbs = [option.name for option in options if not option.name.startswith("-")]
    if verbs:
        lines.append(f"  '1:verb:({' '.join(verbs)})'")
    for option in options:
        if not option.name.startswith("-"):
            continue
        takes = option.value.startswith("=") or option.values
        action = f"({' '.join(value for value, _ in option.values)})" if option.values else "_files"
        lines.append(f"  '{option.name}{'=' if takes else ''}[{quoted(option.text)}]"
                     + (f":{quoted(option.value.strip(' =<>')) or 'value'}:{action}'" if takes or option.value
                        else "'"))
    joined = " \\\n".join(lines)
    return (f"#compdef {name}\n# How zsh completes the command line of {name}.\n"
            f"_arguments \\\n{joined} \\\n  '*:file:_files'\n")


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: manual.py SHARE PROGRAM..")
    share, *programs = sys.argv[1:]
    def ask(program, option):
        return subprocess.run([program, option], check=True, capture_output=True, text=True,
                              env=os.environ | {"COLUMNS": "120"}).stdout
    tools, version = [os.path.basename(program) for program in programs], ask(programs[0], "--version").strip()
    for name, program in zip(tools, programs):
        text = ask(program, "--help")
        sections = read_help(as_llvm(text, name) if text.startswith("usage: ") else text)
        hidden = ("--help-list", "--verify-diagnostics", "--split-input-file")
        options = [option for option in options_of(sections) if option.name not in hidden]
        if not options:
            sys.exit(f"manual.py: found no option in what `{program} --help` says")
        for path, text in ((f"man/man1/{name}.1", manual(name, version, sections, tools)),
                           (f"bash-completion/completions/{name}", bash(name, options)),
                           (f"zsh/vendor-completions/_{name}", zsh(name, options))):
            os.makedirs(os.path.dirname(os.path.join(share, path)), exist_ok=True)
            with open(os.path.join(share, path), "w") as file:
                file.write(text)


if __name__ == "__main__":
    main()
