#!/usr/bin/env python3
"""Judges columns of datasets: what the last part reads of them under any schedule, and what a run refuses."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: columns.py PP_COMPILE FOLDER [--quick]
# The model `columns` of Inputs/columns.pipe has no attention, so its loss and gradients are those of tokens that are
# alone. They are computed here, in f64 and plain Python, from the documents themselves: the rows of documents.py say
# which token a place has and which is its target, and the target's values are read from lists that the dataset was
# made of. A value that is shifted, cut, lost or of another slice, device or replica gives other numbers.
import math, os, random, struct, sys
import documents, harness
from plain_model import Number, backward, linear, matrix_of, softmax, total

MODELS = os.path.join(harness.ROOT, "test/run/Inputs/columns.pipe")
HIDDEN, FFN, VOCAB, LENGTH, ROWS, LAYERS = 6, 8, 16, 16, 4, 4
SIZES = dict(microbatches=ROWS, microbatch=1, sequence=LENGTH, layers=LAYERS, hidden=HIDDEN, heads=2, kv_heads=2,
             ffn=FFN, vocab=VOCAB, precision="f64")
QUICK = (dict(schedule="zb_h1", ranks=2), dict(schedule="slimpipe", ranks=2, slices=4),
         dict(schedule="1f1b_recompute", ranks=2, microbatches=2) | {"mesh.context": 2, "mesh.data": 2},
         dict(schedule="single") | {"mesh.tensor": 2, "mesh.sequence": "true"})
ALL = (dict(schedule="single"), dict(schedule="1f1b", ranks=2), dict(schedule="interleaved", ranks=2),
       dict(schedule="1f1b_recompute", ranks=2), dict(schedule="1f1b_vocabulary", ranks=2),
       dict(schedule="dualpipe_v", ranks=2), dict(schedule="weipipe_interleave", ranks=2),
       dict(schedule="fsdp", ranks=2),
       dict(schedule="single", microbatches=2, microbatch=2), dict(schedule="single") | {"mesh.tensor": 2},
       dict(schedule="single") | {"mesh.context": 2},
       dict(schedule="1f1b", ranks=2, microbatches=2) | {"mesh.data": 2},
       dict(schedule="zb_h1", ranks=2, microbatches=2) | {"mesh.data": 2, "mesh.zero": 2},
       dict(schedule="slimpipe", ranks=2, slices=4) | {"mesh.context": 2},
       dict(schedule="slimpipe", ranks=2, slices=2) | {"mesh.tensor": 2, "mesh.sequence": "true"})
SHAPES = {"embed": [VOCAB, HIDDEN], "head": [HIDDEN, VOCAB]} | {
    f"layers.{l}.{name}": shape for l in range(LAYERS)
    for name, shape in (("up", [HIDDEN, FFN]), ("down", [FFN, HIDDEN]))}


class Data:
    """Documents with masks and columns, and the file that has them; `columns`: name -> (type, values of a token)."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.texts = [[draw.randrange(VOCAB) for _ in range(draw.choice((3, 5, 9, 14, 21)))] for _ in range(9)]
        self.masks = [[int(draw.random() < 0.7) for _ in text] for text in self.texts]
        count = sum(map(len, self.texts))
        eighths = lambda: draw.randrange(-12, 13) / 8  # numbers that bf16 and f16 hold
        self.columns = {"adv": ("F32", [[draw.uniform(-1, 1)] for _ in range(count)]),
                        "old": ("BF16", [[eighths()] for _ in range(count)]),
                        "wide": ("F16", [[eighths() for _ in range(HIDDEN)] for _ in range(count)])}
        self.columns["adv"] = ("F32", [[struct.unpack("f", struct.pack("f", x))[0]] for (x,) in self.columns["adv"][1]])

    def parts(self):
        tokens = [token for text in self.texts for token in text]
        bounds = [0]
        for text in self.texts:
            bounds.append(bounds[-1] + len(text))
        parts = {"tokens": ("I32", [len(tokens)], struct.pack(f"<{len(tokens)}i", *tokens)),
                 "documents": ("I64", [len(bounds)], struct.pack(f"<{len(bounds)}q", *bounds)),
                 "counted": ("U8", [len(tokens)], bytes(bit for mask in self.masks for bit in mask))}
        return parts | {name: stored(kind, rows) for name, (kind, rows) in self.columns.items()}

    def write(self, path, **changed):
        """`changed`: name -> (type, shape, bytes) in place of what the file would have, or None."""
        parts = {name: part for name, part in (self.parts() | changed).items() if part}
        with open(path, "wb") as file:
            file.write(harness.pack_tensors(parts))
        return path

    def rows(self, packing):
        """The rows of the first step: of each place its token, and the number of its target in the file or None."""
        begins, at = [], 0
        for text in self.texts:
            begins.append(at)
            at += len(text)
        numbers = [list(range(begin, begin + len(text))) for begin, text in zip(begins, self.texts)]
        tokens = [token for text in self.texts for token in text]
        if packing == "stream":  # every place has a target in the next token
            mask = [bit for each in self.masks for bit in each]
            return [[(tokens[i], i + 1 if mask[i + 1] else None) for i in range(row * LENGTH, (row + 1) * LENGTH)]
                    for row in range(ROWS)]
        out = documents.rows_of(numbers, self.masks, range(len(numbers)), packing, LENGTH)[:ROWS]
        return [[(tokens[number], None if target < 0 else target) for number, target in zip(row[0], row[1])]
                for row in out]


