"""Runs schedules of the library on PyTorch modules over 4 processes and compares two steps with one process, in f64."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bridge_torch.py PP_COMPILE FOLDER [--only NAME,..] [--ways WAY,..] [--steps N]
# With more than two steps it is a llama alone, and losses of all steps are compared: roundings add up, so the bound is
# 1e-9. In one process, 200 steps on 8 stages with the microbatches in the other order move losses by 4e-10 and norms by
# 4e-8, for Adam divides by what is nearly nothing where a gradient is; norms and weights are not compared.
# Ends with 77, which ctest calls skipped, where there is no torch.
import copy, faulthandler, os, sys, traceback
from bridge_programs import CASES, PARTS, TIED, join, program_of
from harness import apart, draws

BOUND, SEED, CLIP, MICROBATCHES = 1e-12, 5, 0.5, 8
STEPS = 2


def modules(kind, stages):
    from bridge_models import Llama, Odd, Part, tie
    if kind == "parts":
        return [Part(number, stages) for number in range(stages)]
    made = [(Odd if kind == "odd" else Llama)(stage, stages) for stage in range(stages)]
    return tie(made) if kind == "tied" else made


def reference(kind, stages):
    """[(loss, norm, gradients of each stage)] of each step, and the weights at the end, of one process."""
    import torch
    from bridge_models import batch, counted_sum
    from pp_schedules.torch.units import seed_of
    inputs, targets, weight = batch(MICROBATCHES)
    made, steps = modules(kind, stages), []
    parameters = list({id(p): p for m in made for p in m.parameters()}.values())
    optimizer = torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for mb in range(MICROBATCHES):
            x = inputs[mb]
            for stage, module in enumerate(made):
                torch.manual_seed(seed_of(SEED, step, stage, mb))
                x = module(*x)
                x = x if isinstance(x, tuple) else (x,)
            loss = counted_sum(x[0], *targets[mb]) * weight
            loss.backward()
            total += loss.item()
        gradients = [{n: p.grad.clone() for n, p in m.named_parameters() if p.grad is not None} for m in made]
        norm = torch.nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], CLIP).item()
        optimizer.step()
        steps.append((total, norm, gradients))
    return steps, [{n: p.detach().clone() for n, p in m.named_parameters()} for m in made]


def compared(program, kind, wanted, way):
    """The largest difference of this rank."""
    import torch
    from bridge_models import batch, counted_sum
    from pp_schedules.torch import Pipeline
    stages, ties = len(program.pieces), None
    made = modules(kind, stages)
    numbers = {f"{word} {i}": 3 * i + k for i in range(stages // 3) for k, word in enumerate(("pre", "attn", "post"))}
    numbers["head"] = stages - 1
    prefixes = [f"stages.{i}" for i in range(stages)]
    if kind == "parts":
        prefixes = [key.replace(" ", ".") for key in numbers]
    if kind == "tied":                             # each process has a copy of its own of what two stages share
        made[-1].head.weight = torch.nn.Parameter(made[-1].head.weight.detach().clone())
        ties = {0: ["embed.weight"], stages - 1: ["head.weight"]}
    inputs, targets, weight = batch(MICROBATCHES)
    split, lanes = (way, "edge") if way != "pair" else ("linears", "pair")
    pipe = Pipeline(program, lambda stage: copy.deepcopy(made[numbers.get(stage, stage)]), loss=counted_sum, seed=SEED,
                    ties=ties, clip=CLIP, split=split, lanes=lanes,
                    optimizer=lambda ps: torch.optim.AdamW(ps, lr=1e-2))
    steps, after = wanted
    found = [abs(pipe.eval(inputs, targets, weight) - steps[0][0])] if kind != "odd" else []
    for step, (loss, norm, gradients) in enumerate(steps):
        total = pipe.step(inputs, targets, weight)
        found += [abs(total - loss)] + ([abs(pipe.norm - norm)] if pipe.norm is not None and STEPS == 2 else [])
        for i, p in pipe.pieces.items():
            for name, q in zip(p.names, p.parameters):
                shared = kind == "tied" and name == "head.weight"
                if p.optimizer and not pipe.sharded and step == 0 and name in gradients[i] and not shared:
                    found.append((q.grad - gradients[i][name]).abs().max().item())
    state = pipe.state_dict()
    for i, names in enumerate(after if STEPS == 2 else ()):
        for name, tensor in names.items():
            if f"{prefixes[i]}.{name}" in state:
                found.append((state[f"{prefixes[i]}.{name}"] - tensor).abs().max().item())
    pipe.load_state_dict({f"{prefixes[i]}.{name}": t for i, names in enumerate(after) for name, t in names.items()})
    pipe.close()
    return apart(found, [0.0] * len(found)), len(state)


def worker(rank, ranks, cases, store, results):
    import torch.distributed as dist
    from pp_schedules import Program
    join(rank, ranks, store)
    references = {}
    for name, kind, way, path in cases:
        faulthandler.dump_traceback_later(600, exit=True)
        try:
            program = Program.load(path)
            stages = len(program.pieces)
            if (kind, stages) not in references:
                references[kind, stages] = reference(kind, stages)
            worst, saved = compared(program, kind, references[kind, stages], way)
        except Exception:
            results.put((name, kind, way, rank, traceback.format_exc(), 0))
            results.close()
            results.join_thread()
            os._exit(1)
        results.put((name, kind, way, rank, worst, saved))
    dist.barrier()
    results.close()
    results.join_thread()
    os._exit(0)


def run(cases, ranks, folder):
    """What the ranks say of the cases: [(name, kind, way, rank, difference or an error, saved tensors)]."""
    import torch.multiprocessing as mp
    context, store = mp.get_context("fork"), os.path.join(os.path.abspath(folder), f"store-{os.getpid()}")
    results, said = context.Queue(), []
    processes = [context.Process(target=worker, args=(rank, ranks, cases, store, results)) for rank in range(ranks)]
    for process in processes:
        process.start()
    while len(said) < len(cases) * ranks and (any(p.is_alive() for p in processes) or not results.empty()):
        try:
            said.append(results.get(timeout=1))
        except Exception:                          # nothing yet
            continue
    for process in processes:
        process.join()
    return said


def main():
    global STEPS
    arguments = draws(only="", ways="linears,halves,whole,pair", steps=STEPS)
    STEPS = arguments.steps
    try:
        import torch._dynamo  # optimizers import it, which takes 3 s of a processor: once, before the forks
    except ImportError:
        print("torch is not installed: nothing was run")
        return 77
    picked, ways = arguments.only.split(",") if arguments.only else [*CASES, *PARTS], arguments.ways.split(",")
    cases = []
    for number, name in enumerate(picked):
        program_of(arguments.compiler, arguments.folder, name, 4, MICROBATCHES)
        halved = name.startswith(("zb", "v_", "dualpipe", "wzb"))
        kinds = ("llama", "odd") if STEPS == 2 else ("llama",)
        for kind in kinds if name not in PARTS else ("parts",):
            path = os.path.join(arguments.folder, f"{name}-4-{MICROBATCHES}.json")
            some = ways if halved and kind == "odd" else [ways[number % len(ways)]]
            cases += [(name, kind, way, path) for way in some]
        if name in TIED and STEPS == 2:
            program_of(arguments.compiler, arguments.folder, name, 4, MICROBATCHES, tied=True)
            path = os.path.join(arguments.folder, f"tied-{name}-4-{MICROBATCHES}.json")
            cases.append((name, "tied", ways[0], path))
    said = run(cases, 4, arguments.folder)
    failed, seen = 0, {}
    for name, kind, way, rank, worst, saved in said:
        if isinstance(worst, str):
            failed += 1
            print(f"{name} on {kind}, {way}, rank {rank}: {worst}")
        else:
            seen.setdefault((name, kind, way), []).append((worst, saved))
    for case, ranks in seen.items():
        worst, saved = max(w for w, _ in ranks), sum(s for _, s in ranks)
        if not worst <= (BOUND if STEPS == 2 else 1e-9) or len(ranks) != 4 or not saved:
            failed += 1
            print(f"{case}: differs by {worst:.1e} on {len(ranks)} ranks, {saved} tensors saved")
    failed += len(cases) - len(seen)
    largest = max((w for ranks in seen.values() for w, _ in ranks), default=float("nan"))
    print(f"largest difference {largest:.1e}; {len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
