// How the simulator lets choices of routers fall on experts: equally, by Zipf's law, or as a file says.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_COSTS_EXPERTLOAD_H
#define PP_ANALYSIS_COSTS_EXPERTLOAD_H

#include "dialect/nn/Nn.h"

namespace pp {

class ExpertLoad {
public:
  /// `zipf=S`: shares as 1 / (i + 1)^S; else the path of a JSON list of numbers above or equal to 0, divided by their
  /// sum; empty: all equal. Fails with an error at `loc`.
  static mlir::FailureOr<ExpertLoad> read(llvm::StringRef text, mlir::Location loc);

  /// The shares of so many experts, with sum 1. Fails if a list has another number of experts.
  mlir::FailureOr<llvm::SmallVector<double>> of(int64_t experts, mlir::Location loc) const;

private:
  double exponent = 0;
  llvm::SmallVector<double> listed; ///< empty: none
};

} // namespace pp

#endif // PP_ANALYSIS_COSTS_EXPERTLOAD_H
