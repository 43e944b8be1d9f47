// Writes a piece's ops for one slice of the sequence: with its tokens' positions, and the keys of the slices before it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Keys and values of a slice stay where they were made, a chunk for each slice (`kv.0`, `kv.1`, ..): slice k attends
// the chunks 0 to k. Their gradients are sums over slices, made by the last slice and gone through by the others in
// reverse:
//
//   F.2  reads kv.0 kv.1         makes kv.2                    (slice 2 of 3)
//   B.2  reads kv.0 kv.1 kv.2    makes dkv.0 dkv.1
//   B.1  reads kv.0 kv.1         adds to dkv.0, and to dkv.1, which is whole then and goes on into the layers' weights
//
// If the piece before makes the keys (KeysBefore), slices do not wait for each other. Each slice makes its share of
// every gradient of keys, complete-step adds the shares up, and the backward of the piece before reads the sum:
//
//   F.2  reads kv.0 kv.1 kv.2
//   B.1  reads kv.0 kv.1         makes dkv.0 dkv.1             (shares)
//
//   F.1 of the piece before      makes keys                    (kv.1)
//   B.1 of the piece before      reads dkeys                   (dkv.1, of the slices 1 and 2)
//
// Scans and convolutions go on from the state that the slice before left, and its gradient goes back the same way. A
// state is read by the slice after it alone, and is there until the backward of that one:
//
//   F.1  reads state.0           makes state.1
//   B.1  reads state.0 dstate.1  makes dstate.0
#include "passes/derive/PieceGraph.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

Type SequenceSlice::typeIn(Type whole, int64_t of) const {
  auto type = dyn_cast<RankedTensorType>(whole);
  if (isWhole() || !type || type.getRank() < 2)
    return whole;
  SmallVector<int64_t> shape(type.getShape());
  if (shape[1] != starts.back() && shape[1] * devices != starts.back())
    return whole;
  shape[1] =
      shape[1] == starts.back() ? length(of) : length(of) / devices; // of the own heads all rows, or the own rows
  return RankedTensorType::get(shape, type.getElementType());
}

Type SequenceSlice::rowsIn(Type whole) const {
  auto type = cast<RankedTensorType>(whole);
  return isWhole() ? whole : type.clone({1, type.getDimSize(1) * length(number) / starts.back(), type.getDimSize(2)});
}

FailureOr<Operation *> PieceGraph::cloneSliced(OpBuilder &builder, Operation &op, IRMapping &map) {
  SmallVector<Value> operands = llvm::map_to_vector(op.getOperands(), [&](Value value) { return map.lookup(value); });
  NamedAttrList attributes(op.getAttrs());
  auto attention = dyn_cast<nn::AttentionOp>(op);
  if (attention && failed(addChunks(builder, attention, operands)))
    return failure();
  if (nn::takes(&op, "offset")) {
    auto offset = attributes.get("offset");
    int64_t own = offset ? cast<IntegerAttr>(offset).getInt() : 0;
    attributes.set("offset", builder.getI64IntegerAttr(own + slice.start()));
  }
  if (auto its = dyn_cast<nn::Differentiable>(op); its && !its.whyNotSliced().empty())
    return op.emitError() << its.whyNotSliced();
  bool mayGoOn = isa<nn::Carries>(op);
  if (mayGoOn && failed(goOn(builder, op, operands, attributes)))
    return failure();
  FailureOr<Operation *> made = nn::createAgain(builder, &op, operands, attributes.getAttrs());
  if (succeeded(made))
    for (auto [result, sliced] : llvm::zip(op.getResults(), (*made)->getResults()))
      map.map(result, sliced);
  if (failed(made) || !mayGoOn)
    return made;
  llvm::append_range(statesOut, (*made)->getResults().drop_front());
  if (carriers.size() < std::max(states.size(), statesOut.size()))
    carriers.push_back(*made);
  return made;
}

