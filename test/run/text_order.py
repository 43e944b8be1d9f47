#!/usr/bin/env python3
"""Judges that a program follows from the lists of its ranks alone: `on` blocks may stand in any order in the text."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: text_order.py PP_COMPILE FOLDER
# Every schedule of the library is compiled as it is and with the ranks of its `on r in ..` reversed, so that each list
# stands in another place of the text: all messages and the whole rank programs must be the same text. The schedules
# below move gradients inside `on`, where only one of both ends says when; their blocks change places, and the
# gradients, losses and weights of a run must be the same bits.
import os, re, shutil, sys
import harness
from gradients import Runner, SMALL

NAMES = ("1f1b 1f1b_recompute 1f1b_vocabulary bpipe dualpipe_v fsdp gpipe_offload hanayo helixpipe interleaved "
         "megatron "
         "slimpipe tawpipe terapipe v_half weipipe_naive weipipe_prefetch wzb1 wzb2 zb_h2 zb_v zero1 zero2").split()
MORE = {"helixpipe": {"folds": 2}, "slimpipe": {"exchange": "true"}, "tawpipe": {"prefetch": "false"}}
# A schedule with a gap for the blocks of the ranks.
SCHEDULE = """# Gradients that ranks send when they like.
import "std/models/llama.pipe"
schedule by_hand(ranks p, microbatches m) {{
  stage s of p weight at ranks opt at s
{blocks}
}}
train test {{
  model     llama(layers = 4, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 256)
  schedule  by_hand(ranks = 4, microbatches = 8)
  data      microbatch = 2, sequence = 24
  optimizer adamw(lr = 3e-3, clip = 1.0)
  precision f32
}}
"""
BLOCK = "for s in 0 .. p { F(s, %d) F(s, %d) } for s in reversed(0 .. p) { B(s, %d) %s B(s, %d) %s }"
SENDS = {"each share is sent at once": ("if s != %d { move grad(s) to s }",) * 2,
         "shares are sent once": ("", "if s != %d { move grad(s) to s }")}


def blocks(sends):
    """Rank r runs microbatches r and r + 4 from end to end and sends what it adds to the gradients of others."""
    return [f"  on {r} {{ " + BLOCK % (r, r + 4, r, first % r if first else "", r + 4, second % r) + " }"
            for r in range(4) for first, second in [sends]]


def reverse(source, target):
    """The library with the ranks of every `on` in reversed order; how many there are in each file."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    counts = {}
    for name in os.listdir(target):
        if name.endswith(".pipe"):
            with open(os.path.join(target, name), "r+") as file:
                text, counts[name] = re.subn(r"^( *(?:for .*\{ )?)on (\w+) in (ranks|members\(k\)) \{",
                                             r"\1on \2 in reversed(\3) {", file.read(), flags=re.M)
                file.seek(0)
                file.write(text)
    return counts


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    runner, tally = Runner(compiler, folder), harness.Tally()
    library = os.path.join(folder, "stdlib")
    counts = reverse(os.path.join(harness.ROOT, "stdlib"), library)
    tally.check(sum(count > 0 for count in counts.values()) >= 18, "the library has `on r in ranks` to reverse")
    for schedule in NAMES:
        values = SMALL | dict(ranks=4, microbatches=8, schedule=schedule) | MORE.get(schedule, {})
        defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
        for emit in ("comms", "ranks"):
            ours, theirs = (harness.call([compiler, harness.TRAIN, *defines, f"--emit={emit}", *options]).stdout
                            for options in ((), (f"--stdlib={library}",)))
            tally.check(ours and ours == theirs, f"{schedule}: --emit={emit} with ranks reversed in the text")
    for name, sends in SENDS.items():
        results = []
        for number, order in enumerate(([0, 1, 2, 3], [3, 1, 0, 2])):
            path = os.path.join(folder, f"by_hand{len(results)}")
            with open(path + ".pipe", "w") as file:
                file.write(SCHEDULE.format(blocks="\n".join(blocks(sends)[r] for r in order)))
            harness.call([compiler, path + ".pipe", *harness.RUNTIME, "-o", path])
            results.append(runner.run(path, 4, "threads", "rendezvous"))
        tally.check(results[0] == results[1], f"{name}: the bits with blocks in another order")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
