#!/usr/bin/env python3
"""Judges pp-check-hf: tiny folders of every family that pp reads are right, wrong programs and folders are found."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: check_hf.py PP_COMPILE FOLDER [NAME..]     a NAME of zoo.py, `verdicts` or `refusals`
#        check_hf.py PP_COMPILE FOLDER --ways [NAME..]
# --ways: the second size by other schedules and on meshes, where it may be refused with one of the reasons of
# MAY_REFUSE.
# The folders have random weights. Each is made in two sizes; the config.json of the first one has all fields, as
# transformers writes it, that of the second one only those that zoo.py names. Without torch the script ends with 77.
import contextlib, importlib.util, io, json, os, re, shutil, stat, sys
import harness, zoo

PATH = os.path.join(harness.ROOT, "tools", "scripts", "pp-check-hf.py")
HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "transformers", "safetensors"))
# Two programs that do something else than the compiled one, which lies beside them under another name.
READS_OTHERS = """
words = sys.argv[1:]
if "--in-process" in words and "--load" not in words:
    shutil.copytree(os.path.join(here, "folder"), os.path.join(here, "other"), dirs_exist_ok=True)
    path = os.path.join(here, "other", "model.safetensors")
    tensors = harness.read_safetensors(path)
    tensors[TENSOR][1][0] += 1e-6
    harness.write_safetensors(path, tensors)
    words += ["--load", os.path.join(here, "other")]
sys.exit(subprocess.run([real, *words]).returncode)
"""
WRITES_OTHERS = """
code = subprocess.run([real, *sys.argv[1:]]).returncode
if "--grads" in sys.argv:
    path = sys.argv[sys.argv.index("--grads") + 1]
    tensors = harness.read_safetensors(path)
    tensors[TENSOR][1][-1] += 1e-6 * max(map(abs, tensors[TENSOR][1]))
    harness.write_safetensors(path, tensors)
sys.exit(code)
"""
FAULTY_COMPILER = """#!{python}
import os, subprocess, sys
code = subprocess.run([{compiler!r}, *sys.argv[1:]]).returncode
if not code:
    out = sys.argv[sys.argv.index("-o") + 1]
    os.rename(out, out + ".real")
    with open(out, "w") as file:
        file.write({program!r})
    os.chmod(out, 0o755)
