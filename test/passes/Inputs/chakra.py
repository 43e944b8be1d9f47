"""Prints Chakra execution traces as text, and checks that they can run: no cycle, and every send has its receive."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: chakra.py PREFIX DEVICES
import json, os, sys

TYPES = {4: "comp", 5: "send", 6: "recv", 7: "coll"}
VALUES = {7: "int32", 9: "int64", 13: "uint64", 27: "bool", 29: "string"}


def varint(data, at):
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """The fields of one message: (number, value), numbers as int, everything else as bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        elif key & 7 != 0:
            raise ValueError(f"wire type {key & 7}")
        if at > len(data):
            raise ValueError("a field goes beyond its message")
        yield key >> 3, value


def attribute(data):
    (_, name), (kind, value) = fields(data)
    return name.decode(), VALUES[kind], value.decode() if isinstance(value, bytes) else value


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    at, messages = 0, []
    while at < len(data):
        size, at = varint(data, at)
        messages.append(data[at:at + size])
        at += size
    assert at == len(data), "the last message is cut off"
    nodes = {}
    for message in messages[1:]:
        node = {"deps": [], "start": 0, "duration": 0}
        for number, value in fields(message):
            if number == 5:
                place = 0
                while place < len(value):
                    one, place = varint(value, place)
                    node["deps"].append(one)
            elif number == 10:
                name, kind, its = attribute(value)
                node[name] = its
                node.setdefault("kinds", {})[name] = kind
            else:
                node[{1: "id", 2: "name", 3: "type", 6: "start", 7: "duration"}[number]] = value
        node["name"], node["type"] = node["name"].decode(), TYPES[node["type"]]
        assert node["id"] not in nodes, f"node {node['id']} twice"
        nodes[node["id"]] = node
    return list(fields(messages[0])), nodes


def execute(ranks, groups):
    """Runs the traces with zero buffering: a message is done when all of its nodes may start."""
    done, ready = set(), {}
    ends = {}
    for rank, nodes in enumerate(ranks):
        for node in nodes.values():
            if node["type"] == "coll":
                key = "coll", node.get("pg_name"), node["comm_tag"], node["comm_size"], node["comm_type"]
                ends.setdefault(key, []).append((rank, node["id"]))
            elif node["type"] != "comp":
                key = node["comm_src"], node["comm_dst"], node["comm_tag"], node["comm_size"]
                assert rank == node["comm_src" if node["type"] == "send" else "comm_dst"], node
                ends.setdefault(key, []).append((rank, node["id"]))
    for key, its in ends.items():
        kinds = sorted(ranks[rank][number]["type"] for rank, number in its)
        assert key[0] == "coll" or kinds == ["recv", "send"], f"message {key} has the ends {kinds}"
        members = groups[key[1]] if key[0] == "coll" and key[1] else range(len(ranks))
        assert key[0] != "coll" or [rank for rank, _ in its] == list(members), f"{key} has the ends {its}"
    partners = {end: its for its in ends.values() for end in its}
    left = {(rank, number) for rank, nodes in enumerate(ranks) for number in nodes}
    while left:
        free = {(rank, number) for rank, number in left
                if all((rank, dep) in done for dep in ranks[rank][number]["deps"])}
        go = {one for one in free if all(other in free for other in partners.get(one, [one]))}
        assert go, f"nobody can go on; {len(left)} nodes are left"
        done |= go
        left -= go
    return len(done), len(ends)


def main():
    prefix, count = sys.argv[1], int(sys.argv[2])
    ranks = []
    for rank in range(count):
        head, nodes = read(f"{prefix}.{rank}.et")
        print(f"rank {rank} version {head[0][1].decode()} {' '.join(str(attribute(value)) for _, value in head[1:])}")
        for node in nodes.values():
            kinds = node.pop("kinds")
            print(f"  {node['id']} {node['type']} {node['name']} after {node['deps']}",
                  *(f"{name}:{kinds[name]}={node[name]}" for name in kinds), f"{node['start']}+{node['duration']}us")
        ranks.append(nodes)
    groups = {}
    if os.path.exists(prefix + ".groups.json"):
        with open(prefix + ".groups.json") as file:
            groups = json.load(file)
    for number, members in groups.items():
        print(f"group {number}: {members}")
    print("%d nodes executed, %d messages" % execute(ranks, groups))


if __name__ == "__main__":
    main()
