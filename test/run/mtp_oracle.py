#!/usr/bin/env python3
"""Asks transformers for the losses and gradients that mtp.py compares with; it needs torch, so no test runs it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: mtp_oracle.py 1 > Inputs/mtp.json; mtp_oracle.py 2 > Inputs/mtp2.json
#        mtp_oracle.py folders > Inputs/mtp_folders.json
# Made with transformers 5.23.0 and torch 2.15.0, in f64 as families_oracle.py says. The layer that predicts the token
# after the next one is a LlamaModel of one layer, whose last norm is the one of the shared head; behind it stands the
# layer that predicts the token after that one. Of folders, with transformers 5.24.0: the further layer is one of the
# family's own decoder layers, with the number behind the last one, and so are its norms. It gets the last layer's mask
# and positions.
import copy, json, sys
import families_oracle  # first: it makes torch compute in f64
import torch, transformers
import families, mtp


def config(layers):
    s = mtp.SIZES
    return transformers.LlamaConfig(
        hidden_size=s["hidden"], num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"],
        intermediate_size=s["ffn"], vocab_size=s["vocab"], num_hidden_layers=layers, rms_norm_eps=1e-5,
        rope_theta=10000.0, tie_word_embeddings=False, attn_implementation="eager")


class Further:
    """A further layer: its modules, and the names that its weights have in files."""

    def __init__(self, hidden, number):
        self.block = transformers.LlamaModel(config(1))
        self.modules = {"enorm": torch.nn.RMSNorm(hidden, eps=1e-5), "hnorm": torch.nn.RMSNorm(hidden, eps=1e-5),
                        "eh_proj": torch.nn.Linear(2 * hidden, hidden, bias=False)}
        prefix = f"model.layers.{number}."
        self.named = {prefix + name.removeprefix("layers.0."): weight
                      for name, weight in self.block.named_parameters() if name.startswith("layers.0.")}
        self.named |= {f"{prefix}{name}.weight": module.weight for name, module in self.modules.items()}
        self.named[prefix + "shared_head.norm.weight"] = self.block.norm.weight

    def run(self, h, embedded):
        """What the layer makes of h, before its norm and behind it."""
        seen = {}
        self.block.norm.register_forward_pre_hook(lambda module, given: seen.update(h=given[0]))
        both = torch.cat([self.modules["enorm"](embedded), self.modules["hnorm"](h)], -1)
        made = self.block.train()(inputs_embeds=self.modules["eh_proj"](both), use_cache=False).last_hidden_state
        return seen["h"], made


def add_further(model):
    """Behind the layers, which the model does not run: it runs as many as its config has."""
    config, norm = copy.deepcopy(model.config), type(model.model.norm)
    hidden, eps = config.hidden_size, config.rms_norm_eps
    if hasattr(config, "mlp_layer_types"):
        config.mlp_layer_types = [*config.mlp_layer_types, "sparse"]
    layer = type(model.model.layers[-1])(config, config.num_hidden_layers)
    layer.enorm, layer.hnorm = norm(hidden, eps), norm(hidden, eps)
    layer.eh_proj = torch.nn.Linear(2 * hidden, hidden, bias=False)
    layer.embed_tokens = torch.nn.Embedding(config.vocab_size, hidden, config.pad_token_id)
    layer.shared_head = torch.nn.ModuleDict({
        "norm": norm(hidden, eps), "head": torch.nn.Linear(hidden, config.vocab_size, bias=False)})
    model.model.layers.append(layer)


def of_folder(variant):
    families.VARIANTS[variant], options, _ = mtp.FOLDERS[variant]
    options = dict(option.split("=") for option in options)
    model = families_oracle.model_of(variant, add_further)
    rows, length = families.ROWS, families.SEQUENCE
    tokens = torch.tensor(list(families.TEXT[:rows * length])).reshape(rows, -1)
    targets = torch.tensor(list(families.TEXT[1:rows * length + 1])).reshape(rows, -1)
    loads, seen, layer = families_oracle.watch_routers(model), {}, model.model.layers[-1]
    model.model.layers[0].register_forward_pre_hook(lambda module, given, named: seen.update(named), with_kwargs=True)
    model.model.norm.register_forward_hook(lambda module, given, made: seen.update(last=given[0], normed=made))
    logits = model.train()(input_ids=tokens, use_cache=False).logits
    last, normed = seen.pop("last"), seen.pop("normed")
    entropy = torch.nn.functional.cross_entropy
    loss = entropy(logits.flatten(0, 1), targets.flatten())
    ahead = torch.cat([tokens[:, 1:], torch.zeros_like(tokens[:, :1])], 1)
    h = normed if options.get("model.mtp_normed") != "false" else last
    both = torch.cat([layer.enorm(layer.embed_tokens(ahead)), layer.hnorm(h)], -1)
    made = layer(layer.eh_proj(both), **seen)
    further = layer.shared_head["head"](layer.shared_head["norm"](made))[:, :-1]
    weight = float(options.get("model.mtp_weight", mtp.WEIGHT))
    weighted = weight * entropy(further.flatten(0, 1), targets[:, 1:].flatten())
    (loss + weighted).backward()
    gradients = {name: (None, weight.grad[part].flatten().tolist())
                 for name, (weight, part) in families_oracle.tensors(model).items()}
    gradients |= {name: (None, load) for name, load in loads.items()}
    return {"loss": loss.item(), "mtp": weighted.item(), "gradients": mtp.by_weight(gradients)}


def main():
    if sys.argv[1] == "folders":
        print("{" + ",\n ".join(f'"{variant}": {json.dumps(of_folder(variant))}' for variant in mtp.FOLDERS) + "}")
        return
    n, hidden, depth = mtp.SIZES["layers"], mtp.SIZES["hidden"], int(sys.argv[1])
    trunk, layers = transformers.LlamaForCausalLM(config(n)), [Further(hidden, n + k) for k in range(depth)]
    named = dict(trunk.named_parameters())
    for layer in layers:
        named |= layer.named
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
    loss, h, weighted = entropy(logits.flatten(0, 1), targets.flatten()), seen["h"], 0
    for k, layer in enumerate(layers, 1):
        ahead = torch.cat([tokens[:, k:], torch.zeros_like(tokens[:, :k])], 1)
        h, made = layer.run(h, trunk.model.embed_tokens(ahead))
        further = trunk.lm_head(made)[:, :-k]
        weighted = weighted + mtp.WEIGHT / depth * entropy(further.flatten(0, 1), targets[:, k:].flatten())
    (loss + weighted).backward()
    gradients = {name: (None, weight.grad.flatten().tolist()) for name, weight in named.items()}
    json.dump({"loss": loss.item(), "mtp": weighted.item(), "gradients": families.summary(gradients)}, sys.stdout,
              indent=1)
    print()


if __name__ == "__main__":
    main()
