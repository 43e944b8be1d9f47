"""A schedule without a model: proved, drawn, counted and exported. It needs the compiler alone, not torch."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import json
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


class Schedule:
    """A schedule of a file: `Schedule("mine.pipe", ranks=4, microbatches=8)`.

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

    def program(self):
        """The `Program`, which a driver runs."""
        return Program(self.file, self.name, pp=self.pp, **self.parameters)

    def _repr_svg_(self):
        return self._run("--emit=svg")

    def __repr__(self):
        given = "".join(f", {key}={value!r}" for key, value in self.parameters.items())
        return f"<Schedule {self.file}{', ' + self.name if self.name else ''}{given}>"
