// The step in SSA while it grows: its values by thing and place, and the ops that make, move and read them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_STEPVALUES_H
#define PP_PASSES_STEPVALUES_H

#include "analysis/Actions.h"
#include "dialect/pipeline/Pipeline.h"
#include "mlir/IR/Builders.h"
#include "passes/derive/TaskBodies.h"
#include "llvm/ADT/DenseMap.h"

namespace pp {

/// Where a value of the step is: which thing, or part of it, on which rank.
struct ValueKey {
  enum Part : uint8_t {
    whole,
    light, ///< of a stash: what F saves of it where R makes the rest
    own    ///< of weights and gradients: what the rank updates, its shard or all
  };
  pipeline::ThingAttr thing;
  int32_t rank;
  int32_t cut : 29; ///< of a unit that is cut at its attentions: the attention or step, else -1
  Part part : 2;
  bool host : 1; ///< in the rank's host memory

  ValueKey(pipeline::ThingAttr thing, int64_t rank, Part part = whole, int64_t cut = -1, bool host = false)
      : thing(thing), rank(rank), cut(cut), part(part), host(host) {}
};
static_assert(sizeof(ValueKey) == 16, "there are several for each unit of a step");

class StepValues {
public:
  StepValues(mlir::ModuleOp module, pipeline::ProgramOp program);

  pipeline::ProgramOp program;
  Pieces pieces;
  TaskBodies bodies;
  mlir::OpBuilder builder;

  //===-- Things, places, types ---------------------------------------------------------------------------------===//
  pipeline::ThingAttr thing(pipeline::Role role, int64_t piece, int64_t mb = -1, int64_t slice = -1) const;
  /// The thing of a unit's own microbatch and slice.
  pipeline::ThingAttr thing(pipeline::Role role, int64_t piece, pipeline::CoordAttr unit) const;
  pipeline::PlaceAttr place(llvm::ArrayRef<int64_t> ranks, pipeline::Layout layout = pipeline::Layout::full) const;
  pipeline::ValType typeOn(pipeline::Role role, mlir::TupleType payload, int64_t rank) const;
  /// What the tensors of a group of this kind are: `kv` of `kv.2`.
  static pipeline::Role roleOf(llvm::StringRef kind);

  //===-- Values ------------------------------------------------------------------------------------------------===//
  bool has(const ValueKey &key) const { return values.contains(key); }
  /// A value, or a future until somebody waits for it.
  void set(const ValueKey &key, mlir::Value value);
  void erase(const ValueKey &key) { values.erase(key); }
  /// Waits if the value is still on its way; null if it is not there.
  mlir::Value get(const ValueKey &key, mlir::Location loc);
  /// One more than the largest `cut` of any value.
  int64_t cuts() const { return numCuts; }

  //===-- Ops ---------------------------------------------------------------------------------------------------===//
  /// From here on ops are added; inputs before them.
  void begin();
  mlir::Value addInput(pipeline::ThingAttr thing, pipeline::ValType type, llvm::StringRef data = "");
  mlir::Value waitFor(mlir::Value valueOrFuture, mlir::Location loc);
  mlir::Value createMove(pipeline::ThingAttr thing, mlir::Value value, int64_t to, mlir::Location loc,
                         mlir::IntegerAttr group = {});
  mlir::Value createMove(pipeline::ThingAttr thing, mlir::Value value, pipeline::PlaceAttr to, mlir::Location loc,
                         mlir::IntegerAttr group = {});
  /// One value of all these, each on a rank of its own.
  mlir::Value createJoin(pipeline::Role role, mlir::TupleType payload, pipeline::PlaceAttr place,
                         mlir::ValueRange values, mlir::Location loc);
  pipeline::TaskOp createTask(const TaskBody &body, pipeline::UnitIdAttr unit, int64_t rank, mlir::ValueRange inputs,
                              mlir::Location loc);
  void output(pipeline::ThingAttr thing, mlir::Value value, mlir::Location loc);

private:
  mlir::Operation *lastInput = nullptr;
  llvm::DenseMap<ValueKey, mlir::Value> values;
  llvm::DenseMap<std::pair<const TaskBody *, int64_t>, llvm::SmallVector<mlir::Type>> resultTypes; ///< by rank
  int64_t numCuts = 0;
};

} // namespace pp

template <> struct llvm::DenseMapInfo<pp::ValueKey> {
  using Things = llvm::DenseMapInfo<pp::pipeline::ThingAttr>;
  static pp::ValueKey getEmptyKey() { return {Things::getEmptyKey(), 0}; }
  static pp::ValueKey getTombstoneKey() { return {Things::getTombstoneKey(), 0}; }
  static unsigned getHashValue(const pp::ValueKey &key) {
    return llvm::hash_combine(Things::getHashValue(key.thing), key.rank,
                              int64_t(key.cut) * 8 + key.part * 2 + key.host);
  }
  static bool isEqual(const pp::ValueKey &a, const pp::ValueKey &b) {
    return a.thing == b.thing && a.rank == b.rank && a.part == b.part && a.cut == b.cut && a.host == b.host;
  }
};

#endif // PP_PASSES_STEPVALUES_H
