#!/usr/bin/env python3
"""Judges meshes of data, context and tensor by execution, against one rank with whole weights and all sequences."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: meshes.py PP_COMPILE FOLDER [--all] [--only NAME]..
# A microbatch of D replicas holds the sequences that a microbatch of D times the rows holds on one rank: so gradients,
# losses and the weights after three steps of AdamW are those of `schedule=single` but for rounding, and the same bits
# in each mode. Replicas sum in the order of their devices, as `data_parallel` does: there the bits are the same, too.
# With `zero = 1` gradients and, without clipping, weights have the bits of `zero = 0`: only the norm is added up in
# another order. --all: every schedule with two and with three replicas, and on two devices of the tensor axis; 16 bits.
# Without, few schedules with one number of replicas, and of the lists below what no other case has.
import argparse, os, re, signal, subprocess, sys, time
import documents, harness
from gradients import SMALL, TOLERANCE, TRAINED, Runner, difference

SCHEDULES = ("1f1b", "zb_v/model=gpt2", "gpipe", "interleaved/model=gpt2", "weipipe_interleave", "tawpipe/model=gpt2",
             "fsdp", "slimpipe/exchange=true/kv_heads=1", "helixpipe/model=gpt2", "dualpipe_v/microbatches=8",
             "1f1b_vocabulary", "1f1b/model=gpt2", "weipipe_interleave/model=gpt2", "fsdp/model=gpt2",
             "replicated_1f1b", "zero1")
# 1f1b, zb_v and weipipe_interleave on replicas alone are in ZERO, slimpipe is in ZERO2.
SHORT = ("tawpipe/model=gpt2", "helixpipe/model=gpt2", "replicated_1f1b")


def less(cases, *numbers):
    """Without the cases with these numbers, each part of which another case has."""
    return tuple(case for number, case in enumerate(cases) if number not in numbers)


# On the tensor axis: schedule, devices of the axis, replicas, and sizes that the reference shares.
TENSOR = (("single", 2, 1, dict(ranks=1, vocab=255)), ("single/model=gpt2", 2, 1, dict(ranks=1, vocab=257)),
          ("1f1b/kv_heads=1", 2, 2, dict(ranks=2)), ("zb_v/model=gpt2", 2, 1, dict(ranks=2)),
          ("1f1b_vocabulary", 2, 2, dict(ranks=2)),
          ("zb_v/model=gpt2", 2, 2, dict(ranks=2) | {"model.attention_rate": 0.2}))
ALL_TENSOR = TENSOR + (
    ("single/kv_heads=4", 4, 1, dict(ranks=1, vocab=250)), ("single/kv_heads=2", 4, 1, dict(ranks=1)),
    ("single/kv_heads=1", 4, 1, dict(ranks=1)), ("single/model=gpt2", 4, 1, dict(ranks=1)),
) + tuple((schedule, 2, 1, {}) for schedule in SCHEDULES) + (
    ("slimpipe/vocabulary=true/kv_heads=1", 2, 1, {}), ("zb_v/model=encoder_decoder", 2, 1, {}),
    ("1f1b_vocabulary/model=gpt2", 4, 1, dict(ranks=2)))
# The same with `sequence`.
ROWS = (("1f1b/kv_heads=1", 2, 2, dict(ranks=2)), ("zb_v/model=gpt2", 2, 1, dict(ranks=2)),
        ("slimpipe/exchange=true/kv_heads=1", 2, 1, dict(ranks=2)), ("helixpipe/model=gpt2", 2, 1, dict(ranks=2)))
ALL_ROWS = ROWS + (
    ("single/kv_heads=4", 4, 1, dict(ranks=1, vocab=250)), ("single/model=gpt2", 4, 1, dict(ranks=1)),
    ("single/model=gpt2", 3, 1, dict(ranks=1, heads=3, hidden=24)), ("1f1b_vocabulary", 2, 2, dict(ranks=2)),
) + tuple((schedule, 2, 1, {}) for schedule in SCHEDULES) + (
    ("zb_v/model=encoder_decoder", 2, 1, {}), ("1f1b_recompute", 2, 1, {}),
    ("terapipe/model=gpt2", 2, 2, dict(ranks=2)),
    ("helixpipe/model=gpt2", 2, 1, dict(ranks=2) | {"model.attention_rate": 0.2, "model.residual_rate": 0.1}))
# Sequences over devices, those of data and of tensor beside them: the rest of `mesh`, then sizes.
CONTEXT = (("1f1b/kv_heads=1", dict(context=2), dict(ranks=2)),
           ("zb_v/model=gpt2", dict(context=2, data=2, tensor=2), dict(ranks=2)),
           ("weipipe_interleave", dict(context=2), dict(ranks=2)),
           ("fsdp/model=gpt2", dict(context=3), dict(ranks=2, sequence=18)),
           ("helixpipe", dict(context=2, tensor=2, sequence="true"), dict(ranks=2)),
           ("1f1b/model=gpt2", dict(context=2, data=2), dict(ranks=2, products="fp8_tile")),
           ("zb_v/model=delta", dict(context=2), dict(ranks=2, experts=6, top=3)))
# The same where devices exchange heads and each attends whole sequences.
HEADS = dict(context=2, attention="heads")
CONTEXT_HEADS = (("1f1b", HEADS, dict(ranks=2)),
                 ("zb_h1/model=gpt2", HEADS | dict(context=4), dict(ranks=2)),
                 ("zb_v/model=gpt2", HEADS | dict(tensor=2, sequence="true", again="nothing"),
                  {"ranks": 2, "model.attention_rate": 0.2, "model.residual_rate": 0.1}),
                 ("1f1b", HEADS, {"ranks": 2, "model.sinks": "true", "model.windows": "[0,5,0,3,0,5,0,3]"}))
# Slices, too: each is cut by itself; a device has all keys of the slices before, of its heads or, gathered, of all.
SLICED = (("terapipe/model=gpt2", HEADS, dict(ranks=2, sequence=32)),
          ("slimpipe/exchange=true", HEADS, dict(ranks=2, sequence=32)),
          ("slimpipe/exchange=true/kv_heads=1", dict(context=2), dict(ranks=2, sequence=32, heads=3, hidden=24)))
# And where there are fewer heads of keys than devices: neighbours have copies of one.
COPIES = (("1f1b/kv_heads=1", HEADS, {"ranks": 2, "model.sinks": "true", "model.windows": "[0,5,0,3,0,5,0,3]"}),
          ("slimpipe/exchange=true/kv_heads=1", HEADS | dict(tensor=2, sequence="true"), dict(ranks=2, sequence=32)))
CONTEXT_HEADS += SLICED + COPIES
ALL_CONTEXT_HEADS = CONTEXT_HEADS + (
    ("terapipe", HEADS | dict(tensor=2, data=2), dict(ranks=2, sequence=32, kv_heads=4)),
    ("terapipe/model=gpt2", dict(context=3, again="nothing", data=2, zero=1),
     {"ranks": 2, "sequence": 48, "model.attention_rate": 0.2}),
    ("slimpipe_interleaved/exchange=true/kv_heads=1", dict(context=2, tensor=2, sequence="true", again="all"),
     dict(ranks=2, sequence=48)),
    ("slimpipe", HEADS, dict(ranks=4, sequence=48)),
    ("slimpipe/exchange=true/model=gpt2", HEADS | dict(tensor=2, sequence="true"), dict(ranks=2, sequence=32)),
    ("slimpipe_interleaved/exchange=true/model=gpt2", HEADS | dict(context=4), dict(ranks=2, sequence=96)),
    ("slimpipe/exchange=true/model=gpt2", HEADS, {"ranks": 2, "sequence": 32, "model.residual_rate": 0.1}),
    ("slimpipe/model=gpt2", HEADS,
     {"ranks": 2, "sequence": 32, "model.attention_rate": 0.2, "model.residual_rate": 0.1}),
    ("terapipe", HEADS, {"ranks": 2, "sequence": 32, "model.sinks": "true", "model.windows": "[0,5,0,3,0,5,0,3]"}),
    ("single/kv_heads=2", HEADS | dict(context=4), dict(ranks=1)),
    ("single/kv_heads=3", HEADS | dict(context=6, data=2), dict(ranks=1, heads=6, hidden=24, sequence=24)),
    ("1f1b/kv_heads=1", HEADS | dict(context=2, tensor=2, data=2, zero=1), dict(ranks=2)),
    ("1f1b/kv_heads=2", HEADS | dict(tensor=2, again="all"), {"ranks": 2, "model.sinks": "true"}),
    ("zb_v/kv_heads=1", HEADS | dict(context=4, again="nothing"), dict(ranks=2)),
    ("helixpipe/kv_heads=1", HEADS | dict(tensor=2, sequence="true"), dict(ranks=2)),
    ("1f1b_recompute/kv_heads=2", HEADS | dict(context=4), {}), ("weipipe_prefetch/kv_heads=1", HEADS, dict(ranks=2)),
    ("terapipe/kv_heads=2", HEADS | dict(context=4), {"ranks": 2, "sequence": 32, "model.head_norms": "true"}),
    ("slimpipe_interleaved/exchange=true/kv_heads=1", HEADS, dict(ranks=2, sequence=48)),
    ("single", HEADS, dict(ranks=1)), ("single/model=gpt2", HEADS | dict(context=4), dict(ranks=1)),
    ("single/kv_heads=4", HEADS | dict(context=4), dict(ranks=1)),
    ("1f1b/model=gpt2", HEADS | dict(context=4), dict(ranks=2)), ("weipipe_prefetch", HEADS, dict(ranks=2)),
    ("weipipe_prefetch/model=gpt2", HEADS | dict(context=4), dict(ranks=2)),
    ("zb_h1", HEADS, dict(ranks=2)), ("zb_h1/kv_heads=4", HEADS | dict(tensor=2, data=2), dict(ranks=2)),
    ("fsdp", HEADS, dict(ranks=2)), ("fsdp/model=gpt2", HEADS | dict(context=4), dict(ranks=2)),
    ("1f1b/kv_heads=3", HEADS | dict(context=3, data=2), dict(ranks=2, heads=6, hidden=24)),
    ("1f1b/kv_heads=4", HEADS | dict(tensor=2), {"ranks": 2, "model.sinks": "true"}),
    ("helixpipe/model=gpt2", HEADS | dict(tensor=2, sequence="true", again="all"), dict(ranks=2)),
    ("helixpipe", HEADS, dict(ranks=2)), ("1f1b_recompute", HEADS, {}), ("1f1b_vocabulary", HEADS, {}),
    ("zb_v", HEADS, {}), ("dualpipe_v/microbatches=8", HEADS, {}), ("tawpipe/model=gpt2", HEADS, {}))
# Long slices in f32, whose kernels carry sums of both runs of queries from slice to slice of keys.
LONG = dict(ranks=2, microbatches=2, layers=2, precision="f32")
LONG_SLICES = (("slimpipe/exchange=true/slices=3/kv_heads=1", dict(context=3),
                LONG | {"sequence": 1026, "heads": 5, "hidden": 40, "model.windows": "[0,150]"}),)
ALL_LONG_SLICES = LONG_SLICES + (
    ("terapipe/slices=3/kv_heads=13", dict(context=3), LONG | dict(sequence=1026, heads=13, hidden=104)),
    ("terapipe/slices=4/kv_heads=1", dict(context=2, data=2, zero=1, again="nothing"),
     LONG | {"sequence": 768, "heads": 3, "hidden": 24, "model.sinks": "true", "model.windows": "[150,30]"}),
    ("terapipe/slices=3/model=gpt2", dict(context=3, data=2), LONG | {"sequence": 576, "heads": 3, "hidden": 24,
                                                                      "model.attention_rate": 0.2}),
    ("slimpipe/exchange=true/offload=50/kv_heads=1", dict(context=2, zero=2),
     LONG | dict(sequence=1536, heads=3, hidden=24)),
    ("slimpipe/exchange=true/model=gpt2", dict(context=4, tensor=2, sequence="true", again="all"),
     LONG | dict(sequence=960, heads=6, hidden=48)),
    ("slimpipe_interleaved/exchange=true/idle=all/kv_heads=2", dict(context=3, tensor=2),
     LONG | dict(layers=4, sequence=1224, heads=6, hidden=48)),
    ("slimpipe/exchange=true/kv_heads=5", HEADS | dict(context=5), LONG | dict(sequence=1200, heads=5, hidden=40)))
ALL_CONTEXT = CONTEXT + (
    ("single", dict(context=4), dict(ranks=1)), ("single/model=gpt2", dict(context=2, tensor=2), dict(ranks=1)),
    ("1f1b", dict(context=3, data=2), dict(ranks=2, sequence=12)),
    ("1f1b", dict(context=2, tensor=2, sequence="true", again="all"), dict(ranks=2)),
    ("1f1b_vocabulary", dict(context=2), {}), ("1f1b_vocabulary", dict(context=2, tensor=2), dict(ranks=2)),
    ("1f1b/model=gpt2", dict(context=2), {"ranks": 2, "model.attention_rate": 0.2, "model.residual_rate": 0.1}),
    ("1f1b", dict(context=2), {"ranks": 2, "model.sinks": "true", "model.windows": "[0,5,0,3,0,5,0,3]"}),
    ("zb_v/model=mamba", dict(context=4, again="nothing"), {"ranks": 2, "model.groups": 4}),
    ("weipipe_interleave/model=mamba", dict(context=2, data=2, zero=1), dict(ranks=2)),
    ("1f1b/model=lfm2", dict(context=2, data=2, zero=2), dict(ranks=2)),
    ("1f1b_recompute/model=mamba", HEADS | dict(context=4), {}), ("helixpipe/model=delta", dict(context=2), {}),
) + tuple((schedule, dict(context=2), {}) for schedule in SCHEDULES + ("1f1b_recompute",) if "slimpipe" not in schedule)
# Parts whose weights are whole on every device of the tensor axis.
WHOLE = (("1f1b", "head", dict(tensor=2), {}), ("zb_v", "qkv", dict(tensor=2), {}),
         ("weipipe_interleave", "post", dict(tensor=2), {}),
         ("1f1b", "embed, qkv", dict(tensor=2, sequence="true"), {}),
         ("zb_v", "post", dict(tensor=2, sequence="true"), {}),
         ("1f1b/model=gpt2", "embed, head", dict(tensor=2, data=2, zero=1), {}),
         ("1f1b/model=gpt2", "embed, head", dict(tensor=2, sequence="true"), {}),
         ("1f1b/model=gpt2", "attn", HEADS | dict(tensor=2), {"model.attention_rate": 0.2}),
         ("zb_v/model=latent", "pre", dict(tensor=2, data=2, expert=2, sequence="true"),
          dict(ranks=2, experts=6, top=3, z=0)),
         ("1f1b/kv_heads=4", "attn", HEADS | dict(tensor=2, sequence="true"), {"model.sinks": "true"}),
         ("zb_v/model=delta", "qkv", dict(tensor=2, data=2, expert=2),
          {"ranks": 2, "experts": 6, "top": 3, "model.keys": 4}),
         ("weipipe_interleave/model=mamba", "qkv", dict(tensor=2, data=2, zero=1), {"model.groups": 4}),
         ("zb_v/model=latent", "pre", dict(tensor=2, data=2, expert=2),
          {"ranks": 2, "experts": 6, "top": 3, "model.twice": "true", "model.identity": 3, "model.score": "softmax"}),
         ("1f1b/model=latent", "pre", dict(tensor=2, data=2, expert=2, sequence="true"),
          {"ranks": 2, "experts": 6, "top": 3, "z": 0, "model.scan_heads": 4, "model.scan_dim": 5,
           "model.scans": "[1, 0, 1, 1, 0, 1, 0, 1]"}))
ALL_WHOLE = WHOLE + tuple(
    (schedule, part, mesh, {}) for schedule in ("1f1b", "zb_v", "weipipe_interleave")
    for part in ("head", "embed", "post", "qkv", "attn", "qkv, attn, post")
    for mesh in (dict(tensor=2), dict(tensor=2, sequence="true"), dict(tensor=2, data=2, zero=1))) + (
    ("helixpipe", "qkv", dict(tensor=2, sequence="true"), {}), ("1f1b", "qkv", dict(tensor=2, context=2), {}),
    ("slimpipe/exchange=true/kv_heads=2", "post", dict(tensor=2), {}),
    ("1f1b/kv_heads=2", "attn", HEADS | dict(tensor=2, context=4), {}),
    ("slimpipe/exchange=true/model=delta", "qkv", dict(tensor=2, data=2, zero=1),
     {"ranks": 2, "experts": 6, "top": 3, "balance": 0, "model.keys": 4}),
    ("terapipe/model=mamba", "qkv", dict(tensor=2, sequence="true"), {"ranks": 2, "model.groups": 4}),
    ("1f1b/model=delta", "qkv", dict(tensor=2, context=2, sequence="true"),
     {"ranks": 2, "experts": 6, "top": 3, "model.keys": 4}),
    ("zb_v/model=mamba", "qkv", dict(tensor=2, context=2), {"ranks": 2, "model.groups": 4}),
    ("terapipe/model=lfm2", "post", dict(tensor=2, data=2, zero=2), {"ranks": 2, "sequence": 20}),
    ("1f1b/kv_heads=1", "qkv, attn", HEADS | dict(tensor=2, context=3, sequence="true"), dict(heads=3, hidden=24)))
# Parts with a way of their own: what `mesh of` says, the rest of `mesh`, sizes.
OWN = (("1f1b/kv_heads=1", 'attn attention = "heads", again = "nothing"', dict(context=2), {}),
       ("zb_v", 'attn attention = "gather"', HEADS | dict(tensor=2, sequence="true", again="all"), {}),
       ("1f1b_vocabulary", 'head, post again = "nothing"', dict(tensor=2, sequence="true"), {}))
ZERO = ("1f1b", "zb_v/model=gpt2", "weipipe_interleave/model=gpt2", "tawpipe", "dualpipe_v/model=gpt2/microbatches=8",
        "helixpipe", "slimpipe/exchange=true/kv_heads=1", "replicated_1f1b", "interleaved/model=gpt2",
        "1f1b/model=gpt2")
# Sums of gradients are cut, too: by schedule the rest of `mesh`, then sizes.
ZERO2 = (("1f1b", dict(data=3), {}), ("zb_v/model=gpt2", dict(data=2), {}),
         ("interleaved/model=gpt2", dict(data=2), dict(ranks=2)),
         ("slimpipe/exchange=true/kv_heads=1", dict(data=2), dict(ranks=2)),
         ("dualpipe_v/model=gpt2/microbatches=8", dict(data=2, tensor=2, sequence="true"), dict(ranks=2)),
         ("1f1b_recompute", dict(context=2), dict(ranks=2)),
         ("zb_h1/model=gpt2", HEADS | dict(data=2), dict(ranks=2)))
# Mixtures of experts: each is cut over tensor, a group of tokens of the balance may be on several devices, and with
# `expert` a device has some of the experts.
MIXED = dict(ranks=2, experts=6, top=3, balance=0.7, z=0.05)
EXPERTS = (("1f1b/model=mixtral", dict(tensor=2, data=2, sequence="true", zero=1), MIXED),
           ("zb_v/model=qwen3_moe", dict(context=2, tensor=2, attention="heads"), MIXED),
           ("weipipe_interleave/model=mixtral", dict(context=2, data=2), MIXED | dict(balance_over="microbatch")),
           ("zb_v/model=mixtral", dict(data=2, expert=2, tensor=2, sequence="true"), MIXED),
           ("1f1b/model=qwen3_moe", dict(context=2, data=2, expert=4), MIXED | dict(experts=8)),
           ("fsdp/model=glm4_moe", dict(context=2, data=2, expert=2), MIXED | dict(z=0)),
           ("1f1b/model=mixtral", dict(data=4, expert=2, tensor=2, zero=1), MIXED),
           ("zb_v/model=mixtral", dict(data=2, expert=2), MIXED | dict(products="fp8_row")))
ALL_EXPERTS = EXPERTS + (
    ("single/model=mixtral", dict(tensor=2), MIXED | dict(ranks=1)), ("fsdp/model=mixtral", dict(tensor=2), MIXED),
    ("fsdp/model=mixtral", dict(context=2, tensor=2, sequence="true"), MIXED),
    ("zb_v/model=mixtral/kv_heads=1", dict(tensor=2, sequence="true", again="all"), MIXED),
    ("zb_v/model=qwen3_moe", dict(data=3, zero=2), MIXED), ("helixpipe/model=mixtral", dict(tensor=2), MIXED),
    ("weipipe_interleave/model=qwen3_moe", dict(data=2, tensor=2, zero=1), MIXED),
    ("1f1b/model=olmoe", dict(data=2, context=2, zero=2), MIXED | dict(balance_over="microbatch")),
    ("1f1b_recompute/model=mixtral", dict(data=3), MIXED | dict(balance_over="microbatch")),
    ("tawpipe/model=mixtral", dict(context=3, tensor=2), MIXED | dict(balance_over="microbatch")),
    ("1f1b/model=glm4_moe", dict(data=2, tensor=2, context=2, sequence="true"), MIXED | dict(z=0)),
    ("slimpipe/exchange=true/model=mixtral", HEADS | dict(tensor=2), MIXED | dict(balance=0, sequence=32)),
    ("terapipe/model=qwen3_moe", HEADS, MIXED | dict(balance=0, sequence=32)),
    ("single/model=mixtral", dict(data=2, expert=2), MIXED | dict(ranks=1)),
    ("single/model=olmoe", dict(context=2, data=2, expert=4), MIXED | dict(ranks=1, experts=8, top=1)),
    ("1f1b/model=olmoe", dict(context=2, data=2, expert=2), MIXED | dict(balance_over="microbatch")),
    ("1f1b/model=mixtral", dict(context=2, data=3, expert=6), MIXED | dict(balance_over="microbatch")),
    ("1f1b/model=mixtral", dict(data=4, expert=2, order="pipeline data context tensor"), MIXED | dict(top=6)),
    ("1f1b/model=mixtral", dict(context=2, data=2, expert=4, order="data context tensor pipeline"),
     MIXED | dict(experts=8)),
    ("zb_v/model=qwen3_moe", dict(context=2, expert=2, again="all"), MIXED),
    ("zb_v/model=qwen3_moe", HEADS | dict(expert=2, again="nothing"), MIXED),
    ("zb_h1/model=mixtral/kv_heads=1", dict(data=2, expert=2, tensor=2), MIXED),
    ("1f1b_recompute/model=mixtral", dict(data=3, expert=3), MIXED),
    ("1f1b_recompute/model=mixtral", dict(data=2, expert=2, tensor=2, sequence="true", again="nothing"), MIXED),
    ("1f1b_vocabulary/model=mixtral", dict(data=2, expert=2, tensor=2), MIXED),
    ("interleaved/model=olmoe", dict(data=2, expert=2), MIXED),
    ("dualpipe_v/model=mixtral/microbatches=8", dict(data=2, expert=2), MIXED),
    ("weipipe_interleave/model=mixtral", dict(data=2, expert=2), MIXED),
    ("tawpipe/model=mixtral", dict(data=4, expert=2), MIXED), ("wzb2/model=mixtral", dict(data=2, expert=2), MIXED),
    ("helixpipe/model=mixtral", dict(data=2, expert=2), MIXED),
    ("gpipe_offload/model=mixtral", dict(data=2, expert=2), MIXED),
    ("replicated_1f1b/model=mixtral", dict(data=2, expert=2), MIXED),
    ("fsdp/model=mixtral", dict(context=2, data=2, expert=2, tensor=2, sequence="true"), MIXED),
    ("zero1/model=mixtral", dict(data=4, expert=2, tensor=2), MIXED),
    ("zero2/model=qwen3_moe", dict(data=2, expert=2), MIXED),
    ("1f1b/model=glm4_moe", dict(data=2, expert=2, tensor=2, sequence="true"), MIXED | dict(z=0)),
    ("slimpipe/exchange=true/model=mixtral", dict(data=2, expert=2), MIXED | dict(balance=0, sequence=32)),
    ("slimpipe_interleaved/exchange=true/model=mixtral", dict(context=2, data=2, expert=4),
     MIXED | dict(balance=0, sequence=48, experts=8)),
    ("terapipe/model=qwen3_moe", HEADS | dict(expert=2), MIXED | dict(balance=0, sequence=32)),
    ("zb_v/model=qwen3_moe", dict(context=2, data=2, expert=4, zero=1), MIXED | dict(experts=8)),
    ("zb_h1/model=mixtral/kv_heads=1", dict(context=2, data=2, expert=2, tensor=2, zero=1), MIXED),
    ("weipipe_interleave/model=mixtral", dict(data=2, expert=2, zero=2), MIXED))
ALL_ZERO2 = ZERO2 + tuple(
    (schedule, dict(data=data), {}) for data in (2, 3)
    for schedule in ("gpipe", "1f1b/model=gpt2", "interleaved", "zb_h1", "zb_h2/model=gpt2", "zb_v", "v_half", "v_min",
                     "bpipe/model=gpt2", "looped_bfs", "hanayo", "dualpipe_v/microbatches=8", "gpipe_offload",
                     "terapipe/model=gpt2", "slimpipe", "slimpipe/exchange=true/model=gpt2",
                     "helixpipe/ship=false", "weipipe_interleave", "weipipe_prefetch/model=gpt2", "wzb2", "tawpipe",
                     "helixpipe/model=gpt2", "replicated_1f1b")) + (
    ("single", dict(data=4), dict(ranks=1)), ("single/model=gpt2", dict(context=2), dict(ranks=1)),
    ("1f1b/kv_heads=1", dict(data=2, tensor=2), dict(ranks=2)),
    ("zb_v/model=gpt2", dict(data=2, context=2, tensor=2), dict(ranks=2)),
    ("slimpipe_interleaved/exchange=true/model=gpt2", dict(data=2), {}),
    ("zb_v/model=encoder_decoder", dict(data=2), {}), ("terapipe/model=gpt2", HEADS, dict(ranks=2, sequence=32)))
SHARED = ("model", "kv_heads", "microbatches")  # with the reference
SIZES = dict(model="llama", precision="f64", ranks=4, microbatches=4)


class Meshes:
    def __init__(self, compiler, folder, only):
        self.runner, self.tally, self.references, self.only = Runner(compiler, folder), harness.Tally(), {}, only
        self.compiler, self.folder, self.text = compiler, folder, self.runner.text
        self.parts = 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def wants(self, name):
        return not self.only or any(word in name for word in self.only)

    def make(self, name, **values):
        return harness.compile_train(self.compiler, self.path(name), SMALL | SIZES | values)

    def reference(self, replicas, values):
        """One rank that has the rows of all replicas in a microbatch."""
        sizes = SIZES | values | dict(ranks=1, microbatch=SMALL["microbatch"] * replicas)
        key = tuple(sizes.items())
        if key not in self.references:
            program = self.runner.compile(schedule="single", **sizes)
            run = self.runner.run(program, 1, "threads", "rendezvous")
            self.references[key] = (*run, self.norms(program, "threads", "rendezvous"))
        return self.references[key]

    @staticmethod
    def norms(program, transport, sends):
        """Of each step; and what the losses of routers are, if there are any."""
        log = harness.read_log(f"{program}.{transport.replace('/', '_')}.{sends}.jsonl")
        return [line[key] for line in log for key in ("grad_norm", "balance", "z") if line.get(key)]

    def schedule(self, schedule, mesh, modes, values, train=None, also=""):
        if not self.wants(schedule + also):
            return
        given = values | dict(pair.split("=") for pair in schedule.split("/")[1:] if pair.split("=")[0] in SHARED)
        program = self.runner.compile(train, schedule=schedule, **SIZES | values,
                                      **{f"mesh.{name}": value for name, value in mesh.items()})
        devices = values.get("ranks", SIZES["ranks"])
        for axis in ("data", "context", "tensor"):
            devices *= mesh.get(axis, 1)
        what = f"{schedule} on {' '.join(f'{name}={value}' for name, value in mesh.items())} {values or ''}{also}"
        wanted, first = self.reference(mesh.get("data", 1), given), None
        precision = values.get("precision", SIZES["precision"])
        tolerance = TOLERANCE[precision]
        for transport, sends in modes:
            gradients, losses, weights = self.runner.run(program, devices, transport, sends)
            worst, where = difference(gradients, wanted[0])
            drift = harness.drift(losses, wanted[1])
            trained, moved = difference(weights, wanted[2])
            norms = self.norms(program, transport, sends)
            first = first or (gradients, losses, weights, norms)
            same = first == (gradients, losses, weights, norms)
            drift = max(drift, *(abs(a - b) / b for a, b in zip(norms, wanted[3], strict=True)))
            good = same and worst <= tolerance and drift <= 10 * tolerance and trained <= TRAINED[precision]
            self.tally.check(good, f"{what} {transport} {sends}: gradients {worst:.1e} losses "
                                   f"and norms {drift:.1e} trained {trained:.1e}"
                                   + ("" if good else f" worst in {where}, {moved}, bits as in the first mode: {same}"))

    def bits(self):
        """Sums over replicas have the bits of those over ranks that share the microbatches. A tied table has not:
        in one piece its two gradients are added in every microbatch."""
        for precision in ("f32", "bf16"):
            sizes = dict(precision=precision)
            mesh = self.runner.compile(schedule="single", **SIZES | sizes, **{"mesh.data": 2})
            ranks = self.runner.compile(schedule="data_parallel", **SIZES | sizes | dict(ranks=2, microbatches=8))
            ours, theirs = (self.runner.run(program, 2, "threads", "rendezvous") for program in (mesh, ranks))
            self.tally.check(ours[0] == theirs[0] and ours[2] == theirs[2],
                             f"2 x single in {precision}: the bits of data_parallel")

    def again(self, every):
        """What a backward gathers again has the bits of what it would keep."""
        rows, heads = {"mesh.tensor": 2, "mesh.sequence": "true"}, {"mesh.context": 2, "mesh.attention": "heads"}
        cases = (("1f1b_recompute", rows), ("zb_v/kv_heads=1", heads), ("zb_v", {"mesh.context": 2}),
                 ("1f1b", rows), ("zb_v/model=gpt2", rows), ("1f1b_recompute/model=gpt2", heads))
        for schedule, mesh in cases if every else cases[:2]:
            runs = [self.runner.run(self.runner.compile(schedule=schedule, **SIZES | dict(ranks=2), **mesh, **{
                "mesh.again": again}), 4, "threads", "rendezvous") for again in ("nothing", "inputs", "all")]
            self.tally.check(runs[0] == runs[1] == runs[2],
                             f"{schedule} {mesh}: one result whatever is gathered again")

    def zero(self, schedule, replicas, modes, train=None, **defines):
        """Each replica updates a shard: as if each updated all, in weights, in the optimizer's state and in the log."""
        name = f"zero = 1, {replicas} x {schedule}" + (f" {defines}" if defines else "")
        if not self.wants(name):
            return
        sizes, axes = {key: defines[key] for key in ("ranks", "precision") if key in defines}, ("mesh.tensor",
                                                                                               "mesh.context")
        devices, found = sizes.get("ranks", SIZES["ranks"]) * replicas, {}
        for axis in axes:
            devices *= defines.get(axis, 1)
        compared = defines.keys() <= {"ranks", "mesh.attention", *axes}
        # With clipping there is something to compare: the reference, or several modes.
        for zero, clip in ((0, 0), (1, 0), (1, 1))[:3 if compared or len(modes) > 1 else 2]:
            program = self.runner.compile(train, schedule=schedule, **SIZES | defines, clip=clip,
                                          **{"mesh.data": replicas, "mesh.zero": zero})
            for transport, sends in modes if zero else modes[:1]:
                run = self.runner.run(program, devices, transport, sends)
                files = [run[1]]  # bytes: gradients that overflowed are no numbers
                for file in (".grads", ".saved/model.safetensors", ".saved/optimizer.safetensors"):
                    with open(f"{program}.{transport.replace('/', '_')}.{sends}{file}", "rb") as written:
                        files.append(written.read())
                found.setdefault((zero, clip), []).append((run, files))
        whole, cut, clipped = (found.get(key) for key in ((0, 0), (1, 0), (1, 1)))
        self.tally.check(all(files == whole[0][1] for _, files in cut), f"{name}: the bits of zero = 0")
        if len(modes) > 1:
            self.tally.check(all(files == clipped[0][1] for _, files in clipped),
                             f"{name}, clipped: one result in all modes")
        if compared:
            given = sizes | dict(pair.split("=") for pair in schedule.split("/")[1:] if pair.split("=")[0] in SHARED)
            wanted = self.reference(replicas, given)
            worst, where = difference(clipped[0][0][0], wanted[0])
            trained, moved = difference(clipped[0][0][2], wanted[2])
            self.tally.check(worst <= TOLERANCE["f64"] and trained <= TRAINED["f64"],
                             f"{name}, clipped: gradients {worst:.1e} ({where}) trained {trained:.1e} ({moved})")

    def zeros(self, every):
        """Schedules, optimizers, groups of weights, frozen ones, and gradients of f16 that overflow."""
        threads = [("threads", "rendezvous")]
        for number, schedule in enumerate(ZERO if every else ZERO[:3]):
            for replicas in (2, 3, 4) if every else (2 + number % 3,):
                self.zero(schedule, replicas, modes(every, 2 * number))
        self.zero("1f1b", 1, threads, ranks=2, **{"mesh.context": 2})
        self.zero("1f1b/model=mixtral", 4, threads, ranks=2, experts=4, top=2, **{"mesh.expert": 2})
        self.zero("zb_v/model=gpt2", 1, threads, ranks=2, **{"mesh.context": 2, "mesh.attention": "heads"})
        if every:
            self.zero("1f1b", 2, threads, ranks=2, **{"mesh.tensor": 2})
            self.zero("zb_v/model=gpt2", 2, threads, ranks=2, **{"mesh.context": 2})
            self.zero("weipipe_interleave", 2, threads, ranks=2, **{"mesh.context": 2, "mesh.tensor": 2})
            self.zero("zb_v/model=gpt2", 2, threads, ranks=2, **{"mesh.tensor": 2})
            self.zero("1f1b/kv_heads=1/model=llama", 3, threads, ranks=2, **{"mesh.tensor": 2})
        groups = {"optimizer.lr_scale": "[mlp,2.5,norm,0]", "optimizer.decay_scale": "[q_proj,3]",
                  "optimizer.no_decay": "o_proj"}
        overflow = {"optimizer.loss_scale": 1 << 22, "optimizer.scale_window": 2, "precision": "f16"}
        changed = self.path("sgd.pipe")
        with open(harness.TRAIN) as train, open(changed, "w") as file:
            file.write(re.sub(r"optimizer adamw\(.*\)", "optimizer sgd(lr = 0.1, momentum = 0.9, clip = clip)",
                              train.read()))
        for train, defines in ((None, groups), (None, overflow), (changed, {"precision": "bf16"}),
                               (None, {"precision": "f32", "freeze": "embed,mlp"}), (None, {"precision": "bf16"}),
                               (None, {"precision": "f32"}))[:6 if every else 4]:
            self.zero("1f1b", 3, threads, train, ranks=2, **defines)

    def sums(self, every):
        """`zero = 2` in other types, optimizers and groups of weights: the weights, the optimizer's state and the log
        of `zero = 1` but for rounding, and the same steps left out where gradients of f16 overflow."""
        groups = {"precision": "f64", "optimizer.lr_scale": "[mlp,2.5,norm,0]", "optimizer.no_decay": "o_proj"}
        overflow = {"optimizer.loss_scale": 1 << 22, "optimizer.scale_window": 2, "precision": "f16"}
        for train, defines in ((None, groups), (None, overflow), (self.path("sgd.pipe"), {"precision": "f64"}),
                               (None, {"precision": "f64", "freeze": "embed,mlp"}), (None, {"precision": "bf16"}),
                               (None, {"precision": "f32"}))[:6 if every else 2]:
            name = f"zero = 2, 3 x 1f1b {defines}"
            if not self.wants(name):
                continue
            runs, logs, states, precision = [], [], [], defines["precision"]
            for zero in (1, 2):
                program = self.runner.compile(train, schedule="1f1b", **SIZES | dict(ranks=2) | defines,
                                              **{"mesh.data": 3, "mesh.zero": zero})
                runs.append(self.runner.run(program, 6, "threads", "rendezvous"))
                result = f"{program}.threads.rendezvous"
                logs.append([line.get("skipped") for line in harness.read_log(result + ".jsonl")])
                states.append({key: values for key, (_, values) in harness.read_safetensors(
                    os.path.join(result + ".saved", "optimizer.safetensors")).items()})
            trained, moved = difference(runs[1][2], runs[0][2])
            state, where = difference(states[1], states[0])
            rounding = TRAINED[precision]
            self.tally.check(trained <= rounding and state <= rounding and logs[0] == logs[1],
                             f"{name}: trained {trained:.1e} ({moved}) state {state:.1e} ({where}), skipped {logs[1]}")

    def narrow(self):
        """Gradients of 16 bits: with `zero = 2` their sums over microbatches have 32, and are no further from f64."""
        train, off = self.path("narrow.pipe"), []
        with open(harness.TRAIN) as given, open(train, "w") as file:
            file.write(given.read().replace("  precision precision\n", "  precision precision\n  gradients bf16\n"))
        exact = self.reference(3, {})[0]
        for zero in (1, 2):
            program = self.runner.compile(train, schedule="1f1b", **SIZES | dict(ranks=2, precision="bf16"),
                                          **{"mesh.data": 3, "mesh.zero": zero})
            ours = self.runner.run(program, 6, "threads", "rendezvous", 1)[0]
            off.append(sum((a - b) ** 2 for name in exact for a, b in zip(ours[name], exact[name])) ** 0.5)
        self.tally.check(off[1] <= 1.1 * off[0], f"16 bits: from f64 {off[1]:.1e}, with `zero = 1` {off[0]:.1e}")

    def orders(self):
        """Devices may be numbered along the pipeline first: the same bits."""
        text = open(harness.TRAIN).read()
        changed = self.path("pipeline_first.pipe")
        with open(changed, "w") as file:
            file.write(text.replace("  precision precision\n",
                                    '  precision precision\n  mesh data = 2, order = "pipeline data tensor context"\n'))
        made = [self.runner.compile(train, schedule="1f1b", **SIZES, **defines)
                for train, defines in ((changed, {}), (harness.TRAIN, {"mesh.data": 2}))]
        first, second = (self.runner.run(program, 8, "mpi", "rendezvous") for program in made)
        self.tally.check(first == second, "`order = \"pipeline data ..\"`: the bits of the default order")

    def resumed_experts(self):
        """The same where devices have some of the experts, and states of the other weights cut over all of them."""
        rows, sizes = SMALL["microbatch"], dict(model="mixtral", experts=4, top=2, balance=0.1)
        programs = {"expert": (self.make("resume_expert", schedule="1f1b", ranks=2, **sizes,
                                         **{"mesh.data": 2, "mesh.expert": 2, "mesh.tensor": 2}), 8),
                    "cut": (self.make("resume_cut", schedule="zb_v", ranks=2, **sizes, microbatch=rows,
                                      **{"mesh.context": 2, "mesh.data": 2, "mesh.expert": 4, "mesh.zero": 1}), 8),
                    "single": (self.make("resume_all", schedule="single", **sizes, ranks=1, microbatch=2 * rows), 1)}
        self.resume(programs, (("expert", "single"), ("single", "cut"), ("cut", "expert"), ("cut", "cut")))

    def resumed(self):
        """A checkpoint of two replicas goes on as one with twice the rows, or as four with half of them that update a
        shard each, or sum it, too, and back: losses of one run."""
        rows = SMALL["microbatch"]
        programs = {"context": (self.make("resume_context", schedule="fsdp", ranks=2, microbatch=2 * rows,
                                          **{"mesh.context": 2}), 4),
                    "mesh": (self.make("resume_mesh", schedule="1f1b", **{"mesh.data": 2}), 8),
                    "zero": (self.make("resume_zero", schedule="zb_v", **{"mesh.data": 4, "mesh.zero": 1},
                                       microbatch=rows // 2), 16),
                    "sums": (self.make("resume_sums", schedule="1f1b", ranks=2,
                                       **{"mesh.data": 2, "mesh.tensor": 2, "mesh.zero": 2}), 8),
                    "single": (self.make("resume_single", schedule="single", ranks=1, microbatch=2 * rows), 1)}
        self.resume(programs, (("mesh", "single"), ("single", "mesh"), ("mesh", "mesh"), ("mesh", "zero"),
                               ("zero", "single"), ("zero", "zero"), ("context", "zero"), ("single", "context"),
                               ("zero", "sums"), ("sums", "single"), ("sums", "sums")))

    def resume(self, programs, pairs):
        """Programs by name, with how many ranks they have: the second of a pair goes on where the first one stopped."""
        def run(name, *options):
            program, ranks = programs[name]
            log = self.path("resume.jsonl")
            harness.call([*harness.launch(program, ranks, "threads"), "--data", self.text, "--log", log, *options])
            return [line["loss"] for line in harness.read_log(log)]

        whole, saved = {}, {name: self.path(f"saved_{name}") for name in programs}
        for first, second in pairs:
            if first not in whole:
                whole[first] = run(first, "--steps", "4")
                run(first, "--steps", "4", "--stop-at", "2", "--save", saved[first])
            rest = run(second, "--resume", saved[first])[-2:]  # the log goes on behind that of another run
            error = harness.drift(whole[first][2:], rest)
            self.tally.check(error <= (0 if first == second else 1e-12),
                             f"{first}, saved and resumed as {second}: losses {error:.1e}")

    def rows(self):
        """Packed documents, dropout, shuffling and epochs: which sequence a row is decides all of them."""
        rows = SMALL["microbatch"]
        packed = documents.write_dataset(self.folder, "documents.safetensors", *documents.random_documents(3, 120, 30))
        drop = {"model": "gpt2", "model.embed_rate": 0.1, "model.residual_rate": 0.2, "model.attention_rate": 0.3}
        programs = {}
        for what, defines, options in (
            ("packed documents", {"data.documents": "true", "kv_heads": 1}, ["--data", packed]),
            ("dropout", drop, ["--data", self.text]),
            ("shuffled epochs", {"data.documents": "true", "kv_heads": 1},
             ["--data", packed, "--shuffle", "--epochs", "2"]),
        ):
            found = []
            for schedule, ranks, values in (("single", 1, {"microbatch": 2 * rows}), ("1f1b", 4, {"mesh.data": 2}),
                                            ("zb_v", 2, {"microbatch": 2 * rows, "mesh.tensor": 2}),
                                            ("zb_v", 2, {"microbatch": 2 * rows, "mesh.context": 2}),
                                            ("zb_h1", 2, {"microbatch": 2 * rows, "mesh.context": 2,
                                                          "mesh.attention": "heads"})):
                key = str((schedule, values, defines))
                if key not in programs:
                    programs[key] = self.make(f"rows{len(programs)}", schedule=schedule, **dict(ranks=ranks) | values,
                                              **defines)
                program = programs[key]
                log, grads = program + ".jsonl", program + ".grads"
                steps = [] if "--epochs" in options else ["--steps", "3"]
                harness.call([program, "--in-process", *options, *steps, "--log", log, "--grads", grads, "--eval",
                              packed if "documents" in str(defines) else self.path("short.txt")])
                lines = [line[key] for line in harness.read_log(log) for key in ("loss", "tokens", "eval_loss")
                         if key in line]
                found.append((lines, {key: its for key, (_, its) in harness.read_safetensors(grads).items()}))
            theirs, wanted = found[0]
            for axis, (ours, gradients) in zip(("data", "tensor", "context", "heads"), found[1:], strict=True):
                worst, where = difference(gradients, wanted)
                off = harness.drift(ours, theirs)
                self.tally.check(worst <= 1e-11 and off <= 1e-10,
                                 f"{what} over {axis}: gradients {worst:.1e} ({where}), losses {off:.1e}")

    def logprobs(self):
        """Each token's, in the order of the file, whoever computes it."""
        found = []
        for name, values in (("logprobs_single", dict(schedule="single", ranks=1)),
                             ("logprobs_data", dict(schedule="1f1b", **{"mesh.data": 3})),
                             ("logprobs_tensor", dict(schedule="1f1b", ranks=2, **{"mesh.tensor": 2})),
                             ("logprobs_context", dict(schedule="1f1b", ranks=2, **{"mesh.context": 2})),
                             ("logprobs_heads", dict(schedule="1f1b", ranks=2, **{"mesh.context": 2,
                                                                                  "mesh.attention": "heads"}))):
            program = self.make(name, **values)
            harness.call([program, "--in-process", "--data", self.path("short.txt"), "--steps", "1", "--lr", "0",
                          "--logprobs", program + ".logprobs"])
            found.append(harness.read_safetensors(program + ".logprobs"))
        for ours in found[1:]:
            error = harness.apart(ours["logprobs"][1], found[0]["logprobs"][1])
            self.tally.check(error <= 1e-6 and ours["tokens"] == found[0]["tokens"], f"logprobs: {error:.1e}")

    def rounded(self):
        """In 16 bits on two axes: as far from f64 as one device is."""
        plain, copies = {"mesh.data": 2, "mesh.tensor": 2}, {"mesh.data": 2, "mesh.context": 2,
                                                             "mesh.attention": "heads"}
        for model, precision, keys, mesh in (("llama", "bf16", 2, plain), ("gpt2", "bf16", 2, plain),
                                             ("llama", "f16", 2, plain), ("gpt2", "f16", 2, plain),
                                             ("llama", "bf16", 1, copies), ("llama", "f16", 1, copies)):
            shared, off = dict(model=model, kv_heads=keys), []
            exact = self.reference(2, shared)[0]
            for values in (dict(schedule="single", ranks=1, microbatch=2 * SMALL["microbatch"]),
                           dict(schedule="1f1b", ranks=2) | mesh):
                program = self.runner.compile(**SIZES | shared | dict(precision=precision) | values)
                ours = self.runner.run(program, 1 if values["ranks"] == 1 else 8, "threads", "rendezvous", 1)[0]
                off.append(sum((a - b) ** 2 for name in exact for a, b in zip(ours[name], exact[name])) ** 0.5)
            size = sum(value ** 2 for values in exact.values() for value in values) ** 0.5
            self.tally.check(off[1] <= 1.3 * off[0] < 0.03 * size,
                             f"{model} in {precision}, {list(mesh)}: from f64 {off[1] / size:.1e}, "
                             f"one device {off[0] / size:.1e}")

    def faults(self):
        """What says where something went wrong names the device."""
        program = self.make("faults", schedule="1f1b", **{"mesh.data": 2})
        said = harness.call([*harness.launch(program, 4, "mpi"), "--data", self.text], expect=None).stderr
        self.tally.check("8 devices (4 ranks of 2: data 2); mpirun started 4: run `mpirun -n 8 <program>`" in said,
                         f"too few devices: {said.strip()[-300:]}")
        run = subprocess.Popen([*harness.launch(program, 8, "mpi"), "--data", self.text, "--steps", "100000"],
                               env=harness.ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(5)
        os.kill(harness.ranks_of(run.pid)[5], signal.SIGKILL)
        said = run.communicate(timeout=60)[1]
        self.tally.check("device 5 (rank 2, data 1) (process" in said, f"a killed device: {said.strip()[-300:]}")

    def wholes(self, every):
        """`mesh of PART tensor = 1`: by turns the parts of a layer and around it; also with rows, replicas, zero."""
        for number, (schedule, parts, mesh, values) in enumerate(ALL_WHOLE if every else less(WHOLE, 2, 4, 6)):
            if self.wants("whole"):
                self.schedule(schedule, mesh, modes(every, number)[:1 + every], dict(ranks=2) | values,
                              self.with_parts(f"{parts}  tensor = 1"),
                              f", {parts} whole")

    def owns(self):
        """An `attention` or `again` of one part; what one part gathers again has the bits of what it keeps."""
        for schedule, said, mesh, values in OWN:
            self.schedule(schedule, mesh, [("threads", "rendezvous")], dict(ranks=2) | values, self.with_parts(said),
                          f", own: {said}")
        rows = {"mesh.tensor": 2, "mesh.sequence": "true", "mesh.context": 2}
        trains = [None] + [self.with_parts(f'{part} again = "{again}"')
                           for part, again in (("attn", "nothing"), ("qkv, post", "nothing"), ("post", "all"))]
        runs = [self.runner.run(self.runner.compile(train, schedule="zb_v", **SIZES | dict(ranks=2), **rows), 8,
                                "threads", "rendezvous") for train in trains]
        self.tally.check(all(run == runs[0] for run in runs), "one result whatever single parts gather again")

    def with_parts(self, said):
        """examples/train.pipe with one `mesh of` more."""
        with open(harness.TRAIN) as file:
            text = re.sub(r"^  data ", f"  mesh of {said}\n\\g<0>", file.read(), flags=re.M)
        self.parts += 1
        train = self.path(f"parts{self.parts}.pipe")
        with open(train, "w") as file:
            file.write(text)
        return train

    def traces(self):
        program, trace = self.make("traced", schedule="1f1b", **{"mesh.data": 2}), self.path("trace.json")
        harness.call([program, "--in-process", "--data", self.text, "--steps", "2", "--trace", trace])
        with open(trace) as file:
            text = file.read()
        self.tally.check(all(f"device {k} (rank {k // 2}, data {k % 2})" in text for k in range(8)),
                         "--trace names all devices")


def modes(several, number):
    """Transports and sends of the case with this number: all, or one by turns, and in every fourth case MPI's, too: a
    start of eight ranks takes seven times as long as one process of eight."""
    threads, mpi, streams = ("threads", "rendezvous"), ("mpi", "rendezvous"), (f"streams/{number}", "rendezvous")
    if several:
        return [threads, mpi, *[streams] * bool(harness.RUNTIME), ("mpi", "buffered")]
    others = [threads, ("threads", "buffered"), streams if harness.RUNTIME else threads]
    return [threads, mpi if number % 8 else ("mpi", "buffered")] if number % 4 == 0 else [others[number % 3]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("folder")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    tests = Meshes(arguments.compiler, arguments.folder, arguments.only)
    with open(tests.text, "rb") as text, open(tests.path("short.txt"), "wb") as short:
        short.write(text.read(2000))
    several = arguments.all
    for number, schedule in enumerate(SCHEDULES if several else SHORT):
        for replicas in (2, 3) if several else (3 - number % 2,):
            tests.schedule(schedule, dict(data=replicas), modes(several, number), {})
    for number, (schedule, tensor, replicas, values) in enumerate(ALL_TENSOR if several else less(TENSOR, 3)):
        tests.schedule(schedule, dict(data=replicas, tensor=tensor), modes(several, number), values)
    for number, (schedule, tensor, replicas, values) in enumerate(ALL_ROWS if several else less(ROWS, 1)):
        mesh = dict(data=replicas, tensor=tensor, sequence="true")
        tests.schedule(schedule, mesh, modes(several, number + 1), values)
    for every, few, more in ((ALL_CONTEXT, less(CONTEXT, 2), {}), (ALL_CONTEXT_HEADS, less(CONTEXT_HEADS, 0, 5), {}),
                             (ALL_LONG_SLICES, LONG_SLICES, {}), (ALL_ZERO2, less(ZERO2, 2), dict(zero=2)),
                             (ALL_EXPERTS, less(EXPERTS, 0), {})):
        for number, (schedule, mesh, values) in enumerate(every if several else few):
            tests.schedule(schedule, mesh | more, modes(several, number), values, also=", zero 2" if more else "")
    tests.wholes(arguments.all)
    tests.zeros(arguments.all)
    tests.sums(arguments.all)
    if tests.wants("again"):
        tests.again(arguments.all)
    names = ("owns", "bits", "orders", "resumed", "resumed_experts", "rows", "logprobs", "faults", "traces")
    for name in names + ("rounded", "narrow") * arguments.all:
        if tests.wants(name):
            getattr(tests, name)()
    return tests.tally.close()


if __name__ == "__main__":
    sys.exit(main())
