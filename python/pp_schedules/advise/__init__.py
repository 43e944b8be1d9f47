"""`pp advise`: what pp says of a pipeline of Megatron-LM or torchtitan, and which layout or schedule is faster."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
import textwrap
from typing import Optional, Sequence

from ..binary import find
from ..refused import Refused
from . import candidates, layout, megatron, titan
from .arguments import Unreadable, read_arguments
from .candidates import Judge, Row
from .training import Model, Training

GIB = 1 << 30
WORTH = 0.995  #: a step that is shorter by less is not told


def parser() -> argparse.ArgumentParser:
    its = argparse.ArgumentParser(
        prog="pp advise", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Compiles, proves and simulates the pipeline of a training job, and looks for a faster one.",
        epilog="exit codes:\n\n  0  it is done\n  1  the arguments are wrong or incomplete; with --strict: some are "
               "not understood\n  2  the command line is wrong\n")
    what = its.add_mutually_exclusive_group(required=True)
    what.add_argument("--megatron", metavar="FILE|WORDS", help="a script, a YAML file, or the arguments themselves")
    what.add_argument("--titan", metavar="FILE|MODULE:FUNCTION|WORDS", help="a TOML file, a function, or the arguments")
    its.add_argument("--gpu", metavar="CLUSTER", default="h100_ndr", help="a cluster of std/clusters.pipe (h100_ndr)")
    its.add_argument("--gpus", metavar="N", type=int, help="how many GPUs the job has")
    its.add_argument("--vocab", metavar="N", type=int, help="the size of the vocabulary, which Megatron-LM pads")
    its.add_argument("--model", metavar="SIZES", help="of torchtitan's model: layers=32 hidden=4096 heads=32 ..")
    its.add_argument("--profile", metavar="FILE.json", help="times of a run in place of the cluster's figures")
    its.add_argument("--seconds", metavar="S", type=float, default=10, help="for the search (10)")
    its.add_argument("--write", metavar="FILE.pipe", help="write the program that stands for the job")
    its.add_argument("--strict", action="store_true", help="end with 1 if an argument is not understood")
    return its


def main(words: Optional[Sequence[str]] = None, binary: Optional[str] = None) -> int:
    options = parser().parse_args(words)
    try:
        training = read(options)
        if options.write:
            with open(options.write, "w", encoding="utf-8") as file:
                file.write(training.program())
        figures = ["--cluster=" + options.gpu] + (["--costs=" + options.profile] if options.profile else [])
        print(advice(training, Judge(training, find(binary), figures, options.seconds), options))
    except (Unreadable, Refused, OSError) as error:
        print(f"pp advise: error: {error}", file=sys.stderr)
        return 1
    return 1 if options.strict and training.unknown else 0


def read(options: argparse.Namespace) -> Training:
    if options.megatron is not None:
        return megatron.read(read_arguments(options.megatron), options.gpus, options.vocab)
    given = options.titan
    by_function = re.fullmatch(r"[\w.]+:\w+", given) and not os.path.exists(given)
    return titan.read(titan.of_function(given) if by_function else read_arguments(given), options.gpus,
                      sizes_of(options.model))


def sizes_of(text: Optional[str]) -> Optional[Model]:
    if text is None:
        return None
    sizes = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if not value.isdigit() or name not in {field.name for field in dataclasses.fields(Model)} - {"gated"}:
            raise Unreadable(f"--model: expected SIZE=N with layers, hidden, heads, kv_heads, ffn, vocab, experts or "
                             f"top, got `{word}`")
        sizes[name] = int(value)
    sizes.setdefault("kv_heads", sizes.get("heads", 0))
    missing = [name for name in ("layers", "hidden", "heads", "ffn", "vocab") if name not in sizes]
    if missing:
        raise Unreadable("--model: " + ", ".join(missing) + " not given")
    return Model(**sizes)


def advice(training: Training, judge: Judge, options: argparse.Namespace) -> str:
    given = candidates.as_given(judge)
    proof = judge.proof(given.options, "rank")
    other = None if "error" not in proof else judge.proof(given.options, "edge")
    limit = limit_of(other or proof)
    lines = [("layout", f"{given.name}   {training.schedule}, {training.ranks} ranks, {training.microbatches} "
                        f"microbatches of {training.microbatch} x {training.sequence}"
                        + (f", {training.devices} GPUs ({training.mesh()})" if training.mesh() else "")),
             ("proved", proved(proof, other)),
             ("step", f"{given.step:.4g} s   bubble {100 * given.bubble:.1f} %   " + above(given)),
             ("memory", memory(given, limit)), ("why", why(given, training))]
    best = given
    for row in candidates.better_layouts(judge, given, limit):
        if row.step < WORTH * best.step or (row.fits(limit) and not best.fits(limit)):
            best = row
            lines += [("better", row_text(row, given)), ("", as_argument(row, training, len(given.stages or [])))]
    if best is given:
        tried = len(judge.seen) - 1
        lines.append(("better", "no other layout was tried" if not tried else
                      f"none of {tried} other layouts is faster by more than {100 * (1 - WORTH):.1f} %"))
    rest = candidates.other_schedules(judge, limit)
    if rest and (rest[0].step < WORTH * given.step or not given.fits(limit)):
        lines += [("or", row_text(rest[0], given)), ("", command(rest[0], options))]
    lines += [("by", "the profile" if options.profile else f"the figures of the cluster `{options.gpu}`, not measured")]
    lines += [("nearly", text) for text in training.near]
    lines += [("unread", "they do not change the pipeline: " + " ".join(training.ignored))] if training.ignored else []
    lines += [("unknown", "not understood: " + " ".join(training.unknown))] if training.unknown else []
    return "\n".join(line for name, text in lines for line in textwrap.wrap(
        f"{name:<9}{text}", 118, subsequent_indent=" " * 9, break_long_words=False, break_on_hyphens=False))


def proved(proof: dict, other: Optional[dict]) -> str:
    if "error" not in proof:
        return "right gradients, and no deadlock where a rank's messages go one behind the other (`--channels=rank`)"
    if other is not None and "error" not in other:
        return "right gradients, and no deadlock with a channel for each directed pair of ranks"
    return "not: " + proof["error"]


def limit_of(proof: dict) -> Optional[int]:
    """Bytes of a rank's memory."""
    facts = [each["facts"] for each in proof.get("proofs", []) if each["name"] == "memory"]
    return int(facts[0]["limit"]) if facts and "limit" in facts[0] else None


