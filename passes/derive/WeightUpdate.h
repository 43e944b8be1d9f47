// Writes how the optimizer changes one weight, as operations of the body of U.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_WEIGHTUPDATE_H
#define PP_PASSES_WEIGHTUPDATE_H

#include "analysis/Optimizer.h"
#include "mlir/IR/Builders.h"

namespace pp {

/// What the update of a weight, or of a shard of it, reads.
struct WeightUpdate {
  mlir::Location loc;
  mlir::Value grad; ///< in the type of sums
  mlir::Value norm; ///< null: no clipping
  mlir::Value weight;
  llvm::ArrayRef<mlir::Value> state;      ///< in the order of Optimizer::stateOf
  mlir::DenseI64ArrayAttr flat = nullptr; ///< of updates that are cut over replicas
};

/// The new weight; appends its new state.
mlir::Value writeWeightUpdate(mlir::OpBuilder &builder, const Optimizer &optimizer, pipeline::WeightAttr attr,
                              const WeightUpdate &update, llvm::SmallVectorImpl<mlir::Value> &newState);

} // namespace pp

#endif // PP_PASSES_WEIGHTUPDATE_H
