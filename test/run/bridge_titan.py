"""Runs torchtitan's own trainer on its llama over gloo, with schedules of pp and with its own, and compares the two."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bridge_titan.py PP_COMPILE FOLDER [--only NAME;..]
# torchtitan takes a GPU for granted. Changed for CPUs: a function of torch says that the device is a CPU; torch.cpu is
# given the functions that the monitor of memory asks for; attention is PyTorch's `scaled_dot_product_attention`; FSDP2
# reduces by plain sums; timeouts of groups stay, and nobody sleeps at the end. Nothing else, and nothing of pp.
# Ends with 77, which ctest calls skipped, where there is no torchtitan.
import faulthandler, os, socket, sys, traceback, types, weakref, zlib
from dataclasses import dataclass, replace
from bridge_inside import refusal
from bridge_programs import ROOT                   # which also finds the package
from harness import draws

BATCH, LENGTH, VOCABULARY, BOUND = 8, 16, 64, 1e-5
WRAPPED = "_checkpoint_wrapped_module."
# Name: (ranks, torchtitan's own class or pp's file, schedule and parameters, times that a step sums gradients, or
# copies of the pipeline in which FSDP2 shards the weights).
CASES = {
    "one process": (1, "1F1B", 1), "1F1B": (2, "1F1B", 1), "Interleaved1F1B": (2, "Interleaved1F1B", 1),
    "ZBVZeroBubble": (2, "ZBVZeroBubble", 1), "DualPipeV": (2, "DualPipeV", 1),
    "1f1b": (2, ("1f1b", "one_f_one_b", {}, "1F1B"), 1),
    "interleaved": (2, ("interleaved", "interleaved_1f1b", {"chunks": 2}, "1F1B"), 1),
    "zb_v": (2, ("zb_v", "zb_v", {}, "ZBVZeroBubble"), 1),
    "dualpipe_v": (2, ("dualpipev", "dualpipe_v", {}, "ZBVZeroBubble"), 1),
    "hanayo": (2, ("hanayo", "hanayo", {"waves": 1}, "1F1B"), 1),
    "zb_h2": (2, ("zb_h", "zb_h", {"k": 2}, "1F1B"), 1),
    "one process, twice": (1, "1F1B", 2), "zb_v, twice": (2, ("zb_v", "zb_v", {}, "ZBVZeroBubble"), 2),
    "zb_v, twice in shards": (4, ("zb_v", "zb_v", {}, "ZBVZeroBubble"), 2)}
# PyTorch's classes with halves of backwards run without two defaults of torchtitan's debug model, which pp's schedules
# keep. Selective recompute ends them ("Trying to backward an extra time"), and with the loss in chunks the gradient of
# the last norm is missing (ZBVZeroBubble) or wrong (DualPipeV). Both end in a validation, too ("can't steal_bwd_input
# if this stage doesn't have backward"). Seen with torch 2.15.0 and torchtitan 0.3.0.
HALVED = ("ZBVZeroBubble", "DualPipeV")
# pp's case: that of torchtitan, and how far apart the two may be. Halves of backwards add in another order.
PAIRS = {"1f1b": ("1F1B", 0.0), "interleaved": ("Interleaved1F1B", 0.0), "zb_v": ("ZBVZeroBubble", BOUND),
         "dualpipe_v": ("DualPipeV", BOUND)}


def on_a_cpu():
    """The smallest change with which torchtitan's trainer runs without a GPU."""
    import torch
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.get_device_name = lambda device: "CPU"
    torch.cpu.get_device_properties = lambda device: types.SimpleNamespace(total_memory=1 << 34)
    torch.cpu.memory_stats = lambda device: {}
    torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None


