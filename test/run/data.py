#!/usr/bin/env python3
"""Reads data in every format and order: shuffled epochs against a second implementation, Megatron's files, resuming."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: data.py PP_COMPILE FOLDER
# With a rate of 0 the loss of a step depends on its sequences alone. So the losses of a run that reads the file in its
# order, one sequence a step, say which sequences another run has read.
import fractions, json, os, struct, sys, zlib
import harness

SIZES = dict(model="llama", layers=1, hidden=8, heads=1, kv_heads=1, ffn=16, vocab=256, sequence=8, microbatch=1,
             precision="f64")
WINDOWS = 21
MASK = (1 << 64) - 1


def scatter(x):
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    return x ^ x >> 31


def hash_of(key, counter):
    return scatter((scatter((key + 0x9e3779b97f4a7c15) & MASK) + (counter + 1) * 0x9e3779b97f4a7c15) & MASK)


def key_of(seed, name):
    value = 0xcbf29ce484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001b3 & MASK
    return hash_of(seed, value)


def shuffled(seed, epoch, place, count):
    """The rule of runtime/files/Random.h."""
    key, half = key_of(seed, f"epoch {epoch}"), max(1, ((count - 1).bit_length() + 1) // 2)
    while True:
        left, right = place >> half, place & (1 << half) - 1
        for turn in range(4):
            left, right = right, left ^ hash_of(key, (turn << 32) + right) & (1 << half) - 1
        place = left << half | right
        if place < count:
            return place


def losses(program, data, folder, *options):
    log = os.path.join(folder, "data.jsonl")
    harness.call([program, "--in-process", "--data", data, "--lr", "0", "--log", log, *options])
    return [line["loss"] for line in harness.read_log(log)]


def write(folder, name, body):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(body)
    return path


def compiled(compiler, folder, name, **values):
    return harness.compile_train(compiler, os.path.join(folder, name), SIZES | values)


def check_shuffle(compiler, folder, text):
    one = compiled(compiler, folder, "one", schedule="single", microbatches=1)
    inorder = losses(one, text, folder, "--steps", str(WINDOWS))
    assert len(set(inorder)) == WINDOWS, "sequences with different losses"
    order = [shuffled(7, epoch, i, WINDOWS) for epoch in range(3) for i in range(WINDOWS)]
    assert sorted(order[:WINDOWS]) == list(range(WINDOWS)) and order[:WINDOWS] != order[WINDOWS:2 * WINDOWS]
    common = ["--shuffle", "--seed", "7"]
    got = losses(one, text, folder, *common, "--load", weights_of(one, text, folder), "--epochs", "3")
    assert got == [inorder[i] for i in order], (got, order)
    two = compiled(compiler, folder, "two", schedule="1f1b", ranks=2, microbatches=4, layers=2)
    single = compiled(compiler, folder, "single", schedule="single", microbatches=1, layers=2)
    alone = losses(single, text, folder, "--steps", str(WINDOWS))
    got = losses(two, text, folder, *common, "--load", weights_of(single, text, folder), "--epochs", "2")
    assert len(got) == -(-2 * WINDOWS // 4), "steps for two epochs"
    for step, loss in enumerate(got):
        mean = sum(alone[order[4 * step + i]] for i in range(4)) / 4
        assert abs(loss - mean) < 1e-12, f"step {step + 1}: {loss}, expected {mean}"


def weights_of(program, text, folder):
    """The weights of seed 1, whatever the seed of the order."""
    saved = os.path.join(folder, "weights")
    harness.call([program, "--in-process", "--data", text, "--lr", "0", "--steps", "1", "--save", saved])
    return os.path.join(saved, "model.safetensors")


def megatron(folder, name, documents, code, letter, split=0, marks=None):
    """An index and its tokens, as Megatron's IndexedDatasetBuilder writes them."""
    width, sizes = struct.calcsize("<" + letter), [len(document) for document in documents]
    body = b"".join(struct.pack(f"<{len(document)}{letter}", *document) for document in documents)
    offsets = [width * sum(sizes[:i]) for i in range(len(sizes))]
    marks = list(range(len(sizes) + 1)) if marks is None else marks
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sizes), len(marks))
    index += struct.pack(f"<{len(sizes)}i", *sizes) + struct.pack(f"<{len(sizes)}q", *offsets)
    index += struct.pack(f"<{len(marks)}q", *marks)
    write(folder, name + ".idx", index[:len(index) - split])
    write(folder, name + ".bin", body)
    return os.path.join(folder, name)


