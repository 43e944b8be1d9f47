// The command line of an emitted program: what the trainer is asked to do, or why the request cannot be understood.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_OPTIONS_H
#define PP_RUNTIME_OPTIONS_H

#include "runtime/files/Rows.h"
#include "runtime/transport/Transport.h"
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pp {

/// The carrier of messages between processes; Unsaid: as the program was linked.
enum class Carrier : uint8_t { Unsaid, Mpi, Nccl, Copies };

/// A file of `--eval`, and what its loss is called; empty: it has no name.
struct EvalFile {
  std::string name, data;
};

struct Options {
  std::map<std::string, std::string> given; ///< all of the command line, by name; of a switch the value is empty
  std::string data, source, load, adapter, merge, save, resume, grads, log, trace, profile, tensorboard, batches,
      logprobs;               ///< paths; empty: not asked for
  std::string logprobsColumn; ///< `logprobs` is the dataset again, with them as this column; empty: rows
  std::vector<EvalFile> evals;
  std::map<std::string, double> columns; ///< values of columns that data do not have, by name
  std::optional<int64_t> steps;          ///< the last step; absent: 20, or the resumed run's
  std::optional<int64_t> stopAt;         ///< end earlier, as if interrupted
  std::optional<double> lr;
  std::optional<int64_t> epochs; ///< instead of steps
  bool shuffle = false;
  std::optional<Packing> packing;
  std::vector<std::string> changed; ///< what may differ from the resumed run: `data`, `optimizer`, `shape`
  std::optional<double> peakFlops;  ///< FLOP/s of a rank at best
  std::optional<uint64_t> seed;
  int64_t saveEvery = 0, keep = 1;      ///< keep: checkpoints, the newest among them
  int64_t evalEvery = 0;                ///< 0: after the last step alone
  int64_t auditEvery = 0;               ///< 0: no step has checksums
  std::vector<std::string> allowUnused; ///< patterns of tensors of `load` that need not be weights of the model
  std::optional<Type> saveType;         ///< of saved weights
  std::optional<int64_t> shardBytes;    ///< at most so many in a file of saved weights
  TransportOptions transport;
  Carrier carrier = Carrier::Unsaid;
  bool init = false;      ///< begin with first values, not with the weights of the folder that was compiled
  bool evalFirst = false; ///< before step 1, too
  bool saveSync = false;  ///< checkpoints are written between the steps, not behind them
  bool profileOps = false;
  bool noGraph = false; ///< devices with streams: every step is asked for call by call
  bool inProcess = false, help = false, info = false, version = false;
  /// Each unit's time is wanted: of a graph only the whole is known.
  [[nodiscard]] bool isTimed() const { return !trace.empty() || !profile.empty(); }
};

/// Reads the arguments after the program's name; both `--name value` and `--name=value`.
Status parseOptions(std::span<const char *const> arguments, Options &options);

/// A program of a published folder reads its weights there, unless the command line says otherwise.
Status resolveWeights(const Program &program, Options &options);

/// Takes the values of columns from the command line, where the program reads such.
Status giveColumns(const Options &options, const Program &program, std::vector<ColumnSpec> &columns);

/// The text of --help.
[[nodiscard]] std::string helpText(const Program &program);

/// The name that is most like `word`, if any is like it at all.
[[nodiscard]] std::optional<std::string> nearestName(const std::string &word, std::span<const std::string> names);

} // namespace pp

#endif // PP_RUNTIME_OPTIONS_H
