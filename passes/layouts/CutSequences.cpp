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
  LogicalResult checkHeads(nn::Attends attention);
  LogicalResult checkWhole(Operation *op);
  /// Of the whole part's heads those of a device of the tensor axis, which has one of keys at least.
  int64_t ownHeads(Operation *op, int64_t heads);
  int64_t copiesOfKeys(nn::Attends attention);
  /// For this op.
  Value gathered(Value keys, Operation *op);
  Value gatheredOnce(Value value, Operation *op);
  /// The op as a device runs it.
  FailureOr<Operation *> write(Operation &op);
  FailureOr<Operation *> writeByHeads(Operation &op);
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

int64_t SequenceCutter::ownHeads(Operation *op, int64_t heads) {
  return std::max<int64_t>(heads / (isWhole(op) ? 1 : program.sizeOf(Axis::tensor)), 1);
}

/// So many devices have queries of one head of keys.
int64_t SequenceCutter::copiesOfKeys(nn::Attends attention) {
  return std::max<int64_t>(devices / ownHeads(attention, attention.countKeyHeads()), 1);
}

LogicalResult SequenceCutter::refuse(Operation *op, const Twine &message) {
  return refuseClause(op, "mesh.context", message);
}

/// Of the heads of a device of the tensor axis each device of this one has as many, and of keys as many, or one.
LogicalResult SequenceCutter::checkHeads(nn::Attends attention) {
  if (!isWhole(attention) && failed(pp::checkHeads(attention, program.sizeOf(Axis::tensor))))
    return failure();
  int64_t heads = ownHeads(attention, attention.getHeads()), keys = ownHeads(attention, attention.countKeyHeads());
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
  columns = ownHeads(op, columns);
  if (columns % devices == 0)
    return success();
  return refuse(op, "`context = " + Twine(devices) + "`: a `" + name + "` goes along whole sequences, so devices " +
                        "exchange " + (scan ? "heads" : "columns") + ": a device has " + Twine(columns) +
                        (scan && !scan.getShared() ? " of q and k; `context = " : "; `context = ") + Twine(devices) +
                        "` does not divide them");
}

LogicalResult SequenceCutter::checkPart(func::FuncOp part) {
  for (Operation &op : part.front()) {
    if (isa<nn::Carries>(op) && failed(checkWhole(&op)))
      return failure();
    auto attention = dyn_cast<nn::Attends>(op);
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
  if (isa<nn::SegmentSumOp>(op) || (mean && mean.getStarts())) // of whole sequences; a mean's values are own ones
    for (Value &operand : MutableArrayRef(operands).drop_front(mean ? 1 : 0))
      operand = gatheredOnce(operand, &op);
  if (nn::takes(&op, "zigzag") && !(mean && !mean.getStarts()))
    attributes.set("zigzag", builder.getI64IntegerAttr(devices));
  if (auto attention = dyn_cast<nn::Attends>(op))
    for (Value keys : attention.getKv())
      std::replace(operands.begin(), operands.end(), keys, gathered(keys, attention));
  return nn::createAgain(builder, &op, operands, attributes.getAttrs());
}

/// An attention or a sink around it, a scan or a convolution: of the device's own heads or columns it sees whole
/// sequences, and what reads its result own rows.
FailureOr<Operation *> SequenceCutter::writeByHeads(Operation &op) {
  Location loc = op.getLoc();
  SmallVector<Value> operands;
  NamedAttrList attributes(op.getAttrs());
  if (auto sink = dyn_cast<nn::SinkOp>(op)) {
    auto back = sink.getO().getDefiningOp<nn::HeadsToRunsOp>();
    if (!back)
      return op.emitError() << "expected a `sink` around an attention of the same part";
    operands = {back.getX(), sink.getLse(), builder.create<nn::TakePieceOp>(loc, sink.getS(), axes, devices)};
  } else {
    auto attention = dyn_cast<nn::Attends>(op);
    int64_t copies = attention ? copiesOfKeys(attention) : 1;
    SmallVector<nn::DeviceLayout> layouts;
    llvm::DenseMap<Value, Value> made; // q, k and v may be one value
    for (auto [i, value] : llvm::enumerate(op.getOperands())) {
      std::optional<int64_t> dim = nn::dimOfColumns(&op, i);
      bool isRepeated = dim && copies > 1 && value != attention.getQ();
      layouts.push_back(dim ? nn::DeviceLayout::shard(*dim, 1, isRepeated ? copies : 1)
                            : nn::DeviceLayout::of(nn::DeviceLayout::Kind::copy));
      Value &form = made[value];
      if (!form && !dim) { // data, and what all heads read
        bool isData = cast<RankedTensorType>(value.getType()).getElementType().isInteger(32);
        form = isData ? gatheredOnce(value, &op) : gathered(value, &op);
      } else if (!form && *dim == 0) {
        form = builder.create<nn::TakePieceOp>(loc, value, axes, devices);
      } else if (!form) {
        form = value;
        if (isRepeated)
          form = builder.create<nn::RepeatHeadsOp>(loc, form, attention.countKeyHeads(), copies);
        form = builder.create<nn::RunsToHeadsOp>(loc, form, axes, devices);
      }
      operands.push_back(form);
    }
    nn::cutSizes(&op, layouts, devices, attributes);
    if (auto its = dyn_cast_or_null<nn::DropoutAttr>(attributes.get("dropout")))
      attributes.set("dropout", nn::DropoutAttr::get(builder.getContext(), its.getRate(), its.getSite(), its.getSites(),
                                                     its.getLength(), axes));
  }
  FailureOr<Operation *> made = nn::createAgain(builder, &op, operands, attributes.getAttrs());
  if (failed(made))
    return failure();
  SmallVector<Value> results((*made)->getResults());
  results[0] = builder.create<nn::HeadsToRunsOp>(loc, results[0], axes, devices, isKept(&op));
  op.replaceAllUsesWith(results);
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
    bool exchanges = isa<nn::Carries>(op) || (isa<nn::Attends, nn::SinkOp>(op) && byHeads(&op));
    FailureOr<Operation *> made = exchanges ? writeByHeads(op) : write(op);
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
