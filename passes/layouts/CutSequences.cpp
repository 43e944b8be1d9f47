// Cuts the sequences of all parts over the devices of the context axis: two runs of each, and the keys of all devices.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: func @attn(%q, %k, %v: tensor<2x32x64xf32>)     After, with context 2: (%q, %k, %v: tensor<2x16x64xf32>)
//           %p = rope %q                                     %p = rope %q {zigzag = 2}
//           %o, %lse = attention %p, (%k, %v)                %a = gather_runs %k over <context>, %b = .. %v ..
//                                                            %o, %lse = attention %p, (%a, %b) {zigzag = 2}
//
// With `attention = "heads"` the attention is that of whole sequences, on each device for its share of the heads:
//
//           %h = runs_to_heads %p over <context>, and so k and v      tensor<2x32x32xf32>
//           %t, %lse = attention %h, .. {heads = 2}
//           %o = heads_to_runs %t over <context>                      tensor<2x16x64xf32>
//
// With fewer heads of keys than devices `repeat_heads` stands in front of their exchange: C / G neighbours, of G heads,
// each get the head that their queries read. The copies live until they are sent.
//
// Scans and convolutions see whole sequences, too, each device its share of the heads, or of the columns:
//
//           %y = scan %q, %k, %v, %decay, %beta       becomes     %y = heads_to_runs (scan (runs_to_heads %q), ..)
//           %y = conv %x, %w                          becomes     %y = heads_to_runs (conv (runs_to_heads %x),
//                                                                                          (take_piece %w))
//
// If all heads read one q and one k, these are gathered.
//
// A sum over documents reads whole sequences, gathered, and gives the own rows. A mean over documents sees there which
// of its rows is the first of a document. All else works row by row, and so on fewer rows. Of 2 C runs of a sequence
// device k has the k-th and the k-th from its end, so that each sees as many keys (Grattafiori et al. 2024, 3.3.2).
#include "analysis/Actions.h"
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Clauses.h"
#include "dialect/pipeline/Pipeline.h"
#include "passes/Passes.h"
#include "passes/layouts/ChooseLayouts.h"

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
  LogicalResult checkSlices();
  LogicalResult checkPart(func::FuncOp part);
  LogicalResult cut(func::FuncOp part);
  LogicalResult refuse(Operation *op, const Twine &message);
  LogicalResult checkHeads(nn::AttentionOp attention);
  LogicalResult checkWhole(Operation *op);
  /// Of the whole part's heads those of a device of the tensor axis, which has one of keys at least.
  int64_t ownHeads(nn::AttentionOp attention, int64_t heads);
  int64_t copiesOfKeys(nn::AttentionOp attention);
  /// For this op.
  Value gathered(Value keys, Operation *op);
  Value gatheredOnce(Value value, Operation *op);
  /// The op as a device runs it.
  FailureOr<Operation *> write(Operation &op);
  FailureOr<Operation *> writeByHeads(Operation &op);
  FailureOr<Operation *> writeWhole(Operation &op);
  static func::FuncOp partOf(Operation *op) { return op->getParentOfType<func::FuncOp>(); }
  static bool isWhole(Operation *op) { return partOf(op)->hasAttr(nn::kWholeAttr); }
  bool isKept(Operation *op) { return againOf(partOf(op), program.getMeshAttr()) == Again::nothing; }
  bool byHeads(Operation *op) { return meetingOf(partOf(op), program.getMeshAttr()) == Meeting::heads; }

  ModuleOp module;
  ProgramOp program;
  int64_t devices;
  OpBuilder builder;
  nn::AxesAttr axes;
  llvm::DenseMap<Value, Value> ofTokens; ///< of the part at hand: numbers and data of tokens, of whole sequences
};

} // namespace

/// Each slice is cut by itself. Its keys are gathered, or exchanged by heads, once, and kept so for later slices.
LogicalResult SequenceCutter::checkSlices() {
  SmallVector<int64_t> starts = sliceStarts(program);
  for (size_t k = 0; k + 1 < starts.size(); ++k)
    if (int64_t length = starts[k + 1] - starts[k]; length % (2 * devices) != 0)
      return emitError(clauseLoc(program, "mesh.context"))
             << "slice " << k << " has " << length << " tokens, which are not cut over "
             << "`context = " << devices << "`: it needs a multiple of " << 2 * devices;
  return success();
}

LogicalResult SequenceCutter::checkProgram() {
  if (program.getSlices() > 0)
    return checkSlices();
  auto sequence = program.getTrain().getAs<IntegerAttr>("sequence");
  if (sequence && sequence.getInt() % (2 * devices) != 0)
    return emitError(clauseLoc(program, "mesh.context"))
           << "a sequence of " << sequence.getInt() << " tokens is not cut over `context = " << devices
           << "`: it needs a multiple of " << 2 * devices;
  return success();
}

int64_t SequenceCutter::ownHeads(nn::AttentionOp attention, int64_t heads) {
  return std::max<int64_t>(heads / (isWhole(attention) ? 1 : program.sizeOf(Axis::tensor)), 1);
}

