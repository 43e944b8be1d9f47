"""Decides whether ranks can reach their ends with zero buffering, for maps of messages to lanes."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

# A lane is a queue of every rank, through which messages go one after the other. Messages with one key share a lane.
LANES = {"edge": lambda m: (m["kind"] == "p2p", *m["ranks"]),
         "pair": lambda m: (m["kind"] == "p2p", *sorted(m["ranks"])),
         "direction": lambda m: m["role"] in ("dact", "grad"), "rank": lambda m: 0, "serial": lambda m: 0}
MAPS = tuple(LANES)


def batches(which, messages, steps):
    """Of every post the messages that go through its lane as one with it, and those before them.

    Posts of one `together` go as one, but not on an edge; with `serial` only where nothing stands between them.
    """
    found, names = {}, [LANES[which](message) for message in messages]
    for rank, own in enumerate(steps):
        lanes, posted = {}, None                   # by lane: its last `together`, these messages, those before them
        for place, word, number, end in own:
            if word == "post":
                lane = end if messages[number]["kind"] == "host" else names[number]
                last, together = lanes.get(lane, (None, [], [])), messages[number]["together"]
                joins = which != "edge" and last[0] == together is not None
                if not joins or which == "serial" and posted != place - 1:
                    last = lanes[lane] = together, [], last[1]
                last[1].append(number)
                found[rank, number, end] = last[1:]
                posted = place
    return found


def progress(which, messages, steps):
    """Executes the posts and waits of all ranks, `steps`: lists of (place, word, message, end).

    A message goes when its ends have posted it and what stands before it on their lanes has gone. A wait is for a
    message and those that go as one with it. With `serial` all that stands behind a post waits for its message, too.
    Returns where ranks stop until messages have gone, in an order in which that happens; and by rank where it never
    does.
    """
    found, stops, first = batches(which, messages, steps), [], len(messages)
    after, needs = [[] for _ in messages], [0] * first  # of events: that a message goes, that a rank passes a stop
    for rank, own in enumerate(steps):
        last, blocks = [], []                      # where the rank stopped last; messages that its last post is with
        for place, word, number, end in own:
            batch, earlier = found[rank, number, end]
            causes = (batch if word == "wait" else []) + (blocks if blocks is not batch else [])
            if causes:
                causes += last
                last = [first + len(stops)]
                stops.append((rank, place))
                after.append([])
                needs.append(len(causes))
                for cause in causes:
                    after[cause] += last
            if word == "post":
                needs[number] += len(last) + len(earlier)
                for cause in last + earlier:
                    after[cause].append(number)
            blocks = batch if which == "serial" and word == "post" and messages[number]["kind"] != "host" else []
    order = [event for event, count in enumerate(needs) if not count]
    for event in order:
        for later in after[event]:
            needs[later] -= 1
            if not needs[later]:
                order.append(later)
    stuck = dict(reversed([stop for stop, count in zip(stops, needs[first:]) if count]))
    return [stops[event - first] for event in order if event >= first], stuck
