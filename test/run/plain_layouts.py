#!/usr/bin/env python3
"""Draws models, schedules, meshes, documents and weights of targets; judges a step of each by the plain model."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: plain_layouts.py PP_COMPILE FOLDER [--cases N] [--seed N]
# What pp-compile refuses is passed over, unless it complains of an op that it has made itself. Loss, norm, the losses
# of routers, every gradient, the evaluation and the log-probabilities of each row must be those of plain_model.py,
# which knows of no layout.
import math, random, sys
import documents, families, harness, plain_model
from public_lab import HEADS, LAYERS, SIZES, VOCAB, Lab, shapes_of, with_targets

SCHEDULES = ("single 1f1b gpipe zb_v zb_h1 zb_h2 interleaved 1f1b_recompute 1f1b_overlap 1f1b_vocabulary dualpipe "
             "dualpipe_v weipipe_interleave weipipe_prefetch weipipe_naive wzb1 wzb2 tawpipe fsdp zero1 zero2 "
             "data_parallel replicated_1f1b slimpipe slimpipe_interleaved terapipe ring_attention "
             "ring_attention_zigzag helixpipe hanayo chimera v_half v_min looped_bfs gpipe_offload bpipe").split()


def drawn_model(draw):
    """How a model is compiled, the same for the plain model, and the shapes of its tensors."""
    routed = draw.random() < 0.25
    fused, sinks = (not routed and draw.random() < 0.25 for _ in range(2))
    values, plain, shapes = {}, {}, dict(shapes_of("routed" if routed else "fused" if fused else "plain"))
    if routed:
        plain = dict(experts=4, top=draw.choice((2, 3)), balance=draw.choice((0, 0.3)), z=draw.choice((0, 0.05)))
        values, plain = {"model": "mixtral"} | plain, plain | {"theta": 1e6}
    if draw.random() < 0.35:
        values["model.tied"] = "true"
        del shapes["lm_head.weight"]
    if fused:
        values["model.fused"] = "true"
    if sinks:
        values["model.sinks"] = "true"
        shapes |= {f"model.layers.{l}.self_attn.sinks": [HEADS] for l in range(LAYERS)}
    if draw.random() < 0.5:
        plain["window"] = values["model.sliding_window"] = draw.choice((3, 5))
    return values, plain, shapes


def drawn_layout(draw, routed):
    schedule = draw.choice(SCHEDULES)
    values = dict(schedule=schedule, slices=4, ranks=1 if schedule == "single" else draw.choice((2, 2, 4)))
    if draw.random() < 0.6:
        axes = draw.sample(("data", "tensor", "context"), draw.choice((1, 1, 2)))
        values |= {f"mesh.{axis}": 2 for axis in axes}
        options = {"tensor": ("mesh.sequence", ("true", "false")), "context": ("mesh.attention", ("gather", "heads")),
                   "data": ("mesh.zero", (0, 1, 2))}
        values |= {options[axis][0]: draw.choice(options[axis][1]) for axis in axes}
        if routed and axes != ["tensor"]:
            values["mesh.expert"] = draw.choice((1, 2))
        if draw.random() < 0.3:
            values["mesh.again"] = draw.choice(("nothing", "all"))
    if draw.random() < 0.2 and schedule != "1f1b_recompute":
        values["recompute"] = draw.choice(("stage", "attn,post", "post"))
    if draw.random() < 0.15:
        values["mlp_chunks"] = 2
    replicas, rows = values.get("mesh.data", 1), draw.choice((1, 1, 2))
    count = max(1, draw.choice((4, 8)) // (replicas * rows))
    values |= dict(sequence=draw.choice((12, 16, 24)), microbatch=rows, microbatches=count)
    return values, rows * replicas * count


def drawn_rows(draw, count, length):
    """Documents, their masks, and which of them share a row: none of the next row fits into what is left of one."""
    texts, masks, rows = [], [], []
    for _ in range(count):
        first = draw.randint(2, length // 2 - 1) if draw.random() < 0.5 else length
        sizes = [first, length - first - draw.randint(0, 1)] if first < length else [length]
        rows.append(list(range(len(texts), len(texts) + len(sizes))))
        for size in sizes:
            chance = draw.choice((1, 0.6, 0.1, 0))
            texts.append([draw.randrange(VOCAB) for _ in range(size)])
            masks.append([int(draw.random() < chance) for _ in range(size)])
    if draw.random() < 0.5:  # numbers that an f32 holds
        masks = [[bit * draw.randint(1, 1000) / 256 for bit in mask] for mask in masks]
    return texts, masks, rows


def errors_of(line, gradients, chances, right, rows):
    """How far numbers are off, and which; gradients in shares of their tensor's largest."""
    yield abs(line["loss"] - right["loss"]) / right["loss"], "loss"
    yield abs(line["eval_loss"] - right["loss"]) / right["loss"], "eval_loss"
    yield abs(line["grad_norm"] / right["norm"] - 1), "grad_norm"
    for name in ("balance", "z"):
        yield abs(line.get(name, 0) - right[name]), name
    if gradients.keys() != right["gradients"].keys():
        yield math.inf, "names"
    for name in gradients.keys() & right["gradients"].keys():
        wanted = right["gradients"][name]
        yield harness.apart(gradients[name], wanted) / max(max(map(abs, wanted)), 1e-6), name
    length = len(chances) // len(rows)
    for number, row in enumerate(rows):  # in f32
        loss = math.fsum(right["losses"][i] for i in row)
        yield 1e-3 * abs(sum(chances[number * length:(number + 1) * length]) + loss) / max(1, loss), f"row {number}"


