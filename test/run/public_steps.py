"""Cases of public_cases.py about one step: how gradients are scaled, norms, weights, order, documents and experts."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import math, os, re, signal, subprocess, time
import documents, harness, plain_model
from public_lab import (HIDDEN, VOCAB, SIZES, ROUTED, STEERED, VARIANTS, GPT2, ADAMW, TEXTS, MASKS, case, need, apart,
                        drawn, difference, mean, three_steps)


# How gradients are scaled


@case
def mean_of_means(lab):
    """Microbatches with 11, 0, 7 and 3 targets: the loss of a step is the mean over 21."""
    right = lab.expected("plain")
    wrong = mean([loss / count for loss, count in zip(right["losses"], right["counts"]) if count])
    apart(right["loss"], wrong)
    worst = lab.same()
    return f"loss {right['loss']:.6f}, a mean of means {wrong:.6f}; all gradients as by hand ({worst:.0e})"


@case
def scaled_by_microbatches(lab):
    """The same rows in 1, 2 and 4 microbatches."""
    right = lab.expected("plain")["norm"]
    for more in (dict(microbatches=2, microbatch=2), dict(microbatches=1, microbatch=4)):
        lab.same(**more)
    apart(right, right / 2)
    return f"norm {right:.6f} with 1, 2 and 4 microbatches"


@case
def scaled_by_pipeline(lab):
    right = lab.expected("plain")
    for schedule in ("1f1b", "zb_v", "interleaved"):
        lab.same(schedule=schedule, ranks=2)
    return f"norm {right['norm']:.6f} in three pipelines, not times {sum(right['counts'])} targets"


@case
def only_last_microbatch(lab):
    """The last microbatch has no target: if sums were wiped, nothing would be left."""
    texts, masks = TEXTS, [*MASKS[:3], [0] * 12]
    data = documents.write_dataset(lab.folder, "wiped.safetensors", texts, masks)
    right = lab.expected("plain", texts, masks)
    for more in ({}, dict(schedule="1f1b", ranks=2), dict(schedule="zb_v", ranks=2)):
        lab.same(data=data, expected=right, **more)
    need(right["norm"] > 0.1, "nothing to lose")
    return f"norm {right['norm']:.6f}, where the last microbatch alone would give 0"


@case
def replicas_with_unequal_tokens(lab):
    """Two replicas have 11 + 7 and 0 + 3 targets."""
    right = lab.expected("plain")
    wrong = mean([(right["losses"][0] + right["losses"][2]) / 18, right["losses"][3] / 3])
    apart(right["loss"], wrong)
    for more in ({}, {"mesh.zero": 1}, {"mesh.zero": 2}):
        lab.same(microbatches=2, **{"mesh.data": 2} | more)
    return f"loss {right['loss']:.6f}, a mean over replicas {wrong:.6f}"


@case
def scaled_by_context(lab):
    for more in ({}, {"mesh.tensor": 2, "schedule": "zb_v", "ranks": 2}):
        worst = lab.same(**{"mesh.context": 2} | more)
    return f"gradients as by hand on two devices of a sequence ({worst:.0e})"


@case
def further_tokens(lab):
    """All logits are 0, so each loss is log V whatever it is the mean of, and 0.3 log V where 0.3 is its weight."""
    model = os.path.join(harness.ROOT, "stdlib", "models", "llama_mtp.pipe")
    train = harness.add_models(lab.folder, model)
    program = harness.compile_train(lab.compiler, lab.at("further"), SIZES | dict(model="llama_mtp"), train,
                                    ["-D", "data.documents=true"])
    line, gradients = lab.step(program, load=False)
    weights = {name: (shape, values if "lm_head" not in name and "shared_head" not in name else
                      type(values)("d", [0.0] * len(values)))
               for name, (shape, values) in harness.read_safetensors(lab.at("step.grads")).items()}
    harness.write_safetensors(lab.at("further.weights"), weights)
    line, _ = lab.step(program, "--load", lab.at("further.weights"), load=False)
    further = sum(bool(mask[i + 2]) for text, mask in zip(TEXTS, MASKS) for i in range(len(text) - 2))
    right = 0.3 * math.log(VOCAB)
    need(further != line["tokens"] and abs(line["mtp"] - right) < 1e-12 and abs(line["loss"] - math.log(VOCAB)) < 1e-12,
         f"{line['mtp']} and {line['loss']}, expected {right} and {math.log(VOCAB)}")
    return f"{right:.6f} over its own {further} targets; over {line['tokens']} it would be " \
           f"{right * further / line['tokens']:.6f}"


@case
def nothing_to_learn(lab):
    """A step without any target trains nothing, and says so; its loss is no 0 / 0."""
    data = documents.write_dataset(lab.folder, "none.safetensors", TEXTS, [[0] * len(text) for text in TEXTS])
    for more in ({}, {"mesh.data": 2, "microbatches": 2}):
        line, gradients = lab.step(lab.compile(**more), data=data)
        need(line["loss"] == 0 and line["grad_norm"] == 0 and not any(map(any, gradients.values())), str(line))
    done = lab.run(lab.compile(), "--epochs", "1", data=data)
    said = re.search(r"no target[^\n]*|[^\n]*target[^\n]*", done.stdout + done.stderr)
    need(said, done.stdout + done.stderr)
    return f"loss 0, norm 0; the run says `{said[0].strip()}`"


# Norms


@case
def norm_of_one_stage(lab):
    right = lab.expected("plain")
    first = plain_model.norm_of(its for name, its in right["gradients"].items() if re.search(r"embed|layers\.[01]",
                                                                                                name))
    apart(right["norm"], first)
    lab.same(schedule="1f1b", ranks=2)
    lab.same(schedule="1f1b", ranks=4)
    return f"norm {right['norm']:.6f}; of the first of two stages it is {first:.6f}"


@case
def norm_counts_copies(lab):
    """Gains of norms are whole on both devices of the tensor axis, and so are weights of the one head of keys."""
    right = lab.expected("plain")
    twice = math.sqrt(right["norm"] ** 2 + plain_model.norm_of(
        its for name, its in right["gradients"].items() if re.search("norm|[kv]_proj", name)) ** 2)
    apart(right["norm"], twice)
    for more in ({"mesh.sequence": "true"}, {"mesh.data": 2, "microbatches": 2, "mesh.zero": 1}):
        lab.same(**{"mesh.tensor": 2} | more)
    return f"norm {right['norm']:.6f}; with copies counted twice {twice:.6f}"


@case
def norm_of_experts(lab):
    right = lab.expected("routed")
    parts = {mine: plain_model.norm_of(its for name, its in right["gradients"].items()
                                       if bool(re.search(r"experts\.[01]\.", name)) == mine) for mine in (True, False)}
    apart(right["norm"], parts[False])
    for more in ({"mesh.zero": 1}, {"mesh.tensor": 2, "schedule": "1f1b", "ranks": 2}):
        lab.same("routed", microbatches=2, **{"mesh.data": 2, "mesh.expert": 2} | more)
    return f"norm {right['norm']:.6f}; without the other device's experts {parts[False]:.6f}"


@case
def norm_of_sinks(lab):
    right = lab.expected("sinks")
    sinks = [its for name, its in right["gradients"].items() if "sinks" in name]
    without = math.sqrt(right["norm"] ** 2 - math.fsum(its[1] ** 2 for its in sinks))
    apart(right["norm"], without, 1e-7)
    for more in ({"mesh.tensor": 2}, {"mesh.context": 2}):
        lab.same("sinks", **more)
    return f"norm {right['norm']:.9f}; without the second head's sinks {without:.9f}"


@case
def norm_of_tied(lab):
    right = lab.expected("tied")
    table = plain_model.norm_of([right["gradients"]["model.embed_tokens.weight"]])
    twice = math.hypot(right["norm"], table)
    apart(right["norm"], twice)
    for more in (dict(schedule="1f1b", ranks=2), {"mesh.tensor": 2}):
        lab.same("tied", **more)
    return f"norm {right['norm']:.6f}; with both copies of the table {twice:.6f}"


@case
def clip_by_parts(lab):
    """SGD with a clip of 0.1: every weight moves by lr g 0.1 / (norm + 1e-6), with the one norm of all."""
    right = lab.expected("routed")
    weights, saved = lab.weights_of("routed")[0], lab.at("clipped")
    factor = 0.1 / (right["norm"] + 1e-6)
    for more in ({}, {"mesh.data": 2, "mesh.expert": 2, "microbatches": 2}):
        program = lab.compile(**ROUTED | dict(optimizer="sgd", clip=0.1, lr=0.5, min_lr=1) | more)
        lab.step(program, "--save", saved, variant="routed")
        for name, (_, values) in harness.read_safetensors(saved + "/model.safetensors").items():
            wanted = [w - 0.5 * factor * g for w, g in zip(weights[name][1], right["gradients"][name])]
            need(difference(values, wanted) < 1e-12, f"{more}: {name} is off by {difference(values, wanted):.1e}")
    return f"all weights move by {factor:.6f} of their gradients"


@case
def sums_of_shards(lab):
    """ZeRO-2 with several microbatches and a weight that is used twice: every gradient is added once to its shard."""
    for variant, more in (("plain", {}), ("tied", {}), ("tied", {"schedule": "zb_v", "ranks": 2})):
        worst = lab.same(variant, microbatches=2, **{"mesh.data": 2, "mesh.zero": 2} | more)
    return f"gradients as by hand ({worst:.0e}), tied or not"


# A weight that is used twice


@case
def tied_in_split_backward(lab):
    for more in (dict(schedule="zb_v", ranks=2), dict(schedule="zb_h1", ranks=2)):
        worst = lab.same("tied", **more)
    return f"the table's gradient is that of both uses, once each ({worst:.0e})"


@case
def several_outputs_in_split_backward(lab):
    """One matrix makes q, k and v, another the gate and what it gates; B is split into I and W."""
    for more in (dict(schedule="zb_v", ranks=2),):
        worst = lab.same("fused", **more)
    return f"gradients of both matrices as by hand ({worst:.0e})"


@case
def tied_with_two_states(lab):
    """Three steps of AdamW on a table whose ends are on two ranks: one table, one state."""
    steps = three_steps(lab, "tied")
    saved = lab.at("tied.saved")
    program = lab.compile(**VARIANTS["tied"][0] | ADAMW | dict(schedule="1f1b", ranks=2))
    lab.run(program, "--load", lab.weights_of("tied")[1], "--steps", "3", "--save", saved)
    tensors = harness.read_safetensors(saved + "/model.safetensors")
    need(tensors.keys() == steps.keys() and "lm_head.weight" not in tensors, f"saved {sorted(tensors)}")
    worst = max(difference(tensors[name][1], its) for name, its in steps.items())
    need(worst < 1e-9, f"off by {worst:.1e}")
    return f"weights after three steps as by hand ({worst:.0e}), one table in the file"


# Ranks that wait


@case
def empty_stage(lab):
    """Stages that hold nothing, or the ends of the model alone."""
    for layout in ("Et|tt|t||L", "E||tttt|L"):
        lab.same(schedule="megatron", ranks=layout.count("|") + 1, layout=layout)
    return "two layouts with empty stages run to the right gradients"


@case
def sends_before_receives(lab):
    """Schedules in which two ranks send to each other at once, with sends that never end before their receive."""
    right = lab.expected("plain")
    for schedule in ("zb_v", "interleaved", "chimera", "weipipe_interleave"):
        program = lab.compile(schedule=schedule, ranks=2)
        line, _ = lab.step(program, "--sends", "rendezvous", "--timeout", "20")
        need(abs(line["grad_norm"] / right["norm"] - 1) < 1e-9, f"{schedule}: norm {line['grad_norm']}")
    done = harness.call([lab.compiler, harness.TRAIN, "-D", "schedule=zb_v", "-D", "ranks=2", "--prove"])
    claim = re.search(r"progress +(.*?)  ", done.stdout)[1]
    return f"four schedules end without any buffer; proved: {claim}"


@case
def fewer_microbatches_than_stages(lab):
    for schedule, count in (("1f1b", 1), ("1f1b", 2), ("zb_h1", 1)):
        texts, masks = TEXTS[:count], MASKS[:count]
        data = documents.write_dataset(lab.folder, "few.safetensors", texts, masks)
        lab.same(schedule=schedule, ranks=4, microbatches=count, data=data,
                 expected=lab.expected("plain", texts, masks))
    return "one and two microbatches over four stages"


WAITING = """schedule waiting(ranks p, microbatches m) {
  stage s of 2 at s
  on 0 { F(0, 0) B(0, 0) F(0, 1) B(0, 1) }
  on 1 { F(1, 0) F(1, 1) B(1, 0) B(1, 1) }
}
"""
FORGOTTEN = """schedule forgotten(ranks p, microbatches m) {
  stage s of 2 at s
  on 0 { F(0, 0) F(0, 1) B(0, 0) B(0, 1) }
  on 1 { F(1, 0) B(1, 0) F(1, 1) }
}
"""


def own_schedule(lab, text, said):
    path = lab.at("own.pipe")
    with open(path, "w") as file:
        file.write(text)
    name = re.match(r"schedule (\w+)", text)[1]
    return lab.not_compiled(said, [path, f"--schedule={name}", "-D", "ranks=2", "-D", "microbatches=2", "-D",
                                   "layers=2", "--emit=timeline"])


@case
def schedule_that_waits_for_itself(lab):
    return "refused: " + own_schedule(lab, WAITING, "rank 1 waits at `F(1, 1)` for `F(0, 1)`, which comes "
                                       "after `B(0, 0)` on rank 0")


@case
def backward_that_runs_again(lab):
    """Two stages on each rank, whose forwards run again in the backward."""
    for recompute in ("stage", "attn,post"):
        worst = lab.same("tied", schedule="interleaved", ranks=2, recompute=recompute)
    return f"gradients as by hand ({worst:.0e}) with two stages on a rank"


@case
def forgotten_backward(lab):
    return "refused: " + own_schedule(lab, FORGOTTEN, "`B(1, 1)` never runs")


@case
def stages_that_train_nothing(lab):
    """The embedding and the first three layers are frozen: two of four stages have no backward."""
    right = lab.expected("plain")
    frozen = "embed_tokens,layers.0.,layers.1.,layers.2."
    program = lab.compile(schedule="1f1b", ranks=4, freeze=frozen)
    line, gradients = lab.step(program)
    wanted = {name: its for name, its in right["gradients"].items() if not re.search(r"embed|layers\.[012]\.", name)}
    need(gradients.keys() == wanted.keys(), f"gradients of {sorted(gradients)}")
    worst = max(difference(gradients[name], its) for name, its in wanted.items())
    need(worst < 1e-9 and abs(line["grad_norm"] / plain_model.norm_of(wanted.values()) - 1) < 1e-9, f"{worst}")
    return f"gradients of the rest as by hand ({worst:.0e})"


@case
def dead_rank(lab):
    """One rank of four is killed; the others end and say whom they miss."""
    if not lab.mpi:
        return "not run: no MPI"
    program = lab.compile(schedule="1f1b", ranks=2, microbatches=4)
    run = subprocess.Popen(["mpirun", "-n", "2", "--oversubscribe", program, "--data", lab.data, "--steps", "1000000",
                            "--lr", "0", "--timeout", "10"], env=harness.ENVIRONMENT, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
    end = time.time() + 30
    ranks = {}
    while len(ranks) < 2 and time.time() < end:
        time.sleep(0.1)
        ranks = harness.ranks_of(run.pid)
    time.sleep(0.3)
    begin = time.time()
    os.kill(ranks[1], signal.SIGKILL)
    said = run.communicate(timeout=30)[1]
    need(run.returncode != 0, said)
    return f"the run ends in {time.time() - begin:.1f} s"


@case
def another_program_on_a_rank(lab):
    if not lab.mpi:
        return "not run: no MPI"
    programs = [lab.compile(schedule="1f1b", ranks=2), lab.compile(schedule="gpipe", ranks=2)]
    done = harness.call(["mpirun", "--oversubscribe", "-n", "1", programs[0], "--data", lab.data, "--steps", "1", ":",
                         "-n", "1", programs[1], "--data", lab.data, "--steps", "1"], expect=None, timeout=60)
    said = re.search(r"pp: error: [^\n]*", done.stderr)
    need(done.returncode != 0 and said, done.stderr)
    alone = harness.call(["mpirun", "--oversubscribe", "-n", "3", programs[0], "--data", lab.data], expect=None,
                         timeout=60)
    other = re.search(r"pp: error: [^\n]*", alone.stderr)
    need(alone.returncode != 0 and other, alone.stderr)
    return f"refused: `{said[0]}`, and three ranks for two: `{other[0]}`"


# Documents and targets


@case
def documents_that_meet(lab):
    """Two documents in a row give what each gives alone."""
    for more in ({}, dict(schedule="slimpipe", slices=4, ranks=2), {"mesh.context": 2},
                 {"mesh.context": 2, "mesh.attention": "heads"}):
        worst = lab.same(microbatches=2, sequence=24, **more)
    right = lab.expected("plain")
    joined = lab.expected("plain", [TEXTS[0] + TEXTS[1], TEXTS[2] + TEXTS[3]],
                          [MASKS[0] + [0] + MASKS[1][1:], MASKS[2] + [0] + MASKS[3][1:]])
    apart(right["loss"], joined["loss"])
    return f"loss {right['loss']:.6f}; if they saw each other {joined['loss']:.6f} ({worst:.0e})"


@case
def positions_that_go_on(lab):
    """gpt2's table of positions: rows behind the longest document take no gradient, wherever documents lie in rows."""
    data = documents.write_dataset(lab.folder, "short.safetensors", drawn((5, 8, 6, 4, 3, 5)))
    program = lab.compile(**GPT2 | {"model.dropout": 0, "sequence": 32, "microbatches": 1})
    _, gradients = lab.step(program, data=data, load=False)
    table = next(its for name, its in gradients.items() if "wpe" in name)
    rows = [any(table[i:i + HIDDEN]) for i in range(0, len(table), HIDDEN)]
    need(rows == [True] * 7 + [False] * 25, f"rows with gradients: {rows}")
    return "of 32 positions the first 7 have gradients: the longest document has 8 tokens, the last without a target"


