// Writes what is attended ahead of a unit: bodies over the keys that have come, and the unit that attends the rest.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   F.3        attention over kv.0 to kv.3                      of a piece that is the attention alone
//
//   F.part.0.2to3        kv.2 ─▶ part                           o and log-sum-exp so far
//   F.part.0.1to2.next   kv.1, part ─▶ part
//   F.step.0of1          kv.0, kv.3, part ─▶ act, stash         merged with the keys that are left
//
// The backward likewise: `dpart` is the gradient of the queries so far. Each body makes its share of the gradients of
// the keys that it reads.
#include "passes/derive/PieceGraph.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

LogicalResult PieceGraph::writeAhead(const CutRequest &cut) {
  return cut.phase == Phase::F ? writeForwardAhead(cut) : writeBackwardAhead(cut);
}

LogicalResult PieceGraph::writeForwardAhead(const CutRequest &cut) {
  auto attention = *scratch.block().getOps<nn::AttentionOp>().begin();
  OpBuilder builder(attention);
  Group part{GroupKind::part, scratch.addArguments(llvm::to_vector(attention->getResultTypes()))};
  // The attention over these keys, merged with what earlier ones gave.
  auto attend = [&](ArrayRef<int64_t> slices, bool merges) -> FailureOr<SmallVector<Value>> {
    if (slices.empty())
      return part.values;
    SmallVector<Value> operands = {attention.getQ()};
    for (int64_t k : slices)
      llvm::append_range(operands, kv[k]);
    for (const Group &group : dataOf(attention))
      llvm::append_range(operands, group.values);
    NamedAttrList attributes(attention->getAttrs());
    attributes.set("kv_offsets", slice.startsOf(slices, builder.getContext()));
    FailureOr<Operation *> made =
        nn::createOp(builder, attention.getLoc(), "attention", operands, attributes.getAttrs());
    if (failed(made))
      return failure();
    forward.insert(*made);
    SmallVector<Value> values((*made)->getResults());
    if (!merges)
      return values;
    llvm::append_range(values, part.values);
    auto merge = builder.create<nn::AttentionMergeOp>(attention.getLoc(), values, attention.getHeads());
    forward.insert(merge);
    return SmallVector<Value>(merge->getResults());
  };
  for (auto [number, help] : llvm::enumerate(cut.plan.helps)) {
    auto made = attend(help.getSlices(), number > 0);
    if (failed(made))
      return failure();
    SmallVector<Group> inputs = {{GroupKind::act, act}, {GroupKind::starts, starts}, {GroupKind::rows, rows}};
    inputs.append(chunkGroups(GroupKind::kv, kv));
    inputs.append(skipGroups(GroupKind::act, skips));
    if (number > 0)
      inputs.push_back(part);
    if (BodyAttr body = identity(Phase::F, CutPlan::part(0, help, /*next=*/number > 0));
        !isWritten(body) && failed(write(body, inputs, Group{GroupKind::part, *made})))
      return failure();
  }
  auto whole = attend(cut.plan.kept(slice.number), true);
  if (failed(whole))
    return failure();
  for (auto [old, value] : llvm::zip(attention->getResults(), *whole))
    replace(old, value);
  erase(attention);
  return writeForward(cut.plan.step(builder.getContext(), 0, 1), part);
}

LogicalResult PieceGraph::writeBackwardAhead(const CutRequest &cut) {
  auto whole = *scratch.block().getOps<nn::AttentionBwdOp>().begin();
  OpBuilder builder(whole);
  if (whole.getAcc())
    return emitError(whole.getLoc()) << "`attend` expects an attention whose queries nothing else reads";
  Group given{GroupKind::dpart, scratch.addArguments(whole.getDq().getType())};
  auto attend = [&](ArrayRef<int64_t> slices, bool adds) {
    SmallVector<Value> keys;
    for (int64_t k : slices)
      llvm::append_range(keys, kv[k]);
    for (const Group &group : dataOf(whole))
      llvm::append_range(keys, group.values);
    auto part = builder.create<nn::AttentionBwdOp>(
        whole.getLoc(), whole.getDout(), whole.getQ(), whole.getLse(), whole.getDelta(), keys,
        adds ? given.values.front() : Value(), ValueRange(), whole.getHeads(), whole.getKvHeads(), whole.getCausal(),
        /*sums=*/true, whole.getOffset(), slice.startsOf(slices, builder.getContext()), whole.getWindow(),
        whole.getScale(), whole.getSoftcap(), whole.getDropoutAttr(), whole.getZigzag(), /*packed=*/false);
    for (auto [i, k] : llvm::enumerate(slices))
      dkvOut[k] = SmallVector<Value>(part.getDkv().slice(2 * i, 2));
    return part;
  };
  for (auto [number, help] : llvm::enumerate(cut.plan.helps)) {
    auto part = attend(help.getSlices(), number > 0);
    SmallVector<Group> inputs = {{GroupKind::act, act},   {GroupKind::starts, starts}, {GroupKind::rows, rows},
                                 {GroupKind::kept, kept}, {GroupKind::stash, stash},   {GroupKind::dact, dact}};
    inputs.append(chunkGroups(GroupKind::kv, kv));
    inputs.append(skipGroups(GroupKind::act, skips));
    inputs.append(skipGroups(GroupKind::dact, dskips));
    if (number > 0)
      inputs.push_back(given);
    SmallVector<Group> results = {{GroupKind::dpart, {part.getDq()}}};
    for (const Group &sum : chunkGroups(GroupKind::dkv, dkvOut))
      if (llvm::is_contained(help.getSlices(), sum.name.number))
        results.push_back(sum);
    if (BodyAttr body = identity(cut.phase, CutPlan::part(0, help, /*next=*/number > 0));
        !isWritten(body) && failed(write(body, inputs, results)))
      return failure();
  }
  for (KeysAttr help : cut.plan.helps)
    for (int64_t k : help.getSlices())
      dkvOut[k].clear();
  SmallVector<int64_t> rest = cut.plan.kept(slice.number);
  replace(whole.getDq(), rest.empty() ? given.values.front() : attend(rest, true).getDq());
  return writeBackwardRest(cut, given);
}

LogicalResult PieceGraph::writeBackwardRest(const CutRequest &cut, const Group &given) {
  SmallVector<Group> inputs = {{GroupKind::act, act},
                               {GroupKind::starts, starts},
                               {GroupKind::rows, rows},
                               {GroupKind::kept, kept},
                               {GroupKind::stash, stash}};
  inputs.append(chunkGroups(GroupKind::kv, kv));
  inputs.append({{GroupKind::dact, dact}, given});
  inputs.append(skipGroups(GroupKind::act, skips));
  inputs.append(skipGroups(GroupKind::dact, dskips));
  SmallVector<Group> results = {{GroupKind::dact, dactOut}};
  results.append(skipGroups(GroupKind::dact, dskipsOut));
  results.append(chunkGroups(GroupKind::dkv, dkvOut));
  return write(identity(cut.phase, cut.plan.step(module.getContext(), 0, 1)), inputs, results);
}
