#!/usr/bin/env python3
"""Judges that nothing reads the names of derived functions: with all names exchanged a program is the same program."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: renamed.py PP_COMPILE FOLDER
# pp-rename-bodies, beside PP_COMPILE, gives every derived function the name of another one, behind derive-tasks and
# behind complete-step. The program is then proved, drawn, measured, compiled and run as the one with the right names,
# and must be the same in all of it: timeline and figures as text; gradients, losses and trained weights of three steps
# bit for bit.
import os, re, sys
import harness
from gradients import Runner, SMALL

# Programs with different kinds of bodies: halves of a backward, R, slices, attentions on several ranks and ahead of
# their unit, the vocabulary in shards, updates in shards, several updates in a step, copies of weights that travel.
CASES = (dict(schedule="zb_h1"),
         dict(schedule="1f1b_recompute"),
         dict(schedule="weipipe_interleave"),
         dict(schedule="slimpipe/exchange=true/vocabulary=true", kv_heads=1),
         dict(schedule="ring_attention", kv_heads=1),
         dict(schedule="zero1", model="gpt2"),
         dict(schedule="fsdp"),
         dict(schedule="replicated_1f1b", model="gpt2"),
         dict(schedule="pipedream_2bw"),
         dict(train="parts.pipe", schedule="forget"),
         dict(train="slices.pipe", schedule="helped_split"))


def words(values):
    schedule, *more = values["schedule"].split("/")
    defines = SMALL | values | dict(schedule=schedule) | dict(pair.split("=") for pair in more)
    return [word for key, value in defines.items() for word in ("-D", f"{key}={value}")]


def identities(path):
    """What each function of a module is, by its name."""
    with open(path) as file:
        found = re.findall(r"func\.func private @([^(]+)\(.*pipeline\.body = (#pipeline\.body<[^>]*>)", file.read())
    return dict(found)


def main():
    compiler, folder = sys.argv[1:]
    rename = os.path.join(os.path.dirname(compiler), "pp-rename-bodies")
    os.makedirs(folder, exist_ok=True)
    runner, tally = Runner(compiler, folder), harness.Tally()
    inputs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs")
    for seed, case in enumerate(CASES, 1):
        values = dict(model="llama", precision="f32", ranks=4, microbatches=8) | case
        train = os.path.join(inputs, values.pop("train")) if "train" in values else harness.TRAIN
        name = case["schedule"]
        path = os.path.join(folder, name.replace("/", "_"))
        harness.call([compiler, train, *words(values), "--emit=actions", "-o", path + ".actions.mlir"])
        harness.call([rename, path + ".actions.mlir", "--pp-all", "-o", path + ".right.mlir"])
        harness.call([rename, path + ".actions.mlir", f"--pp-all-renamed=seed={seed}", "-o", path + ".mlir"])
        right, wrong = identities(path + ".right.mlir"), identities(path + ".mlir")
        # The second exchange may undo some of the first.
        moved = sum(right[label] != wrong.get(label) for label in right)
        tally.check(right.keys() == wrong.keys() and moved >= 0.8 * len(right),
                    f"{name}: proved with {moved} of {len(right)} names that stand for something else")
        for form in ("timeline", "stats", "tasks", "comms"):
            texts = [harness.call([compiler, *source, f"--emit={form}"]).stdout
                     for source in ([train, *words(values)], [path + ".mlir"])]
            tally.check(texts[0] == texts[1] and texts[0], f"{name}: the same {form}")
        harness.call([compiler, train, *words(values), *harness.RUNTIME, "-o", path + ".plain"])
        harness.call([compiler, path + ".mlir", *harness.RUNTIME, "-o", path + ".renamed"])
        plain, other = (runner.run(path + kind, 4, "threads", "rendezvous") for kind in (".plain", ".renamed"))
        tally.check(plain == other, f"{name}: the same gradients, losses and weights")
        runner.clean(path)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