@case
def padding_that_counts(lab):
    for sequence in (12, 16, 24):
        lab.same(sequence=sequence, microbatches=4 if sequence < 24 else 2)
    return "rows of 12, 16 and 24 tokens: one loss, one gradient"


@case
def padding_in_the_router(lab):
    right = lab.expected("routed")
    for more in (dict(sequence=12), {"sequence": 16, "mesh.context": 2},
                 {"sequence": 16, "microbatches": 2, "mesh.data": 2, "mesh.expert": 2}):
        lab.same("routed", **more)
    return f"balance {right['balance']:.6f} and z {right['z']:.6f} of the tokens alone, in rows of 12 and 16"


@case
def end_token_as_padding(lab):
    """The padding token also ends documents: as a token of a document it is learned."""
    texts = [text + [2] for text in drawn((7, 6, 8, 7))]
    data = documents.write_dataset(lab.folder, "ends.safetensors", texts)
    got = lab.batches(lab.compile(**{"model.pad": 2}), "--epochs", "1", data=data)
    for text, tokens, targets in zip(texts, got["tokens"], got["targets"]):
        need(targets == text[1:] + [-100] * (13 - len(text)) and tokens == text + [2] * (12 - len(text)),
             f"{tokens} has targets {targets}")
    return "the end of each document is a target, the padding behind it is none"


