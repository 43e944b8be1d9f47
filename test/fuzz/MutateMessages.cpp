// Mutations of messages; names say what is done, the comment which real mistake it stands for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/fuzz/Mutant.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace pp::pipeline;

namespace pp::fuzz {
namespace {

class MessageMutant : public Mutant {
public:
  using Mutant::Mutant;

  bool dropMessage() {
    return dropAll(drawPost([](PostOp) { return true; }));
  }
  /// An exchange of a ring is left away: a stale weight or a share that stays.
  bool dropWeight() {
    return dropAll(drawPost([](PostOp op) { return op.getThing().getRole() == Role::weight; }));
  }
  bool dropGrad() {
    return dropAll(drawPost([](PostOp op) { return op.getThing().getRole() == Role::grad; }));
  }
  bool dropPost() {
    return dropEnd(drawPost([](PostOp) { return true; }));
  }
  bool dropComplete() { return drop(drawComplete()); }

  bool repeatComplete() {
    CompleteOp complete = drawComplete();
    if (!complete)
      return false;
    Operation *again = complete->clone();
    complete->getBlock()->getOperations().insertAfter(complete->getIterator(), again);
    return dice.oneIn(2) || moveLater(again);
  }

  bool repeatMessage() {
    PostOp post = drawPost([](PostOp) { return true; });
    for (PostOp end : post ? endsOf(post) : llvm::SmallVector<PostOp>())
      repeat(end);
    return bool(post);
  }
  bool repeatPost() {
    PostOp post = drawPost([](PostOp) { return true; });
    if (post)
      repeat(post);
    return bool(post);
  }

  bool delayPost() {
    return moveLater(drawPost([](PostOp) { return true; }));
  }
  bool hastenPost() {
    return moveEarlier(drawPost([](PostOp) { return true; }));
  }
  bool delayComplete() { return moveLater(drawComplete()); }
  bool hastenComplete() { return moveEarlier(drawComplete()); }

  /// A gradient leaves before its last contribution is in.
  bool hastenGrad() {
    return moveEarlier(
        drawPost([](PostOp op) { return op.getThing().getRole() == Role::grad && op.getKind() == PostKind::send; }));
  }

  /// Blocking calls instead of posts: on one rank, or on all (a ring without groups).
  bool blockRank() { return block(dice.pick(ranks)); }
  bool blockAll() {
    bool any = false;
    for (RankOp rank : ranks)
      any |= block(rank);
    return any;
  }
  /// Blocking, and every rank sends before it receives: a ring without groups.
  bool blockSendsFirst() {
    bool any = false;
    for (RankOp rank : ranks)
      for (PostOp post : llvm::SmallVector<PostOp>(rank.getOps<PostOp>()))
        for (Operation *before = post->getPrevNode(); before && post.getKind() == PostKind::send;
             before = post->getPrevNode()) {
          auto receive = llvm::dyn_cast<PostOp>(before);
          if (!receive || receive.getKind() != PostKind::receive)
            break;
          exchange(receive, post);
          any = true;
        }
    return any && blockAll();
  }
  /// Blocking, but even ranks send first and odd ones receive first: legal for a ring.
  bool blockEvenOdd() {
    for (RankOp rank : ranks)
      for (PostOp post : llvm::SmallVector<PostOp>(rank.getOps<PostOp>())) {
        bool first = (post.getKind() == PostKind::send) == (rank.getRank() % 2 == 0);
        auto next = llvm::dyn_cast_or_null<PostOp>(post->getNextNode());
        if (!first && next && next.getKind() != post.getKind() && !next.isCollective())
          exchange(post, next);
      }
    return blockAll();
  }

  /// Receives are posted right before they are waited for: one, or all of a rank.
  bool receiveLate() {
    RankOp rank = dice.pick(ranks);
    llvm::SmallVector<PostOp> receives;
    for (auto post : rank.getOps<PostOp>())
      if (post.getKind() == PostKind::receive && !post->use_empty())
        receives.push_back(post);
    if (receives.empty())
      return false;
    if (dice.oneIn(2))
      receives = {dice.pick(receives)};
    for (PostOp post : receives)
      post->moveBefore(*post.getRequest().user_begin());
    return true;
  }

  bool misroute() {
    PostOp post = drawPost([](PostOp op) { return !op.isCollective(); });
    if (!post || ranks.size() < 2)
      return false;
    int64_t self = int64_t(rankOf(post).getRank()), peer = dice.below(int64_t(ranks.size()));
    if (peer == post.getPeers().front())
      return false;
    bool sends = post.getKind() == PostKind::send;
    post.setPeers({peer});
    post.setChannel(uint64_t(sends ? self * int64_t(ranks.size()) + peer : peer * int64_t(ranks.size()) + self));
    return true;
  }

