"""Cuts models of transformers by the names of their modules, and runs examples/fine_tune.py beside a plain loop."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bridge_transformers.py PP_COMPILE FOLDER
# Ends with 77, which ctest calls skipped, where there is no torch or no transformers.
import os, re, subprocess, sys, types
from bridge_programs import ROOT, join, program_of # which also find the package
from harness import draws

LAYERS, STAGES, BOUND = 8, 4, 1e-4
ENDS = ["model.embed_tokens"], ["model.norm", "lm_head"]
# Architecture: what stands before the layers, their place, what stands behind them, what every stage has.
CUT = {**{kind: (ENDS[0], "model.layers", ENDS[1], ["model.rotary_emb"]) for kind in (
    "llama", "qwen3", "mistral", "gemma", "gemma3_text", "olmo2", "phi3", "smollm3", "glm4")},
    "gpt_neox": (["gpt_neox.embed_in", "gpt_neox.emb_dropout"], "gpt_neox.layers",
                 ["gpt_neox.final_layer_norm", "lm_head"], ["gpt_neox.rotary_emb"])}
# What would be wrong without a word, and is refused: a scale of logits behind a head that is elsewhere, positions that
# every stage would add, rotary positions that no stage has, a layer that is nowhere, two tables that are one.
REFUSED = {
    "gemma2": (CUT["llama"], {}, "stage 0: between `lm_head` (of another stage) and the end of the stage"),
    "gpt2": ((["transformer.wte", "transformer.wpe", "transformer.drop"], "transformer.h",
              ["transformer.ln_f", "lm_head"], []), {}, "stage 1: between its input and `transformer.wte`"),
    "llama": ((ENDS[0], "model.layers", ENDS[1], []), {}, "leaves `model.rotary_emb` to no stage"),
    "qwen2": ((ENDS[0], "model.layers", ["lm_head"], ["model.rotary_emb"]), {}, "leaves `model.norm` to no stage"),
    "qwen3": (CUT["llama"], {"tie_word_embeddings": True}, "stage 0 and stage 3 share a weight")}


def names_of(first, layers, last, every):
    """Names for each stage, with as many layers each."""
    runs = [[f"{layers}.{i}" for i in range(LAYERS * s // STAGES, LAYERS * (s + 1) // STAGES)] for s in range(STAGES)]
    return [first * (s == 0) + every + run + last * (s == STAGES - 1) for s, run in enumerate(runs)]


def model_of(kind, **more):
    """A small one with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**dict(
        vocab_size=64, num_hidden_layers=LAYERS, hidden_size=32, intermediate_size=64, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=False, pad_token_id=0,
        bos_token_id=1, eos_token_id=2), **more}))


def run_of(kind, names, **more):
    """The largest difference between what the stages compute one after the other and what the model does."""
    import torch
    from pp_schedules.torch import split
    program = types.SimpleNamespace(pieces=[{"kind": "stage"}] * STAGES, ties=[], needs=[])
    model, x, mask = model_of(kind, **more), torch.randint(0, 64, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[0, :3] = 0                                # the first row is padded; every stage hears it
    want, build, parameters = model(x, attention_mask=mask).logits, split(model, program, names), set()
    for stage in range(STAGES):
        part = build(stage)
        parameters |= {name for name, _ in part.named_parameters()}
        x = part(x, attention_mask=mask)
    if parameters != {name for name, _ in model.named_parameters()}:
        raise RuntimeError(f"{kind}: other parameters")
    return (x - want).abs().max().item()


def cast(scale):
    """A stage whose layer gets its input cast, as FSDP2 casts it; a scale beside the cast is refused."""
    import torch
    from pp_schedules.torch import Refused, split
    program = types.SimpleNamespace(pieces=[{"kind": "stage"}] * STAGES, ties=[], needs=[])
    part = split(model_of("llama"), program, names_of(*CUT["llama"]))(1).double()
    part.model.layers[2].register_forward_pre_hook(lambda _, x: (x[0].double() * scale, *x[1:]), prepend=True)
    try:
        part(torch.randn(2, 8, 32))
    except Refused:
        return False
    return True


def tied(rank, data, folder):
    """Two steps of a model whose table is its head, on two processes, in f64; ends the process with 0 if they are those
    of one."""
    import torch
    import torch.distributed as dist
    from pp_schedules.torch import Pipeline, Program, split
    join(rank, 2, f"{folder}/store-{os.getppid()}")

    def loss(logits, x):
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten(), reduction="sum") / 56
    model = model_of("qwen3", tie_word_embeddings=True).double()
    batch = [(torch.randint(0, 64, (2, 8)),) for _ in range(4)]
    pipe = Pipeline(Program.of(data), split(model, Program.of(data), names_of(*CUT["qwen3"])), loss=loss, clip=1.0,
                    ties={0: ["model.embed_tokens.weight"], 3: ["lm_head.weight"]},
                    optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1))
    optimizer, apart = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(2):
        ours = pipe.step(batch, batch, 1.0)
        optimizer.zero_grad()
        total = sum(loss(model(x).logits, x) for x, in batch)
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        apart.append(abs(ours - total.item()))
    for name, p in pipe.named_parameters():
        apart.append((p - model.get_parameter(name)).abs().max().item())
    apart = torch.tensor(apart).max().item()       # a NaN among them counts
    print(f"qwen3, tied, rank {rank}: {apart:.1e} from one process", flush=True)
    dist.barrier()
    os._exit(not apart <= 1e-12)


