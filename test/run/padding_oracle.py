#!/usr/bin/env python3
"""Asks transformers for the balance of padded rows that padding.py reads; it needs torch, so no test runs it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: padding_oracle.py > Inputs/padding.json
# Made with transformers 5.24.0 and torch 2.15.0, in f64 as families_oracle.py says: one layer of Mixtral, rows of
# documents that are padded, and an attention_mask that says where.
import json, sys
import families_oracle  # first: it makes torch compute in f64
import torch
import experts_oracle, padding


def main():
    sizes = padding.SIZES | dict(layers=1)
    model = experts_oracle.model_of(sizes)
    rows, length = padding.drawn(), 24
    tokens = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    targets = torch.tensor([row[1:] + [-100] * (length - len(row) + 1) for row in rows])
    out = model.train()(input_ids=tokens, attention_mask=mask, use_cache=False, output_router_logits=True)
    loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), targets.flatten())
    json.dump({"loss": loss.item(), "aux_loss": out.aux_loss.item()}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
