"""Writes the library's clusters with a list of equal numbers for each figure of a device: nothing may change."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: equal_kinds.py PP_COMPILE TRAIN.pipe CLUSTERS.pipe OUT.pipe
import re, subprocess, sys

compiler, train, library, path = sys.argv[1:]


def listed(block):
    """`memory 80e9` is `memory [80e9 for d in 0 .. 8]`, and so is every number of `device`, `efficiency` and `host`."""
    ranks = re.search(r"^  ranks +(\w+)", block, re.M)[1]
    for option in ("device", "efficiency", "host"):
        block = re.sub(rf"^  {option} .*", lambda line: re.sub(r"= ([^,]+)", rf"= [\1 for d in 0 .. {ranks}]", line[0]),
                       block, flags=re.M)
    return re.sub(r"^  memory +(\S+)", rf"  memory [\1 for d in 0 .. {ranks}]", block, flags=re.M)


def output(*words):
    return subprocess.run([compiler, *words], capture_output=True, text=True, check=True).stdout


blocks = re.findall(r"^cluster \w+.*?^}$", open(library).read(), re.M | re.S)
names = [re.match(r"cluster (\w+)", block)[1] for block in blocks]
lists = [re.sub(r"^cluster (\w+)", r"cluster \1_lists", listed(block)) for block in blocks]
with open(path, "w") as file:
    file.write(open(train).read() + "\n".join(lists))
sizes = ["-D", "layers=4", "-D", "ranks=4", "-D", "microbatches=4", "-D", "precision=bf16"]
for name in names:
    assert lists[names.index(name)].count("[") >= 8, name
    for words in (["-D", "schedule=gpipe_offload", "--plan", "--emit=stats"], ["-D", "mesh.tensor=2", "--emit=stats"]):
        alone, its = (output(path, *sizes, *words, f"--cluster={name}{end}") for end in ("", "_lists"))
        assert alone == its, f"{name}: {' '.join(words)}"
print(len(names), "clusters, the same numbers with lists")
