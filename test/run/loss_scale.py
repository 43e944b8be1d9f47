#!/usr/bin/env python3
"""Judges `precision f16`: all ranks skip steps that overflow, the loss scale follows, resuming keeps it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: loss_scale.py PP_COMPILE FOLDER
# What the scale must do is written down here again (PyTorch's GradScaler: halved by a step that overflows, doubled by a
# run of good ones) and compared with the log; that all ranks did it shows in the weights that all of them hand in.
import array, math, os, sys
import harness

SIZES = dict(model="llama", layers=4, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=256, sequence=24, microbatch=2,
             microbatches=4, precision="f16", lr=6e-3)
HUGE, WINDOW = 2.0**40, 4


class Judge:
    def __init__(self, compiler, folder):
        self.compiler, self.folder = compiler, folder
        self.text, self.tally = harness.write_text(folder), harness.Tally()

    def path(self, name):
        return os.path.join(self.folder, name)

    def compile(self, name, **values):
        return harness.compile_train(self.compiler, self.path(name), SIZES | values)

    def run(self, program, ranks, transport, name, *options):
        log = self.path(name + ".jsonl")
        if "--resume" not in options and os.path.exists(log):
            os.remove(log)
        harness.call([*harness.launch(program, ranks, transport), "--sends=rendezvous", "--data", self.text, "--log",
                      log, "--save", self.path(name + ".saved"), *options])
        return harness.read_log(log)

    def bytes(self, name, file):
        with open(os.path.join(self.path(name + ".saved"), file), "rb") as content:
            return content.read()

    def overflow(self, schedule, ranks, transport, reference):
        """From a scale that no gradient survives down to one that fits, and up again after every WINDOW good steps."""
        program = self.compile("huge_" + schedule, schedule=schedule, ranks=ranks,
                               **{"optimizer.loss_scale": int(HUGE), "optimizer.scale_window": WINDOW})
        log = self.run(program, ranks, transport, "whole_" + schedule, "--steps", "60")
        scale, good = HUGE, 0
        for line in log:
            if line["loss_scale"] != scale or (line["grad_norm"] is None) != line["skipped"]:
                break
            good = 0 if line["skipped"] else good + 1
            scale *= 0.5 if line["skipped"] else 2 if good == WINDOW else 1
            good %= WINDOW
        else:
            line = None
        skipped = next(i for i, line_ in enumerate(log) if not line_["skipped"])
        again = sum(line_["skipped"] for line_ in log[skipped:])
        what = f"{schedule} on {ranks} over {transport}"
        self.tally.check(line is None and 8 < skipped < 40 and again > 0,
                         f"{what}: {skipped} steps skipped at first, {again} later, the scale as it should be"
                         + (f", but not at {line}" if line else ""))
        self.tally.check(log[-1]["loss"] < log[0]["loss"] - 1,
                         f"{what}: loss {log[0]['loss']:.3f} -> {log[-1]['loss']:.3f}")
        decisions = [(each["loss_scale"], each["skipped"]) for each in log[:skipped + 1]]
        self.tally.check(decisions == (reference or decisions), f"{what}: as many as on one rank")
        # Skipped steps leave weights, masters and moments of all ranks as they were at the start.
        self.run(program, ranks, transport, "some_" + schedule, "--steps", str(skipped))
        self.run(program, ranks, transport, "none_" + schedule, "--steps", "1")
        for file in ("model.safetensors", "optimizer.safetensors"):
            saved = [harness.read_safetensors(os.path.join(self.path(run + schedule + ".saved"), file))
                     for run in ("some_", "none_", "whole_")]
            tensors = [{name: values for name, (_, values) in its.items()} for its in saved]
            self.tally.check(tensors[0] == tensors[1] != tensors[2],
                             f"{what}: {file} untouched by {skipped} skipped steps")
        for stop in (skipped - 2, skipped + 6):
            half = self.run(program, ranks, transport, "half_" + schedule, "--steps", "60", "--stop-at", str(stop))
            rest = self.run(program, ranks, transport, "half_" + schedule, "--resume",
                            self.path("half_" + schedule + ".saved"))[len(half):]
            same = all(a[key] == b[key] for a, b in zip(log[stop:], rest)
                       for key in ("step", "loss", "grad_norm", "loss_scale", "skipped"))
            files = [self.bytes("half_" + schedule, file) == self.bytes("whole_" + schedule, file)
                     for file in ("model.safetensors", "optimizer.safetensors", "state.json")]
            self.tally.check(same and len(rest) == 60 - stop and all(files),
                             f"{what}: resumed after step {stop}, the same to the bit")
        return decisions

    def constant(self):
        program = self.compile("constant", schedule="gpipe", ranks=2,
                               **{"optimizer.loss_scale": 1024, "optimizer.scale_window": 0})
        log = self.run(program, 2, "threads", "constant", "--steps", "6")
        self.tally.check(all(line["loss_scale"] == 1024 and not line["skipped"] for line in log),
                         "a constant scale stays")

    def trains(self):
        """The last ten losses of 120 steps, as f32 has them: rounding is noise of 2^-11, and must not add up."""
        ends, logs = {}, {}
        for precision in ("f32", "f16", "bf16"):
            program = self.compile("trains_" + precision, schedule="1f1b", ranks=4, hidden=64, ffn=176, sequence=64,
                                   precision=precision, lr=6e-3)
            logs[precision] = self.run(program, 4, "threads", "trains_" + precision, "--steps", "120")
            ends[precision] = sum(line["loss"] for line in logs[precision][-10:]) / 10
        self.tally.check(ends["f32"] < 3 and abs(ends["f16"] - ends["f32"]) < 0.03,
                         "mean of the last losses: " + ", ".join(f"{name} {loss:.4f}" for name, loss in ends.items()))
        self.tally.check(not any(line["skipped"] for line in logs["f16"]),
                         "no step is skipped at the scale that is the default")

    def hopeless(self):
        """Embeddings of 0 and a last gain of 60000: the loss is that of even guesses, its gradient beyond f16 at any
        scale."""
        program = self.compile("hopeless", schedule="1f1b", ranks=4, **{"optimizer.loss_scale": 2})
        self.run(program, 4, "threads", "seed", "--steps", "1", "--lr", "0")
        tensors = {name: (shape, array.array("d", values))
                   for name, (shape, values) in harness.read_safetensors(os.path.join(self.path("seed.saved"),
                                                                                      "model.safetensors")).items()}
        for name, factor, shift in (("model.embed_tokens.weight", 0, 0), ("model.norm.weight", 0, 6e4),
                                    ("lm_head.weight", 1e3, 0)):
            tensors[name] = (tensors[name][0], array.array("d", (factor * value + shift for value in tensors[name][1])))
        harness.write_safetensors(self.path("odd.safetensors"), tensors)
        done = harness.call([*harness.launch(program, 4, "mpi"), "--data", self.text, "--steps", "9", "--load",
                             self.path("odd.safetensors")],
                            expect=None, timeout=60)
        said = [line for line in done.stderr.splitlines() if "error:" in line]
        self.tally.check(done.returncode != 0 and len(said) == 1
                         and "gradients of step 2 are not finite, even with the loss scaled by 1;" in said[0],
                         f"gradients beyond every scale: {said}")
        self.tally.check(done.stdout.count(", skipped") == 1 and f"loss {math.log(256):.5f}" in done.stdout,
                         "which the step before says")


def main():
    judge = Judge(*sys.argv[1:3])
    reference = judge.overflow("single", 1, "threads", None)
    judge.overflow("1f1b", 4, "mpi", reference)
    judge.overflow("tawpipe", 4, "threads", reference)
    judge.constant()
    judge.trains()
    judge.hopeless()
    return judge.tally.close()


if __name__ == "__main__":
    sys.exit(main())
