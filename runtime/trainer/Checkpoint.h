// Checkpoints: a folder with weights, optimizer state and where the run stood, replaced as a whole or not at all.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// model.safetensors holds the weights under their Hugging Face names and layouts; optimizer.safetensors `<weight>.m`,
// `<weight>.v` and, for 16 bits, `<weight>.master` in the same layouts; state.json the step, the loss scale and what
// must not change. All go by name, so another schedule or number of ranks of the same model can resume.
#ifndef PP_RUNTIME_TRAINER_CHECKPOINT_H
#define PP_RUNTIME_TRAINER_CHECKPOINT_H

#include "runtime/trainer/Weights.h"

namespace pp {

/// Where a run stands.
struct RunState {
  int64_t step = 0;  ///< done
  int64_t steps = 0; ///< the last one, towards which the learning rate decays
  uint64_t seed = 1;
  double lr = 0;
  // Of a program that scales its loss:
  double lossScale = 1;
  int64_t goodSteps = 0, skipped = 0; ///< since the scale changed last; of all steps done
};

enum class TensorKind : uint8_t { Weights, State, Grads };

/// Gathers all tensors of a kind on rank 0, one at a time, and writes them, multiplied by `factor`. Collective.
Status writeTensors(RankMemory &memory, TensorKind kind, const std::string &path,
                    std::map<std::string, std::string> metadata, double factor = 1);

/// Rank 0, before training: can a checkpoint be written to `folder`, is it safe to replace, and is there room?
Status checkFolder(RankMemory &memory, const std::string &folder);
/// Can a file be written at `path`?
Status checkFile(const std::string &option, const std::string &path);

/// Writes a checkpoint beside `folder` and exchanges the two. Collective.
Status saveCheckpoint(RankMemory &memory, const std::string &folder, const RunState &state);
/// Reads where the run stood and refuses a checkpoint of another program.
Status readRunState(const Program &program, const std::string &folder, RunState &state);
/// Reads this rank's weights and state.
Status loadCheckpoint(RankMemory &memory, const std::string &folder, const RunState &state);

} // namespace pp

#endif // PP_RUNTIME_TRAINER_CHECKPOINT_H
