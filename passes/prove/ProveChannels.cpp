// Proves that on every channel the k-th send is the k-th receive, and that groups join the same collectives in order.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// NCCL and MPI channels carry no names: a receive takes whatever comes next (docs/proofs.md 5).
#include "analysis/Actions.h"
#include "analysis/Messages.h"
#include "analysis/Proof.h"
#include "dialect/pipeline/Ranges.h"
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
  void runOnPrograms() override {
    markAllAnalysesPreserved();
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(prove(program)))
        return signalPassFailure();
  }

  static LogicalResult prove(ProgramOp program) {
    // (from, to, channel) -> what each end posts, in order; a collective has one entry per member.
    std::map<std::tuple<int64_t, int64_t, int64_t>, std::pair<std::vector<PostOp>, std::vector<PostOp>>> lanes;
    // A collective is known by its channel and members; `proveMembers` compares each member with the first.
    std::map<std::pair<int64_t, std::vector<int64_t>>, std::map<int64_t, std::vector<PostOp>>> collectives;
    std::map<int64_t, PostOp> firstOn; // each channel that collectives use
    for (auto rank : program.getOps<RankOp>())
      for (auto post : rank.getOps<PostOp>()) {
        int64_t self = rank.getRank(), peer = post.getPeers().front(), channel = post.getChannel().value_or(0);
        if (post.getKind() == PostKind::send)
          lanes[{self, peer, channel}].first.push_back(post);
        else if (post.getKind() == PostKind::receive)
          lanes[{peer, self, channel}].second.push_back(post);
        else
          collectives[{channel, post.getPeers().vec()}][self].push_back(post);
        if (channel >= kFirstInnerChannel)
          return emitError(post.getLoc())
                 << "`" << post.getThing().str() << "` goes on channel " << channel << "; those from "
                 << kFirstInnerChannel << " on are for what devices of a rank exchange inside units" << withLoops(post);
        if (post.isCollective())
          if (PostOp first = firstOn.try_emplace(channel, post).first->second; first.getAxes() != post.getAxes())
            return tellSharedChannel(first, post);
      }
    for (auto &[lane, ends] : lanes)
      if (failed(proveLane(std::get<0>(lane), std::get<1>(lane), ends.first, ends.second)))
        return failure();
    for (auto &[key, posts] : collectives)
      for (int64_t member : key.second)
        if (failed(proveMembers(posts, posts.begin()->first, member)))
          return failure();
    int64_t messages = 0;
    for (auto &[lane, ends] : lanes)
      messages += ends.first.size();
    if (failed(proveExchanges(program)))
      return failure();
    recordProof(program, "channels",
                {{"edges", static_cast<int64_t>(lanes.size())},
                 {"messages", messages},
                 {"groups", static_cast<int64_t>(collectives.size())}});
    return success();
  }

  /// Proves the exchanges of a rank's devices inside units: each set of axes has its own channel, and all devices that
  /// meet on it run the same bodies in the same order.
  static LogicalResult proveExchanges(ProgramOp program) {
    SymbolTable symbols(program->getParentOfType<ModuleOp>());
    llvm::DenseSet<StringRef> seen;
    for (auto rank : program.getOps<RankOp>())
      for (auto launch : rank.getOps<LaunchOp>()) {
        auto body =
            seen.insert(launch.getCallee()).second ? symbols.lookup<func::FuncOp>(launch.getCallee()) : func::FuncOp();
        if (!body)
          continue;
        WalkResult walked = body.walk([&](nn::Exchange exchange) {
          return failed(innerMessage(exchange, program.getMeshAttr())) ? WalkResult::interrupt()
                                                                       : WalkResult::advance();
        });
        if (walked.wasInterrupted())
          return failure();
      }
    return success();
  }

  /// A device is in one group of a channel: that of the ranks, or that of its line along the axes.
  static LogicalResult tellSharedChannel(PostOp first, PostOp post) {
    auto over = [](PostOp one) { return one.getAxes() ? "over " + textOf(one.getAxesAttr()) : "among ranks"; };
    auto error = emitError(post.getLoc()) << "`" << post.getThing().str() << "` goes " << over(post) << " on channel "
                                          << static_cast<int64_t>(post.getChannel().value_or(0)) << ", where `"
                                          << first.getThing().str() << "` goes " << over(first) << withLoops(post);
    error.attachNote(first.getLoc()) << "first here" << withLoops(first);
    return failure();
  }

  static LogicalResult proveLane(int64_t from, int64_t to, ArrayRef<PostOp> sends, ArrayRef<PostOp> receives) {
    for (size_t k = 0; k < std::max(sends.size(), receives.size()); ++k) {
      if (k >= receives.size()) {
        PostOp send = sends[k];
        return emitError(send.getLoc()) << "rank " << from << " sends `" << send.getThing().str() << "`, and rank "
                                        << to << " never posts a receive for it" << withLoops(send);
      }
      PostOp receive = receives[k];
      if (k >= sends.size())
        return emitError(receive.getLoc()) << "rank " << to << " waits for `" << receive.getThing().str()
                                           << "`, which rank " << from << " never sends" << withLoops(receive);
      PostOp send = sends[k];
      if (agree(send, receive))
        continue;
      auto error = emitError(send.getLoc())
                   << "message " << k << " from rank " << from << " to rank " << to << " is " << tell(send, receive)
                   << ", and the receiver expects " << tell(receive, send) << withLoops(send);
      error.attachNote(receive.getLoc()) << "received here" << withLoops(receive);
      return failure();
    }
    return success();
  }

  static LogicalResult proveMembers(std::map<int64_t, std::vector<PostOp>> &posts, int64_t first, int64_t member) {
    std::vector<PostOp> &mine = posts[first], &theirs = posts[member];
    for (size_t k = 0; k < std::max(mine.size(), theirs.size()); ++k) {
      bool lacking = k >= mine.size();
      if (lacking || k >= theirs.size()) {
        PostOp alone = lacking ? theirs[k] : mine[k];
        return emitError(alone.getLoc()) << "rank " << (lacking ? member : first) << " joins the " << alone.jointName()
                                         << " of `" << alone.getThing().str() << "`, and rank "
                                         << (lacking ? first : member) << " never does" << withLoops(alone);
      }
      if (agree(mine[k], theirs[k]))
        continue;
      auto error = emitError(mine[k].getLoc())
                   << "rank " << first << " joins the " << mine[k].jointName() << " of " << tell(mine[k], theirs[k])
                   << ", where rank " << member << " joins the " << theirs[k].jointName() << " of "
                   << tell(theirs[k], mine[k]) << withLoops(mine[k]);
      error.attachNote(theirs[k].getLoc()) << "joined here" << withLoops(theirs[k]);
      return failure();
    }
    return success();
  }

  static bool agree(PostOp a, PostOp b) {
    return a.getThing() == b.getThing() && a.getSlot().getType() == b.getSlot().getType() &&
           (!a.isCollective() ||
            (a.getKind() == b.getKind() && a.getRoot() == b.getRoot() && a.getTensors() == b.getTensors()));
  }

  /// Names the thing that is sent. If both ends name the same thing, tells its size here, or its source or target.
  static std::string tell(PostOp post, PostOp other) {
    std::string name = "`" + post.getThing().str() + "`";
    if (post.getThing() != other.getThing())
      return name;
    if (post.getSlot().getType() == other.getSlot().getType())
      return name + (!post.getRoot() ? " on every rank"
                                     : (post.getKind() == PostKind::broadcast ? " from rank " : " on rank ") +
                                           std::to_string(*post.getRoot()));
    std::string text;
    llvm::raw_string_ostream os(text);
    os << name << " as `" << cast<SlotType>(post.getSlot().getType()).getPayload() << "`";
    return text;
  }
};

} // namespace
