"""Compiles every schedule of a training program with as many evaluation steps as its actions are worth."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# A file that looks through all microbatches for each action, or copies a list for each item that it adds, takes more
# steps for each action of a larger program. The large programs have about eight times the actions of the small one.
import re
import subprocess
import sys

SMALL, LARGE = (2, 64, 4), [(2, 512, 4), (16, 64, 32)]  # ranks, microbatches, layers
STEPS = 100  # for each action, of any schedule but these
# A move to a list of ranks is one action. Every slice of slimpipe evens out its ranks. v_half tries slots, more with
# more ranks.
MORE = {"tawpipe": 300, "slimpipe": 150, "slimpipe_interleaved": 150, "v_half": 550, "v_min": 450}
NOT_WIDE = ["ring_attention", "ring_attention_zigzag"]  # with more ranks each sequence has more slices, too


def compile_with(program, schedule, size, *more):
    ranks, microbatches, layers = size
    settings = {"schedule": schedule, "ranks": ranks, "microbatches": microbatches, "layers": layers, "hidden": 16,
                "heads": 4, "ffn": 16, "sequence": 32, "slices": 16, "microbatch": 1,
                "layout": "E" + "|".join(ranks * ["t" * (layers // ranks)]) + "L"}
    defines = [word for name, value in settings.items() for word in ("-D", f"{name}={value}")]
    command = ["pp", program, "--emit=actions", *defines, *more]
    return subprocess.run(command, capture_output=True, text=True)


def check(program, schedule):
    small = compile_with(program, schedule, SMALL)
    if small.returncode:
        return [small.stderr]
    actions = len(re.findall(r"^ *pipeline\.(?:unit|transfer|limit|attend)", small.stdout, re.M))
    limit = 8 * actions * MORE.get(schedule, STEPS)
    large = [compile_with(program, schedule, size, "-o", "/dev/null", f"--max-steps={limit}")
             for size in LARGE[:1 if schedule in NOT_WIDE else 2]]
    return [each.stderr for each in large if each.returncode]


with open(sys.argv[1]) as file:
    choices = file.read().split("schedule choose schedule {")[1].split("}")[0]
schedules = re.findall(r'^ *"(\w+)"', choices, re.M)
wrong = {schedule: errors for schedule in schedules if (errors := check(sys.argv[1], schedule))}
print(f"{len(schedules)} schedules, {len(wrong)} take too many steps")
for schedule, errors in wrong.items():
    print(schedule, *errors, sep="\n")
