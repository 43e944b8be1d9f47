// Reads what people hand in, files and JSON: nothing is too large or nested too deep, and nothing is waited for long.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_INPUT_H
#define PP_DIALECT_INPUT_H

#include "mlir/IR/Location.h"
#include "mlir/Support/LLVM.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"

namespace pp {

/// The contents of a file (`-`: of standard input); or nothing, and why: "No such file or directory".
std::unique_ptr<llvm::MemoryBuffer> readInput(llvm::StringRef path, std::string &why);

/// A fault of a text, and the byte at which it is.
struct TextError {
  size_t at = 0;
  std::string what;
  std::optional<size_t> first = std::nullopt; ///< where what stands there twice stands first
};

/// The value of a JSON text in which no object has a key twice. `Infinity` and `NaN`, which Python writes, become
/// strings, so they are errors only where a number is read.
std::optional<llvm::json::Value> parseJson(llvm::StringRef text, TextError &error);

/// The same for a whole file, with the error at its line and column.
mlir::FailureOr<llvm::json::Value> parseJsonFile(llvm::StringRef path, llvm::StringRef text,
                                                 mlir::MLIRContext *context);

/// MLIR's own parser calls itself at every bracket. Refuses a text in which too many are open at once.
mlir::LogicalResult checkNesting(llvm::StringRef path, llvm::StringRef text, mlir::MLIRContext *context);

/// A number from 0 up that is no infinity.
bool isQuantity(std::optional<double> number);

} // namespace pp

#endif // PP_DIALECT_INPUT_H
