// Reads JSON that people or runs hand in: no object has a key twice, and nothing is nested without end.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_COSTS_JSONFILE_H
#define PP_ANALYSIS_COSTS_JSONFILE_H

#include "llvm/Support/JSON.h"

namespace pp {

/// The value, or a sentence's end that says what is wrong: "is no JSON: ..", "has the key `mean` twice, in line 7".
llvm::Expected<llvm::json::Value> parseJson(llvm::StringRef text);

/// A number from 0 up that is no infinity.
bool isQuantity(std::optional<double> number);

} // namespace pp

#endif // PP_ANALYSIS_COSTS_JSONFILE_H
