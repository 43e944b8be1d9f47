"""`check`: runs a schedule on small modules in processes of its own, and compares it with one process."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from __future__ import annotations
import collections, faulthandler, json, os, queue, subprocess, sys, tempfile, time, traceback
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from .. import program as core
from ..form import leads, part_of
from ..refused import Refused
from .pipeline import Pipeline
from .shared import Program
from .vocabulary import shard

WIDTH, ROWS, CLIP, STEPS = 8, 2, 0.5, 2
WHATS = "loss", "norm", "gradients", "weights"


def check(file: str | os.PathLike | core.Program, name: str | None = None, *, bound: float = 1e-10,
          limit: float = 600.0, **parameters) -> dict[str, float]:
    """Runs two steps of a schedule on small modules in f64, with AdamW and clipping: a process of this machine for each
    rank, over gloo. Returns the largest differences to one process: {"loss", "norm", "gradients", "weights"}.

    `check("mine.pipe", ranks=4, microbatches=8)`: arguments are those of `Program`; or a `Program`, whose modules then
    are small ones all the same. Microbatches have unlike numbers of targets. Raises `Refused` where the compiler or the
    `Pipeline` refuses, and `RuntimeError` where a difference is above `bound`, where no rank saves a weight, where a
    process fails, or where it takes longer than `limit` seconds.
    """
    program = file if isinstance(file, core.Program) else core.Program(file, name, **parameters)
    with tempfile.TemporaryDirectory() as folder:
        program.save(os.path.join(folder, "program.json"))
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-c", "from pp_schedules.torch.trial import main; main()", folder, str(limit)]
        there = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, text=True, capture_output=True, env=there)
    try:
        kind, found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        kind, found = "failed", done.stderr.strip() or f"the processes ended with {done.returncode}"
    if kind != "found":
        raise (Refused if kind == "refused" else RuntimeError)(found)
    wrong = [what for what in found if not found[what] <= bound]
    if wrong:
        raise RuntimeError(f"`{program.name}`: {', '.join(f'{what} by {found[what]:.1e}' for what in wrong)} from one "
                           f"process; expected at most {bound:.1e}")
    return found


class Small(nn.Module):
    """A piece of a model. What a layer mixes along the sequence is a sum over all tokens before, which also a slice can
    make: its keys are the terms of the sum. Ties are weights of a product of their own."""

    def __init__(self, kind, number, ties=(), embed=0, head=0):
        super().__init__()
        made = torch.Generator().manual_seed(1000 + number)

        def weight(generator, *sizes):
            return nn.Parameter(torch.randn(*sizes, generator=generator, dtype=torch.double) / sizes[-1] ** 0.5)
        self.kind, self.ties = kind, [f"tie{t}" for t in ties]
        self.embed = weight(made, embed, WIDTH) if embed else None
        names = {"stage": "norm key out up down", "pre": "norm", "attn": "key", "post": "out up down", "head": "norm"}
        for name in names[kind].split():
            sizes = {"norm": [WIDTH], "up": [12, WIDTH], "down": [WIDTH, 12]}.get(name, [WIDTH, WIDTH])
            setattr(self, name, nn.Linear(sizes[1], sizes[0], dtype=torch.double) if sizes[1:] else nn.RMSNorm(
                WIDTH, dtype=torch.double))
            for parameter in getattr(self, name).parameters():
                parameter.data = 0.5 * weight(made, *parameter.shape) + (name == "norm")
        for t, name in zip(ties, self.ties):
            setattr(self, name, weight(torch.Generator().manual_seed(t), WIDTH, WIDTH))
        self.head = weight(made, head, WIDTH) if head else None

    def forward(self, x, y=None, keys=None):
        x, own = x if self.embed is None else functional.embedding(x, self.embed), ()
        if self.kind in ("stage", "pre"):
            y = self.norm(x)
        if self.kind in ("stage", "attn"):
            own = self.key(y),
            terms = [pair[0].sum(1, keepdim=True) for pair in keys or ()]
            y = torch.tanh(sum(terms, own[0].cumsum(1)))
        if self.kind in ("stage", "post"):
            x = x + self.out(y)
            x = x + self.down(functional.silu(self.up(x)))
        x = self.norm(x) if self.kind == "head" else x
        for name in self.ties:
            x = torch.tanh(x @ getattr(self, name)) + x
        x = x if self.head is None else x @ self.head.t()
        x = (x, y) if self.kind in ("pre", "attn") else x
        return x if keys is None else (x, own)


class Model:
    """The small model of a program: the module of a piece by its name, and all of them for one process."""

    def __init__(self, program):
        self.program, pieces, self.lead = program, program.pieces, leads(program.pieces)
        self.cut = {word: sum(of["part"] == word and i != lead for i, (of, lead) in enumerate(zip(pieces, self.lead)))
                    for word in ("embed", "head")} if "vocabulary" in program.needs else {}
        self.rows = 2 * max(12, *self.cut.values(), 0) + 1 if self.cut else 24
        self.slices = program.data["slices"] or 1
        self.keyed = {a[3] for rank in program.data["programs"] for a in rank["actions"] if a[0] == "run" and any(
            rank["values"][v]["role"] == "kv" for v in a[6])}
        self.ties = {i: names for i, names in ((i, [f"tie{t}" for t in self.of(i)]) for i in range(len(pieces)))
                     if names}
        made, self.x, self.y = torch.Generator().manual_seed(7), [], []
        length = 2 * self.slices + 2 - 2 % self.slices if self.slices > 1 else 5
        for mb in range(program.microbatches):
            x, y = (torch.randint(0, self.rows, (ROWS, length - length % self.slices), generator=made) for _ in "xy")
            y[:, 1 + mb % 3:] = -100 if mb % 2 else y[:, 1 + mb % 3:]
            self.x.append((x,))
            self.y.append((y,))
        self.weight = 1 / sum(int((y != -100).sum()) for y, in self.y)

    def of(self, i):
        return [t for t, tie in enumerate(self.program.ties) if i == tie["owner"] or i in tie["sharers"]]

    def named(self, i):
        of = self.program.pieces[i]
        return part_of(of) if of["part"] else of["index"]

    def end(self, word):
        """The whole of an end that is cut by the vocabulary."""
        module = nn.Embedding(self.rows, WIDTH, dtype=torch.double) if word == "embed" else nn.Linear(
            WIDTH, self.rows, dtype=torch.double)
        for parameter in module.parameters():
            made = torch.Generator().manual_seed(9)
            parameter.data = torch.randn(parameter.shape, generator=made, dtype=torch.double)
        return module

    def make(self, key):
        i = next(i for i in range(len(self.lead)) if self.named(i) == key)
        of, last = self.program.pieces[i], i == len(self.lead) - 1
        if of["part"] in self.cut:
            return shard(self.end(of["part"]), i - self.lead[i], 1 + self.cut[of["part"]])
        kind = "stage" if of["kind"] == "stage" else of["part"]
        module = Small(kind, i, self.of(i), self.rows * (i == 0), self.rows * last)
        return module.requires_grad_(not of["frozen"])

    def loss(self, y, targets):
        if self.cut:
            return y[targets != -100].sum()
        return functional.cross_entropy(y.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-100)

    def whole(self):
        """[(its names in states begin so, module)] for one process."""
        made = []
        for i in sorted(set(self.lead)):
            of, key = self.program.pieces[i], self.named(i)
            if of["part"] in self.cut:
                made.append((of["part"], self.end(of["part"])))
            else:
                made.append((f"stages.{key}" if of["kind"] == "stage" else key.replace(" ", "."), self.make(key)))
        for name in {name for names in self.ties.values() for name in names}:
            with_it = [module for _, module in made if hasattr(module, name)]
            for module in with_it[1:]:
                setattr(module, name, getattr(with_it[0], name))
        return made

    def one_process(self, normed):
        """[(loss, norm, {name: gradient})] of each step, and {name: weight} at the end."""
        made, steps = self.whole(), []
        trained = list({id(q): q for _, m in made for q in m.parameters() if q.requires_grad}.values())
        optimizer = torch.optim.AdamW(trained, lr=1e-2)
        for _ in range(STEPS):
            optimizer.zero_grad()
            total = 0.0
            for x, (targets,) in zip(self.x, self.y):
                for _, module in made:
                    x = module(*x) if isinstance(x, tuple) else module(x)
                loss = self.weight * functional.cross_entropy(x.flatten(0, 1), targets.flatten(), reduction="sum",
                                                              ignore_index=-100)
                loss.backward()
                total += loss.item()
            gradients = {f"{at}.{n}": q.grad.clone() for at, m in made for n, q in m.named_parameters()
                         if q.grad is not None}
            norm = torch.nn.utils.clip_grad_norm_(trained, CLIP if normed else float("inf")).item()
            optimizer.step()
            steps.append((total, norm, gradients))
        return steps, {f"{at}.{n}": q.detach() for at, m in made for n, q in m.named_parameters()}


def compare(program):
    """({what: the largest difference of this rank}, the names that it saves, those that somebody has to save)."""
    model, found = Model(program), collections.defaultdict(float)
    normed = all({v for v, value in enumerate(rank["values"]) if value["role"] == "stat"} & set(a[5])
                 for rank in program.data["programs"] for a in rank["actions"] if a[1:3] == ["U", "plain"])
    steps, after = model.one_process(normed)
    pipe = Pipeline(program, model.make, loss=model.loss, ties=model.ties, clip=CLIP if normed else None,
                    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))

    def apart(what, got, want):
        difference = (torch.as_tensor(got) - torch.as_tensor(want)).abs().max().item()
        found[what] = max(found[what], difference) if difference == difference else float("nan")
    for number, (loss, norm, gradients) in enumerate(steps):
        apart("loss", pipe.step(model.x, model.y, model.weight), loss)
        if pipe.norm is not None:
            apart("norm", pipe.norm, norm)
        for i, p in pipe.pieces.items() if number == 0 else ():
            for place, q in enumerate(p.parameters):
                key, sharer = pipe.key(i, place), p.names[place] in model.ties.get(i, ()) and any(
                    i in tie["sharers"] for tie in program.ties)
                if p.optimizer is not None and i not in pipe.sharded and key in gradients and not sharer:
                    apart("gradients", q.grad, p.own_rows(place, gradients[key]))
    state = {key: t for key, t in pipe.state_dict().items() if key in after}
    for key, t in state.items():
        apart("weights", t, after[key])
    pipe.close()
    return dict(found), list(state), [key for key in after if ".tie" not in key]


def worker(rank, ranks, folder, limit, results):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    faulthandler.dump_traceback_later(limit, exit=True)
    try:
        dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{folder}/store")
        results.put(("found", compare(Program.load(os.path.join(folder, "program.json")))))
        dist.barrier()
    except Refused as refused:
        results.put(("refused", str(refused)))
    except Exception as error:
        traceback.print_exc()
        results.put(("failed", f"rank {rank}: {type(error).__name__}: {error}"))


def trial(folder, limit):
    """Forks the ranks from a process that has imported torch and started no thread. Returns ("found", ..) or a reason
    why nothing was found."""
    import torch.multiprocessing as mp
    import torch._dynamo  # optimizers import it: once, before the forks
    ranks, context = Program.load(os.path.join(folder, "program.json")).ranks, mp.get_context("fork")
    results, end = context.Queue(), time.monotonic() + limit
    processes = [context.Process(target=worker, args=(rank, ranks, folder, limit, results)) for rank in range(ranks)]
    for process in processes:
        process.start()
    found, saved, wanted = dict.fromkeys(WHATS, 0.0), set(), set()
    try:
        for _ in processes:
            kind, said = results.get(timeout=max(1.0, end - time.monotonic()))
            if kind != "found":
                return kind, said
            differences, keys, all_keys = said
            saved, wanted = saved | set(keys), wanted | set(all_keys)
            found.update((what, max(found[what], one, key=lambda t: (t != t, t))) for what, one in differences.items())
    except queue.Empty:
        return "failed", f"a rank has not ended after {limit:.0f} s"
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    missing = sorted(wanted - saved)
    return ("failed", f"no rank saves {missing}") if missing else ("found", found)


def main():
    """What `check` runs in a process of its own."""
    print(json.dumps(trial(sys.argv[1], float(sys.argv[2]))))
    sys.stdout.flush()
    os._exit(0)                                    # no rank that hangs may hold this one
