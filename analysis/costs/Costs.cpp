// Prices tasks and messages.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/costs/Costs.h"
#include "analysis/Actions.h"
#include "analysis/Exchange.h"
#include "dialect/nn/Nn.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"
#include <cmath>
#include <numeric>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {
class PartCosts : public CostModel {
public:
  explicit PartCosts(ProgramOp program) : times(program), empty(program) {}
  double of(int64_t rank, LaunchOp launch) const override { return times.of(launch) * empty.factorOf(launch); }
  bool isUnitTime() const override { return true; }

private:
  UnitTimes times;
  EmptyUnits empty;
};
} // namespace

/// Free, on a lane of its own for each directed edge.
BesideTimes CostModel::ofBoth(int64_t rank, LaunchOp first, LaunchOp second) const {
  double one = of(rank, first);
  return {{0, one}, {one, one + of(rank, second)}};
}

Route CostModel::route(PostKind kind, ArrayRef<int64_t> ranks, int64_t) const {
  Route route;
  if (isOverMesh(kind, ranks))
    return route;
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

std::unique_ptr<CostModel> pp::makeCosts(ProgramOp program, StringRef choice, StringRef experts) {
  if (choice == "cluster" || (choice.empty() && program.getCluster()))
    return makeClusterCosts(program, experts);
  if (!experts.empty()) {
    program.emitError("`--expert-load` is of the costs of a cluster: `cluster NAME` in `train`, or --cluster=NAME");
    return nullptr;
  }
  if (choice == "units" || choice.empty())
    return std::make_unique<UnitCosts>(program);
  if (choice.contains('=') && failed(setPartCosts(program, choice)))
    return nullptr;
  if (choice.contains('='))
    return std::make_unique<PartCosts>(program);
  return makeMeasuredCosts(program, choice);
}

/// The share of its unit's work that a launch does; 1 if the unit is not cut at its attentions.
static double shareOf(LaunchOp launch) { return launch.getShare() ? launch.getShare()->convertToDouble() : 1; }

double UnitCosts::of(int64_t, LaunchOp launch) const {
  double one = weights.of(launch.getUnit().getCoord()) * empty.factorOf(launch);
  switch (launch.getUnit().getPhase()) {
  case Phase::F:
  case Phase::I:
    return one * shareOf(launch);
  case Phase::B:
    return 2 * one * shareOf(launch);
  case Phase::W:
  case Phase::R:
    return one;
  case Phase::U:
    return 0;
  }
  return 0;
}

EmptyUnits::EmptyUnits(ProgramOp program) {
  for (auto function : program->getParentOfType<ModuleOp>().getOps<func::FuncOp>())
    if (!function.empty() &&
        llvm::none_of(function.getOps(), [](Operation &op) { return isa<nn::Kernel, nn::Exchange>(op); }))
      bodies.insert(function.getSymNameAttr());
  llvm::DenseSet<CoordAttr> done; // what F or R computes something of
  program.walk([&](LaunchOp launch) {
    Phase phase = launch.getUnit().getPhase();
    if (phase == Phase::F || phase == Phase::R)
      (isEmpty(launch) ? forwardLater : done).insert(launch.getUnit().getCoord());
  });
  for (CoordAttr coord : done)
    forwardLater.erase(coord);
}

double EmptyUnits::factorOf(LaunchOp launch) const {
  if (isEmpty(launch))
    return 0;
  bool doesForward = forwardLater.contains(launch.getUnit().getCoord());
  switch (launch.getUnit().getPhase()) {
  case Phase::B:
    return doesForward ? 1.5 : 1;
  case Phase::I:
    return doesForward ? 2 : 1;
  default:
    return 1;
  }
}

//===-- By layers -----------------------------------------------------------------------------------------------===//

static int64_t countLayers(PieceOp piece) {
  llvm::DenseSet<int64_t> layers;
  for (Attribute part : piece.getParts())
    if (int64_t layer = cast<IntegerAttr>(cast<ArrayAttr>(part)[1]).getInt(); layer >= 0)
      layers.insert(layer);
  return layers.size();
}

PieceWeights::PieceWeights(ProgramOp program) {
  int64_t common = 0;
  for (auto piece : program.getOps<PieceOp>()) {
    CoordAttr coord = piece.getCoord();
    if (!coord.isStage()) {
      parts.insert(coord.getPart());
      continue;
    }
    int64_t count = std::max<int64_t>(countLayers(piece), 1);
    least = layers.empty() ? count : std::min(least, count);
    most = std::max(most, count);
    common = std::gcd(common, count);
    layers[{coord.getPart(), coord.getIndex()}] = count;
  }
  unit = std::max<int64_t>(common, 1);
}

double PieceWeights::of(CoordAttr coord) const {
  auto found = layers.find({coord.getPart(), coord.getIndex()});
  return found == layers.end() ? 1 : static_cast<double>(found->second) / static_cast<double>(unit);
}

std::string PieceWeights::str() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (least < most)
    os << "stages hold " << least << " to " << most << " layers, time 1 is " << unit
       << (unit > 1 ? " layers" : " layer");
  if (parts.empty())
    return text;
  os << (text.empty() ? "" : "; ") << "a unit of ";
  llvm::interleave(
      parts, os, [&](StringAttr part) { os << part.getValue(); }, " or ");
  os << " counts " << (layers.empty() ? "1" : least < most ? "1, too" : "as much as one of a stage");
  return text;
}

