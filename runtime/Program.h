// What an emitted program says about itself: the JSON texts of `pp_program_json` and `pp_rank_table`, read once at start.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// pp_program_json:
//   {"name": "quickstart", "model": "llama", "schedule": "one_f_one_b", "ranks": 4, "microbatches": 8,
//    "batch": 2, "sequence": 128, "vocab": 256, "precision": "f32" | "bf16" | "f64", "parameters": 123456,
//    "flops_per_step": 1.5e9, "tokens_per_step": 2048,
//    "optimizer": {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "clip": 1.0,
//                  "warmup": 10, "decay_steps": 0, "min_lr": 0.1}}
//   (decay_steps 0: the run's --steps; min_lr is a share of lr; clip 0: no clipping.)
// json of a rank:
//   {"rank": 0, "arena_bytes": 1048576, "peak": {"act": 1024, ..., "total": 1048576},
//    "ops":      [{"kernel": "linear", "type": "f32", "dims": [256, 128, 512], "params": [], "flags": ["bias"]}],
//    "units":    [{"name": "0F0", "phase": "F", "microbatch": 0, "flops": 1e6}],
//    "messages": [{"kind": "send" | "receive", "peer": 1, "channel": 0, "bytes": 65536, "label": "act(0, 0)"},
//                 {"kind": "all_reduce", "group": [0, 1], "channel": 7, "count": 1, "type": "f64", "label": "norm"}],
//    "weights":  [{"name": "model.norm.weight", "shape": [128], "transposed": false, "type": "f32", "offset": 0,
//                  "init": {"kind": "normal" | "zero" | "one", "deviation": 0.02}, "save": true, "tied": false}],
//    "state":    [{"name": "model.norm.weight", "kind": "m" | "v" | "master", "shape": [128], "type": "f32",
//                  "offset": 512}],
//    "grads":    [{"name": "model.norm.weight", "shape": [128], "transposed": false, "type": "f32", "offset": 1024}],
//    "inputs":   [{"kind": "tokens" | "targets", "microbatch": 0, "offset": 4096}],
//    "losses":   [{"microbatch": 0, "offset": 8192, "type": "f32"}],
//    "norm":     {"offset": 8256}}
// Offsets are bytes in the rank's arena. A weight stands once for every place that must hold it when a step begins; over
// all ranks exactly one place of each name has save = true. `shape` is ours ([in, out]); `transposed` says that a
// checkpoint stores [out, in]. `tied`: a copy of a weight that another place owns, same name, same value. State lies on
// the weight's owner; for bf16 `master` holds the f32 master. Grads are complete after the step, and lie on the owner.
// Inputs are i32[batch, sequence], written by the trainer before each step. A loss is one scalar already scaled, so that
// the sum over microbatches (and ranks) is the mean over the batch. `norm` is one f64, the squared norm of all gradients.
