#!/usr/bin/env python3
"""Asks transformers for the loss and gradients that sinks.py compares with; it needs torch, so no test runs it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: sinks_oracle.py > Inputs/sinks.json; sinks_oracle.py gpt_oss > Inputs/gpt_oss.json
# Made with transformers 5.23.0 and torch 2.15.0, in f64 as families_oracle.py says. The model is a Llama whose
# attention is that of GPT-OSS, with a sink for each head, and sees a window of keys in some layers.
import json, sys
import families_oracle  # first: it makes torch compute in f64
import torch, transformers
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
import families, sinks


def attend(module, q, k, v, mask, **more):
    """The window of the layer in the place of the mask."""
    place = torch.arange(q.shape[2])
    behind, window = place[:, None] - place[None, :], sinks.WINDOWS[module.layer_idx]
    hidden = (behind < 0) | (behind >= (window or len(place)))
    mask = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)[None, None]
    return modeling_gpt_oss.eager_attention_forward(module, q, k, v, mask, **more)


def llama(s):
    modeling_llama.eager_attention_forward = attend
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=s["hidden"], num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"],
        intermediate_size=s["ffn"], vocab_size=s["vocab"], num_hidden_layers=s["layers"], rms_norm_eps=1e-5,
        rope_theta=10000.0, tie_word_embeddings=False, attn_implementation="eager"))
    for layer in model.model.layers:
        layer.self_attn.sinks = torch.nn.Parameter(torch.empty(s["heads"]))
    return model


def gpt_oss(s):
    """As it is but for the experts."""
    yarn = sinks.YARN
    config = transformers.GptOssConfig(
        hidden_size=s["hidden"], num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"],
        head_dim=s["hidden"] // s["heads"], intermediate_size=s["ffn"], vocab_size=s["vocab"],
        num_hidden_layers=s["layers"], sliding_window=max(sinks.WINDOWS), max_position_embeddings=64,
        num_local_experts=1, num_experts_per_tok=1, attn_implementation="eager",
        layer_types=["sliding_attention" if window else "full_attention" for window in sinks.WINDOWS],
        rope_parameters=dict(rope_type="yarn", rope_theta=yarn["theta"], factor=yarn["factor"], truncate=False,
                             beta_fast=yarn["fast"], beta_slow=yarn["slow"],
                             original_max_position_embeddings=yarn["original"]))
    model = transformers.GptOssForCausalLM(config)
    dense = transformers.LlamaConfig(hidden_size=s["hidden"], intermediate_size=s["ffn"], num_attention_heads=1)

    class Dense(modeling_llama.LlamaMLP):
        def forward(self, x):
            return super().forward(x), None

    for layer in model.model.layers:
        layer.mlp = Dense(dense)
    return model


def main():
    s = sinks.SIZES
    model = gpt_oss(s) if sys.argv[1:] == ["gpt_oss"] else llama(s)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.tensor(families.weight_of(name, list(weight.shape))[1]).reshape(weight.shape))
    rows, length = sinks.ROWS, s["sequence"]
    tokens = torch.tensor(list(families.TEXT[:rows * length])).reshape(rows, -1)
    targets = torch.tensor(list(families.TEXT[1:rows * length + 1]))
    logits = model.train()(input_ids=tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)
    loss.backward()
    gradients = {name: (None, weight.grad.flatten().tolist()) for name, weight in model.named_parameters()}
    json.dump({"loss": loss.item(), "gradients": families.summary(gradients)}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
