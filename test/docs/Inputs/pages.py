"""Runs every command of the Markdown pages, compiles their programs, and compares what they show with the output."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: pages.py ROOT FOLDER [PAGE..], with pp-compile in PATH. Without a PAGE it judges all pages that people write.
#
# The word after ``` says what a block is:
#   console        lines that begin with `$ ` are run, and go on in lines that begin with `> `; the others are what they
#                  print. A line `[..]` stands for any lines, `[..]` inside a line for any text. A command succeeds,
#                  unless what is shown has an error.
#   console torch  the same, where python3 has torch; otherwise bash reads the commands.
#   pipe [FILE]    a program; it compiles. With a FILE the page's commands find it under that name.
#   pipe FILE refused
#                  a program that the page shows an error of.
#   sh REASON      commands that are not run here; REASON is one of ELSEWHERE. Bash can read them, and the files and
#                  options that they name exist.
#   text           neither.
# Nothing after ```: the scripts that users run first. An HTML comment that begins with `$ ` is a command, too; the
# table behind it is what it prints.
import functools, itertools, os, re, shutil, subprocess, sys
from source_files import files, lines, report

ELSEWHERE = {"gpu": "needs a GPU", "hosts": "needs several hosts", "slurm": "needs a Slurm cluster", "root": "installs",
             "minutes": "takes minutes", "packages": "needs packages that a build does not",
             "build": "needs a build folder"}
WHOLE = {"train": [], "model": ["--schedule", "one_f_one_b"]}
SIZES = [word for size in ("ranks=2", "microbatches=4", "layers=4") for word in ("-D", size)]


class Page:
    def __init__(self, root, folder, path):
        self.root, self.path = root, path
        self.folder = os.path.join(folder, path.replace("/", "-"))
        self.problems, self.judged = [], 0
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(os.path.join(self.folder, "build"))
        for name in ("examples", "stdlib", "bench", "test", "tools", "python"):
            if os.path.exists(os.path.join(root, name)):
                os.symlink(os.path.abspath(os.path.join(root, name)), os.path.join(self.folder, name))
        os.symlink(os.path.dirname(os.path.realpath(shutil.which("pp-compile"))),
                   os.path.join(self.folder, "build", "bin"))

    def wrong(self, number, text):
        self.problems.append(f"{self.path}:{number}: {text}")

    def judge(self):
        text, number = lines(self.root, self.path), 0
        while number < len(text):
            line = text[number]
            number += 1
            if line.startswith("```"):
                begin = number
                while number < len(text) and text[number] != "```":
                    number += 1
                self.block(line[3:].split(), begin, text[begin:number])
                number += 1
            elif line.startswith("<!-- $ "):
                table = []
                while number < len(text) and text[number].startswith("|"):
                    table.append(text[number])
                    number += 1
                self.command(number - len(table), line[7:].removesuffix("-->").strip(), table)

    def block(self, words, number, text):
        kind = words[0] if words else ""
        if kind == "console" and words[1:] == ["torch"] and not has_torch():
            self.not_here(number, [line[2:] for line in text if line.startswith(("$ ", "> "))])
        elif kind == "console" and words[1:] in ([], ["torch"]):
            self.console(number, text)
        elif kind == "pipe":
            self.program(words[1:], number, text)
        elif kind == "sh" and len(words) == 2 and words[1] in ELSEWHERE:
            self.not_here(number, text)
        elif kind == "" and all(re.match(r"tools/\w+\.sh( |$)", line) for line in text):
            self.not_here(number, text)
        elif kind != "text":
            self.wrong(number, f"expected a block `console`, `pipe`, `text` or `sh` with one of "
                               f"{', '.join(ELSEWHERE)}; "
                               f"got `{' '.join(words)}`")

    def console(self, number, text):
        starts = [at for at, line in enumerate(text) if line.startswith("$ ")]
        if not starts or starts[0]:
            self.wrong(number, "expected a command, `$ ..`, in the first line")
        for at, end in zip(starts, starts[1:] + [len(text)]):
            shown = text[at + 1:end]
            more = list(itertools.takewhile(lambda line: line.startswith("> "), shown))
            self.command(number + at + 1, "\n".join(line[2:] for line in [text[at], *more]), shown[len(more):])

    def command(self, number, command, shown):
        if re.match(r"(\w+=\S+ )*mpirun ", command) and not shutil.which("mpirun"):
            return
        self.judged += 1
        try:
            done = subprocess.run(["bash", "-c", command], cwd=self.folder, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            return self.wrong(number, f"`{command}` takes more than 300 s")
        printed = [line.rstrip() for line in done.stdout.rstrip().splitlines()]
        refused = any(" error: " in line or line.startswith("error: ") for line in shown)
        if (done.returncode != 0) != refused:
            self.wrong(number, f"`{command}` ended with {done.returncode}:\n{done.stdout}")
        elif not re.fullmatch("".join(map(pattern, shown)), "".join(line + "\n" for line in printed)):
            line = next((line for line in shown if not re.search("^" + pattern(line), "\n".join(printed) + "\n", re.M)),
                        None)
            what = f"not this line: {line}" if line is not None else "these lines in another order, or more"
            self.wrong(number, f"`{command}` printed {what}\n" + "\n".join(printed[:60]))

    def program(self, words, number, text):
        self.judged += 1
        found = re.findall(r"^(schedule|train|model) (\w+)", "\n".join(text), re.M)
        if not found:
            return self.wrong(number, "expected a schedule, a model or a program")
        kind, name = next((one for one in found if one[0] == "train"), found[-1])
        file = words[0] if words else name + ".pipe"
        if not words:
            text = {"train": [], "schedule": ['import "std/models/llama.pipe"'],
                    "model": ['import "std/1f1b.pipe"']}[kind] + text
        with open(os.path.join(self.folder, file), "w", encoding="utf-8") as out:
            out.write("\n".join(text) + "\n")
        options = WHOLE.get(kind, ["--schedule", name]) + (SIZES if kind != "train" else [])
        done = subprocess.run(["pp-compile", file, *options, "--emit=ranks", "-o", os.devnull], cwd=self.folder,
                              capture_output=True, text=True)
        if (done.returncode != 0) != (words[1:] == ["refused"]):
            self.wrong(number, f"{kind} `{name}` "
                       + (f"is refused:\n{done.stderr}" if done.returncode else "is not refused"))

    def not_here(self, number, text):
        if subprocess.run(["bash", "-n"], input="\n".join(text), text=True, stderr=subprocess.DEVNULL).returncode:
            self.wrong(number, "bash cannot read this")
        for at, line in enumerate(text):
            words = re.findall(r"[^\s\"']+", re.split(r"(?:^|\s)#", line)[0])
            for word in words:
                if re.match(r"(tools|bench|test|examples|stdlib)/",
                            word) and not os.path.exists(os.path.join(self.root, word)):
                    self.wrong(number + at + 1, f"`{word}` does not exist")
            tool = os.path.basename(words[0]) if words else ""
            for word in words if tool in ("pp-compile", "pp-translate") else ():
                if word.startswith("--") and word.split("=")[0] not in options_of(tool):
                    self.wrong(number + at + 1, f"{tool} has no option `{word}`")


def pattern(line):
    if line == "[..]":
        return r"(?:.*\n)*?"
    return ".*?".join(map(re.escape, line.rstrip().split("[..]"))) + "\n"


@functools.cache
def has_torch():
    return subprocess.run(["python3", "-c", "import torch"], stderr=subprocess.DEVNULL).returncode == 0


def options_of(tool, known={}):
    if tool not in known:
        known[tool] = set(re.findall(r"--[\w-]+", subprocess.run([tool, "--help"], capture_output=True,
                                                                 text=True).stdout))
    return known[tool]


def main():
    root, folder, *paths = sys.argv[1:]
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    paths = paths or [path for path in files(root) if path.endswith(".md")
                      and not lines(root, path)[0].startswith("<!-- Written by")]
    problems, judged = [], 0
    for path in paths:
        page = Page(root, folder, path)
        page.judge()
        problems += page.problems
        judged += page.judged
    if not judged:
        problems.append("expected commands and programs in the pages, got none")
    return report(problems)


if __name__ == "__main__":
    sys.exit(main())
