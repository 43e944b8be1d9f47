// Makes one op of a product and its neighbour where cuBLASLt does both: gelu, its derivative, a residual, bias sums.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: %u = linear %x, %w bias %b   %y = gelu %u            After: %u, %y = linear_gelu %x, %w bias %b
//         %p = linear %x, %w bias %b   %y = add %r, %p             %y = linear_add %x, %w bias %b to %r
//         %g = linear_dx %dy, %w       %du = gelu_bwd %g, %u          %du = linear_dx_gelu %dy, %w, %u
//         %dw = linear_dw %x, %dy      %db = bias_dw %dy              %dw, %db = linear_dw_bias %x, %dy
//
// Here and not where calls are emitted, because it changes what lives when: a gelu alone may be written over the x that
// its linear has read, the product that makes both may not.
//
// What it costs is a half of R2 (docs/derivatives.md). The epilogue applies gelu to the f32 sums, before u is rounded;
// gelu(u) made of the stored u differs from that y by one rounding of y now and then (of bf16 a third of the time; in
// f32 the runtime leaves gelu alone, since the library's tanh is good to 1e-4 only). So:
//  - y of F goes into the next product and nowhere else: no stash holds it, since gelu is cheap (R1), and no other body
//    compares with it. Were it saved, the value in the gradients would depend on what the planner chose to save.
//  - The gelu that B makes again is an op of its own here, of the stored u: dw of the second linear and the derivative
//    both start from u, the one value that F hands on. Every schedule, and every order in which a schedule runs, makes
//    them with the same calls from the same bits. They are F's gradients to the rounding of y.
//  - R makes u by a plain linear, whose algorithm need not be the fused one's: u is then that of F to the rounding of a
//    sum. (Without this pass R's u has the bits of F's.)
// linear_dx_gelu and linear_dw_bias have no such half: what they leave out is rounded once less, and read by nobody
// else. linear_add leaves out a rounding too, that of the product, but its y is saved, or made again by R. R2 holds if
// both make it by the same op: an add becomes part of its product in all bodies that have it, or in none (`Residuals`).
// Then y of R has the bits of F's, since one kernel makes both.
//
// Sums of gradients need no such op: `linear_dx` adds to what is there already (`into`; Derivatives.cpp).
//
// All of this is one switch, as R2 asks: `pp-compile --epilogues`, and PP_EPILOGUES=off for a program that has
// them.
#include "dialect/pipeline/BodyGroups.h"
#include "passes/Passes.h"
#include "passes/derive/DeriveTasks.h"

namespace pp {
#define GEN_PASS_DEF_FUSEEPILOGUES
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;

/// The op before this one that runs a kernel. Only neighbours are made one: what lies between two others would have to
/// live on both sides of their product.
static Operation *kernelBefore(Operation *op) {
  do
    op = op->getPrevNode();
  while (op && isa<nn::View>(op));
  return op;
}

static void fuse(nn::GeluOp gelu) {
  auto linear = gelu.getX().getDefiningOp<nn::LinearOp>();
  if (!linear || linear != kernelBefore(gelu) || gelu.getExact())
    return;
  IRRewriter builder(linear); // whoever reads u may stand before the gelu
  auto both = builder.create<nn::LinearGeluOp>(linear.getLoc(), linear.getX(), linear.getW(), linear.getBias(),
                                               linear.getTransposed());
  builder.replaceOp(gelu, both.getY());
  builder.replaceOp(linear, both.getU());
}

namespace {

/// The adds of products that become part of them. An add is in several bodies, F's and R's: where it stands in the
/// model's text (its location) says which add it is. If one body cannot make one op of it, none does.
class Residuals {
public:
  explicit Residuals(ModuleOp module) {
    for (auto body : module.getOps<func::FuncOp>())
      if (BodyGroups::isBody(body))
        for (auto add : body.getOps<nn::AddOp>())
          if (!productOf(add) && llvm::any_of(add.getOperands(), [](Value value) { return isProduct(value); }))
            refused.insert(add.getLoc());
  }
  void fuse(nn::AddOp add) const {
    nn::LinearOp linear = productOf(add);
    if (!linear || refused.contains(add.getLoc()))
      return;
    IRRewriter builder(add);
    Value r = add.getX() == linear.getY() ? add.getY() : add.getX();
    builder.replaceOpWithNewOp<nn::LinearAddOp>(add, linear.getX(), linear.getW(), linear.getBias(), r,
                                                linear.getTransposed());
    builder.eraseOp(linear);
  }

private:
  static bool isProduct(Value value) { return value.getDefiningOp<nn::LinearOp>() != nullptr; }
  /// The product beside the add that nothing else reads; null if there is none.
  static nn::LinearOp productOf(nn::AddOp add) {
    auto linear = dyn_cast_or_null<nn::LinearOp>(kernelBefore(add));
    return linear && linear->hasOneUse() && *linear->user_begin() == add ? linear : nn::LinearOp();
  }

  llvm::DenseSet<Location> refused;
};

} // namespace

static void fuse(nn::GeluBwdOp gelu) {
  auto linear = gelu.getDy().getDefiningOp<nn::LinearDxOp>();
  if (!linear || linear != kernelBefore(gelu) || gelu.getExact() || linear.getAcc() || !linear->hasOneUse())
    return;
  IRRewriter builder(gelu);
  builder.replaceOpWithNewOp<nn::LinearDxGeluOp>(gelu, linear.getDy(), linear.getW(), gelu.getX(),
                                                 linear.getTransposed());
  builder.eraseOp(linear);
}

static void fuse(nn::BiasDwOp bias) {
  auto linear = dyn_cast_or_null<nn::LinearDwOp>(kernelBefore(bias));
  if (!linear || linear.getDy() != bias.getDy() || !linear.getAcc() != !bias.getAcc())
    return;
  IRRewriter builder(bias);
  SmallVector<Value> sums;
  if (bias.getAcc())
    sums = {linear.getAcc(), bias.getAcc()};
  auto both =
      builder.create<nn::LinearDwBiasOp>(bias.getLoc(), linear.getX(), linear.getDy(), sums, linear.getTransposed());
  builder.replaceOp(bias, both.getDb());
  builder.replaceOp(linear, both.getDw());
}

//===-- The other way round -------------------------------------------------------------------------------------===//

void pp::splitEpilogues(func::FuncOp body) {
  for (auto both : llvm::make_early_inc_range(body.getOps<nn::Composed>())) {
    IRRewriter builder(both);
    builder.replaceOp(both, both.decompose(builder));
  }
}

namespace {

struct FuseEpilogues : public pp::impl::FuseEpiloguesBase<FuseEpilogues> {
  void runOnOperation() override {
    Residuals residuals(getOperation());
    for (auto body : getOperation().getOps<func::FuncOp>()) {
      if (!BodyGroups::isBody(body) || body.empty())
        continue;
      for (Operation &op : llvm::make_early_inc_range(body.front()))
        llvm::TypeSwitch<Operation *>(&op)
            .Case<nn::GeluOp, nn::GeluBwdOp, nn::BiasDwOp>([](auto op) { fuse(op); })
            .Case([&](nn::AddOp add) { residuals.fuse(add); });
    }
  }
};

} // namespace