def judge(lab, draw):
    """What was drawn, and what is wrong; None: pp-compile refuses it."""
    model, plain, shapes = drawn_model(draw)
    layout, count = drawn_layout(draw, "experts" in plain)
    texts, masks, rows = drawn_rows(draw, count, layout["sequence"])
    said = " ".join(f"{name}={value}" for name, value in (model | layout).items())
    said += " with weights" if any(isinstance(bit, float) for mask in masks for bit in mask) else ""
    words = [word for name, value in (SIZES | model | layout).items() for word in ("-D", f"{name}={value}")]
    program, weights, chances = lab.at("drawn"), lab.at("drawn.weights"), lab.at("drawn.chances")
    done = harness.call([lab.compiler, harness.TRAIN, *words, "-D", "data.documents=true", *harness.RUNTIME, "-o",
                         program], expect=None)
    if done.returncode:
        wrong = done.returncode != 1 or "' op " in done.stderr
        return said, f"{done.returncode}: {done.stderr}" if wrong else None
    tensors = {name: families.weight_of(name, shape) for name, shape in shapes.items()}
    harness.write_safetensors(weights, tensors)
    data = documents.write_dataset(lab.folder, "drawn.safetensors", texts, masks)
    right = plain_model.Model(tensors, HEADS, 1, LAYERS, **plain).run(with_targets(texts, masks), rows)
    if not sum(right["counts"]):
        return said, None
    line, gradients = lab.step(program, "--load", weights, "--lr", "0", "--eval", data, "--logprobs", chances,
                               data=data, load=False)
    logprobs = list(harness.read_safetensors(chances)["logprobs"][1])
    worst, where = max(errors_of(line, gradients, logprobs, right, rows))
    return said, "" if worst < 1e-8 else f"{where} is off by {worst:.1e}"


def main():
    options = harness.draws(cases=30, seed=1)
    lab, draw, tally, refused = Lab(options.compiler, options.folder, False), random.Random(options.seed), \
        harness.Tally(), 0
    while tally.passed + tally.failed < options.cases:
        try:
            said, wrong = judge(lab, draw)
        except RuntimeError as error:
            said, wrong = "a run", str(error)
        refused += wrong is None
        if wrong is not None:
            tally.check(not wrong, f"{said} {wrong}")
    print(f"seed {options.seed}: {refused} programs were refused")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
