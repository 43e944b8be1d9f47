#!/usr/bin/env python3
"""Judges `pp advise`: how it reads jobs of Megatron-LM and torchtitan, and its best layouts against all there are."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: advise.py PP_COMPILE FOLDER
# Layouts come from public reports and from Megatron-LM's own tests. What a split is follows from the rules in their
# documents, by hand. A step is asked of `pp-compile --emit=stats`, for a program that is written here.
import contextlib, io, itertools, json, os, subprocess, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "python"))
import harness
from pp_schedules import advise
from pp_schedules.advise import layout, megatron, titan
from pp_schedules.advise.arguments import Unreadable, read_arguments

COMPILER, FOLDER = sys.argv[1:3]
TALLY = harness.Tally()
JOB = ("--num-layers {layers} --hidden-size 256 --num-attention-heads 4 --swiglu --ffn-hidden-size 512 "
       "--seq-length 128 --micro-batch-size 1 --global-batch-size {batch} "
       "--pipeline-model-parallel-size {ranks} --bf16 --vocab-size 4096 --world-size {gpus} ")

# Layout, ranks, and the layers, embedding and losses of its stages.
LAYOUTS = (("Et*8|t*8|t*8|t*8L", [8, 8, 8, 8]), ("Et|tt|tt|tttL", [1, 2, 2, 3]), ("E||tt|tL", [0, 0, 2, 1]),
           ("E|t*3|t*2|L", [0, 3, 2, 0]), ("Et|tt|tm|L", [1, 2, 1, 0]), ("Et*3|(tt|)*29,m|L", [3] + [2] * 29 + [0, 0]),
           ("Et*3|(tt|)*29,L", [3] + [2] * 29 + [0]), ("Et*3|(tt|)*29t|L", [3] + [2] * 29 + [1, 0]),
           ("E|(t|)*6L", [0] + [1] * 6 + [0]), ("Ett|(t|t|)*2ttmL", [2, 1, 1, 1, 1, 2]), ("EttL", [2]))
WRONG = (("Et|tx|L", "`x` is none of"), ("t|tL", "one E before the layers"), ("Et|Lt", "one L behind them"))
# Arguments, and the layers of the stages that Megatron-LM makes of them.
SPLITS = (("", [2, 2, 2, 2]), ("--num-layers-per-virtual-pipeline-stage 1", [1] * 8),
          ("--num-virtual-stages-per-pipeline-rank 2", [1] * 8), ("--decoder-first-pipeline-num-layers 1 "
          "--decoder-last-pipeline-num-layers 3", [1, 2, 2, 3]), ("--decoder-last-pipeline-num-layers 2", [2, 2, 2, 2]),
          ("--decoder-first-pipeline-num-layers 5", [5, 1, 1, 1]))
REFUSED = (("--pipeline-model-parallel-layout 'Et|t|t|tL'", "has 4 layers, and `--num-layers` is 8"),
           ("--pipeline-model-parallel-layout 'Et*4|t*2|t*2L'", "3 stages are no multiple of 4 ranks"),
           ("--pipeline-model-parallel-size 1", "no pipeline"), ("--world-size 6", "6 GPUs are no multiple of 4"),
           ("--global-batch-size many", "expects a whole number of at least 1, got `many`"),
           ("--tensor-model-parallel-size 0", "expects a whole number of at least 1, got `0`"),
           ("--decoder-first-pipeline-num-layers 4", "leave 4 layers to 3 ranks"),
           ("--account-for-loss-in-pipeline-split", "9 layers, the ends counted as one each, are no multiple of 4"))

CONFIGURATION = """from dataclasses import dataclass, field
from typing import Any
@dataclass
class Parallelism:
    pipeline_parallel_degree: int = 4
    pipeline_parallel_schedule: str = 'Interleaved1F1B'
    data_parallel_shard_degree: int = 2
@dataclass
class Training:
    local_batch_size: int = 16
    seq_len: int = 4096
@dataclass
class Named:
    flavor: str = '8B'
    mode: str = 'full'
@dataclass
class Config:
    parallelism: Any = field(default_factory=Parallelism)
    training: Any = field(default_factory=Training)
    model_spec: Any = field(default_factory=Named)
    activation_checkpoint: Any = field(default_factory=Named)
def mine():
    return Config()
