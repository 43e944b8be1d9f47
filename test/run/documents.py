#!/usr/bin/env python3
"""Reads data of documents: rows, targets, starts and divisors against a second implementation, under any schedule."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: documents.py PP_COMPILE FOLDER
import itertools, json, os, random, struct, sys
import data, families, harness
from gradients import difference

SIZES = dict(model="llama", hidden=16, heads=2, kv_heads=1, ffn=24, vocab=256, precision="f64")
# Stages, split backwards, rings of weights, slices, gathered weights, two updates a step, and a vocabulary in shards.
SCHEDULES = (dict(schedule="1f1b"), dict(schedule="zb_v"), dict(schedule="weipipe_interleave"),
             dict(schedule="tawpipe"), dict(schedule="slimpipe", slices=4), dict(schedule="helixpipe"),
             dict(schedule="dualpipe_v"), dict(schedule="fsdp"), dict(schedule="1f1b_vocabulary"),
             dict(schedule="data_parallel"))


def pack(documents, packing, length):
    """Rows of (document, first, count): tokens of a document side by side."""
    rows, row = [], []
    room = length
    for number, size in documents:
        at = 0
        while at < size:
            count = min(length, size - at)
            if packing == "split":
                count = min(count, room)
            elif count > room:
                rows.append(row)
                row, room = [], length
            row.append((number, at, count))
            at, room = at + count, room - count
            if room == 0:
                rows.append(row)
                row, room = [], length
    return rows + [row] if row else rows


def expected_rows(documents, counted, packing, length, seed, epochs, pad=0):
    """All rows of some epochs: tokens, targets, starts and weights of targets."""
    return [row for epoch in range(epochs)
            for row in rows_of(documents, counted, order_of(documents, seed, epoch), packing, length, pad)]


def order_of(documents, seed, epoch):
    order = range(len(documents))
    return list(order) if seed is None else [data.shuffled(seed, epoch, i, len(documents)) for i in order]


def rows_of(documents, counted, order, packing, length, pad=0):
    out = []
    for row in pack([(i, len(documents[i])) for i in order], packing, length):
        tokens, targets, starts, weights = [], [], [], []
        for number, first, count in row:
            document, mask, begin = documents[number], counted[number], len(tokens)
            for t in range(first, first + count):
                ends = t + 1 == len(document) or (packing == "whole" and t + 1 == first + count)
                tokens.append(document[t])
                targets.append(-100 if ends or not mask[t + 1] else document[t + 1])
                weights.append(0 if ends else mask[t + 1])
                starts.append(begin)
        rest = length - len(tokens)
        out.append((tokens + [pad] * rest, targets + [-100] * rest, starts + [len(tokens)] * rest,
                    weights + [0] * rest))
    return out


def write_dataset(folder, name, documents, counted=None):
    tokens = [token for document in documents for token in document]
    bounds = [0, *itertools.accumulate(map(len, documents))]
    parts = {"tokens": ("I32", "i", tokens), "documents": ("I64", "q", bounds)}
    if counted:
        parts["counted"] = counted_part([bit for mask in counted for bit in mask])
    return write_parts(folder, name, parts)


def counted_part(values):
    return ("F32", "f", values) if any(isinstance(value, float) for value in values) else ("U8", "B", values)


def weighted(masks, seed, factor=1):
    """Weights where there was a 1, whose sums have no rounding."""
    draw = random.Random(seed)
    return [[bit * factor * draw.choice((0.125, 0.5, 1.0, 2.75)) for bit in mask] for mask in masks]


def write_parts(folder, name, parts):
    return data.write(folder, name, harness.pack_tensors({
        key: (dtype, [len(values)], struct.pack(f"<{len(values)}{letter}", *values))
        for key, (dtype, letter, values) in parts.items()}))


def random_documents(seed, count, longest):
    draw = random.Random(seed)
    documents = [[draw.randrange(97, 123) for _ in range(draw.choice((0, 1, 2, 5, 11, longest)))]
                 for _ in range(count)]
    return documents, [[int(draw.random() < 0.6) for _ in document] for document in documents]


def read_batches(path):
    out = {}
    for name, (shape, values) in harness.read_safetensors(path).items():
        out[name] = tuple(values) if len(shape) == 1 else [
            list(values[i:i + shape[1]]) for i in range(0, len(values), shape[1])]
    return out


def compiled(compiler, folder, name, **values):
    return harness.compile_train(compiler, os.path.join(folder, name), SIZES | values,
                                 options=["-D", "data.documents=true"])


def check_rows(compiler, folder):
    """Everything that --batches writes, over the ends of epochs, and the empty rows of the last step."""
    length, per_step = 16, 3
    program = compiled(compiler, folder, "rows", schedule="single", microbatches=3, microbatch=1, layers=1,
                       sequence=length)
    cases = 0
    for seed, (count, longest) in enumerate(((1, 16), (9, 40), (30, 17), (4, 3))):
        documents, counted = random_documents(seed, count, longest)
        if not any(documents):
            documents[0], counted[0] = [100, 101], [1, 1]
        everything = [[1] * len(document) for document in documents]
        mega = data.megatron(folder, f"mega{seed}", documents, 4, "i")
        weights = weighted(counted, seed)
        for path, mask in ((write_dataset(folder, "masked.safetensors", documents, counted), counted),
                           (write_dataset(folder, "weighted.safetensors", documents, weights), weights),
                           (write_dataset(folder, "plain.safetensors", documents), everything), (mega, everything)):
            for packing, shuffle in itertools.product(("whole", "split"), (False, True)):
                out = os.path.join(folder, "batches.safetensors")
                harness.call([program, "--in-process", "--data", path, "--pack", packing, "--epochs", "3", "--seed",
                              "5", *(["--shuffle"] if shuffle else []), "--batches", out])
                got = read_batches(out)
                rows = expected_rows(documents, mask, packing, length, 5 if shuffle else None, 3)
                steps = -(-len(rows) // per_step)
                rows += [([0] * length, [-100] * length, [0] * length, [0] * length)] * (steps * per_step - len(rows))
                check_columns(got, rows, mask is weights, f"{path} {packing} {shuffle}")
                divisors = [sum(weight for row in rows[i:i + per_step] for weight in row[3]) or 1
                            for i in range(0, len(rows), per_step)]
                assert list(got["divisor"]) == divisors, f"{path} {packing}: {got['divisor']}, expected {divisors}"
                cases += 1
    assert cases == 64


def check_columns(got, rows, has_weights, said):
    names = ["tokens", "targets", "starts"] + ["weights"] * has_weights
    assert sorted(got) == sorted([*names, "divisor"]), f"{said}: {sorted(got)}"
    for column, name in enumerate(names):
        assert got[name] == [row[column] for row in rows], f"{said}: {name}"


def check_mixture(compiler, folder):
    """Rows of two datasets by weight, over the ends of the epochs of both; the targets of one have weights, too."""
    program, steps, length = os.path.join(folder, "rows"), 20, 16
    parts = [list(random_documents(seed, count, 40)) for seed, count in ((11, 13), (12, 9))]
    parts[1][1] = weighted(parts[1][1], 1)
    lines = [f"{weight} {os.path.basename(write_dataset(folder, f'mixed{i}.safetensors', *parts[i]))}"
             for i, weight in enumerate(("1.5", "2.25"))]
    mix = "mix:" + data.write(folder, "mix", "\n".join(lines).encode())
    for packing, shuffle in itertools.product(("whole", "split"), (False, True)):
        rows = [expected_rows(*part, packing, length, 5 + i if shuffle else None, 20) for i, part in enumerate(parts)]
        order = data.drawn(("1.5", "2.25"), 3 * steps)
        assert all(max(row for source, row in order if source == i) > len(rows[i]) // 20 for i in range(2)), "epochs"
        expected = [rows[source][row] for source, row in order]
        out = os.path.join(folder, "batches.safetensors")
        harness.call([program, "--in-process", "--data", mix, "--pack", packing, "--steps", str(steps), "--seed", "5",
                      *(["--shuffle"] if shuffle else []), "--batches", out])
        got = read_batches(out)
        check_columns(got, expected, True, f"mixture, {packing} {shuffle}")
        divisors = [sum(weight for row in expected[i:i + 3] for weight in row[3]) or 1 for i in range(0, 3 * steps, 3)]
        assert list(got["divisor"]) == divisors, f"mixture, {packing}: divisors"
    plain = data.write(folder, "plain.txt", b"no documents " * 9)
    mix = "mix:" + data.write(folder, "mix", f"1 mixed0.safetensors\n1 {os.path.basename(plain)}".encode())
    done = harness.call([program, "--in-process", "--data", mix], expect=1)
    assert "plain.txt` has no documents, and" in done.stderr, done.stderr


def check_stream(compiler, folder):
    """A stream has no ends; what counts still counts."""
    tokens = [97 + i % 20 for i in range(50)]
    counted = [int(i % 3 == 0) for i in range(50)]
    path = write_parts(folder, "stream.safetensors", {"tokens": ("U16", "H", tokens), "counted": ("U8", "B", counted)})
    program = compiled(compiler, folder, "stream", schedule="single", microbatches=2, microbatch=1, layers=1,
                       sequence=8)
    out = os.path.join(folder, "stream.batches")
    harness.call([program, "--in-process", "--data", path, "--steps", "2", "--batches", out])
    got = read_batches(out)
    assert got["tokens"] == [tokens[i:i + 8] for i in range(0, 32, 8)]
    targets = [[tokens[t + 1] if counted[t + 1] else -100 for t in range(i, i + 8)] for i in range(0, 32, 8)]
    assert got["targets"] == targets and got["starts"] == [[0] * 8] * 4
    assert list(got["divisor"]) == [sum(target >= 0 for row in targets[i:i + 2] for target in row) for i in (0, 2)]


def train(program, path, ranks, *options, transport="threads"):
    grads, log, saved = program + ".grads", program + ".jsonl", program + ".saved"
    harness.call([*harness.launch(program, ranks, transport), "--data", path, "--steps", "3", "--shuffle", "--grads",
                  grads, "--log", log, "--save", saved, *options])
    weights = harness.read_safetensors(os.path.join(saved, "model.safetensors"))
    return harness.read_safetensors(grads), harness.read_log(log), weights


def check_schedule(compiler, folder, references, values):
    """Microbatches with unlike numbers of targets, one of them with none: the same loss and gradients everywhere, also
    where targets have weights."""
    ranks = 2 if values["schedule"] in ("zb_v", "dualpipe_v") else 4
    name = "_".join(map(str, values.values()))
    program = compiled(compiler, folder, name, ranks=ranks, **COMMON, **values)
    for path, reference in references.items():
        compare(train(program, path, ranks), reference)


def compare(trained, reference):
    gradients, log, weights = trained
    for line, other in zip(log, reference[1]):
        for name in ("tokens", "weight"):
            assert line.get(name) == other.get(name), f"{name}: {line.get(name)}, expected {other.get(name)}"
        assert abs(line["loss"] - other["loss"]) <= 1e-12 * other["loss"], f"loss {line['loss']}, {other['loss']}"
    for mine, others, limit in ((gradients, reference[0], 1e-10), (weights, reference[2], 1e-9)):
        assert mine.keys() == others.keys()
        for tensor, (_, values) in mine.items():
            wanted = others[tensor][1]
            most = max(map(abs, wanted))
            error = harness.apart(values, wanted)
            assert error <= limit * most + 1e-15, f"{tensor}: {error} of {most}"


def bits(trained):
    """What must not differ in one bit."""
    gradients, log, weights = trained
    return [(line["loss"], line["grad_norm"], line["tokens"]) for line in log], gradients, weights


def check_weights(compiler, folder):
    """Weights of 0 and 1 are what counts and what does not, and twice the weights are the same ones, to the bit."""
    documents, counted = random_documents(7, 40, 30)
    files = [write_dataset(folder, f"weights{i}.safetensors", documents, masks) for i, masks in enumerate((
        counted, [list(map(float, mask)) for mask in counted], weighted(counted, 2), weighted(counted, 2, 2)))]
    sizes = dict(microbatches=4, microbatch=2, layers=4, sequence=16)
    for values in (dict(schedule="single", precision="f32"), dict(schedule="1f1b_vocabulary", ranks=4, precision="f32"),
                   dict(schedule="zb_v", ranks=2, precision="bf16"), {"schedule": "1f1b", "ranks": 2, "mesh.data": 2},
                   dict(schedule="gpipe_offload", ranks=2)):
        program = compiled(compiler, folder, "_".join(map(str, values.values())), **sizes | values)
        got = [train(program, path, 1) for path in files]
        assert bits(got[0]) == bits(got[1]), f"{values}: weights of 0 and 1"
        assert bits(got[2]) == bits(got[3]), f"{values}: twice the weights"
        assert bits(got[0]) != bits(got[2]), f"{values}: weights change nothing"
        for line, twice in zip(got[2][1], got[3][1]):
            assert 2 * line["weight"] == twice["weight"] and "weight" not in got[0][1][0], (line, twice)
    if harness.RUNTIME:  # on a device with streams and memory of the host, where steps are replayed as graphs
        compare(train(program, files[2], 2, transport="streams/5"), got[2])


COMMON = dict(microbatches=8, microbatch=2, layers=8, sequence=16, ffn=24, heads=4, kv_heads=4)


def check_sums(compiler, folder):
    """Losses and gradients of targets that are counted here or there add up to those where all count; where weights
    are given, so many times each."""
    draw = random.Random(3)
    tokens = [draw.randrange(97, 123) for _ in range(33)]
    here = [int(draw.random() < 0.4) for _ in tokens]
    program = compiled(compiler, folder, "sums", schedule="single", microbatches=2, microbatch=2, layers=1, sequence=8)
    sums, losses = [], []
    for mask in (here, [1 - bit for bit in here], [1] * len(tokens), [3.0 if bit else 0.25 for bit in here]):
        path = write_parts(folder, "part.safetensors", {"tokens": ("I32", "i", tokens), "counted": counted_part(mask)})
        grads, log = os.path.join(folder, "part.grads"), os.path.join(folder, "part.jsonl")
        harness.call([program, "--in-process", "--data", path, "--steps", "1", "--grads", grads, "--log", log])
        (line,) = harness.read_log(log)
        assert line["tokens"] == sum(map(bool, mask[1:])), f"{line['tokens']} targets of {mask}"
        weight = sum(mask[1:])
        assert line.get("weight", line["tokens"]) == weight, f"{line}, expected the weight {weight}"
        losses.append(line["loss"] * weight)
        sums.append({name: [value * weight for value in values]
                     for name, (_, values) in harness.read_safetensors(grads).items()})
    for number, factors in ((2, (1, 1)), (3, (3, 0.25))):
        assert abs(factors[0] * losses[0] + factors[1] * losses[1] - losses[number]) < 1e-11 * losses[number], losses
        for name, whole in sums[number].items():
            most = max(map(abs, whole))
            for a, b, c in zip(sums[0][name], sums[1][name], whole):
                assert abs(factors[0] * a + factors[1] * b - c) <= 1e-11 * most, f"{name}: {a} and {b}, expected {c}"
    plain = harness.compile_train(compiler, os.path.join(folder, "uncounted"), SIZES | dict(
        schedule="single", microbatches=2, microbatch=2, layers=1, sequence=8))
    path = write_parts(folder, "whole.safetensors", {"tokens": ("I32", "i", tokens)})
    log = os.path.join(folder, "plain.jsonl")
    harness.call([plain, "--in-process", "--data", path, "--steps", "1", "--log", log])
    (line,) = harness.read_log(log)
    assert abs(line["loss"] * 32 - losses[2]) < 1e-11 * losses[2], "all targets count: the mean over all tokens"


# Rows of one document each, so that their models need not tell documents apart; qwen3 has a padding token.
LABELLED = {"llama": "1f1b.pipe", "gpt2": "zb_v.pipe:zb_v", "qwen3": "weipipe.pipe:weipipe_interleave",
            "gemma2": "slimpipe.pipe", "gemma3": "tawpipe.pipe", "olmo3": "helixpipe.pipe"}


def labelled():
    """Documents that fill more than half of a row, and which of their tokens count."""
    documents, at = [], 0
    for row in range(families.ROWS):
        size = families.SEQUENCE - row
        documents.append(list(families.TEXT[at:at + size]))
        at += size
    bits = iter(families.noise("counted", at))
    return documents, [[int(next(bits) > 0.2) for _ in document] for document in documents]


def check_labels(compiler, folder, tally):
    """Loss and gradients of transformers with labels of -100 and num_items_in_batch (documents_oracle.py)."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs", "documents.json")) as file:
        expected = json.load(file)
    judge = families.Judge(compiler, folder, ["-D", "data.documents=true"])
    judge.text = write_dataset(folder, "labelled.safetensors", *labelled())
    for variant, schedule in LABELLED.items():
        judge.judge(tally, variant, schedule, expected[variant])


