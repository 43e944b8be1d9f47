"""Reads the configuration of torchtitan: its TOML, its command line, or a Python function that makes it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Names and the split into stages are those of torchtitan 0.3.
from __future__ import annotations

import ast
import importlib
import math
from typing import Any, List, Optional

from . import layout
from .arguments import Arguments, Reader, Unreadable
from .training import Model, Training

#: Sizes of the models that torchtitan's own configurations name; others are given by --model.
FLAVORS = {"8B": Model(32, 4096, 32, 8, 14336, 128256), "70B": Model(80, 8192, 64, 8, 28672, 128256),
           "405B": Model(126, 16384, 128, 8, 53248, 128256)}
SINGLE = ("1f1b", "gpipe", "pipelineschedulesingle")
IGNORED = ("checkpoint.", "comm.", "compile.", "config", "dataloader.", "debug.", "experimental.",
           "fault-tolerance.", "float8.", "hf-", "job.", "loss.", "lr-scheduler.", "memory-estimation.", "metrics.",
           "model.", "module", "mx.", "optimizer.", "parallelism.context-parallel-", "parallelism.disable-",
           "parallelism.enable-", "parallelism.expert-parallel-", "parallelism.fsdp-", "parallelism.module-fqns",
           "parallelism.spmd-", "profiler.", "profiling.", "tokenizer.", "training.", "validation.", "validator.")


def of_function(named: str) -> Arguments:
    """Calls `module:function` and reads the configuration that it returns. Raises Unreadable."""
    module, _, function = named.partition(":")
    try:
        config = getattr(importlib.import_module(module), function)()
    except Exception as error:
        raise Unreadable(f"`{named}` makes no configuration: {type(error).__name__}: {error}") from None
    arguments: Arguments = {}
    for section in ("parallelism", "training"):
        its = getattr(config, section, None)
        for name in getattr(type(its), "__dataclass_fields__", None) or vars(its or object):
            value = getattr(its, name)
            if value is not None and value is not False and value != "":
                arguments[f"{section}.{name}".replace("_", "-")] = [] if value is True else [repr(value) if isinstance(
                    value, list) else str(value)]
    checkpoints = getattr(config, "activation_checkpoint", None)
    if checkpoints is not None:
        arguments["activation-checkpoint.mode"] = [
            str(getattr(checkpoints, "mode", type(checkpoints).__qualname__.split(".")[0]))]
    flavor = getattr(getattr(config, "model_spec", None), "flavor", None) or getattr(
        getattr(config, "model", None), "flavor", None)
    if flavor:
        arguments["model.flavor"] = [str(flavor)]
    return arguments


def read(arguments: Arguments, gpus: Optional[int] = None, sizes: Optional[Model] = None) -> Training:
    """Raises Unreadable where the configuration contradicts itself, or where what is needed is not there."""
    its = Reader(arguments, "")
    ranks = its.number("parallelism.pipeline-parallel-degree", default=1) or 1
    if ranks == 1:
        raise Unreadable("`parallelism.pipeline_parallel_degree` is 1: there is no pipeline to advise on")
    flavor, schedule = its.text("model.flavor") or "", its.text("parallelism.pipeline-parallel-schedule") or "1F1B"
    model = sizes or FLAVORS.get(flavor)
    if model is None:
        raise Unreadable(f"the sizes of the model `{flavor}` are not known here; say them: --model='layers=32 "
                         "hidden=4096 heads=32 kv_heads=8 ffn=14336 vocab=128256'")
    axis = {name: its.number(f"parallelism.{name}-parallel-degree", default=1) or 1
            for name in ("tensor", "context", "expert")}
    replica = ranks * axis["tensor"] * axis["context"]
    copies = its.number("parallelism.data-parallel-replicate-degree", default=1) or 1
    shards = its.number("parallelism.data-parallel-shard-degree", default=-1, least=-1) or -1
    if shards < 1 and not gpus:
        raise Unreadable("how many GPUs there are is not said: --gpus=N, or `parallelism.data_parallel_shard_degree`")
    if shards < 1 and gpus and gpus % (replica * copies):
        raise Unreadable(f"{gpus} GPUs are no multiple of {replica * copies}: pipeline {ranks} x tensor "
                         f"{axis['tensor']} x context {axis['context']} x {copies} replicas")
    shards = shards if shards > 0 else (gpus or 0) // (replica * copies)
    local = its.number("training.local-batch-size", "training.batch-size", default=8) or 8
    count = its.number("parallelism.num-pp-microbatches", "parallelism.pipeline-parallel-microbatches")
    size = its.number("parallelism.pipeline-parallel-microbatch-size", default=1) or 1
    if (count and local % count) or (not count and local % size):
        raise Unreadable(f"`training.local_batch_size` {local} is no multiple of "
                         f"{f'{count} microbatches' if count else f'microbatches of {size}'}")
    mode = (its.text("activation-checkpoint.mode") or "none").lower()
    training = Training(model, ranks, stages_of(its, model, ranks, schedule), local // count if count else size,
                        count or local // size, its.number("training.seq-len", default=2048) or 2048, "bf16",
                        axis["tensor"], axis["context"], copies * shards, axis["expert"], axis["tensor"] > 1,
                        2 if shards > 1 else 0, "stage" if mode.startswith("full") else "", schedule, titan=True)
    if shards > 1:
        training.near.append("FSDP: counted as ZeRO 2 (gradients and states are cut, weights of 16 bits are whole)")
    if mode.startswith("selective"):
        training.near.append("activation_checkpoint selective: counted as none")
    if schedule.lower() not in (*SINGLE, "interleaved1f1b"):
        training.near.append(f"{schedule}: the row `as given` is (interleaved) 1F1B on the same stages")
    for name in its.left():
        (training.ignored if name.startswith(IGNORED) else training.unknown).append(name.replace("-", "_"))
    return training


def stages_of(its: Reader, model: Model, ranks: int, schedule: str) -> List[str]:
    given: Any = its.text("parallelism.module-fqns-per-model-part")
    each = its.number("parallelism.pipeline-parallel-layers-per-stage")
    ends = [its.number(f"parallelism.pipeline-parallel-{name}-stage-less-layers", default=1, least=0) or 0
            for name in ("first", "last")]
    if given:
        try:
            parts = ast.literal_eval(given)
        except (ValueError, SyntaxError):
            raise Unreadable("`parallelism.module_fqns_per_model_part`: expected a list of lists of names") from None
        stages = layout.of_modules(parts)
    else:
        count = ranks * (1 if schedule.lower() in SINGLE else 2)
        total = model.layers + sum(ends)
        if each:
            count = math.ceil(total / each)
        if total < count or max(ends) > total // count:
            raise Unreadable(f"{model.layers} layers and {ends[0]} + {ends[1]} for the ends do not fill {count} stages")
        cut = [total // count + (number < total % count) for number in range(count)]
        cut[0] -= ends[0]
        cut[-1] -= ends[1]
        stages = layout.stages_with(cut, 0)
    if len(stages) % ranks:
        raise Unreadable(f"{len(stages)} stages are no multiple of {ranks} ranks")
    if sum(layout.layers_of(stages)) != model.layers:
        raise Unreadable(f"the parts have {sum(layout.layers_of(stages))} layers, and the model {model.layers}")
    return stages
