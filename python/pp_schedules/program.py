"""What pp proved, as plain data: the program of every rank in the format pp.program/1."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import hashlib, json, os
from . import binary, form
from .refused import Refused
from .verify import verify


def fingerprint(data):
    """SHA-256 of the canonical text without what may differ between two makers of one program."""
    rest = {key: value for key, value in data.items() if key not in ("fingerprint", "compiler", "files")}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Program:
    """The proved programs of all ranks.

    `Program("mine.pipe", ranks=4, microbatches=8)` compiles the file: parameters are those of its schedule or of its
    `train` program, `name` is the schedule (`schedule=` is a parameter like others), `model__layers=4` stands for
    `-D model.layers=4`. `Program.load(path)` reads what `save` or `pp-compile --emit=json` wrote. Both raise `Refused`.
    """

    def __init__(self, file, name=None, *, pp=None, channels=None, **parameters):
        options = ["--emit=json", "-o", "-", *([f"--channels={channels}"] if channels else [])]
        self._take(json.loads(binary.run(file, name, parameters, options, pp)))

    @classmethod
    def of(cls, data):
        """The program of a dictionary."""
        program = cls.__new__(cls)
        program._take(data)
        return program

    @classmethod
    def load(cls, path):
        """Reads a file of the format; raises `Refused` if it is another format, or was changed."""
        def refuse(word):
            raise ValueError(f"`{word}` is no number of JSON")
        try:
            with open(path, encoding="utf-8") as file:
                data = json.load(file, parse_constant=refuse)
        except (ValueError, RecursionError) as error:
            raise Refused(f"`{os.fspath(path)}` is no JSON: {error}") from error
        return cls.of(data)

    def _take(self, data):
        form.check(data)
        if data.get("fingerprint") != fingerprint(data):
            raise Refused("the fingerprint is not that of the program: the text was changed after pp proved it")
        self.data = data

    def save(self, path):
        """Writes the JSON, whole or not at all."""
        with open(f"{os.fspath(path)}.part", "w", encoding="utf-8") as file:
            json.dump(self.data, file, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        os.replace(f"{os.fspath(path)}.part", path)

    def verify(self, maps=None):
        """Checks the program again without the compiler; see `pp_schedules.verify`."""
        return verify(self.data, **({"maps": maps} if maps else {}))

    name = property(lambda self: self.data["name"])
    fingerprint = property(lambda self: self.data["fingerprint"])
    pieces = property(lambda self: self.data["pieces"])
    ties = property(lambda self: self.data["ties"])
    needs = property(lambda self: self.data["needs"])
    ranks = property(lambda self: self.data["ranks"])
    microbatches = property(lambda self: self.data["microbatches"])

    def side(self, forward=False):
        """Messages and programs of the training step, or of the forward program."""
        side = self.data["forward"] if forward else self.data
        if side is None:
            raise Refused("this program has no forward program: it was made with `--forward=false`")
        return side

    def place(self, line):
        """`mine.pipe:5:32` of a line in the JSON, or an empty text."""
        return form.place_of(self.data, line)

    def story(self, action, messages):
        """What an action of a rank is, in words with its place in the .pipe file."""
        return form.story(self.data, messages, action)

    def __repr__(self):
        sizes = f"{self.ranks} ranks, {self.microbatches} microbatches, {len(self.pieces)} pieces"
        return f"<Program {self.name}: {sizes}, {self.fingerprint[:12]}>"
