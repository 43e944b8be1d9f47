#!/usr/bin/env python3
"""Draws schedules, models and meshes together, and judges each by execution against one rank with whole weights."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: compositions.py PP_COMPILE FOLDER [--cases N] [--seed S]
# Drawn are a schedule with its options, ranks and microbatches; a model with windows, sinks, biases, head norms,
# dropout or a tied table, with experts and the losses of their routers, with latent attention, scans, convolutions or
# formulas, or a loss of its own; sizes that need not divide; data, context, attention, tensor, sequence, expert, again,
# zero and order of the mesh; frozen parts; mlp chunks; threads, MPI or the emulated device. In f64 gradients, losses,
# and weights after three steps are those of `schedule=single` on sequences in the same order. A program that does not
# compile has to say why at a place; its sentence, without numbers, is counted at the end.
import collections, os, random, re, sys
import formulas, harness, losses
from gradients import Runner, agreement

SCHEDULES = ("gpipe", "1f1b", "gpipe_offload", "bpipe", "1f1b_recompute", "1f1b_vocabulary", "1f1b_overlap",
             "interleaved", "looped_bfs",
             "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "dualpipe", "dualpipe_v", "hanayo", "weipipe",
             "weipipe_prefetch", "weipipe_naive", "wzb1", "wzb2", "tawpipe", "fsdp", "data_parallel", "zero1", "zero2",
             "replicated_1f1b", "replicated_zero1", "terapipe", "slimpipe", "slimpipe/exchange=true",
             "slimpipe/vocabulary=true", "slimpipe_interleaved/exchange=true", "ring_attention",
             "ring_attention_zigzag/sharded=true", "helixpipe", "helixpipe/forget=true", "helixpipe/ship=false")
MODELS = {
    "llama": ({}, {"qkv_bias": "true", "head_norms": "true"}, {"windows": "[0,5,0,3]"}, {"sinks": "true"},
              {"out_bias": "true", "mlp_bias": "true", "tied": "true"}),
    "gpt2": ({}, {"embed_rate": 0.2, "residual_rate": 0.1, "attention_rate": 0.3},
             {"tied": "false", "depths": "[1,2,3,4]"}),
    "gemma": ({}, {"score_cap": 2.5, "logit_cap": 3.0, "windows": "[4,0,6,0]"}),
    "encoder_decoder": ({},), "mixtral": ({},), "qwen3_moe": ({},), "olmoe": ({},), "glm4_moe": ({},),
    "latent": ({}, {"q_latent": 0, "style": "half"}, {"value": 3}), "delta": ({}, {"form": "rows"}),
    "mamba": ({}, {"groups": 2}), "lfm2": ({}, {"taps": 4}),
    # Of formulas.py and losses.py.
    **{name: ({},) for name in ("relu2", "gated", "ngpt", "capped", "bonus", "softened")},
}
SCANS = ("delta", "mamba", "lfm2")
MIXTURES = ("mixtral", "qwen3_moe", "olmoe", "glm4_moe", "latent", "delta")
FROZEN = {"llama": ("embed", "mlp", "attn,norm"), "gemma": ("embed", "mlp", "attn,norm"),
          "gpt2": ("wte", "mlp,ln_", "attn")}


def draw_experts(draw, model, schedule, context, data):
    """What the model has of experts, and over how many devices they are cut."""
    experts = draw.choice((4, 6, 8))
    cuts = draw.random() < 0.7
    counts = [count for count in range(1, 9) if experts % count == 0 and (
        context % count == 0 or count % context == 0 and data % (count // context) == 0)]
    slices = "slim" in schedule or schedule in ("terapipe", "ring_attention", "ring_attention_zigzag/sharded=true")
    shared = {"experts": experts, "top": draw.randint(2, experts), "balance": 0 if slices else draw.choice((0, 0.5)),
              "z": 0 if model == "glm4_moe" else draw.choice((0, 0.1))}
    over = draw.choice(("sequence", "microbatch"))
    return {"mesh.expert": draw.choice(counts[1:] or counts)} if cuts else {}, shared | {"balance_over": over}


def draw_case(draw):
    """Defines of the program, those that its reference shares, and how it runs."""
    model = draw.choice(("llama", "llama", "gpt2", "gpt2", *MODELS))
    ranks, tensor, data = draw.choice((1, 2, 2, 3, 4)), draw.choice((1, 2, 2, 2, 3, 4)), draw.choice((1, 1, 2, 3))
    context = draw.choice((1, 1, 2, 2, 3))
    if model in SCANS:  # whose columns are cut in few ways, and which context does not cut yet
        context, tensor = 1, draw.choice((1, 1, 1, tensor))
    swaps = context > 1 and draw.random() < 0.5
    share = tensor * (context if swaps else 1)
    heads = draw.choice([count for count in (2, 3, 4, 6, 8, 9, 12) if count % share == 0 or draw.random() < 0.05])
    layers = 2 * ranks if model == "encoder_decoder" else 4 if ranks == 3 else draw.choice((4, 8))
    microbatches = ranks * draw.choice((1, 2, 2, 2)) if ranks > 1 else draw.choice((1, 3))
    shared = {"model": model, "layers": 12 if ranks == 3 else layers, "hidden": heads * draw.choice((4, 8)),
              "heads": heads, "ffn": 12 * draw.choice((2, 3)), "vocab": draw.choice((256, 257, 263)),
              "sequence": 12 * draw.choice((1, 2)), "microbatches": microbatches, "precision": "f64"}
    if model in ("llama", "gemma", "lfm2", *MIXTURES):
        shared["kv_heads"] = draw.choice([count for count in (1, 2, 3, 4, 6) if heads % count == 0])
    options = draw.choice(MODELS[model])
    if "windows" in options or "depths" in options:
        shared["layers"] = 4 if ranks != 3 else 12
        options = {name: "[" + ",".join(value.strip("[]").split(",") * (shared["layers"] // 4)) + "]"
                   if name in ("windows", "depths") else value for name, value in options.items()}
    shared |= {"model." + name: value for name, value in options.items()}
    if draw.random() < 0.15 and model in FROZEN:
        shared["freeze"] = draw.choice(FROZEN[model])
    own = {"schedule": draw.choice(SCHEDULES) if ranks > 1 else "single", "ranks": ranks,
           "microbatch": draw.choice((1, 2, 3)), "mesh.data": data, "mesh.tensor": tensor,
           "mesh.context": context}
    if draw.random() < 0.2:
        own["mlp_chunks"] = 2
    if tensor > 1 and draw.random() < 0.6:
        own["mesh.sequence"] = "true"
    if swaps:
        own["mesh.attention"] = "heads"
    if model in MIXTURES:
        cut, experts = draw_experts(draw, model, own["schedule"], context, data)
        own, shared = own | cut, shared | experts
    if tensor > 1 or context > 1:
        own["mesh.again"] = draw.choice(("nothing", "inputs", "all"))
    if data * context > 1 and draw.random() < 0.4:
        own["mesh.zero"] = draw.choice((1, 2, 2))
    if draw.random() < 0.2:
        words = ["tensor", "context", "data", "pipeline"]
        draw.shuffle(words)
        own["mesh.order"] = " ".join(words)
    modes = [("threads", "rendezvous")] * 3 + [("mpi", "rendezvous")]
    modes += [("streams/3", "rendezvous")] * bool(harness.RUNTIME)
    return own, shared, draw.choice(modes)


def reason(text):
    """The sentence of an error without its numbers and names."""
    said = re.search(r"error: (.*)", text)
    return re.sub(r"\d+", "N", re.sub(r"`[^`]*`", "`..`", said.group(1)))[:160] if said else text.strip()[-160:]


def main():
    arguments = harness.draws(cases=30, seed=1)
    runner, tally, refused = Runner(arguments.compiler, arguments.folder), harness.Tally(), collections.Counter()
    losses.write_models(arguments.folder)
    runner.file = harness.add_models(arguments.folder, os.path.join(arguments.folder, "losses.pipe"), formulas.MODELS)
    draw = random.Random(arguments.seed)
    for number in range(arguments.cases):
        own, shared, (transport, sends) = draw_case(draw)
        what = " ".join(f"{name}={value}" for name, value in (own | shared).items())
        try:
            program = runner.compile(**own | shared)
        except RuntimeError as error:
            why = str(error)
            tally.check(re.search(r"\.pipe:\d+:\d+: error: |<command line>:\d+:\d+: error: ", why) is not None
                        and "fault of pp-compile" not in why, f"{number} refused: {what}: {reason(why)}")
            refused[reason(why)] += 1
            continue
        rows = own["microbatch"] * own["mesh.data"]
        reference = runner.compile(**shared | dict(schedule="single", ranks=1, microbatch=rows))
        devices = own["ranks"] * own["mesh.data"] * own["mesh.tensor"] * own["mesh.context"]
        try:
            ours = runner.run(program, devices, transport, sends)
            wanted = runner.run(reference, 1, "threads", "rendezvous")
        except RuntimeError as error:
            tally.check(False, f"{number} {what} {transport}: {str(error)[-400:]}")
            continue
        good, far = agreement(ours, wanted)
        tally.check(good, f"{number} {what} {transport}: {far}")
        runner.clean(program)
        runner.clean(reference)
    for sentence, count in refused.most_common():
        print(f"refused {count} times: {sentence}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
