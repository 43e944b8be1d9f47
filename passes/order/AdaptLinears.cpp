// Gives each linear that `lora` names two small weights of its own, beside the model's weight, which stays as it is.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: y = linear x, W, b        After: y0 = linear x, W, b
//                                          u = linear x, A          A [in, rank], uniform in +-1/sqrt(in); with a rate
//                                                                   of dropout, of dropout x
//                                          v = scale u, factor      alpha / rank, or alpha / sqrt(rank)
//                                          w = linear v, B          B [rank, out], zero: at first y is y0
//                                          y = y0 + w
//
// The factor stands between A and B because u is the smallest tensor. freeze-weights freezes all weights of the model.
// Names are those of the peft library's files (Hu et al. 2021, "LoRA").
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Clauses.h"
#include "dialect/pipeline/Pipeline.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/Passes.h"
#include <cmath>

namespace pp {
#define GEN_PASS_DEF_ADAPTLINEARS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class Adapter {
public:
  explicit Adapter(DictionaryAttr lora)
      : rank(lora.getAs<IntegerAttr>("rank").getInt()), factor(lora.getAs<FloatAttr>("factor").getValueAsDouble()),
        targets(lora.getAs<ArrayAttr>("targets")), rate(lora.getAs<FloatAttr>("dropout")) {}

  SmallVector<Operation *> dropouts; ///< that were made, in the order of the model's text

  /// Adds weights to linears of the part; returns their number.
  int64_t adapt(func::FuncOp part) {
    int64_t count = 0;
    for (auto linear : llvm::to_vector(part.getOps<nn::LinearOp>()))
      if (nn::WeightAttr weight = weightOf(part, linear); weight && isTarget(part, moduleOf(weight))) {
        adapt(part, linear, weight);
        ++count;
      }
    return count;
  }

private:
  int64_t rank;
  double factor;
  ArrayAttr targets;
  FloatAttr rate; ///< of dropout; null: none

  static nn::WeightAttr weightOf(func::FuncOp part, nn::LinearOp linear) {
    auto argument = dyn_cast<BlockArgument>(linear.declaredWeight());
    return argument ? part.getArgAttrOfType<nn::WeightAttr>(argument.getArgNumber(), nn::kWeightAttr)
                    : nn::WeightAttr();
  }

  /// `model.layers.{l}.self_attn.q_proj` of its weight; empty if the file has the weight under another kind of name.
  static StringRef moduleOf(nn::WeightAttr weight) {
    StringRef name = weight.getAs();
    return name.consume_back(".weight") ? name : StringRef();
  }

  /// Compares the last part of the module's name; `all-linear` takes all linears in layers.
  bool isTarget(func::FuncOp part, StringRef module) const {
    StringRef last = module.substr(module.rfind('.') + 1);
    return !last.empty() && llvm::any_of(targets.getAsRange<StringAttr>(), [&](StringAttr target) {
      return target == "all-linear" ? part->hasAttr(nn::kPerLayerAttr) : target == last;
    });
  }

  void adapt(func::FuncOp part, nn::LinearOp linear, nn::WeightAttr weight) {
    OpBuilder builder(linear->getContext());
    builder.setInsertionPointAfter(linear);
    Location loc = linear.getLoc();
    int64_t in = cast<RankedTensorType>(linear.getX().getType()).getShape().back(),
            out = cast<RankedTensorType>(linear.getY().getType()).getShape().back();
    Value a = addWeight(part, linear, weight, "lora_A", {in, rank}, nn::Init::uniform, 1 / std::sqrt(in));
    Value b = addWeight(part, linear, weight, "lora_B", {rank, out}, nn::Init::zero, 0);
    Value x = linear.getX();
    if (rate) { // each linear has a mask of its own
      x = builder.create<nn::DropoutOp>(loc, x, rowsOf(part, x), rate.getValue(), /*offset=*/0, /*site=*/0, /*sites=*/1,
                                        /*zigzag=*/0);
      dropouts.push_back(x.getDefiningOp());
    }
    Value u = nn::productOf(builder, loc, x, a);
    Value v = builder.create<nn::ScaleOp>(loc, u, builder.getF64FloatAttr(factor));
    Value y = builder.create<nn::AddOp>(loc, linear.getY(), nn::productOf(builder, loc, v, b));
    linear.getY().replaceAllUsesExcept(y, y.getDefiningOp());
  }

