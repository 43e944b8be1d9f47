#!/usr/bin/env python3
"""Judges models that predict further tokens: llama_mtp.pipe, llama_mtp2.pipe, and folders with a further layer."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: mtp.py PP_COMPILE FOLDER
# Inputs/mtp.json and mtp2.json hold what mtp_oracle.py has from transformers for the same weights and rows, in f64: by
# kind of weight the norm of the gradient, and its product with a direction. mtp_folders.json has the same of folders,
# by weight, those of a layer's experts together.
import json, math, os, re, sys
import families, harness

SIZES = dict(layers=4, hidden=20, heads=2, kv_heads=1, ffn=33, vocab=256, sequence=18)
ROWS, WEIGHT = 8, 0.3
# The further layers are in the last stage, with the loss.
SCHEDULES = (dict(schedule="single", ranks=1), dict(schedule="1f1b"), dict(schedule="zb_v", ranks=2),
             dict(schedule="weipipe_interleave"), dict(schedule="fsdp"), dict(schedule="helixpipe"),
             dict(schedule="slimpipe", slices=4), dict(schedule="megatron", layout="Et|tt|t|mL"),
             dict(schedule="interleaved", ranks=2), dict(schedule="1f1b_recompute"),
             dict(schedule="1f1b", microbatches=2, **{"mesh.data": 2}),
             dict(schedule="weipipe_interleave", ranks=2, microbatches=2, **{"mesh.data": 2}),
             dict(schedule="1f1b", ranks=2, **{"mesh.context": 3}))
TWICE = (dict(schedule="single", ranks=1), dict(schedule="1f1b"), dict(schedule="zb_v", ranks=2),
         dict(schedule="weipipe_interleave"), dict(schedule="fsdp"), dict(schedule="slimpipe", slices=4),
         dict(schedule="megatron", layout="Et|tt|t|m*2L"),
         dict(schedule="zb_v", ranks=2, **{"mesh.context": 3}))
TOLERANCE = 1e-9

# Folders with a further layer: config.json, options, and schedules on two ranks with what they need on a mesh.
EVEN = dict(moe_intermediate_size=10, n_routed_experts=6, num_experts_per_tok=3, num_nextn_predict_layers=1)
WHOLE = ("mesh.tensor=2", "mesh.mtp.tensor=1", "mesh.head.tensor=1")
FOLDERS = {
    "glm4_moe": (
        families.llama_like("glm4_moe", 24, 4, 2, 22, head_dim=8, n_group=3, topk_group=2, n_shared_experts=2,
                            routed_scaling_factor=2.5, partial_rotary_factor=0.5, use_qk_norm=True, attention_bias=True,
                            **EVEN), (),
        (("1f1b.pipe", ()),
         ("slimpipe.pipe", ("slices=2", "vocabulary=false")),
         ("1f1b.pipe", ("mesh.data=2", "mesh.expert=2")),
         ("1f1b.pipe", (*WHOLE, "mesh.sequence=true")))),
    "deepseek_v3": (
        families.latent_like("deepseek_v3", 20, 4, 34, 7, 5, 6, 4, 9, n_group=3, topk_group=2, n_shared_experts=1,
                             first_k_dense_replace=1, rope_parameters=dict(
                                 rope_type="yarn", rope_theta=500.0, factor=4.0, mscale=0.7, mscale_all_dim=1.2,
                                 original_max_position_embeddings=16), **EVEN), ("model.mtp_normed=false",),
        (("zb_v.pipe:zb_v", ()), ("1f1b.pipe", ("mesh.data=2", "mesh.zero=1")),
         ("1f1b.pipe", (*WHOLE, "mesh.pre.tensor=1")))),
    "glm4_moe_lite": (families.VARIANTS["glm4_moe_lite"], ("model.mtp_weight=0.1",), ())}


def judge(compiler, folder, name, schedules, sizes, train=harness.TRAIN):
    """Runs a step of every schedule with the weights of the oracle, and compares with its losses and gradients."""
    tally = harness.Tally()
    text, weights = os.path.join(folder, "text.txt"), os.path.join(folder, "weights.safetensors")
    with open(text, "wb") as file:
        file.write(families.TEXT)
    with open(os.path.join(harness.ROOT, "test", "run", "Inputs", name + ".json")) as file:
        expected = json.load(file)
    for number, schedule in enumerate(schedules):
        defines = sizes | dict(precision="f64", microbatch=2, microbatches=4, ranks=4) | schedule
        program = harness.compile_train(compiler, os.path.join(folder, f"program{number}"), defines, train)
        grads, log = program + ".grads", program + ".jsonl"
        run = [*harness.launch(program, defines["ranks"], "threads"), "--data", text, "--grads", grads, "--log", log]
        if number == 0:
            harness.call([*run, "--steps", "1"])
            shapes = {name: shape for name, (shape, _) in harness.read_safetensors(grads).items()}
            harness.write_safetensors(weights, {name: families.weight_of(name, shape)
                                                for name, shape in shapes.items()})
        harness.call([*run, "--steps", "1", "--load", weights])
        line = harness.read_log(log)[0]
        for key in expected.keys() - {"gradients"}:
            error = abs(line[key] - expected[key])
            tally.check(error <= 1e-12, f"{schedule} {key} {line[key]} off by {error:.1e}")
        ours = families.summary(harness.read_safetensors(grads))
        same = ours.keys() == expected["gradients"].keys()
        worst = max((abs(a - b) / max(wanted[0], 1e-30), name) for name, wanted in expected["gradients"].items()
                    for a, b in zip(ours.get(name, [float("inf")] * 2), wanted))
        tally.check(same and worst[0] <= TOLERANCE, f"{schedule} gradients off by {worst[0]:.1e} in {worst[1]}")
    return tally.close()


def by_weight(gradients):
    """families.summary of each weight, with the experts of a layer together."""
    weights = {}
    for name, gradient in gradients.items():
        weights.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.*.", name), {})[name] = gradient
    return {name: list(*families.summary(its).values()) for name, its in weights.items()}


class Folders(families.Judge):
    """Programs of FOLDERS that train the further layer."""

    def compile(self, variant, schedule, ranks, place=None, more=()):
        fields, options, _ = FOLDERS[variant]
        if not place:
            place = os.path.join(self.folder, variant)
            os.makedirs(place, exist_ok=True)
            with open(os.path.join(place, "config.json"), "w") as file:
                json.dump(fields | dict(dtype="float64"), file, indent=1)
        program = os.path.join(self.folder, f"{variant}.{ranks}")
        rows = families.ROWS // 2 if "mesh.data=2" in more else families.ROWS
        words = [f"microbatches={rows}", f"data.sequence={families.SEQUENCE}", "model.mtp=1", *options, *more]
        words += [f"ranks={ranks}"] if ranks > 1 else []
        harness.call([self.compiler, f"--from-hf={place}", f"--schedule=std/{schedule}",
                      *(f"-D{word}" for word in words), *harness.RUNTIME, "-o", program])
        return program

    def judge(self, tally, variant, expected):
        programs = [("single", self.write(variant))]
        for schedule, more in FOLDERS[variant][2]:
            programs.append((" ".join((schedule, *more)), (schedule, more)))
        for name, program in programs:
            program = program if isinstance(program, str) else self.compile(variant, program[0], 2, more=program[1])
            gradients, loss = self.run(program)
            ours = {"loss": loss, "mtp": harness.read_log(program + ".jsonl")[0]["mtp"]}
            drift = max(abs(ours[key] - expected[key]) / abs(expected[key]) for key in ours)
            ours, wanted = by_weight(gradients), expected["gradients"]
            worst = max((abs(a - b) / max(theirs[0], 1e-3), name) for name, theirs in wanted.items()
                        for a, b in zip(ours.get(name, [math.inf] * 2), theirs))
            tally.check(drift <= 1e-12 and worst[0] <= 1e-11 and ours.keys() == wanted.keys(),
                        f"{variant:14} {name:60} losses {drift:.1e} gradients {worst[0]:.1e} in {worst[1]}")

    def refusals(self, tally, variant):
        """A folder without the further layer, or one that has several."""
        place, lost = os.path.join(self.folder, variant), f"model.layers.{families.LAYERS}.eh_proj.weight"
        path, program = os.path.join(place, "model.safetensors"), self.write(variant)
        weights = harness.read_safetensors(path)
        harness.write_safetensors(path, {name: tensor for name, tensor in weights.items() if name != lost})
        done = harness.call([program, "--in-process", "--data", self.text, "--steps", "1"], expect=1)
        tally.check(f"lacks `{lost}` of this model" in done.stderr, f"without a tensor: {done.stderr}")
        with open(os.path.join(place, "config.json"), "w") as file:
            json.dump(FOLDERS[variant][0] | dict(dtype="float64", num_nextn_predict_layers=2), file, indent=1)
        for mtp, code in ((0, 0), (1, 2)):
            done = harness.call([self.compiler, f"--from-hf={place}", "--schedule=std/single.pipe", "-Dmicrobatches=1",
                                 f"-Dmodel.mtp={mtp}", "--emit=actions"], expect=code)
            good = ("trains one further layer" in done.stderr) == bool(mtp)
            tally.check(good, f"two layers, mtp {mtp}: {done.stderr}")


def judge_folders(compiler, folder):
    """Further layers of published folders, against numbers of transformers' own layers."""
    tally, folders = harness.Tally(), Folders(compiler, os.path.join(folder, "folders"))
    with open(os.path.join(harness.ROOT, "test", "run", "Inputs", "mtp_folders.json")) as file:
        expected = json.load(file)
    for variant in FOLDERS:
        folders.judge(tally, variant, expected[variant])
    folders.return_trip(tally, "deepseek_v3", "zb_v.pipe:zb_v")
    folders.refusals(tally, "glm4_moe")
    return tally.close()


def main():
    compiler, folder = sys.argv[1:3]
    os.makedirs(folder, exist_ok=True)
    models = os.path.join(harness.ROOT, "stdlib", "models")
    train = harness.add_models(folder, os.path.join(models, "llama_mtp.pipe"), os.path.join(models, "llama_mtp2.pipe"))
    status = judge(compiler, folder, "mtp", SCHEDULES, SIZES | dict(model="llama_mtp"), train)
    status = judge(compiler, folder, "mtp2", TWICE, SIZES | dict(model="llama_mtp2"), train) or status
    return judge_folders(compiler, folder) or status


if __name__ == "__main__":
    sys.exit(main())
