// Units become tasks: which body runs, what it reads where it runs, and where its results go.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_UNITBUILDER_H
#define PP_PASSES_UNITBUILDER_H

#include "passes/complete/Activations.h"
#include "passes/complete/MoveBuilder.h"
#include "passes/complete/UpdateBuilder.h"

namespace pp {

class UnitBuilder {
public:
  UnitBuilder(StepValues &step, const StepOutline &outline, GradientShares &gradients, KeyShares &keys,
              WeightVersions &versions, MoveBuilder &moves, UpdateBuilder &updates)
      : step(step), outline(outline), gradients(gradients), keys(keys), versions(versions), moves(moves),
        updates(updates), activations(step, outline) {}

  /// A unit that runs as one task; and the update behind it, if the unit was the last that the update waits for.
  mlir::LogicalResult build(pipeline::UnitOp op);
  /// The value of this group that the unit reads on its rank.
  mlir::LogicalResult readGroup(pipeline::UnitOp op, const BodyGroups::Group &group, mlir::Value &value);
  /// Records what the task made for others. `share`: what the gradient contained before.
  mlir::LogicalResult recordResults(pipeline::UnitOp op, const TaskBody &body, pipeline::TaskOp task, Share share);
  /// Reports that the unit's input is elsewhere, and why.
  mlir::LogicalResult reportAbsent(pipeline::UnitOp op, Thing thing, int64_t rank) const;

  /// The tasks of one `together` have its number as `joint`.
  void beginJoint() { ++joints; }
  void setJoint(pipeline::TaskOp task);
  /// Papers count in units: a body of a unit that is cut takes its share of them.
  void setShare(pipeline::TaskOp task, const TaskBody &body, const TaskBody &whole);
  /// The attention that ran ahead of the unit so far.
  void setPartAhead(pipeline::UnitIdAttr unit, mlir::Value part) { partsAhead[unit] = part; }

  /// The trainer's data for a microbatch and slice: `tokens`, `starts`; `number`: so many places further on, or
  /// the column's.
  mlir::Value dataInput(pipeline::BindingKind kind, pipeline::CoordAttr unit, int64_t rank, mlir::TupleType payload,
                        int64_t number = 0);

private:
  StepValues &step;
  const StepOutline &outline;
  GradientShares &gradients;
  KeyShares &keys;
  WeightVersions &versions;
  MoveBuilder &moves;
  UpdateBuilder &updates;
  Activations activations;
  int64_t joints = 0;
  llvm::DenseMap<pipeline::UnitIdAttr, mlir::Value> partsAhead;
  llvm::DenseSet<mlir::Location> toldLate; ///< updates by hand: one remark for all that a loop makes

  /// The body of this unit: one of several where it continues a sum, or where R follows.
  const TaskBody *bodyOf(pipeline::UnitOp op, bool continues);
  void remarkLate(pipeline::UnitOp op);
  mlir::LogicalResult finishUpdate(pipeline::UnitOp op);
  static Thing skipOf(llvm::ArrayRef<int64_t> skips, const BodyGroups::Group &group, pipeline::CoordAttr unit);
  mlir::FailureOr<mlir::Value> readShared(pipeline::UnitOp op, const BodyGroups::Group &group);
  mlir::FailureOr<mlir::Value> readOwn(pipeline::UnitOp op, const BodyGroups::Group &group);
  mlir::LogicalResult reportMoved(pipeline::UnitOp op, Thing stash, pipeline::TransferOp move) const;
};

} // namespace pp

#endif // PP_PASSES_UNITBUILDER_H
