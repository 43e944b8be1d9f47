#!/usr/bin/env python3
"""Judges `pp-compile --check`: right schedules pass, faults between ranks are found, large programs are refused."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: check.py PP_COMPILE FOLDER FAULTY_RUNTIME
import os, re, sys
import harness

compiler, folder, faulty = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
tally = harness.Tally()
QUICKSTART = os.path.join(harness.ROOT, "examples", "quickstart.pipe")


def check(*arguments):
    done = harness.call([compiler, "--check", *arguments], expect=None)
    return done.returncode, done.stdout, done.stderr


def define(**values):
    return [word for name, value in values.items() for word in ("-D", f"{name}={value}")]


# 128, 344 and 256 are halved while they stay 16 or more; layers, ranks and microbatches belong to the schedule.
code, out, err = check(QUICKSTART)
tally.check(code == 0 and "made smaller: data.sequence 128 -> 16, data.microbatch 4 -> 2, model.hidden 128 -> 16, "
            "model.ffn 344 -> 21, model.vocab 256 -> 16; f64" in out,
            "what is made smaller is said: " + (out.splitlines() or [err])[1])
tally.check("4 ranks, 8 microbatches, 8 layers" in out, "what is checked is said")
lines = dict(re.findall(r"^(\S.*?)  +(\d+) +\S+$", out, re.M))
tally.check(len(lines) == 13 and lines["model.layers.*.mlp.up_proj.weight"] == "8" and lines["the loss"] == "1",
            "every weight has a line, and the loss")
tally.check(re.search(r"^right: the worst difference is (0\.0e\+00|\d\.\de-1[5-7]) ", out, re.M),
            "the verdict: " + out.splitlines()[-1])

# What -D gives stays: for `train` and for its model.
code, out, err = check(QUICKSTART, *define(**{"model.hidden": 48, "data.sequence": 24}))
tally.check(code == 0 and "hidden" not in out and "sequence" not in out, "what -D gives stays")
code, out, err = check(harness.TRAIN, *define(hidden=48, ffn=40, vocab=31, schedule="helixpipe", layers=4,
                                              precision="bf16", mlp_chunks=2))
tally.check(code == 0 and "made smaller: data.sequence 128 -> 16; f64" in out,
            "of train as well, whatever its precision: " + out.splitlines()[1])
for schedule, more in (("zb_v", {}), ("weipipe_interleave", {}), ("fsdp", {}), ("slimpipe", {"exchange": "true"})):
    code, out, err = check(harness.TRAIN, *define(schedule=schedule, model="gpt2" if schedule == "zb_v" else "llama",
                                                  **more))
    tally.check(code == 0 and "right" in out, f"{schedule}: {(out.splitlines() or [err])[-1]}")

# --check takes only smaller sizes that the program's mesh, its vocabulary's shards and the chunks of its MLP can cut:
# two devices halve 86 columns, but not 43, and three ranks need 48 tokens for chunks of eight.
code, out, err = check(QUICKSTART, *define(**{"mesh.tensor": 2}))
tally.check(code == 0 and "model.ffn 344 -> 86," in out and "right" in out,
            f"sizes that a mesh can cut: {(out or err).splitlines()[-1]}")
code, out, err = check(harness.TRAIN, *define(mlp_chunks=8, layers=4))
tally.check(code == 0 and re.search(r"data\.(sequence|microbatch) \d+ -> ", out) and "right" in out,
            f"tokens for every chunk of an MLP: {(out or err).splitlines()[-1]}")

# A schedule alone, with the model that it would be drawn with; it may have the name of the one it is compared with.
path = os.path.join(folder, "single.pipe")
with open(path, "w") as file:
    file.write("schedule single(ranks p, microbatches m) {\n  stage s of p at s\n  for i in microbatches {\n"
               "    for s in 0 .. p { F(s, i) }\n    for s in reversed(0 .. p) { B(s, i) }\n  }\n}\n")
code, out, err = check(path, "--schedule=single", *define(ranks=3, microbatches=4, layers=6))
tally.check(code == 0 and "schedule single on 3 ranks" in out, "a schedule alone")

os.environ["PP_FAULT"] = harness.ENVIRONMENT["PP_FAULT"] = "all"
# A billionth in one number of each message is found, and the weight named; where one rank runs alone nothing is wrong.
code, out, err = check(QUICKSTART, f"--runtime={faulty}")
tally.check(code == 1 and re.search(r"^wrong: ", out, re.M)
            and re.search(r"^model\S+ .*  wrong, in model\.layers\.\d\.", out, re.M),
            "a fault: " + (out.splitlines() or [err])[-1])
code, out, err = check(harness.TRAIN, f"--runtime={faulty}", *define(schedule="single"))
tally.check(code == 0 and "right" in out, "the same fault where no message is")

# Not small, not a program, not together.
code, out, err = check(harness.TRAIN, *define(hidden=8192, ffn=32768))
tally.check(code == 1 and "could not make this program small" in err and "theta" not in err and not out,
            "refused: " + err.strip())
code, out, err = check(path, "--schedule=pears", *define(ranks=3, microbatches=4, layers=6))
tally.check(code == 2 and "there is no schedule `pears`" in err, "an error of the program: " + err.splitlines()[0])
for option in ("--emit=timeline", "--prove", "--target=cuda", "-o=file", "--to-scale", "--rank=0"):
    code, out, err = check(QUICKSTART, option)
    tally.check(code == 2 and ("--check" in err or "has no effect here" in err) and not out,
                f"with {option}: {err.strip()}")
sys.exit(tally.close())
