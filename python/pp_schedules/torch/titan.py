"""Gives torchtitan's model specs a `pipelining_fn` whose pipelines run a proved program."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import torch
from torchtitan.distributed.pipeline_parallel import _generate_llm_fqn_per_model_part, _split_module
from torchtitan.tools.logging import logger
from ..refused import Refused
from .pipeline import Pipeline
from .shared import Program


def pipelining(file, name=None, **parameters):
    """The `pipelining_fn` of a torchtitan model spec that runs the schedule of a .pipe file.

    Its ranks are `pipeline_parallel_degree`, its microbatches `training.local_batch_size` by
    `pipeline_parallel_microbatch_size`, its stages those of the program; `parameters` are more of the schedule's.
    Everything else of the trainer stays: its cut of the model by names, its `parallelize_fn` for each part, its loss,
    clipping, optimizers, checkpoints. Where stages lie follows from the program alone.
    """
    def pipelining_fn(model, *, parallel_dims, training, parallelism, device, model_config, parallelize_fn, loss_fn,
                      **rest):
        layers, first, last = (len(model_config.layers), parallelism.pipeline_parallel_first_stage_less_layers,
                               parallelism.pipeline_parallel_last_stage_less_layers)
        microbatches = training.local_batch_size // parallelism.pipeline_parallel_microbatch_size
        program = Program(file, name, **{"ranks": parallel_dims.pp, "microbatches": microbatches,
                                         "layers": layers + first + last, **parameters})
        homes = one_home(program)
        stages = len(program.pieces)
        cut = parallelism.module_fqns_per_model_part or _generate_llm_fqn_per_model_part(stages, layers, first, last)
        if len(cut) != stages:
            raise Refused(f"`module_fqns_per_model_part` has {len(cut)} parts, and `{program.name}` has {stages} "
                          "stages")
        mesh, parts = parallel_dims.get_mesh("pp"), {}

        def build(stage):
            parts[stage] = parallelize_fn(_split_module(model, cut[stage]), parallel_dims=parallel_dims,
                                          training=training, parallelism=parallelism, **rest)
            logger.info(f"PP rank {mesh.get_local_rank()} is building stage {stage} with modules {cut[stage]}")
            return parts[stage]
        schedule = Schedule(program, build, loss_fn, mesh.get_group("pp"), device)
        told = 0 if parallelism.pipeline_parallel_schedule == "ZBVZeroBubble" else parallel_dims.pp - 1
        if told != homes[-1]:
            logger.warning(f"The loss is on PP rank {homes[-1]}, and torchtitan shows that of PP rank {told}, by the "
                           "name in `pipeline_parallel_schedule`: `ZBVZeroBubble` names the first, any other the last.")
        return schedule, list(parts.values()), 0 in parts, stages - 1 in parts
    return pipelining_fn


def one_home(program):
    """The rank of each stage. The trainer updates, clips and saves each parameter on the one rank that has it."""
    homes = []
    for number, piece in enumerate(program.pieces):
        ranks = {rank["rank"] for rank in program.data["programs"] for a in rank["actions"]
                 if a[0] == "run" and a[3] == number}
        if piece["kind"] != "stage" or len(ranks) > 1:
            raise Refused(f"`{program.name}` at {program.place(piece['line'])}: stage {piece['index']} is on the ranks "
                          f"{sorted(ranks)}, and torchtitan clips, updates and saves each parameter on one rank; "
                          "`Pipeline` runs this program")
        homes.append(ranks.pop())
    return homes


class Schedule:
    """What torchtitan's trainer and validator call. It clips and updates, so steps end before the first update."""

    def __init__(self, program, build, loss_fn, group, device):
        self.loss_fn, self.loss_kwargs, self.early = loss_fn, {}, {}
        self.pipe = Pipeline(program, build, loss=self._loss, group=group, device=device)

    def _loss(self, output, target):
        """The trainer's loss divides by the counted tokens of the step itself, so each microbatch has weight 1. A loss
        in chunks makes the gradients of the head here, in F; their sum is kept until B's are in `.grad`."""
        loss, _ = self.loss_fn(output, target, **self.loss_kwargs)
        for place, p in enumerate(self.pipe.pieces[len(self.pipe.program.pieces) - 1].parameters):
            if p.grad is not None and torch.is_grad_enabled():
                self.early[place] = self.early[place].add_(p.grad) if place in self.early else p.grad
                p.grad = None
        return loss

    def _run(self, run, arg_mbs, kwarg_mbs, target_mbs, losses, loss_kwargs):
        count = self.pipe.program.microbatches
        for what, given in (("arg_mbs", arg_mbs), ("kwarg_mbs", kwarg_mbs), ("target_mbs", target_mbs)):
            if given is not None and len(given) != count:
                raise Refused(f"the program has {count} microbatches, and `{what}` has {len(given)}")
        self.loss_kwargs = loss_kwargs or {}
        targets = None if target_mbs is None else [(target,) for target in target_mbs]
        run(arg_mbs, targets, 1.0, kwarg_mbs)
        if losses is not None:
            losses.extend(self.pipe.losses[mb] for mb in range(count))

    def step(self, *, arg_mbs=None, kwarg_mbs=None, target_mbs=None, losses=None, loss_kwargs=None,
             return_outputs=False):
        """Adds the gradients of a step to `.grad`, and its losses to `losses` on the rank of the last stage."""
        if return_outputs:
            raise Refused("`return_outputs=True`: outputs of the last stage are not kept; give `losses`")
        self._run(self.pipe.backward, arg_mbs, kwarg_mbs, target_mbs, losses, loss_kwargs)
        while self.early:
            place, gradient = self.early.popitem()
            p = self.pipe.pieces[len(self.pipe.program.pieces) - 1].parameters[place]
            p.grad = gradient if p.grad is None else p.grad.add_(gradient)

    @torch.no_grad()
    def eval(self, *, arg_mbs=None, kwarg_mbs=None, target_mbs=None, losses=None, loss_kwargs=None):
        """Runs forward alone, by a program that pp proved, too."""
        self._run(self.pipe.eval, arg_mbs, kwarg_mbs, target_mbs, losses, loss_kwargs)
