"""Fine-tunes a language model of transformers over a pipeline whose schedule pp proved, on the text of a file."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# torchrun --nproc-per-node 2 examples/fine_tune.py TEXT [MODEL]     a small random llama, or a llama by its name
import sys
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
import pp_schedules.torch as pp

dist.init_process_group("gloo")
torch.manual_seed(0)
text = open(sys.argv[1], encoding="utf-8").read()
if len(sys.argv) > 2:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[2])
    tokens = AutoTokenizer.from_pretrained(sys.argv[2])(text, return_tensors="pt").input_ids[0]
else:
    model = AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4))
    tokens = torch.tensor(list(text.encode()))

layers, microbatches, rows, length = model.config.num_hidden_layers, 4, 2, 32
program = pp.Program("std/zb_v.pipe", ranks=dist.get_world_size(), microbatches=microbatches, layers=layers)
stages = len(program.pieces)
names = [[f"model.layers.{i}" for i in range(layers * s // stages, layers * (s + 1) // stages)] for s in range(stages)]
names = [["model.embed_tokens"] * (s == 0) + ["model.rotary_emb"] + some + ["model.norm", "lm_head"] * (s == stages - 1)
         for s, some in enumerate(names)]


def loss(logits, targets):
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets[:, 1:].flatten(), reduction="sum")


pipe = pp.Pipeline(program, pp.split(model, program, names), loss=loss, clip=1.0,
                   optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3))
batches = tokens[:tokens.numel() // (microbatches * rows * length) * microbatches * rows * length].view(
    -1, microbatches, rows, length)
for step, batch in enumerate(batches[:5]):
    mean = pipe.step([(x,) for x in batch], [(x,) for x in batch], weights=1 / (microbatches * rows * (length - 1)))
    if dist.get_rank() == 0:
        print(f"step {step}  loss {mean:.6f}  norm {pipe.norm:.6f}", flush=True)
pipe.save("fine-tuned")                            # a checkpoint of torch.distributed.checkpoint, by the model's names