def tied_on_two(compiler, folder):
    """The number of processes that failed."""
    import torch.multiprocessing as mp
    data = program_of(compiler, folder, "zb_v", 2, 4, tied=True)
    processes = [mp.get_context("fork").Process(target=tied, args=(rank, data, os.path.abspath(folder)))
                 for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(process.exitcode != 0 for process in processes)


def alone(text, steps):
    """Losses and norms of the example's training in a plain loop."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoModelForCausalLM, LlamaConfig
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with open(text, "rb") as file:
        rows = torch.tensor(list(file.read()))
    said = []
    for step in range(steps):
        x = rows[step * 256:(step + 1) * 256].view(8, 32)
        optimizer.zero_grad()
        loss = cross_entropy(model(x).logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        said.append((loss.item(), norm.item()))
    return said


def example(compiler, folder):
    """The largest relative difference of the example's losses and norms, and that its weights are those of a model."""
    from torch.distributed.checkpoint import FileSystemReader
    text = os.path.join(ROOT, "README.md")
    environment = dict(os.environ, PP=os.path.abspath(compiler), PYTHONPATH=os.path.join(ROOT, "python"),
                       OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                           os.path.join(ROOT, "examples", "fine_tune.py"), text], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=120)
    said = [tuple(map(float, pair)) for pair in re.findall(r"loss ([\d.]+)  norm ([\d.]+)", done.stdout)]
    if done.returncode or len(said) != 5:
        raise RuntimeError(f"examples/fine_tune.py ended with {done.returncode}\n{done.stdout}{done.stderr[-3000:]}")
    saved = FileSystemReader(os.path.join(folder, "fine-tuned")).read_metadata().state_dict_metadata
    lost = {name for name, _ in model_of("llama").named_parameters()} - set(saved)
    if lost:
        raise RuntimeError(f"the example saves no {sorted(lost)}")
    return max(abs(ours / theirs - 1) for pair in zip(said, alone(text, 5)) for ours, theirs in zip(*pair))


def main():
    arguments = draws()
    try:
        import transformers  # only whether it is there, and torch, which it needs to make models
        from pp_schedules.torch import Refused
    except ImportError as error:
        print(f"torch or transformers is not installed: nothing was run ({error})")
        return 77
    transformers.logging.set_verbosity_error()
    failed = 0
    for kind, parts in CUT.items():
        apart = run_of(kind, names_of(*parts))
        failed += apart != 0.0
        print(f"{kind}: {apart:.1e}")
    for kind, (parts, more, words) in REFUSED.items():
        try:
            said = f"not refused, {run_of(kind, names_of(*parts), **more):.1e} apart"
        except Refused as refused:
            said = str(refused)
        failed += words not in said
        print(f"{kind}: {said}")
    if not cast(1) or cast(2):
        failed += 1
        print("a cast of a stage's input is refused, or a scale is not")
    failed += tied_on_two(arguments.compiler, arguments.folder) > 0
    apart = example(arguments.compiler, arguments.folder)
    failed += not apart <= BOUND
    print(f"examples/fine_tune.py: {apart:.1e} from one process")
    print(f"{len(CUT) + len(REFUSED) + 3 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
