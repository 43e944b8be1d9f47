#!/usr/bin/env python3
"""Asks transformers for the losses and gradients of labels that documents.py compares with; no test runs it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: documents_oracle.py > Inputs/documents.json
# Made with transformers 5.23.0 and torch 2.15.0, in f64 as families_oracle.py says. Rows are padded behind their
# document; labels that do not count are -100, and the loss is divided by the number of those that do.
import json
import families_oracle  # first: it makes torch compute in f64
import torch
import documents, families


def judge(variant):
    model = families_oracle.model_of(variant)
    rows, labels = [], []
    for document, counted in zip(*documents.labelled()):
        rest = families.SEQUENCE - len(document)
        rows.append(document + [0] * rest)
        labels.append([token if bit else -100 for token, bit in zip(document, counted)] + [-100] * rest)
    labels = torch.tensor(labels)
    items = (labels[:, 1:] != -100).sum()
    loss = model.train()(input_ids=torch.tensor(rows), labels=labels, num_items_in_batch=items, use_cache=False).loss
    loss.backward()
    gradients = {name: (None, weight.grad.flatten().tolist()) for name, weight in model.named_parameters()}
    return {"loss": loss.item(), "gradients": families.summary(gradients)}


def main():
    lines = [f'"{variant}": {json.dumps(judge(variant))}' for variant in documents.LABELLED]
    print("{" + ",\n ".join(lines) + "}")


if __name__ == "__main__":
    main()
