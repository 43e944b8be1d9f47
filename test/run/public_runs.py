"""Cases of public_cases.py about whole runs: data, checkpoints, updates, sizes, positions and evaluations."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import functools, json, math, os, re, resource, shutil, struct
import documents, families, harness, plain_model, saves
from public_lab import (HIDDEN, FFN, VOCAB, LAYERS, HEADS, VARIANTS, STEERED, GPT2, ADAMW, TEXTS, case, need, apart,
                        shapes_of, drawn, difference, mean, three_steps)


# Data and checkpoints


@case
def resume_repeats_data(lab):
    """Stopped in the second epoch and resumed: the run reads what the whole run reads behind that step."""
    texts = [[i] + [15] * 8 for i in range(12)]
    data = documents.write_dataset(lab.folder, "order.safetensors", texts)
    program, saved = lab.compile(), lab.at("order.saved")
    lab.run(program, "--shuffle", "--epochs", "3", "--stop-at", "5", "--save", saved, data=data)
    got = [row[0] for row in lab.batches(program, "--resume", saved, data=data)["tokens"]]
    need(sorted(got) == sorted([*range(12), *got[:4]]) and len(set(got[:4])) == 4, f"reads {got}")
    whole = [row[0] for row in lab.batches(program, "--shuffle", "--epochs", "3", data=data)["tokens"]]
    need(got == whole[20:], f"reads {got}, expected {whole[20:]}")
    return "after 20 of 36 documents the run reads the other 16, none twice in an epoch"


@case
def one_order_for_all_epochs(lab):
    texts = [[i] + [15] * 8 for i in range(12)]
    data = documents.write_dataset(lab.folder, "epochs.safetensors", texts)
    for more in ({}, {"mesh.data": 2, "microbatches": 2}):
        got = lab.batches(lab.compile(**more), "--shuffle", "--epochs", "3", data=data)
        order = [row[0] for row in got["tokens"]]
        epochs = [order[i:i + 12] for i in (0, 12, 24)]
        need(all(sorted(epoch) == list(range(12)) for epoch in epochs), f"epochs {epochs}")
        need(len(set(map(tuple, epochs))) == 3, f"epochs {epochs}")
    return "three epochs read all 12 documents in three orders"


@case
def order_by_ranks(lab):
    texts = [[i] + [15] * 8 for i in range(16)]
    data = documents.write_dataset(lab.folder, "ranks.safetensors", texts)
    orders = []
    for more in ({}, dict(schedule="1f1b", ranks=2), {"mesh.data": 2, "microbatches": 2},
                 dict(microbatches=2, microbatch=2)):
        got = lab.batches(lab.compile(**more), "--shuffle", "--epochs", "2", data=data)
        orders.append([row[0] for row in got["tokens"]])
    need(orders[1:] == orders[:1] * 3 and sorted(orders[0][:16]) == list(range(16)), str(orders))
    return "one order of documents on 1 and 2 devices and stages, in 2 and 4 microbatches"


@case
def seed_without_effect(lab):
    texts = [[i] + [15] * 8 for i in range(12)]
    data = documents.write_dataset(lab.folder, "seeds.safetensors", texts)
    orders = [lab.batches(lab.compile(), "--shuffle", "--epochs", "1", "--seed", seed, data=data)["tokens"]
              for seed in ("1", "2", "1")]
    need(orders[0] == orders[2] != orders[1], "orders do not go by the seed")
    return "two seeds give two orders, one seed one"


@case
def file_twice_in_a_mixture(lab):
    with open(lab.at("mix"), "w") as file:
        file.write("0.5 data.safetensors\n0.5 ./data.safetensors\n")
    return "refused: " + lab.refused(lab.compile(), "line 2: line 1 names `./data.safetensors`, too", "--steps", "1",
                                     data="mix:" + lab.at("mix"))


@case
def mixture_that_runs_out(lab):
    """Weights 0.999 and 0.001 of files of 8 and 4 documents: shares to within a row, files begin again."""
    for name, first, count in (("many", 0, 8), ("few", 8, 4)):
        documents.write_dataset(lab.folder, name + ".safetensors", [[first + i] + [15] * 8 for i in range(count)])
    with open(lab.at("mix"), "w") as file:
        file.write("0.999 many.safetensors\n0.001 few.safetensors\n")
    got = [row[0] for row in lab.batches(lab.compile(), "--steps", "500", data="mix:" + lab.at("mix"))["tokens"]]
    few = [token for token in got if token >= 8]
    need(len(few) == 2 and few == [8, 9] and [token for token in got if token < 8][:9] == [*range(8), 0], f"{few}")
    return "2 of 2000 rows are of the small file, each of the next document"


@case
def resume_in_another_layout(lab):
    """Step 1 on one rank, step 2 on three kinds of devices, step 3 in a pipeline: AdamW's three steps by hand."""
    right, saved = three_steps(lab, "plain"), lab.at("layouts.saved")
    lab.run(lab.compile(**ADAMW), "--load", lab.weights_of("plain")[1], "--steps", "3", "--stop-at", "1", "--save",
            saved)
    for stop, more in (("2", {"mesh.data": 2, "mesh.tensor": 2, "mesh.zero": 1, "microbatches": 2}),
                       ("3", dict(schedule="zb_v", ranks=2))):
        lab.run(lab.compile(**ADAMW | more), "--resume", saved, "--stop-at", stop, "--save", saved)
    tensors = harness.read_safetensors(saved + "/model.safetensors")
    worst = max(difference(tensors[name][1], its) for name, its in right.items())
    need(worst < 1e-9, f"off by {worst:.1e}")
    return f"weights after three steps in three layouts as by hand ({worst:.0e})"


