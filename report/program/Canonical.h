// JSON as canonical text: keys sorted, no spaces, the fewest digits; so a hash of it can be computed again anywhere.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_REPORT_PROGRAM_CANONICAL_H
#define PP_REPORT_PROGRAM_CANONICAL_H

#include "mlir/Support/LLVM.h"
#include "llvm/Support/JSON.h"

namespace pp {

/// Lists of lists and of objects, and what holds such a list, have a line for each element. These line ends are no part
/// of the canonical text.
void printCanonical(const llvm::json::Value &value, llvm::raw_ostream &os);

/// SHA-256 as people write it; of a value that of its canonical text.
std::string sha256(llvm::StringRef text);
std::string sha256(const llvm::json::Value &value);

} // namespace pp

#endif // PP_REPORT_PROGRAM_CANONICAL_H