# Scans whose decays differ from column to column beside latent attention.
CHANNELS = {"model": "latent", "model.scans": "[1, 0, 1, 1]", "model.scan_heads": 3, "model.scan_dim": 5,
            "model.plain": "[1]"}
# Programs for rows with several documents: several schedules, windows by layer, and learned positions.
TOGETHER = (dict(schedule="single"), dict(schedule="1f1b", model="gpt2"), dict(schedule="zb_v"),
            dict(schedule="weipipe_interleave"), dict(schedule="tawpipe", model="gpt2"),
            dict(schedule="slimpipe", slices=4), {"schedule": "slimpipe", "slices": 4, "exchange": "true"},
            {"schedule": "slimpipe", "slices": 4, "model.windows": "[0, 5, 5, 0]"}, dict(schedule="helixpipe"),
            {"schedule": "1f1b", "model.sliding_window": 3}, dict(schedule="1f1b_vocabulary", model="gpt2"),
            dict(schedule="ring_attention"),
            {"schedule": "weipipe_interleave", "model": "gemma", "model.windows": "[0, 5, 5, 0]",
             "model.score_cap": 2, "model.logit_cap": 3, "model.qk": "rms"},
            {"schedule": "1f1b_vocabulary", "model": "gemma", "model.sliding_window": 3, "model.logit_cap": 2},
            {"schedule": "slimpipe", "slices": 4, "model": "olmo", "model.windows": "[0, 5, 5, 0]"},
            {"schedule": "zb_v", "model": "delta", "model.experts": 0},
            {"schedule": "slimpipe", "slices": 5, "exchange": "true", "model": "delta", "model.experts": 0},
            dict(schedule="terapipe", slices=7, model="mamba"),
            dict(schedule="weipipe_interleave", model="mamba"),
            {"schedule": "fsdp", "model": "lfm2", "model.shorts": "[1, 0, 1, 1]"},
            {"schedule": "zb_v", "model": "delta", "model.experts": 0, "mesh.context": 2},
            {"schedule": "1f1b", "model": "mamba", "mesh.context": 2, "mesh.attention": "heads"},
            {"schedule": "zb_v", **CHANNELS}, {"schedule": "slimpipe", "slices": 5, **CHANNELS},
            {"schedule": "terapipe", "slices": 7, **CHANNELS},
            {"schedule": "weipipe_interleave", "model": "latent", "model.twice": "true", "model.identity": 2,
             "model.balance": 0, "model.z": 0})


