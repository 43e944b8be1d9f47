#!/usr/bin/env python3
"""Judges optimizers by their formulas: weights and states after some steps, from the gradients of each step."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: optimizers.py PP_COMPILE FOLDER
# A run is stopped after every step; its gradients and its rate are read, and the formulas of docs/optimizers.md are
# computed here once more, on the matrices as the files have them, [out, in]. (They agree with torch.optim.SGD, AdamW
# and, with its iteration in f64, Muon to 1e-15; that is not part of the test.)
import math, os, shutil, sys
import harness

SIZES = dict(ranks=2, microbatches=4, model="llama", layers=4, hidden=12, heads=3, kv_heads=3, ffn=20, vocab=256,
             sequence=16, microbatch=1, clip=0.05, warmup=2, weight_decay=0.1)
STEPS = 4
COEFFICIENTS = 3.4445, -4.7750, 2.0315


def multiply(a, b):
    columns = list(zip(*b))
    return [[math.fsum(x * y for x, y in zip(row, column)) for column in columns] for row in a]


def orthogonal(x):
    """Five steps of the Newton-Schulz iteration, as Jordan et al. write them: on rows no more than columns."""
    if len(x) > len(x[0]):
        return [list(row) for row in zip(*orthogonal([list(row) for row in zip(*x)]))]
    norm = max(math.sqrt(math.fsum(v * v for row in x for v in row)), 1e-7)
    x = [[v / norm for v in row] for row in x]
    a, b, c = COEFFICIENTS
    for _ in range(5):
        square = multiply(x, [list(row) for row in zip(*x)])
        factor = [[b * v + c * w for v, w in zip(*rows)] for rows in zip(square, multiply(square, square))]
        x = [[a * v + w for v, w in zip(*rows)] for rows in zip(x, multiply(factor, x))]
    return x


def sgd(case, state, w, g, lr, decay, number):
    momentum = case.get("momentum", 0.9)
    g = [gi + decay * wi for gi, wi in zip(g, w)]
    u = state["u"] = [momentum * ui + gi for ui, gi in zip(state.get("u", [0] * len(g)), g)]
    step = [gi + momentum * ui for gi, ui in zip(g, u)] if case.get("nesterov") else u
    return [wi - lr * si for wi, si in zip(w, step)]


def adamw(case, state, w, g, lr, decay, number):
    zero = [0] * len(g)
    m = state["m"] = [0.9 * mi + 0.1 * gi for mi, gi in zip(state.get("m", zero), g)]
    v = state["v"] = [0.95 * vi + 0.05 * gi * gi for vi, gi in zip(state.get("v", zero), g)]
    return [wi - lr * (mi / (1 - 0.9 ** number) / (math.sqrt(vi / (1 - 0.95 ** number)) + 1e-8) + decay * wi)
            for wi, mi, vi in zip(w, m, v)]


def muon(case, state, w, g, lr, decay, shape):
    u = state["u"] = [0.95 * ui + 0.05 * gi for ui, gi in zip(state.get("u", [0] * len(g)), g)]
    way = [0.95 * ui + 0.05 * gi for ui, gi in zip(u, g)]
    rows, columns = shape
    way = orthogonal([way[i * columns:(i + 1) * columns] for i in range(rows)])
    matches = case.get("adjust") == "match_rms_adamw"
    longer = 0.2 * math.sqrt(max(shape)) if matches else math.sqrt(max(1, rows / columns))
    return [wi - lr * (decay * wi + longer * di) for wi, di in zip(w, (v for row in way for v in row))]


def run(program, folder, name, *options):
    log = os.path.join(folder, name + ".jsonl")
    harness.call([program, "--in-process", "--data", os.path.join(folder, "text.txt"), "--log", log, *options])
    return harness.read_log(log)


def groups_of(case, key):
    """The texts and numbers of `[text,number,..]`."""
    words = case.get(key, "[]").strip("[]").split(",")
    return [(text, float(number)) for text, number in zip(words[::2], words[1::2])]


def factor(case, key, name):
    """Of the first group whose text is in the name."""
    return next((number for text, number in groups_of(case, key) if text in name), 1)


def check_formula(compiler, folder, kind, case):
    values = SIZES | dict(schedule=case.get("schedule", "1f1b"), precision="f64", optimizer=kind, lr=case["lr"])
    values |= {f"optimizer.{key}": case[key] for key in ("nesterov", "momentum", "adjust", "rest_lr", "no_decay",
                                                     "lr_scale", "decay_scale") if key in case}
    program = harness.compile_train(compiler, os.path.join(folder, "program"), values)
    at = lambda step: os.path.join(folder, f"step{step}")
    for step in range(STEPS + 1):
        shutil.rmtree(at(step), ignore_errors=True)
    run(program, folder, "log", "--steps", str(STEPS), "--stop-at", "1", "--lr", "0", "--save", at(0))
    weights = {name: (shape, list(values))
               for name, (shape, values) in harness.read_safetensors(at(0) + "/model.safetensors").items()}
    states = {name: {} for name in weights}
    for step in range(1, STEPS + 1):
        begin = ["--resume", at(step - 1)] if step > 1 else []
        grads = os.path.join(folder, "grads.safetensors")
        line = run(program, folder, "log", "--steps", str(STEPS), "--stop-at", str(step), "--save", at(step),
                   "--grads", grads, *begin)[-1]
        gradients = harness.read_safetensors(grads)
        norm = math.sqrt(math.fsum(v * v for _, its in gradients.values() for v in its))
        assert norm > 2 * SIZES["clip"], f"step {step}: a norm of {norm} is not clipped"
        gamma = min(1, SIZES["clip"] / (norm + 1e-6))
        share = line["lr"] / case["lr"]
        groups = {text: line["lr"] * number for text, number in groups_of(case, "lr_scale")}
        assert line.get("lr_groups", {}) == groups, f"step {step}: rates {line.get('lr_groups')}"
        saved = harness.read_safetensors(at(step) + "/model.safetensors")
        kept = harness.read_safetensors(at(step) + "/optimizer.safetensors")
        for name, (shape, old) in weights.items():
            g = [gamma * v for v in gradients[name][1]]
            decays = len(shape) > 1 and case.get("no_decay", "\n") not in name
            rule = globals()[kind]
            lr, decay, last = line["lr"], SIZES["weight_decay"] * decays, step
            if kind == "muon" and (len(shape) < 2 or ".layers." not in name):
                rule, lr, decay = adamw, case.get("rest_lr", 1e-3) * share, 0.1 * decays
            elif kind == "muon":
                last = shape
            lr, decay = lr * factor(case, "lr_scale", name), decay * factor(case, "decay_scale", name)
            weights[name] = shape, rule(case, states[name], old, g, lr, decay, last)
            expected = {name: weights[name][1]} | {f"{name}.{key}": its for key, its in states[name].items()}
            for key, its in expected.items():
                found = (saved if key == name else kept)[key][1]
                far = harness.apart(found, its) / max(max(map(abs, its)), 1e-12)
                assert far < 1e-11, f"step {step}: {key} is {far:.1e} away"
        assert set(kept) == {f"{name}.{key}" for name in states for key in states[name]}, "another state"


def check_resume(compiler, folder, kind, precision, schedule, more={}):
    """Four steps, and two and two: the same bits."""
    values = SIZES | dict(schedule=schedule, precision=precision, optimizer=kind, lr=0.01) | more
    program = harness.compile_train(compiler, os.path.join(folder, "program"), values)
    paths = [os.path.join(folder, name) for name in ("whole", "half", "rest")]
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    whole, half, rest = paths
    steps = ["--steps", "4"]
    first = run(program, folder, "log", *steps, "--save", whole)
    run(program, folder, "log", *steps, "--stop-at", "2", "--save", half)
    run(program, folder, "log", *steps, "--resume", half, "--save", rest)
    for name in ("model.safetensors", "optimizer.safetensors"):
        with open(f"{whole}/{name}", "rb") as a, open(f"{rest}/{name}", "rb") as b:
            assert a.read() == b.read(), f"`{name}` differs"
    return [line["loss"] for line in first]


def check_schedules(compiler, folder, kind, schedules):
    """The same losses on other schedules, to rounding."""
    losses = [check_resume(compiler, folder, kind, "f32", schedule) for schedule in schedules]
    for schedule, others in zip(schedules, losses):
        far = harness.apart(losses[0], others)
        assert far < 2e-5, f"{schedule}: a loss is {far:.1e} from that of {schedules[0]}"


def check_refusal(compiler, folder):
    """Muon's steps need whole matrices; a run of another optimizer has another state."""
    shards = harness.call([compiler, harness.TRAIN, "-D", "schedule=zero1", "-D", "model=llama", "-D", "optimizer=muon",
                           "-o", os.path.join(folder, "none")], expect=1).stderr
    assert "`muon` needs whole matrices" in shards, shards
    values = SIZES | dict(schedule="1f1b", lr=0.01)
    programs = {kind: harness.compile_train(compiler, os.path.join(folder, kind), values | dict(optimizer=kind))
                for kind in ("sgd", "adamw")}
    saved = os.path.join(folder, "saved")
    shutil.rmtree(saved, ignore_errors=True)
    data = os.path.join(folder, "text.txt")
    harness.call([programs["sgd"], "--in-process", "--data", data, "--steps", "2", "--stop-at", "1", "--save", saved])
    told = harness.call([programs["adamw"], "--in-process", "--data", data, "--resume", saved], expect=None).stderr
    assert 'was made with optimizer "sgd", this program has "adamw"' in told, told


