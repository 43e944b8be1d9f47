#!/usr/bin/env python3
"""Compares pp with transformers on a folder of Hugging Face: losses, gradients, AdamW and the saved folder, in f64."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: pp-check-hf FOLDER [--schedule=NAME] [-D name=value].. [--config-note=NAME,..] [--random] [--all]
#                    [--keep DIR] [--limit GIB] [--compiler FILE]
# docs/fine-tune.md has an example. Both sides compute in f64. transformers computes norms, softmax, rotary tables and
# losses in f32, whatever the type of the weights is; so every mention of f32 becomes one of f64 before it is imported.
# Gradients and trained weights of transformers get the names of files by transformers itself: `save_pretrained` writes
# them as if they were weights.
import argparse, contextlib, importlib.util, inspect, json, math, os, random, re, shutil, struct, subprocess, sys
import tempfile

NEEDED = ("torch", "transformers", "safetensors")
LOSS, GRADIENT, FLOOR = 1e-12, 1e-9, 1e-6  # bounds; FLOOR of the model's largest gradient is the least that counts
STEPS, SEQUENCE, ROWS = 3, 24, 12  # steps of AdamW, tokens of a row, rows of the table
# With this epsilon a gradient that is all rounding, as a key's bias without rope has it, moves its weight by nothing.
RATES = dict(lr=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-6, weight_decay=0, clip=1, warmup=0, schedule="constant")
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
TEXT = b"Pack my box with five dozen liquor jugs; the quick brown fox jumps over the lazy dog. "
CHOICE = re.compile("correction_bias|expert_bias")  # what a router adds before it chooses; torch has no gradient of it
IMAGES = re.compile(r"(^|\.)(vision_\w+|multi_modal_projector|visual)\.")  # of which text has no gradient
DRAWN = {"phimoe"}  # whose routers draw experts at random in training: compared as in evaluation
NO_GRADIENT = 12345.678  # stands in files where transformers has no gradient: buffers, and what reads images
RIGHT, WRONG, REFUSED = 0, 1, 2
TYPES = {}  # of tensors in files; filled in before f32 becomes f64


class Refused(Exception):
    """Why nothing could be compared, in one sentence; with a text that is printed before it, as it is."""

    def __init__(self, sentence, text=""):
        super().__init__(sentence)
        self.text = text


class Wrong(Exception):
    """What differs, in one sentence."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(f"{message}; see --help")


# ---- Files

def read_tensors(folder, name=None):
    """name -> tensor, of one file or of all .safetensors files of a folder."""
    import torch
    tensors = {}
    for file_name in [name] if name else weight_files(folder):
        with open(os.path.join(folder, file_name), "rb") as file:
            data = bytearray(file.read())
        (size,) = struct.unpack("<Q", data[:8])
        for key, entry in json.loads(data[8:8 + size]).items():
            if key == "__metadata__":
                continue
            if entry["dtype"] not in TYPES:
                raise Refused(f"`{file_name}` has `{key}` of type {entry['dtype']}, which has no exact f64")
            begin, end = entry["data_offsets"]
            flat = (torch.frombuffer(data, dtype=TYPES[entry["dtype"]], count=math.prod(entry["shape"]),
                                     offset=8 + size + begin) if end > begin else torch.empty(0))
            tensors[key] = flat.reshape(entry["shape"])
    return tensors


def write_tensors(path, tensors):
    header, offset = {}, 0
    for name, value in tensors.items():
        end = offset + value.numel() * 8
        header[name], offset = {"dtype": "F64", "shape": list(value.shape), "data_offsets": [offset, end]}, end
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(value.contiguous().numpy().tobytes())


def weight_files(folder):
    """An optimizer's state, which our checkpoints have beside the weights, is none."""
    return sorted(name for name in os.listdir(folder)
                  if name.endswith(".safetensors") and not name.startswith("optimizer"))


