"""Drives `pp-compile --lsp` as an editor does: errors while typing, definitions, hovers, completions, the figure."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: language_server.py PP_COMPILE FOLDER
# What is wrong with a file is what `pp-compile FILE` says of it, line by line; the figure is that of --emit=svg.
import json, os, re, subprocess, sys, threading
from harness import Tally, call

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
    """An editor: it sends what it does, and gets what the server says, or the test fails after a minute."""

    def __init__(self):
        self.server = subprocess.Popen([COMPILER, "--lsp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.guard = threading.Timer(60, self.server.kill)
        self.guard.daemon = True
        self.guard.start()
        self.number, self.told, self.versions = 0, {}, {}

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

    def write(self, name, text):
        """Opens the file, or changes all of it; what is wrong with it then."""
        version = self.versions[name] = self.versions.get(name, 0) + 1
        document = {"uri": uri(name), "version": version}
        if version == 1:
            self.send("textDocument/didOpen", {"textDocument": {**document, "languageId": "pipe", "text": text}})
        else:
            self.send("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})
        self.ask("pp/timeline", {"textDocument": {"uri": uri(name)}})  # behind all that the change led to
        return self.told[uri(name)]

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
          "- rank 0: `B(0, 0)` from 10 to 12, after 6 of waiting (dependency)" in units,
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
    client.send("textDocument/didClose", {"textDocument": {"uri": uri("eager.pipe")}})
    client.ask("pp/timeline", {"textDocument": {"uri": uri("eager.pipe")}})
    check(client.told[uri("eager.pipe")] == [], "a closed file has no errors")
    hover = client.at("textDocument/hover", "small.pipe", line, 14)["contents"]["value"]
    check("schedule eager(ranks p" in hover, f"what imported it reads the disk now: {hover}")
    client.write("eager.pipe", EAGER.format(ahead=0))
    compiled("eager.pipe", wrong)
    client.send("textDocument/didClose", {"textDocument": {"uri": uri("eager.pipe")}})
    client.ask("pp/timeline", {"textDocument": {"uri": uri("small.pipe")}})
    check([line for line, _, _ in seen(client.told[uri("eager.pipe")])] == [4], "the import on the disk is wrong")
    code = client.close()
    check(code == 0, f"it ends with {code}")
    client = Client()
    client.send("exit", None)
    check(client.server.wait() == 1, "without `shutdown` it ends with 1")
    client.guard.cancel()
    return TALLY.close()


if __name__ == "__main__":
    sys.exit(main())
