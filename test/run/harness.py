"""What the execution tests share: compiling from examples/train.pipe, running, reading and writing safetensors."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import argparse, array, json, math, operator, os, re, struct, subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAIN = os.path.join(ROOT, "examples", "train.pipe")
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_btl_vader_single_copy_mechanism="none",
                   OMPI_MCA_pml="ob1", PMIX_MCA_gds="hash", HWLOC_COMPONENTS="-linuxio,-pci,-opencl,-gl")
# Another library of the runtime than the one that users' programs are linked with: `libpp-runtime-testing.a` has a
# device with streams that is this CPU, others also have other kernels.
RUNTIME = ["--runtime", os.environ["PP_TEST_RUNTIME"]] if "PP_TEST_RUNTIME" in os.environ else []
LICENCES = "/usr/share/common-licenses"


def write_text(folder):
    """About 200 KB of English that every Debian has: the licences of package base-files."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "text.txt")
    with open(path, "wb") as text:
        for name in sorted(os.listdir(LICENCES)):
            source = os.path.join(LICENCES, name)
            if not os.path.islink(source):
                with open(source, "rb") as licence:
                    text.write(licence.read())
    return path


def quicker(command):
    """What prints text is the same code in `pp`, which starts in a third of the time, for it loads no LLVM."""
    forms = [word.removeprefix("--emit=") for word in command if word.startswith("--emit=")]
    prints = forms[-1] not in ("exe", "obj", "llvm") if forms else "--prove" in command
    pp = os.path.join(os.path.dirname(command[0]), "pp")
    return [pp, *command[1:]] if prints and command[0].endswith("/pp-compile") and os.path.exists(pp) else command


def call(command, expect=0, timeout=600, **more):
    done = subprocess.run(quicker(command), env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, **more)
    if expect is not None and done.returncode != expect:
        raise RuntimeError(f"{' '.join(command)}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def apart(ours, theirs):
    """The largest difference between two lists of numbers; infinite where they differ in length or one holds a NaN,
    which `max` sees in the first place alone."""
    if len(ours) != len(theirs) or math.isnan(sum(ours) + sum(theirs)):
        return math.inf
    return max(map(abs, map(operator.sub, ours, theirs)), default=0.0)


def drift(ours, theirs):
    """The largest difference of two lists of losses or norms, each relative to theirs."""
    ratios = [a / b for a, b in zip(ours, theirs)]
    return apart(ratios, [1.0] * max(len(ours), len(theirs)))


def draws(**options):
    """What a script that draws is called with: SCRIPT PP_COMPILE FOLDER [--NAME VALUE].., and what is meant without."""
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("folder")
    for name, default in options.items():
        parser.add_argument("--" + name, type=type(default), default=default)
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    return arguments


def compile_train(compiler, path, values, train=TRAIN, options=()):
    defines = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
    runtime = [] if any(option.startswith("--runtime=") for option in options) else RUNTIME
    call([compiler, train, *defines, *options, *runtime, "-o", path])
    return path


def add_models(folder, *files):
    """A copy of examples/train.pipe whose `model` may also name the models of these files, each of six parameters as
    llama's first."""
    text = ""
    for path in files:
        with open(path) as file:
            text += file.read()
    with open(TRAIN) as train:
        made = train.read()
    choices = "".join(f'    "{name}" {name}(layers, hidden, heads, kv_heads, ffn, vocab)\n'
                      for name in re.findall(r"^model (\w+)\(", text, flags=re.M))
    path = os.path.join(folder, "train.pipe")
    with open(os.path.join(folder, "models.pipe"), "w") as file:
        file.write(text)
    with open(path, "w") as file:
        begin = "  model choose model {\n"
        file.write('import "models.pipe"\n' + made.replace(begin, begin + choices))
    return path


def ranks_of(parent):
    """The processes that mpirun has started, by their rank."""
    found = {}
    for child in subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True,
                                text=True).stdout.split():
        try:
            with open(f"/proc/{child}/environ", "rb") as file:
                for entry in file.read().split(b"\0"):
                    if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                        found[int(entry.split(b"=")[1])] = int(child)
        except OSError:  # it has ended meanwhile
            pass
    return found


def launch(program, ranks, transport):
    """The command of `program` with a transport: `mpi`, `threads`, or as on a GPU `streams/SEED[:K]` (in one process)
    and `staged/SEED[:K]` (over MPI). The seed draws the order in which streams go on; the K-th wait for an event is
    left out."""
    kind, _, emulation = transport.partition("/")
    if emulation and not RUNTIME:
        raise RuntimeError(f"`{transport}` needs PP_TEST_RUNTIME: users' programs have no emulated device")
    command = ["sh", "-c", f'PP_EMULATE={emulation} exec "$0" "$@"', program] if emulation else [program]
    if kind in ("mpi", "staged"):
        return ["mpirun", "-n", str(ranks), "--oversubscribe", *command]
    return [*command, "--in-process"]


def read_log(path):
    with open(path) as log:
        return [json.loads(line) for line in log]


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = data[8 + length + begin:8 + length + end]
            if entry["dtype"] == "BF16":  # the upper half of an f32
                raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
            if entry["dtype"] == "F16":
                raw = array.array("f", struct.unpack(f"<{len(raw) // 2}e", raw)).tobytes()
            values = array.array({"F64": "d", "I32": "i", "I64": "q", "U8": "B"}.get(entry["dtype"], "f"))
            values.frombytes(raw)
            tensors[name] = (entry["shape"], values)
    return tensors


def pack_tensors(tensors):
    """The bytes of a .safetensors file; tensors: name -> (type, shape, bytes). Debian 12 has no package for it."""
    header, offset = {}, 0
    for name, (kind, shape, raw) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in tensors.values())


def write_safetensors(path, tensors):
    """tensors: name -> (shape, array of doubles)."""
    with open(path, "wb") as file:
        file.write(pack_tensors({name: ("F64", shape, array.array("d", values).tobytes())
                                 for name, (shape, values) in tensors.items()}))


class Tally:
    """Counts results and closes with the line that CI reads."""

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, good, text):
        self.passed, self.failed = self.passed + bool(good), self.failed + (not good)
        print(("ok   " if good else "FAIL ") + text, flush=True)

    def attempt(self, name, check, *arguments):
        """A check that raises where something is wrong."""
        try:
            check(*arguments)
            self.check(True, name)
        except (AssertionError, RuntimeError) as error:
            self.check(False, f"{name}: {error}")

    def close(self):
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0
