// Counts what the kernels of the `nn` ops read and write.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Bytes.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace pp::nn;

static double sizeOf(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  return double(type.getNumElements()) * type.getElementTypeBitWidth() / 8;
}

static double sizeOfAll(Operation *op) {
  double bytes = 0;
  for (Value value : op->getOperands())
    bytes += sizeOf(value);
  for (Value value : op->getResults())
    bytes += sizeOf(value);
  return bytes;
}

/// The rows of the tokens are added to; without `acc` the table is cleared first.
template <typename Op> static double tableGradient(Op op) {
  auto type = cast<RankedTensorType>(op.getDtable().getType());
  double rows =
      double(cast<RankedTensorType>(op.getDx().getType()).getNumElements()) * type.getElementTypeBitWidth() / 8;
  return sizeOf(op.getDx()) + 2 * rows + (op.getAcc() ? 0 : sizeOf(op.getDtable()));
}

double pp::nn::bytesOf(Kernel kernel) {
  Operation *op = kernel;
  return llvm::TypeSwitch<Operation *, double>(op)
      .Case([](EmbeddingOp op) { return sizeOf(op.getTokens()) + 2 * sizeOf(op.getX()); })
      .Case([](PositionsOp op) { return 2 * sizeOf(op.getX()); })
      .Case([](EmbeddingDwOp op) { return sizeOf(op.getTokens()) + tableGradient(op); })
      .Case([](PositionsDwOp op) { return tableGradient(op); })
      // Some columns of a wider tensor; what `acc` holds beside them, or held before a copy, is left.
      .Case([](SliceElementsOp op) { return 2 * sizeOf(op.getY()); })
      .Case([](SliceColumnsOp op) { return 2 * sizeOf(op.getY()); })
      .Case([](TakeColumnsOp op) { return 2 * sizeOf(op.getY()); })
      .Case([](PlaceColumnsOp op) { return 2 * sizeOf(op.getX()); })
      .Case([](CopyOp op) { return 2 * sizeOf(op.getX()); })
      // A packed tensor is three operands, and read once.
      .Case<AttentionOp, AttentionBwdOp>(
          [](auto op) { return sizeOfAll(op) - (op.getPacked() ? 2 : 0) * sizeOf(op.getQ()); })
      // A rope in place leaves out the heads that pass; each that the compiler derives with such heads is in place.
      .Case([](RopeOp op) {
        const auto heads = static_cast<double>(op.getHeads());
        return sizeOfAll(op) * (heads - static_cast<double>(op.getPassing())) / heads;
      })
      // A tensor that an op adds to in place is an operand and a result: it is read and written.
      .Default(sizeOfAll);
}