def stored(kind, rows):
    letter = {"F32": "f", "F16": "e", "I32": "i", "U8": "B", "F64": "d"}.get(kind)
    flat = [value for row in rows for value in row]
    raw = (struct.pack(f"<{len(flat)}{letter}", *flat) if letter else
           b"".join(struct.pack("<f", value)[2:] for value in flat))
    return kind, [len(rows)] + ([len(rows[0])] if len(rows[0]) > 1 else []), raw


def weights_of():
    draw = random.Random(5)
    return {name: (shape, [draw.gauss(0, 0.4) for _ in range(shape[0] * shape[1])]) for name, shape in SHAPES.items()}


def expected(weights, data, packing, absent={}):
    """The loss, and the gradients of all weights. `absent`: of columns that the data do not have, the value."""
    Number.made.clear()
    flat = {name: [Number(value) for value in values] for name, (_, values) in weights.items()}
    columns = {name: list(zip(*matrix_of(values, SHAPES[name]))) for name, values in flat.items()}
    table = matrix_of(flat["embed"], SHAPES["embed"])
    terms = []
    for row in data.rows(packing):
        for token, target in row:
            if target is None:
                continue
            of = lambda name, width: ([absent[name]] * width if name in absent else data.columns[name][1][target])
            (adv,), (old,), wide = of("adv", 1), of("old", 1), of("wide", HIDDEN)
            x = table[token]
            for layer in range(LAYERS):
                inner = [each.silu() for each in linear(columns[f"layers.{layer}.up"], x)]
                x = [a + b for a, b in zip(x, linear(columns[f"layers.{layer}.down"], inner))]
            factor = total([Number(1.0), *(each.times(value) for each, value in zip(x, wide))])
            h = [each.times(math.exp(old - adv)) + factor.times(value) for each, value in zip(x, wide)]
            logits = linear(columns["head"], h)
            tokens = [token for text in data.texts for token in text]
            terms.append(softmax(logits)[1] + logits[tokens[target]].times(-1))
    loss = total(terms).times(1 / len(terms))
    backward(loss)
    return loss.value, {name: [number.slope for number in values] for name, values in flat.items()}


