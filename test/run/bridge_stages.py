"""Tries what may stand inside a stage of `pp_schedules.torch`, and checkpoints that another schedule reads."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bridge_stages.py PP_COMPILE FOLDER [--only NAME,..]
# Ends with 77, which ctest calls skipped, where there is no torch.
import contextlib, copy, io, os, shutil, sys
from bridge_inside import MICROBATCHES, close, main, one_process, pipeline, refusal
from bridge_programs import pair


def llamas(stages):
    from bridge_models import Llama
    return [Llama(stage, stages) for stage in range(stages)]


def agrees(pipe, made, data, bound=1e-12):
    """One step; loss and gradients are those of one process."""
    inputs, targets, weight = data
    total = pipe.step(inputs, targets, weight)
    for module in made:
        module.zero_grad()
    want = one_process(made, inputs, targets, weight)
    if not abs(total - want) <= bound * max(1.0, abs(want)):
        raise RuntimeError(f"the loss is {total}, and {want} in one process")
    if bound <= 1e-12:
        close(pipe, made)


def lengths(rank, programs):
    """Microbatches of many lengths, which change from step to step; also where stashes go to other ranks."""
    import torch
    from bridge_models import batch
    for name in ("four", "bpipe", "chimera"):
        pipe, made = pipeline(programs[name], 4, shapes="sent")
        inputs, targets, weight = batch(MICROBATCHES, length=7)
        for step in range(2):
            cuts = [2 + (3 * mb + step) % 5 for mb in range(MICROBATCHES)]
            some = [(x[:, :n],) for (x,), n in zip(inputs, cuts)], [(y[:, :n],) for (y,), n in zip(targets, cuts)]
            agrees(pipe, made, (*some, weight))
        if len(pipe.shapes.known) != 5:
            raise RuntimeError(f"{name}: the stages ran for {len(pipe.shapes.known)} lengths, not for five")
        pipe.eval(*some, weight)
        pipe.close()
    told = [torch.empty(2, 7, 8, dtype=torch.double, device="meta", requires_grad=True)] * 3
    pipe, made = pipeline(programs["four"], 4, shapes=told)
    agrees(pipe, made, (inputs, targets, weight))
    if "stashes" in pipe.memory():
        raise RuntimeError("declared shapes tell no sizes of stashes")
    refusal(lambda: pipeline(programs["four"], 4, shapes=[]), "`shapes` has 0 stages, expected all but the last of 4")
    refusal(lambda: pipeline(programs["four"], 4, shapes="guessed"), "`guessed`")
    refusal(lambda: pipeline(programs["bpipe"], 4, shapes=told), "sends stashes")


def sends(rank, programs):
    """Waits of sends behind the last action; posts of one `together` as one batch; unknown words."""
    import torch
    import torch.distributed as dist
    from bridge_models import batch
    pipe, made = pipeline(programs["zb_v"], 4, sends="lazy")
    agrees(pipe, made, batch(MICROBATCHES))
    steps, actions = pipe.lists["step"][0], pipe.me["actions"]
    late = [actions[place] for _, _, place in steps[-sum(a[0] == "wait" and a[2] == "send" for a in actions):]]
    if any(a[0] != "wait" or a[2] != "send" for a in late) or not late:
        raise RuntimeError(f"what stands last is {late[:3]}")
    real, batches = dist.batch_isend_irecv, []
    dist.batch_isend_irecv = lambda ops: batches.append([op.op.__name__ for op in ops]) or real(ops)
    pipe, made = pipeline(programs["wzb1"], 2, lanes="pair", optimizer=lambda ps: torch.optim.SGD(ps, 0.1))
    if not abs(pipe.step(*batch(MICROBATCHES)) - one_process(made, *batch(MICROBATCHES))) <= 1e-12:
        raise RuntimeError("the loss differs")
    if len(batches) != 15 or any(ops.count("isend") != ops.count("irecv") for ops in batches):
        raise RuntimeError(f"{len(batches)} batches, expected 15 of sends and receives: {batches[:3]}")
    refusal(lambda: pipeline(programs["1f1b"], 2, sends="never"), "`sends`", "`never`")
    refusal(lambda: pipeline(programs["1f1b"], 2, lanes="road"), "`lanes`", "`road`")


def outputs(rank, programs):
    """What was sent is gone before its backward, unless autograd saved it: a stash has no outputs."""
    import weakref
    from bridge_models import Llama, batch
    alive, made = [], []

    class Watched(Llama):
        def forward(self, x):
            y = super().forward(x)
            made.append(weakref.ref(y))
            y.register_hook(lambda _: alive.append(sum(one() is not None for one in made)))
            return y
    pipe, _ = pipeline(programs["other"], 2, made=[Watched(0, 2), Llama(1, 2)])
    pipe.step(*batch(MICROBATCHES))
    if rank == 0 and (len(made) != MICROBATCHES + 1 or max(alive) > 2):
        raise RuntimeError(f"{max(alive)} outputs of {len(made)} are there when a backward runs")
    said = []
    for loss in (lambda y, t: y.sum(), lambda y, t: y.exp().sum()):  # autograd keeps `exp(y)`
        pipe, _ = pipeline(programs["other"], 2, loss=loss)
        pipe.step(*batch(MICROBATCHES))
        said.append(pipe.memory()["stashes"])
    if said[1] - said[0] != rank * MICROBATCHES * 2 * 5 * 24 * 8:
        raise RuntimeError(f"rank {rank}: stashes of {said} bytes, without and with what the loss keeps")


def writers(rank, programs):
    """Stages that write into their inputs, on the rank of the stage before and on another one."""
    import torch
    from bridge_models import Llama, batch

    class Writer(Llama):
        def forward(self, x):
            return super().forward(x.clamp_(1) if self.embed is not None else torch.nn.functional.silu(x, inplace=True))
    inputs, targets, weight = batch(MICROBATCHES)
    for name in ("zb_v", "recompute"):
        stages = 4 if name == "zb_v" else 2
        made = [Writer(stage, stages) for stage in range(stages)]
        pipe, _ = pipeline(programs[name], stages, made=made)
        total = pipe.step(inputs, targets, weight)
        if any((a - b).abs().max() for (a,), (b,) in zip(inputs, batch(MICROBATCHES)[0])):
            raise RuntimeError("the inputs of the user were written")
        want = 0.0
        for (x,), y in zip(inputs, targets):
            x = x.clone()
            for module in made:
                x = module(x.clone())
            loss = pipe.loss(x, *y) * weight
            loss.backward()
            want += loss.item()
        if not abs(total - want) <= 1e-12 or not all(p.writes for p in pipe.pieces.values()):
            raise RuntimeError(f"{name}: {total}, not {want}")
        close(pipe, made)


def buffers(rank, programs):
    """Running statistics, and what a module counts, see each microbatch once, also where its forward runs again."""
    import torch
    from bridge_models import Llama, WIDTH, batch

    class Counts(Llama):
        def __init__(self, stage, stages):
            super().__init__(stage, stages)
            self.running = torch.nn.BatchNorm1d(WIDTH, dtype=torch.double)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count = self.count + 1
            x = self.layer(x if self.embed is None else self.embed(x))
            x = self.running(x.transpose(1, 2)).transpose(1, 2)
            return x if self.head is None else self.head(self.norm(x))
    made = [Counts(stage, 2) for stage in range(2)]
    pipe, _ = pipeline(programs["recompute"], 2, made=made)
    agrees(pipe, made, batch(MICROBATCHES))
    for i, p in pipe.pieces.items():
        for (name, b), want in zip(p.module.named_buffers(), made[i].buffers()):
            if not (b - want).abs().max() <= 1e-12:
                raise RuntimeError(f"stage {i}, `{name}` is {b}, and {want} in one process")


def compiled(rank, programs):
    """Compiled stages, one of each rank behind the first step; the compiler's stand-in `aot_eager` traces forward and
    backward as the real one does. Then a hook on a weight of a stage that has run."""
    import torch
    from bridge_models import Hard, batch, counted_sum
    from pp_schedules.torch import Pipeline
    made, data = llamas(4), batch(MICROBATCHES)
    parts = [torch.compile(m, backend="aot_eager") if i < 2 else m for i, m in enumerate(copy.deepcopy(made))]
    pipe = Pipeline(programs["zb_v"], parts, loss=counted_sum)
    for later in (False, True):
        for i, p in pipe.pieces.items():
            if later and i > 1:
                p.module.compile(backend="aot_eager")
        agrees(pipe, made, data, 1e-11)
        if pipe.splits != {i: "whole" if later or i < 2 else "linears" for i in pipe.pieces}:
            raise RuntimeError(f"the halves of compiled stages are {pipe.splits}")
        same(pipe, made, 1e-12)
    parts, hooked = ([Hard("a keyword", stage, 4) for stage in range(4)] for _ in "ab")
    other = Pipeline(programs["zb_v"], parts, loss=counted_sum)
    agrees(other, hooked, data)
    for module in (*[p.module for p in other.pieces.values()], *hooked):
        if module.head is None:
            module.body.l.weight.register_hook(lambda g: 0.5 * g)
    agrees(other, hooked, data, 1e-11)
    same(other, hooked, 1e-12)
    other.close()
    names = [f"stages.{i}.{name}" for i in pipe.pieces for name, _ in made[i].named_parameters()]
    if [name for name, _ in pipe.named_parameters()] != names or set(names) - set(pipe.state_dict()):
        raise RuntimeError(f"the names are {sorted(pipe.state_dict())}")


def again(rank, programs):
    """Layers under activation checkpoints, which autograd runs again inside B, or inside I and W."""
    from bridge_models import Llama, batch
    from torch.utils.checkpoint import checkpoint

    class Again(Llama):
        def forward(self, x):
            x = x if self.embed is None else self.embed(x)
            x = checkpoint(self.layer, x, use_reentrant=False)
            return x if self.head is None else self.head(self.norm(x))
    for split in ("linears", "halves", "whole"):
        made = [Again(stage, 4) for stage in range(4)]
        pipe, _ = pipeline(programs["zb_v"], 4, made=made, split=split)
        agrees(pipe, made, batch(MICROBATCHES))
        pipe.close()


def same(pipe, made, bound):
    """The gradients are those of one process, within a part of the largest one of a stage."""
    for i, p in pipe.pieces.items():
        wants = [q.grad for q in made[i].parameters()]
        largest = max(want.abs().max() for want in wants)
        for name, q, want in zip(p.names, p.parameters, wants):
            got = q.grad.full_tensor() if hasattr(q.grad, "full_tensor") else q.grad
            if not (got - want).abs().max() <= bound * largest:
                raise RuntimeError(f"stage {i}, {name}: {(got - want).abs().max() / largest:.1e} apart")


def autocast(rank, programs):
    """bf16 by autocast is near f64, and the split is one that autocast sees."""
    import torch
    from bridge_models import batch
    for name, stages in (("1f1b", 2), ("zb_v", 4), ("recompute", 2)):
        made = llamas(stages)
        floats = [copy.deepcopy(module).float() for module in made]
        pipe, _ = pipeline(programs[name], stages, made=floats,
                           context=lambda: torch.autocast("cpu", torch.bfloat16))
        agrees(pipe, made, batch(MICROBATCHES), 5e-4)
        same(pipe, made, 0.03)
        if "linears" in pipe.splits.values():
            raise RuntimeError(f"{pipe.splits}")


def sharded(rank, programs):
    """FSDP2 inside the stages of two pipelines side by side; a checkpoint of its DTensors."""
    import torch
    import torch.distributed as dist
    from bridge_models import batch, counted_sum
    from pp_schedules.torch import Pipeline
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    inputs, targets, weight = batch(MICROBATCHES)
    made, row = llamas(4), rank // 2
    parts = copy.deepcopy(made)
    pipe = Pipeline(programs["zb_v"], parts, loss=counted_sum, group=mesh.get_group("pp"), clip=0.5,
                    optimizer=lambda ps: torch.optim.AdamW(ps, 1e-2))
    for part in parts:                             # behind the Pipeline, which looks at the first step
        fully_shard(part, mesh=mesh["dp"])
        part.set_gradient_divide_factor(1.0)
    other = torch.optim.AdamW([q for module in made for q in module.parameters()], 1e-2)
    some = [(x[row:row + 1],) for x, in inputs], [(y[row:row + 1],) for y, in targets], weight
    for step in range(2):
        pipe.step(*some)
        other.zero_grad()
        one_process(made, inputs, targets, weight)
        same(pipe, made, 1e-12)
        norm = torch.nn.utils.clip_grad_norm_([q for module in made for q in module.parameters()], 0.5)
        if not abs(pipe.norm - norm) <= 1e-12:
            raise RuntimeError(f"the norm is {pipe.norm}, and {norm} in one process")
        other.step()
    state = pipe.state_dict()
    if not any(isinstance(t, DTensor) for t in state.values()):
        raise RuntimeError("a state of FSDP2 has DTensors")
    for i in pipe.pieces:
        for name, q in made[i].named_parameters():
            if not (state[f"stages.{i}.{name}"].full_tensor() - q).abs().max() <= 1e-12:
                raise RuntimeError(f"stage {i}, {name} differs behind two steps")
    pipe.save("sharded")
    before = {key: t.full_tensor().clone() for key, t in state.items() if isinstance(t, DTensor)}
    pipe.step(*some)
    pipe.load("sharded")
    for key, t in pipe.state_dict().items():
        if isinstance(t, DTensor) and (t.full_tensor() - before[key]).abs().max():
            raise RuntimeError(f"{key} is not that of the checkpoint")
    for reduces, count in (("each", 2 * MICROBATCHES), ("last", 2)):
        once = Pipeline(programs["zb_v"], parts, loss=counted_sum, group=mesh.get_group("pp"), reduces=reduces)
        calls, name = [], "reduce_scatter_" + ("single" if hasattr(dist, "reduce_scatter_single") else "tensor")
        real = getattr(dist, name)
        setattr(dist, name, lambda *args, **words: calls.append(1) or real(*args, **words))
        for module in (*parts, *made):
            module.zero_grad()
        once.backward(*some)
        setattr(dist, name, real)
        one_process(made, inputs, targets, weight)
        same(once, made, 1e-12)
        if len(calls) != count:
            raise RuntimeError(f"`{reduces}`: {len(calls)} sums over shards, expected {count}")
    pipe.load_state_dict({**{key: t for key, t in state.items() if key.startswith("pp.")}, **{
        f"stages.{i}.{name}": q.detach() for i, m in enumerate(made) for name, q in m.named_parameters()}})


def tensor(rank, programs):
    """Tensor parallel by DTensors inside the stages of two pipelines, under all ways to share a backward."""
    import torch
    import torch.distributed as dist
    from bridge_models import Llama, batch, counted_sum
    from pp_schedules.torch import Pipeline
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "pp"))
    made, data = llamas(4), batch(MICROBATCHES)
    want = one_process(made, *data)
    norm = torch.stack([q.grad.norm() for module in made for q in module.parameters()]).norm()
    for split in ("linears", "halves", "whole"):
        cut = {"layer.gate": ColwiseParallel(), "layer.up": ColwiseParallel(), "layer.down": RowwiseParallel()}
        pipe = Pipeline(programs["zb_v"], lambda stage: parallelize_module(Llama(stage, 4), mesh["tp"], cut),
                        split=split, loss=counted_sum, group=mesh.get_group("pp"), clip=1e9,
                        optimizer=lambda ps: torch.optim.SGD(ps, 0.0))
        total = pipe.step(*data)
        same(pipe, made, 1e-12)
        if set(pipe.splits.values()) != {split} or not abs(total - want) + abs(pipe.norm - norm) <= 1e-12:
            raise RuntimeError(f"{pipe.splits}: {total} and {pipe.norm}, not {want} and {norm}")
        pipe.close()


def more_checkpoints(rank, programs):
    """As `checkpoints`, the other way round."""
    checkpoints(rank, programs, (("four", "zb_v"), ("fsdp", "zero1"), ("zero1", "four"), ("zb_v", "fsdp")))


def checkpoints(rank, programs, pairs=(("zb_v", "four"), ("zero1", "fsdp"), ("fsdp", "zb_v"), ("zb_v", "zero1"))):
    """What one schedule wrote another one reads, on another number of ranks, with the optimizer's state; then both go
    on alike."""
    import torch
    import torch.distributed as dist
    from bridge_models import batch
    everyone = {ranks: dist.new_group(ranks) for ranks in ((0, 1), (2, 3), (0, 1, 2, 3))}
    mine = everyone[(0, 1) if rank < 2 else (2, 3)]

    def make(name, stages, group=mine, ties=None):
        return pipeline(programs[name], stages, group=group, clip=0.5, ties=ties, seed=1,
                        optimizer=lambda ps: torch.optim.AdamW(ps, 1e-2, weight_decay=0.1))
    data = batch(MICROBATCHES)
    # Names are those of stages here, so all have four of them.
    writers, losses = {"zb_v": mine, "four": everyone[0, 1, 2, 3], "zero1": mine, "fsdp": mine}, {}
    for name, group in writers.items():
        if name not in dict(pairs) and name != "zb_v":
            continue
        pipe, _ = make(name, 4, group)
        for _ in range(2):
            pipe.step(*data)
        if rank == 0:
            shutil.rmtree(name, ignore_errors=True)
        dist.barrier()
        pipe.save(name)
        losses[name] = [pipe.step(*data) for _ in range(2)], pipe.steps
        pipe.close()
    for writer, reader in pairs:
        pipe, _ = make(reader, 4, writers[reader])
        pipe.load(writer)
        if pipe.steps != 2:
            raise RuntimeError(f"{reader} goes on at step {pipe.steps}")
        again = [pipe.step(*data) for _ in range(2)]
        apart = max(abs(a - b) for a, b in zip(again, losses[writer][0]))
        if not apart <= 1e-12:
            raise RuntimeError(f"{writer}, read by {reader}: {again}, not {losses[writer][0]}")
        pipe.close()
    state = torch.distributed.checkpoint.FileSystemReader("zb_v").read_metadata().state_dict_metadata
    if not {"pp.fingerprint", "stages.3.head.weight", "optimizer.state.stages.3.head.weight.exp_avg",
            "optimizer.options.stages.0.embed.weight.lr"} <= set(state):
        raise RuntimeError(f"{sorted(state)[:9]}")
    pipe, made = pipeline(programs["1f1b"], 2, group=mine)
    refusal(lambda: pipe.load("zb_v"), "the state has no `stages.1.norm.weight`")
    pipe.close()


def told(rank, programs):
    """Rank 0 compiles; the others have neither a compiler nor the file, and hear what it refuses."""
    import torch
    from bridge_models import batch
    from harness import ROOT
    from pp_schedules.torch import Program
    if rank:
        os.environ.pop("PP")
        os.environ["PATH"] = "/nowhere"
    path = os.path.join(ROOT, "stdlib", "1f1b.pipe") if rank == 0 else "/nowhere/1f1b.pipe"
    program = Program(path, "one_f_one_b", ranks=2, microbatches=8, layers=2)
    if program.fingerprint != programs["1f1b"].fingerprint:
        raise RuntimeError("the program differs from that of the file")
    refusal(lambda: Program(path, "one_f_one_b", ranks=2, microbatches=0, layers=2), "error:")
    pipe, made = pipeline(program, 2, clip=1.0, optimizer=lambda ps: torch.optim.SGD(ps, 0.1))
    inputs, targets, weight = batch(MICROBATCHES)
    before, words = [q.clone() for q in pipe.parameters()], io.StringIO()
    with contextlib.redirect_stderr(words):
        for _ in range(2):
            pipe.step(inputs, targets, [float("inf")] * MICROBATCHES)
    if pipe.skipped != 2 or any((a - b).abs().max() for a, b in zip(before, pipe.parameters())):
        raise RuntimeError(f"{pipe.skipped} updates were left out")
    if words.getvalue().count("no update") != (rank == 0) or rank == 0 and "pp: step 0: the norm" not in \
            words.getvalue():
        raise RuntimeError(f"rank {rank} says: {words.getvalue()}")
    pipe.step(inputs, targets, weight)
    if pipe.skipped != 2 or all((a - b).abs().max() == 0 for a, b in zip(before, pipe.parameters())):
        raise RuntimeError("a good step makes no update")
    pipe.close()


def returns(rank, programs):
    """What a stage, a loss, or `stages` must not be is a sentence with the stage or the unit, on both ranks."""
    import torch
    from bridge_models import Llama, batch, counted_sum
    from pp_schedules.torch import Pipeline, Refused
    inputs, targets, weight = batch(MICROBATCHES)

    class Ends(Llama):
        def __init__(self, stage, end):
            super().__init__(stage, 2)
            self.end = end

        def forward(self, x):
            return self.end(super().forward(x))

    def step(way="step", loss=counted_sum, **ends):
        made = [Ends(stage, ends.get(f"s{stage}", lambda y: y)) for stage in range(2)]
        pipe, _ = pipeline(programs["1f1b"], 2, made=made, loss=loss, optimizer=lambda ps: torch.optim.SGD(ps, 0.1))
        try:
            return getattr(pipe, way)(inputs, targets, weight)
        finally:
            pipe.close()
    tensors, calls = "expected a tensor, or a tuple of tensors", []
    for end, said in ((lambda y: {"x": y}, "a `dict` with the keys ['x']"), (lambda y: None, "`None`"), (
            lambda y: 7, "`7`"), (lambda y: 0.5, "`0.5`"), (lambda y: (y, None), "a tuple of ['Tensor', 'NoneType']"), (
            lambda y: (), "a tuple of []"), (lambda y: "y", "a `str`")):
        refusal(lambda: step(s0=end), f"stage 0 on microbatch 0: the module returns {said}; {tensors}")
    later = lambda y: calls.append(1) or (y if len(calls) == 1 else {"x": y})  # what the run for shapes does not see
    refusal(lambda: step(s0=later), "rank 0, F(0, 0) at 1f1b.pipe:", f"the keys ['x']; {tensors}")
    refusal(lambda: step(s1=lambda y: None), f"stage 1 on microbatch 0: the module returns `None`; {tensors}")
    if step(s1=lambda y: {"logits": y}, loss=lambda y, t: counted_sum(y["logits"], t)) != step():
        raise RuntimeError("a loss may take a dictionary")
    for loss, said in ((lambda y, t: y.sum(-1), "a tensor of the shape [2, 5]"), (lambda y, t: 1.5, "`1.5`"), (
            lambda y, t: (counted_sum(y, t),), "a tuple of ['Tensor']"), (lambda y, t: None, "`None`")):
        refusal(lambda: step("eval" if said == "`None`" else "step", loss), "(1, 0) at 1f1b.pipe:",
                f"`loss` returns {said}; expected a tensor without dimensions")
    refusal(lambda: step(loss=lambda y, t: counted_sum(y, t).detach()), "(1, 0) at 1f1b.pipe:", "without a gradient")
    away = "no output of stage 0 has a gradient, so stage 0 would not train; "
    refusal(lambda: step(s0=lambda y: y.detach()), away + "if that is meant, say `requires_grad_(False)`")
    step("eval", s0=lambda y: y.detach())
    told = [(torch.empty(2, 5, 8, dtype=torch.double, requires_grad=True), torch.empty(2, 5, 8, dtype=torch.double))]
    pipe, _ = pipeline(programs["1f1b"], 2, shapes=told, made=[Ends(0, lambda y: (y, y * 2)), Llama(1, 2)])
    refusal(lambda: pipe.step(inputs, targets, weight), "F(0, 0)", "output 1 has a gradient, and none in the declared "
            "ones")


def given(rank, programs):
    """What a Pipeline must not be made of is a sentence, on both ranks; a list, a ModuleList and tensors are taken."""
    import torch
    from bridge_models import Llama, batch, counted_sum
    from pp_schedules.torch import Pipeline, Refused
    inputs, targets, weight = batch(MICROBATCHES)
    made = [Llama(stage, 2) for stage in range(2)]
    for stages, said in ((torch.nn.Sequential(*made), "`stages` is a `Sequential`; expected a function"), (
            7, "`stages` is `7`; expected a function"), (
            made * 2, "`stages` has 4 modules; the program has 2 stages"), (
            [made[0], None], "stage 1 is `None`; expected an nn.Module"), (
            lambda stage: made, "a list of ['Llama', 'Llama']; expected an nn.Module")):
        refusal(lambda: Pipeline(programs["1f1b"], stages, loss=counted_sum), said)
    adam = torch.optim.AdamW(made[0].parameters())
    for words, said in (({"loss": 7}, "`loss`: expected a function, got `7`"), (
            {"optimizer": adam}, "`optimizer`: expected a function, got a `AdamW`"), (
            {"clip": 1.0}, "`clip` is for the update of `optimizer`"), (
            {"split": {0: "thirds"}}, "`split`: expected `linears`, `halves` or `whole`, got `thirds`"), (
            {"shapes": [None]}, "`shapes` has for stage 0 `None`; expected a tensor, or a tuple of tensors")):
        refusal(lambda: Pipeline(programs["1f1b"], made, **words), said)
    refusal(lambda: Pipeline(programs["1f1b"], made, shapes=[torch.empty(2, 5, 8)]).step(inputs, targets),
            "no output of stage 0 has a gradient, so stage 0 would not train; in `shapes`, `requires_grad=True`")
    refusal(lambda: Pipeline(programs["1f1b"], made, optimizer=lambda ps: 7).step(inputs, targets),
            "`optimizer` returns `7`")
    other = "`optimizer` was called with the parameters of stage 1, and returns an optimizer of others"
    refusal(lambda: Pipeline(programs["1f1b"], made, optimizer=lambda ps: adam).step(inputs, targets), other)
    refusal(lambda: pipeline(programs["unclipped"], 2, clip=1.0, optimizer=lambda ps: adam), "updates without the norm")
    refusal(lambda: Pipeline(programs["1f1b"], made, optimizer=torch.optim.LBFGS).step(inputs, targets),
            f"stage {rank}: `LBFGS` runs the model again in its `step`")
    lazy = [torch.nn.Sequential(module, torch.nn.LazyLinear(8)) for module in made]
    refusal(lambda: Pipeline(programs["1f1b"], lazy, loss=counted_sum), f"stage {rank}: `1.weight` has no shape yet")
    try:                                           # a builder that fails on one rank fails on both
        Pipeline(programs["1f1b"], lambda stage: made[stage] if rank else 1 / 0)
    except (ZeroDivisionError, Refused) as error:
        if isinstance(error, Refused) != (rank == 1) or "division by zero" not in str(error):
            raise
    pipe = Pipeline(programs["1f1b"], torch.nn.ModuleList(made), loss=counted_sum)
    bare = [x for x, in inputs], [y for y, in targets]
    if pipe.eval(*bare, weight) != pipe.eval(inputs, targets, weight):
        raise RuntimeError("a microbatch may be a tensor")


def silent(rank, programs):
    """What trains nothing, or makes no number, is said once, and no more."""
    import torch
    from bridge_models import batch
    inputs, targets, weight = batch(MICROBATCHES)
    mean = lambda y, t: torch.nn.functional.cross_entropy(y.flatten(0, -2), t.flatten())
    pipe, _ = pipeline(programs["1f1b"], 2, loss=mean)
    words = io.StringIO()
    with contextlib.redirect_stderr(words):
        for way in (pipe.step, pipe.step, pipe.backward):
            way(inputs, targets)                   # microbatch 4 has no target
    want = ["pp: no `optimizer` is given: `step` leaves", "pp: step 0: the loss of microbatch 4 is nan; a mean over"]
    said = words.getvalue().splitlines()
    if len(said) != 1 or want[rank] not in said[0]:
        raise RuntimeError(f"rank {rank} says: {said}")
    pipe.close()
    pipe, _ = pipeline(programs["wzb1"], 2)
    pipe.eval(inputs, targets, weight)
    refusal(lambda: pipe.step(inputs, targets, weight), "moves new weights behind its updates; give `optimizer`")
    pipe.close()


def sliced(stage, stages):
    """A stage of a llama that hands its keys and values over to the slices behind."""
    import torch
    from torch.nn import functional
    from bridge_models import Llama

    class Sliced(Llama):
        def forward(self, x, keys):
            x, layer = x if self.embed is None else self.embed(x), self.layer
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in layer.qkv(layer.before(x)).chunk(3, -1))
            own, k, v = (k, v), *(torch.cat([*(pair[i] for pair in keys), t], 2) for i, t in enumerate((k, v)))
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
            mixed = functional.scaled_dot_product_attention(q, k, v, mask)
            x = x + layer.out(mixed.transpose(1, 2).flatten(2))
            y = layer.after(x)
            x = x + layer.down(functional.silu(layer.gate(y)) * layer.up(y))
            return x if self.head is None else self.head(self.norm(x)), own
    return Sliced(stage, stages)


def ends(made):
    """A function of a piece's name: shards of the first and the last stage of a llama, and what is left of stages."""
    from torch import nn
    from pp_schedules.torch import shard

    def part(key):
        word, _, number = str(key).partition(" ")
        if word in ("embed", "head"):
            return shard(getattr(made[0 if word == "embed" else 3], word), int(number), 4)
        stage = copy.deepcopy(made[key])
        stage.embed, stage.head = None, nn.Identity() if key == 3 else None
        return stage
    return part


