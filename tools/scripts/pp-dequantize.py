#!/usr/bin/env python3
"""Writes a folder of Hugging Face with weights in MXFP4, or in blocks of fp8, as one with weights in bf16."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: pp-dequantize FOLDER -o OUT
# MXFP4, as gpt-oss has it: `X_blocks` U8 [experts, out, in / 32, 16] and `X_scales` U8 [experts, out, in / 32] become
# `X` [experts, in, out]. A byte holds two numbers, the first one in its low half; a scale s stands for 2^(s - 127).
# fp8, as DeepSeek-V3 has it: `X` [out, in] and `X_scale_inv` [blocks of rows, blocks of columns]. The last block of a
# side may be less than full. One file is in memory at a time; all else in the folder is copied.
import argparse, json, os, shutil, sys

NUMBERS = [0, .5, 1, 1.5, 2, 3, 4, 6]  # of E2M1 (OCP Microscaling Formats 1.0, 5.3.3); the high bit is the sign
INDEX = "model.safetensors.index.json"


class Refused(Exception):
    """What is wrong with the input, in one sentence."""


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError) as error:
        raise Refused(f"cannot read `{path}`: {error}") from None
    if not isinstance(value, dict):
        raise Refused(f"`{path}` holds no object")
    return value


def mxfp4(blocks, scales, name):
    import torch
    if blocks.dtype != torch.uint8 or blocks.dim() != 4 or blocks.shape[-1] != 16 or blocks.shape[:3] != scales.shape:
        raise Refused(f"`{name}_blocks` is {list(blocks.shape)} of {blocks.dtype} and `{name}_scales` "
                      f"{list(scales.shape)}; expected bytes, [experts, out, in / 32, 16] and [experts, out, in / 32]")
    table = torch.tensor(NUMBERS + [-number for number in NUMBERS])
    made = []
    for its, exponents in zip(blocks, scales):  # an expert at a time: f32 takes eight times the room of the bytes
        both = torch.stack([its & 15, its >> 4], dim=-1).flatten(-2)
        values = table[both.long()] * torch.exp2(exponents.float() - 127)[..., None]
        made.append(values.flatten(-2).T.to(torch.bfloat16))
    return torch.stack(made)


def fp8(weight, scales, name, block):
    import torch
    if weight.dim() != 2 or list(scales.shape) != [-(-size // its) for size, its in zip(weight.shape, block)]:
        raise Refused(f"`{name}` is {list(weight.shape)} and its scales {list(scales.shape)}; expected a scale for "
                      f"each block of {block[0]} x {block[1]}")
    for side, its in enumerate(block):
        scales = scales.repeat_interleave(its, side).narrow(side, 0, weight.shape[side])
    return (weight.float() * scales.float()).to(torch.bfloat16)


class Folder:
    """The tensors of a folder, whichever file has them."""

    def __init__(self, path, quantization):
        self.path, self.method = path, quantization.get("quant_method")
        self.block = quantization.get("weight_block_size")
        sizes = self.block if isinstance(self.block, list) else []
        if self.method == "fp8" and (len(sizes) != 2 or not all(isinstance(its, int) and its > 0 for its in sizes)):
            raise Refused(f"`weight_block_size` is {self.block}; expected two sizes of blocks")
        if self.method not in ("mxfp4", "fp8"):
            raise Refused(f"`quant_method` is `{self.method}`; it must be `mxfp4` or `fp8`")
        self.index = read_json(os.path.join(path, INDEX)) if os.path.exists(os.path.join(path, INDEX)) else None
        self.files, self.names = {}, {}
        listed = (self.index or {}).get("weight_map")
        if self.index is not None and not isinstance(listed, dict):
            raise Refused(f"`{INDEX}` has no `weight_map`")
        for file in sorted(set(listed.values())) if listed else ["model.safetensors"]:
            self.files[file] = list(self.open(file).keys())
            self.names |= dict.fromkeys(self.files[file], file)

    def open(self, file):
        import safetensors
        path = os.path.join(self.path, file)
        if os.path.basename(file) != file:
            raise Refused(f"`{file}` is no name of a file of the folder")
        try:
            return safetensors.safe_open(path, "pt")
        except (OSError, safetensors.SafetensorError) as error:
            raise Refused(f"cannot read `{path}`: {error}") from None

    def read(self, name, of):
        if name not in self.names:
            raise Refused(f"`{of}` has no `{name}` beside it")
        return self.open(self.names[name]).get_tensor(name)

    def unpacked(self, file):
        """The tensors of a file under their names in OUT. What another tensor is read with has no tensor of its own."""
        import torch
        tensors = {}
        for name in self.files[file]:
            whole = name.removesuffix("_blocks")
            if self.method == "mxfp4" and whole != name:
                tensors[whole] = mxfp4(self.read(name, name), self.read(whole + "_scales", name), whole)
            elif self.method == "mxfp4" and name.endswith("_scales") or name.endswith("_scale_inv"):
                continue
            else:
                tensor = self.read(name, name)
                if tensor.dtype == torch.float8_e4m3fn:
                    tensor = fp8(tensor, self.read(name + "_scale_inv", name), name, self.block)
                elif tensor.element_size() == 1:
                    raise Refused(f"`{name}` is of type {tensor.dtype}, which `{self.method}` does not have")
                tensors[name] = tensor
        return tensors


def convert(path, out):
    import safetensors.torch
    config = read_json(os.path.join(path, "config.json"))
    if not isinstance(config.get("quantization_config"), dict):
        raise Refused(f"`config.json` of `{path}` has no `quantization_config`: its weights are not packed")
    folder = Folder(path, config.pop("quantization_config"))
    if os.path.exists(out):
        raise Refused(f"`{out}` is there already")
    begun = out.rstrip("/") + ".begun"
    shutil.rmtree(begun, ignore_errors=True)
    shutil.copytree(path, begun, ignore=lambda _, names: {*folder.files, INDEX, "config.json"} & set(names))
    places, size = {}, 0
    for file in folder.files:
        tensors = folder.unpacked(file)
        safetensors.torch.save_file(tensors, os.path.join(begun, file), metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
        size += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if folder.index is not None:
        with open(os.path.join(begun, INDEX), "w", encoding="utf-8") as file:
            json.dump(folder.index | {"metadata": {"total_size": size}, "weight_map": places}, file, indent=2)
    with open(os.path.join(begun, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
    os.rename(begun, out)
    print(f"{out}: {len(places)} tensors of {size} bytes")


def main():
    parser = argparse.ArgumentParser("pp-dequantize", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", help="config.json, and weights in .safetensors")
    parser.add_argument("-o", dest="out", metavar="OUT", required=True, help="the new folder")
    options = parser.parse_args()
    try:
        convert(options.folder, options.out)
    except ImportError as error:
        raise Refused(f"needs torch and safetensors ({error})") from None


if __name__ == "__main__":
    try:
        main()
    except Refused as refused:
        sys.exit(f"pp-dequantize: error: {refused}")
    except OSError as error:
        sys.exit(f"pp-dequantize: error: {error}")
