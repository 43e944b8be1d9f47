"""Prints Chakra execution traces as text, and checks that ASTRA-sim can run them: its rules, no cycle, no lone send."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: chakra.py PREFIX DEVICES
#        chakra.py --library PP_COMPILE FILE.pipe PREFIX [NAME=VALUE ..]: of every schedule that FILE.pipe has by name
import json, os, re, subprocess, sys

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


# What ASTRA-sim (518bd51, Workload.cc and HardwareResource.cc) runs of CollectiveCommType. It throws at all others but
# BROADCAST, 5, which it replays for the node's duration without moving a byte.
RUNS = {0: "ALL_REDUCE", 2: "ALL_GATHER", 6: "ALL_TO_ALL", 7: "REDUCE_SCATTER"}


def obey(ranks, groups):
    """The rules of ASTRA-sim, node by node."""
    for rank, nodes in enumerate(ranks):
        for node in nodes.values():
            where = f"device {rank}, node {node['id']} {node['name']}"
            assert all(dep < node["id"] for dep in node["deps"]), f"{where} waits for a later node"
            if node["type"] == "comp":
                assert node["is_cpu_op"] in (0, 1) and node["tensor_size"] >= 0, where
                continue
            assert not node["is_cpu_op"], f"{where}: messages are of the device"
            assert 0 < node["comm_tag"] < 1 << 31 and node["comm_size"] > 0, where
            if node["type"] == "coll":
                assert node["comm_type"] in RUNS, f"{where}: ASTRA-sim does not run collective {node['comm_type']}"
                members = groups[node["pg_name"]] if "pg_name" in node else range(len(ranks))
                assert rank in members and len(members) > 1, f"{where}: its group is {members}"
            else:
                assert node["comm_src"] != node["comm_dst"], f"{where}: a device sends to itself"


def execute(ranks, groups):
    """Runs the traces with zero buffering: a message is done when all of its nodes may start."""
    done = set()
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
    missing, readers = {}, {}
    for rank, nodes in enumerate(ranks):
        for node in nodes.values():
            missing[rank, node["id"]] = len(set(node["deps"]))
            for dep in set(node["deps"]):
                readers.setdefault((rank, dep), []).append((rank, node["id"]))
    free = [one for one, count in missing.items() if count == 0]
    while free:
        go = partners.get(free[-1], [free[-1]])
        free.pop()
        if any(missing[one] for one in go) or go[0] in done: # the last end to be free starts the message
            continue
        done.update(go)
        for reader in (reader for one in go for reader in readers.get(one, [])):
            missing[reader] -= 1
            if missing[reader] == 0:
                free.append(reader)
    assert len(done) == len(missing), f"nobody can go on; {len(missing) - len(done)} nodes are left"
    return len(done), len(ends)


def load(prefix, count):
    """The heads and nodes of so many devices, and the groups."""
    heads, ranks = zip(*(read(f"{prefix}.{rank}.et") for rank in range(count)))
    groups = {}
    if os.path.exists(prefix + ".groups.json"):
        with open(prefix + ".groups.json") as file:
            groups = json.load(file)
    obey(ranks, groups)
    return heads, ranks, groups


def library(compiler, source, prefix, *values):
    with open(source) as file:
        choice = re.search(r"schedule choose .*?\n  }", file.read(), re.S)[0]
    names = re.findall(r'^    ((?:"\w+",? *)+) \w+\(', choice, re.M)
    defines = [word for value in values for word in ("-D", value)]
    for name in (re.findall(r"\w+", its)[0] for its in names):
        path = f"{prefix}.{name}"
        subprocess.run([compiler, source, "--emit=chakra", "-o", path, "-D", f"schedule={name}", *defines], check=True)
        count = 0
        while os.path.exists(f"{path}.{count}.et"):
            count += 1
        _, ranks, groups = load(path, count)
        print(name, "on %d devices: %d nodes executed, %d messages" % (count, *execute(ranks, groups)), flush=True)


def main():
    if sys.argv[1] == "--library":
        return library(*sys.argv[2:])
    prefix, count = sys.argv[1], int(sys.argv[2])
    heads, ranks, groups = load(prefix, count)
    for rank, (head, nodes) in enumerate(zip(heads, ranks)):
        print(f"rank {rank} version {head[0][1].decode()} {' '.join(str(attribute(value)) for _, value in head[1:])}")
        for node in nodes.values():
            kinds = node.pop("kinds")
            print(f"  {node['id']} {node['type']} {node['name']} after {node['deps']}",
                  *(f"{name}:{kinds[name]}={node[name]}" for name in kinds), f"{node['start']}+{node['duration']}us")
    for number, members in groups.items():
        print(f"group {number}: {members}")
    print("%d nodes executed, %d messages" % execute(ranks, groups))


if __name__ == "__main__":
    main()