@case
def half_written_checkpoint(lab):
    """A file of a checkpoint is cut, or one byte is another: nothing goes on from it in silence."""
    program, saved = lab.compile(), lab.at("half.saved")
    lab.run(program, "--steps", "2", "--save", saved)
    need(saves.damage(saved) == "", saves.damage(saved))
    found = []
    for name, change in (("model.safetensors", lambda text: text[:-9]), ("optimizer.safetensors", flipped),
                         ("state.json", flipped)):
        broken = lab.at("half.broken")
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(saved, broken)
        with open(os.path.join(broken, name), "rb") as file:
            text = file.read()
        with open(os.path.join(broken, name), "wb") as file:
            file.write(change(text))
        found.append(lab.refused(program, name, "--resume", broken))
    return f"refused by name: {', '.join(found)}"


def flipped(text):
    middle = len(text) // 2
    return text[:middle] + bytes([text[middle] ^ 1]) + text[middle + 1:]


@case
def checkpoint_of_two_steps(lab):
    """What is written behind the steps is the state of its step, not of the steps that run meanwhile."""
    program, saved, alone = lab.compile(**ADAMW | dict(schedule="1f1b", ranks=2)), lab.at("steps"), lab.at("alone")
    begin = ["--load", lab.weights_of("plain")[1], "--steps", "5"]
    lab.run(program, *begin, "--save", saved, "--save-every", "1", "--keep", "5")
    for step in (1, 3):
        shutil.rmtree(alone, ignore_errors=True)
        lab.run(program, *begin, "--stop-at", str(step), "--save", alone)
        need(saves.step_of(f"{saved}.step-{step}") == step, f"step {step} has another number")
        for name in ("model.safetensors", "optimizer.safetensors"):
            with open(f"{saved}.step-{step}/{name}", "rb") as one, open(os.path.join(alone, name), "rb") as other:
                need(one.read() == other.read(), f"{name} of step {step} differs")
    return "checkpoints of steps 1 and 3 have the bits of runs that ended there"


@case
def save_that_fails(lab):
    """No file may be longer than 4096 bytes: the run ends and says so, and the checkpoint before stays whole."""
    program, saved = lab.compile(**ADAMW), lab.at("fails.saved")
    lab.run(program, "--load", lab.weights_of("plain")[1], "--steps", "9", "--stop-at", "1", "--save", saved)
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4096, 4096))
    done = lab.run(program, "--resume", saved, "--save", saved, "--save-every", "1", expect=None, preexec_fn=limit)
    need(done.returncode == 2 and "pp: error: " in done.stderr, f"ended with {done.returncode}: {done.stderr}")
    need(saves.damage(saved) == "" and saves.step_of(saved) == 1, f"damage: {saves.damage(saved)}")
    return f"ends with code 2: `{done.stderr.strip().splitlines()[-1]}`"


