// Layouts of slots in an arena: first fit, and the search for something smaller.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_SLOTLAYOUT_H
#define PP_PASSES_SLOTLAYOUT_H

#include "analysis/lives/SlotLives.h"

namespace pp {

/// Offsets by life, and where the last ends.
struct SlotLayout {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
};

/// Places those of `order` in this order, each as low from `bottom` on as it can lie among those before it.
void firstFit(llvm::ArrayRef<SlotLife> lives, llvm::ArrayRef<size_t> order, int64_t bottom, SlotLayout &layout);

/// A plan no larger than `first`; `bound` is the largest live sum, which none can go below; a plan of at most `enough`
/// bytes ends the search; `work` is how many slots it may look at (ImprovePlan.cpp).
SlotLayout improvePlan(llvm::ArrayRef<SlotLife> lives, int64_t bound, SlotLayout first, int64_t enough, int64_t work);

} // namespace pp

#endif // PP_PASSES_SLOTLAYOUT_H
