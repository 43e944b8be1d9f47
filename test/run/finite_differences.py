#!/usr/bin/env python3
"""Judges gradients in f64 by finite differences of the loss: a random unit direction in every kind of weight."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: finite_differences.py PP_COMPILE FOLDER [CASE..]
# A five-point formula with step 1e-3, or less where norms behind linears bend a loss more; the error is taken over the
# root mean square of the gradient (docs/derivatives.md). The weights of a kind, one of each layer and expert, move at
# once: what is wrong in one of them is wrong in the sum, too.
import collections, math, os, random, re, sys
import harness

STEP, TOLERANCE = 1e-3, 1e-8
# Of cases or models: parts of a step, and the tolerance. Formulas with limits bend where an element meets one; a loss's
# last digits weigh more in a small step.
STEPS = {"delta": (8, TOLERANCE), "channels": (8, TOLERANCE), "gemma": (4, TOLERANCE),
         "gated": (16, 10 * TOLERANCE), "many": (2, TOLERANCE), "mixture": (16, 10 * TOLERANCE)}
SIZES = dict(schedule="single", microbatches=2, microbatch=1, sequence=9, layers=2, hidden=16, heads=4, kv_heads=2,
             ffn=24, vocab=256, context=16, precision="f64")


def judge(compiler, folder, tally, model, train=harness.TRAIN, step=STEP, tolerance=TOLERANCE, **sizes):
    text, generator = harness.write_text(folder), random.Random(7)
    program = harness.compile_train(compiler, os.path.join(folder, model), SIZES | sizes | dict(model=model), train)
    base, grads, log = (os.path.join(folder, model + end) for end in (".safetensors", ".grads", ".jsonl"))

    def loss(weights, *more):
        harness.write_safetensors(base, weights)
        harness.call([program, "--in-process", "--data", text, "--steps", "1", "--load", base, "--log", log, *more])
        line = harness.read_log(log)[0]
        return line["loss"] + sum(line.get(name, 0) for name in ("mtp", "z_loss", "balance", "z"))

    harness.call([program, "--in-process", "--data", text, "--steps", "1", "--grads", grads])
    shapes = {name: shape for name, (shape, _) in harness.read_safetensors(grads).items()}
    weights = {}
    for name, shape in shapes.items():
        count = math.prod(shape)
        middle = 1.0 if len(shape) == 1 and not name.endswith("bias") else 0.0
        weights[name] = (shape, [middle + generator.gauss(0, 0.2) for _ in range(count)])
    loss(weights, "--grads", grads)
    if "model.capacity" in sizes:
        dropped = harness.read_log(log)[0]["dropped"]
        tally.check(0 < dropped < 0.5, f"{model:5} drops {dropped:.3f} of all choices")
    gradients = harness.read_safetensors(grads)
    kinds = collections.defaultdict(list)
    for name in weights:
        if not name.endswith("e_score_correction_bias"):  # what stands for its gradient are counts (steers.py)
            kinds[re.sub(r"\.\d+\.", ".*.", name)].append(name)
    for kind, names in kinds.items():
        gradient = [g for name in names for g in gradients[name][1]]
        rms = (sum(g * g for g in gradient) / len(gradient)) ** 0.5
        direction = [generator.gauss(0, 1) for _ in gradient]
        norm = sum(d * d for d in direction) ** 0.5
        direction = [d / norm for d in direction]

        def at(e):
            moves, moved = iter(direction), {}
            for name in names:
                shape, values = weights[name]
                moved[name] = shape, [w + e * step * next(moves) for w in values]
            return loss(weights | moved)

        slope = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)
        exact = sum(g * d for g, d in zip(gradient, direction))
        error = abs(slope - exact) / (rms or 1)  # no token came to an expert: all of it is 0
        said = " ".join(f"{option} {value}" for option, value in sizes.items())
        tally.check(error <= tolerance, f"{model:5} {said} {kind:48} error over rms {error:.1e}")


# By name: the model, and its settings that differ from SIZES.
CASES = {
    "llama": ("llama", {}),
    "gpt2": ("gpt2", {}),
    "windows": ("llama", {"model.windows": "[4, 2]"}),
    "gates": ("llama", {"model.z_loss": 0.05, "model.plus": 1, "model.activation": "gelu", "model.embed_scale": 3}),
    "gemma": ("gemma", {"model.windows": "[4, 0]", "model.qk": "rms", "model.score_cap": 2,
                        "model.logit_cap": 3, "model.z_loss": 0.3, "model.score_scale": 0.3,
                        "model.local_rope": "[1.5, 0.7, 0.1]"}),
    "olmo": ("olmo", {"model.windows": "[0, 3]"}),
    "sinks": ("llama", {"model.sinks": "true", "model.windows": "[3, 0]"}),
    "fused": ("llama", {"model.fused": "true", "model.turns": "[1, 0]", "model.rope": "[1.5, 0.7]"}),
    "depths": ("gpt2", {"model.depths": "[1, 2]"}),
    "dropout": ("gpt2", {"model.embed_rate": 0.1, "model.residual_rate": 0.3, "model.attention_rate": 0.2}),
    # Losses of routers as large as that of the tokens; counts of choices do not change in so small steps.
    "mixtral": ("mixtral", {"layers": 1, "experts": 5, "top": 3, "balance": 2, "z": 0.3}),
    "olmoe": ("olmoe", {"layers": 1, "experts": 4, "top": 2, "balance": 2, "z": 0.3, "balance_over": "microbatch",
                        "microbatch": 2}),
    "glm4_moe": ("glm4_moe", {"experts": 6, "top": 3, "balance": 2, "model.groups": 3, "model.top_groups": 2,
                              "model.qk_norm": "true", "model.scale": 2.5}),
    # Limits that some gates feel.
    "biased": ("mixture", {"model.experts": 5, "model.top": 3, "model.balance": 2, "model.z": 0.3,
                           "model.biased": "true", "model.gate_limit": 0.5, "model.sinks": "all",
                           "model.vocab": 256}),
    # Values narrower than keys, sinks and more heads of keys in the layer with a window; queries of the other one grow.
    "values": ("mixture", {"model.experts": 5, "model.top": 3, "model.balance": 2, "model.value_dim": 3,
                           "model.head_dim": 6, "model.value_scale": 0.7, "model.score_scale": 0.4,
                           "model.windows": "[3, 0]", "model.sinks": "windows", "model.kv_heads": 1,
                           "model.local_kv_heads": 2, "model.turns": "[1, 0]", "model.growth": "[0.3, 3, 1]",
                           "model.vocab": 256}),
    # A key that all heads share, and values narrower or wider than keys.
    "latent": ("latent", {"experts": 6, "top": 3, "balance": 2, "model.q_latent": 7, "model.latent": 5,
                          "model.value": 3, "model.temperature": 1.3}),
    "latent_wide": ("latent", {"experts": 6, "top": 3, "layers": 1, "model.q_latent": 0, "model.value": 11,
                               "model.style": "half", "model.bias": "true"}),
    # Experts that give a token itself; scans whose decays differ from column to column, over a border of chunks; two
    # choices whose softmax has a bound.
    "identity": ("latent", {"experts": 4, "top": 3, "balance": 2, "model.twice": "true", "model.identity": 3,
                            "model.score": "softmax", "model.q_factor": 1.3, "model.c_factor": 0.7}),
    "channels": ("latent", {"model.plain": "[1]", "model.scans": "[1, 0]", "model.scan_heads": 3, "model.scan_dim": 5,
                            "model.turns": "false", "sequence": 37}),
    "sparsemixer": ("mixture", {"model.experts": 5, "model.top": 2, "model.score": "sparsemixer", "model.jitter": 0.3,
                                "model.normed": "layer", "model.vocab": 256}),
    # Two heads of v that share one of q and k, and one; a chunk of a scan ends behind row 32. Without experts, among
    # which a small step would choose others.
    "delta": ("delta", {"layers": 4, "model.keys": 2, "model.values": 4, "model.key_dim": 5, "model.value_dim": 7,
                        "model.head_dim": 6, "sequence": 37, "experts": 0}),
    "delta_apart": ("delta", {"layers": 1, "model.keys": 1, "model.values": 1, "model.key_dim": 8,
                              "model.value_dim": 3, "model.head_dim": 6, "model.form": "rows", "experts": 0}),
    "mamba": ("mamba", {"model.ssm_heads": 6, "model.ssm_dim": 5, "model.groups": 3, "model.state": 4,
                        "model.low": 0.1, "model.ssm_bias": "true", "sequence": 37}),
    "lfm2": ("lfm2", {"model.shorts": "[1, 0]", "model.bias": "true"}),
    "lfm2_moe": ("lfm2", {"model.shorts": "[1, 0]", "model.plain": "[0]", "experts": 5, "top": 3, "model.added": 0.3,
                          "model.scale": 1.5}),
    "lightning": ("mixtral", {"experts": 4, "top": 4, "model.normed": "true", "model.depths": "[1, 0]",
                              "model.lightning_factors": "[1.5, 0.7]", "model.full_factors": "[1.3, 0.8]",
                              "model.mlp_factors": "[0.9, 1.2]", "sequence": 37}),
    # On two devices, each with half of the experts, some choices are dropped: no run on one device has these gradients.
    "capacity": ("mixtral", {"layers": 1, "experts": 6, "top": 3, "balance": 2, "z": 0.3, "mesh.data": 2,
                             "mesh.expert": 2, "model.capacity": 1}),
    "many_readers": ("many_readers", {}),
    "two_makers": ("two_makers", {}),
    "relu2": ("relu2", {"layers": 1}),
    "gated": ("gated", {"layers": 1}),
    "ngpt": ("ngpt", {"layers": 1}),
    "many": ("many", {"layers": 1}),
    "further": ("llama_mtp", {"model.z_loss": 0.1}),
}


def main():
    compiler, folder, *chosen = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    tally = harness.Tally()
    train = harness.add_models(folder, *(os.path.join(harness.ROOT, file) for file in (
        "stdlib/models/mixture.pipe", "test/run/Inputs/skips.pipe", "test/run/Inputs/formulas.pipe",
        "stdlib/models/llama_mtp.pipe")))
    for name in chosen or CASES:
        model, sizes = CASES[name]
        parts, tolerance = STEPS.get(name, STEPS.get(model, (1, TOLERANCE)))
        judge(compiler, folder, tally, model, train, STEP / parts, tolerance, **sizes)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
