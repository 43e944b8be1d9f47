// The tables of prove-values: the groups of task bodies, the bodies themselves, and what messages carry.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/prove/LabelRules.h"
#include "passes/project/PlanBodies.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static constexpr GroupRule groupRules[] = {
    {"act", What::act, Span::Unit, -1},     {"dact", What::dact, Span::Unit, +1},
    {"kept", What::kept, Span::Cut},        {"stash", What::stash, Span::Cut},
    {"carry", What::carry, Span::Cut},      {"dcarry", What::dcarry, Span::Cut},
    {"query", What::query, Span::Cut},      {"dquery", What::dquery, Span::Cut},
    {"part", What::part, Span::Cut},        {"dpart", What::dpart, Span::Cut},
    {"pending", What::pending, Span::Cut},  {"kv", What::kv, Span::Chunk},
    {"dkv", What::dkv, Span::Chunk},        {"dterm", What::dkv, Span::Chunk},
    {"keys", What::kv, Span::Unit, +1},     {"dkeys", What::dkv, Span::Unit, +1},
    {"tokens", What::tokens, Span::Tokens}, {"targets", What::targets, Span::Tokens},
    {"weight", What::weight, Span::Piece},  {"opt", What::opt, Span::Piece},
    {"fresh", What::fresh, Span::Piece},    {"grad", What::grad, Span::Piece},
    {"share", What::share, Span::Piece},    {"norm", What::norm, Span::Step},
    {"loss", What::loss, Span::Unit},       {"stats", What::stats, Span::Unit},
    {"source", What::source, Span::Tokens},
};

static constexpr BodyRule bodyRules[] = {
    {"F", Phase::F},
    {"F.light", Phase::F},
    {"R", Phase::R},
    {"R.act", Phase::R},
    {"I", Phase::I},
    {"B", Phase::B, Adds::Unit},
    {"B.first", Phase::B, Adds::Unit},
    {"W", Phase::W, Adds::Unit},
    {"W.first", Phase::W, Adds::Unit},
    {"F.step", Phase::F},
    {"F.light.step", Phase::F},
    {"F.part", Phase::F},
    {"B.step", Phase::B, Adds::Unit},
    {"B.part", Phase::B},
    {"I.step", Phase::I},
    {"I.part", Phase::I},
    {"zero", Phase::U, Adds::None},
    {"dkv.sum", Phase::U},
    {"sum", Phase::U, Adds::Share},
    {"tie.out", Phase::U, Adds::Nothing, /*whole=*/true},
    {"tie.in", Phase::U, Adds::Tied},
    {"norm.first", Phase::U, Adds::Norm, /*whole=*/true},
    {"norm", Phase::U, Adds::Norm, /*whole=*/true},
    {"U", Phase::U, Adds::Nothing, /*whole=*/true},
    {"tie.fresh", Phase::U, Adds::Nothing, false, /*updated=*/true},
    {"copy", Phase::U, Adds::Nothing, false, /*updated=*/true},
    {"cut", Phase::U},
};

ArrayRef<What> pp::cargoOf(Role role) {
  static constexpr What acts[] = {What::act}, dacts[] = {What::dact}, weights[] = {What::weight, What::fresh},
                        grads[] = {What::grad, What::share}, stashes[] = {What::kept, What::stash, What::pending},
                        states[] = {What::opt}, stats[] = {What::norm, What::stats}, chunks[] = {What::kv},
                        sums[] = {What::dkv}, queries[] = {What::query, What::dquery},
                        parts[] = {What::part, What::dpart};
  switch (role) {
  case Role::act:
    return acts;
  case Role::dact:
    return dacts;
  case Role::weight:
    return weights;
  case Role::grad:
    return grads;
  case Role::stash:
    return stashes;
  case Role::opt:
    return states;
  case Role::stat:
    return stats;
  case Role::kv:
    return chunks;
  case Role::dkv:
    return sums;
  case Role::query:
    return queries;
  case Role::part:
    return parts;
  default:
    return {};
  }
}

bool BodyLabels::has(What what, bool input) const {
  return llvm::any_of(input ? inputs : results, [&](const BodyGroup &group) { return group->what == what; });
}

static const GroupRule *findGroup(StringRef name) {
  auto *it = llvm::find_if(groupRules, [&](const GroupRule &rule) { return rule.name == name; });
  return it == std::end(groupRules) ? nullptr : it;
}

/// Takes the number that a name ends in, if it does.
static int64_t takeNumber(StringRef &name) {
  int64_t number = -1;
  StringRef digits = name.substr(name.rfind('.') + 1);
  if (!digits.getAsInteger(10, number))
    name = name.drop_back(digits.size() + 1);
  return number;
}

/// Cuts `s0.tie.in.1` into the piece's prefix, the rule of `tie.in`, and 1; `s0.F.2` into `s0`, that of `F`, and 2. A
/// second number, or the only one of a body that has no other, is that of a shard.
static bool readName(StringRef callee, BodyLabels &labels) {
  StringRef name = callee;
  int64_t last = takeNumber(name), before = takeNumber(name);
  labels.cut = CutName::of(callee);
  if (labels.cut.kind != CutName::Whole) // up to `.step` or `.part`
    name = callee.take_front(callee.find(labels.cut.isPart() ? ".part." : ".step.") + 5);
  auto *rule = llvm::find_if(bodyRules, [&](const BodyRule &rule) {
    return name.ends_with(rule.name) && name.drop_back(rule.name.size()).ends_with(".");
  });
  if (rule == std::end(bodyRules))
    return false;
  labels.rule = rule;
  bool numbered = rule->phase != Phase::U || rule->name == "tie.in" || rule->name == "tie.fresh";
  labels.number = before < 0 && numbered ? last : before;
  labels.shard = before < 0 && numbered ? -1 : last;
  labels.prefix = name.drop_back(labels.rule->name.size() + 1).str();
  return true;
}

FailureOr<BodyLabels> BodyLabels::get(ModuleOp module, LaunchOp launch) {
  BodyLabels labels;
  auto function = module.lookupSymbol<func::FuncOp>(launch.getCallee());
  if (!function || !BodyGroups::isBody(function) || !readName(launch.getCallee(), labels))
    return emitError(launch.getLoc()) << "no rule says what `@" << launch.getCallee() << "` reads and makes";
  FailureOr<BodyGroups> groups = BodyGroups::get(function);
  if (failed(groups))
    return failure();
  auto bind = [&](ArrayRef<BodyGroups::Group> named, SmallVectorImpl<BodyGroup> &rules) -> LogicalResult {
    for (const BodyGroups::Group &group : named) {
      // A sum's share is a gradient of the piece itself; the gradient of tied weights has a payload of its own.
      bool plain = labels.rule->adds == Adds::Share && group.name == "share";
      rules.push_back({findGroup(plain ? "grad" : group.kind()), static_cast<int32_t>(group.chunk()),
                       static_cast<int32_t>(group.attention())});
      if (!rules.back().rule)
        return emitError(launch.getLoc())
               << "no rule says what group `" << group.name << "` of `@" << launch.getCallee() << "` holds";
    }
    return success();
  };
  if (failed(bind(groups->inputs, labels.inputs)) || failed(bind(groups->results, labels.results)))
    return failure();
  labels.ties = groups->ties;
  return labels;
}
