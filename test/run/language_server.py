"""Drives `pp-compile --lsp` as an editor does: errors while typing, definitions, hovers, completions, the figure."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: language_server.py PP_COMPILE FOLDER [EDITS SEED]        so many edits of the library's files, at random
# What is wrong with a file is what `pp-compile FILE` says of it, line by line; the figure is that of --emit=svg.
import glob, json, os, random, re, resource, subprocess, sys, threading, time
from harness import ROOT, Tally, call

COMPILER, FOLDER = sys.argv[1:3]
TALLY = Tally()
EAGER = """# 1F1B whose ranks run `ahead` more forwards before their first backward.
schedule eager(ranks p, microbatches m, ahead = {ahead}) {{
  stage s of p at s
  on r in ranks {{
    limit stash min(m, p - r)
    repeat p - 1 - r + ahead {{ F(r) }}
    repeat m                 {{ F(r) B(r) }}
  }}
}}
"""
TRAIN = """import "std/models/llama.pipe"
import "eager.pipe"

train small {
  model     llama(layers = 4, hidden = 16, heads = 2, ffn = 16, vocab = 64)
  schedule  eager(4, 8)
  data      microbatch = 1, sequence = 8
  optimizer adamw(lr = 1e-3)
  precision f32
}
"""


class Client:
    """An editor: it sends what it does, and gets what the server says, or the test fails after some time."""

    def __init__(self, seconds=60):
        self.server = subprocess.Popen([COMPILER, "--lsp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.guard = threading.Timer(seconds, self.server.kill)
        self.guard.daemon = True
        self.guard.start()
        self.number, self.told, self.versions, self.published = 0, {}, {}, 0

    def send(self, method, params, **more):
        text = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self.server.stdin.flush()

    def receive(self):
        length = 0
        while (line := self.server.stdout.readline().strip()):
            name, _, value = line.partition(b": ")
            length = int(value) if name == b"Content-Length" else length
        message = json.loads(self.server.stdout.read(length))
        if message.get("method") == "textDocument/publishDiagnostics":
            self.told[message["params"]["uri"]] = message["params"]["diagnostics"]
            self.published += 1
        return message

    def ask(self, method, params):
        self.number += 1
        self.send(method, params, id=self.number)
        while (answer := self.receive()).get("id") != self.number:
            pass
        return answer.get("result", answer)

    def at(self, method, name, line, column, **more):
        return self.ask(method, {"textDocument": {"uri": uri(name)}, "position": {"line": line, "character": column},
                                 **more})

    def put(self, name, text):
        """Opens the file, or changes all of it."""
        version = self.versions[name] = self.versions.get(name, 0) + 1
        document = {"uri": uri(name), "version": version}
        if version == 1:
            self.send("textDocument/didOpen", {"textDocument": {**document, "languageId": "pipe", "text": text}})
        else:
            self.send("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})

    def write(self, name, text):
        """`put`; what is wrong with the file then."""
        self.put(name, text)
        self.ask("pp/timeline", {"textDocument": {"uri": uri(name)}})  # behind all that the change led to
        return self.told[uri(name)]

    def drop(self, name):
        self.versions.pop(name, None)
        self.send("textDocument/didClose", {"textDocument": {"uri": uri(name)}})
        self.ask("pp/timeline", {"textDocument": {"uri": uri(name)}})

    def close(self):
        self.ask("shutdown", None)
        self.send("exit", None)
        code = self.server.wait()
        self.guard.cancel()
        return code


def uri(name):
    return "file://" + os.path.join(os.path.realpath(FOLDER), name)


def check(good, what):
    TALLY.check(bool(good), what)


def compiled(name, text, *options):
    """Line, column, and text of each error that pp-compile tells of the file."""
    path = os.path.join(os.path.realpath(FOLDER), name)
    with open(path, "w") as file:
        file.write(text)
    done = subprocess.run([COMPILER, path, *options, "--emit=stats"], capture_output=True, text=True)
    return [(int(line) - 1, int(column) - 1, said)
            for line, column, said in re.findall(r"^[^\n]*\.pipe:(\d+):(\d+): error: ([^\n]*)", done.stderr, re.M)]


def seen(diagnostics):
    return [(each["range"]["start"]["line"], each["range"]["start"]["character"], each["message"])
            for each in diagnostics if each["severity"] == 1]


# Of these the server has to choose sizes by itself: no microbatches, slices, six stages, layers that the model has.
ALONE = "schedule alone(ranks p{more}) {{\n  stage s of {stages} at s % p\n{body}}}\n"
ROUND = "  for {0} {{\n    for s in 0 .. {1} {{ F({2}) }}\n    for s in reversed(0 .. {1}) {{ B({2}) }}\n  }}\n"
SIZES = {
    "no microbatches": (ALONE.format(more="", stages="p", body=ROUND.format("i in 0 .. 1", "p", "s, i")), 4),
    "slices": ("# pp: -D microbatches=2\n" + ALONE.format(more=", microbatches m, slices n", stages="p", body=(
        "  for i in microbatches {\n    for t in slices { for s in 0 .. p { F(s, i, t) } }\n"
        "    for t in reversed(0 .. n) { for s in reversed(0 .. p) { B(s, i, t) } }\n  }\n")), 4 * 2 * 4),
    "six stages": (ALONE.format(more=", microbatches m", stages="6", body=ROUND.format("i in microbatches", 6, "s, i")),
                   6 * 8),
    "twelve stages": (ALONE.format(more=", microbatches m, v = 3", stages="v * p",
                                   body=ROUND.format("i in microbatches", "v * p", "s, i")), 12 * 8),
}


def sizes(client):
    for what, (text, forwards) in SIZES.items():
        got = client.write("alone.pipe", text)
        svg = client.ask("pp/timeline", {"textDocument": {"uri": uri("alone.pipe")}})["svg"]
        check(not got and len(re.findall(r"<title>[s\d.]+F", svg)) == forwards, f"{what}: {forwards} forwards: {got}")
    got = seen(client.write("alone.pipe", "# pp: -D layers=5\n" + SIZES["six stages"][0]))
    check([line for line, _, _ in got] == [0] and "6 stages" in got[0][2], f"layers that a comment gives stay: {got}")
    got = seen(client.write("alone.pipe", ALONE.format(more=", width", stages="p", body="")))
    check("`width` of `alone` has no value" in got[0][2], f"what nobody can choose: {got}")
    client.drop("alone.pipe")
    # 8 tokens of 64 numbers in f32.
    client.write("sized.pipe", "# pp: -D data.microbatch=1 -D data.sequence=8\n" + EAGER.format(ahead=0))
    hover = client.at("textDocument/hover", "sized.pipe", 7, 36)["contents"]["value"]
    check("(dependency) for `dact(1, 0)` from rank 1, 2.05 kB\n" in hover, "what a unit waits for, and its bytes")
    client.drop("sized.pipe")


def imports(client):
    """Only what imports a changed file is checked with it, and a file has the errors that all open files tell of it."""
    client.put("eager.pipe", EAGER.format(ahead=0)), client.put("apart.pipe", EAGER.format(ahead=0))
    client.write("small.pipe", TRAIN)
    client.published = 0
    client.write("apart.pipe", EAGER.format(ahead=1))
    check(client.published == 1, f"nothing imports this file: {client.published} files are told of")
    client.published = 0
    client.write("eager.pipe", EAGER.format(ahead=1))
    check(client.published == 2 and len(client.told[uri("eager.pipe")]) == 1, "the file and what imports it, once")
    client.drop("small.pipe")
    check(len(client.told[uri("eager.pipe")]) == 1, "its own error stays when what imports it is closed")
    for name in ("eager.pipe", "apart.pipe"):
        client.drop(name)
    late = TRAIN.replace('"eager.pipe"', '"late.pipe"')
    check("cannot open" in seen(client.write("small.pipe", late))[0][2], "an import that there is not")
    client.put("late.pipe", EAGER.format(ahead=0))
    check(client.ask("pp/timeline", {"textDocument": {"uri": uri("small.pipe")}})["svg"], "until an editor holds it")
    for name in ("small.pipe", "late.pipe"):
        client.drop(name)


def economy(client):
    """What an edit of a file without `train` costs: it is compiled once, and no process is started."""
    path, seconds = os.path.join(ROOT, "stdlib", "zero.pipe"), 0.0
    with open(path) as file:
        text = file.read()
    for end in range(11):
        before = time_of(client.server.pid)
        client.write(path, text + "#" * end)
        seconds += time_of(client.server.pid) - before if end else 0
    client.drop(path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    for _ in range(10):
        call([COMPILER, path, "--schedule=zero", *"-D ranks=4 -D microbatches=8 -D layers=8 --emit=svg".split()])
    whole = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    check(seconds < 1.2 * whole, f"ten edits take {seconds:.3f} s of a processor, pp-compile ten times {whole:.3f} s")


def time_of(process):
    """Seconds of a processor."""
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def typing(client):
    """Columns are those of the protocol, in 16-bit units; somebody who types fast does not wait for each key."""
    text = 'fn f(a) { require a > 0, "\u00e9\U0001d11e" return b }\n' + EAGER.format(ahead=0)
    column = len(text[:text.index("b }")].encode("utf-16-le")) // 2
    text = text.replace("    repeat m ", "    let c = f(1)\n    repeat m ")
    got = client.write("typed.pipe", text)
    check(got[0]["range"] == {"start": {"line": 0, "character": column}, "end": {"line": 0, "character": column + 1}},
          f"behind letters of two and of four bytes, in column {column}: {got}")
    text = text.replace("return b", "return a")
    check(client.write("typed.pipe", text) == [], "no error")
    found = client.at("textDocument/definition", "typed.pipe", 0, column)
    check([each["range"]["start"]["character"] for each in found] == [5], f"a word behind them: {found}")
    client.published, started = 0, time.time()
    for end in range(60):
        client.put("typed.pipe", text + "#" * end)
    client.ask("pp/timeline", {"textDocument": {"uri": uri("typed.pipe")}})
    check(client.published < 30, f"60 keys, {client.published} answers, in {time.time() - started:.2f} s")
    client.put("typed.pipe", text.replace("return a", "return b"))
    while not client.told[uri("typed.pipe")]:  # no question is asked: it says so by itself
        client.receive()
    client.drop("typed.pipe")


WORDS = ("F(s, i) B( I W ( ) { } [ ] , = .. for in if then else let var return on stage of limit stash move to 0 1 -1 "
         "1e9 99999999999 * // % \" # \n \u00e9 \U0001d11e repeat while true layers ranks fn import weight").split(" ")


def changed(text, draw):
    at, from_, size = draw.randrange(len(text) + 1), draw.randrange(len(text) + 1), draw.randrange(40)
    more = draw.choice(("", draw.choice(WORDS), chr(32 + size * 2), text[from_:from_ + size]))
    return text[:at] + more + text[at if more else at + 1 + size % 3:]


def edits(count, seed):
    """The files of the library and the examples: right as they are; changed at random places, the server answers."""
    client, draw, waits, wrong = Client(600), random.Random(seed), [], []
    paths = sorted(glob.glob(os.path.join(ROOT, "stdlib", "**", "*.pipe"), recursive=True) +
                   glob.glob(os.path.join(ROOT, "examples", "*.pipe")))
    client.ask("initialize", {"capabilities": {}})
    memory = []
    for path in paths:
        with open(path) as file:
            wrong += seen(client.write(path, file.read()))
        client.drop(path)
    check(len(paths) > 40 and not wrong, f"{len(paths)} files of the library and the examples are right: {wrong}")
    for path in paths if count > len(paths) else draw.sample(paths, count):
        with open(path) as file:
            text = whole = file.read()
        for _ in range(-(-count // len(paths))):
            text = changed(text if draw.random() < 0.7 else whole, draw)
            started = time.time()
            client.write(path, text)
            waits.append((time.time() - started, os.path.basename(path)))
            rows = text.split("\n")
            row = draw.randrange(len(rows) + 2)
            column = draw.randrange(len(rows[min(row, len(rows) - 1)]) + 3)
            for asked in ("hover", "definition", "completion"):
                client.at("textDocument/" + asked, path, row, column)
        client.drop(path)
        with open(f"/proc/{client.server.pid}/statm") as file:
            memory.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6)
    waits.sort()
    check(client.close() == 0, f"{len(waits)} edits, seed {seed}: median {waits[len(waits) // 2][0]:.3f} s, "
                               f"longest {waits[-1][0]:.2f} s ({waits[-1][1]})")
    half = max(memory[:len(memory) // 2 + 1])
    check(max(memory) < half + 100, f"at most {half:.0f} MB in the first half, {max(memory):.0f} MB in all")


def main():
    os.makedirs(FOLDER, exist_ok=True)
    drawn = ("--schedule=eager", "-D", "ranks=4", "-D", "microbatches=8", "-D", "layers=4")
    client = Client()
    capabilities = client.ask("initialize", {"capabilities": {}})["capabilities"]
    client.send("initialized", {})
    check(capabilities["hoverProvider"] and capabilities["definitionProvider"], "it says what it can do")

    # While somebody types: the wrong limit, a word that is no end, two errors of meaning, and all right again.
    wrong = EAGER.format(ahead=1)
    for what, text in (("a proof", wrong), ("a syntax error", wrong.replace("repeat m ", "repeat )")),
                       ("two errors of meaning", wrong.replace("F(r) }", "F(q) }").replace("B(r)", "B(z)")),
                       ("no error", EAGER.format(ahead=0)), ("an empty file", "")):
        expected = compiled("eager.pipe", text, *drawn) if text else []
        got = seen(client.write("eager.pipe", text))
        check(got == expected and (bool(expected) == (not what.startswith(("no", "an ")))), f"{what}: {got} {expected}")
    proof = client.write("eager.pipe", wrong)[0]
    notes = [(note["location"]["range"]["start"]["line"], note["message"]) for note in proof["relatedInformation"]]
    check([line for line, _ in notes] == [6, 6] and "arrives here" in notes[0][1], f"the proof's story: {notes}")
    check(proof["range"]["end"]["character"] == 4 + len("limit"), f"the word is marked: {proof['range']}")

    # Another file that imports what the editor holds, not what is on the disk.
    compiled("eager.pipe", wrong)
    client.write("eager.pipe", EAGER.format(ahead=0))
    check(seen(client.write("small.pipe", TRAIN)) == [], "the import's text is the editor's")
    client.write("eager.pipe", wrong)
    check([line for line, _, _ in seen(client.told[uri("eager.pipe")])] == [4], "the import is wrong")
    client.write("eager.pipe", EAGER.format(ahead=0))
    check(not client.told[uri("eager.pipe")] and not client.told[uri("small.pipe")], "and right again")

    line = TRAIN.splitlines().index("  schedule  eager(4, 8)")
    found = client.at("textDocument/definition", "small.pipe", line, 14)
    check([(each["uri"], each["range"]["start"]["line"]) for each in found] == [(uri("eager.pipe"), 1)],
          f"the schedule is defined in the import: {found}")
    found = client.at("textDocument/definition", "small.pipe", 0, 12)
    check(found and found[0]["uri"].endswith("/models/llama.pipe"), f"a file of the library: {found}")
    found = client.at("textDocument/definition", "eager.pipe", 5, 11)
    check([(each["uri"], each["range"]["start"]) for each in found] == [
        (uri("eager.pipe"), {"line": 1, "character": 21})], f"a parameter: {found}")
    check(client.at("textDocument/definition", "eager.pipe", 0, 3) == [], "a comment has no definition")

    hover = client.at("textDocument/hover", "small.pipe", line, 14)["contents"]["value"]
    check("schedule eager(ranks p" in hover and "1F1B whose ranks" in hover, f"the head and its comment: {hover}")
    units = client.at("textDocument/hover", "eager.pipe", 6, 36)["contents"]["value"].splitlines()
    # By hand: F0 reaches rank 3 at 3, so that its B0 runs from 4 to 6, and that of rank 0 behind three others, at 10.
    # Rank 0 has run four forwards by then.
    check("- rank 3: `B(3, 0)` from 4 to 6" in units and units[-1] == "- and 24 more" and
          units[0].startswith("- rank 0: `B(0, 0)` from 10 to 12, after 6 of waiting (dependency) for `dact(1, 0)`"),
          f"where a unit runs: {units}")

    names = {item["label"]: item for item in client.at("textDocument/completion", "small.pipe", line, 12)["items"]}
    check({"eager", "llama", "schedule", "recompute"} <= set(names), f"{len(names)} names and words")
    names = [item["label"] for item in client.at("textDocument/completion", "small.pipe", 0, 8)["items"]]
    check("std/zb_v.pipe" in names and "std/models/llama.pipe" in names, f"{len(names)} files of the library")

    svg = client.ask("pp/timeline", {"textDocument": {"uri": uri("small.pipe")}})["svg"]
    compiled("eager.pipe", EAGER.format(ahead=0)), compiled("small.pipe", TRAIN)
    check(svg and svg == call([COMPILER, os.path.join(FOLDER, "small.pipe"), "--emit=svg"]).stdout,
          f"the figure: {len(svg)} bytes")

    # What a comment says; what is too large for somebody who types; a file that is not open; a request of nobody.
    got = client.write("eager.pipe", "# pp: -D ranks=2 -D microbatches=3 -D ahead=2\n" + EAGER.format(ahead=0))
    check("rank 0 holds 3 stashes" in got[0]["message"], f"a comment sets parameters: {seen(got)}")
    got = client.write("eager.pipe", "# pp: -D microbatches=100000\n" + EAGER.format(ahead=0))
    check("--max-" in got[0]["message"], f"a large schedule: {seen(got)}")
    check(client.ask("pp/timeline", {"textDocument": {"uri": uri("no.pipe")}})["svg"] == "", "a file that is not open")
    check("error" in client.ask("textDocument/nothing", {}), "a request that there is not")
    client.drop("eager.pipe")
    check(client.told[uri("eager.pipe")] == [], "a closed file has no errors")
    hover = client.at("textDocument/hover", "small.pipe", line, 14)["contents"]["value"]
    check("schedule eager(ranks p" in hover, f"what imported it reads the disk now: {hover}")
    client.write("eager.pipe", EAGER.format(ahead=0))
    compiled("eager.pipe", wrong)
    client.drop("eager.pipe")
    check([line for line, _, _ in seen(client.told[uri("eager.pipe")])] == [4], "the import on the disk is wrong")
    client.drop("small.pipe")
    sizes(client), imports(client), typing(client), economy(client)
    code = client.close()
    check(code == 0, f"it ends with {code}")
    client = Client()
    client.send("exit", None)
    check(client.server.wait() == 1, "without `shutdown` it ends with 1")
    client.guard.cancel()
    edits(*map(int, sys.argv[3:] or (40, 1)))
    return TALLY.close()


if __name__ == "__main__":
    sys.exit(main())
