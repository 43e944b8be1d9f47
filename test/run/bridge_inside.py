"""Tries what stands around `pp_schedules.torch`: refusals, failures, late ranks, frozen stages, replicas, own loops."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bridge_inside.py PP_COMPILE FOLDER [--only NAME,..]
# Ends with 77, which ctest calls skipped, where there is no torch.
import copy, json, os, re, signal, sys, time, traceback
from bridge_programs import join, pair, program_of
from harness import ROOT, call, draws

MICROBATCHES = 8


def pipeline(program, stages, **more):
    """A pipeline on a llama, with the parts that are not given."""
    from bridge_models import Llama, counted_sum
    from pp_schedules.torch import Pipeline
    made = more.pop("made", None) or [Llama(stage, stages) for stage in range(stages)]
    return Pipeline(program, lambda stage: copy.deepcopy(made[stage]), loss=more.pop("loss", counted_sum), **more), made


def refusal(make, *words):
    """Calls `make`, which must be refused with a text that has all of the words."""
    from pp_schedules import Refused
    try:
        make()
    except Refused as refused:
        missing = [word for word in words if word not in str(refused)]
        if missing:
            raise RuntimeError(f"the refusal lacks {missing}: {refused}") from refused
        return
    raise RuntimeError(f"not refused: {words}")


def one_process(made, inputs, targets, weight):
    """The loss, and gradients under `.grad`."""
    from bridge_models import counted_sum
    total = 0.0
    for x, y in zip(inputs, targets):
        for module in made:
            x = module(*x) if isinstance(x, tuple) else module(x)
        loss = counted_sum(x, *y) * weight
        loss.backward()
        total += loss.item()
    return total


def close(pipe, made):
    """Raises unless gradients are those of one process."""
    for i, p in pipe.pieces.items():
        for name, q in zip(p.names, p.parameters):
            want = dict(made[i].named_parameters())[name].grad
            if (q.grad is None) != (want is None) or want is not None and not (
                    q.grad - want).abs().max() <= 1e-12:
                raise RuntimeError(f"the gradient of stage {i}, `{name}` differs")


def refusals(rank, programs):
    """Each is a sentence, on all ranks, before anything hangs."""
    import torch
    from bridge_models import Odd, batch
    from torch import nn
    inputs, targets, weight = batch(MICROBATCHES)
    program = programs["1f1b"]
    refusal(lambda: pipeline(programs["four"], 4), "the program has 4 ranks, and the group has 2 processes")
    refusal(lambda: pipeline(programs["other" if rank else "1f1b"], 2), "the ranks have different programs")
    refusal(lambda: pipeline(program, 2, ties={0: ["embed.weight"], 1: ["head.weight"]}), "was not told")
    refusal(lambda: pipeline(programs["tied"], 2), "`ties` names none")
    refusal(lambda: pipeline(programs["tied"], 2, ties={0: ["embed.weight"], 1: ["haed.weight"]}), "`haed.weight`")
    refusal(lambda: pipeline(programs["parts"], 7, made={0: None}), "`stages` has no part `")
    refusal(lambda: pipeline(program, 2, split="thirds"), "`thirds`")
    refusal(lambda: pipeline(program, 2, made=[nn.Identity(), nn.Identity()]), "has no parameters")
    refusal(lambda: pipeline(programs["frozen"], 2), "stage 0 is frozen")
    broken = copy.deepcopy(program)
    actions = broken.data["programs"][0]["actions"]
    last = next(i for i in reversed(range(len(actions))) if actions[i][:2] == ["run", "B"])
    del actions[last]
    refusal(lambda: pipeline(broken, 2), "gradients: rank 0, U(0)", "(0, 7)")
    pipe, _ = pipeline(programs["zero1"], 4)
    refusal(lambda: pipe.backward(inputs, targets, weight), "give `optimizer`")
    pipe, _ = pipeline(programs["wzb1"], 2)
    refusal(lambda: pipe.backward(inputs, targets, weight), "moves new weights behind its updates")
    pipe, _ = pipeline(programs["tied zb_v"], 4, ties={0: ["embed.weight"], 3: ["head.weight"]})  # both on rank 0
    refusal(lambda: pipe.backward(inputs, targets, weight), "moves new weights behind its updates")
    pipe, _ = pipeline(program, 2, made=[Odd(s, 2) for s in range(2)])
    pipe.eval(None if rank else inputs, targets if rank else None, weight)
    refusal(lambda: pipe.step(inputs[:3], targets[:3], weight), "has 8 microbatches, and `inputs` has 3")
    refusal(lambda: pipe.step(None, None, weight), f"and `{'targets' if rank else 'inputs'}` is not given")
    pipe.close()
    refusal(lambda: pipe.step(inputs, targets, weight), "closed")
    return torch.get_num_threads()


def shapes(rank, programs):
    """A microbatch of another shape is refused where it is made, and every rank hears it."""
    from bridge_models import batch
    pipe, _ = pipeline(programs["1f1b"], 2)
    inputs, targets, weight = batch(MICROBATCHES)
    inputs[3] = (inputs[3][0][:, :4],)
    try:
        pipe.step(inputs, targets, weight)
    except Exception as error:
        if "the shapes [(2, 4, 8)] are not those of the first microbatch, [(2, 5, 8)]; " \
                "`shapes=\"sent\"` sends them along" not in str(error) or \
                "F(0, 3)" not in str(error):
            raise RuntimeError(f"rank {rank} says: {error}") from error
        return
    raise RuntimeError("a microbatch of another shape was taken")


def fails(rank, programs):
    """A unit that fails is named on every rank, with its line, although no process ends."""
    from bridge_models import Llama, batch

    class Bad(Llama):
        def forward(self, x):
            if x.abs().sum():                      # not the zeros of the run that asks for shapes
                raise ArithmeticError("the sun is down")
            return super().forward(x)
    made = [Llama(0, 4), Bad(1, 4), Llama(2, 4), Llama(3, 4)]
    pipe, _ = pipeline(programs["four"], 4, made=made)
    begun = time.monotonic()
    try:
        pipe.step(*batch(MICROBATCHES))
    except Exception as error:
        if not re.search(r"rank 1, F\(1, 0\) at 1f1b\.pipe:\d+:\d+: the sun is down", str(error)):
            raise RuntimeError(f"rank {rank} says: {error}") from error
        if len(pipe.state_dict()) < 5 or time.monotonic() - begun > 20:
            raise RuntimeError("no state, or late") from error
        return                                     # nobody has ended: worker meets the others behind this
    raise RuntimeError("nothing failed")


def fails_last(rank, programs):
    """The last unit of a rank fails when the others have nothing left to do but to hear the loss."""
    import torch
    from bridge_models import batch

    class Bad(torch.optim.SGD):
        def step(self, closure=None):
            if rank == 0:
                time.sleep(1)
                raise ArithmeticError("the sun is down")
    pipe, _ = pipeline(programs["1f1b"], 2, optimizer=lambda parameters: Bad(parameters, lr=0.1))
    begun = time.monotonic()
    try:
        pipe.step(*batch(MICROBATCHES))
    except Exception as error:
        if not re.search(r"rank 0, U\(0\) at 1f1b\.pipe:\d+:\d+: the sun is down", str(error)):
            raise RuntimeError(f"rank {rank} says: {error}") from error
        if time.monotonic() - begun > 20:
            raise RuntimeError("it is late") from error
        return
    raise RuntimeError("nothing failed")


def frozen(rank, programs):
    """A first stage that trains nothing: it runs F alone."""
    from bridge_models import Llama, batch
    made = [Llama(stage, 2) for stage in range(2)]
    made[0].requires_grad_(False)
    pipe, _ = pipeline(programs["frozen"], 2, made=made)
    inputs, targets, weight = batch(MICROBATCHES)
    total = pipe.step(inputs, targets, weight)
    if not abs(total - one_process(made, inputs, targets, weight)) <= 1e-12:
        raise RuntimeError("the loss differs")
    close(pipe, made)
    if rank == 0 and {a[1] for a in pipe.me["actions"] if a[0] == "run"} != {"F"}:
        raise RuntimeError("the frozen stage runs more than F")


def own_loop(rank, programs):
    """`backward` leaves gradients; `memory`, `trace`, `needs`; a loss of a router; without a seed R has F's masks."""
    import torch
    from bridge_models import Llama, batch
    from pp_schedules.torch import add_loss
    inputs, targets, weight = batch(MICROBATCHES)

    class Router(Llama):
        def forward(self, x):
            y = super().forward(x)
            return add_loss(y, y.pow(2).sum())

    made = [Router(0, 2), Llama(1, 2)]
    pipe, _ = pipeline(programs["zb_h1"], 2, made=made, optimizer=lambda ps: torch.optim.SGD(ps, 1.0))
    before = [p.clone() for p in pipe.parameters()]
    with pipe.trace(f"trace-{rank}.json"):
        pipe.backward(inputs, targets, weight)
    one_process([lambda x: Llama.forward(made[0], x), made[1]], inputs, targets, weight)
    for mb in range(MICROBATCHES):                 # what the router adds
        (Llama.forward(made[0], inputs[mb][0]).pow(2).sum() * weight).backward()
    close(pipe, made)
    if any((a - b).abs().max() for a, b in zip(before, pipe.parameters())):
        raise RuntimeError("`backward` changed weights")
    with open(f"trace-{rank}.json") as file:
        events = json.load(file)["traceEvents"]
    if len(events) != len(pipe.me["actions"]) or not events[-1]["name"].startswith("U("):
        raise RuntimeError(f"the trace has {len(events)} events")
    if min(pipe.memory().values()) <= 0 or pipe.needs() != {
            "inputs": [] if rank else list(range(8)), "targets": list(range(8)) if rank else []}:
        raise RuntimeError(f"{pipe.memory()} {pipe.needs()}")


