// Rounds what linears of layers multiply to 8 bits, in blocks that the recipe of `products` says.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: y = linear x, w        After: a = quantize x {rows = 1, columns = C}   C is 0, the whole row, or 128
//                                       b = quantize w {rows = R, columns = S}   R x S: a column of w, or 128 x 128
//                                       y = linear a, b
//
// A block of x, and one of w, lies along the sum of the product, so a product of blocks has one scale. What a backward
// does follows from the ops (LinearOp::differentiate). Linears that read the same value read the same rounded one.
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Clauses.h"
#include "dialect/pipeline/Pipeline.h"
#include "dialect/pipeline/Products.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/Passes.h"
#include "llvm/ADT/DenseMap.h"

namespace pp {
#define GEN_PASS_DEF_QUANTIZEPRODUCTS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

constexpr int64_t kTile = 128; // columns of a block of x; rows and columns of one of w

class Quantizer {
public:
  Quantizer(Location loc, bool tiles) : loc(loc), tiles(tiles) {}

  /// Returns how many linears of the part multiply 8 bits.
  int64_t quantize(func::FuncOp part) {
    int64_t count = 0;
    rounded.clear();
    for (auto linear : llvm::to_vector(part.getOps<nn::LinearOp>())) {
      Value w = linear.declaredWeight();
      Operation *transpose = w == linear.getW() ? nullptr : linear.getW().getDefiningOp();
      bool transposed = linear.getTransposed() != (transpose != nullptr);
      auto argument = dyn_cast<BlockArgument>(w);
      if (!argument || !part.getArgAttr(argument.getArgNumber(), nn::kWeightAttr) ||
          part.getArgAttr(argument.getArgNumber(), nn::kAdapterAttr))
        continue;
      OpBuilder builder(linear);
      int64_t whole = tiles ? kTile : 0, single = tiles ? kTile : 1;
      Value a = roundedOf(builder, linear.getX(), 1, whole);
      Value b = transposed ? roundedOf(builder, w, single, whole) : roundedOf(builder, w, whole, single);
      linear.getXMutable().set(a);
      linear.getWMutable().set(b);
      linear.setTransposed(transposed);
      if (transpose && transpose->use_empty())
        transpose->erase();
      ++count;
    }
    return count;
  }

private:
  Location loc;
  bool tiles;
  llvm::DenseMap<std::tuple<Value, int64_t, int64_t>, Value> rounded;

  Value roundedOf(OpBuilder &builder, Value value, int64_t rows, int64_t columns) {
    Value &made = rounded[{value, rows, columns}];
    if (!made)
      made = builder.create<nn::QuantizeOp>(loc, value, rows, columns);
    return made;
  }
};

struct QuantizeProducts : public pp::impl::QuantizeProductsBase<QuantizeProducts> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>()) {
      auto products = program.getTrain().getAs<StringAttr>("products");
      if (!products)
        continue;
      Location loc = clauseLoc(program, "products");
      auto fail = [&](const Twine &why) {
        emitError(loc) << "`products " << products.getValue() << "`" << why;
        signalPassFailure();
      };
      if (products != kRowProducts && products != kTileProducts)
        return fail(" is not known; there are `" + kRowProducts + "` and `" + kTileProducts + "`");
      if (int64_t devices = program.sizeOf(Axis::tensor); devices > 1)
        return fail(
            " beside `mesh tensor = " + Twine(devices) +
            "`: a device has a part of a row, so it cannot tell the scale of a block that another has a part of");
      if (program.getTrain().contains("mlp"))
        return fail(" beside `mlp chunks`, which looks for linears with nothing but an activation between them");
      Quantizer quantizer(loc, products == kTileProducts);
      int64_t count = 0;
      for (auto part : llvm::to_vector(getOperation().getOps<func::FuncOp>()))
        if (!part.empty() && part->hasAttr(nn::kPerLayerAttr))
          count += quantizer.quantize(part);
      if (count == 0)
        return fail(": no layer of the model has a linear");
    }
  }
};

} // namespace
