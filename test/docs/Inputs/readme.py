"""Checks that the README shows what the tools print: program, drawing, tables, options."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: readme.py ROOT FOLDER, with pp-compile in PATH
import os, re, shutil, subprocess, sys
from source_files import lines, report


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip()


def main():
    root, folder = sys.argv[1:3]
    readme = "\n".join(lines(root, "README.md"))
    compiler, quickstart = shutil.which("pp-compile"), os.path.join(root, "examples", "quickstart.pipe")
    program = os.path.join(folder, "quickstart")
    os.makedirs(folder, exist_ok=True)
    output(compiler, quickstart, "-o", program)
    schedules = re.findall(r"^\| `(\w+)` \|(?: *[\d.]+ \|)+$", readme, re.M)
    expected = {
        "examples/quickstart.pipe": "\n".join(lines(root, quickstart)[1:]),
        "its timeline": output(compiler, quickstart, "--emit=timeline"),
        "its --help": output(program, "--help"),
    }
    if schedules:
        expected["bench/table.py"] = output(sys.executable, os.path.join(root, "bench", "table.py"), "-c", compiler, *schedules)
    problems = []
    figure = output(compiler, quickstart, "--emit=svg", "--messages")
    if "\n".join(lines(root, os.path.join("examples", "quickstart.svg"))) != figure:
        problems.append("examples/quickstart.svg is not what `pp-compile examples/quickstart.pipe --emit=svg --messages` draws")
    for what, text in expected.items():
        missing = [line for line in text.splitlines() if line not in readme]
        problems += [f"README.md lacks this line of {what}: {line}" for line in missing]
    sections = re.split(r"^(\w+ [Oo]ptions):$", output(compiler, "--help"), flags=re.M)
    ours = "".join(text for heading, text in zip(sections[1::2], sections[2::2]) if heading not in ("Generic Options", "input options"))
    current = ""
    for option in re.findall(r"^  (-[-\w]+)|^    =(\w+)", ours, re.M):
        current = option[0] or current
        name = current if option[0] else f"{current}={option[1]}"
        if f"`{name}" not in readme:
            problems.append(f"README.md lacks pp-compile's option `{name}`")
    if len(schedules) < 3:
        problems.append("README.md has no table of schedules")
    return report(problems)


if __name__ == "__main__":
    sys.exit(main())
