#!/usr/bin/env python3
"""Turns texts, prompts with completions and chats into a dataset: tokens, documents, and which tokens are targets."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: pp-tokenize IN.jsonl --tokenizer DIR -o OUT.safetensors [--eos] [--max N] [--threads N]
# Each line is {"text": ..}, {"prompt": .., "completion": ..} or {"messages": [{"role": .., "content": ..}, ..]}. DIR is
# the folder of a published model: tokenizer.json, tokenizer_config.json, chat_template.jinja. The dataset has `tokens`,
# `documents` I64 and `counted` U8 (runtime/README.md). All of a text counts, of the others what the model answers.
import argparse, datetime, hashlib, json, os, re, sys

NEEDED = "tokenizers, jinja2, safetensors and numpy"
BATCH = 256  # lines that are tokenized together


class Refused(Exception):
    """What is wrong with the input, in one sentence."""


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise Refused(f"cannot read `{path}`: {error}") from None


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
    try:
        return environment.from_string(text)
    except jinja2.TemplateError as error:
        raise Refused(f"the chat template is not understood: {error}") from None


MARKS = ("\x02generation\x02", "\x03generation\x03")


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


class Tokenizer:
    def __init__(self, folder):
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
        config = os.path.join(folder, "tokenizer_config.json")
        self.config = read_json(config) if os.path.exists(config) else {}
        self.special = {name: self.spelling(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
                        if self.config.get(name)}
        self.template = None
        self.source = self.find_template(folder)

    def spelling(self, name):
        token = self.config[name]
        return token["content"] if isinstance(token, dict) else token

    def find_template(self, folder):
        path = os.path.join(folder, "chat_template.jinja")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return file.read()
        text = self.config.get("chat_template")
        if isinstance(text, list):  # several with names
            text = {entry["name"]: entry["template"] for entry in text}.get("default")
        return text

    def render(self, messages, prompts=False):
        import jinja2
        if self.source is None:
            raise Refused("a chat needs a template; the folder has no chat_template.jinja, and its "
                          "tokenizer_config.json no `chat_template`")
        self.template = self.template or make_template(self.source)
        try:
            return self.template.render(messages=messages, add_generation_prompt=prompts, tools=None, documents=None,
                                        **self.special)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise Refused(f"the chat template says: {error}") from None

    def end(self):
        """The number of the token that ends a text."""
        name = self.special.get("eos_token")
        number = None if name is None else self.tokenizer.token_to_id(name)
        if number is None:
            raise Refused("`--eos` needs an `eos_token` in tokenizer_config.json that tokenizer.json knows")
        return number

    def encode(self, texts):
        return self.tokenizer.encode_batch(texts, add_special_tokens=False)


def is_text(value):
    return isinstance(value, str)


class Document:
    """What has to be tokenized for one line, and how its tokens count."""

    def __init__(self, entry, tokenizer):
        keys = set(entry) if isinstance(entry, dict) else set()
        self.spans, self.runs, self.is_chat = None, [], "messages" in keys
        if "text" in keys and is_text(entry["text"]):
            self.texts = [entry["text"]]
        elif {"prompt", "completion"} <= keys and is_text(entry["prompt"]) and is_text(entry["completion"]):
            self.texts = [entry["prompt"] + entry["completion"], entry["prompt"]]
            self.runs = [(1, 0)]
        elif self.is_chat:
            self.read_chat(entry["messages"], tokenizer)
        else:
            raise Refused("expected `text`, `prompt` and `completion`, or `messages`, each of them text, got "
                          f"{', '.join(f'`{key}`' for key in sorted(keys)) or 'no object'}")

    def read_chat(self, messages, tokenizer):
        if not isinstance(messages, list) or not messages or not all(
                isinstance(message, dict) and is_text(message.get("role")) for message in messages):
            raise Refused("`messages` are no list of objects with a `role`")
        if any(mark in json.dumps(messages) for mark in ("\\u0002", "\\u0003")):
            raise Refused("`messages` have the control characters 2 or 3")
        plain, spans = without_marks(tokenizer.render(messages))
        self.texts = [plain]
        if "generation %}" in tokenizer.source or "generation -%}" in tokenizer.source:
            self.spans = spans
            return
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                self.texts.append(tokenizer.render(messages[:i], prompts=True))
                self.texts.append(tokenizer.render(messages[:i + 1]))
                self.runs.append((len(self.texts) - 2, len(self.texts) - 1))

    def tokens(self, encodings):
        """The tokens, and for each whether it counts."""
        whole = encodings[0].ids
        if self.spans is not None:
            return whole, [int(any(begin < last and first < end for first, last in self.spans))
                           for begin, end in encodings[0].offsets]
        if not self.runs and not self.is_chat:
            return whole, [1] * len(whole)
        counted = [0] * len(whole)
        for before, after in self.runs:
            for part in (encodings[before].ids, encodings[after].ids):
                if whole[:len(part)] != part:
                    raise Refused("the tokens of the prompt are not the first ones of the whole; a completion begins "
                                  "best with a blank" if not self.is_chat else
                                  "the template writes earlier messages otherwise when later ones follow, so what the "
                                  "model answers is not known")
            begin, end = len(encodings[before].ids), len(encodings[after].ids)
            counted[begin:end] = [1] * (end - begin)
        return whole, counted


class Dataset:
    def __init__(self, tokenizer, arguments):
        self.tokenizer, self.path, self.longest = tokenizer, arguments.input, arguments.max
        self.end = tokenizer.end() if arguments.eos else None
        self.tokens, self.counted, self.documents = [], [], [0]
        self.cut = self.empty = 0

    def add(self, lines):
        """lines: (number, text)."""
        documents = []
        for number, line in lines:
            try:
                documents.append((number, Document(json.loads(line), self.tokenizer)))
            except (ValueError, Refused) as error:
                raise Refused(f"{self.path}:{number}: {error}") from None
        encodings = self.tokenizer.encode([text for _, document in documents for text in document.texts])
        for number, document in documents:
            mine, encodings = encodings[:len(document.texts)], encodings[len(document.texts):]
            try:
                self.add_document(document, *document.tokens(mine))
            except Refused as error:
                raise Refused(f"{self.path}:{number}: {error}") from None

    def add_document(self, document, tokens, counted):
        if self.end is not None and not document.is_chat and tokens:
            tokens, counted = tokens + [self.end], counted + [1]
        if self.longest and len(tokens) > self.longest:
            tokens, counted = tokens[:self.longest], counted[:self.longest]
            self.cut += 1
        if not tokens:
            self.empty += 1
            return
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
        tensors = {"tokens": numpy.array(self.tokens, kind), "documents": numpy.array(self.documents, numpy.int64),
                   "counted": numpy.array(self.counted, numpy.uint8)}
        fresh = path + ".tmp"
        try:
            safetensors.numpy.save_file(tensors, fresh, {"vocab": str(vocab), "tokenizer": digest,
                                                         "made_by": "pp-tokenize"})
            os.replace(fresh, path)
        except Exception as error:
            if os.path.exists(fresh):
                os.remove(fresh)
            raise Refused(f"cannot write `{path}`: {error}") from None
        print(f"{len(self.documents) - 1} documents, {len(self.tokens)} tokens, {sum(self.counted)} count as targets"
              + (f"; {self.cut} cut to {self.longest} tokens" if self.cut else "")
              + (f"; {self.empty} empty ones left out" if self.empty else ""))


def at_least_1(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got `{text}`")
    return int(text)


def main():
    parser = argparse.ArgumentParser(prog="pp-tokenize", description=__doc__)
    parser.add_argument("input", metavar="IN.jsonl",
                        help="one JSON object a line: text, prompt and completion, or messages")
    parser.add_argument("--tokenizer", metavar="DIR", required=True, help="folder with tokenizer.json")
    parser.add_argument("-o", dest="output", metavar="OUT.safetensors", required=True)
    parser.add_argument("--eos", action="store_true", help="append the end token to texts and completions")
    parser.add_argument("--max", metavar="N", type=at_least_1, help="keep the first N tokens of a longer document")
    parser.add_argument("--threads", metavar="N", type=at_least_1, help="threads (all cores)")
    arguments = parser.parse_args()
    if arguments.threads:
        os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)
    try:
        import jinja2, numpy, safetensors, tokenizers  # pylint: disable=unused-import
    except ImportError as error:
        sys.exit(f"pp-tokenize: error: no module `{error.name}`; this tool needs {NEEDED}")
    try:
        dataset, lines = Dataset(Tokenizer(arguments.tokenizer), arguments), []
        with open(arguments.input, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    lines.append((number, line))
                if len(lines) == BATCH:
                    dataset.add(lines)
                    lines = []
        dataset.add(lines)
        dataset.write(arguments.output)
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"pp-tokenize: error: cannot read `{arguments.input}`: {error}")
    except Refused as error:
        sys.exit(f"pp-tokenize: error: {error}")


if __name__ == "__main__":
    main()
