#!/usr/bin/env python3
"""The device `cuda` where there may be no GPU, and the emulated one: what it refuses, and what a missing wait does."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: device.py PP_COMPILE FOLDER
import os, sys
import harness
from gradients import SMALL

SIZES = SMALL | dict(model="llama", precision="f64", schedule="1f1b", ranks=4, microbatches=6)
GATHER = SIZES | {"ranks": 2, "microbatches": 3, "layers": 2, "mesh.context": 2}
HEADS = GATHER | {"mesh.attention": "heads"}


def check_cuda(tally, compiler, folder, text):
    """Linked for CUDA where the toolkit is; without a GPU the program says so and ends with the status of PP_IO."""
    path = os.path.join(folder, "cuda")
    defines = [word for name, value in SIZES.items() for word in ("-D", f"{name}={value}")]
    done = harness.call([compiler, harness.TRAIN, *defines, "--target=cuda", "-o", path], expect=None)
    if "this pp-compile was built without CUDA" in done.stderr:
        tally.check(done.returncode == 1 and not os.path.exists(path), "a compiler without CUDA says so")
        return
    tally.check(done.returncode == 0, "--target=cuda links" + done.stderr)
    info = harness.call([path, "--info"])
    tally.check("schedule    one_f_one_b on 4 ranks" in info.stdout, "--info needs no GPU")
    refused = harness.call([path, "--in-process", "--data", text, "--emulate", "1"], expect=1)
    tally.check("unknown option `--emulate`" in refused.stderr, "a GPU is not emulated")
    ran = harness.call([path, "--in-process", "--data", text, "--steps", "2"], expect=None)
    says = ("this program needs an NVIDIA driver", "this machine has no NVIDIA GPU")
    without = ran.returncode == 2 and len(ran.stderr.splitlines()) == 1 and any(part in ran.stderr for part in says)
    tally.check(without or (ran.returncode == 0 and "step 2/2" in ran.stdout),
                "it trains, or says in a line that it cannot")


def check_meshes(tally, compiler, folder):
    """Programs whose sequences lie on several devices link for CUDA, in both ways of attention."""
    for number, more in enumerate(({}, {"model": "gpt2"}, {"mesh.tensor": 2, "mesh.sequence": "true"},
                                   {"mesh.data": 2, "mesh.zero": 2})):
        for sizes in (GATHER, HEADS):
            values = sizes | dict(precision="bf16") | more
            path = os.path.join(folder, f"mesh{number}")
            defines = [word for name, value in values.items() for word in ("-D", f"{name}={value}")]
            done = harness.call([compiler, harness.TRAIN, *defines, "--target=cuda", "-o", path], expect=None)
            if "this pp-compile was built without CUDA" in done.stderr:
                return
            said = harness.call([path, "--info"], expect=None).stdout if done.returncode == 0 else done.stderr
            tally.check("context 2" in said, f"cuda, context by {values.get('mesh.attention', 'gather')}, {more}: "
                        f"{'links' if done.returncode == 0 else said}")


def check_experts(tally, compiler, folder):
    """Programs with experts link for CUDA, on meshes too; run-nccl runs them on stand-ins."""
    for number, (model, schedule, more) in enumerate((
            ("mixtral", "1f1b", {}), ("glm4_moe", "zb_v", {"ranks": 2}),
            ("mixtral", "1f1b", {"ranks": 2, "mesh.tensor": 2, "mesh.data": 2, "mesh.expert": 2}))):
        values = SIZES | dict(model=model, schedule=schedule, precision="bf16", experts=6, top=3, balance=0.1) | more
        path = os.path.join(folder, f"experts{number}")
        defines = [word for name, value in values.items() for word in ("-D", f"{name}={value}")]
        done = harness.call([compiler, harness.TRAIN, *defines, "--target=cuda", "-o", path], expect=None)
        if "this pp-compile was built without CUDA" in done.stderr:
            return
        said = harness.call([path, "--info"], expect=None).stdout if done.returncode == 0 else done.stderr
        tally.check(f"model       {model}" in said,
                    f"cuda, {model}, {schedule}, {more}: {'links' if done.returncode == 0 else said}")


def check_shipped(tally, compiler, folder, text):
    """What users link has no device of tests: neither its code nor a way to ask for it."""
    shipped = os.path.join(folder, "shipped")
    defines = [word for name, value in SIZES.items() for word in ("-D", f"{name}={value}")]
    harness.call([compiler, harness.TRAIN, *defines, "-o", shipped])
    testing = harness.compile_train(compiler, os.path.join(folder, "emulated"), SIZES)

    def has_emulation(path):
        with open(path, "rb") as file:
            return b"PP_EMULATE" in file.read()

    tally.check(has_emulation(testing) and not has_emulation(shipped),
                "only programs of tests hold the emulated device")
    tally.check("emulate" not in harness.call([shipped, "--help"]).stdout, "--help does not know it")
    refused = harness.call([*harness.launch(testing, SIZES["ranks"], "streams/1:x"), "--data", text], expect=1)
    tally.check("PP_EMULATE expects SEED or SEED:K, got `1:x`" in refused.stderr, "a wrong seed is refused")


def check_waits(tally, compiler, folder, text, sizes, waits):
    """Waits of a step left out in turn: the check of the order finds it, or others imply it and no order shows it."""
    program = harness.compile_train(compiler, os.path.join(folder, "emulated"), sizes)

    def gradients(emulate):
        path = os.path.join(folder, "grads")
        command = harness.launch(program, sizes["ranks"], f"streams/{emulate}")
        done = harness.call([*command, "--data", text, "--steps", "1", "--grads", path], expect=None)
        if done.returncode:
            return done.stderr
        with open(path, "rb") as file:
            return file.read()

    right = gradients("0")
    tally.check(all(gradients(str(seed)) == right for seed in range(1, 5)), "five orders, the same bits")
    missing = {wait: gradients(f"1:{wait}") for wait in waits}
    found = [wait for wait, said in missing.items() if isinstance(said, str) and "does not wait for what" in said]
    silent = [wait for wait in missing if wait not in found]
    tally.check(len(found) >= len(missing) / 2, f"of {len(missing)} missing waits {len(found)} are found")
    tally.check(all(gradients(f"{seed}:{wait}") == right for wait in silent for seed in range(3)),
                f"without one of the other {len(silent)} no order brings another gradient")


def main():
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    tally, text = harness.Tally(), harness.write_text(folder)
    check_cuda(tally, compiler, folder, text)
    check_shipped(tally, compiler, folder, text)
    check_meshes(tally, compiler, folder)
    check_experts(tally, compiler, folder)
    check_waits(tally, compiler, folder, text, SIZES, range(0, 96, 4))
    for sizes in (GATHER, HEADS):
        check_waits(tally, compiler, folder, text, sizes, range(0, 192, 12))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