def check_alone(compiler, folder, tally):
    """Loss and gradients of documents side by side in rows are those of the documents alone, each in a row."""
    draw = random.Random(9)
    documents = [[draw.randrange(97, 123) for _ in range(draw.randint(9, 16))] for _ in range(16)]
    path = write_dataset(folder, "together.safetensors", documents)
    sizes = dict(microbatches=16, microbatch=1, layers=4)

    def step(name, **values):
        program = compiled(compiler, folder, name, **sizes | values)
        grads, log = program + ".grads", program + ".jsonl"
        harness.call([*harness.launch(program, values.get("ranks", 1), "threads"), "--data", path, "--epochs", "1",
                      "--grads", grads, "--log", log])
        (line,) = harness.read_log(log)
        return line, {name: values for name, (_, values) in harness.read_safetensors(grads).items()}

    for number, values in enumerate(TOGETHER):
        model = {name: value for name, value in values.items() if name.startswith("model")}
        ranks = {} if values["schedule"] == "single" else dict(ranks=2 if values["schedule"] == "zb_v" else 4)
        alone, expected = step("alone", schedule="single", sequence=16, **model)
        together, got = step(f"together{number}", sequence=48, **values | ranks)
        drift = abs(alone["loss"] - together["loss"]) / alone["loss"]
        worst, _ = difference(got, expected)
        said = " ".join(f"{name} {value}" for name, value in values.items())
        same = alone["tokens"] == together["tokens"]
        tally.check(same and drift < 1e-12 and worst < 1e-9, f"together {said}: loss {drift:.1e} gradients {worst:.1e}")


