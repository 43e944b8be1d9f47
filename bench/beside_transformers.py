#!/usr/bin/env python3
"""Measures training of published models, ours on one and two ranks beside transformers eager: tokens/s and memory."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: PYTHON bench/beside_transformers.py PP_COMPILE [FOLDER..] [--models gpt2,qwen2] [--rows 4] [--sequence 256]
#        [--steps 6] [--rounds 3] [--precision f32|bf16]
# PYTHON has torch and transformers; FOLDERs are published models, `--models` are made here with random weights. All run
# in turn on one thread a rank, on the same tokens from the same weights, with AdamW and clipping. A step's time is what
# a run of `steps` takes of the processor more than one of two, so that neither start nor a neighbour's work counts. The
# memory is the peak above that of a process that has loaded its libraries; reading the folder counts for ours alone.
import argparse, json, os, re, statistics, subprocess, sys, tempfile, time

RATE = 1e-4
CONFIGS = dict(
    gpt2=dict(model_type="gpt2", attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
    qwen2=dict(model_type="qwen2", hidden_size=896, num_attention_heads=14, num_key_value_heads=2,
               intermediate_size=4864, num_hidden_layers=4, vocab_size=32000, tie_word_embeddings=True),
    mixtral=dict(model_type="mixtral", hidden_size=512, num_attention_heads=8, num_key_value_heads=4,
                 intermediate_size=1024, num_hidden_layers=4, vocab_size=4096, num_local_experts=8,
                 num_experts_per_tok=2))
OURS = (("one rank", "single.pipe:single", dict(microbatches=1), 1),
        ("two ranks, 1f1b", "1f1b.pipe", dict(ranks=2, microbatches=4), 2))


def peak_above(base):
    return (int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) - base) / 1024


def resident():
    return int(re.search(r"VmRSS:\s+(\d+)", open("/proc/self/status").read())[1])


def run_torch(folder, batches, rows, steps, attention, precision):
    """In a process of its own. Prints processor seconds of each step, losses and the peak."""
    import safetensors.torch, torch, transformers
    torch.set_num_threads(1)
    model_class = transformers.AutoModelForCausalLM
    transformers.AutoConfig.from_pretrained(folder)
    base = resident()
    dtype = dict(f32=torch.float32, bf16=torch.bfloat16)[precision]
    model = model_class.from_pretrained(folder, dtype=dtype, attn_implementation=attention).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    data = safetensors.torch.load_file(batches)
    tokens, targets = (data[name].long() for name in ("tokens", "targets"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew: that of loading does not count
    seconds, losses = [], []
    for step in range(steps):
        start = time.process_time()
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - step / steps)
        chosen = slice(step * rows, (step + 1) * rows)
        logits = model(input_ids=tokens[chosen], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets[chosen].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        del logits
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.process_time() - start)
        losses.append(loss.item())
    print(json.dumps(dict(seconds=statistics.median(seconds[2:]), losses=losses, peak=peak_above(base))))


def child(command, **more):
    """Processor seconds and peak resident MiB of a command, and what it printed."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, **more)
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        if status:
            raise SystemExit(f"{' '.join(command)}: status {status}\n{output.read()}")
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output.read()


MAKE = """
import json, sys, torch, transformers
torch.manual_seed(1)
config = transformers.AutoConfig.for_model(**json.loads(sys.argv[1]))
transformers.AutoModelForCausalLM.from_config(config).save_pretrained(sys.argv[2])
"""


def make(name, folder):
    """In a process of its own: the peak of a child begins with what its parent has."""
    child([sys.executable, "-c", MAKE, json.dumps(CONFIGS[name]), folder], stderr=subprocess.DEVNULL)
    return folder


class Model:
    def __init__(self, folder, work, arguments):
        self.folder, self.work, self.arguments = folder, work, arguments
        self.batches = os.path.join(work, "batches.safetensors")
        for index, (_, schedule, values, _) in enumerate(OURS):
            values = dict(values, **{"data.sequence": arguments.sequence, "precision": arguments.precision,
                                     "data.microbatch": arguments.rows // values["microbatches"]})
            child([arguments.compiler, f"--from-hf={folder}", f"--schedule=std/{schedule}", "-o", self.program(index),
                   *[word for key, value in values.items() for word in ("-D", f"{key}={value}")]])
        child([*self.run(0, arguments.steps), "--batches", self.batches])

    def program(self, index):
        return os.path.join(self.work, f"program{index}")

    def run(self, index, steps):
        return [self.program(index), "--in-process", "--data", "random", "--lr", str(RATE), "--steps", str(steps)]

    def ours(self, index):
        log = os.path.join(self.work, "log.jsonl")
        if os.path.exists(log):
            os.remove(log)
        few, _, _ = child(self.run(index, 2))
        many, peak, _ = child([*self.run(index, self.arguments.steps), "--log", log])
        _, base, _ = child([self.program(index), "--info"])
        with open(log) as lines:
            losses = [line["loss"] for line in map(json.loads, lines) if "loss" in line]
        return dict(seconds=(many - few) / (self.arguments.steps - 2), losses=losses, peak=peak - base)

    def torch(self, attention):
        a = self.arguments
        return json.loads(child([sys.executable, __file__, a.compiler, self.folder, self.batches, "--torch", attention,
                                 "--rows", str(a.rows), "--steps", str(a.steps), "--precision", a.precision],
                                stderr=subprocess.DEVNULL)[2])


def measure(model, name, arguments):
    contenders = {f"pp, {one[0]}": lambda index=index: model.ours(index) for index, one in enumerate(OURS)}
    contenders |= {f"transformers, {kind}": lambda kind=kind: model.torch(kind) for kind in ("sdpa", "eager")}
    rounds = [{who: call() for who, call in contenders.items()} for _ in range(arguments.rounds)]
    tokens, judge = arguments.rows * arguments.sequence, "transformers, sdpa"
    for who in contenders:
        seconds = statistics.median(one[who]["seconds"] for one in rounds)
        faster = sorted(one[judge]["seconds"] / one[who]["seconds"] for one in rounds)
        memory = max(one[who]["peak"] for one in rounds)
        share = memory / max(one[judge]["peak"] for one in rounds)
        apart = max(abs(a - b) for one in rounds for a, b in zip(one[who]["losses"], one[judge]["losses"]))
        print(f"| {name} | {who} | {tokens / seconds:.0f} | {statistics.median(faster):.2f} | "
              f"{faster[0]:.2f} to {faster[-1]:.2f} | {memory:.0f} | {share:.2f} | {apart:.1e} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("compiler")
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--models", default="")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--torch", help="measures transformers with this attention, in a process of its own")
    arguments = parser.parse_args()
    if arguments.torch:
        return run_torch(*arguments.folders, arguments.rows, arguments.steps, arguments.torch, arguments.precision)
    print(f"{arguments.rows} x {arguments.sequence} tokens, {arguments.precision}; faster and memory are beside sdpa\n"
          "| model | | tokens/processor s | faster by | range | peak MiB | of sdpa's | losses apart |\n"
          "|---|---|---:|---:|---|---:|---:|---:|", flush=True)
    for chosen in [*filter(None, arguments.models.split(",")), *arguments.folders]:
        with tempfile.TemporaryDirectory() as work:
            folder = chosen if chosen not in CONFIGS else make(chosen, os.path.join(work, "folder"))
            measure(Model(os.path.abspath(folder), work, arguments), os.path.basename(chosen.rstrip("/")), arguments)


if __name__ == "__main__":
    sys.exit(main())