@case
def masters_lost_on_resume(lab):
    """bf16: steps are too small for the weights, so only masters of f32 move; a resumed run has all their bits."""
    values = dict(precision="bf16", lr=1e-4, min_lr=1)
    program, whole, parts = lab.compile(**values), lab.at("whole.saved"), lab.at("parts.saved")
    lab.run(program, "--seed", "2", "--steps", "4", "--save", whole)
    lab.run(program, "--seed", "2", "--steps", "4", "--stop-at", "2", "--save", parts)
    lab.run(program, "--resume", parts, "--save", parts)
    for name in ("model.safetensors", "optimizer.safetensors"):
        with open(os.path.join(whole, name), "rb") as one, open(os.path.join(parts, name), "rb") as other:
            need(one.read() == other.read(), f"{name} differs")
    return "four steps and two times two steps have the same bits, weights and masters"


@case
def gains_that_cannot_move(lab):
    """AdamW's first step moves a gain by the rate; from 1 bf16 has no number so near. Its master is in f32."""
    rate, saved = 1e-4, lab.at("gains.saved")
    program = lab.compile(precision="bf16", lr=rate, min_lr=1)
    lab.run(program, "--seed", "2", "--steps", "4", "--stop-at", "1", "--save", saved)
    tensors = harness.read_safetensors(saved + "/model.safetensors") | \
        harness.read_safetensors(saved + "/optimizer.safetensors")
    masters = [(name, its) for name, (_, its) in tensors.items() if re.search(r"norm\.weight(\.master)?$", name)]
    moved = {name: max(abs(abs(value - 1) - rate) for value in its) for name, its in masters
             if any(value != 1 for value in its)}
    need(len(moved) == 2 * LAYERS + 1 and max(moved.values()) < 2e-6, f"masters {moved}")
    return f"all gains moved by {rate}; bf16 alone would have left them at 1"


@case
def types_of_weights(lab):
    """Weights in BF16 and F16 files are the numbers that they are; what is saved has the same bits."""
    weights = {name: shape for name, shape in shapes_of("plain").items()}
    for kind in ("BF16", "F16"):
        tensors, path = {}, lab.at("typed.safetensors")
        for name, shape in weights.items():
            values = families.weight_of(name, shape)[1]
            short = [struct.pack("<f", value)[2:] if kind == "BF16" else struct.pack("<e", value) for value in values]
            tensors[name] = shape, b"".join(short)
        write_typed(path, kind, tensors)
        program, saved = lab.compile(), lab.at("typed.saved")
        shutil.rmtree(saved, ignore_errors=True)
        lab.run(program, "--load", path, "--steps", "1", "--lr", "0", "--save", saved)
        read = harness.read_safetensors(path)
        for name, (_, values) in harness.read_safetensors(saved + "/model.safetensors").items():
            need(list(values) == list(read[name][1]), f"{kind}: {name} is other numbers")
    return "BF16 and F16 are read exactly"


def write_typed(path, kind, tensors):
    with open(path, "wb") as file:
        file.write(harness.pack_tensors({name: (kind, *its) for name, its in tensors.items()}))


@case
def weight_that_is_missing(lab):
    tensors = dict(lab.weights_of("plain")[0])
    name = "model.layers.2.mlp.up_proj.weight"
    tensors.pop(name)
    harness.write_safetensors(lab.at("missing.weights"), tensors)
    return "refused: " + lab.refused(lab.compile(), name, "--load", lab.at("missing.weights"))


@case
def weight_that_nobody_reads(lab):
    tensors = lab.weights_of("plain")[0] | {"model.layers.2.mlp.bias": ([1], [0.0])}
    harness.write_safetensors(lab.at("more.weights"), tensors)
    return "refused: " + lab.refused(lab.compile(), "has `model.layers.2.mlp.bias`, which this model does not use",
                                     "--load", lab.at("more.weights"))


