#!/usr/bin/env python3
"""Loss curves of a small llama on real text in bf16, and with products of 8 bits, from the same seeds."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/fp8_losses.py PP_COMPILE FOLDER [--seeds N] [--steps N]
# Prints the mean loss of the last tenth of the steps for each seed and recipe, and its ratio to that of bf16. The text
# is the licences of Debian's base-files, byte by byte; all runs of a seed see the same batches and begin alike.
import argparse, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "run"))
import harness

SIZES = dict(schedule="1f1b", ranks=2, model="llama", layers=4, hidden=192, heads=6, ffn=512, vocab=256, sequence=128,
             microbatch=4, microbatches=4, precision="bf16") | {"optimizer.lr": 2e-3, "optimizer.warmup": 30}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("folder")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    its = parser.parse_args()
    text, log = harness.write_text(its.folder), os.path.join(its.folder, "log")
    programs = {recipe: harness.compile_train(its.compiler, os.path.join(its.folder, recipe),
                                              SIZES | dict(products=recipe))
                for recipe in ("none", "fp8_row", "fp8_tile")}
    print("| seed | bf16 | fp8_row | fp8_tile |\n|---:|---:|---:|---:|", flush=True)
    for seed in range(its.seeds):
        means = []
        for program in programs.values():
            harness.call([program, "--in-process", "--data", "u8:" + text, "--steps", str(its.steps), "--seed",
                          str(seed + 1), "--shuffle", "--log", log], timeout=7200)
            losses = [line["loss"] for line in harness.read_log(log)][-(its.steps // 10):]
            means.append(sum(losses) / len(losses))
        print(f"| {seed + 1} | {means[0]:.4f} | " +
              " | ".join(f"{mean:.4f} ({mean / means[0] - 1:+.2%})" for mean in means[1:]) + " |", flush=True)


main()
