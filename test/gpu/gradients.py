#!/usr/bin/env python3
"""Runs every packed schedule on one GPU, all ranks in one process, and compares gradients and losses with one rank."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: gradients.py PROGRAMS TEXT [few|rest|more|processes]
# Programs are `gradients.<type>.<schedule>/program`, linked by bench/gpu/link.py. Several run at a time and share the
# GPU. `few` are the schedules that tell most, in f32 and bf16; `rest` are the others; `more` are families, meshes and
# long slices, and one rank of each family against the first step of the CPU's program, which bench/gpu/pack.sh ran;
# `processes` are the few in bf16 with a process for each rank, whose messages go through host memory and MPI, and then
# by copies alone. A line also says what the program says of its engines: attention by cuDNN or by our kernels, products
# with an epilogue.
# Tolerances, relative to the largest element of a tensor: f32 1e-4, for sums over 8 layers and 1024 tokens in another
# order than one rank's (each step rounds at 6e-8, and norms and softmax amplify it about a thousandfold at worst).
# In 16 bits as measured by bench/gradient_errors.py (CPU kernels, this model, nine schedules): where all units have the
# one rank's shapes, gradients differ by 2.3e-7 at most, by the order of sums in f32; where sequences are cut into
# slices, whose results are rounded apart, by 5.1e-3 in bf16 and 5.6e-4 in f16. The bounds are four times that, since a
# GPU may choose another algorithm for another shape; they are what all of rounding costs against f64 (largest 2.0e-2
# and 2.3e-3, median 6.1e-3 and 8.4e-4). A wrong or stale message changes gradients by a microbatch's share, an eighth.
import concurrent.futures, glob, os, shutil, subprocess, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "run"))
import harness
from gradients import difference

# GPT-2's programs run with and without epilogues (PP_EPILOGUES): what differs is whether gelu sees u rounded, and a
# residual its product.
TOLERANCE = {"f32": 1e-4, "bf16": 2e-2, "f16": 2.5e-3}
RANKS = 4  # of all packed schedules
FEW = ("1f1b", "zb_v", "weipipe_interleave", "slimpipe_exchange", "gpipe_offload", "fsdp")
AT_A_TIME = 4  # programs; an H100 had no room for the contexts of 40 processes
PLAIN, HOST = "without epilogues", "against the CPU"
APART = {"over MPI": "mpi", "by copies": "copies"}  # a process for each rank: its transport
BY_CUDNN = ("1f1b", "zb_v", "helixpipe")  # the others by our own attention: cuDNN compiles its kernels at every start


def run(folder, text, *options):
    """Gradients, losses, and which engines served."""
    result = os.path.join(folder, f"result.{os.getpid()}" + "".join(options).replace(" ", "-"))
    by_cudnn = folder.split(".")[-1] in BY_CUDNN or "-slices" in folder
    environment = dict(harness.ENVIRONMENT, PP_EPILOGUES="off" if PLAIN in options else "on",
                       PP_CUDNN="on" if by_cudnn else "off")
    program = os.path.abspath(os.path.join(folder, "program"))
    transport = [APART[option] for option in options if option in APART]
    start = (["mpirun", "-n", str(RANKS), "--oversubscribe", program, "--transport", *transport] if transport else
             [program, "--in-process"])
    done = subprocess.run([*start, "--data", text, "--steps", "1" if HOST in options else "4",
                           "--grads", result + ".grads", "--log", result + ".jsonl",
                           *(option for option in options if option.startswith("-"))],
                          env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        raise RuntimeError(next((line for line in said if line.startswith("pp: error")), said[-1]))
    engines = [line.split("  ", 1)[1] for line in done.stdout.splitlines() if line.startswith("engines  ")]
    return *told(result), " ".join(engines)


def told(result):
    """What a run has written: its gradients and losses."""
    gradients = {name: values for name, (_, values) in harness.read_safetensors(result + ".grads").items()}
    return gradients, [line["loss"] for line in harness.read_log(result + ".jsonl")]


def judge(case, text, references):
    """Whether the case is good, and its line."""
    kind, folder, options = case
    name = " ".join([kind, folder.split(".")[-1], *options])
    try:
        expected, expected_losses = (told(os.path.join(folder, "host")) if HOST in options else
                                     references[kind].result()[:2])
        gradients, losses, engines = run(folder, text, *options)
    except Exception as error:  # the others are of interest all the same
        return False, f"{name}: {str(error).strip().splitlines()[-1]}"
    worst, where = difference(gradients, expected)
    drift = max(abs(a - b) / abs(b) for a, b in zip(losses, expected_losses))
    tolerance = TOLERANCE[kind.split("-")[0]]
    good = worst <= tolerance and drift <= 10 * tolerance
    said = "" if good else f" in {where}"
    return good, f"{name}: gradients {worst:.1e} losses {drift:.1e}{said} ({engines})"


BOTH = [(), ("--no-graph",)]
# Of each set of programs: the words that ask for it, and the ways in which it runs.
SETS = {"few": (("few", "all"), BOTH), "rest": (("rest", "all"), BOTH), "more": (("more", "all"), BOTH),
        "family": (("more", "all"), [(HOST,)]), "reference": ((), [])}


def set_of(folder, kind, schedule):
    if "-" in kind and not kind.endswith("gpt2") or "+" in schedule or os.path.exists(f"{folder}/host.grads"):
        return "more" if schedule != "single" else "family" if "f32" in kind else "reference"
    return "few" if not kind.startswith("f16") and schedule in FEW else "rest"


def ways_of(folder, kind, schedule, which):
    its = set_of(folder, kind, schedule)
    if which == "processes":
        return [(way,) for way in APART] if its == "few" and kind == "bf16" else []
    words, ways = SETS[its]
    if which not in words:
        return []
    return ways + [(PLAIN,)] if kind.endswith("gpt2") else ways


def cases_of(programs, which):
    cases = []
    for folder in sorted(glob.glob(os.path.join(programs, "gradients.*"))):
        _, kind, schedule = os.path.basename(folder).split(".")
        cases += [(kind, folder, options) for options in ways_of(folder, kind, schedule, which)]
    # Each program once, then its other ways.
    return sorted(cases, key=lambda case: (case[2] not in ((), (HOST,)), case[1]))


def main():
    programs, text, which = (*sys.argv[1:], "all")[:3]
    if which == "processes" and not shutil.which("mpirun"):
        print("no mpirun on this machine")
        return 0
    tally, cases = harness.Tally(), cases_of(programs, which)
    with concurrent.futures.ThreadPoolExecutor(1 if which == "processes" else AT_A_TIME) as pool:
        references = {kind: pool.submit(run, os.path.join(programs, f"gradients.{kind}.single"), text)
                      for kind in dict.fromkeys(kind for kind, _, _ in cases)}
        for done in concurrent.futures.as_completed([pool.submit(judge, case, text, references) for case in cases]):
            tally.check(*done.result())
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