def check_further(compiler, folder, text, tally):
    """Losses over targets some places on are means over those that count: of a stream as without documents, which
    mtp.py judges; and of documents side by side as of each alone in a row."""
    models = [os.path.join(harness.ROOT, "stdlib", "models", name + ".pipe") for name in ("llama_mtp", "llama_mtp2")]
    source = harness.add_models(folder, *models)
    draw = random.Random(4)
    rows = [[draw.randrange(97, 123) for _ in range(size)] for size in (16, 9, 2, 11, 5, 1, 13, 16)]
    masks = weighted([[int(draw.random() < 0.7) for _ in row] for row in rows], 5)
    path = write_dataset(folder, "further.safetensors", rows, masks)

    def step(name, data_path, option, **values):
        program = harness.compile_train(compiler, os.path.join(folder, name), SIZES | dict(
            microbatch=1, layers=4, schedule="single") | values, source, ["-D", f"data.documents={option}"])
        grads, log = program + ".grads", program + ".jsonl"
        more = ["--steps", "1"] if data_path == text else ["--epochs", "1"]
        harness.call([program, "--in-process", "--data", data_path, *more, "--grads", grads, "--log", log])
        (line,) = harness.read_log(log)
        return line, {name: values for name, (_, values) in harness.read_safetensors(grads).items()}

    def compare(said, mine, others):
        drift = harness.apart(*([line[name] for name in ("loss", "mtp")] for line, _ in (mine, others)))
        worst, _ = difference(mine[1], others[1])
        tally.check(drift < 1e-12 and worst < 1e-10, f"{said}: losses off by {drift:.1e}, gradients by {worst:.1e}")

    for model in ("llama_mtp", "llama_mtp2"):
        plain, counted = (step(f"{model}{option}", text, option, model=model, microbatches=2, sequence=16)
                          for option in ("false", "true"))
        compare(f"{model} of a stream", counted, plain)
        alone = step(model + "alone", path, "true", model=model, microbatches=8, sequence=16)
        for number, values in enumerate((dict(microbatches=4, sequence=32), dict(microbatches=2, sequence=48, ranks=2,
                                                                                schedule="zb_v"))):
            compare(f"{model} {values}", step(f"{model}{number}", path, "true", model=model, **values), alone)


