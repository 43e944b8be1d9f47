#!/usr/bin/env python3
"""Times a training step of llama layers on one GPU: our packed programs, and PyTorch, eager and compiled."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: step.py PROGRAMS TEXT     (programs `step.<length>.<schedule>/program`; sizes as in bench/gpu/pack.sh)
# Both hold bf16 weights with f32 masters, sum gradients of four microbatches in f32, and step AdamW. PyTorch's sums and
# masters are f32 tensors beside bf16 parameters; its attention is its own choice of flash kernels. The best step after
# warm-up counts; tokens/s and FLOP/s use its time, and the arithmetic that our program counts (causal pairs once). The
# last column is for the program on one rank: the part of a step with the graph that is not inside its tasks. The times
# of tasks are the device's own, from a run with --profile, in which kernels are launched one by one and far ahead.
# Engines is the program's own report: attention by cuDNN or by our kernels, products with an epilogue.
import glob, json, os, re, subprocess, sys, time
import ops

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, MICROBATCHES = 4, 4096, 32, 8, 14336, 4096, 4
STEPS, WARM = 8, 3


def ours(folder, text, *options, **environment):
    log = os.path.join(folder, "log")
    if os.path.exists(log):
        os.remove(log)
    done = subprocess.run([os.path.abspath(os.path.join(folder, "program")), "--in-process", "--data", text, "--steps",
                           str(STEPS), "--log", log, *options], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, **environment))
    if done.returncode:
        return None, None, (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    with open(log) as file:
        lines = [json.loads(line) for line in file][WARM:]
    best = min(lines, key=lambda line: line["seconds"])
    engines = [line.split("  ", 1)[1] for line in done.stdout.splitlines() if line.startswith("engines  ")]
    return best["seconds"], best["flop_per_s"] * best["seconds"], " ".join(engines)


def inside(folder, text):
    """Seconds of a step inside tasks, by the device's clock."""
    path = os.path.join(folder, "profile")
    done = subprocess.run([os.path.abspath(os.path.join(folder, "program")), "--in-process", "--data", text, "--steps",
                           str(STEPS), "--profile", path], capture_output=True, text=True, timeout=120)
    if done.returncode:
        return None
    with open(path) as file:
        profile = json.load(file)
    return sum(task["count"] * task["mean"] for task in profile["tasks"]) / profile["steps"]


def by_op(folder, text):
    """The kinds of op that take longest, beside what an H100 is said to take for them; or why there are none."""
    path = os.path.join(folder, "profile-ops")
    done = subprocess.run([os.path.abspath(os.path.join(folder, "program")), "--in-process", "--data", text, "--steps",
                           str(STEPS), "--profile", path, "--profile-ops"], capture_output=True, text=True,
                          timeout=120)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    return ops.table(path, os.path.join(folder, "stats.json"))


def torch_step(length, compiled):
    import torch
    import torch.nn.functional as F
    from torch import nn

    width = HIDDEN // HEADS

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(HIDDEN))

        def forward(self, x):
            return F.rms_norm(x, (HIDDEN,), self.gain, 1e-5)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = Norm(), Norm()
            self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
            self.k = nn.Linear(HIDDEN, KV_HEADS * width, bias=False)
            self.v = nn.Linear(HIDDEN, KV_HEADS * width, bias=False)
            self.o = nn.Linear(HIDDEN, HIDDEN, bias=False)
            self.gate, self.up = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(HIDDEN, FFN, bias=False)
            self.down = nn.Linear(FFN, HIDDEN, bias=False)

        def forward(self, x, cos, sin):
            def heads(t, count, turned):
                t = t.view(1, length, count, width).transpose(1, 2)
                if not turned:
                    return t
                left, right = t.chunk(2, -1)
                return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

            h = self.n1(x)
            q, k, v = heads(self.q(h), HEADS, True), heads(self.k(h), KV_HEADS, True), heads(self.v(h), KV_HEADS, False)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o(o.transpose(1, 2).reshape(1, length, HIDDEN))
            h = self.n2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.norm = nn.Embedding(VOCAB, HIDDEN), Norm()
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

        def forward(self, tokens, targets, cos, sin):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x, cos, sin)
            return F.cross_entropy(self.head(self.norm(x)).view(-1, VOCAB), targets.view(-1))

    torch.manual_seed(1)
    model = Model().to("cuda", torch.bfloat16)
    parameters = list(model.parameters())
    masters = [p.detach().float() for p in parameters]
    for master in masters:
        master.grad = torch.zeros_like(master)
    optimizer = torch.optim.AdamW(masters, lr=3e-4, fused=True)
    angle = torch.arange(length, device="cuda")[:, None] * 10000.0 ** (
        -torch.arange(0, width, 2, device="cuda") / width)
    cos, sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)
    data = torch.randint(0, VOCAB, (MICROBATCHES, 1, length + 1), device="cuda")
    run = torch.compile(model) if compiled else model

    def step():
        for batch in data:
            (run(batch[:, :-1], batch[:, 1:].contiguous(), cos, sin) / MICROBATCHES).backward()
            with torch.no_grad():
                torch._foreach_add_([m.grad for m in masters], [p.grad for p in parameters])
            for p in parameters:
                p.grad = None
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(parameters, masters)
            torch._foreach_zero_([m.grad for m in masters])

    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[WARM:])


