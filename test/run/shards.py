#!/usr/bin/env python3
"""Every rank writes its own files of a checkpoint: what they hold, who reads them, and what rank 0 has in memory."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: shards.py PP_COMPILE FOLDER [--torch 1]
# With --torch, transformers and PyTorch read such folders; ends with 77, which ctest calls skipped, without them.
import json, os, re, shutil, signal, subprocess, sys, time
import harness, saves

SIZES = dict(schedule="1f1b", ranks=4, microbatches=4, model="llama", layers=4, hidden=64, heads=4, kv_heads=2, ffn=96,
             vocab=256, sequence=16, microbatch=1)
MESH = {"schedule": "zb_h1", "ranks": 2, "microbatches": 2, "mesh.tensor": 2, "mesh.data": 2, "mesh.zero": 1}
LAYOUTS = {"lines": {}, "cut": dict(schedule="fsdp"), "one": dict(schedule="single", ranks=1), "mesh": MESH}
DEVICES = dict(lines=4, cut=4, one=1, mesh=8)
PARTS = ["--shard-size", "40KB"]
LARGE = SIZES | dict(hidden=512, ffn=1536, heads=8, kv_heads=8)
PEAK = "import os, sys\npid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)\n" \
       "_, status, use = os.wait4(pid, 0)\n" \
       "open('peak.' + os.environ['OMPI_COMM_WORLD_RANK'], 'w').write(str(use.ru_maxrss))\n" \
       "sys.exit(os.waitstatus_to_exitcode(status))\n"
STEMS = ("model", "optimizer")


def tensors(folder, stem):
    """All that the files of this stem hold, and the files; every tensor is where the index says."""
    with open(os.path.join(folder, "state.json")) as file:
        names = [name for name in json.load(file)["files"] if name.startswith(stem) and name.endswith(".safetensors")]
    found, places = {}, {}
    for name in names:
        its = harness.read_safetensors(os.path.join(folder, name))
        assert not set(its) & set(found), f"{name} has tensors of another file"
        found |= its
        places |= dict.fromkeys(its, name)
    if len(names) > 1:
        with open(os.path.join(folder, stem + ".safetensors.index.json")) as file:
            assert json.load(file)["weight_map"] == places, "the index says something else"
    return found, names


class Shards:
    def __init__(self, compiler, folder):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        os.chdir(folder)
        self.compiler, self.text, self.tally = compiler, harness.write_text(folder), harness.Tally()

    def compile(self, *programs):
        for name in programs:
            harness.compile_train(self.compiler, name, SIZES | LAYOUTS[name])

    def run(self, program, *words, transport="threads", expect=0):
        launch = harness.launch("./" + program, DEVICES[program], transport)
        return harness.call([*launch, "--data", self.text, *words], expect=expect)

    def losses(self, program, *words):
        self.run(program, "--steps", "4", "--log", "log", *words)
        return {line["step"]: line["loss"] for line in harness.read_log("log")}

    def layouts(self):
        """Many files hold what one does, to the bit, and every layout goes on with the files of every other one."""
        whole = {}
        for program in LAYOUTS:
            whole[program] = self.losses(program, "--save", f"{program}.whole")
            numbers = [len(tensors(f"{program}.whole", stem)[1]) for stem in STEMS]
            self.tally.check(numbers == [1, 1], f"{program}: a small model has one file")
            transport = "mpi" if program == "cut" else "threads"
            self.run(program, "--steps", "4", "--stop-at", "2", "--save", f"{program}.parts", "--save-every", "1",
                     *PARTS, transport=transport)
            wrong = saves.damage(f"{program}.parts")
            self.run(program, "--steps", "4", "--resume", f"{program}.parts", "--save", f"{program}.on",
                     transport=transport)
            for stem in STEMS:
                (parts, names), (one, _) = tensors(f"{program}.on", stem), tensors(f"{program}.whole", stem)
                self.tally.check(parts == one and len(names) >= 4 and not wrong,
                                 f"{program}: {len(names)} files of {stem} hold what one does {wrong}")
        for first in LAYOUTS:
            for program in sorted(set(LAYOUTS) - {first}):
                found = self.losses(program, "--resume", f"{first}.parts", "--save", "to")
                expected = [whole[program][step] for step in (3, 4)]
                drift = harness.drift([found.get(step, 0) for step in (3, 4)], expected)
                state = max(harness.apart(list(values), list(tensors("to", "optimizer")[0][name][1]))
                            for name, (_, values) in tensors(f"{program}.whole", "optimizer")[0].items())
                self.tally.check(drift < 1e-5 and state < 1e-5,
                                 f"`{program}` goes on with the files of `{first}`: {drift:.0e}, {state:.0e} apart")

    def replaced(self):
        """Checkpoints with one file, which rank 0 wrote, are read; what was replaced leaves nothing behind."""
        self.run("lines", "--steps", "2", "--save", "lines.parts")
        with open("lines.parts/state.json") as file:
            listed = json.load(file)["files"]
        self.tally.check(sorted(os.listdir("lines.parts")) == sorted(listed) and len(listed) == 3,
                         f"files of another layout are gone: {sorted(listed)}")

    def dying(self):
        """Rank 1 dies, or has no room, while all write: the checkpoint before is there, whole, and goes on."""
        operations = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs", "FileOps.c")
        harness.call([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", "ops.so", operations, "-ldl"])
        with open("second", "w") as file:
            file.write('test "$OMPI_COMM_WORLD_RANK" != 1 || export LD_PRELOAD=./ops.so\nexec "$@"\n')
        self.run("lines", "--steps", "4", "--stop-at", "2", "--save", "ck", *PARTS)
        each = sum(len(tensors("ck", stem)[1]) for stem in STEMS) // 4
        for fault, step in (("PP_FULL=1", 2), ("PP_KILL_TENSORS=2", 2), (f"PP_KILL_TENSORS={each + 3}", 3)):
            done = subprocess.run(["mpirun", "-n", "4", "--oversubscribe", "env", fault, "sh", "second", "./lines",
                                   "--data", self.text, "--steps", "4", "--resume", "ck", "--save", "ck",
                                   "--save-every", "1"],
                                  env=harness.ENVIRONMENT, capture_output=True, text=True, timeout=120)
            lines = [line for line in done.stderr.splitlines() if "pp: error" in line]
            left = [name for name in saves.folders() if name != "ck.lock"]
            good = done.returncode == 137 and left == ["ck", "ck.tmp"]
            if fault == "PP_FULL=1":
                good = done.returncode == 2 and left == ["ck"] and len(lines) == 1 and re.search(
                    "rank 1: the checkpoint of step 3 is not written: cannot write `ck.tmp/[a-z0-9-]*.safetensors`: No",
                    lines[0])
            self.tally.check(good and not saves.damage("ck") and saves.step_of("ck") == step,
                             f"rank 1 with {fault}: {done.returncode} {lines}, then {left} {saves.damage('ck')}")
        self.run("lines", "--steps", "4", "--resume", "ck", "--save", "ck", transport="mpi")
        same = all(tensors("ck", stem)[0] == tensors("lines.whole", stem)[0] for stem in STEMS)
        self.tally.check(same and saves.folders() == ["ck"], f"and what is left goes on: {saves.folders()}")

    def slow(self):
        """Rank 1's disk takes longer than a message may: the others wait, for it says again and again how far it is."""
        shutil.rmtree("ck")
        command = ["mpirun", "-n", "4", "--oversubscribe", "env", "PP_HOLD=go", "sh", "second", "./lines", "--data",
                   self.text, "--steps", "4", "--save", "ck", "--save-every", "1", *PARTS, "--timeout", "1"]
        run = subprocess.Popen(command, env=harness.ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True)
        time.sleep(4)
        held = run.poll() is None and not os.path.exists("ck")
        with open("go", "w"):
            said = run.communicate(timeout=60)[1]
        same = not run.returncode and tensors("ck", "model")[0] == tensors("lines.whole", "model")[0]
        self.tally.check(held and same, f"a slow disk on rank 1: {run.returncode} {said}")

    def foreign(self):
        """A folder of another program where a checkpoint is made: the run ends, and the folder stays."""
        shutil.rmtree("ck")
        os.makedirs("mine")
        with open("mine/notes", "w") as file:
            file.write("notes")
        run = subprocess.Popen(["./one", "--data", self.text, "--steps", "1000000", "--save", "ck", "--save-every",
                                "5"],
                               env=harness.ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while not os.path.exists("ck"):
            time.sleep(0.01)
        while os.path.exists("mine"):
            run.send_signal(signal.SIGSTOP)  # a folder that it had just made, and is empty, would be replaced
            os.waitpid(run.pid, os.WUNTRACED)
            if not os.path.exists("ck.tmp"):
                os.rename("mine", "ck.tmp")
            run.send_signal(signal.SIGCONT)
            time.sleep(0.001)
        said = run.communicate(timeout=60)[1]
        self.tally.check(run.returncode == 1 and "`ck.tmp`" in said and os.path.exists("ck.tmp/notes"),
                         f"what is not ours stays: {run.returncode} {said}")

    def apart(self):
        """Ranks that do not see one folder: said before the first step, with both hosts."""
        for name in ("here", "there"):
            os.makedirs(name, exist_ok=True)
        each = [word for where in ("here", "there", "here", "here") for word in
                (":", "-n", "1", "-wdir", os.path.abspath(where), os.path.abspath("lines"), "--data", self.text,
                 "--save", "ck")][1:]
        done = subprocess.run(["mpirun", "--oversubscribe", *each], env=harness.ENVIRONMENT, capture_output=True,
                              text=True, timeout=120)
        host = os.uname().nodename
        said = f"rank 1: cannot save to `ck`: what rank 0 writes there on host `{host}` is not there on host `{host}`"
        self.tally.check(done.returncode == 2 and said in done.stderr and "step 1/" not in done.stdout,
                         f"a folder that is not shared: {done.returncode} {done.stderr[-300:]}")
        self.tally.check(os.listdir("here") == [] == os.listdir("there"), "and nothing is left of it")

    def memory(self):
        """Rank 0 has its own part beside its arena, not the model."""
        harness.compile_train(self.compiler, "large", LARGE)
        with open("peak.py", "w") as file:
            file.write(PEAK)
        peaks = []
        for words in ([], ["--save-sync"], []):
            if peaks:
                words = ["--save", "large.ck", "--save-every", "1", "--shard-size", "16MB", *words]
            harness.call(["mpirun", "-n", "4", "--oversubscribe", sys.executable, "peak.py", "./large", "--data",
                          self.text, "--steps", "2", *words])
            peaks.append([])
            for rank in range(4):
                with open(f"peak.{rank}") as file:
                    peaks[-1].append(int(file.read()) / 1000)
        size = sum(os.path.getsize(os.path.join("large.ck", name)) for name in os.listdir("large.ck")) / 1e6
        for peak, what, most in zip(peaks[1:], ("between the steps", "behind them"), (0.1, 0.4)):
            more = [round(peak[rank] - peaks[0][rank]) for rank in range(4)]
            self.tally.check(max(more) < most * size, f"{size:.0f} MB, written {what}: ranks have {more} MB more")


def torch_reads(shards):
    """torch.distributed.checkpoint and transformers read the weights of a folder with many files."""
    try:
        import safetensors.torch, torch, transformers
        import torch.distributed.checkpoint as checkpoint
        reader = checkpoint.HuggingFaceStorageReader
    except (ImportError, AttributeError):
        return 77
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
              "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
              "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
              "max_position_embeddings": 64}
    os.makedirs("published")
    with open("published/config.json", "w") as file:
        json.dump(config, file)
    for program, schedule in (("lines", "1f1b"), ("cut", "fsdp")):
        harness.call([shards.compiler, "--from-hf=published", f"--schedule=std/{schedule}.pipe", "-D", "ranks=4", "-D",
                      "microbatches=4", "-D", "data.sequence=16", "-D", "precision=f32", *harness.RUNTIME, "-o",
                      program])
        shards.run(program, "--init", "--steps", "1", "--save", "read", *PARTS)
        expected, names = tensors("read", "model")
        assert set(safetensors.torch.load_file(os.path.join("read", names[0]))) <= set(expected)
        state = {name: torch.zeros(shape) for name, (shape, _) in expected.items()}
        checkpoint.load(state, storage_reader=reader(path="read"))
        model, said = transformers.AutoModelForCausalLM.from_pretrained("read", output_loading_info=True)
        for who, found in (("PyTorch", state), ("transformers", model.state_dict())):
            same = set(found) == set(expected) and all(found[name].flatten().tolist() == list(values)
                                                       for name, (_, values) in expected.items())
            shards.tally.check(same and not any(said.values()) and len(names) > 3,
                               f"{program}: {who} reads {len(names)} files")
    return shards.tally.close()


def main():
    options = harness.draws(torch=0)
    shards = Shards(os.path.abspath(options.compiler), os.path.abspath(options.folder))
    if options.torch:
        return torch_reads(shards)
    shards.compile(*LAYOUTS)
    for check in (shards.layouts, shards.replaced, shards.dying, shards.slow, shards.foreign, shards.apart,
                  shards.memory):
        check()
    return shards.tally.close()


if __name__ == "__main__":
    sys.exit(main())
