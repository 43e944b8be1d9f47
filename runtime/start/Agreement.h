// What all ranks of a run must have in common: the program, the options, what is read, and the kernels' rounding.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_START_AGREEMENT_H
#define PP_RUNTIME_START_AGREEMENT_H

#include "runtime/Emitted.h"
#include "runtime/Options.h"
#include <array>

namespace pp {

/// Two ranks must have the same `value`. Of a file that is its content: its `path` may be another one.
struct Fact {
  std::string what, value, path;
};

/// Of this process. Of a file its size and a checksum count: of all of it up to 1 MiB, else of 16 blocks of 64 KiB from
/// its begin to its end.
[[nodiscard]] std::vector<Fact> factsOf(const Program &program, const Options &options);

/// All ranks end with the first things in which one of them differs from rank 0. Collective, MPI must run.
Status checkAlike(const Program &program, const Options &options);

/// The first few facts in which two ranks differ; others may follow from them. `names`: of the two ranks.
[[nodiscard]] std::string differenceOf(const std::vector<Fact> &first, const std::vector<Fact> &second,
                                       const std::array<std::string, 2> &names);

} // namespace pp

#endif // PP_RUNTIME_START_AGREEMENT_H
