"""The driver: runs the list of one rank, in its order, on the modules of the stages that this rank has."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import json, time
import torch
import torch.distributed as dist
from ..refused import Refused, Unproved
from ..verify import MAPS, verify
from .boxes import Boxes
from .lanes import Lanes
from .messages import Messages
from .pieces import Piece
from .shared import Added
from .units import Units, random_state, seed_of
from .updates import Updates
from .watch import Watch

REFUSED = {
    "slices": "slices of sequences run in pp's own programs only: a module of PyTorch has no place where its keys "
              "could be handed over",
    "cuts": "units that are cut at their attentions run in pp's own programs only",
    "parts": "the pieces of this program are parts of layers; modules for parts cannot be given yet",
    "skips": "values that skip pieces are not handed over yet",
    "vocabulary": "a part is cut by the vocabulary; use a DTensor inside the stage",
    "updates": "`updates` above 1: a module of PyTorch has one version of its weights",
    "versions": "several versions of weights: a module of PyTorch has one",
    "redo": "updates that may be taken back run in pp's own programs only"}


class Now:
    """What is true of the step that runs."""

    def begin(self, inputs, targets, weights, extra, training, device):
        self.inputs, self.targets, self.weights, self.training = inputs, targets, weights, training
        self.norm, self.losses, self.reduced, self.states, self.extra = None, {}, set(), {}, extra
        self.total = torch.zeros((), dtype=torch.double, device=device)


class Meta:
    """What the first microbatch showed of a stage: (shape, dtype, has a gradient) of outputs, bytes of its stash."""

    def __init__(self, outputs, held, sent):
        self.outputs, self.held, self.sent = outputs, held, sent


class Pipeline:
    """One rank of a pipeline over the processes of `group`.

    program: a `Program`; its number of ranks is that of processes. stages: a function (or a list) that gives the
    nn.Module of a stage; it is asked for those alone that this rank runs or updates. The first stage takes the inputs
    of a microbatch, the others what the one before returns, a tensor or a tuple. loss: takes what the last stage
    returns, and the targets; without it the last stage takes the targets behind its inputs, and returns the loss.

    optimizer: called with the parameters of each piece that this rank updates. clip: the largest norm of all gradients.
    replicas: the group of data-parallel copies. ties: {stage: [names of parameters]} for weights that stages share.
    seed: makes dropout a function of step, stage and microbatch. context: makes a context manager for every forward.
    split: how I and W share a backward: `linears`, `halves`, `whole`, or {stage: one of them}. lanes: `edge` or `pair`.
    names: (stage, name) -> name in state dicts. patience: seconds until a rank says where it waits.

    Raises `Refused` with a sentence that says what the program and the modules do not have in common, and `Unproved` if
    the program does not hold what it claims. `unsafe_lanes=True` accepts a program whose progress holds with a lane for
    each edge alone.
    """

    made = 0

    def __init__(self, program, stages, *, loss=None, optimizer=None, clip=None, group=None, replicas=None,
                 device="cpu", ties=None, seed=None, context=None, split="linears", lanes="edge", names=None,
                 patience=60.0, unsafe_lanes=False):
        self.program, self.group, self.rank, self.device = program, group, dist.get_rank(group), torch.device(device)
        self.loss, self.clip, self.seed, self.context, self.replicas = loss, clip, seed, context, replicas
        self.closed, self.steps, self.norm, self.log, self.now, self.meta = False, 0, None, None, Now(), None
        self.losses, self.optimizer = {}, optimizer
        self._agree(unsafe_lanes)
        self.me = program.data["programs"][self.rank]
        runs = [a for a in self.me["actions"] if a[0] == "run"]
        self.halved = {a[3] for a in runs if a[1] == "I"}
        self.moved = {m["piece"] for m in program.data["messages"] if m["role"] == "stash"}
        self.tied_values = {a[3]: program.data["messages"][a[1]]["of"] for a in self.me["actions"]
                            if a[0] == "post" and program.data["messages"][a[1]]["of"] != "all"}
        def build():
            self._modules(stages, {a[3] for a in runs}, ties or {}, names)
            self._homes()
            self._splits(split)
        self._together(build)
        self.lanes = Lanes(program, group, lanes, self.device)
        Pipeline.made += 1
        name = f"pp/{Pipeline.made}/{','.join(map(str, self.lanes.ranks))}"
        self.watch = Watch(name, self.rank, program.ranks, patience)
        self.lists = {}

    def _together(self, make):
        """Calls `make`; what one rank refuses all refuse, or the others would wait for it."""
        mine, said = None, [None] * self.program.ranks
        try:
            make()
        except Refused as refused:
            mine = str(refused)
        dist.all_gather_object(said, mine, group=self.group)
        if any(said):
            raise Refused(mine or next(f"rank {rank}: {text}" for rank, text in enumerate(said) if text))

    def _agree(self, unsafe_lanes):
        """Refuses what cannot run before anything is built."""
        ranks = dist.get_world_size(self.group)
        if ranks != self.program.ranks:
            raise Refused(f"the program has {self.program.ranks} ranks, and the group has {ranks} processes")
        prints = [None] * ranks
        dist.all_gather_object(prints, self.program.fingerprint, group=self.group)
        if len(set(prints)) > 1:
            raise Refused(f"the ranks have different programs: {[one[:12] for one in prints]}")
        for word in self.program.needs:
            if word in REFUSED:
                raise Refused(REFUSED[word])
        try:
            verify(self.program, ("edge",) if unsafe_lanes else MAPS)
        except Unproved as unproved:
            if unproved.claim != "progress" or unsafe_lanes:
                raise
            raise Refused(f"{unproved}; edge lanes may be proved, but NCCL may serialise streams: `unsafe_lanes=True` "
                          "takes the risk") from unproved

    def _modules(self, stages, runs, ties, names):
        bound = {v["bind"]["piece"] for v in self.me["values"] if v["bind"] and v["bind"]["kind"] in ("weight", "opt")}
        build = stages if callable(stages) else stages.__getitem__
        if bool(ties) != bool(self.program.ties):
            raise Refused("the program ties weights, and `ties` names none" if self.program.ties else
                          "`ties` names weights that two stages share, and the program was not told: its proof of "
                          "gradients does not hold for this model")
        self.pieces = {}
        for i in sorted(runs | bound):
            module = build(i)
            if not any(p.is_meta for p in module.parameters()):
                module = module.to(self.device)
            if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                raise Refused(f"stage {i} is a DistributedDataParallel, which sums at every backward; use `replicas`")
            piece = self.pieces[i] = Piece(i, module, self.device)
            if not piece.parameters:
                raise Refused(f"stage {i} has no parameters")
            if self.program.pieces[i]["frozen"] and any(p.requires_grad for p in piece.parameters):
                raise Refused(f"the program was told that stage {i} is frozen, and its module has parameters to train")
            self._tie(i, piece, ties)
        whole = all(getattr(p.module, "pp_whole_names", False) for p in self.pieces.values())
        self.names = names or ((lambda stage, name: name) if whole else (lambda stage, name: f"stages.{stage}.{name}"))

    def _tie(self, i, piece, ties):
        mine = [t for t, tie in enumerate(self.program.ties) if i == tie["owner"] or i in tie["sharers"]]
        given = list(ties.get(i, ()))
        missing = [name for name in given if name not in piece.names]
        if bool(mine) != bool(given) or missing or len(mine) > 1 and len(mine) != len(given):
            raise Refused(f"stage {i} has {len(mine)} ties in the program, and `ties` names {given} for it" + (
                f"; `{missing[0]}` is none of its parameters" if missing else ""))
        places = [piece.names.index(name) for name in given]
        piece.tied = {t: places if len(mine) == 1 else [places[k]] for k, t in enumerate(mine)}

    def _homes(self):
        """Where weights are between steps, and who updates what: pieces by kinds of values."""
        binds = [v["bind"] for v in self.me["values"] if v["bind"] and v["bind"]["kind"] in ("weight", "opt")]
        self.sharded = {b["piece"] for b in binds if b.get("shard") is not None}
        self.saved = {b["piece"] for b in binds if b["kind"] == "weight" and b.get("save")}
        self.updated = {b["piece"] for b in binds if b["kind"] == "opt"}
        self.full = {b["piece"] for b in binds if b["kind"] == "weight" and b.get("shard") is None}
        for i in self.sharded:
            p = self.pieces[i]
            if len({t.dtype for t in p.like}) > 1:
                raise Refused(f"stage {i} is updated in shards, and has parameters of several dtypes")
            p.cut = (next(b["shard"] for b in binds if b["piece"] == i and b.get("shard") is not None),
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
                p.optimizer = self.optimizer(own) if own else None

    def _splits(self, split):
        self.splits = {}
        for i, p in self.pieces.items():
            way = split.get(i, "linears") if isinstance(split, dict) else split
            if way not in ("linears", "halves", "whole"):
                raise Refused(f"`split`: expected `linears`, `halves` or `whole`, got `{way}`")
            compiled = any(getattr(m, "_compiled_call_impl", None) is not None for m in p.module.modules())
            sharded = any(hasattr(m, "set_requires_gradient_sync") for m in p.module.modules())
            if compiled or sharded:                # a node of autograd that halves would run twice; hooks of FSDP2
                way = "whole"
            elif way == "linears" and self.context is not None:
                way = "halves"                     # autocast must see the linear itself
            self.splits[i] = way

    # Shapes: the first microbatch runs through the stages once, in their order.

    def _shapes(self, inputs, extra):
        self.meta, incoming = {}, None
        for i in range(len(self.program.pieces)):
            runner = min(r["rank"] for r in self.program.data["programs"] for a in r["actions"] if a[:2] == ["run", "F"]
                         and a[3] == i)
            told = [None]
            if runner == self.rank:
                try:
                    told = [self._shape(i, incoming, inputs, extra)]
                except Exception as error:         # every rank must hear of it, or the others wait for ever
                    told = [f"stage {i} on the first microbatch: {type(error).__name__}: {error}"]
            dist.broadcast_object_list(told, self.lanes.ranks[runner], group=self.group)
            if isinstance(told[0], str):
                raise Refused(told[0])
            self.meta[i] = Meta(*told[0])
            incoming = self.meta[i].outputs

    def _shape(self, i, incoming, inputs, extra):
        """Runs a stage on zeros of the told shapes, as it trains; generator and buffers are put back."""
        p = self.pieces[i]
        away = not p.home[0].numel() and any(t.numel() for t in p.like)
        where = torch.device("meta") if away else self.device
        kept = {name: b.clone() for name, b in p.module.named_buffers()}
        mb = next(a[4] for a in self.me["actions"] if a[:2] == ["run", "F"] and a[3] == i)
        words = extra[mb] if extra is not None else {}
        if i == 0:
            x = tuple(t.to(where) for t in inputs[mb])
        else:
            x = tuple((torch.zeros if dtype.is_floating_point else torch.ones)(
                shape, dtype=dtype, device=where).requires_grad_(grad) for shape, dtype, grad in incoming)
        if i == len(self.program.pieces) - 1 and self.loss is None:
            return [], 0, 0                        # the module would want targets, and nobody needs the shape of a loss
        boxes = Boxes(p.parameters)
        with random_state(self.device, self.seed), boxes.hooks(), torch.enable_grad():
            with self.context() if self.context else torch.enable_grad():
                if away:
                    empty = dict(zip(p.names, p.like)) | {name: b.to("meta") for name, b in kept.items()}
                    y = torch.func.functional_call(p.module, empty, x, words)
                else:
                    y = p.module(*x, **words)
        y = (y,) if isinstance(y, torch.Tensor) else tuple(y)
        with torch.no_grad():
            for name, b in p.module.named_buffers():
                b.copy_(kept[name])
        outputs = [(tuple(t.shape), t.dtype, t.requires_grad or away and t.is_floating_point()) for t in y]
        return outputs, boxes.held(), boxes.sent()

    def random(self, stack, phase, piece, mb, keeps):
        """Dropout of a unit: by the seed; without one, R has the masks of F."""
        Added.weight = self.now.weights[mb]
        if self.seed is not None:
            stack.enter_context(random_state(self.device, seed_of(self.seed, self.steps, piece, mb)))
        elif phase == "R" and (piece, mb) in self.now.states:
            stack.enter_context(random_state(self.device, state=self.now.states.pop((piece, mb))))
        elif not keeps and self.now.training:
            cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
            self.now.states[piece, mb] = torch.get_rng_state(), cuda

    # Lists of functions.

    def _list(self, way):
        """[function, values that are dead behind it] for each action, and the values that are there when it begins.
        `way` is "step", "eval", or "backward", which leaves out norms and updates."""
        side, leaves = self.program.side(way == "eval"), way == "backward"
        me, messages = side["programs"][self.rank], side["messages"]
        values, env = me["values"], [None] * len(me["values"])
        posts = {(a[1], a[2]): a for a in me["actions"] if a[0] == "post"}
        carriers = Messages(self, env, values, messages)
        units, updates = Units(self, env, values), Updates(self, env, values, carriers.land)
        steps = []
        for action in me["actions"]:
            if leaves and (messages[action[1]]["role"] == "stat" if action[0] != "run" else action[1] == "U"):
                made = updates.left(action)
            elif action[0] == "post":
                made = carriers.post(*action[1:5])
            elif action[0] == "wait":
                post = posts[action[1], action[2]]
                scattered = messages[action[1]]["kind"] == "reduce_scatter"
                made = carriers.wait(action[1], action[2], post[4] if scattered else post[3])
            elif action[1] == "U":
                made = updates.make(action[2], action[3], *action[5:7])
            else:
                made = units.make(*action[1:7])
            steps.append((made, action[-1]))
        bound = [(v, value["bind"]) for v, value in enumerate(values) if value["bind"]]

        def story(place):
            return self.program.story(me["actions"][min(place, len(steps) - 1)], messages)
        return steps, env, bound, story, me["actions"]

    def _prepare(self, inputs, extra):
        """What the first step finds out, or finds changed since the last one."""
        if self.closed:
            raise Refused("this pipeline is closed: a step failed, or `close` was called")
        if self.meta is None:
            self._together(self._settle)
            self._shapes(inputs, extra)
        else:
            self._settle()

    def _run(self, inputs, targets, weights, extra, way):
        self._prepare(inputs, extra)
        for p in self.pieces.values() if way != "eval" else ():
            p.take_grads()
        if way not in self.lists:
            self.lists[way] = self._list(way)
        m = self.program.microbatches
        self.now.begin(inputs, targets, weights if isinstance(weights, (list, tuple)) else [
            1 / m if weights is None else weights] * m, extra, way != "eval", self.device)
        steps, env, bound, story, actions = self.lists[way]
        for v, bind in bound:
            if bind["kind"] == "weight":
                p = self.pieces[bind["piece"]]
                env[v] = [p.shard.data] if bind.get("shard") is not None else p.home
            else:                                  # tokens and targets are taken from where they are
                env[v] = inputs[bind["mb"]] if bind["kind"] == "tokens" else None
        self.watch.begin(story)
        watch, place = self.watch, 0
        try:
            if self.log is None:
                for place, (act, dead) in enumerate(steps):
                    watch.place = place
                    act()
                    for v in dead:
                        env[v] = None
            else:
                for place, (act, dead) in enumerate(steps):
                    watch.place, begun = place, time.perf_counter()
                    act()
                    self.log.append((story(place), begun, time.perf_counter()))
                    for v in dead:
                        env[v] = None
            for p in self.pieces.values():
                p.bind(p.home)
        except Exception as error:
            self._failed(error, place, actions, story)
        finally:
            watch.end()
            env[:] = [None] * len(env)
        self.losses = self.now.losses
        dist.all_reduce(self.now.total, group=self.group)
        return self.now.total.item()

    def _failed(self, error, place, actions, story):
        """Every rank says what failed first, and where."""
        self.closed = True
        where = story(place)
        told = f"rank {self.rank}, {where}: {error}"
        if actions[place][0] == "run":
            told = self.watch.failed(told)
        else:
            told = self.watch.heard(where) or self.watch.failed(told)
        raise (Refused if isinstance(error, Refused) else RuntimeError)(told) from error

    # What users call.

    def step(self, inputs, targets, weights=None, kwargs=None):
        """Runs one step and returns its loss, the same number on every rank; `norm` is that of the gradients.

        inputs[i], targets[i]: tuples of tensors of microbatch i; those alone are read that `needs` names. weights: what
        the loss of a microbatch counts in the loss of the step, a number for all or a list. Without it it is
        1 / microbatches, for losses that are means of equal counts; for sums it is 1 / (counted targets of all
        microbatches and replicas). kwargs[i]: a dictionary of keyword arguments that the modules of all stages get for
        microbatch i; every rank gives them, for they do not travel. `losses` has {microbatch: loss} on the ranks
        that run the last stage, without weights.
        """
        total = self._run(inputs, targets, weights, kwargs, "step")
        self.norm, self.steps = self.now.norm, self.steps + 1
        return total

    def backward(self, inputs, targets, weights=None, kwargs=None):
        """As `step`, for loops that clip and update themselves: adds the gradients to `.grad` and updates nothing.

        Programs that move weights behind their updates, or update in shards, are refused. There is no `norm`: where
        stages are replicated, each copy has the whole gradient.
        """
        for program in self.program.data["programs"]:
            behind = False
            for a in program["actions"]:
                message = self.program.data["messages"][a[1]] if a[0] == "post" else {"role": None}
                if behind and message["role"] == "weight" or a[1:3] == ["U", "cut"]:
                    raise Refused(f"`{self.program.name}` moves new weights behind its updates; give `optimizer` and "
                                  "call `step`")
                behind = behind or a[1:3] == ["U", "plain"]
        if any(piece["owner"]["layout"] == "shard" for piece in self.program.pieces):
            raise Refused(f"`{self.program.name}` updates in shards; give `optimizer` and call `step`")
        total = self._run(inputs, targets, weights, kwargs, "backward")
        self.norm, self.steps = None, self.steps + 1
        return total

    def eval(self, inputs, targets, weights=None, kwargs=None):
        """The loss by the forward program, which pp proved too; modules are in `eval()` mode meanwhile."""
        self._prepare(inputs, kwargs)
        modes = [(module, module.training) for p in self.pieces.values() for module in p.module.modules()]
        for p in self.pieces.values():
            p.module.eval()
        try:
            return self._run(inputs, targets, weights, kwargs, "eval")
        finally:
            for module, mode in modes:
                module.training = mode

    def needs(self):
        """Which microbatches' inputs and targets this rank reads: {"inputs": [..], "targets": [..]}."""
        def of(kind):
            return sorted({v["bind"]["mb"] for v in self.me["values"] if v["bind"] and v["bind"]["kind"] == kind})
        return {"inputs": of("tokens"), "targets": of("targets")}

    @property
    def optimizers(self):
        """The optimizers of the pieces that this rank updates, for schedules of learning rates."""
        self._settle()
        return [p.optimizer for p in self.pieces.values() if p.optimizer is not None]

    def named_parameters(self):
        """(name in state dicts, parameter) of what this rank has."""
        self._settle()
        for i, p in self.pieces.items():
            yield from ((self.names(i, name), q) for name, q in zip(p.names, p.parameters))

    def parameters(self):
        return [q for _, q in self.named_parameters()]

    def state_dict(self):
        """Weights that this rank saves, one copy of replicas, and its buffers, by the names of the whole model. Weights
        in shards are gathered, so every rank must call it."""
        self._settle()
        state = {}
        for i, p in self.pieces.items():
            tensors = p.home
            if i in self.sharded and self.program.pieces[i]["homes"]["layout"] == "shard":
                flat = p.flat(shards=p.cut[1])
                group = self.lanes.groups[("group", *sorted(self.program.pieces[i]["owner"]["ranks"]))]
                dist.all_gather(list(flat.buffer.view(p.cut[1], -1).unbind()), p.shard.detach(), group=group)
                tensors = flat if i in self.saved else [t.new_empty(0) for t in flat]
            if i in self.saved and tensors[0].numel():
                state.update((self.names(i, name), t) for name, t in zip(p.names, tensors))
                state.update((self.names(i, name), b) for name, b in p.module.named_buffers())
        return state

    def load_state_dict(self, state):
        """Takes the weights of this rank out of a state dict of the whole model, whichever schedule wrote it."""
        self._settle()
        for i, p in self.pieces.items():
            missing = [self.names(i, name) for name in p.names if self.names(i, name) not in state]
            if missing:
                raise Refused(f"the state has no `{missing[0]}`")
            given = [state[self.names(i, name)] for name in p.names]
            for name, own, t in zip(p.names, p.like, given):
                if own.shape != t.shape:
                    raise Refused(f"`{self.names(i, name)}`: expected the shape {tuple(own.shape)}, "
                                  f"got {tuple(t.shape)}")
            if p.shard is not None:
                rank, count = p.cut
                p.shard.data.copy_(p.flat(shards=count).fill(given).buffer.view(count, -1)[rank])
            if p.home[0].numel():
                for own, t in zip(p.home, given):
                    own.copy_(t)

    def memory(self):
        """An estimate of this rank's peak by the proved counts and the first step: {what: bytes}."""
        if self.meta is None:
            raise Refused("memory is known behind the first step")
        counts, pieces = self.program.data["counts"][self.rank], self.pieces.values()
        weight = max((sum(t.numel() * t.element_size() for t in p.like) for p in pieces), default=0)
        stash = max((self.meta[i].held for i in self.pieces), default=0)
        act = max((sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype, _ in self.meta[i].outputs)
                   for i in self.pieces), default=0)
        return {"weights": counts["weights"] * weight, "grads": counts["grads"] * weight,
                "stashes": counts["stashes"] * stash, "acts": (counts["acts"] + counts["dacts"]) * act}

    def trace(self, path):
        """A context manager: writes what this rank did inside it in Chrome's trace format."""
        return Trace(self, path)

    def close(self):
        """Ends the watching thread; no step runs behind it."""
        self.closed = True
        self.watch.close()


class Trace:
    """Records the steps of a pipeline while it is entered."""

    def __init__(self, pipe, path):
        self.pipe, self.path = pipe, path

    def __enter__(self):
        self.pipe.log = []

    def __exit__(self, *_):
        log, self.pipe.log = self.pipe.log, None
        events = [{"name": name, "ph": "X", "ts": begun * 1e6, "dur": (ended - begun) * 1e6, "pid": 0,
                   "tid": self.pipe.rank} for name, begun, ended in log]
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)
