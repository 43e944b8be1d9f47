// The mutations, one function each; names say what is done, the comment which real mistake it stands for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/fuzz/Mutations.h"
#include "passes/PlanBodies.h"
#include "llvm/ADT/STLExtras.h"
#include <map>

using namespace mlir;
using namespace pp::pipeline;

namespace pp::fuzz {
namespace {

class Mutator {
public:
  Mutator(ModuleOp module, Dice &dice) : module(module), dice(dice) {
    program = *module.getOps<ProgramOp>().begin();
    for (auto rank : program.getOps<RankOp>()) {
      // Slots first: then launches, posts and completes can trade places freely.
      Block &block = rank.getBody().front();
      llvm::SmallVector<SlotOp> slots(block.getOps<SlotOp>());
      for (SlotOp slot : llvm::reverse(slots))
        slot->moveBefore(&block, block.begin());
      ranks.push_back(rank);
    }
  }

  //===-- Launches ----------------------------------------------------------------------------------------------===//

  bool dropLaunch() {
    return drop(drawLaunch([](LaunchOp) { return true; }));
  }
  bool dropZero() {
    return drop(drawLaunch([](LaunchOp op) { return op.getCallee().ends_with(".zero"); }));
  }

  bool repeatLaunch() {
    LaunchOp launch = drawLaunch([](LaunchOp) { return true; });
    if (!launch)
      return false;
    Operation *again = launch->clone();
    launch->getBlock()->getOperations().insertAfter(launch->getIterator(), again);
    return dice.oneIn(2) || moveLater(again);
  }

  bool delayLaunch() {
    return moveLater(drawLaunch([](LaunchOp) { return true; }));
  }
  bool hastenLaunch() {
    return moveEarlier(drawLaunch([](LaunchOp) { return true; }));
  }
  /// The update runs before the last gradients are in.
  bool hastenUpdate() {
    return moveEarlier(drawLaunch([](LaunchOp op) { return op.getCallee().ends_with(".U"); }));
  }

  /// The weight pass of a unit runs before the input pass that feeds it, the backward before its forward.
  bool swapPhases() {
    LaunchOp later = drawLaunch([](LaunchOp op) { return op.getUnit().getPhase() != Phase::U; });
    if (!later)
      return false;
    llvm::SmallVector<LaunchOp> others;
    for (auto launch : rankOf(later).getOps<LaunchOp>())
      if (launch != later && launch.getUnit().getCoord() == later.getUnit().getCoord())
        others.push_back(launch);
    if (others.empty())
      return false;
    exchange(later, dice.pick(others));
    return true;
  }

  /// Another microbatch's stash, another version's weights: a slot of the same type.
  bool wrongInput() {
    LaunchOp launch = drawLaunch([](LaunchOp op) { return !op.getInputs().empty(); });
    return launch && replaceSlot(launch, unsigned(dice.below(int64_t(launch.getInputs().size()))));
  }

  bool wrongResult() {
    LaunchOp launch = drawLaunch([](LaunchOp op) { return !op.getResults().empty(); });
    return launch && replaceSlot(launch, unsigned(launch.getInputs().size() +
                                                  size_t(dice.below(int64_t(launch.getResults().size())))));
  }

  /// The inputs of two units of one kind are exchanged: microbatches mixed up.
  bool exchangeInputs() {
    LaunchOp a = drawLaunch([](LaunchOp op) { return !op.getInputs().empty(); });
    if (!a)
      return false;
    LaunchOp b = drawLaunch(
        [&](LaunchOp op) { return op != a && op->getBlock() == a->getBlock() && op.getCallee() == a.getCallee(); });
    if (!b)
      return false;
    unsigned i = unsigned(dice.below(int64_t(a.getInputs().size())));
    mlir::Value mine = a->getOperand(i), theirs = b->getOperand(i);
    a->setOperand(i, theirs);
    b->setOperand(i, mine);
    return mine != theirs;
  }

  /// A later contribution overwrites the sum: the body for the first one is used.
  bool firstForLater() {
    return changeCallee([](llvm::StringRef name) { return name.ends_with(".first") ? "" : (name + ".first").str(); });
  }
  /// The first contribution is added to what nobody has cleared.
  bool laterForFirst() {
    return changeCallee([](llvm::StringRef name) { return name.consume_back(".first") ? name.str() : ""; });
  }

