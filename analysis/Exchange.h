// Attentions computed in parts on several ranks: which units are cut for that, and what their task bodies are called.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_EXCHANGE_H
#define PP_PASSES_EXCHANGE_H

#include "analysis/Actions.h"
#include "llvm/ADT/MapVector.h"

namespace pp {

/// Keys that another rank attends for a unit.
struct Help {
  llvm::SmallVector<int64_t> slices; ///< ascending
  bool home = false; ///< they were made where they are attended: they do not travel, nor do their gradients
  /// `0to2`, `0to1n4to5`: runs, each without its end; `h` behind them for keys at home.
  std::string name() const;
};

/// Units of these phases compute attentions or their gradients.
inline bool isCutAtAttentions(pipeline::Phase phase) {
  return phase == pipeline::Phase::F || phase == pipeline::Phase::B || phase == pipeline::Phase::I;
}

/// How a unit is cut at its attentions. Step l is what runs before attention l; with helps, attention l is a part of
/// its own over the keys that are left, beside the parts of the helpers. Without, it ends step l: a helper's own unit
/// goes in such steps so that what it gives is not late.
struct CutPlan {
  llvm::SmallVector<Help> helps;
  bool gives() const { return !helps.empty(); }
  /// The step that computes what stands behind `count` ends of attentions: 2l before attention l, 2l + 1 the attention.
  int64_t stepOf(int64_t count) const { return (count + gives()) / 2; }
  /// The slices from 0 to `own` that stay.
  llvm::SmallVector<int64_t> kept(int64_t own) const;
  std::string name() const;
};

/// What a body's name says of cuts: `s0.F.step.1of2.0to2_2to3.5`, `s0.F.part.0.2to3.5`, `s0.F.part.0.rest.0to2_2to3.5`.
struct CutName {
  enum Kind { Whole, Step, Part, Rest } kind = Whole;
  int64_t number = 0, steps = 1; ///< of a step; of a part the attention
  CutPlan plan;                  ///< of a part: its keys alone
  bool isPart() const { return kind == Part || kind == Rest; }
  /// The rest of a unit whose other keys were attended ahead: one step, `s0.F.step.0of1.2to3.5`.
  bool isRestOfAhead() const { return kind == Step && steps == 1; }
  /// Whether the unit begins, or ends, with this body.
  bool isFirst() const { return kind == Whole || (kind == Step && number == 0); }
  bool isLast() const { return kind == Whole || (kind == Step && number + 1 == steps); }
  static CutName of(llvm::StringRef callee);
};

std::string stepName(llvm::StringRef phase, int64_t step, int64_t steps, const CutPlan &plan);
std::string partName(llvm::StringRef phase, int64_t attention, const Help &help);
/// `s0.F.part.0.2to3.5`, or `s0.F.part.0.2to3.next.5`, which goes on with what an earlier one gave.
std::string aheadName(llvm::StringRef phase, const Help &help, bool goesOn);
std::string restName(llvm::StringRef phase, int64_t attention, const CutPlan &plan);

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
  /// Of one `together`: those that are helped, and those of the ranks that help.
  std::vector<CutUnit> of(pipeline::TogetherOp together) const;
  /// What is attended ahead of the unit, in order; null if nothing is.
  const CutUnit *ahead(pipeline::UnitIdAttr unit) const {
    auto it = aheads.find(unit);
    return it == aheads.end() ? nullptr : &it->second;
  }
  const llvm::MapVector<pipeline::UnitIdAttr, CutUnit> &allAhead() const { return aheads; }

private:
  llvm::DenseMap<pipeline::CoordAttr, int64_t> forwards; ///< the ranks of all F
  llvm::MapVector<pipeline::UnitIdAttr, CutUnit> aheads;
};

} // namespace pp

#endif // PP_PASSES_EXCHANGE_H
