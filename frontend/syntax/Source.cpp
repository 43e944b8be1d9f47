// Positions in the text as MLIR locations, and the nearest name for a misspelt one.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/syntax/Source.h"
#include "dialect/Input.h"

using namespace pp;

mlir::Location Source::location(llvm::SMLoc at) {
  auto known = locations.find(at.getPointer());
  if (known != locations.end())
    return known->second;
  unsigned buffer = manager.FindBufferContainingLoc(at);
  if (!buffer)
    return mlir::UnknownLoc::get(context);
  // The manager would look for the line's begin from each position, which a line of many cells pays for each of them.
  llvm::StringRef text = manager.getMemoryBuffer(buffer)->getBuffer();
  std::vector<const char *> &begins = lines[buffer];
  if (begins.empty())
    for (llvm::StringRef rest = text, line = rest; begins.empty() || line.end() != text.end();) {
      begins.push_back(rest.data());
      line = rest.take_until([](char c) { return c == '\n'; });
      rest = rest.drop_front(std::min(line.size() + 1, rest.size()));
    }
  auto after = llvm::upper_bound(begins, at.getPointer());
  llvm::StringRef file = manager.getMemoryBuffer(buffer)->getBufferIdentifier();
  mlir::Location made =
      mlir::FileLineColLoc::get(context, file, after - begins.begin(), at.getPointer() - after[-1] + 1);
  locations.insert({at.getPointer(), made});
  return made;
}

void Source::setUser(llvm::SMLoc inside, llvm::SMLoc user) {
  unsigned buffer = manager.FindBufferContainingLoc(inside);
  if (isOfLibrary(inside))
    library->setUser(manager.getMemoryBuffer(buffer)->getBufferIdentifier(), location(user));
}

bool Source::isOfLibrary(llvm::SMLoc at) const {
  unsigned buffer = manager.FindBufferContainingLoc(at);
  return buffer != manager.getMainFileID() && !libraryFolder.empty() &&
         manager.getMemoryBuffer(buffer)->getBufferIdentifier().starts_with(libraryFolder);
}

unsigned Source::addFile(llvm::StringRef path, std::string &why) {
  std::unique_ptr<llvm::MemoryBuffer> buffer = readInput(path, why);
  return buffer ? manager.AddNewSourceBuffer(std::move(buffer), llvm::SMLoc()) : 0;
}

llvm::StringRef pp::nearestName(llvm::StringRef name, llvm::ArrayRef<llvm::StringRef> candidates) {
  unsigned best = std::max<unsigned>(2, name.size() / 3) + 1;
  llvm::StringRef nearest;
  for (llvm::StringRef candidate : candidates) {
    unsigned distance = name.edit_distance(candidate, /*AllowReplacements=*/true, best);
    // A short word is one change away from every other short word: half of it must stay.
    if (distance < best && 2 * distance <= std::max(name.size(), candidate.size())) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string pp::didYouMean(llvm::StringRef name, llvm::ArrayRef<llvm::StringRef> candidates) {
  llvm::StringRef nearest = nearestName(name, candidates);
  return nearest.empty() ? "" : ("; did you mean `" + nearest + "`?").str();
}

std::string pp::thereAre(llvm::ArrayRef<llvm::StringRef> names) {
  llvm::SmallVector<llvm::StringRef> unique;
  for (llvm::StringRef name : names)
    if (!llvm::is_contained(unique, name))
      unique.push_back(name);
  return unique.empty() ? "there is none" : (unique.size() == 1 ? "there is " : "there are ") + listed(unique);
}

std::string pp::listed(llvm::ArrayRef<llvm::StringRef> names) {
  std::string text;
  for (auto [i, name] : llvm::enumerate(names))
    text += ((i == 0 ? "`" : i + 1 == names.size() ? "` and `" : "`, `") + name).str();
  return text + "`";
}