def check_groups(compiler, folder):
    """A run with groups of weights goes on as it was; with other groups or none only if that is allowed by name."""
    check_resume(compiler, folder, "adamw", "bf16", "1f1b", GROUPS)
    half = os.path.join(folder, "half")
    for scales, says in (({}, 'lr_scale was [["mlp",2.5],["norm",0.0]] and is []'),
                         ({"optimizer.lr_scale": "[mlp,2]"},
                          'lr_scale was [["mlp",2.5],["norm",0.0]] and is [["mlp",2.0]]'),
                         (GROUPS | {"optimizer.decay_scale": "[q_proj,4]"},
                          'decay_scale was [["q_proj",3.0]] and is [["q_proj",4.0]]')):
        values = SIZES | dict(schedule="1f1b", precision="bf16", lr=0.01) | scales
        program = harness.compile_train(compiler, os.path.join(folder, "other"), values)
        command = [program, "--in-process", "--data", os.path.join(folder, "text.txt"), "--resume", half]
        told = harness.call(command, expect=1).stderr
        assert "the optimizer's " + says in told, told
        assert says in harness.call([*command, "--changed", "optimizer"]).stdout, says


GROUPS = {"optimizer.lr_scale": "[mlp,2.5,norm,0]", "optimizer.decay_scale": "[q_proj,3]"}


