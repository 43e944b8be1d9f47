"""Takes PyTorch's own schedules to `.pipe` files and back: what comes out, proved, is what went in."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: roundtrip.py FOLDER SCRATCH
# Every CSV of the folder is imported, and compiled up to the proofs by the export; rows are compared cell by cell,
# without what a schedule does not say: idle time, and the cells of sharding, reduction and waiting for sends.
import os, re, subprocess, sys

LEFT_OUT = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|WAIT_REDUCE_GRAD|WAIT_SEND_[FB]\d+)|")


def rows(text):
    return [[cell for cell in line.split(",") if not LEFT_OUT.fullmatch(cell)] for line in text.split()]


def call(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(folder, scratch):
    os.makedirs(scratch, exist_ok=True)
    names = sorted(name for name in os.listdir(folder)
                   if not name.startswith("1F1B-"))  # not those that PyTorch refuses
    for name in names:
        pipe = os.path.join(scratch, name + ".pipe")
        call("pp-translate", "--import-csv", os.path.join(folder, name), "-o", pipe)
        with open(os.path.join(folder, name)) as file:
            given = rows(file.read())
        stages = 1 + max(int(number) for row in given for cell in row for number in re.findall(r"(\d+)[FIBW]\d", cell))
        form = ["--messages"] if name.endswith("-comms.csv") else []
        ours = rows(call("pp-compile", "--emit=torch", *form, pipe, "-D", f"layers={stages}"))
        for rank, (mine, theirs) in enumerate(zip(ours, given, strict=True)):
            if mine != theirs:
                print(f"{name}: rank {rank} runs\n{mine}, not\n{theirs}")
                return 1
    print(f"{len(names)} schedules came back")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
