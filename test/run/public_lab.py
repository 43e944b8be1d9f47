"""What the cases of public_cases.py share: sizes, documents, weights, programs, and what the plain model expects."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import json, math, os, random, shutil
import documents, families, harness, optimizers, plain_model

HIDDEN, FFN, VOCAB, LAYERS, HEADS, EXPERTS = 8, 12, 16, 4, 2, 4
SIZES = dict(model="llama", layers=LAYERS, hidden=HIDDEN, heads=HEADS, kv_heads=1, ffn=FFN, vocab=VOCAB, sequence=12,
             microbatch=1, microbatches=4, schedule="single", ranks=1, precision="f64", clip=0, weight_decay=0)
ROUTED = dict(model="mixtral", experts=EXPERTS, top=2, balance=0.3, z=0.05)
STEERED = {"model": "glm4_moe", "experts": EXPERTS, "top": 2, "balance": 0, "model.rate": 0.25, "ffn": 16}
# How a program is compiled, and the same for the plain model.
VARIANTS = {
    "plain": ({}, {}),
    "tied": ({"model.tied": "true"}, {}),
    "fused": ({"model.fused": "true"}, {}),
    "sinks": ({"model.sinks": "true"}, {}),
    "window": ({"model.sliding_window": 4}, dict(window=4)),
    "odd": (dict(vocab=VOCAB + 1), {}),
    "routed": (ROUTED, dict(experts=EXPERTS, top=2, balance=0.3, z=0.05, theta=1e6)),
}
GPT2 = dict(model="gpt2", context=32)
ADAMW = dict(lr=0.01, weight_decay=0.1, clip=0.05, min_lr=1)
CASES = {}


def case(function):
    CASES[function.__name__.replace("_", "-")] = function
    return function


def need(good, text):
    if not good:
        raise AssertionError(text)


def apart(right, wrong, least=1e-3):
    """The two numbers differ enough for a test to tell."""
    need(abs(right - wrong) > least * abs(right), f"{wrong} is too near {right}: the fault would not be seen")


def shapes_of(variant):
    """Of the tensors in a published folder, where a linear is [out, in]."""
    vocab, layer = VARIANTS[variant][0].get("vocab", VOCAB), {
        "input_layernorm.weight": [HIDDEN], "post_attention_layernorm.weight": [HIDDEN],
        "self_attn.o_proj.weight": [HIDDEN, HIDDEN]}
    parts = {"self_attn.q_proj": HIDDEN, "self_attn.k_proj": HIDDEN // HEADS, "self_attn.v_proj": HIDDEN // HEADS,
             "mlp.gate_proj": FFN, "mlp.up_proj": FFN}
    if variant == "fused":
        parts = {"self_attn.qkv_proj": HIDDEN + 2 * HIDDEN // HEADS, "mlp.gate_up_proj": 2 * FFN}
    if variant == "sinks":
        layer["self_attn.sinks"] = [HEADS]
    if variant == "routed":
        parts = {name: size for name, size in parts.items() if "attn" in name} | {"block_sparse_moe.gate": EXPERTS}
        parts |= {f"block_sparse_moe.experts.{e}.w{i}": FFN for e in range(EXPERTS) for i in (1, 3)}
        layer |= {f"block_sparse_moe.experts.{e}.w2.weight": [HIDDEN, FFN] for e in range(EXPERTS)}
    else:
        layer["mlp.down_proj.weight"] = [HIDDEN, FFN]
    layer |= {name + ".weight": [size, HIDDEN] for name, size in parts.items()}
    shapes = {"model.embed_tokens.weight": [vocab, HIDDEN], "model.norm.weight": [HIDDEN]}
    if variant != "tied":
        shapes["lm_head.weight"] = [vocab, HIDDEN]
    return shapes | {f"model.layers.{l}.{name}": shape for l in range(LAYERS) for name, shape in layer.items()}


def drawn(sizes, seed=3):
    draw = random.Random(seed)
    return [[draw.randrange(VOCAB) for _ in range(size)] for size in sizes]


def with_targets(texts, masks):
    """What the plain model reads: the target of a token is the next one of its document, if that counts, and its
    weight is the mask's number."""
    return [[(token, following if weight else None, weight)
             for token, following, weight in zip(text, text[1:] + [0], mask[1:] + [0])]
            for text, mask in zip(texts, masks)]


# Four documents: each has a row of 12 or 16 tokens for itself, and two share a row of 24. They have 11, 0, 7 and 3
# targets.
TEXTS = drawn((12, 9, 8, 12))
MASKS = [[1] * 12, [1] + [0] * 8, [1] * 8, [0] * 9 + [1] * 3]