def homes(rank, programs):
    """As a trainer that fills its modules last: they are made on `meta`, get storage and values behind the Pipeline,
    are updated outside, and get other storage between steps. `backward` adds up; keywords go to all stages."""
    import torch
    from bridge_models import Llama, batch, counted_sum
    from pp_schedules.torch import Pipeline

    class Scaled(Llama):
        def forward(self, x, scale=None):
            return super().forward(x) * scale

    inputs, targets, weight = batch(MICROBATCHES)
    words = [{"scale": torch.tensor(1.0 + mb)} for mb in range(MICROBATCHES)]
    made = [Scaled(stage, 4) for stage in range(4)]
    empty = [copy.deepcopy(module).to("meta") for module in made]
    pipe = Pipeline(programs["zb_v"], empty.__getitem__, loss=counted_sum)
    refusal(lambda: pipe.backward(inputs, targets, weight, words), "is on `meta` at the first step")
    for stage, p in pipe.pieces.items():
        empty[stage].to_empty(device="cpu")
        empty[stage].load_state_dict(made[stage].state_dict())
    optimizer = torch.optim.SGD([q for i in pipe.pieces for q in empty[i].parameters()], 0.1)
    other = torch.optim.SGD([q for module in made for q in module.parameters()], 0.1)
    for step in range(2):
        optimizer.zero_grad()
        other.zero_grad()
        for _ in range(2):                         # two batches for one update
            total = pipe.backward(inputs, targets, weight, words)
            want = 0.0
            for mb, (x,) in enumerate(inputs):
                for module in made:
                    x = module(x, **words[mb])
                loss = counted_sum(x, *targets[mb])
                (loss * weight).backward()
                want += loss.item() * weight
                if mb in pipe.losses and not abs(pipe.losses[mb] - loss.item()) <= 1e-9:
                    raise RuntimeError("a microbatch's loss differs")
        if not abs(total - want) <= 1e-9 or (len(pipe.losses) == 8) != (rank == 0):
            raise RuntimeError(f"rank {rank}: the loss is {total}, not {want}; {len(pipe.losses)} losses")
        close(pipe, made)
        optimizer.step()
        other.step()
        for stage in pipe.pieces:                  # other storage, the same parameters
            for q in empty[stage].parameters():
                q.data = q.data.clone()
    pipe.eval(inputs, targets, weight, words)
    empty[next(iter(pipe.pieces))].load_state_dict(made[next(iter(pipe.pieces))].state_dict(), assign=True)
    refusal(lambda: pipe.eval(inputs, targets, weight, words), "is another Parameter")


