// The derived functions of a module by identity: which function does what, and what a function is that somebody calls.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_BODYTABLE_H
#define PP_ANALYSIS_BODYTABLE_H

#include "dialect/pipeline/Pipeline.h"
#include "llvm/ADT/DenseMap.h"

namespace pp {

/// The attribute of a derived function with its identity, a `#pipeline.body`.
using pipeline::kBodyAttr;

/// The identity of this function; null if nothing derived it.
inline pipeline::BodyAttr identityOf(mlir::func::FuncOp function) {
  return function->getAttrOfType<pipeline::BodyAttr>(kBodyAttr);
}

/// Built once from a module; passes have it by `getAnalysis<BodyTable>()`.
class BodyTable {
public:
  explicit BodyTable(mlir::Operation *module);

  /// The function with this identity, null if there is none.
  mlir::func::FuncOp find(pipeline::BodyAttr identity) const { return functions.lookup(identity); }
  /// The body that is called; null for a function without an identity, which does all of its unit.
  pipeline::BodyAttr of(pipeline::LaunchOp launch) const { return callees.lookup(launch.getCalleeAttr()); }
  pipeline::BodyAttr of(pipeline::TaskOp task) const { return callees.lookup(task.getCalleeAttr()); }
  /// The number of steps of these pieces' units that are cut at their attentions; 0 if none is cut.
  int64_t steps(mlir::StringAttr pieces, pipeline::Phase phase) const {
    return stepCounts.lookup({pieces, static_cast<int64_t>(phase)});
  }

private:
  llvm::DenseMap<pipeline::BodyAttr, mlir::func::FuncOp> functions;
  llvm::DenseMap<mlir::Attribute, pipeline::BodyAttr> callees;
  llvm::DenseMap<std::pair<mlir::Attribute, int64_t>, int64_t> stepCounts;
};

/// Whether a unit begins, or ends, with this body; `body` is null for a function without an identity.
inline bool beginsUnit(pipeline::BodyAttr body) { return !body || body.beginsUnit(); }
inline bool endsUnit(pipeline::BodyAttr body) { return !body || body.endsUnit(); }
/// Whether it only attends some of a unit's keys.
inline bool isPart(pipeline::BodyAttr body) { return body && body.isPart(); }
/// Whether it is an F after which R makes the stash again.
inline bool isLight(pipeline::BodyAttr body) { return body && body.getVariant() == pipeline::BodyVariant::light; }

} // namespace pp

#endif // PP_ANALYSIS_BODYTABLE_H
