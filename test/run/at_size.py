"""Trains folders of some 100 MB in bf16 for ten steps: under zb_v on four ranks, and on tensor 2 x data 2."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: at_size.py PP_COMPILE FOLDER [NAME..]     names of zoo.py, or `all`; without any, one of each file of models
# The models are those of the zoo with twice the layers and longer rows; their weights are pp's own at the start. Both
# programs read the same text, so that their losses differ by rounding alone. The planned bytes of each rank are those
# used, the saved folder has the tensors of the one that was read, and where there is torch, the first loss is that of
# transformers.
import json, math, os, re, shutil, struct, sys
import check_hf, harness, zoo

VOCABULARY, SEQUENCE, SEQUENCES, STEPS = 64010, 16, 8, 10
LEAST, MOST = 80 << 20, 250 << 20  # bytes of a folder's weights
ROUNDING = 2e-2  # of a loss in bf16, relative
ONE_OF_EACH_FILE = ("llama", "gemma3_text", "gpt2", "gpt_neox", "gpt_neo", "opt", "falcon", "cohere2", "mixtral",
                    "qwen3_moe", "glm4_moe", "qwen2_moe", "afmoe")
WAYS = {"zb_v on 4 ranks": ("zb_v.pipe:zb_v", 4, ["ranks=4", f"microbatches={SEQUENCES}"]),
        "tensor 2 x data 2": ("single.pipe", 4, [f"microbatches={SEQUENCES // 2}", "mesh.tensor=2", "mesh.data=2"])}


def header(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        tensors = json.loads(file.read(length))
    return {name: (entry["dtype"], entry["shape"]) for name, entry in tensors.items() if name != "__metadata__"}


class Sizes:
    def __init__(self, compiler, folder):
        self.compiler, self.folder, self.text = compiler, folder, harness.write_text(folder)

    def compile(self, place, name, schedule, defines):
        program = os.path.join(self.folder, name)
        words = [word for define in (*defines, "data.microbatch=1", f"data.sequence={SEQUENCE}", "optimizer.warmup=0",
                                     "optimizer.lr=1e-4") for word in ("-D", define)]
        command, whole = [self.compiler, f"--from-hf={place}", f"--schedule=std/{schedule}", *words, "-o", program], []
        done = harness.call(command, expect=None)
        while (part := re.search(check_hf.NO_RULE, done.stderr)) and part[1] not in whole:
            whole.append(part[1])
            done = harness.call([*command, *(f"-Dmesh.{part}.tensor=1" for part in whole)], expect=None)
        assert done.returncode == 0, done.stderr
        return program

    def make(self, name):
        """A folder with weights."""
        kind, fields = zoo.sizes(name)[1]
        place = os.path.join(self.folder, name)
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        with open(os.path.join(place, "config.json"), "w") as file:
            json.dump({"model_type": kind} | zoo.grown(fields, 16, 2, VOCABULARY) | {"dtype": "bfloat16"}, file)
        program = self.compile(place, "one", "single.pipe", ["microbatches=1"])
        saved = os.path.join(self.folder, "saved")
        harness.call([program, "--in-process", "--init", "--data", self.text, "--steps", "1", "--lr", "0", "--save",
                      saved])
        os.rename(os.path.join(saved, "model.safetensors"), os.path.join(place, "model.safetensors"))
        return place

    def train(self, place, way):
        """The losses; what was promised holds."""
        schedule, ranks, defines = WAYS[way]
        program, log, saved = self.compile(place, "many", schedule, defines), place + ".log", place + ".saved"
        shutil.rmtree(saved, ignore_errors=True)
        words = ["--data", self.text, "--steps", str(STEPS), "--log", log, "--save", saved]
        said = harness.call([*harness.launch(program, ranks, "mpi"), *words], timeout=1800).stdout
        rows = [line.split()[:3] for line in said.splitlines() if re.match(r" *\d+ +\d+ +\d+ ", line)]
        # Of experts without weights a token has no rows, and pages that have no other rows are not touched.
        with open(os.path.join(place, "config.json")) as file:
            least = 0.999 if json.load(file).get("zero_expert_num") else 1
        assert len(rows) == ranks and all(least * int(planned) <= int(used) <= int(planned)
                                          for _, planned, used in rows), f"planned is not used: {rows}"
        weights = "model.safetensors"
        assert header(os.path.join(saved, weights)) == header(os.path.join(place, weights)), "other tensors are saved"
        with open(os.path.join(saved, "config.json")) as ours, open(os.path.join(place, "config.json")) as theirs:
            assert ours.read() == theirs.read(), "another config.json is saved"
        losses = [line["loss"] for line in harness.read_log(log)]
        assert len(losses) == STEPS and all(map(math.isfinite, losses)), f"losses: {losses}"
        half = STEPS // 2
        assert sum(losses[half:]) < sum(losses[:half]), f"nothing is learned: {losses}"
        shutil.rmtree(saved)
        return losses

    def theirs(self, place):
        """transformers' loss of the first step."""
        torch, _ = check_hf.tool().make_f64()
        reference = check_hf.tool().Reference(place)
        with open(self.text, "rb") as file:
            tokens = list(file.read(SEQUENCES * SEQUENCE + 1))
        with torch.no_grad():
            return reference.loss(tokens, SEQUENCES, SEQUENCE, 0).item()

    def check(self, name):
        place = self.make(name)
        size = os.path.getsize(os.path.join(place, "model.safetensors"))
        assert LEAST < size < MOST, f"the weights have {size} bytes"
        losses = {way: self.train(place, way) for way in WAYS}
        if check_hf.HAS_TORCH:
            losses["transformers"] = [self.theirs(place)]
        first = losses["zb_v on 4 ranks"]
        for way, others in losses.items():
            far = harness.drift(others, first[:len(others)])
            assert far < ROUNDING, f"{way}: losses {others} are {far:.1e} from {first}"
            print(f"     {name}: {size >> 20} MiB, {way}: {' '.join(f'{loss:.4f}' for loss in others)}", flush=True)
        shutil.rmtree(place)


def main():
    compiler, folder, *names = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    sizes, tally, read = Sizes(compiler, folder), harness.Tally(), check_hf.families_read()
    if names == ["all"]:
        names = [name for name in zoo.NAMES if zoo.sizes(name)[0][0] in read]
    for name in names or ONE_OF_EACH_FILE:
        tally.attempt(name, sizes.check, name)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