def check_resume(compiler, folder, other, path):
    """A run over the ends of epochs stops and resumes to the same bits; another packing does not pass unseen, nor do
    other weights."""
    program = compiled(compiler, folder, "resumed", schedule="1f1b", ranks=4, **COMMON)
    whole, part = os.path.join(folder, "whole"), os.path.join(folder, "part")
    common = [program, "--in-process", "--data", path]
    harness.call([*common, "--shuffle", "--pack", "split", "--epochs", "5", "--save", whole])
    harness.call([*common, "--shuffle", "--pack", "split", "--epochs", "5", "--stop-at", "2", "--save", part])
    done = harness.call([*common, "--resume", part, "--pack", "whole"], expect=1)
    assert "the data was packed `split` and is packed `whole`" in done.stderr, done.stderr
    done = harness.call([program, "--in-process", "--data", other, "--resume", part], expect=1)
    assert "the data was" in done.stderr, done.stderr
    harness.call([*common, "--resume", part, "--epochs", "5", "--save", part])
    for name in ("model.safetensors", "optimizer.safetensors"):
        with open(os.path.join(whole, name), "rb") as a, open(os.path.join(part, name), "rb") as b:
            assert a.read() == b.read(), name


def rows_behind(documents, counted, seed, packing, length, count, longer, epochs):
    """The rows of `longer` tokens that follow `count` rows of `length` until the end of an epoch: documents go on at
    the token that is next."""
    for epoch in range(epochs):
        order = order_of(documents, seed, epoch)
        rows = pack([(i, len(documents[i])) for i in order], packing, length)
        if count < len(rows):
            break
        count -= len(rows)
    number, at, _ = rows[count][0]
    left = [len(documents), *order[order.index(number) + 1:]]
    out = rows_of(documents + [documents[number][at:]], counted + [counted[number][at:]], left, packing, longer)
    for following in range(epoch + 1, epochs):
        out += rows_of(documents, counted, order_of(documents, seed, following), packing, longer)
    return out


