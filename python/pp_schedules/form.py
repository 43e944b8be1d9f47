"""The shape of the format pp.program/1, and the words in which errors name what a program does and where."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import itertools, os
from .refused import Unproved

FORMAT = "pp.program/1"
NEEDS = ("halves", "recompute", "host", "stash moves", "weight moves", "grad moves", "shards", "replicas", "ties",
         "parts", "skips", "together", "updates", "versions", "slices", "states", "cuts", "vocabulary", "redo")
# What an end of a message reads and what it writes: its value (3) and its shard (4), by their place in the action.
ENDS = {"send": ((3,), ()), "receive": ((), (3,)), "all_reduce": ((3,), (3,)), "all_gather": ((4,), (3,)),
        "reduce_scatter": ((3,), (3, 4)), "reduce": ((3,), ()), "reduce root": ((3,), (3,)), "broadcast": ((), (3,)),
        "broadcast root": ((3,), ())}
UNCHECKED = ("cuts", "versions", "updates", "redo")  # needs of programs
GROUPS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
COUNTS = ("stashes", "weights", "grads", "acts", "dacts", "guests", "host_stashes", "messages")

# A shape is a type; None: null; a set of words; a tuple: one of several shapes; a list: one shape for all elements, or
# one for each; a dictionary: the shapes of fields, which may be left out if they end with `?`; or a text: the number
# of one of so many things. There are 0 to `sizes[text] - 1` of them, and `mb` may be -1.
NUMBER, TEXT, PIECE, LINE = (int, float), (str, None), ("pieces", None), "line"
PLACE = {"layout": {"full", "shard"}, "ranks": ["ranks"]}
END = {"send", "receive", "member"}
ACTIONS = {"run": [{"run"}, set("FBIWRU"), str, "pieces", "mb", ["values"], ["values"], LINE, ["values"]],
           "post": [{"post"}, "messages", END, "values", ("values", None), LINE, ["values"]],
           "wait": [{"wait"}, "messages", END, LINE, ["values"]]}
BIND = {"kind": {"weight", "opt", "grad", "previous", "undo"}, "piece": "pieces", "shard?": "ranks",
        "save?": bool}
DATA = {"kind": {"tokens", "targets", "source", "starts", "positions", "rows", "column", "loss", "norm"}, "mb?": "mb",
        "slice?": int}
VALUE = {"role": str, "label": str, "piece": PIECE, "mb": "mb", "host": bool, "bind": (None, BIND, DATA)}
MESSAGE = {"kind": {"p2p", "host", *GROUPS}, "role": str, "piece": PIECE, "mb": "mb", "of": ({"all"}, "ties"),
           "slice?": int, "lane": ("lanes", None), "place": (int, None), "ranks": ["ranks"], "root": ("ranks", None),
           "together": (int, None), "line": LINE}
SIDE = {"messages": [MESSAGE], "programs": [{"rank": int, "values": [VALUE], "actions": [list]}]}
PROGRAM = {
    "name": str, "ranks": int, "microbatches": int, "slices": int, "updates": int, "files": [{"path": str}],
    "pieces": [{"name": str, "kind": {"stage", "part"}, "index": int, "part": TEXT, "layers": (None, [int]),
                "ends?": [str], "frozen": bool, "line": LINE, "owner": (None, PLACE), "homes": (None, PLACE)}],
    "ties": [{"owner": "pieces", "sharers": ["pieces"]}],
    "lanes": [({"kind": {"edge"}, "from": "ranks", "to": "ranks"}, {"kind": {"group"}, "ranks": ["ranks"]})],
    **SIDE, "forward": (None, SIDE), "counts": [dict.fromkeys(COUNTS, int)],
    "time?": (None, {"makespan": NUMBER, "start": [[NUMBER]]})}
NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list",
         dict: "an object"}


def named(shape):
    """A shape in words."""
    if isinstance(shape, (tuple, set)):
        return " or ".join(map(named, shape) if isinstance(shape, tuple) else (f"`{w}`" for w in sorted(shape)))
    if shape is None or isinstance(shape, str):
        words = {None: "null", LINE: "null or a file, a line, a column and a text", "mb": "a microbatch or -1"}
        return words.get(shape, f"the number of one of the {shape}")
    return NAMES[type(shape) if isinstance(shape, (list, dict)) else shape]


def fitting(shape, sizes):
    """A function of a value: None if it has the shape; else the place in it, what is there, what was expected."""
    kind = type(shape)
    if kind is dict:
        fields = [(name.rstrip("?"), name.endswith("?"), fitting(one, sizes)) for name, one in shape.items()]
    elif kind in (tuple, list):
        parts = [fitting(one, sizes) for one in shape]

    def field(value):
        if type(value) is not dict:
            return "", value, shape
        for key, can_lack, fits in fields:
            found = fits(value[key]) if key in value else None if can_lack else ("", ..., shape[key])
            if found:
                return f".{key}{found[0]}", *found[1:]
        return None

    def element(value):
        if type(value) is not list or len(parts) > 1 and len(parts) > len(value):
            return "", value, shape
        for place, (item, fits) in enumerate(zip(value, parts if len(parts) > 1 else itertools.repeat(parts[0]))):
            found = fits(item)
            if found:
                return f"[{place}]{found[0]}", *found[1:]
        return None

    def choice(value):
        deepest = "", value, shape
        for fits in parts:
            found = fits(value)
            if found is None:
                return None
            deepest = found if found[0] else deepest
        return deepest

    def number(value):
        return None if type(value) is int and low <= value < high else ("", value, shape)

    def word(value):
        return None if type(value) is str and value in shape else ("", value, shape)

    def plain(value):
        return None if value is None and shape is None or type(value) is shape else ("", value, shape)

    def line(value):
        fits = type(value) is list and [*map(type, value)] == [int, int, int, str] and 0 <= value[0] < high
        return None if value is None or fits else ("", value, shape)

    low, high = -1 if shape == "mb" else 0, sizes.get("files" if shape == LINE else shape) if kind is str else 0
    kinds = {dict: field, list: element, tuple: choice, str: line if shape == LINE else number, set: word}
    return kinds.get(kind, plain)


def place_of(program, line):
    """`mine.pipe:5:32` of a line in the JSON, or an empty text."""
    return f"{os.path.basename(program['files'][line[0]]['path'])}:{line[1]}:{line[2]}" if line else ""


def part_of(piece):
    """The name of a part, such as `attn 3` or `head`."""
    return piece["part"] if piece["index"] < 0 else f"{piece['part']} {piece['index']}"


def leads(pieces):
    """Of each piece the first of the shards of its part where a part is cut by the vocabulary, else the piece."""
    found = []
    for i, piece in enumerate(pieces):
        cut = piece["kind"] == "part" and f"{piece['part']}.{piece['index']}" in piece.get("ends", ())
        joins = cut and piece["index"] and i and pieces[i - 1]["part"] == piece["part"]
        found.append(found[-1] if joins else i)
    return found


def name_of(program, what, piece, mb):
    """Such as `F(1, 0)` of a unit, or `act(1, 0)` of what travels."""
    if piece is None:
        return f"{what}(norm)"
    of = program["pieces"][piece]
    name = part_of(of) if of["part"] else of["index"]
    return f"{what}({name}, {mb})" if mb >= 0 else f"{what}({name})"


def story(program, messages, action):
    """What an action of a rank is, in words with its place in the .pipe file."""
    if action[0] == "run":
        text, line = name_of(program, action[1], *action[3:5]), action[7]
    else:
        message = messages[action[1]]
        text = f"{action[0]} of {name_of(program, message['role'], message['piece'], message['mb'])} ({action[2]})"
        line = action[5 if action[0] == "post" else 3]
    return f"{text} at {place_of(program, line)}" if line else text


def told(value):
    """A value that does not fit, in a few words."""
    if isinstance(value, (list, dict)):
        return f"{NAMES[type(value)]} of {len(value)}"
    text = {None: "null", ...: "nothing"}.get(value) if value in (None, ...) else repr(value)
    return text if len(text) <= 40 else text[:40] + ".."


def expect(value, shape, sizes, path=""):
    """Raises `Unproved` if the value has another shape. `path` says where in the file it is."""
    found = fitting(shape, sizes)(value)
    if found:
        place, got, one = found
        raise Unproved("form", f"{(path + place).lstrip('.')}: expected {named(one)}, got {told(got)}")


def equal(got, wanted, path):
    if got != wanted or type(got) is not type(wanted):
        raise Unproved("form", f"{path}: expected {wanted}, got {told(got)}")


def check(program):
    """Raises `Unproved`, whose claim is `form`, if this is no program of the format."""
    if not isinstance(program, dict) or program.get("format") != FORMAT:
        got = program.get("format") if isinstance(program, dict) else program
        raise Unproved("form", f"expected the format `{FORMAT}`, got {told(got)}")
    sizes = {name: len(program[name]) if isinstance(program.get(name), list) else 0
             for name in ("pieces", "ties", "lanes", "files", "programs")}
    sizes.update(ranks=sizes["programs"], mb=program.get("microbatches"), slices=program.get("slices"))
    expect(program, {"needs": [str], "microbatches": int}, sizes)
    for need in program["needs"]:
        if need not in NEEDS:
            raise Unproved("form", f"the program needs `{need}`, which this version of pp-schedules does not know")
    expect(program, PROGRAM, sizes)
    equal(program["ranks"], sizes["programs"], "ranks")
    most = sum(len(rank["actions"]) for rank in program["programs"]) // max(1, len(program["pieces"]))
    if not 1 <= program["microbatches"] * max(1, program["slices"]) <= most:
        raise Unproved("form", f"microbatches: expected 1 to {most}, for each has an F of each piece, got "
                       f"{told(program['microbatches'])}")
    equal(len(program["counts"]), sizes["programs"], "the length of counts")
    if program.get("time"):
        equal(len(program["time"]["start"]), sizes["programs"], "the length of time.start")
    check_side(program, sizes, program["lanes"], "")
    if program["forward"]:
        equal(len(program["forward"]["programs"]), sizes["programs"], "the length of forward.programs")
        check_side(program["forward"], sizes, program["lanes"], "forward.")


def check_side(side, sizes, lanes, path):
    """Checks the actions, and whether messages fit their lanes: of the training step, or of the forward program."""
    for number, message in enumerate(side["messages"]):
        kind, ranks = message["kind"], message["ranks"]
        lane = lanes[message["lane"]] if message["lane"] is not None else None
        ends = lane and (lane["ranks"] if lane["kind"] == "group" else [lane["from"], lane["to"]])
        if kind in GROUPS:
            fits = lane and lane["kind"] == "group" and ends == ranks == sorted(set(ranks)) and ranks
        elif kind == "host":
            fits = lane is None and len(ranks) == 2 and ranks[0] == ranks[1]
        else:
            fits = lane and lane["kind"] == "edge" and ends == ranks and ranks[0] != ranks[1]
        roots = ranks if kind in ("reduce", "broadcast") else [None]
        if not fits or (lane is None) != (message["place"] is None) or message["root"] not in roots:
            raise Unproved("form", f"{path}messages[{number}]: a `{kind}` of ranks {ranks} with the root "
                           f"{told(message['root'])} does not fit the lane of {ends or 'no ranks'}, or its place")
    for rank, program in enumerate(side["programs"]):
        equal(program["rank"], rank, f"{path}programs[{rank}].rank")
        own = {**sizes, "messages": len(side["messages"]), "values": len(program["values"])}
        fits = {word: fitting(shape, own) for word, shape in ACTIONS.items()}
        for place, action in enumerate(program["actions"]):
            word, where = action[0] if action else ..., f"{path}programs[{rank}].actions[{place}]"
            if type(word) is not str or word not in fits:
                expect(word, set(ACTIONS), own, where + "[0]")
            if fits[word](action):
                expect(action, ACTIONS[word], own, where)
            if word == "run" and sizes["slices"] and (len(action) != 10 or type(action[9]) is not int or not
                                                      -1 <= action[9] < sizes["slices"]):
                raise Unproved("form", f"{where}[9]: expected a slice or -1")
            cuts = word == "post" and side["messages"][action[1]]["kind"] in ("all_gather", "reduce_scatter")
            if word == "post" and cuts == (action[4] is None):
                raise Unproved("form", f"{where}[4]: expected {'a shard' if cuts else 'no shard'} for this message")
