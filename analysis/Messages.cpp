// Finds the ends of every message: the k-th send of a lane meets its k-th receive, as do the members of a collective.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The proofs pair messages by their own code (Execution.cpp): they do not rely on this file, which pictures and figures
// use.
#include "analysis/Messages.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

Messages::Messages(ProgramOp program) {
  struct Lane {
    SmallVector<int64_t> numbers;
    int64_t visit = -1; ///< the end whose posts are counted now
    size_t next = 0;
  };
  using LaneKey = std::tuple<int64_t, int64_t, int64_t, const void *>; // from, to and channel, or channel and members
  llvm::DenseMap<LaneKey, Lane> lanes;
  int64_t visit = 0;
  for (bool receives : {false, true})
    for (auto rank : program.getOps<RankOp>()) {
      ++visit;
      int64_t self = rank.getRank();
      for (auto post : rank.getOps<PostOp>()) {
        if ((post.getKind() == PostKind::receive) != receives)
          continue;
        int64_t channel = post.getChannel().value_or(0);
        LaneKey key(-1, -1, channel, post.getPeersAttr().getAsOpaquePointer());
        if (!post.isCollective()) {
          int64_t peer = post.getPeers().front();
          key = LaneKey(receives ? peer : self, receives ? self : peer, channel, nullptr);
        }
        Lane &lane = lanes[key];
        if (std::exchange(lane.visit, visit) != visit)
          lane.next = 0;
        if (lane.next == lane.numbers.size())
          lane.numbers.push_back(++count);
        numbers[post] = lane.numbers[lane.next++];
      }
    }
}

int64_t pp::bytesOf(PostOp post) { return payloadOffsets(post.getPayload()).back(); }

int64_t pp::bytesReceived(PostOp post) {
  TupleType payload = post.getPayload();
  int64_t others = post.countMembers() - 1, size = bytesOf(post);
  int64_t shard = post.getShard() ? slotBytes(post.getShard()) : post.isInPlace() ? (*post.getCuts())[1] : 0;
  if (post.isCollective() && shard == 0 && payload.size() == 1) // no more than its elements are sent
    size = tensorBytes(cast<RankedTensorType>(payload.getType(0)));
  switch (post.getKind()) {
  case PostKind::send:
    return 0;
  case PostKind::receive:
    return post.isHost() ? 0 : size;
  case PostKind::broadcast:
    return post.writtenSlot() ? size : 0;
  case PostKind::reduce:
    return post.writtenSlot() ? others * size : 0;
  case PostKind::all_reduce: // over the mesh a reduce-scatter and an all-gather
    return post.getAxes() ? 2 * others * size / (others + 1) : others * size;
  case PostKind::all_gather:
    return size - shard;
  case PostKind::reduce_scatter:
    return others * shard;
  }
  return 0;
}

//===-- Exchanges inside bodies ---------------------------------------------------------------------------------===//

static AxesAttr axesOf(nn::Exchange op) { return AxesAttr::get(op.getContext(), op.getAxes().getAxes()); }

FailureOr<InnerMessage> pp::innerMessage(nn::Exchange op, MeshAttr mesh) {
  if (!mesh)
    return op.emitOpError() << "goes over " << op.getAxes().str() << ", and this program has no mesh";
  InnerMessage message = {op,
                          axesOf(op),
                          1,
                          kFirstInnerChannel + 64 * op.countNeighbours(),
                          cast<RankedTensorType>(op->getResult(0).getType()),
                          {}};
  for (Axis axis : message.axes.getAxes()) {
    message.members *= mesh.sizeOf(axis);
    message.channel += int64_t(1) << static_cast<int64_t>(axis);
  }
  if (int64_t neighbours = op.countNeighbours()) {
    if (neighbours < 1 || message.members % neighbours != 0)
      return op.emitOpError() << "sums over " << neighbours << " neighbours of " << message.members << " devices";
    message.members = neighbours;
  }
  if (op.getKind() == nn::ExchangeKind::all_reduce)
    return message;
  if (op.getKind() == nn::ExchangeKind::reduce_scatter)
    message.type = cast<RankedTensorType>(op->getOperand(0).getType());
  auto said = op->getAttrOfType<IntegerAttr>("members");
  if (!said || said.getInt() != message.members)
    return op.emitOpError() << "has " << (said ? said.getInt() : 0) << " members over " << op.getAxes().str()
                            << ", which has " << message.members << " devices";
  if (op.getKind() == nn::ExchangeKind::all_to_all)
    return message;
  int64_t outer = 1; // runs that lie one behind the other in what the devices have together
  if (auto gather = dyn_cast<nn::AllGatherOp>(op.getOperation()))
    for (int64_t extent : message.type.getShape().take_front(gather.getDim()))
      outer *= extent;
  message.zigzag = op.getCut() == "zigzag";
  if (message.zigzag)
    outer = 2 * message.type.getDimSize(0);
  int64_t bytes = message.bytes() / (outer * message.members);
  for (int64_t i = 0; i <= outer * message.members; ++i)
    message.cuts.push_back(i * bytes);
  return message;
}

SmallVector<InnerMessage> pp::innerMessages(func::FuncOp body, MeshAttr mesh) {
  SmallVector<InnerMessage> messages;
  if (body)
    body.walk([&](nn::Exchange exchange) {
      if (FailureOr<InnerMessage> message = innerMessage(exchange, mesh); succeeded(message))
        messages.push_back(*message);
    });
  return messages;
}

int64_t InnerMessage::bytes() const { return type.getNumElements() * (type.getElementTypeBitWidth() / 8); }

int64_t InnerMessage::received() const {
  bool twice = nn::Exchange(op).getKind() == nn::ExchangeKind::all_reduce;
  return (twice ? 2 : 1) * (members - 1) * bytes() / members;
}

std::string InnerMessage::str() const {
  return (nn::stringifyExchangeKind(nn::Exchange(op).getKind()) + " over " + nn::Exchange(op).getAxes().str()).str();
}
