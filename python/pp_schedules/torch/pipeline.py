"""The driver: runs the list of one rank, in its order, on the modules of the stages that this rank has."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from __future__ import annotations
import math, os, time, traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
import torch
import torch.distributed as dist
from ..form import leads, part_of
from ..refused import Refused
from . import agree, copies, memory, notices, state
from .lanes import Lanes
from .messages import Messages
from .shapes import Shapes
from .shared import Program
from .units import Units
from .updates import Updates
from .watch import Trace, Watch

Batch = Sequence[Sequence[torch.Tensor]]


class Now:
    """What is true of the step that runs."""

    def begin(self, inputs, targets, weights, extra, metas, device, scale):
        """Lists have one entry for each microbatch, or for each of its slices."""
        self.inputs, self.targets, self.weights, self.extra, self.metas = inputs, targets, weights, extra, metas
        self.norm, self.losses, self.reduced, self.states, self.skips = None, {}, set(), {}, False
        self.device, self.scale = device, scale
        self.seeds = [weight * scale for weight in weights]  # what backwards begin with

    def total(self):
        """What this rank adds to the loss of the step."""
        if not self.losses:
            return torch.zeros((), dtype=torch.double, device=self.device)
        weights = torch.tensor([self.weights[mb] for mb in self.losses], dtype=torch.double, device=self.device)
        return torch.stack(list(self.losses.values())).double() @ weights


class Pipeline:
    """One rank of a pipeline over the processes of `group`.

    program: a `Program`; its number of ranks is that of processes. stages: a function (or a list) that gives the
    nn.Module of a stage; it is asked for those alone that this rank runs or updates. The first stage takes the inputs
    of a microbatch, the others what the one before returns, a tensor or a tuple. Where pieces are parts of layers,
    `stages` is asked for them by name: "pre 0", "attn 0", "post 0", "head"; "embed 0", "head 0" where ends are cut by
    the vocabulary (`shard`). loss: takes what the last stage returns, and the targets, and returns a tensor without
    dimensions; without it the last stage takes the targets behind its inputs, and returns the loss. Of a cut head it
    takes the negative log-likelihood of each token. Modules may be on `meta` until the first step, be sharded or
    compiled until then, and their storage may be replaced between steps.

    optimizer: called with the parameters of each piece that this rank updates; without it `step` updates nothing, and
    says so once. clip: the largest norm of all gradients.
    replicas: the group of data-parallel copies. device: where modules and messages are. ties: {stage: [names of
    parameters]} for weights that stages share. seed: makes dropout a function of step, stage and microbatch. context:
    makes a context manager for every forward, such as autocast. split: how I and W share a backward: `linears`,
    `halves`, `whole`, or {stage: one of them}. lanes: `edge` or `pair`. names: (stage, name) -> name in state dicts.
    shapes: `first step` (all microbatches have those of the first), `sent` (they may differ), or a list with the
    outputs of each stage but the last, tensors that may be on `meta`. patience: seconds until a rank says where it
    waits. sends: `proved`, or `lazy`: waits of sent activations and their gradients go behind the last action, which
    keeps these tensors longer. reduces: stages of FSDP2 sum gradients over their shards at `each` backward, or at the
    `last` one of a step, which holds whole gradients until then. unsafe_lanes: accepts a program whose progress holds
    with a lane for each edge alone. grad_dtype: the type in which gradients are summed, moved and measured; `.grad` and
    the optimizer get them in the type of the Parameters. loss_scale: backwards begin with this number times the weight
    of their loss, and sums are divided by it before the update; the attribute may be changed between steps, on all
    ranks. check_copies: after every so many steps, copies of a weight are compared by a hash.

    Making one is a collective of all processes of the world. Raises `Refused` with a sentence that says what the
    program and the modules do not have in common, on every rank, and `Unproved` if the program does not hold what it
    claims.

    After a step: `losses`, {microbatch: its loss} where this rank runs the last stage; `norm`, that of all gradients;
    `steps`, how many ran; `skipped`, how many updates were left out because the norm was not finite.
    """

    made = 0

    def __init__(self, program: Program, stages: Callable[[int], torch.nn.Module] | Sequence[torch.nn.Module], *,
                 loss: Callable | None = None,
                 optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
                 clip: float | None = None, group: dist.ProcessGroup | None = None,
                 replicas: dist.ProcessGroup | None = None, device: str | torch.device = "cpu",
                 ties: Mapping[int, Sequence[str]] | None = None, seed: int | None = None,
                 context: Callable | None = None, split: str | Mapping[int, str] = "linears", lanes: str = "edge",
                 names: Callable[[int, str], str] | None = None, shapes: str | Sequence = "first step",
                 patience: float = 60.0, sends: str = "proved", reduces: str = "each", unsafe_lanes: bool = False,
                 grad_dtype: torch.dtype | None = None, loss_scale: float | None = None, check_copies: int = 0):
        self.program, self.group, self.rank, self.device = program, group, dist.get_rank(group), torch.device(device)
        self.loss, self.clip, self.seed, self.context, self.replicas = loss, clip, seed, context, replicas
        self.closed, self.steps, self.norm, self.log, self.now, self.lists = False, 0, None, None, Now(), {}
        self.ready, self.split, self.splits, self.told = False, split, {}, set()
        self.losses, self.optimizer, self.skipped, self.lazy = {}, optimizer, 0, sends == "lazy"
        self.loss_scale, self.check_copies = loss_scale, check_copies
        self.reduces, self.lead, self.slices = reduces, leads(program.pieces), program.data["slices"] or 1
        self.before = [self.lead[lead - 1] if lead else None for lead in self.lead]  # whose output a piece takes
        Pipeline.made = 1 + agree.on_program(program, group, lanes, unsafe_lanes, Pipeline.made)
        self.me = program.data["programs"][self.rank]
        runs = [a for a in self.me["actions"] if a[0] == "run"]
        stashes = {v for v, value in enumerate(self.me["values"]) if value["role"] == "stash"}
        self.halved = {a[3] for a in runs if a[1] == "I"}
        self.redone = {a[3] for a in runs if a[1] == "R" or a[1] == "B" and not stashes & set(a[5])}
        roles = [value["role"] for value in self.me["values"]]
        self.keyed = {a[3] for a in runs if any(roles[v] == "kv" for v in a[6])}  # pieces that hand keys over
        self.heads = {a[3] for a in runs if a[1] == "F" and any(roles[v] == "stat" for v in a[6])}  # shards of a head
        self.moved = {m["piece"] for m in program.data["messages"] if m["role"] == "stash"}
        self.tied_values = {a[3]: program.data["messages"][a[1]]["of"] for a in self.me["actions"]
                            if a[0] == "post" and program.data["messages"][a[1]]["of"] != "all"}

        self.reads = {what: sorted({v["bind"]["mb"] for v in self.me["values"] if v["bind"] and
                                    v["bind"]["kind"] == kind})
                      for what, kind in (("inputs", "tokens"), ("targets", "targets"))}

        def build():
            agree.arguments(program, lanes=lanes, sends=sends, reduces=reduces, split=split, loss=loss,
                            optimizer=optimizer, context=context, clip=clip, grad_dtype=grad_dtype,
                            loss_scale=loss_scale)
            self.shapes = Shapes(self, shapes)
            self._places()
            numbers = {a[3] for a in runs} | {b["piece"] for b in self.binds}
            self.pieces = agree.modules(program, stages, numbers, ties or {}, self.device)
            for p in self.pieces.values():
                p.wide = grad_dtype
            self._cuts()
        agree.together(group, build)
        whole = all(getattr(p.module, "pp_whole_names", False) for p in self.pieces.values())
        self.names = names or ((lambda stage, name: name) if whole else self._name)
        self.lanes = Lanes(program, group, lanes, self.device)
        name = f"pp/{Pipeline.made}/{','.join(map(str, self.lanes.ranks))}"
        self.watch = Watch(name, self.rank, program.ranks, patience)

    def unit(self, mb, k):
        """The number of a slice among all slices of all microbatches; without slices the microbatch."""
        return mb * self.slices + (k if self.slices > 1 else 0)

    def _sliced(self, given):
        """The tensors of each slice: equal parts of the second dimension."""
        if given is None or self.slices == 1:
            return given
        return [[t.tensor_split(self.slices, 1)[k] for t in tensors] for tensors in given for k in range(self.slices)]

    def _name(self, i, name):
        """In state dicts, where modules are not cut out of a whole model."""
        of = self.program.pieces[i]
        return f"stages.{of['index']}.{name}" if of["kind"] == "stage" else f"{part_of(of).replace(' ', '.')}.{name}"

    def key(self, i, place):
        """The name of a parameter in state dicts. All shards of a vocabulary have that of the whole."""
        p = self.pieces[i]
        if place not in p.rows:
            return self.names(i, p.names[place])
        if self.names == self._name:
            return f"{self.program.pieces[i]['part']}.{p.names[place]}"
        return self.names(self.lead[i], getattr(p.module, "pp_prefix", "") + p.names[place])

    def _places(self):
        """Where weights are between steps, and who updates what: pieces by kinds of values."""
        self.binds = [v["bind"] for v in self.me["values"] if v["bind"] and v["bind"]["kind"] in ("weight", "opt")]
        self.sharded = {b["piece"] for b in self.binds if b.get("shard") is not None}
        self.saved = {b["piece"] for b in self.binds if b["kind"] == "weight" and b.get("save")}
        self.updated = {b["piece"] for b in self.binds if b["kind"] == "opt"}
        self.full = {b["piece"] for b in self.binds if b["kind"] == "weight" and b.get("shard") is None}

    def _cuts(self):
        for i in self.sharded:
            p = self.pieces[i]
            if len({t.dtype for t in p.like}) > 1:
                raise Refused(f"stage {i} is updated in shards, and has parameters of several dtypes")
            p.cut = (next(b["shard"] for b in self.binds if b["piece"] == i and b.get("shard") is not None),
                     len(self.program.pieces[i]["owner"]["ranks"]))

    def _settle(self):
        """Homes and optimizers, at the first use: trainers fill their modules after they made the Pipeline."""
        for i, p in self.pieces.items():
            if p.settled:
                p.refresh()
                continue
            p.settle()
            if i in self.sharded:
                p.make_shard()
            if i not in self.full:
                p.empty_home()
            if i in self.updated and self.optimizer is not None:
                ties = self.program.ties
                shared = {place for t in p.tied if i in ties[t]["sharers"] for place in p.tied[t]}
                own = [p.shard] if i in self.sharded else [q for place, q in enumerate(p.parameters) if
                                                          q.requires_grad and place not in shared]
                p.optimizer = agree.updater(p, self.optimizer, own, i in self.sharded) if own else None
        self.splits = self.splits or agree.splits(self.pieces, self.split, self.context)
        for i, p in self.pieces.items():           # compiled, or with a hook, since the step before
            why = agree.undivided(p) if self.splits[i] != "whole" else None
            if why is not None:
                p.why, self.splits[i], self.lists = why, "whole", {}
                if i in self.halved and i in self.saved:
                    text = notices.whole(p, agree.asked(self.split, i))
                    self.tell(text, text)

    def tell(self, what, text):
        """Says once what may be meant and may be a mistake."""
        if what not in self.told:
            self.told.add(what)
            notices.say(text)

    # Lists of functions.

    def _list(self, way):
        """[function, values that are dead behind it] for each action, and the values that are there when it begins.
        `way` is "step", "eval", or "backward", which leaves out norms and updates."""
        side, leaves = self.program.side(way == "eval"), way == "backward"
        me, messages = side["programs"][self.rank], [{**m, "mb": self.unit(m["mb"], m.get("slice", 0))} if m["mb"] >= 0
                                                     else m for m in side["messages"]]
        values, env = me["values"], [None] * len(me["values"])
        posts = {(a[1], a[2]): a for a in me["actions"] if a[0] == "post"}
        carriers = Messages(self, env, values, messages)
        units, updates = Units(self, env, values, way != "eval"), Updates(self, env, values, carriers.land)
        steps, last = [], []                       # `last`: what lazy sends wait for
        for place, action in enumerate(me["actions"]):
            message = messages[action[1]] if action[0] != "run" else {"role": None}
            if leaves and (message["role"] == "stat" or action[1] == "U"):
                made = updates.left(action)
            elif action[0] == "post":
                made = carriers.post(*action[1:5], carriers.batch(me["actions"], place))
            elif action[0] == "wait":
                post = posts[action[1], action[2]]
                made = carriers.wait(action[1], action[2], post[4] if message["kind"] == "reduce_scatter" else post[3])
            elif action[1] == "U":
                made = updates.make(action[2], action[3], *action[5:7])
            else:
                made = units.make(*action[1:4], self.unit(action[4], action[-1]), *action[5:7])
            late = self.lazy and action[0] == "wait" and action[2] == "send" and message["role"] in ("act", "dact")
            dead = action[8 if action[0] == "run" else -1]
            (last if late else steps).append((made, dead, place))
        bound = [(v, value["bind"]) for v, value in enumerate(values) if value["bind"]]

        def story(place):
            return self.program.story(me["actions"][min(place, len(me["actions"]) - 1)], side["messages"])
        return steps + last, env, bound, story, me["actions"]

    def _prepare(self, inputs, targets, weights, extra, way):
        """What the first step finds out, or finds changed since the last one: what every stage makes."""
        if self.closed:
            raise Refused("this pipeline is closed: a step failed, or `close` was called")
        count, needs = self.program.microbatches, self.reads
        for what, given, read in (("inputs", inputs, needs["inputs"]), ("targets", targets, needs["targets"]),
                                  ("weights", weights if isinstance(weights, (list, tuple)) else None, []),
                                  ("kwargs", extra, [])):
            if len(given) != count if given is not None else read:
                got = "is not given" if given is None else f"has {len(given)}"
                raise Refused(f"the program has {count} microbatches, and `{what}` {got}")
        if self.ready:
            self._settle()
        else:
            agree.together(self.group, self._settle)
            notices.tell(self, {i: agree.asked(self.split, i) for i in self.pieces})
            self.ready = True
        inputs, targets = (given if given is None else self._sliced(
            [(t,) if isinstance(t, torch.Tensor) else t for t in given]) for given in (inputs, targets))
        if not isinstance(weights, (list, tuple)):
            weights = [1 / count if weights is None else weights] * count
        weights, extra = (given and [one for one in given for _ in range(self.slices)] for given in (weights, extra))
        metas = self.shapes.of(inputs, extra)
        if way not in self.lists:
            self._first(way, metas[0])
        self.now.begin(inputs, targets, weights, extra, metas, self.device, float(self.loss_scale or 1.0))

    def _first(self, way, metas):
        """What is asked of a way of running before its first time, on all ranks."""
        if way != "eval":
            self.shapes.train(metas)
        if way == "backward" or way == "step" and self.optimizer is None:
            agree.on_backward(self.program)
        if way == "step" and self.optimizer is None and self.rank == 0:
            self.tell("optimizer", "no `optimizer` is given: `step` leaves gradients in `.grad` and updates nothing")
        self.lists[way] = self._list(way)

    def _run(self, way):
        steps, env, bound, story, actions = self.lists[way]
        for v, bind in bound:                      # tokens and targets are taken from where they are
            if bind["kind"] == "weight":
                p = self.pieces[bind["piece"]]
                env[v] = [p.shard.data] if bind.get("shard") is not None else p.home
        self.watch.begin(story)
        watch, place = self.watch, 0
        try:
            for act, dead, place in steps if self.log is None else self._logged(steps, story):
                watch.place = place
                act()
                for v in dead:
                    env[v] = None
            for p in self.pieces.values():
                p.bind(p.home)
            total = self.now.total()
            dist.all_reduce(total, group=self.lanes.groups[self.lanes.all])
        except Exception as error:
            act = None
            self._failed(error, place, actions, story)
        finally:
            watch.end()
            env[:] = [None] * len(env)
        self.losses, total = {}, total.item()
        for unit, loss in self.now.losses.items():
            mb = unit // self.slices
            self.losses[mb] = loss if mb not in self.losses else self.losses[mb] + loss
        wrong = [mb for mb, loss in self.losses.items() if not torch.isfinite(loss)] if not math.isfinite(total) else []
        for mb in wrong[:1]:
            self.tell("loss", f"{way} {self.steps}: the loss of microbatch {mb} is {self.losses[mb].item()}" + (
                "; a mean over a microbatch without targets is: give a loss that sums, and `weights=1 / counted`, "
                "the targets of all microbatches" if self.losses[mb].isnan() else ""))
        return total

    def _logged(self, steps, story):
        for step in steps:
            begun = time.perf_counter()
            yield step
            ended = time.perf_counter()
            self.log.append((story(step[2]), begun, ended))

    def _failed(self, error, place, actions, story):
        """Every rank says what failed first, and where: this one lets its lanes go, so those that wait fail, too."""
        where = story(place)
        mine = isinstance(error, Refused), f"rank {self.rank}, {where}: {error}"
        if actions[place][0] == "run":
            refused, told = self.watch.failed(*mine)
        else:
            refused, told = self.watch.heard(where) or self.watch.failed(*mine)
            traceback.clear_frames(error.__traceback__)  # they hold what a transport began
        self._end(True)
        raise (Refused if refused else RuntimeError)(told) from error

    def _end(self, abort):
        """Lets go of all that refers to a lane, and of the lanes."""
        self.closed = True
        for steps, *_ in self.lists.values():
            steps.clear()
        self.lists = {}
        self.lanes.close(abort)
        self.watch.close()

    # What users call.

    def step(self, inputs: Batch, targets: Batch, weights: float | Sequence[float] | None = None,
             kwargs: Sequence[Mapping[str, Any]] | None = None) -> float:
        """Runs one step and returns its loss, the same number on every rank; `norm` is that of the gradients.

        inputs[i], targets[i]: a tensor, or a tuple of tensors, of microbatch i; those alone are read that `needs`
        names, and a rank that reads none may give None. weights: how much the loss of a microbatch counts in that of
        the step, one number or a list. It is 1 / microbatches by default, for losses that are means of equal counts;
        for sums it is 1 / (counted targets of all microbatches and replicas). kwargs[i]: a dictionary of keyword
        arguments that the modules of all stages get for microbatch i; every rank gives them, for they do not travel.

        Gradients are left in `.grad`, unclipped. Raises `Refused` where shapes are not those that were told, and
        `RuntimeError` with the unit that failed first, and its line, on every rank; the pipeline is closed then.
        """
        return self._train(inputs, targets, weights, kwargs, "step")

    def _train(self, inputs, targets, weights, kwargs, way):
        self._prepare(inputs, targets, weights, kwargs, way)
        for p in self.pieces.values():
            p.take_grads(way == "backward")
        with torch.enable_grad():
            total = self._run(way)
        self.norm, self.steps = self.now.norm, self.steps + 1
        if self.check_copies and self.steps % self.check_copies == 0:
            copies.check(self)
        return total

    def backward(self, inputs: Batch, targets: Batch, weights: float | Sequence[float] | None = None,
                 kwargs: Sequence[Mapping[str, Any]] | None = None) -> float:
        """As `step`, for loops that clip and update themselves: adds the gradients to `.grad` and updates nothing.

        Programs that move weights behind their updates, or update in shards, are refused. There is no `norm`: where
        stages are replicated, each copy has the whole gradient.
        """
        return self._train(inputs, targets, weights, kwargs, "backward")

    def eval(self, inputs: Batch, targets: Batch, weights: float | Sequence[float] | None = None,
             kwargs: Sequence[Mapping[str, Any]] | None = None) -> float:
        """The loss by the forward program, which pp proved too; modules are in `eval()` mode meanwhile."""
        self._prepare(inputs, targets, weights, kwargs, "eval")
        modes = [(module, module.training) for p in self.pieces.values() for module in p.module.modules()]
        for p in self.pieces.values():
            p.module.eval()
        try:
            with torch.no_grad():
                return self._run("eval")
        finally:
            for module, mode in modes:
                module.training = mode

    def needs(self) -> dict[str, list[int]]:
        """Which microbatches' inputs and targets this rank reads: {"inputs": [..], "targets": [..]}."""
        return {what: list(mbs) for what, mbs in self.reads.items()}

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers of the pieces that this rank updates, for schedules of learning rates."""
        self._settle()
        return [p.optimizer for p in self.pieces.values() if p.optimizer is not None]

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """(name in state dicts, parameter) of what this rank has. Those whose weights visit are empty between steps."""
        self._settle()
        for i, p in self.pieces.items():
            yield from ((self.key(i, place), q) for place, q in enumerate(p.parameters))

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The parameters of `named_parameters`."""
        return [q for _, q in self.named_parameters()]

    def state_dict(self) -> dict[str, Any]:
        """What this rank saves: weights, one copy of replicas, buffers and optimizers' states, by the names of the
        whole model. `state.py` has the keys. Ranks together have all; what is in shards is gathered, so every rank
        must call it."""
        self._settle()
        return state.save(self)

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Takes what this rank has out of a state of the whole model, whichever schedule wrote it; optimizers keep
        theirs if it has weights alone. Raises `Refused` if a weight is missing or has another shape."""
        self._settle()
        state.load(self, given)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes a checkpoint of torch.distributed.checkpoint; all ranks write at once. A collective of the world."""
        self._settle()
        state.save_folder(self, folder)

    def load(self, folder: str | os.PathLike) -> None:
        """Reads what `save` wrote, by any schedule on any number of ranks. A collective of the world."""
        self._settle()
        state.load_folder(self, folder)

    def memory(self) -> dict[str, int]:
        """An estimate of this rank's peak, by the proved lives of values and what the stages made: {what: bytes} of the
        moment where their sum is largest, and this sum, "peak". "temporaries" are gradients that are added to sums,
        logits beside what the loss keeps of them, and what Adam needs; what else a unit needs while it runs is not in
        it. Stashes are missing where shapes were declared, for no stage was run."""
        if not self.shapes.known:
            raise Refused("memory is known behind the first step")
        return memory.peak(self)

    def trace(self, path: str | os.PathLike) -> Trace:
        """A context manager: writes what this rank did inside it in Chrome's trace format."""
        return Trace(self, path)

    def close(self) -> None:
        """Ends the watching thread and gives the communicators back; no step runs behind it."""
        self._end(False)
