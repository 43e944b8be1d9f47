#!/usr/bin/env python3
"""Measures one rank's training step on GPT-2 (4 layers, vocabulary 8192, 4 sequences), in f32 or bf16, beside peers."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: step.py PP_COMPILE [--llmc PROGRAM] [--python INTERPRETER] [--rounds N] [--precisions f32,bf16] [--large]
#                [--processor-time]
# --llmc: llm.c's CPU trainer, built by you. --python: an interpreter that can import torch. All programs run on one
# thread, in turn, `rounds` times; the best step of each counts, and ratios are within this run. --large: hidden 512 and
# 256 tokens, not 256 and 64. --processor-time: measures a step's processor time, for machines that do other work
# (without llm.c). In bf16, weights are bf16 on both sides.
import argparse, os, random, re, struct, subprocess, sys, tempfile

LARGE, PROCESSOR = "--large" in sys.argv, "--processor-time" in sys.argv
LAYERS, VOCAB, BATCH, CONTEXT = 4, 8192, 4, 1024
HIDDEN, HEADS, LENGTH = (512, 8, 256) if LARGE else (256, 4, 64)
TOKENS = BATCH * LENGTH

TORCH = f'''
import sys, time, torch, torch.nn as nn, torch.nn.functional as F
clock = time.process_time if {PROCESSOR} else time.perf_counter
torch.set_num_threads(1)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm({HIDDEN}), nn.LayerNorm({HIDDEN})
        self.qkv, self.o = nn.Linear({HIDDEN}, {3 * HIDDEN}), nn.Linear({HIDDEN}, {HIDDEN})
        self.up, self.down = nn.Linear({HIDDEN}, {4 * HIDDEN}), nn.Linear({4 * HIDDEN}, {HIDDEN})
    def forward(self, x):
        heads = lambda t: t.view({BATCH}, {LENGTH}, {HEADS}, -1).transpose(1, 2)
        q, k, v = self.qkv(self.n1(x)).split({HIDDEN}, 2)
        o = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
        x = x + self.o(o.transpose(1, 2).reshape({BATCH}, {LENGTH}, {HIDDEN}))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding({VOCAB}, {HIDDEN}), nn.Embedding({CONTEXT}, {HIDDEN})
        self.blocks, self.norm = nn.Sequential(*[Block() for _ in range({LAYERS})]), nn.LayerNorm({HIDDEN})
    def forward(self, tokens, targets):
        x = self.blocks(self.wte(tokens) + self.wpe.weight[:{LENGTH}])
        return F.cross_entropy((self.norm(x) @ self.wte.weight.T).view(-1, {VOCAB}), targets.reshape(-1))
model = Model().to(torch.bfloat16 if sys.argv[1] == "bf16" else torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
data = torch.randint(0, {VOCAB}, (20, {BATCH}, {LENGTH} + 1))
for batch in data:
    start = clock()
    optimizer.zero_grad(set_to_none=True)
    model(batch[:, :-1], batch[:, 1:]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print("seconds", clock() - start)
'''


def run(command, folder, **more):
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True,
                          **more).stdout


def processor_seconds(command, folder):
    before = os.times()
    run(command, folder)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def ours(program, folder):
    import json
    if PROCESSOR:  # of ten steps: what twelve take more than two
        few, many = (processor_seconds([program, "--in-process", "--data", "random", "--steps", steps], folder)
                     for steps in ("2", "12"))
        return (many - few) / 10
    run([program, "--in-process", "--data", "random", "--steps", "20", "--log", "ours.jsonl"], folder)
    with open(os.path.join(folder, "ours.jsonl")) as log:
        return min(json.loads(line)["seconds"] for line in log)


def write_llmc_files(folder):
    """A random checkpoint of this size and two token files, in llm.c's formats, where its trainer looks for them."""
    sizes = [VOCAB * HIDDEN, CONTEXT * HIDDEN]
    sizes += [LAYERS * n for n in (HIDDEN, HIDDEN, 3 * HIDDEN * HIDDEN, 3 * HIDDEN, HIDDEN * HIDDEN, HIDDEN, HIDDEN,
                                   HIDDEN, 4 * HIDDEN * HIDDEN, 4 * HIDDEN, 4 * HIDDEN * HIDDEN, HIDDEN)]
    sizes += [HIDDEN, HIDDEN]
    import array
    with open(os.path.join(folder, "gpt2_124M.bin"), "wb") as file:
        file.write(struct.pack("<256i", 20240326, 3, CONTEXT, VOCAB, LAYERS, HEADS, HIDDEN, VOCAB, *[0] * 248))
        for size in sizes:
            file.write(array.array("f", (random.gauss(0, 0.02) for _ in range(size))).tobytes())
    for name in ("tiny_shakespeare", "tinyshakespeare"):
        data = os.path.join(folder, "dev", "data", name)
        os.makedirs(data, exist_ok=True)
        for split in ("train", "val"):
            for stem in ("tiny_shakespeare", "tinyshakespeare"):
                with open(os.path.join(data, f"{stem}_{split}.bin"), "wb") as file:
                    count = 65536
                    file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
                    file.write(array.array("H", (random.randrange(VOCAB) for _ in range(count))).tobytes())


def llmc(program, folder):
    times = re.findall(r"took ([0-9.]+) ms", run([program], folder))
    return min(map(float, times)) / 1e3


def torch(interpreter, folder, precision):
    return min(map(float, re.findall(r"seconds ([0-9.e-]+)", run([interpreter, "-c", TORCH, precision], folder))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("--llmc")
    parser.add_argument("--python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precisions", default="f32")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--processor-time", action="store_true")
    arguments = parser.parse_args()
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "train.pipe")
    with tempfile.TemporaryDirectory() as folder:
        values = dict(schedule="single", model="gpt2", microbatches=1, layers=LAYERS, hidden=HIDDEN, heads=HEADS,
                      ffn=4 * HIDDEN, vocab=VOCAB, context=CONTEXT, sequence=LENGTH, microbatch=BATCH)
        contenders = {}
        for precision in arguments.precisions.split(","):
            program = os.path.join(folder, precision)
            run([os.path.abspath(arguments.compiler), source, "-o", program, "-D", f"precision={precision}",
                 *[word for key, value in values.items() for word in ("-D", f"{key}={value}")]], folder)
            contenders[f"pp, one rank, {precision}"] = lambda program=program: ours(program, folder)
            if arguments.python:
                contenders[f"PyTorch, {precision}"] = lambda precision=precision: torch(arguments.python, folder,
                                                                                        precision)
        if arguments.llmc and not PROCESSOR:
            write_llmc_files(folder)
            contenders["llm.c"] = lambda: llmc(os.path.abspath(arguments.llmc), folder)
        best = {name: float("inf") for name in contenders}
        for _ in range(arguments.rounds):
            for name, measure in contenders.items():
                best[name] = min(best[name], measure())
        first = next(iter(best))
        print(f"{'':20} {'ms a step':>10} {'tokens/s':>10} {'of the first, ms x':>19}")
        for name, seconds in best.items():
            print(f"{name:20} {seconds * 1e3:10.2f} {TOKENS / seconds:10.0f} {seconds / best[first]:18.2f}x")


if __name__ == "__main__":
    sys.exit(main())
