#!/usr/bin/env python3
"""Judges pp-tokenize on a tokenizer of a dozen words: tokens, documents, what counts, and what it refuses by line."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: tokenizes.py PP_COMPILE FOLDER
# Without the libraries that pp-tokenize needs, nothing is judged.
import importlib.util, json, os, runpy, struct, subprocess, sys, types
import harness

TOOL = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "pp-tokenize")  # beside pp-compile
WORDS = ["[UNK]", "<s>", "</s>", "<user>", "<bot>", "a", "b", "c", "d", "e", "?", "!"]
A, B, C, D, E = range(5, 10)
BEGIN, END, USER, BOT = 1, 2, 3, 4
# The usual kind of template: a role's mark, what it says, an end; the mark alone asks for an answer.
CHAT = """{{ bos_token }}{% for message in messages %}
    {% if message.role not in ['user', 'assistant'] %}
        {{ raise_exception('there is no role ' + message.role) }}
    {% endif %}
 {{ '<user>' if message.role == 'user' else '<bot>' }} {{ message.content }} {{ eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
 <bot>
{%- endif %}"""
# It says itself what is an answer.
MARKED = """{% for message in messages %}{% if message.role == 'assistant' %}<bot>{% generation %}
 {{ message.content }} </s>
{%- endgeneration %} {% else %}<user> {{ message.content }} </s> {% endif %}{% endfor %}"""
# It makes text of what it gets, however that is done.
ANY = """{% for message in messages %}<bot> {{ CONTENT }} </s> {% endfor %}"""
# An answer is shortened when another one follows it.
FORGETS = """{% for message in messages %}<bot> {{ message.content if loop.last else 'a' }} {% endfor %}"""


def folder_of(folder, name, template=None, eos="</s>"):
    place = os.path.join(folder, name)
    os.makedirs(place, exist_ok=True)
    special = [dict(id=i, content=WORDS[i], single_word=False, lstrip=False, rstrip=False, normalized=False,
                    special=True) for i in range(5)]
    with open(os.path.join(place, "tokenizer.json"), "w") as file:
        json.dump(dict(version="1.0", truncation=None, padding=None, added_tokens=special, normalizer=None,
                       pre_tokenizer=dict(type="Whitespace"), post_processor=None, decoder=None,
                       model=dict(type="WordLevel", vocab={word: i for i, word in enumerate(WORDS)},
                                  unk_token="[UNK]")), file)
    config = dict(bos_token=dict(content="<s>"), eos_token=eos)
    if template is not None:
        config["chat_template"] = template
    with open(os.path.join(place, "tokenizer_config.json"), "w") as file:
        json.dump(config, file)
    return place


def run(folder, model, lines, *options, expect=0, stdout=subprocess.DEVNULL, tool=(TOOL,)):
    source, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.safetensors")
    if os.path.exists(out):
        os.remove(out)
    with open(source, "wb") as file:
        for line in lines:
            file.write((line if isinstance(line, bytes) else
                        (line if isinstance(line, str) else json.dumps(line)).encode()) + b"\n")
    done = subprocess.run([sys.executable, *tool, source, "--tokenizer", model, "-o", out, *options],
                          stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == expect, done.stderr
    if expect:
        assert not any(name.startswith("out.") for name in os.listdir(folder)), "half written"
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr
    with open(out, "rb") as file:
        body = file.read()
    (size,) = struct.unpack("<Q", body[:8])
    header = json.loads(body[8:8 + size])
    assert header["__metadata__"]["vocab"] == str(len(WORDS)), header
    tensors = {}
    counted = ("counted", "f", 4) if header["counted"]["dtype"] == "F32" else ("counted", "B", 1)
    for name, letter, width in (("tokens", "H", 2), ("documents", "q", 8), counted):
        begin, end = header[name]["data_offsets"]
        tensors[name] = struct.unpack(f"<{(end - begin) // width}{letter}", body[8 + size + begin:8 + size + end])
    bounds = tensors["documents"]
    return [(list(tensors["tokens"][a:b]), list(tensors["counted"][a:b])) for a, b in zip(bounds, bounds[1:])]


def say(*turns):
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def check_texts(folder):
    model = folder_of(folder, "plain")
    lines = [{"text": "a b c"}, {"text": ""}, "", {"prompt": "a b", "completion": " c d"}, {"text": "e zz"}]
    expected = [([A, B, C], [1, 1, 1]), ([A, B, C, D], [0, 0, 1, 1]), ([E, 0], [1, 1])]
    assert run(folder, model, lines) == expected
    assert run(folder, model, lines, "--threads", "1") == expected
    ended = [(tokens + [END], counted + [1]) for tokens, counted in expected]
    assert run(folder, model, lines, "--eos") == ended
    assert run(folder, model, lines, "--eos", "--max", "3") == [(t[:3], c[:3]) for t, c in ended]
    many = [{"text": WORDS[5 + i % 5]} for i in range(600)]  # more than are tokenized together
    assert run(folder, model, many) == [([5 + i % 5], [1]) for i in range(600)]


def check_chats(folder):
    chats = [say(("user", "a b ?"), ("assistant", "c !"), ("user", "d"), ("assistant", "e e")), say(("user", "a"))]
    tokens = [USER, A, B, 10, END, BOT, C, 11, END, USER, D, END, BOT, E, E, END]
    counted = [0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1]
    expected = [([BEGIN, *tokens], [0, *counted]), ([BEGIN, USER, A, END], [0] * 4)]
    assert run(folder, folder_of(folder, "chat", CHAT), chats) == expected
    apart = folder_of(folder, "apart")
    with open(os.path.join(apart, "chat_template.jinja"), "w") as file:
        file.write(CHAT)
    assert run(folder, apart, chats) == expected
    assert run(folder, folder_of(folder, "marked", MARKED), chats) == [(tokens, counted), ([USER, A, END], [0] * 3)]


def check_pairs(folder):
    """Two documents a line, the chosen one first; of texts, of messages behind a prompt, and of whole chats."""
    model, chat = folder_of(folder, "plain"), folder_of(folder, "chat", CHAT)
    lines = [{"prompt": "a b", "chosen": " c", "rejected": " d e", "weight": 2}] * 300  # more than go together
    assert run(folder, model, lines) == [([A, B, C], [0, 0, 2]), ([A, B, D, E], [0, 0, 2, 2])] * 300
    turn = lambda role, content: {"role": role, "content": content}
    prompt, good, bad = turn("user", "a"), turn("assistant", "c"), turn("assistant", "d e")
    expected = [([BEGIN, USER, A, END, BOT, C, END], [0] * 5 + [1] * 2),
                ([BEGIN, USER, A, END, BOT, D, E, END], [0] * 5 + [1] * 3)]
    assert run(folder, chat, [{"prompt": [prompt], "chosen": [good], "rejected": [bad]}]) == expected
    assert run(folder, chat, [{"chosen": [prompt, good], "rejected": [prompt, bad]}]) == expected
    pair = {"prompt": "a", "chosen": " b", "rejected": " c"}
    for given, options, said in (
            ([pair, {"text": "a"}], [], "in.jsonl:2: the line is no pair, and the first one is"),
            ([{"text": "a"}, pair], [], "in.jsonl:2: the line is a pair, and the first one is none"),
            ([{"chosen": "a", "rejected": "b"}], [], "in.jsonl:1: a pair has `prompt`, `chosen` and `rejected`"),
            ([pair | {"rejected": [bad]}], [], "in.jsonl:1: a pair has `prompt`, `chosen` and `rejected`"),
            ([{"prompt": "a", "chosen": " b"}], [], "in.jsonl:1: a pair has `prompt`, `chosen` and `rejected`"),
            ([{"prompt": "", "chosen": "a", "rejected": ""}], [], "in.jsonl:1: a document of the pair has no tokens"),
            ([pair], ["--columns", "adv"], "in.jsonl:1: `--columns` is for lines that are no pairs")):
        text = run(folder, model, given, *options, expect=1)
        assert said in text, text


def check_weights(folder):
    """A line and an answer may have a weight; 0 and 1 alone are what counts and what does not, in one byte."""
    model = folder_of(folder, "plain")
    lines = [{"text": "a b", "weight": 0.5}, {"prompt": "a", "completion": " c", "weight": 3}, {"text": "d"}]
    expected = [([A, B], [0.5, 0.5]), ([A, C], [0, 3]), ([D], [1])]
    assert run(folder, model, lines) == expected
    assert run(folder, model, lines, "--eos") == [
        (tokens + [END], weights + weights[-1:]) for tokens, weights in expected]
    got = run(folder, model, [{"text": "a", "weight": 0}, {"text": "b", "weight": 1.0}])
    assert got == [([A], [0]), ([B], [1])] and type(got[0][1][0]) is int, got
    turns = say(("user", "a"), ("assistant", "c"), ("user", "d"), ("assistant", "e"))
    turns["messages"][1]["weight"], turns["messages"][3]["weight"], turns["weight"] = 0, 0.25, 2
    tokens, weights = [USER, A, END, BOT, C, END, USER, D, END, BOT, E, END], [0] * 10 + [0.5, 0.5]
    chat = folder_of(folder, "chat", CHAT)
    assert run(folder, chat, [turns]) == [([BEGIN, *tokens], [0, *weights])]
    assert run(folder, folder_of(folder, "marked", MARKED), [turns]) == [(tokens, weights)]
    dumps = folder_of(folder, "dumps", ANY.replace("CONTENT", "message | length"))  # the field is not the template's
    assert run(folder, dumps, [turns])[0][0] == run(folder, dumps, [say(*[
        (message["role"], message["content"]) for message in turns["messages"]])])[0][0]
    turns["messages"][0]["weight"] = 1
    once = folder_of(folder, "once", "{% generation %}{{ messages[1].content }}{% endgeneration %}")
    heavy = {"weight": 1e20, "messages": [{"role": "assistant", "content": "a", "weight": 1e20}]}
    for model, line, what in ((model, {"text": "a", "weight": -1}, "the `weight` of the line is -1; expected a number"),
                              (model, '{"text": "a", "weight": NaN}', "is NaN; expected a number from 0 to 3.4"),
                              (model, {"text": "a", "weight": 10**400}, "0; expected a number from 0 to 3.40282e+38"),
                              (model, {"text": "a", "weight": True}, "is true; expected"),
                              (model, {"text": "a", "weight": "1"}, 'is "1"; expected'),
                              (chat, heavy, "of a message is 1e+20; expected a number from 0 to 3.40282e+18"),
                              (chat, turns, "a message of `user` has a `weight`"),
                              (once, {"messages": turns["messages"][1:]}, "marks 1 answers where 2 are said")):
        said = run(folder, model, [line], expect=1)
        assert "in.jsonl:1: " in said and what in said, said


def column_of(folder, name):
    """The type, shape and values of a column of what was written last."""
    with open(os.path.join(folder, "out.safetensors"), "rb") as file:
        body = file.read()
    (size,) = struct.unpack("<Q", body[:8])
    its = json.loads(body[8:8 + size])[name]
    begin, end = its["data_offsets"]
    letter = {"F32": "f", "I32": "i"}[its["dtype"]]
    return its["dtype"], its["shape"], list(struct.unpack(f"<{(end - begin) // 4}{letter}", body[8 + size:][begin:end]))


def check_columns(folder):
    """Values of tokens stand where their tokens do; what nobody gave a value for has 0."""
    model = folder_of(folder, "plain")
    lines = [{"text": "a b", "adv": [0.5, -2], "ids": [[1, 2], [3, 4]]},
             {"prompt": "a", "completion": " c d", "adv": [3, 4], "ids": [[5, 6], [7, 8]]}]
    options = ("--columns", "adv,ids")
    assert run(folder, model, lines, *options) == run(folder, model, lines)
    run(folder, model, lines, *options)
    assert column_of(folder, "adv") == ("F32", [5], [0.5, -2, 0, 3, 4])
    assert column_of(folder, "ids") == ("I32", [5, 2], [1, 2, 3, 4, 0, 0, 5, 6, 7, 8])
    run(folder, model, lines, *options, "--eos", "--max", "3")  # the end has no value, and what is cut has none
    assert column_of(folder, "adv") == ("F32", [6], [0.5, -2, 0, 0, 3, 4])
    run(folder, model, lines, *options, "--max", "1")
    assert column_of(folder, "ids") == ("I32", [2, 2], [1, 2, 0, 0])
    turns = say(("user", "a b"), ("assistant", "c"), ("user", "d"), ("assistant", "e e"))
    turns["messages"][1]["adv"], turns["messages"][3]["adv"] = [1, 2], [0.25, 4, 5]
    for template, first in ((CHAT, 6), (MARKED, 5)):  # answers end with the end of a turn
        run(folder, folder_of(folder, "turns", template), [turns], "--columns", "adv")
        assert column_of(folder, "adv")[2] == [0] * first + [1, 2] + [0] * 4 + [0.25, 4, 5], template
    wrong = [{"text": "a b", "adv": [1]}, {"text": "a b"}, {"text": "a b", "adv": [1, "2"]},
             {"text": "a", "adv": [True]}, {"text": "a b", "adv": [[1], [2, 3]]}, '{"text": "a", "adv": [NaN]}',
             {"text": "a", "adv": [[]]}]
    sentences = ["the column `adv` has 1 values where there are 2 tokens",
                 "the column `adv` of the text is null; expected"] + ["the column `adv` of the text is "] * 5
    for line, sentence in zip(wrong, sentences):
        text = run(folder, model, [{"text": "a", "adv": [1]}, line], "--columns", "adv", expect=1)
        assert "in.jsonl:2: " in text and sentence in text, text
    text = run(folder, model, [lines[0], {"text": "a", "adv": [1], "ids": [[1, 2, 3]]}], *options, expect=1)
    assert "in.jsonl:2: the column `ids` has 3 numbers for a token; expected 2, as in lines before" in text, text
    del turns["messages"][3]["adv"]
    text = run(folder, folder_of(folder, "turns", CHAT), [turns], "--columns", "adv", expect=1)
    assert "in.jsonl:1: the column `adv` of a message of the assistant is null; expected a list" in text, text


def check_refused(folder):
    plain, chat = folder_of(folder, "plain"), folder_of(folder, "chat", CHAT)
    turns = say(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    good = {"text": "a"}
    for model, lines, options, expected in (
        (plain, [good, "{"], [], "in.jsonl:2:2: no JSON: "),
        (plain, [good, "", {"txt": "a"}], [], "in.jsonl:3: expected `text`"),
        (plain, [{"text": 3}], [], "in.jsonl:1: expected `text`"), (plain, ["[1]"], [], "got no object"),
        (chat, [good, turns | good], [], "in.jsonl:2: expected `text`, `prompt` and `completion`, or `messages`"),
        (plain, [good, '{"text": "a \\ud83d b"}'], [], "in.jsonl:2: `\\ud83d` is half of a surrogate pair"),
        (chat, [json.dumps(say(("user", "\udc01")))], [], "in.jsonl:1: `\\udc01` is half of a surrogate pair"),
        (plain, [good, b'{"text": "\xff"}'], [], "in.jsonl:2: the byte 0xff is not UTF-8"),
        (plain, [good, b'\xef\xbb\xbf{"text": "a"}'], [], "in.jsonl:2:1: no JSON: "),
        (plain, [good, "[" * 100000], [], "in.jsonl:2: "), (chat, [say(("user", 5))], [], "is no text, no list"),
        (plain, [turns], [], "in.jsonl:1: a chat needs a template"),
        (chat, [say(("robot", "a"))], [], f"in.jsonl:1: the chat template of `{chat}/tokenizer_config.json`, line 3: "
         "there is no role robot"),
        (chat, [{"messages": "a"}], [], "no list of objects"),
        (folder_of(folder, "forgets", FORGETS), [say(("assistant", "b"), ("assistant", "c"))], [], "is not known"),
        (folder_of(folder, "broken", "a\n{% for %}"), [turns], [], "config.json`, line 2: it is not understood: "),
        (chat, [{"prompt": "a b", "completion": "c"}], [], "in.jsonl:1: the tokens of the prompt are not the first"),
        (folder_of(folder, "endless", eos=None), [good], ["--eos"], "needs an `eos_token`"),
        (plain, [], [], "has no tokens"), (os.path.join(folder, "none"), [good], [], "has no tokenizer.json")):
        text = run(folder, model, lines, *options, expect=1)
        assert expected in text and text.startswith("pp-tokenize: error: "), text


def loaded():
    """The tool as a module."""
    return types.SimpleNamespace(**runpy.run_path(TOOL))


def check_contents(folder):
    """What is no text is not spelt as Python spells it, whatever the template does with it."""
    parts, tools = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], {"name": "c", "of": None}
    tool = loaded()
    for written in ("message.content", "message['content'] | trim", "'' ~ message.content", "message.content | string",
                    "'%s' % message.content", "[message.content] | join", "'{}'.format(message.content)",
                    "'a ' + message.content"):
        template = tool.make_template(ANY.replace("CONTENT", written))
        for content, what in (("None a", ""), (None, "it writes `None` where a field is null"),
                              (parts, "it writes a list or an object"), (["a"], "it writes a list or an object")):
            try:
                tool.render(template, {}, [{"role": "assistant", "content": content}], False)
                said = ""
            except (tool.Refused, TypeError) as error:
                said = str(error)
            assert bool(said) == bool(what) and (what in said or "concatenate" in said), (written, content, said)
    text = run(folder, folder_of(folder, "any", ANY.replace("CONTENT", "message.content")), [
        {"text": "a"}, {"messages": [{"role": "assistant", "content": None}]}], expect=1)
    assert "in.jsonl:2: the chat template of `" in text and "writes `None`" in text, text
    # A template that knows lists and null is used as it is.
    model = folder_of(folder, "knows", ANY.replace(
        "{{ CONTENT }}", "{% if message.content is none %}{{ message.calls | tojson }}{% elif message.content is string"
        " %}{{ message.content }}{% else %}{% for part in message.content %}{{ part.text }} {% endfor %}{% endif %}"))
    entry = {"messages": [{"role": "user", "content": parts}, {"role": "user", "content": None, "calls": tools}]}
    ((tokens, _),) = run(folder, model, [entry])
    assert tokens[:4] == [BOT, A, B, END] and tokens[-1] == END and C in tokens, tokens
    # A mark of the order of bytes is no part of the text.
    model = folder_of(folder, "ordered")
    assert run(folder, model, [b'\xef\xbb\xbf{"text": "a"}']) == [([A], [1])]
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        with open(os.path.join(model, name), "w", encoding="utf-8-sig") as file:
            file.write(CHAT if name.endswith("jinja") else '{"bos_token": "<s>", "eos_token": "</s>"}')
    assert run(folder, model, [say(("user", "a"))]) == [([BEGIN, USER, A, END], [0] * 4)]


def check_bounds(folder):
    """No template takes more time or memory than it may, and a full disk leaves nothing behind."""
    tool, chat = loaded(), [say(("user", "a"))]
    for number, (template, line, what) in enumerate((
            ("\n{{ range(10**10) | list }}", 2, "Range too big"), ("{{ 'a' * 10**11 }}", 0, "1024 MiB of memory"),
            ("{% for message in messages %}\n{{ 'a' * (10**11 // loop.index) }}{% endfor %}", 0, "1024 MiB of memory"),
            ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", 0, "calls itself without an end"),
            ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", 0, "nested too deep"),
            ("{% for i in range(99999) %}\n{% for j in range(99999) %}{% endfor %}{% endfor %}", 2, "than 1 seconds"),
            ("{{ messages.x.y }}", 1, "has no attribute 'x'"),
            ("{{ messages[0].__class__.__mro__ }}", 1, "'__class__'"), ("", None, "no tokens"),
            (5, None, "tokenizer_config.json`: `chat_template` is no text"), ([1], None, "a chat needs a template"))):
        place = folder_of(folder, f"bounds{number}", template)
        text = run(folder, place, chat, "--template-seconds", "1", expect=1)
        assert what in text and (line is None or f"in.jsonl:1: the chat template of `{place}/tokenizer_config.json`"
                                 f"{f', line {line}' if line else ''}: " in text), text
    for body in ("[1]", '{"eos_token": 5}', '{"eos_token": {"a": 1}}', "[" * 100000, "\xff"):
        place = folder_of(folder, "config")
        with open(os.path.join(place, "tokenizer_config.json"), "w", encoding="latin-1") as file:
            file.write(body)
        try:
            tool.Tokenizer(place, 1)
            assert False, body
        except tool.Refused as error:
            assert "tokenizer_config.json`" in str(error), error
    plain = folder_of(folder, "plain")
    with open("/dev/full", "w") as full:
        text = run(folder, plain, [{"text": "a"}], expect=1, stdout=full)
    assert "cannot write to standard output: No space left on device" in text, text
    limited = os.path.join(folder, "limited.py")  # its files have at most 16 KiB
    with open(limited, "w") as file:
        file.write("import os, resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))\n"
                   "os.execv(sys.executable, [sys.executable] + sys.argv[1:])\n")
    text = run(folder, plain, [{"text": "a " * 20000}], expect=1, tool=[limited, TOOL])
    assert "cannot write `" in text and "File too large" in text, text


def check_trains(compiler, folder):
    """What it writes is data for a program."""
    program = harness.compile_train(compiler, os.path.join(folder, "program"), dict(
        model="llama", schedule="1f1b", ranks=2, microbatches=2, layers=2, hidden=8, heads=1, kv_heads=1, ffn=16,
        vocab=len(WORDS), sequence=16, microbatch=1), options=["-D", "data.documents=true"])
    run(folder, folder_of(folder, "chat", CHAT), [say(("user", "a b ?"), ("assistant", "c !"))] * 5)
    log = os.path.join(folder, "log.jsonl")
    harness.call([program, "--in-process", "--data", os.path.join(folder, "out.safetensors"), "--steps", "2", "--log",
                  log])
    assert [line["tokens"] for line in harness.read_log(log)] == [6, 6], "three targets in each of two rows"


def main():
    compiler, folder = sys.argv[1:]
    if any(importlib.util.find_spec(name) is None for name in ("tokenizers", "jinja2", "safetensors", "numpy")):
        print("pp-tokenize needs tokenizers, jinja2, safetensors and numpy, which are not here")
        return 77
    os.makedirs(folder, exist_ok=True)
    tally = harness.Tally()
    for check in (check_texts, check_chats, check_pairs, check_weights, check_columns, check_refused, check_contents,
                  check_bounds):
        tally.attempt(check.__name__, check, folder)
    tally.attempt("check_trains", check_trains, compiler, folder)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
