#!/usr/bin/env python3
"""Turns texts, prompts with completions and chats into a dataset: tokens, documents, and which tokens are targets."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: pp-tokenize IN.jsonl --tokenizer DIR -o OUT.safetensors [--eos] [--max N] [--columns A,B] [--threads N]
#                    [--template-seconds N]
# Each line is {"text": ..}, {"prompt": .., "completion": ..} or {"messages": [{"role": .., "content": ..}, ..]}. DIR is
# the folder of a published model: tokenizer.json, tokenizer_config.json, chat_template.jinja. The dataset has `tokens`,
# `documents` I64 and `counted` (runtime/README.md). All tokens of a text are targets; in the other two kinds only the
# model's answers are. A line, or a message of the assistant, may have a `weight`, by which its targets count. `counted`
# is F32 if a weight is not 0 or 1. `--columns adv`: each text, completion or answer has `"adv": [..]`, a number, or a
# list of them, for each of its tokens. It is a column of the dataset, with 0 for all other tokens. A pair, {"prompt":
# .., "chosen": .., "rejected": ..}, makes two documents, the chosen one first: texts are as prompt and completion,
# lists of messages as a chat that goes on with them, and a prompt may be missing there. If one line is a pair, all are.
import argparse, datetime, hashlib, json, math, multiprocessing, os, re, resource, signal, sys

NEEDED = "tokenizers, jinja2, safetensors and numpy"
BATCH = 256  # lines that are tokenized together
LONGEST = 1 << 28  # characters of a line, and of what a chat template makes of one
MEMORY = 1 << 30  # bytes that a chat template may take
HEAVIEST = (2 - 2 ** -23) * 2 ** 127  # the largest f32


class Refused(Exception):
    """What is wrong with the input, in one sentence."""


def read_text(path):
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"cannot read `{path}`: {error}") from None


def read_object(path):
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise Refused(f"cannot read `{path}`: {error}") from None
    if not isinstance(value, dict):
        raise Refused(f"`{path}` is not a JSON object")
    return value


def is_text(value):
    return isinstance(value, str)


def check_characters(text):
    """Half of a surrogate pair is no character; JSON can spell one, and UTF-8 cannot."""
    found = re.search("[\ud800-\udfff]", text)
    if found:
        raise Refused(f"`\\u{ord(found.group()):04x}` is half of a surrogate pair, which is no character")


def weight_of(entry, what, times=1):
    weight, most = entry.get("weight", 1), HEAVIEST / max(times, 1)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight <= most:
        raise Refused(f"the `weight` of {what} is {json.dumps(weight)}; expected a number from 0 to {most:.6g}")
    return weight * times


def values_of(entry, name, what):
    """A column of one text, completion or answer: lists of numbers, all of one length."""
    given = entry.get(name)
    rows = given if isinstance(given, list) and given and all(isinstance(row, list) for row in given) else (
        [[value] for value in given] if isinstance(given, list) else None)
    if rows is None or any(len(row) != len(rows[0]) or not row for row in rows) or not all(
            isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= HEAVIEST
            for row in rows for value in row):
        raise Refused(f"the column `{name}` of {what} is {json.dumps(given)[:60]}; expected a list with a finite "
                      "number for each token, or with as many numbers for each")
    return rows, len(rows) > 0 and isinstance(given[0], list)


# ---- Chat templates

MARKS = ("\x02generation\x02", "\x03generation\x03")


class TooLong(Exception):
    """The time of a template is over."""


class Unwritable:
    """What a template may read and give to `tojson`, but not write as Python spells it."""

    def __str__(self):
        raise Refused("it writes a list or an object where it expects text")

    __repr__ = __str__


class Items(Unwritable, list):
    pass


class Fields(Unwritable, dict):
    pass


def unwritable(value, null=None):
    if isinstance(value, list):
        return Items(unwritable(item, null) for item in value)
    if isinstance(value, dict):
        return Fields((name, unwritable(field, null)) for name, field in value.items())
    return null if value is None else value


def make_template(text):
    """A chat template: Jinja as published models use it, in a sandbox."""
    import jinja2, jinja2.ext, jinja2.nodes, jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """{% generation %}: what the model answers, between marks that no text has."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

        def marked(self, caller):
            return MARKS[0] + caller() + MARKS[1]

    def refuse(message):
        raise jinja2.TemplateError(message)

    def to_json(value, ensure_ascii=False, **more):
        return json.dumps(value, ensure_ascii=ensure_ascii, **more)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(text)


