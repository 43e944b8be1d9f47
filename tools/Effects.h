// Which option is read by which form of `--emit`: one that has no effect is an error.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_EFFECTS_H
#define PP_TOOLS_EFFECTS_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/LogicalResult.h"

namespace pp {

/// The facts by which an option has an effect, beside the form.
struct Effects {
  bool isPipe;   ///< the source is a `.pipe` file
  bool hasRanks; ///< it holds rank programs already
  bool proves;   ///< the proof alone is wanted, no form
  bool isSplit;  ///< parts of a file, for tests
  bool checks;   ///< the program is run small and compared, no form
};

/// Fails, said once, where the command line has an option that nothing reads which it asks for.
llvm::LogicalResult checkEffects(const Effects &asked);

/// Whether the option has an effect on what the command line asks for.
bool isOptionRead(llvm::StringRef option, const Effects &asked);

} // namespace pp

#endif // PP_TOOLS_EFFECTS_H