/// Lets a scan or convolution go on from what the slice before left. W reads the rows before a convolution's, too: F
/// saves a copy of them, so that no state waits for W. A single tap needs no rows before.
LogicalResult PieceGraph::goOn(OpBuilder &builder, Operation &op, SmallVectorImpl<Value> &operands,
                               NamedAttrList &attributes) {
  MLIRContext *context = builder.getContext();
  NamedAttrList carrying(attributes);
  carrying.set("carries", builder.getBoolAttr(true));
  SmallVector<Type> types;
  if (failed(cast<InferTypeOpInterface>(op).inferReturnTypes(context, op.getLoc(), op.getOperands(),
                                                             carrying.getDictionary(context), nullptr, {}, types)))
    return failure();
  if (cast<RankedTensorType>(types[1]).getNumElements() == 0)
    return success();
  if (!slice.isLast())
    attributes = carrying;
  if (slice.number == 0)
    return success();
  Value state = states.emplace_back(scratch.addArguments(types[1]).front());
  if (isa<nn::ConvOp>(op)) {
    state = nn::copyOf(builder, op.getLoc(), state);
    forward.insert(state.getDefiningOp());
  }
  operands.push_back(state);
  SmallVector<int32_t> counts(cast<DenseI32ArrayAttr>(attributes.get("operandSegmentSizes")).asArrayRef());
  counts.back() = 1;
  attributes.set("operandSegmentSizes", builder.getDenseI32ArrayAttr(counts));
  return success();
}

/// Puts the chunks of the slices before this one in front of its own k and v.
LogicalResult PieceGraph::addChunks(OpBuilder &builder, nn::AttentionOp attention, SmallVectorImpl<Value> &operands) {
  if (attention.getKv().size() != 2 || attention.getKvOffsets() || attention.getOffset())
    return attention.emitError("on slices, `attention` expects the keys of one whole sequence");
  if (!attention.getCausal())
    return attention.emitError("an `attention` that is not causal needs the keys of later slices; such a model cannot "
                               "run in slices");
  if (slice.devices > 1 && readsKeys())
    return attention.emitError("`context` with slices is not built yet where the stage before makes the keys of an "
                               "`attention`");
  SmallVector<Value> own = {operands[1], operands[2]};
  SmallVector<Value> data(operands.begin() + 3, operands.end()); // `starts`, `rows`
  for (Value &value : own)
    if (isa<BlockArgument>(value) &&
        !readsKeys()) { // of an activation from another piece, which does not wait for later slices
      value = nn::copyOf(builder, attention.getLoc(), value);
      forward.insert(value.getDefiningOp());
    }
  operands.truncate(1);
  for (int64_t k = 0; k < slice.number; ++k) {
    SmallVector<Type> types = {slice.typeIn(attention.getKv()[0].getType(), k),
                               slice.typeIn(attention.getKv()[1].getType(), k)};
    llvm::append_range(kv[k], scratch.addArguments(types));
    operands.append(kv[k].end() - 2, kv[k].end());
  }
  operands.append(own);
  operands.append(data);
  kv.back().append(own);
  return success();
}

/// In all slices but the last, the gradients of all chunks begin with the terms of later slices.
LogicalResult PieceGraph::seedChunks(nn::Gradients &gradients) {
  if (slice.isWhole())
    return success();
  for (Value value : kv.back())
    if (!value.hasOneUse())
      return emitError(value.getLoc()) << "on slices, `attention` alone may read its keys and values: their gradients "
                                          "are summed over slices";
  if (readsKeys() && slice.number == 0) // that of one chunk would not be in the type of sums
    for (Value value : kv.back())
      if (sumsOf(value.getType()) != value.getType())
        gradients.set(value, nn::zeroOf(gradients.builder, value.getLoc(), sumsOf(value.getType())));
  if (slice.isLast() || readsKeys())
    return success();
  for (const SmallVector<Value> &chunk : kv) {
    SmallVector<Type> types;
    for (Value value : chunk)
      types.push_back(sumsOf(value.getType()));
    dkv.push_back(scratch.addArguments(types));
    for (auto [value, sum] : llvm::zip(chunk, dkv.back()))
      gradients.set(value, sum);
  }
  return success();
}