@case
def labels_shifted_twice(lab):
    """Targets are the next tokens; the loss of a shift by two, or of none, is another number."""
    counted = [[1] * len(text) for text in TEXTS]
    data = documents.write_dataset(lab.folder, "all.safetensors", TEXTS)
    right = lab.expected("plain", TEXTS, counted)
    lab.same(data=data, expected=right)
    got = lab.batches(lab.compile(), "--epochs", "1", data=data)
    for text, targets in zip(TEXTS, got["targets"]):
        need(targets == text[1:] + [-100] * (13 - len(text)), f"{text} has targets {targets}")
    return f"loss {right['loss']:.6f} of the next tokens, over {sum(right['counts'])} targets"


@case
def last_token_of_a_shard(lab):
    """Where a sequence is cut over devices or in slices, the last token of each run has its target too."""
    counted = [[1] * len(text) for text in TEXTS]
    data = documents.write_dataset(lab.folder, "all.safetensors", TEXTS)
    right = lab.expected("plain", TEXTS, counted)
    for more in ({"mesh.context": 2}, {"mesh.context": 3}, {"mesh.tensor": 2, "mesh.sequence": "true"},
                 dict(schedule="terapipe", slices=4, ranks=2)):
        lab.same(data=data, expected=right, **more)
    return f"{sum(right['counts'])} targets on 1, 2 and 3 devices and in 4 slices"


