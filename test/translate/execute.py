#!/usr/bin/env python3
"""Has PyTorch's own runtime train with schedules that we export: our order of units, our messages, its gradients."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: execute.py PP_TRANSLATE      with an interpreter that can import torch (and numpy); two processes over gloo
# Not one of the tests that run by themselves, for PyTorch is large. Each schedule of the library is proved, exported
# with its messages, read by PyTorch's strictest form (compute_comms) and run; gradients must be those of the layers one
# after the other. With torch 2.15.0 they are, within rounding.
import os, subprocess, sys, tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.pipelining.stage import PipelineStage

RANKS, MICROBATCHES, STAGES = 2, 4, 4
SCHEDULES = [("interleaved", "interleaved_1f1b", False), ("looped_bfs", "looped_bfs", False), ("zb_v", "zb_v", True),
             ("v_half", "v_half", True), ("dualpipev", "dualpipe_v", True)]  # file, schedule, V-shaped?


def layers():
    torch.manual_seed(0)
    return [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).double() for _ in range(STAGES)]


def loss(output, target):
    return ((output - target) ** 2).mean()


def train(rank, path, v_shaped, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mine = [s for s in range(STAGES) if (min(s, STAGES - 1 - s) if v_shaped else s % RANKS) == rank]
    ours, alone = layers(), layers()
    data, targets = torch.randn(2, 2 * MICROBATCHES, 8, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    stages = [PipelineStage(ours[s], s, STAGES, torch.device("cpu")) for s in mine]
    schedule = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss)
    schedule._load_csv(path, format="compute_comms")
    schedule.step(*([data] if 0 in mine else []), **({"target": targets, "losses": []} if STAGES - 1 in mine else {}))
    for x, y in zip(data.chunk(MICROBATCHES), targets.chunk(MICROBATCHES)):
        for layer in alone:
            x = layer(x)
        (loss(x, y) / MICROBATCHES).backward()
    worst = max((a.grad - b.grad).abs().max().item()
                for s in mine for a, b in zip(ours[s].parameters(), alone[s].parameters()))
    print(f"{os.path.basename(path)}: rank {rank}, stages {mine}: worst difference {worst:.1e}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if not worst < 1e-12:
        sys.exit(1)


def main(compiler):
    library = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "stdlib")
    with tempfile.TemporaryDirectory() as folder:
        for number, (file, schedule, v_shaped) in enumerate(SCHEDULES):
            path = os.path.join(folder, schedule + ".csv")
            subprocess.run([compiler, "--emit=torch", "--messages", os.path.join(library, file + ".pipe"), "-o", path,
                            f"--schedule={schedule}", "-D", f"ranks={RANKS}", "-D", f"microbatches={MICROBATCHES}",
                            "-D", f"layers={STAGES}"], check=True)
            processes.spawn(train, args=(path, v_shaped, 29555 + number), nprocs=RANKS)


if __name__ == "__main__":
    main(*sys.argv[1:])
