#!/usr/bin/env python3
"""Rehearses bench/gpu/run.sh without a GPU: all of its parts, then ends by time and by signals, which lose no row."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: device_bench.py PP_COMPILE FOLDER     (PP_TEST_RUNTIME: a runtime over test/gpu/FakeCuda.cpp)
# The script is the one that runs on a device. The tools that it finds first stand in: a `cmake` that takes the runtime
# of the tests for the one that it should build, and a `pp-gpu-kernels` of three rows. Programs, their linking,
# gradients and steps are real, but small. A tool hangs where PP_REHEARSAL_HANGS names it, so that time ends there.
import os, re, shutil, signal, subprocess, sys, time
import harness

compiler, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
build = os.path.dirname(os.path.dirname(compiler))
packed, tools, tally = os.path.join(folder, "packed"), os.path.join(folder, "tools"), harness.Tally()
SHARDS = [f"kernel-tests-{shard}" for shard in range(6)]
# One behind the other; those of a list run side by side.
PARTS = ["versions", "configure", "build", "link",
         ["gradients", *SHARDS, "kernel-tests-cudnn", "memcheck", "racecheck"], "kernels", "steps", "counters",
         "gradients-more", "processes", "gradients-rest"]
HANG = """
def hang(name):
    if os.environ.get("PP_REHEARSAL_HANGS") == name:
        with open(f"{folder}/process", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(3600)
"""
CMAKE = """
if "-S" in sys.argv:
    os.makedirs("build/lib", exist_ok=True)
    os.makedirs("build/bin", exist_ok=True)
    shutil.copy(f"{build}/CMakeCache.txt", "build/CMakeCache.txt")
    print("configured with", *sys.argv[1:])
elif "--build" in sys.argv:
    print("building", *sys.argv[sys.argv.index("--target") + 1:], flush=True)
    hang("build")
    shutil.copy(os.environ["PP_TEST_RUNTIME"], "build/lib/libpp-runtime-cuda.a")
    for name in ("pp-gpu-kernels", "pp-gpu-kernel-tests"):
        shutil.copy(f"{folder}/tools/{name}", f"build/bin/{name}")
else:
    print("a cmake that stands in")
"""
KERNELS = """
print("# a GPU that is not there\\nkernel,type,dims,us,TFLOP/s,GB/s,best,plain", flush=True)
for t in (1, 2, 3):
    print(f"linear,bf16,{t} 4 4,1.00,2.0,3,1.000", flush=True)
    sys.stdin.readline()
hang("kernels")
print("# attention: 0 ops by cuDNN", flush=True)
"""
TESTS = """
print("3 tests with", *sys.argv[1:], "PP_CUDNN", os.environ.get("PP_CUDNN"), "shard",
      os.environ.get("GTEST_SHARD_INDEX"))
"""
CHECKER = """
print("checked with", *sys.argv[1:5], flush=True)
os.execvp(sys.argv[5], sys.argv[5:])
"""
COUNTER = """
print("    gpu__time_duration.sum us 1.0 of", *sys.argv[sys.argv.index("-k") + 1:])
"""


def write_tools():
    os.makedirs(tools, exist_ok=True)
    for name, text in (("cmake", CMAKE), ("pp-gpu-kernels", KERNELS), ("pp-gpu-kernel-tests", TESTS),
                       ("compute-sanitizer", CHECKER), ("ncu", COUNTER),
                       ("nvidia-smi", 'print("a GPU that is not there")\n')):
        path = os.path.join(tools, name)
        with open(path, "w") as file:
            file.write(f"#!{sys.executable}\nimport os, shutil, sys, time\nfolder, build = {folder!r}, {build!r}\n"
                       + HANG + text)
        os.chmod(path, 0o755)


def start(name, *options, hangs=""):
    results = os.path.join(folder, name)
    shutil.rmtree(results, ignore_errors=True)
    return results, subprocess.Popen(
        [os.path.join(packed, "bench", "gpu", "run.sh"), *options, results], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=harness.ENVIRONMENT | dict(PATH=f"{tools}:{os.environ['PATH']}", PP_REHEARSAL_HANGS=hangs))


def read(results, part):
    try:
        with open(os.path.join(results, part)) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def summary(results):
    return dict(line.split(": ", 1) for line in read(results, "summary").splitlines())


def is_gone():
    """What hung has ended with the script."""
    with open(os.path.join(folder, "process")) as file:
        process = int(file.read())
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{process}/stat") as file:
        return file.read().split()[2] == "Z"


def flat(parts):
    return [name for part in parts for name in (part if isinstance(part, list) else [part])]


def in_order(told):
    """Whether parts ended in their order, those that run side by side in any."""
    names = list(told)
    for part in PARTS:
        its = flat([part])
        if sorted(names[:len(its)]) != sorted(its):
            return False
        names = names[len(its):]
    return not names


def check_all():
    """Every part is done, and says what it should."""
    results, run = start("all", "--minutes", "25")
    said, _ = run.communicate()
    told = summary(results)
    bad = [f"{part}: {told.get(part)}: {read(results, part)[-600:]}" for part in flat(PARTS)
           if not told.get(part, "").startswith("done in ")]
    tally.check(run.returncode == 0 and in_order(told) and not bad, f"all parts in their order {bad}")
    gradients = "".join(read(results, f"gradients{more}") for more in ("", "-rest", "-more"))
    missing = [want for want in (
        r"ok   bf16 1f1b: gradients \S+ losses \S+ \(attention: 0 ops by cuDNN, [1-9]\d* by own kernels, "
        r"0 deltas left to it; epilogues: [1-9]\d* products with, 0 without",
        r"ok   bf16 tawpipe --no-graph: ", r"ok   bf16-gpt2 1f1b: .*epilogues: [1-9]\d* products with, 0 without",
        r"ok   bf16-gpt2 1f1b without epilogues: .*epilogues: 0 products with, [1-9]\d* without",
        r"ok   f32-gated single against the CPU: ", r"ok   f32-gated zb_v --no-graph: ",  # formulas
        r"\d+ passed, 0 failed") if not re.search(want, gradients)]
    tally.check(not missing, f"gradients, and the engines of each program {missing}")
    rows = re.findall(r"^\| linear \| bf16 \| [123] 4 4 \| 1.00 \|", read(results, "kernels"), re.M)
    tally.check(len(rows) == 3 and "attention: 0 ops" in read(results, "kernels"), "three rows of kernels")
    tally.check(re.search(r"^\| 16 \| pp single \| [\d.]+ \| .* attention: 0 ops by cuDNN, [1-9]\d* by own",
                          read(results, "steps"), re.M), f"a row of steps {read(results, 'steps')}")
    # Each kind of op of the program has a prediction: whole kernels where calls of many tensors stand for one for each.
    by_op = re.search(r"^step\.16\.single, by op:\n\n\| op .*\n.*\n((?:\| [a-z_]+ \S+ .*\n){12})\| all \d+ kinds",
                      read(results, "steps"), re.M)
    tally.check(by_op and all(re.search(r"% \| [\d.]+ \| [\d.]+ \|$", row) for row in by_op[1].splitlines()),
                f"a step by its ops, measured and predicted {read(results, 'steps')[-800:]}")
    tally.check(all(f"PP_CUDNN off shard {shard}" in read(results, name) for shard, name in enumerate(SHARDS)) and
                "KernelsTiles" in read(results, "kernel-tests-cudnn"), "kernels are tested without and with cuDNN")
    tally.check(all(f"checked with --tool {name} --error-exitcode 1" in read(results, name) and
                    "3 tests with" in read(results, name) for name in ("memcheck", "racecheck")),
                "the toolkit's checkers run over tests")
    tally.check(re.search(r"== adamw\n +gpu__time_duration.sum us 1.0 of regex:adamKernel", read(results, "counters")),
                f"counters of kernels {read(results, 'counters')}")
    tally.check("ok   bf16 1f1b over MPI: " in read(results, "processes"), "a process for each rank")
    tally.check("-DCMAKE_CUDA_ARCHITECTURES=90" in read(results, "configure") and "ok   bf16 1f1b: " in said
                and "| linear | bf16 | 3 4 4 |" in said, "rows go to the terminal, too")
    return {part: int(its[1]) for part, text in told.items() if (its := re.match(r"done in (\d+) s", text))}


def check_time(seconds):
    """The limit ends a part that hangs: its rows stay, and no part begins behind it."""
    before = seconds["versions"] + seconds["configure"]
    for hangs, options, limit in (("build", (), 10 + 5 * before),
                                  ("kernels", ("--only", "kernels"), 15 + 5 * seconds["kernels"])):
        began = time.monotonic()
        results, run = start(f"time-{hangs}", "--minutes", f"{limit / 60:.3f}", *options, hangs=hangs)
        run.communicate()
        took, told = time.monotonic() - began, summary(results)
        kept = {"build": "building pp-runtime-cuda pp-gpu-kernels pp-gpu-kernel-tests\n",
                "kernels": "| linear | bf16 | 3 4 4 |"}[hangs]
        tally.check(run.returncode == 1 and told[hangs].startswith("stopped after ") and is_gone(),
                    f"{hangs}: the limit of {limit} s stops it: {told}")
        tally.check(kept in read(results, hangs), f"{hangs}: its rows stay: {read(results, hangs)!r}")
        tally.check(limit - 2 <= took <= limit + 60, f"{hangs}: the limit of {limit} s, ended after {took:.1f} s")
        after = [] if options else flat(PARTS[PARTS.index(hangs) + 1:])
        bad = [part for part in after if not told.get(part, "").startswith("not run, no time is left of ")]
        tally.check(not bad and (list(told) == [hangs] if options else in_order(told)),
                    f"{hangs}: no part behind it {bad}")


def check_built():
    """What was built before is taken, and nothing is built."""
    built = os.path.join(packed, "built")
    os.makedirs(os.path.join(built, "lib"))
    with open(os.path.join(built, "lib", "built-before"), "w"):
        pass
    results, run = start("built", "--only", "build")
    run.communicate()
    shutil.rmtree(built)
    tally.check(run.returncode == 0 and summary(results)["build"].startswith("done in ") and "building"
                not in read(results, "build") and os.path.exists(os.path.join(packed, "build", "lib", "built-before")),
                f"what was built before is taken: {summary(results)}")


def check_signals():
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        results, run = start(number.name, "--minutes", "25", "--only", "kernels", hangs="kernels")
        while "3 4 4" not in read(results, "kernels") and run.poll() is None:
            time.sleep(0.2)
        run.send_signal(number)
        run.communicate()
        told = summary(results)
        tally.check(run.returncode == code and told["kernels"].startswith(f"stopped by {number.name} after ")
                    and is_gone(), f"{number.name}: {run.returncode} {told}")
        tally.check(len(re.findall(r"^\| linear ", read(results, "kernels"), re.M)) == 3, f"{number.name}: rows stay")


def check_libraries():
    """pip's files are named where the toolkit has none; what the toolkit has is taken from there."""
    toolkit, packages = os.path.join(folder, "toolkit"), os.path.join(folder, "nvidia")
    for root in (toolkit, packages):
        shutil.rmtree(root, ignore_errors=True)
    for path in ("cu13/lib/libcublasLt.so.13", "cu13/include/cublasLt.h", "cudnn/lib/libcudnn.so.9",
                 "cudnn/include/cudnn.h"):
        os.makedirs(os.path.dirname(os.path.join(packages, path)), exist_ok=True)
        open(os.path.join(packages, path), "w").close()
    script = os.path.join(harness.ROOT, "bench", "gpu", "libraries.py")
    os.makedirs(os.path.join(toolkit, "lib64"))

    def said():
        return subprocess.run([sys.executable, script, toolkit, packages], capture_output=True, text=True,
                              check=True).stdout.splitlines()
    wanted = [f"CUDA_cublasLt_LIBRARY={packages}/cu13/lib/libcublasLt.so.13", f"headers={packages}/cu13/include",
              f"libraries={packages}/cu13/lib"]
    tally.check(set(wanted) <= set(said()), f"pip's cuBLASLt alone serves {said()}")
    open(os.path.join(toolkit, "lib64", "libcublasLt.so"), "w").close()
    tally.check(not set(wanted) & set(said()), f"the toolkit's goes before pip's {said()}")


def main():
    os.makedirs(folder, exist_ok=True)
    write_tools()
    check_libraries()
    harness.call([os.path.join(harness.ROOT, "bench", "gpu", "pack.sh"), build, packed, "rehearsal"])
    seconds = check_all()
    if in_order(seconds):
        check_time(seconds)
        check_signals()
        check_built()
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
