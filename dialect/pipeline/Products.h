// The kinds of `products` that a program may ask for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_PIPELINE_PRODUCTS_H
#define PP_DIALECT_PIPELINE_PRODUCTS_H

#include "llvm/ADT/StringRef.h"

namespace pp::pipeline {

/// Linears multiply numbers of 8 bits with a scale for each row, or for each tile.
inline constexpr llvm::StringLiteral kRowProducts = "fp8_row", kTileProducts = "fp8_tile";

} // namespace pp::pipeline

#endif // PP_DIALECT_PIPELINE_PRODUCTS_H
