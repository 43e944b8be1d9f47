#!/usr/bin/env python3
"""Judges `lora` by execution: schedules against one rank, finite differences, resumed runs, and the folders of peft."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: adapters.py PP_COMPILE FOLDER [--schedules NAME[/PARAMETER=VALUE..],..] [--without-mpi]
# B of a fresh adapter is 0, so A has no gradient yet: adapters are trained for three steps on one rank and saved, and
# all else begins with that folder.
import argparse, json, math, os, shutil, sys
import families, harness
from gradients import SMALL, TOLERANCE, TRAINED, Runner, difference

SCHEDULES = ("gpipe 1f1b interleaved zb_h2 zb_v dualpipe_v pipedream_2bw 1f1b_recompute weipipe_interleave "
             "weipipe_naive wzb2 tawpipe fsdp zero1 data_parallel helixpipe/folds=2/forget=true terapipe "
             "slimpipe/exchange=true ring_attention/sharded=true zb_v/mesh.tensor=2").split()
LORA = {"llama": "q_proj,v_proj,down_proj", "gpt2": "all-linear"}
SIZES = dict(precision="f64", ranks=4, microbatches=8, kv_heads=1) | {"lora.rank": 4, "lora.alpha": 6}
# Folders of families.py with adapters of fixed values: Inputs/adapters.json has peft's loss and gradients, and
# adapters_oracle.py made it.
REFERENCES = {"llama": dict(rank=3, alpha=5.0, targets="q_proj,v_proj,down_proj"),
              "qwen2": dict(rank=2, alpha=3.0, targets="k_proj,o_proj,gate_proj,up_proj", rslora="true"),
              "gpt2": dict(rank=3, alpha=4.0, targets="c_attn,c_proj")}
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


def tensors_of(path):
    return {name: values for name, (_, values) in harness.read_safetensors(path).items()}


class Adapters(Runner):
    def build(self, model, schedule, **more):
        ranks = dict(ranks=1) if schedule == "single" else {}
        return self.compile(schedule=schedule, model=model, **SIZES | {"lora.targets": LORA[model]} | ranks | more)

    def train(self, program, ranks, name, *options, transport="threads"):
        """The gradients of the first step, the losses, and the folder that is saved."""
        saved, log, grads = (f"{program}.{name}{end}" for end in ("", ".jsonl", ".grads"))
        if os.path.exists(log):  # a resumed run goes on with its log
            os.remove(log)
        harness.call([*harness.launch(program, ranks, transport), "--data", self.text, "--sends=rendezvous", "--grads",
                      grads, "--log", log, "--save", saved, *options])
        return tensors_of(grads), [line["loss"] for line in harness.read_log(log)], saved


def check_folder(tally, model, folder, gradients):
    with open(os.path.join(folder, CONFIG)) as file:
        config = json.load(file)
    tensors = harness.read_safetensors(os.path.join(folder, TENSORS))
    prefix = "base_model.model." + ("transformer.h.0.attn.c_attn" if model == "gpt2" else
                                    "model.layers.0.self_attn.q_proj")
    a, b = (tensors[f"{prefix}.lora_{side}.weight"] for side in "AB")
    tally.check(config["r"] == 4 and config["lora_alpha"] == 6 and config["fan_in_fan_out"] == (model == "gpt2"),
                f"{model}: the config says what the adapters are")
    tally.check(len(a[1]) == 4 * 32 and len(b[1]) == (96 if model == "gpt2" else 32) * 4,
                f"{model}: A is [rank, in] and B is [out, rank]")
    tally.check(tensors.keys() == gradients.keys(), f"{model}: the {len(tensors)} adapters, and nothing else, train")


def check_differences(runner, tally, program, model, folder, gradients):
    """Central differences of the loss by one element of every fifth adapter."""
    tensors = harness.read_safetensors(os.path.join(folder, TENSORS))
    step, worst = 1e-4, 0.0

    def loss_with(name, place, change):
        moved = program + ".moved"
        shutil.rmtree(moved, ignore_errors=True)
        os.makedirs(moved)
        shutil.copy(os.path.join(folder, CONFIG), moved)
        values = {key: (shape, list(old)) for key, (shape, old) in tensors.items()}
        values[name][1][place] += change
        harness.write_safetensors(os.path.join(moved, TENSORS), values)
        log = program + ".moved.jsonl"
        harness.call([program, "--in-process", "--data", runner.text, "--steps", "1", "--lr", "0", "--adapter", moved,
                      "--log", log])
        return harness.read_log(log)[0]["loss"]

    for number, name in enumerate(sorted(tensors)[::5]):
        place = 7 * number % len(tensors[name][1])
        slope = (loss_with(name, place, step) - loss_with(name, place, -step)) / (2 * step)
        scale = max(map(abs, gradients[name]))
        worst = max(worst, abs(slope - gradients[name][place]) / scale)
    tally.check(worst < 1e-6, f"{model}: gradients are slopes of the loss, within {worst:.1e}")


def check_reference(judge, tally, variant, expected):
    """Loss and gradients of given adapters on a published model's folder are peft's."""
    judge.write(variant)
    place, lora = os.path.join(judge.folder, variant), REFERENCES[variant]
    adapter, program = place + ".adapter", place + ".adapted"
    for schedule, ranks in (("single.pipe", []), ("zb_v.pipe:zb_v", ["-D", "ranks=2"]),
                            ("fsdp.pipe", ["-D", "ranks=2"])):
        harness.call([judge.compiler, f"--from-hf={place}", f"--schedule=std/{schedule}", *ranks, "-D",
                      f"microbatches={families.ROWS}", "-D", f"data.sequence={families.SEQUENCE}",
                      *(word for name, value in lora.items() for word in ("-D", f"lora.{name}={value}")),
                      *harness.RUNTIME, "-o", program])
        if not ranks:  # names, shapes and config are those of what the program saves
            shutil.rmtree(adapter, ignore_errors=True)
            beside = {name: name.encode() for name in ("tokenizer.json", "merges.txt", "README.md")}
            for name, content in beside.items():
                with open(os.path.join(place, name), "wb") as file:
                    file.write(content)
            judge.run(program, "--lr", "0", "--save", adapter)
            copied = {name for name in os.listdir(adapter) if name not in (CONFIG, TENSORS, "state.json",
                                                                           "optimizer.safetensors")}
            tally.check(copied == {"tokenizer.json", "merges.txt"} and all(
                open(os.path.join(adapter, name), "rb").read() == beside[name] for name in copied),
                f"{variant}: the tokenizer's files, and no others, are copied to the adapters' folder")
            path = os.path.join(adapter, TENSORS)
            shapes = {name: shape for name, (shape, _) in harness.read_safetensors(path).items()}
            harness.write_safetensors(path, {name: families.weight_of(name, shape) for name, shape in shapes.items()})
        merged = f"{place}.merged"
        shutil.rmtree(merged, ignore_errors=True)
        gradients, loss = judge.run(program, "--lr", "0", "--adapter", adapter, "--merge", merged)
        ours = families.summary(gradients)
        worst = max(max(abs(a - b) for a, b in zip(ours.get(kind, (math.inf, math.inf)), wanted)) / wanted[0]
                    for kind, wanted in expected["gradients"].items())
        drift = abs(loss - expected["loss"])
        tally.check(drift <= 1e-12 * loss and worst <= 1e-9 and ours.keys() == expected["gradients"].keys(),
                    f"{variant} {schedule}: loss {drift:.1e} and gradients {worst:.1e} from peft's")
        plain = judge.compile(variant, "single.pipe", 1)
        _, alone = judge.run(plain, "--load", merged, "--lr", "0")
        tally.check(abs(alone - loss) <= 1e-12 * loss, f"{variant} {schedule}: the merged model has this loss")


def check_alone(runner, tally, model):
    """One rank: what it saves, its gradients, and a run in two halves."""
    program = runner.build(model, "single")
    fresh = runner.train(program, 1, "fresh", "--steps", "3", "--lr", "0.01")
    check_folder(tally, model, fresh[2], fresh[0])
    whole = runner.train(program, 1, "whole", "--steps", "4", "--adapter", fresh[2])
    check_differences(runner, tally, program, model, fresh[2], whole[0])
    half = runner.train(program, 1, "half", "--steps", "4", "--stop-at", "2", "--adapter", fresh[2])
    rest = runner.train(program, 1, "rest", "--resume", half[2])
    tally.check(tensors_of(os.path.join(rest[2], TENSORS)) == tensors_of(os.path.join(whole[2], TENSORS))
                and half[1] + rest[1] == whole[1], f"{model}: a run in two halves has the bits of the whole one")
    return fresh[2], whole


def check_memory(runner, tally, model, folder):
    """Planned bytes of one rank in f32: gradients, m and v are those of the adapters alone."""
    shapes = [shape for shape, _ in harness.read_safetensors(os.path.join(folder, TENSORS)).values()]
    defines = SMALL | SIZES | dict(model=model, schedule="single", precision="f32") | {"lora.targets": LORA[model]}
    stats = json.loads(harness.call([runner.compiler, harness.TRAIN, "--emit=stats", *(
        word for key, value in defines.items() for word in ("-D", f"{key}={value}"))]).stdout)
    planned = stats["per_rank"][0]["peak_bytes"]
    trained = sum(-(-4 * math.prod(shape) // 64) * 64 for shape in shapes)
    tally.check(planned["grad"] == trained and planned["opt"] == 2 * trained,
                f"{model}: gradients of {planned['grad']} bytes and a state of {planned['opt']}, the adapters have "
                f"{trained}")


def check_schedule(runner, tally, model, schedule, start, alone, transport):
    program = runner.build(model, schedule)
    ours = runner.train(program, 4, "ours", "--steps", "4", "--adapter", start, transport=transport)
    fresh = runner.train(program, 4, "start", "--steps", "1", "--lr", "0", transport=transport)
    worst, where = difference(ours[0], alone[0])
    drift = max(abs(a - b) / abs(b) for a, b in zip(ours[1], alone[1]))
    trained, moved = difference(*(tensors_of(os.path.join(saved, TENSORS)) for saved in (ours[2], alone[2])))
    same = tensors_of(os.path.join(fresh[2], TENSORS)) == runner.first[model]
    if schedule == "pipedream_2bw":  # its units read older weights
        worst = drift = trained = 0
    good = same and worst <= TOLERANCE["f64"] and drift <= 10 * TOLERANCE["f64"] and trained <= TRAINED["f64"]
    tally.check(good, f"{model} {schedule:28} {transport:8} gradients {worst:.1e} losses {drift:.1e} trained "
                      f"{trained:.1e}, fresh adapters the same {same}" + ("" if good else f" in {where}, {moved}"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("folder")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--without-mpi", action="store_true")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    runner, tally = Adapters(arguments.compiler, arguments.folder), harness.Tally()
    runner.first, starts = {}, {}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs", "adapters.json")) as file:
        expected = json.load(file)
    judge = families.Judge(arguments.compiler, os.path.join(arguments.folder, "peft"))
    for variant in REFERENCES:
        check_reference(judge, tally, variant, expected[variant])
    for model in LORA:
        starts[model] = check_alone(runner, tally, model)
        check_memory(runner, tally, model, starts[model][0])
        first = runner.train(runner.build(model, "single"), 1, "start", "--steps", "1", "--lr", "0")
        runner.first[model] = tensors_of(os.path.join(first[2], TENSORS))
    for number, schedule in enumerate(arguments.schedules.split(",")):
        model = list(LORA)[number % 3 == 2 and "ring" not in schedule]
        transport = "threads" if arguments.without_mpi or number % 2 else "mpi"
        check_schedule(runner, tally, model, schedule, *starts[model], transport)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
