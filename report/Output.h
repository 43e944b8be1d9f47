// Where output goes: a file appears whole or not at all, and terminals, pipes and descriptors are written as they are.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_REPORT_OUTPUT_H
#define PP_REPORT_OUTPUT_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/Support/LogicalResult.h"
#include "llvm/Support/raw_ostream.h"
#include <string>

namespace pp {

/// The output that a path of `-o` names.
struct Output {
  enum Kind {
    File,       ///< a regular file, or nothing yet
    Folder,     ///< a directory
    Descriptor, ///< one that is already open: `-`, /dev/stdout, /dev/fd/3
    Special     ///< a pipe, a terminal, another device
  };
  Kind kind = File;
  std::string path; ///< with symbolic links at its end followed, so that a rename replaces the file and not the link
  int descriptor = -1;

  static Output of(llvm::StringRef path);
};

/// Writes what `fill` writes. A file is written beside its place and renamed, so nobody sees half of it, and what was
/// there stays if `fill` fails, which says why itself. `why` gets what the system refused; empty if `fill` failed.
llvm::LogicalResult writeOutput(llvm::StringRef path, std::string &why,
                                llvm::function_ref<llvm::LogicalResult(llvm::raw_pwrite_stream &)> fill);

} // namespace pp

#endif // PP_REPORT_OUTPUT_H
