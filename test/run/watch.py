#!/usr/bin/env python3
"""Judges --watch and --serve: the file and its imports are compiled again when they change, and errors end nothing."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: watch.py PP_COMPILE FOLDER
import http.client, json, os, re, select, signal, socket, subprocess, sys, time
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
    def __init__(self, *options, tool=(compiler,)):
        self.process = subprocess.Popen([*tool, MAIN, "--watch", *options], text=False, env=harness.ENVIRONMENT,
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
tally.check("watching 5 files" in said, "the file, its import and the three of the library are watched")
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

# An import that does not exist is waited for.
LATE = os.path.join(folder, "later.pipe")
if os.path.exists(LATE):
    os.remove(LATE)
write(MAIN, program(2).replace('"schedule.pipe"', '"later.pipe"'))
watch = Watch("--emit=timeline")
tally.check("cannot open `later.pipe`" in watch.round(), "there is no such import yet")
write(LATE, schedule(2))
tally.check(rows(watch.round()) == [2, 2], "and when there is one, it is compiled")
watch.close()


# A browser: the page, a stream of round numbers, and the state of the newest round.
def ask(port, path="/state", method="GET", host="127.0.0.1"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    for name in [host] if isinstance(host, str) else host:
        connection.putheader("Host", name)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


class Browser:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.socket.sendall(b"GET /events HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % port)
        self.lines = self.socket.makefile()
        self.port, self.last = port, self.next()

    def next(self):
        """The next number that the server tells."""
        return next(int(line[5:]) for line in self.lines if line.startswith("data:"))

    def state(self):
        """That of the round after the last one."""
        self.last = self.next()
        return json.loads(ask(self.port)[1])


def units(state):
    return state["isRight"], len(re.findall(r"<title>\d+F", state["svg"]))


write(MAIN, program(2))
write(IMPORT, schedule(2))
watch = Watch("--serve")
said = watch.round()
port = int(re.search(r"http://127\.0\.0\.1:(\d+)/ shows the figure", said)[1])
state = json.loads(ask(port)[1])
tally.check(state["title"] == "main.pipe" and units(state) == (True, 4), "two forwards on two ranks are drawn")
tally.check(ask(port, "/")[1].count('src="/page.js"') == 1 and "EventSource" in ask(port, "/page.js")[1], "the page")
browsers = [Browser(port) for _ in range(40)]
started = time.time()
write(IMPORT, schedule(3))
tally.check(all(units(each.state()) == (True, 6) for each in browsers), "40 browsers get the new figure")
print(f"a save is drawn {time.time() - started:.2f} s later in 40 browsers")
watch.round()
write(MAIN, program("x"))
state = browsers[0].state()
tally.check(units(state) == (False, 6) and "main.pipe:5" in state["messages"] and "`x`" in state["messages"],
            f"an error is shown with the last figure: {state['messages']}")
tally.check("`x`" in watch.round(), "and said on the terminal")
tally.check(units(json.loads(ask(port)[1])) == (False, 6), "a browser that comes late sees both, too")
write(MAIN, program(4))
state = browsers[0].state()
tally.check(units(state) == (True, 12) and state["messages"] == "",
            f"mended: four ranks, no message: {units(state)}, {state['messages']!r}")
watch.round()

# Nothing but these four answers, and only for those who ask this machine by its own name.
for path in ("/main.pipe", "/../main.pipe", "//etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/state/", "/?a", "*",
             "http://127.0.0.1/state", "/page.js/../../main.pipe"):
    tally.check(ask(port, path)[0] == 404, f"{path} is no address")
for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost:x", "", (),
             ("127.0.0.1", "evil.example"), "127.0.0.1 evil.example"):
    tally.check(ask(port, "/state", host=host)[0] == 403, f"Host: {host} is refused")
for host in (f"localhost:{port}", "LOCALHOST", f"127.0.0.1:{port}", "localhost:9"):  # 9: a tunnel's other end
    tally.check(ask(port, "/state", host=host)[0] == 200, f"Host: {host} is answered")
tally.check([ask(port, method=method)[0] for method in ("POST", "HEAD", "OPTIONS")] == [405] * 3, "GET alone")
tally.check(ask(port, "/" + "a" * 20000)[0] == 431, "a long head is refused")
silent, broken = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
broken.sendall(b"\x00\xff\r\n\r\n")
tally.check(broken.recv(100).startswith(b"HTTP/1.1 403"), "what is no request")
listening = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True).stdout if (
    os.path.exists("/usr/bin/ss") or os.path.exists("/bin/ss")) else f"127.0.0.1:{port}"
tally.check(re.findall(r"\S+:%d\b" % port, listening) == [f"127.0.0.1:{port}"], "it listens on loopback alone")

done = harness.call([compiler, MAIN, f"--serve={port}"], expect=None, timeout=20)
tally.check(done.returncode == 1 and f"port {port} of 127.0.0.1: Address already in use" in done.stderr, done.stderr)
started = time.time()
watch.close()
tally.check(time.time() - started < 1, f"^C ends it at once: {time.time() - started:.2f} s")
watch = Watch(f"--serve={port}", "--memory")
said = watch.round()
tally.check(f":{port}/" in said and "<title>stash" in json.loads(ask(port)[1])["svg"], "the same port, and an option")
watch.close()

watch = Watch("--serve", tool=(os.path.join(os.path.dirname(compiler), "pp"), "draw"))
port = int(re.search(r"http://127\.0\.0\.1:(\d+)/ shows the figure", watch.round())[1])
tally.check(json.loads(ask(port)[1])["svg"].startswith("<svg"), "pp draw --serve shows a figure")
watch.close()

for arguments, why in ((["-", "--watch"], "standard input"), ([MAIN, "--watch", "--emmit=svg"], "--emit"),
                       ([MAIN, "--serve", "--emit=report"], "--emit=svg"), ([MAIN, "--serve", "-o", "x.svg"], "-o"),
                       ([MAIN, "--serve=65536"], "65535"), ([MAIN, "--serve=x"], "65535")):
    done = harness.call([compiler, *arguments], expect=None, timeout=20)
    tally.check(done.returncode == 2 and why in done.stderr, f"refused: {done.stderr.strip()}")
sys.exit(tally.close())
