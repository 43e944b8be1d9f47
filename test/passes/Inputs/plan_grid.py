"""Plans schedules over a grid, and compares makespan and memory with those of the schedules as written."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: plan_grid.py PP_COMPILE TRAIN.pipe
# Every order is judged by the statistics of what was compiled, not by what the planner says of it.
import itertools, json, subprocess, sys

SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb_v", "v_half"]
SIZES = [(2, 4), (4, 8)]
COSTS = [[], ["--cluster=a800_nvlink_10gbe"]]
MODEL = dict(hidden=64, heads=2, kv_heads=2, ffn=128, vocab=128, sequence=64, microbatch=1, layers=8)


def compiled(*options):
    """Its makespan and the bytes of its largest rank."""
    done = subprocess.run([sys.argv[1], sys.argv[2], "--emit=stats", *options], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(options)}: {done.stderr}")
    stats = json.loads(done.stdout)
    return stats["makespan"], max(rank["peak_bytes"]["total"] for rank in stats["per_rank"])


def beside(*options):
    """What kernels and messages of the rank that has most of it need beside the arena; a limit counts it, too."""
    done = subprocess.run([sys.argv[1], sys.argv[2], "--prove=json", *options], capture_output=True, text=True)
    return max(rank["scratch"] for rank in json.loads(done.stdout)["memory"])


planned = shorter = 0
for schedule, (ranks, microbatches), costs in itertools.product(SCHEDULES, SIZES, COSTS):
    defines = MODEL | dict(schedule=schedule, ranks=ranks, microbatches=microbatches)
    options = [*(word for name, value in defines.items() for word in ("-D", f"{name}={value}")), *costs]
    makespan, bytes_ = compiled(*options)
    scratch = beside(*options)
    for limit in (bytes_, bytes_ * 5 // 4):
        ours, used = compiled(*options, "--plan", f"--memory-limit={limit + scratch}")
        if ours > makespan * (1 + 1e-9) or used > limit:
            print(f"{defines} {costs}: {ours} and {used} bytes, as written {makespan} and {limit}")
            sys.exit(1)
        planned += 1
        shorter += ours < makespan * (1 - 1e-9)
print(f"{planned} orders planned, {shorter} shorter than as written, none worse")