def check_shape(compiler, folder):
    """A run goes on with longer sequences and more of them, at the next token of its data, and so when it resumes."""
    program = os.path.join(folder, "rows")  # 3 sequences of 16 tokens a step
    longer = compiled(compiler, folder, "longer", schedule="single", microbatches=2, microbatch=2, layers=1,
                      sequence=24)
    saved, out = os.path.join(folder, "shape"), os.path.join(folder, "shape.batches")
    documents, counted = random_documents(4, 31, 60)
    path = write_dataset(folder, "shape.safetensors", documents, counted)

    def batches(expected, what):
        got = read_batches(out)
        expected = expected + [([0] * 24, [-100] * 24, [0] * 24)] * 4
        for column, name in enumerate(("tokens", "targets", "starts")):
            assert got[name] == [row[column] for row in expected[:len(got[name])]], f"{what}: {name}"
        return len(got["tokens"])

    for packing, shuffle, steps in itertools.product(("whole", "split"), (False, True), (2, 7)):
        seed, what = 5 if shuffle else None, f"{packing} {shuffle} {steps}"
        harness.call([program, "--in-process", "--data", path, "--pack", packing, "--steps", "9", "--stop-at",
                      str(steps), "--seed", "5", *(["--shuffle"] if shuffle else []), "--save", saved])
        common = [longer, "--in-process", "--data", path, "--resume", saved]
        done = harness.call(common, expect=1)
        assert "tokens a sequence were 16 and are 24; with `--changed shape`" in done.stderr, done.stderr
        expected = rows_behind(documents, counted, seed, packing, 16, 3 * steps, 24, 4)
        harness.call([*common, "--changed", "shape", "--epochs", "4", "--batches", out])
        assert batches(expected, what) == -(-len(expected) // 4) * 4, what
        harness.call([*common, "--changed", "shape", "--stop-at", str(steps + 1), "--save", saved])
        harness.call([*common, "--epochs", "4", "--batches", out])
        batches(expected[4:], what + ", resumed again")
        with open(os.path.join(saved, "state.json")) as file:
            state = json.load(file)
        assert (state["sequences"], state["tokens"]) == (3 * steps + 4, 3 * steps * 16 + 4 * 24), state


def check_end(compiler, folder):
    """`--epochs` is the checkpoint's: the last step of a run that resumes has no rows of the next epoch."""
    documents = [[97 + (7 * i + j) % 26 for j in range(16)] for i in range(13)]
    path = write_dataset(folder, "end.safetensors", documents)
    program = compiled(compiler, folder, "end", schedule="single", microbatches=2, microbatch=2, layers=1, sequence=16)
    logs, saved = [], os.path.join(folder, "end.saved")
    for number, options in enumerate((["--epochs", "1"], ["--epochs", "1", "--stop-at", "2", "--save", saved],
                                      ["--resume", saved])):
        log = os.path.join(folder, f"end{number}.log")
        if os.path.exists(log):
            os.remove(log)
        harness.call([program, "--in-process", "--data", path, "--log", log, *options])
        logs.append([[line[key] for key in ("step", "tokens", "loss", "lr", "grad_norm")]
                     for line in harness.read_log(log)])
    assert [line[1] for line in logs[0]] == [60, 60, 60, 15] and logs[1] + logs[2] == logs[0], logs


def check_updates(compiler, folder):
    """The loss of a step with two updates is that of all its targets, also if one update has none."""
    tokens = [97 + i * i % 26 for i in range(65)]
    counted = [int(i < 20 and i % 3 > 0) for i in range(65)]
    programs = [compiled(compiler, folder, name, layers=2, microbatches=4, microbatch=1, sequence=16, **values)
                for name, values in (("updates", dict(schedule="pipedream_2bw", ranks=2)),
                                     ("one_update", dict(schedule="single")))]
    for masks in ([counted], weighted([counted], 6), weighted([[1] * 65], 6)):
        path = write_parts(folder, "updates.safetensors", {"tokens": ("U16", "H", tokens),
                                                           "counted": counted_part(masks[0])})
        losses = []
        for program in programs:
            log = program + ".jsonl"
            harness.call([program, "--in-process", "--data", path, "--steps", "1", "--lr", "0", "--log", log])
            losses += [(line["loss"], line["tokens"]) for line in harness.read_log(log)]
        assert losses[0][1] == losses[1][1] == sum(map(bool, masks[0][1:])), losses
        assert abs(losses[0][0] / losses[1][0] - 1) < 1e-12, losses


def check_refused(compiler, folder, text):
    program = compiled(compiler, folder, "refused", schedule="1f1b", ranks=2, microbatches=2, microbatch=1, layers=2,
                       sequence=8)
    plain = harness.compile_train(compiler, os.path.join(folder, "plain"), SIZES | dict(
        schedule="single", microbatches=2, microbatch=1, layers=1, sequence=8))
    tokens = ("I32", "i", [97] * 40)

    def parts(name, **more):
        return write_parts(folder, name, {"tokens": tokens} | more)

    for path, expected in (
        (parts("a.safetensors", documents=("I64", "q", [0, 30])), "go from 0 to 30; expected 0 to 40"),
        (parts("b.safetensors", documents=("I64", "q", [0, 30, 20, 40])), "fall from 30 to 20 at document 1"),
        (parts("c.safetensors", documents=("I32", "i", [0, 40])), "are I32 of 1 dimensions; expected I64"),
        (parts("d.safetensors", documents=("I64", "q", [])), "go from 0 to 0; expected 0 to 40"),
        (parts("e.safetensors", counted=("U8", "B", [1] * 39)), "are 39 values of type U8; expected 40"),
        (parts("i.safetensors", counted=("F32", "f", [1] * 41)), "are 41 values of type F32; expected 40 of type U8 or "
         "F32, one for each token"),
        (parts("j.safetensors", counted=("F64", "d", [1] * 40)), "are 40 values of type F64; expected 40 of type U8"),
        (parts("k.safetensors", counted=("F32", "f", [1] * 38 + [-0.5, 1])), "`counted` of `" + os.path.join(
            folder, "k.safetensors") + "` has -0.5 at token 38; expected a weight of at least 0 that is finite"),
        (parts("l.safetensors", counted=("F32", "f", [float("nan")] * 40)), "has nan at token 0; expected a weight"),
        (parts("m.safetensors", counted=("F32", "f", [1] * 39 + [float("inf")])), "has inf at token 39; expected a"),
        (parts("f.safetensors", counted=("U8", "B", [1] * 39 + [2])), "has 2 at token 39; expected 0 or 1"),
        (parts("g.safetensors", weights=("F32", "f", [1.0] * 40)), "has `weights`"),
        (data.megatron(folder, "marks", [[97] * 20] * 2, 4, "i", marks=[0, 2, 1]), "mark 2 of"),
        (data.megatron(folder, "last", [[97] * 20] * 2, 4, "i", marks=[0, 1]), "mark 1 of")):
        done = harness.call([program, "--in-process", "--data", path], expect=1)
        assert expected in done.stderr, f"{path}: {done.stderr}"
    good = parts("h.safetensors", documents=("I64", "q", [0, 40]))
    many = write_parts(folder, "many.safetensors", {"tokens": ("I32", "i", [97] * 2100),
                                                    "documents": ("I64", "q", list(range(2101)))})
    for options, expected in ((["--data", text, "--pack", "whole"], "has no documents"),
                              (["--data", many, "--shuffle", "--epochs", "1000000"], "is more than can be counted"),
                              (["--data", good, "--pack", "odd"], "expects `whole`, `split` or `stream`, got `odd`"),
                              (["--data", good, "--batches", os.path.join(folder, "none", "x")], "cannot write")):
        done = harness.call([program, "--in-process", *options], expect=1 if "none" not in options[-1] else 2)
        assert expected in done.stderr, done.stderr
    done = harness.call([plain, "--in-process", "--data", good, "--pack", "split"], expect=1)
    assert "compile it with `data .., documents = true`" in done.stderr, done.stderr
    harness.call([plain, "--in-process", "--data", good, "--steps", "1"])  # a stream
    done = harness.call([plain, "--in-process", "--data", parts("n.safetensors", counted=("F32", "f", [1] * 40))],
                        expect=1)
    assert "has `counted`; this program divides its loss by all targets" in done.stderr, done.stderr


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    text = harness.write_text(folder)
    tally = harness.Tally()
    for check in (check_rows, check_shape, check_end, check_updates, check_mixture, check_stream, check_sums,
                  check_weights):
        tally.attempt(check.__name__, check, compiler, folder)
    documents, counted = random_documents(11, 60, 30)
    single = compiled(compiler, folder, "single", schedule="single", **COMMON)
    references = {path: train(single, path, 1) for path in (
        write_dataset(folder, "trained.safetensors", documents, counted),
        write_dataset(folder, "by_weight.safetensors", documents, weighted(counted, 3)))}
    for values in SCHEDULES:
        tally.attempt(" ".join(map(str, values.values())), check_schedule, compiler, folder, references, values)
    check_labels(compiler, os.path.join(folder, "labels"), tally)
    check_alone(compiler, folder, tally)
    check_further(compiler, folder, text, tally)
    tally.attempt("check_resume", check_resume, compiler, folder, *references)
    tally.attempt("check_refused", check_refused, compiler, folder, text)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