"""


def check(good, what):
    TALLY.check(bool(good), what)


def refusal(make):
    try:
        made = make()
    except Unreadable as error:
        return str(error)
    return f"none: {made}"


def job(more="", layers=8, ranks=4, gpus=4, batch=8):
    """The words of a job; a later one of a name counts."""
    return JOB.format(layers=layers, ranks=ranks, gpus=gpus, batch=batch) + more


def reading():
    for text, layers in LAYOUTS:
        stages = layout.stages_of(text)
        check(layout.layers_of(stages) == layers, f"layout {text}: {layout.layers_of(stages)}")
        check(layout.stages_of(layout.text_of(stages)) == stages, f"layout {text} again: {layout.text_of(stages)}")
    for text, why in WRONG:
        check(why in refusal(lambda: layout.stages_of(text)), f"layout {text} is refused: {why}")
    for more, layers in SPLITS:
        made = megatron.read(read_arguments(job(more)))
        check(layout.layers_of(made.stages) == layers and made.microbatches == 8, f"split {more}: {made.stages}")
    for more, why in REFUSED:
        said = refusal(lambda: megatron.read(read_arguments(job(more))))
        check(why in said, f"refused {more}: {said}")
    for name in ("--micro-batch-size 1", "--seq-length 128", "--vocab-size 4096", "--world-size 4"):
        said = refusal(lambda: megatron.read(read_arguments(job().replace(name + " ", ""))))
        check("is not" in said, f"without {name}: {said}")
    ends = megatron.read(read_arguments(job("--account-for-loss-in-pipeline-split "
                                            "--account-for-embedding-in-pipeline-split", layers=10)))
    check(layout.layers_of(ends.stages) == [2, 3, 3, 2], f"the ends count as a layer each: {ends.stages}")


def forms():
    """One job as words, as a script with variables, as YAML; of torchtitan as TOML, as words, as a function."""
    words = job("--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --num-experts 8 "
                "--moe-router-topk 2 --lr 1e-4 --novel 3", gpus=16)
    expected = megatron.read(read_arguments(words))
    check((expected.tensor, expected.data, expected.rows, expected.zero, expected.microbatches, expected.model.experts)
          == (2, 2, True, 1, 4, 8), f"mesh of 16 GPUs: {expected.mesh()}")
    check(expected.unknown == ["--novel"] and expected.ignored == ["--lr"], f"not read: {expected.unknown}")
    script = "#!/bin/bash\nTP=2  # tensor\nSIZES=(\n  --num-layers ${LAYERS:-8} \\\n  --hidden-size 256\n)\ntorchrun " \
             "pretrain.py ${SIZES[@]} --tensor-model-parallel-size $TP " + " ".join(
                 words.split()[4:]).replace("--tensor-model-parallel-size 2", "")
    yaml = "".join(f"{name.replace('-', '_')}: {' '.join(values) or 'true'}\n"
                   for name, values in read_arguments(words).items())
    for name, text in (("job.sh", script), ("job.yaml", "model:\n" + yaml + "fp16: false  # no\n")):
        path = os.path.join(FOLDER, name)
        with open(path, "w") as file:
            file.write(text)
        made = megatron.read(read_arguments(path))
        check(made == expected, f"{name} is the same job: {made}")
    toml = ('[model]\nflavor = "8B"\n[training]\nlocal_batch_size = 16  # of a replica\nseq_len = 4096\n[parallelism]\n'
            'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"\n'
            'data_parallel_shard_degree = 2\n[activation_checkpoint]\nmode = "full"\n')
    path = os.path.join(FOLDER, "job.toml")
    with open(path, "w") as file:
        file.write(toml)
    made = titan.read(read_arguments(path))
    check(layout.layers_of(made.stages) == [4, 5, 4, 4, 4, 4, 4, 3] and made.recompute == "stage" and made.data == 2,
          f"torchtitan's split of 32 layers and its ends into 8 stages: {made.stages}")
    parts = layout.modules_of(made.stages)
    given = titan.read(read_arguments(
        f"--model.flavor 8B --parallelism.pipeline_parallel_degree 4 --parallelism.data_parallel_shard_degree 2 "
        f"--training.local_batch_size 16 --training.seq_len 4096 --parallelism.pipeline_parallel_schedule "
        f"Interleaved1F1B --activation_checkpoint.mode full --parallelism.module_fqns_per_model_part "
        + json.dumps(json.dumps(parts))))
    check(given.stages == made.stages, f"parts by name: {given.stages}")
    with open(os.path.join(FOLDER, "titan_job.py"), "w") as file:
        file.write(CONFIGURATION)
    sys.path.insert(0, FOLDER)
    made_here = titan.read(titan.of_function("titan_job:mine"))
    check(made_here.stages == made.stages and made_here.recompute == "stage", f"a function: {made_here}")
    said = refusal(lambda: titan.of_function("titan_job:other"))
    check("makes no configuration" in said and "other" in said, said)
    said = refusal(lambda: titan.read(read_arguments("--parallelism.pipeline_parallel_degree 4 --model.flavor 9B")))
    check("the sizes of the model `9B` are not known here" in said, said)


def step_of(cut, batch, options=()):
    """Seconds of a step by a program that is written here."""
    path = os.path.join(FOLDER, "own.pipe")
    stages = layout.stages_with(list(cut), 0)
    with open(path, "w") as file:
        file.write('import "std/models/llama.pipe"\nimport "std/megatron.pipe"\ntrain own {\n  model llama(layers = '
                   f"{sum(cut)}, hidden = 256, heads = 4, kv_heads = 4, ffn = 512, vocab = 4096)\n  schedule megatron("
                   f'ranks = 3, microbatches = {batch}, layout = "{layout.text_of(stages)}")\n  data microbatch = 1, '
                   "sequence = 128\n  optimizer adamw(lr = 1e-4)\n  precision bf16\n}\n")
    done = subprocess.run([COMPILER, path, "--cluster=h100_ndr", "--emit=stats", *options], capture_output=True,
                          text=True, check=True)
    return json.loads(done.stdout)["step"]


def told(*words):
    said, wrong = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
        code = advise.main(words, COMPILER)
    return code, said.getvalue(), wrong.getvalue()


def best_of_all():
    """Three ranks and seven layers: every cut is simulated; the row of three stages is the best of them."""
    layers, batch = 7, 8  # no multiple of 3: layouts of several stages on a rank are no choice
    steps = {cut: step_of(cut, batch) for cut in itertools.product(range(layers + 1), repeat=3) if sum(cut) == layers}
    least = min(steps.values())
    written = os.path.join(FOLDER, "written.pipe")
    code, said, _ = told("--megatron", job("--pipeline-model-parallel-layout 'Et*5|t|tL'", layers, 3, 3, batch),
                         "--seconds", "60", "--write", written)
    rows = [line.split() for line in said.splitlines() if line.startswith(("better", "layout"))]
    check(code == 0 and rows[0][1] == "Et*5|t|tL", f"the layout as given: {rows[0]}")
    cut = tuple(layout.layers_of(layout.stages_of(rows[-1][1])))
    check(steps[cut] <= 1.005 * least, f"{cut}: {steps[cut]:.6g}, the best of {len(steps)} cuts: {least:.6g}")
    check(f"{steps[5, 1, 1]:.4g} s" in said and f"{steps[cut]:.4g} s" in said,
          f"its steps are those of --emit=stats: {said}")
    check(f"--pipeline-model-parallel-layout '{rows[-1][1]}'" in said, "an argument for Megatron-LM")
    done = subprocess.run([COMPILER, written, "--cluster=h100_ndr", "--emit=stats", "-D", f"layout={rows[-1][1]}"],
                          capture_output=True, text=True, check=True)
    check(abs(json.loads(done.stdout)["step"] / steps[cut] - 1) < 1e-12, "--write: the same program")
    last = said.split("pp export-csv ")[1].split("   (")[0].split()
    done = subprocess.run([os.path.join(os.path.dirname(COMPILER), "pp"), "export-csv", *last],
                          capture_output=True, text=True, check=False)
    check(done.returncode == 0 and len(done.stdout.splitlines()) == 3, f"a CSV of three ranks: {done.stdout}")


def ends():
    code, said, wrong = told("--megatron", job("--novel"), "--seconds", "0", "--strict")
    check(code == 1 and "--novel" in said and not wrong, "--strict ends with 1")
    code, said, wrong = told("--megatron", "no such file")
    check(code == 1 and not said and "is no file, and no command line" in wrong, wrong)
    code, said, wrong = told("--megatron", job(), "--gpu", "abacus")
    check(code == 1 and "abacus" in wrong, wrong)
    further = job("--mtp-num-layers 1 --tensor-model-parallel-size 2", gpus=8)
    code, said, _ = told("--megatron", further, "--seconds", "0")
    check(code == 0 and "counted as" in said, f"a layer for a further token on a mesh: {said}")


if __name__ == "__main__":
    os.makedirs(FOLDER, exist_ok=True)
    reading()
    forms()
    best_of_all()
    ends()
    sys.exit(TALLY.close())
