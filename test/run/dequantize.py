#!/usr/bin/env python3
"""Judges pp-dequantize: MXFP4 and blocks of fp8, decoded here from what their standards say, and what is refused."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: dequantize.py PP_COMPILE FOLDER      without torch and safetensors the script ends with 77
# Numbers of E2M1 and E4M3 are decoded from sign, exponent and mantissa (OCP Microscaling Formats 1.0), in Python's own
# floats. What is written must be a folder that pp-compile reads, and a program trains it.
import importlib.util, json, os, random, runpy, shutil, sys, types
import harness

PATH = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "pp-dequantize")  # beside pp-compile
TOOL = types.SimpleNamespace(**runpy.run_path(PATH))
GPT_OSS = dict(model_type="gpt_oss", vocab_size=256, hidden_size=64, intermediate_size=32, num_hidden_layers=2,
               num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=3, num_experts_per_tok=2,
               sliding_window=8, max_position_embeddings=64, layer_types=["sliding_attention", "full_attention"],
               rope_parameters=dict(rope_type="default", rope_theta=1e4), tie_word_embeddings=False, dtype="bfloat16")
LLAMA = dict(model_type="llama", vocab_size=256, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
             dtype="bfloat16")
BLOCK = [16, 24]  # rows and columns; neither divides all sizes


def decoded(bits, exponent, mantissa, bias):
    """A number of so many bits of exponent and mantissa; E4M3 has no infinity, and NaN is not drawn."""
    sign = -1.0 if bits >> (exponent + mantissa) else 1.0
    e, m = bits >> mantissa & ((1 << exponent) - 1), bits & ((1 << mantissa) - 1)
    return sign * (m * 2.0 ** (1 - bias - mantissa) if e == 0 else (1 + m * 2.0 ** -mantissa) * 2.0 ** (e - bias))


class Folders:
    def __init__(self, compiler, folder):
        self.compiler, self.folder, self.random = compiler, folder, random.Random(7)
        self.text = harness.write_text(folder)

    def start(self, name, config):
        """The tensors of a folder with random weights in bf16."""
        import safetensors.torch
        place = os.path.join(self.folder, name)
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        with open(os.path.join(place, "config.json"), "w") as file:
            json.dump(config, file)
        self.train(place, "--init", "--save", place + ".begun")
        tensors = safetensors.torch.load_file(os.path.join(place + ".begun", "model.safetensors"))
        return place, tensors

    def train(self, place, *words):
        program = place + ".program"
        harness.call([self.compiler, *harness.RUNTIME, f"--from-hf={place}", "--schedule=std/single.pipe",
                      "-Dmicrobatches=1", "-Ddata.sequence=16", "-Dprecision=bf16", "-o", program])
        return harness.call([program, "--in-process", "--data", self.text, "--steps", "1", *words]).stdout

    def pack_mxfp4(self, tensors):
        """Random bits in the place of the experts' matrices, and the numbers they stand for, [expert][in][out]."""
        import torch
        values = {}
        for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            experts, into, out = tensors.pop(name).shape
            draw = lambda *shape, low=0, high=255: torch.tensor(
                [self.random.randint(low, high) for _ in range(torch.Size(shape).numel())],
                dtype=torch.uint8).reshape(shape)
            blocks = tensors[name + "_blocks"] = draw(experts, out, into // 32, 16)
            scales = tensors[name + "_scales"] = draw(experts, out, into // 32, low=116, high=124)
            nibble = lambda e, i, o: int(blocks[e, o, i // 32, i % 32 // 2]) >> (4 if i % 2 else 0) & 15
            values[name] = [[[decoded(nibble(e, i, o), 2, 1, 1) * 2.0 ** (int(scales[e, o, i // 32]) - 127)
                              for o in range(out)] for i in range(into)] for e in range(experts)]
        return values

    def pack_fp8(self, tensors):
        import torch
        values = {}
        for name in [name for name in tensors if name.endswith("proj.weight")]:
            rows, columns = tensors[name].shape
            bits = [[self.random.choice([0, 128]) + self.random.randint(0, 126) for _ in range(columns)]
                    for _ in range(rows)]
            tensors[name] = torch.tensor(bits, dtype=torch.uint8).view(torch.float8_e4m3fn)
            scales = torch.tensor([[self.random.uniform(1e-5, 1e-3) for _ in range(-(-columns // BLOCK[1]))]
                                   for _ in range(-(-rows // BLOCK[0]))])
            tensors[name + "_scale_inv"] = scales
            values[name] = [[decoded(bits[r][c], 4, 3, 7) * float(scales[r // BLOCK[0]][c // BLOCK[1]])
                             for c in range(columns)] for r in range(rows)]
        return values

    def write(self, place, tensors, config, quantization, files):
        """In so many files; scales may be in another one than what they belong to."""
        import safetensors.torch
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        with open(os.path.join(place, "config.json"), "w") as file:
            json.dump(config | {"quantization_config": quantization}, file)
        with open(os.path.join(place, "tokenizer.json"), "w") as file:
            file.write("{}")
        names = sorted(tensors)
        parts = [f"model-{i:05}-of-{files:05}.safetensors" if files > 1 else "model.safetensors"
                 for i in range(1, files + 1)]
        for i, part in enumerate(parts):
            safetensors.torch.save_file({name: tensors[name] for name in names[i::files]}, os.path.join(place, part))
        if files > 1:
            with open(os.path.join(place, "model.safetensors.index.json"), "w") as file:
                json.dump({"metadata": {}, "weight_map": {name: parts[i % files] for i, name in enumerate(names)}},
                          file)

    def read(self, out):
        import safetensors.torch
        tensors = {}
        for name in sorted(os.listdir(out)):
            if name.endswith(".safetensors"):
                tensors |= safetensors.torch.load_file(os.path.join(out, name))
        return tensors

    def check(self, name, config, quantization, pack, files, exact):
        import torch
        place, tensors = self.start(name, config)
        values, whole = pack(tensors), set()
        self.write(place, tensors, config, quantization, files)
        out = place + ".out"
        shutil.rmtree(out, ignore_errors=True)
        TOOL.convert(place, out)
        made = self.read(out)
        for its, numbers in values.items():
            wanted = torch.tensor(numbers, dtype=torch.float64)
            far = ((made[its].double() - wanted).abs() / wanted.abs().clamp(min=1e-30)).max().item()
            assert made[its].dtype == torch.bfloat16 and far <= (0 if exact else 2.0 ** -8), f"{its}: {far}"
            whole.add(its)
        kept = {its for its in tensors if not its.endswith(("_blocks", "_scales", "_scale_inv"))} - whole
        assert made.keys() == kept | whole and all(torch.equal(made[its], tensors[its]) for its in kept)
        with open(os.path.join(out, "config.json")) as file:
            assert json.load(file) == config
        assert sorted(os.listdir(out)) == sorted(os.listdir(place)), "files are missing"
        assert "step 1/1" in self.train(out), "it does not train"
        return place

    def refusal(self, place):
        try:
            TOOL.convert(place, place + ".out")
        except TOOL.Refused as refused:
            return str(refused)
        return "nothing"

    def refusals(self):
        place = os.path.join(self.folder, "refused")
        import torch
        row = {"a.weight": torch.zeros(40, 40).to(torch.float8_e4m3fn), "a.weight_scale_inv": torch.zeros(3, 2)}
        fp8 = dict(quant_method="fp8", weight_block_size=BLOCK)
        fours = {"x_blocks": torch.zeros(2, 4, 1, 16, dtype=torch.uint8),
                 "x_scales": torch.zeros(2, 4, 2, dtype=torch.uint8)}
        for tensors, quantization, wanted in [
                (row, dict(quant_method="gptq"), "`quant_method` is `gptq`; it must be `mxfp4` or `fp8`"),
                (row, dict(quant_method="fp8", weight_block_size=[0, 16]), "`weight_block_size` is [0, 16]"),
                (row, fp8 | dict(weight_block_size=[16, 16]), "[3, 2]; expected a scale for each block of 16 x 16"),
                ({"a.weight": row["a.weight"]}, fp8, "`a.weight` has no `a.weight_scale_inv` beside it"),
                (fours, dict(quant_method="mxfp4"), "`x_scales` [2, 4, 2]; expected"),
                ({"a.weight": torch.zeros(4, dtype=torch.int8)}, fp8, "is of type torch.int8"),
        ]:
            self.write(place, tensors, LLAMA, quantization, 1)
            assert wanted in self.refusal(place), self.refusal(place)
            assert not os.path.exists(place + ".out"), "there is something"
        with open(os.path.join(place, "config.json"), "w") as file:
            json.dump(LLAMA, file)
        assert "its weights are not packed" in self.refusal(place)


def main():
    if not all(importlib.util.find_spec(name) for name in ("torch", "safetensors")):
        print("skipped: torch or safetensors is missing")
        sys.exit(77)
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    folders, tally = Folders(compiler, folder), harness.Tally()
    tally.attempt("mxfp4", folders.check, "gpt_oss", GPT_OSS, dict(quant_method="mxfp4"), folders.pack_mxfp4, 3, True)
    tally.attempt("fp8", folders.check, "llama", LLAMA, dict(quant_method="fp8", weight_block_size=BLOCK),
                  folders.pack_fp8, 2, False)
    tally.attempt("refusals", folders.refusals)
    sys.exit(tally.close())


if __name__ == "__main__":
    main()