CONFIG = dict(model_type="llama", vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
              num_attention_heads=HEADS, num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-5,
              tie_word_embeddings=False, dtype="float64")


def from_folder(lab, said=None, **changes):
    place = lab.at("folder")
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "config.json"), "w") as file:
        json.dump(CONFIG | changes, file, indent=1)
    words = [f"--from-hf={place}", "--schedule=std/single.pipe", "-D", "microbatches=4", "-D", "data.sequence=12",
             "-D", "data.documents=true", "-o", lab.at("folder.program")]
    if said:
        return lab.not_compiled(said, words)
    harness.call([lab.compiler, *words, *harness.RUNTIME])
    return lab.at("folder.program")


@case
def field_that_is_ignored(lab):
    """The factor of rotary positions in config.json changes the loss, and a field that is not known is refused."""
    weights, losses = lab.weights_of("plain")[0], []
    os.makedirs(lab.at("folder"), exist_ok=True)
    harness.write_safetensors(lab.at("folder/model.safetensors"), weights)
    for factor in (1.0, 4.0):
        program = from_folder(lab, rope_parameters=dict(rope_type="linear", factor=factor, rope_theta=10000.0))
        losses.append(lab.step(program, load=False)[0]["loss"])
    right = lab.expected("plain")["loss"]
    need(abs(losses[0] / right - 1) < 1e-12, f"{losses[0]}, expected {right}")
    apart(*losses, 1e-6)
    said = from_folder(lab, "`attn_gate_scale` is no field that family `llama` knows", attn_gate_scale=2.0)
    return f"loss {losses[0]:.6f} with a factor of 1, {losses[1]:.6f} with 4; refused: {said}"


@case
def token_outside_the_vocabulary(lab):
    data = documents.write_dataset(lab.folder, "outside.safetensors", [[1, 2, VOCAB, 3], [1, 2, 3]])
    return "refused: " + lab.refused(lab.compile(), f"is {VOCAB}; the model's vocabulary has {VOCAB}, 0 to {VOCAB - 1}",
                                     "--epochs", "1", data=data)


@case
def adapter_scale(lab):
    """LoRA of rank 2 and alpha 8: what is merged is W + 4 B A, and 8 / sqrt 2 with `rslora`."""
    for more, factor in (({}, 4.0), ({"lora.rslora": "true"}, 8 / math.sqrt(2))):
        options = {"lora.rank": 2, "lora.alpha": 8, "lora.targets": "q_proj"}
        program, saved, merged = lab.compile(**options | dict(lr=0.1) | more), lab.at("lora"), lab.at("merged")
        for path in (saved, merged):
            shutil.rmtree(path, ignore_errors=True)
        lab.run(program, "--load", lab.weights_of("plain")[1], "--steps", "2", "--save", saved, "--merge", merged)
        adapters = {re.search(r"model\.layers.*", name)[0]: its
                    for name, its in harness.read_safetensors(saved + "/adapter_model.safetensors").items()}
        for name, (_, values) in harness.read_safetensors(merged + "/model.safetensors").items():
            wanted = list(lab.weights_of("plain")[0][name][1])
            if "q_proj" in name:
                (_, a), (_, b) = (adapters[name.replace("weight", f"lora_{kind}.weight")] for kind in "AB")
                need(any(b), f"{name} has not learned")
                for i, j in ((i, j) for i in range(HIDDEN) for j in range(HIDDEN)):
                    wanted[i * HIDDEN + j] += factor * sum(b[i * 2 + k] * a[k * HIDDEN + j] for k in range(2))
            need(difference(values, wanted) < 1e-6, f"{name} is off by {difference(values, wanted):.1e}")
    return "merged weights are W + 4 B A, and W + 5.657 B A with rslora"


@case
def tied_saved_twice(lab):
    """A tied table is one tensor of what is saved, also if its uses are on two ranks."""
    program, saved = lab.compile(**{"model.tied": "true", "schedule": "1f1b", "ranks": 2}), lab.at("once.saved")
    lab.run(program, "--load", lab.weights_of("tied")[1], "--steps", "1", "--save", saved)
    names = harness.read_safetensors(saved + "/model.safetensors").keys()
    need(names == shapes_of("tied").keys(), f"saved {sorted(names)}")
    with_head = lab.weights_of("tied")[0] | {"lm_head.weight": families.weight_of("lm_head.weight", [VOCAB, HIDDEN])}
    harness.write_safetensors(lab.at("head.weights"), with_head)
    return "one table is saved; a second one is refused: " + lab.refused(program, "lm_head.weight", "--load",
                                                                          lab.at("head.weights"))


