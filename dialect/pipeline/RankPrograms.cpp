// Verifiers and queries of the programs of the ranks: slots, launches, posts.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/pipeline/Ranges.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static ProgramOp programOf(Operation *op) { return cast<ProgramOp>(op->getParentOp()->getParentOp()); }

LogicalResult RankOp::verify() {
  if (failed(verifyRanks(*this, cast<ProgramOp>((*this)->getParentOp()), ArrayRef(static_cast<int64_t>(getRank())))))
    return failure();
  for (auto [what, bytes] : {std::pair("arena", getArenaBytes()), std::pair("host memory", getHostBytes())})
    if (bytes && (static_cast<int64_t>(*bytes) < 0 || static_cast<int64_t>(*bytes) > kMostBytes))
      return emitOpError() << "has " << what << " of " << static_cast<int64_t>(*bytes) << " bytes; expected 0 to "
                           << kMostBytes;
  if (DictionaryAttr peak = getPeakAttr())
    for (NamedAttribute entry : peak)
      if (!isa<IntegerAttr>(entry.getValue()))
        return emitOpError() << "expected bytes for `" << entry.getName().strref() << "` of `peak`, got "
                             << entry.getValue();
  return success();
}

SmallVector<int64_t> SlotOp::tensorOffsets() {
  if (auto places = getPlaces())
    return llvm::to_vector(*places);
  SmallVector<int64_t> offsets = payloadOffsets(getSlot().getType().getPayload());
  offsets.pop_back();
  for (int64_t &offset : offsets)
    offset += static_cast<int64_t>(getOffset().value_or(0));
  return offsets;
}

/// The role of a slot with this binding.
static Role roleOf(BindingKind kind) {
  switch (kind) {
  case BindingKind::weight:
  case BindingKind::previous:
    return Role::weight;
  case BindingKind::opt:
    return Role::opt;
  case BindingKind::undo:
    return Role::undo;
  case BindingKind::grad:
    return Role::grad;
  case BindingKind::loss:
  case BindingKind::norm:
    return Role::stat;
  default:
    return Role::data;
  }
}

LogicalResult SlotOp::verify() {
  if (auto binding = getBinding(); binding && getRole() != roleOf(binding->getKind()))
    return emitOpError() << "is `" << stringifyRole(getRole()) << "` and bound as `"
                         << stringifyBindingKind(binding->getKind()) << "`, which is `"
                         << stringifyRole(roleOf(binding->getKind())) << "`";
  size_t tensors = getSlot().getType().getPayload().size();
  if (getPlaces() && getPlaces()->size() != tensors)
    return emitOpError() << "has " << getPlaces()->size() << " places for its " << tensors << " tensors";
  if (getPlaces() && (getOffset() || getBinding() || getHost()))
    return emitOpError("has places for its tensors; expected no offset, no binding, and not to be in host memory");
  SmallVector<int64_t> offsets(getPlaces().value_or(ArrayRef<int64_t>()));
  if (auto offset = getOffset())
    offsets.push_back(static_cast<int64_t>(*offset));
  for (int64_t offset : offsets) // the sum with the bytes of a tensor is a number, too
    if (offset < 0 || offset > kMostBytes)
      return emitOpError() << "stands at byte " << offset << "; expected 0 to " << kMostBytes;
  return success();
}

SmallVector<Value> LaunchOp::slots() {
  SmallVector<Value> slots(getInputs());
  llvm::append_range(slots, getResults());
  return slots;
}

LaunchOp LaunchOp::follower() { return getBeside() ? dyn_cast_or_null<LaunchOp>((*this)->getNextNode()) : nullptr; }

LaunchOp LaunchOp::leader() {
  auto before = dyn_cast_or_null<LaunchOp>((*this)->getPrevNode());
  return before && before.getBeside() ? before : nullptr;
}

/// Two launches side by side, in turns of so many ops.
static LogicalResult verifyBeside(LaunchOp launch) {
  std::optional<ArrayRef<int64_t>> turns = launch.getBeside();
  if (!turns)
    return success();
  if (!launch.follower())
    return launch.emitOpError("runs beside the launch behind it; expected one there");
  if (launch.leader())
    return launch.emitOpError("runs beside the launch before it and the one behind it; expected two launches");
  for (int64_t count : *turns)
    if (count < 0)
      return launch.emitOpError() << "has a turn of " << count << " ops; expected 0 or more";
  return success();
}