def masks(rank, programs):
    """With recompute, dropout and no seed: R makes F's masks, so gradients are those of a run that keeps stashes."""
    import torch
    from bridge_models import Odd, batch
    inputs, targets, weight = batch(MICROBATCHES)
    made, gradients = [Odd(stage, 2) for stage in range(2)], []
    for name in ("1f1b", "recompute"):
        pipe, _ = pipeline(programs[name], 2, made=made)
        torch.manual_seed(rank)
        pipe.step(inputs, targets, weight)
        gradients.append([q.grad for q in pipe.parameters() if q.grad is not None])
    if not (gradients[0] and all((a - b).abs().max() <= 1e-12 for a, b in zip(*gradients))):
        raise RuntimeError("R has other masks than F")


def cuts(rank, programs):
    """`split` of a Sequential: names stay, so the state of all ranks is that of the model."""
    import torch
    from bridge_models import Layer, VOCABULARY, WIDTH, batch, counted_sum
    from pp_schedules.torch import split
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, WIDTH, dtype=torch.double), Layer(), Layer(),
                                torch.nn.Linear(WIDTH, VOCABULARY, dtype=torch.double))
    inputs, targets, weight = batch(MICROBATCHES)
    from pp_schedules.torch import Pipeline
    pipe = Pipeline(programs["1f1b"], split(model, programs["1f1b"]), loss=counted_sum)
    pipe.step(inputs, targets, weight)
    one_process([model], inputs, targets, weight)
    want = {name: p.grad for name, p in model.named_parameters()}
    mine = dict(pipe.named_parameters())
    if set(mine) != {name for name in want if (int(name.split(".")[0]) >= 2) == (rank == 1)}:
        raise RuntimeError(f"rank {rank} has {sorted(mine)}")
    if not all((q.grad - want[name]).abs().max() <= 1e-12 for name, q in mine.items()):
        raise RuntimeError("gradients differ")
    refusal(lambda: split(model, programs["1f1b"], [["0"], ["4"]]), "`4` is no module")
    refusal(lambda: split(model[1], programs["1f1b"]), "`names` says")
    model[3].weight = model[0].weight
    refusal(lambda: split(model, programs["1f1b"]), "share a weight")