# Updates


@case
def decay_of_gains(lab):
    """No target counts, so all gradients are 0 and AdamW moves weights by their decay alone: matrices, not gains."""
    data = documents.write_dataset(lab.folder, "none.safetensors", TEXTS, [[0] * len(text) for text in TEXTS])
    saved = lab.at("decay.saved")
    for more in ({}, {"mesh.data": 2, "mesh.zero": 1, "microbatches": 2}):
        program = lab.compile(**dict(lr=0.5, weight_decay=0.1, min_lr=1) | more)
        lab.run(program, "--load", lab.weights_of("plain")[1], "--epochs", "1", "--save", saved, data=data)
        for name, (shape, values) in harness.read_safetensors(saved + "/model.safetensors").items():
            factor = 0.95 if len(shape) > 1 else 1
            wanted = [factor * value for value in lab.weights_of("plain")[0][name][1]]
            need(difference(values, wanted) < 1e-12, f"{name} is off by {difference(values, wanted):.1e}")
    return "matrices become 0.95 of what they were, gains of norms stay"


@case
def rate_by_microbatches(lab):
    """Warm-up over two steps and half a cosine over the other six, whatever the microbatches and devices."""
    right = [0.5, 1] + [0.1 + 0.9 * (1 + math.cos(math.pi * step / 6)) / 2 for step in range(1, 7)]
    for more in ({}, {"mesh.data": 2, "microbatches": 2}, dict(microbatches=2, microbatch=2)):
        lines = lab.lines(lab.compile(**dict(warmup=2, lr=0.25) | more), "--steps", "8")
        rates = [line["lr"] / 0.25 for line in lines]
        need(len(rates) == 8 and harness.apart(rates, right) < 1e-12, f"{more}: {rates}")
    program, saved = lab.compile(warmup=2, lr=0.25), lab.at("rate.saved")
    lab.run(program, "--steps", "8", "--stop-at", "3", "--save", saved)
    rates = [line["lr"] / 0.25 for line in lab.lines(program, "--resume", saved)]
    need(len(rates) == 5 and harness.apart(rates, right[3:]) < 1e-12, f"resumed: {rates}")
    return "eight rates as by hand with 1, 2 and 4 microbatches, 1 and 2 devices, and behind a checkpoint"


@case
def sums_in_16_bits(lab):
    """512 equal microbatches in bf16: a sum in bf16 would stop growing at the 256th."""
    norms = []
    (text,) = drawn((12,))
    for count in (1, 512):
        data = documents.write_dataset(lab.folder, "equal.safetensors", [text] * count)
        program = lab.compile(precision="bf16", microbatches=count, layers=1)
        norms.append(lab.step(program, "--seed", "3", data=data, load=False)[0]["grad_norm"])
    need(abs(norms[1] / norms[0] - 1) < 1e-3, f"norms {norms}")
    return f"norm {norms[0]:.6f} of one, {norms[1]:.6f} of 512; in bf16 it would be half"


