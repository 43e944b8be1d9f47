#!/usr/bin/env python3
"""Asks transformers for the losses and gradients that families.py compares with; it needs torch, so no test runs it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: families_oracle.py > Inputs/families.json
# Made with transformers 5.23.0 and torch 2.15.0. transformers computes norms, softmax, rotary tables, logits and losses
# in f32 whatever the type of the weights is; so here every mention of f32 becomes one of f64 before models are built.
import json
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


def model_of(variant):
    config = transformers.AutoConfig.for_model(**families.VARIANTS[variant])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float64)
    with torch.no_grad():
        for name, weight in parameters(model).items():
            _, values = families.weight_of(name, list(weight.shape))
            weight.copy_(torch.tensor(values).reshape(weight.shape))
    return model


def judge(variant):
    model = model_of(variant)
    rows = torch.tensor(list(families.TEXT[:families.ROWS * families.SEQUENCE])).reshape(families.ROWS, -1)
    targets = torch.tensor(list(families.TEXT[1:families.ROWS * families.SEQUENCE + 1]))
    logits = model.train()(input_ids=rows, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(len(targets), -1), targets)
    loss.backward()
    gradients = {name: (None, weight.grad.flatten().tolist()) for name, weight in parameters(model).items()}
    return {"loss": loss.item(), "gradients": families.summary(gradients)}


def main():
    lines = [f'"{variant}": {json.dumps(judge(variant))}' for variant in families.VARIANTS]
    print("{" + ",\n ".join(lines) + "}")


if __name__ == "__main__":
    main()
