// Plans the files of a checkpoint: what each has, which rank writes it, and where the values of its tensors come from.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Each file has one writer, so what the writers do needs no order: they write at the same time, into one folder that
// all of them see. That is safe on network file systems, too, where two hosts that write into one file may lose what
// lies in one page. Files hold whole tensors under their published names, so any reader and any other layout of ranks
// finds them. A tensor that lies on several ranks is gathered by its writer, one tensor at a time: a rank never has
// more of the model beside its arena than about twice its largest tensor, or the copy of its own files.
//
// Files of a published folder that was read are kept, and each goes to the rank that has then written and received
// least. Else the writer of a tensor is one of the ranks that have a part of it, with the least to write so far, and
// each rank has files of its own. Ranks with little to write are joined: a file has one writer, and up to 64 MiB of
// several ranks. So a small model has one file, which rank 0 writes, and its bytes do not depend on the ranks. All
// ranks make the same plan by themselves, from the programs of all ranks and the headers of what was read.
#ifndef PP_RUNTIME_TRAINER_SAVEPLAN_H
#define PP_RUNTIME_TRAINER_SAVEPLAN_H

#include "runtime/trainer/Gather.h"

namespace pp {

/// The most bytes in a file of state, or of weights if no folder was read; a larger tensor has its own file.
inline constexpr int64_t defaultShardBytes = 5'000'000'000;

/// The layout of a checkpoint's weights in files.
struct WeightLayout {
  const WeightFiles *origin = nullptr; ///< the folder that was read: its names and types are kept
  bool keepsFiles = false;             ///< and its files and their order; a checkpoint of our own is dealt out anew
  const WeightMatch *match = nullptr;  ///< of the origin
  std::string beside;                  ///< the folder whose other files are copied; with adapters, its tokenizer alone
  bool adapters = false;               ///< of the adapters alone, as a folder of peft
  std::optional<Type> type;            ///< of all weights; absent: the origin's, or the program's
  int64_t shardBytes = defaultShardBytes;
};

/// A tensor of a checkpoint: gathered from its pieces, or copied from the files that were read.
struct OutTensor {
  FileTensor entry;
  const Pieces *pieces = nullptr;
  FilePlace from;
  const Pieces *a = nullptr, *b = nullptr; ///< of the adapter whose product is added
  /// In the file.
  [[nodiscard]] int64_t bytes() const;
};

/// A file of tensors of a checkpoint.
struct OutFile {
  std::string name;
  std::vector<OutTensor> tensors;
  int32_t writer = 0; ///< a device
  bool ofState = false;
};

struct SavePlan {
  std::map<std::string, Pieces> weights, state, adapters;
  std::vector<OutFile> files;
  std::map<std::string, std::string> texts; ///< of the indices, by name of their file
  std::vector<std::string> names;           ///< of all files, but for those that are copied
  std::vector<int64_t> written;             ///< bytes, by device
};

/// A checkpoint: weights, or adapters, and the optimizer's state.
Status planCheckpoint(Emitted &emitted, const WeightLayout &layout, SavePlan &plan);
/// The files of the model, with the product of each adapter in the weight that it stands beside.
Status planMerged(Emitted &emitted, const WeightLayout &layout, SavePlan &plan);
/// The bytes that each device copies to write a checkpoint behind the steps, in the tensors' own types.
[[nodiscard]] std::vector<int64_t> copiedBytes(const SavePlan &plan);

} // namespace pp

#endif // PP_RUNTIME_TRAINER_SAVEPLAN_H
