"""The communicators of a pipeline: one for each directed edge, or pair, that has a message, and one for each group."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import torch
import torch.distributed as dist
from ..form import GROUPS


class Lanes:
    """`kind` is `edge` or `pair`. `new_group` is a collective of the world, so every process makes the lanes of all
    pipelines, in one sorted order; the names of lanes say their ranks, for logs and flight recorders."""

    def __init__(self, program, group, kind, device):
        self.kind, self.rank = kind, dist.get_rank(group)
        self.ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
        messages = program.side()["messages"] + (program.data["forward"] or {"messages": []})["messages"]
        self.all = ("group", *range(len(self.ranks)))  # for what is said behind a step
        keys = sorted({self.key(m) for m in messages if m["kind"] != "host"} | {self.all})
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, self.ranks)
        self.groups = {}
        for pipeline in sorted(set(everyone)):
            for key in keys:
                name = "pp " + ",".join(str(pipeline[rank]) for rank in key[1:])
                made = dist.new_group([pipeline[rank] for rank in key[1:]], group_desc=name)
                if pipeline == self.ranks and self.rank in key[1:]:
                    self.groups[key] = made
        self._connect(keys, device)

    def key(self, message):
        """The lane of a message: (kind, ranks of the pipeline)."""
        if message["kind"] in GROUPS:
            return ("group", *message["ranks"])
        return ("edge", *message["ranks"]) if self.kind == "edge" else ("pair", *sorted(message["ranks"]))

    def of(self, message):
        """The process group of a message."""
        return self.groups[self.key(message)]

    def peer(self, message, rank):
        """The number that a rank of the pipeline has in the message's group."""
        return dist.get_group_rank(self.of(message), self.ranks[rank])

    def _connect(self, keys, device):
        """One byte on every lane, in one order on all ranks: backends connect peers at the first message and block."""
        byte = torch.zeros(1, dtype=torch.uint8, device=device)
        for key in keys:
            group = self.groups.get(key)
            if group is not None and key[0] == "group":
                dist.all_reduce(byte, group=group)
            elif group is not None:
                first = dist.get_rank(group) == dist.get_group_rank(group, self.ranks[key[1]])
                other = dist.get_group_rank(group, self.ranks[key[2] if first else key[1]])
                (dist.isend(byte, group=group, group_dst=other) if first else
                 dist.irecv(byte, group=group, group_src=other)).wait()

    def close(self, abort=False):
        """Gives the communicators back. `abort`: a rank failed, and those that wait for it must hear of it now; a
        backend closes its connections when nothing refers to a group any more."""
        groups, self.groups = self.groups, {}
        while groups:
            group = groups.popitem()[1]
            if abort and hasattr(group, "abort"):
                group.abort()
            dist.destroy_process_group(group)