LogicalResult LaunchOp::verify() {
  if (failed(verifyUnit(*this, programOf(*this), getUnit())) || failed(verifyShare(*this, getShareAttr())) ||
      failed(verifyBeside(*this)))
    return failure();
  ArrayRef<int64_t> handed = getHanded().value_or(ArrayRef<int64_t>());
  SmallVector<SmallVector<int64_t>> offsetsOf; // by slot
  for (Value slot : handed.empty() ? SmallVector<Value>() : slots())
    offsetsOf.push_back(payloadOffsets(cast<SlotType>(slot.getType()).getPayload()));
  auto bytesOf = [&](int64_t slot, int64_t tensor) {
    if (slot < 0 || slot >= static_cast<int64_t>(offsetsOf.size()))
      return int64_t(-1);
    ArrayRef<int64_t> offsets = offsetsOf[slot];
    bool exists = tensor >= 0 && tensor + 1 < static_cast<int64_t>(offsets.size());
    return exists ? offsets[tensor + 1] - offsets[tensor] : -1;
  };
  DenseSet<std::pair<int64_t, int64_t>> seen;
  for (; handed.size() >= 4; handed = handed.drop_front(4)) {
    std::pair<int64_t, int64_t> from(handed[0], handed[1]), to(handed[2], handed[3]);
    int64_t inputs = getInputs().size(), bytes = bytesOf(from.first, from.second);
    if (bytes < 0 || bytes != bytesOf(to.first, to.second) || from.first >= inputs || to.first < inputs)
      return emitOpError() << "hands tensor " << from.second << " of slot " << from.first << " on as tensor "
                           << to.second << " of slot " << to.first
                           << "; expected an input's and a result's, of one size";
    if (!seen.insert(from).second || !seen.insert(to).second)
      return emitOpError() << "hands on as tensor " << to.second << " of slot " << to.first
                           << " what is handed on already";
  }
  return handed.empty() ? success() : emitOpError("expected `handed` to have four numbers for each tensor");
}

int64_t PostOp::getSelf() { return (*this)->getParentOfType<RankOp>().getRank(); }

bool PostOp::isHost() {
  auto rank = (*this)->getParentOfType<RankOp>();
  return rank && getKind() != PostKind::all_reduce && !getAxes() &&
         getPeers() == ArrayRef<int64_t>(static_cast<int64_t>(rank.getRank()));
}

SmallVector<int64_t> PostOp::ringOrder() {
  SmallVector<int64_t> order(getPeers());
  if (getRoot()) {
    auto *root = llvm::find(order, static_cast<int64_t>(*getRoot()));
    std::rotate(order.begin(), getKind() == PostKind::reduce ? root + 1 : root, order.end());
  }
  return order;
}

StringRef PostOp::jointName() {
  return getKind() == PostKind::broadcast ? "broadcast" : getKind() == PostKind::all_gather ? "gather" : "sum";
}

Value PostOp::readSlot() {
  bool isRoot = getRoot() && static_cast<int64_t>(*getRoot()) == getSelf();
  switch (getKind()) {
  case PostKind::receive:
    return {};
  case PostKind::broadcast:
    return isRoot ? getSlot() : Value();
  case PostKind::all_gather:
    return isInPlace() ? getSlot() : getShard();
  default:
    return getSlot();
  }
}

Value PostOp::writtenSlot() {
  bool isRoot = getRoot() && static_cast<int64_t>(*getRoot()) == getSelf();
  switch (getKind()) {
  case PostKind::send:
    return {};
  case PostKind::broadcast:
    return isRoot ? Value() : getSlot();
  case PostKind::reduce:
    return isRoot ? getSlot() : Value();
  case PostKind::reduce_scatter:
    return isInPlace() ? getSlot() : getShard();
  default:
    return getSlot();
  }
}

