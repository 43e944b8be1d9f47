#!/usr/bin/env python3
"""Judges `freeze` by execution: the gradients that are left, the weights that must not change, and the memory."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: freeze.py PP_COMPILE FOLDER [--schedules NAME[/PARAMETER=VALUE..],..] [--sets NAME,..] [--without-mpi]
# A program with frozen weights and one without it start alike and run the same schedule. In their first step, gradients
# of the weights that both train are the same bits, and the program has no others. After five steps of AdamW frozen
# weights are the bits that they began with; the trained ones and the losses are those of `single` with the same
# weights frozen. (Where HelixPipe ships weights, the merge of the ranks' lists decides in which order their gradients
# are summed, and that order depends on how long units are.)
import argparse, json, math, os, sys
import harness
from gradients import SMALL, TOLERANCE, TRAINED, Runner, difference

# What is frozen: the first layers and a stage between trained ones; parts of every layer; only late weights; the tied
# table.
SETS = {
    "layers": ("llama", "embed_tokens,layers.0.,layers.1.,layers.2.,layers.4.,layers.5."),
    "linears": ("llama", "self_attn,up_proj"),
    "gains": ("llama", "norm"),
    "table": ("gpt2", "wte"),
}
SCHEDULES = ("gpipe 1f1b interleaved zb_h2 zb_v dualpipe_v dualpipe chimera gpipe_offload bpipe pipedream_2bw "
             "1f1b_recompute 1f1b_vocabulary weipipe_interleave weipipe_naive wzb1 wzb2 tawpipe fsdp zero1 zero2 "
             "data_parallel replicated_1f1b helixpipe/folds=2/ship=false/forget=true terapipe slimpipe "
             "slimpipe/exchange=true ring_attention/sharded=true").split()
STEPS = 5


def is_frozen(name, words):
    return any(word in name for word in words.split(","))


def start_of(runner, sizes):
    """The weights that a run begins with."""
    program = runner.compile(schedule="single", **sizes | dict(ranks=1))
    saved = program + ".start"
    harness.call([program, "--in-process", "--data", runner.text, "--steps", "1", "--lr", "0", "--save", saved])
    runner.starts[sizes["model"]] = os.path.join(saved, "model.safetensors")
    tensors = harness.read_safetensors(runner.starts[sizes["model"]])
    return {name: values for name, (_, values) in tensors.items()}


def judge(runner, tally, sizes, schedule, words, mode, start, alone):
    def run(**more):
        program = runner.compile(schedule=schedule, **sizes, **more)
        result = runner.run(program, sizes["ranks"], *mode, STEPS)
        runner.clean(program)
        return result

    gradients, losses, weights = run(freeze=words)
    full = run()[0]
    left = {name: values for name, values in full.items() if not is_frozen(name, words)}
    stays = all(weights[name] == start[name] for name in start if is_frozen(name, words))
    worst, where = difference(gradients, alone[0])
    drift = harness.drift(losses, alone[1])
    trained, moved = difference(weights, alone[2])
    precision = sizes["precision"]
    if schedule == "pipedream_2bw":  # its units read older weights than those of `single`
        worst = drift = trained = 0
    good = (gradients == left and len(left) < len(full) and stays and worst <= TOLERANCE[precision]
            and drift <= 10 * TOLERANCE[precision] and trained <= TRAINED[precision])
    tally.check(good, f"{schedule:28} {words[:24]:24} {mode[0]:8} {len(left)} of {len(full)} gradients: the same bits "
                      f"{gradients == left}, frozen bits stay {stays}, from single {worst:.1e} losses {drift:.1e} "
                      f"trained {trained:.1e}" + ("" if good else f" worst in {where}, {moved}"))


def check_memory(runner, tally, name):
    """Planned bytes of one rank: weights stay; gradients (f32), m, v and masters are those of trained weights alone.
    Every tensor begins at a multiple of 64 bytes."""
    model, words = SETS[name]
    shapes = {name: shape for name, (shape, _) in harness.read_safetensors(runner.starts[model]).items()}
    for precision, wide, states in (("f32", 4, 2), ("bf16", 2, 3)):
        defines = SMALL | dict(model=model, precision=precision, schedule="single", microbatches=4, kv_heads=1,
                               freeze=words)
        stats = json.loads(harness.call([runner.compiler, harness.TRAIN, "--emit=stats", *(
            word for key, value in defines.items() for word in ("-D", f"{key}={value}"))]).stdout)
        planned = stats["per_rank"][0]["peak_bytes"]

        def bytes_of(width, names):
            return sum(-(-width * math.prod(shapes[name]) // 64) * 64 for name in names)

        trained = bytes_of(4, [name for name in shapes if not is_frozen(name, words)])
        wanted = dict(weight=bytes_of(wide, shapes), grad=trained, opt=states * trained)
        tally.check(all(planned[role] == size for role, size in wanted.items()),
                    f"{model} {precision}, frozen {words[:24]}: planned {planned}, expected {wanted}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("folder")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--without-mpi", action="store_true")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    runner, tally = Runner(arguments.compiler, arguments.folder), harness.Tally()
    names = arguments.sets.split(",")
    starts, alone, runner.starts = {}, {}, {}
    for number, schedule in enumerate(arguments.schedules.split(",")):
        name = names[number % len(names)] if number >= len(names) else names[0]
        for name in dict.fromkeys((names[0], name)):
            model, words = SETS[name]
            sizes = dict(model=model, precision="f64", ranks=4, microbatches=8, kv_heads=1)
            if model not in starts:
                starts[model] = start_of(runner, sizes)
            if name not in alone:
                single = runner.compile(schedule="single", freeze=words, **sizes | dict(ranks=1))
                alone[name] = runner.run(single, 1, "threads", "rendezvous", STEPS)
            transport = "threads" if arguments.without_mpi or number % 2 else "mpi"
            judge(runner, tally, sizes, schedule, words, (transport, "rendezvous"), starts[model],
                  alone[name])
    for name in names:
        if SETS[name][0] in runner.starts:
            check_memory(runner, tally, name)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
