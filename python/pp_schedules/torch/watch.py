"""Says where a rank stands that has waited long, tells every rank what failed first, and records what ran when."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import json, sys, threading, time
import torch.distributed as dist


class Watch:
    """A thread beside the step. No proof helps against a rank that is dead or slow: it says `late`, not `deadlock`."""

    def __init__(self, name, rank, ranks, patience):
        self.store, self.name, self.rank, self.ranks = dist.distributed_c10d._get_default_store(), name, rank, ranks
        self.patience, self.since, self.place, self.story = patience, None, 0, None
        self.ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self, story):
        """A step begins; `story(place)` tells what the action at a place is. The driver sets `place`."""
        self.story, self.place, self.since = story, 0, time.monotonic()

    def end(self):
        self.since = None

    def _watch(self):
        seen, since, told = None, None, 0
        while not self.ended.wait(min(1.0, self.patience / 4)):
            now = time.monotonic()
            if self.since is None or (self.place, self.since) != seen:
                seen, since, told = (self.place, self.since) if self.since is not None else None, now, 0
            elif now - since > self.patience * (told + 1):
                told += 1
                self._late(now - since)

    def _late(self, seconds):
        here = self.story(self.place)
        mine = f"rank {self.rank} has been late for {seconds:.0f} s at {here}"
        self.store.set(f"{self.name}/late/{self.rank}", mine)
        others = [self.store.get(key).decode() for rank in range(self.ranks) if rank != self.rank and self.store.check(
            [key := f"{self.name}/late/{rank}"])]
        others += [f"failed: {self.first()[1]}"] if self.store.check([f"{self.name}/failed"]) else []
        print("; ".join(["pp: " + mine, *others]), file=sys.stderr, flush=True)

    def first(self):
        """Whether what failed first was refused, and its text."""
        return json.loads(self.store.get(f"{self.name}/failed"))

    def failed(self, refused, told):
        """This rank failed first, or another one did: what all should raise."""
        self.store.compare_set(f"{self.name}/failed", "", json.dumps([refused, told]))
        return self.first()

    def heard(self, told):
        """A transport failed here: what the rank that failed first said, if one did."""
        key = f"{self.name}/failed"
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and not self.store.check([key]):
            time.sleep(0.05)
        if not self.store.check([key]):
            return None
        refused, text = self.first()
        return refused, f"{text}  (rank {self.rank} stood at {told})"

    def close(self):
        self.ended.set()


class Trace:
    """Records the steps of a pipeline while it is entered."""

    def __init__(self, pipe, path):
        self.pipe, self.path = pipe, path

    def __enter__(self):
        self.pipe.log = []

    def __exit__(self, *_):
        log, self.pipe.log = self.pipe.log, None
        events = [{"name": name, "ph": "X", "ts": begun * 1e6, "dur": (ended - begun) * 1e6, "pid": 0,
                   "tid": self.pipe.rank} for name, begun, ended in log]
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)
