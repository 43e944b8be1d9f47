// Positions in the text as MLIR locations, and the nearest name for a misspelt one.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/Source.h"

using namespace mlir;
using namespace pp;

Location Source::location(llvm::SMLoc at) {
  auto known = locations.find(at.getPointer());
  if (known != locations.end())
    return known->second;
  unsigned buffer = manager.FindBufferContainingLoc(at);
  if (!buffer)
    return UnknownLoc::get(context);
  auto [line, column] = manager.getLineAndColumn(at, buffer);
  StringRef file = manager.getMemoryBuffer(buffer)->getBufferIdentifier();
  Location made = FileLineColLoc::get(context, file, line, column);
  locations.insert({at.getPointer(), made});
  return made;
}

std::string pp::didYouMean(StringRef name, ArrayRef<StringRef> candidates) {
  unsigned best = std::max<unsigned>(2, name.size() / 3) + 1;
  StringRef nearest;
  for (StringRef candidate : candidates) {
    unsigned distance = name.edit_distance(candidate, /*AllowReplacements=*/true, best);
    // A short word is one change away from every other short word: half of it must stay.
    if (distance < best && 2 * distance <= std::max(name.size(), candidate.size())) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest.empty() ? "" : ("; did you mean `" + nearest + "`?").str();
}
