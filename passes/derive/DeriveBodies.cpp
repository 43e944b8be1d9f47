// Cuts one task body out of a piece's ops: the slice from its inputs to its results, every update in place made legal.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: one block with forward and backward     After: func.func private @s0.W(%dact, %pending, %grad) -> grad
//         ops of a piece, values a, b, .. known     attributes {pipeline.inputs = #pipeline.groups<dact x 1, ..>, ..}
#include "mlir/IR/IRMapping.h"
#include "passes/derive/DeriveTasks.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

Scratch::Scratch(ModuleOp module, Location loc) {
  OpBuilder builder(module.getBodyRegion());
  function = builder.create<func::FuncOp>(loc, "derive-tasks.scratch", builder.getFunctionType({}, {}));
  function.setPrivate();
  function.addEntryBlock();
}

SmallVector<Value> Scratch::addArguments(ArrayRef<Type> types) {
  SmallVector<Value> values;
  for (Type type : types)
    values.push_back(block().addArgument(type, function.getLoc()));
  return values;
}

//===-- The slice -----------------------------------------------------------------------------------------------===//

/// The ops that the results need, in order; what is given is not computed. `read` collects the given values in use.
static LogicalResult sliceOps(Location loc, BodyAttr identity, ArrayRef<Group> results, const DenseSet<Value> &given,
                              DenseSet<Value> &read, SmallVectorImpl<Operation *> &ops) {
  SmallVector<Value> open;
  for (const Group &group : results)
    llvm::append_range(open, group.values);
  DenseSet<Operation *> seen;
  while (!open.empty()) {
    Value value = open.pop_back_val();
    if (given.contains(value)) {
      read.insert(value);
      continue;
    }
    Operation *op = value.getDefiningOp();
    if (!op)
      return emitError(loc) << "`" << identity.label() << "` needs a value that it is not given: " << value;
    if (!seen.insert(op).second)
      continue;
    ops.push_back(op);
    llvm::append_range(open, op->getOperands());
  }
  llvm::sort(ops, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  return success();
}

//===-- Updates in place ----------------------------------------------------------------------------------------===//

namespace {
/// A body's own values by group; ties of results as numbers of input groups.
struct BodyShape {
  SmallVector<Group> inputs, results;
  SmallVector<int64_t> ties;

  /// The argument whose memory result `i` of group `g` takes over; null: memory of its own.
  Value home(unsigned g, unsigned i) const { return ties[g] < 0 ? Value() : inputs[ties[g]].values[i]; }
};
} // namespace

static Value copyBefore(Operation *op, Value value, Value into = {}) {
  OpBuilder builder(op);
  return nn::copyOf(builder, op->getLoc(), value, into);
}

// An op that adds in place destroys the old value: a value that another op still needs is copied first.
static void copyBeforeOverwriting(Block &block, const BodyShape &shape) {
  DenseSet<Value> overwritable, returned;
  for (int64_t tie : shape.ties)
    if (tie >= 0)
      overwritable.insert(shape.inputs[tie].values.begin(), shape.inputs[tie].values.end());
  for (const Group &group : shape.results)
    returned.insert(group.values.begin(), group.values.end());
  for (Operation &op : llvm::make_early_inc_range(block)) {
    auto inPlace = dyn_cast<nn::InPlace>(op);
    if (!inPlace)
      continue;
    for (nn::Tie tie : inPlace.getRequiredTies()) {
      OpOperand &operand = op.getOpOperand(tie.operand);
      Value value = operand.get();
      bool needed = returned.contains(value) || (isa<BlockArgument>(value) && !overwritable.contains(value));
      for (OpOperand &use : value.getUses())
        needed |= &use != &operand && use.getOwner() == &op;
      needed |= llvm::any_of(nn::readersOf(value), [&](Operation *reader) { return op.isBeforeInBlock(reader); });
      if (needed)
        operand.set(copyBefore(&op, value));
    }
  }
}

/// The value that first held this one's memory, back through updates in place.
static Value rootOf(Value value) {
  while (auto inPlace = value.getDefiningOp<nn::InPlace>()) {
    auto ties = inPlace.getRequiredTies();
    auto *tie = llvm::find_if(ties, [&](nn::Tie tie) { return inPlace->getResult(tie.result) == value; });
    if (tie == ties.end())
      break;
    value = inPlace->getOperand(tie->operand);
  }
  return value;
}

// Every result lies where it must, and no two in one place. What waits for W may be what F saved: plan-bodies hands it
// on.
static void copyResultsHome(Operation *end, BodyShape &shape) {
  DenseSet<Value> returned;
  for (auto [g, group] : llvm::enumerate(shape.results))
    for (auto [i, value] : llvm::enumerate(group.values)) {
      Value root = rootOf(value), home = shape.home(g, i);
      bool given = isa<BlockArgument>(root) && !(root == value && group.name == GroupKind::pending);
      if (home ? root != home : given || !returned.insert(value).second)
        value = copyBefore(end, value, home);
    }
}

//===-- Writing -------------------------------------------------------------------------------------------------===//

static GroupsAttr groupsOf(MLIRContext *context, ArrayRef<Group> groups) {
  return GroupsAttr::get(context, llvm::map_to_vector(groups, [&](const Group &group) {
                           return GroupAttr::get(context, group.name, static_cast<int64_t>(group.values.size()));
                         }));
}

static SmallVector<Type> typesOf(ArrayRef<Group> groups) {
  SmallVector<Type> types;
  for (const Group &group : groups)
    for (Value value : group.values)
      types.push_back(value.getType());
  return types;
}

static double flopsOf(Block &block) {
  double flops = 0;
  for (auto kernel : block.getOps<nn::Kernel>())
    flops += kernel.flops();
  return flops;
}

LogicalResult pp::writeBody(ModuleOp module, Location loc, BodyAttr identity, ArrayRef<Group> inputs,
                            ArrayRef<Group> results) {
  BodyShape shape;
  DenseSet<Value> given, read;
  for (const Group &group : inputs)
    given.insert(group.values.begin(), group.values.end());
  for (const Group &group : results)
    if (!group.values.empty())
      shape.results.push_back(group);
  SmallVector<Operation *> ops;
  if (failed(sliceOps(loc, identity, shape.results, given, read, ops)))
    return failure();
  for (const Group &group : inputs) {
    bool tied =
        llvm::any_of(shape.results, [&](const Group &result) { return result.tied && result.name == group.name; });
    if (tied || group.always || llvm::any_of(group.values, [&](Value value) { return read.contains(value); }))
      shape.inputs.push_back(group);
  }

  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  auto type = builder.getFunctionType(typesOf(shape.inputs), typesOf(shape.results));
  auto function = builder.create<func::FuncOp>(loc, identity.label(), type);
  function.setPrivate();
  Block *block = function.addEntryBlock();
  builder.setInsertionPointToEnd(block);
  IRMapping mapping;
  unsigned next = 0;
  for (Group &group : shape.inputs)
    for (Value &value : group.values) {
      mapping.map(value, block->getArgument(next));
      value = block->getArgument(next++);
    }
  for (Operation *op : ops)
    builder.clone(*op, mapping);
  for (Group &group : shape.results) {
    for (Value &value : group.values)
      value = mapping.lookup(value);
    auto *home =
        llvm::find_if(shape.inputs, [&](const Group &input) { return group.tied && input.name == group.name; });
    shape.ties.push_back(home == shape.inputs.end() ? -1 : home - shape.inputs.begin());
  }
  Operation *end = builder.create<func::ReturnOp>(loc);
  copyBeforeOverwriting(*block, shape);
  copyResultsHome(end, shape);
  for (Group &group : shape.results)
    end->insertOperands(end->getNumOperands(), group.values);

  function->setAttr(kBodyAttr, identity);
  function->setAttr(pipeline::kInputsAttr, groupsOf(module.getContext(), shape.inputs));
  function->setAttr(pipeline::kResultsAttr, groupsOf(module.getContext(), shape.results));
  function->setAttr(pipeline::kTiesAttr, builder.getDenseI64ArrayAttr(shape.ties));
  function->setAttr(pipeline::kFlopsAttr, builder.getF64FloatAttr(flopsOf(*block)));
  return success();
}
