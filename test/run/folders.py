#!/usr/bin/env python3
"""Folders of published models: read in shards and four types, trained, written back; wrong ones are refused."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: folders.py PP_COMPILE FOLDER
import json, os, random, shutil, struct, sys
import harness

SIZES = dict(
    schedule="1f1b",
    ranks=2,
    microbatches=4,
    layers=2,
    hidden=16,
    heads=2,
    ffn=24,
    vocab=256,
    context=32,
    sequence=16,
    microbatch=1,
)
STILL = ("--steps", "1", "--lr", "0")  # a step that changes no weight
CONFIG = (
    b'{\n  "torch_dtype" : "float32",\n\t"inner": {"dtype": "float32", "x": "a\\"b,}"},\n  "dtype":"float32"\n}\n'
)
CODES = {"F32": "f", "F64": "d", "F16": "e"}


def pack(kind, values):
    if kind == "BF16":  # the upper halves of f32; the values have no lower ones
        raw = struct.pack(f"<{len(values)}f", *values)
        return b"".join(raw[i + 2 : i + 4] for i in range(0, len(raw), 4))
    return struct.pack(f"<{len(values)}{CODES[kind]}", *values)


def write_shard(path, tensors, metadata={"format": "pt"}):
    """tensors: list of (name, type, shape, bytes), in the order in which they lie in the file."""
    header, at = {"__metadata__": metadata}, 0
    for name, kind, shape, raw in tensors:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(raw for *_, raw in tensors))


def write_pointer(path):
    """What git leaves where a large file was not fetched."""
    with open(path, "w") as file:
        file.write(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n")


def read_shard(path):
    """name -> (type, shape, bytes)."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    return {
        name: (entry["dtype"], entry["shape"], data[8 + length :][slice(*entry["data_offsets"])])
        for name, entry in json.loads(data[8 : 8 + length]).items()
        if name != "__metadata__"
    }


def write_index(folder, shards):
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {t[0]: name for name, tensors in shards.items() for t in tensors},
    }
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        file.write(json.dumps(index, indent=1) + "\n\n")


def write_folder(folder, shards, index=True):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, "onnx"))
    for name, tensors in shards.items():
        write_shard(os.path.join(folder, name), tensors)
    if index:
        write_index(folder, shards)
    for name, body in (
        ("config.json", CONFIG),
        ("tokenizer.json", bytes(range(256))),
        ("vocab.txt", b"a\r\nb"),
        ("pytorch_model.bin", b"old"),
        ("modeling.py", b"pass"),
        ("other.safetensors", b"no model"),
        ("onnx/model.onnx", b""),
    ):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(body)


def files(folder):
    found = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


