// Checkpoints: a folder with weights, optimizer state and where the run stood, replaced as a whole or not at all.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Without a published folder that was read, model.safetensors, or shards and their index, hold the weights under their
// published names and layouts. Else the shards of that folder are written again with new values, and its other files
// are copied. optimizer.safetensors, or its shards, hold `<weight>.m`, `<weight>.v` and, where the file of the weight
// has fewer bits than the run, `<weight>.master` in the same layouts; state.json the step, the loss scale, what must
// not change, the list of our files and their checksums. All go by name, so another schedule or number of ranks of the
// same model can resume.
//
// A save has seven parts, and all ranks hear of each other's failures between them:
//   begin   rank 0 makes `<folder>.tmp` with a state.json that lists the files, without checksums, and with a number
//   tell    all ranks hear the number
//   enter   each rank opens the folder that has this number: from now on its path does not matter
//   gather  each rank gets the tensors of the files that SavePlan.h gives it
//   write   each rank writes these files, and waits until they are on its disk; of a save behind the steps on a thread
//   share   rank 0 hears the checksums
//   commit  rank 0 writes the whole state.json and exchanges the folders by one rename; again on that thread
// Whatever ends the run before that rename, the old checkpoint is there, and `<folder>.tmp` is known as ours.
#ifndef PP_RUNTIME_TRAINER_CHECKPOINT_H
#define PP_RUNTIME_TRAINER_CHECKPOINT_H

#include "runtime/files/Folder.h"
#include "runtime/files/Rows.h"
#include "runtime/trainer/SavePlan.h"

namespace pp {

/// The state of a run between steps.
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
  std::optional<Packing> packing;         ///< of the documents; absent: not known
  bool asksPacking = false;               ///< the command line has said so, of --eval, too
  ShapeBegin began;                       ///< the steps of this shape
  std::optional<StepShape> was;           ///< of the steps of the checkpoint that was read, if they had another
  std::string data, dataChecksum;         ///< its fingerprint; the checksum, on the rank that speaks
  std::string origin;                     ///< the folder whose weights the run began with, if there was one
  int64_t shardBytes = defaultShardBytes; ///< of --shard-size
};

/// Jobs on files, done in this order: at once, or later by a thread that does nothing else. After a failure the other
/// jobs are not done.
class FileWork {
public:
  explicit FileWork(bool later) : later(later) {}
  void add(std::function<Status()> job);
  /// The memory in which a tensor is gathered for the next job. If jobs are done later, each has its own and keeps it
  /// for the next save; else all share one.
  std::shared_ptr<std::vector<char>> place();
  /// Does the jobs that were put off, and reports a failure.
  Status run();

private:
  bool later;
  Status failed;
  std::vector<std::function<Status()>> jobs;
  std::vector<std::shared_ptr<std::vector<char>>> places;
  size_t taken = 0; ///< of them
};

/// A folder in the making; every rank has one of these, for one save after the other.
class Save {
public:
  /// `later`: what is gathered is kept, and `write` may run beside the steps.
  explicit Save(bool later) : work(later) {}

  Status begin(RankMemory &memory, const std::string &path, const RunState &state, const WeightLayout &layout,
               const Keeping &its);
  /// Begins to save the model with its adapters added to its weights, in files like those of the model that was read.
  Status beginMerged(RankMemory &memory, const std::string &path, const WeightLayout &layout);
  /// Begins a save of nothing: `tell` and `enter` find out whether all ranks see one folder; `undo` removes it.
  Status beginTrial(RankMemory &memory, const std::string &path);
  /// Collective.
  Status tell(Transport &transport);
  Status enter(int64_t seconds) { return shared.enter(fresh, mark, number, host, seconds); }
  /// Collective. What this rank cannot write is said by `write`.
  Status gather(RankMemory &memory);
  Status write() { return work.run(); }
  /// Collective.
  Status share(RankMemory &memory);
  Status commit();
  /// All ranks have stopped to write: removes what is there.
  void undo();
  /// A failure of the system, as people are told of it.
  [[nodiscard]] Status named(const Status &status) const;

  int64_t vanished = 0; ///< values of all ranks that were too small for f16 and became 0

private:
  using Checksums = std::map<std::string, std::string>;
  using Values = std::shared_ptr<std::vector<char>>;
  /// A tensor that this rank writes, and the adapter that is added to it.
  struct Gathered {
    Values values, a, b;
  };

  void open(RankMemory &memory, const std::string &path, const Keeping &its, const std::string &markName);
  Status makeFolder(const WeightLayout &layout, std::optional<Type> dtype);
  Status makeEmpty(const std::string &markBody);
  Status gatherOne(RankMemory &memory, const OutTensor &tensor, int32_t to, Gathered &mine);
  void addOpen(const OutFile &out, const std::shared_ptr<SafeTensorsWriter> &file);
  void addTensor(const OutTensor &tensor, const Gathered &its, const std::shared_ptr<SafeTensorsWriter> &file);
  Status copyBeside(const std::string &beside, std::optional<Type> dtype);
  Status writeSummed(const std::string &name, const std::string &body);

  SharedFolder shared; ///< `fresh`, open; it outlives the files that are written there
  FileWork work;
  SavePlan plan;
  Keeping keeping;
  std::string folder, fresh, about; ///< where it goes; where it is made; what is not written if something fails
  std::string mark;                 ///< the name of the file that says what is ours
  std::vector<std::string> names;   ///< of all files; on rank 0
  std::vector<std::string> copied;  ///< of them
  std::function<std::string(const Checksums &)> markText;
  std::vector<std::function<Status()>> texts;            ///< rank 0 writes them when all ranks have entered the folder
  std::map<std::string, std::string> ofWeights, ofState; ///< what the files say of themselves
  bool makes = false, made = false;                      ///< rank 0, which makes the folder; it has
  uint32_t number = 0;                                   ///< that rank 0 leaves there
  std::string host;                                      ///< of rank 0
  double factor = 1;                                     ///< of adapters
  Checksums checksums;                                   ///< of this rank's files; on rank 0 at last of all
  int64_t ownVanished = 0;
};

/// Rank 0, before training: can a checkpoint be written to `folder`, is it safe to replace, and is there room?
/// `isRead`: the run resumes from it. `remark` says which files of the origin are not copied.
Status checkFolder(RankMemory &memory, const std::string &folder, const WeightLayout &layout, const Keeping &keeping,
                   bool isRead, std::string &remark);
/// The bytes that each device copies for a checkpoint that is written behind the steps.
Status copyBytes(Emitted &emitted, const WeightLayout &layout, std::vector<int64_t> &bytes);
/// Whether this process may take so many bytes more, and the processes of this machine together.
Status checkMemory(int64_t bytes, int64_t beside);

/// The text of state.json; the checksums of the other files are missing while they are being written.
[[nodiscard]] std::string stateText(const Program &program, const RunState &state,
                                    const std::vector<std::string> &files,
                                    const std::map<std::string, std::string> &checksums);
/// Whether every file of a checkpoint has the checksum that it was written with; says which one has not.
Status checkWhole(const std::string &folder);
/// The newest checkpoint that is whole: `folder`, or one that is kept beside it. `damage`: why it is not `folder`.
Status findWhole(const std::string &folder, int64_t &kept, std::string &damage);
/// A difference from a checkpoint's program: its name for `--changed`, and a sentence about it.
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
