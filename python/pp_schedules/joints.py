"""What joins units: the ends of messages on their channels, and the keys that slices of a sequence share."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import collections
from .form import ENDS
from .progress import LANES


def channels(checker):
    """Every end posts its messages once, in the order of their lane, and waits for each once, behind its post."""
    left, checker.ends = {}, {}                  # by rank, message and end: what it has to do, and what it touches
    for number, message in enumerate(checker.messages):
        ends = ("send", "receive") if message["kind"] in ("p2p", "host") else ["member"] * len(message["ranks"])
        left.update(((rank, number, end), "post") for rank, end in zip(message["ranks"], ends))
    for checker.rank, program in enumerate(checker.programs):
        places = collections.Counter()
        for checker.action in program["actions"]:
            word, number, end = checker.action[:3]
            if word == "run":
                continue
            if left.get((checker.rank, number, end)) != word:
                checker.fail("channels", "this rank has no such end of the message, or none is left at this place")
            left[checker.rank, number, end] = "wait" if word == "post" else None
            if word == "post":
                message, lane = checker.messages[number], LANES["edge"](checker.messages[number])
                if message["place"] not in (None, places[lane]):
                    checker.fail("channels", f"expected message {places[lane]} of its lane, got {message['place']}")
                places[lane] += message["place"] is not None
                kind = message["kind"] + " root" * (message["root"] == checker.rank) if end == "member" else end
                checker.ends[checker.rank, number, end] = [[checker.action[i] for i in part] for part in ENDS[kind]]
    for (checker.rank, number, end), word in left.items():
        checker.action = [word, number, end, None, None, None]
        if word:
            checker.fail("channels", "this rank never does it")


def keys(checker, phase, piece, mb, reads, makes, got):
    """A slice reads the keys of those before it, and its own in its backward, which adds to the gradients of the
    former, and needs its own whole; an R may read its own, and a W reads none. Those that begin with it are made in the
    order of slices."""
    earlier = [(mb[0], k) for k in range(mb[1])] if phase != "W" else []
    read = [label for label in got if label[0] == "kv"]
    seen = earlier + [mb] * (phase in "BI" or phase == "R" and len(read) > len(earlier))
    sums = {checker.held[checker.rank][v][2]: v for v in reads if checker.held[checker.rank][v][0] == "dkv"}
    later = frozenset((mb[0], k) for k in range(mb[1] + 1, checker.slices))
    if read != [("kv", piece, number, None) for number in seen]:
        checker.fail("values", f"expected the keys of {seen}")
    if phase not in "BI":
        fits = not sums and not makes
    else:
        whole = mb not in sums if not later else checker.held[checker.rank][sums.get(mb, reads[0])] == (
            "dkv", piece, mb, None, later)
        begun = [number for number in earlier if number not in sums]
        fits = whole and len(begun) == len(makes) and not set(sums) - {mb, *earlier} and all(
            label[1] == piece for label in got)
    if not fits:
        checker.fail("gradients", f"the gradients of the keys of {[*sums]} are not those that it adds to, or needs")
    for number in earlier if phase in "BI" else ():
        if number in sums:
            checker.add(sums[number], checker.held[checker.rank][sums[number]], {mb})
    for v, number in zip(makes, begun if phase in "BI" else ()):
        checker.write(v, ("dkv", piece, number, None, frozenset([mb])))


def states(checker, phase, piece, mb, makes, got):
    """A slice goes on from the state behind the one before, which its backward may read again; the gradient of a state
    goes the other way. Returns what of these was read."""
    before, after = (mb[0], mb[1] - 1), mb[1] + 1 < checker.slices
    state, gradient = [("state", piece, before, None)] * (mb[1] > 0), [("dstate", piece, mb, None)] * after
    needs = {"F": state, "B": gradient, "I": gradient}.get(phase, [])
    for label in set(needs).difference(got):
        checker.fail("values", f"does not read {label}")
    if len(makes) != (phase in "BI" and mb[1] > 0):
        checker.fail("gradients", f"makes {len(makes)} gradients of states")
    for v in makes:
        checker.write(v, ("dstate", piece, before, None))
    return needs + state * (phase in "BIR")
