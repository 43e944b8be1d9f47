#!/usr/bin/env python3
"""Writes the page of the operations of models from the definitions of the dialect `nn`, as llvm-tblgen dumps them."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: operations.py JSON FRONTEND_MODEL_CPP > frontend/OPERATIONS.md
# A signature that is not what the definition says, and an op that models may use and that has none, are errors.
import json, re, sys

INTRODUCTION = """<!-- Written by tools/docs.sh from dialect/nn/*.td; edit those files, not this one. -->

# The operations of models

These operations may stand in the parts of a `model`. An option with `..` must be given; the others have the default
that is shown. Activations are [batch, length, width]; `tokens`, `targets` and `source` are [batch, length]; tables are
[rows, width]; a `linear` takes w as [in, out]. Gains and biases are as wide as the tensor that they change. Sums inside
an operation are f32; for f64 they are f64. A part may also name values, `let q, k, v = split(x, 3)`, and weight a loss,
`0.3 * cross_entropy(..)`. [The language](LANGUAGE.md) says how models are written. [Nn.md](../dialect/nn/Nn.md) says
which shapes and types are accepted.
"""

BACKWARD = """
## Backward

You do not write these: the compiler derives them. The gradient of `x` is `dx`; with `acc` it is added to that tensor. A
`rebuild` makes a cheap result again, bit for bit, so that it need not be kept. The results stand after the arrow.
"""

OTHERS = """
## Parts, slices and updates

The compiler makes these where ranks share attention or the vocabulary, where rows or columns are cut, and where weights
are updated.
"""


class Definitions:
    def __init__(self, path):
        with open(path) as file:
            self.records = json.load(file)
        self.ops = [self.records[name] for name in self.records["!instanceof"]["Op"]]

    def argument(self, entry):
        """Name, whether it is an attribute, its default or None, and whether it may be absent."""
        record, name = self.records[entry[0]["def"]], entry[1]
        kinds = record["!superclasses"]
        default = record.get("defaultValue")
        optional = "Optional" in kinds or bool(record.get("isOptional"))
        return name, "Attr" in kinds, default if default else None, optional

    def arguments(self, op):
        return [self.argument(entry) for entry in op["arguments"]["args"]]

    def results(self, op):
        return [entry[1] for entry in op["results"]["args"]]


# Words of models that stand for several ops, by the op that has their options.
WORDS = {"route": "experts"}
# Options that do not belong to the op: of the update of a weight, and of the ops beside it.
OF_OTHERS = {("experts", name) for name in ("rate", "router_bias", "gate_up_bias", "down_bias", "reads",
                                            "on_input", "activation", "limit", "alpha", "plus")}


def word_of(op):
    return WORDS.get(op["opName"], op["opName"])


def as_number(text):
    try:
        return float(text)
    except ValueError:
        return text.strip('"')


def problems_of(definitions, op):
    """Where the signature is not what the definition says; `k` and `v` are the first chunk of `lists`, heads the
    default of kv_heads, 1 / sqrt(d) that of a scale of 0, and 0.0 that of a dropout that is not there."""
    if op["signature"] == "x + y":
        return []
    known = {name: (attribute, default) for name, attribute, default, _ in definitions.arguments(op)}
    match = re.fullmatch(r"(\w+)\((.*)\)", op["signature"])
    if not match or match[1] != word_of(op):
        return [f"{op['opName']}: the signature is `{op['signature']}`"]
    problems = []
    for word in re.split(r", ", re.sub(r"\[, (\w+)\]", r", \1", match[2])):
        name, _, default = word.partition(" = ")
        attribute, declared = known.get("lists" if name in ("k", "v") and name not in known else name, (None, None))
        if (word_of(op), name) in OF_OTHERS:
            continue
        if attribute is None and not default and op["opName"] in WORDS:
            continue  # a tensor that another of the ops reads
        if attribute is None:
            problems.append(f"{op['opName']}: the signature has `{name}`, the definition has not")
        elif not attribute and default or attribute and not default:
            problems.append(f"{op['opName']}: `{name}` is {'an attribute' if attribute else 'a tensor'}")
        elif default not in ("", "..", "heads", "[]", "1 / sqrt(d)") and (name, declared) != ("dropout", None) and (
                declared is None or as_number(declared) != as_number(default)):
            problems.append(f"{op['opName']}: the default of `{name}` is {declared}, the signature says {default}")
        elif default == ".." and declared is not None and name != "causal":
            problems.append(f"{op['opName']}: `{name}` has the default {declared}, the signature says ..")
    return problems


def is_backward(definitions, op):
    tensors = [name for name, attribute, *_ in definitions.arguments(op) if not attribute] + definitions.results(op)
    return "rebuild" in op["opName"] or any(name.startswith("d") for name in tensors)


def row(definitions, op):
    arguments = [name if default is None and not optional else f"[{name}]"
                 for name, _, default, optional in definitions.arguments(op)]
    summary = re.sub(r" \([^()]*docs/derivatives.md R\d\)", "", op["summary"])
    return f"| `{op['opName']}({', '.join(arguments)}) -> {', '.join(definitions.results(op))}` | {summary} |"


def main():
    definitions = Definitions(sys.argv[1])
    with open(sys.argv[2]) as file:
        usable = dict(re.findall(r'\{"(\w+)", "([\w, ]*)"', re.search(r"kOps\[\] = \{(.*?)\};", file.read(), re.S)[1]))
    said = [op for op in definitions.ops if op.get("signature")]
    problems = [problem for op in said for problem in problems_of(definitions, op)]
    problems += [f"{name}: models may use it, and its definition has no signature"
                 for name in sorted(usable.keys() - {word_of(op) for op in said})]
    for op in said:
        tensors = [word for word in re.split(r"\W+", op["signature"].partition("(")[2].split(" = ")[0]) if word]
        taken = usable.get(word_of(op), "").split(", ")
        if op["opName"] != "add" and tensors[:len(taken)] != taken:
            problems.append(f"{op['opName']}: the frontend takes {', '.join(taken)}, the signature is "
                            f"`{op['signature']}`")
    if problems:
        sys.exit("\n".join(problems))
    lines = [INTRODUCTION, "| operation | computes | |", "|---|---|---|"]
    order = ["embedding", "positions", "layernorm", "rmsnorm", "linear", "transpose", "split", "rope", "attention",
             "gelu", "swiglu", "glu", "scale", "add"]
    for op in sorted(said, key=lambda op: (order + [op["opName"]]).index(op["opName"])):
        lines.append(f"| `{op['signature']}` | `{op['formula']}` | {op['note'] or op['summary']} |")
    rest = [op for op in definitions.ops if not op.get("signature")]
    for text, backward in ((BACKWARD, True), (OTHERS, False)):
        lines += [text, "| operation | |", "|---|---|"]
        lines += [row(definitions, op) for op in sorted(rest, key=lambda op: op["opName"])
                  if is_backward(definitions, op) == backward]
    print("\n".join(lines))


main()