  /// One member sums over a smaller group.
  bool smallerGroup() {
    PostOp post = drawPost([](PostOp op) { return op.isCollective(); });
    if (!post || post.getPeers().size() < 2)
      return false;
    int64_t lost = post.getPeers()[size_t(dice.below(int64_t(post.getPeers().size())))];
    llvm::SmallVector<int64_t> kept;
    for (int64_t peer : post.getPeers())
      if (peer != lost)
        kept.push_back(peer);
    llvm::SmallVector<PostOp> ends = dice.oneIn(2) ? endsOf(post) : llvm::SmallVector<PostOp>{post};
    for (PostOp end : ends) {
      if (int64_t(rankOf(end).getRank()) == lost && ends.size() > 1)
        dropEnd(end);
      else
        end.setPeers(kept);
    }
    return true;
  }

  /// One member joins a collective of its group right before the one that it should join first: MPI takes them by
  /// turns.
  bool swapCollectives() {
    PostOp later = drawPost([](PostOp op) { return op.isCollective(); });
    for (Operation *op = later ? later->getPrevNode() : nullptr; op; op = op->getPrevNode())
      if (auto earlier = dyn_cast<PostOp>(op);
          earlier && earlier.isCollective() && earlier.getPeers() == later.getPeers()) {
        later->moveBefore(earlier);
        return true;
      }
    return false;
  }

  /// A broadcast or reduce has another root, for one member or for all.
  bool wrongRoot() {
    PostOp post = drawPost([](PostOp op) { return op.getRoot().has_value(); });
    if (!post)
      return false;
    int64_t root = post.getPeers()[size_t(dice.below(int64_t(post.getPeers().size())))];
    if (root == int64_t(*post.getRoot()))
      return false;
    for (PostOp end : dice.oneIn(2) ? endsOf(post) : llvm::SmallVector<PostOp>{post})
      end.setRoot(uint64_t(root));
    return true;
  }

  bool otherChannel() {
    PostOp post = drawPost([](PostOp) { return true; }), other = drawPost([](PostOp) { return true; });
    if (!post || post.getChannel() == other.getChannel())
      return false;
    for (PostOp end : dice.oneIn(2) ? endsOf(post) : llvm::SmallVector<PostOp>{post})
      end.setChannelAttr(other.getChannelAttr());
    return true;
  }

  bool wrongSlot() {
    PostOp post = drawPost([](PostOp) { return true; });
    return post && replaceSlot(post, 0);
  }

  /// Two receives (or sends) of a rank exchange their slots.
  bool exchangeSlots() {
    PostOp a = drawPost([](PostOp) { return true; });
    PostOp b = a ? drawPost([&](PostOp op) {
      return op != a && op.getKind() == a.getKind() && rankOf(op) == rankOf(a) &&
             op.getSlot().getType() == a.getSlot().getType() && op.getSlot() != a.getSlot();
    })
                 : PostOp();
    if (!b)
      return false;
    mlir::Value mine = a.getSlot();
    a.getSlotMutable().set(b.getSlot());
    b.getSlotMutable().set(mine);
    return true;
  }

  /// Two messages of a lane overtake each other, at one end or at both.
  bool overtake() {
    PostOp a = drawPost([](PostOp) { return true; });
    auto next = [&](PostOp op) { return a && rankOf(op) == rankOf(a) && a->isBeforeInBlock(op) && sameLane(a, op); };
    PostOp b = drawPost(next);
    for (Operation *between = b ? b->getPrevNode() : nullptr; between != a && b; between = between->getPrevNode())
      if (auto post = llvm::dyn_cast<PostOp>(between); post && next(post))
        b = post; // the nearest
    if (!b)
      return false;
    llvm::SmallVector<PostOp> first = endsOf(a), second = endsOf(b);
    overtake(a, b);
    if (dice.oneIn(2) && first.size() == 2 && second.size() == 2)
      overtake(first[1], second[1]);
    return true;
  }

  /// The posts between two launches of a rank come in another order.
  bool shufflePosts() {
    PostOp post = drawPost([](PostOp op) { return llvm::isa_and_nonnull<PostOp>(op->getNextNode()); });
    if (!post)
      return false;
    llvm::SmallVector<PostOp> run;
    for (Operation *op = post; llvm::isa_and_nonnull<PostOp>(op); op = op->getNextNode())
      run.push_back(llvm::cast<PostOp>(op));
    for (size_t i = run.size() - 1; i > 0; --i)
      exchange(run[i], run[size_t(dice.below(int64_t(i + 1)))]);
    return true;
  }

private:
  /// The first of two posts goes right behind the second, its completes behind it.
  static void overtake(PostOp first, PostOp second) {
    if (second->isBeforeInBlock(first))
      std::swap(first, second);
    first->moveAfter(second);
    for (Operation *user : first.getRequest().getUsers())
      if (user->isBeforeInBlock(first))
        user->moveAfter(first);
  }