//===-- By parts ------------------------------------------------------------------------------------------------===//

static StringAttr nameOfPart(Attribute entry) { return cast<StringAttr>(cast<ArrayAttr>(entry)[0]); }

/// If kinds of layers have names, parts of several kinds have the same name.
static StringAttr partOfKind(ProgramOp program, StringAttr name) {
  auto function = program->getParentOfType<ModuleOp>().lookupSymbol<func::FuncOp>(name.getValue());
  return function ? function->getAttrOfType<StringAttr>(nn::kPartAttr) : StringAttr();
}

static bool hasAttention(ProgramOp program, StringAttr part) {
  auto function = program->getParentOfType<ModuleOp>().lookupSymbol<func::FuncOp>(part.getValue());
  return function && !function.empty() && !function.front().getOps<nn::Attends>().empty();
}

UnitTimes::UnitTimes(ProgramOp program) : bodies(program->getParentOfType<ModuleOp>()) {
  auto costs = program.getCostsAttr();
  byPart = costs != nullptr;
  Pieces declared(program);
  PieceWeights weights(program);
  for (PieceOp piece : declared.all()) {
    Cost &cost = pieces[{piece.getCoord().getPart(), piece.getCoord().getIndex()}];
    if (!byPart) {
      cost.again = weights.of(piece.getCoord());
      cost.cuts = {cost.again};
      continue;
    }
    for (Attribute entry : piece.getParts()) {
      auto given = costs.getAs<FloatAttr>(nameOfPart(entry));
      double time = given ? given.getValueAsDouble() : 0;
      bool isAgain = !piece.getRecomputeAttr() || llvm::is_contained(piece.getRecomputeAttr(), nameOfPart(entry));
      bool attends = hasAttention(program, nameOfPart(entry));
      (attends ? cost.attendsAgain : cost.again) += isAgain ? time : 0;
      if (attends)
        cost.cuts.append({time, 0});
      else
        cost.cuts.back() += time;
    }
  }
}

const UnitTimes::Cost &UnitTimes::costOf(UnitIdAttr unit) const {
  static const Cost none;
  auto it = pieces.find({unit.getCoord().getPart(), unit.getCoord().getIndex()});
  return it == pieces.end() ? none : it->second;
}

double UnitTimes::of(UnitIdAttr unit) const {
  const Cost &cost = costOf(unit);
  double keys = std::max<int64_t>(unit.getCoord().getSlice(), 0) + 1, all = 0;
  for (auto [cut, time] : llvm::enumerate(cost.cuts))
    all += cut % 2 ? keys * time : time;
  switch (unit.getPhase()) {
  case Phase::B:
    return 2 * all;
  case Phase::R:
    return cost.again + keys * cost.attendsAgain;
  case Phase::U:
    return 0;
  default:
    return all;
  }
}

