#!/usr/bin/env python3
"""Trains a mixture of experts and a dense model of equal active parameters on the same text; or simulates schedules."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/experts.py [-c PP_COMPILE] [--steps 3000] [--seed 1] [--folder build/experts] [-D name=value]..
#        bench/experts.py --passing [-c PP_COMPILE] [-D name=value]..
#        bench/experts.py --mesh [-c PP_COMPILE] [-D name=value]..
# The text is what the repository tracks: its pages, sources and tests, as bytes. mixtral has 8 experts, of which each
# token goes through 2, with the balance of its router; llama has one MLP that is twice as wide, so as many products a
# token but for the router. Everything else is the same: 4 layers, hidden 64, 1F1B on two ranks, 1024 tokens a step.
# Losses are means over the steps since the row before. -D is for both, and `experts.NAME=VALUE` for the mixture alone.
# --passing: what schedules that pass weights pay for experts, whose weights travel whether tokens chose them or not.
# The simulator's steps of three schedules on 8 ranks of a node, for a dense model and for mixtures of 4, 8 and 16
# experts with the same active parameters.
# --mesh: what experts cost that are cut over the devices of a rank. The same sizes with 1F1B on 8 nodes of 8 H100, a
# rank a node with `mesh data = 8`; each device has all experts, or an eighth. `skewed` is --expert-load=zipf=1.1: the
# first device has the experts that most tokens choose. `all-to-all` is the difference to a step without time for links
# inside nodes; `by count` is the step if these were faster by as much as messages are longer than the rows in them;
# with `capacity` devices have room for so many times the mean of their rows.
import argparse, json, os, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "run"))
import harness
from simulate import simulate

SIZES = dict(schedule="1f1b", ranks=2, microbatches=4, layers=4, hidden=64, heads=4, kv_heads=2, vocab=256,
             sequence=128, microbatch=2, lr=2e-3, warmup=100)
MODELS = {"8 experts, 2 of them": dict(model="mixtral", ffn=96, experts=8, top=2, balance=0.001),
          "dense": dict(model="llama", ffn=192)}
ENDS = (".md", ".h", ".cpp", ".py", ".td", ".pipe", ".cu")


def write_text(path):
    """All tracked files of these kinds, in an order that mixes them."""
    names = subprocess.run(["git", "-C", harness.ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout
    with open(path, "wb") as text:
        for name in sorted((name for name in names.split("\n") if name.endswith(ENDS)), key=lambda name: name[::-1]):
            with open(os.path.join(harness.ROOT, name), "rb") as file:
                text.write(file.read() + b"\n")
    return path


PASSED = dict(ranks=8, microbatches=16, layers=16, hidden=2048, heads=16, kv_heads=4, vocab=32000, sequence=4096,
              microbatch=2, precision="bf16")
CLUSTERS = ("h100_ndr", "a800_nvlink_10gbe", "a800_pcie_10gbe")


def step_of(compiler, cluster, values):
    """The simulated step in seconds, where each rank has as much memory as it needs."""
    defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
    train = os.path.join(harness.ROOT, "examples", "train.pipe")
    done = harness.call([compiler, train, *defines, f"--cluster={cluster}", "--memory-limit=4000GB",
                         "--emit=stats"])
    return json.loads(done.stdout)["step"]


def print_passing(compiler, given):
    print("| cluster | model | 1F1B | WeiPipe | TawPipe |\n|---|---|---:|---:|---:|")
    for cluster in CLUSTERS:
        for experts in (0, 4, 8, 16):
            model = dict(model="llama", ffn=5632)
            if experts:
                model = dict(model="mixtral", ffn=2816, experts=experts, top=2)
            steps = [step_of(compiler, cluster, PASSED | model | dict(schedule=schedule) | given)
                     for schedule in ("1f1b", "weipipe_interleave", "tawpipe")]
            name = f"{experts} experts, 2 of them" if experts else "dense"
            print(f"| {cluster} | {name} | {steps[0]:.2f} s | "
                  + " | ".join(f"{step:.2f} s, {step / steps[0]:.2f} x" for step in steps[1:]) + " |", flush=True)


MIXTURES = (dict(experts=8, top=2, ffn=2816), dict(experts=64, top=8, ffn=704))
DEVICES, INSIDE = 8, 200e9  # of a node: how many, and bytes/s between two of them
NODES = """
cluster nodes {{                        # h100_ndr of std/clusters.pipe, but for the links inside a node
  ranks      8
  memory     4e12
  device     bf16 = 989e12, f32 = 67e12, bandwidth = 3.35e12, launch = 3e-6
  efficiency gemm = 0.6, attention = 0.55, bandwidth = 0.8
  inside     bandwidth = {bandwidth}, latency = {latency}
  between    bandwidth = 50e9, latency = 10e-6, nics = 8
}}
"""


def print_mesh(compiler, given):
    with open(os.path.join(harness.ROOT, "examples", "train.pipe")) as file:
        train = file.read()

    def stats_of(values, load, bandwidth=INSIDE, latency=8e-6):
        text = train + NODES.format(bandwidth=bandwidth, latency=latency)
        defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
        flags = ["--expert-load=zipf=1.1"] if load == "skewed" else []
        stats, error = simulate(compiler, text, *defines, "--cluster=nodes", *flags)
        return stats or sys.exit(error)

    print("| experts | `expert` | choices | step | all-to-all | by count | GB of weights and their state | GB in all "
          "|\n|---|---:|---|---:|---:|---:|---:|---:|")
    for mixture in MIXTURES:
        for expert, capacity in (1, 0), (DEVICES, 0), (DEVICES, 1.25):
            values = PASSED | mixture | dict(model="mixtral", schedule="1f1b") | given
            values |= {"mesh.data": DEVICES, "mesh.expert": expert, "model.capacity": capacity}
            room = min(mixture["top"], mixture["experts"] // DEVICES) * DEVICES / mixture["top"]
            for load in ("equal",) if capacity else ("equal", "skewed"):  # what is dropped is not simulated
                stats, columns = stats_of(values, load), " | "
                if expert > 1:
                    free = stats_of(values, load, 1e18, 0)["step"]
                    columns = f"{stats['step'] - free:.2f} s | "
                    if load == "equal" and not capacity:
                        columns += f"{stats_of(values, load, INSIDE * room)['step']:.2f} s"
                peaks = [rank["peak_bytes"] for rank in stats["per_rank"]]
                own = max(sum(peak[role] for role in ("weight", "grad", "opt")) for peak in peaks)
                print(f"| {mixture['experts']} of {mixture['ffn']}, {mixture['top']} of them | {expert} | {load}"
                      f"{f', capacity {capacity}' if capacity else ''} | "
                      f"{stats['step']:.2f} s | {columns} | {own / 1e9:.1f} | "
                      f"{max(peak['total'] for peak in peaks) / 1e9:.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(harness.ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--passing", action="store_true")
    parser.add_argument("--mesh", action="store_true")
    parser.add_argument("-D", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--folder", default=os.path.join(harness.ROOT, "build", "experts"))
    arguments = parser.parse_args()
    given = dict(word.split("=") for word in arguments.D)
    if arguments.passing:
        return print_passing(arguments.compiler, given)
    if arguments.mesh:
        return print_mesh(arguments.compiler, given)
    os.makedirs(arguments.folder, exist_ok=True)
    text, lines = write_text(os.path.join(arguments.folder, "text.txt")), {}
    for number, (name, values) in enumerate(MODELS.items()):
        own = {key.removeprefix("experts."): value for key, value in given.items()
               if not key.startswith("experts.") or values["model"] == "mixtral"}
        program = harness.compile_train(arguments.compiler, os.path.join(arguments.folder, str(number)),
                                        SIZES | values | own)
        log = program + ".jsonl"
        harness.call([program, "--in-process", "--data", text, "--shuffle", "--seed", str(arguments.seed),
                      "--steps", str(arguments.steps), "--log", log])
        lines[name] = harness.read_log(log)
    print("| step | " + " | ".join(MODELS) + " | rows of an expert |\n|---:|" + "---:|" * (len(MODELS) + 1))
    every = arguments.steps // 6
    for end in range(every, arguments.steps + 1, every):
        means = [sum(line["loss"] for line in its[end - every:end]) / every for its in lines.values()]
        rows = next(iter(lines.values()))[end - 1]["rows"]
        print(f"| {end} | " + " | ".join(f"{mean:.3f}" for mean in means)
              + f" | {rows['min']} to {rows['max']}, mean {rows['mean']:.0f} |")


if __name__ == "__main__":
    sys.exit(main())