@case
def nan_in_silence(lab):
    """A weight that is no number is refused by its name; a loss that is none ends the run; a gradient that overflows
    f16 on one stage of two skips the step on both, and the log says so."""
    def load(program, name, number, *options, **more):
        tensors = dict(lab.weights_of("plain")[0])
        tensors[name] = tensors[name][0], [number, *tensors[name][1][1:]]
        harness.write_safetensors(lab.at("nan.weights"), tensors)
        return lab.run(program, "--load", lab.at("nan.weights"), *options, expect=None, **more)
    name = "model.layers.1.self_attn.o_proj.weight"
    done = load(lab.compile(), name, math.nan)
    need(done.returncode == 1 and name in done.stderr, done.stderr)
    for where, loss in (("lm_head.weight", "inf"), ("model.norm.weight", "nan")):
        done = load(lab.compile(), where, 1e308, "--steps", "2")
        need(done.returncode == 1 and f"the loss of step 1 is {loss};" in done.stderr, done.stderr)
    program = lab.compile(precision="f16", schedule="1f1b", ranks=2, clip=1.0, **{"optimizer.loss_scale": 2 ** 24})
    log, saved = lab.at("nan.jsonl"), lab.at("nan.saved")
    done = load(program, name, 0.25, "--steps", "2", "--log", log, "--save", saved)
    need(done.returncode == 0 and all(line["skipped"] for line in harness.read_log(log)), done.stderr)
    kept = harness.read_safetensors(saved + "/optimizer.safetensors")
    need(not any(any(values) for key, (_, values) in kept.items() if key.endswith((".m", ".v"))), "the state differs")
    said = [line for line in (done.stdout + done.stderr).splitlines() if "skipped" in line]
    return f"refused by name; ended; two steps skipped, which the run says: `{said[-1].strip()}`"


@case
def dead_after_overflow(lab):
    """Not excluded: a square that overflows makes a norm's output 0, so the loss is log V and all gradients are 0."""
    tensors = dict(lab.weights_of("plain")[0])
    name = "model.layers.3.mlp.down_proj.weight"
    tensors[name] = tensors[name][0], [1e200] * HIDDEN * FFN
    harness.write_safetensors(lab.at("dead.weights"), tensors)
    line, _ = lab.step(lab.compile(), "--load", lab.at("dead.weights"), load=False)
    need(abs(line["loss"] - math.log(VOCAB)) < 1e-12 and line["grad_norm"] == 0, str(line))
    return "the log has a loss of log V and a `grad_norm` of 0; nothing else is said"


@case
def muon_on_shards(lab):
    for more in ({"mesh.tensor": 2}, {"mesh.data": 2, "mesh.zero": 1}):
        lab.not_compiled('`muon` needs whole matrices, and "model.layers.0.self_attn.q_proj.weight" is cut over',
                         optimizer="muon", **more)
    return "refused: `muon` needs whole matrices"


@case
def dropout_everywhere(lab):
    """Two equal rows get other zeros, and what a row gets does not depend on devices or on recomputing."""
    (text,) = drawn((12,))
    data = documents.write_dataset(lab.folder, "equal.safetensors", [text] * 4)
    sizes = GPT2 | {f"model.{part}_rate": 0.3 for part in ("embed", "residual", "attention")}
    runs = [lab.step(lab.compile(**sizes | more), "--seed", "4", data=data, load=False)
            for more in ({}, {"mesh.data": 2, "microbatches": 2}, {"mesh.tensor": 2, "mesh.context": 2},
                         dict(schedule="1f1b_recompute", ranks=2))]
    one = documents.write_dataset(lab.folder, "one.safetensors", [text])
    single = lab.step(lab.compile(**sizes | dict(microbatches=1)), "--seed", "4", data=one, load=False)
    for line, gradients in runs[1:]:
        worst = max(difference(gradients[name], its) for name, its in runs[0][1].items())
        need(worst < 1e-9 and abs(line["loss"] / runs[0][0]["loss"] - 1) < 1e-12, f"off by {worst:.1e}")
    apart(runs[0][0]["loss"], single[0]["loss"], 1e-6)
    return f"loss {runs[0][0]['loss']:.6f} of four equal rows everywhere, {single[0]['loss']:.6f} of the first alone"


# Sizes and positions


@case
def heads_that_do_not_divide(lab):
    return "refused: " + lab.not_compiled("heads", heads=4, kv_heads=3)


@case
def vocabulary_that_does_not_divide(lab):
    """17 tokens over 2 and 4 devices: what fills the table up is no token."""
    right = lab.expected("odd")
    for more in ({"mesh.tensor": 2}, dict(schedule="1f1b_vocabulary", ranks=2)):
        lab.same("odd", **more)
    return f"loss {right['loss']:.6f} and all gradients with a vocabulary of 17 on 2 devices"