  //===-- Messages ----------------------------------------------------------------------------------------------===//

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
        if (!first && next && next.getKind() != post.getKind() && next.getKind() != PostKind::all_reduce)
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
    PostOp post = drawPost([](PostOp op) { return op.getKind() != PostKind::all_reduce; });
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
    PostOp post = drawPost([](PostOp op) { return op.getKind() == PostKind::all_reduce; });
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

  /// The trainer finds another piece or microbatch where the program has this one.
  bool rebind() {
    auto kind = [](SlotOp op) { return op.getBindingAttr() ? op.getBindingAttr().get("kind") : Attribute(); };
    SlotOp a = draw<SlotOp>([&](SlotOp op) { return bool(kind(op)); });
    SlotOp b = draw<SlotOp>([&](SlotOp op) {
      return a && op != a && kind(op) == kind(a) && op.getSlot().getType() == a.getSlot().getType();
    });
    if (!b || a.getBindingAttr() == b.getBindingAttr())
      return false;
    DictionaryAttr mine = a.getBindingAttr();
    a.setBindingAttr(b.getBindingAttr());
    b.setBindingAttr(mine);
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

  //===-- Any operation -----------------------------------------------------------------------------------------===//

  bool swapNeighbours() {
    Operation *op = drawOp();
    if (!op || !op->getNextNode())
      return false;
    exchange(op, op->getNextNode());
    return true;
  }

  bool swapAny() {
    Operation *a = drawOp();
    if (!a)
      return false;
    llvm::SmallVector<Operation *> ops = opsOf(rankOf(a));
    for (int attempt = 0; attempt < 8; ++attempt) {
      Operation *b = dice.pick(ops);
      exchange(a, b);
      if (a != b && isDefined())
        return true;
      exchange(a, b);
    }
    return false;
  }

  //===-- Memory ------------------------------------------------------------------------------------------------===//

  /// A slot lies where another one does.
  bool overlapSlots() {
    SlotOp slot = drawSlot(), other = drawSlot();
    if (!slot || rankOf(slot) != rankOf(other) || slot.getOffset() == other.getOffset())
      return false;
    slot.setOffset(*other.getOffset());
    return true;
  }
  bool moveSlot() {
    SlotOp slot = drawSlot();
    if (!slot)
      return false;
    int64_t lines = std::max<int64_t>(1, int64_t(rankOf(slot).getArenaBytes().value_or(0)) / 64);
    slot.setOffset(uint64_t(64 * dice.below(lines)));
    return true;
  }
  bool shrinkArena() {
    RankOp rank = dice.pick(ranks);
    if (rank.getArenaBytes().value_or(0) < 64)
      return false;
    rank.setArenaBytes(*rank.getArenaBytes() - 64);
    return true;
  }

  /// Every value is defined before it is used; what cannot be written down is no mutant.
  bool isDefined() {
    for (RankOp rank : ranks)
      for (Operation &op : rank.getBody().front())
        for (mlir::Value operand : op.getOperands())
          if (!operand.getDefiningOp()->isBeforeInBlock(&op))
            return false;
    return true;
  }

private:
  ModuleOp module;
  Dice &dice;
  ProgramOp program;
  llvm::SmallVector<RankOp> ranks;

  static RankOp rankOf(Operation *op) { return op->getParentOfType<RankOp>(); }

  template <typename Op, typename Which> Op draw(Which which) {
    llvm::SmallVector<Op> all;
    for (RankOp rank : ranks)
      for (auto op : rank.getOps<Op>())
        if (which(op))
          all.push_back(op);
    return all.empty() ? Op() : dice.pick(all);
  }
  template <typename Which> LaunchOp drawLaunch(Which which) { return draw<LaunchOp>(which); }
  template <typename Which> PostOp drawPost(Which which) { return draw<PostOp>(which); }
  CompleteOp drawComplete() {
    return draw<CompleteOp>([](CompleteOp) { return true; });
  }
  SlotOp drawSlot() {
    return draw<SlotOp>([](SlotOp op) { return bool(op.getOffset()); });
  }
  llvm::SmallVector<Operation *> opsOf(RankOp rank) {
    llvm::SmallVector<Operation *> ops;
    for (Operation &op : rank.getBody().front())
      if (!llvm::isa<SlotOp>(op))
        ops.push_back(&op);
    return ops;
  }
  Operation *drawOp() {
    llvm::SmallVector<Operation *> ops = opsOf(dice.pick(ranks));
    return ops.empty() ? nullptr : dice.pick(ops);
  }

  static bool drop(Operation *op) {
    if (op)
      op->erase();
    return op != nullptr;
  }

  static void exchange(Operation *a, Operation *b) {
    if (a == b)
      return;
    Operation *after = b->getNextNode();
    Block *block = b->getBlock();
    if (after == a) {
      a->moveBefore(b);
      return;
    }
    b->moveBefore(a);
    a->moveBefore(block, after ? after->getIterator() : block->end());
  }

  static bool uses(Operation *op, Operation *made) {
    return llvm::any_of(op->getOperands(), [&](mlir::Value value) { return value.getDefiningOp() == made; });
  }

  bool moveLater(Operation *op) {
    llvm::SmallVector<Operation *> later;
    for (Operation *next = op ? op->getNextNode() : nullptr; next && !uses(next, op); next = next->getNextNode())
      later.push_back(next);
    if (later.empty())
      return false;
    op->moveAfter(later[size_t(near(int64_t(later.size())))]);
    return true;
  }

  bool moveEarlier(Operation *op) {
    llvm::SmallVector<Operation *> earlier;
    for (Operation *next = op ? op->getPrevNode() : nullptr; next && !llvm::isa<SlotOp>(next) && !uses(op, next);
         next = next->getPrevNode())
      earlier.push_back(next);
    if (earlier.empty())
      return false;
    op->moveBefore(earlier[size_t(near(int64_t(earlier.size())))]);
    return true;
  }

  /// Half of the time one of the first four, else any.
  int64_t near(int64_t count) { return dice.below(dice.oneIn(2) ? std::min<int64_t>(4, count) : count); }

  bool replaceSlot(Operation *op, unsigned operand) {
    mlir::Value now = op->getOperand(operand);
    SlotOp other = draw<SlotOp>([&](SlotOp slot) {
      return slot->getBlock() == op->getBlock() && slot.getSlot() != now && slot.getSlot().getType() == now.getType();
    });
    if (other)
      op->setOperand(operand, other.getSlot());
    return bool(other);
  }

  /// The first of two posts goes right behind the second, its completes behind it.
  static void overtake(PostOp first, PostOp second) {
    if (second->isBeforeInBlock(first))
      std::swap(first, second);
    first->moveAfter(second);
    for (Operation *user : first.getRequest().getUsers())
      if (user->isBeforeInBlock(first))
        user->moveAfter(first);
  }

  template <typename Rename> bool changeCallee(Rename rename) {
    SymbolTable symbols(module);
    auto scratchOf = [](func::FuncOp body) { return body->getAttrOfType<IntegerAttr>(kScratchAttr).getInt(); };
    auto renamed = [&](LaunchOp op) {
      std::string name = rename(op.getCallee());
      auto body = name.empty() ? func::FuncOp() : symbols.lookup<func::FuncOp>(name);
      bool fits = body && scratchOf(body) <= scratchOf(symbols.lookup<func::FuncOp>(op.getCallee()));
      return fits ? body : func::FuncOp(); // lowering refuses a launch with too little scratch
    };
    LaunchOp launch = drawLaunch([&](LaunchOp op) { return bool(renamed(op)); });
    if (!launch)
      return false;
    // Both bodies name their groups; each group keeps its slot.
    FailureOr<BodyGroups> before = BodyGroups::get(symbols.lookup<func::FuncOp>(launch.getCallee())),
                          after = BodyGroups::get(renamed(launch));
    std::map<std::string, mlir::Value> slots;
    llvm::SmallVector<mlir::Value> handed(launch.getInputs());
    llvm::append_range(handed, launch.getResults());
    for (const auto *groups : {&before->inputs, &before->results})
      for (const BodyGroups::Group &group : *groups)
        slots[group.name] = handed[size_t(group.pointer)];
    llvm::SmallVector<mlir::Value> inputs, results, scratch;
    for (const BodyGroups::Group &group : after->inputs)
      inputs.push_back(slots[group.name]);
    for (auto [group, tie] : llvm::zip(after->results, after->ties))
      if (tie < 0)
        results.push_back(slots[group.name]);
    if (llvm::is_contained(inputs, mlir::Value()) || llvm::is_contained(results, mlir::Value()))
      return false;
    OpBuilder builder(launch);
    builder.create<LaunchOp>(launch.getLoc(), renamed(launch).getSymName(), launch.getUnit(), inputs, results,
                             launch.getScratch());
    launch.erase();
    return true;
  }

  //===-- Ends of messages --------------------------------------------------------------------------------------===//

  static bool isSum(PostOp post) { return post.getKind() == PostKind::all_reduce; }

  static bool sameLane(PostOp a, PostOp b) {
    return a.getKind() == b.getKind() && a.getPeers() == b.getPeers() && a.getChannel() == b.getChannel();
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
        bool meets = isSum(post) ? sameLane(post, other)
                                 : other.getKind() != post.getKind() && !isSum(other) &&
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

struct Mutation {
  llvm::StringRef name;
  bool (Mutator::*apply)();
};

constexpr Mutation mutations[] = {
    {"drop-launch", &Mutator::dropLaunch},
    {"drop-zero", &Mutator::dropZero},
    {"repeat-launch", &Mutator::repeatLaunch},
    {"delay-launch", &Mutator::delayLaunch},
    {"hasten-launch", &Mutator::hastenLaunch},
    {"hasten-update", &Mutator::hastenUpdate},
    {"swap-phases", &Mutator::swapPhases},
    {"wrong-input", &Mutator::wrongInput},
    {"wrong-result", &Mutator::wrongResult},
    {"exchange-inputs", &Mutator::exchangeInputs},
    {"first-for-later", &Mutator::firstForLater},
    {"later-for-first", &Mutator::laterForFirst},
    {"drop-message", &Mutator::dropMessage},
    {"drop-weight", &Mutator::dropWeight},
    {"drop-grad", &Mutator::dropGrad},
    {"drop-post", &Mutator::dropPost},
    {"drop-complete", &Mutator::dropComplete},
    {"repeat-complete", &Mutator::repeatComplete},
    {"repeat-message", &Mutator::repeatMessage},
    {"repeat-post", &Mutator::repeatPost},
    {"delay-post", &Mutator::delayPost},
    {"hasten-post", &Mutator::hastenPost},
    {"delay-complete", &Mutator::delayComplete},
    {"hasten-complete", &Mutator::hastenComplete},
    {"hasten-grad", &Mutator::hastenGrad},
    {"block-rank", &Mutator::blockRank},
    {"block-all", &Mutator::blockAll},
    {"block-sends-first", &Mutator::blockSendsFirst},
    {"block-even-odd", &Mutator::blockEvenOdd},
    {"receive-late", &Mutator::receiveLate},
    {"misroute", &Mutator::misroute},
    {"smaller-group", &Mutator::smallerGroup},
    {"other-channel", &Mutator::otherChannel},
    {"wrong-slot", &Mutator::wrongSlot},
    {"exchange-slots", &Mutator::exchangeSlots},
    {"overtake", &Mutator::overtake},
    {"rebind", &Mutator::rebind},
    {"shuffle-posts", &Mutator::shufflePosts},
    {"swap-neighbours", &Mutator::swapNeighbours},
    {"swap-any", &Mutator::swapAny},
    {"overlap-slots", &Mutator::overlapSlots},
    {"move-slot", &Mutator::moveSlot},
    {"shrink-arena", &Mutator::shrinkArena},
};

} // namespace

llvm::ArrayRef<llvm::StringRef> mutationNames() {
  static const auto names = llvm::map_to_vector(mutations, [](const Mutation &mutation) { return mutation.name; });
  return names;
}

bool mutate(ModuleOp module, llvm::StringRef name, Dice &dice) {
  const Mutation *found = llvm::find_if(mutations, [&](const Mutation &mutation) { return mutation.name == name; });
  Mutator mutator(module, dice);
  return found != std::end(mutations) && (mutator.*found->apply)() && mutator.isDefined();
}

} // namespace pp::fuzz
