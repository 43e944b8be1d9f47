// Draws legal schedules and writes them as `.pipe` text, so that a case that fails can be read and compiled by hand.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_FUZZ_SCHEDULES_H
#define PP_TEST_FUZZ_SCHEDULES_H

#include "test/fuzz/Dice.h"
#include <string>
#include <vector>

namespace pp::fuzz {

struct Schedule {
  std::string kind;   ///< lists, moving, or the name of a schedule of the library
  std::string head;   ///< the file up to the schedule's actions
  std::string tail;   ///< and after them
  std::string single; ///< the same model and data on one rank
  int64_t ranks = 1, stages = 1, microbatches = 1;
  int64_t hoist = 0;    ///< so many tasks earlier weights may leave
  bool perRank = false; ///< actions are written as one list for each rank

  /// A unit on its rank, or (-1) moves, which are anchored where their text says.
  struct Action {
    int64_t rank;
    std::string text;
  };
  std::vector<Action> actions; ///< empty for a schedule of the library

  /// The whole file.
  [[nodiscard]] std::string text() const;
};

/// Changes what the schedule's author wrote: an action is lost, comes twice, elsewhere, or on another rank. The name of
/// the mutation, empty where there is nothing to change. What comes out may be legal or not.
std::string mutateActions(Schedule &schedule, Dice &dice);

/// `size` bounds ranks, stages and microbatches: 1 the smallest, 3 all that is drawn. With `names` only these of the
/// library are drawn.
Schedule drawSchedule(Dice &dice, int64_t size, const std::vector<std::string> &names);
/// Whether the library has a schedule of this name that is drawn.
bool isInLibrary(const std::string &name);

} // namespace pp::fuzz

#endif // PP_TEST_FUZZ_SCHEDULES_H
