// Which units of a program are cut at their attentions, and how that is written in the names of task bodies.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Exchange.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

//===-- Names ---------------------------------------------------------------------------------------------------===//

std::string Help::name() const {
  std::string name;
  for (size_t i = 0; i < slices.size();) {
    size_t end = i + 1;
    while (end < slices.size() && slices[end] == slices[end - 1] + 1)
      ++end;
    name += (name.empty() ? "" : "n") + std::to_string(slices[i]) + "to" + std::to_string(slices[end - 1] + 1);
    i = end;
  }
  return name + (home ? "h" : "");
}

static Help readHelp(StringRef name) {
  Help help;
  help.home = name.consume_back("h");
  for (StringRef run : llvm::split(name, 'n')) {
    int64_t first = 0, end = 0;
    auto [from, to] = run.split("to");
    if (!from.getAsInteger(10, first) && !to.getAsInteger(10, end))
      for (int64_t slice = first; slice < end; ++slice)
        help.slices.push_back(slice);
  }
  return help;
}

SmallVector<int64_t> CutPlan::kept(int64_t own) const {
  SmallVector<int64_t> kept;
  for (int64_t slice = 0; slice <= own; ++slice)
    if (llvm::none_of(helps, [&](const Help &help) { return llvm::is_contained(help.slices, slice); }))
      kept.push_back(slice);
  return kept;
}

std::string CutPlan::name() const {
  return gives() ? llvm::join(llvm::map_range(helps, [](const Help &help) { return help.name(); }), "_") : "all";
}

static CutPlan readPlan(StringRef name) {
  CutPlan plan;
  if (name != "all")
    for (StringRef help : llvm::split(name, '_'))
      plan.helps.push_back(readHelp(help));
  return plan;
}

std::string pp::stepName(StringRef phase, int64_t step, int64_t steps, const CutPlan &plan) {
  return (phase + ".step." + Twine(step) + "of" + Twine(steps) + "." + plan.name()).str();
}

std::string pp::partName(StringRef phase, int64_t attention, const Help &help) {
  return (phase + ".part." + Twine(attention) + "." + help.name()).str();
}

std::string pp::aheadName(StringRef phase, const Help &help, bool goesOn) {
  return partName(phase, 0, help) + (goesOn ? ".next" : "");
}

std::string pp::restName(StringRef phase, int64_t attention, const CutPlan &plan) {
  return (phase + ".part." + Twine(attention) + ".rest." + plan.name()).str();
}

CutName CutName::of(StringRef callee) {
  CutName name;
  if (size_t at = callee.find(".step."); at != StringRef::npos) {
    auto [number, rest] = callee.drop_front(at + 6).split('.');
    auto [step, steps] = number.split("of");
    if (step.getAsInteger(10, name.number) || steps.getAsInteger(10, name.steps))
      return {};
    name.kind = Step;
    name.plan = readPlan(rest.split('.').first);
  } else if (size_t at = callee.find(".part."); at != StringRef::npos) {
    auto [number, rest] = callee.drop_front(at + 6).split('.');
    if (number.getAsInteger(10, name.number))
      return {};
    name.kind = rest.consume_front("rest.") ? Rest : Part;
    name.plan = readPlan(rest.split('.').first);
  }
  return name;
}

//===-- Units ---------------------------------------------------------------------------------------------------===//

Exchanges::Exchanges(ProgramOp program) {
  program.walk([&](UnitOp unit) {
    if (unit.getUnit().getPhase() == Phase::F)
      forwards[unit.getUnit().getCoord()] = unit.getRanks().front();
  });
  for (auto attend : program.getBody().getOps<AttendOp>()) {
    CutUnit &unit = aheads[attend.getUnit()];
    Help &help = unit.plan.helps.emplace_back(Help{llvm::to_vector(attend.getSlices()), false});
    llvm::sort(help.slices);
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
    bool helps = false;
    for (AttendOp attend : attends) {
      int64_t rank = attend.getRank();
      helps |= rank == op.getRanks().front() && isCutAtAttentions(phase);
      if (attend.getUnit() != op.getUnit())
        continue;
      Help help{llvm::to_vector(attend.getSlices()), false};
      llvm::sort(help.slices);
      help.home = llvm::all_of(help.slices, [&](int64_t slice) {
        auto it = forwards.find(coord.with(coord.getMicrobatch(), slice));
        return it != forwards.end() && it->second == rank;
      });
      unit.plan.helps.push_back(help);
      unit.attends.push_back(attend);
    }
    if (helps || unit.plan.gives())
      units.push_back(unit);
  }
  return units;
}
