// The tables of prove-values: the groups of task bodies, the bodies themselves, and what messages carry.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/prove/LabelRules.h"
#include "dialect/pipeline/BodyGroups.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static constexpr GroupRule groupRules[] = {
    {GroupKind::act, What::act, LabelSpan::Unit, -1},
    {GroupKind::dact, What::dact, LabelSpan::Unit, +1},
    {GroupKind::kept, What::kept, LabelSpan::Cut},
    {GroupKind::stash, What::stash, LabelSpan::Cut},
    {GroupKind::carry, What::carry, LabelSpan::Cut},
    {GroupKind::dcarry, What::dcarry, LabelSpan::Cut},
    {GroupKind::query, What::query, LabelSpan::Cut},
    {GroupKind::dquery, What::dquery, LabelSpan::Cut},
    {GroupKind::part, What::part, LabelSpan::Cut},
    {GroupKind::dpart, What::dpart, LabelSpan::Cut},
    {GroupKind::pending, What::pending, LabelSpan::Cut},
    {GroupKind::kv, What::kv, LabelSpan::Chunk},
    {GroupKind::dkv, What::dkv, LabelSpan::Chunk},
    {GroupKind::dterm, What::dkv, LabelSpan::Chunk},
    {GroupKind::keys, What::kv, LabelSpan::Unit, +1},
    {GroupKind::dkeys, What::dkv, LabelSpan::Unit, +1},
    {GroupKind::state, What::state, LabelSpan::Chunk},
    {GroupKind::dstate, What::dstate, LabelSpan::Chunk},
    {GroupKind::tokens, What::tokens, LabelSpan::Tokens},
    {GroupKind::targets, What::targets, LabelSpan::Tokens},
    {GroupKind::weight, What::weight, LabelSpan::Piece},
    {GroupKind::opt, What::opt, LabelSpan::Piece},
    {GroupKind::fresh, What::fresh, LabelSpan::Piece},
    {GroupKind::grad, What::grad, LabelSpan::Piece},
    {GroupKind::share, What::share, LabelSpan::Piece},
    {GroupKind::norm, What::norm, LabelSpan::Step},
    {GroupKind::loss, What::loss, LabelSpan::Unit},
    {GroupKind::stats, What::stats, LabelSpan::Unit},
    {GroupKind::source, What::source, LabelSpan::Tokens},
    {GroupKind::starts, What::starts, LabelSpan::Tokens},
    {GroupKind::positions, What::positions, LabelSpan::Tokens},
    {GroupKind::rows, What::rows, LabelSpan::Tokens},
    {GroupKind::undo, What::undo, LabelSpan::Piece},
    {GroupKind::column, What::column, LabelSpan::Tokens},
};

static constexpr BodyRule bodyRules[] = {
    {Phase::F, BodyVariant::plain},
    {Phase::F, BodyVariant::light},
    {Phase::R, BodyVariant::plain},
    {Phase::R, BodyVariant::act},
    {Phase::I, BodyVariant::plain},
    {Phase::B, BodyVariant::plain, Adds::Unit},
    {Phase::B, BodyVariant::first, Adds::Unit},
    {Phase::W, BodyVariant::plain, Adds::Unit},
    {Phase::W, BodyVariant::first, Adds::Unit},
    {Phase::U, BodyVariant::zero, Adds::None},
    {Phase::U, BodyVariant::sum_keys},
    {Phase::U, BodyVariant::sum, Adds::Share},
    {Phase::U, BodyVariant::first, Adds::Share},
    {Phase::U, BodyVariant::merge, Adds::Nothing, /*whole=*/true},
    {Phase::U, BodyVariant::tie_out, Adds::Nothing, /*whole=*/true},
    {Phase::U, BodyVariant::tie_in, Adds::Tied},
    {Phase::U, BodyVariant::norm_first, Adds::Norm, /*whole=*/true},
    {Phase::U, BodyVariant::norm, Adds::Norm, /*whole=*/true},
    {Phase::U, BodyVariant::plain, Adds::Nothing, /*whole=*/true},
    {Phase::U, BodyVariant::tie_fresh, Adds::Nothing, false, /*updated=*/true},
    {Phase::U, BodyVariant::copy, Adds::Nothing, false, /*updated=*/true},
    {Phase::U, BodyVariant::cut},
    {Phase::U, BodyVariant::judge},
    {Phase::U, BodyVariant::redo},
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

static const GroupRule *findGroup(GroupKind kind) {
  auto *it = llvm::find_if(groupRules, [&](const GroupRule &rule) { return rule.kind == kind; });
  assert(it != std::end(groupRules) && "every kind has its rule");
  return it;
}

static const BodyRule *findRule(BodyAttr identity) {
  auto *it = llvm::find_if(bodyRules, [&](const BodyRule &rule) {
    return rule.phase == identity.getPhase() && rule.variant == identity.getVariant();
  });
  return it == std::end(bodyRules) ? nullptr : it;
}

FailureOr<BodyLabels> BodyLabels::get(ModuleOp module, LaunchOp launch) {
  BodyLabels labels;
  auto function = module.lookupSymbol<func::FuncOp>(launch.getCallee());
  if (function && BodyGroups::isBody(function))
    labels.identity = identityOf(function);
  if (labels.identity)
    labels.rule = findRule(labels.identity);
  if (!labels.rule)
    return emitError(launch.getLoc()) << "no rule says what `@" << launch.getCallee() << "` reads and makes";
  FailureOr<BodyGroups> groups = BodyGroups::get(function);
  if (failed(groups))
    return failure();
  auto bind = [&](ArrayRef<BodyGroups::Group> named, SmallVectorImpl<BodyGroup> &rules) {
    for (const BodyGroups::Group &group : named) {
      // A sum's share is a gradient of the piece itself; the gradient of tied weights has a payload of its own.
      bool plain = labels.adds() == Adds::Share && group.kind() == GroupKind::share;
      rules.push_back({findGroup(plain ? GroupKind::grad : group.kind()), static_cast<int32_t>(group.number()),
                       static_cast<int32_t>(group.attention())});
    }
  };
  bind(groups->inputs, labels.inputs);
  bind(groups->results, labels.results);
  labels.ties = groups->ties;
  return labels;
}