def write_config(folder, copy):
    """Changes only the type of weights in the text, so that errors name the lines of FOLDER; gives the fields."""
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            text = file.read()
        fields = json.loads(text)
    except (OSError, ValueError) as error:
        raise Refused(f"cannot read `{os.path.join(folder, 'config.json')}`: {error}") from None
    if not isinstance(fields, dict):
        raise Refused(f"`{os.path.join(folder, 'config.json')}` is not a JSON object")
    text, found = re.subn(r'("(?:torch_)?dtype"\s*:\s*)(?:"[^"]*"|null)', r'\1"float64"', text)
    if not found:
        text = text.replace("{", '{"dtype": "float64"' + (", " if fields else ""), 1)
    with open(os.path.join(copy, "config.json"), "w", encoding="utf-8") as file:
        file.write(text)
    return fields


def copy_weights(folder, copy):
    for name in weight_files(folder):
        write_tensors(os.path.join(copy, name), {
            key: value.double() if value.is_floating_point() else value
            for key, value in read_tensors(folder, name).items()})
    index = "model.safetensors.index.json"
    if os.path.exists(os.path.join(folder, index)):
        shutil.copy(os.path.join(folder, index), copy)


# ---- pp's side

class Program:
    """The compiled program, and what it says of its sizes."""

    def __init__(self, options, copy, place, fields):
        self.path, self.place, self.names = os.path.join(place, "program"), place, (copy, options.folder)
        self.compile(options, copy, fields)
        said, info = self.call("--help"), self.call("--info")
        row = re.search(r"tokens \[w, w \+ (\d+)\]", said)
        step = re.search(r"step t holds sequences \(t-1\) \* (\d+) to", said)
        model = re.search(r"^model +(\S+), (\d+) parameters, vocabulary (\d+)", info, re.M)
        if not row or not step or not model:
            raise Refused("the program does not say what a step reads", said + info)
        self.sequence, self.rows = int(row[1]), int(step[1])
        self.parameters, self.vocabulary = int(model[2]), int(model[3])
        schedule = re.search(r"^schedule +(.*)$", info, re.M)[1]
        shape = re.search(r"^a step +(.*?)(?:,.*)?$", info, re.M)[1]
        self.told = f"schedule {schedule}, {shape}, {self.parameters} parameters, f64"

    def compile(self, options, copy, fields):
        given = {define.split("=")[0] for define in options.defines}
        allowed = [fields[name] for name in POSITIONS if isinstance(fields.get(name), int) and fields[name] > 0]
        defines = {"microbatches": 2, "data.microbatch": 2, "data.sequence": min([SEQUENCE, *allowed])}
        if not re.match("(std/)?single", options.schedule):
            defines = {"ranks": 2} | defines
        # What torch's side does not do: dropout, and the steps of a router's choice biases. Few models have these.
        extra = {"model.dropout": 0, "model.rate": 0}
        while True:
            its = {name: value for name, value in (defines | extra).items() if name not in given}
            its |= {"precision": "f64"} | {f"optimizer.{name}": value for name, value in RATES.items()}
            words = [*options.defines, *(f"{name}={value}" for name, value in its.items())]
            notes = [f"--config-note={options.notes}"] if options.notes else []
            command = [options.compiler, f"--from-hf={copy}", f"--schedule={options.schedule}", "-o", self.path, *notes,
                       *(word for define in words for word in ("-D", define))]
            try:
                done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            except OSError as error:
                raise Refused(f"cannot run `{options.compiler}`: {error.strerror}") from None
            absent = [name for name in extra if f"has no parameter `{name[6:]}`" in done.stderr]
            if not done.returncode or not absent:
                break
            for name in absent:
                del extra[name]
        if done.returncode:
            raise Refused("pp-compile refuses the folder", done.stderr.replace(copy, options.folder))

    def call(self, *words):
        done = subprocess.run([self.path, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 1:  # a file is wrong
            raise Refused("the program refuses the folder", done.stderr.lstrip("\n").replace(*self.names))
        if done.returncode:
            raise Wrong(f"the program ended with code {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def losses(self, steps, *words):
        log = os.path.join(self.place, "log.jsonl")
        with contextlib.suppress(FileNotFoundError):
            os.remove(log)
        self.call("--in-process", "--data", "u32:" + os.path.join(self.place, "tokens"), "--steps", str(steps), "--log",
                  log, *words)
        with open(log) as file:
            return [json.loads(line)["loss"] for line in file]

    def write_tokens(self):
        """A text, and after each fourth of its bytes any token, so that tokens repeat and all of them occur."""
        count, draw = STEPS * self.rows * self.sequence + 1, random.Random(1)
        tokens = [draw.randrange(self.vocabulary) if i % 5 == 4 else TEXT[i % len(TEXT)] % self.vocabulary
                  for i in range(count)]
        with open(os.path.join(self.place, "tokens"), "wb") as file:
            file.write(struct.pack(f"<{count}I", *tokens))
        return tokens


# ---- transformers' side

def make_f64():
    """Before transformers is imported, which keeps torch's types in default values."""
    import torch
    if not TYPES:
        TYPES.update(F64=torch.float64, F32=torch.float32, F16=torch.float16, BF16=torch.bfloat16, I64=torch.int64,
                     I32=torch.int32, U8=torch.uint8, BOOL=torch.bool)
        torch.set_default_dtype(torch.float64)
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


class Reference:
    """transformers' model of a folder, in f64, with neither dropout nor fused kernels."""

    def __init__(self, folder, weights=True):
        self.torch, transformers = make_f64()
        config = transformers.AutoConfig.from_pretrained(folder)
        for name, value in config.to_dict().items():
            if "drop" in name and isinstance(value, float):
                setattr(config, name, 0.0)
        config._experts_implementation = "eager"  # the others take no f64
        how, auto = dict(attn_implementation="eager", dtype=self.torch.float64), transformers.AutoModelForCausalLM
        images = transformers.AutoModelForImageTextToText  # of which the text is trained
        if type(config) not in auto._model_mapping.keys() or (
                hasattr(config, "vision_config") and type(config) in images._model_mapping.keys()):
            auto = images
        self.lacking = []
        if weights:
            self.model, info = auto.from_pretrained(folder, config=config, output_loading_info=True, **how)
            self.lacking = [f"{what.removesuffix('_keys')} `{name}`"
                            for what in ("missing_keys", "unexpected_keys", "mismatched_keys")
                            for name in sorted(map(str, info[what]))]
        else:
            self.torch.manual_seed(1)
            self.model = auto.from_config(config, **how)
        self.model.double().train(config.model_type not in DRAWN)

    def randomize(self, seed=7):
        """Norms around 1, matrices that keep the size of their input, small choice biases."""
        draw = self.torch.Generator().manual_seed(seed)
        noise = lambda value: self.torch.randn(value.shape, generator=draw, dtype=self.torch.float64)
        with self.torch.no_grad():
            for name, value in [*self.model.named_parameters(), *self.model.named_buffers()]:
                if CHOICE.search(name):
                    value.copy_(0.05 * noise(value))
                elif isinstance(value, self.torch.nn.Parameter):
                    if value.dim() <= 1 or "norm" in name.lower():
                        value.add_(0.2 * noise(value))
                    else:
                        value.copy_(noise(value) * (0.5 / math.sqrt(value.shape[-1])))

    def loss(self, tokens, rows, sequence, first):
        """The mean over rows `first`, `first` + 1, .. of the stream; the target of a token is the next one."""
        begin, count = first * sequence, rows * sequence
        read = self.torch.tensor(tokens[begin:begin + count]).reshape(rows, sequence)
        targets = self.torch.tensor(tokens[begin + 1:begin + count + 1])
        given = dict(input_ids=read, use_cache=False)
        if hasattr(self.model.config, "vision_config") and \
                "token_type_ids" in inspect.signature(self.model.forward).parameters:
            given["token_type_ids"] = self.torch.zeros_like(read)  # none is of an image
        # Of Llama 4's wrapper transformers 5.24 runs no text without images; what it calls for the logits is this.
        asked = self.model.language_model if self.model.config.model_type == "llama4" else self.model
        logits = asked(**given).logits
        return self.torch.nn.functional.cross_entropy(logits.reshape(count, -1), targets)

    def train(self, tokens, program):
        """The losses of the steps and the gradients of the first one."""
        weights = [value for value in self.model.parameters() if value.requires_grad]
        optimizer = self.torch.optim.AdamW(weights, lr=RATES["lr"], betas=(RATES["beta1"], RATES["beta2"]),
                                           eps=RATES["epsilon"], weight_decay=RATES["weight_decay"])
        losses, gradients = [], {}
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = self.loss(tokens, program.rows, program.sequence, step * program.rows)
            loss.backward()
            losses.append(loss.item())
            gradients = gradients or {name: value.grad.clone() for name, value in self.model.named_parameters()
                                      if value.grad is not None}
            self.torch.nn.utils.clip_grad_norm_(weights, RATES["clip"])
            optimizer.step()
        return losses, gradients

    def named_as_files(self, folder, gradients=None):
        """The weights, or these gradients, by their names in files."""
        if gradients is not None:
            with self.torch.no_grad():
                for name, value in self.model.named_buffers():
                    if value.is_floating_point():
                        value.fill_(NO_GRADIENT)
                for name, value in self.model.named_parameters():
                    value.fill_(NO_GRADIENT if CHOICE.search(name) or IMAGES.search(name) else 0)
                    if name in gradients:
                        value.copy_(gradients[name])
        self.model.save_pretrained(folder)
        return read_tensors(folder)


# ---- The comparison

def kind_of(name):
    return re.sub(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", "*", name)


def relative(ours, theirs, least):
    """The largest difference, relative to the largest of theirs; infinite where shapes differ or one is no number."""
    if ours.shape != theirs.shape:
        return math.inf
    if not ours.numel():
        return 0.0
    worst = (ours - theirs).abs().max().item()
    if not math.isfinite(worst):
        return math.inf
    largest = max(theirs.abs().max().item(), least)
    return worst / largest if largest else worst and math.inf


def paired(ours, theirs, prefix):
    """(name, ours, theirs) of tensors that both have. One may leave out the first word of names, `transformer.`."""
    for name, value in theirs.items():
        for its in (name, name.removeprefix(prefix), prefix + name):
            if its in ours:
                yield its, ours[its], value
                break


def has_no_gradient(value):
    return value.numel() > 0 and bool((value == NO_GRADIENT).all())


def check_names(ours, pairs, theirs, kept):
    """Every gradient has a partner. Buffers of transformers need none, nor what it has and reads nowhere."""
    lacking = sorted(ours.keys() - {name for name, _, _ in pairs})
    if lacking:
        raise Wrong(f"transformers has no gradient of `{lacking[0]}`")
    paired_ones = {id(value) for _, _, value in pairs}
    lacking = [name for name, value in theirs.items() if id(value) not in paired_ones and not has_no_gradient(value)
               and not (name in kept and not value.any())]
    if lacking:
        raise Wrong(f"the program has no gradient of `{lacking[0]}`")


def differences(pairs, least=0.0):
    """Rows (worst difference, name), worst first."""
    return sorted(((relative(its, other, least), name) for name, its, other in pairs), reverse=True)


def gradients_table(rows, every):
    """By kind of tensor, the worst first."""
    kinds = {}
    for worst, name in rows:
        kinds.setdefault(kind_of(name), []).append(worst)
    shown = list(kinds.items())[:None if every else ROWS]
    width = max(len("gradient of"), *(len(kind) for kind, _ in shown))
    yield f"{'gradient of':{width}}  tensors  worst difference"
    for kind, its in shown:
        yield f"{kind:{width}}  {len(its):7}  {its[0]:16.1e}"
    if len(shown) < len(kinds):
        yield f"and {len(kinds) - len(shown)} more kinds of tensors with smaller differences (--all shows them)"


def apart(ours, theirs):
    return abs(ours - theirs) / abs(theirs) if math.isfinite(ours) and math.isfinite(theirs) and theirs else math.inf


@contextlib.contextmanager
def told(sentence, kind=Refused):
    """An error of transformers, which may have any type, in one sentence."""
    try:
        yield
    except (Refused, Wrong):
        raise
    except Exception as error:  # pylint: disable=broad-exception-caught
        raise kind(f"{sentence}: {type(error).__name__}: {' '.join(str(error).split())[:500]}") from None


class Verdict:
    """Collects what differs, for the last line."""

    def __init__(self):
        self.found = []

    def check(self, good, sentence):
        if not good:
            self.found.append(sentence)


def judge(options, copy, place):
    fields = write_config(options.folder, copy)
    program = Program(options, copy, place, fields)
    print(f"{fields.get('model_type')}, {program.told}", flush=True)
    if program.parameters * 8 > options.limit * 2 ** 30:
        raise Refused(f"the model has {program.parameters * 8 / 2 ** 30:.1g} GiB of parameters in f64, and the limit "
                      f"is {options.limit:g} GiB; write fewer layers and smaller sizes into config.json, and use "
                      "--random")
    make_f64()
    if options.random or not weight_files(options.folder):
        print("weights     random ones" + ("" if options.random else "; the folder has no .safetensors file"))
        with told("transformers cannot make the model"):
            reference = Reference(copy, weights=False)
            reference.randomize()
        with open(os.path.join(copy, "config.json")) as file:  # transformers writes a longer one
            text = file.read()
        reference.named_as_files(copy)
        with open(os.path.join(copy, "config.json"), "w") as file:
            file.write(text)
    else:
        copy_weights(options.folder, copy)
    return compare(options, program, copy, place)


def compare(options, program, copy, place):
    at = lambda name: os.path.join(place, name)
    tokens, verdict = program.write_tokens(), Verdict()
    loss = program.losses(1, "--lr", "0", "--grads", at("gradients"), "--save", at("read"))[0]
    losses = program.losses(STEPS, "--save", at("saved"))
    again = program.losses(1, "--lr", "0", "--load", at("saved"))[0]

    with told("transformers cannot read or run the folder"):
        reference = Reference(copy)
        their_losses, gradients = reference.train(tokens, program)
        trained = reference.named_as_files(at("trained"))
        theirs = reference.named_as_files(at("gradients.folder"), gradients)
    prefix = reference.model.base_model_prefix + "."
    read, which = differences(paired(read_tensors(at("read")), read_tensors(copy), prefix))[0]
    verdict.check(read == 0, f"the program trains another `{which}` than the folder has, or saves another")
    if reference.lacking:
        print(f"folder      transformers finds in it: {', '.join(reference.lacking[:3])}")
    print(f"loss        pp {loss:.15g}, transformers {their_losses[0]:.15g}: {apart(loss, their_losses[0]):.1e} apart")
    verdict.check(apart(loss, their_losses[0]) <= LOSS, f"the losses are {apart(loss, their_losses[0]):.1e} apart")

    ours = read_tensors(place, "gradients")
    pairs = list(paired(ours, theirs, prefix))
    check_names(ours, pairs, theirs, read_tensors(at("read")))
    choices = sorted({kind_of(name) for name, _, value in pairs if has_no_gradient(value)})
    pairs = [pair for pair in pairs if not has_no_gradient(pair[2])]
    rows = differences(pairs, FLOOR * max(value.abs().max().item() for _, _, value in pairs))
    print("\n".join(gradients_table(rows, options.all)))
    if reference.model.config.model_type in DRAWN:
        print("evaluation: in training routers of this family draw experts at random, so nothing could be compared")
    if choices:
        print(f"not compared: {', '.join(choices)}; torch has no gradient of it")
    worst, which = rows[0]
    verdict.check(worst <= GRADIENT, f"the gradient of `{which}` is {worst:.1e} of its largest apart")

    furthest = max(map(apart, losses, their_losses))
    after, which = differences(paired(read_tensors(at("saved")), trained, prefix), RATES["lr"])[0]
    print(f"AdamW       {STEPS} steps: losses {furthest:.1e} apart, weights {after:.1e} of the largest of their tensor")
    verdict.check(furthest <= GRADIENT, f"the losses of {STEPS} steps are {furthest:.1e} apart")
    verdict.check(after <= GRADIENT, f"after {STEPS} steps `{which}` is {after:.1e} of its largest apart")

    with told("transformers cannot read the folder that the program saved", Wrong):
        loaded = Reference(at("saved"))
        with loaded.torch.no_grad():
            theirs = loaded.loss(tokens, program.rows, program.sequence, 0).item()
    print(f"saved       transformers loads it: loss {theirs:.15g}, pp {again:.15g}: {apart(again, theirs):.1e} apart")
    new = [what for what in loaded.lacking if what not in reference.lacking]
    verdict.check(not new, f"transformers finds in the saved folder: {', '.join(new[:3])}")
    verdict.check(apart(again, theirs) <= LOSS, f"the losses of the saved folder are {apart(again, theirs):.1e} apart")
    if verdict.found:
        raise Wrong("; ".join(verdict.found))
    print(f"right: the worst difference is {worst:.1e} of the largest gradient of a tensor, the bound is {GRADIENT:g}; "
          f"of losses it is {max(apart(loss, their_losses[0]), apart(again, theirs)):.1e}, the bound is {LOSS:g}")
    return RIGHT


# ---- The command line

def define(text):
    name, _, value = text.partition("=")
    if not value:
        raise argparse.ArgumentTypeError(f"expected name=value, got `{text}`")
    if name.startswith("optimizer") or name == "precision":
        raise argparse.ArgumentTypeError(f"this tool sets `{name}` itself")
    return text


def options_of(arguments):
    beside = os.path.join(os.path.dirname(os.path.realpath(__file__)), "pp-compile")
    parser = Parser(prog="pp-check-hf", description=__doc__, 
                    formatter_class=argparse.RawDescriptionHelpFormatter, epilog=f"""\
bounds:
losses: {LOSS:g}, relative. Gradients: {GRADIENT:g} of the largest of their tensor, or of {FLOOR:g} of the largest
of the model, if that is more. Losses of {STEPS} steps of AdamW: {GRADIENT:g}, relative. Weights after these steps:
{GRADIENT:g} of the largest of their tensor, or of the rate, {RATES['lr']:g}, if that is more.

exit codes:
0 right; 1 wrong: the last line says what differs; 2 refused: nothing was compared
""")
    parser.add_argument("folder", metavar="FOLDER", help="config.json, and .safetensors files if it has weights")
    parser.add_argument("--schedule", metavar="NAME", default="std/1f1b.pipe",
                        help="as pp-compile takes it (std/1f1b.pipe)")
    parser.add_argument("-D", dest="defines", metavar="DEFINE", type=define, action="append", default=[],
                        help="name=value, as pp-compile takes it (ranks=2, microbatches=2, data.microbatch=2, "
                             "data.sequence=24)")
    parser.add_argument("--config-note", dest="notes", metavar="NAMES", help="as pp-compile takes it")
    parser.add_argument("--random", action="store_true", help="random weights, whatever the folder has")
    parser.add_argument("--all", action="store_true", help=f"show all kinds of tensors, not the {ROWS} worst")
    parser.add_argument("--keep", metavar="DIR",
                        help="a new folder, which keeps the folder in f64, the program and what it wrote")
    parser.add_argument("--limit", metavar="GIB", type=float, default=2,
                        help="refuse more parameters than so many GiB in f64 (2)")
    parser.add_argument("--compiler", metavar="FILE", default=beside if os.path.exists(beside) else "pp-compile",
                        help="pp-compile (the one beside this tool)")
    return parser.parse_args(arguments)


def main(arguments=None):
    try:
        options = options_of(arguments)
        if lacking := [name for name in NEEDED if not importlib.util.find_spec(name)]:
            raise Refused(f"no module `{lacking[0]}`; this tool needs {', '.join(NEEDED[:-1])} and {NEEDED[-1]} in the "
                          "Python that runs it")
        with tempfile.TemporaryDirectory() as place:
            if options.keep:
                place = os.path.abspath(options.keep)
                try:
                    os.makedirs(place)
                except OSError as error:
                    raise Refused(f"cannot make `{options.keep}`: {error.strerror}") from None
            copy = os.path.join(place, "folder")
            os.makedirs(copy)
            return judge(options, copy, place)
    except Wrong as error:
        print(f"wrong: {error}", flush=True)
        return WRONG
    except Refused as error:
        print(error.text, end="", file=sys.stderr)
        print(f"pp-check-hf: refused: {error}", file=sys.stderr, flush=True)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