@case
def ends_of_an_answer(lab):
    """Of a prompt 5 6 7 and an answer 8 9 2 the model learns 8, 9 and 2: the first and the last token, too."""
    data = documents.write_dataset(lab.folder, "answer.safetensors", [[5, 6, 7, 8, 9, 2]], [[0, 0, 0, 1, 1, 1]])
    targets = lab.batches(lab.compile(), "--epochs", "1", data=data)["targets"][0]
    need(targets == [-100, -100, 8, 9, 2] + [-100] * 7, f"targets {targets}")
    return "the answer's three tokens are targets, the prompt's are none"


@case
def long_document_cut(lab):
    """A document of 40 tokens in rows of 12: all of its tokens are read, in either way of packing."""
    (text,) = drawn((40,))
    data = documents.write_dataset(lab.folder, "long.safetensors", [text])
    program, found = lab.compile(), []
    for packing in ("whole", "split"):
        got = lab.batches(program, "--epochs", "1", "--pack", packing, data=data)
        read = [token for row in got["tokens"] for token in row][:40]
        need(read == text, f"{packing}: {read}")
        found.append(sum(target >= 0 for row in got["targets"] for target in row))
    need(found == [36, 39], f"targets {found}")
    return "all 40 tokens are read; 36 targets if pieces are documents, 39 if it goes on in the next row"


