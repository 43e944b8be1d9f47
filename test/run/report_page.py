#!/usr/bin/env python3
"""Opens reports in a headless Chromium and uses them: zooms, moves, points, turns the theme; nothing may go wrong."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: report_page.py PP_COMPILE FOLDER [--keep-pictures]
# Ends with 77, which ctest calls skipped, where there is no Chromium. It is driven over its debugging pipe.
import base64, json, os, select, shutil, subprocess, sys, tempfile, time
import harness

CASES = [("1f1b", 4, 8), ("zb_v", 4, 8), ("weipipe_interleave", 4, 8), ("interleaved", 8, 32), ("1f1b", 32, 128)]


class Browser:
    """Messages of the DevTools protocol, each ended by a zero byte, over two pipes that the browser has as 3 and 4."""

    def __init__(self, executable, folder):
        to_read, self.to_browser = os.pipe()
        self.from_browser, to_write = os.pipe()

        def place():
            # Out of the way first: any of the four may be 3 or 4.
            high = [os.dup2(to_read, 60), os.dup2(to_write, 61)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [executable, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={folder}", "about:blank"],
            preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.number, self.rest, self.events, self.session = 0, b"", [], None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def receive(self, until):
        while b"\0" not in self.rest:
            if not select.select([self.from_browser], [], [], max(0, until - time.time()))[0]:
                raise TimeoutError("the browser does not answer")
            self.rest += os.read(self.from_browser, 1 << 20)
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive(time.time() + 60)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def frame(self):
        """Waits until what was asked for is drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.frame()

    def key(self, key):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": key} if len(key) == 1 else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.frame()

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def complaints(self):
        """What the page said on the console, threw, or asked of a network."""
        found = []
        for event in self.events:
            if event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                found.append(json.dumps(event["params"])[:300])
            if event.get("method") == "Network.requestWillBeSent":
                url = event["params"]["request"]["url"]
                if not url.startswith(("file:", "data:", "about:")):
                    found.append("asks for " + url)
        self.events.clear()
        return found


VIEW = "(({from, to}) => [Number(from), Number(to)])(document.getElementById('timeline').dataset)"
TIP = "(({hidden, textContent}) => hidden ? '' : textContent)(document.getElementById('tip'))"
PLACE = ("(({x, y, width, height}) => [x, y, width, height])"
         "(document.getElementById('timeline').getBoundingClientRect())")


def use(browser, tally, name, ranks, makespan):
    left, top, width, _ = browser.evaluate(PLACE)
    row = browser.evaluate("heightOfRow()")
    whole = browser.evaluate(VIEW)
    tally.check(whole == [0, makespan * 1000], f"{name}: the whole step is in view {whole}")
    browser.mouse("mouseMoved", left + 68, top + 2 + row / 3)
    tip = browser.evaluate(TIP)
    tally.check("F0" in tip and "rank 0, 0 to 1, takes 1" in tip, f"{name}: the first unit says {tip[:60]!r}")
    browser.mouse("mouseMoved", left + 68, top + 2 + row * (ranks - 1) + row / 3)
    tip = browser.evaluate(TIP)
    tally.check("idle: imbalance" in tip and "waits for" in tip, f"{name}: the last rank begins {tip[:60]!r}")
    browser.mouse("mouseMoved", left + 20, top - 30)
    tally.check(browser.evaluate(TIP) == "", f"{name}: elsewhere nothing is said")
    for key, what in (("+", "zooms in"), ("ArrowRight", "moves"), ("-", "zooms out")):
        before = browser.evaluate(VIEW)
        browser.key(key)
        after = browser.evaluate(VIEW)
        longer = (after[1] - after[0]) / (before[1] - before[0])
        fits = {"+": abs(longer - 1 / 1.5) < 0.01, "-": abs(longer - 1.5) < 0.1,
                "ArrowRight": after[0] > before[0]}[key]
        tally.check(fits, f"{name}: {key} {what}: {before} {after}")
    browser.key("0")
    tally.check(browser.evaluate(VIEW) == whole, f"{name}: 0 shows all")
    browser.mouse("mouseWheel", left + width / 2, top + 10, deltaX=0, deltaY=-600, modifiers=2)
    near = browser.evaluate(VIEW)
    tally.check(0.1 < (near[1] - near[0]) / whole[1] < 0.2 and near[0] < whole[1] / 2 < near[1],
                f"{name}: ctrl and wheel zoom about the pointer: {near}")
    browser.mouse("mousePressed", left + width / 2, top + 10, button="left", buttons=1, clickCount=1)
    browser.mouse("mouseMoved", left + width / 2 + 200, top + 10, button="left", buttons=1)
    browser.mouse("mouseReleased", left + width / 2 + 200, top + 10, button="left", clickCount=1)
    tally.check(browser.evaluate(VIEW)[0] < near[0], f"{name}: dragging moves")
    browser.evaluate("byId('arrows').click()")
    browser.frame()
    tally.check("messages in view" in browser.evaluate("byId('hint').textContent"), f"{name}: messages are counted")
    browser.key("0")
    spent = browser.evaluate("(() => { const t = performance.now(); for (let i = 0; i < 5; ++i) { drawTimeline(); "
                             "drawMemory(); }"
                             " return (performance.now() - t) / 5; })()")
    tally.check(spent < 1000, f"{name}: a frame takes {spent:.1f} ms")


