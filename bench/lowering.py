#!/usr/bin/env python3
"""Measures from a list of units to messages: our passes beside PyTorch's `_add_send_recv`, on the same schedules."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/lowering.py --python INTERPRETER [-b FOLDER_OF_TOOLS] [--sizes RANKSxMICROBATCHES,..] [--rounds N]
# INTERPRETER can import torch (and numpy). PyTorch builds interleaved 1F1B and ZB-V, two stages a rank, and writes them
# as CSV; that is imported, so both lower the same rows. Best of `rounds`, taken in turn; one thread each, processor
# time (of ours: a pass's share of the wall time of a run, times the processor time of that run), so that other work on
# the machine matters little. The model is small, for its size costs nothing here. `placed` is what _add_send_recv does:
# units in one order, messages between them (verify-units, linearize-actions, complete-step). `proved` is all passes:
# also memory, the programs of the ranks, and the proofs that they can neither deadlock nor read what is not there,
# which PyTorch does not give. As in pp-compile, ops are verified by verify-ops alone, which is in `proved`, and not
# after every pass.
import argparse, json, os, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCHEDULES = {"interleaved 1F1B": "Interleaved1F1B", "ZB-V": "ZBVZeroBubble"}
PLACED = ("VerifyUnits", "LinearizeActions", "CompleteStep")
TORCH = """
import csv, sys, time
from unittest import mock
from torch.distributed.pipelining.schedules import _add_send_recv, get_schedule_class
from torch.distributed.pipelining.stage import PipelineStage
name, ranks, microbatches, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
stage = mock.create_autospec(PipelineStage, instance=True)
stage.group_rank, stage.group_size, stage.submod, stage.num_stages = 0, ranks, None, 2 * ranks
schedule = get_schedule_class(name)([stage, stage], microbatches)
order = {rank: [a for a in row if a is not None] for rank, row in schedule.pipeline_order.items()}
with open(path, "w", newline="") as file:
    csv.writer(file).writerows(order[rank] for rank in sorted(order))
start = time.process_time()
_add_send_recv(order, lambda s: schedule.stage_index_to_group_rank[s], 2 * ranks)
print(time.process_time() - start)
"""


def call(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}\n{done.stderr[-2000:]}")
    return done


class Case:
    def __init__(self, arguments, folder, schedule, ranks, microbatches):
        self.arguments, self.schedule, self.ranks, self.microbatches = arguments, schedule, ranks, microbatches
        self.path = os.path.join(folder, f"{schedule}-{ranks}-{microbatches}")

    def tool(self, name):
        return os.path.join(self.arguments.tools, name)

    def torch(self):
        done = call(self.arguments.python, "-c", TORCH, self.schedule, str(self.ranks), str(self.microbatches),
                    self.path + ".csv")
        return float(done.stdout)

    def prepare(self):
        """What PyTorch built, as actions; returns how many units there are."""
        call(self.tool("pp-translate"), "--import-csv", self.path + ".csv", "-o", self.path + ".pipe")
        call(self.tool("pp-compile"), self.path + ".pipe", "-D", f"layers={2 * self.ranks}", "-D", "hidden=16", "-D",
             "ffn=16", "--emit=actions", "-o", self.path + ".mlir")
        with open(self.path + ".csv") as file:
            return file.read().replace("\n", ",").count(",")

    def ours(self):
        """Seconds in the passes that place messages, and in all passes."""
        command = [self.tool("pp-opt"), self.path + ".mlir", "--pp-all", "--mlir-disable-threading", "--mlir-timing",
                   "--mlir-timing-display=list", "--mlir-output-format=json", "--verify-each=0", "-o", os.devnull]
        with open(self.path + ".json", "w+") as report:
            process = subprocess.Popen(command, stderr=report)
            _, status, usage = os.wait4(process.pid, 0)
            report.seek(0)
            text = report.read()
        if status:
            raise SystemExit(text[-2000:])
        wall = {entry["name"]: entry["wall"]["duration"] for entry in json.loads(text)}
        scale = (usage.ru_utime + usage.ru_stime) / wall["Total"]
        rest = sum(wall.get(name, 0) for name in ("root", "Total", "Parser", "Output", "Rest"))
        return scale * sum(wall[name] for name in PLACED), scale * (sum(wall.values()) - rest)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("-b", "--tools", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--sizes", default="8x64,64x512")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("| schedule | ranks | microbatches | units | `_add_send_recv` s | placed s | ratio | proved s | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes.split(","):
            for title, schedule in SCHEDULES.items():
                case = Case(arguments, folder, schedule, *map(int, size.split("x")))
                theirs = [case.torch()]
                units = case.prepare()
                ours = [case.ours()]
                for _ in range(arguments.rounds - 1):
                    theirs.append(case.torch())
                    ours.append(case.ours())
                best, placed, proved = min(theirs), min(one[0] for one in ours), min(one[1] for one in ours)
                print(f"| {title} | {case.ranks} | {case.microbatches} | {units} | {best:.3f} | {placed:.3f} | "
                      f"{best / placed:.1f}x | {proved:.3f} | {best / proved:.1f}x |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