def copies(rank, programs):
    """Two pipelines of two ranks side by side, which sum their gradients once; and a pipeline with two copies of each
    stage, where `backward` leaves the whole gradient with both."""
    import torch
    from bridge_models import Llama, batch
    (group, replicas), rows = pair(rank), rank // 2
    inputs, targets, weight = batch(MICROBATCHES)
    made = [Llama(stage, 4) for stage in range(4)]
    pipe, _ = pipeline(programs["zb_v"], 4, made=made, group=group, replicas=replicas, clip=1.0,
                       optimizer=lambda ps: torch.optim.SGD(ps, 0.1))
    pipe.step([(x[rows:rows + 1],) for x, in inputs], [(y[rows:rows + 1],) for y, in targets], weight)
    one_process(made, inputs, targets, weight)
    close(pipe, made)
    pipe, made = pipeline(programs["chimera"], 4)
    pipe.backward(inputs, targets, weight)
    one_process(made, inputs, targets, weight)
    close(pipe, made)


def late(rank, programs):
    """A rank that is stopped is called late on the others, and the step ends when it goes on."""
    from bridge_models import batch
    pipe, _ = pipeline(programs["1f1b"], 2, patience=0.5)
    pipe.step(*batch(MICROBATCHES))
    if rank == 1:
        if os.fork() == 0:                         # wakes this process again
            time.sleep(3)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
    pipe.step(*batch(MICROBATCHES))
    pipe.close()


