"""Tries what `pp_schedules.torch` does beside a step: notices, wide sums, scaled losses, compared copies, cut ends."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bridge_guards.py PP_COMPILE FOLDER [--only NAME,..]
# Ends with 77, which ctest calls skipped, where there is no torch.
import contextlib, copy, io, os, sys
from bridge_inside import MICROBATCHES, close, main, one_process, pipeline, refusal
from bridge_stages import llamas


def heard(run):
    """The lines on stderr of this rank while `run` runs."""
    words = io.StringIO()
    with contextlib.redirect_stderr(words):
        run()
    return [line for line in words.getvalue().splitlines() if "optimizer" not in line]


def expect(rank, lines, *wants):
    """Rank 0 says these lines, each once and in this order, and the others nothing."""
    wants = wants if rank == 0 else ()
    if len(lines) != len(wants) or any(word not in line for line, words in zip(lines, wants) for word in words):
        raise RuntimeError(f"rank {rank} says {lines}, expected {wants}")


def notices(rank, programs):
    """Backwards that stay whole, weights that seem to be one, and BatchNorm are each said once, by one rank."""
    import torch
    from bridge_models import WIDTH, Llama, batch
    data = batch(MICROBATCHES)

    def both(program, stages, made=None, **more):
        pipe, made = pipeline(programs[program], stages, made=made or llamas(stages), **more)
        lines = heard(lambda: [pipe.step(*data) for _ in range(2)])
        pipe.close()
        return lines
    expect(rank, both("zb_v", 4))
    expect(rank, both("zb_v", 4, split="whole"))   # no other split was asked for
    made = llamas(4)
    made[2].layer.up.weight.register_hook(lambda g: g)
    made[1].compile(backend="eager")
    hooked = "stage 2 has a hook on the weight `layer.up.weight`, so its backward is `whole` and not `halves`"

    def own(program, **more):                      # not copies, for these have no hooks
        from bridge_models import counted_sum
        from pp_schedules.torch import Pipeline
        pipe = Pipeline(programs[program], made.__getitem__, loss=counted_sum, **more)
        return heard(lambda: [pipe.step(*data) for _ in range(2)])
    expect(rank, own("zb_v", split={1: "linears", 2: "halves"}), ["stage 1 is compiled", "not `linears`"], [hooked])
    made = llamas(2)
    made[0].layer.up.weight.register_hook(lambda g: g)
    expect(rank, own("1f1b"))                      # no backward is in two halves
    pipe, made = pipeline(programs["zb_v"], 4)
    expect(rank, heard(lambda: pipe.step(*data)))
    for i, p in pipe.pieces.items():               # behind the first step each rank speaks for itself
        if i == 0:
            p.module.embed.weight.register_hook(lambda g: g)
    expect(rank, heard(lambda: [pipe.step(*data) for _ in range(2)]), [
        "stage 0 has a hook on the weight `embed.weight`, so its backward is `whole`"])
    # Ties. On two ranks it is the content, on one it is the tensor; where the program ties them all is well.
    made = llamas(2)
    made[1].head.weight.data.copy_(made[0].embed.weight)
    tied = ["stage 0, `embed.weight`, and stage 1, `head.weight`, have one content, and the program does not tie them"]
    expect(rank, both("1f1b", 2, made), tied)
    expect(rank, both("tied", 2, made, ties={0: ["embed.weight"], 1: ["head.weight"]},
                      optimizer=lambda ps: torch.optim.SGD(ps, 0.1)))
    made = llamas(4)
    made[3].head.weight = made[0].embed.weight
    expect(rank, own("zb_v"), ["stage 0, `embed.weight`, and stage 3, `head.weight`, are one tensor, and"])
    expect(rank, both("1f1b", 2, [Llama(0, 2), Llama(1, 2)], names=lambda stage, name: name), [
        "are both `layer.", "(6 more such weights): if it is one weight"])

    class Normed(Llama):
        def __init__(self, stage, stages):
            super().__init__(stage, stages)
            self.bn = torch.nn.BatchNorm1d(WIDTH, dtype=torch.double)

        def forward(self, x):
            return super().forward(x) if self.embed is not None else super().forward(self.bn(x.mT).mT)
    expect(rank, both("1f1b", 2, [Llama(0, 2), Normed(1, 2)]), ["stage 1: `bn` is a BatchNorm: it normalizes each"])


CHECKS = {"notices": (notices, 2)}

if __name__ == "__main__":
    os.environ["PP"] = os.path.abspath(sys.argv[1])
    sys.exit(main(CHECKS))
