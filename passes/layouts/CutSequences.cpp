// Cuts the sequences of all parts over the devices of the context axis: two runs of each, and the keys of all devices.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: func @attn(%q, %k, %v: tensor<2x32x64xf32>)     After, with context 2: (%q, %k, %v: tensor<2x16x64xf32>)
//           %p = rope %q                                     %p = rope %q {zigzag = 2}
//           %o, %lse = attention %p, (%k, %v)                %a = gather_runs %k over <context>, %b = .. %v ..
//                                                            %o, %lse = attention %p, (%a, %b) {zigzag = 2}
//
// All else works row by row, and so on fewer rows. Of 2 C runs of a sequence device k has the k-th and the k-th from
// its end, so that each sees as many keys (Grattafiori et al. 2024, 3.3.2).
#include "analysis/Actions.h"
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_CUTSEQUENCES
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class SequenceCutter {
public:
  SequenceCutter(ModuleOp module, ProgramOp program)
      : module(module), program(program), devices(program.sizeOf(Axis::context)), builder(program.getContext()),
        axes(nn::AxesAttr::get(program.getContext(), nn::Axis::context)) {}
  LogicalResult run();

private:
  LogicalResult checkProgram();
  LogicalResult checkPart(func::FuncOp part);
  LogicalResult cut(func::FuncOp part);
  Value gathered(Value keys);

  ModuleOp module;
  ProgramOp program;
  int64_t devices;
  OpBuilder builder;
  nn::AxesAttr axes;
};

} // namespace

LogicalResult SequenceCutter::checkProgram() {
  if (program.getSlices() > 0)
    return emitError(program.getLoc())
           << "`context = " << devices
           << "`: the schedule runs slices, whose keys stay where they were made; that takes `attention = "
              "\"commute\"`, which is not built yet";
  auto sequence = program.getTrain().getAs<IntegerAttr>("sequence");
  if (sequence && sequence.getInt() % (2 * devices) != 0)
    return emitError(program.getLoc()) << "a sequence of " << sequence.getInt()
                                       << " tokens is not cut over `context = " << devices
                                       << "`: it needs a multiple of " << 2 * devices;
  return success();
}

LogicalResult SequenceCutter::checkPart(func::FuncOp part) {
  for (Operation &op : part.front()) {
    auto attention = dyn_cast<nn::AttentionOp>(op);
    if (attention && !attention.getCausal())
      return op.emitError() << "`context = " << devices
                            << "`: an `attention` that is not causal cannot be cut over context yet";
    if (isa<nn::RouteOp>(op))
      return op.emitError() << "`experts` with `context = " << devices << "` is not supported yet";
  }
  return success();
}

/// The sequences of all devices, in the order of their positions. A backward gathers them again unless they are kept.
Value SequenceCutter::gathered(Value keys) {
  bool kept = program.getMeshAttr().getAgain() == Again::nothing;
  return builder.create<nn::GatherRunsOp>(keys.getLoc(), keys, axes, devices, kept);
}

LogicalResult SequenceCutter::cut(func::FuncOp part) {
  for (BlockArgument argument : part.getArguments())
    if (!part.getArgAttr(argument.getArgNumber(), nn::kWeightAttr)) {
      auto type = cast<RankedTensorType>(argument.getType());
      SmallVector<int64_t> shape(type.getShape());
      shape[1] /= devices; // [batch, length, ..]: activations, tokens and statistics
      argument.setType(type.clone(shape));
    }
  for (Operation &op : llvm::make_early_inc_range(part.front().without_terminator())) {
    builder.setInsertionPoint(&op);
    SmallVector<Value> operands(op.getOperands());
    NamedAttrList attributes(op.getAttrs());
    if (isa<nn::RopeOp, nn::PositionsOp, nn::DropoutOp, nn::AttentionOp>(op))
      attributes.set("zigzag", builder.getI64IntegerAttr(devices));
    if (auto attention = dyn_cast<nn::AttentionOp>(op))
      for (Value keys : attention.getKv())
        std::replace(operands.begin(), operands.end(), keys, gathered(keys));
    FailureOr<Operation *> made =
        nn::createOp(builder, op.getLoc(), op.getName().stripDialect(), operands, attributes.getAttrs());
    if (failed(made))
      return failure();
    op.replaceAllUsesWith(*made);
    op.erase();
  }
  part.setType(
      builder.getFunctionType(part.front().getArgumentTypes(), part.front().getTerminator()->getOperandTypes()));
  return success();
}

LogicalResult SequenceCutter::run() {
  if (devices == 1)
    return success();
  if (failed(checkProgram()))
    return failure();
  llvm::SetVector<func::FuncOp> parts;
  for (auto piece : program.getOps<PieceOp>())
    for (Attribute entry : piece.getParts())
      if (auto part = module.lookupSymbol<func::FuncOp>(cast<StringAttr>(cast<ArrayAttr>(entry)[0]));
          part && !part.empty()) // derive-tasks says so
        parts.insert(part);
  for (func::FuncOp part : parts)
    if (failed(checkPart(part)) || failed(cut(part)))
      return failure();
  return success();
}

namespace {
struct CutSequences : public pp::impl::CutSequencesBase<CutSequences> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(SequenceCutter(getOperation(), program).run()))
        return signalPassFailure();
  }
};
} // namespace
