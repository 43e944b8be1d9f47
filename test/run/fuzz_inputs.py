#!/usr/bin/env python3
"""Hands pp inputs that are changed at random: nothing may crash or hang, whatever a file says (pp-fuzz inputs)."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: fuzz_inputs.py PP_COMPILE FOLDER [--cases N] [--seed S] [--kinds ir,pipe,..]
# Seeds are the inputs of the tests of text, and files of each other kind that are written here. They are in
# FOLDER/KIND, also for libFuzzer; inputs that fail are kept in FOLDER/failed.
import array, glob, json, os, shutil, struct, subprocess, sys
import families, harness

TEXTS = {"ir": ("passes/*.mlir", "dialect/*.mlir", "lowering/*.mlir"),
         "pipe": ("stdlib/*.pipe", "frontend/*.pipe", "passes/*.pipe"),
         "csv": ("translate/torch/*.csv", "translate/Inputs/*.csv", "translate/*.test")}
MADE_FROM = {"ranks": 2, "microbatches": 2, "slices": 0}


def tensors(entries, data):
    head = json.dumps(entries).encode()
    return struct.pack("<Q", len(head)) + head + data


def files(compiler, folder):
    """Name and bytes of the seeds of each kind that is no text of our own."""
    tasks = [{"task": f"s{rank}.{phase}", "phase": phase, "rank": rank, "count": 2, "mean": 1e-3, "median": 1e-3}
             for rank in range(2) for phase in "FBU"]
    messages = [{"kind": kind, "bytes": size, "count": 1, "post": 1e-6, "last_post": 1e-6, "arrival": 1e-6}
                for kind, size in (("p2p", 128), ("p2p", 256), ("all_reduce", 8))]
    profile = dict(made_from=MADE_FROM, transport="threads", dispatch=1e-7, tasks=tasks, messages=messages)
    units = ["0F0 0F1 0B0 0B1".split(), "1F0 1B0 1F1 1B1".split()]
    events = [dict(ph="X", pid=rank, tid=4, name="step 1", cat="step", ts=0, dur=99) for rank in range(2)]
    events += [dict(ph="X", pid=rank, tid=0, name=unit, cat=unit[1], ts=10 * at + 5 * rank, dur=4)
               for rank, row in enumerate(units) for at, unit in enumerate(row)]
    events.append(dict(ph="X", pid=1, tid=0, name="wait act(0, 0)", cat="idle", ts=1, dur=3, args={"message": 1}))
    weights = {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
               "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}, "__metadata__": {"step": "3"}}
    tokens = {"tokens": {"dtype": "U16", "shape": [8], "data_offsets": [0, 16]},
              "documents": {"dtype": "I64", "shape": [3], "data_offsets": [16, 40]},
              "counted": {"dtype": "U8", "shape": [8], "data_offsets": [40, 48]}}
    weighted = tokens | {"counted": {"dtype": "F32", "shape": [8], "data_offsets": [40, 72]}}
    header = array.array("i", [20240520, 1, 8] + [0] * 253).tobytes()
    words = array.array("H", [1, 2, 3, 4, 5, 6, 7, 255]).tobytes()
    optimizer = dict(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, clip=1.0, warmup=0)
    state = dict(format=1, step=3, steps=9, seed=1, lr=0.01, data=dict(fingerprint="8 x", shuffle=True, pack="whole"),
                 program=dict(model="", precision="f32", vocab=1, sequence=1, sequences_per_step=1, parameters=0),
                 optimizer=optimizer, loss_scale=dict(now=1024.0, good_steps=2, skipped_steps=1), files=["a"])
    configs = [json.dumps(config, indent=1).encode() for config in families.VARIANTS.values()]
    return {"config": configs,
            "costs": [b"attn=3,rest=1", b"units", b"cluster", b"pre=1,qkv=2,attn=4.5,post=8,embed=0,head=0"],
            "profile": [json.dumps(profile, indent=1).encode()],
            "trace": [json.dumps(dict(made_from=MADE_FROM, traceEvents=events), indent=1).encode()],
            "load": [b"[0.5, 0.25, 0.125, 0.125]", b"zipf=1.2"],
            "safetensors": [tensors(weights, bytes(range(32)))],
            "dataset": [tensors(tokens, words + struct.pack("<3q", 0, 3, 8) + b"\1" * 8),
                        tensors(weighted, words + struct.pack("<3q8f", 0, 3, 8, *[0.5] * 8))],
            "tokens": [b"Plain text is tokens, too.\n", header + words], "plain": [words],
            "state": [json.dumps(state, indent=1).encode()]}


def texts(patterns):
    """The inputs of the tests of text, cut where these cut them."""
    cut = []
    for path in (path for each in patterns for path in sorted(glob.glob(os.path.join(harness.ROOT, "test", each)))):
        with open(path, "rb") as file:
            cut += file.read().split(b"// -----")
    return cut


def main():
    arguments = harness.draws(cases=60, seed=1, kinds="")
    program = os.path.join(os.path.dirname(arguments.compiler), "pp-fuzz")
    tally, failed = harness.Tally(), os.path.join(arguments.folder, "failed")
    shutil.rmtree(failed, ignore_errors=True)
    os.makedirs(failed)
    made = {kind: texts(patterns) for kind, patterns in TEXTS.items()}
    seeds = {}
    for kind, contents in (made | files(arguments.compiler, arguments.folder)).items():
        os.makedirs(os.path.join(arguments.folder, kind), exist_ok=True)
        seeds[kind] = [os.path.join(arguments.folder, kind, f"seed{number}") for number in range(len(contents))]
        for path, content in zip(seeds[kind], contents):
            with open(path, "wb") as file:
                file.write(content)
    for kind, paths in seeds.items():
        if arguments.kinds and kind not in arguments.kinds.split(","):
            continue
        done = subprocess.run([program, "inputs", kind, *paths, f"--runs={arguments.cases}", f"--seed={arguments.seed}",
                               f"--keep={failed}"], capture_output=True, text=True)
        last = (done.stdout.splitlines() or [done.stderr.strip()])[-1]
        tally.check(done.returncode == 0 and last.endswith(" 0 failed"),
                    f"{last}" + ("" if done.returncode == 0 else f"; kept in {failed}\n{done.stdout}"))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