def parts_of_trainer():
    """Data, tokenizer and trainer, by torchtitan's own ways to give them."""
    import torch
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.trainer import Trainer

    class Rows(BaseDataLoader):
        """Row k of the batches is a function of k: tokens, positions that begin anew, targets of which some are not
        counted."""

        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            infinite: bool = True

        def __init__(self, config, *, dp_rank, dp_world_size, local_batch_size, seq_len, **_):
            self.rows, self.length, self.first, self.all = local_batch_size, seq_len, dp_rank, dp_world_size

        def __iter__(self):
            for start in range(self.first * self.rows, 1 << 20, self.rows * self.all):
                rows = [self.row(k) for k in range(start, start + self.rows)]
                x, positions, y = (torch.stack(tensors) for tensors in zip(*rows))
                yield {"input": x, "positions": positions}, y

        def row(self, k):
            made = torch.Generator().manual_seed(k)
            x, y = torch.randint(0, VOCABULARY, (2, self.length), generator=made)
            y[torch.rand(self.length, generator=made) < k % 3 / 4] = -100
            return x, torch.arange(self.length) % (self.length - k % 5), y

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    class Nothing(BaseTokenizer):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config, **_):
            super().__init__()

        encode = decode = get_vocab_size = None

    class Watched(Trainer):
        """Keeps what a step made."""
        seen = None

        def train_step(self, data):
            super().train_step(data)
            parts = [(name.replace(WRAPPED, ""), p)
                     for part in self.model_parts for name, p in part.named_parameters()]
            self.seen.setdefault("gradients", {name: whole(p.grad).clone() for name, p in parts})
            self.seen["weights"] = {name: whole(p).clone() for name, p in parts}
    return Rows, Nothing, Watched


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def configuration(case, folder, compiler):
    from torchtitan.components.optimizer import default_adamw
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import model_registry
    from torchtitan.models.llama3.config_registry import llama3_debugmodel
    ranks, way, times = CASES[case]
    rows, tokenizer, watched = parts_of_trainer()
    config = llama3_debugmodel()
    spec = model_registry("debugmodel")
    for layer in spec.model.layers:                # PyTorch's flex attention has no backward on CPUs
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    if not isinstance(way, str):
        from pp_schedules.torch.titan import pipelining
        file, schedule, parameters, shown = way
        path = os.path.join(ROOT, "stdlib", file + ".pipe")
        spec = replace(spec, pipelining_fn=pipelining(path, schedule, pp=compiler, **parameters))
    config.model_spec, config.dump_folder = spec, folder
    config.dataloader, config.tokenizer = rows.Config(), tokenizer.Config()
    config.validator.enable, config.validator.freq, config.validator.steps = way not in HALVED and ranks < 4, 2, 1
    config.validator.dataloader = rows.Config()
    config.checkpoint.enable = False
    config.optimizer = default_adamw(lr=1e-3, eps=1e-3)  # with less, the smallest gradients count by signs
    if way in HALVED:
        config.activation_checkpoint, config.loss = None, config.loss.loss_fn
    config.training = replace(config.training, local_batch_size=BATCH, global_batch_size=BATCH * times, seq_len=LENGTH,
                              steps=2, max_norm=0.5, disable_cuda_graphs=True, mixed_precision_param="float32")
    config.parallelism = replace(config.parallelism, pipeline_parallel_degree=min(ranks, 2),
                                 pipeline_parallel_schedule=way if isinstance(way, str) else shown)
    return config, watched


