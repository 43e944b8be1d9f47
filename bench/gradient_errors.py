#!/usr/bin/env python3
"""Measures how far gradients in 16 bits are from those in f64: the bounds of test/gpu/gradients.py come from here."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: gradient_errors.py PP_COMPILE FOLDER [--types bf16,f16] [--schedules NAME,..] [--seeds N]
# The model and sizes of bench/gpu/pack.sh, first step, in one process. A tensor's error is its largest difference
# relative to the largest element, as in the tests. One line a schedule: median and largest over all tensors and seeds,
# against f64 on one rank (what rounding costs) and against one rank of the same type (what the test sees).
# PP_TEST_RUNTIME names other kernels.
import argparse, os, statistics, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "run"))
import harness

SIZES = dict(model="llama", layers=8, hidden=64, heads=4, kv_heads=1, ffn=96, vocab=256, sequence=64, microbatch=2,
             microbatches=8)
SCHEDULES = ("gpipe,1f1b,1f1b_recompute,interleaved,looped_bfs,zb_h1,zb_h2,zb_v,v_half,v_min,dualpipe_v,"
             "weipipe_interleave,"
             "weipipe_prefetch,weipipe_naive,wzb1,wzb2,helixpipe,tawpipe,fsdp,terapipe,slimpipe,gpipe_offload")


def gradients(arguments, precision, schedule, ranks):
    """One dictionary of tensors a seed."""
    program = harness.compile_train(arguments.compiler, os.path.join(arguments.folder, f"{precision}_{schedule}"),
                                    SIZES | dict(precision=precision, schedule=schedule, ranks=ranks))
    results = []
    for seed in range(1, arguments.seeds + 1):
        path = program + ".grads"
        harness.call([program, "--in-process", "--data", arguments.text, "--steps", "1", "--seed", str(seed), "--grads",
                      path])
        results.append({name: values for name, (_, values) in harness.read_safetensors(path).items()})
    return results


def errors(ours, theirs):
    return [max(abs(a - b) for a, b in zip(mine[name], values)) / max(map(abs, values))
            for mine, other in zip(ours, theirs) for name, values in other.items()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("folder")
    parser.add_argument("--types", default="bf16,f16")
    parser.add_argument("--schedules", default=SCHEDULES)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    arguments.text = harness.write_text(arguments.folder)
    exact = gradients(arguments, "f64", "single", 1)
    print(f"{'':28}{'against f64':>22}{'against one rank':>22}\n"
          f"{'':28}{'median':>11}{'largest':>11}{'median':>11}{'largest':>11}")
    for precision in arguments.types.split(","):
        alone = gradients(arguments, precision, "single", 1)
        for schedule in ["single", *arguments.schedules.split(",")]:
            ours = alone if schedule == "single" else gradients(arguments, precision, schedule, 4)
            columns = [figure(errors(ours, theirs)) for theirs in (exact, alone) for figure in (statistics.median, max)]
            print(f"{precision:5}{schedule:23}" + "".join(f"{column:11.1e}" for column in columns), flush=True)


if __name__ == "__main__":
    main()