@case
def window_off_by_one(lab):
    """A window of 4 is 4 keys, the token itself among them; 5 keys would be another loss."""
    right = lab.expected("window")
    VARIANTS["wider"] = VARIANTS["window"][0], dict(window=5)
    wrong = lab.expected("wider")["loss"]
    apart(right["loss"], wrong, 1e-5)
    for more in ({}, dict(schedule="slimpipe", slices=4, ranks=2)):
        lab.same("window", **more)
    return f"loss {right['loss']:.6f}; with 5 keys {wrong:.6f}"


@case
def rotary_positions_in_16_bits(lab):
    """bf16 has no odd numbers above 256: positions that are rounded to it would give other probabilities there."""
    names = [name for name in shapes_of("plain") if "layers" not in name or "layers.0." in name]
    scaled = {name: (shape, [value * (6 if re.search("q_proj|k_proj|v_proj", name) else 1) for value in its])
              for name, (shape, its) in lab.weights_of("plain")[0].items() if name in names}
    harness.write_safetensors(lab.at("rotary.weights"), scaled)
    (text,) = drawn((320,))
    data = documents.write_dataset(lab.folder, "rotary.safetensors", [text])
    program = lab.compile(precision="bf16", layers=1, sequence=320, microbatches=1, **{"model.sliding_window": 6})
    lab.run(program, "--load", lab.at("rotary.weights"), "--lr", "0", "--steps", "1", "--logprobs",
            lab.at("rotary.out"), data=data)
    ours = list(harness.read_safetensors(lab.at("rotary.out"))["logprobs"][1])[256:319]
    plain, short = (chances(scaled, text, rounded) for rounded in (False, True))
    off, fault = (mean([abs(a - b) for a, b in zip(some, plain)]) for some in (ours, short))
    need(off < fault / 4, f"off by {off:.4f}; rounded positions give {fault:.4f}")
    return f"log-probabilities behind token 256 are off by {off:.4f}; with rounded positions it would be {fault:.4f}"


def chances(weights, text, rounded):
    """Log-probabilities of the targets behind token 256, with positions as they are or as bf16 has them."""
    turn = plain_model.turn
    if rounded:
        plain_model.turn = lambda head, position, theta: turn(head, 2 * round(position / 2) if position > 256 else
                                                              position, theta)
    logits, _ = plain_model.Model(weights, HEADS, 1, 1, window=6).document(text)
    plain_model.turn = turn
    return [logits[t][text[t + 1]].value - plain_model.softmax(logits[t])[1].value for t in range(256, 319)]


@case
def evaluation_mean_of_means(lab):
    """What is evaluated in batches of 4 rows and of 1 is the mean over all targets; log-probabilities are the same."""
    right = lab.expected("plain")
    for more in ({}, {"mesh.data": 2, "microbatches": 2}, dict(microbatches=1)):
        (line,) = lab.lines(lab.compile(**more), "--load", lab.weights_of("plain")[1], "--lr", "0", "--steps", "1",
                            "--eval", lab.data)
        need(abs(line["eval_loss"] / right["loss"] - 1) < 1e-12, f"{more}: {line['eval_loss']}")
    lab.run(lab.compile(), "--load", lab.weights_of("plain")[1], "--lr", "0", "--steps", "1", "--logprobs",
            lab.at("chances"))
    loss = -math.fsum(harness.read_safetensors(lab.at("chances"))["logprobs"][1]) / sum(right["counts"])
    need(abs(loss / right["loss"] - 1) < 1e-6, f"log-probabilities: {loss}")
    return f"loss {right['loss']:.6f} in rows one by one, four at a time, and on 2 replicas"


@case
def evaluation_that_trains(lab):
    """A router's bias and dropout see nothing of an evaluation: the bits of the run are the same without it."""
    files = []
    for options in ([], ["--eval", lab.data, "--eval-every", "1"]):
        saved = lab.at("eval.saved")
        shutil.rmtree(saved, ignore_errors=True)
        lab.run(lab.compile(**STEERED), "--steps", "3", "--save", saved, *options)
        with open(saved + "/model.safetensors", "rb") as file:
            files.append(file.read())
    need(files[0] == files[1], "the weights differ")
    return "three steps with an evaluation behind each have the same bits"