def aliases(rank, programs):
    """Two weights whose gradients autograd makes as one tensor: each microbatch counts once. Backwards of plain PyTorch
    that add to `.grad` count it twice, so here one process differentiates the sum of all microbatches."""
    import torch
    from bridge_models import WIDTH, Llama, batch
    from pp_schedules.torch.units import apart
    inputs, targets, weight = batch(MICROBATCHES)

    class Both(Llama):
        def __init__(self, stage, stages):
            super().__init__(stage, stages)
            self.a, self.b = (torch.nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.double) / 3) for _ in "ab")
            self.c = torch.nn.Parameter(torch.randn(1, 5, WIDTH, dtype=torch.double))

        def forward(self, x):
            x = (x if self.embed is None else self.embed(x)) @ torch.stack([self.a, self.b]).sum(0)
            x = self.layer(torch.stack([x, self.c.expand(x.shape[0], -1, -1)]).sum(0))
            return x if self.head is None else self.head(self.norm(x))
    for name, stages in (("1f1b", 2), ("zb_v", 4), ("recompute", 2)):
        made = [Both(stage, stages) for stage in range(stages)]
        pipe, _ = pipeline(programs[name], stages, made=made)
        pipe.step(inputs, targets, weight)
        x, t = (torch.cat([one for one, in all]) for all in (inputs, targets))
        one_process(made, [(x,)], [(t,)], weight)
        close(pipe, made)
    one, two = torch.ones(6), torch.ones(3)        # of one storage, and of another
    sums = apart([one[:3], one[:3], two, None], [two])
    if len({g.data_ptr() for g in (two, *sums[:3])}) != 4 or not all(g.eq(1).all() for g in sums[:3]):
        raise RuntimeError(f"{sums}")


def halves(rank, programs):
    """I and W together make the gradients of one backward, on graphs of many shapes."""
    import torch
    from bridge_models import graphs
    from pp_schedules.torch.backward import Linears, Pending, products
    from torch.autograd.graph import get_gradient_edge
    from pp_schedules.torch.units import adder
    torch.manual_seed(0)
    for name, module in graphs().items():
        module.double()
        x = torch.randint(0, 9, (4, 5)) if module.tokens else torch.randn(4, 5, 6, dtype=torch.double)
        x.requires_grad_(not module.tokens)
        inputs, parameters = [x][module.tokens:], list(module.parameters())
        trained = [p for p in parameters if p.requires_grad]
        y = module(x)
        dy = torch.randn_like(y)
        want = torch.autograd.grad(y, trained + inputs, dy)
        places, sums = {id(p): place for place, p in enumerate(parameters)}, [None] * len(parameters)
        pending = Pending([get_gradient_edge(module(x))], [dy], [x], places)
        pending.weights(adder(sums))
        ways = {"halves": [g for g in sums if g is not None] + pending.dinputs[module.tokens:]}
        linears, queue, sums = Linears(module), [], [None] * len(parameters)
        linears.enter(queue, False)
        y = module(x)
        linears.enter(queue, True)
        y.backward(dy)
        linears.leave()
        products(queue, places, adder(sums))
        both = [p.grad if s is None else s if p.grad is None else s + p.grad for p, s in zip(parameters, sums)]
        ways["linears"] = [g for g in both if g is not None] + [x.grad for x in inputs]
        for way, made in ways.items():
            apart = torch.stack([(a - b).abs().max() for a, b in zip(want, made)]).max().item()
            if len(want) != len(made) or not apart <= 1e-12:
                raise RuntimeError(f"{name}, {way}: {len(made)} gradients for {len(want)}, {apart:.1e} apart")


# Name: (function, ranks).
CHECKS = {"halves": (halves, 1), "aliases": (aliases, 2), "refusals": (refusals, 2), "shapes": (shapes, 2),
          "fails": (fails, 4), "fails_last": (fails_last, 2), "frozen": (frozen, 2), "own_loop": (own_loop, 2),
          "homes": (homes, 2), "masks": (masks, 2), "cuts": (cuts, 2), "copies": (copies, 4), "late": (late, 2)}


