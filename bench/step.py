#!/usr/bin/env python3
"""Measures one rank's training step on GPT-2 (layers 4, hidden 256, vocabulary 8192, 4 x 64 tokens), beside peers."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: step.py PP_COMPILE [--llmc PROGRAM] [--python INTERPRETER] [--rounds N]
# --llmc: llm.c's CPU trainer, built by you. --python: an interpreter that can import torch. All run on one thread, in turn,
# `rounds` times; the best step of each counts and ratios are within this run.
import argparse, os, random, re, struct, subprocess, sys, tempfile

LAYERS, HIDDEN, HEADS, VOCAB, BATCH, LENGTH, CONTEXT = 4, 256, 4, 8192, 4, 64, 1024
TOKENS = BATCH * LENGTH

TORCH = f'''
import time, torch, torch.nn as nn, torch.nn.functional as F
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
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
data = torch.randint(0, {VOCAB}, (20, {BATCH}, {LENGTH} + 1))
for batch in data:
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    model(batch[:, :-1], batch[:, 1:]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print("seconds", time.perf_counter() - start)
'''


def run(command, folder, **more):
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True, **more).stdout


def ours(program, folder):
    import json
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


def torch(interpreter, folder):
    return min(map(float, re.findall(r"seconds ([0-9.e-]+)", run([interpreter, "-c", TORCH], folder))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("--llmc")
    parser.add_argument("--python")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "train.pipe")
    with tempfile.TemporaryDirectory() as folder:
        values = dict(schedule="single", model="gpt2", microbatches=1, layers=LAYERS, hidden=HIDDEN, heads=HEADS,
                      ffn=4 * HIDDEN, vocab=VOCAB, context=CONTEXT, sequence=LENGTH, microbatch=BATCH)
        program = os.path.join(folder, "ours")
        run([os.path.abspath(arguments.compiler), source, "-o", program,
             *[word for key, value in values.items() for word in ("-D", f"{key}={value}")]], folder)
        contenders = {"pp, one rank, f32": lambda: ours(program, folder)}
        if arguments.llmc:
            write_llmc_files(folder)
            contenders["llm.c"] = lambda: llmc(os.path.abspath(arguments.llmc), folder)
        if arguments.python:
            contenders["PyTorch"] = lambda: torch(arguments.python, folder)
        best = {name: float("inf") for name in contenders}
        for _ in range(arguments.rounds):
            for name, measure in contenders.items():
                best[name] = min(best[name], measure())
        print(f"{'':20} {'ms a step':>10} {'tokens/s':>10} {'pp is faster by':>16}")
        for name, seconds in best.items():
            print(f"{name:20} {seconds * 1e3:10.2f} {TOKENS / seconds:10.0f} {seconds / best['pp, one rank, f32']:15.2f}x")


if __name__ == "__main__":
    sys.exit(main())