def open_page(browser, page):
    browser.call("Page.navigate", url="file://" + page)
    until = time.time() + 60
    while not browser.evaluate("document.readyState === 'complete' && location.protocol === 'file:'"):
        if time.time() > until:
            raise TimeoutError(f"{page} is not loaded")
        time.sleep(0.05)
    browser.frame()


# For each row of the table of times: its name, the share and time in its text, and the widths in its bar.
TIMES = ("[...document.querySelectorAll('#time tr')].slice(1).map((row) => [row.cells[0].textContent.trim(), "
         "row.cells[2].textContent, row.cells[3].textContent, Object.fromEntries([..."
         "row.querySelectorAll('.share div')].map((one) => [one.title.split(':')[0], parseFloat(one.style.width)]))])")


def times(browser, compiler, folder, tally):
    """Where time goes: of two units that run in turn both have their half, and a plan is measured by its own step."""
    page = os.path.abspath(os.path.join(folder, "in-turn.html"))
    values = dict(schedule="1f1b_overlap", microbatches=4, layers=4, hidden=4096, heads=32, ffn=11008, vocab=32000,
                  sequence=2048, precision="bf16", **{"mesh.tensor": 2})
    defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
    harness.call([compiler, harness.TRAIN, *defines, "--cluster=h100_sxm", "--emit=report", "-o", page])
    open_page(browser, page)
    for rank, busy, _, shares in browser.evaluate(TIMES):
        spans = browser.evaluate(f"(({{phase, start, end}}) => phase.map((p, i) => [p, start[i], end[i]]))"
                                 f"(data.ranks[{rank}])")
        # Divides time into intervals: each belongs to the unit that runs alone, or half to each of two units that run.
        owned = {"F": 0, "B": 0}
        marks = sorted({time for _, start, end in spans for time in (start, end)})
        for low, high in zip(marks, marks[1:]):
            running = [phase for phase, start, end in spans if start <= low and high <= end and phase != "U"]
            for phase in running:
                owned[phase] += (high - low) / len(running)
        whole = browser.evaluate("data.step")
        tally.check(all(abs(shares[name] - 100 * owned[name[0]] / whole) < 0.01
                        for name in ("F forward", "B backward")), f"in turn, rank {rank}: {owned} is {shares}")
    tally.check(any("lane" in rank for rank in browser.evaluate("data.ranks")), "there are units in turn")

    program, trace = (os.path.join(folder, name) for name in ("compared", "compared.json"))
    small = dict(schedule="1f1b", ranks=2, microbatches=4, layers=2, hidden=16, heads=2, ffn=16, vocab=32, sequence=8)
    defines = [word for key, value in small.items() for word in ("-D", f"{key}={value}")]
    harness.call([compiler, harness.TRAIN, *defines, *harness.RUNTIME, "-o", program])
    harness.call([program, "--in-process", "--data", "random", "--steps", "3", "--trace", trace])
    harness.call([compiler, harness.TRAIN, *defines, "--emit=report", f"--compare={trace}", "-o", page])
    open_page(browser, page)
    # 1F1B with p = 2 and m = 4 works 12 of 15 units, however long the step was that was measured.
    planned = [row for row in browser.evaluate(TIMES) if row[0].endswith("planned")]
    tally.check(len(planned) == 2 and all(row[1:3] == ["80.0 %", "3"] for row in planned), f"planned: {planned}")