def worker(case, rank, port, folder, compiler, path):
    faulthandler.dump_traceback_later(120, exit=True)
    import torch
    import torchtitan.trainer
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(CASES[case][0]), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    os.dup2(os.open(f"{path}.{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    torchtitan.trainer.time.sleep = torchtitan.trainer.dist_utils.set_pg_timeouts = lambda *_, **__: None
    try:
        config, watched = configuration(case, folder, compiler)
        trainer = watched(config)
        trainer.seen = seen = {"losses": [], "norms": [], "validated": []}
        for part in trainer.model_parts:           # torchtitan's own initial weights depend on the rank
            for module in part.modules():
                if hasattr(module, "set_force_sum_reduction_for_comms"):
                    module.set_force_sum_reduction_for_comms(True)       # gloo has no PREMUL_SUM
            for name, p in part.named_parameters():
                made = torch.Generator().manual_seed(zlib.crc32(name.replace(WRAPPED, "").encode()))
                value = torch.randn(p.shape, generator=made) / p.shape[-1] ** 0.5 + (p.ndim == 1)
                if hasattr(p, "to_local"):
                    value = torch.distributed.tensor.distribute_tensor(value, p.device_mesh, p.placements).to_local()
                (p.to_local() if hasattr(p, "to_local") else p).data.copy_(value)
        log = trainer.metrics_processor

        def logged(step, loss, *others, **more):
            seen["losses"].append(loss)
            seen["norms"].append(others[1])
        log.log, log.log_validation = logged, lambda *, loss, step: seen["validated"].append(loss)
        trainer.train()
        seen["last"] = trainer.pp_has_last_stage if CASES[case][0] > 1 else True
        torch.save(seen, f"{path}.{rank}")
        torch.distributed.barrier()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def run(case, folder, compiler):
    """What the ranks saw, put together by the names of the model."""
    import torch
    import torch.multiprocessing as mp
    path, ranks = os.path.join(os.path.abspath(folder), case.replace(" ", "_")), CASES[case][0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [mp.get_context("fork").Process(target=worker, args=(case, rank, port, folder, compiler, path))
                 for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    logs = [open(f"{path}.{rank}.log").read() for rank in range(ranks)]
    if any(process.exitcode for process in processes):
        raise RuntimeError("\n".join([f"{case}:", *(log[-3000:] for log in logs)]))
    if case == "hanayo" and "The loss is on PP rank 0, and torchtitan shows that of PP rank 1" not in logs[0]:
        raise RuntimeError("nothing says where the loss of `hanayo` is")
    seen = [torch.load(f"{path}.{rank}") for rank in range(ranks)]
    last = next(one for one in seen if one["last"])
    numbers = {"losses": last["losses"], "norms": seen[0]["norms"], "validated": last["validated"]}
    return {**{what: torch.tensor(numbers[what]) for what in numbers if numbers[what]}, **{
        f"{what} {name}": t for what in ("gradients", "weights") for one in seen for name, t in one[what].items()}}


def difference(ours, theirs):
    """The largest difference of a tensor, by its largest number."""
    other = set(ours) ^ set(theirs)
    if other and other != {"validated"}:           # some cases do not validate
        raise RuntimeError(f"other tensors: {sorted(other)}")
    import torch
    return torch.stack([((ours[name] - t).abs().max() / t.abs().max()).double() for name, t in theirs.items()
                        if name in ours]).max().item()


def refusals(compiler):
    """What cannot run under the trainer is refused before a part of the model is built."""
    from pp_schedules.torch.titan import pipelining
    model = types.SimpleNamespace(layers=[None] * 6)
    few = types.SimpleNamespace(pipeline_parallel_first_stage_less_layers=1, pipeline_parallel_last_stage_less_layers=1,
                                pipeline_parallel_microbatch_size=1, module_fqns_per_model_part=[["norm"]])
    for file, name, *words in (("chimera", "chimera", "chimera.pipe:", "stage 0 is on the ranks [0, 1]", "`Pipeline`"),
                               ("1f1b", "one_f_one_b", "has 1 parts, and `one_f_one_b` has 2 stages"),
                               ("zb_v", "zb_u", "zb_u", "zb_v")):
        refusal(lambda: pipelining(os.path.join(ROOT, "stdlib", file + ".pipe"), name, pp=compiler)(
            None, parallel_dims=types.SimpleNamespace(pp=2), training=types.SimpleNamespace(local_batch_size=8),
            parallelism=few, device="cpu", model_config=model, parallelize_fn=None, loss_fn=None), *words)


def heads():
    """Of a head's gradients that the loss makes, one is kept for all microbatches, and it is their sum."""
    import torch
    from pp_schedules.torch.titan import Schedule
    head, made, schedule = torch.nn.Parameter(torch.zeros(3)), [], Schedule.__new__(Schedule)

    def loss(output, target):
        head.grad = torch.full((3,), float(output))
        made.append(weakref.ref(head.grad))
        return output, None
    piece = types.SimpleNamespace(parameters=[head])
    schedule.loss_fn, schedule.loss_kwargs, schedule.early = loss, {}, {}
    schedule.pipe = types.SimpleNamespace(pieces=[piece], program=types.SimpleNamespace(pieces=[None]),
                                          backward=lambda *_: [schedule._loss(mb, None) for mb in range(1, 9)])
    schedule._run = lambda run, *_: run()
    schedule.step()
    if head.grad.tolist() != [36.0] * 3 or sum(one() is not None for one in made) != 1:
        raise RuntimeError(f"the sum is {head.grad}, and {sum(one() is not None for one in made)} are alive")


def main():
    arguments = draws(only="")
    try:
        import torch  # only whether it is there
        on_a_cpu()
        import torchtitan.models.llama3.config_registry, torchtitan.trainer  # before the forks
    except ImportError as error:
        print(f"torch or torchtitan is not installed: nothing was run ({error})")
        return 77
    picked = arguments.only.split(";") if arguments.only else list(CASES)
    refusals(arguments.compiler)
    heads()
    seen, failed = {}, 0
    for case in picked:
        seen[case] = run(case, arguments.folder, arguments.compiler)
        alone = seen["one process, twice" if "twice" in case else "one process"]
        apart = difference(seen[case], alone)
        pair, bound = PAIRS.get(case, (None, 0.0))
        beside = difference(seen[case], seen[pair]) if pair in seen else 0.0
        failed += not (apart <= BOUND and beside <= bound)
        print(f"{case}: {apart:.1e} from one process" + f", {beside:.1e} from torchtitan's" * (pair in seen))
    print(f"{len(picked) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
