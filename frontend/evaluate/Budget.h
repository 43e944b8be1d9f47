// What a schedule may take of the compiler before it is stopped with an error at its line.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_BUDGET_H
#define PP_FRONTEND_BUDGET_H

#include <cstdint>

namespace pp {

struct Budget {
  int64_t steps = 100'000'000; ///< expressions and statements evaluated, items of lists made
  int64_t actions = 2'000'000; ///< units, moves, limits and pieces; so many ranks, microbatches, slices, layers, too
  int64_t bytes = 800'000'000; ///< of the lists at one time and of all actions
};

} // namespace pp

#endif // PP_FRONTEND_BUDGET_H
