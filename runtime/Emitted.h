// The emitted program that this executable holds: its description, and that of each rank, read when first asked for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_EMITTED_H
#define PP_RUNTIME_EMITTED_H

#include "runtime/Program.h"
#include <map>
#include <mutex>

namespace pp {

/// The emitted program: its own text, and the ranks' texts, each read when first asked for.
class Emitted {
public:
  Status open();
  [[nodiscard]] const Program &program() const { return whole; }
  /// What it reads of datasets, for the command line to change.
  [[nodiscard]] std::vector<ColumnSpec> &columns() { return whole.columns; }
  /// The program of the device's rank; stays valid.
  Status of(int32_t device, const RankProgram *&out);
  /// The programs of all ranks, in order, each as the rank's first device runs it; they stay valid.
  Status all(std::vector<const RankProgram *> &out);

private:
  Program whole;
  std::mutex mutex; // ranks may be threads
  std::map<int32_t, RankProgram> devices;
};

} // namespace pp

#endif // PP_RUNTIME_EMITTED_H
