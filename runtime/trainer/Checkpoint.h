// Checkpoints: a folder with weights, optimizer state and where the run stood, replaced as a whole or not at all.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Without a folder that was read, model.safetensors, or shards and their index, hold the weights under their published
// names and layouts. Else the shards of that folder are written again with new values, and its other files are copied.
// optimizer.safetensors holds `<weight>.m`, `<weight>.v` and, where the file of the weight has fewer bits than the run,
// `<weight>.master` in the same layouts; state.json the step, the loss scale, what must not change, the list of our
// files and their checksums. All go by name, so another schedule or number of ranks of the same model can resume.
#ifndef PP_RUNTIME_TRAINER_CHECKPOINT_H
#define PP_RUNTIME_TRAINER_CHECKPOINT_H

#include "runtime/files/Folder.h"
#include "runtime/files/Rows.h"
#include "runtime/trainer/Gather.h"

namespace pp {

/// Where a run stands.
struct RunState {
  int64_t step = 0;   ///< done
  int64_t steps = 0;  ///< the last one, towards which the learning rate decays
  int64_t epochs = 0; ///< the last step is the one that ends this epoch of the data; 0: they do not say
  uint64_t seed = 1;
  double lr = 0;
  // Of a program that scales its loss:
  double lossScale = 1;
  int64_t goodSteps = 0, skipped = 0; ///< since the scale changed last; of all steps done
  int64_t skippedInRow = 0;           ///< the last steps of this run
  bool shuffle = false;
  std::optional<Packing> packing; ///< of the documents; absent: not known
  bool asksPacking = false;       ///< the command line has said so, of --eval, too
  ShapeBegin began;               ///< the steps of this shape
  std::optional<StepShape> was;   ///< of the steps of the checkpoint that was read, if they had another
  std::string data;               ///< its fingerprint
  std::string origin;             ///< the folder whose weights the run began with, if there was one
};

/// How the weights of a checkpoint are stored.
struct WeightLayout {
  const WeightFiles *origin = nullptr; ///< the folder that was read: its files, names, order and types are kept
  const WeightMatch *match = nullptr;  ///< of the origin
  std::string beside;                  ///< the folder whose other files are copied; with adapters, its tokenizer alone
  bool adapters = false;               ///< of the adapters alone, as a folder of peft
  std::optional<Type> type;            ///< of all weights; absent: the origin's, or the program's
  int64_t shardBytes = 5'000'000'000;  ///< without an origin: at most so many in a file
};

/// What is to be done to files, in this order: at once, or later by a thread that does nothing else. Rank 0 alone has
/// any.
class FileWork {
public:
  explicit FileWork(bool later) : later(later) {}
  Status add(std::function<Status()> job);
  /// What is to be done if a job fails, so that nothing of it is left.
  void undoBy(std::function<void()> undo) { undoes = std::move(undo); }
  /// Where a tensor is gathered for the next job: each has its own if they are done later, and keeps it for the next
  /// time, or all have one.
  std::shared_ptr<std::vector<char>> place();
  /// Does what was put off.
  Status run();
  /// It will not be done to its end, for this reason.
  Status fail(const Status &why);

  int64_t vanished = 0; ///< values that were too small for f16 and became 0

private:
  bool later;
  std::vector<std::function<Status()>> jobs;
  std::vector<std::shared_ptr<std::vector<char>>> places;
  size_t taken = 0; ///< of them
  std::function<void()> undoes;
};

/// Rank 0, before training: can a checkpoint be written to `folder`, is it safe to replace, and is there room?
/// `isRead`: the run resumes from it. `remark` says which files of the origin are not copied.
Status checkFolder(RankMemory &memory, const std::string &folder, const WeightLayout &layout, const Keeping &keeping,
                   bool isRead, std::string &remark);
/// Bytes of the weights and the state of a checkpoint in their own types: rank 0 has a copy of them from the first
/// time on that they are written behind the steps.
Status copyBytes(Emitted &emitted, int64_t &bytes);
/// Whether this process may take so many bytes more.
Status checkMemory(int64_t bytes);

/// Gathers a checkpoint, writes it beside `folder` and exchanges the two: all but the first as `work` says. Collective.
Status saveCheckpoint(RankMemory &memory, const std::string &folder, const RunState &state, const WeightLayout &layout,
                      const Keeping &keeping, FileWork &work);
/// Writes the model with its adapters added to its weights, in the files of the model that was read. Collective.
Status saveMerged(RankMemory &memory, const std::string &folder, const WeightLayout &layout, int64_t &vanished);
/// The text of state.json; the checksums of the other files are missing while they are being written.
[[nodiscard]] std::string stateText(const Program &program, const RunState &state,
                                    const std::vector<std::string> &files,
                                    const std::map<std::string, std::string> &checksums);
/// Whether every file of a checkpoint has the checksum that it was written with; says which one has not.
Status checkWhole(const std::string &folder);
/// The newest checkpoint that is whole: `folder`, or one that is kept beside it. `damage`: why it is not `folder`.
Status findWhole(const std::string &folder, int64_t &kept, std::string &damage);
/// What differs from the program of a checkpoint: the name that `--changed` takes for it, and a sentence.
struct StateChange {
  const char *name;
  std::string what;
};
/// Reads where the run stood and refuses a checkpoint of another program. `changes`: what may differ if it is named.
Status readRunState(const Program &program, const std::string &folder, RunState &state,
                    std::vector<StateChange> &changes);
/// Reads this rank's weights and state; `files` and `match` are those of `folder`.
Status loadCheckpoint(RankMemory &memory, const std::string &folder, const WeightFiles &files, const WeightMatch &match,
                      const RunState &state);

} // namespace pp

#endif // PP_RUNTIME_TRAINER_CHECKPOINT_H