def vocabulary(rank, programs):
    """Ends that are cut by the vocabulary, into shards of unlike sizes: two steps are those of one process."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint
    from torch import nn
    from bridge_models import batch, counted_sum, VOCABULARY, WIDTH
    from pp_schedules.torch import Pipeline, shard
    from pp_schedules.torch.vocabulary import nll_of, said
    made = llamas(4)
    made[0].embed = nn.Embedding(VOCABULARY + 2, WIDTH, dtype=torch.double)  # 26 rows: shards of 6, 7, 6, 7
    made[3].head = nn.Linear(WIDTH, VOCABULARY + 2, dtype=torch.double)
    inputs, targets, weight = batch(MICROBATCHES)

    part = ends(made)

    def counted(nll, targets):
        return nll[targets != -100].sum()
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=1e-2)
    refusal(lambda: shard(made[0].embed, 4, 4), "shard 4 of 4: expected an nn.Embedding")
    refusal(lambda: shard(nn.Embedding(8, 2, padding_idx=0), 0, 4), "has options beside its size")
    refusal(lambda: Pipeline(programs["vocabulary"], part), "`loss`: the head is cut by the vocabulary")
    wide = lambda key: nn.Embedding(26, 4, dtype=torch.double) if key == "embed 2" else part(key)
    pipe = Pipeline(programs["vocabulary"], wide, loss=counted)
    refusal(lambda: pipe.eval(inputs, targets, weight), "part `embed 2` makes ", "make terms of one sum")
    pipe.close()
    flat = lambda key: nn.Sequential(part(key), nn.Flatten(0)) if key == "head 1" else part(key)
    pipe = Pipeline(programs["vocabulary"], flat, loss=counted)
    try:
        pipe.step(inputs, targets, weight)
        raise AssertionError("not refused")
    except Exception as error:
        if "the head returns [[70]]; expected a tensor of logits for the targets, [2, 5]" not in str(error):
            raise
    z, t, cuts = 5000 * torch.randn(2, 5, 26, dtype=torch.double), targets[0][0].clamp(0), (0, 6, 13, 19, 26)
    stats = [said([z[..., a:b]], [t], a)[1] for a, b in zip(cuts, cuts[1:])]  # no exponential may overflow
    if not (nll_of(stats).flatten() - nn.functional.cross_entropy(z.flatten(0, 1), t.flatten(), reduction="none")
            ).abs().max() <= 1e-10:
        raise RuntimeError("large logits")
    pipe = Pipeline(programs["vocabulary"], part, loss=counted, clip=0.5, optimizer=adamw)
    parameters = [q for module in made for q in module.parameters()]
    optimizer, worst = adamw(parameters), []

    def step():
        optimizer.zero_grad()
        want = one_process(made, inputs, targets, weight)
        worst.append(abs(torch.nn.utils.clip_grad_norm_(parameters, 0.5).item() - pipe.norm))
        optimizer.step()
        return want
    for _ in range(2):
        got, total = pipe.eval(inputs, targets, weight), pipe.step(inputs, targets, weight)
        grads = {id(p): [q.grad.clone() for q in p.parameters] for p in pipe.pieces.values()}
        want = step()
        worst += [abs(got - want), abs(total - want)]
        whole, factor = {"embed": made[0].embed, "head": made[3].head}, min(1.0, 0.5 / (pipe.norm + 1e-6))
        for p in pipe.pieces.values():
            of = programs["vocabulary"].pieces[p.number]
            for name, grad in zip(p.names, grads[id(p)]):
                other = dict((whole.get(of["part"]) or made[of["index"]]).named_parameters())[name].grad
                if of["part"]:
                    other = other[len(other) * of["index"] // 4:len(other) * (of["index"] + 1) // 4]
                worst.append((grad * factor - other).abs().max().item())
    # The whole model's names and rows, which the unsplit model and a schedule with whole ends read.
    unsplit = {"embed.weight": made[0].embed.weight, "head.weight": made[3].head.weight, "head.bias": made[3].head.bias}
    if rank == 0:
        shutil.rmtree("vocabulary", ignore_errors=True)
    dist.barrier()
    pipe.save("vocabulary")
    state, read = pipe.state_dict(), {name: torch.empty_like(q, requires_grad=False) for name, q in unsplit.items()}
    if (set(unsplit) <= set(state)) != (rank == 0) or set(unsplit) & set(state) and rank:
        raise RuntimeError(f"rank {rank} saves {sorted(state)}")
    torch.distributed.checkpoint.load(read, checkpoint_id="vocabulary")
    worst += [(read[name] - q).abs().max().item() for name, q in unsplit.items()]
    want = []
    for _ in range(2):
        total = pipe.step(inputs, targets, weight)
        want.append(step())
        worst.append(abs(total - want[-1]))
    pipe.load("vocabulary")
    worst += [abs(pipe.step(inputs, targets, weight) - want[0])]
    refusal(lambda: pipe.load_state_dict({**state, "head.weight": torch.empty(7, 8)}) if rank == 0 else
            pipe.load_state_dict({}), "expected the shape (26, 8), got (7, 8)" if rank == 0 else "the state has no `")
    pipe.close()

    def name(stage, own):                          # in 1f1b the ends lie in the first and the last stage
        return own if own.startswith(("embed.", "head.")) else f"stages.{stage}.{own}"
    whole = Pipeline(programs["four"], [copy.deepcopy(module) for module in made], loss=counted_sum, clip=0.5,
                     optimizer=adamw, names=name)
    whole.load("vocabulary")
    worst += [abs(whole.step(inputs, targets, weight) - want[k]) for k in range(2)]
    if not max(worst) <= 1e-12 or len(worst) < 20 or not want[0] > 1:
        raise RuntimeError(f"differs by {worst}")
    whole.close()


def slices(rank, programs):
    """Sequences in slices: a stage hands its keys and values over to the slices behind; gradients of theirs come back.
    One process runs whole sequences by modules that know of no slices."""
    from bridge_models import Llama, batch
    for name, length, more in (("terapipe", 6, {}), ("slimpipe", 8, {}), ("terapipe", 7, {"shapes": "sent"}),
                               ("slimpipe", 8, {"lanes": "pair"}), ("redone", 6, {}),
                               ("redone", 6, {"split": "halves"}), ("halved", 6, {}),
                               ("halved", 7, {"split": "halves", "shapes": "sent"})):
        made, data = llamas(2), batch(MICROBATCHES, length=length)
        pipe, _ = pipeline(programs[name], 2, made=[sliced(stage, 2) for stage in range(2)], **more)
        total = pipe.eval(*data)
        agrees(pipe, made, data)
        if abs(total - one_process(made, *data)) > 1e-12 or sorted(pipe.losses) != [*range(MICROBATCHES)] * rank:
            raise RuntimeError(f"{name}: {total}, {pipe.losses}")
        if name == "terapipe" and not more:        # keys and values of all slices, and gradients of two: 2 * 2 x 2 x 8
            if pipe.memory()["keys"] != (MICROBATCHES * 3 + 2) * 2 * 2 * 2 * 8 * 8:
                raise RuntimeError(f"{pipe.memory()}")
        pipe.close()
    pipe, _ = pipeline(programs["terapipe"], 2, made=[sliced(0, 2), Llama(1, 2)])
    refusal(lambda: pipe.step(*batch(MICROBATCHES, length=6)), "stage 1 on microbatch 0: ", "'keys'")
    pipe.close()


def odd(rank, programs):
    """Modules of many kinds under backwards in halves: loss, norm and gradients are those of one process."""
    import threading
    import torch
    from bridge_models import HARD, Hard, batch, counted_sum
    from pp_schedules.torch import Pipeline
    data, ended, seen = batch(MICROBATCHES), threading.Event(), set()

    def beside():                                  # another thread uses linears of its own meanwhile
        linear = torch.nn.Linear(3, 3)
        while not ended.wait(0.001):
            seen.add((type(linear(torch.ones(2, 3)).grad_fn).__name__, torch.nn.functional.linear))
    thread = threading.Thread(target=beside)
    thread.start()
    for name in HARD:
        taken = ""
        for split in ("linears", "halves"):
            if split == taken or taken == "whole":
                continue                           # `linears` found none in these bodies
            pipe = Pipeline(programs["zb_v"], lambda stage: Hard(name, stage, 4), loss=counted_sum, split=split,
                            clip=1e9, optimizer=lambda ps: torch.optim.SGD(ps, 0.0))
            made = [Hard(name, stage, 4) for stage in range(4)]
            total, want = pipe.step(*data), one_process(made, *data)
            taken = pipe.splits[min(pipe.pieces)]
            numbers = [q.grad.to_dense() for module in made for q in module.parameters()]
            norm = torch.stack([g.abs().square().sum() for g in numbers]).double().sum().sqrt()
            bound = 1e-5 if name == "autocast inside" else 1e-12
            if not (abs(total - want) <= bound and abs(pipe.norm - norm) <= bound * max(1.0, norm)):
                raise RuntimeError(f"{name}, {split}: loss and norm are {total}, {pipe.norm}, not {want}, {norm}")
            for i, p in pipe.pieces.items():
                for key, q, other in zip(p.names, p.parameters, made[i].parameters()):
                    apart = (q.grad.to_dense() - other.grad.to_dense()).abs().max()
                    if not apart <= bound * max(1.0, other.grad.to_dense().abs().max()):
                        raise RuntimeError(f"{name}, {split}: stage {i}, `{key}` differs by {apart:.1e}")
            pipe.close()
    ended.set()
    thread.join()
    if {name for name, _ in seen} != {"AddmmBackward0"} or len(seen) != 1:
        raise RuntimeError(f"another thread saw {seen}")


def rounded(rank, programs):
    """bf16, of modules and by autocast, with cut vocabularies and in slices: no further from f64 than twice what one
    process is that rounds as often."""
    import torch
    from torch.nn import functional
    from bridge_models import batch, counted_sum
    from pp_schedules.torch import Pipeline
    inputs, targets, weight = batch(MICROBATCHES, length=6)
    two, _ = pair(rank)

    def gradients(modules):
        return [{name: q.grad.double() for name, q in module.named_parameters()} for module in modules]

    def apart(got, want, largest=None):
        largest = largest or max(g.abs().max() for g in want.values())
        return max((got[name] - want[name]).abs().max() / largest for name in got)
    for case, stages in (("vocabulary", 4), ("terapipe", 2), ("redone", 2), ("halved", 2)):
        exact = llamas(stages)
        one_process(exact, inputs, targets, weight)
        exact = gradients(exact)
        for way in ("modules", "autocast"):
            cast = (lambda: torch.autocast("cpu", torch.bfloat16)) if way == "autocast" else None
            made = [m.bfloat16() if way == "modules" else m.float() for m in llamas(stages)]
            with cast() if cast else contextlib.nullcontext():
                one_process([*made, torch.Tensor.float], inputs, targets, weight)
            bounds = [apart(got, want) for got, want in zip(gradients(made), exact)]
            if case == "vocabulary":
                pipe = Pipeline(programs[case], ends(made), loss=lambda nll, t: nll[t != -100].sum(), context=cast)
            else:
                parts = [sliced(stage, stages) for stage in range(stages)]
                parts = [m.bfloat16() if way == "modules" else m.float() for m in parts]
                pipe = Pipeline(programs[case], parts, loss=lambda y, t: counted_sum(y.float(), t), context=cast,
                                group=two)
            pipe.step(inputs, targets, weight)
            for p in pipe.pieces.values():
                of = programs[case].pieces[p.number]
                stage = {"embed": 0, "head": stages - 1}.get(of["part"], of["index"])
                want, largest = exact[stage], max(g.abs().max() for g in exact[stage].values())
                if of["part"]:
                    want = {"weight": want[f"{of['part']}.weight"].tensor_split(4)[of["index"]]}
                got = {name: q.grad.double() for name, q in zip(p.names, p.parameters)}
                error = apart(got, want, largest)
                if not error <= 2 * bounds[stage] or not bounds[stage] > 1e-4:
                    raise RuntimeError(f"{case}, {way}, {p.what}: {error:.1e} from f64, one process is "
                                       f"{bounds[stage]:.1e}")
            pipe.close()


CHECKS = {"lengths": (lengths, 4), "sends": (sends, 2), "outputs": (outputs, 2), "writers": (writers, 2),
          "buffers": (buffers, 2), "compiled": (compiled, 2), "again": (again, 2), "autocast": (autocast, 2),
          "sharded": (sharded, 4), "checkpoints": (checkpoints, 4), "more_checkpoints": (more_checkpoints, 4),
          "told": (told, 2), "returns": (returns, 2), "given": (given, 2), "silent": (silent, 2),
          "vocabulary": (vocabulary, 4), "slices": (slices, 2), "rounded": (rounded, 4), "odd": (odd, 2),
          "tensor": (tensor, 4)}

if __name__ == "__main__":
    os.environ["PP"] = os.path.abspath(sys.argv[1])
    sys.exit(main(CHECKS))
