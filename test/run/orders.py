#!/usr/bin/env python3
"""Checks what every schedule asks of a device with streams: messages wait for what they must, no wait is left out."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: orders.py PP_COMPILE FOLDER [--without-mpi] [--all]
# Each program runs emulated: a step asked for call by call, then one as a graph. The runtime compares what is asked of
# the streams with the rank programs (test/gpu/CheckedTransport.cpp): each message moves after the posts of all its ends
# and before their completes. With a wait left out (PP_EMULATE=SEED:K) this comparison must fail, or the result be the
# same. Some run staged too: each rank a process with a device of its own, messages through memory of the host and MPI;
# every rank then leaves out its K-th wait, and its own ends of messages are compared.
import os, sys
import harness
from gradients import SMALL

SIZES = SMALL | dict(model="llama", precision="f32", ranks=4, microbatches=8, hidden=16, heads=2, kv_heads=1, ffn=16,
                     sequence=16, microbatch=1)
LEFT_OUT = 3  # waits of every other program, among those of the first step; 5 of all with --all
STAGED = ("1f1b", "gpipe_offload", "weipipe_interleave", "fsdp")


SCHEDULES = """gpipe 1f1b bpipe pipedream_2bw 1f1b_recompute 1f1b_vocabulary gpipe_offload interleaved looped_bfs zb_h1
 zb_h2 zb_v v_half v_min dualpipe_v dualpipe
 weipipe_interleave weipipe_prefetch weipipe_naive wzb1 wzb2 helixpipe tawpipe fsdp zero1 zero2 terapipe slimpipe
 slimpipe_interleaved chimera hanayo ring_attention""".split()


def check(tally, program, text, schedule, way, left_out):

    def run(emulate, steps):
        result = program + ".grads"
        done = harness.call([*harness.launch(program, SIZES["ranks"], f"{way}/{emulate}"), "--data", text, "--steps",
                             steps, "--grads", result], expect=None)
        if done.returncode:
            return "".join(line for line in done.stderr.splitlines() if "error:" in line)
        with open(result, "rb") as file:
            return file.read()

    right = run("1", "2")
    tally.check(isinstance(right, bytes),
                f"{schedule} {way}: every message between its posts and its completes "
                f"{right if isinstance(right, str) else ''}")
    if not left_out:
        return
    found, wrong = 0, []
    for wait in range(left_out):
        number = 7 * wait * wait + wait  # early and late ones
        said = run(f"1:{number}", "1")
        found += isinstance(said, str) and "does not wait for what" in said
        wrong += [number] if not (isinstance(said, str) and "does not wait for what" in said) and said != right else []
    tally.check(not wrong and found >= left_out - 2,
                f"{schedule} {way}: of {left_out} missing waits {found} are found, {len(wrong)} do harm unseen")


def main():
    compiler, folder, *options = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    tally, text = harness.Tally(), harness.write_text(folder)
    for number, schedule in enumerate(SCHEDULES):
        program = harness.compile_train(compiler, os.path.join(folder, schedule), SIZES | dict(schedule=schedule))
        check(tally, program, text, schedule, "streams", 5 if "--all" in options else LEFT_OUT * (number % 2))
        if schedule in STAGED and "--without-mpi" not in options:
            check(tally, program, text, schedule, "staged", 3)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
