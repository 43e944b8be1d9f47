// Cuts the parts of the model over the devices of the tensor axis: what each device has of every value, and exchanges.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: func @post(%o, %x, %wo: tensor<64x64xf32>, ..)     After: func @post(%o: tensor<2x32x32xf32>, %x,
//           %z = linear %o, %wo                                       %wo: tensor<32x64xf32> {nn.weight = .. cut ..}
//           %y = add %x, %z                                           %z = linear %o, %wo
//           %n = rmsnorm %y, %g                                       %s = all_reduce %z over <tensor>
//           %p = linear %n, %wg                                       %y = add %x, %s
//                                                                     %n = rmsnorm %y, %g
//                                                                     %c = spread %n over <tensor>
//                                                                     %p = linear %c, %wg
//
// All devices run this one text. From here on every pass sees local tensors, and ops that exchange them.
#include "analysis/Actions.h"
#include "dialect/pipeline/Clauses.h"
#include "dialect/pipeline/Pipeline.h"
#include "passes/Passes.h"
#include "passes/layouts/ChooseLayouts.h"
#include "llvm/ADT/MapVector.h"

namespace pp {
#define GEN_PASS_DEF_SPLITPARTS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;
using nn::DeviceLayout;
using LayoutKind = DeviceLayout::Kind;

/// A row-parallel linear adds its bias behind the sum, so each linear and its bias are two ops until that is known.
static void takeBiasesOut(func::FuncOp part) {
  for (auto linear : llvm::to_vector(part.getOps<nn::LinearOp>())) {
    if (!linear.getBias())
      continue;
    IRRewriter builder(linear);
    Value y = nn::productOf(builder, linear.getLoc(), linear.getX(), linear.getW(), {}, linear.getTransposed());
    builder.replaceOpWithNewOp<nn::AddBiasOp>(linear, y, linear.getBias());
  }
}

/// Dropout of an attention's weights counts the heads of all devices.
static void countHeadsOf(func::FuncOp part) {
  for (auto attention : part.getOps<nn::AttentionOp>())
    if (nn::DropoutAttr its = attention.getDropoutAttr()) {
      SmallVector<nn::Axis, 2> axes = {nn::Axis::tensor};
      if (its.getHeadsBy()) // within those of a device of the tensor axis each has its own
        llvm::append_range(axes, its.getHeadsBy().getAxes());
      attention.setDropoutAttr(nn::DropoutAttr::get(part.getContext(), its.getRate(), its.getSite(), its.getSites(),
                                                    its.getLength(), nn::AxesAttr::get(part.getContext(), axes)));
    }
}

static void putBiasesBack(func::FuncOp part) {
  for (auto bias : llvm::to_vector(part.getOps<nn::AddBiasOp>())) {
    auto linear = bias.getX().getDefiningOp<nn::LinearOp>();
    if (!linear || !linear->hasOneUse())
      continue;
    IRRewriter builder(bias);
    Value y =
        nn::productOf(builder, bias.getLoc(), linear.getX(), linear.getW(), bias.getBias(), linear.getTransposed());
    builder.replaceOp(bias, y);
    builder.eraseOp(linear);
  }
}

namespace {

/// Writes one part as the devices of the axis run it.
class PartSplitter {
public:
  PartSplitter(func::FuncOp part, const LayoutChoice &choice, MeshAttr mesh)
      : part(part), choice(choice), mesh(mesh), devices(mesh.sizeOf(Axis::tensor)), builder(part.getContext()),
        axes(nn::AxesAttr::get(part.getContext(), nn::Axis::tensor)) {}
  LogicalResult run();

private:
  LogicalResult cutArgument(BlockArgument argument, const DeviceLayout &layout);
  LogicalResult cutWeight(BlockArgument argument, const DeviceLayout &layout);
  bool hasTerms(BlockArgument argument) const;
  LogicalResult write(Operation *op);
  void writeLoss(nn::ReadsLogits op, ArrayRef<Value> operands);
  Value converted(Value value, const DeviceLayout &wanted, Location loc);
  void adaptAttributes(Operation *op, const LayoutChoice::Step &step, NamedAttrList &attributes) const;
  int64_t share(int64_t whole, const DeviceLayout &layout) const { return nn::localSize(whole, layout, devices); }

