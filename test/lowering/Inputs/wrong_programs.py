"""Hand-made wrong rank programs, and every form that pp-compile writes: each is refused, and nothing is written."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import os, re, subprocess, sys

SCHEDULE = """
import "std/models/gpt2.pipe"
import "std/1f1b.pipe"
train small {
  model     gpt2(layers = 4, hidden = 8, heads = 2, ffn = 16, vocab = 16, context = 8)
  schedule  one_f_one_b(ranks = 4, microbatches = 6)
  data      microbatch = 2, sequence = 4
  optimizer adamw(lr = 1e-3, clip = 1)
  precision f32
}
"""
FORMS = "exe obj llvm ranks tasks comms timeline svg report trace chakra stats".split()
failures = 0


def check(good, text):
    global failures
    failures += not good
    print(("ok   " if good else "FAIL ") + text)


def compile(source, *options, environment={}):
    return subprocess.run(["pp-compile", source, *options], capture_output=True, text=True,
                          env=dict(os.environ, **environment))


def rank(number):
    """The text of one rank's program, and a function that puts another one in its place."""
    begin = right.index(f"    pipeline.rank {number} ")
    end = right.index("\n    }\n", begin) + len("\n    }\n")
    return right[begin:end], lambda text: right[:begin] + text + right[end:]


def edit(number, pattern, replacement, count=1):
    text, put = rank(number)
    changed, times = re.subn(pattern, replacement, text, count=count, flags=re.M)
    assert times == count and changed != text, pattern
    return put(changed)


def line(number, pattern):
    return re.search(f"^.*{pattern}.*\n", rank(number)[0], re.M).group(0)


def swapped(number, first, second):
    """Two lines change places; what they name is named before both."""
    a, b = line(number, first), line(number, second)
    text, put = rank(number)
    slots = "".join(line(number, re.escape(re.search(r"%act\w*", each).group(0)) + " = ") for each in [a, b])
    for each in slots.splitlines(keepends=True):
        text = text.replace(each, "")
    return put(text.replace(a, "\0").replace(b, a).replace("\0", slots + b))


with open("right.pipe", "w") as file:
    file.write(SCHEDULE)
right = re.sub(r"%(\d+)", r"%r\1", compile("right.pipe", "--emit=ranks").stdout)  # numbers would have to have no gaps
assert "proof = {" in right  # what a file claims, right and wrong ones alike
norm = re.search(r"(%\w+) = pipeline.post all_reduce.*\n", rank(2)[0])
stashes = re.findall(r"(%stash\w*) = pipeline.slot", rank(1)[0])
program = right.index("  pipeline.program")
end = right.index("\n  }\n", program) + 5
wrong = {
    "a forward is missing": edit(2, r"^.*launch @s1.F <F stage 2 mb 3>.*\n", ""),
    "a backward runs twice": edit(2, r"^(.*launch @s1.B <B stage 2 mb 3>.*\n)", r"\1\1"),
    "an update is missing": edit(3, r"^.*launch @s3.U <U stage 3>.*\n", ""),
    "a receive is not awaited": edit(1, r"^      pipeline.complete %r0\n", ""),
    "two receives are swapped": swapped(1, "%r0 = pipeline.post", "%r1 = pipeline.post"),
    "a message takes another channel": edit(1, "(%r2 = .* channel) 6", r"\1 7"),
    "a message goes to another rank": edit(1, r"(%r2 = .* with) \[2\]", r"\1 [3]"),
    "a backward reads another stash": edit(1, r"(launch @s1.B <B stage 1 mb 1>\(%\w+,) %\w+", rf"\1 {stashes[0]}"),
    "two live stashes overlap": edit(1, r'("stash\(1, 1\)" offset) \d+', r"\1 " + re.search(
        r'"stash\(1, 0\)" offset (\d+)', rank(1)[0]).group(1)),
    "a rank has too little memory": edit(1, r"(rank 1 arena) \d+", r"\1 19136"),
    "a rank stays away from the norm": rank(2)[1](re.sub(
        rf"^.*(post all_reduce .*|pipeline.complete {norm.group(1)})\n", "", rank(2)[0], flags=re.M)),
    "a weight is saved by no rank": edit(1, "<weight @s1 save>", "<weight @s1>"),
    "a weight is saved twice": edit(2, r'^( *)%\w+ = pipeline.slot (weight "\w+\(2\)" offset \d+ binding .*\n)',
                                    r"\g<0>\1%again = pipeline.slot \2"),
    "a gradient is not handed in": edit(1, " binding <grad @s1>", ""),
    "a norm is not handed in": edit(2, " binding <norm>", ""),
    "an activation is bound to tokens": edit(1, r'(slot act "act\(1, 0\)" offset \d+)', r"\1 binding <tokens mb 0>"),
    "a state is no state": edit(1, "slot opt ", "slot stash "),
    "a rank has no program": rank(3)[1](""),
    "a rank has two programs": rank(3)[1](rank(2)[0]),
    "there are two programs": right[:end] + right[program:].replace("@small", "@other", 1),
}
with open("right.mlir", "w") as file:
    file.write(right)
for form in FORMS[1:]:
    done = compile("right.mlir", f"--emit={form}", "-o", "out." + form)
    check(done.returncode == 0, f"the right program as {form} {done.stderr}")
done = compile("right.mlir", "-o", "out.exe", environment={"CXX": "false"})
check("failed with status 1" in done.stderr, "the right program comes as far as the link")
for name, text in wrong.items():
    with open("wrong.mlir", "w") as file:
        file.write(text)
    reasons = set()
    for options in [[f"--emit={form}", "-o", "wrong." + form] for form in FORMS] + [["--prove"], ["--prove=json"]]:
        done = compile("wrong.mlir", *options)
        reasons.add(done.stderr.split("error: ")[-1].split("\n")[0])
        left = [file for file in os.listdir() if file.startswith("wrong.") and file != "wrong.mlir"]
        check(done.returncode == 1 and "error: " in done.stderr and not done.stdout and not left,
              f"{name}, {options[0]}: {done.stdout[:100]} {left}")
    print(f"     {name}: {' / '.join(sorted(reasons))}")
for form in ["actions", "pipeline"]:
    done = compile("right.mlir", f"--emit={form}")
    check(done.returncode == 2 and "holds rank programs" in done.stderr, f"rank programs are not written as {form}")

# What a file says of proofs is forgotten: a limit, a map of channels, a proof that no longer exists.
with open("claims.mlir", "w") as file:
    file.write(re.sub(r"proof = \{.*?\}\}", 'proof = {memory = {largest = 1, limit = 77}, '
                      'progress = {channels = "claimed"}, termination = {cycles = 9}}', right, count=1))
for options in [["--prove=json"], ["--emit=report"]]:
    done = compile("claims.mlir", *options)
    names = re.findall(r'"name": ?"(units|values|gradients|channels|progress|slots|memory|termination)"', done.stdout)
    ran = sorted("units values gradients channels progress slots memory".split())
    check(done.returncode == 0 and sorted(names) == ran, f"{options[0]} names what ran: {names}")
    check("claimed" not in done.stdout and '"limit": 77' not in done.stdout, f"{options[0]} believes no claim")
done = compile("right.mlir", "--memory-limit=20000", "--emit=obj", "-o", "out.small")
check(done.returncode == 1 and "more than its limit of 20000 bytes" in done.stderr, "--memory-limit binds files, too")
done = compile("right.mlir", "--channels=pair", "--prove=json")
check('"channels": "pair"' in done.stdout, "--channels binds files, too")
sys.exit(1 if failures else 0)
