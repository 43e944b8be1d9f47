// Finds what of a part of the model can be cut by the vocabulary, and writes one shard of it, and what is not cut.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/order/VocabularyPart.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace pp;

static bool isWeight(Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  return argument &&
         cast<func::FuncOp>(argument.getOwner()->getParentOp()).getArgAttr(argument.getArgNumber(), nn::kWeightAttr);
}

/// Whether the embedding reads its table by positions, not by tokens.
static bool readsPositions(nn::EmbeddingOp embedding) {
  auto argument = dyn_cast<BlockArgument>(embedding.getTokens());
  auto function = embedding->getParentOfType<func::FuncOp>();
  auto data = argument ? function.getArgAttrOfType<StringAttr>(argument.getArgNumber(), nn::kDataAttr) : StringAttr();
  return data && data == "positions";
}

std::optional<VocabularyPart> VocabularyPart::find(func::FuncOp function) {
  VocabularyPart core;
  core.function = function;
  for (auto embedding : function.getOps<nn::EmbeddingOp>())
    if (isWeight(embedding.getTable()) && !readsPositions(embedding))
      return core.embedding = embedding, core.table = cast<BlockArgument>(embedding.getTable()), core;
  for (auto loss : function.getOps<nn::CrossEntropyOp>()) {
    auto linear = loss.getZ().getDefiningOp<nn::LinearOp>();
    if (!linear || linear.getBias())
      continue;
    auto transpose = linear.getW().getDefiningOp<nn::TransposeOp>();
    Value table = transpose ? transpose.getW() : linear.getW();
    if (!isWeight(table))
      continue;
    core.linear = linear, core.loss = loss, core.table = cast<BlockArgument>(table), core.rows = bool(transpose);
    return core;
  }
  return std::nullopt;
}

nn::WeightAttr VocabularyPart::weight() {
  return function.getArgAttrOfType<nn::WeightAttr>(table.getArgNumber(), nn::kWeightAttr);
}

//===-- Functions -----------------------------------------------------------------------------------------------===//

func::FuncOp VocabularyPart::begin(OpBuilder &builder, StringRef name) {
  builder.setInsertionPoint(function);
  auto made = builder.create<func::FuncOp>(function.getLoc(), name, builder.getFunctionType({}, {}));
  made.setPrivate();
  for (StringRef name : {nn::kWholeAttr, nn::kAgainAttr}) // an attention is no part of a vocabulary
    if (Attribute its = function->getAttr(name))
      made->setAttr(name, its);
  builder.setInsertionPointToEnd(made.addEntryBlock());
  return made;
}

static Value addArgument(func::FuncOp function, Type type, DictionaryAttr attributes = {}) {
  function.insertArgument(function.getNumArguments(), type, attributes, function.getLoc());
  return function.getArguments().back();
}

static void end(OpBuilder &builder, func::FuncOp function, ValueRange results) {
  builder.create<func::ReturnOp>(function.getLoc(), results);
  function.setType(builder.getFunctionType(function.getArgumentTypes(), results.getTypes()));
}

bool VocabularyPart::writeRest(OpBuilder &builder, StringRef name) {
  Operation *terminator = function.front().getTerminator();
  DenseSet<Operation *> cut = {embedding, linear, loss, terminator};
  if (linear)
    cut.insert(linear.getW().getDefiningOp());
  auto isValue = [&](BlockArgument argument) {
    unsigned number = argument.getArgNumber();
    return !function.getArgAttr(number, nn::kWeightAttr) && !function.getArgAttr(number, nn::kDataAttr);
  };
  bool drops = linear && llvm::count_if(function.getArguments(), isValue) > 1; // values that end here
  drops |= function->hasAttr(nn::kSkipsAttr);                                  // values for other parts
  if (!drops && llvm::all_of(function.front(), [&](Operation &op) { return cut.contains(&op); }))
    return false;
  func::FuncOp made = begin(builder, name);
  IRMapping mapping;
  if (embedding)
    mapping.map(embedding.getX(), addArgument(made, embedding.getX().getType()));
  for (BlockArgument argument : function.getArguments()) {
    bool read = llvm::any_of(argument.getUsers(), [&](Operation *user) { return !cut.contains(user); });
    if (read || isValue(argument))
      mapping.map(argument, addArgument(made, argument.getType(), function.getArgAttrDict(argument.getArgNumber())));
  }
  for (Operation &op : function.front())
    if (!cut.contains(&op))
      builder.clone(op, mapping);
  SmallVector<Value> results =
      embedding ? SmallVector<Value>(terminator->getOperands()) : SmallVector<Value>({linear.getX()});
  for (Value &result : results)
    result = mapping.lookup(result);
  end(builder, made, results);
  if (Attribute skips = function->getAttr(nn::kSkipsAttr))
    made->setAttr(nn::kSkipsAttr, skips);
  return true;
}

void VocabularyPart::writeShard(OpBuilder &builder, StringRef name, int64_t k, int64_t shards) {
  int64_t vocab = vocabulary(), begins = firstOf(k, shards), count = firstOf(k + 1, shards) - begins;
  func::FuncOp made = begin(builder, name);
  Location loc = function.getLoc();
  auto whole = cast<RankedTensorType>(table.getType());
  SmallVector<int64_t> shape(whole.getShape());
  shape[rows ? 0 : 1] = count;
  auto declared = builder.getNamedAttr(nn::kWeightAttr, weight());
  auto dataOf = [&](Value value) {
    return addArgument(made, value.getType(), function.getArgAttrDict(cast<BlockArgument>(value).getArgNumber()));
  };
  if (embedding) {
    Value tokens = dataOf(embedding.getTokens());
    Value own = addArgument(made, whole.clone(shape), builder.getDictionaryAttr(declared));
    auto lookup =
        builder.create<nn::EmbeddingOp>(loc, embedding.getX().getType(), tokens, own, builder.getI64IntegerAttr(begins),
                                        builder.getI64IntegerAttr(vocab), embedding.getPadAttr(), nn::AxesAttr());
    return end(builder, made, lookup.getX());
  }
  Value x = addArgument(made, linear.getX().getType()), targets = dataOf(loss.getTargets());
  Value own = addArgument(made, whole.clone(shape), builder.getDictionaryAttr(declared));
  SmallVector<int64_t> logits(cast<RankedTensorType>(linear.getY().getType()).getShape());
  auto element = cast<RankedTensorType>(loss.getLoss().getType()).getElementType();
  logits.back() = 3;
  auto statsType = RankedTensorType::get(logits, element);
  logits.back() = count;
  Value z = builder.create<nn::LinearOp>(loc, whole.clone(logits), x, own, Value(), rows);
  auto mine = builder.create<nn::CrossEntropyStatsOp>(loc, statsType, z, targets, begins, vocab, loss.getSoftcap(),
                                                      nn::AxesAttr());
  SmallVector<Value> all;
  auto stats = builder.getDictionaryAttr(builder.getNamedAttr(nn::kStatsAttr, builder.getUnitAttr()));
  for (int64_t i = 0; i < shards; ++i) {
    Value other = addArgument(made, statsType, stats);
    all.push_back(i == k ? mine.getStats() : other);
  }
  Value merged = builder.create<nn::CrossEntropyMergeOp>(loc, statsType, all);
  Value sum =
      builder.create<nn::CrossEntropyLossOp>(loc, loss.getLoss().getType(), merged, targets, loss.getScaleAttr(),
                                             loss.getCountedAttr(), loss.getAheadAttr(), loss.getZLossAttr());
  end(builder, made, k + 1 == shards ? ValueRange(sum) : ValueRange());
}