def above(row: Row) -> str:
    even = sum(row.busy) / len(row.busy)
    return f"the work alone, spread evenly, is {even:.4g} s: {100 * (row.step / even - 1):.0f} % above it"


def memory(row: Row, limit: Optional[int]) -> str:
    fullest = max(range(len(row.peaks)), key=row.peaks.__getitem__)
    roles = sorted(((bytes_, role) for role, bytes_ in row.roles[fullest].items() if role not in ("total", "live")),
                   reverse=True)[:4]
    text = " ".join(f"{peak / GIB:.1f}" for peak in row.peaks) + " GiB"
    if limit is not None:
        text += f" of {limit / GIB:.1f}" + ("" if row.fits(limit) else ": it does not fit")
    return text + f"; rank {fullest} is fullest: " + ", ".join(f"{role} {bytes_ / GIB:.1f}" for bytes_, role in roles)


def why(row: Row, training: Training) -> str:
    most = max(range(len(row.busy)), key=row.busy.__getitem__)
    rest = [busy for rank, busy in enumerate(row.busy) if rank != most]
    low, high = min(rest), max(rest)
    others = f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g}"
    text = f"rank {most} is busy for {row.busy[most]:.4g} s, the others for {others}"
    stages = row.stages or []
    inner = [(row.busy[number % training.ranks], stage.count("t")) for number, stage in enumerate(stages)
             if set(stage) == {"t"}]
    if len(stages) == training.ranks and inner and most == training.ranks - 1:
        layer = sum(busy for busy, _ in inner) / sum(count for _, count in inner)
        head = row.busy[most] / layer - stages[-1].count("t")
        if head > 0.2:
            text += f": what is behind its layers is worth {head:.1f} of them"
    return text


def row_text(row: Row, given: Row) -> str:
    return (f"{row.name}   {row.step:.4g} s ({100 * (row.step / given.step - 1):+.1f} %), bubble "
            f"{100 * row.bubble:.1f} %, " + " ".join(f"{peak / GIB:.1f}" for peak in row.peaks) + " GiB")


def as_argument(row: Row, training: Training, stages: int) -> str:
    its = row.stages or []
    if training.titan:
        turns = "" if len(its) == stages else 'pipeline_parallel_schedule = "Interleaved1F1B", '
        return turns + f"module_fqns_per_model_part = {layout.modules_of(its)}".replace("'", '"')
    return f"--pipeline-model-parallel-layout '{row.name}'"


def command(row: Row, options: argparse.Namespace) -> str:
    """A command line that makes the row again, or its CSV."""
    return (f"pp export-csv {options.write or 'FILE.pipe (--write=FILE.pipe writes it)'} "
            + " ".join(row.options) + "   (a CSV for PyTorch and torchtitan)")