/// So many devices have queries of one head of keys.
int64_t SequenceCutter::copiesOfKeys(nn::AttentionOp attention) {
  return std::max<int64_t>(devices / ownHeads(attention, nn::kvHeadsOf(attention)), 1);
}

LogicalResult SequenceCutter::refuse(Operation *op, const Twine &message) {
  return refuseClause(op, "mesh.context", message);
}

/// Of the heads of a device of the tensor axis each device of this one has as many, and of keys as many, or one.
LogicalResult SequenceCutter::checkHeads(nn::AttentionOp attention) {
  if (!isWhole(attention) && failed(pp::checkHeads(attention, program.sizeOf(Axis::tensor))))
    return failure();
  int64_t heads = ownHeads(attention, attention.getHeads()), keys = ownHeads(attention, nn::kvHeadsOf(attention));
  if (heads % devices != 0)
    return refuse(attention, "`attention = \"heads\"`: a device has " + Twine(heads) +
                                 " heads; `context = " + Twine(devices) + "` does not divide them");
  if (keys % devices != 0 && devices % keys != 0)
    return refuse(attention, "`attention = \"heads\"`: a device has " + Twine(keys) + " heads of keys; `context = " +
                                 Twine(devices) + "` neither divides them nor is a multiple of them");
  return success();
}

/// A scan or a convolution: of its heads or columns on a device of the tensor axis each device of this one has as many.
LogicalResult SequenceCutter::checkWhole(Operation *op) {
  StringRef name = op->getName().stripDialect();
  if (program.getSlices() > 0)
    return refuse(op, "`context = " + Twine(devices) + "`: a `" + name +
                          "` goes on from slice to slice, and slices of it cannot be cut over context yet");
  auto scan = dyn_cast<nn::ScanOp>(op);
  int64_t keys = scan ? static_cast<int64_t>(scan.getKeyHeads()) : 0, columns = 0;
  if (!scan)
    columns = cast<RankedTensorType>(op->getResult(0).getType()).getShape().back();
  else
    columns = scan.getShared() || keys == 0 ? static_cast<int64_t>(scan.getHeads()) : keys;
  columns = std::max<int64_t>(columns / (isWhole(op) ? 1 : program.sizeOf(Axis::tensor)), 1);
  if (columns % devices == 0)
    return success();
  return refuse(op, "`context = " + Twine(devices) + "`: a `" + name + "` goes along whole sequences, so devices " +
                        "exchange " + (scan ? "heads" : "columns") + ": a device has " + Twine(columns) +
                        (scan && !scan.getShared() ? " of q and k; `context = " : "; `context = ") + Twine(devices) +
                        "` does not divide them");
}

LogicalResult SequenceCutter::checkPart(func::FuncOp part) {
  for (Operation &op : part.front()) {
    if (isa<nn::ConvOp, nn::ScanOp>(op) && failed(checkWhole(&op)))
      return failure();
    auto attention = dyn_cast<nn::AttentionOp>(op);
    if (attention && !attention.getCausal())
      return refuse(attention, "`context = " + Twine(devices) +
                                   "`: an `attention` that is not causal cannot be cut over context yet");
    if (attention && byHeads(attention) && failed(checkHeads(attention)))
      return failure();
  }
  return success();
}

/// The sequences of all devices, in the order of their positions. A backward gathers them again unless they are kept.
Value SequenceCutter::gathered(Value keys, Operation *op) {
  return builder.create<nn::GatherRunsOp>(keys.getLoc(), keys, axes, devices, isKept(op));
}

Value SequenceCutter::gatheredOnce(Value value, Operation *op) {
  Value &whole = ofTokens[value];
  return whole ? whole : whole = gathered(value, op);
}

FailureOr<Operation *> SequenceCutter::write(Operation &op) {
  SmallVector<Value> operands(op.getOperands());
  NamedAttrList attributes(op.getAttrs());
  auto mean = dyn_cast<nn::TokenMeanOp>(op);
  if (isa<nn::SegmentSumOp>(op) || (mean && mean.getStarts())) { // of whole sequences; a mean's values are own ones
    for (Value &operand : MutableArrayRef(operands).drop_front(mean ? 1 : 0))
      operand = gatheredOnce(operand, &op);
    attributes.set("zigzag", builder.getI64IntegerAttr(devices));
  }
  if (isa<nn::RopeOp, nn::PositionsOp, nn::DropoutOp, nn::AttentionOp>(op))
    attributes.set("zigzag", builder.getI64IntegerAttr(devices));
  if (auto attention = dyn_cast<nn::AttentionOp>(op))
    for (Value keys : attention.getKv())
      std::replace(operands.begin(), operands.end(), keys, gathered(keys, attention));
  return nn::createAgain(builder, &op, operands, attributes.getAttrs());
}