def line_of(error):
    """The line of the template at which it went wrong; 0: not known."""
    line, trace = getattr(error, "lineno", 0), error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line or 0


def render(template, special, messages, prompts):
    def text_of(null):
        return template.render(messages=unwritable(messages, null), add_generation_prompt=prompts, tools=None,
                               documents=None, **special)

    text = text_of(None)
    if None in walk(messages) and "None" in text and text.count("None") > text_of("").count("None"):
        raise Refused("it writes `None` where a field is null")
    if len(text) > LONGEST:
        raise Refused(f"it writes more than {LONGEST} characters")
    return text


def walk(value):
    """Everything in lists and objects of JSON."""
    yield value
    for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from walk(item)


def serve(pipe, source, special, seconds):
    """Renders chats as the other end asks, in bounded time and memory: answers (texts, line, what is wrong)."""
    import jinja2

    def ring(*_):
        raise TooLong(f"it takes longer than {seconds:g} seconds")

    signal.signal(signal.SIGALRM, ring)
    with open("/proc/self/statm") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    template = None
    while True:
        try:
            jobs = pipe.recv()
        except EOFError:
            return
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            template = template or make_template(source)
            answer = [render(template, special, *job) for job in jobs], 0, ""
        except MemoryError:
            answer = None, 0, f"it needs more than {MEMORY >> 20} MiB of memory"
        except RecursionError:
            answer = None, 0, "it is nested too deep, or calls itself without an end"
        except Exception as error:  # pylint: disable=broad-except # of Jinja, or of Python in a template's expressions
            what = "" if template or isinstance(error, TooLong) else "it is not understood: "
            answer = None, line_of(error), what + (str(error) or type(error).__name__)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pipe.send(answer)


class ChatTemplate:
    """A template, and the process that renders it: what a template does, no Python can bound from inside."""

    def __init__(self, place, source, special, seconds):
        self.place, self.source, self.seconds = place, source, seconds
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, source, special, seconds), daemon=True)
        self.process.start()
        theirs.close()

    def render(self, jobs):
        """The text of each (messages, whether an answer is asked for)."""
        texts, line, what = None, 0, f"it takes longer than {self.seconds:g} seconds"
        try:
            self.pipe.send(jobs)
            if self.pipe.poll(2 * self.seconds + 5):
                texts, line, what = self.pipe.recv()
        except (EOFError, OSError):
            what = f"it needs more than {MEMORY >> 20} MiB of memory, or breaks Python"
        if texts is None:
            self.process.kill()
            raise Refused(f"the chat template of `{self.place}`{f', line {line}' if line else ''}: {what}")
        return texts


def without_marks(text):
    """The text, and where between its marks the answers are."""
    plain, spans, begin = "", [], 0
    for piece in re.split(f"({MARKS[0]}|{MARKS[1]})", text):
        if piece == MARKS[0]:
            begin = len(plain)
        elif piece == MARKS[1]:
            spans.append((begin, len(plain)))
        else:
            plain += piece
    return plain, spans


# ---- Tokens