  func::FuncOp part;
  const LayoutChoice &choice;
  MeshAttr mesh;
  int64_t devices;
  OpBuilder builder;
  nn::AxesAttr axes;
  llvm::DenseMap<Value, int64_t> batches; ///< of arguments that are runs of rows: how many sequences there are
  /// For each value of the original part, the layouts in which it exists now; the first one is its own.
  llvm::DenseMap<Value, SmallVector<std::pair<DeviceLayout, Value>>> forms;
};

} // namespace

//===-- Arguments -----------------------------------------------------------------------------------------------===//

LogicalResult PartSplitter::cutWeight(BlockArgument argument, const DeviceLayout &layout) {
  auto type = cast<RankedTensorType>(argument.getType());
  auto declared = part.getArgAttrOfType<nn::WeightAttr>(argument.getArgNumber(), nn::kWeightAttr);
  int64_t whole = type.getDimSize(layout.dim), pieces = devices / layout.copies;
  StringRef name = declared.getName().getValue(), what = layout.dim == 0 ? "rows" : "columns";
  if (type.getRank() == 1)
    what = "elements";
  if (type.getRank() == 3) // a matrix for each expert
    what = layout.dim == 1 ? "rows" : "columns";
  if (isVocabulary(argument, layout)) {
    if (share(whole, layout) * (devices - 1) >= whole)
      return refuseClause(part, "mesh.tensor",
                          "`" + name + "` has " + Twine(whole) + " " + what + "; cut over `tensor = " + Twine(devices) +
                              "` a device would have none");
  } else if (whole % (pieces * layout.runs) != 0) {
    return refuseClause(part, "mesh.tensor",
                        "`" + name + "` in part `" + part.getName() + "` has " + Twine(whole) + " " + what +
                            "; `tensor = " + Twine(devices) + "` does not divide them");
  }
  SmallVector<int64_t> shape(type.getShape());
  auto cut = nn::CutAttr::get(part.getContext(), shape, layout.dim, layout.runs, layout.copies);
  shape[layout.dim] = share(whole, layout);
  argument.setType(type.clone(shape));
  part.setArgAttr(argument.getArgNumber(), nn::kWeightAttr, declared.withCut(cut));
  return success();
}

/// Whether each device has a share of all work with a whole weight: then its gradient may stay a term until the end of
/// the step. A weight of two parts may be used in both ways, and with `zero = 2` gradients are summed before.
bool PartSplitter::hasTerms(BlockArgument argument) const {
  auto declared = func::FuncOp(part).getArgAttrOfType<nn::WeightAttr>(argument.getArgNumber(), nn::kWeightAttr);
  if (!declared || declared.getShared() || declared.getSteer() || mesh.getZero() > 1 || argument.use_empty())
    return false;
  return llvm::all_of(argument.getUses(), [&](OpOperand &use) {
    const DeviceLayout &layout = choice.steps.find(use.getOwner())->second.operands[use.getOperandNumber()];
    return layout == DeviceLayout::of(LayoutKind::copy);
  });
}

LogicalResult PartSplitter::cutArgument(BlockArgument argument, const DeviceLayout &layout) {
  if (layout.kind == LayoutKind::copy) {
    auto declared = part.getArgAttrOfType<nn::WeightAttr>(argument.getArgNumber(), nn::kWeightAttr);
    part.setArgAttr(argument.getArgNumber(), nn::kWeightAttr, declared.withTerms());
    return success();
  }
  if (layout.kind == LayoutKind::rows) {
    auto type = cast<RankedTensorType>(argument.getType());
    batches[argument] = type.getDimSize(0);
    argument.setType(type.clone({1, type.getDimSize(0) * type.getDimSize(1) / devices, type.getDimSize(2)}));
    part.setArgAttr(argument.getArgNumber(), nn::kRowsAttr, builder.getUnitAttr());
    return success();
  }
  if (layout.kind != LayoutKind::shard)
    return success();
  if (part.getArgAttr(argument.getArgNumber(), nn::kWeightAttr))
    return cutWeight(argument, layout);
  auto type = cast<RankedTensorType>(argument.getType());
  SmallVector<int64_t> shape(type.getShape());
  shape[layout.dim] = share(shape[layout.dim], layout);
  argument.setType(type.clone(shape));
  return success();
}

//===-- Ops -----------------------------------------------------------------------------------------------------===//

/// The value in this layout, made of what there is of it.
Value PartSplitter::converted(Value value, const DeviceLayout &wanted, Location loc) {
  auto &known = forms[value];
  for (auto &[layout, form] : known)
    if (layout == wanted || wanted.kind == LayoutKind::none)
      return form;
  Value form = known.front().second;
  DeviceLayout full = DeviceLayout::of(LayoutKind::full);
  int64_t last = cast<RankedTensorType>(value.getType()).getRank() - 1;
  if (known.front().first.kind == LayoutKind::shard && wanted == full) {
    form = builder.create<nn::AllGatherOp>(loc, form, axes, last, devices);
    known.push_back({wanted, form});
    return form;
  }
  if (known.front().first.kind != LayoutKind::shard && wanted == DeviceLayout::shard(last)) {
    form = builder.create<nn::TakeColumnsOp>(loc, converted(value, full, loc), axes, devices);
    known.push_back({wanted, form});
    return form;
  }
  DeviceLayout rows = DeviceLayout::of(LayoutKind::rows);
  auto *run = llvm::find_if(known, [&](auto &entry) { return entry.first == rows; });
  bool keepsGradients = againOf(part, mesh) != Again::all;
  if (wanted == rows) {
    form = known.front().first.kind == LayoutKind::partial
               ? builder.create<nn::ScatterRowsOp>(loc, form, axes, devices, keepsGradients).getY()
               : builder.create<nn::TakeRowsOp>(loc, form, axes, devices, keepsGradients).getY();
    known.push_back({wanted, form});
    return form;
  }
  if (run != known.end() && known.front().first.kind != LayoutKind::full) {
    auto given = batches.find(value);
    int64_t batch = given == batches.end() ? cast<RankedTensorType>(value.getType()).getDimSize(0) : given->second;
    bool isWhole = wanted.kind == LayoutKind::full;
    form = builder.create<nn::GatherRowsOp>(loc, run->second, axes, batch, devices, isWhole,
                                            againOf(part, mesh) == Again::nothing);
    known.push_back({wanted, form});
    return form;
  }
  if (known.front().first.kind == LayoutKind::partial) {
    form = converted(value, DeviceLayout::of(LayoutKind::partial), loc);
    auto *sum = llvm::find_if(known, [&](auto &entry) { return entry.first == full; });
    if (sum == known.end()) {
      form = builder.create<nn::AllReduceOp>(loc, form, axes, IntegerAttr());
      known.push_back({full, form});
    } else {
      form = sum->second;
    }
    if (wanted == full)
      return form;
  }
  auto neighbours = wanted.copies > 1 ? builder.getI64IntegerAttr(wanted.copies) : IntegerAttr();
  // The linear behind a transposed table takes the table itself, so that is what is spread.
  auto transpose = form.getDefiningOp<nn::TransposeOp>();
  form = builder.create<nn::SpreadOp>(loc, transpose ? transpose.getW() : form, axes, neighbours);
  if (transpose)
    form = builder.create<nn::TransposeOp>(transpose.getLoc(), form);
  known.push_back({wanted, form});
  return form;
}

/// Counts of heads and the like are those of a device; a piece of a table has rows from the device's own first one on.
void PartSplitter::adaptAttributes(Operation *op, const LayoutChoice::Step &step, NamedAttrList &attributes) const {
  nn::cutSizes(op, step.operands, devices, attributes);
  auto embedding = dyn_cast<nn::EmbeddingOp>(op);
  if (!embedding || step.operands[1].kind != LayoutKind::shard)
    return;
  if (!embedding.getWhole()) {
    OpBuilder numbers(op);
    auto table = cast<BlockArgument>(embedding.getTable());
    auto declared = func::FuncOp(part).getArgAttrOfType<nn::WeightAttr>(table.getArgNumber(), nn::kWeightAttr);
    attributes.set("first", numbers.getI64IntegerAttr(0));
    attributes.set("whole", numbers.getI64IntegerAttr(declared.getCut().getWhole()[0]));
  }
  attributes.set("first_by", axes);
}

/// Statistics of a device's columns, those of all devices behind each other, and of them those of whole rows.
void PartSplitter::writeLoss(nn::ReadsLogits op, ArrayRef<Value> operands) {
  Location loc = op.getLoc();
  Value own = op.statisticsOf(builder, operands, /*first=*/0, axes);
  Value all = builder.create<nn::AllGatherOp>(loc, own, axes, /*dim=*/0, devices);
  SmallVector<Value> pieces;
  for (int64_t k = 0; k < devices; ++k)
    pieces.push_back(builder.create<nn::PieceOp>(loc, all, k, devices));
  Value stats = builder.create<nn::CrossEntropyMergeOp>(loc, pieces);
  for (auto [old, result] : llvm::zip(op->getResults(), op.fromStatistics(builder, stats, operands)))
    forms[old] = {{DeviceLayout::of(LayoutKind::full), result}};
}

LogicalResult PartSplitter::write(Operation *op) {
  const LayoutChoice::Step &step = choice.steps.find(op)->second;
  builder.setInsertionPoint(op);
  SmallVector<Value> operands;
  for (auto [operand, layout] : llvm::zip(op->getOperands(), step.operands))
    operands.push_back(converted(operand, layout, op->getLoc()));
  if (auto loss = dyn_cast<nn::ReadsLogits>(op); loss && step.operands.front().kind == LayoutKind::shard) {
    writeLoss(loss, operands);
    return success();
  }
  NamedAttrList attributes(op->getAttrs());
  adaptAttributes(op, step, attributes);
  FailureOr<Operation *> made = nn::createAgain(builder, op, operands, attributes.getAttrs());
  if (failed(made))
    return failure();
  for (auto [old, result, layout] : llvm::zip(op->getResults(), (*made)->getResults(), step.results))
    forms[old] = {{layout, result}};
  return success();
}

LogicalResult PartSplitter::run() {
  SmallVector<Operation *> old =
      llvm::map_to_vector(part.front().without_terminator(), [](Operation &op) { return &op; });
  Operation *end = part.front().getTerminator();
  for (BlockArgument argument : part.getArguments()) {
    auto layout = choice.arguments.find(argument);
    DeviceLayout given = layout == choice.arguments.end() ? DeviceLayout::of(LayoutKind::full) : layout->second;
    if (given.kind == LayoutKind::full && hasTerms(argument))
      given = DeviceLayout::of(LayoutKind::copy);
    forms[argument] = {{given, argument}};
    if (failed(cutArgument(argument, forms[argument].front().first)))
      return failure();
  }
  for (Operation *op : old)
    if (failed(write(op)))
      return failure();
  builder.setInsertionPoint(end);
  SmallVector<Value> results;
  for (auto [value, layout] : llvm::zip(end->getOperands(), choice.steps.find(end)->second.operands))
    results.push_back(converted(value, layout, end->getLoc()));
  end->setOperands(results);
  for (Operation *op : llvm::reverse(old))
    op->erase();
  part.setType(builder.getFunctionType(part.front().getArgumentTypes(), end->getOperandTypes()));
  return success();
}

//===-- Programs ------------------------------------------------------------------------------------------------===//

namespace {

class Splitting {
public:
  Splitting(ModuleOp module, ProgramOp program) : module(module), program(program) {}
  LogicalResult run();

private:
  using Chain = SmallVector<func::FuncOp>;
  LogicalResult checkShards();
  LogicalResult checkRows();
  SmallVector<Chain> chains();
  LogicalResult checkShared(const llvm::DenseSet<func::FuncOp> &used);

