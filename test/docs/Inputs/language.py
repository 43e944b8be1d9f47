"""Compiles the schedules, models and programs of a Markdown file, proofs included."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: language.py FILE FOLDER, with pp-compile in PATH
import os, re, subprocess, sys
from source_files import report


def main():
    path, folder = sys.argv[1:3]
    with open(path) as file:
        blocks = re.findall(r"^```\n((?:import [^\n]*\n)*(schedule|train|model) (\w+)[ (].*?)^```", file.read(), re.M | re.S)
    os.makedirs(folder, exist_ok=True)
    problems = []
    for text, kind, name in blocks:
        program = os.path.join(folder, name + ".pipe")
        with open(program, "w") as file:
            file.write({"train": "", "schedule": 'import "std/models/llama.pipe"\n', "model": 'import "std/1f1b.pipe"\n'}[kind] + text)
        sizes = [word for size in ("ranks=2", "microbatches=4", "layers=4") for word in ("-D", size)]
        options = [] if kind == "train" else ["--schedule", name if kind == "schedule" else "one_f_one_b", *sizes]
        done = subprocess.run(["pp-compile", program, *options, "--emit=ranks", "-o", os.devnull],
                              capture_output=True, text=True)
        if done.returncode:
            problems.append(f"{kind} `{name}`:\n{done.stderr}")
    if len(blocks) < 3:
        problems.append(f"expected 3 schedules or more, got {len(blocks)}")
    return report(problems)


if __name__ == "__main__":
    sys.exit(main())
