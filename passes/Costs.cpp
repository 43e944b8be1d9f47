// Prices tasks and messages.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Costs.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// Free, on a lane of its own for each directed edge.
Route CostModel::route(PostKind kind, ArrayRef<int64_t> ranks, int64_t) const {
  Route route;
  if (kind == PostKind::send) {
    auto name = [](int64_t rank) { return rank == kHost ? "host" : std::to_string(rank); };
    route.links.push_back(name(ranks[0]) + ">" + name(ranks[1]));
    return route;
  }
  for (size_t i = 0; i < ranks.size(); ++i)
    route.links.push_back(std::to_string(ranks[i]) + ">" + std::to_string(ranks[(i + 1) % ranks.size()]));
  return route;
}

Ring pp::ringOf(PostKind kind, double members) {
  switch (kind) {
  case PostKind::send:
  case PostKind::receive:
    return {1, 1};
  case PostKind::all_reduce: // reduce-scatter, then all-gather
    return {2 * (members - 1) / members, 2 * (members - 1)};
  }
  return {1, 1};
}

std::unique_ptr<CostModel> pp::makeCosts(ProgramOp program, StringRef choice) {
  if (choice == "cluster" || (choice.empty() && program->hasAttr("cluster")))
    return makeClusterCosts(program);
  if (choice == "units" || choice.empty())
    return std::make_unique<UnitCosts>();
  if (choice.contains('='))
    return makePartCosts(program, choice);
  return makeMeasuredCosts(program, choice);
}

double UnitCosts::of(int64_t, LaunchOp launch) const {
  switch (launch.getUnit().getPhase()) {
  case Phase::F:
    return forward;
  case Phase::B:
    return backward;
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

namespace {
class PartCosts : public CostModel {
public:
  PartCosts(ProgramOp program, const llvm::StringMap<double> &parts) {
    for (auto piece : program.getOps<PieceOp>()) {
      auto &[all, again] = costs[{piece.getCoord().getPart(), piece.getCoord().getIndex()}];
      for (Attribute entry : piece.getParts()) {
        auto name = cast<StringAttr>(cast<ArrayAttr>(entry)[0]);
        double cost = parts.lookup(name);
        all += cost;
        if (!piece.getRecomputeAttr() || llvm::is_contained(piece.getRecomputeAttr(), name))
          again += cost;
      }
    }
  }
  bool isUnitTime() const override { return true; }

  double of(int64_t, LaunchOp launch) const override {
    CoordAttr coord = launch.getUnit().getCoord();
    auto [all, again] = costs.lookup({coord.getPart(), coord.getIndex()});
    switch (launch.getUnit().getPhase()) {
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

private:
  /// By piece: all its parts, and those that R runs again.
  llvm::DenseMap<std::pair<Attribute, int64_t>, std::pair<double, double>> costs;
};
} // namespace

std::unique_ptr<CostModel> pp::makePartCosts(ProgramOp program, StringRef costs) {
  llvm::StringSet<> known;
  for (auto piece : program.getOps<PieceOp>())
    for (Attribute entry : piece.getParts())
      known.insert(cast<StringAttr>(cast<ArrayAttr>(entry)[0]));
  llvm::StringMap<double> parts;
  for (StringRef entry : llvm::split(costs, ',')) {
    auto [name, text] = entry.split('=');
    double cost = 0;
    if (text.getAsDouble(cost) || cost < 0) {
      emitError(program.getLoc()) << "expected PART=NUMBER in the costs, got `" << entry << "`";
      return nullptr;
    }
    if (!known.contains(name)) {
      emitError(program.getLoc()) << "costs are given for `" << name << "`, and the model has no such part";
      return nullptr;
    }
    parts[name] = cost;
  }
  return std::make_unique<PartCosts>(program, parts);
}
