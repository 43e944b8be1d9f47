#!/usr/bin/env python3
"""Measures the driver of `pp_schedules.torch` alone, and its schedules beside those of torch.distributed.pipelining."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: PYTHON bench/beside_pipelining.py PP_COMPILE [overhead] [schedules] [--rounds 10]
# PYTHON has torch. `overhead`: stages that do next to nothing, in one process (units) and in two (messages); time of
# the processor, median over calls: what the driver takes + what the module, autograd and gloo take inside. `schedules`:
# a llama of 8 layers on two processes, 8 microbatches, f32, over gloo; both drivers take turns on the same modules, and
# their gradients must be equal to the bit. Ours / theirs: milliseconds of a step with its backward and no update, and
# of the processor on both ranks, medians over rounds; a busy machine moves the former.
import argparse, collections, os, statistics, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
MICROBATCHES, LAYERS = 8, 8
# Name: file, schedule, parameters, stages of each rank.
SCHEDULES = {"1F1B": ("1f1b", "one_f_one_b", {}, 1),
             "Interleaved1F1B": ("interleaved", "interleaved_1f1b", {"chunks": 2}, 2),
             "ZBVZeroBubble": ("zb_v", "zb_v", {}, 2)}
SIZES = ((32, 16), (256, 128))                     # hidden, tokens


def program_of(compiler, folder, name, ranks, chunks=None):
    file, schedule, parameters, stages = SCHEDULES[name]
    parameters, stages = ({"chunks": chunks}, chunks) if chunks else (parameters, stages)
    path = os.path.join(folder, f"{name}-{ranks}.json")
    given = {"ranks": ranks, "microbatches": MICROBATCHES, "layers": stages * ranks, **parameters}
    words = [word for key, value in given.items() for word in ("-D", f"{key}={value}")]
    source = os.path.join(ROOT, "stdlib", file + ".pipe")
    subprocess.run([compiler, source, f"--schedule={schedule}", "--emit=json", "-o", path, *words], check=True)
    return path


def llama(hidden, stage, stages):
    """The layers of a stage, and what its place in the model adds."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
            self.q, self.k, self.v, self.out = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(hidden, 3 * hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(3 * hidden, hidden, bias=False)

        def forward(self, x):
            y = self.before(x)
            q, k, v = (part(y).unflatten(-1, (4, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            y = self.after(x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    torch.manual_seed(stage)
    parts = [nn.Embedding(512, hidden)] * (stage == 0) + [Layer() for _ in range(LAYERS // stages)]
    return nn.Sequential(*parts, *[nn.RMSNorm(hidden), nn.Linear(hidden, 512)] * (stage == stages - 1))


def loss(logits, targets):
    import torch
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def theirs(name, modules, group):
    """A schedule of PyTorch on the same modules; {stage: module}."""
    import torch
    from torch.distributed import pipelining
    stages = [pipelining.PipelineStage(module, i, len(modules) * 2, torch.device("cpu"), group=group)
              for i, module in sorted(modules.items())]
    if name == "1F1B":
        return pipelining.Schedule1F1B(stages[0], MICROBATCHES, loss)
    return getattr(pipelining, "Schedule" + name)(stages, MICROBATCHES, loss)


def paired(rank, name, path, hidden, tokens, rounds):
    """(seconds of a step, of the processor) of each round, [ours, theirs]; whether gradients are equal to the bit."""
    import copy
    import torch
    import torch.distributed as dist
    from pp_schedules.torch import Pipeline, Program
    program = Program.load(path)
    stages, seconds = len(program.pieces), [[], []]
    modules = {}
    pipe = Pipeline(program, lambda stage: modules.setdefault(stage, llama(hidden, stage, stages)), loss=loss,
                    split="halves")
    copies = copy.deepcopy(modules)
    other = theirs(name, copies, dist.new_group([0, 1]))
    x, y = (torch.randint(0, 512, (MICROBATCHES, tokens), generator=torch.Generator().manual_seed(1)) for _ in "xy")
    inputs, targets = [(t,) for t in x.split(1)], [(t,) for t in y.split(1)]
    words = {"losses": []} | ({"target": y} if stages - 1 in modules else {})
    for turn in range(rounds + 2):                 # the first two are not counted
        for one in (pipe, other) if turn % 2 else (other, pipe):
            for module in (*modules.values(), *copies.values()):
                module.zero_grad()
            dist.barrier()
            begun, used = time.perf_counter(), time.process_time()
            if one is pipe:
                pipe.backward(inputs, targets)
            else:
                other.step(*([x] if 0 in modules else []), **words)
            used = time.process_time() - used
            dist.barrier()
            seconds[one is other] += [(time.perf_counter() - begun, used)] * (turn > 1)
            if one is pipe:
                kept = {(i, n): p.grad.clone() for i, m in modules.items() for n, p in m.named_parameters()}
            else:
                found = {(i, n): p.grad.clone() for i, m in copies.items() for n, p in m.named_parameters()}
    pipe.close()
    return seconds, all(torch.equal(kept[key], found[key]) for key in kept)


def driver(rank, path, split):
    """{action: (the driver's, what it calls)}, median seconds of the processor, with stages of a linear of sixteen
    numbers. What it calls are the module, autograd, the process group, the norm, the
    scaling of gradients and the optimizer. `measuring` is an action that
    does nothing but call a function that does nothing: what the clock takes of every other number."""
    import torch
    import torch.distributed as dist
    from pp_schedules.torch import Pipeline, Program
    called = [0.0]

    def within(function):
        def call(*arguments, **words):
            begun = time.thread_time()
            try:
                return function(*arguments, **words)
            finally:
                called[0] += time.thread_time() - begun
        return call

    class Nothing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4, bias=False)

        @within
        def forward(self, x):
            return self.linear(x)

    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)  # the first one puts PyTorch's hook around `step`
    for owner, names in ((torch.autograd, ("backward", "grad")), (dist.ProcessGroup, ("send", "recv")),
                         (dist, ("all_reduce",)), (dist.Work, ("wait",)), (torch.optim.SGD, ("step",)),
                         (torch, ("_foreach_norm", "_foreach_mul")), (torch.Tensor, ("item",))):
        for name in names:
            setattr(owner, name, within(getattr(owner, name)))
    torch.optim.SGD.step.hooked = True
    pipe = Pipeline(Program.load(path), lambda stage: Nothing(), loss=lambda y, t: (y * t).sum(), split=split,
                    optimizer=lambda parameters: torch.optim.SGD(parameters, 1e-9))
    batch, times = [(torch.ones(4, 4),)] * MICROBATCHES, collections.defaultdict(list)
    pipe.step(batch, batch)
    steps, *rest, actions = pipe.lists["step"]
    last = len(pipe.program.pieces) - 1

    def timed(act, dead, place, key=None):
        a = actions[place]
        key = key or (a[1] if a[0] == "run" and 0 < a[3] < last else f"{a[0]} {a[2]}" if a[0] != "run" else "")

        def run():
            called[0], begun = 0.0, time.thread_time()
            act()
            times[key].append((time.thread_time() - begun - called[0], called[0]))
        return run, dead, place
    nothing = timed(within(lambda: None), [], 0, "measuring")
    pipe.lists["step"] = [one for step in steps for one in (timed(*step), nothing)], *rest, actions
    for _ in range(50):
        pipe.step(batch, batch)
    pipe.close()
    return {key: tuple(map(statistics.median, zip(*pairs))) for key, pairs in times.items() if key}


def worker(rank, ranks, store, function, arguments, results):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{store}")
    results.put((rank, function(rank, *arguments)))
    dist.barrier()
    results.close()
    results.join_thread()
    os._exit(0)


def run(ranks, folder, function, *arguments):
    """What the function gives on each rank."""
    import torch.multiprocessing as mp
    context = mp.get_context("fork")
    results, store = context.Queue(), tempfile.mktemp(dir=folder)
    processes = [context.Process(target=worker, args=(rank, ranks, store, function, arguments, results))
                 for rank in range(ranks)]
    for process in processes:
        process.start()
    said = [results.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    return [what for _, what in sorted(said, key=lambda one: one[0])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("what", nargs="*", default=["overhead", "schedules"])
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if "overhead" in arguments.what:
            print("| processes, `split` | microseconds of the processor: the driver + what it calls |\n|---|---|")
            for name, ranks, split in (("Interleaved1F1B", 1, "linears"), ("ZBVZeroBubble", 2, "linears"),
                                       ("ZBVZeroBubble", 2, "halves")):
                path = program_of(arguments.compiler, folder, name, ranks, 4 if ranks == 1 else None)
                times = run(ranks, folder, driver, path, split)[-1]
                print(f"| {name}, {ranks}, `{split}` | " + ", ".join("{} {:.0f} + {:.0f}".format(
                    key, *(1e6 * part for part in times[key])) for key in sorted(times)) + " |", flush=True)
        if "schedules" in arguments.what:
            print("| hidden, tokens | " + " | ".join(SCHEDULES) + " |\n|---|" + "---:|" * len(SCHEDULES))
            for hidden, tokens in SIZES:
                cells = []
                for name in SCHEDULES:
                    path = program_of(arguments.compiler, folder, name, 2)
                    ranks = run(2, folder, paired, name, path, hidden, tokens, arguments.rounds)
                    wall = [1e3 * statistics.median(took for took, _ in ranks[0][0][who]) for who in (0, 1)]
                    used = [1e3 * sum(statistics.median(used for _, used in seconds[who]) for seconds, _ in ranks)
                            for who in (0, 1)]
                    equal = all(same for _, same in ranks)
                    cells.append("{:.0f} / {:.0f}, {:.0f} / {:.0f}".format(*wall, *used) +
                                 ("" if equal else " (gradients differ)"))
                print(f"| {hidden}, {tokens} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
