#!/usr/bin/env python3
"""Tests the transport over NCCL without a GPU: schedules train as on one rank; faults are named and end all ranks."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: nccl.py PP_COMPILE FOLDER [--all]     (PP_TEST_RUNTIME: a runtime over test/gpu/FakeCuda.cpp and FakeNccl.cpp)
# The programs are those for `cuda` to the last call; what CUDA and NCCL do is done on this CPU, in an order drawn anew
# for each run. Three steps: one asked for call by call, one captured as a graph, one that launches it again; the third
# loss is of the second step's gradients. The stand-in of NCCL never buffers, refuses what NCCL leaves undefined
# (lengths that differ, a first use inside a capture), and fails where PP_FAKE_NCCL says. Messages between two ranks go
# by copy engines; they go over NCCL, too, where this machine is not to have them (ALONE). Without --all each kind of
# message trains in a program or two, and what is counted is counted in fewer programs; all faults are tried.
import collections, concurrent.futures, itertools, json, math, os, re, shutil, subprocess, sys, time
import harness
from gradients import SMALL, difference

SIZES = SMALL | dict(model="llama", precision="f64", ranks=4, microbatches=4, layers=4, hidden=16, heads=4, kv_heads=2,
                     ffn=16, sequence=8, microbatch=1)
SCHEDULES = """1f1b zb_h1/model.fused=true interleaved/layers=8 weipipe fsdp data_parallel helixpipe slimpipe
1f1b_vocabulary
1f1b/mesh.tensor=2 1f1b_overlap/mesh.tensor=2 zb_h1/mesh.tensor=2/mesh.sequence=true 1f1b_vocabulary/mesh.tensor=2
1f1b/mesh.data=2/mesh.zero=1/microbatches=2 zb_h1/mesh.data=2/mesh.zero=2/microbatches=2
1f1b/mesh.context=2 zb_h1/mesh.context=2/mesh.attention=heads/mesh.zero=2
1f1b/mesh.context=4/mesh.attention=heads/ranks=2 1f1b/model=gpt2/mesh.context=2/mesh.attention=heads
zb_h1/mesh.context=2/mesh.tensor=2/mesh.sequence=true/mesh.attention=heads/ranks=2
1f1b/mesh.context=2/mesh.data=2/mesh.zero=1/microbatches=2/ranks=2 1f1b_vocabulary/mesh.context=2/ranks=2
fsdp/mesh.context=2/ranks=2 slimpipe/sequence=16/mesh.context=2/mesh.attention=heads/ranks=2
slimpipe/exchange=true/sequence=16/mesh.context=2/mesh.attention=heads/ranks=2
""".split()
# Mixtures of experts, whose rows are known to the device alone; on a mesh, experts of their own for devices.
MIXTRAL = "/model=mixtral/experts=6/top=3/balance=0.5/z=0.02"
GLM = "/model=glm4_moe/experts=6/top=3/balance=0.5"
SCHEDULES += [f"1f1b{MIXTRAL}", f"zb_v{MIXTRAL}/ranks=2", f"1f1b{GLM}", f"zb_v{GLM}/ranks=2",
              f"1f1b{MIXTRAL}/mesh.tensor=2/mesh.data=2/mesh.expert=2/microbatches=2/ranks=2",
              f"zb_v{GLM}/mesh.context=2/mesh.expert=2/ranks=2"]
# One or two of each kind of message: stages, weights, gathers and scatters, sums, parts, slices, the vocabulary; then
# those of each axis of a mesh, with what `zero` cuts, and the sections of experts.
FEW = """1f1b weipipe fsdp data_parallel helixpipe
1f1b_vocabulary/mesh.tensor=2 zb_h1/mesh.tensor=2/mesh.sequence=true 1f1b/mesh.data=2/mesh.zero=1/microbatches=2
zb_h1/mesh.context=2/mesh.attention=heads/mesh.zero=2 fsdp/mesh.context=2/ranks=2
slimpipe/exchange=true/sequence=16/mesh.context=2/mesh.attention=heads/ranks=2
""".split() + [f"zb_v{MIXTRAL}/ranks=2", SCHEDULES[-1],
               f"1f1b{MIXTRAL}/mesh.tensor=2/mesh.data=2/mesh.expert=2/microbatches=2/ranks=2"]
ALONE = dict(PP_COPY_ENGINES="off")
TOLERANCE = 1e-11  # of f64, as in gradients.py; sums over ranks are in another order here than there


def drift_of(ours, theirs):
    """How far two numbers of the log are apart, or the farthest of several."""
    if isinstance(theirs, dict):
        return max(drift_of(ours[name], theirs[name]) for name in theirs)
    return abs(ours - theirs) / (abs(theirs) or 1)


class Runner:
    def __init__(self, compiler, folder, every=""):
        self.compiler, self.folder, self.tally = compiler, folder, harness.Tally()
        self.every = every == "--all"
        self.told = {}  # program -> its last run
        self.text = harness.write_text(folder)
        os.makedirs(folder, exist_ok=True)

    def path(self, name):
        return os.path.join(self.folder, name.replace("/", "_"))

    def compile(self, schedule, *options, **values):
        name, *more = schedule.split("/")
        values = SIZES | values | dict(schedule=name) | dict(pair.split("=") for pair in more)
        return harness.compile_train(self.compiler, self.path(f"{schedule}.{values['ranks']}"), values,
                                     options=("--target=cuda", *options))

    def train(self, program, command, *options, **environment):
        """The gradients of the first step and the log; or what it said instead, and how long it took."""
        start = time.time()
        run = subprocess.run([*command, program, "--data", self.text,
                              *(() if "--steps" in options else ("--steps", "3")), "--grads", program + ".grads",
                              "--log",
                              program + ".log", *options], env=harness.ENVIRONMENT | environment, capture_output=True,
                             text=True, timeout=120, stdin=subprocess.DEVNULL)
        self.told[program] = run
        if run.returncode:
            return [line for line in run.stderr.splitlines() if "error:" in line], time.time() - start
        return {name: values for name, (_, values) in harness.read_safetensors(program + ".grads").items()}, \
            harness.read_log(program + ".log")

    def gradients(self):
        schedules = SCHEDULES if self.every else FEW
        expected = {more: self.train(self.compile(f"single{more}", ranks=1), [], "--in-process")
                    for more in ("", "/layers=8", "/model=gpt2", "/model.fused=true", "/sequence=16", MIXTRAL, GLM)
                    if any(more in schedule for schedule in schedules)}
        mpirun = ["mpirun", "--oversubscribe", "-n"]
        ways = [("by copies", mpirun, [], {}), ("over NCCL alone", mpirun, [], ALONE),
                ("one GPU", [], ["--in-process"], {}),
                # Windows so small that most collectives take several rounds; processes may share a GPU.
                ("by copies alone", mpirun, ["--transport", "copies"],
                 dict(PP_COPY_WINDOW="512", PP_FAKE_SHARED="1", PP_FAKE_NCCL="connect-refuse:-1:0"))]

        def check(number):
            schedule, results = schedules[number], []
            program = self.compile(schedule)
            values = dict(pair.split("=") for pair in schedule.split("/")[1:])
            devices = [str(math.prod(int(values.get(axis, 1)) for axis in ("mesh.tensor", "mesh.context", "mesh.data"))
                           * int(values.get("ranks", SIZES["ranks"])))]
            for how, command, options, its in (ways if number % 8 == 0 else [ways[number % len(ways)]]):
                results.append((how, self.train(program, command + (devices if command else []), *options,
                                                PP_FAKE_SEED=str(number), **its)))
            return schedule, next(expected[more] for more in reversed(expected) if more in schedule), results

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for schedule, (wanted, wanted_log), results in pool.map(check, range(len(schedules))):
                for how, (got, log) in results:
                    if isinstance(got, list):
                        self.tally.check(False, f"{schedule} {how}: {got}")
                        continue
                    worst, where = difference(got, wanted)
                    # A device along context sees fewer tokens of a microbatch, and has fewer rows.
                    names = ["loss", "balance", "z"] + ["rows"] * ("context" not in schedule)
                    drift = max((drift_of(ours[name], theirs[name]) for ours, theirs in zip(log, wanted_log)
                                 for name in names if name in theirs), default=0)
                    self.tally.check(worst <= TOLERANCE and drift <= TOLERANCE and len(log) == 3,
                                     f"{schedule} {how}: gradients {worst:.1e} {where if worst > TOLERANCE else ''} "
                                     f"losses {drift:.1e}")

    def patched(self, program, *changes):
        """The program with other text of the same length in its description."""
        with open(program, "rb") as file:
            data = file.read()
        for old, new in changes:
            assert data.count(old) == 1 and len(old) == len(new), (data.count(old), old)
            data = data.replace(old, b"%" * len(old))
        for old, new in changes:
            data = data.replace(b"%" * len(old), new, 1)
        path = f"{program}.{len(changes)}"
        shutil.copy(program, path)
        with open(path, "r+b") as file:
            file.write(data)
        return path

    def faults(self):
        """All ranks end, one of them says why, in words that name what was planned. Operations 0 to 3 of a rank of
        `both` connect the norm, and the weights for sums, gathers and scatters. Operations 0 to 2 of a rank of `pair`
        connect the norm, channel 1 and channel 2; 3 to 11 are step 1, on both beginning with act(0, 0) and act(0, 1) as
        said by 1F1B's warm-up; 12 to 20 are what the graph captures, on rank 0 ending with dact(1, 3) and the norm."""
        # Without a step that evaluates, whose messages have the same texts.
        pair, both = self.compile("1f1b", "--forward=false", ranks=2, layers=2), self.compile("fsdp", ranks=2)
        copied = shutil.copy(pair, pair + ".copied")
        alone = shutil.copy(both, both + ".alone")
        first = b'"kind":"receive","peer":0,"channel":1,"bytes":1024,"label":"act(0, %d)"'
        with open(copied, "rb") as file:
            said = re.search(re.escape(first % 1) + rb',"offset":(\d+)', file.read())
        place = int(said[1])
        moved = self.patched(copied, (said[0], said[0].replace(said[1], b"%d" % (place + 64))))
        exchanged = self.compile("single/mesh.tensor=2", "--forward=false", ranks=1)
        heads = self.compile("single/mesh.context=2/mesh.attention=heads", "--forward=false", ranks=1)
        sections = self.compile(f"single{MIXTRAL}/mesh.data=2/mesh.expert=2", "--forward=false", ranks=1)
        overdue = "is overdue after 6 s"
        dead = "ended without an error message in step"
        other = self.patched(pair, (first % 1, (first % 1).replace(b"1024", b"1016")))
        swapped = self.patched(pair, (first % 1, first % 2), (first % 2, first % 1))
        cases = (
            ("a send withheld", pair, "withhold:0:4", "step 1", "`act(0, 1)`",
             f"(1024 bytes, channel 1, 1f1b.pipe:10:24) {overdue}; of 9 messages", "waits for `act(0, 1)`"),
            ("a receive withheld in the graph", pair, "withhold:0:19", "step 2", "`dact(1, 3)`", overdue,
             "waits for `dact(1, 3)`"),
            ("a gather withheld", both, "withhold:1:4", "step 1", "the all_gather of `", overdue),
            ("an exchange inside a unit withheld", exchanged, "withhold:1:12", "the sum `1x8x16` over 2 devices",
             overdue, "(rank 0, tensor 1)", "waits for the sum `1x8x16` over 2 devices"),
            # Operations 0 and 1 connect the channel of `context`: for sums, and for what each sends to each.
            ("heads of an all_to_all withheld", heads, "withhold:1:5", "step 1", "the all_to_all of `1x8x4` over 2",
             overdue, "waits for the all_to_all of `1x8x4` over 2 devices"),
            ("an all_to_all of another length", heads, "shorten:0:4", "the all_to_all of `1x8x4` over 2 devices",
             "NCCL: invalid usage", "63"),
            # Operations 0 to 3 connect the channels of the experts and of the replicas.
            ("a section of an all_to_all withheld", sections, "withhold:1:5", "step 1", "the all_to_all of `", overdue),
            ("the first sends of an all_to_all withheld", heads, "withhold:1:1",
             f"connecting channel 1073741826 of ranks 0 and 1 {overdue}"),
            ("the first use of a channel withheld", pair, "withhold:0:2",
             f"connecting channel 2 of ranks 1 and 0 {overdue}"),
            # (Whether act(0, 0) has arrived by then depends on which process is faster.)
            ("a rank that hangs", pair, "hang:0:5", "from rank 0 (1024 bytes, channel 1, 1f1b.pipe:", overdue,
             "rank 0 has not been heard of for ", " s, in step 1"),
            ("a communicator that does not come", pair, "connect-hang:0:1", "connecting channel", overdue),
            ("a rank killed", pair, "die:0:5", f"rank 0 (process", dead),
            ("a rank killed while it connects", pair, "connect-die:1:1", f"rank 1 (process", dead),
            ("an error that comes late", pair, "error:0:5", "step 1", "`dact(1, 0)` from rank 1",
             "NCCL: remote process exited", "an error for a test"),
            ("a call refused", pair, "refuse:1:4", "rank 1, step 1", "`act(0, 1)` from rank 0",
             "NCCL: internal error: refused"),
            ("a call refused in the capture", pair, "refuse:1:12", "rank 1, step 2", "`act(0, 0)` from rank 0",
             "NCCL: internal error"),
            ("a channel refused", pair, "connect-refuse:1:1", "rank 1: connecting channel", "Duplicate GPU detected"),
            ("a message of another length", pair, "shorten:0:4", "`act(0, 1)`", "NCCL: invalid usage", "1023"),
            ("another plan of lengths", other, "",
             "rank 1: on channel 1 of ranks 0 and 1 rank 0 posts a message `act(0, 1)` of 1024 bytes, "
             "and rank 1 a message `act(0, 1)` of 1016 bytes, as number 2 of a step"),
            ("another order", swapped, "",
             "rank 1: on channel 1 of ranks 0 and 1 rank 0 posts a message `act(0, 1)` of 1024 bytes, "
             "and rank 1 a message `act(0, 2)` of 1024 bytes, as number 2 of a step"),
            # By copies. Waits 0 to 7 of a rank are those of step 1, 8 to 15 those that the graph captures.
            ("a copy withheld", copied, "withhold:0:1", "step 1", "`act(0, 1)`",
             f"(1024 bytes, channel 1, 1f1b.pipe:10:24) {overdue}; of 9 messages", "waits for `act(0, 1)`"),
            ("a copy withheld in the graph", copied, "withhold:0:15", "step 2", overdue, "`dact(1, 3)` from rank 1"),
            # (Rank 1 waits for act(0, 0), rank 0 for its next message. Both are overdue, and either may say so first.)
            ("what is copied is not waited for", copied, "withhold:1:0", "step 1", "`act(0, 0)` from rank 0", overdue,
             "`act(0, 1)` to rank 1", " waits for `act(0, "),
            ("a rank that hangs behind copies", copied, "hang:0:2", "from rank 0 (1024 bytes, channel 1, 1f1b.pipe:",
             overdue, "rank 0 has not been heard of for ", " s, in step 1"),
            ("a rank killed behind copies", copied, "die:0:2", f"rank 0 (process", dead),
            ("a place that is not said", moved, "", "rank 1", "`act(0, 1)` from rank 0",
             f"lies {place} bytes into the arena, and {place + 64} were said"),
            # By copies alone: a round of a collective has two waits, and one more that adds up for all.
            ("a gather by copies withheld", alone, "withhold:1:0", "step 1", "the all_gather of `", overdue,
             "waits for the all_gather of `"),
            ("a gather by copies withheld in the graph", alone, "withhold:0:60", "step 2", "the ", " of `", overdue),
            ("a rank killed in a gather by copies", alone, "die:0:3", f"rank 0 (process", dead),
            ("a rank that hangs in a gather by copies", alone, "hang:0:3", "the all_gather of `", overdue,
             "rank 0 has not been heard of for ", " s, in step 1"),
            ("memory that cannot be opened", alone, "closed:1:0",
             "`--transport copies`: ranks 0 and 1 cannot open each other's GPU memory"))

        def run(case, patience=6):
            what, program, fault, *words = case
            # Only the overdue cases wait, for longer than a busy machine needs to connect. All others end at once, long
            # before the default of 600 s.
            waits = any("overdue" in word for word in words)
            words = [word.replace(" 6 s", f" {patience} s") for word in words]
            copy = self.path(f"case{cases.index(case)}")
            shutil.copy(program, copy)
            said, took = self.train(copy, ["mpirun", "-n", "2", "--oversubscribe"],
                                    *(["--timeout", str(patience)] if waits else []),
                                    *(["--transport", "copies"] if program == alone else []),
                                    **({"PP_FAKE_PEER" if program in (copied, alone) else "PP_FAKE_NCCL": fault}
                                       if fault else {}),
                                    **({} if program in (copied, moved, alone) else ALONE))
            good = isinstance(said, list) and len(said) == 1 and all(word in said[0] for word in words) and took < 60
            # On a machine that stands still for seconds everything is overdue: then the case runs again, with more
            # time.
            return run(case, 30) if waits and patience < 30 and not good else (good, said)

        with concurrent.futures.ThreadPoolExecutor(5) as pool:  # most only wait
            for (what, *_), (good, said) in zip(cases, pool.map(run, cases)):
                self.tally.check(good, f"{what}: {said if isinstance(said, list) else 'it trains'}")
        # A wait that is left out, on both ranks: what is read too early, or told again too early, is found, of some.
        for program, way in ((copied, []), (alone, ["--transport", "copies"])):
            right, _ = self.train(program, ["mpirun", "-n", "2", "--oversubscribe"], *way)
            hasty = [self.train(program, ["mpirun", "-n", "2", "--oversubscribe"], "--timeout", "30", *way,
                                PP_FAKE_PEER=f"hasty:-1:{number}")[0] for number in range(0, 4, 1 + bool(way))]
            found = [number for number, its in enumerate(hasty)
                     if isinstance(its, list) or difference(its, right)[0] > 0]
            self.tally.check(isinstance(right, dict) and found,
                             f"{way}: of {len(hasty)} waits for words left out {found} are found")
        said, _ = self.train(alone, ["mpirun", "-n", "2", "--oversubscribe"], "--transport", "copies", **ALONE)
        self.tally.check(isinstance(said, list) and "have messages for each other and are on two machines, or "
                         "PP_COPY_ENGINES is off" in said[0], f"copies where there are none: {said}")
        for _ in range(100): # mpirun may end a moment before its ranks
            left = subprocess.run(["pgrep", "-f", f"^{self.folder}/.* --data"], capture_output=True,
                                  text=True).stdout.split()
            if not left:
                break
            time.sleep(0.1)
        self.tally.check(not left, f"no rank is left {left}")

    def orders(self):
        """Every message between its post and its complete, as asked for and as captured; a wait left out is found, or
        does no harm."""
        programs = {"1f1b": self.path("1f1b.2"), "fsdp": self.path("fsdp.2"),
                    "heads": self.path("single/mesh.context=2/mesh.attention=heads.1"),
                    "runs": self.compile("single/mesh.context=2", "--forward=false", ranks=1),
                    "sections": self.compile(f"single{MIXTRAL}/mesh.data=2/mesh.expert=2", "--forward=false", ranks=1)}

        def run(case):
            name, wait = case
            copy = self.path(f"order.{name}.{wait}")
            shutil.copy(programs[name], copy)
            return self.train(copy, ["mpirun", "-n", "2", "--oversubscribe"], "--steps", "2" if wait < 0 else "1",
                              *(["--transport", "copies"] if "alone" in name else []),
                              PP_FAKE_ORDER=str(wait), **({} if "copies" in name else ALONE))

        programs |= {"1f1b by copies": programs["1f1b"], "fsdp by copies alone": programs["fsdp"],
                     "heads by copies alone": programs["heads"]}
        waits = (-1, 0, 1, 6, 11) if self.every else (-1, 1, 6)
        cases = [(name, wait) for name in programs for wait in waits[:2 if "alone" in name else None]]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            results = dict(zip(cases, pool.map(run, cases)))
        for program in programs:
            right, _ = results[program, -1]
            self.tally.check(isinstance(right, dict),
                             f"{program}: every message between its posts and its "
                             f"completes{'' if isinstance(right, dict) else right}")
            without = {wait: said for (name, wait), (said, _) in results.items() if name == program and wait >= 0}
            found = [wait for wait, said in without.items() if isinstance(said, list)
                     and "does not wait for what" in said[0]]
            unseen = [wait for wait, said in without.items() if wait not in found and said != right]
            self.tally.check(len(found) >= len(without) - 1 and not unseen,
                             f"{program}: of {len(without)} missing waits {len(found)} are found, "
                             f"{len(unseen)} do harm unseen")

    def slices(self):
        """Slices where a library serves: it gets the forward of what has one chunk of keys, rank 0's first slice. What
        has several chunks, or adds to gradients of keys as all backwards of slices do, is our own kernels'. No more
        memory is taken than planned."""
        half = "/model=llama/precision=bf16/hidden=64/heads=4/sequence=64/microbatches=2/layers=2"
        cases = [(f"terapipe{half}/slices=4/kv_heads=2", 2, 7),  # 4 forwards and 4 backwards of its layer
                 (f"ring_attention{half}/kv_heads=4", 2, 1)]

        def check(case):
            schedule, devices, _ = case
            program = self.compile(schedule, ranks=devices)
            command = ["mpirun", "-n", str(devices), "--oversubscribe"]
            right, log = self.train(program, command, PP_CUDNN="off", PP_EMULATE_CUDNN="on")
            got, its = self.train(program, command, PP_EMULATE_CUDNN="on")
            return *case, right, got, log, its, self.told[program]

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for schedule, _, own, right, got, log, its, told in pool.map(check, cases):
                if isinstance(right, list) or isinstance(got, list):
                    self.tally.check(False, f"{schedule}: {right if isinstance(right, list) else got}")
                    continue
                worst, where = difference(got, right)
                drift = max(drift_of(ours["loss"], theirs["loss"]) for ours, theirs in zip(its, log))
                self.tally.check(0 < worst < 2e-2 and drift < 2e-3,
                                 f"{schedule}: gradients by both {worst:.1e} ({where}), losses {drift:.1e}")
                self.tally.check(f"attention: 1 ops by cuDNN, {own} by own kernels" in told.stdout and
                                 "warning" not in told.stderr, f"served: {told.stdout[-300:] + told.stderr[-300:]}")

    def memory(self):
        """What a rank's GPU has to hold is planned; the stand-ins count what is taken of it, by NCCL, too."""
        half = "/model=llama/precision=bf16/hidden=64/heads=4/kv_heads=2/sequence=32"
        cases = [("1f1b", {}, 2), ("fsdp", {}, 2), ("1f1b/mesh.tensor=2/ranks=2", {}, 4),
                 (f"zb_v{MIXTRAL}/ranks=2", {}, 2), (f"1f1b{half}", {}, 2),
                 (f"1f1b{half}", {"PP_EMULATE_CUDNN": "on"}, 2)]
        if self.every:
            cases += [("zb_v/ranks=2", {}, 2), ("1f1b/mesh.tensor=2", {}, 8),
                      ("1f1b/mesh.context=4/mesh.attention=heads/ranks=2", {}, 8)]

        def run(case, *options, **environment):
            schedule, its, devices = case
            program = self.compile(schedule, **({} if "ranks" in schedule or devices > 4 else {"ranks": devices}))
            return subprocess.run(["mpirun", "--oversubscribe", "-n", str(devices), program, "--data", self.text,
                                   "--steps", "3", *options], env=harness.ENVIRONMENT | its | environment,
                                  capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)

        def table(run):
            """Of each device what is planned and what was taken."""
            lines = run.stdout.splitlines()
            head = next((i for i, line in enumerate(lines) if "GPU taken B" in line), None)
            rows = lines[head + 1:] if head is not None else []
            return [tuple(int(word) for word in line.split()[5:7]) for line in rows if line.split()[0].isdigit()]

        for case in cases:
            schedule, its, devices = case
            ended = run(case, **ALONE)
            rows = table(ended)
            good = len(rows) == devices and all(planned / 2 < taken <= planned for planned, taken in rows)
            self.tally.check(good and "warning" not in ended.stderr, f"{schedule} {its}: planned and taken {rows[:2]}")
            if its:
                self.tally.check("ops by cuDNN, 0 by own kernels" in ended.stdout and
                                 ", 0 deltas left to it" not in ended.stdout,
                                 f"cuDNN serves: {ended.stdout.splitlines()[-1:]}")
        # By copies two ranks have no communicator for a direction: of NCCL's buffers those of two connections.
        rows, alone = table(run(cases[0])), table(run(cases[0], **ALONE))
        buffers = 2 * 4 * ((4 << 20) + 4915200 + 524288)
        self.tally.check(all(0 < few < many - buffers for (_, few), (_, many) in zip(rows, alone, strict=True)),
                         f"{cases[0][0]} by copies: planned and taken {rows}, over NCCL alone {alone}")
        greedy = run(cases[0], PP_FAKE_NCCL="connect-greedy:1:0", **ALONE)
        self.tally.check("rank 1: " in greedy.stderr and "bytes of the GPU went while NCCL connected 3 channels, and "
                         in greedy.stderr, f"a channel with all of NCCL's buffers: {greedy.stderr}")
        program = self.path("1f1b.2")
        with open(program, "rb") as file:
            data = file.read()
        with open(program + ".small", "wb") as file:
            file.write(re.sub(rb'"kernel_bytes":\d', b'"kernel_bytes":1', data))
        os.chmod(program + ".small", 0o755)
        said, _ = self.train(program + ".small", ["mpirun", "-n", "2", "--oversubscribe"])
        self.tally.check(isinstance(said, list) and " bytes beside the arena, and 1" in said[0] and
                         said[0].endswith(" are planned"), f"kernels that need more than is planned: {said}")
        shared = run((f"1f1b{half}", {"PP_EMULATE_CUDNN": "greedy"}, 2))
        self.tally.check("attention: 0 ops by cuDNN" in shared.stdout, "more than is planned is not taken")

    def resources(self):
        """Few hardware queues, few multiprocessors, and a kernel that fails: what still trains, and what is said."""
        pair, zb = self.compile("1f1b", "--forward=false", ranks=2, layers=2), self.compile("zb_v", ranks=2)

        def run(program, *options, **environment):
            copy = self.path(f"resources.{len(environment)}.{os.path.basename(program)}")
            shutil.copy(program, copy)
            return self.train(copy, ["mpirun", "-n", "2", "--oversubscribe"], *options, **environment)[0]

        pairs = itertools.product((zb, pair), ({}, ALONE)) if self.every else ((zb, {}), (pair, ALONE))
        for program, its in pairs:
            right, *others = (run(program, "--no-graph", CUDA_DEVICE_MAX_CONNECTIONS="32", **its),
                              run(program, "--no-graph", CUDA_DEVICE_MAX_CONNECTIONS="1", **its),
                              run(program, PP_FAKE_SMS="13", **its))
            worst = [difference(got, right)[0] if isinstance(got, dict) else got for got in others]
            self.tally.check(worst == [0, 0],
                             f"{program} {its}: in one hardware queue, and with 13 multiprocessors: {worst}")
        # Two messages of `pair` may be under way at once, one each way, with 4 multiprocessors each: a quarter must be
        # left of all. (A rank that waits for a message with all of them would compute nothing.) By copies only the sum
        # of the norm holds some.
        closed = dict(PP_FAKE_PEER="closed:-1:0")
        limits = (("11", None, ALONE, 2, None), ("10", None, ALONE, 2, "start it with NCCL_MAX_CTAS=3"),
                  ("10", "3", ALONE, 2, None), ("2", None, ALONE, 2, "take `--transport mpi`"),
                  ("24", "10", ALONE, 2, "start it with NCCL_MAX_CTAS=9"), ("6", None, {}, 1, None),
                  ("5", None, {}, 1, "start it with NCCL_MAX_CTAS=3"),
                  ("10", None, closed, 2, "start it with NCCL_MAX_CTAS=3"))
        more = (("10", "4", ALONE, 2, "start it with NCCL_MAX_CTAS=3"),
                ("4", None, ALONE, 2, "start it with NCCL_MAX_CTAS=1"), ("4", "1", ALONE, 2, None),
                ("24", "9", ALONE, 2, None), ("10", None, {}, 1, None), ("11", None, closed, 2, None))
        for number, blocks, its, messages, words in limits + more * self.every:
            said = run(pair, PP_FAKE_SMS=number, **({"NCCL_MAX_CTAS": blocks} if blocks else {}), **its)
            at_once = "2 messages are" if messages == 2 else "1 message is"
            holds = f"hold {2 * int(blocks or 4)}" if messages == 2 else f"holds {int(blocks or 4)}"
            good = isinstance(said, list) and len(said) == 1 and said[0].replace("rank 1", "rank 0") == (
                f"pp: error: rank 0: up to {at_once} under way at once and {holds} of the {number} multiprocessors of "
                f"this GPU; a quarter must be left to kernels: {words}")
            self.tally.check(good if words else difference(said, right)[0] == 0 if isinstance(said, dict) else False,
                             f"{number} multiprocessors, NCCL_MAX_CTAS={blocks} {its}: "
                             f"{said if isinstance(said, list) else 'it trains'}")
        # What messages hold is planned: never more, and so much for most programs.
        reached, programs = 0, ("1f1b", "fsdp", "1f1b_overlap/mesh.tensor=2",
                                "1f1b/mesh.context=2/mesh.data=2/mesh.zero=1/microbatches=2",
                                f"zb_v{GLM}/mesh.context=2/mesh.expert=2")[:5 if self.every else 3]
        for schedule, its in itertools.product(programs, (ALONE, {})):
            program, devices = self.compile(schedule, ranks=2), 2 * 2 ** schedule.count("mesh.")
            devices //= 2 ** (schedule.count("zero") + schedule.count("expert="))
            ended = subprocess.run(["mpirun", "-n", str(devices), "--oversubscribe", program, "--data", self.text,
                                    "--steps", "3"], env=harness.ENVIRONMENT | its | dict(PP_FAKE_HELD="1"), text=True,
                                   capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
            held = [int(number) for number in re.findall(r"held: (\d+) multiprocessors", ended.stderr)]
            key = "nccl_multiprocessors" + ("" if its else "_of_collectives")
            most = max(rank[key] for rank in self.planned(program))
            reached += max(held, default=0) == most
            self.tally.check(len(held) == devices and 0 < max(held) <= most, f"{schedule} {its}: messages hold {held} "
                             f"multiprocessors, planned {most}")
            left = 132 - self.planned(program)[0][key]
            self.tally.check(f"; products for {left} multiprocessors" in ended.stdout,
                             f"{schedule} {its}: products of rank 0 are made for {left} multiprocessors of 132")
        self.tally.check(reached >= len(programs), f"{reached} of {2 * len(programs)} hold all that was planned")
        failed = run(pair, PP_FAKE_FAIL="1:30")
        self.tally.check(isinstance(failed, list) and len(failed) == 1 and "rank 1, step 1" in failed[0] and
                         "CUDA: " in failed[0] and "an illegal memory access was encountered" in failed[0],
                         f"a kernel that fails: {failed if isinstance(failed, list) else 'it trains'}")

    def shares(self):
        """Equal shards are gathered and scattered by one call each, all others range by range. Of three steps two are
        asked for call by call, one of them for the graph; a channel is used once before them."""
        for schedule in ("zero1", "fsdp/layers=6/ffn=24", "zero2"):
            program = self.compile(schedule, "--forward=false", ranks=2)
            calls, lanes = collections.Counter(), set()
            for rank in self.planned(program):
                for its in rank["messages"]:
                    gathers, cuts = its["kind"] == "all_gather", its.get("cuts", ())
                    if len(cuts) == 3 and 2 * cuts[1] == cuts[2]:
                        name = "ncclAllGather" if gathers else "ncclReduceScatter"
                        lanes.add((rank["rank"], name, its["channel"]))
                        calls[name] += 2
                    elif cuts:
                        calls["ncclBroadcast" if gathers else "ncclReduce"] += 2 * (len(cuts) - 1)
            for _, name, _ in lanes:
                calls[name] += 1
            ended = subprocess.run(["mpirun", "-n", "2", "--oversubscribe", program, "--data", self.text, "--steps",
                                    "3"], env=harness.ENVIRONMENT | dict(PP_FAKE_CALLS="1"), capture_output=True,
                                   text=True, timeout=120, stdin=subprocess.DEVNULL)
            got = collections.Counter()
            for count, name in re.findall(r"calls: (\d+) of (\w+)", ended.stderr):
                got[name] += int(count) if name != "ncclAllReduce" else 0
            self.tally.check(+got == calls, f"{schedule}: {dict(got)}, planned {dict(calls)}")

    def planned(self, program):
        """What a program says of its ranks."""
        with open(program, "rb") as file:
            data = file.read()
        return [json.loads(data[found.start():data.index(b"\0", found.start())])
                for found in re.finditer(rb'\{"rank":\d+,"arena_bytes"', data)]

    def copies(self):
        """A step copies each run of inputs that lie together in one go, and what it is told in another; so it does with
        what it has made. None of these copies waits for the host."""
        def runs(pieces, most):
            """Pieces (begin, bytes) with at most so many bytes between them are one."""
            count, end = 0, None
            for begin, size in sorted(pieces):
                count += end is None or begin - end > most
                end = max(end or 0, begin + size)
            return count

        def copied(program, values, routers):
            """Copies to the devices, and from them, by the places that the plan gives."""
            to = of = 0
            for rank in self.planned(program):
                to += runs([(its["offset"], 4 * values["microbatch"] * its.get("length", values["sequence"]))
                            for its in rank["inputs"]], 63) + 1 + routers
                made = [(its["offset"], 8) for its in rank["losses"]]
                of += runs(made + ([(rank["norm"]["offset"], 8)] if "norm" in rank else []), 4096) + 1 + routers
            return [to, of, 0]

        cases = (("1f1b", dict(ranks=2, microbatch=3, sequence=7), 0), ("zb_v", dict(ranks=2), 0),
                 (f"1f1b{MIXTRAL}", dict(ranks=2), 1), ("slimpipe", dict(ranks=2), 0))
        for schedule, values, routers in cases:
            program = self.compile(schedule, "--forward=false", **values)
            mpirun = ["mpirun", "-n", "2", "--oversubscribe"]
            for command in (mpirun, []) if self.every else (mpirun,) if schedule == "1f1b" else ([],):
                counts = []
                for steps in (3, 5):
                    ended = subprocess.run([*command, program, "--data", self.text, "--steps", str(steps),
                                            *([] if command else ["--in-process"])], capture_output=True, text=True,
                                           env=harness.ENVIRONMENT | dict(PP_FAKE_COPIES="1"), timeout=120,
                                           stdin=subprocess.DEVNULL)
                    said = re.findall(r"copies: (\d+) to the device, (\d+) from it, (\d+) of pages", ended.stderr)
                    counts.append([sum(int(its[i]) for its in said) for i in range(3)])
                got = [(after - before) / 2 for before, after in zip(*counts)]
                wanted = copied(program, SIZES | values, routers)
                self.tally.check(got == wanted, f"{schedule} {command[:1]}: copies a step {got}, by the plan {wanted}")

    def machines(self):
        """What the machine lacks, in a sentence: errors 100 and 35 of the CUDA runtime."""
        program = self.path("1f1b.2")
        for error, words in (("100", "this machine has no NVIDIA GPU that it may use"),
                             ("35", "this program needs an NVIDIA driver for CUDA")):
            for command, options in (([], ["--in-process"]),
                                     (["mpirun", "-n", "2", "--oversubscribe"], []))[:1 + (error == "100")]:
                said, _ = self.train(program, command, *options, PP_FAKE_CUDA=error)
                self.tally.check(isinstance(said, list) and len(said) == 1 and words in said[0],
                                 f"error {error}: {said}")
        shared = dict(PP_FAKE_SHARED="1")  # (two ranks of one GPU by copies: gradients)
        said, _ = self.train(program, ["mpirun", "-n", "2", "--oversubscribe"], **shared)
        self.tally.check(isinstance(said, list) and len(said) == 1 and "ranks 0 and 1 share a GPU, and NCCL wants one "
                         "for each rank" in said[0], f"one GPU for two ranks: {said}")
        said, _ = self.train(program, ["mpirun", "-n", "2", "--oversubscribe"], "--transport", "mpi", **shared)
        self.tally.check(isinstance(said, dict),
                         f"the same over MPI: {said if isinstance(said, list) else 'it trains'}")


def main():
    runner = Runner(*sys.argv[1:])
    runner.gradients()
    runner.faults()
    runner.orders()
    runner.slices()
    runner.memory()
    runner.resources()
    runner.shares()
    runner.copies()
    runner.machines()
    return runner.tally.close()


if __name__ == "__main__":
    sys.exit(main())
