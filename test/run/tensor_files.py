#!/usr/bin/env python3
"""Judges what a run on `mesh tensor = T` reads and writes: weights, checkpoints, gradients, norms, skipped steps."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: tensor_files.py PP_COMPILE FOLDER
# Files know nothing of the mesh: whole tensors, published names. So a run on one device is the judge of them: the same
# first weights to the bit, and from each checkpoint both go on alike. 250 tokens fill the pieces of a vocabulary over 2
# devices, 257 do not; over 4 devices neighbours share kv heads, where both models have two.
import json, os, re, sys
import harness
from gradients import difference

SIZES = dict(model="llama", layers=4, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=257, sequence=16, microbatch=1,
             microbatches=4, precision="f64")
MESHES = {"single": (dict(schedule="single", ranks=1, microbatch=2), 1),
          "tensor 2": ({"schedule": "single", "ranks": 1, "microbatch": 2, "mesh.tensor": 2}, 2),
          "tensor 2, data 2": ({"schedule": "1f1b", "ranks": 2, "mesh.tensor": 2, "mesh.data": 2}, 8),
          "tensor 2, data 2, zero 1": ({"schedule": "zb_v", "ranks": 2, "mesh.tensor": 2, "mesh.data": 2,
                                        "mesh.zero": 1}, 8)}


class Files:
    def __init__(self, compiler, folder):
        self.compiler, self.folder = compiler, folder
        self.text, self.tally = harness.write_text(folder), harness.Tally()
        self.made = {}

    def path(self, name):
        return os.path.join(self.folder, name.replace(",", "").replace(" ", "_"))

    def make(self, mesh, **values):
        values = MESHES[mesh][0] | values
        key = mesh + "".join(f" {name} {value}" for name, value in values.items())
        if key not in self.made:
            program = self.path(f"program{len(self.made)}")
            self.made[key] = harness.compile_train(self.compiler, program, SIZES | values)
        return self.made[key], MESHES[mesh][1]

    def run(self, made, *options, transport="threads", log="run.jsonl"):
        program, devices = made
        log = self.path(log)
        if "--resume" not in options and os.path.exists(log):
            os.remove(log)
        harness.call([*harness.launch(program, devices, transport), "--data", self.text, "--log", log, *options])
        return harness.read_log(log)

    def bytes(self, *names):
        with open(os.path.join(*names), "rb") as file:
            return file.read()

    def first_weights(self):
        """A rate of 0 keeps them: what is saved is what the run began with, and what it loaded."""
        for model, values in (("llama", {}), ("gpt2", {"vocab": 250}), ("llama", {"mesh.tensor": 4})):
            saved = []
            sizes = dict(model=model, precision="f32")
            for mesh in ("single", "tensor 2"):
                program, devices = self.make(mesh, **sizes | (values if mesh != "single" or "vocab" in values else {}))
                devices = values.get("mesh.tensor", devices) if mesh != "single" else devices
                saved.append(self.path("first " + mesh))
                self.run((program, devices), "--steps", "1", "--lr", "0", "--save", saved[-1])
            files = [self.bytes(folder, "model.safetensors") for folder in saved]
            self.tally.check(files[0] == files[1], f"{model} {values}: first weights have the bits of one device's")
            again = self.path("loaded")
            self.run((program, devices), "--steps", "1", "--lr", "0", "--load", saved[0], "--save", again,
                     "--seed", "9")
            first, second = (harness.read_safetensors(os.path.join(folder, "model.safetensors"))
                             for folder in (saved[0], again))
            self.tally.check(first == second, f"{model} {values}: loaded and saved")

    def resumed(self):
        """A checkpoint of any mesh goes on on any other: losses of one run, and its bits on the same mesh."""
        for model in ("llama", "gpt2"):
            for first in MESHES:
                whole = self.run(self.make(first, model=model), "--steps", "4")
                saved = self.path("saved " + first)
                self.run(self.make(first, model=model), "--steps", "4", "--stop-at", "2", "--save", saved)
                for second in MESHES:
                    if model == "gpt2" and first != "tensor 2" != second:
                        continue
                    self.run(self.make(first, model=model), "--steps", "4", "--stop-at", "2")
                    rest = self.run(self.make(second, model=model), "--steps", "4", "--resume", saved)[2:]
                    error = harness.drift(*([line[key] for line in log for key in ("loss", "grad_norm")]
                                            for log in (whole[2:], rest)))
                    self.tally.check(error <= (0 if first == second else 1e-11),
                                     f"{model} of {first} goes on on {second}: losses and norms {error:.1e}")

    def gradients(self):
        """Whole, each once; and the same bits from each transport."""
        for model in ("llama", "gpt2"):
            found = []
            modes = ["threads", "mpi"] + (["streams/1", "streams/2", "staged/3"] if harness.RUNTIME else [])
            for mesh, transport in (("single", "threads"), *((mesh, transport) for mesh in list(MESHES)[1:]
                                                             for transport in modes)):
                grads = self.path("grads")
                norm = self.run(self.make(mesh, model=model), "--steps", "1", "--grads", grads,
                                transport=transport)[0]["grad_norm"]
                found.append((norm, {name: values for name, (_, values) in harness.read_safetensors(grads).items()}))
                worst, where = difference(found[-1][1], found[0][1])
                off = abs(norm / found[0][0] - 1)
                self.tally.check(worst <= 1e-11 and off <= 1e-12,
                                 f"{model}, {mesh} over {transport}: gradients {worst:.1e} ({where}), norm {off:.1e}")
            same = all(its == found[1 + (i - 1) // len(modes) * len(modes)] for i, its in enumerate(found) if i)
            self.tally.check(same, f"{model}: {', '.join(modes)} have the same bits")

    def overflow(self):
        """All devices skip the same steps: those that one device skips, and the weights stay alike."""
        values = {"precision": "f16", "optimizer.loss_scale": 2**40, "optimizer.scale_window": 4, "vocab": 250}
        logs = {mesh: self.run(self.make(mesh, **values), "--steps", "40", log="skips.jsonl")
                for mesh in ("single", "tensor 2")}
        skips = {mesh: [line["skipped"] for line in log] for mesh, log in logs.items()}
        first = {mesh: its.index(False) for mesh, its in skips.items()}
        self.tally.check(8 < first["single"] == first["tensor 2"] < 38, f"f16: {first} steps are skipped at first")
        drift = harness.apart(*([line["loss"] for line in log] for log in logs.values()))
        self.tally.check(drift < 0.05, f"f16: losses differ by {drift:.1e}")

    def traced(self):
        """A run exchanges as often, and receives as many bytes, as its plan says; each exchange has a number."""
        mesh, trace = "tensor 2, data 2", self.path("trace.json")
        values = SIZES | MESHES[mesh][0]
        defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
        plan = json.loads(harness.call([self.compiler, harness.TRAIN, *defines, "--emit=stats"]).stdout)["per_rank"]
        program, devices = self.make(mesh)
        said = harness.call([program, "--in-process", "--data", self.text, "--steps", "2", "--trace", trace]).stdout
        rows = re.findall(r"^ +(\d+) +\d+ +\d+ +\d+ +(\d+) ", said, flags=re.M)
        with open(trace) as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("cat") in ("sum", "gather")]
        for device, received in ((int(device), int(received)) for device, received in rows):
            its = plan[device // 4]
            counts = [count for kinds in its["exchanges"].values() for count in kinds.values()]
            wanted = its["bytes_received"] + sum(received for _, received in counts)
            numbers = [event["args"]["message"] for event in events if event["pid"] == device]
            least = 2 * sum(count for count, _ in counts)
            self.tally.check(received == wanted and len(numbers) == len(set(numbers)) >= least,
                             f"device {device}: {received} bytes come in a step, planned are {wanted}; "
                             f"{len(numbers)} sums and gathers in two steps, {least} of them planned inside units")
        self.tally.check(len(rows) == devices, f"{len(rows)} devices")

    def wrong_count(self):
        program, _ = self.make("tensor 2, data 2")
        said = harness.call([*harness.launch(program, 4, "mpi"), "--data", self.text], expect=None).stderr
        self.tally.check("8 devices (2 ranks of 4: tensor 2, data 2); mpirun started 4: run `mpirun -n 8 <program>`"
                         in said, f"too few devices: {said.strip()[-300:]}")


def main():
    tests = Files(*sys.argv[1:3])
    for name in sys.argv[3:] or ("first_weights", "gradients", "resumed", "overflow", "traced", "wrong_count"):
        getattr(tests, name)()
    return tests.tally.close()


if __name__ == "__main__":
    sys.exit(main())