@case
def last_batch_dropped(lab):
    texts = drawn((9,) * 13)
    data = documents.write_dataset(lab.folder, "odd.safetensors", texts)
    lines = lab.lines(lab.compile(), "--epochs", "1", data=data)
    need([line["tokens"] for line in lines] == [32, 32, 32, 8], str([line["tokens"] for line in lines]))
    return "13 documents in steps of 4: the last step has one, and its loss is the mean over its 8 targets"


# Experts


@case
def balance_by_tensor(lab):
    right = lab.expected("routed")
    for more in ({"mesh.tensor": 2}, {"mesh.tensor": 2, "mesh.sequence": "true"}):
        lab.same("routed", **more)
    return f"balance {right['balance']:.6f} and its gradient on 1 and 2 devices of tensor"


@case
def balance_by_context(lab):
    right = lab.expected("routed")
    for more in ({"mesh.context": 2}, {"mesh.context": 2, "mesh.expert": 2, "mesh.tensor": 2}):
        lab.same("routed", **more)
    return f"balance {right['balance']:.6f} and its gradient on 1 and 2 devices of context"


@case
def balance_by_batch(lab):
    right = lab.expected("routed")
    for more in ({}, dict(microbatches=1, microbatch=4), dict(schedule="1f1b_recompute", ranks=2)):
        lab.same("routed", **more)
    return f"balance {right['balance']:.6f} for 1 and 4 rows a microbatch, 1 and 2 stages, recomputed or not"


