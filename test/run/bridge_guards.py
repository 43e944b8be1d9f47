"""Tries what `pp_schedules.torch` does beside a step: notices, wide sums, scaled losses, compared copies, cut ends."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bridge_guards.py PP_COMPILE FOLDER [--only NAME,..]
# Ends with 77, which ctest calls skipped, where there is no torch.
import contextlib, copy, io, os, sys
from bridge_inside import MICROBATCHES, close, main, one_process, pipeline, refusal
from bridge_programs import pair
from bridge_stages import llamas


def heard(run):
    """The lines on stderr of this rank while `run` runs."""
    words = io.StringIO()
    with contextlib.redirect_stderr(words):
        run()
    return [line for line in words.getvalue().splitlines() if "optimizer" not in line]


def expect(rank, lines, *wants):
    """Rank 0 says these lines, each once and in this order, and the others nothing."""
    wants = wants if rank == 0 else ()
    if len(lines) != len(wants) or any(word not in line for line, words in zip(lines, wants) for word in words):
        raise RuntimeError(f"rank {rank} says {lines}, expected {wants}")


def notices(rank, programs):
    """Backwards that stay whole, weights that seem to be one, and BatchNorm are each said once, by one rank."""
    import torch
    from bridge_models import WIDTH, Llama, batch
    data = batch(MICROBATCHES)

    def both(program, stages, made=None, **more):
        pipe, made = pipeline(programs[program], stages, made=made or llamas(stages), **more)
        lines = heard(lambda: [pipe.step(*data) for _ in range(2)])
        pipe.close()
        return lines
    expect(rank, both("zb_v", 4))
    expect(rank, both("zb_v", 4, split="whole"))   # no other split was asked for
    made = llamas(4)
    made[2].layer.up.weight.register_hook(lambda g: g)
    made[1].compile(backend="eager")
    hooked = "stage 2 has a hook on the weight `layer.up.weight`, so its backward is `whole` and not `halves`"

    def own(program, **more):                      # not copies, for these have no hooks
        from bridge_models import counted_sum
        from pp_schedules.torch import Pipeline
        pipe = Pipeline(programs[program], made.__getitem__, loss=counted_sum, **more)
        return heard(lambda: [pipe.step(*data) for _ in range(2)])
    expect(rank, own("zb_v", split={1: "linears", 2: "halves"}), ["stage 1 is compiled", "not `linears`"], [hooked])
    made = llamas(2)
    made[0].layer.up.weight.register_hook(lambda g: g)
    expect(rank, own("1f1b"))                      # no backward is in two halves
    pipe, made = pipeline(programs["zb_v"], 4)
    expect(rank, heard(lambda: pipe.step(*data)))
    for i, p in pipe.pieces.items():               # behind the first step each rank speaks for itself
        if i == 3:
            p.module.head.weight.register_hook(lambda g: g)
    expect(rank, heard(lambda: [pipe.step(*data) for _ in range(2)]), [
        "stage 3 has a hook on the weight `head.weight`, so its backward is `whole`"])
    # Ties. On two ranks it is the content, on one it is the tensor; where the program ties them all is well.
    made = llamas(2)
    made[1].head.weight.data.copy_(made[0].embed.weight)
    expect(rank, both("1f1b", 2, made), [
        "stage 0, `embed.weight`, and stage 1, `head.weight`, have one content, and the program does not tie them"])
    expect(rank, both("tied", 2, made, ties={0: ["embed.weight"], 1: ["head.weight"]},
                      optimizer=lambda ps: torch.optim.SGD(ps, 0.1)))
    made = tied(4)
    expect(rank, own("zb_v"), ["stage 0, `embed.weight`, and stage 3, `head.weight`, are one tensor, and"])
    expect(rank, both("1f1b", 2, [Llama(0, 2), Llama(1, 2)], names=lambda stage, name: name), [
        "are both `layer.", "(6 more such weights): if it is one weight"])

    class Normed(Llama):
        def __init__(self, stage, stages):
            super().__init__(stage, stages)
            self.bn = torch.nn.BatchNorm1d(WIDTH, dtype=torch.double)

        def forward(self, x):
            return super().forward(x) if self.embed is not None else super().forward(self.bn(x.mT).mT)
    expect(rank, both("1f1b", 2, [Llama(0, 2), Normed(1, 2)]), ["stage 1: `bn` is a BatchNorm: it normalizes each"])


def trained(programs, name, data, bound, made=None, stages=4, **more):
    """Two updates; losses and norms are those of one process within `bound`. Returns the largest difference."""
    import torch
    pipe, made = pipeline(programs[name], stages, made=made or llamas(stages), clip=0.5,
                          optimizer=lambda ps: torch.optim.SGD(ps, 0.1), **more)
    parameters = list({id(q): q for module in made for q in module.parameters()}.values())
    optimizer, apart = torch.optim.SGD(parameters, 0.1), []
    for _ in range(3):
        total = pipe.step(*data)
        optimizer.zero_grad()
        apart.append(abs(total - one_process(made, *data)))
        apart.append(abs(pipe.norm - torch.nn.utils.clip_grad_norm_(parameters, 0.5).item()))
        optimizer.step()
    pipe.close()
    if not max(apart) <= bound:
        raise RuntimeError(f"{name}, {more}: {apart}")
    return max(apart)


def wide(rank, programs):
    """Sums of gradients in a type of their own, wherever they are: at home, on their way, in shards, of ties."""
    import torch
    from bridge_models import batch, counted_sum
    from pp_schedules.torch import Pipeline
    two, _ = pair(rank)
    inputs, targets, weight = batch(MICROBATCHES)
    loss = lambda y, t: counted_sum(y.float(), t)
    for name, stages, split in (("1f1b", 2, "whole"), ("zb_v", 4, "whole"), ("zb_v", 4, "halves"), (
            "zb_v", 4, "linears")):
        made = [module.bfloat16() for module in llamas(stages)]
        exact = [[torch.zeros_like(q, dtype=torch.double) for q in module.parameters()] for module in made]
        for (x,), (t,) in zip(inputs, targets):    # bf16 makes the terms, and f64 adds them
            for module in made:
                x = module(x)
            (loss(x, t) * weight).backward()
            for module, sums in zip(made, exact):
                for q, total in zip(module.parameters(), sums):
                    total += q.grad
                    q.grad = None

        def worst(**more):
            """The largest difference to the sum, in units of what rounding it once to bf16 may make."""
            pipe = Pipeline(programs[name], copy.deepcopy(made), loss=loss, group=two, split=split, **more)
            pipe.step(inputs, targets, weight)
            return max(((q.grad.double() - total).abs() / (2 ** -8 * total.abs() + 1e-30)).max().item()
                       for i, p in pipe.pieces.items() for q, total in zip(p.parameters, exact[i]))
        apart = worst(grad_dtype=torch.float32), worst()
        if not apart[0] <= (8 if split == "linears" else 1.01) or not apart[1] > 16:
            raise RuntimeError(f"{name}, {split}: sums of bf16 in f32 are {apart[0]} apart, and {apart[1]} without")
    data, f32, ends = (inputs, targets, weight), {"grad_dtype": torch.float32}, {0: ["embed.weight"]}
    apart = [trained(programs, name, data, 1e-5, stages=stages, group=two, **f32, **more) for name, stages, more in (
        ("zb_v", 4, {}), ("zb_v", 4, {"split": "halves"}), ("zb_v", 4, {"split": "whole"}), ("wzb1", 2, {}),
        ("zero1", 4, {}), ("fsdp", 4, {}))]
    apart += [trained(programs, "chimera", data, 1e-5, **f32), trained(
        programs, "tied zb_v", data, 1e-5, tied(4), group=two, ties={**ends, 3: ["head.weight"]}, **f32)]
    if not min(apart) > 1e-12:
        raise RuntimeError(f"f64 in place of f32: {apart}")
    refusal(lambda: pipeline(programs["1f1b"], 2, group=two, grad_dtype=torch.int64), "`grad_dtype`: expected a float")


def scaled(rank, programs):
    """Losses with a scale: nothing changes but what a small type can hold, and a sum that it cannot is left out."""
    import torch
    from bridge_models import Llama, batch, counted_sum
    from pp_schedules.torch import Pipeline, add_loss
    inputs, targets, weight = batch(MICROBATCHES)

    class Router(Llama):
        def forward(self, x):
            y = super().forward(x)
            return add_loss(y, y.pow(2).sum())
    for name, stages in (("zb_v", 4), ("wzb1", 2), ("zero1", 4)):
        trained(programs, name, (inputs, targets, weight), 1e-12, stages=stages, loss_scale=1024)
    made = [Router(0, 2), Llama(1, 2)]
    pipe, _ = pipeline(programs["zb_h1"], 2, made=made, loss_scale=64.0)
    plain = [lambda x: Llama.forward(made[0], x), made[1]]
    for module in made:
        module.zero_grad()
    pipe.backward(inputs, targets, weight)
    one_process(plain, inputs, targets, weight)
    for x, in inputs:
        (Llama.forward(made[0], x).pow(2).sum() * weight).backward()
    close(pipe, made)
    exact = llamas(2)
    small = weight * 2 ** -18                      # most gradients are below what f16 can hold
    one_process(exact, inputs, targets, small)
    norm = torch.stack([q.grad.norm() for module in exact for q in module.parameters()]).norm()

    def half(**more):
        return Pipeline(programs["1f1b"], [module.half() for module in llamas(2)], clip=1.0, optimizer=lambda ps:
                        torch.optim.SGD(ps, 1.0), loss=lambda y, t: counted_sum(y.float(), t), **more)
    pipe = half(loss_scale=2.0 ** 18, grad_dtype=torch.float32)
    pipe.step(inputs, targets, small)
    bare = half()
    bare.step(inputs, targets, small)
    if not abs(pipe.norm / norm - 1) <= 0.01 or abs(bare.norm / norm - 1) <= 0.01:
        raise RuntimeError(f"the norm is {pipe.norm}, and {bare.norm} without a scale; in f64 {norm}")
    before, pipe.loss_scale = [q.clone() for q in pipe.parameters()], 2.0 ** 60
    pipe.step(inputs, targets, small)
    if pipe.skipped != 1 or any((a - b).abs().max() for a, b in zip(before, pipe.parameters())):
        raise RuntimeError(f"{pipe.skipped} updates were left out")
    pipe.loss_scale = 2.0 ** 18
    pipe.step(inputs, targets, weight)
    if pipe.skipped != 1 or not any((a - b).abs().max() for a, b in zip(before, pipe.parameters())):
        raise RuntimeError("a smaller scale makes no update")
    refusal(lambda: pipeline(programs["1f1b"], 2, loss_scale=0), "`loss_scale`: expected a positive number, got `0`")
    refusal(lambda: pipeline(programs["unclipped"], 2, loss_scale=8.0, optimizer=lambda ps: None),
            "`loss_scale`: ", "updates without the norm")


def copies(rank, programs):
    """A copy that is not like the others is named with its ranks, on all ranks."""
    import torch
    from bridge_models import batch
    from pp_schedules.torch.copies import check
    data, words = batch(MICROBATCHES), {"optimizer": lambda ps: torch.optim.AdamW(ps, 1e-2)}
    two, replicas = pair(rank)
    beside = {"group": two, "replicas": replicas}

    def bump(pipe, who, name, times=1 + 1e-15):
        for key, q in pipe.named_parameters():
            if rank == who and key == name:
                q.data *= times

    def differs(run, *words):
        try:
            run()
        except RuntimeError as error:
            if not all(word in str(error) for word in words):
                raise
            return
        raise RuntimeError(f"nobody says: {words}")
    for name, more, who, said in (("chimera", {}, 3, "the copy on rank 3 is not that on rank 0"),
                                  ("zb_v", beside, 2, "the copy on rank 2 is not that on rank 0"),
                                  ("zero1", {"group": two}, 1, "rank 1 is not that on rank 0")):
        pipe, _ = pipeline(programs[name], 4, check_copies=2, **more, **words)
        for _ in range(2):
            pipe.step(*data)
        bump(pipe, who, "stages.0.layer.up.weight")
        if name == "zero1":                        # its next update would make the copies equal again
            check(pipe) if rank > 1 else differs(lambda: check(pipe), "stage 0, `layer.up.weight`", said)
            continue
        pipe.step(*data)                           # not looked at
        differs(lambda: pipe.step(*data), "behind step 4, stage 0, `layer.up.weight`", said)
    pipe, _ = pipeline(programs["tied"], 2, group=two, check_copies=1, **words,
                       ties={0: ["embed.weight"], 1: ["head.weight"]}, made=tied(2))
    pipe.step(*data)
    bump(pipe, 1, "stages.1.head.weight")
    if rank < 2:
        differs(lambda: check(pipe), "stage 1, `head.weight`: the copy on rank 1 is not that on rank 0 (stage 0, `emb")


def tied(stages):
    made = llamas(stages)
    made[-1].head.weight = made[0].embed.weight
    return made


def more_tried(rank, programs):
    """As `tried`, for schedules that are like those."""
    tried(rank, programs, ("1f1b", "zb_v", "fsdp", "slimpipe", "redone", "halved", "bpipe"))


def tried(rank, programs, names=("tied zb_v", "parts", "terapipe", "vocabulary", "wzb1", "frozen", "chimera")):
    """`check` finds what a program and the driver do right, and what they do wrong."""
    import torch.distributed as dist
    from harness import ROOT
    from pp_schedules.torch import check, trial
    (two, _), real = pair(rank), trial.Pipeline
    trial.Pipeline = lambda *args, **words: real(*args, **words, group=None if args[0].ranks == 4 else two)
    for name in names:
        found, saved, wanted = trial.compare(programs[name])
        if not max(found.values()) <= 1e-12 or {"loss", "weights"} - set(found):
            raise RuntimeError(f"{name}: {found}")
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, saved)
        if set(wanted) - set(sum(everyone, [])) or len(wanted) < 10:
            raise RuntimeError(f"{name}: {wanted}, {everyone}")
    loss, trial.Model.loss = trial.Model.loss, lambda self, y, t: loss(self, y, t) * (
        1 + 0.001 * (t >= 0).sum())                # clipping and Adam hide what is one factor for all microbatches
    found, _, _ = trial.compare(programs["1f1b"])
    trial.Model.loss = loss
    if not all(found[what] > 1e-8 for what in ("loss", "norm", "gradients", "weights")):
        raise RuntimeError(f"another loss has no differences: {found}")
    if rank == 0:                                  # the whole of it once, in processes of its own
        found = check(os.path.join(ROOT, "stdlib", "zb_v.pipe"), ranks=2, microbatches=4, layers=4)
        if list(found) != ["loss", "norm", "gradients", "weights"] or not max(found.values()) <= 1e-12:
            raise RuntimeError(f"{found}")
        delayed = os.path.join(ROOT, "stdlib", "pipedream_2bw.pipe")
        refusal(lambda: check(delayed, ranks=2, microbatches=4, layers=2), "a module of PyTorch has one")
    dist.barrier()


def ends(rank, programs):
    """`split` cuts the ends of a whole model by the vocabulary; its names and weights stay the model's."""
    import torch
    from torch import nn
    from bridge_models import Layer, WIDTH, batch
    from pp_schedules.torch import Pipeline, split
    inputs, targets, weight = batch(MICROBATCHES)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layers = nn.Embedding(26, WIDTH, dtype=torch.double), nn.ModuleList(
                Layer() for _ in range(4))
            self.norm, self.head = nn.RMSNorm(WIDTH, dtype=torch.double), nn.Linear(WIDTH, 26, dtype=torch.double)

        def forward(self, x):
            x = self.embed(x)
            for layer in self.layers:
                x = layer(x)
            return {"logits": self.head(self.norm(x))}
    torch.manual_seed(1)
    whole, program = Whole(), programs["vocabulary"]
    names = [["embed", "layers.0"], ["layers.1"], ["layers.2"], ["layers.3", "norm", "head"]]
    row = nn.Sequential(whole.embed, *whole.layers, whole.norm, whole.head)
    for model, given in ((whole, names), (row, None)):
        model.zero_grad()
        want = one_process([row], inputs, targets, weight)
        norm = torch.stack([q.grad.norm() for q in model.parameters()]).norm()
        pipe = Pipeline(program, split(model, program, given), clip=1e9, loss=lambda nll, t: nll[t != -100].sum(),
                        optimizer=lambda ps: torch.optim.SGD(ps, 0.1))
        apart = [abs(pipe.step(inputs, targets, weight) - want), abs(pipe.norm - norm.item())]
        there, state = dict(model.named_parameters()), pipe.state_dict()
        for key, q in pipe.named_parameters():
            got, rows = there[key].grad, q.shape[0]
            if rows != len(got):                   # a shard has some rows
                first = next(p.rows[0][0] for p in pipe.pieces.values() if any(q is one for one in p.parameters))
                got = got[first:first + rows]
            apart.append((q.grad - got).abs().max().item())
        apart += [(state[key] - q + 0.1 * q.grad).abs().max().item() for key, q in there.items() if key in state]
        saved, mine = [None] * 4, [key for key in state if not key.startswith(("pp.", "optimizer."))]
        torch.distributed.all_gather_object(saved, mine)
        if not max(apart) <= 1e-12 or sorted(sum(saved, [])) != sorted(there):
            raise RuntimeError(f"{given}: {apart}, {saved}")
        pipe.close()
    refusal(lambda: split(whole, program, [["layers.0"], ["embed", "layers.1"], *names[2:]]),
            "cuts `embed` by the vocabulary, and `names` gives no nn.Embedding to the first stage")
    refusal(lambda: split(whole, program, [["embed"], ["layers.0", "layers.1"], ["layers.2"], names[3]]),
            "gives nothing but `embed`")
    refusal(lambda: split(nn.Sequential(whole.embed, whole.head), program), "`names` has 4 stages")

    class Muon(torch.optim.SGD):
        pass

    def step(name, make, **more):
        pipe, _ = pipeline(programs[name], 4, optimizer=make, **more)
        try:
            pipe.step(inputs, targets, weight)
        finally:
            pipe.close()
    two, _ = pair(rank)
    for make, said in ((lambda ps: Muon(ps, 0.1), "`Muon` needs whole matrices"), (
            lambda ps: torch.optim.Adafactor(ps), "`Adafactor` needs whole matrices"), (
            getattr(torch.optim, "Muon", lambda ps: Muon(ps, 0.1)), "Muon")):
        refusal(lambda: step("zero1", make, group=two), "is updated in shards", said)
    pipe = Pipeline(program, split(whole, program, names), loss=lambda nll, t: nll.sum(), optimizer=Muon)
    refusal(lambda: pipe.step(inputs, targets, weight), f"part `embed {rank}` is a shard, and `Muon` needs")
    step("zb_v", lambda ps: Muon(ps, 0.1), group=two)


CHECKS = {"ends": (ends, 4), "tried": (tried, 4), "more_tried": (more_tried, 4), "notices": (notices, 2),
          "wide": (wide, 4), "scaled": (scaled, 2), "copies": (copies, 4)}

if __name__ == "__main__":
    os.environ["PP"] = os.path.abspath(sys.argv[1])
    sys.exit(main(CHECKS))