double UnitTimes::of(UnitIdAttr unit, BodyAttr body) const {
  if (!body || !body.getCut())
    return of(unit);
  CutAttr cut = body.getCut();
  CutPlan plan = CutPlan::of(cut);
  int64_t step = cut.getNumber();
  const Cost &cost = costOf(unit);
  int64_t own = unit.getCoord().getSlice(), last = static_cast<int64_t>(cost.cuts.size()) - 1;
  double factor = unit.getPhase() == Phase::B ? 2 : 1, all = 0;
  if (body.isRestOfAhead()) {
    size_t ahead = own + 1 - plan.kept(own).size();
    return of(unit) - (last > 1 ? factor * static_cast<double>(ahead) * cost.cuts[1] : 0);
  }
  if (body.isPart()) {
    bool isRest = cut.getKind() == CutKind::rest;
    size_t keys = isRest ? plan.kept(own).size() : cut.getKeys().front().getSlices().size();
    int64_t attention = 2 * cut.getNumber() + 1;
    return attention < last ? factor * static_cast<double>(keys) * cost.cuts[attention] : 0;
  }
  for (auto [number, time] : llvm::enumerate(cost.cuts))
    if (int64_t at = static_cast<int64_t>(number); plan.stepOf(unit.getPhase() == Phase::F ? at : last - at) == step)
      all += at % 2 == 0 ? time : plan.gives() ? 0 : static_cast<double>(own + 1) * time;
  return factor * all;
}

/// The names for which costs may be given: functions by the name of their part, and by their own.
using KnownParts = llvm::StringMap<llvm::SetVector<StringRef>>;

/// `PART=NUMBER`; `rest` is every part that has no entry of its own.
static LogicalResult readPartCost(ProgramOp program, StringRef entry, const KnownParts &known, NamedAttrList &costs,
                                  std::optional<double> &rest) {
  auto [name, text] = entry.split('=');
  double cost = 0;
  if (text.getAsDouble(cost) || !std::isfinite(cost) || cost < 0)
    return emitError(program.getLoc()) << "expected PART=NUMBER of at least 0 in the costs, got `" << entry << "`";
  if (name == "rest" && !known.contains(name)) {
    rest = cost;
    return success();
  }
  if (!known.contains(name))
    return emitError(program.getLoc()) << "costs are given for `" << name << "`, and the model has no such part";
  for (StringRef function : known.lookup(name))
    costs.set(function, FloatAttr::get(Float64Type::get(program.getContext()), cost));
  return success();
}

LogicalResult pp::setPartCosts(ProgramOp program, StringRef costs) {
  KnownParts known;
  llvm::SetVector<StringAttr> functions;
  for (auto piece : program.getOps<PieceOp>())
    for (Attribute entry : piece.getParts()) {
      StringAttr function = nameOfPart(entry);
      functions.insert(function);
      known[function].insert(function);
      if (StringAttr part = partOfKind(program, function))
        known[part].insert(function);
    }
  NamedAttrList parts;
  std::optional<double> rest;
  llvm::StringSet<> names;
  for (StringRef entry : llvm::split(costs, ',')) {
    StringRef name = entry.split('=').first;
    if (!names.insert(name).second)
      return emitError(program.getLoc()) << "the costs of `" << name << "` are given twice";
    if (failed(readPartCost(program, entry, known, parts, rest)))
      return failure();
  }
  SmallVector<StringRef> unnamed;
  double most = 0;
  for (StringAttr function : functions) {
    if (!parts.get(function) && rest)
      parts.set(function, FloatAttr::get(Float64Type::get(program.getContext()), *rest));
    if (auto cost = dyn_cast_or_null<FloatAttr>(parts.get(function)))
      most = std::max(most, cost.getValueAsDouble());
    else
      unnamed.push_back(function);
  }
  if (!unnamed.empty())
    return emitError(program.getLoc()) << "`" << costs << "` gives no costs of `" << llvm::join(unnamed, "`, `")
                                       << "`; add them, or `rest=0`";
  if (most == 0)
    return emitError(program.getLoc()) << "`" << costs << "` says that nothing takes any time";
  program.setCostsAttr(parts.getDictionary(program.getContext()));
  return success();
}
