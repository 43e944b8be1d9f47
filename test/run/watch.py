#!/usr/bin/env python3
"""Judges `pp-compile --watch`: the file and its imports are compiled again when they change, and errors end nothing."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: watch.py PP_COMPILE FOLDER
import os, re, select, signal, subprocess, sys, time
import harness

compiler, folder = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
tally = harness.Tally()
MAIN, IMPORT, PAGE = (os.path.join(folder, name) for name in ("main.pipe", "schedule.pipe", "page.html"))


def write(path, text):
    with open(path + ".new", "w") as file:  # as editors do: a new file in place of the old one
        file.write(text)
    os.replace(path + ".new", path)


def schedule(microbatches):
    return ("schedule line(ranks p, microbatches m) {\n  stage s of p at s\n  for i in microbatches {\n"
            "    for s in 0 .. p { F(s, i) }\n    for s in reversed(0 .. p) { B(s, i) }\n  }\n}\n"
            f"fn rounds() {{ return {microbatches} }}\n")


def program(ranks):
    return ('import "std/models/llama.pipe"\nimport "schedule.pipe"\ntrain t {\n'
            "  model llama(layers = 4, hidden = 16, heads = 2, ffn = 16, vocab = 32)\n"
            f"  schedule line({ranks}, rounds())\n  data microbatch = 1, sequence = 8\n  optimizer adamw(lr = 1e-3)\n"
            "  precision f32\n}\n")


class Watch:
    def __init__(self, *options):
        self.process = subprocess.Popen([compiler, MAIN, "--watch", *options], text=False, env=harness.ENVIRONMENT,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def round(self):
        """What it says until it waits again."""
        said, until = b"", time.time() + 60
        while not re.search(rb"watching \d+ files; \^C ends\n", said):
            if not select.select([self.process.stdout], [], [], max(0, until - time.time()))[0]:
                raise TimeoutError(f"--watch says {said}")
            got = os.read(self.process.stdout.fileno(), 1 << 16)
            if not got:
                raise RuntimeError(f"--watch ended: {said}")
            said += got
        return said.decode()

    def close(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=10)


def rows(said):
    return [line.count("F") for line in said.splitlines() if re.match(r"r\d +\|", line)]


write(IMPORT, schedule(2))
write(MAIN, program(2))
watch = Watch("--emit=timeline")
said = watch.round()
tally.check(rows(said) == [2, 2], f"two ranks, two microbatches: {said!r}")
tally.check("watching 4 files" in said, "the file, its import and the two of the library's model are watched")
write(IMPORT, schedule(3))
tally.check(rows(watch.round()) == [3, 3], "an import changed: three microbatches")
write(MAIN, program("x"))
said = watch.round()
tally.check("error" in said and "`x`" in said, "an error is said, and the file is watched on")
write(MAIN, program(4))
tally.check(rows(watch.round()) == [3, 3, 3, 3], "mended: four ranks")
watch.close()

# A page loads itself again when the script beside it says another number. It is gone when nobody watches.
watch = Watch("--emit=report", "-o", PAGE)
watch.round()
script = PAGE + ".watch.js"
with open(PAGE) as page, open(script) as said:
    tally.check('"watched":"page.html.watch.js"' in page.read() and said.read() == "watched(1);\n", "the page is told")
write(IMPORT, schedule(2))
watch.round()
with open(PAGE) as page, open(script) as said:
    tally.check("m = 2" in page.read() and said.read() == "watched(2);\n", "the page is new, and its script says so")
watch.close()
tally.check(not os.path.exists(script), "the script goes when the watching ends")
harness.call([compiler, MAIN, "--emit=report", "-o", PAGE])
with open(PAGE) as page:
    tally.check('"watched"' not in page.read(), "without --watch a page asks for no script")

for arguments, why in ((["-", "--watch"], "standard input"), ([MAIN, "--watch", "--emmit=svg"], "--emit")):
    done = harness.call([compiler, *arguments], expect=None, timeout=20)
    tally.check(done.returncode == 2 and why in done.stderr, f"refused: {done.stderr.strip()}")
sys.exit(tally.close())
