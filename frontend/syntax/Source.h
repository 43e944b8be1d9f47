// The text of a program: files, positions as MLIR locations, and diagnostics that point into them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_SOURCE_H
#define PP_FRONTEND_SOURCE_H

#include "frontend/LibraryErrors.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/Location.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/Allocator.h"
#include "llvm/Support/SMLoc.h"
#include "llvm/Support/SourceMgr.h"

namespace pp {

/// So many errors of a file are told; more would not be read.
constexpr unsigned kMostErrors = 20;

/// Shared by all readers of one program: buffers, an arena for the tree, interned names, locations.
class Source {
public:
  Source(llvm::SourceMgr &manager, mlir::MLIRContext *context)
      : manager(manager), context(context), library(LibraryErrors::watch(context)) {}

  mlir::Location location(llvm::SMLoc at);
  /// The number of the buffer that holds this file; 0, and why, if it cannot be read.
  unsigned addFile(llvm::StringRef path, std::string &why);
  mlir::InFlightDiagnostic error(llvm::SMLoc at) { return mlir::emitError(location(at)); }
  /// The same characters always come back at the same address, so names compare by it.
  llvm::StringRef intern(llvm::StringRef text) { return names.insert(text).first->getKey(); }
  llvm::BumpPtrAllocator &arena() { return allocator; }
  /// The text of a buffer, without the mark of the order of bytes that some editors put in front.
  [[nodiscard]] llvm::StringRef text(unsigned buffer) const {
    llvm::StringRef whole = manager.getMemoryBuffer(buffer)->getBuffer();
    whole.consume_front("\xEF\xBB\xBF");
    return whole;
  }

  /// From now on what is said in the file around `inside`, if that is one of the library, is told at `user`, who asks
  /// for what it declares. The main file is always the user's.
  void setUser(llvm::SMLoc inside, llvm::SMLoc user);
  /// Whether it is not the user's.
  bool isOfLibrary(llvm::SMLoc at) const;

  llvm::SourceMgr &manager;
  mlir::MLIRContext *const context;
  std::string libraryFolder;
  const std::shared_ptr<LibraryErrors> library;

private:
  llvm::StringSet<> names;
  llvm::BumpPtrAllocator allocator;
  llvm::DenseMap<const char *, mlir::Location> locations;
  llvm::DenseMap<unsigned, std::vector<const char *>> lines; ///< by buffer: where each line begins
};

/// The candidate nearest to a misspelt name; empty if none is near.
llvm::StringRef nearestName(llvm::StringRef name, llvm::ArrayRef<llvm::StringRef> candidates);

/// "`x`, `y` and `z`".
std::string listed(llvm::ArrayRef<llvm::StringRef> names);

/// "there are `x`, `y` and `z`", each once.
std::string thereAre(llvm::ArrayRef<llvm::StringRef> names);

/// "; did you mean `x`?" with the candidate nearest to `name`, or nothing if none is near.
std::string didYouMean(llvm::StringRef name, llvm::ArrayRef<llvm::StringRef> candidates);

} // namespace pp

#endif // PP_FRONTEND_SOURCE_H
