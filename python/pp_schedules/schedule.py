"""A schedule without a model: proved, drawn, counted and exported. It needs the compiler alone, not torch."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import graphlib, html, itertools, json
from . import binary
from .program import Program


class Text(str):
    """A text that a notebook prints as it is."""

    def __repr__(self):
        return str(self)


class Drawing(Text):
    """A timeline. `print` shows it in letters, and a notebook shows the figure."""
    svg = ""

    def _repr_svg_(self):
        return self.svg


class Page(Text):
    """A page of HTML; `save(path)` writes it."""

    def __repr__(self):
        return f"<a page of {len(self)} characters: save(path) writes it>"

    def save(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(self)


class Limits(dict):
    """What bounds a schedule, as `Schedule.limits` says; `print` shows it in a few lines."""

    def __str__(self):
        spans = self["head"] + self["work"] + self["tail"]
        why = f"rank {self['rank']} has {self['head']:g} before its first unit, {self['work']:g} of work and " \
              f"{self['tail']:g} behind its last" if spans >= self["chain"] else "so long is a chain of units"
        return f"step    {self['makespan']:g} {self['unit']}; no order is shorter than {self['bound']:g}: {why}\n" \
               f"bubble  {100 * self['bubble']:.1f} %, and at least {100 * self['least_bubble']:.1f} %\n" \
               f"memory  {self['bytes']} bytes on rank {self['fullest']}, most of it {self['largest']}; " \
               f"{self['stashes']} stashes\n"

    __repr__ = __str__


class Comparison(Text):
    """Two schedules beside each other: letters where it is printed, figures in a notebook."""
    html = ""

    def _repr_html_(self):
        return self.html


def reaches(data: dict, durations: dict) -> tuple:
    """Of each unit of a program, `(rank, number of the run)`: what must run before it, and what must follow it.

    Both are lengths of the longest chains of units that need each other's activations, derivatives or stashes.
    """
    needs, sent = {}, {}                           # by run or message: what it needs, what it carries
    for rank, program in enumerate(data["programs"]):
        made, number = {}, itertools.count()
        travels = [value["role"] in ("act", "dact", "stash") for value in program["values"]]
        for action in program["actions"]:
            if action[0] == "run":
                node = rank, next(number)
                needs[node] = {made[v] for v in action[5] if travels[v] and v in made}
                made.update(dict.fromkeys(action[6], node))
            elif action[0] == "post" and action[2] == "send":
                needs[action[1]] = {made[action[3]]} if action[3] in made else set()
            elif action[0] == "post" and action[2] == "receive":
                sent[action[1]] = action[3]
            elif action[2] == "receive":
                made[sent[action[1]]] = action[1]
    heads, tails, last = {}, {}, lambda node: durations.get(node, 0)
    order = list(graphlib.TopologicalSorter(needs).static_order())
    for node in order:
        heads[node] = max((heads[one] + last(one) for one in needs.get(node, ())), default=0)
    for node in reversed(order):
        tails.setdefault(node, 0)
        for one in needs.get(node, ()):
            tails[one] = max(tails.get(one, 0), tails[node] + last(node))
    return heads, tails


class Schedule:
    """A schedule of a file: `Schedule("mine.pipe", ranks=4, microbatches=8)`, or of the library: `std/zb_v.pipe`.

    Parameters are those of the schedule or of the `train` program; `name` says which schedule of the file. Every method
    runs the compiler, which proves the schedule first; what it refuses is a `Refused` whose text has its diagnostics.
    """

    def __init__(self, file, name=None, *, pp=None, **parameters):
        self.file, self.name, self.pp, self.parameters = file, name, pp, parameters

    def _run(self, *options):
        return binary.run(self.file, self.name, self.parameters, options, self.pp)

    def prove(self, channels=None):
        """The table of proofs; `channels` is a map of messages to lanes."""
        return Text(self._run("--prove", *([f"--channels={channels}"] if channels else [])))

    def proofs(self, channels=None):
        """The proofs as data: a list of dictionaries with `name`, `claim` and `facts`."""
        return json.loads(self._run("--prove=json", *([f"--channels={channels}"] if channels else [])))["proofs"]

    def timeline(self, messages=False, memory=False):
        """The drawing. The figure of notebooks has messages as arrows, and the bytes of every rank, where asked."""
        drawing = Drawing(self._run("--emit=timeline"))
        drawing.svg = self._run("--emit=svg", *["--messages"] * messages, *["--memory"] * memory)
        return drawing

    def report(self):
        """One HTML page: timeline, memory, links, where time goes."""
        return Page(self._run("--emit=report"))

    def stats(self):
        """The statistics: makespan, bubble, busy time, peak bytes and so on, as a dictionary."""
        return json.loads(self._run("--emit=stats"))

    def csv(self, comms=False):
        """The units in PyTorch's CSV grammar; with `comms` the messages, too."""
        return Text(self._run("--emit=comms" if comms else "--emit=tasks"))

    def limits(self) -> Limits:
        """What bounds the time and the memory of this schedule: a dictionary that prints itself.

        `makespan` of the simulated step, in `unit`: `units`, of which F takes 1, or `seconds` where the program has a
        cluster. `bound`: no order of these units on these ranks is shorter. It is the largest over the ranks of `head`,
        the time before the first unit of the rank has what it needs, `work`, all its units, and `tail`, the time that
        the units behind its last one take; and at least `chain`, the longest chain of units that need each other.
        `rank` is the rank of the bound. `bubble`: the part of the ranks' time without work; `least_bubble`: that of a
        step as long as the bound. `fullest`: the rank with the largest peak, of `bytes`, most of them of the role
        `largest`, and with at most `stashes` stashes. Raises `Refused`.
        """
        stats, durations, units = self.stats(), {}, {}
        scale = 1e-3 if stats["time"] == "units" else 1e-6
        for event in json.loads(self._run("--emit=trace"))["traceEvents"]:
            if event["ph"] == "X" and event["tid"] == 0 and event["cat"] != "idle":
                own, works = units.setdefault(event["pid"], []), event["cat"] != "U"
                durations[event["pid"], len(own)] = event["dur"] * scale if works else 0
                own.append(works)
        heads, tails = reaches(self.program().data, durations)
        spans = []
        for rank, own in units.items():
            nodes = [(rank, k) for k, works in enumerate(own) if works]
            work, head = sum(durations[node] for node in nodes), min(heads[node] for node in nodes)
            tail = min(tails[node] for node in nodes)
            spans.append((head + work + tail, -rank, head, work, tail))
        span, rank, head, work, tail = max(spans)
        chain = max(heads[node] + durations[node] + tails[node] for node in durations)
        peaks = [rank["peak_at"] for rank in stats["per_rank"]]
        fullest = max(range(len(peaks)), key=lambda one: peaks[one]["total"])
        roles = {role: size for role, size in peaks[fullest].items() if role not in ("time", "total")}
        return Limits(makespan=stats["makespan"], unit=stats["time"], bound=max(span, chain), rank=-rank, head=head,
                      work=work, tail=tail, chain=chain, bubble=stats["bubble"], fullest=fullest,
                      least_bubble=1 - sum(one[3] for one in spans) / len(spans) / max(span, chain),
                      bytes=peaks[fullest]["total"], largest=max(roles, key=roles.get),
                      stashes=stats["per_rank"][fullest]["peak_values"]["stash"])

    def compare(self, other: "Schedule | str", name: "str | None" = None, **parameters) -> Comparison:
        """This schedule and another one side by side: drawings, step, bubble, memory and messages.

        `other` is a `Schedule`, or a file. The file's schedule gets this one's parameters and those that are given
        here; one that is None is left out. `print` shows letters, a notebook two figures. Raises `Refused`.
        """
        if not isinstance(other, Schedule):
            given = {key: value for key, value in {**self.parameters, **parameters}.items() if value is not None}
            other = Schedule(other, name, pp=self.pp, **given)
        both, drawn = (self, other), [one.timeline() for one in (self, other)]
        rows = [one._row() for one in both]
        lines = [str(drawing).rstrip("\n").split("\n") for drawing in drawn]
        wide = max(map(len, lines[0] + [rows[0]["schedule"]])) + 4
        text = [f"{a:{wide}}{b}".rstrip() for a, b in itertools.zip_longest(*lines, fillvalue="")]
        text += ["", *(f"{what:12}  {rows[0][what]:>24}  {rows[1][what]:>24}" for what in rows[0])]
        cells = [(what, html.escape(rows[0][what]), html.escape(rows[1][what])) for what in rows[0]]
        made = Comparison("\n".join(text) + "\n")
        made.html = "<table><tr>" + "".join(f"<td>{drawing.svg}</td>" for drawing in drawn) + "</tr></table><table>" + \
            "".join(f"<tr><th>{what}</th><td>{a}</td><td>{b}</td></tr>" for what, a, b in cells) + "</table>"
        return made

    def _row(self):
        stats = self.stats()
        ranks, unit = stats["per_rank"], "" if stats["time"] == "units" else " s"
        return {"schedule": stats["program"], "step": f"{stats['makespan']:g}{unit}",
                "bubble": f"{stats['bubble']:.1%}",
                "stashes": f"{max(rank['peak_values']['stash'] for rank in ranks)}",
                "bytes": f"{max(rank['peak_bytes']['total'] for rank in ranks)}"}

    def program(self):
        """The `Program`, which a driver runs."""
        return Program(self.file, self.name, pp=self.pp, **self.parameters)

    def _repr_svg_(self):
        return self._run("--emit=svg")

    def __repr__(self):
        given = "".join(f", {key}={value!r}" for key, value in self.parameters.items())
        return f"<Schedule {self.file}{', ' + self.name if self.name else ''}{given}>"