def epilogues(programs, text):
    """GPT-2's step with gelu, residuals and bias gradients in products, and each by a kernel of its own."""
    print("\n| tokens | PP_EPILOGUES | ms a step | TFLOP/s | of `off` | engines |\n|---|---|---|---|---|---|",
          flush=True)
    for folder in glob.glob(f"{programs}/step-gpt2.*"):
        length, first = re.search(r"step-gpt2\.(\d+)\.", folder).group(1), None
        for wish in ("off", "gelu", "on"):
            seconds, flops, said = ours(folder, text, PP_EPILOGUES=wish)
            if seconds is None:
                print(f"| {length} | {wish} | {said} | | | |", flush=True)
                continue
            first = first or seconds
            print(f"| {length} | {wish} | {seconds * 1e3:.2f} | {flops / seconds * 1e-12:.1f} | {first / seconds:.3f} "
                  f"| {said} |",
                  flush=True)


def experts(programs, text):
    """A layer of 8 experts of which each token goes through two, beside the dense layers above."""
    print("\n| tokens | what | ms a step | TFLOP/s | engines |\n|---|---|---|---|---|", flush=True)
    for folder in glob.glob(f"{programs}/step-mixtral.*"):
        seconds, flops, said = ours(folder, text)
        length = re.search(r"step-mixtral\.(\d+)\.", folder).group(1)
        times = f"{seconds * 1e3:.2f} | {flops / seconds * 1e-12:.1f} | {said}" if seconds else f"{said} | |"
        print(f"| {length} | pp, mixtral, 8 experts, 2 of them | {times} |", flush=True)


def main():
    programs, text = sys.argv[1:]
    print("| tokens | what | ms a step | tokens/s | TFLOP/s | of ours | outside tasks | engines |\n|" + "---|" * 8,
          flush=True)
    lengths = sorted({int(re.search(r"step\.(\d+)\.", path).group(1)) for path in glob.glob(f"{programs}/step.*")})
    for length in lengths:
        first, flops = None, None

        def row(name, seconds, outside="", engines=""):
            rate = f"{flops / seconds * 1e-12:.1f}" if flops else ""
            share = f"{first / seconds:.2f}" if first else ""
            print(f"| {length} | {name} | {seconds * 1e3:.2f} | {length * MICROBATCHES / seconds:.0f} | {rate} | "
                  f"{share} | {outside} | {engines} |",
                  flush=True)

        folders = glob.glob(f"{programs}/step.{length}.*")
        for folder in sorted(folders, key=lambda path: (not path.endswith(".single"), path)):
            for options in ((), ("--no-graph",)):
                seconds, counted, said = ours(folder, text, *options)
                name = " ".join(["pp", folder.split(".")[-1], *options])
                if seconds is None:
                    print(f"| {length} | {name} | {said} | | | | | |", flush=True)
                    continue
                first, flops = first or seconds, flops or counted
                tasks = inside(folder, text) if folder.endswith(".single") and not options else None
                row(name, seconds, f"{100 * (1 - tasks / seconds):.1f} %" if tasks else "", said)
        for compiled in (False, True):
            name = "PyTorch compiled" if compiled else "PyTorch eager"
            try:
                row(name, torch_step(length, compiled))
            except Exception as error:  # no PyTorch, or not enough memory: ours is of interest all the same
                print(f"| {length} | {name} | {type(error).__name__}: {str(error).splitlines()[0][:100]} | | | | | |",
                      flush=True)
    epilogues(programs, text)
    experts(programs, text)
    for folder in sorted(glob.glob(f"{programs}/step*.single")):
        print(f"\n{os.path.basename(folder)}, by op:\n\n{by_op(folder, text)}", flush=True)


if __name__ == "__main__":
    main()
