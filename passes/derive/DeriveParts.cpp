// Replaces attentions by what their parts give, and writes the parts as bodies for this rank and for helpers.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/derive/PieceGraph.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

void PieceGraph::replace(Value value, Value by) {
  value.replaceAllUsesWith(by);
  for (SmallVector<Value> *values : {&actOut, &dactOut, &stash, &kept, &skipsOut, &dskipsOut})
    std::replace(values->begin(), values->end(), value, by);
  for (SmallVector<Value> &values : dkvOut)
    std::replace(values.begin(), values.end(), value, by);
  for (auto &[cut, values] : pendingCuts)
    std::replace(values.begin(), values.end(), value, by);
}

DenseI64ArrayAttr SequenceSlice::startsOf(ArrayRef<int64_t> chunks, MLIRContext *context) const {
  SmallVector<int64_t> begins;
  for (int64_t k : chunks)
    begins.push_back(starts[k]);
  return DenseI64ArrayAttr::get(context, begins);
}

/// Replaces the attention by a merge of its parts; each part becomes a body.
LogicalResult PieceGraph::cutForward(int64_t number, const CutPlan &plan) {
  auto attention = cast<nn::AttentionOp>(attentions[number]);
  Location loc = attention.getLoc();
  if (slice.devices > 1 && !dataOf(attention).empty())
    return attention.emitError("slices that other ranks attend, over `context`, know neither documents nor dropout of "
                               "weights yet");
  OpBuilder builder = OpBuilder::atBlockEnd(&scratch.block());
  Value query = scratch.addArguments(attention.getQ().getType()).front();
  SmallVector<Value> merged;
  auto addPart = [&](ArrayRef<int64_t> chunks, BodyAttr body) -> LogicalResult {
    SmallVector<Value> operands = {query};
    SmallVector<Group> inputs = {{{GroupKind::query, number}, {query}}};
    for (int64_t k : chunks) {
      inputs.push_back(chunkGroup(GroupKind::kv, kv[k], k, number));
      llvm::append_range(operands, inputs.back().values);
    }
    for (const Group &group : dataOf(attention)) {
      inputs.push_back(group);
      llvm::append_range(operands, group.values);
    }
    NamedAttrList attributes(attention->getAttrs());
    attributes.set("kv_offsets", slice.startsOf(chunks, builder.getContext()));
    FailureOr<Operation *> part = nn::createOp(builder, loc, "attention", operands, attributes.getAttrs());
    if (failed(part))
      return failure();
    SmallVector<Value> given = scratch.addArguments(llvm::to_vector((*part)->getResultTypes()));
    parts[number].push_back({{GroupKind::part, number, static_cast<int64_t>(parts[number].size())}, given});
    llvm::append_range(merged, given);
    if (isWritten(body))
      return success();
    SmallVector<Value> made((*part)->getResults());
    return write(body, inputs, Group{{GroupKind::part, number}, made});
  };
  if (failed(addPart(plan.kept(slice.number), identity(Phase::F, plan.rest(module.getContext(), number)))))
    return failure();
  for (KeysAttr help : plan.helps)
    if (failed(addPart(help.getSlices(), identity(Phase::F, CutPlan::part(number, help)))))
      return failure();
  queries[number] = {{GroupKind::query, number}, {attention.getQ()}};
  builder.setInsertionPoint(attention);
  auto merge = builder.create<nn::AttentionMergeOp>(loc, merged, attention.getHeads());
  forward.insert(merge);
  cuts[merge] = cuts.lookup(attention);
  for (auto [old, value] : llvm::zip(attention->getResults(), merge->getResults()))
    replace(old, value);
  cuts.erase(attention);
  forward.erase(attention);
  attention.erase();
  return success();
}

/// Replaces the attention's gradient by the gradients of its parts; each part becomes a body.
LogicalResult PieceGraph::cutBackward(int64_t number, const CutRequest &cut) {
  const CutPlan &plan = cut.plan;
  auto whole = cast<nn::AttentionBwdOp>(backwards[number]);
  auto *own = llvm::find(kv.back(), whole.getKv().back());
  if (own == kv.back().end() || whole.getAcc() || !whole.getSums())
    return emitError(whole.getLoc()) << "`attend` expects an attention whose queries and keys nothing else reads";
  int64_t attention = (own - kv.back().begin()) / 2;
  SmallVector<Value> needed = {whole.getDout(), whole.getQ(), whole.getLse(), whole.getDelta()};
  queries[number] = {{GroupKind::dquery, attention}, needed};
  SmallVector<Value> query =
      scratch.addArguments(llvm::map_to_vector(needed, [](Value value) { return value.getType(); }));
  MLIRContext *context = module.getContext();
  auto kept = KeysAttr::get(context, plan.kept(slice.number), /*home=*/true);
  if (failed(writePart(number, attention, query, kept, identity(cut.phase, plan.rest(context, attention)))))
    return failure();
  for (KeysAttr help : plan.helps)
    if (failed(writePart(number, attention, query, help, identity(cut.phase, CutPlan::part(attention, help)))))
      return failure();
  sumParts(number, attention, plan);
  // The gradient of the slice's own keys has its last part now: it goes on into the layer.
  ResultRange ownSums = whole.getDkv().take_back(2);
  SmallVector<Value> given = scratch.addArguments(llvm::to_vector(ownSums.getTypes()));
  for (auto [sum, value] : llvm::zip(ownSums, given))
    replace(sum, value);
  parts[number].push_back({{GroupKind::dkv, slice.number, attention}, given});
  cuts.erase(whole);
  whole.erase();
  return success();
}

