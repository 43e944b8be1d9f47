// The `nn` dialect: its registration, how its ops are made by name, and what their interfaces say by default.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/OpImplementation.h"

using namespace mlir;
using namespace pp::nn;

#include "dialect/NnDialect.cpp.inc"
#include "dialect/NnInterfaces.cpp.inc"
#define GET_OP_CLASSES
#include "dialect/NnOps.cpp.inc"

void NnDialect::initialize() {
  registerAttributes();
  addOperations<
#define GET_OP_LIST
#include "dialect/NnOps.cpp.inc"
      >();
}

/// `body` is the op whose regions it gets; null: it has none.
static FailureOr<Operation *> create(OpBuilder &builder, Location loc, StringRef name, ValueRange operands,
                                     ArrayRef<NamedAttribute> attributes, Operation *body) {
  MLIRContext *context = builder.getContext();
  auto registered = RegisteredOperationName::lookup(("nn." + name).str(), context);
  if (!registered)
    return emitError(loc) << "`" << name << "` is no op of `nn`", failure();
  auto *infer = registered->getInterface<InferTypeOpInterface>();
  if (!infer)
    return emitError(loc) << "`" << name << "` is not an operation of models", failure();
  SmallVector<Type> types;
  auto dictionary = builder.getDictionaryAttr(attributes);
  if (failed(infer->inferReturnTypes(context, loc, operands, dictionary, nullptr, {}, types)))
    return failure();
  OperationState state(loc, *registered);
  state.addOperands(operands);
  state.addTypes(types);
  state.addAttributes(attributes);
  IRMapping inside;
  for (unsigned i = 0; body && i < body->getNumRegions(); ++i)
    body->getRegion(i).cloneInto(state.addRegion(), inside);
  return builder.create(state);
}

FailureOr<Operation *> pp::nn::createOp(OpBuilder &builder, Location loc, StringRef name, ValueRange operands,
                                        ArrayRef<NamedAttribute> attributes) {
  return create(builder, loc, name, operands, attributes, /*body=*/nullptr);
}

FailureOr<Operation *> pp::nn::createAgain(OpBuilder &builder, Operation *op, ValueRange operands,
                                           ArrayRef<NamedAttribute> attributes) {
  return create(builder, op->getLoc(), op->getName().stripDialect(), operands, attributes, op);
}

std::optional<DropoutSite> pp::nn::dropoutSiteOf(Operation *op) {
  if (auto dropout = dyn_cast<DropoutOp>(op))
    return DropoutSite{static_cast<int64_t>(dropout.getSite()), static_cast<int64_t>(dropout.getSites())};
  auto its = op->getAttrOfType<DropoutAttr>("dropout");
  return its ? std::optional(DropoutSite{its.getSite(), its.getSites()}) : std::nullopt;
}

void pp::nn::setDropoutSite(Operation *op, DropoutSite site) {
  if (auto dropout = dyn_cast<DropoutOp>(op)) {
    dropout.setSite(site.site);
    return dropout.setSites(site.sites);
  }
  auto old = op->getAttrOfType<DropoutAttr>("dropout");
  op->setAttr("dropout", DropoutAttr::get(op->getContext(), old.getRate(), site.site, site.sites, old.getLength(),
                                          old.getHeadsBy()));
}

bool pp::nn::areEqualRuns(Value whole, Value run, uint64_t start) {
  return widthOf(whole) % widthOf(run) == 0 && static_cast<int64_t>(start) % widthOf(run) == 0;
}

SmallVector<Operation *> pp::nn::readersOf(Value value) {
  SmallVector<Operation *> readers(value.getUsers());
  for (size_t i = 0; i < readers.size(); ++i)
    if (isa<View>(readers[i]))
      llvm::append_range(readers, readers[i]->getUsers());
  return readers;
}

Type pp::nn::sumType(Type element) { return element.isF64() ? element : Float32Type::get(element.getContext()); }

Type pp::nn::firstElementType(Operation *op) {
  for (Value value : op->getOperands())
    if (Type element = tensorOf(value).getElementType(); isa<FloatType>(element))
      return element;
  return tensorOf(op->getResult(0)).getElementType();
}

SmallVector<Value> pp::nn::operandsThenResults(Operation *op) {
  SmallVector<Value> pointers;
  SmallVector<Tie> ties;
  if (auto inPlace = dyn_cast<InPlace>(op))
    ties = inPlace.getRequiredTies();
  for (OpOperand &operand : op->getOpOperands())
    if (llvm::none_of(ties, [&](Tie tie) { return tie.operand == operand.getOperandNumber(); }))
      pointers.push_back(operand.get());
  llvm::append_range(pointers, op->getResults());
  return pointers;
}

bool pp::nn::takes(Operation *op, StringRef attribute) {
  return llvm::any_of(op->getName().getAttributeNames(), [&](StringAttr name) { return name == attribute; });
}

Value pp::nn::copyOf(OpBuilder &builder, Location loc, Value x, Value into) {
  return builder.create<CopyOp>(loc, x, into);
}

Value pp::nn::zeroOf(OpBuilder &builder, Location loc, Type type) { return builder.create<ZeroOp>(loc, type); }

Value pp::nn::addedTo(OpBuilder &builder, Location loc, Value sum, Value x, DenseI64ArrayAttr flat) {
  return builder.create<AccumulateOp>(loc, x, sum, flat);
}

Value pp::nn::productOf(OpBuilder &builder, Location loc, Value x, Value w, Value bias, bool transposed) {
  return builder.create<LinearOp>(loc, x, w, bias, transposed);
}