  static bool sameLane(PostOp a, PostOp b) {
    bool same = a.isCollective() ? b.isCollective() : a.getKind() == b.getKind();
    return same && a.getPeers() == b.getPeers() && a.getChannel() == b.getChannel();
  }

  /// All ends of the message, the given one first.
  llvm::SmallVector<PostOp> endsOf(PostOp post) {
    int64_t self = int64_t(rankOf(post).getRank());
    size_t number = 0;
    for (auto other : rankOf(post).getOps<PostOp>()) {
      if (other == post)
        break;
      number += sameLane(post, other);
    }
    llvm::SmallVector<PostOp> ends = {post};
    for (int64_t peer : post.getPeers()) {
      size_t met = 0;
      if (peer == self || peer >= int64_t(ranks.size()))
        continue;
      for (auto other : ranks[size_t(peer)].getOps<PostOp>()) {
        bool meets = post.isCollective()
                         ? sameLane(post, other)
                         : other.getKind() != post.getKind() && !other.isCollective() &&
                               other.getPeers().front() == self && other.getChannel() == post.getChannel();
        if (meets && met++ == number)
          ends.push_back(other);
      }
    }
    return ends;
  }

  static bool dropEnd(PostOp post) {
    if (!post)
      return false;
    for (Operation *user : llvm::make_early_inc_range(post.getRequest().getUsers()))
      user->erase();
    post.erase();
    return true;
  }

  bool dropAll(PostOp post) {
    for (PostOp end : post ? endsOf(post) : llvm::SmallVector<PostOp>())
      dropEnd(end);
    return bool(post);
  }

  /// The same end once more, right after it is complete.
  static void repeat(PostOp post) {
    Operation *last = post;
    for (Operation *user : post.getRequest().getUsers())
      if (last->isBeforeInBlock(user))
        last = user;
    OpBuilder builder(post.getContext());
    builder.setInsertionPointAfter(last);
    auto again = llvm::cast<PostOp>(builder.clone(*post));
    builder.create<CompleteOp>(post.getLoc(), again.getRequest());
  }

  static bool block(RankOp rank) {
    bool any = false;
    for (PostOp post : llvm::SmallVector<PostOp>(rank.getOps<PostOp>()))
      for (Operation *user : post.getRequest().getUsers()) {
        any |= post->getNextNode() != user;
        user->moveAfter(post);
      }
    return any;
  }
};

template <bool (MessageMutant::*change)()> bool apply(ModuleOp module, Dice &dice) {
  MessageMutant mutant(module, dice);
  return (mutant.*change)() && mutant.isDefined();
}

constexpr Mutation onMessages[] = {
    {"drop-message", apply<&MessageMutant::dropMessage>},
    {"drop-weight", apply<&MessageMutant::dropWeight>},
    {"drop-grad", apply<&MessageMutant::dropGrad>},
    {"drop-post", apply<&MessageMutant::dropPost>},
    {"drop-complete", apply<&MessageMutant::dropComplete>},
    {"repeat-complete", apply<&MessageMutant::repeatComplete>},
    {"repeat-message", apply<&MessageMutant::repeatMessage>},
    {"repeat-post", apply<&MessageMutant::repeatPost>},
    {"delay-post", apply<&MessageMutant::delayPost>},
    {"hasten-post", apply<&MessageMutant::hastenPost>},
    {"delay-complete", apply<&MessageMutant::delayComplete>},
    {"hasten-complete", apply<&MessageMutant::hastenComplete>},
    {"hasten-grad", apply<&MessageMutant::hastenGrad>},
    {"block-rank", apply<&MessageMutant::blockRank>},
    {"block-all", apply<&MessageMutant::blockAll>},
    {"block-sends-first", apply<&MessageMutant::blockSendsFirst>},
    {"block-even-odd", apply<&MessageMutant::blockEvenOdd>},
    {"receive-late", apply<&MessageMutant::receiveLate>},
    {"misroute", apply<&MessageMutant::misroute>},
    {"smaller-group", apply<&MessageMutant::smallerGroup>},
    {"swap-collectives", apply<&MessageMutant::swapCollectives>},
    {"wrong-root", apply<&MessageMutant::wrongRoot>},
    {"other-channel", apply<&MessageMutant::otherChannel>},
    {"wrong-slot", apply<&MessageMutant::wrongSlot>},
    {"exchange-slots", apply<&MessageMutant::exchangeSlots>},
    {"overtake", apply<&MessageMutant::overtake>},
    {"shuffle-posts", apply<&MessageMutant::shufflePosts>},
};

} // namespace

llvm::ArrayRef<Mutation> messageMutations() { return onMessages; }

} // namespace pp::fuzz