/// The gradients of keys that are at home go on into their sums there, others are sent back beside that of the query.
LogicalResult PieceGraph::writePart(int64_t number, int64_t attention, ArrayRef<Value> query, KeysAttr help,
                                    BodyAttr identity) {
  auto whole = cast<nn::AttentionBwdOp>(backwards[number]);
  OpBuilder builder = OpBuilder::atBlockEnd(&scratch.block());
  SmallVector<Group> inputs = {{{GroupKind::dquery, attention}, llvm::to_vector(query)}}, results;
  SmallVector<Value> keys, sums;
  bool adds = !whole.getKvAcc().empty();
  for (int64_t k : help.getSlices()) {
    inputs.push_back(chunkGroup(GroupKind::kv, kv[k], k, attention));
    llvm::append_range(keys, inputs.back().values);
  }
  for (const Group &group : dataOf(whole)) {
    inputs.push_back(group);
    llvm::append_range(keys, group.values);
  }
  for (int64_t k : help.getHome() && adds ? help.getSlices() : ArrayRef<int64_t>()) {
    inputs.push_back(chunkGroup(GroupKind::dkv, dkv[k], k, attention));
    llvm::append_range(sums, inputs.back().values);
  }
  auto part = builder.create<nn::AttentionBwdOp>(
      whole.getLoc(), query[0], query[1], query[2], query[3], keys, Value(), sums, whole.getHeads(), whole.getKvHeads(),
      whole.getCausal(), true, whole.getOffset(), slice.startsOf(help.getSlices(), builder.getContext()),
      whole.getWindow(), whole.getScale(), whole.getSoftcap(), whole.getDropoutAttr(), whole.getZigzag(),
      /*packed=*/false);
  SmallVector<Value> made = {part.getDq()};
  if (!help.getHome())
    llvm::append_range(made, part.getDkv());
  results.push_back({{GroupKind::dpart, attention}, made});
  for (size_t i = 0; help.getHome() && i < help.getSlices().size(); ++i)
    results.push_back(
        {{GroupKind::dkv, help.getSlices()[i], attention}, SmallVector<Value>(part.getDkv().slice(2 * i, 2)), adds});
  SmallVector<Value> given =
      scratch.addArguments(llvm::map_to_vector(made, [](Value value) { return value.getType(); }));
  parts[number].push_back({{GroupKind::dpart, attention, static_cast<int64_t>(parts[number].size())}, given});
  return isWritten(identity) ? success() : write(identity, inputs, results);
}

/// The gradient of the query is the sum of the parts; what helpers send back of those of keys goes on into their sums.
void PieceGraph::sumParts(int64_t number, int64_t attention, const CutPlan &plan) {
  auto whole = cast<nn::AttentionBwdOp>(backwards[number]);
  OpBuilder builder(whole);
  Value dq;
  for (const Group &part : parts[number]) {
    Value its = part.values.front();
    dq = dq ? builder.create<nn::AddOp>(whole.getLoc(), dq, its).getZ() : its;
    if (dq != its)
      cuts[dq.getDefiningOp()] = cuts.lookup(whole);
  }
  replace(whole.getDq(), dq);
  for (auto [help, part] : llvm::zip(plan.helps, llvm::drop_begin(parts[number])))
    for (size_t i = 0; !help.getHome() && i < help.getSlices().size(); ++i) {
      SmallVector<Value> sums(part.values.begin() + 1 + 2 * i, part.values.begin() + 3 + 2 * i);
      for (unsigned j = 0; !dkv.empty() && j < 2; ++j) {
        Value into = dkv[help.getSlices()[i]][2 * attention + j];
        sums[j] = nn::addedTo(builder, whole.getLoc(), into, sums[j]);
        cuts[sums[j].getDefiningOp()] = cuts[whole];
      }
      partSums[number].push_back({{GroupKind::dkv, help.getSlices()[i], attention}, sums, !dkv.empty()});
    }
}