class Lab:
    def __init__(self, compiler, folder):
        self.compiler, self.folder = compiler, folder
        self.train = harness.add_models(folder, MODELS)
        self.weights = weights_of()
        harness.write_safetensors(self.at("weights"), self.weights)

    def at(self, name):
        return os.path.join(self.folder, name)

    def compiled(self, name, layout, model="columns"):
        values = SIZES | dict(model=model) | layout | {"data.documents": "true"}
        return harness.compile_train(self.compiler, self.at(name), values, self.train)

    def run(self, program, data, *options, expect=0):
        return harness.call([program, "--in-process", "--data", data, "--steps", "1", "--load", self.at("weights"),
                             "--lr", "0", *options], expect=expect)


def judge(lab, tally, layout, cases):
    said = " ".join(f"{key}={value}" for key, value in layout.items())
    try:
        program = lab.compiled("program", layout)
        for what, (path, packing, right) in cases.items():
            lab.run(program, path, "--pack", packing, "--grads", lab.at("grads"), "--log", lab.at("log"))
            loss, gradients = harness.read_log(lab.at("log"))[0]["loss"], harness.read_safetensors(lab.at("grads"))
            worst = max(harness.apart(list(gradients[name][1]), values) / max(map(abs, values))
                        for name, values in right[1].items())
            error = max(worst, abs(loss - right[0]) / right[0])
            tally.check(error < 1e-11, f"{said} {what}: {error:.1e}")
    except RuntimeError as error:
        tally.check(False, f"{said}: {error}")


def judge_evaluation(lab, program, data, path, tally):
    """The forward step reads columns, too."""
    short = Data(0)
    short.texts, short.masks = data.texts[:2], data.masks[:2]
    count = sum(map(len, short.texts))
    short.columns = {name: (kind, rows[:count]) for name, (kind, rows) in data.columns.items()}
    whole = expected(lab.weights, short, "whole")[0]  # two documents: all of them in one step
    lab.run(program, path, "--eval", short.write(lab.at("short.safetensors")), "--log", lab.at("log"))
    loss = harness.read_log(lab.at("log"))[0]["eval_loss"]
    tally.check(abs(loss - whole) < 1e-11 * whole, f"evaluation: {loss} is {whole}")


def judge_batches(lab, program, data, path, tally):
    """What `--batches` shows: values of targets, and 0 elsewhere."""
    harness.call([program, "--in-process", "--data", path, "--steps", "1", "--pack", "split", "--batches",
                  lab.at("batches")])
    got = harness.read_safetensors(lab.at("batches"))
    for name in ("adv", "old", "wide"):
        rows = data.columns[name][1]
        wanted = [value for row in data.rows("split") for _, target in row
                  for value in (rows[target] if target is not None else [0] * len(rows[0]))]
        shape = [ROWS, LENGTH] + ([len(rows[0])] if len(rows[0]) > 1 else [])
        tally.check(got["column." + name] == (shape, got["column." + name][1]) and
                    list(got["column." + name][1]) == wanted, f"--batches shows `{name}`")
    tally.check("column.unread" not in got, "--batches shows no column that the model does not read")


def changed(part, number, value):
    """The tensor with another value."""
    kind, shape, raw = part
    letter, size = {"F32": ("f", 4), "F16": ("e", 2), "I32": ("i", 4)}[kind]
    return kind, shape, raw[:number * size] + struct.pack("<" + letter, value) + raw[(number + 1) * size:]


