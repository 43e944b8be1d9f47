// Prices tasks and messages.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Costs.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {
class PartCosts : public CostModel {
public:
  explicit PartCosts(ProgramOp program) : times(program) {}
  double of(int64_t rank, LaunchOp launch) const override;
  bool isUnitTime() const override { return true; }

private:
  UnitTimes times;
};
} // namespace

/// Free, on a lane of its own for each directed edge.
Route CostModel::route(PostKind kind, ArrayRef<int64_t> ranks, int64_t) const {
  Route route;
  auto name = [](int64_t rank) { return rank == kHost ? "host" : std::to_string(rank); };
  Ring ring = ringOf(kind, ranks.size());
  for (size_t i = 0; i < ring.hops; ++i) {
    route.links.push_back(name(ranks[i]) + ">" + name(ranks[(i + 1) % ranks.size()]));
    route.volumes.push_back(ring.volume);
  }
  return route;
}

Ring pp::ringOf(PostKind kind, size_t members) {
  double others = members - 1;
  switch (kind) {
  case PostKind::send:
  case PostKind::receive:
    return {1, 1, 1};
  case PostKind::all_reduce: // reduce-scatter, then all-gather
    return {2 * others / members, 2 * others, members};
  case PostKind::all_gather:
  case PostKind::reduce_scatter:
    return {others / members, others, members};
  case PostKind::broadcast: // a chain, cut so finely that all of it is busy at once
  case PostKind::reduce:
    return {1, others, members - 1};
  }
  return {1, 1, 1};
}

std::unique_ptr<CostModel> pp::makeCosts(ProgramOp program, StringRef choice) {
  if (choice == "cluster" || (choice.empty() && program->hasAttr("cluster")))
    return makeClusterCosts(program);
  if (choice == "units" || choice.empty())
    return std::make_unique<UnitCosts>();
  if (choice.contains('=') && failed(setPartCosts(program, choice)))
    return nullptr;
  if (choice.contains('='))
    return std::make_unique<PartCosts>(program);
  return makeMeasuredCosts(program, choice);
}

/// The part of its unit that a launch does: all, if the unit is not cut at its attentions.
static double shareOf(LaunchOp launch) {
  auto share = launch->getAttrOfType<FloatAttr>("pipeline.share");
  return share ? share.getValueAsDouble() : 1;
}

double UnitCosts::of(int64_t, LaunchOp launch) const {
  switch (launch.getUnit().getPhase()) {
  case Phase::F:
    return forward * shareOf(launch);
  case Phase::B:
    return backward * shareOf(launch);
  case Phase::I:
    return inputs;
  case Phase::W:
    return weights;
  case Phase::R:
    return recompute;
  case Phase::U:
    return 0;
  }
  return 0;
}

//===-- By parts ------------------------------------------------------------------------------------------------===//

static StringAttr partName(Attribute entry) { return cast<StringAttr>(cast<ArrayAttr>(entry)[0]); }

UnitTimes::UnitTimes(ProgramOp program) {
  auto costs = program->getAttrOfType<DictionaryAttr>("costs");
  byPart = costs != nullptr;
  for (auto piece : program.getOps<PieceOp>()) {
    auto &[all, again] = pieces[{piece.getCoord().getPart(), piece.getCoord().getIndex()}];
    all = again = byPart ? 0 : 1;
    for (Attribute entry : piece.getParts())
      if (auto cost = byPart ? costs.getAs<FloatAttr>(partName(entry)) : FloatAttr()) {
        bool isAgain = !piece.getRecomputeAttr() || llvm::is_contained(piece.getRecomputeAttr(), partName(entry));
        all += cost.getValueAsDouble();
        again += isAgain ? cost.getValueAsDouble() : 0;
      }
  }
}

double UnitTimes::of(UnitIdAttr unit) const {
  auto [all, again] = pieces.lookup({unit.getCoord().getPart(), unit.getCoord().getIndex()});
  switch (unit.getPhase()) {
  case Phase::B:
    return 2 * all;
  case Phase::R:
    return again;
  case Phase::U:
    return 0;
  default:
    return all;
  }
}

double PartCosts::of(int64_t, LaunchOp launch) const { return times.of(launch.getUnit()) * shareOf(launch); }

LogicalResult pp::setPartCosts(ProgramOp program, StringRef costs) {
  llvm::StringSet<> known;
  for (auto piece : program.getOps<PieceOp>())
    for (Attribute entry : piece.getParts())
      known.insert(partName(entry));
  Builder builder(program.getContext());
  NamedAttrList parts;
  for (StringRef entry : llvm::split(costs, ',')) {
    auto [name, text] = entry.split('=');
    double cost = 0;
    if (text.getAsDouble(cost) || cost < 0)
      return emitError(program.getLoc()) << "expected PART=NUMBER in the costs, got `" << entry << "`";
    if (!known.contains(name))
      return emitError(program.getLoc()) << "costs are given for `" << name << "`, and the model has no such part";
    parts.set(name, builder.getF64FloatAttr(cost));
  }
  program->setAttr("costs", parts.getDictionary(program.getContext()));
  return success();
}
