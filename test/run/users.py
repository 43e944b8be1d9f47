#!/usr/bin/env python3
"""Judges by execution what users bring: schedules of PyTorch, task lists in any order, layouts of Megatron-LM."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: users.py PP_COMPILE FOLDER
# Every case is compiled with the same model and data as one rank; gradients and losses must be equal, with both kinds
# of sends. The task lists are drawn at random, with a fixed seed: any map from stages to ranks, and any order that
# respects what the units read.
import os, random, sys
import gradients, harness

TORCH = os.path.join(harness.ROOT, "test", "translate", "torch")
# name, ranks, microbatches, stages, which is how many layers the model has
FILES = [("ZBVZeroBubble-2-4-comms.csv", 2, 4, 4), ("DualPipeV-2-4.csv", 2, 4, 4),
         ("Interleaved1F1B-3-6-comms.csv", 3, 6, 9), ("LoopedBFS-2-3.csv", 2, 3, 4)]
LISTS = [("tasks_two", 2, 4, 6), ("tasks_three", 3, 3, 3), ("tasks_four", 4, 6, 6)]
LAYOUTS = [("E|tt,t|t|L", 4, 3, 4), ("Et*2|t|L,", 3, 4, 3),
           ("E|t|tt|L", 2, 4, 3), ("E||tt|tL", 4, 4, 3), ("Et||t|t||L", 3, 3, 3),
           ("Et|t|tm|L", 4, 4, 3), ("Et|tt|m|L", 2, 4, 3)]  # layout, ranks, microbatches, layers
TRAIN = """# The schedule {what}, on the model that every case here trains.
import "std/models/{model}.pipe"
import "{file}"
train user {{
  model     {model}(layers = {layers}, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 256)
  schedule  {schedule}
  data      microbatch = 2, sequence = 24
  optimizer adamw(lr = 3e-3, clip = 1.0)
  precision f64
}}
"""


class Users(gradients.Runner):
    def train(self, name, file, schedule, layers, model="llama"):
        path = os.path.join(self.folder, name)
        with open(path + ".pipe", "w") as text:
            text.write(TRAIN.format(what=name, file=file, schedule=schedule, layers=layers, model=model))
        harness.call([self.compiler, path + ".pipe", "-o", path])
        return path

    def csv(self, name, stages):
        translate = os.path.join(os.path.dirname(self.compiler), "pp-translate")
        harness.call([translate, "--import-csv", os.path.join(TORCH, name), "-o",
                      os.path.join(self.folder, name + ".pipe")])
        return self.train(name.removesuffix(".csv"), name + ".pipe", "imported()", stages)

    def tasks(self, name, ranks, microbatches, stages, draw):
        places = list(range(ranks)) + [draw.randrange(ranks) for _ in range(stages - ranks)]
        draw.shuffle(places)
        units = random_order(stages, microbatches, draw)
        with open(os.path.join(self.folder, name + "_list.pipe"), "w") as text:
            text.write(f"# Tasks in a random order.\nimport \"std/task_list.pipe\"\nschedule {name}(ranks p, "
                       f"microbatches m) {{\n"
                       f"  stage s of {stages} at {places}[s]\n")
            for rank in range(ranks):
                mine = [f"task({i}, \"{ty}\", {s})" for i, ty, s in units if places[s] == rank]
                text.write(f"  on {rank} {{ {' '.join(mine)} }}\n")
            text.write("}\n")
        return self.train(name, name + "_list.pipe", f"{name}(ranks = {ranks}, microbatches = {microbatches})",
                          stages)


def random_order(stages, microbatches, draw):
    """All tasks, each after what it reads: any of those that could be next, with equal chances."""
    done, order = set(), []
    forward = lambda i, s: (i, "fwd", s)
    ready = [forward(i, 0) for i in range(microbatches)]
    while ready:
        i, ty, s = task = ready.pop(draw.randrange(len(ready)))
        done.add(task)
        order.append(task)
        if ty == "fwd" and s + 1 < stages:
            ready.append(forward(i, s + 1))
        elif ty == "fwd":
            ready.append((i, "bwd", s))
        elif s > 0:
            ready.append((i, "bwd", s - 1))
    return order


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    users, tally, references, draw = Users(compiler, folder), harness.Tally(), {}, random.Random(4)
    for number, (name, ranks, microbatches, stages) in enumerate(FILES + LISTS + LAYOUTS):
        model = "llama_mtp" if "m" in name and "|" in name else "llama"
        key = (microbatches, stages, model)
        if key not in references:
            single = users.train(f"single_{microbatches}_{stages}_{model}", "std/single.pipe",
                                 f"single(microbatches = {microbatches})", stages, model)
            references[key] = users.run(single, 1, "threads", "rendezvous")
        if name.endswith(".csv"):
            program = users.csv(name, stages)
        elif "|" in name:
            program = users.train(f"layout_{number}", "std/megatron.pipe",
                                  f'megatron(ranks = {ranks}, microbatches = {microbatches}, layout = "{name}")',
                                  stages, model)
        else:
            program = users.tasks(name, ranks, microbatches, stages, draw)
        for transport, sends in [("threads", "rendezvous"), ("mpi", "rendezvous" if number % 2 else "buffered")]:
            ours, losses, _ = users.run(program, ranks, transport, sends)
            worst, where = gradients.difference(ours, references[key][0])
            drift = harness.drift(losses, references[key][1])
            tally.check(worst <= 1e-11 and drift <= 1e-10, f"{name:30} {transport:7} {sends:10} gradients {worst:.1e} "
                                                           f"losses {drift:.1e} worst in {where}")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
