// Proves that on every channel the k-th send is the k-th receive, and that members of a group post the same collectives.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// NCCL and MPI channels carry no names: a receive takes whatever comes next (proofs.md 5).
#include "passes/Actions.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_PROVECHANNELS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

struct ProveChannels : public pp::impl::ProveChannelsBase<ProveChannels> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(prove(program)))
        return signalPassFailure();
  }

  static LogicalResult prove(ProgramOp program) {
    // (from, to, channel) -> what each end posts, in order; a collective has one entry per member.
    std::map<std::tuple<int64_t, int64_t, int64_t>, std::pair<std::vector<PostOp>, std::vector<PostOp>>> lanes;
    std::map<int64_t, std::map<int64_t, std::vector<PostOp>>> collectives;
    for (auto rank : program.getOps<RankOp>())
      for (auto post : rank.getOps<PostOp>()) {
        int64_t self = rank.getRank(), peer = post.getPeers().front(), channel = post.getChannel().value_or(0);
        if (post.getKind() == PostKind::send)
          lanes[{self, peer, channel}].first.push_back(post);
        else if (post.getKind() == PostKind::receive)
          lanes[{peer, self, channel}].second.push_back(post);
        else
          collectives[channel][self].push_back(post);
      }
    for (auto &[lane, ends] : lanes)
      if (failed(proveLane(std::get<0>(lane), std::get<1>(lane), ends.first, ends.second, "receive")))
        return failure();
    for (auto &[channel, members] : collectives)
      for (auto &[rank, posts] : members)
        if (failed(proveLane(members.begin()->first, rank, members.begin()->second, posts, "join")))
          return failure();
    return success();
  }

  static LogicalResult proveLane(int64_t from, int64_t to, ArrayRef<PostOp> sends, ArrayRef<PostOp> receives,
                                 StringRef verb) {
    for (size_t k = 0; k < std::max(sends.size(), receives.size()); ++k) {
      if (k >= receives.size())
        return emitError(sends[k]->getLoc()) << "rank " << from << " sends `" << const_cast<PostOp &>(sends[k]).getThing().str()
                                    << "`, and rank " << to << " never posts a " << verb << " for it";
      if (k >= sends.size())
        return emitError(receives[k]->getLoc()) << "rank " << to << " waits for `" << const_cast<PostOp &>(receives[k]).getThing().str()
                                       << "`, which rank " << from << " never sends";
      PostOp send = sends[k], receive = receives[k];
      if (send.getThing() == receive.getThing() && send.getSlot().getType() == receive.getSlot().getType())
        continue;
      auto error = emitError(send.getLoc()) << "message " << k << " from rank " << from << " to rank " << to << " is `"
                                            << send.getThing().str() << "`, and the receiver expects `"
                                            << receive.getThing().str() << "`";
      error.attachNote(receive.getLoc()) << "received here";
      return failure();
    }
    return success();
  }
};

} // namespace