def worker(check, rank, ranks, paths, store, errors):
    import torch.distributed as dist
    from pp_schedules import Program
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.chdir(os.path.dirname(errors))
    try:
        join(rank, ranks, store)
        check(rank, {key: Program.load(path) for key, path in paths.items()})
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        time.sleep(2)                              # the others hear of it before this end of the sockets closes
        os._exit(1)
    dist.barrier()
    os._exit(0)


# Name: (case, ranks, tied).
PROGRAMS = {"1f1b": ("1f1b", 2, False), "four": ("1f1b", 4, False), "other": ("gpipe", 2, False),
            "tied": ("1f1b", 2, True), "parts": ("helixpipe", 2, False), "zero1": ("zero1", 2, False),
            "tied zb_v": ("zb_v", 2, True), "zb_h1": ("zb_h1", 2, False), "wzb1": ("wzb1", 2, False),
            "zb_v": ("zb_v", 2, False),
            "bpipe": ("bpipe", 4, False), "fsdp": ("fsdp", 2, False), "chimera": ("chimera", 4, False),
            "recompute": ("1f1b_recompute", 2, False), "vocabulary": ("1f1b_vocabulary", 4, False),
            "terapipe": ("terapipe", 2, False), "slimpipe": ("slimpipe", 2, False)}


def programs_of(compiler, folder):
    """{name: path} of the programs that the checks run."""
    paths = {}
    for name, (case, ranks, tied) in PROGRAMS.items():
        program_of(compiler, folder, case, ranks, MICROBATCHES, tied)
        paths[name] = os.path.join(os.path.abspath(folder), f"{'tied-' * tied}{case}-{ranks}-{MICROBATCHES}.json")
    for name in ("redone", "halved"):
        paths[name] = os.path.join(os.path.abspath(folder), name + ".json")
        call([compiler, os.path.join(ROOT, "test", "run", "Inputs", "redone.pipe"), f"--schedule={name}", "--emit=json",
              "-o", paths[name], "-D", "ranks=2", "-D", "microbatches=8", "-D", "layers=2", "-D", "slices=3"])
    for name, more in (("frozen", "freeze=embed_tokens,layers.0."), ("unclipped", "clip=0")):
        paths[name] = os.path.join(os.path.abspath(folder), name + ".json")
        call([compiler, os.path.join(ROOT, "examples", "train.pipe"), "--emit=json", "-o", paths[name], "-D",
              "schedule=1f1b", "-D", "ranks=2", "-D", "microbatches=8", "-D", "layers=2", "-D", more])
    return paths


def main(checks):
    """Runs the checks, {name: (function, ranks)}, each in processes of its own; those named more_.. if asked for."""
    arguments = draws(only="")
    try:
        import torch.multiprocessing as mp
        import torch._dynamo  # optimizers import it, which takes 3 s of a processor: once, before the forks
    except ImportError:
        print("torch is not installed: nothing was run")
        return 77
    paths, failed = programs_of(arguments.compiler, arguments.folder), 0
    picked = arguments.only.split(",") if arguments.only else [name for name in checks if not name.startswith("more_")]
    for name in picked:
        base = os.path.join(os.path.abspath(arguments.folder), name)
        for old in (f"{base}.err", f"{base}.store"):
            if os.path.exists(old):
                os.remove(old)
        context, (check, ranks) = mp.get_context("fork"), checks[name]
        processes = [context.Process(target=worker, args=(check, rank, ranks, paths, f"{base}.store", f"{base}.err"))
                     for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        with open(f"{base}.err") as file:
            said = file.read()
        good = not any(process.exitcode for process in processes)
        if name == "late" and ("deadlock" in said or not re.search(
                r"rank 0 has been late for \d+ s at wait of \w+\([01], \d\)", said)):
            good = False
        if not good:
            failed += 1
            print(f"{name} failed:\n{said[-3000:]}")
    print(f"{len(picked) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(CHECKS))
