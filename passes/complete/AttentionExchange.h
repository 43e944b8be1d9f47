// Attentions that are computed apart from their units: in parts on several ranks, or ahead of the unit on its own rank.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_ATTENTIONEXCHANGE_H
#define PP_PASSES_ATTENTIONEXCHANGE_H

#include "passes/complete/UnitBuilder.h"

namespace pp {

class AttentionExchange {
public:
  AttentionExchange(StepValues &step, const StepOutline &outline, GradientShares &gradients, KeyShares &keys,
                    UnitBuilder &units)
      : step(step), outline(outline), gradients(gradients), keys(keys), units(units) {}

  /// The units of a `together` in which ranks help each other, step by step.
  mlir::LogicalResult build(pipeline::TogetherOp together);
  /// Keys attended ahead of their unit.
  mlir::LogicalResult buildAhead(pipeline::AttendOp op);

private:
  /// A unit that is cut at its attentions, while its joint is built.
  struct RunningCut {
    CutUnit unit;
    int64_t piece, steps = 0;
    pipeline::BodyVariant variant = pipeline::BodyVariant::plain; ///< of its steps: of F, plain or light
    const TaskBody *whole = nullptr;                              ///< all of it
    std::map<int64_t, mlir::Value> carried;                       ///< by cut
    std::map<std::pair<int64_t, int64_t>, mlir::Value> keys;      ///< on helpers: by attention and slice
    llvm::SmallVector<mlir::Value> parts;                         ///< of the attention before the next step
    mlir::Value query;
    Share share;

    pipeline::Phase phase() const { return pipeline::UnitOp(unit.op).getUnit().getPhase(); }
    pipeline::CoordAttr coord() const { return pipeline::UnitOp(unit.op).getUnit().getCoord(); }
    int64_t rank() const { return pipeline::UnitOp(unit.op).getRanks().front(); }
    bool isLast(int64_t step) const { return step + 1 == steps; }
    /// Whether the attention behind this step is computed in parts.
    bool isPartedAfter(int64_t step) const { return unit.plan.gives() && step + 1 < steps; }
    /// The attention behind this step, as they stand in the piece.
    int64_t attentionAfter(int64_t step) const { return phase() == pipeline::Phase::F ? step : steps - 2 - step; }
  };

  StepValues &step;
  const StepOutline &outline;
  GradientShares &gradients;
  KeyShares &keys;
  UnitBuilder &units;

  /// The body of this step; null if no unit was cut in this way.
  const TaskBody *stepOf(const RunningCut &cut, int64_t number) const;
  mlir::LogicalResult begin(RunningCut &cut);
  mlir::LogicalResult sendKeys(RunningCut &cut);
  mlir::LogicalResult buildStep(RunningCut &cut, int64_t number);
  mlir::LogicalResult buildParts(llvm::MutableArrayRef<RunningCut> cuts, int64_t number);
  mlir::LogicalResult buildPart(RunningCut &cut, pipeline::KeysAttr help, int64_t rank, mlir::Value query,
                                int64_t attention, mlir::Operation *source);
};

} // namespace pp

#endif // PP_PASSES_ATTENTIONEXCHANGE_H
