#!/usr/bin/env python3
"""Writes the schedules that PyTorch builds, as the CSV files that PyTorch writes: the data of this folder's tests."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: make.py FOLDER          with an interpreter that can import torch (and numpy); no processes, no GPU
# test/translate/torch was written by `python test/translate/make.py test/translate/torch` with torch 2.15.0. PyTorch
# builds a schedule from mocked stages; what it knows of the machine is the number of ranks. NAME-P-M.csv holds the
# units of P ranks and M microbatches (compute_only), NAME-P-M-comms.csv what PyTorch makes of them (compute_comms).
import csv, os, sys
from unittest import mock

import torch
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, _PipelineScheduleRuntime, get_schedule_class
from torch.distributed.pipelining.stage import PipelineStage

SIZES = {  # name -> (ranks, microbatches, stages a rank)..; the same numbers of ranks and microbatches where possible
    "GPipe": ((2, 3, 1), (4, 8, 1)),
    "1F1B": ((2, 4, 1), (4, 8, 1)),
    "Interleaved1F1B": ((2, 4, 2), (4, 8, 2), (3, 6, 3)),
    "LoopedBFS": ((2, 3, 2), (4, 8, 2)),
    "InterleavedZeroBubble": ((2, 4, 2), (4, 8, 2), (3, 6, 3)),
    "ZBVZeroBubble": ((2, 4, 2), (4, 8, 2), (4, 3, 2)),
    "DualPipeV": ((2, 4, 2), (4, 8, 2), (4, 10, 2)),
}


def stages_of(ranks, count):
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.submod, stage.num_stages = 0, ranks, None, ranks * count
    return [stage] * count


def write(path, rows):
    with open(path, "w", newline="") as file:  # as PipelineScheduleMulti._dump_csv does
        writer = csv.writer(file)
        for rank in sorted(rows):
            writer.writerow(rows[rank])


def main(folder):
    print("torch", torch.__version__)
    for name, sizes in SIZES.items():
        for ranks, microbatches, count in sizes:
            stages, kind = stages_of(ranks, count), get_schedule_class(name)
            single = issubclass(kind, PipelineScheduleSingle)
            schedule = kind(stages[0] if single else stages, microbatches)
            order = schedule._get_pipeline_order() if single else schedule.pipeline_order
            path = os.path.join(folder, f"{name}-{ranks}-{microbatches}")
            write(path + ".csv", order)
            if name == "1F1B":  # PyTorch refuses this table of its own: its last rank counts microbatches from 1
                shift = lambda action: action._replace(microbatch_index=action.microbatch_index - 1)
                order[ranks - 1] = [shift(action) if action.computation_type == "F" else action
                                    for action in order[ranks - 1]]
                path = os.path.join(folder, f"{name}_repaired-{ranks}-{microbatches}")
                write(path + ".csv", order)
            # (The tables of GPipe and 1F1B hold REDUCE_GRAD, which PyTorch's lowering adds itself, and refuses here.)
            order = {rank: [action for action in row if action is None or action.is_compute_op]
                     for rank, row in order.items()}
            runtime = _PipelineScheduleRuntime(stages, microbatches)
            runtime._prepare_schedule_with_comms(order)
            write(path + "-comms.csv", runtime.pipeline_order_with_comms)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