def judge_refusals(lab, program, data, path, tally):
    parts = data.parts()
    count = parts["tokens"][1][0]
    counted = [i for i, bit in enumerate(parts["counted"][2]) if bit]
    uncounted = next(i for i, bit in enumerate(parts["counted"][2]) if not bit)
    bad = lab.at("bad.safetensors")
    cases = (
        ("no column", dict(adv=None),
         f"data `{bad}` has no column `adv`, which the model reads; it has `counted`, `documents`, `old`, `tokens`, "
         "`wide`"),
        ("another width", dict(wide=("F16", [count, 2], bytes(4 * count))),
         f"column `wide` of `{bad}` is F16 [{count}, 2]; the model reads numbers, [{count}, {HIDDEN}] of type F32, "
         "BF16, F16, I32 or U8"),
        ("values in place of one", dict(adv=parts["wide"]),
         f"column `adv` of `{bad}` is F16 [{count}, {HIDDEN}]; the model reads numbers, [{count}] of type"),
        ("f64", dict(adv=("F64", [count], bytes(8 * count))),
         f"data `{bad}` has `adv`, F64 [{count}]; beside `tokens`, `documents` and `counted` a dataset has columns, "
         f"[{count}] or [{count}, k] of type F32, BF16, F16, I32 or U8"),
        ("a tensor that is no column", dict(notes=("F32", [3], bytes(12))),
         f"data `{bad}` has `notes`, F32 [3]; beside"),
        ("a nan", dict(adv=changed(parts["adv"], counted[3], math.nan)),
         f"column `adv` of `{bad}` has nan at token {counted[3]}; expected a finite number"),
        ("infinity in a list", dict(wide=changed(parts["wide"], counted[2] * HIDDEN + 4, -math.inf)),
         f"column `wide` of `{bad}` has -inf at token {counted[2]}, value 4; expected a finite number"))
    for what, change, sentence in cases:
        error = lab.run(program, data.write(bad, **change), expect=1).stderr
        tally.check(sentence in error, f"refused: {what}" + ("" if sentence in error else f": {error}"))
    lab.run(program, data.write(bad, adv=changed(parts["adv"], uncounted, math.nan)), "--log", lab.at("log"))
    tally.check(math.isfinite(harness.read_log(lab.at("log"))[0]["loss"]), "a nan that no target reads changes nothing")
    lab.run(program, data.write(bad, more=stored("U8", [[1]] * count)))
    tally.check(True, "a column that the model does not read is left alone")
    text = lab.at("text")
    with open(text, "wb") as file:
        file.write(bytes(range(VOCAB)) * 30)
    error = lab.run(program, "u8:" + text, expect=1).stderr
    tally.check(f"data `{text}` has no column `adv`, which the model reads; it has tokens alone, and a .safetensors "
                "dataset may have columns" in error, "refused: a file of tokens alone")
    with open(lab.at("mix"), "w") as file:
        file.write(f"1 {os.path.basename(path)}\n1 {os.path.basename(data.write(bad, wide=None))}\n")
    error = lab.run(program, "mix:" + lab.at("mix"), expect=1).stderr
    tally.check(f"data `{bad}` has no column `wide`" in error, "refused: one file of a mixture without a column")
    lab.run(program, "random", "--log", lab.at("log"))
    tally.check(math.isfinite(harness.read_log(lab.at("log"))[0]["loss"]), "random data have the default, or 0")


