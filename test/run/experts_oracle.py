#!/usr/bin/env python3
"""Asks transformers and autograd for the numbers that experts.py compares with; it needs torch, so no test runs it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: experts_oracle.py NAME > Inputs/NAME.json
# Made with transformers 5.23.0 and torch 2.15.0, in f64 as families_oracle.py says. The two losses of a router are
# those of docs/experts.md, of the logits that each layer's gate makes; counts have no gradient.
import json, sys
import families_oracle  # first: it makes torch compute in f64
import torch, transformers
import experts, families


def model_of(sizes):
    more = {"mixtral": dict(num_local_experts=sizes["experts"], rope_theta=1000000.0,
                            head_dim=sizes["hidden"] // sizes["heads"]),
            "olmoe": dict(num_experts=sizes["experts"], rope_theta=10000.0, pad_token_id=None)}[sizes["model"]]
    config = transformers.AutoConfig.for_model(
        sizes["model"], hidden_size=sizes["hidden"], num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"], intermediate_size=sizes["ffn"], vocab_size=sizes["vocab"],
        num_hidden_layers=sizes["layers"], num_experts_per_tok=sizes["top"], rms_norm_eps=1e-5, **more)
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float64)
    with torch.no_grad():
        for name, (weight, part) in families_oracle.tensors(model).items():
            weight[part] = torch.tensor(families.weight_of(name, list(weight[part].shape))[1]).reshape(
                weight[part].shape)
    return model


def losses(logits, sizes):
    """Of one layer's logits, [rows, length, experts]: n/k times the mean over groups of shares times probabilities,
    and the mean of squares of the log of the sum of powers."""
    n, k = sizes["experts"], sizes["top"]
    p = logits.softmax(-1)
    chosen = torch.zeros_like(p).scatter(-1, p.topk(k, -1).indices, 1.0).detach()
    length = sizes["sequence"] * (1 if sizes["balance_over"] == "sequence" else experts.OF_A_MICROBATCH)
    shares, means = (values.reshape(-1, length, n).mean(1) for values in (chosen, p))
    return sizes["balance"] * n / k * (shares * means).sum(-1).mean(), sizes["z"] * (logits.logsumexp(-1) ** 2).mean()


def main():
    sizes, _ = experts.CASES[sys.argv[1]]
    model, seen = model_of(sizes), []
    for block in model.model.layers:
        block.mlp.gate.register_forward_hook(
            lambda gate, given, out: seen.append(torch.nn.functional.linear(given[0], gate.weight)))
    rows, length = experts.ROWS, sizes["sequence"]
    tokens = torch.tensor(list(families.TEXT[:rows * length])).reshape(rows, -1)
    targets = torch.tensor(list(families.TEXT[1:rows * length + 1]))
    logits = model.train()(input_ids=tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)
    assert len(seen) == sizes["layers"]
    both = [losses(one.reshape(rows, length, -1), sizes) for one in seen]
    balance, z = sum(one for one, _ in both), sum(one for _, one in both)
    (loss + balance + z).backward()
    gradients = {name: (None, weight.grad[part].flatten().tolist())
                 for name, (weight, part) in families_oracle.tensors(model).items()}
    json.dump({"loss": loss.item(), "balance": balance.item(), "z": z.item(),
               "gradients": families.summary(gradients)}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