class Lab:
    def __init__(self, compiler, folder, mpi):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        self.compiler, self.folder, self.mpi = os.path.abspath(compiler), os.path.abspath(folder), mpi
        self.programs, self.expectations, self.weights = {}, {}, {}
        self.data = documents.write_dataset(folder, "data.safetensors", TEXTS, MASKS)

    def at(self, name):
        return os.path.join(self.folder, name)

    def compile(self, options=("-D", "data.documents=true"), **values):
        key = json.dumps([values, list(options)], sort_keys=True)
        if key not in self.programs:
            path = self.at(f"program{len(self.programs)}")
            self.programs[key] = harness.compile_train(self.compiler, path, SIZES | values, options=options)
        return self.programs[key]

    def weights_of(self, variant):
        """The weights of a variant, and the file that has them."""
        if variant not in self.weights:
            tensors = {name: families.weight_of(name, shape) for name, shape in shapes_of(variant).items()}
            harness.write_safetensors(self.at(variant + ".weights"), tensors)
            self.weights[variant] = tensors, self.at(variant + ".weights")
        return self.weights[variant]

    def expected(self, variant, texts=None, masks=None, weights=None, rows=None):
        """What the plain model computes."""
        key = json.dumps([variant, texts, masks, weights, rows])
        if key not in self.expectations:
            model = plain_model.Model(weights or self.weights_of(variant)[0], HEADS, 1, LAYERS, **VARIANTS[variant][1])
            self.expectations[key] = model.run(with_targets(texts or TEXTS, masks or MASKS), rows)
        return self.expectations[key]

    def run(self, program, *options, data=None, **more):
        return harness.call([program, "--in-process", "--data", data or self.data, *options], **more)

    def refused(self, program, said, *options, data=None):
        done = self.run(program, *options, data=data, expect=None, timeout=60)
        need(done.returncode == 1 and said in done.stderr, f"ended with {done.returncode}, expected `{said}`, got "
                                                            f"`{done.stderr.strip()}`")
        return said

    def not_compiled(self, said, options=(), **values):
        """What the compiler says; values are those of examples/train.pipe unless there is a file."""
        words = [word for key, value in (SIZES | values).items() for word in ("-D", f"{key}={value}")]
        words = list(options) if options else [harness.TRAIN, *words, "-o", self.at("refused")]
        done = harness.call([self.compiler, *words], expect=None, timeout=60)
        first = next((line for line in done.stderr.splitlines() if "error: " in line), "")
        code = 2 if first.startswith("<command line>") else 1
        need(done.returncode == code and said in done.stderr, f"expected `{said}` and {code}, got {done.returncode}: "
             f"`{done.stderr}`")
        return said

    def step(self, program, *options, data=None, variant="plain", load=True):
        """The line of the log and the gradients of one step over all rows of the data."""
        log, grads = self.at("log.jsonl"), self.at("step.grads")
        if os.path.exists(log):
            os.remove(log)
        begin = ["--load", self.weights_of(variant)[1]] if load else []
        self.run(program, *begin, "--epochs", "1", "--log", log, "--grads", grads, *options, data=data)
        (line,) = harness.read_log(log)
        return line, {name: values for name, (_, values) in harness.read_safetensors(grads).items()}

    def lines(self, program, *options, data=None):
        log = self.at("log.jsonl")
        if os.path.exists(log):
            os.remove(log)
        self.run(program, *options, "--log", log, data=data)
        return harness.read_log(log)

    def batches(self, program, *options, data=None):
        out = self.at("out.batches")
        self.run(program, "--batches", out, *options, data=data)
        return documents.read_batches(out)

    def same(self, variant="plain", limit=1e-9, data=None, expected=None, **values):
        """One step of a program gives what the plain model gives: losses, norm and all gradients."""
        expected = expected or self.expected(variant)
        line, gradients = self.step(self.compile(**VARIANTS[variant][0] | values), data=data, variant=variant)
        need(line["tokens"] == sum(expected["counts"]), f"{line['tokens']} targets, expected {sum(expected['counts'])}")
        said = ["loss"] + (["balance", "z"] if variant == "routed" else [])
        errors = [(abs(line[name] / expected[name] - 1), name) for name in said]
        errors.append((abs(line["grad_norm"] / expected["norm"] - 1), "grad_norm"))
        need(gradients.keys() == expected["gradients"].keys(), f"gradients of {sorted(gradients)}")
        errors += [(difference(gradients[name], its), name) for name, its in expected["gradients"].items()]
        worst, where = max(errors)
        need(worst < limit, f"{values}: {where} is off by {worst:.1e}")
        return worst


def difference(ours, wanted):
    return harness.apart(ours, wanted) / (max(map(abs, wanted)) or 1)


def mean(values):
    return math.fsum(values) / len(values)


def three_steps(lab, variant):
    """The weights after three steps of AdamW over the same four documents, by the plain model and the formula."""
    weights = {name: (shape, list(its)) for name, (shape, its) in lab.weights_of(variant)[0].items()}
    states = {name: {} for name in weights}
    for step in (1, 2, 3):
        right = lab.expected(variant, weights=weights)
        factor = min(1, ADAMW["clip"] / (right["norm"] + 1e-6))
        for name, (shape, old) in weights.items():
            gradient = [factor * value for value in right["gradients"][name]]
            decay = ADAMW["weight_decay"] if len(shape) > 1 else 0
            weights[name] = shape, optimizers.adamw({}, states[name], old, gradient, ADAMW["lr"], decay, step)
    return {name: its for name, (_, its) in weights.items()}