  ModuleOp module;
  ProgramOp program;
};

} // namespace

/// The parts of each kind of layer, in order, and each part outside the layers: layers and what is around them hand
/// each other whole values, so one choice holds wherever they stand.
SmallVector<Splitting::Chain> Splitting::chains() {
  SmallVector<Chain> all;
  int64_t last = -1;
  for (auto piece : program.getOps<PieceOp>())
    for (Attribute entry : piece.getParts()) {
      auto part = module.lookupSymbol<func::FuncOp>(cast<StringAttr>(cast<ArrayAttr>(entry)[0]));
      int64_t layer = cast<IntegerAttr>(cast<ArrayAttr>(entry)[1]).getInt();
      if (!part || part.empty())
        continue; // derive-tasks says so
      if (layer < 0 || layer != last)
        all.emplace_back();
      all.back().push_back(part);
      last = layer;
    }
  SmallVector<Chain> once;
  for (Chain &chain : all)
    if (!llvm::is_contained(once, chain))
      once.push_back(std::move(chain));
  return once;
}

/// A rank's rows of the vocabulary are cut once more, and the next rank's rows follow them: so no row may be padding.
LogicalResult Splitting::checkShards() {
  int64_t devices = program.sizeOf(Axis::tensor);
  for (auto piece : program.getOps<PieceOp>())
    if (piece.getVocabularyAttr()) {
      auto part = module.lookupSymbol<func::FuncOp>(cast<StringAttr>(cast<ArrayAttr>(piece.getParts()[0])[0]));
      int64_t rows = 0;
      for (auto embedding : part.getOps<nn::EmbeddingOp>())
        rows = cast<RankedTensorType>(embedding.getTable().getType()).getDimSize(0);
      for (auto loss : part.getOps<nn::ReadsLogits>())
        rows = cast<RankedTensorType>(loss->getOperand(0).getType()).getShape().back();
      if (rows % devices != 0 && !part->hasAttr(nn::kWholeAttr))
        return refuseClause(piece, "mesh.tensor",
                            "`" + piece.getCoord().str() + "` has " + Twine(rows) +
                                " rows of the vocabulary; `tensor = " + Twine(devices) + "` does not divide them");
    }
  return success();
}

/// Each device has the same number of rows of a microbatch, or of a slice.
LogicalResult Splitting::checkRows() {
  auto batch = program.getTrain().getAs<IntegerAttr>("batch");
  auto sequence = program.getTrain().getAs<IntegerAttr>("sequence");
  if (!program.getMeshAttr().getSequence() || !batch || !sequence)
    return success();
  SmallVector<int64_t> starts = {0, sequence.getInt() / program.sizeOf(Axis::context)};
  int64_t share = 1;
  if (program.getSlices() > 0) {
    starts = sliceStarts(program);
    share = program.sizeOf(Axis::context);
  }
  for (size_t k = 0; k + 1 < starts.size(); ++k)
    if (int64_t rows = batch.getInt() * (starts[k + 1] - starts[k]) / share; rows % program.sizeOf(Axis::tensor) != 0) {
      auto error = emitError(clauseLoc(program, "mesh.sequence"));
      error << (program.getSlices() > 0 ? "slice " + Twine(k) : Twine("a microbatch")) << " has " << rows
            << " rows of activations; `tensor = " << program.sizeOf(Axis::tensor)
            << "` with `sequence` does not divide them";
      return error;
    }
  return success();
}

/// One weight of several parts is cut alike in all of them.
LogicalResult Splitting::checkShared(const llvm::DenseSet<func::FuncOp> &used) {
  llvm::StringMap<std::pair<func::FuncOp, nn::WeightAttr>> known;
  for (auto part : module.getOps<func::FuncOp>())
    for (unsigned i = 0; used.contains(part) && i < part.getNumArguments(); ++i) {
      auto declared = part.getArgAttrOfType<nn::WeightAttr>(i, nn::kWeightAttr);
      if (!declared || !declared.getShared())
        continue;
      auto [it, isNew] = known.try_emplace(declared.getName().getValue(), part, declared);
      if (isNew || nn::layoutOf(it->second.second) == nn::layoutOf(declared))
        continue;
      auto layout = [](nn::WeightAttr weight) {
        DeviceLayout its = nn::layoutOf(weight);
        return its.kind == LayoutKind::full ? "whole" : "cut (" + its.text() + ")";
      };
      return emitError(part.getLoc()) << "`" << declared.getName().getValue() << "` is " << layout(it->second.second)
                                      << " over `tensor` in part `" << it->second.first.getName() << "` and "
                                      << layout(declared) << " in part `" << part.getName()
                                      << "` (`mesh of`); a weight of two parts has one layout";
    }
  return success();
}

LogicalResult Splitting::run() {
  int64_t devices = program.sizeOf(Axis::tensor);
  if (devices == 1)
    return success();
  if (failed(checkShards()) || failed(checkRows()))
    return failure();
  llvm::DenseSet<func::FuncOp> done;
  for (const Chain &chain : chains()) {
    for (func::FuncOp part : chain) {
      if (!done.insert(part).second)
        return emitError(part.getLoc()) << "part `" << part.getName()
                                        << "` stands in layers of two kinds; `tensor = " << devices
                                        << "` needs a part of its own for each";
      for (auto loss : part.getOps<nn::CrossEntropyOp>())
        if (loss.getFurther() && !part->hasAttr(nn::kWholeAttr))
          return loss.emitError() << "further losses are not built yet where a vocabulary is cut over `tensor`";
    }
    llvm::for_each(chain, takeBiasesOut);
    for (func::FuncOp part : chain)
      if (!part->hasAttr(nn::kWholeAttr))
        countHeadsOf(part);
    FailureOr<LayoutChoice> choice = chooseLayouts(chain, devices, program.getMeshAttr().getSequence());
    if (failed(choice))
      return failure();
    for (func::FuncOp part : chain)
      if (failed(PartSplitter(part, *choice, program.getMeshAttr()).run()))
        return failure();
    llvm::for_each(chain, putBiasesBack);
  }
  return checkShared(done);
}

namespace {
struct SplitParts : public pp::impl::SplitPartsBase<SplitParts> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(Splitting(getOperation(), program).run()))
        return signalPassFailure();
  }
};
} // namespace
