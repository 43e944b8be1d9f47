// Draws legal schedules and writes them as `.pipe` text, so that a case that fails can be read and compiled by hand.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_FUZZ_SCHEDULES_H
#define PP_TEST_FUZZ_SCHEDULES_H

#include "test/fuzz/Dice.h"
#include <string>

namespace pp::fuzz {

struct Schedule {
  std::string kind;   ///< lists, moving, or the name of a schedule of the library
  std::string text;   ///< the whole file
  std::string single; ///< the same model and data on one rank
  int64_t ranks = 1, stages = 1, microbatches = 1;
};

/// `size` bounds ranks, stages and microbatches: 1 the smallest, 3 all that is drawn.
Schedule drawSchedule(Dice &dice, int64_t size);

} // namespace pp::fuzz

#endif // PP_TEST_FUZZ_SCHEDULES_H