/// The result of the op that adds to this sum in place.
static Value continuedSum(Value sum) {
  for (OpOperand &use : sum.getUses())
    if (auto inPlace = dyn_cast<nn::InPlace>(use.getOwner()))
      for (nn::Tie tie : inPlace.getRequiredTies())
        if (tie.operand == use.getOperandNumber())
          return use.getOwner()->getResult(tie.result);
  return sum;
}

void PieceGraph::collectChunks(nn::Gradients &gradients) {
  for (const SmallVector<Value> &sums : dkv)
    dkvOut.push_back(llvm::map_to_vector(sums, continuedSum));
  if (dkv.empty() && (slice.number > 0 || readsKeys()))
    for (const SmallVector<Value> &chunk : ArrayRef(kv).drop_back(readsKeys() ? 0 : 1))
      dkvOut.push_back(llvm::map_to_vector(chunk, [&](Value value) { return gradients.get(value); }));
}

void PieceGraph::seedStates(nn::Gradients &gradients) {
  dstates =
      scratch.addArguments(llvm::map_to_vector(statesOut, [](Value state) -> Type { return sumsOf(state.getType()); }));
  for (auto [state, gradient] : llvm::zip(statesOut, dstates))
    gradients.set(state, gradient);
}

void PieceGraph::collectStates(nn::Gradients &gradients) {
  for (Value state : states) {
    Value gradient = gradients.get(state);
    dstatesOut.push_back(gradient ? gradient : nn::zeroOf(gradients.builder, piece.loc, sumsOf(state.getType())));
  }
}

SmallVector<Group> PieceGraph::stateGroups(GroupKind kind, ArrayRef<Value> values, int64_t number) const {
  if (piece.cuts.empty())
    return {{{kind, number}, llvm::to_vector(values)}};
  std::map<int64_t, SmallVector<Value>> byCut;
  for (auto [value, carrier] : llvm::zip_first(values, carriers))
    byCut[cuts.lookup(carrier)].push_back(value);
  SmallVector<Group> groups;
  for (auto &[cut, its] : byCut)
    groups.push_back({{kind, number, cut}, its});
  return groups;
}

void PieceGraph::splitKeys() {
  for (unsigned place : piece.keysOut)
    keys.push_back(actOut[place]);
  SmallVector<Value> others;
  for (auto [place, value] : llvm::enumerate(actOut))
    if (!llvm::is_contained(piece.keysOut, place))
      others.push_back(value);
  actOut = others;
}

/// The whole gradient of the keys, in the type of sums, is rounded once.
void PieceGraph::seedKeys(nn::Gradients &gradients) {
  SmallVector<Type> types = llvm::map_to_vector(keys, [](Value key) -> Type { return sumsOf(key.getType()); });
  dkeys = scratch.addArguments(types);
  for (auto [key, sum] : llvm::zip(keys, dkeys))
    gradients.add(piece.loc, key, roundGrad(gradients.builder, piece.loc, sum, key.getType()));
}

SmallVector<Group> PieceGraph::chunkGroups(GroupKind kind, ArrayRef<SmallVector<Value>> chunks, size_t first,
                                           bool tied) const {
  SmallVector<Group> groups;
  for (size_t k = first; k < chunks.size(); ++k) {
    if (!piece.cuts.empty())
      for (size_t i = 0; i < chunks[k].size() / 2; ++i)
        groups.push_back(chunkGroup(kind, chunks[k], k, i, tied));
    else if (!chunks[k].empty())
      groups.push_back({{kind, static_cast<int64_t>(k)}, chunks[k], tied});
  }
  return groups;
}

/// k and v of one attention, of the chunk that has those of all.
Group PieceGraph::chunkGroup(GroupKind kind, ArrayRef<Value> chunk, int64_t slice, int64_t attention, bool tied) const {
  return {{kind, slice, attention}, llvm::to_vector(chunk.slice(2 * attention, 2)), tied};
}