  /// The data by which masks of dropout are made: what the part has, or from now on reads.
  static Value rowsOf(func::FuncOp part, Value x) {
    Builder builder(part.getContext());
    auto rows = builder.getNamedAttr(nn::kDataAttr, builder.getStringAttr("rows"));
    unsigned weights = part.getNumArguments(); // data stand before them
    for (unsigned i = 0; i < part.getNumArguments(); ++i) {
      if (part.getArgAttr(i, nn::kDataAttr) == rows.getValue())
        return part.getArgument(i);
      if (part.getArgAttr(i, nn::kWeightAttr))
        weights = std::min(weights, i);
    }
    auto shape = cast<RankedTensorType>(x.getType()).getShape().take_front(2);
    part.insertArgument(weights, RankedTensorType::get(shape, builder.getI32Type()), builder.getDictionaryAttr(rows),
                        part.getLoc());
    return part.getArgument(weights);
  }

  /// Adds a weight that files hold as [out, in].
  static Value addWeight(func::FuncOp part, nn::LinearOp linear, nn::WeightAttr weight, StringRef name,
                         ArrayRef<int64_t> shape, nn::Init init, double deviation) {
    Builder builder(part.getContext());
    StringRef module = moduleOf(weight);
    // The class that peft wraps has the blocks of GPT-2 under this name, and files may leave it away.
    StringRef prefix = module.starts_with("h.") ? "base_model.model.transformer." : "base_model.model.";
    auto declared =
        nn::WeightAttr::get(part.getContext(), builder.getStringAttr(weight.getName().strref() + "." + name),
                            builder.getStringAttr(prefix + module + "." + name + ".weight"), init,
                            builder.getF64FloatAttr(deviation), nn::Stored::transposed, weight.getShared());
    auto type = RankedTensorType::get(shape, cast<RankedTensorType>(linear.getY().getType()).getElementType());
    unsigned number = part.getNumArguments();
    part.insertArgument(number, type,
                        builder.getDictionaryAttr({builder.getNamedAttr(nn::kAdapterAttr, builder.getUnitAttr()),
                                                   builder.getNamedAttr(nn::kWeightAttr, declared)}),
                        linear.getLoc());
    return part.getArgument(number);
  }
};

/// The masks of adapters are numbered behind those of the model.
void numberDropouts(ModuleOp module, ArrayRef<Operation *> made) {
  int64_t own = 0;
  SmallVector<Operation *> all(made);
  module.walk([&](Operation *op) {
    if (auto said = nn::dropoutSiteOf(op); said && !llvm::is_contained(made, op)) {
      own = said->sites;
      all.push_back(op);
    }
  });
  for (auto [number, op] : llvm::enumerate(all))
    nn::setDropoutSite(op, {number < made.size() ? own + static_cast<int64_t>(number) : nn::dropoutSiteOf(op)->site,
                            own + static_cast<int64_t>(made.size())});
}

struct AdaptLinears : public pp::impl::AdaptLinearsBase<AdaptLinears> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>()) {
      auto lora = program.getTrain().getAs<DictionaryAttr>("lora");
      if (!lora)
        continue;
      int64_t count = 0;
      Adapter adapter(lora);
      for (auto part : llvm::to_vector(getOperation().getOps<func::FuncOp>()))
        if (!part.empty())
          count += adapter.adapt(part);
      numberDropouts(getOperation(), adapter.dropouts);
      if (count == 0) {
        emitError(clauseLoc(program, "lora.targets")) << "`lora`: no linear of the model has one of its targets";
        return signalPassFailure();
      }
    }
  }
};

} // namespace
