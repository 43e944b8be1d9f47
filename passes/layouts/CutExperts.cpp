// Cuts experts over devices of context and data: rows go to the devices that have their experts, and come back.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: %w, %sel, .., %places, %counts = route %logits     After, with `expert = 2`: %w, .. = route {sections = 2}
//         %rows = dispatch %x, %places                       %rows = dispatch %x, %places {sections = 2}
//                                                            %here = exchange_sections %rows over <expert>
//         %g = expert_linear %rows, %wg, %counts             %c = exchange_sections %counts over <expert>
//                                                            %g = expert_linear %here, %wg of the own experts, %c
//         %b = scale_rows %a, %w, %places                    %r = exchange_sections (place_weights %w) over <expert>
//                                                            %b = scale_rows %a, %r
//         %d = expert_linear %b, %wd, %counts                %d = expert_linear %b, %wd, %c
//         %y = combine %d, %places                           %back = exchange_sections %d over <expert>
//                                                            %y = combine %back, %places
//
// A section of the rows is for one device, and has room for all that could come to its experts: min(top, experts of a
// device) rows of each token, or with `capacity` for some more than the mean. So sizes are known before the run.
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Clauses.h"
#include "dialect/pipeline/Pipeline.h"
#include "passes/Passes.h"
#include "passes/layouts/ChooseLayouts.h"

namespace pp {
#define GEN_PASS_DEF_CUTEXPERTS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// Writes one part as a device of the axis runs it.
class ExpertCutter {
public:
  ExpertCutter(func::FuncOp part, MeshAttr mesh)
      : part(part), devices(mesh.getExpert()), builder(part.getContext()),
        axes(nn::AxesAttr::get(part.getContext(), nn::Axis::expert)), keeps(againOf(part, mesh) == Again::nothing) {}
  LogicalResult run();

private:
  LogicalResult cutWeight(BlockArgument weight);
  LogicalResult write(Operation &op);
  Value exchanged(Value value, bool kept = true) {
    return builder.create<nn::ExchangeSectionsOp>(value.getLoc(), value, axes, devices, kept);
  }

  func::FuncOp part;
  int64_t devices, choices = 0; ///< of a token
  nn::SectionsAttr sections;    ///< of the last router
  OpBuilder builder;
  nn::AxesAttr axes;
  bool keeps;
  llvm::DenseMap<Value, Value> known; ///< by what stood there before
  llvm::DenseMap<Value, Value> here;  ///< counts and weights of rows, as they have come
};

} // namespace

/// A device has the experts of its place along the axis.
LogicalResult ExpertCutter::cutWeight(BlockArgument weight) {
  auto declared = part.getArgAttrOfType<nn::WeightAttr>(weight.getArgNumber(), nn::kWeightAttr);
  if (!declared)
    return emitError(weight.getLoc()) << "experts are cut whose matrices are no weights of `" << part.getName() << "`";
  if (declared.getExperts() > 1) // another product has it, too
    return success();
  auto type = cast<RankedTensorType>(weight.getType());
  SmallVector<int64_t> shape(type.getShape());
  shape[0] /= devices;
  weight.setType(type.clone(shape));
  part.setArgAttr(weight.getArgNumber(), nn::kWeightAttr, declared.withExperts(devices));
  return success();
}

LogicalResult ExpertCutter::write(Operation &op) {
  Location loc = op.getLoc();
  SmallVector<Value> operands = llvm::map_to_vector(op.getOperands(), [&](Value value) {
    Value now = known.lookup(value);
    return now ? now : value;
  });
  NamedAttrList attributes(op.getAttrs());
  if (auto route = dyn_cast<nn::RouteOp>(op)) {
    auto logits = cast<RankedTensorType>(route.getLogits().getType());
    int64_t experts = logits.getShape().back() - static_cast<int64_t>(route.getIdentity()),
            top = static_cast<int64_t>(route.getTop());
    if (experts % devices != 0)
      return refuseClause(&op, "mesh.expert",
                          "`experts` in part `" + part.getName() + "` has " + Twine(experts) +
                              " experts; `expert = " + Twine(devices) + "` does not divide them");
    choices = top;
    double capacity = route.getCapacity().convertToDouble();
    sections = nn::SectionsAttr::get(part.getContext(), devices, std::min(top, experts / devices),
                                     capacity > 0 ? builder.getF64FloatAttr(capacity) : FloatAttr());
  } else if (isa<nn::ExpertLinearOp, nn::ExpertBiasOp>(op)) { // rows, a weight and counts
    if (failed(cutWeight(cast<BlockArgument>(op.getOperand(1)))))
      return failure();
    Value &counts = here[operands[2]];
    operands[2] = counts = counts ? counts : exchanged(operands[2]);
    if (nn::takes(&op, "filled"))
      attributes.set("filled", builder.getF64FloatAttr(sections.filled(choices)));
  } else if (auto scale = dyn_cast<nn::ScaleRowsOp>(op)) {
    Value placed = builder.create<nn::PlaceWeightsOp>(loc, operands[1], operands[2], sections);
    operands = {operands[0], exchanged(placed)};
  } else if (isa<nn::CombineOp>(op)) {
    operands[0] = exchanged(operands[0]);
  }
  if (nn::takes(&op, "sections"))
    attributes.set("sections", sections);
  FailureOr<Operation *> made = nn::createAgain(builder, &op, operands, attributes.getAttrs());
  if (failed(made))
    return failure();
  for (auto [old, now] : llvm::zip(op.getResults(), (*made)->getResults()))
    known[old] = isa<nn::DispatchOp>(op) ? exchanged(now, keeps) : Value(now);
  return success();
}

LogicalResult ExpertCutter::run() {
  SmallVector<Operation *> old =
      llvm::map_to_vector(part.front().without_terminator(), [](Operation &op) { return &op; });
  Operation *end = part.front().getTerminator();
  builder.setInsertionPoint(end);
  for (Operation *op : old)
    if (failed(write(*op)))
      return failure();
  end->setOperands(llvm::map_to_vector(end->getOperands(), [&](Value value) {
    Value now = known.lookup(value);
    return now ? now : value;
  }));
  for (Operation *op : llvm::reverse(old))
    op->erase();
  part.setType(
      builder.getFunctionType(part.front().getArgumentTypes(), part.front().getTerminator()->getOperandTypes()));
  return success();
}

namespace {
struct CutExperts : public pp::impl::CutExpertsBase<CutExperts> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>()) {
      MeshAttr mesh = program.getMeshAttr();
      if (!mesh || mesh.getExpert() == 1)
        continue;
      for (auto part : getOperation().getOps<func::FuncOp>())
        if (!part.empty() && !part.getOps<nn::Chooses>().empty() && !part->hasAttr(nn::kAllExpertsAttr) &&
            failed(ExpertCutter(part, mesh).run()))
          return signalPassFailure();
    }
  }
};
} // namespace
