// Attentions computed in parts on several ranks: which units are cut for that, and into which bodies.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_EXCHANGE_H
#define PP_ANALYSIS_EXCHANGE_H

#include "analysis/Actions.h"
#include "llvm/ADT/MapVector.h"

namespace pp {

/// Units of these phases compute attentions or their gradients.
inline bool isCutAtAttentions(pipeline::Phase phase) {
  return phase == pipeline::Phase::F || phase == pipeline::Phase::B || phase == pipeline::Phase::I;
}

/// How a unit is cut at its attentions. Step l is what runs before attention l; with helps, attention l is a part of
/// its own over the keys that are left, beside the parts of the helpers. Without, it ends step l: a helper's own unit
/// goes in such steps so that what it gives is not late.
struct CutPlan {
  llvm::SmallVector<pipeline::KeysAttr> helps; ///< keys that other ranks attend, rank by rank
  bool gives() const { return !helps.empty(); }
  bool operator==(const CutPlan &other) const { return helps == other.helps; }
  /// The step that computes what stands behind `count` ends of attentions: 2l before attention l, 2l + 1 the attention.
  int64_t stepOf(int64_t count) const { return (count + gives()) / 2; }
  /// The slices from 0 to `own` that stay.
  llvm::SmallVector<int64_t> kept(int64_t own) const;

  /// The plan that a body is cut by; of a part, its own keys alone.
  static CutPlan of(pipeline::CutAttr cut) { return {llvm::to_vector(cut.getKeys())}; }
  /// The bodies that a unit is cut into: its steps, the part of attention `attention` that one rank attends for it, and
  /// what the unit's own rank attends. `next`: the part adds to what an earlier part gave.
  pipeline::CutAttr step(mlir::MLIRContext *context, int64_t step, int64_t steps) const;
  static pipeline::CutAttr part(int64_t attention, pipeline::KeysAttr keys, bool next = false);
  pipeline::CutAttr rest(mlir::MLIRContext *context, int64_t attention) const;
};

/// A unit that is cut, and who helps it.
struct CutUnit {
  pipeline::UnitOp op;
  CutPlan plan;
  llvm::SmallVector<pipeline::AttendOp> attends; ///< one for each help of the plan
};

/// Finds the units of a program that are cut, and those whose keys are attended ahead of them: by `attend`s outside of
/// a `together`, on the unit's own rank, each of which goes on with what those before it gave. The unit attends the
/// rest.
class Exchanges {
public:
  explicit Exchanges(pipeline::ProgramOp program);
  /// The cut units of one `together`: those that get help, and those of the helping ranks.
  std::vector<CutUnit> of(pipeline::TogetherOp together) const;
  /// The attention that runs ahead of the unit, in order; null if there is none.
  const CutUnit *ahead(pipeline::UnitIdAttr unit) const {
    auto it = aheads.find(unit);
    return it == aheads.end() ? nullptr : &it->second;
  }
  const llvm::MapVector<pipeline::UnitIdAttr, CutUnit> &allAhead() const { return aheads; }
  /// Whether the piece has scans and no attention: there is nothing to attend, and there are no keys to move.
  bool hasNoKeys(pipeline::CoordAttr coord) const { return withoutKeys.contains(coord.with(-1, -1)); }

private:
  llvm::DenseSet<pipeline::CoordAttr> withoutKeys;       ///< pieces
  llvm::DenseMap<pipeline::CoordAttr, int64_t> forwards; ///< the ranks of all F, if there is an `attend`
  llvm::MapVector<pipeline::UnitIdAttr, CutUnit> aheads;
};

} // namespace pp

#endif // PP_ANALYSIS_EXCHANGE_H
