// Finds what of a part of the model can be cut by the vocabulary, and writes one shard of it, and what is not cut.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/order/VocabularyPart.h"
#include "dialect/formula/Formula.h"

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
  for (auto linear : function.getOps<nn::LinearOp>())
    if (core.readHead(linear))
      return core;
  return std::nullopt;
}

/// A formula of each logit by itself.
static bool isOfColumns(Operation *op, const DenseSet<Value> &logits) {
  auto map = dyn_cast<nn::MapOp>(op);
  if (!map || map.getHeads() > 1 || map.getTensors().empty() ||
      !llvm::all_of(map.getTensors(), [&](Value tensor) { return logits.contains(tensor); }))
    return false;
  const nn::Formula formula = nn::formulaOf(map).formula;
  return llvm::none_of(llvm::seq(formula.size()),
                       [&](unsigned value) { return nn::isReduction(formula.at(value).op); });
}

/// Whether the logits of this linear lead to losses, and to nothing else but formulas of columns. Behind statistics all
/// that follows is made of them and of data.
bool VocabularyPart::readHead(nn::LinearOp logits) {
  Value own = logits.declaredWeight();
  Operation *transpose = own == logits.getW() ? nullptr : logits.getW().getDefiningOp();
  if (logits.getBias() || !isWeight(own))
    return false;
  DenseSet<Operation *> before;
  SmallVector<Value> open = {logits.getX()};
  while (!open.empty())
    if (Operation *op = open.pop_back_val().getDefiningOp(); op && before.insert(op).second)
      llvm::append_range(open, op->getOperands());
  DenseSet<Value> cut = {logits.getY()}, made; // values with columns, and those that all shards make alike
  for (BlockArgument argument : function.getArguments())
    if (function.getArgAttr(argument.getArgNumber(), nn::kDataAttr))
      made.insert(argument);
  columns.clear(), statistics.clear(), tail.clear();
  auto isMade = [&](Value value) { return made.contains(value); };
  for (Operation &op : function.front().without_terminator()) {
    if (before.contains(&op) || &op == logits || &op == transpose)
      continue;
    const bool isStatistics = isa<nn::ReadsLogits>(op) && cut.contains(op.getOperand(0)) && !op.hasAttr("further");
    if (isStatistics && llvm::all_of(op.getOperands().drop_front(), isMade))
      statistics.push_back(&op);
    else if (isOfColumns(&op, cut))
      columns.push_back(&op);
    else if (llvm::all_of(op.getOperands(), isMade))
      tail.push_back(&op);
    else
      return false;
    (isOfColumns(&op, cut) ? cut : made).insert(op.getResults().begin(), op.getResults().end());
  }
  if (statistics.empty() || !llvm::all_of(function.front().getTerminator()->getOperands(), isMade))
    return false;
  linear = logits, table = cast<BlockArgument>(own), rows = transpose != nullptr;
  return true;
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
  DenseSet<Operation *> cut = {embedding, linear, terminator};
  for (ArrayRef<Operation *> ops : {ArrayRef(columns), ArrayRef(statistics), ArrayRef(tail)})
    cut.insert(ops.begin(), ops.end());
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
  auto dataOf = [&](BlockArgument value) {
    return addArgument(made, value.getType(), function.getArgAttrDict(value.getArgNumber()));
  };
  if (embedding) {
    Value tokens = dataOf(cast<BlockArgument>(embedding.getTokens()));
    Value own = addArgument(made, whole.clone(shape), builder.getDictionaryAttr(declared));
    auto lookup =
        builder.create<nn::EmbeddingOp>(loc, embedding.getX().getType(), tokens, own, builder.getI64IntegerAttr(begins),
                                        builder.getI64IntegerAttr(vocab), embedding.getPadAttr(), nn::AxesAttr());
    return end(builder, made, lookup.getX());
  }
  Value x = addArgument(made, linear.getX().getType());
  IRMapping mapping;
  auto isOfShards = [&](Operation *user) {
    return llvm::is_contained(statistics, user) || llvm::is_contained(tail, user);
  };
  for (BlockArgument argument : function.getArguments())
    if (function.getArgAttr(argument.getArgNumber(), nn::kDataAttr) && llvm::any_of(argument.getUsers(), isOfShards))
      mapping.map(argument, dataOf(argument));
  Value own = addArgument(made, whole.clone(shape), builder.getDictionaryAttr(declared));
  mapping.map(linear.getY(), nn::productOf(builder, loc, x, own, /*bias=*/{}, rows));
  auto mapped = [&](Operation *op) {
    return llvm::map_to_vector(op->getOperands(), [&](Value operand) { return mapping.lookupOrNull(operand); });
  };
  for (Operation *op : columns) {
    FailureOr<Operation *> copy = nn::createAgain(builder, op, mapped(op), op->getAttrs());
    if (succeeded(copy))
      mapping.map(op->getResults(), (*copy)->getResults());
  }
  SmallVector<Value> mine = llvm::map_to_vector(statistics, [&](Operation *op) {
    return cast<nn::ReadsLogits>(op).statisticsOf(builder, mapped(op), begins, nn::AxesAttr());
  });
  std::vector<SmallVector<Value>> all(statistics.size()); // of each, those of all shards
  auto stats = builder.getDictionaryAttr(builder.getNamedAttr(nn::kStatsAttr, builder.getUnitAttr()));
  for (int64_t i = 0; i < shards; ++i)
    for (auto [its, parts] : llvm::zip(mine, all)) {
      Value other = addArgument(made, its.getType(), stats);
      parts.push_back(i == k ? its : other);
    }
  for (auto [op, parts] : llvm::zip(statistics, all)) {
    Value merged = builder.create<nn::CrossEntropyMergeOp>(loc, parts.front().getType(), parts);
    SmallVector<Value> results = cast<nn::ReadsLogits>(op).fromStatistics(builder, merged, mapped(op));
    for (auto [old, result] : llvm::zip(op->getResults(), results))
      mapping.map(old, result);
  }
  for (Operation *op : tail)
    builder.clone(*op, mapping);
  SmallVector<Value> results;
  if (k + 1 == shards)
    for (Value result : function.front().getTerminator()->getOperands())
      results.push_back(mapping.lookup(result));
  end(builder, made, results);
}