CASES = [("sgd", dict(lr=0.5)), ("sgd", dict(lr=0.5, nesterov="true", momentum=0.8, schedule="zb_v")),
         ("sgd", dict(lr=0.5, no_decay="mlp", schedule="fsdp")), ("adamw", dict(lr=0.01, no_decay="embed_tokens")),
         ("muon", dict(lr=0.02)), ("muon", dict(lr=0.02, adjust="match_rms_adamw", rest_lr=0.003, schedule="zb_v")),
         ("muon", dict(lr=0.02, no_decay="q_proj", schedule="weipipe_interleave")),
         *(("adamw", dict(lr=0.01, schedule=schedule, lr_scale="[embed_tokens,0.1,mlp,2.5,norm,0]",
                          decay_scale="[q_proj,3,mlp,0.5]")) for schedule in ("1f1b", "zb_v", "fsdp",
                                                                              "weipipe_interleave")),
         ("sgd", dict(lr=0.5, nesterov="true", schedule="zb_v", lr_scale="[lm_head,0.2]", decay_scale="[o_proj,4]")),
         ("sgd", dict(lr=0.5, schedule="fsdp", lr_scale="[self_attn,0.5,mlp,0.1]")),
         ("muon", dict(lr=0.02, schedule="1f1b", lr_scale="[mlp.up,0.5,embed_tokens,3]", decay_scale="[up_proj,2]")),
         ("muon", dict(lr=0.02, schedule="weipipe_interleave", lr_scale="[gate_proj,0.3]"))]


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    harness.write_text(folder)
    tally = harness.Tally()
    for kind, case in CASES:
        tally.attempt(f"{kind} {case}", check_formula, compiler, folder, kind, case)
    for kind, precision in (("sgd", "bf16"), ("muon", "bf16"), ("muon", "f16")):
        tally.attempt(f"{kind} {precision}: resumed to the bit", check_resume, compiler, folder, kind, precision,
                      "1f1b")
    for kind in ("sgd", "muon"):
        tally.attempt(f"{kind}: other schedules", check_schedules, compiler, folder, kind,
                      ("single", "zb_v", "weipipe_interleave", "tawpipe", "slimpipe"))
    tally.attempt("groups: resumed", check_groups, compiler, folder)
    tally.attempt("refusals", check_refusal, compiler, folder)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
