#!/usr/bin/env python3
"""Asks peft for the losses and gradients that adapters.py compares with; it needs torch, so no test runs it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: adapters_oracle.py > Inputs/adapters.json
# Made with peft 0.21.2, transformers 5.23.0 and torch 2.15.0; in f64, as families_oracle.py is.
import json
import families_oracle  # first: it makes torch compute in f64
import torch
import peft
import adapters
import families


def judge(variant):
    model = families_oracle.model_of(variant)
    lora = adapters.REFERENCES[variant]
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=lora["rank"], lora_alpha=lora["alpha"], target_modules=lora["targets"].split(","),
        use_rslora=lora.get("rslora") == "true", fan_in_fan_out=variant == "gpt2", task_type="CAUSAL_LM"),
        autocast_adapter_dtype=False)
    trained = {name.replace(".default.", "."): weight for name, weight in model.named_parameters()
               if weight.requires_grad}
    with torch.no_grad():
        for name, weight in trained.items():
            _, values = families.weight_of(name, list(weight.shape))
            weight.copy_(torch.tensor(values).reshape(weight.shape))
    rows = torch.tensor(list(families.TEXT[:families.ROWS * families.SEQUENCE])).reshape(families.ROWS, -1)
    targets = torch.tensor(list(families.TEXT[1:families.ROWS * families.SEQUENCE + 1]))
    logits = model.train()(input_ids=rows, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(len(targets), -1), targets)
    loss.backward()
    gradients = {name: (None, weight.grad.flatten().tolist()) for name, weight in trained.items()}
    return {"loss": loss.item(), "gradients": families.summary(gradients)}


def main():
    lines = [f'"{variant}": {json.dumps(judge(variant))}' for variant in adapters.REFERENCES]
    print("{" + ",\n ".join(lines) + "}")


if __name__ == "__main__":
    main()
