"""Programs whose ranks have more than 256 MiB, where addresses no longer fit a static index: the losses are those of ranks with less."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import json, os, sys
from harness import Tally, call, compile_train, launch, read_log

compiler, folder = sys.argv[1:3]
runs = int(sys.argv[3]) if len(sys.argv) > 3 else 1  # of each program and transport; addresses that are wrong show by luck
os.makedirs(folder, exist_ok=True)
tally = Tally()
MODEL = {"model": "gpt2", "layers": 4, "hidden": 512, "heads": 8, "ffn": 2048, "vocab": 12288, "sequence": 256}


def losses(program, ranks, transport):
    log = program + ".log"
    call(launch(program, ranks, transport) + ["--data", "random", "--steps", "2", "--seed", "7", "--log", log])
    return [line["loss"] for line in read_log(log) if "loss" in line]


def arenas(program):
    """Bytes of each rank's memory, as planned: the third column of the table that `--info` ends with."""
    lines = call([program, "--info"]).stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("rank "))
    return [int(line.split()[2]) for line in lines[first + 1:]]


def program(name, schedule, ranks, microbatch, microbatches, **more):
    return compile_train(compiler, os.path.join(folder, name), dict(
        MODEL, schedule=schedule, ranks=ranks, microbatch=microbatch, microbatches=microbatches, **more))


# The same 8 sequences a step: in one microbatch on one rank, and in small ones on ranks that stay below 256 MiB.
small = program("small", "1f1b", 4, 1, 8)
tally.check(max(arenas(small)) < 2 ** 28, f"the reference stays below 2^28 bytes a rank: {arenas(small)}")
reference = losses(small, 4, "threads")
tally.check(len(reference) == 2 and reference[1] != reference[0], f"the reference takes steps: {reference}")
cases = [("one_rank_600", program("one_rank_600", "single", 1, 8, 1), 1, 600 << 20),
         ("one_rank_280", program("one_rank_280", "single", 1, 4, 2), 1, 280 << 20),
         ("four_ranks", program("four_ranks", "gpipe", 4, 4, 2, layers=4, ffn=2048), 4, 0)]
for name, path, ranks, least in cases:
    tally.check(max(arenas(path)) >= least, f"{name}: {max(arenas(path))} bytes on a rank")
    for transport in ["threads", "mpi"]:
        for run in range(runs):
            got = losses(path, ranks, transport)
            tally.check(len(got) == 2 and all(abs(a - b) < 2e-5 * abs(b) for a, b in zip(got, reference)),
                        f"{name} over {transport}: {got}")
sys.exit(tally.close())
