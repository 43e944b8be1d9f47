#!/usr/bin/env python3
"""Judges the losses of std/losses.pipe against TRL's trainers: loss and gradients of a step of a llama, in f32."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: trl_losses.py PP_COMPILE FOLDER
# The programs are those of docs/post-training.md. TRL computes its loss of the same documents with the llama of
# transformers: DPOTrainer.compute_loss, and what GRPOTrainer.compute_loss makes of a batch. The loss must be TRL's to
# 1e-6, and gradients to 1e-5 of the largest of their tensor. Without trl the script ends with 77.
import importlib.util, os, random, re, sys
import harness
from post_training import LAYERS, VOCAB, counted, draw_documents, padded, programs, rounded, write_data

HAS_TRL = all(importlib.util.find_spec(name) for name in ("torch", "transformers", "trl", "tokenizers", "datasets"))
# name, program, what its last part returns (empty: as the page says), TRL's options
CASES = (("dpo", "dpo", "", {}),
         ("grpo", "grpo", "", dict(loss_type="bnpo")),
         ("ratio", "grpo", "mean(grpo(lp, old, adv, 0.2, 0.28) + 0.04 * exp(lp - old) * kl(lp, ref))",
          dict(loss_type="bnpo", use_bias_correction_kl=True)),
         ("means", "grpo", "mean(mean(grpo(lp, old, adv, 0.2, 0.28) + 0.04 * kl(lp, ref), over = document))",
          dict(loss_type="grpo")),
         ("gspo", "grpo", "mean(gspo(lp, old, adv, 0.2, 0.28)) + 0.04 * mean(mean(kl(lp, ref), over = document))",
          dict(loss_type="grpo", importance_sampling_level="sequence")))


def made(seed):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=172, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=4, rms_norm_eps=1e-5, max_position_embeddings=64, tie_word_embeddings=False))
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn_like(value) * 0.08 + (value.dim() == 1))
    return model


def save(model, path):
    model.save_pretrained(path + ".folder")  # a trainer loads its reference from there
    model.config._name_or_path = path + ".folder"
    with open(path, "wb") as file:
        file.write(harness.pack_tensors({name: ("F32", list(value.shape), value.numpy().tobytes())
                                         for name, value in model.state_dict().items()}))
    return path


def trainer(kind, policy, reference, folder, options):
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer
    words = Tokenizer(models.WordLevel({"<pad>": 0, "a": 1, "b": 2}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<pad>")
    common = dict(output_dir=folder, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
                  disable_dropout=True, save_strategy="no", per_device_train_batch_size=2)
    texts = Dataset.from_list([{"prompt": "a", "chosen": " b", "rejected": " a"}] * 4)
    if kind == "dpo":
        return DPOTrainer(model=policy, ref_model=reference, args=DPOConfig(beta=0.1, **common), train_dataset=texts,
                          processing_class=words)
    options = dict(beta=0.04, epsilon=0.2, epsilon_high=0.28, num_generations=2, use_bias_correction_kl=False) | options
    its = GRPOTrainer(model=policy, reward_funcs=lambda completions, **_: [0.0] * len(completions),
                      args=GRPOConfig(**options, **common), train_dataset=texts, processing_class=words)
    its.current_gradient_accumulation_steps = 1
    return its


def batch_of(kind, documents, columns):
    """What TRL's trainers give to their losses; of DPO all chosen answers, then all rejected ones."""
    import torch
    if kind == "dpo":
        documents = documents[0::2] + documents[1::2]
        return {"input_ids": padded([tokens for tokens, _ in documents]),
                "attention_mask": padded([[1] * len(tokens) for tokens, _ in documents]),
                "completion_mask": padded([counted(*each) for each in documents])}
    longest = max(prompt for _, prompt in documents)  # prompts end where answers begin
    left = lambda value: torch.tensor([[0] * (longest - prompt) + value(tokens, prompt)
                                       for tokens, prompt in documents])
    answers = lambda lists: padded([its[prompt:] for its, (_, prompt) in zip(lists, documents)])
    return {"prompt_ids": left(lambda tokens, prompt: tokens[:prompt]),
            "prompt_mask": left(lambda tokens, prompt: [1] * prompt),
            "completion_ids": answers([tokens for tokens, _ in documents]),
            "completion_mask": answers([[1] * len(tokens) for tokens, _ in documents]),
            "advantages": torch.tensor([values[-1] for values in columns["adv"]]),
            "old_per_token_logps": answers(columns["old"]), "ref_per_token_logps": answers(columns["ref"])}


def logprobs(program, data, weights, path):
    """The column that `--logprobs-column` writes."""
    harness.call([program, "--in-process", "--data", data, "--load", weights, "--steps", "1", "--lr", "0", "--logprobs",
                  path, "--logprobs-column", "ref"])
    return list(harness.read_safetensors(path)["ref"][1])


def judge(compiler, folder, tally, name, kind, result, options):
    import torch
    draw = random.Random(name)
    source, program, data, ready, log, grads = (os.path.join(folder, name + end) for end in (
        ".pipe", "", ".safetensors", ".ready.safetensors", ".log", ".grads"))
    text = programs()[kind]
    with open(source, "w") as file:
        file.write(re.sub(r"return mean\(grpo.*", "return " + result, text) if result else text)
    harness.call([compiler, source, "-D", f"model.layers={LAYERS}", "-D", "optimizer.clip=0", "-o", program])
    policy, reference = made(1), made(2)
    paths = [save(model, os.path.join(folder, end)) for model, end in ((policy, "policy"), (reference, "reference"))]
    documents = draw_documents(draw, 6, 2)  # few enough for one step of the program
    split = lambda values: [values[begin:begin + len(tokens)] for begin, (tokens, _) in zip(begins, documents)]
    wanted = re.search(r"\n  column (.*)", text)[1].replace(" = 0", "").split(", ")
    zeros = [[0.0] * len(tokens) for tokens, _ in documents]
    begins = write_data(data, documents, {each: zeros for each in wanted})
    own, other = (split(logprobs(program, data, path, ready)) for path in paths)
    columns = {"old": [rounded([value + draw.gauss(0, 0.2) for value in values]) for values in own], "ref": other,
               "adv": [[rounded([draw.gauss(0, 1)])[0]] * len(tokens) for tokens, _ in documents]}
    write_data(data, documents, {each: columns[each] for each in wanted})
    harness.call([program, "--in-process", "--data", data, "--load", paths[0], "--epochs", "1", "--log", log, "--grads",
                  grads])
    step = harness.read_log(log)[0]
    assert step["tokens"] == sum(len(tokens) - prompt for tokens, prompt in documents), "not the whole file, once"
    theirs = trainer(kind, policy, reference, folder, options)
    loss = theirs.compute_loss(policy, batch_of(kind, documents, columns))
    loss.backward()
    ours = harness.read_safetensors(grads)
    worst = max(float((torch.tensor(list(ours[key][1])).view_as(value.grad) - value.grad).abs().max() /
                      value.grad.abs().max()) for key, value in policy.named_parameters())
    tally.check(abs(step["loss"] - loss.item()) < 1e-6 and worst < 1e-5,
                f"{name:5} loss {step['loss']:.7f}, TRL's {loss.item():.7f}, gradients {worst:.1e}")


def main():
    its = harness.draws()
    if not HAS_TRL:
        print("no trl: nothing is judged")
        return 77
    tally = harness.Tally()
    for case in CASES:
        judge(its.compiler, its.folder, tally, *case)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
