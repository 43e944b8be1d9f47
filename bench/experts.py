#!/usr/bin/env python3
"""Trains a mixture of experts and a dense model of equal active parameters on the same text; prints both losses."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/experts.py [-c PP_COMPILE] [--steps 600] [--seed 1] [--folder build/experts]
# The text is what the repository tracks: its pages, sources and tests, as bytes. mixtral has 8 experts, of which each
# token goes through 2, with the balance of its router; llama has one MLP that is twice as wide, so as many products a
# token but for the router. Everything else is the same: 4 layers, hidden 128, 1F1B on two ranks, 1024 tokens a step.
# Losses are means over the steps since the row before.
import argparse, os, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "run"))
import harness

SIZES = dict(schedule="1f1b", ranks=2, microbatches=4, layers=4, hidden=128, heads=4, kv_heads=2, vocab=256,
             sequence=128, microbatch=2)
MODELS = {"8 experts, 2 of them": dict(model="mixtral", ffn=192, experts=8, top=2, balance=0.01),
          "dense": dict(model="llama", ffn=384)}
ENDS = (".md", ".h", ".cpp", ".py", ".td", ".pipe", ".cu")


def write_text(path):
    """All tracked files of these kinds, in an order that mixes them."""
    names = subprocess.run(["git", "-C", harness.ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout
    with open(path, "wb") as text:
        for name in sorted((name for name in names.split("\n") if name.endswith(ENDS)), key=lambda name: name[::-1]):
            with open(os.path.join(harness.ROOT, name), "rb") as file:
                text.write(file.read() + b"\n")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(harness.ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default=os.path.join(harness.ROOT, "build", "experts"))
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    text, lines = write_text(os.path.join(arguments.folder, "text.txt")), {}
    for number, (name, values) in enumerate(MODELS.items()):
        program = harness.compile_train(arguments.compiler, os.path.join(arguments.folder, str(number)), SIZES | values)
        log = program + ".jsonl"
        harness.call([program, "--in-process", "--data", text, "--shuffle", "--seed", str(arguments.seed),
                      "--steps", str(arguments.steps), "--log", log])
        lines[name] = harness.read_log(log)
    print("| step | " + " | ".join(MODELS) + " | rows of an expert |\n|---:|" + "---:|" * (len(MODELS) + 1))
    every = arguments.steps // 6
    for end in range(every, arguments.steps + 1, every):
        means = [sum(line["loss"] for line in its[end - every:end]) / every for its in lines.values()]
        rows = next(iter(lines.values()))[end - 1]["rows"]
        print(f"| {end} | " + " | ".join(f"{mean:.3f}" for mean in means)
              + f" | {rows['min']} to {rows['max']}, mean {rows['mean']:.0f} |")


if __name__ == "__main__":
    sys.exit(main())