/// An attention, or a sink around it: both see whole sequences, and what reads their result own rows.
FailureOr<Operation *> SequenceCutter::writeByHeads(Operation &op) {
  Location loc = op.getLoc();
  SmallVector<Value> operands;
  NamedAttrList attributes(op.getAttrs());
  if (auto attention = dyn_cast<nn::AttentionOp>(op)) {
    int64_t copies = copiesOfKeys(attention), keys = nn::kvHeadsOf(attention);
    attributes.set("heads", builder.getI64IntegerAttr(attention.getHeads() / devices));
    if (attention.getKvHeads())
      attributes.set("kv_heads", builder.getI64IntegerAttr(keys * copies / devices));
    auto exchanged = [&](Value value) -> Value {
      if (copies > 1 && value != attention.getQ())
        value = builder.create<nn::RepeatHeadsOp>(loc, value, keys, copies);
      return builder.create<nn::RunsToHeadsOp>(loc, value, axes, devices);
    };
    if (nn::DropoutAttr its = attention.getDropoutAttr())
      attributes.set("dropout", nn::DropoutAttr::get(builder.getContext(), its.getRate(), its.getSite(), its.getSites(),
                                                     its.getLength(), axes));
    llvm::DenseMap<Value, Value> made; // q, k and v may be one value
    for (Value value : op.getOperands()) {
      bool isData = cast<RankedTensorType>(value.getType()).getElementType().isInteger(32);
      Value &form = made[value];
      form = form ? form : isData ? gathered(value, attention) : exchanged(value);
      operands.push_back(form);
    }
  } else {
    auto sink = cast<nn::SinkOp>(op);
    auto back = sink.getO().getDefiningOp<nn::HeadsToRunsOp>();
    if (!back)
      return op.emitError() << "expected a `sink` around an attention of the same part";
    operands = {back.getX(), sink.getLse(), builder.create<nn::TakePieceOp>(loc, sink.getS(), axes, devices)};
  }
  FailureOr<Operation *> made = nn::createAgain(builder, &op, operands, attributes.getAttrs());
  if (failed(made))
    return failure();
  Value own = (*made)->getResult(0);
  Value rows = builder.create<nn::HeadsToRunsOp>(loc, own, axes, devices, isKept(&op));
  op.getResult(0).replaceAllUsesWith(rows);
  op.getResult(1).replaceAllUsesWith((*made)->getResult(1));
  return made;
}

/// A scan or a convolution of whole sequences, of the device's own heads or columns.
FailureOr<Operation *> SequenceCutter::writeWhole(Operation &op) {
  Location loc = op.getLoc();
  NamedAttrList attributes(op.getAttrs());
  llvm::SmallPtrSet<Value, 2> all; // that all heads read
  if (auto scan = dyn_cast<nn::ScanOp>(op)) {
    attributes.set("heads", builder.getI64IntegerAttr(static_cast<int64_t>(scan.getHeads()) / devices));
    if (scan.getShared())
      all.insert({scan.getQ(), scan.getK()});
    else if (scan.getKeyHeads() != 0)
      attributes.set("key_heads", builder.getI64IntegerAttr(static_cast<int64_t>(scan.getKeyHeads()) / devices));
  }
  auto own = [&](Value value) -> Value {
    if (cast<RankedTensorType>(value.getType()).getElementType().isInteger(32)) // where documents begin
      return gatheredOnce(value, &op);
    if (all.contains(value))
      return gathered(value, &op);
    if (auto conv = dyn_cast<nn::ConvOp>(op); conv && value == conv.getW())
      return builder.create<nn::TakePieceOp>(loc, value, axes, devices);
    return builder.create<nn::RunsToHeadsOp>(loc, value, axes, devices);
  };
  SmallVector<Value> operands = llvm::map_to_vector(op.getOperands(), own);
  FailureOr<Operation *> made = nn::createAgain(builder, &op, operands, attributes.getAttrs());
  if (succeeded(made))
    op.getResult(0).replaceAllUsesWith(
        builder.create<nn::HeadsToRunsOp>(loc, (*made)->getResult(0), axes, devices, isKept(&op)));
  return made;
}

LogicalResult SequenceCutter::cut(func::FuncOp part) {
  ofTokens.clear();
  for (BlockArgument argument : part.getArguments())
    if (!part.getArgAttr(argument.getArgNumber(), nn::kWeightAttr)) {
      auto type = cast<RankedTensorType>(argument.getType());
      SmallVector<int64_t> shape(type.getShape());
      shape[1] /= devices; // [batch, length, ..]: activations, tokens and statistics
      argument.setType(type.clone(shape));
    }
  for (Operation &op : llvm::make_early_inc_range(part.front().without_terminator())) {
    builder.setInsertionPoint(&op);
    bool isWhole = isa<nn::ConvOp, nn::ScanOp>(op);
    bool exchanges = isWhole || (isa<nn::AttentionOp, nn::SinkOp>(op) && byHeads(&op));
    FailureOr<Operation *> made = isWhole ? writeWhole(op) : exchanges ? writeByHeads(op) : write(op);
    if (failed(made))
      return failure();
    if (!exchanges)
      op.replaceAllUsesWith(*made);
    op.erase();
  }
  for (auto back : llvm::make_early_inc_range(part.getOps<nn::HeadsToRunsOp>()))
    if (back.use_empty()) // in front of a sink
      back.erase();
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
