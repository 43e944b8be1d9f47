#!/usr/bin/env python3
"""Prints a page on the models of transformers: which ones pp reads, and how far pp-check-hf finds them apart."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: coverage.py PP_COMPILE FOLDER > PAGE     with torch and transformers; progress is on stderr
# The page belongs into docs, for its links.
# The models are those of zoo.py, each in two sizes. No test runs this.
import importlib.metadata, os, re, sys
import check_hf, zoo

HEAD = """# Models of transformers that pp reads

`pp-compile --from-hf` reads {right} of these {all} models. Each row is a tiny folder with random weights, in two sizes.
[`pp-check-hf`](fine-tune.md#is-it-the-model-of-transformers) compared loss, gradients, three steps of AdamW and the
saved folder with transformers {transformers} (torch {torch}), in f64. The numbers are the larger ones of both sizes:
differences of gradients, relative to the largest of their tensor, and of losses, relative. The last column says why a
model is refused. [`test/run/coverage.py`](../test/run/coverage.py) wrote this page.

| model | `model_type` | gradients | losses | refused |
|---|---|---|---|---|"""


def sentence(errors):
    """pp's first error, without file and line."""
    found = re.search(r"error: (.*)", errors) or re.search(r"refused: (.*)", errors)
    text = re.sub(r"^`model_type` is `\w+`, which is not supported; it needs ", "needs ", found[1])
    return re.sub(r"; there are .*", "", text).replace("|", "\\|")  # a list of all families


def judged(checker, name):
    """What stands in the last three columns, and whether both sizes are right."""
    gradients, losses, says = [], [], []
    for number, place in enumerate(checker.sizes(name), 1):
        code, out, errors = checker.check(place)
        worst = re.search(r"\nright: the worst difference is (\S+) of .* losses it is (\S+),", out)
        if code == 0:
            gradients.append(float(worst[1]))
            losses.append(float(worst[2]))
        else:
            text = sentence(errors) if code == 2 else "WRONG: " + check_hf.last_line(out).removeprefix("wrong: ")
            says.append((number, text))
    texts = [text for _, text in says]
    if len(says) == 2 and texts[0] == texts[1]:
        texts = texts[:1]
    elif says:
        texts = [f"size {number}: {text}" for number, text in says]
    columns = [f"{max(its):.1e}" if its else "" for its in (gradients, losses)]
    return [*columns, "; ".join(texts)], not says


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    checker, rows, right = check_hf.Checker(compiler, folder), [], 0
    for name in zoo.NAMES:
        columns, good = judged(checker, name)
        right += good
        rows.append((not good, f"| {name} | {zoo.sizes(name)[0][0]} | {' | '.join(columns)} |"))
        print(rows[-1][1], file=sys.stderr, flush=True)
    versions = {package: importlib.metadata.version(package).partition("+")[0] for package in ("torch", "transformers")}
    print(HEAD.format(right=right, all=len(rows), **versions))
    print("\n".join(row for _, row in sorted(rows, key=lambda row: row[0])))


if __name__ == "__main__":
    sys.exit(main())
