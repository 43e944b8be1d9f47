#!/usr/bin/env python3
"""Judges --eval on every schedule: the loss of one rank and of training, units F alone, training to the same bits."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: evaluates.py PP_COMPILE FOLDER [--quick]     some of the schedules
import csv, filecmp, glob, math, os, sys
import data, documents, harness, logs

SIZES = dict(model="llama", layers=8, hidden=16, heads=4, kv_heads=4, ffn=24, vocab=256, sequence=16, microbatch=2,
             microbatches=8, precision="f64")
SCHEDULES = ("gpipe", "1f1b", "gpipe_offload", "bpipe", "1f1b_recompute", "1f1b_vocabulary", "interleaved",
             "looped_bfs", "zb_h1", "zb_h2", "zb_v", "v_half", "dualpipe_v", "dualpipe", "chimera", "hanayo",
             "weipipe_interleave", "weipipe_prefetch", "weipipe_naive", "wzb1", "wzb2", "tawpipe", "fsdp",
             "data_parallel", "zero1", "zero2", "replicated_1f1b", "replicated_zero2", "terapipe", "slimpipe",
             "slimpipe_interleaved", "ring_attention", "helixpipe")
QUICK = ("1f1b", "gpipe_offload", "1f1b_vocabulary", "zb_v", "v_half", "weipipe_interleave", "fsdp", "slimpipe",
         "helixpipe")


def compiled(compiler, folder, name, options=(), **values):
    return harness.compile_train(compiler, os.path.join(folder, name), SIZES | values, options=options)


def run(program, path, *options, ranks=1, transport="threads"):
    log, saved = program + ".jsonl", program + ".saved"
    harness.call([*harness.launch(program, ranks, transport), "--data", path, "--log", log, "--save", saved, *options])
    return harness.read_log(log), saved


def same(one, other):
    return all(filecmp.cmp(os.path.join(one, name), os.path.join(other, name), shallow=False)
               for name in ("model.safetensors", "optimizer.safetensors"))


def step_losses(lines):
    """Their mean over all targets, added as an evaluation adds them."""
    total = 0.0
    for line in lines:
        total += line["loss"] * line["tokens"]
    return total / sum(line["tokens"] for line in lines)


def row_losses(program, folder, path):
    """The loss of each of the first rows, how many targets it has and what they weigh: a step of one row that learns
    nothing."""
    return [(line["loss"], line["tokens"], line.get("weight", line["tokens"]))
            for line in run(program, path, "--lr", "0", "--epochs", "1")[0]]


def check_numbers(compiler, folder, path, held, weighted):
    """A step of one row after the other gives the same mean, with and without documents, and with weights."""
    packed = ["-D", "data.documents=true"]
    for kind, options, file in (("documents", packed, held), ("weights", packed, weighted), ("text", [], path)):
        one = compiled(compiler, folder, kind + "_one", options, schedule="single", microbatches=1, microbatch=1,
                       layers=4)
        many = compiled(compiler, folder, kind + "_many", options, schedule="1f1b", ranks=4, layers=4)
        rows = row_losses(one, folder, file)
        weight = sum(weight for _, _, weight in rows)
        expected = math.fsum(loss * weight for loss, _, weight in rows) / weight
        lines, _ = run(many, file, "--lr", "0", "--steps", "3", "--eval", file, "--eval-every", "2", "--eval-first")
        assert [line["step"] for line in lines if "eval_loss" in line] == [0, 2, 3], "first, every second, and last"
        for line in (lines[0], *lines[2:]):
            assert abs(line["eval_loss"] - expected) < 1e-12 * expected, f"{kind}: {line['eval_loss']}, {expected}"
            assert line["eval_tokens"] == sum(count for _, count, _ in rows), f"{kind}: {line['eval_tokens']} targets"
            assert line.get("eval_weight", line["eval_tokens"]) == weight, f"{kind}: {line}, expected {weight}"
            assert abs(line["eval_ppl"] - math.exp(expected)) < 1e-9 * math.exp(expected)


def check_schedule(compiler, folder, path, held, schedule, reference):
    program = compiled(compiler, folder, schedule, ["-D", "data.documents=true"], schedule=schedule, ranks=4)
    plain, saved = run(program, path, "--steps", "3")
    os.rename(saved, saved + ".plain")
    lines, saved = run(program, path, "--steps", "3", "--eval", held, "--eval-every", "1", "--eval-first")
    assert same(saved, saved + ".plain"), "weights and optimizer are the same bits with --eval"
    assert [line["loss"] for line in lines[1:]] == [line["loss"] for line in plain], "losses are the same bits, too"
    for line, expected in zip(lines, reference, strict=True):
        assert abs(line["eval_loss"] - expected) < 1e-10 * expected, f"{line['eval_loss']}, on one rank {expected}"


def check_files(compiler, folder, path, held):
    """Several files have the losses that they have alone, from before step 1 on; so has a run that resumes."""
    program = compiled(compiler, folder, "files", ["-D", "data.documents=true"], schedule="1f1b", ranks=4, layers=4)
    every = ("--steps", "4", "--eval-every", "2", "--eval-first")
    alone = [run(program, path, *every, "--eval", file)[0] for file in (held, path)]
    events = os.path.join(folder, "events")
    harness.call(["rm", "-rf", events])
    both = ("--eval", "held=" + held, "--eval", f"all.1={path}")
    lines, saved = run(program, path, *every, *both, "--tensorboard", events)
    keys = [f"eval_{name}_{key}" for name in ("held", "all.1") for key in ("loss", "ppl", "tokens")]
    assert list(lines[0]) == ["step", *keys] and [line["step"] for line in lines if keys[0] in line] == [0, 2, 4], lines
    for name, others in zip(("held", "all.1"), alone):
        for key in ("loss", "ppl", "tokens"):
            assert [line.get(f"eval_{name}_{key}") for line in lines] == [line.get("eval_" + key) for line in others]
    seen = logs.read_events(glob.glob(os.path.join(events, "*"))[0])
    for line in lines[::2]:
        for name in ("held", "all.1"):
            assert math.isclose(seen[line["step"]][f"eval/{name}/loss"], line[f"eval_{name}_loss"], rel_tol=1e-6)
    assert len(seen[0]) == 2, seen[0]
    half = saved + ".half"
    log = ("--log", program + ".resumed.jsonl")
    launched = [*harness.launch(program, 1, "threads"), "--data", path, *log, "--save", half, *both]
    harness.call([*launched, *every, "--stop-at", "2"])
    harness.call([*launched, *every[2:], "--resume", half])
    assert same(saved, half)
    assert [[line.get(key) for key in ("step", "loss", *keys)] for line in harness.read_log(log[1])] == [
        [line.get(key) for key in ("step", "loss", *keys)] for line in lines], "the log of a run that was not cut"


def check_forward(compiler, folder, held, schedule, ranks, microbatches):
    """With a learning rate of 0 the steps of an epoch have the loss of an evaluation of their rows, to a rounding."""
    program = compiled(compiler, folder, f"{schedule}_{ranks}", ["-D", "data.documents=true"], schedule=schedule,
                       ranks=ranks, microbatches=microbatches)
    lines, _ = run(program, held, "--lr", "0", "--epochs", "1", "--eval", held)
    got, expected = lines[-1]["eval_loss"], step_losses(lines)
    assert abs(got - expected) <= 4e-16 * expected, f"{got}, and the steps {expected}"


def units_of(compiler, options, **values):
    """By rank the units that it runs, in order."""
    defines = [word for key, value in (SIZES | values).items() for word in ("-D", f"{key}={value}")]
    rows = harness.call([compiler, harness.TRAIN, *defines, "--emit=tasks", *options]).stdout.splitlines()
    return [[cell for cell in row if cell] for row in csv.reader(rows)]


def check_units(compiler, schedule):
    """The forward step runs the units F of the step that trains, in their order, and nothing else; of a head that is
    cut by the vocabulary also what makes the loss, on one rank."""
    whole, forward = (units_of(compiler, more, schedule=schedule, ranks=4) for more in ([], ["--forward"]))
    wanted = [[cell for cell in row if "F" in cell] for row in whole]
    if schedule == "1f1b_vocabulary":
        losses = [cell for cell in forward[3] if cell.startswith("head.3I")]
        assert losses == [f"head.3I{i}" for i in range(SIZES["microbatches"])], losses
        forward[3] = [cell for cell in forward[3] if cell not in losses]
    assert sum(map(len, wanted)) > 0 and forward == wanted, f"{forward}, expected {wanted}"


def check_versions(compiler, folder, text):
    """Where units read older weights, an evaluation reads the newest: those that are saved."""
    program = compiled(compiler, folder, "versions", schedule="pipedream_2bw", ranks=4, microbatches=16)
    plain, saved = run(program, text, "--steps", "2")
    os.rename(saved, saved + ".plain")
    lines, saved = run(program, text, "--steps", "2", "--eval", text, "--eval-every", "1")
    assert same(saved, saved + ".plain") and [line["loss"] for line in lines] == [line["loss"] for line in plain]
    single = compiled(compiler, folder, "single_text", schedule="single")
    expected = run(single, text, "--load", saved, "--lr", "0", "--steps", "1", "--eval", text)[0][0]
    assert lines[-1]["eval_tokens"] == expected["eval_tokens"]
    assert abs(lines[-1]["eval_loss"] - expected["eval_loss"]) < 1e-12, (lines[-1], expected)


def check_streams(compiler, folder, path, held, weighted, schedule):
    """On a device with streams, where both steps are captured as graphs after their first time, which serve files with
    weights and without."""
    program = os.path.join(folder, schedule)
    options = ("--steps", "3", "--eval", "held=" + held, "--eval", "weighted=" + weighted, "--eval-every", "1",
               "--eval-first")
    alone, _ = run(program, path, "--steps", "1", "--eval", held, "--eval-first")
    expected, saved = run(program, path, *options)
    os.rename(saved, saved + ".threads.plain")
    lines, saved = run(program, path, *options, ranks=4, transport="streams/5")
    assert same(saved, saved + ".threads.plain"), "weights and optimizer are the same bits"
    for line, other in zip(lines, expected):
        for key in ("loss", "eval_held_loss", "eval_weighted_loss", "eval_weighted_weight"):
            assert line.get(key) == other.get(key), (key, line, other)
    assert lines[0]["eval_held_loss"] == alone[0]["eval_loss"] != lines[0]["eval_weighted_loss"], (lines[0], alone[0])


def check_logprobs(compiler, folder, held, schedule, losses):
    """Minus the mean over the targets is the loss of the rows; each token has the number that it has on one rank."""
    program = compiled(compiler, folder, schedule, ["-D", "data.documents=true"], schedule=schedule, ranks=4)
    out = program + ".logprobs"
    lines, _ = run(program, held, "--lr", "0", "--steps", "1", "--logprobs", out, "--eval", held)
    values = {name: its for name, (_, its) in harness.read_safetensors(out).items()}
    targets, logprobs = values["targets"], values["logprobs"]
    assert len(logprobs) == len(targets) == len(values["tokens"]) == len(values["starts"])
    assert all((target < 0) == (value == 0) for target, value in zip(targets, logprobs)), "a number for each target"
    count = sum(target >= 0 for target in targets)
    mean = -math.fsum(logprobs) / count
    assert lines[0]["eval_tokens"] == count and abs(mean - lines[0]["eval_loss"]) < 1e-6 * mean, (mean, lines[0])
    if losses:
        assert harness.apart(losses, logprobs) < 1e-5, "of each token as on one rank"
    return logprobs


def check_refused(compiler, folder, path):
    program = compiled(compiler, folder, "refused", ["--forward=false"], schedule="1f1b", ranks=4)
    single = compiled(compiler, folder, "plain", schedule="single")
    for chosen, options, expected in (
        (program, ["--logprobs", os.path.join(folder, "x")], "has no forward step"),
        (single, ["--data", "random", "--logprobs", os.path.join(folder, "x")], "has no effect"),
        (program, ["--eval", path], "compile it without --forward=false"),
        (single, ["--eval", "random"], "random tokens have no end"),
        (single, ["--eval-every", "2"], "`--eval-every` needs `--eval [NAME=]FILE`"),
        (single, ["--eval-first"], "`--eval-first` needs `--eval [NAME=]FILE`"), (single, ["--eval", "a="], "got `a=`"),
        (single, ["--eval", path, "--eval", "a=" + path], f"`--eval {path}`: of several files each needs a name"),
        (single, ["--eval", "a=" + path, "--eval", "a=./b=1"], f"`{path}` and `./b=1` have one name, `a`"),
        (single, ["--eval", "a=" + path, "--eval", "b=mix:" + path], "only `--data` reads a mixture"),
        (single, ["--eval", "a=" + path, "--log", path], "would be written over what `--data` names"),
        (single, ["--eval", path, "--trace", os.path.join(folder, "trace")], "give one"),
        (single, ["--eval", os.path.join(folder, "none")], "cannot read data")):
        trained = [] if "--data" in options else ["--data", path]
        done = harness.call([chosen, "--in-process", *trained, *options], expect=None)
        assert done.returncode in (1, 2) and expected in done.stderr, done.stderr


def check_half(compiler, folder, path):
    """In f16 the scale of the loss and what is skipped stay as they are, too."""
    program = compiled(compiler, folder, "half", schedule="1f1b", ranks=4, precision="f16")
    plain, saved = run(program, path, "--steps", "4")
    os.rename(saved, saved + ".plain")
    lines, saved = run(program, path, "--steps", "4", "--eval", path, "--eval-every", "1")
    assert same(saved, saved + ".plain") and [line["loss"] for line in lines] == [line["loss"] for line in plain]


def main():
    compiler, folder, *quick = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith(".plain"):
            harness.call(["rm", "-r", os.path.join(folder, name)])
    with open(harness.write_text(folder), "rb") as file:
        text = data.write(folder, "short.txt", file.read()[9000:9500])
    path = documents.write_dataset(folder, "train.safetensors", *documents.random_documents(1, 60, 30))
    held = documents.write_dataset(folder, "held.safetensors", *documents.random_documents(2, 23, 30))
    texts, masks = documents.random_documents(2, 23, 30)
    weighted = documents.write_dataset(folder, "weighted.safetensors", texts, documents.weighted(masks, 3))
    tally = harness.Tally()
    tally.attempt("check_numbers", check_numbers, compiler, folder, text, held, weighted)
    tally.attempt("check_files", check_files, compiler, folder, path, held)
    single = compiled(compiler, folder, "single", ["-D", "data.documents=true"], schedule="single")
    lines, _ = run(single, path, "--steps", "3", "--eval", held, "--eval-every", "1", "--eval-first")
    reference = [line["eval_loss"] for line in lines]
    for schedule in QUICK if quick else SCHEDULES:
        tally.attempt(schedule, check_schedule, compiler, folder, path, held, schedule, reference)
        for ranks, microbatches in ((4, 8), (2, 4)):
            tally.attempt(f"{schedule} forward, {ranks} ranks", check_forward, compiler, folder, held, schedule, ranks,
                          microbatches)
        tally.attempt(f"{schedule} units", check_units, compiler, schedule)
    losses = check_logprobs(compiler, folder, held, "single", None)
    for schedule in ("1f1b", "zb_v", "1f1b_vocabulary", "slimpipe", "data_parallel", "weipipe_interleave"):
        tally.attempt("logprobs " + schedule, check_logprobs, compiler, folder, held, schedule, losses)
    tally.attempt("check_versions", check_versions, compiler, folder, text)
    for schedule in ("1f1b", "zb_v", "fsdp", "1f1b_vocabulary", "weipipe_interleave") if harness.RUNTIME else ():
        tally.attempt("streams " + schedule, check_streams, compiler, folder, path, held, weighted,
                      schedule)
    tally.attempt("check_half", check_half, compiler, folder, text)
    tally.attempt("check_refused", check_refused, compiler, folder, text)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
