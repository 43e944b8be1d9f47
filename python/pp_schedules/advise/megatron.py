"""Reads the arguments of Megatron-LM that say what a pipeline is."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Names and defaults are those that Megatron-LM itself gives its arguments. What is only nearly the same here is said in
# `near`.
from __future__ import annotations

from typing import List, Optional

from . import layout
from .arguments import Arguments, Reader, Unreadable
from .training import Model, Training

#: Beginnings of names that change no pipeline.
IGNORED = ("accumulate", "adam", "adlr", "apply-", "async", "attention-backend", "attention-dropout",
           "attention-softmax", "auto-detect-ckpt", "bias-", "calculate-per-token-loss", "check-for", "ckpt",
           "clip-grad", "create-attention", "cross-entropy", "cuda-graph", "data", "dataloader", "ddp", "decoupled",
           "defer-embedding", "deterministic", "disable", "dist-ckpt", "distributed-backend", "distributed-timeout",
           "empty-unused", "enable", "end-weight", "eod", "eval", "exit", "finetune", "fp32-residual", "grad-reduce",
           "hidden-dropout", "high-priority", "hybrid-context", "init", "initial-loss", "iterations", "kv-channels",
           "load", "local-rank", "log", "loss-scale", "lr", "main-grads", "main-params", "make-vocab", "manual-gc",
           "mask", "master", "master-addr", "master-port", "max-position", "merge-file", "micro-batch", "min-loss",
           "min-lr", "mmap", "moe-aux", "moe-grouped-gemm", "moe-permute", "moe-router", "moe-token", "moe-z",
           "mtp-loss", "nnodes", "no-", "node-rank", "norm-epsilon", "normalization", "nproc", "num-dataset",
           "num-workers", "optimizer", "overlap", "override", "position-embedding", "profile", "qk-layernorm",
           "query-in-block", "rampup", "rdzv", "rerun", "reset", "rope", "rotary", "save", "seed",
           "sequence-parallel", "sgd", "split", "standalone", "start-weight", "swiglu", "tensor-parallel-overlap",
           "tensorboard", "test-mode", "timing", "tokenizer", "tp-comm", "train", "transformer-impl", "untie",
           "use-", "valid", "vocab-file", "wandb", "warmup", "weight-decay", "world-size")
#: Their models have other work than the program that stands for them; what is said of it.
NEARLY = {"multi-latent-attention": "latent attention is counted as attention with as many heads",
          "moe-shared-expert-intermediate-size": "shared experts are not counted",
          "moe-layer-freq": "every layer is counted as one with experts",
          "fp8-format": "products in fp8 are counted in bf16", "fp8": "products in fp8 are counted in bf16",
          "hybrid-layer-pattern": "layers are counted as attention and an MLP each",
          "window-size": "windows are counted as whole attention"}


def read(arguments: Arguments, gpus: Optional[int] = None, vocabulary: Optional[int] = None) -> Training:
    """Raises Unreadable where the arguments contradict each other, or where what is needed is not there."""
    its = Reader(arguments)
    ranks = its.number("pipeline-model-parallel-size", default=1) or 1
    if ranks == 1:
        raise Unreadable("`--pipeline-model-parallel-size` is 1: there is no pipeline to advise on")
    tensor = its.number("tensor-model-parallel-size", default=1) or 1
    context = its.number("context-parallel-size", default=1) or 1
    nodes, each = its.number("nnodes", default=1) or 1, its.number("nproc-per-node")
    world = gpus or its.number("world-size") or (nodes * each if each else None)
    if not world:
        raise Unreadable("how many GPUs there are is not said: --gpus=N, `--world-size`, or torchrun's "
                         "`--nproc-per-node` and `--nnodes`")
    replica = ranks * tensor * context
    if world % replica:
        raise Unreadable(f"{world} GPUs are no multiple of {replica}: pipeline {ranks} x tensor {tensor} x context "
                         f"{context}")
    data = world // replica
    microbatch = needed(its, "micro-batch-size")
    batch = its.number("global-batch-size", default=microbatch * data) or 1
    if batch % (microbatch * data):
        raise Unreadable(f"`--global-batch-size {batch}` is no multiple of {microbatch * data}: {data} replicas of "
                         f"{microbatch} sequences")
    model = model_of(its, tensor, vocabulary)
    training = Training(model, ranks, stages_of(its, model, ranks), microbatch, batch // (microbatch * data),
                        needed(its, "seq-length"), tensor=tensor, context=context, data=data,
                        expert=its.number("expert-model-parallel-size", default=1) or 1,
                        rows=its.flag("sequence-parallel"), zero=int(its.flag("use-distributed-optimizer")),
                        precision="f16" if its.flag("fp16") else "bf16" if its.flag("bf16") else "f32")
    chunks = len(training.stages) // ranks
    training.schedule = "1F1B" if chunks == 1 else f"interleaved 1F1B, {chunks} stages on a rank"
    recomputes(its, training)
    for name, what in NEARLY.items():
        if its.text(name) is not None:
            training.near.append(f"--{name}: {what}")
    if training.model.further and not training.has_further():
        training.near.append("--mtp-num-layers: a layer for a further token is counted as a layer")
    for name in its.left():
        (training.ignored if name.startswith(IGNORED) else training.unknown).append("--" + name)
    return training


def needed(its: Reader, name: str) -> int:
    value = its.number(name)
    if value is None:
        raise Unreadable(f"`--{name}` is not given, and there is no default for it")
    return value


def model_of(its: Reader, tensor: int, vocabulary: Optional[int]) -> Model:
    hidden, heads = needed(its, "hidden-size"), needed(its, "num-attention-heads")
    gated = its.flag("swiglu")
    ffn = its.number("ffn-hidden-size") or (int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    experts = its.number("num-experts", default=0) or 0
    groups = its.number("num-query-groups", default=heads) if its.flag("group-query-attention") else heads
    its.text("num-query-groups")
    size = vocabulary or its.number("padded-vocab-size", "vocab-size")
    if not size:
        raise Unreadable("the size of the vocabulary is not said (Megatron-LM asks the tokenizer): --vocab=N, or "
                         "`--vocab-size`")
    multiple = (its.number("make-vocab-size-divisible-by", default=128) or 1) * tensor
    return Model(needed(its, "num-layers"), hidden, heads, groups or heads,
                 (its.number("moe-ffn-hidden-size") or ffn) if experts else ffn, -(-size // multiple) * multiple,
                 experts, its.number("moe-router-topk", default=2) or 2, its.number("mtp-num-layers", default=0) or 0,
                 gated or bool(experts))


def stages_of(its: Reader, model: Model, ranks: int) -> List[str]:
    """What each stage holds, by the rules of Megatron-LM where no layout says it."""
    given = its.text("pipeline-model-parallel-layout")
    each = its.number("num-layers-per-virtual-pipeline-stage")
    chunks = its.number("num-virtual-stages-per-pipeline-rank", default=1) or 1
    first = its.number("decoder-first-pipeline-num-layers", least=0)
    last = its.number("decoder-last-pipeline-num-layers", least=0)
    ends = [its.flag("account-for-embedding-in-pipeline-split"), its.flag("account-for-loss-in-pipeline-split")]
    if given is not None:
        stages = layout.stages_of(given)
        layers = sum(layout.layers_of(stages))
        if layers != model.layers:
            raise Unreadable(f"layout `{given}`: it has {layers} layers, and `--num-layers` is {model.layers}")
        if len(stages) % ranks:
            raise Unreadable(f"layout `{given}`: its {len(stages)} stages are no multiple of {ranks} ranks")
        model.further = "".join(stages).count("m")
        return stages
    if each:
        if model.layers % (ranks * each):
            raise Unreadable(f"`--num-layers {model.layers}` is no multiple of {ranks} ranks times `--num-layers-per-"
                             f"virtual-pipeline-stage {each}`")
        chunks = model.layers // ranks // each
    if first is not None or last is not None:
        return layout.stages_with(uneven(model.layers, ranks, first, last), model.further)
    count = ranks * chunks
    total = model.layers + sum(ends)
    if total % count:
        raise Unreadable(f"{total} layers{', the ends counted as one each,' if any(ends) else ''} are no multiple of "
                         f"{count} stages")
    cut = [total // count] * count
    cut[0] -= ends[0]
    cut[-1] -= ends[1]
    return layout.stages_with(cut, model.further)


def uneven(layers: int, ranks: int, first: Optional[int], last: Optional[int]) -> List[int]:
    inner = ranks - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if inner < 1 or rest < 0 or rest % inner:
        raise Unreadable(f"`--decoder-first-pipeline-num-layers` and `--decoder-last-pipeline-num-layers` leave {rest} "
                         f"layers to {inner} ranks")
    return ([first] if first is not None else []) + [rest // inner] * inner + ([last] if last is not None else [])


def recomputes(its: Reader, training: Training) -> None:
    granularity, method = its.text("recompute-granularity"), its.text("recompute-method")
    count, modules = its.number("recompute-num-layers"), its.text("recompute-modules")
    if granularity == "full":
        most = max(layout.layers_of(training.stages))
        if method == "block" and count is not None and count < most:
            training.near.append(f"--recompute-num-layers {count}: a stage has up to {most} layers; counted as none")
        else:
            training.recompute = "stage"
    elif granularity == "selective" or modules:
        training.near.append("--recompute-granularity selective: attention keeps no scores here, and runs once")
