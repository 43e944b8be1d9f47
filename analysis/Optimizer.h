// What the optimizer of a program keeps for each weight, and how it changes it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_OPTIMIZER_H
#define PP_ANALYSIS_OPTIMIZER_H

#include "dialect/pipeline/Pipeline.h"

namespace pp {

class Optimizer {
public:
  /// `muon` changes the matrices of layers, and AdamW what is left.
  /// `steer` changes biases of routers, by signs, whatever the optimizer.
  enum class Rule : uint8_t { adamw, sgd, muon, steer };

  explicit Optimizer(pipeline::ProgramOp program);

  Rule ruleFor(pipeline::WeightAttr weight) const;
  /// The tensors of its state, of the weight's shape in the type of sums: m, v; u; and for 16 bits the master.
  llvm::SmallVector<llvm::StringRef> stateOf(pipeline::WeightAttr weight) const;
  /// Whether the weight shrinks: a matrix, or more dimensions, that `no_decay` does not name.
  bool decays(pipeline::WeightAttr weight) const;
  /// The factors of the rate and of the weight decay for the weight's group: 1 without a group.
  double rateOf(pipeline::WeightAttr weight) const { return factorOf(weight, "lr_scale"); }
  double shrinkOf(pipeline::WeightAttr weight) const { return factorOf(weight, "decay_scale"); }
  bool isNesterov() const;
  /// Whether updates wait for the norm of all gradients. Without, the next step judges them (docs/barrier.md). One rank
  /// has nobody to wait for.
  bool hasBarrier() const;
  /// The factor of Muon's step for a matrix [in, out], beside the rate.
  double lengthOf(mlir::RankedTensorType matrix) const;
  /// An error if a text of `no_decay`, or of a group, is in no weight's name.
  mlir::LogicalResult check(llvm::ArrayRef<pipeline::WeightAttr> weights) const;

private:
  llvm::ArrayRef<mlir::Attribute> listed(llvm::StringRef setting) const;
  double factorOf(pipeline::WeightAttr weight, llvm::StringRef setting) const;

  mlir::Location loc;
  mlir::DictionaryAttr settings; ///< null: AdamW's defaults
  bool alone;                    ///< the program has one rank
  Rule rule = Rule::adamw;
};

} // namespace pp

#endif // PP_ANALYSIS_OPTIMIZER_H