class Tokenizer:
    def __init__(self, folder, seconds):
        import tokenizers
        self.path = os.path.join(folder, "tokenizer.json")
        if not os.path.isfile(self.path):
            raise Refused(f"`{folder}` has no tokenizer.json")
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(self.path)
        except Exception as error:  # the library raises this class itself
            raise Refused(f"cannot read `{self.path}`: {error}") from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.place = os.path.join(folder, "tokenizer_config.json")
        self.config = read_object(self.place) if os.path.exists(self.place) else {}
        self.special = {name: self.spelling(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
                        if self.config.get(name)}
        self.seconds, self.template, self.source = seconds, None, self.find_template(folder)
        # Whether the template itself marks what the model answers.
        self.marks = bool(self.source and re.search(r"generation -?%}", self.source))

    def spelling(self, name):
        token = self.config[name]
        token = token.get("content") if isinstance(token, dict) else token
        if not is_text(token):
            raise Refused(f"`{self.place}`: `{name}` is no text, and no object with its `content`")
        return token

    def find_template(self, folder):
        path = os.path.join(folder, "chat_template.jinja")
        if os.path.exists(path):
            self.place = path
            return read_text(path)
        text = self.config.get("chat_template")
        if isinstance(text, list):  # several with names
            text = next((entry.get("template") for entry in text
                         if isinstance(entry, dict) and entry.get("name") == "default"), None)
        if text is not None and not is_text(text):
            raise Refused(f"`{self.place}`: `chat_template` is no text, and no list of objects with `name` and "
                          "`template`")
        return text

    def render(self, jobs):
        """The text of each (messages, whether an answer is asked for)."""
        if self.source is None:
            raise Refused("a chat needs a template; the folder has no chat_template.jinja, and its "
                          "tokenizer_config.json no `chat_template`")
        self.template = self.template or ChatTemplate(self.place, self.source, self.special, self.seconds)
        return self.template.render(jobs)

    def end(self):
        """The number of the token that ends a text."""
        name = self.special.get("eos_token")
        number = None if name is None else self.tokenizer.token_to_id(name)
        if number is None:
            raise Refused("`--eos` needs an `eos_token` in tokenizer_config.json that tokenizer.json knows")
        return number

    def encode(self, texts):
        return self.tokenizer.encode_batch(texts, add_special_tokens=False)


def documents_of(entry):
    """The line itself; of a pair, both of its documents."""
    if not isinstance(entry, dict) or not {"chosen", "rejected"} & set(entry):
        return [entry]
    answers = [entry.get("chosen"), entry.get("rejected")]
    rest = {name: value for name, value in entry.items() if name not in ("prompt", "chosen", "rejected")}
    prompt = entry.get("prompt")
    if is_text(prompt) and all(map(is_text, answers)):
        return [rest | {"prompt": prompt, "completion": answer} for answer in answers]
    if (prompt is None or isinstance(prompt, list)) and all(isinstance(answer, list) for answer in answers):
        return [rest | {"messages": (prompt or []) + answer} for answer in answers]
    raise Refused("a pair has `prompt`, `chosen` and `rejected`, each of them a text, or each a list of messages")


class Document:
    """What has to be tokenized for one line, and how its tokens count."""

    def __init__(self, entry, tokenizer, columns):
        keys = set(entry) if isinstance(entry, dict) else set()
        self.spans, self.runs, self.is_chat = None, [], False
        self.weights = []  # of the answers
        self.columns = {}  # by name a list for each answer
        kinds = [kind for kind in (("text",), ("prompt", "completion"), ("messages",)) if keys.issuperset(kind)]
        if len(kinds) != 1 or not (kinds[0] == ("messages",) or all(is_text(entry[key]) for key in kinds[0])):
            raise Refused("expected `text`, `prompt` and `completion`, or `messages`, one of the three and each of "
                          f"them text, got {', '.join(f'`{key}`' for key in sorted(keys)) or 'no object'}")
        self.weight = weight_of(entry, "the line")
        if kinds[0] == ("text",):
            self.texts, said = [entry["text"]], [(entry, "the text")]
        elif kinds[0] == ("messages",):
            self.read_chat(entry["messages"], tokenizer, columns)
            said = [(message, "a message of the assistant") for message in entry["messages"]
                    if message["role"] == "assistant"]
        else:
            self.texts = [entry["prompt"] + entry["completion"], entry["prompt"]]
            said = [(entry, "the completion")]
            self.runs, self.weights = [(1, 0)], [self.weight]
        self.columns = {name: [values_of(its, name, what) for its, what in said] for name in columns}
        for text in self.texts:
            check_characters(text)

    def read_chat(self, messages, tokenizer, columns):
        self.is_chat = True
        if not isinstance(messages, list) or not messages or not all(
                isinstance(message, dict) and is_text(message.get("role")) for message in messages):
            raise Refused("`messages` are no list of objects with a `role`")
        for message in messages:
            if not isinstance(message.get("content"), (str, list, type(None))):
                raise Refused("the `content` of a message is no text, no list and not null")
        if any(mark in json.dumps(messages) for mark in ("\\u0002", "\\u0003")):
            raise Refused("`messages` have the control characters 2 or 3")
        for message in messages:
            if "weight" in message and message["role"] != "assistant":
                raise Refused(f"a message of `{message['role']}` has a `weight`; only what the assistant says counts")
        self.weights = [weight_of(message, "a message", self.weight) for message in messages
                        if message["role"] == "assistant"]
        messages = [{name: field for name, field in message.items()
                     if name != "weight" and name not in columns} for message in messages]
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        jobs = [(messages, False)]
        for i in answers:
            jobs += [(messages[:i], True), (messages[:i + 1], False)]
            self.runs.append((len(jobs) - 2, len(jobs) - 1))
        if tokenizer.marks:
            jobs, self.runs = jobs[:1], []
        self.texts = tokenizer.render(jobs)
        self.texts[0], spans = without_marks(self.texts[0])
        if tokenizer.marks:
            self.spans = spans
            if len(spans) != len(self.weights) and any(weight != self.weight for weight in self.weights):
                raise Refused(f"messages have a `weight`, and the template marks {len(spans)} answers where "
                              f"{len(self.weights)} are said")

    def tokens(self, encodings):
        """The tokens, for each its weight as a target, and those of each answer."""
        whole = encodings[0].ids
        if self.spans is not None:
            weights = self.weights if len(self.weights) == len(self.spans) else [self.weight] * len(self.spans)
            answers = [[i for i, (begin, end) in enumerate(encodings[0].offsets) if begin < last and first < end]
                       for first, last in self.spans]
            counted = [0] * len(whole)
            for answer, weight in zip(answers, weights):
                for i in answer:
                    counted[i] = max(counted[i], weight)
            return whole, counted, answers
        if not self.runs and not self.is_chat:
            return whole, [self.weight] * len(whole), [range(len(whole))]
        counted, answers = [0] * len(whole), []
        for (before, after), weight in zip(self.runs, self.weights):
            for part in (encodings[before].ids, encodings[after].ids):
                if whole[:len(part)] != part:
                    raise Refused("the tokens of the prompt are not the first ones of the whole; a completion begins "
                                  "best with a blank" if not self.is_chat else
                                  "the template writes earlier messages otherwise when later ones follow, so what the "
                                  "model answers is not known")
            begin, end = len(encodings[before].ids), len(encodings[after].ids)
            counted[begin:end] = [weight] * (end - begin)
            answers.append(range(begin, end))
        return whole, counted, answers

    def column(self, name, tokens, answers):
        """A list of numbers for each token, and whether the text has lists; none: it has no values."""
        given = self.columns[name]
        if len(given) != len(answers):
            raise Refused(f"the template marks {len(answers)} answers where {len(given)} have a column `{name}`")
        whole, is_list = [None] * tokens, False
        for (rows, has_lists), answer in zip(given, answers):
            if len(rows) != len(answer):
                raise Refused(f"the column `{name}` has {len(rows)} values where there are {len(answer)} tokens")
            is_list |= has_lists
            for i, row in zip(answer, rows):
                whole[i] = row
        return whole, is_list


class Dataset:
    def __init__(self, tokenizer, arguments):
        self.tokenizer, self.path, self.longest = tokenizer, arguments.input, arguments.max
        self.end = tokenizer.end() if arguments.eos else None
        self.tokens, self.counted, self.documents = [], [], [0]
        self.columns = {name: [] for name in arguments.columns}
        self.widths = {}  # of columns: numbers of a token, and whether they are in a list
        self.cut = self.empty = 0
        self.per_line = None  # documents: 1, or 2 of pairs

    def add(self, lines):
        """lines: (number, text)."""
        documents = []
        for number, line in lines:
            try:
                entries = documents_of(json.loads(line.rstrip()))
                self.per_line = self.per_line or len(entries)
                if len(entries) != self.per_line:
                    raise Refused("the line is " + ("a pair, and the first one is none" if len(entries) > 1 else
                                                    "no pair, and the first one is"))
                if len(entries) > 1 and self.columns:
                    raise Refused("`--columns` is for lines that are no pairs")
                documents += [(number, Document(entry, self.tokenizer, list(self.columns))) for entry in entries]
            except json.JSONDecodeError as error:
                raise Refused(f"{self.path}:{number}:{error.colno}: no JSON: {error.msg}") from None
            except (ValueError, RecursionError, Refused) as error:
                raise Refused(f"{self.path}:{number}: {error}") from None
        encodings = self.tokenizer.encode([text for _, document in documents for text in document.texts])
        for number, document in documents:
            mine, encodings = encodings[:len(document.texts)], encodings[len(document.texts):]
            try:
                self.add_document(document, *document.tokens(mine))
            except Refused as error:
                raise Refused(f"{self.path}:{number}: {error}") from None

    def add_columns(self, document, tokens, answers, length):
        """Of the first `length` tokens, of which some may be behind those of the text."""
        for name, all_values in self.columns.items():
            rows, is_list = document.column(name, tokens, answers)
            widths = {len(row) for row in rows if row is not None}
            if widths and widths != {self.widths.setdefault(name, (*widths, is_list))[0]}:
                raise Refused(f"the column `{name}` has {', '.join(map(str, sorted(widths)))} numbers for a token; "
                              f"expected {self.widths[name][0]}, as in lines before")
            all_values += (rows + [None])[:length]

    def add_document(self, document, tokens, counted, answers):
        its = len(tokens)
        if self.end is not None and not document.is_chat and tokens:
            tokens, counted = tokens + [self.end], counted + [document.weight]
        if self.longest and len(tokens) > self.longest:
            tokens, counted = tokens[:self.longest], counted[:self.longest]
            self.cut += 1
        if not tokens:
            if self.per_line > 1:
                raise Refused("a document of the pair has no tokens")
            self.empty += 1
            return
        self.add_columns(document, its, answers, len(tokens))
        self.tokens += tokens
        self.counted += counted
        self.documents.append(len(self.tokens))

    def write(self, path):
        import numpy, safetensors.numpy
        if not self.tokens:
            raise Refused(f"`{self.path}` has no tokens")
        vocab = self.tokenizer.tokenizer.get_vocab_size(with_added_tokens=True)
        with open(self.tokenizer.path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        kind = numpy.uint16 if max(self.tokens) < 65536 else numpy.int32
        counted = numpy.array(self.counted, numpy.float32)
        weighted = bool((counted * counted != counted).any())
        tensors = {"tokens": numpy.array(self.tokens, kind), "documents": numpy.array(self.documents, numpy.int64),
                   "counted": counted if weighted else counted.astype(numpy.uint8)}
        for name, rows in self.columns.items():
            width, is_list = self.widths.get(name, (1, False))
            rows = [row or [0] * width for row in rows]
            whole = all(isinstance(value, int) and abs(value) < 1 << 31 for row in rows for value in row)
            tensors[name] = numpy.array(rows if is_list else [row[0] for row in rows],
                                        numpy.int32 if whole else numpy.float32)
        fresh = path + ".tmp"
        try:
            safetensors.numpy.save_file(tensors, fresh, {"vocab": str(vocab), "tokenizer": digest,
                                                         "made_by": "pp-tokenize"})
            with open(fresh, "rb") as file:
                os.fsync(file.fileno())
            say(self.summary(numpy.count_nonzero(counted), f", with weights of {math.fsum(counted):g} in all"
                             if weighted else ""))
            os.replace(fresh, path)
        except Refused:
            raise
        except Exception as error:  # of the library, or of the system
            raise Refused(f"cannot write `{path}`: {error}") from None
        finally:
            if os.path.exists(fresh):
                os.remove(fresh)

    def summary(self, targets, weights):
        return ((f"{(len(self.documents) - 1) // 2} pairs, " if self.per_line == 2 else "")
                + f"{len(self.documents) - 1} documents, {len(self.tokens)} tokens, {targets} count as targets{weights}"
                + (f"; {self.cut} cut to {self.longest} tokens" if self.cut else "")
                + (f"; {self.empty} empty ones left out" if self.empty else ""))


def say(text):
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is buffered
        raise Refused(f"cannot write to standard output: {error.strerror}") from None


def numbered_lines(path):
    """(number, line) of those that are not empty."""
    number = 0
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            while line := file.readline(LONGEST):
                number += 1
                if wrong := re.search("[\udc80-\udcff]", line):
                    raise Refused(f"{path}:{number}: the byte {ord(wrong.group()) - 0xdc00:#x} is not UTF-8")
                if len(line) == LONGEST:
                    raise Refused(f"{path}:{number}: the line has more than {LONGEST} characters")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise Refused(f"cannot read `{path}`: {error.strerror}") from None


def at_least_1(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got `{text}`")
    return int(text)


def names(text):
    given = text.split(",")
    for name in given:
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) or given.count(name) > 1 or name in (
                "tokens", "documents", "counted", "text", "prompt", "completion", "messages", "role", "content",
                "weight"):
            raise argparse.ArgumentTypeError(f"expected names of columns, each once, got `{name}`")
    return given


def main():
    parser = argparse.ArgumentParser(prog="pp-tokenize", description=__doc__)
    parser.add_argument("input", metavar="IN.jsonl",
                        help="one JSON object a line: text, prompt and completion, messages, or a pair: prompt, "
                             "chosen and rejected")
    parser.add_argument("--tokenizer", metavar="DIR", required=True, help="folder with tokenizer.json")
    parser.add_argument("-o", dest="output", metavar="OUT.safetensors", required=True)
    parser.add_argument("--eos", action="store_true", help="append the end token to texts and completions")
    parser.add_argument("--max", metavar="N", type=at_least_1, help="keep the first N tokens of a longer document")
    parser.add_argument("--columns", metavar="A,B", type=names, default=[],
                        help="columns: lists with a number, or a list of numbers, for each token")
    parser.add_argument("--threads", metavar="N", type=at_least_1, help="threads (all cores)")
    parser.add_argument("--template-seconds", metavar="N", type=at_least_1, default=10,
                        help="seconds that the chat template may take for a line (10)")
    arguments = parser.parse_args()
    if arguments.threads:
        os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)
    try:
        import jinja2, numpy, safetensors, tokenizers  # pylint: disable=unused-import
    except ImportError as error:
        sys.exit(f"pp-tokenize: error: no module `{error.name}`; this tool needs {NEEDED}")
    try:
        dataset, lines = Dataset(Tokenizer(arguments.tokenizer, arguments.template_seconds), arguments), []
        for line in numbered_lines(arguments.input):
            lines.append(line)
            if len(lines) == BATCH:
                dataset.add(lines)
                lines = []
        dataset.add(lines)
        dataset.write(arguments.output)
    except Refused as error:
        sys.exit(f"pp-tokenize: error: {error}")


if __name__ == "__main__":
    main()