def dataset(folder, name, tokens, letter, kind, more=None):
    tensors = {"tokens": (kind, struct.pack(f"<{len(tokens)}{letter}", *tokens))} | (more or {})
    sizes = {"I32": 4, "U32": 4, "U16": 2, "U8": 1, "F32": 4}
    return write(folder, name, harness.pack_tensors({key: (dtype, [len(raw) // sizes[dtype]], raw)
                                                     for key, (dtype, raw) in tensors.items()}))


def check_formats(compiler, folder, text):
    with open(text, "rb") as file:
        tokens = list(file.read())
    one = compiled(compiler, folder, "one", schedule="single", microbatches=1)
    expected = losses(one, text, folder, "--steps", str(WINDOWS))
    documents = [tokens[:5], tokens[5:5], tokens[5:90], tokens[90:]]
    for code, letter in ((1, "B"), (3, "h"), (4, "i"), (5, "q"), (8, "H")):
        path = megatron(folder, f"mega{code}", documents, code, letter)
        assert losses(one, path, folder, "--steps", str(WINDOWS)) == expected, f"Megatron's type {code}"
    for kind, letter in (("I32", "i"), ("U32", "I"), ("U16", "H")):
        path = dataset(folder, f"{kind}.safetensors", tokens, letter, kind)
        assert losses(one, path, folder, "--steps", str(WINDOWS)) == expected, f"a dataset of {kind}"


def check_refused(compiler, folder, text):
    one = compiled(compiler, folder, "one", schedule="single", microbatches=1)
    rows = [list(range(40)), list(range(40))]
    odd = megatron(folder, "odd", rows, 4, "i")
    with open(odd + ".idx", "r+b") as file:
        file.seek(34 + 8 + 8)
        file.write(struct.pack("<q", 80))
    write(folder, "none.idx", b"MMIDIDX\0\1" + bytes(40))
    short = megatron(folder, "short", rows, 4, "i")
    write(folder, "short.bin", bytes(100))
    for path, expected in (
        (megatron(folder, "cut", rows, 4, "i", split=9), "is truncated: it has"),
        (megatron(folder, "real", rows, 6, "f"), "tokens of type 6"), (odd, "sequence 1 of"),
        (os.path.join(folder, "none"), "is no index of a Megatron dataset"), (short, "short.bin` is truncated"),
        (megatron(folder, "negative", [[1, -1] * 20], 5, "q"), "is -1; the model's vocabulary"),
        (dataset(folder, "d.safetensors", [1] * 40, "i", "I32", {"counted": ("U8", bytes(40))}), "has `counted`"),
        (dataset(folder, "f.safetensors", [1.0] * 40, "f", "F32"), "are F32; expected I32, U32 or U16")):
        done = harness.call([one, "--in-process", "--data", path], expect=1)
        assert expected in done.stderr, f"{path}: {done.stderr}"
    for options, expected in ((["--steps", "3", "--epochs", "1"], "give one"),
                              (["--epochs", "1000000000000000000"], "expects a whole number from 1 to 1000000, got"),
                              (["--changed", "data"], "needs `--resume`"),
                              (["--data", "random", "--shuffle"], "has no effect"),
                              (["--data", "random", "--epochs", "2"], "has no effect")):
        data = [] if "--data" in options else ["--data", text]
        done = harness.call([one, "--in-process", *data, *options], expect=1)
        assert expected in done.stderr, done.stderr


def check_middle(program, folder):
    """One byte in the middle of a file of 300 kB has changed; a checkpoint without a checksum is read as before."""
    letters = bytearray(b"abcdefghijkl" * 25000)
    long, saved = write(folder, "long.txt", bytes(letters)), os.path.join(folder, "long")
    harness.call(["rm", "-rf", saved])
    harness.call([program, "--in-process", "--data", long, "--steps", "9", "--stop-at", "2", "--save", saved])
    letters[150000] += 1
    changed = write(folder, "changed.txt", bytes(letters))
    resumed = ["--data", changed, "--resume", saved]
    done = harness.call([program, "--in-process", *resumed], expect=1)
    sums = [format(zlib.crc32(open(path, "rb").read()), "08x") for path in (long, changed)]
    said = f"of checksum {sums[0]}, and has changed between its ends: the checksum is {sums[1]}; with `--changed data`"
    assert said in done.stderr and done.stderr.count("error") == 1, done.stderr
    harness.call([program, "--in-process", *resumed, "--changed", "data"])
    state = json.load(open(os.path.join(saved, "state.json")))
    del state["data"]["checksum"], state["crc32"], state["crc32_before"]
    write(saved, "state.json", json.dumps(state).encode())
    harness.call([program, "--in-process", *resumed])


def check_resume(compiler, folder, text):
    """A shuffled run that stops and resumes ends in the same bits; other data, another optimizer or model do not pass
    unseen."""
    values = dict(schedule="1f1b", ranks=2, microbatches=4, layers=2, hidden=16, heads=2, kv_heads=2)
    program = compiled(compiler, folder, "resumed", **values)
    whole, part = os.path.join(folder, "whole"), os.path.join(folder, "part")
    common = [program, "--in-process", "--data", text]
    harness.call([*common, "--shuffle", "--epochs", "3", "--save", whole])
    harness.call([*common, "--shuffle", "--epochs", "3", "--stop-at", "7", "--save", part])
    middle = os.path.join(folder, "middle")
    harness.call(["rm", "-rf", middle])
    harness.call(["cp", "-r", part, middle])
    harness.call([*common, "--resume", part, "--save", part])
    for name in ("model.safetensors", "optimizer.safetensors"):
        with open(os.path.join(whole, name), "rb") as a, open(os.path.join(part, name), "rb") as b:
            assert a.read() == b.read(), name
    with open(text, "rb") as file:
        other = write(folder, "other.txt", file.read()[:-1] + b"?")
    done = harness.call([program, "--in-process", "--data", other, "--resume", middle], expect=1)
    assert "the data was" in done.stderr and "--changed data" in done.stderr, done.stderr
    done = harness.call([program, "--in-process", "--data", other, "--resume", middle, "--changed", "data"])
    assert "remark: the data was" in done.stdout, done.stdout
    check_middle(program, folder)
    clipped = compiled(compiler, folder, "clipped", **values, clip=0.5)
    done = harness.call([clipped, "--in-process", "--data", text, "--resume", middle], expect=1)
    assert "the optimizer's clip was 1.0 and is 0.5" in done.stderr, done.stderr
    harness.call([clipped, "--in-process", "--data", text, "--resume", middle, "--changed", "optimizer"])
    heads = compiled(compiler, folder, "heads", **(values | dict(heads=1, kv_heads=1)))
    for more in ([], ["--changed", "data,optimizer"]):
        done = harness.call([heads, "--in-process", "--data", text, "--resume", middle, *more], expect=1)
        assert "computes something else" in done.stderr, done.stderr
    moved = compiled(compiler, folder, "moved", **(values | dict(schedule="single")))
    harness.call([moved, "--in-process", "--data", text, "--resume", middle])


def drawn(weights, count):
    """Which file each row is from: the one that is farthest behind its share, of equal ones the first."""
    total, seen, out = sum(map(fractions.Fraction, weights)), [0] * len(weights), []
    shares = [fractions.Fraction(weight) / total for weight in weights]
    for row in range(1, count + 1):
        chosen = max(range(len(weights)), key=lambda i: (shares[i] * row - seen[i], -i))
        out.append((chosen, seen[chosen]))
        seen[chosen] += 1
        assert all(abs(shares[i] * row - seen[i]) < len(weights) for i in range(len(weights)))
    return out


def staged(stages, count):
    """The same where weights change: (first row, weights). Each stage begins as a run does, and files go on."""
    out, seen = [], [0] * len(stages[0][1])
    for (begin, weights), (end, _) in zip(stages, [*stages[1:], (count, None)]):
        its = drawn(weights, end - begin)
        out += [(source, seen[source] + row) for source, row in its]
        seen = [before + sum(source == i for source, _ in its) for i, before in enumerate(seen)]
    return out


def check_shape(compiler, folder, text):
    """Other sequences and more of them: a stream goes on at its next token, a shuffled epoch without as many rows as
    have been read; of a mixture each file does so."""
    with open(text, "rb") as file:
        body = file.read()
    short = compiled(compiler, folder, "short", schedule="single", microbatches=3)
    longer = compiled(compiler, folder, "longer", schedule="single", microbatches=4, sequence=12)
    saved, out = os.path.join(folder, "shaped"), os.path.join(folder, "shaped.batches")
    parts = [write(folder, f"shape{i}.txt", part) for i, part in enumerate((body[:70], body[70:]))]
    mix = "mix:" + write(folder, "shape.mix", b"3 shape0.txt\n2 shape1.txt\n")

    def rest(part, seed, rows):
        """The rows of 12 tokens behind so many of 8, until the second epoch ends."""
        windows, every = (len(part) - 1) // 8, (len(part) - 1) // 12
        epoch, read = rows // windows, rows % windows * 8
        if seed is None:
            begins = [*range(read, len(part) - 12, 12), *range(0, every * 12, 12)]
        else:
            begins = [12 * shuffled(seed, epoch + (i >= every), i % every, every) for i in range(read // 12, 2 * every)]
        return [list(part[begin:begin + 12]) for begin in begins]

    changes = "mix:" + write(folder, "changes.mix", b"3,1@3,2@6\tshape0.txt\n2,1@5\tshape1.txt\n")
    before_of = {mix: [(0, ("3", "2"))], changes: [(0, ("3", "2")), (6, ("1", "2"))]}
    behind_of = {mix: [(0, ("3", "2"))], changes: [(0, ("1", "2")), (4, ("1", "1")), (8, ("2", "1"))]}
    for path, seed, steps in ((text, None, 2), (text, None, 9), (text, 5, 2), (text, 5, 9), (mix, None, 3),
                              (mix, 5, 3), (changes, None, 3), (changes, 5, 3)):
        shuffle = ["--seed", "5", *([] if seed is None else ["--shuffle"])]
        harness.call([short, "--in-process", "--data", path, *shuffle, "--steps", "12", "--stop-at", str(steps),
                      "--save", saved])
        harness.call([longer, "--in-process", "--data", path, "--resume", saved, "--changed", "shape", "--batches",
                      out])
        shape, values = harness.read_safetensors(out)["tokens"]
        got = [list(values[i:i + 12]) for i in range(0, len(values), 12)]
        if path == text:
            expected = rest(body, seed, 3 * steps)
        else:
            before = staged(before_of[path], 3 * steps)
            files = [rest(part, seed and seed + i, sum(source == i for source, _ in before))
                     for i, part in enumerate((body[:70], body[70:]))]
            expected = [files[source][row] for source, row in staged(behind_of[path], 12)]
        count = min(len(got), len(expected))
        assert shape[0] == 4 * (12 - steps) and count >= 8 and got[:count] == expected[:count], (path, seed, steps)
    done = harness.call([longer, "--in-process", "--data", text, "--resume", saved], expect=1)
    assert "with `--changed shape` the run goes on" in done.stderr, done.stderr


def check_stages(one, two, folder, alone, listed):
    """Weights that change at steps: which rows are read, with one and with four a step; and a run that resumes."""
    columns, sizes = ("0.5,0.2@5,0@9", "0.3,0.6@7", "0,0.4@5"), [len(each) for each in alone]
    stages = [(1, ("0.5", "0.3", "0")), (5, ("0.2", "0.3", "0.4")), (7, ("0.2", "0.6", "0.4")),
              (9, ("0", "0.6", "0.4"))]
    mix = listed("stages", columns)
    for program, rows, steps in ((one, 1, 30), (two, 4, 12)):
        order = staged([((step - 1) * rows, weights) for step, weights in stages], rows * steps)
        assert all(source != 2 for source, _ in order[:4 * rows]) and all(source for source, _ in order[8 * rows:])
        out = os.path.join(folder, "stages.batches")
        harness.call([program, "--in-process", "--data", mix, "--steps", str(steps), "--batches", out])
        values = harness.read_safetensors(out)["tokens"][1]
        got = [list(values[i:i + 8]) for i in range(0, len(values), 8)]
        texts = []
        for i in range(3):
            with open(os.path.join(folder, f"parts/{i}.txt"), "rb") as file:
                texts.append(list(file.read()))
        assert got == [texts[i][row % sizes[i] * 8:row % sizes[i] * 8 + 8] for i, row in order], (rows, order)
    whole, part = os.path.join(folder, "staged"), os.path.join(folder, "staged.part")
    common = [two, "--in-process", "--data", mix, "--shuffle", "--steps", "12"]
    done = harness.call([*common, "--save", whole])
    assert "data: from step 9 on  60.0 % of the rows are from" in done.stdout, done.stdout
    harness.call([*common, "--stop-at", "6", "--save", part])
    later = listed("later", (columns[0], "0.3,0.6@8", columns[2]))
    done = harness.call([two, "--in-process", "--data", later, "--resume", part], expect=1)
    assert "from step 8 on 1 of 6 rows" in done.stderr and "--changed data" in done.stderr, done.stderr
    harness.call([two, "--in-process", "--data", mix, "--resume", part, "--save", part])
    saved = [open(os.path.join(path, "model.safetensors"), "rb") for path in (whole, part)]
    with saved[0], saved[1]:
        assert saved[0].read() == saved[1].read(), "a resumed mixture whose weights change"


def check_mixture(compiler, folder, text):
    """Rows of three files by weight, as listed here; resuming; and lists that are wrong."""
    with open(text, "rb") as file:
        body = file.read()
    one = compiled(compiler, folder, "one", schedule="single", microbatches=1)
    sizes = 9, 7, 4
    parts = [body[8 * sum(sizes[:i]):8 * sum(sizes[:i + 1]) + 1] for i in range(3)]
    os.makedirs(os.path.join(folder, "parts"), exist_ok=True)
    files = [write(folder, f"parts/{i}.txt", part) for i, part in enumerate(parts)]
    alone = [losses(one, file, folder, "--steps", str(size)) for file, size in zip(files, sizes)]
    assert len({loss for each in alone for loss in each}) == sum(sizes), "sequences with different losses"

    def listed(name, weights):
        lines = "".join(f"{weight}\t {i}.txt \n" for i, weight in enumerate(weights))
        return "mix:" + write(folder, f"parts/{name}", ("# a mixture\n\n" + lines).encode())

    for number, (weights, decimals) in enumerate(((("0.5", "0.3", "0.2"), 10), (("7", "1.125", "20"), 225))):
        order, mix = drawn(weights, 2 * decimals), listed(f"list{number}", weights)
        total = sum(map(float, weights))
        for source, weight in enumerate(weights):
            count = sum(chosen == source for chosen, _ in order)
            assert abs(count - 2 * decimals * float(weight) / total) < 1e-9, (weights, source, count)
        got = losses(one, mix, folder, "--steps", str(len(order)))
        assert got == [alone[source][row % sizes[source]] for source, row in order], weights
    mix, order = listed("list", ("0.5", "0.3", "0.2")), drawn(("0.5", "0.3", "0.2"), 40)
    got = losses(one, mix, folder, "--steps", "40", "--shuffle", "--seed", "7", "--load", weights_of(one, text, folder))
    assert got == [alone[source][shuffled(7 + source, row // sizes[source], row % sizes[source], sizes[source])]
                   for source, row in order], "shuffled"
    values = dict(schedule="1f1b", ranks=2, microbatches=4, layers=2)
    two, single = (compiled(compiler, folder, name, **more) for name, more in
                   (("two", values), ("single", dict(schedule="single", microbatches=1, layers=2))))
    each = losses(single, mix, folder, "--steps", "40")
    for step, loss in enumerate(losses(two, mix, folder, "--steps", "10")):
        assert abs(loss - sum(each[4 * step:4 * step + 4]) / 4) < 1e-12, f"step {step + 1} of a mixture"
    whole, part = os.path.join(folder, "mixed"), os.path.join(folder, "mixed.part")
    common = [two, "--in-process", "--data", mix, "--shuffle", "--steps", "9"]
    harness.call([*common, "--save", whole])
    harness.call([*common, "--stop-at", "4", "--save", part])
    heavier = listed("heavier", ("0.5", "0.2", "0.3"))
    done = harness.call([two, "--in-process", "--data", heavier, "--resume", part], expect=1)
    assert "5 of 10 rows from 73 tokens" in done.stderr and "--changed data" in done.stderr, done.stderr
    same = listed("same", ("50", "30", "20"))
    harness.call([two, "--in-process", "--data", same, "--resume", part, "--save", part])
    saved = [open(os.path.join(path, "model.safetensors"), "rb") for path in (whole, part)]
    with saved[0], saved[1]:
        assert saved[0].read() == saved[1].read(), "a resumed mixture"
    check_stages(one, two, folder, alone, listed)
    for body, expected in (("", "names no file"), ("0 0.txt", "line 1: expected a weight"),
                           ("1 0.txt\n1,-2@3 1.txt", "line 2: expected a weight, a number of at least 0"),
                           ("1, 0.txt", "got ``"), ("1,2 0.txt", "expected `WEIGHT@STEP` behind the first weight, got"),
                           ("1@2,2@3 0.txt", "expected a first weight without a step, got `1@2`"),
                           ("1,2@5,1@5 0.txt", "expected a step from 6 to 1000000000 behind `@`, got `1@5`"),
                           ("1,2@1 0.txt", "expected a step from 2 to"), ("1,2@x 0.txt", "got `2@x`"),
                           ("1,0@4 0.txt\n2,0@3 1.txt", "all weights are 0 from step 4 on"),
                           ("1.0000001 0.txt", "line 1: expected a weight"), ("1", "expected the name of a file"),
                           ("1 0.txt\n-1 1.txt", "line 2: expected a weight"), ("1 random", "got `random`"),
                           ("1 mix:list", "got `mix:list`"),
                           ("1 0.txt\n2 ../parts/0.txt", "line 2: line 1 names `../parts/0.txt`, too")):
        wrong = "mix:" + write(folder, "parts/wrong", body.encode())
        done = harness.call([one, "--in-process", "--data", wrong], expect=1)
        assert expected in done.stderr and done.stderr.count("\n") == 1, f"{body}: {done.stderr}"
    for more, expected in ((["--epochs", "2"], "neither an end"), (["--logprobs", "x"], "neither an end"),
                           (["--eval", mix], "only `--data`"), (["--log", files[1]], "1.txt"),
                           (["--log", mix[4:]], "parts/list")):
        done = harness.call([one, "--in-process", "--data", mix, *more], expect=1)
        assert expected in done.stderr and done.stderr.count("\n") == 1, f"{more}: {done.stderr}"


def main():
    compiler, folder = sys.argv[1:]
    licence = harness.write_text(folder)
    with open(licence, "rb") as file:
        text = write(folder, "short.txt", file.read()[9000:9000 + WINDOWS * SIZES["sequence"] + 3])
    tally = harness.Tally()
    for check in (check_shuffle, check_formats, check_refused, check_resume, check_shape, check_mixture):
        tally.attempt(check.__name__, check, compiler, folder, text)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
