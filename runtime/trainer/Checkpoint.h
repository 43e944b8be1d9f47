// Checkpoints: a folder with weights, optimizer state and where the run stood, replaced as a whole or not at all.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Without a folder that was read, model.safetensors, or shards and their index, hold the weights under their published
// names and layouts. Else the shards of that folder are written again with new values, and its other files are copied.
// optimizer.safetensors holds `<weight>.m`, `<weight>.v` and, where the file of the weight has fewer bits than the run,
// `<weight>.master` in the same layouts; state.json the step, the loss scale, what must not change, and the list of our
// files. All go by name, so another schedule or number of ranks of the same model can resume.
#ifndef PP_RUNTIME_TRAINER_CHECKPOINT_H
#define PP_RUNTIME_TRAINER_CHECKPOINT_H

#include "runtime/files/Rows.h"
#include "runtime/trainer/Gather.h"

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
  bool shuffle = false;
  std::optional<Packing> packing; ///< of the documents; absent: not known
  std::string data;               ///< its fingerprint
  std::string origin;             ///< the folder whose weights the run began with, if there was one
};

/// How the weights of a checkpoint are stored.
struct WeightLayout {
  const WeightFiles *origin = nullptr; ///< the folder that was read: its files, names, order and types are kept
  const WeightMatch *match = nullptr;  ///< of the origin
  const WeightFiles *beside = nullptr; ///< the folder whose other files are copied; with adapters, its tokenizer alone
  bool adapters = false;               ///< of the adapters alone, as a folder of peft
  std::optional<Type> type;            ///< of all weights; absent: the origin's, or the program's
  int64_t shardBytes = 5'000'000'000;  ///< without an origin: at most so many in a file
};

/// Rank 0, before training: can a checkpoint be written to `folder`, is it safe to replace, and is there room? `remark`
/// says which files of the origin are not copied.
Status checkFolder(RankMemory &memory, const std::string &folder, const WeightLayout &layout, std::string &remark);

/// Writes a checkpoint beside `folder` and exchanges the two. Collective. On rank 0 `vanished` counts the values that
/// were too small for f16 and became 0.
Status saveCheckpoint(RankMemory &memory, const std::string &folder, const RunState &state, const WeightLayout &layout,
                      int64_t &vanished);
/// Writes the model with its adapters added to its weights, in the files of the model that was read. Collective.
Status saveMerged(RankMemory &memory, const std::string &folder, const WeightLayout &layout, int64_t &vanished);
/// Reads where the run stood and refuses a checkpoint of another program. `changes` says where the optimizer differs.
Status readRunState(const Program &program, const std::string &folder, RunState &state,
                    std::vector<std::string> &changes);
/// Reads this rank's weights and state; `files` and `match` are those of `folder`.
Status loadCheckpoint(RankMemory &memory, const std::string &folder, const WeightFiles &files, const WeightMatch &match,
                      const RunState &state);

} // namespace pp

#endif // PP_RUNTIME_TRAINER_CHECKPOINT_H