def judge_given(lab, program, data, path, tally):
    """`--columns` says what files lack: in place of a default, and where there is none."""
    bad, log = lab.at("bad.safetensors"), lab.at("log")
    loss = lambda *options: lab.run(program, *options, "--log", log) and harness.read_log(log)[0]["loss"]
    given = loss(data.write(bad, old=None, wide=None), "--columns", "old=-0.25,wide=0.375")
    right = expected(lab.weights, data, "whole", {"old": -0.25, "wide": 0.375})[0]
    tally.check(abs(given - right) < 1e-11 * right, f"--columns of two that a file lacks: {given} is {right}")
    own = loss(path)
    tally.check(loss(path, "--columns=old=7") == own, "--columns changes nothing where a file has the column")
    for value, sentence in (
            ("odl=1", "`--columns odl=1`: the model reads no column `odl`; it reads `adv`, `old` and `wide`"),
            ("old=1,unread=1", "`--columns unread=1`: the model reads no column `unread`; it reads `adv`, `old` and"),
            ("old=much", "`--columns` expects a number for column `old`, got `much`"),
            ("old=inf", "`--columns` expects a number for column `old`, got `inf`"),
            ("old=", "`--columns` expects a number for column `old`, got ``"),
            ("old", "`--columns` expects NAME=VALUE with commas between them, got `old`"),
            ("old=1,old=2", "`--columns old=1,old=2` has column `old` twice")):
        error = lab.run(program, path, "--columns", value, expect=1).stderr
        tally.check(sentence in error, f"--columns {value} is refused" + ("" if sentence in error else f": {error}"))
    plain = harness.compile_train(lab.compiler, lab.at("plain"), SIZES | dict(schedule="single", hidden=8), lab.train)
    error = harness.call([plain, "--in-process", "--data", "random", "--steps", "1", "--columns", "old=1"],
                         expect=1).stderr
    tally.check("`--columns old=1`: the model reads no column `old` and no other one" in error,
                "--columns of a model without columns is refused")
    lab.run(program, bad, "--columns", "old=1,wide=1", "--save", lab.at("given"))
    resume = [program, "--in-process", "--data", bad, "--steps", "2", "--resume", lab.at("given"), "--columns"]
    tally.check("the data was" in harness.call([*resume, "old=2,wide=1"], expect=1).stderr,
                "resume with another value of --columns")
    harness.call([*resume, "old=1,wide=1"])


def judge_resume(lab, program, data, path, tally):
    """A checkpoint knows the columns that its run has read, and no others."""
    lab.run(program, path, "--save", lab.at("saved"))
    other = lab.at("other.safetensors")
    first = data.parts()["adv"]
    resume = [program, "--in-process", "--data", other, "--steps", "2", "--resume", lab.at("saved")]
    middle = first[1][0] // 2
    for what, change, expect in (("another column", dict(adv=changed(first, middle, 0.25)), 1),
                                 ("the same columns and one that is not read", dict(more=first), 0)):
        data.write(other, **change)
        done = harness.call(resume, expect=expect)
        tally.check(expect == 0 or "the data was" in done.stderr, f"resume with {what}")


def judge_bf16(lab, data, path, tally):
    """Rows are f32 in bf16: the loss is near that of f64, and a schedule that splits has the bits of one rank."""
    first = None
    for layout in (dict(schedule="single"), dict(schedule="zb_h1", ranks=2)):
        program = lab.compiled("rows", layout | dict(precision="bf16"), model="rows")
        lab.run(program, path, "--log", lab.at("log"))
        loss = harness.read_log(lab.at("log"))[0]["loss"]
        first = loss if first is None else first
        tally.check(loss == first, f"bf16 {layout['schedule']}: {loss}")
    lab.run(lab.compiled("rows", dict(schedule="single"), model="rows"), path, "--log", lab.at("log"))
    loss = harness.read_log(lab.at("log"))[0]["loss"]
    tally.check(abs(first - loss) < 0.02 * loss, f"bf16 {first} is near f64 {loss}")


def main():
    quick = "--quick" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--quick"]
    os.makedirs(arguments[1], exist_ok=True)
    lab, tally, data = Lab(*arguments[:2]), harness.Tally(), Data(7)
    path = data.write(lab.at("data.safetensors"))
    cases = {packing: (path, packing, expected(lab.weights, data, packing)) for packing in ("whole", "split", "stream")}
    lacks = data.write(lab.at("lacks.safetensors"), old=None)
    cases["with a default"] = (lacks, "whole", expected(lab.weights, data, "whole", {"old": 0.5}))
    for layout in QUICK if quick else QUICK + ALL:
        judge(lab, tally, layout, cases)
    program = lab.compiled("one", dict(schedule="1f1b", ranks=2))
    for check in (judge_evaluation, judge_batches, judge_refusals, judge_given, judge_resume):
        check(lab, program, data, path, tally)
    if not quick:
        judge_bf16(lab, data, path, tally)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
