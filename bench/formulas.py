#!/usr/bin/env python3
"""Prints the time of formulas' code over that of our own kernels, of forwards and backwards."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/formulas.py [-c PP_COMPILE] [--rounds N] [--width N]
# Two programs differ in one part, a kernel or a formula of the same values. It is a stage of its own, whose F and B the
# programs time themselves (--profile): the smallest median of N rounds, in turn. A backward is of the whole part, sums
# of gradients of one tensor included. PP_ISA chooses the instructions.
import argparse, json, os, subprocess, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = """import "std/1f1b.pipe"
fn cube(x) = 1.5957691216057308 * (x + 0.044715 * x * x * x)
model timed(layers, hidden, vocab) {
  part embed(tokens) {
    weight wp[vocab, hidden], wq[vocab, hidden]
    return embedding(tokens, wp), embedding(tokens, wq)
  }
  layer {
    part act(p, q) {
      PART, q
    }
  }
  part head(p, q, targets) {
    weight wo[hidden, vocab]
    return cross_entropy(linear(p + q, wo), targets)
  }
}
train example(sequence, width, type) {
  model timed(3, width, 64)
  schedule one_f_one_b(3, 8)
  data microbatch = 1, sequence = sequence
  optimizer adamw(lr = 1e-3)
  precision type
}
"""
GAIN = " weight g[hidden] init one"
PARTS = {"gelu": ("", "gelu(p)", "p * sigmoid(cube(p))"),
         "swiglu": ("", "swiglu(p, q)", "silu(p) * q"),
         "rmsnorm": (GAIN, "rmsnorm(p, g)", "p * rsqrt(mean(square(p)) + 1e-5) * g"),
         "layernorm": (GAIN + ", b[hidden] init zero", "layernorm(p, g, b)",
                       "(p - mean(p)) * rsqrt(variance(p) + 1e-5) * g + b")}


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def build(compiler, folder, name, part, values):
    """The program whose second stage is this part."""
    text, program = os.path.join(folder, name + ".pipe"), os.path.join(folder, name)
    with open(text, "w") as file:
        file.write(MODEL.replace("PART", "\n      ".join(part)))
    call([compiler, text, *(word for each in values for word in ("-D", each)), "-o", program])
    return program


def times(program):
    """Seconds of F and B of the second stage."""
    path = program + ".json"
    call([program, "--in-process", "--data", "random", "--steps", "8", "--profile", path])
    with open(path) as file:
        tasks = {task["task"]: task["median"] for task in json.load(file)["tasks"]}
    return tasks["s1.F"], tasks["s1.B"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", dest="compiler", default=os.path.join(ROOT, "build/bin/pp-compile"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=1024)
    its = parser.parse_args()
    head = "".join(f" {phase + ' us':>9} {'formula':>9} {'ratio':>6}" for phase in "FB")
    print(f"{'':10} {'type':5} {'rows':>5}{head}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (weights, ours, formula) in PARTS.items():
            for kind in ("f32", "bf16"):
                for rows in (64, 4096):
                    values = (f"sequence={rows}", f"width={its.width}", f"type={kind}")
                    parts = [[weights, "return " + text] if weights else ["return " + text] for text in (ours, formula)]
                    programs = [build(its.compiler, folder, f"p{i}", part, values) for i, part in enumerate(parts)]
                    runs = [[times(program) for program in programs] for _ in range(its.rounds)]
                    least = [[min(run[i][phase] for run in runs) * 1e6 for i in (0, 1)] for phase in (0, 1)]
                    columns = "".join(f" {a:9.1f} {b:9.1f} {b / a:6.2f}" for a, b in least)
                    print(f"{name:10} {kind:5} {rows:5}{columns}", flush=True)


if __name__ == "__main__":
    main()
