#!/usr/bin/env python3
"""Judges `lora` by execution: schedules against one rank, finite differences, resumed runs, and the folders of peft."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: adapters.py PP_COMPILE FOLDER [--schedules NAME[/PARAMETER=VALUE..]..] [--without-mpi]
# B of a fresh adapter is 0, so A has no gradient yet: adapters are trained for three steps on one rank and saved, and
# all else begins with that folder.
import argparse, importlib.util, json, math, os, shutil, sys
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

# The fields that peft 0.21 writes beside those of every config of ours.
WRITTEN = dict(
    alora_invocation_tokens=None, alpha_pattern={}, arrow_config=None, auto_mapping=None, corda_config=None,
    ensure_weight_tying=False, eva_config=None, exclude_modules=None, kasa_config=None, layer_replication=None,
    layers_pattern=None, layers_to_transform=None, loftq_config={}, lora_bias=False, lora_ga_config=None,
    megatron_config=None, megatron_core="megatron.core", monteclora_config=None, peft_version="0.21.2",
    qalora_group_size=16, rank_pattern={}, revision=None, target_parameters=None, trainable_token_indices=None,
    use_bdlora=None, use_dora=False, use_qalora=False, velora_config=None)
# Changes of the config of llama's adapters, in 4 layers, with which peft computes the same.
ADAPTED = [[f"model.layers.{layer}.{name}" for name in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")]
           for layer in range(4)]
SAME = (
    {}, WRITTEN, dict(fan_in_fan_out=True, bias="none", inference_mode=False, task_type=None),
    dict(init_lora_weights=False), dict(init_lora_weights="Gaussian"),
    dict(init_lora_weights="lora_ga", lora_ga_config={}), dict(target_modules="all-linear"),
    dict(target_modules=sum(ADAPTED, [])),
    dict(target_modules=r"^(?!.*lm_head)(?:.*?(?:self_attn|mlp).*?(?:[qv]_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\."
                        r"(?:self_attn|mlp)\.(?:(?:o|down)_proj))"),
    dict(exclude_modules=["lm_head", "o_proj", "n_proj"]), dict(exclude_modules=r"vision\..*"),
    dict(layers_to_transform=[1, 3, 2, 0]), dict(layers_to_transform=[0, 1, 2, 3, 9], layers_pattern=["h", "layers"]),
    dict(layers_to_transform=0, target_modules=sum(ADAPTED[1:], ["q_proj", "v_proj", "down_proj"])),
    dict(rank_pattern={"q_proj": 3}), dict(r=8, lora_alpha=1, rank_pattern={".*": 3}, alpha_pattern={
        "(q|v)_proj": 5, r"layers\.\d+\.mlp\.down_proj": 5.0, "down_proj": 1}))
# Changes with which peft computes something else; the first field is named.
OTHER = (
    dict(target_modules=["q_proj"]), dict(target_modules=r".*\.0\..*_proj"),
    dict(exclude_modules=["down_proj"]), dict(exclude_modules=r".*v_p.*"), dict(layers_to_transform=[0]),
    dict(layers_to_transform=1, layers_pattern="layers"), dict(alpha_pattern={"v_proj": 2}), dict(lora_alpha=6),
    dict(use_rslora=True), dict(init_lora_weights="pissa"), dict(init_lora_weights="olora"))
# Changes that peft refuses here, or that change how adapters are trained, or what is not known.
REFUSED = (
    dict(target_modules=["proj"]),
    dict(init_lora_weights="pissa_niter_4"), dict(init_lora_weights="corda"), dict(init_lora_weights="mica"),
    dict(init_lora_weights="loftq", loftq_config=dict(loftq_bits=4, loftq_iter=1)), dict(init_lora_weights=3),
    dict(use_dora=True), dict(lora_bias=True), dict(bias="all"), dict(bias="lora_only"), dict(lora_dropout=0.1),
    dict(modules_to_save=["lm_head"]), dict(r=4), dict(rank_pattern={"q_proj": 2}), dict(rank_pattern=[3]),
    dict(trainable_token_indices=[1]), dict(target_parameters=["mlp.w"]), dict(layer_replication=[[0, 2]]),
    dict(megatron_config=dict(a=1)), dict(use_qalora=True), dict(alora_invocation_tokens=[1]),
    dict(arrow_config=dict(top_k=1)), dict(use_bdlora=dict(nblocks=1)), dict(velora_config=dict(num_groups=1)),
    dict(kasa_config=dict(beta=1)), dict(monteclora_config=dict(num_samples=1)), dict(ensure_weight_tying=True),
    dict(peft_type="ADALORA"), dict(task_type="SEQ_CLS"), dict(future=0.5), dict(target_modules=None),
    dict(target_modules=3), dict(target_modules="(?P<a>.*)"), dict(target_modules=r".*\Z"),
    dict(target_modules="(" * 99), dict(target_modules="(?=.*" * 9 + ")" * 9),
    dict(target_modules=r"(.?){90}" * 9), dict(layers_to_transform="0"))


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
        worst = max(harness.apart(ours.get(kind, ()), wanted) / wanted[0]
                    for kind, wanted in expected["gradients"].items())
        drift = abs(loss - expected["loss"])
        tally.check(drift <= 1e-12 * loss and worst <= 1e-9 and ours.keys() == expected["gradients"].keys(),
                    f"{variant} {schedule}: loss {drift:.1e} and gradients {worst:.1e} from peft's")
        plain = judge.compile(variant, "single.pipe", 1)
        _, alone = judge.run(plain, "--load", merged, "--lr", "0")
        tally.check(abs(alone - loss) <= 1e-12 * loss, f"{variant} {schedule}: the merged model has this loss")


def changed_config(adapter, changes):
    """A folder with these adapters and another config."""
    place = adapter + ".changed"
    shutil.copytree(adapter, place, dirs_exist_ok=True)
    with open(os.path.join(adapter, CONFIG)) as file:
        config = json.load(file)
    with open(os.path.join(place, CONFIG), "w") as file:
        json.dump(config | changes, file)
    return place


def check_configs(judge, tally, loss):
    """Every field of a config is one of this program, changes nothing, or is refused with its name and value."""
    adapter, program = (os.path.join(judge.folder, "llama" + end) for end in (".adapter", ".adapted"))
    run = [program, "--in-process", "--data", judge.text, "--steps", "1", "--lr", "0", "--adapter"]
    for changes in SAME:
        _, ours = judge.run(program, "--lr", "0", "--adapter", changed_config(adapter, changes))
        tally.check(abs(ours - loss) <= 1e-12 * loss, f"a config with {changes} has the loss {loss:.5f}, {ours:.5f}")
    for changes in OTHER + REFUSED:
        field, value = next(iter(changes.items()))
        done = harness.call([*run, changed_config(adapter, changes)], expect=1)
        said = json.dumps(value, separators=(",", ":"))
        tally.check(f"{CONFIG}` has `{field}` {said if len(said) < 200 else ''}" in done.stderr,
                    f"refused: {field} {value}: {done.stderr.strip()[-200:]}")
    with open(os.path.join(changed_config(adapter, {}), CONFIG), "w") as file:
        file.write(json.dumps(dict(r=3, target_modules="all-linear", peft_type="LORA")))
    done = harness.call([*run, adapter + ".changed"], expect=1)
    tally.check("has no `lora_alpha`, this program computes" in done.stderr, "without `lora_alpha`, peft's is 8")
    with open(os.path.join(adapter + ".changed", CONFIG), "w") as file:
        file.write('{"use_dora": ' + "[" * 50000 + "]" * 50000 + "}")
    done = harness.call([*run, adapter + ".changed"], expect=1)
    tally.check("it is nested more than 64 deep" in done.stderr, "a config of 50000 brackets")


def check_peft(judge, tally, loss):
    """peft itself has these losses."""
    import families_oracle  # first: it makes torch compute in f64
    import peft
    import torch

    def loss_with(changes):
        model = peft.PeftModel.from_pretrained(families_oracle.model_of("llama"), changed_config(
            os.path.join(judge.folder, "llama.adapter"), changes), autocast_adapter_dtype=False)
        tokens = torch.tensor(list(families.TEXT[:families.ROWS * families.SEQUENCE + 1]))
        logits = model(input_ids=tokens[:-1].reshape(families.ROWS, -1), use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.reshape(len(tokens) - 1, -1), tokens[1:]).item()

    for changes in SAME:
        theirs = loss_with(changes)
        tally.check(abs(theirs - loss) <= 1e-12 * loss, f"peft with {changes} has the loss {loss:.5f}, {theirs:.5f}")
    for changes in OTHER:
        theirs = loss_with(changes)
        tally.check(abs(theirs - loss) > 1e-4 * loss, f"peft with {changes} has another loss, {theirs:.5f}")
    written = {field for field in peft.LoraConfig(task_type="CAUSAL_LM").to_dict()} - {"runtime_config"}
    with open(os.path.join(judge.folder, "llama.adapter", CONFIG)) as file:
        unknown = written - WRITTEN.keys() - json.load(file).keys()
    tally.check(not unknown, f"peft {peft.__version__} writes no other fields {unknown or ''}")


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
    drift = harness.drift(ours[1], alone[1])
    trained, moved = difference(*(tensors_of(os.path.join(saved, TENSORS)) for saved in (ours[2], alone[2])))
    same = tensors_of(os.path.join(fresh[2], TENSORS)) == runner.first[model]
    if schedule == "pipedream_2bw":  # its units read older weights
        worst = drift = trained = 0
    good = same and worst <= TOLERANCE["f64"] and drift <= 10 * TOLERANCE["f64"] and trained <= TRAINED["f64"]
    tally.check(good, f"{model} {schedule:28} {transport:8} gradients {worst:.1e} losses {drift:.1e} trained "
                      f"{trained:.1e}, fresh adapters the same {same}" + ("" if good else f" in {where}, {moved}"))


def check_dropout(runner, tally, start):
    """Dropout of what A reads: no part of a model whose B is 0, nor of evaluation; one mask whatever the schedule."""
    more = {"lora.dropout": 0.4}
    without, single = runner.build("llama", "single"), runner.build("llama", "single", **more)
    plain, fresh = (runner.train(program, 1, "dropped", "--steps", "1", "--lr", "0") for program in (without, single))
    b = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    tally.check(plain[1] == fresh[1] and plain[0][b] != fresh[0][b], "dropout: where B is 0, the loss is the same")
    with open(os.path.join(fresh[2], CONFIG)) as file:
        tally.check(json.load(file)["lora_dropout"] == 0.4, "dropout: the folder says so")
    done = harness.call([single, "--in-process", "--data", runner.text, "--adapter", start], expect=1)
    tally.check("has `lora_dropout` 0.0, this program computes adapters with 0.4" in done.stderr, "dropout: compared")
    start = changed_config(start, dict(lora_dropout=0.4))
    short = os.path.join(runner.folder, "short.txt")
    with open(runner.text, "rb") as text, open(short, "wb") as file:
        file.write(text.read(1500))
    alone = runner.train(single, 1, "alone", "--steps", "2", "--adapter", start, "--eval", short)
    runner.train(without, 1, "alone", "--steps", "1", "--lr", "0", "--eval", short, "--adapter",
                 changed_config(alone[2], dict(lora_dropout=0)))
    losses = [harness.read_log(program + ".alone.jsonl")[-1]["eval_loss"] for program in (single, without)]
    tally.check(losses[0] == losses[1], f"dropout: evaluation drops nothing, {losses}")
    check_differences(runner, tally, single, "llama with dropout", start,
                      runner.train(single, 1, "slopes", "--steps", "1", "--adapter", start)[0])
    for schedule in ("1f1b_recompute", "zb_v", "weipipe_interleave", "slimpipe"):
        ours = runner.train(runner.build("llama", schedule, **more), 4, "dropped", "--steps", "2", "--adapter", start)
        worst, where = difference(ours[0], alone[0])
        tally.check(worst <= TOLERANCE["f64"] and abs(ours[1][1] - alone[1][1]) <= 1e-11,
                    f"dropout: {schedule} has the gradients of one rank, within {worst:.1e} in {where}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("folder")
    parser.add_argument("--schedules", nargs="+", default=SCHEDULES)
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
    check_configs(judge, tally, expected["llama"]["loss"])
    if importlib.util.find_spec("peft"):
        check_peft(judge, tally, expected["llama"]["loss"])
    for model in LORA:
        starts[model] = check_alone(runner, tally, model)
        check_memory(runner, tally, model, starts[model][0])
        first = runner.train(runner.build(model, "single"), 1, "start", "--steps", "1", "--lr", "0")
        runner.first[model] = tensors_of(os.path.join(first[2], TENSORS))
    check_dropout(runner, tally, starts["llama"][0])
    for number, schedule in enumerate(arguments.schedules):
        model = list(LORA)[number % 3 == 2 and "ring" not in schedule]
        transport = "threads" if arguments.without_mpi or number % 4 else "mpi"
        check_schedule(runner, tally, model, schedule, *starts[model], transport)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