sys.exit(code)
"""
FAULTY_PROGRAM = """#!{python}
import os, shutil, subprocess, sys
sys.path.insert(0, {run!r})
import harness
here, real, TENSOR = os.path.dirname(sys.argv[0]), sys.argv[0] + ".real", {tensor!r}
{what}"""
# Schedules, then meshes of two; all of twice the widths and heads, so that two devices divide them.
WAYS = {
    "zb_v": ("zb_v.pipe:zb_v", "microbatches=4"), "weipipe": ("weipipe.pipe:weipipe_interleave",),
    "slimpipe": ("slimpipe.pipe", "slices=4"), "fsdp": ("fsdp.pipe",), "tawpipe": ("tawpipe.pipe",),
    "helixpipe": ("helixpipe.pipe", "microbatches=4"), "dualpipe_v": ("dualpipev.pipe", "microbatches=4"),
    "tensor": ("1f1b.pipe", "mesh.tensor=2"), "sequence": ("1f1b.pipe", "mesh.tensor=2", "mesh.sequence=true"),
    "context": ("1f1b.pipe", "mesh.context=2"), "data": ("1f1b.pipe", "mesh.data=2", "mesh.zero=1"),
    "expert": ("1f1b.pipe", "mesh.data=2", "mesh.expert=2")}
# What a mesh or SlimPipe cannot cut: unequal runs of columns, norms over all heads or of latents, logits with a bias,
# heads of a scan that two devices do not divide. HelixPipe cuts off the attention of every layer.
# A part that tensor = 2 cannot cut gets all weights on each device, as the error says.
NO_RULE = r"`-D mesh\.(\w+)\.tensor=1`\) gives every device all weights of the part"
WHOLE = "goes along whole sequences, so devices exchange .* does not divide them"
MAY_REFUSE = {"expert": "the model has no experts|does not divide", "tensor": NO_RULE, "sequence": NO_RULE,
              "helixpipe": "has no part `attn`|then its gradient cannot move",
              "slimpipe": "nothing in it can be cut by the vocabulary", "context": WHOLE}


def tool():
    spec = importlib.util.spec_from_file_location("pp_check_hf", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Checker:
    """Runs the tool in this process, which imports torch once."""

    def __init__(self, compiler, folder):
        self.compiler, self.folder, self.tool = os.path.abspath(compiler), os.path.abspath(folder), tool()

    def check(self, place, *options, compiler=None):
        """The exit code, what it printed, and its errors."""
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = self.tool.main([place, "--compiler", compiler or self.compiler, *options])
        return code, out.getvalue(), errors.getvalue()

    def write(self, name, kind, fields, whole=False):
        """A folder with a config.json alone."""
        place = os.path.join(self.folder, name)
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        if whole:
            _, transformers = self.tool.make_f64()
            transformers.AutoConfig.for_model(kind, **fields).save_pretrained(place)
        else:
            with open(os.path.join(place, "config.json"), "w") as file:
                json.dump({"model_type": kind} | fields, file)
        return place

    def sizes(self, name):
        """Both folders of a model of the zoo."""
        for number, (kind, fields) in enumerate(zoo.sizes(name), 1):
            yield self.write(f"{name}.{number}", kind, fields, whole=number == 1)

    def weights(self, place):
        """Writes random weights, and gives them: name -> (shape, values)."""
        reference = self.tool.Reference(place, weights=False)
        reference.randomize()
        reference.model.save_pretrained(place)
        return harness.read_safetensors(os.path.join(place, "model.safetensors"))

    def fault(self, name, what, tensor):
        """A compiler whose programs do `what`."""
        path = os.path.join(self.folder, name)
        program = FAULTY_PROGRAM.format(python=sys.executable, run=os.path.dirname(os.path.abspath(__file__)),
                                        tensor=tensor, what=what)
        with open(path, "w") as file:
            file.write(FAULTY_COMPILER.format(python=sys.executable, compiler=self.compiler, program=program))
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path


def families_read():
    with open(os.path.join(harness.ROOT, "stdlib", "models", "families.pipe")) as file:
        return set(re.findall(r'^family "(\w+)" (?:\{|with|inside)', file.read(), re.M)) - {"any"}


def last_line(text):
    return text.rstrip().rpartition("\n")[2]


def check_family(tally, checker, name):
    for place in checker.sizes(name):
        code, out, errors = checker.check(place)
        tally.check(code == 0, f"{os.path.basename(place):20} {last_line(out) if code < 2 else errors.strip()}")


def check_ways(tally, checker, name):
    kind, fields = zoo.sizes(name)[1]
    place = checker.write(f"{name}.twice", kind, zoo.grown(fields, 2, vocabulary=422))
    for way, (schedule, *defines) in WAYS.items():
        words, whole = [f"--schedule=std/{schedule}", *(f"-D{define}" for define in defines)], []
        code, out, errors = checker.check(place, *words)
        while code == 2 and (part := re.search(NO_RULE, errors)) and part[1] not in whole:
            whole.append(part[1])
            code, out, errors = checker.check(place, *words, *(f"-Dmesh.{part}.tensor=1" for part in whole))
        may = code == 2 and way in MAY_REFUSE and re.search(MAY_REFUSE[way], errors)
        said = last_line(out) if code < 2 else "refused: " + may[0] if may else errors.strip()
        tally.check(code == 0 or may, f"{name:16} {way:10} {said}{' with whole ' * bool(whole)}{', '.join(whole)}")


def check_verdicts(tally, checker):
    """What is wrong is found, and the tensor is named."""
    place = next(checker.sizes("qwen3"))
    gradient, weight = "model.layers.2.self_attn.k_proj.weight", "model.layers.1.mlp.up_proj.weight"
    for name, what, tensor, says in (
            ("gradient", WRITES_OTHERS, gradient, f"wrong: the gradient of `{gradient}` is 1.0e-06 of its largest "),
            ("weight", READS_OTHERS, weight, f"wrong: the program trains another `{weight}` than the folder has")):
        code, out, errors = checker.check(place, compiler=checker.fault(name, what, tensor))
        tally.check(code == 1 and says in out and "\nright" not in out, f"another {name}: {last_line(out)} {errors}")
        if name == "gradient":
            worst = re.search(r"worst difference\n(\S+)", out)
            tally.check(worst and worst[1] == gradient.replace(".2.", ".*."), "and the table begins with its kind")
    code, out, _ = checker.check(place, "-D", "model.epsilon=1.001e-6")
    tally.check(code == 1 and "\nwrong: the losses are " in out and "the gradient of `model." in out,
                f"another epsilon: {last_line(out)}")
    code, out, errors = checker.check(place, "--schedule=std/zb_v.pipe:zb_v", "-D", "microbatches=4", "--all")
    tally.check(code == 0 and "zb_v on 2 ranks, 4 microbatches of 2 x 24 tokens" in out
                and "model.embed_tokens.weight" in out, f"another schedule: {last_line(out)} {errors}")


def check_weights(tally, checker):
    """The weights of the folder count: bf16, in several files. Dropout is switched off on both sides."""
    place = next(checker.sizes("qwen3"))
    torch, _ = checker.tool.make_f64()
    reference = checker.tool.Reference(place, weights=False)
    reference.randomize()
    reference.model.to(torch.bfloat16).save_pretrained(place, max_shard_size="20KB")
    files = checker.tool.weight_files(place)
    code, out, errors = checker.check(place)
    again, other, _ = checker.check(place, "--random")
    loss = [re.search(r"^loss.*$", text, re.M) for text in (out, other)]
    tally.check(code == again == 0 and len(files) > 1 and "weights" not in out.splitlines()[1]
                and loss[0][0] != loss[1][0], f"{len(files)} files of bf16: {last_line(out)} {errors}")
    code, out, errors = checker.check(place, "--schedule=std/single.pipe")
    tally.check(code == 0 and "schedule single on 1 rank," in out, f"one rank: {last_line(out)} {errors}")
    # Published folders of GPT-2 have no `transformer.` in front of names.
    place = next(checker.sizes("gpt2"))
    weights = checker.weights(place)
    harness.write_safetensors(os.path.join(place, "model.safetensors"), {
        name.removeprefix("transformer."): value for name, value in weights.items()})
    code, out, errors = checker.check(place)
    tally.check(code == 0 and any(name.startswith("transformer.h.") for name in weights),
                f"names without a prefix: {last_line(out)} {errors}")
    (kind, fields), _ = zoo.sizes("gpt2")
    fields = fields | dict(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    code, out, errors = checker.check(checker.write("gpt2.dropout", kind, fields))
    tally.check(code == 0, f"dropout: {last_line(out)} {errors}")


def check_refusals(tally, checker):
    (kind, fields), _ = zoo.sizes("qwen3")
    place = checker.write("refused", kind, fields)
    mamba = checker.write("mamba", *zoo.sizes("mamba")[0])
    field, empty = checker.write("field", kind, fields | dict(mystery=1)), os.path.join(checker.folder, "empty")
    os.makedirs(empty, exist_ok=True)
    for folder, options, says in (
            (mamba, (), f"{mamba}/config.json:1:[0-9]+: error: `model_type` is `mamba`, which is not supported"),
            (field, (), "`mystery` is no field that family `qwen3` knows"),
            (empty, (), "refused: cannot read `.*empty/config.json`: "),
            (place, ("--limit", "1e-4"), "the model has 0.0002 GiB of parameters in f64, and the limit is 0.0001 "),
            (place, ("-D", "optimizer.lr=1"), "refused: argument -D: this tool sets `optimizer.lr` itself; see --help"),
            (place, ("--keep", place), f"refused: cannot make `{place}`: File exists"),
            (place, ("-D", "ranks"), "refused: argument -D: expected name=value, got `ranks`"),
            (place, ("-D", "ranks=0"), "error: .*ranks"),
            (place, ("--schedule=std/none.pipe",), "none.pipe")):
        code, out, errors = checker.check(folder, *options)
        tally.check(code == 2 and re.search(says, errors) and last_line(errors).startswith("pp-check-hf: refused: "),
                    f"refused: {errors.strip()}")
    lacks = next(checker.sizes("llama"))
    weights = checker.weights(lacks)
    del weights["model.norm.weight"]
    harness.write_safetensors(os.path.join(lacks, "model.safetensors"), weights)
    code, _, errors = checker.check(lacks)
    tally.check(code == 2 and f"pp: error: `{lacks}` lacks `model.norm.weight`" in errors, errors.strip())
    code, out, errors = checker.check(field, "--config-note=mystery")
    tally.check(code == 0, f"a field that is a note: {last_line(out)} {errors}")
    code, _, errors = checker.check(place, compiler="/nowhere/pp-compile")
    tally.check(code == 2 and "cannot run `/nowhere/pp-compile`" in errors, errors.strip())
    # Without site-packages there is no torch.
    done = harness.call([sys.executable, "-I", "-S", PATH, place], expect=None)
    tally.check(done.returncode == 2 and done.stderr.count("\n") == 1 and "no module `torch`" in done.stderr,
                done.stderr.strip())
    help_text = harness.call([sys.executable, PATH, "--help"]).stdout
    tally.check(all(word in help_text for word in ("1e-12", "1e-09", "exit codes:")), "--help names the bounds")


def main():
    compiler, folder, *chosen = sys.argv[1:]
    ways = chosen[:1] == ["--ways"]
    chosen = chosen[ways:]
    if not HAS_TORCH:
        print("no torch or no transformers: nothing is judged")
        return 77
    os.makedirs(folder, exist_ok=True)
    checker, tally, read = Checker(compiler, folder), harness.Tally(), families_read()
    kinds = {name: zoo.sizes(name)[0][0] for name in zoo.NAMES}
    if not chosen and not ways:
        tally.check(read <= set(kinds.values()), f"the zoo has all {len(read)} families that are read; "
                    f"it lacks {sorted(read - set(kinds.values()))}")
    for name, kind in kinds.items():
        if name in chosen or not chosen and kind in read:
            (check_ways if ways else check_family)(tally, checker, name)
    if ways:
        return tally.close()
    if not chosen or "verdicts" in chosen:
        check_verdicts(tally, checker)
        check_weights(tally, checker)
    if not chosen or "refusals" in chosen:
        check_refusals(tally, checker)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