def links(browser, compiler, folder, tally):
    """A link's bar is the share of the step in which it is busy."""
    page = os.path.abspath(os.path.join(folder, "links.html"))
    defines = [word for key, value in dict(schedule="1f1b", microbatches=4, layers=4).items()
               for word in ("-D", f"{key}={value}")]
    harness.call([compiler, harness.TRAIN, *defines, "--cluster=a800_nvlink_10gbe", "--emit=report", "-o", page])
    open_page(browser, page)
    widths = browser.evaluate("[...document.querySelectorAll('#links .share div')]"
                              ".map((e) => parseFloat(e.style.width))")
    expected = browser.evaluate("data.stats.links.map((link) => 100 * link.busy / data.stats.step)")
    tally.check(widths and all(abs(a - b) < 1e-3 for a, b in zip(widths, expected)), f"links: {widths} {expected}")
    # On paper all of it is there: no part of a page scrolls, and the width is that of the paper.
    browser.call("Emulation.setEmulatedMedia", media="print")
    cut = browser.evaluate("[...document.querySelectorAll('.scroll')]"
                           ".filter((e) => e.scrollHeight > e.clientHeight + 1).length"
                           " + (document.documentElement.scrollWidth > innerWidth)")
    tally.check(cut == 0, "nothing is cut on paper")
    browser.call("Emulation.setEmulatedMedia", media="")


def main():
    compiler, folder = sys.argv[1:3]
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not executable:
        print("skipped: there is no Chromium on this machine")
        return 77
    tally = harness.Tally()
    os.makedirs(folder, exist_ok=True)
    browser = Browser(executable, tempfile.mkdtemp(dir=folder))
    try:
        for schedule, ranks, microbatches in CASES:
            name = f"{schedule}-{ranks}x{microbatches}"
            page = os.path.abspath(os.path.join(folder, name + ".html"))
            values = dict(schedule=schedule, ranks=ranks, microbatches=microbatches, layers=2 * ranks, sequence=32)
            defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
            harness.call([compiler, harness.TRAIN, *defines, "--emit=report", "-o", page])
            stats = json.loads(harness.call([compiler, harness.TRAIN, *defines, "--emit=stats"]).stdout)
            browser.call("Emulation.setDeviceMetricsOverride", width=1400, height=1000, deviceScaleFactor=1,
                         mobile=False)
            browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
            open_page(browser, page)
            use(browser, tally, name, ranks, stats["makespan"])
            for theme in ("light", "dark"):
                browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
                browser.frame()
                ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
                bright = sum(int(part) for part in ground[4:-1].split(",")) / 3
                tally.check((bright > 200) == (theme == "light"), f"{name}: {theme} where the system is, {ground}")
                if "--keep-pictures" in sys.argv:
                    browser.picture(os.path.join(folder, f"{name}-{theme}.png"))
            browser.evaluate("byId('theme').click(), byId('theme').click()")
            browser.frame()
            tally.check(browser.evaluate("document.documentElement.dataset.theme") == "light",
                        f"{name}: the button turns the theme")
            proved = browser.evaluate("[...document.querySelectorAll('#statements tr')].map((row) => row.textContent)")
            tally.check(any("progress" in row and "no cycle of waits" in row for row in proved),
                        f"{name}: {len(proved) - 1} proofs are told")
            found = browser.complaints()
            tally.check(not found, f"{name}: no complaint, nothing fetched {found[:2] or ''}")
        times(browser, compiler, folder, tally)
        links(browser, compiler, folder, tally)
        found = browser.complaints()
        tally.check(not found, f"no complaint about those pages {found[:2] or ''}")
    finally:
        browser.process.kill()
        browser.process.wait()
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