@case
def balance_of_packed_rows(lab):
    """Not excluded: a group of the balance is a row, so documents that are packed into one row are one group."""
    apart_, together = (lab.expected("routed"), lab.expected("routed", rows=[[0, 1], [2, 3]]))
    apart(apart_["balance"], together["balance"])
    lab.same("routed", microbatches=2, sequence=24, expected=together)
    return f"balance {apart_['balance']:.6f} of four rows, {together['balance']:.6f} with two documents in a row"


@case
def experts_that_nobody_chose(lab):
    """All of a router's weights are 0, so experts 0 and 1 are chosen always: the second device has nothing to do."""
    weights = {name: (shape, [0.0] * len(its) if name.endswith("moe.gate.weight") else its)
               for name, (shape, its) in lab.weights_of("routed")[0].items()}
    path = lab.at("idle.weights")
    harness.write_safetensors(path, weights)
    right = lab.expected("routed", weights={name: (shape, list(its)) for name, (shape, its) in weights.items()})
    for more in ({"mesh.data": 2, "mesh.expert": 2, "microbatches": 2}, {"mesh.context": 2}):
        line, gradients = lab.step(lab.compile(**ROUTED | more), "--load", path, load=False)
        worst = max(difference(gradients[name], its) for name, its in right["gradients"].items())
        need(worst < 1e-9 and line["rows"]["min"] == 0, f"{more}: off by {worst:.1e}, rows {line['rows']}")
    return f"gradients as by hand ({worst:.0e}), those of idle experts are 0"


