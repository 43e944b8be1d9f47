#!/usr/bin/env python3
"""Profiles a run, simulates with what it measured, and compares the simulated step, tasks and bytes with the run."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: profiles.py PP_COMPILE FOLDER
import collections, json, os, re, sys
import harness

SIZES = dict(ranks=2, microbatches=4, layers=4, hidden=64, heads=2, kv_heads=2, ffn=176, vocab=512, sequence=64,
             microbatch=2)
STEPS, WARM_UP = 8, 2


def launches(compiler, defines):
    """How often each rank launches each task, as its program says."""
    counts, rank = collections.Counter(), -1
    for line in harness.call([compiler, harness.TRAIN, *defines, "--emit=ranks"]).stdout.splitlines():
        rank += "pipeline.rank " in line
        if found := re.search(r"pipeline\.launch @(\S+) <", line):
            counts[rank, found[1]] += 1
    return counts


def check(tally, compiler, folder, text, schedule, transport):
    values, path = SIZES | dict(schedule=schedule), os.path.join(folder, f"{schedule}-{transport}")
    defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
    program = harness.compile_train(compiler, path, values)
    run = [*harness.launch(program, 2, transport), "--data", text]
    said = harness.call([*run, "--steps", str(STEPS), "--profile", path + ".json", "--trace", path + ".trace"]).stdout
    with open(path + ".json") as file:
        profile = json.load(file)
    counted = {(task["rank"], task["task"]): task["count"] for task in profile["tasks"]}
    usual = STEPS - WARM_UP - 2 * ((STEPS - WARM_UP) // 4)
    expected = {key: count * usual for key, count in launches(compiler, defines).items()}
    tally.check(counted == expected and profile["steps"] == usual and profile["of_steps"] == STEPS - WARM_UP and
                profile["transport"] == transport, f"{path}: every launch of the middle {usual} steps is counted")
    tally.check(not os.path.exists(path + ".json.new"), f"{path}: the file is written under another name first")
    stats = json.loads(harness.call([compiler, harness.TRAIN, *defines, "--emit=stats", "--costs",
                                     path + ".json"]).stdout)
    # The step takes at least what its busiest rank works, and at most all work and messages one after the other. (How
    # near it comes to the run is measured by bench/predict.py: a test must not depend on who else uses the machine.)
    work = collections.Counter()
    for task in profile["tasks"]:
        work[task["rank"]] += task["count"] * task["mean"] / usual
    carried = sum(message["count"] * (message["post"] + message["last_post"] + message["arrival"])
                  for message in profile["messages"]) / usual
    tally.check(0.5 * max(work.values()) < stats["step"] < 2 * (sum(work.values()) + carried),
                f"{path}: predicted {stats['step']} s from tasks of {dict(work)} and messages of {carried} s")
    used = [int(row) for row in re.findall(r"^ +[0-9]+ +[0-9]+ +([0-9]+) +[0-9]+ ", said, re.M)]
    peaks = [rank["peak_at"]["total"] for rank in stats["per_rank"]]
    tally.check(len(used) == 2 and all(abs(a - b) <= 0.02 * a for a, b in zip(peaks, used)),
                f"{path}: peak bytes simulated {peaks}, pages touched {used}")
    table = harness.call([compiler, harness.TRAIN, *defines, "--costs", path + ".json", "--compare",
                          path + ".trace"]).stdout
    tally.check(len(re.findall(r"^r[01] (?:plan|run)", table, re.M)) == 4 and "which works longest" in table,
                f"{path}: a table of plan and run")
    return run, path


def check_others(tally, compiler, path):
    """A profile and a trace of another program are refused, with what differs; the program itself is accepted above. A
    profile may be of another schedule of the same stages."""
    for changed, said, profile in ((dict(schedule="gpipe"), 'its `schedule` is "one_f_one_b", expected "gpipe"', ""),
                                   (dict(ranks=1), "its `ranks` is 2, expected 1",
                                    "its task `s0.B` works on tensors of other sizes"),
                                   (dict(microbatches=5), "its `microbatches` is 4, expected 5", ""),
                                   (dict(sequence=32), *["its `sequence` is 64, expected 32"] * 2),
                                   (dict(ffn=192), "its tasks work on tensors of other sizes, or are others",
                                    "works on tensors of other sizes"),
                                   (dict(precision="bf16"), *['its `precision` is "f32", expected "bf16"'] * 2)):
        values = SIZES | dict(schedule="1f1b") | changed
        defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
        for options, said in ((["--emit=stats", "--costs", path + ".json"], profile),
                              (["--compare", path + ".trace"], said)):
            if not said:
                harness.call([compiler, harness.TRAIN, *defines, *options])
                continue
            done = harness.call([compiler, harness.TRAIN, *defines, *options], expect=1)
            tally.check(said in done.stderr and not done.stdout,
                        f"{options[-2]} of another program, {changed}: {done.stderr.splitlines()[0]}")


def check_ops(tally, compiler, folder, text):
    """Every call of a kernel is counted under its kernel: so often as its task runs, and the task's code calls it. The
    times of ops add up to at most those of tasks. A trace and a run without --profile-ops have none."""
    values = SIZES | dict(schedule="zb_v")
    path = os.path.join(folder, "ops")
    defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
    run = [*harness.launch(harness.compile_train(compiler, path, values), 2, "threads"), "--data", text]
    said = harness.call([*run, "--steps", str(STEPS), "--profile", path + ".json", "--profile-ops", "--trace",
                         path + ".trace"]).stdout
    with open(path + ".json") as file:
        profile = json.load(file)
    calls, expected = collections.defaultdict(collections.Counter), collections.Counter()
    for rank in range(2):
        code = harness.call([compiler, harness.TRAIN, *defines, "--emit=llvm", f"--rank={rank}", "-o", "-"]).stdout
        for body in re.split(r"^define ", code, flags=re.M)[1:]:
            task = re.search(r'@"?([^"( ]+)"?\(', body)[1]
            calls[rank, task] = collections.Counter(re.findall(r"call i32 @pp_(\w+)\(", body))
    for task in profile["tasks"]:
        for kernel, count in calls[task["rank"], task["task"]].items():
            expected[kernel] += count * task["count"]
    counted, spent = collections.Counter(), 0
    for op in profile["ops"]:
        counted[op["kernel"]] += op["count"]
        spent += op["count"] * op["mean"]
    work = sum(task["count"] * task["mean"] for task in profile["tasks"])
    tally.check(counted == expected and {"attention_bwd", "adamw_all"} <= set(counted),
                f"{path}: {sum(counted.values())} calls of {len(counted)} kernels, {counted - expected} too many, "
                f"{expected - counted} too few")
    tally.check(0.5 * work < spent <= work and abs(sum(op["share"] for op in profile["ops"]) - spent / work) < 1e-9,
                f"{path}: ops take {spent:.3g} of the tasks' {work:.3g} s")
    first = profile["ops"][0]
    row = " ".join(map(str, [first["kernel"], first["type"], *first["dims"], *first["flags"]]))
    tally.check(re.search(rf"share  calls/step   us/call  op\n +[\d.]+% +[\d.]+ +[\d.]+  {re.escape(row)}\n", said),
                f"{path}: the longest op is printed first, {row}")
    stats = json.loads(harness.call([compiler, harness.TRAIN, *defines, "--cluster=cpu", "--emit=stats"]).stdout)
    named = lambda op: (op["kernel"], op["type"], *op["dims"], *op["flags"])
    others = ("adamw", "sum_squares", "attention_delta")  # that the lowering puts together, or marks
    planned, ran = ({named(op): op["count"] / steps for op in told if not op["kernel"].startswith(others)}
                    for told, steps in ((stats["ops"], 1), (profile["ops"], profile["steps"])))
    tally.check(planned == ran and len(ran) > 20, f"{path}: {len(ran)} kinds of op are as --emit=stats counts them, "
                f"apart: {set(planned.items()) ^ set(ran.items())}")
    with open(path + ".trace") as file:
        kinds = {event.get("cat") for event in json.load(file)["traceEvents"]}
    tally.check("F" in kinds and not kinds & set(counted), f"{path}: a trace has no ops, but {kinds}")
    alone = harness.call([*run, "--steps", str(STEPS), "--profile-ops"], expect=1).stderr
    tally.check("`--profile-ops` needs `--profile FILE`" in alone, f"{path}: {alone}")


def set_times(path, time_of, last_posts={}):
    """Times in the place of the measured ones, of tasks and of last posts by kind of message; all else takes none."""
    with open(path + ".json") as file:
        profile = json.load(file)
    for task in profile["tasks"]:
        task["mean"] = time_of(task)
    for message in profile["messages"]:
        message |= dict(post=0, arrival=0, last_post=last_posts.get(message["kind"], 0))
    with open(path + ".json", "w") as file:
        json.dump(profile | dict(dispatch=0), file)
    return profile


def check_plan(tally, compiler, folder, text):
    """The planner puts the units of a profiled program in another order, by its times; not those of another program.

    The times are put in the place of the measured ones. Rank 0 takes three times as long as rank 1: as gpipe is written
    it runs its four forwards until 12, waits for rank 1 until 15, and ends at 15 + 4 x 6. It can also have the first
    gradient at 3 + 1 + 2 = 6, when it has run two forwards, and never wait: 4 x 9.
    """
    path = os.path.join(folder, "planned")
    values = SIZES | dict(schedule="gpipe")
    program = harness.compile_train(compiler, path, values)
    harness.call([*harness.launch(program, 2, "threads"), "--data", text, "--steps", str(STEPS), "--profile",
                  path + ".json"])
    times = {("F", 0): 3, ("B", 0): 6, ("F", 1): 1, ("B", 1): 2}
    set_times(path, lambda task: times.get((task["phase"], task["rank"]), 0))

    def planned(*options, expect=0, **changed):
        defines = [word for key, value in (values | changed).items() for word in ("-D", f"{key}={value}")]
        return harness.call([compiler, harness.TRAIN, *defines, *options], expect=expect)

    costs = ["--costs", path + ".json"]
    written, order = planned("--emit=tasks").stdout, planned("--emit=tasks", "--plan", *costs).stdout
    tally.check(sorted(re.findall(r"\w+", written)) == sorted(re.findall(r"\w+", order)) and written != order,
                f"{path}: the same units in another order")
    steps = [json.loads(planned("--emit=stats", *costs, *plan).stdout)["step"] for plan in ([], ["--plan"])]
    tally.check(steps == [39, 36], f"{path}: as written and planned {steps}, expected 39 and 36")
    said = planned("--emit=stats", "--plan", *costs, expect=1, ffn=192).stderr
    tally.check("works on tensors of other sizes" in said, f"{path} of another program: {said}")


def check_schedules(tally, compiler, folder, text):
    """Times of one schedule's tasks are those of another's. They are set to F, I and W 1, whole backwards 2, all else
    nothing: then 1F1B and gpipe take 3 (m + p - 1). The last rank of `zb_h1` runs halves, whose sum its B takes."""
    path = os.path.join(folder, "schedules")
    program = harness.compile_train(compiler, path, SIZES | dict(schedule="zb_h1"))
    harness.call([*harness.launch(program, 2, "threads"), "--data", text, "--steps", str(STEPS), "--profile",
                  path + ".json"])
    profile = set_times(path, lambda task: {"F": 1, "B": 2, "I": 1, "W": 1}.get(task["phase"], 0))
    found = {}
    for schedule, microbatches in (("1f1b", 4), ("1f1b", 9), ("gpipe", 4)):
        values = SIZES | dict(schedule=schedule, microbatches=microbatches)
        defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
        stats = harness.call([compiler, harness.TRAIN, *defines, "--emit=stats", "--costs", path + ".json"]).stdout
        found[schedule, microbatches] = json.loads(stats)["makespan"]
    tally.check("I" in {task["phase"] for task in profile["tasks"]} and
                all(abs(time - 3 * (m + 1)) < 1e-9 for (_, m), time in found.items()),
                f"{path}: other schedules by the times of zb_h1: {found}")


def check_mesh(tally, compiler, folder, text, transport):
    """On a mesh times are by rank; what devices exchange inside tasks is part of these. Times are then set by hand."""
    path, mesh = os.path.join(folder, f"mesh-{transport}"), {"mesh.tensor": 2, "mesh.data": 2, "mesh.zero": 1}
    values = SIZES | dict(schedule="1f1b") | mesh
    program = harness.compile_train(compiler, path, values)
    run = [*harness.launch(program, 8, transport), "--data", text, "--steps", "6", "--profile", path + ".json"]
    harness.call(run)

    def stats(expect=0, **changed):
        defines = [word for key, value in (values | changed).items() for word in ("-D", f"{key}={value}")]
        return harness.call([compiler, harness.TRAIN, *defines, "--emit=stats", "--costs", path + ".json"],
                            expect=expect)

    with open(path + ".json") as file:
        profile = json.load(file)
    counted = {(task["rank"], task["task"]): task["count"] for task in profile["tasks"]}
    defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
    expected = {key: 4 * count * profile["steps"] for key, count in launches(compiler, defines).items()}
    tally.check(counted == expected, f"{path}: every launch of the {profile['steps']} steps on all devices of a rank")
    kinds = collections.Counter()
    for message in profile["messages"]:
        kinds[message["kind"], message.get("mesh", False)] += message["count"]
    # In a step and for each coordinate: act and dact of 4 microbatches, the norm; each rank's gradient and weights over
    # two replicas, once for each device of tensor. The sums over tensor inside F and B are not among them.
    steps = profile["steps"]
    tally.check(kinds == {("p2p", False): 4 * 8 * steps, ("all_reduce", False): 4 * steps,
                          ("reduce_scatter", True): 4 * steps, ("all_gather", True): 4 * steps},
                f"{path}: messages by kind: {dict(kinds)} of {steps} steps")

    # F 1, B 2, U 1/8; a scatter of gradients takes 1/2 of a rank's time, a gather of weights 1/4, all else nothing. Two
    # ranks and four microbatches: (4 + 1) x 3, and 1/2 more because rank 1 posts its scatter behind its last B, before
    # it sends the last dact. Then rank 0 scatters, updates and gathers.
    set_times(path, lambda task: {"F": 1, "B": 2, "U": 0 if "norm" in task["task"] else 0.125}[task["phase"]],
              {"reduce_scatter": 0.5, "all_gather": 0.25})
    done = json.loads(stats().stdout)
    tally.check(done["makespan"] == 15.5 and done["step"] == 15.5 + 0.5 + 0.125 + 0.25,
                f"{path}: with times set by hand {done['makespan']}, the step {done['step']}")
    for changed, said in (({"mesh.tensor": 1}, "its `tensor` is 2, expected 1"),
                          ({"mesh.data": 4}, "its `replicas` is 2, expected 4"),
                          ({"mesh.context": 2}, "its `context` is 1, expected 2")):
        text = stats(expect=1, **changed).stderr
        tally.check(said in text, f"{path} with {changed}: {text.splitlines()[0]}")
    # The profile has no times for other kinds of messages: with `zero = 0` gradients are summed, and weights are not
    # gathered.
    text = stats(expect=1, **{"mesh.zero": 0}).stderr
    tally.check("of another program" in text or "kind `all_reduce over the mesh`" in text,
                f"{path} without zero: {text.splitlines()[0]}")


def main():
    compiler, folder = sys.argv[1:3]
    text, tally = harness.write_text(folder), harness.Tally()
    run, path = check(tally, compiler, folder, text, "1f1b", "threads")
    check_others(tally, compiler, path)
    check(tally, compiler, folder, text, "zb_h1", "mpi")
    check_plan(tally, compiler, folder, text)
    check_schedules(tally, compiler, folder, text)
    check_ops(tally, compiler, folder, text)
    for transport in ("threads", "mpi"):
        check_mesh(tally, compiler, folder, text, transport)
    done = harness.call([*run, "--steps", "2", "--profile", path + ".few"], expect=1)
    tally.check("`--profile` leaves out the first 2 steps; this run has 2" in done.stderr,
                "two steps are too few for a profile")
    done = harness.call([*run, "--steps", "3", "--profile", os.path.join(folder, "none", "p.json")], expect=None)
    tally.check(done.returncode and "of --profile" in done.stderr and "step 1/" not in done.stdout,
                "a profile that cannot be written is refused before the first step")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
