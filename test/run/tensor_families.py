#!/usr/bin/env python3
"""Judges `mesh tensor = T` for tiny folders of every family: right beside one device, or refused by a sentence."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: tensor_families.py PP_COMPILE FOLDER [VARIANT..]
# The folders are those of families.py, whose numbers on one device are those of transformers; here their MLPs have even
# widths, and some have more heads. In f64 loss and gradients on T devices of each rank equal those on one device, with
# `sequence` and without. A model that is refused because of its q, k and v runs with `mesh of qkv tensor = 1`.
import math, os, sys
import families, harness

MORE = {
    "gpt_neox_4": families.neox(24, 4, 34),
    "gpt_neox_8": families.neox(48, 8, 36, use_parallel_residual=False, attention_bias=False, rotary_pct=0.3,
                                tie_word_embeddings=True),
    "qwen3_8": families.llama_like("qwen3", 32, 8, 4, 36, head_dim=8, attention_bias=True),
    "gemma2_8": families.llama_like("gemma2", 32, 8, 2, 36, head_dim=6, query_pre_attn_scalar=12, sliding_window=7,
                                    attn_logit_softcapping=1.5, final_logit_softcapping=2.0),
    "gemma3_8": families.llama_like("gemma3_text", 32, 8, 1, 36, head_dim=8, query_pre_attn_scalar=10, sliding_window=5,
                                    sliding_window_pattern=3, rope_theta=700.0, rope_local_base_freq=30.0),
    "mistral_8": families.llama_like("mistral", 32, 8, 2, 36, head_dim=6, sliding_window=7, vocab_size=257),
}
# Beside 2 devices these run on 4.
ON_FOUR = ("gpt_neox_8", "qwen3_8", "gemma2_8", "gemma3_8", "mistral_8")
# Why a family does not run on 2 devices; all others have to. A norm over all heads of q reads columns of both; one
# weight has q, k and v of unequal widths; a device has one head, whose q, k and v are one period.
THREE_HEADS = "`attention` in part `attn` has 3 heads; `tensor = 2` does not divide them"
SPLIT = "`split` in part `qkv` has no rule for `tensor = 2`: operand 0 is shard 2; of columns that are cut each device"
NORM = "has no rule for `tensor = 2`: operand 0 is shard 2"
REFUSED = ({name: THREE_HEADS for name in ("llama_llama3", "qwen3_narrow", "gpt_neox_narrow", "gpt_neox_stretched")} |
           {name: SPLIT for name in ("phi3", "phi3_longrope", "gpt_neox", "gpt_neox_tanh", "gpt_neox_in_sequence")} |
           {name: NORM for name in ("olmo2", "olmo2_biases", "olmo3", "olmo3_yarn", "olmoe", "olmoe_one")})


def difference(ours, theirs):
    """Relative to the largest of a tensor; a gradient that is all rounding, as a key's bias has it, to 1e-3."""
    if ours.keys() != theirs.keys():
        return math.inf, "names"
    return max((harness.apart(ours[name][1], theirs[name][1]) /
                max(1e-3, max(map(abs, theirs[name][1]))), name) for name in theirs)


def refused(tally, judge, variant):
    said = ""
    try:
        judge.compile(variant, "single.pipe", 1)
    except RuntimeError as error:
        said = str(error)
    good = REFUSED[variant] in said and ".pipe:" in said
    tally.check(good, f"{variant}: refused at the model's line" + ("" if good else f", got {said[-400:]}"))


def compile_whole(judge, variant, schedule, ranks, rows):
    """The file that the folder stands for, with qkv whole; with a head of keys for both devices attn, too."""
    config = families.VARIANTS[variant]
    keys = config.get("num_key_value_heads", config["num_attention_heads"])
    parts = "qkv" if keys % 2 == 0 else "qkv, attn"
    options, judge.options = judge.options, ("--emit=pipe",)
    program = judge.compile(variant, schedule, ranks)
    with open(program) as file:
        text = file.read()
    judge.options = options
    path = f"{program}.whole.pipe"
    with open(path, "w") as file:
        file.write(text.replace("  data ", f"  mesh tensor = 2, sequence = {str(rows).lower()}\n"
                                           f"  mesh of {parts} tensor = 1\n  data ", 1))
    ranked = ["-D", f"ranks={ranks}"] if ranks > 1 else []
    harness.call([judge.compiler, path, *ranked, "-D", f"microbatches={families.ROWS}", *harness.RUNTIME, "-o",
                  program])
    return program


def main():
    compiler, folder, *chosen = sys.argv[1:]
    judge, tally = families.Judge(compiler, folder), harness.Tally()
    for config in families.VARIANTS.values():
        for key in {"intermediate_size", "moe_intermediate_size", "shared_intermediate_size",
                    "n_inner"} & config.keys():
            config[key] += config[key] % 2
    families.VARIANTS.update(MORE)
    for number, variant in enumerate(families.VARIANTS):
        if chosen and variant not in chosen:
            continue
        judge.options = ()
        wanted, loss = judge.run(judge.write(variant))
        judge.options = ("-D", "mesh.tensor=2")
        if variant in REFUSED:
            refused(tally, judge, variant)
            if REFUSED[variant] not in (SPLIT, NORM):
                continue
            for name, ranks, rows in (("single.pipe", 1, False), ("single.pipe", 1, True),
                                      ("zb_v.pipe:zb_v", 2, False)):
                gradients, ours = judge.run(compile_whole(judge, variant, name, ranks, rows), "--load",
                                            os.path.join(folder, variant))
                worst, where = difference(gradients, wanted)
                good = worst <= 1e-10 and abs(ours - loss) <= 1e-12 * abs(loss)
                tally.check(good, f"{variant:20} qkv whole{', in rows' * rows:9} {name:32} loss {abs(ours - loss):.1e} "
                                  f"gradients {worst:.1e} {'' if good else where}")
            continue
        schedule = families.SCHEDULES[number % len(families.SCHEDULES)]
        most = 4 if variant in ON_FOUR else 2
        for name, ranks, devices, rows in (("single.pipe", 1, most, False), ("single.pipe", 1, most, True),
                                           (schedule, 2, 2, number % 2 == 1)):
            judge.options = ("-D", f"mesh.tensor={devices}", "-D", f"mesh.sequence={str(rows).lower()}")
            gradients, ours = judge.run(judge.compile(variant, name, ranks))
            worst, where = difference(gradients, wanted)
            good = worst <= 1e-10 and abs(ours - loss) <= 1e-12 * abs(loss)
            what = f"{variant:20} tensor {devices}{', in rows' * rows:9} {name:32}"
            tally.check(good, f"{what} loss {abs(ours - loss):.1e} gradients {worst:.1e} {'' if good else where}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