@case
def dropped_in_silence(lab):
    """Nothing is dropped unless `capacity` is asked for; then the log says how much."""
    shares = []
    for more in ({}, {"model.capacity": 1}):
        program = lab.compile(**ROUTED | {"mesh.data": 2, "mesh.expert": 2, "microbatches": 2} | more)
        line, _ = lab.step(program, variant="routed")
        shares.append(line["dropped"])
    need(shares[0] == 0 < shares[1] < 0.5, str(shares))
    return f"0 without `capacity`; with a capacity of 1 the log says {shares[1]:.3f}"


@case
def choices_counted_twice(lab):
    """A router's bias goes by how often experts were chosen: also where the forward runs twice, or on replicas."""
    tokens, found = sum(map(len, TEXTS)), []
    for more in ({}, dict(schedule="1f1b_recompute", ranks=2), {"mesh.data": 2, "microbatches": 2}):
        _, gradients = lab.step(lab.compile(**STEERED | more), "--seed", "5", load=False)
        found.append({name: list(its) for name, its in gradients.items() if name.endswith("correction_bias")})
    # n c - (all choices), divided by gcd(n, top): here 2 c - tokens, so each c is (g + tokens) / 2.
    for loads in found[0].values():
        counts = [(load + tokens) / 2 for load in loads]
        need(sum(counts) == 2 * tokens and all(count == int(count) >= 0 for count in counts), f"counts {counts}")
    need(found[0] and found[1:] == found[:1] * 2, "counts differ")
    return f"each layer counts {2 * tokens} choices of {tokens} tokens, recomputed or not, on 1 and 2 replicas"