/// Over the mesh: the cuts are those of `cutFlat`.
static LogicalResult verifyFlatCuts(PostOp post) {
  SmallVector<int64_t> expected = cutFlat(post.getPayload().getTypes(), post.countMembers()).bounds;
  if (*post.getCuts() == ArrayRef(expected))
    return success();
  auto error = post.emitOpError() << "has cuts that are not those of " << post.getPayload().size() << " tensors over "
                                  << post.countMembers() << " devices: ";
  llvm::interleaveComma(expected, error);
  return error;
}

/// The cuts go through the whole, and this rank's shard has its part of it.
static LogicalResult verifyCuts(PostOp post) {
  ArrayRef<int64_t> cuts = *post.getCuts(), peers = post.getPeers();
  if (cuts.size() < peers.size() + 1 || (cuts.size() - 1) % peers.size() != 0 || cuts.front() != 0 ||
      !llvm::is_sorted(cuts))
    return post.emitOpError() << "has " << cuts.size() << " cuts; expected " << peers.size() + 1 << ", or "
                              << peers.size() << " more for every further run of tensors, ascending from 0";
  if (cuts.back() != slotBytes(post.getSlot()))
    return post.emitOpError() << "cuts " << cuts.back() << " bytes; the whole has " << slotBytes(post.getSlot());
  auto *self = llvm::find(peers, post.getSelf());
  if (self == peers.end())
    return post.emitOpError() << "is not for rank " << post.getSelf() << ", where it stands";
  int64_t mine = 0;
  for (size_t k = self - peers.begin(); k + 1 < cuts.size(); k += peers.size())
    mine += cuts[k + 1] - cuts[k];
  if (mine != slotBytes(post.getShard()))
    return post.emitOpError() << "has a shard of " << slotBytes(post.getShard()) << " bytes; between its cuts are "
                              << mine;
  return success();
}

LogicalResult PostOp::verify() {
  if (getPeers().empty() || (!isCollective() && getPeers().size() != 1))
    return emitOpError() << "has " << getPeers().size() << " peers; expected "
                         << (isCollective() ? "the members of a group" : "one");
  if (failed(verifyRanks(*this, programOf(*this), getPeers())))
    return failure();
  for (Value slot : (*this)->getOperands())
    if (auto op = slot.getDefiningOp<SlotOp>(); op && op.getPlaces())
      return emitOpError("takes a slot whose tensors lie apart; a message goes from one run of bytes to another");
  bool shards = getKind() == PostKind::all_gather || getKind() == PostKind::reduce_scatter;
  if ((shards && !getAxes()) != bool(getShard()) || shards != getCuts().has_value())
    return emitOpError() << stringifyPostKind(getKind())
                         << (shards && getAxes() ? " over the mesh needs cuts, and no shard"
                             : shards            ? " needs a shard and cuts"
                                                 : " has no shard");
  if (getAxes() && !shards && getKind() != PostKind::all_reduce)
    return emitOpError() << "is a " << stringifyPostKind(getKind()) << " over " << textOf(getAxesAttr())
                         << "; expected a sum or a gather of all";
  if (getAxes() && getPeers() != ArrayRef<int64_t>(getSelf()))
    return emitOpError() << "goes over " << textOf(getAxesAttr()) << "; expected rank " << getSelf()
                         << " as its only peer";
  if (failed(verifyAxes(*this, programOf(*this), getAxesAttr(), getTensors(), getSlot().getType().getPayload())))
    return failure();
  if (shards && failed(getAxes() ? verifyFlatCuts(*this) : verifyCuts(*this)))
    return failure();
  bool rooted = getKind() == PostKind::broadcast || getKind() == PostKind::reduce;
  if (rooted != getRoot().has_value())
    return emitOpError() << stringifyPostKind(getKind()) << (rooted ? " needs a root" : " has no root");
  if (isCollective() && !llvm::is_sorted(getPeers()))
    return emitOpError("lists the members of a collective in ascending order");
  if (rooted && !llvm::is_contained(getPeers(), static_cast<int64_t>(*getRoot())))
    return emitOpError() << "has root " << *getRoot() << ", which is not a member";
  return success();
}
