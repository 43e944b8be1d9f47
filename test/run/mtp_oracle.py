#!/usr/bin/env python3
"""Asks transformers for the losses and gradients that mtp.py compares with; it needs torch, so no test runs it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: mtp_oracle.py > Inputs/mtp.json
# Made with transformers 5.23.0 and torch 2.15.0, in f64 as families_oracle.py says. The layer that predicts the token
# after the next one is a LlamaModel of one layer, whose last norm is the one of the shared head.
import json, sys
import families_oracle  # first: it makes torch compute in f64
import torch, transformers
import families, mtp


def config(layers):
    s = mtp.SIZES
    return transformers.LlamaConfig(
        hidden_size=s["hidden"], num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"],
        intermediate_size=s["ffn"], vocab_size=s["vocab"], num_hidden_layers=layers, rms_norm_eps=1e-5,
        rope_theta=10000.0, tie_word_embeddings=False, attn_implementation="eager")


def main():
    n, hidden = mtp.SIZES["layers"], mtp.SIZES["hidden"]
    trunk, block = transformers.LlamaForCausalLM(config(n)), transformers.LlamaModel(config(1))
    more = {"enorm": torch.nn.RMSNorm(hidden, eps=1e-5), "hnorm": torch.nn.RMSNorm(hidden, eps=1e-5),
            "eh_proj": torch.nn.Linear(2 * hidden, hidden, bias=False)}
    named = dict(trunk.named_parameters())
    named |= {f"model.layers.{n}." + name.removeprefix("layers.0."): weight
              for name, weight in block.named_parameters() if name.startswith("layers.0.")}
    named |= {f"model.layers.{n}.{name}.weight": module.weight for name, module in more.items()}
    named[f"model.layers.{n}.shared_head.norm.weight"] = block.norm.weight
    with torch.no_grad():
        for name, weight in named.items():
            weight.copy_(torch.tensor(families.weight_of(name, list(weight.shape))[1]).reshape(weight.shape))
    rows, length = mtp.ROWS, mtp.SIZES["sequence"]
    tokens = torch.tensor(list(families.TEXT[:rows * length])).reshape(rows, -1)
    targets = torch.tensor(list(families.TEXT[1:rows * length + 1])).reshape(rows, -1)
    seen = {}
    trunk.model.norm.register_forward_pre_hook(lambda module, given: seen.update(h=given[0]))
    logits = trunk.train()(input_ids=tokens, use_cache=False).logits
    entropy = torch.nn.functional.cross_entropy
    loss = entropy(logits.flatten(0, 1), targets.flatten())
    ahead = torch.cat([tokens[:, 1:], torch.zeros_like(tokens[:, :1])], 1)
    both = torch.cat([more["enorm"](trunk.model.embed_tokens(ahead)), more["hnorm"](seen["h"])], -1)
    further = trunk.lm_head(block.train()(inputs_embeds=more["eh_proj"](both), use_cache=False).last_hidden_state)
    weighted = mtp.WEIGHT * entropy(further[:, :-1].flatten(0, 1), targets[:, 1:].flatten())
    (loss + weighted).backward()
    gradients = {name: (None, weight.grad.flatten().tolist()) for name, weight in named.items()}
    json.dump({"loss": loss.item(), "mtp": weighted.item(), "gradients": families.summary(gradients)}, sys.stdout,
              indent=1)
    print()


if __name__ == "__main__":
    main()
