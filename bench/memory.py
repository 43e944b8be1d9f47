#!/usr/bin/env python3
"""Prints planned memory over the largest live set, which no plan can go below, for schedules of examples/train.pipe."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/memory.py [-c PP_COMPILE] [-D name=value].. [SCHEDULE..]
# Without names: every schedule that trains. The rank with the largest ratio is shown; above 1.02 the exit status is 1.
import argparse, json, os, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCHEDULES = ("single", "gpipe", "gpipe_offload", "1f1b", "bpipe", "pipedream_2bw", "1f1b_recompute", "interleaved",
             "looped_bfs", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "dualpipe_v", "dualpipe", "weipipe_interleave",
             "weipipe_prefetch", "weipipe_naive", "wzb1", "wzb2", "tawpipe", "fsdp", "zero1", "zero2",
             "1f1b_vocabulary", "terapipe", "slimpipe", "slimpipe_interleaved", "helixpipe", "chimera", "hanayo",
             "replicated_1f1b", "replicated_zero1", "replicated_zero2")
SIZES = ((2, 4), (4, 8), (8, 16))
MORE = ((4, 16), (6, 12), (16, 64))  # of schedules in the shape of a V, whose stashes of two sizes are hardest to plan
V_SHAPED = ("zb_v", "v_half", "v_min", "dualpipe_v", "dualpipe")


def ratios(compiler, schedule, ranks, microbatches, defines):
    values = [f"schedule={schedule}", f"ranks={ranks}", f"microbatches={microbatches}", f"layers={2 * ranks}", *defines]
    command = [compiler, os.path.join(ROOT, "examples", "train.pipe"), "--emit=stats"]
    command += [word for value in values for word in ("-D", value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        if "this requires" in done.stderr:
            return  # the schedule does not work for this size
        raise SystemExit(f"{schedule}: {done.stderr}")
    for rank in json.loads(done.stdout)["per_rank"]:
        peak = rank["peak_bytes"]
        yield peak["total"] / peak["live"], rank["rank"], peak["total"], peak["live"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="name=value")
    parser.add_argument("schedules", nargs="*", default=SCHEDULES, metavar="SCHEDULE")
    arguments = parser.parse_args()
    worst = 0
    print("| schedule | ranks | microbatches | ratio | rank | planned B | live B |\n|---|" + "---:|" * 6)
    for schedule in arguments.schedules:
        for ranks, microbatches in SIZES + (MORE if schedule in V_SHAPED else ()):
            found = list(ratios(arguments.compiler, schedule, ranks, microbatches, arguments.defines))
            if not found:
                continue
            ratio, rank, planned, live = max(found)
            size = f"{ranks} | {microbatches}"
            print(f"| `{schedule}` | {size} | {ratio:.4f} | {rank} | {planned} | {live} |", flush=True)
            worst = max(worst, ratio)
    print(f"largest ratio {worst:.4f}")
    return int(worst > 1.02)


if __name__ == "__main__":
    sys.exit(main())
