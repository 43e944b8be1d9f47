#!/usr/bin/env python3
"""Measures steps on meshes beside one device of one thread; what --compile takes; what hides exchanges: --overlap."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/meshes.py [-c PP_COMPILE] [--rounds 5] [--folder build/meshes] [--only WORD] [-D name=value]..
#        bench/meshes.py --compile | --overlap
# llama, hidden 512, 512 tokens a sequence, f32; 8 sequences a step in every row. A row is the least step of all rounds
# but the first of each run; its ratio is that to one device in the same round, the median over rounds. Two devices
# need two cores that do nothing else.
# --compile: 64 layers of llama as 1F1B of 512 microbatches on 64 ranks, the executable with the programs of all ranks,
# with meshes beside none. Processor seconds and peak bytes of pp-compile; a ratio is the median over rounds.
# --overlap: one rank of two devices (tensor 2), with `1f1b_overlap`, whose forwards and backwards run side by side, and
# with `1f1b`: exchanges hidden behind what does not need them, beside waited for (--interleave=false), and both as
# simulated. Every message is on its way for a fixed time (--delay of the program), which takes no core. One constant is
# calibrated: the speed of the cluster's device, by a step without delay. `link / compute`: all messages of a step one
# after the other, by the step without delay. Nothing hides those of the first forward, so a joint alone is measured,
# too: the difference of steps of 32 and of 16 microbatches.
import argparse, json, os, statistics, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "run"))
import harness

SIZES = dict(model="llama", layers=4, hidden=512, heads=8, ffn=1408, vocab=256, sequence=512, microbatch=1)
ROWS = (("one device", 8, {}, "threads"),
        ("tensor 2", 8, {"mesh.tensor": 2}, "threads"),
        ("tensor 2, over MPI", 8, {"mesh.tensor": 2}, "mpi"),
        ("tensor 2, sequence", 8, {"mesh.tensor": 2, "mesh.sequence": "true"}, "threads"),
        ("tensor 2, sequence, over MPI", 8, {"mesh.tensor": 2, "mesh.sequence": "true"}, "mpi"),
        ("context 2", 8, {"mesh.context": 2}, "threads"),
        ("context 2, over MPI", 8, {"mesh.context": 2}, "mpi"),
        ("data 2", 4, {"mesh.data": 2}, "threads"),
        ("data 2, over MPI", 4, {"mesh.data": 2}, "mpi"),
        ("data 2, zero 1", 4, {"mesh.data": 2, "mesh.zero": 1}, "threads"))

LARGE = dict(schedule="1f1b", ranks=64, microbatches=512, layers=64, hidden=512, heads=8, kv_heads=8, ffn=1024,
             vocab=1024, sequence=64, microbatch=1)
COMPILED = (("no mesh", {}), ("tensor 8, data 4", dict(tensor=8, data=4)),
            ("tensor 8, data 4, zero 1", dict(tensor=8, data=4, zero=1)),
            ("tensor 8, context 2, data 4, sequence", dict(tensor=8, context=2, data=4, sequence="true")))


def compiles(arguments):
    """What pp-compile takes for each mesh, beside the same program without one."""
    found = {name: [] for name, _ in COMPILED}
    for _ in range(arguments.rounds):
        for name, mesh in COMPILED:
            defines = LARGE | {f"mesh.{option}": value for option, value in mesh.items()}
            defines |= dict(given.split("=") for given in arguments.D)
            words = [word for pair in defines.items() for word in ("-D", "%s=%s" % pair)]
            process = subprocess.Popen([arguments.compiler, harness.TRAIN, *words, "-o",
                                        os.path.join(arguments.folder, "large")])
            _, status, usage = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(f"{name}: pp-compile failed")
            found[name].append((usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    print("| mesh | processor seconds | ratio | peak MB | ratio |\n|---|---:|---:|---:|---:|")
    for name, its in found.items():
        seconds, peaks = ([statistics.median(one[i] / other[i] for one, other in zip(its, found[COMPILED[0][0]])),
                           min(one[i] for one in its)] for i in (0, 1))
        print(f"| {name} | {seconds[1]:.1f} | {seconds[0]:.2f} | {peaks[1]:.0f} | {peaks[0]:.2f} |")


OVERLAP = """import "std/models/llama.pipe"
import "std/1f1b.pipe"
import "std/1f1b_overlap.pipe"
cluster here(speed = 1, latency = 0) {
  nodes      1
  ranks      2
  memory     8e9
  device     f32 = 228e9 * speed, bandwidth = 12e9 * speed, launch = 0
  efficiency gemm = 0.8, attention = 0.4, bandwidth = 0.8
  inside     bandwidth = 1e15, latency = latency
}
train overlap(microbatches = 16, speed = 1, latency = 0, schedule = "") {
  model     llama(layers = 4, hidden = 512, heads = 8, ffn = 1408, vocab = 256)
  schedule  choose schedule { "1f1b_overlap" one_f_one_b_overlap(1, microbatches) "1f1b" one_f_one_b(1, microbatches) }
  data      microbatch = 1, sequence = 256
  mesh      tensor = 2
  cluster   here(speed, latency)
  optimizer adamw(lr = 1e-3)
  precision f32
}
"""
KINDS = {"hidden": "true", "waited for": "false"}


def compile_overlap(arguments, kind, speed, latency, *options):
    return harness.call([arguments.compiler, arguments.source, f"--interleave={KINDS[kind]}", f"-Dspeed={speed}",
                         f"-Dlatency={latency}", f"-Dschedule={arguments.schedule}",
                         f"-Dmicrobatches={arguments.microbatches}", *options]).stdout


def predict(arguments, kind, speed, latency):
    return json.loads(compile_overlap(arguments, kind, speed, latency, "--emit=stats"))["step"]


def run_delayed(program, text, delay):
    log = program + ".jsonl"
    harness.call([program, "--in-process", "--data", text, "--steps", "5", f"--delay={delay:.9f}", "--log", log])
    return min(line["seconds"] for line in harness.read_log(log)[1:])


def overlaps(arguments):
    arguments.microbatches = 16
    for arguments.schedule in ("1f1b_overlap", "1f1b"):
        speed, delay = overlap(arguments)
        joint(arguments, speed, delay)


def overlap(arguments):
    """Steps and predictions for several times of messages."""
    text = harness.write_text(arguments.folder)
    arguments.source = os.path.join(arguments.folder, "overlap.pipe")
    with open(arguments.source, "w") as file:
        file.write(OVERLAP)
    os.environ["PP_THREADS"] = harness.ENVIRONMENT["PP_THREADS"] = "1"
    programs = {kind: os.path.join(arguments.folder, kind.replace(" ", "_")) for kind in KINDS}
    last = "waited for"
    compile_overlap(arguments, last, 1, 0, "-o", programs[last])
    plain = statistics.median(run_delayed(programs[last], text, 0) for _ in range(arguments.rounds))
    nothing = predict(arguments, last, 1, 0)
    speed = nothing / plain
    messages = round((predict(arguments, last, 1, 0.1) - nothing) / 0.2)  # a sum passes the link twice
    print(f"{arguments.schedule}: a step without delay {plain:.3f} s, {messages} messages; "
          f"calibrated speed {speed:.3f}\n")
    print("| link / compute | delay ms | hidden s | predicted | waited for s | predicted | hidden / larger |"
          "\n|---:|---:|---:|---:|---:|---:|---:|")
    for share in (0.25, 0.5, 0.75, 1, 1.5):
        delay = plain * share / messages
        seconds, predicted = {kind: [] for kind in KINDS}, {}
        for kind in KINDS:
            predicted[kind] = predict(arguments, kind, speed, delay / 2)
            compile_overlap(arguments, kind, speed, delay / 2, "-o", programs[kind])
        for _ in range(arguments.rounds):
            for kind, its in seconds.items():
                its.append(run_delayed(programs[kind], text, delay))
        cells = [cell for kind in KINDS for cell in
                 ("%.3f" % statistics.median(seconds[kind]), "%.3f" % predicted[kind])]
        larger = statistics.median(seconds["hidden"]) / (plain * max(1, share))
        print(f"| {share:.2f} | {delay * 1e3:.2f} | {' | '.join(cells)} | {larger:.2f} |", flush=True)
    return speed, plain / messages


def joint(arguments, speed, delay):
    """What 16 microbatches more take, where messages take as long as computation."""
    text = os.path.join(arguments.folder, "text.txt")
    programs, predicted = {}, {}
    for arguments.microbatches in (32, 16):
        programs[arguments.microbatches] = os.path.join(arguments.folder, f"joint{arguments.microbatches}")
        compile_overlap(arguments, "hidden", speed, delay / 2, "-o", programs[arguments.microbatches])
        predicted[arguments.microbatches] = [predict(arguments, "hidden", speed, each / 2) for each in (0, delay)]
    rounds = []
    for _ in range(arguments.rounds):
        longer, shorter = ([run_delayed(programs[each], text, taken) for taken in (0, delay)] for each in (32, 16))
        rounds.append([(a - b) / 16 for a, b in zip(longer, shorter)])
    plain, hidden = (statistics.median(each) for each in zip(*rounds))
    without, with_delay = ((a - b) / 16 for a, b in zip(predicted[32], predicted[16]))
    print(f"\none forward and backward more, at equal times: {hidden * 1e3:.1f} ms, without delay "
          f"{plain * 1e3:.1f} ms, ratio {statistics.median(b / a for a, b in rounds):.2f}, predicted "
          f"{with_delay / without:.2f}\n", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--compiler", default=os.path.join(harness.ROOT, "build", "bin", "pp-compile"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=os.path.join(harness.ROOT, "build", "meshes"))
    parser.add_argument("--only", default="", help="rows whose name has this word, beside one device")
    parser.add_argument("--compile", action="store_true", help="compile, and run nothing")
    parser.add_argument("--overlap", action="store_true", help="exchanges hidden, beside waited for")
    parser.add_argument("-D", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    if arguments.compile:
        return compiles(arguments)
    if arguments.overlap:
        return overlaps(arguments)
    text = harness.write_text(arguments.folder)
    rows = [row for row in ROWS if arguments.only in row[0] or not row[2]]
    made, steps = [], {name: [] for name, *_ in rows}
    for number, (name, microbatches, axes, transport) in enumerate(rows):
        values = SIZES | dict(schedule="single", microbatches=microbatches) | axes
        values |= dict(given.split("=") for given in arguments.D)
        made.append(harness.compile_train(arguments.compiler, os.path.join(arguments.folder, str(number)), values))
    os.environ["PP_THREADS"] = harness.ENVIRONMENT["PP_THREADS"] = "1"
    for _ in range(arguments.rounds):
        for program, (name, _, axes, transport) in zip(made, rows):
            devices = 2 if axes else 1
            log = program + ".jsonl"
            harness.call([*harness.launch(program, devices, transport), "--data", text, "--steps", "4", "--log", log])
            steps[name].append(min(line["seconds"] for line in harness.read_log(log)[1:]))
    print("| | step | of one device |\n|---|---:|---:|")
    for name, found in steps.items():
        ratio = statistics.median(ours / one for ours, one in zip(found, steps[ROWS[0][0]]))
        print(f"| {name} | {1e3 * min(found):.0f} ms | {ratio:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
