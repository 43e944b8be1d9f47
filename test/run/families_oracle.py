#!/usr/bin/env python3
"""Asks transformers for the losses and gradients that families.py compares with; it needs torch, so no test runs it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: families_oracle.py [VARIANT..] > Inputs/families.json
# Made with transformers 5.23.0, the last six with 5.24.0, and torch 2.15.0. transformers computes norms, softmax,
# rotary tables, logits and losses in f32 whatever the type of the weights is; so here every mention of f32 becomes one
# of f64 before models are built.
import json, math, sys
import torch

torch.set_default_dtype(torch.float64)
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
import transformers
import families


def parameters(model):
    """By the names in files: without `transformer.`, and the head of GPT-NeoX as `embed_out`."""
    renamed = "embed_out" if model.config.model_type == "gpt_neox" else "lm_head"
    return {name.removeprefix("transformer.").replace("lm_head", renamed): weight
            for name, weight in model.named_parameters()}


def experts_of(model):
    """In files each expert has three matrices; in memory all of them are in two tensors, the gate above what it gates.
    """
    names = MIXTRALS.get(model.config.model_type, ("mlp", "gate_proj", "up_proj", "down_proj"))
    apart = {}
    for layer, block in enumerate(model.model.layers):
        mlp = block.feed_forward if names[0] == "feed_forward" else block.mlp
        if not hasattr(mlp, "experts"):
            continue
        experts, prefix = mlp.experts, f"model.layers.{layer}.{names[0]}"
        width = experts.gate_up_proj.shape[1] // 2
        for number in range(len(experts.down_proj)):  # LongCat's others give a token itself
            name = f"{prefix}.experts.{number}."
            apart[name + names[1] + ".weight"] = (experts.gate_up_proj, (number, slice(None, width)))
            apart[name + names[2] + ".weight"] = (experts.gate_up_proj, (number, slice(width, None)))
            apart[name + names[3] + ".weight"] = (experts.down_proj, (number,))
    return apart


# What files call the tensors of all experts together, and the router.
STACKED = {".experts.gate_up_proj": ".input_linear.weight", ".experts.down_proj": ".output_linear.weight",
           ".router.weight": ".router.layer.weight"}
MIXTRALS = {family: ("block_sparse_moe", "w1", "w3", "w2")
            for family in ("mixtral", "minimax", "minimax_m2", "phimoe", "kimi_linear")}
MIXTRALS["lfm2_moe"] = ("feed_forward", "w1", "w3", "w2")


def halves_of(model, named):
    """Of Nemotron-H each expert has two matrices in files; of OLMo Hybrid and Kimi a convolution is three tensors."""
    for name, (weight, _) in list(named.items()):
        if model.config.model_type == "nemotron_h" and ".experts." in name:
            before, _, its = name.rpartition(".")
            named |= {f"{before}.{number}.{its}.weight": (weight, (number,)) for number in range(len(weight))}
            del named[name]
        config = model.config
        if config.model_type in ("olmo_hybrid", "kimi_linear") and name.endswith(".conv1d.weight"):
            keys = (config.linear_num_heads * config.linear_head_dim if config.model_type == "kimi_linear"
                    else config.linear_num_key_heads * config.linear_key_head_dim)
            runs = (slice(None, keys), slice(keys, 2 * keys), slice(2 * keys, None))
            named |= {name.replace("conv1d", f"{its}_conv1d"): (weight, (run,)) for its, run in zip("qkv", runs)}
            del named[name]
    return named


def in_files(model, name):
    if model.config.model_type == "nemotron_h":
        name = name.replace("model.", "backbone.", 1)
    if model.config.model_type == "olmo_hybrid":
        name = name.replace("input_layernorm", "attention_layer_norm")
        name = name.replace("post_attention_layernorm", "feedforward_layer_norm")
    if model.config.model_type == "mimo_v2_flash":
        name = name.replace("self_attn.sinks", "self_attn.attention_sink_bias")
    if model.config.model_type == "flint":
        name = name.replace("self_attn.sinks", "self_attn.softmax_offset")
    if model.config.model_type == "exaone_moe":
        name = name.replace("mlp.gate.e_score", "mlp.e_score")
    for memory, file in STACKED.items() if model.config.model_type.startswith("granitemoe") else ():
        name = name.replace(memory, file)
    name = name.replace(".gate.moe_statics.", ".moe_statics.").replace(".forget_gate.", ".")
    if model.config.model_type == "phimoe":
        name = name.replace(".router.", ".gate.")
    place = MIXTRALS.get(model.config.model_type, ("mlp",))[0]
    return name.replace(".mlp.", f".{place}.")


def is_bias(name):
    """Of what routers add to scores before they choose."""
    return name.endswith(("e_score_correction_bias", "mlp.expert_bias", "feed_forward.expert_bias"))


def tensors(model):
    """By the names in files: a parameter, and which part of it."""
    named = halves_of(model, {in_files(model, name): (weight, ...) for name, weight in parameters(model).items()
                              if not is_bias(name)})
    in_memory = model.config.model_type in ("gpt_oss", "llama4_text")  # as they are in files
    if in_memory or not any(name.endswith(".experts.gate_up_proj") for name in named):
        return named
    return {name: tensor for name, tensor in named.items() if ".experts." not in name} | experts_of(model)


def biases(model):
    """torch has no gradient of them."""
    return {in_files(model, name): (values, ...) for names in (model.named_buffers(), model.named_parameters())
            for name, values in names if is_bias(name)}


def watch_routers(model):
    """Fills in while the model runs, for each bias: how often its expert is chosen beyond the mean, as integers."""
    loads, modules = {}, dict(model.named_modules())

    def hook(name, experts):
        def count(router, given, made):
            counts = torch.bincount(made[2].flatten(), minlength=experts)
            loads[name] = ((experts * counts - counts.sum()) // math.gcd(experts, router.top_k)).tolist()
        return count

    for name, (bias, _) in biases(model).items():
        place = name.replace(".block_sparse_moe.", ".mlp.").replace("backbone.", "model.").rpartition(".")[0]
        block = modules[place.removesuffix(".gate").removesuffix(".moe_statics").removesuffix(".router")]
        router = block.gate if hasattr(block, "gate") else block.router
        router.register_forward_hook(hook(name, bias.numel()))
    return loads


def model_of(variant, extend=lambda model: None):
    config = transformers.AutoConfig.for_model(**families.VARIANTS[variant])
    config._experts_implementation = "eager"  # the others take no f64
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float64)
    extend(model)
    with torch.no_grad():
        for name, (weight, part) in (tensors(model) | biases(model)).items():
            _, values = families.weight_of(name, list(weight[part].shape))
            weight[part] = torch.tensor(values).reshape(weight[part].shape)
    return model


def judge(variant):
    model = model_of(variant)
    rows = torch.tensor(list(families.TEXT[:families.ROWS * families.SEQUENCE])).reshape(families.ROWS, -1)
    targets = torch.tensor(list(families.TEXT[1:families.ROWS * families.SEQUENCE + 1]))
    loads = watch_routers(model)
    model.train(model.config.model_type != "phimoe")  # whose router draws at random in training
    logits = model(input_ids=rows, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(len(targets), -1), targets)
    loss.backward()
    gradients = {name: (None, weight.grad[part].flatten().tolist()) for name, (weight, part) in tensors(model).items()}
    gradients |= {name: (None, load) for name, load in loads.items()}
    return {"loss": loss.item(), "gradients": families.summary(gradients)}


def main():
    lines = [f'"{variant}": {json.dumps(judge(variant))}' for variant in sys.argv[1:] or families.VARIANTS]
    print("{" + ",\n ".join(lines) + "}")


if __name__ == "__main__":
    main()
