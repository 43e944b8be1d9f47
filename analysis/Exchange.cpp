// Which units of a program are cut at their attentions, and into which bodies.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Exchange.h"
#include "analysis/Keys.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

SmallVector<int64_t> CutPlan::kept(int64_t own) const {
  SmallVector<int64_t> kept;
  for (int64_t slice = 0; slice <= own; ++slice)
    if (llvm::none_of(helps, [&](KeysAttr help) { return llvm::is_contained(help.getSlices(), slice); }))
      kept.push_back(slice);
  return kept;
}

CutAttr CutPlan::step(MLIRContext *context, int64_t step, int64_t steps) const {
  return CutAttr::get(context, CutKind::step, step, steps, helps, /*next=*/false);
}

CutAttr CutPlan::part(int64_t attention, KeysAttr keys, bool next) {
  return CutAttr::get(keys.getContext(), CutKind::part, attention, /*steps=*/1, keys, next);
}

CutAttr CutPlan::rest(MLIRContext *context, int64_t attention) const {
  return CutAttr::get(context, CutKind::rest, attention, /*steps=*/1, helps, /*next=*/false);
}

static KeysAttr keysOf(AttendOp attend, bool home) {
  SmallVector<int64_t> slices(attend.getSlices());
  llvm::sort(slices);
  slices.erase(std::unique(slices.begin(), slices.end()), slices.end());
  return KeysAttr::get(attend.getContext(), slices, home);
}

//===-- Units ---------------------------------------------------------------------------------------------------===//

Exchanges::Exchanges(ProgramOp program) {
  Pieces pieces(program);
  KeysBefore keys(program, pieces.all());
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    if (keys.hasNoKeys(piece))
      withoutKeys.insert(pieces.op(piece).getCoord().with(-1, -1));
  if (!program.walk([](AttendOp) { return WalkResult::interrupt(); }).wasInterrupted())
    return;
  program.walk([&](UnitOp unit) {
    if (unit.getUnit().getPhase() == Phase::F)
      forwards[unit.getUnit().getCoord()] = unit.getRanks().front();
  });
  for (auto attend : program.getBody().getOps<AttendOp>()) {
    CutUnit &unit = aheads[attend.getUnit()];
    unit.plan.helps.push_back(keysOf(attend, /*home=*/false));
    unit.attends.push_back(attend);
  }
  if (!aheads.empty())
    program.walk([&](UnitOp unit) {
      if (auto it = aheads.find(unit.getUnit()); it != aheads.end())
        it->second.op = unit;
    });
}

std::vector<CutUnit> Exchanges::of(TogetherOp together) const {
  std::vector<CutUnit> units;
  auto attends = llvm::to_vector(together.getOps<AttendOp>());
  for (auto op : together.getOps<UnitOp>()) {
    CutUnit unit{op, {}, {}};
    CoordAttr coord = op.getUnit().getCoord();
    Phase phase = op.getUnit().getPhase();
    if (hasNoKeys(coord))
      continue;
    bool helps = false;
    for (AttendOp attend : attends) {
      int64_t rank = attend.getRank();
      helps |= rank == op.getRanks().front() && isCutAtAttentions(phase);
      if (attend.getUnit() != op.getUnit())
        continue;
      bool home = llvm::all_of(attend.getSlices(), [&](int64_t slice) {
        auto it = forwards.find(coord.with(coord.getMicrobatch(), slice));
        return it != forwards.end() && it->second == rank;
      });
      unit.plan.helps.push_back(keysOf(attend, home));
      unit.attends.push_back(attend);
    }
    if (helps || unit.plan.gives())
      units.push_back(unit);
  }
  return units;
}
