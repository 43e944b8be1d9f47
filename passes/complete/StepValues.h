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

/// A `#pipeline.thing` in numbers. A step asks for several things for each unit, and to unique an attribute each time
/// took a third of the time.
struct Thing {
  pipeline::Role role;
  int32_t piece; ///< its number, or that of a skip; of data what `dataNumber` makes; -1: the norm of all gradients
  int32_t microbatch, slice;

  Thing(pipeline::Role role, int64_t piece, int64_t microbatch = -1, int64_t slice = -1)
      : role(role), piece(piece), microbatch(microbatch), slice(slice) {}
  bool operator==(const Thing &other) const = default;
};

/// The key of a value of the step: its thing, or a part of one, and its rank.
struct ValueKey {
  enum Part : uint8_t {
    whole,
    light, ///< of a stash: what F saves of it where R makes the rest
    own    ///< of weights and gradients: what the rank updates, its shard or all
  };
  Thing thing;
  int32_t rank;
  int32_t cut : 29; ///< of a unit that is cut at its attentions: the attention or step, else -1
  Part part : 2;
  bool host : 1; ///< in the rank's host memory

  bool operator==(const ValueKey &other) const = default;
  ValueKey(Thing thing, int64_t rank, Part part = whole, int64_t cut = -1, bool host = false)
      : thing(thing), rank(rank), cut(cut), part(part), host(host) {}
};
static_assert(sizeof(ValueKey) == 24, "there are several for each unit of a step");

class StepValues {
public:
  StepValues(mlir::ModuleOp module, pipeline::ProgramOp program);

  pipeline::ProgramOp program;
  Pieces pieces;
  TaskBodies bodies;
  mlir::OpBuilder builder;

  //===-- Things, places, types ---------------------------------------------------------------------------------===//
  /// The thing of a unit's own microbatch and slice.
  static Thing thing(pipeline::Role role, int64_t piece, pipeline::CoordAttr unit) {
    return {role, piece, unit.getMicrobatch(), unit.getSlice()};
  }
  Thing thing(pipeline::ThingAttr attr) const {
    return thing(attr.getRole(), pieces.find(attr.getCoord()), attr.getCoord());
  }
  pipeline::ThingAttr attr(Thing thing) const;
  /// A unit of this piece is built: most things that are asked for have its coordinate.
  void turnTo(int64_t piece, pipeline::CoordAttr coord) { unitPiece = piece, unitCoord = coord; }
  std::string str(Thing thing) const { return attr(thing).str(); }
  pipeline::PlaceAttr place(llvm::ArrayRef<int64_t> ranks, pipeline::Layout layout = pipeline::Layout::full) const;
  pipeline::ValType typeOn(pipeline::Role role, mlir::TupleType payload, int64_t rank) const;
  /// The number of data so many places on, or of a column, in a thing.
  static int64_t dataNumber(pipeline::BindingKind kind, int64_t number) {
    return static_cast<int64_t>(kind) + kDataKinds * std::max<int64_t>(number, 0);
  }
  static pipeline::BindingKind dataKind(Thing data) {
    return static_cast<pipeline::BindingKind>(data.piece % kDataKinds);
  }
  /// The role of the tensors in a group of this kind: `kv` for `kv.2`.
  static pipeline::Role roleOf(pipeline::GroupKind kind);

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
  /// From here on ops are added; further inputs still stand before them.
  void begin();
  mlir::Value addInput(Thing thing, pipeline::ValType type, llvm::StringRef data = "");
  mlir::Value waitFor(mlir::Value valueOrFuture, mlir::Location loc);
  mlir::Value createMove(Thing thing, mlir::Value value, int64_t to, mlir::Location loc, mlir::IntegerAttr group = {});
  mlir::Value createMove(Thing thing, mlir::Value value, pipeline::PlaceAttr to, mlir::Location loc,
                         mlir::IntegerAttr group = {});
  /// The devices of the value's rank along these axes sum its first tensors. `cut`: each a shard, or of weights they
  /// gather their shards.
  pipeline::MoveOp createSum(Thing thing, mlir::Value value, pipeline::AxesAttr axes, int64_t tensors,
                             mlir::Location loc, bool cut = false);
  /// One value of all these, each on a rank of its own.
  mlir::Value createJoin(pipeline::Role role, mlir::TupleType payload, pipeline::PlaceAttr place,
                         mlir::ValueRange values, mlir::Location loc);
  pipeline::TaskOp createTask(const TaskBody &body, pipeline::UnitIdAttr unit, int64_t rank, mlir::ValueRange inputs,
                              mlir::Location loc);
  void output(Thing thing, mlir::Value value, mlir::Location loc);

private:
  static constexpr int64_t kDataKinds = pipeline::getMaxEnumValForBindingKind() + 1;
  /// What all tasks of a body on a rank have in common.
  struct TaskKind {
    llvm::SmallVector<mlir::Type> types; ///< of the results
    mlir::FlatSymbolRefAttr callee;
    mlir::DenseI64ArrayAttr ranks, ties;
  };

  mlir::Operation *lastInput = nullptr;
  int64_t unitPiece = -1;
  pipeline::CoordAttr unitCoord;
  llvm::DenseMap<std::pair<mlir::Type, pipeline::PlaceAttr>, pipeline::FutureType> futures; ///< by what goes where
  std::vector<pipeline::PlaceAttr> places;                                                  ///< by rank
  llvm::DenseMap<ValueKey, mlir::Value> values;
  llvm::DenseMap<std::pair<const TaskBody *, int64_t>, TaskKind> kinds; ///< by body and rank
  int64_t numCuts = 0;
};

} // namespace pp

template <> struct llvm::DenseMapInfo<pp::Thing> {
  static pp::Thing getEmptyKey() { return {pp::pipeline::Role::act, -2}; }
  static pp::Thing getTombstoneKey() { return {pp::pipeline::Role::act, -3}; }
  static unsigned getHashValue(pp::Thing thing) {
    return pp::hashByMicrobatch(uint64_t(thing.role) << 32 | uint32_t(thing.piece), thing.slice, thing.microbatch);
  }
  static bool isEqual(pp::Thing a, pp::Thing b) { return a == b; }
};

template <> struct llvm::DenseMapInfo<pp::ValueKey> {
  using Things = llvm::DenseMapInfo<pp::Thing>;
  static pp::ValueKey getEmptyKey() { return {Things::getEmptyKey(), 0}; }
  static pp::ValueKey getTombstoneKey() { return {Things::getTombstoneKey(), 0}; }
  static unsigned getHashValue(const pp::ValueKey &key) {
    uint64_t part = uint64_t(key.cut) << 7 ^ unsigned(key.thing.role) << 3 ^ key.part << 1 ^ unsigned(key.host);
    uint64_t where = uint64_t(key.thing.piece) << 32 ^ uint32_t(key.rank);
    return pp::hashByMicrobatch(densemap::detail::mix(where) ^ part, key.thing.slice, key.thing.microbatch);
  }
  static bool isEqual(const pp::ValueKey &a, const pp::ValueKey &b) { return a == b; }
};

#endif // PP_PASSES_STEPVALUES_H
