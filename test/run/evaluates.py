#!/usr/bin/env python3
"""Judges --eval on every schedule of the library: the loss of the rows on one rank, and training to the same bits."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: evaluates.py PP_COMPILE FOLDER
import filecmp, math, os, sys
import data, documents, harness

SIZES = dict(model="llama", layers=8, hidden=16, heads=4, kv_heads=4, ffn=24, vocab=256, sequence=16, microbatch=2,
             microbatches=8, precision="f64")
SCHEDULES = ("gpipe", "1f1b", "gpipe_offload", "bpipe", "1f1b_recompute", "1f1b_vocabulary", "interleaved",
             "looped_bfs", "zb_h1", "zb_h2", "zb_v", "v_half", "dualpipe_v", "chimera", "hanayo",
             "weipipe_interleave", "weipipe_prefetch", "weipipe_naive", "wzb1", "wzb2", "tawpipe", "fsdp",
             "data_parallel", "zero1", "zero2", "replicated_1f1b", "replicated_zero2", "terapipe", "slimpipe",
             "slimpipe_interleaved", "ring_attention", "helixpipe")


def compiled(compiler, folder, name, options=(), **values):
    return harness.compile_train(compiler, os.path.join(folder, name), SIZES | values, options=options)


def run(program, path, *options, ranks=1, transport="threads"):
    log, saved = program + ".jsonl", program + ".saved"
    harness.call([*harness.launch(program, ranks, transport), "--data", path, "--log", log, "--save", saved, *options])
    return harness.read_log(log), saved


def same(one, other):
    return all(filecmp.cmp(os.path.join(one, name), os.path.join(other, name), shallow=False)
               for name in ("model.safetensors", "optimizer.safetensors"))


def row_losses(program, folder, path):
    """The loss of each of the first rows and how many targets it has: a step of one row that learns nothing."""
    return [(line["loss"], line["tokens"]) for line in run(program, path, "--lr", "0", "--epochs", "1")[0]]


def check_numbers(compiler, folder, path, held):
    """A step of one row after the other gives the same mean, with and without documents."""
    for kind, options, file in (("documents", ["-D", "data.documents=true"], held), ("text", [], path)):
        one = compiled(compiler, folder, kind + "_one", options, schedule="single", microbatches=1, microbatch=1,
                       layers=4)
        many = compiled(compiler, folder, kind + "_many", options, schedule="1f1b", ranks=4, layers=4)
        rows = row_losses(one, folder, file)
        expected = math.fsum(loss * count for loss, count in rows) / sum(count for _, count in rows)
        lines, _ = run(many, file, "--lr", "0", "--steps", "3", "--eval", file, "--eval-every", "2")
        assert [line["step"] for line in lines if "eval_loss" in line] == [2, 3], "every second step and the last one"
        for line in lines[1:]:
            assert abs(line["eval_loss"] - expected) < 1e-12 * expected, f"{kind}: {line['eval_loss']}, {expected}"
            assert line["eval_tokens"] == sum(count for _, count in rows), f"{kind}: {line['eval_tokens']} targets"
            assert abs(line["eval_ppl"] - math.exp(expected)) < 1e-9 * math.exp(expected)


def check_schedule(compiler, folder, path, held, schedule, reference):
    program = compiled(compiler, folder, schedule, ["-D", "data.documents=true"], schedule=schedule, ranks=4)
    plain, saved = run(program, path, "--steps", "3")
    os.rename(saved, saved + ".plain")
    lines, saved = run(program, path, "--steps", "3", "--eval", held, "--eval-every", "1")
    assert same(saved, saved + ".plain"), "weights and optimizer are the same bits with --eval"
    assert [line["loss"] for line in lines] == [line["loss"] for line in plain], "losses are the same bits with --eval"
    for line, expected in zip(lines, reference):
        assert abs(line["eval_loss"] - expected) < 1e-10 * expected, f"{line['eval_loss']}, on one rank {expected}"


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
        assert max(abs(a - b) for a, b in zip(losses, logprobs)) < 1e-5, "of each token as on one rank"
    return logprobs


def check_refused(compiler, folder, path):
    program = compiled(compiler, folder, "refused", schedule="pipedream_2bw", ranks=4, microbatches=16)
    single = compiled(compiler, folder, "plain", schedule="single")
    for chosen, options, expected in (
        (program, ["--logprobs", os.path.join(folder, "x")], "read older weights"),
        (single, ["--data", "random", "--logprobs", os.path.join(folder, "x")], "has no effect"),
        (program, ["--eval", path], "read older weights; it has no step that changes nothing"),
        (single, ["--eval", "random"], "random tokens have no end"), (single, ["--eval-every", "2"], "needs `--eval"),
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
    compiler, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith(".plain"):
            harness.call(["rm", "-r", os.path.join(folder, name)])
    with open(harness.write_text(folder), "rb") as file:
        text = data.write(folder, "short.txt", file.read()[9000:9500])
    path = documents.write_dataset(folder, "train.safetensors", *documents.random_documents(1, 60, 30))
    held = documents.write_dataset(folder, "held.safetensors", *documents.random_documents(2, 23, 30))
    tally = harness.Tally()
    tally.attempt("check_numbers", check_numbers, compiler, folder, text, held)
    single = compiled(compiler, folder, "single", ["-D", "data.documents=true"], schedule="single")
    lines, _ = run(single, path, "--steps", "3", "--eval", held, "--eval-every", "1")
    reference = [line["eval_loss"] for line in lines]
    for schedule in SCHEDULES:
        tally.attempt(schedule, check_schedule, compiler, folder, path, held, schedule, reference)
    losses = check_logprobs(compiler, folder, held, "single", None)
    for schedule in ("1f1b", "zb_v", "1f1b_vocabulary", "slimpipe", "data_parallel", "weipipe_interleave"):
        tally.attempt("logprobs " + schedule, check_logprobs, compiler, folder, held, schedule, losses)
    tally.attempt("check_half", check_half, compiler, folder, text)
    tally.attempt("check_refused", check_refused, compiler, folder, text)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
