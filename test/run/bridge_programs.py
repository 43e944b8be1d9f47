"""The programs that the tests of the package `pp_schedules` read: schedules of the library as pp.program/1."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import faulthandler, json, os, sys
from harness import ROOT, call

sys.path.insert(0, os.path.join(ROOT, "python"))
import pp_schedules  # which is found by the line above
# Name: file of stdlib/, schedule, parameters, stages of P ranks.
CASES = {
    "gpipe": ("gpipe", "gpipe", {}, 1), "1f1b": ("1f1b", "one_f_one_b", {}, 1),
    "1f1b_recompute": ("1f1b_recompute", "one_f_one_b_recompute", {}, 1),
    "interleaved": ("interleaved", "interleaved_1f1b", {"chunks": 2}, 2),
    "looped_bfs": ("looped_bfs", "looped_bfs", {"chunks": 2}, 2), "zb_h1": ("zb_h", "zb_h", {"k": 1}, 1),
    "zb_h2": ("zb_h", "zb_h", {"k": 2}, 1), "zb_v": ("zb_v", "zb_v", {}, 2),
    "v_half": ("v_half", "v_half", {"memory": "half"}, 2), "v_min": ("v_half", "v_half", {"memory": "min"}, 2),
    "dualpipe_v": ("dualpipev", "dualpipe_v", {}, 2), "dualpipe": ("dualpipe", "dualpipe", {}, 1),
    "chimera": ("chimera", "chimera", {}, 1), "hanayo": ("hanayo", "hanayo", {"waves": 1}, 2),
    "hanayo2": ("hanayo", "hanayo", {"waves": 2}, 4), "gpipe_offload": ("gpipe_offload", "gpipe_offload", {}, 1),
    "bpipe": ("bpipe", "bpipe", {}, 1), "weipipe": ("weipipe", "weipipe_interleave", {}, 1),
    "weipipe_naive": ("weipipe", "weipipe_naive", {}, 1), "wzb1": ("wzb1", "wzb1", {}, 1),
    "wzb2": ("wzb2", "wzb2", {}, 1), "tawpipe": ("tawpipe", "tawpipe", {"groups": 2}, 1),
    "zero1": ("zero", "zero", {"level": 1}, 2), "zero2": ("zero", "zero", {"level": 2}, 2),
    "fsdp": ("fsdp", "fsdp", {}, 2), "data_parallel": ("zero", "data_parallel", {}, 2),
    "replicated": ("replicated", "replicated_1f1b", {"replicas": 2}, 0.5)}
PARTS = {"helixpipe": ("helixpipe", "helixpipe", {}, 1),
         "helixpipe_cached": ("helixpipe", "helixpipe", {"cached": "true"}, 1)}
CUT = {"1f1b_vocabulary": ("1f1b_vocabulary", "one_f_one_b_vocabulary", {}, 1),
       "terapipe": ("terapipe", "terapipe", {"slices": 3}, 1),
       "slimpipe": ("slimpipe", "slimpipe", {"slices": 4, "exchange": "false", "vocabulary": "false"}, 1)}
# With a weight that the first and the last stage share.
TIED = ("1f1b", "zb_v", "interleaved", "chimera", "zb_h1", "dualpipe_v")


def join(rank, ranks, store, limit=120):
    """Makes a forked process one of `ranks` over gloo, with one thread; it ends after `limit` seconds, with stacks."""
    import torch
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    faulthandler.dump_traceback_later(limit, exit=True)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{store}")


def pair(rank):
    """Of four processes: the group of this rank's pair, and that of the ranks with the same place in their pairs."""
    from torch.distributed import new_group
    groups = [new_group(ranks) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))]
    return groups[rank // 2], groups[2 + rank % 2]


def judged(program):
    """What the checker refuses, or None. Any other exception is a fault."""
    try:
        pp_schedules.verify(program)
    except pp_schedules.Unproved as unproved:
        return unproved
    return None


def program_of(compiler, folder, name, ranks=4, microbatches=8, tied=False):
    """The JSON of a case as a dictionary; `tied` takes a model whose ends share a weight."""
    file, schedule, parameters, stages = {**CASES, **PARTS, **CUT}[name]
    layers = max(1, int(stages * ranks))
    if tied:
        source = os.path.join(folder, f"tied-{name}.pipe")
        words = ", ".join(["ranks", "microbatches", *(f"{key} = {json.dumps(v)}" for key, v in parameters.items())])
        with open(source, "w") as pipe:
            pipe.write(f'# A model whose first and last stages share a weight.\nimport "std/models/gpt2.pipe"\n'
                       f'import "std/{file}.pipe"\ntrain tied(ranks = 2, microbatches = 8, layers = 2) {{\n'
                       f"  model gpt2(layers, hidden = 16, heads = 2, vocab = 32, context = 16)\n"
                       f"  schedule {schedule}({words})\n  data microbatch = 1, sequence = 16\n}}\n")
        command, parameters = [compiler, source], {}
    else:
        command = [compiler, os.path.join(ROOT, "stdlib", file + ".pipe"), f"--schedule={schedule}"]
    for key, value in {"ranks": ranks, "microbatches": microbatches, "layers": layers, **parameters}.items():
        command += ["-D", f"{key}={value}"]
    path = os.path.join(folder, f"{'tied-' * tied}{name}-{ranks}-{microbatches}.json")
    call([*command, "--emit=json", "-o", path])
    with open(path) as file:
        return json.load(file)