class Folders:
    def __init__(self, compiler, folder):
        self.compiler, self.folder, self.tally = compiler, folder, harness.Tally()
        shutil.rmtree(folder, ignore_errors=True)
        self.text, self.random = harness.write_text(folder), random.Random(7)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def compile(self, name, **values):
        return harness.compile_train(self.compiler, self.path(name), SIZES | values)

    def run(self, program, *words, expect=0, transport="threads"):
        return harness.call(
            [*harness.launch(program, 2, transport), "--data", self.text, *words], expect=expect, timeout=60
        )

    def tensors(self, program, rename=lambda name: name):
        """What the program's weights are called, with values of all the bits that the type and an f32 hold."""
        self.run(program, *STILL, "--save", self.path("plain"))
        made, bits = [], {"BF16": 8, "F64": 24, "F32": 24, "F16": 11}
        for i, (name, (_, shape, _)) in enumerate(read_shard(self.path("plain", "model.safetensors")).items()):
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            kind = list(bits)[i % 4]
            half = 2 ** (bits[kind] - 1)
            made.append(
                (
                    rename(name),
                    kind,
                    shape,
                    pack(kind, [self.random.randrange(-half, half) / half / 8 for _ in range(count)]),
                )
            )
        self.random.shuffle(made)
        return made

    def same(self, what, a, b, but=()):
        a, b = files(a), files(b)
        wrong = [name for name in a if name not in but and a[name] != b.get(name)]
        self.tally.check(
            not wrong and a.keys() - set(but) == b.keys() - set(but),
            f"{what}: {len(a)} files are equal to the byte"
            + (f", but {wrong or a.keys() ^ b.keys()}" if wrong or a.keys() ^ b.keys() else ""),
        )

    def as_read(self):
        """With a rate of 0 a folder comes back as it was, whatever the precision of the run."""
        programs = {
            f"{precision} {schedule}": self.compile(
                f"llama.{precision}.{schedule}", schedule=schedule, precision=precision
            )
            for precision, schedule in (("f32", "1f1b"), ("bf16", "1f1b"), ("bf16", "fsdp"))
        }
        self.llama, self.bf16 = programs["f32 1f1b"], programs["bf16 1f1b"]
        made = self.tensors(self.llama)
        buffer = ("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", [2], pack("F32", [1, 0.5]))
        self.shards = {
            "model-00001-of-00003.safetensors": made[:5],
            "model-00002-of-00003.safetensors": made[5:9] + [buffer],
            "model-00003-of-00003.safetensors": made[9:],
        }
        write_folder(self.path("model"), self.shards)
        ours = ("onnx", "pytorch_model.bin", "modeling.py", "other.safetensors")
        for name in ours[1:]:
            os.rename(self.path("model", name), self.path(name))
        shutil.rmtree(self.path("model", "onnx"))
        before = files(self.path("model"))
        for name in ours[1:]:
            os.rename(self.path(name), self.path("model", name))
        os.mkdir(self.path("model", "onnx"))
        for precision, program in programs.items():
            for transport in ("threads", "mpi"):
                out = self.path("out")
                self.run(
                    program,
                    *STILL,
                    "--load",
                    self.path("model"),
                    "--save",
                    out,
                    transport=transport,
                )
                after = files(out)
                own = {"optimizer.safetensors", "state.json"}
                self.tally.check(
                    after.keys() == before.keys() | own and all(after[name] == before[name] for name in before),
                    f"{precision} over {transport}: the folder comes back, {sorted(after)}",
                )
                self.tally.check(
                    set(json.loads(after["state.json"])["files"]) == after.keys(), "state.json lists them all"
                )

    def resumed(self):
        """A weight whose file has fewer bits than the run goes on from the bits that the run had."""
        load = ["--load", self.path("model"), "--steps", "4"]
        for program in (self.bf16, self.llama):
            self.run(program, *load, "--save", self.path("whole"))
            self.run(program, *load, "--stop-at", "2", "--save", self.path("half"))
            self.run(program, "--resume", self.path("half"), "--save", self.path("rest"))
            self.same("resumed", self.path("whole"), self.path("rest"))
            self.run(program, "--resume", self.path("half"), "--save", self.path("half"))
            self.same("resumed in place", self.path("whole"), self.path("half"))
        trained = read_shard(self.path("whole", "model-00001-of-00003.safetensors"))
        self.tally.check(
            all(
                trained[name][:2] == (kind, shape) and trained[name][2] != raw
                for name, kind, shape, raw in self.shards["model-00001-of-00003.safetensors"]
            ),
            "types and shapes stay, values change",
        )

    def types(self):
        self.run(
            self.llama,
            *STILL,
            "--load",
            self.path("model"),
            "--save",
            self.path("half16"),
            "--save-type",
            "bf16",
        )
        kinds = [
            kind
            for name in self.shards
            for tensor, (kind, _, _) in read_shard(self.path("half16", name)).items()
            if not tensor.endswith("inv_freq")
        ]
        self.tally.check(set(kinds) == {"BF16"}, "--save-type bf16: all weights are")
        self.tally.check(
            files(self.path("half16"))["config.json"]
            == CONFIG.replace(b'"torch_dtype" : "float32"', b'"torch_dtype" : "bfloat16"').replace(
                b'"dtype":"float32"\n', b'"dtype":"bfloat16"\n'
            ),
            "--save-type bf16: config.json says it, and is else the same",
        )
        self.run(self.llama, *STILL, "--load", self.path("half16"), "--save", self.path("again"))
        self.same("read back", self.path("half16"), self.path("again"), but=("state.json", "optimizer.safetensors"))

    def sharded(self):
        """Without a folder that was read, --shard-size cuts; together the shards hold what one file would."""
        self.run(self.llama, "--steps", "1", "--save", self.path("one"))
        self.run(self.llama, "--steps", "1", "--save", self.path("many"), "--shard-size", "5KB")
        with open(self.path("many", "model.safetensors.index.json")) as file:
            index = json.load(file)
        whole, found = read_shard(self.path("one", "model.safetensors")), {}
        for name in sorted(set(index["weight_map"].values())):
            shard = read_shard(self.path("many", name))
            self.tally.check(
                len(shard) == 1 or sum(len(raw) for *_, raw in shard.values()) <= 5000, f"{name}: at most 5000 bytes"
            )
            self.tally.check(
                all(index["weight_map"][tensor] == name for tensor in shard), f"{name}: as the index says"
            )
            found |= shard
        size = sum(len(raw) for *_, raw in whole.values())
        self.tally.check(
            found == whole and index["metadata"] == {"total_parameters": size // 4, "total_size": size},
            f"{len(set(index['weight_map'].values()))} shards hold the {len(whole)} tensors of one file",
        )
        self.run(self.llama, "--resume", self.path("many"), "--steps", "2", "--save", self.path("many2"))
        self.run(self.llama, "--resume", self.path("one"), "--steps", "2", "--save", self.path("one2"))
        self.tally.check(
            set(os.listdir(self.path("many2"))) == set(os.listdir(self.path("many"))),
            "a resumed run keeps the shards",
        )
        joined = {}
        for name in set(index["weight_map"].values()):
            joined |= read_shard(self.path("many2", name))
        self.tally.check(joined == read_shard(self.path("one2", "model.safetensors")), "and goes on alike")

    def tied(self):
        """GPT-2: names with a prefix, buffers, and an output layer that repeats the token table."""
        gpt2 = self.compile("gpt2", model="gpt2")
        made = self.tensors(gpt2, rename=lambda name: "transformer." + name)
        table = next(tensor for tensor in made if tensor[0] == "transformer.wte.weight")
        buffers = [
            ("transformer.h.0.attn.bias", "U8", [1, 1, 2, 2], bytes([1, 0, 1, 1])),
            ("transformer.h.0.attn.masked_bias", "F32", [], pack("F32", [-1e4])),
        ]
        train = ["--steps", "2", "--load", self.path("tied"), "--save", self.path("tied.out")]
        single = "model.safetensors"
        write_folder(self.path("tied"), {single: made + buffers + [("lm_head.weight", *table[1:])]}, index=False)
        self.run(gpt2, *train)
        out = read_shard(self.path("tied.out", single))
        self.tally.check(
            list(out) == list(read_shard(self.path("tied", single))), "tied: the same tensors in the same order"
        )
        self.tally.check(
            out["lm_head.weight"] == out["transformer.wte.weight"] != table[1:],
            "tied: the output layer is the new table",
        )
        self.tally.check(all(out[name][2] == raw for name, _, _, raw in buffers), "tied: buffers are copied")
        rest = [tensor for tensor in made if tensor is not table]
        write_folder(self.path("tied"), {single: rest + [("lm_head.weight", *table[1:])]}, index=False)
        self.run(gpt2, *train)
        self.tally.check(
            read_shard(self.path("tied.out", single))["lm_head.weight"] == out["lm_head.weight"],
            "tied: an output layer alone is the table",
        )
        other = ("lm_head.weight", *table[1:3], table[3][2:] + table[3][:2])
        write_folder(self.path("tied"), {single: made + [other]}, index=False)
        self.refused(
            "an output layer that differs from the table",
            gpt2,
            "tied",
            single,
            "lm_head.weight",
            "differs from `transformer.wte.weight`",
        )

    def refused(self, what, program, folder, *words, more=()):
        """One sentence with all the words, and nothing is written."""
        out, log = self.path("none"), self.path("none.log")
        done = self.run(
            program, "--steps", "1", "--load", self.path(folder), "--save", out, "--log", log, *more, expect=None
        )
        said = done.stderr.strip().splitlines()
        left = [path for path in (out, out + ".tmp", log) if os.path.exists(path)]
        self.tally.check(
            done.returncode == 1 and len(said) == 1 and all(word in said[0] for word in words) and not left,
            f"{what}: {said} {left or ''}",
        )

    def later(self, twice, two, three, victim):
        """An index that names the later of two copies is right: transformers reads that one last. The config.json has
        what Python writes for numbers that are none."""
        kind, shape, raw = self.shards[two][0][1:]
        shards = twice | {
            two: [(victim, kind, shape, bytes(len(raw))), *self.shards[two][1:]],
            three: [*self.shards[three], (victim, kind, shape, raw)],
        }
        write_folder(self.path("bad"), shards, index=False)
        write_index(self.path("bad"), {two: self.shards[two][1:], **{n: t for n, t in shards.items() if n != two}})
        with open(self.path("bad", "config.json"), "wb") as file:
            file.write(CONFIG.replace(b"{", b'{"unread": [Infinity, -Infinity, NaN], ', 1))
        self.run(self.llama, "--steps", "1", "--load", self.path("bad"), "--save", self.path("later"))
        saved, whole = (read_shard(self.path(folder, name)) for folder, name in (("later", three), ("allowed", two)))
        self.tally.check(saved[victim] == whole[victim] and victim not in read_shard(self.path("later", two)),
                         "the copy that the index names is read, and saved alone")

    def bad(self):
        one, two, three = self.shards
        first = lambda change: {
            name: [change(*t) if name == two and i == 0 else t for i, t in enumerate(tensors)]
            for name, tensors in self.shards.items()
        }
        victim = self.shards[two][0][0]
        kind, shape, raw = self.shards[two][0][1:]

        def case(what, shards, *words, index=None, damage=lambda: None, more=()):
            write_folder(self.path("bad"), shards)
            if index:
                write_index(self.path("bad"), index)
            damage()
            self.refused(what, self.llama, "bad", *words, more=more)

        def cut():
            os.truncate(self.path("bad", two), os.path.getsize(self.path("bad", two)) - 3)

        def say(text):
            def change():
                with open(self.path("bad", "model.safetensors.index.json"), "w") as file:
                    file.write(text)

            return change

        def repeat():
            with open(self.path("bad", two), "rb") as file:
                data = file.read()
            (length,) = struct.unpack("<Q", data[:8])
            entry = json.dumps({"dtype": kind, "shape": shape, "data_offsets": [0, len(raw)]})
            text = data[8 : 8 + length].rstrip()[:-1] + f',"{victim}":{entry}}}'.encode()
            with open(self.path("bad", two), "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + data[8 + length :])

        case(
            "a missing tensor",
            {name: tensors[name == two :] for name, tensors in self.shards.items()},
            "bad` lacks",
            victim,
        )
        case(
            "a wrong shape",
            first(lambda n, k, s, r: (n, k, [len(r) // {"F64": 8, "F32": 4}.get(k, 2)] + [1] * len(s), r)),
            two,
            victim,
            "has shape",
        )
        case("an unknown type", first(lambda n, k, s, r: (n, "F12", s, r)), two, victim, "unknown type F12")
        case(
            "a type of no reals",
            first(lambda n, k, s, r: (n, "I64", s, bytes(len(r) * 8 // {"F64": 8, "F32": 4}.get(k, 2)))),
            two,
            victim,
            "I64",
        )
        case("a truncated shard", self.shards, two, "truncated", damage=cut)
        case(
            "a missing shard", self.shards, two, "not in the folder", damage=lambda: os.remove(self.path("bad", two))
        )
        twice = {
            name: tensors + ([(victim, kind, shape, bytes(len(raw)))] if name == three else [])
            for name, tensors in self.shards.items()
        }
        case("a name in two shards", twice, two, three, victim, "other values", index=self.shards)
        case("a name twice in a shard", self.shards, two, victim, "twice", damage=repeat)
        moved = {
            name: [t for t in tensors if t[0] != victim] + ([self.shards[two][0]] if name == one else [])
            for name, tensors in self.shards.items()
        }
        case(
            "an index that names the wrong shard",
            self.shards,
            "index.json",
            victim,
            one,
            "no such tensor",
            index=moved,
        )
        case(
            "an index that lacks a tensor",
            self.shards,
            "index.json",
            victim,
            two,
            "does not name",
            index={name: [t for t in tensors if t[0] != victim] for name, tensors in self.shards.items()},
        )
        case(
            "an index that leaves the folder",
            self.shards,
            "index.json",
            "../model/" + two,
            index={"../model/" + two: self.shards[two]},
        )
        case("an index that is no JSON", self.shards, "index.json:2:1` is corrupt: it is no JSON", damage=say("{\n]"))
        case("an index with a number", self.shards, "index.json:2:3", "name of a file for `b`",
             damage=say('{"weight_map": {"a": "b",\n  "b": 5}}'))
        case("a shard that git did not fetch", self.shards, two, "git lfs pull", damage=lambda: write_pointer(
            self.path("bad", two)))
        case("an index without a map", self.shards, "index.json", "weight_map", damage=say("{}"))
        case(
            "an index with a name twice",
            self.shards,
            "index.json",
            victim,
            "twice",
            damage=say(json.dumps({"weight_map": {"a": one}}).replace('"a"', f'"{victim}": "{two}", "{victim}"')),
        )
        bias = ("model.layers.0.self_attn.q_proj.bias", "F32", [1], bytes(4))
        many = self.shards | {two: self.shards[two] + [bias]}
        case("a tensor that is no weight", many, two, bias[0], "does not use")
        case(
            "a name that is not unused",
            many,
            "--allow-unused",
            victim,
            more=("--allow-unused", f"{bias[0]},{victim}"),
        )
        case(
            "a pattern that names none",
            many,
            "--allow-unused model.visual.*",
            more=("--allow-unused", "*.bias,model.visual.*"),
        )
        write_folder(self.path("bad"), many)
        self.run(
            self.llama,
            "--steps",
            "1",
            "--load",
            self.path("bad"),
            "--save",
            self.path("allowed"),
            "--allow-unused",
            "model.*.q_proj.b*",
        )
        self.tally.check(
            read_shard(self.path("allowed", two))[bias[0]] == ("F32", [1], bytes(4)), "an allowed tensor is copied"
        )
        self.later(twice, two, three, victim)
        case(
            "an index that names a file of ours",
            {"optimizer.safetensors" if name == two else name: tensors for name, tensors in self.shards.items()},
            "has weights in `optimizer.safetensors`, where a checkpoint has something else",
        )
        for what in ("nan", "-inf"):
            odd = pack(kind, [float(what), *[0.5] * (len(raw) // len(pack(kind, [0.5])) - 1)])
            case(f"a weight that holds {what}", first(lambda n, k, s, r: (n, k, s, odd)), two, f"`{victim}` holds",
                 "NaN" if what == "nan" else "-Inf")
        case(
            "two models",
            self.shards,
            "two models",
            damage=lambda: write_shard(self.path("bad", "model.safetensors"), [bias]),
        )
        case(
            "a folder with pytorch_model.bin alone",
            {},
            "bad",
            "pytorch_model.bin",
            "save_pretrained",
            damage=lambda: os.remove(self.path("bad", "model.safetensors.index.json")),
        )

    def configs(self):
        """A program that was made from no folder refuses a config.json that its own ops contradict."""
        heads, width = SIZES["heads"], SIZES["hidden"] // SIZES["heads"]
        own = {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": width, "hidden_act": "silu",
               "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
        shutil.copytree(self.path("model"), self.path("said"))

        def load(*more, expect=0, **changes):
            with open(self.path("said", "config.json"), "w") as file:
                json.dump(own | changes, file)
            return self.run(self.llama, "--steps", "1", "--load", self.path("said"), *more, expect=expect)

        load()
        load(rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 1e4}, hidden_act="swish")
        # A window as wide as the sequence hides nothing, nor does one that is not used.
        load(sliding_window=4096, query_pre_attn_scalar=width, attn_logit_softcapping=None, logit_scale=1.0)
        load(sliding_window=4, use_sliding_window=False)
        for name, value in (("num_attention_heads", 2 * heads), ("num_key_value_heads", 1), ("head_dim", 2 * width),
                            ("hidden_act", "gelu"), ("rms_norm_eps", 1e-6), ("rope_theta", 5e5),
                            ("rope_scaling", {"type": "linear", "factor": 2.0}), ("sliding_window", 4),
                            ("attn_logit_softcapping", 50.0), ("query_pre_attn_scalar", 4 * width),
                            ("residual_multiplier", 0.22), ("logit_scale", 0.0625)):
            done = load(expect=1, **{name: value})
            said = "`rope_type` \"linear\"" if name == "rope_scaling" else f"`{name}` {json.dumps(value)}"
            self.tally.check(said in done.stderr, f"config.json with {name} {value}: {done.stderr.strip()}")
            load("--changed", "config", **{name: value})

    def replaced(self):
        """Only a folder that is all ours is replaced, and never the one that is read."""
        save = lambda out, *more, expect=0: self.run(
            self.llama, "--steps", "1", "--load", self.path("model"), "--save", out, *more, expect=expect
        )
        out = self.path("replaced")
        save(out)
        save(out)
        os.rename(out, out + ".tmp")  # as a save that was killed leaves it
        save(out)
        self.tally.check(not os.path.exists(out + ".tmp"), "what a killed save left is taken away")
        with open(os.path.join(out, "mine.txt"), "w") as file:
            file.write("mine")
        before = files(out)
        self.tally.check(
            "`mine.txt`" in save(out, expect=1).stderr and files(out) == before,
            "a folder with a file of others stays",
        )
        before = files(self.path("half16"))
        for read in ("half16", "half16/model-00001-of-00003.safetensors"):
            for given in ("half16", "half16/", "./half16"):
                done = self.run(
                    self.llama,
                    "--steps",
                    "1",
                    "--load",
                    self.path(read),
                    "--save",
                    os.path.join(self.folder, given),
                    expect=1,
                )
                self.tally.check("would" in done.stderr, f"--load {read} --save {given}: {done.stderr.strip()}")
        self.tally.check(files(self.path("half16")) == before, "the folder that is read stays")


    def foreign(self):
        """What a mark lists is not ours if its checksum is another; a link that leads to itself is no place."""
        mine = self.path("foreign")
        shutil.copytree(self.path("half16"), mine)
        os.rename(os.path.join(mine, "state.json"), self.path("state"))
        with open(self.path("state")) as file:
            state = json.load(file)
        state["files"].append("thesis.txt")
        with open(os.path.join(mine, "thesis.txt"), "w") as file:
            file.write("ten years")
        for what, sums in (("no checksum", state["crc32"]), ("another checksum", state["crc32"] | {"thesis.txt": "0"}),
                           ("none at all", {})):
            with open(os.path.join(mine, "state.json"), "w") as file:
                json.dump(state | {"crc32": sums}, file)
            before = files(mine)
            for option in ("--save", "--resume") if sums else ("--save",):
                words = ["--save", mine, *(["--resume", mine] if option == "--resume" else [])]
                done = self.run(self.llama, "--steps", "3", *words, expect=1)
                named = option == "--resume" or "/thesis.txt`" in done.stderr or not sums
                self.tally.check("step 1/" not in done.stdout and files(mine) == before and named,
                                 f"{what}: {done.stderr.strip()}")
        link = self.path("link")
        os.symlink(link, link)
        done = self.run(self.llama, "--steps", "1", "--save", link, expect=1)
        self.tally.check("is a link that leads to itself" in done.stderr and "step 1/" not in done.stdout,
                         f"a link to itself: {done.stderr.strip()}")

    def overflow(self):
        """Gradients whose squares f32 cannot hold have the norm that f64 finds, and are clipped by it."""
        norms, moved = {}, {}
        wide = self.compile("llama.f64", precision="f64")
        self.run(self.llama, *STILL, "--save", self.path("small"))
        made, tensors = read_shard(self.path("small", "model.safetensors")), []
        for name, (kind, shape, raw) in made.items():
            factor = 1e11 if name in ("model.norm.weight", "lm_head.weight") else 1
            values = struct.unpack(f"<{len(raw) // 4}f", raw)
            tensors.append((name, kind, shape, pack(kind, [factor * value for value in values])))
        write_shard(self.path("large.safetensors"), tensors)
        for program in (wide, self.llama):
            log, out = program + ".log", program + ".large"
            self.run(program, "--steps", "1", "--load", self.path("large.safetensors"), "--log", log, "--save", out)
            (line,) = harness.read_log(log)
            norms[program], kind = line["grad_norm"], "d" if program == wide else "f"
            self.tally.check(line["skipped"] is False, "a step whose norm is finite is not skipped")
            raw = read_shard(os.path.join(out, "model.safetensors"))["model.embed_tokens.weight"][2]
            moved[program] = struct.unpack(f"<{len(raw) // (8 if program == wide else 4)}{kind}", raw)
        old = struct.unpack("<4096f", made["model.embed_tokens.weight"][2])
        far = harness.apart(moved[wide], moved[self.llama])
        most = harness.apart(moved[wide], old)
        alike = abs(norms[self.llama] / norms[wide] - 1) < 1e-3
        self.tally.check(norms[wide] > 1e20 and alike and far < 1e-2 * most,
                         f"norms {norms.values()}, a step of {most} differs by {far}")

    def made_from(self):
        """A checkpoint has config.json and the tokenizer, wherever its weights began."""
        made = self.path("made")
        write_folder(made, self.shards)
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 16,
                  "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 24,
                  "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
                  "max_position_embeddings": 64, "torch_dtype": "bfloat16"}
        for name, body in (("config.json", config), ("generation_config.json", {"eos_token_id": 2})):
            with open(os.path.join(made, name), "w") as file:
                json.dump(body, file)
        program = self.path("made.program")
        harness.call([self.compiler, f"--from-hf={made}", "--schedule=std/1f1b.pipe", "-D", "ranks=2",
                      "-D", "microbatches=4", "-D", "data.sequence=16", "-D", "precision=f32", *harness.RUNTIME, "-o",
                      program])
        begun, gone = self.path("made.out"), self.path("made.gone")
        self.run(program, "--init", "--steps", "2", "--stop-at", "1", "--save", begun)
        for name in {"config.json", "tokenizer.json"} & set(os.listdir(begun)):
            os.remove(os.path.join(begun, name))
        with open(os.path.join(begun, "state.json")) as file:
            state = {key: value for key, value in json.load(file).items() if not key.startswith("crc32")}
        with open(os.path.join(begun, "state.json"), "w") as file:
            json.dump(state, file)
        self.run(program, "--resume", begun, "--save", self.path("made.resumed"))  # as of an older version
        shutil.rmtree(begun)
        self.run(program, "--init", "--steps", "1", "--save", begun)
        for out in (begun, self.path("made.resumed")):
            found = files(out)
            self.tally.check({"config.json", "generation_config.json", "tokenizer.json", "vocab.txt"} <= found.keys()
                             and json.loads(found["config.json"]) == config | {"torch_dtype": "float32"},
                             f"{os.path.basename(out)}: {sorted(found)}")
        os.rename(made, gone)
        done = self.run(program, "--init", "--steps", "1", "--save", self.path("made.alone"))
        self.tally.check("has no config.json any more" in done.stdout, "a folder that is gone is said")


def main():
    folders = Folders(*sys.argv[1:3])
    folders.as_read()
    folders.resumed()
    folders.types()
    folders.sharded()
    folders.tied()
    folders.bad()
    folders.configs()
    folders.replaced()
    folders.foreign()
    folders.overflow()
    folders.made_from()
    return folders.tally.close()


if __name__ == "__main__":
    sys.exit(main())
