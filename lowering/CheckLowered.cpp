// Walks a rank's program and the calls of its lowered step side by side.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   launch @s0.F #unit(%a) -> (%b)   pp_begin_unit(rank, k)  s0.F(rank, arena + a, arena + b, ..)  pp_end_unit(rank, k)
//   %r = post send #thing %b         pp_post_send(rank, m, arena + b)
//   complete %r                      pp_complete(rank, m)
// k and m count launches and messages; unit k and message m of the text are compared where they are named. Messages of
// bodies are counted where a body first has them.
#include "lowering/CheckLowered.h"
#include "lowering/CheckBodies.h"
#include "lowering/formula/Table.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/Module.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

//===-- What the module holds -----------------------------------------------------------------------------------===//

/// The text of a constant global, without the zero byte at its end; nothing if it is no such text.
static std::optional<StringRef> textOf(const llvm::Module &module, StringRef name) {
  const llvm::GlobalVariable *global = module.getNamedGlobal(name);
  if (!global || !global->isConstant() || !global->hasExternalLinkage() || !global->hasInitializer())
    return std::nullopt;
  auto *data = dyn_cast<llvm::ConstantDataSequential>(global->getInitializer());
  if (!data || !data->isCString())
    return std::nullopt;
  return data->getAsCString();
}

namespace {

class RankCheck {
public:
  RankCheck(RankOp rank, const llvm::Module &lowered)
      : rank(rank), number(static_cast<int64_t>(rank.getRank())), lowered(lowered),
        symbols(rank->getParentOfType<ModuleOp>()),
        text(rank, textOf(lowered, "pp_json_" + std::to_string(number)).value_or("")) {}

  LogicalResult run(RankOp forward, RankOp redo) {
    if (failed(text.checkHead(forward)) || failed(checkStep(rank, "pp_step_")) || (redo && failed(checkRedo(redo))))
      return failure();
    text.beginForward(units, text.countMessages(), bool(forward));
    if ((forward && failed(checkStep(forward, "pp_eval_"))) || failed(checkModule()))
      return failure();
    return text.finish();
  }

private:
  LogicalResult differs(Location loc, const Twine &where, const Twine &expected, const Twine &got) {
    return reportDifference(loc, number, where, expected, got);
  }
  static std::string nameOf(const ReadCall &call) { return "`" + call.callee->getName().str() + "`"; }

  LogicalResult read(const llvm::Function &function, std::vector<ReadCall> &into) {
    std::string why = readCalls(function, into);
    seen.insert(&function);
    return why.empty() ? success() : differs(rank.getLoc(), "`" + function.getName() + "`", "calls alone", why);
  }

  LogicalResult checkStep(RankOp program, StringRef prefix) {
    calls.clear();
    next = 0;
    if (failed(readStep((prefix + Twine(number)).str())))
      return failure();
    for (Operation &op : program.getBody().front())
      if (failed(check(op)))
        return failure();
    if (next != calls.size())
      return differs(program.getLoc(), "behind its last op", "no call", nameOf(calls[next]));
    return success();
  }

  /// Checks the part of the redo program between its two judges: the end of the head's messages, the repeated end of
  /// the step, and the head again. Numbers are those of the same units and messages in the step.
  LogicalResult checkRedo(RankOp redo) {
    std::vector<Operation *> head, between;
    for (Operation &op : redo.getBody().front()) {
      if (isa<SlotOp>(op))
        continue;
      bool isHead = head.empty() || !judges(head.back());
      (isHead ? head : between).push_back(&op);
      if (!isHead && judges(&op))
        break;
    }
    if (between.size() <= head.size())
      return differs(redo.getLoc(), "the redo", "its head twice", "less");
    size_t first = 0, again = between.size() - head.size();
    for (Operation *op : head)
      if (auto post = dyn_cast<PostOp>(op))
        messages[post.getRequest()] = messageNumbers[first++];
    auto *undo =
        std::find_if(between.data(), between.data() + again, [](Operation *op) { return !isa<CompleteOp>(op); });
    ArrayRef<Operation *> all(between);
    size_t drained = undo - between.data();
    return success(succeeded(checkAgain(all.take_front(drained), "pp_drain_", /*atEnd=*/false)) &&
                   succeeded(checkAgain(all.slice(drained, again - drained), "pp_undo_", /*atEnd=*/true)) &&
                   succeeded(checkAgain(all.drop_front(again), "pp_head_", /*atEnd=*/false)));
  }

  static bool judges(Operation *op) {
    auto launch = dyn_cast<LaunchOp>(op);
    return launch && launch.getJudges();
  }

  /// `atEnd`: the units are the last ones of the step, and the messages those with weights; else they are the first.
  LogicalResult checkAgain(ArrayRef<Operation *> ops, StringRef prefix, bool atEnd) {
    calls.clear();
    next = 0;
    if (failed(readStep((prefix + Twine(number)).str())))
      return failure();
    size_t unit = atEnd ? units - llvm::count_if(ops, llvm::IsaPred<LaunchOp>) : 0, post = 0;
    const std::vector<int64_t> &numbers = atEnd ? weightNumbers : messageNumbers;
    if (atEnd && numbers.size() != static_cast<size_t>(llvm::count_if(ops, llvm::IsaPred<PostOp>)))
      return differs(rank.getLoc(), "the redo", "all messages with weights once", "others");
    for (Operation *op : ops) {
      LogicalResult same = success();
      if (auto launch = dyn_cast<LaunchOp>(op))
        same = check(launch, static_cast<int64_t>(unit++));
      else if (auto posted = dyn_cast<PostOp>(op))
        same = check(posted, numbers[post++]);
      else
        same = check(*op);
      if (failed(same))
        return failure();
    }
    if (next != calls.size())
      return differs(rank.getLoc(), "behind the last op of `" + prefix + "`", "no call", nameOf(calls[next]));
    return success();
  }

  /// The calls of the step, through the functions that it is cut into.
  LogicalResult readStep(const std::string &name) {
    const llvm::Function *step = lowered.getFunction(name);
    if (!step || step->isDeclaration() || !step->hasExternalLinkage() || step->arg_size() != 2)
      return differs(rank.getLoc(), "the step", "a function `" + name + "`", "none");
    std::vector<ReadCall> links;
    if (failed(read(*step, links)))
      return failure();
    const CallOperand both[] = {CallOperand::of(CallAddress{0, 0}), CallOperand::of(CallAddress{1, 0})};
    for (const ReadCall &link : links) {
      if (link.callee->isDeclaration() || !link.callee->hasLocalLinkage() || seen.contains(link.callee))
        return differs(rank.getLoc(), "the step", "calls of its own functions, once each", nameOf(link));
      if (failed(compareCalls(rank.getLoc(), number, "the step", link.callee->getName(), both, link)) ||
          failed(read(*link.callee, calls)))
        return failure();
    }
    return success();
  }

  /// The next call is that of a runtime function with these operands behind the rank.
  LogicalResult take(Operation *op, const Twine &where, const Twine &name, ArrayRef<CallOperand> operands) {
    std::string expected = name.str();
    if (next == calls.size())
      return differs(op->getLoc(), where, "`" + expected + "`", "no further call");
    const ReadCall &call = calls[next++];
    if (!call.callee->isDeclaration())
      return differs(op->getLoc(), where, "`" + expected + "`", nameOf(call));
    SmallVector<CallOperand> all = {CallOperand::of(CallAddress{0, 0})};
    all.append(operands.begin(), operands.end());
    return compareCalls(op->getLoc(), number, where, expected, all, call);
  }

  static CallOperand arena(int64_t offset) { return CallOperand::of(CallAddress{1, offset}); }

  LogicalResult check(Operation &op) {
    if (auto slot = dyn_cast<SlotOp>(op))
      return check(slot);
    if (auto launch = dyn_cast<LaunchOp>(op))
      return check(launch);
    if (auto post = dyn_cast<PostOp>(op))
      return check(post);
    auto complete = dyn_cast<CompleteOp>(op);
    if (!complete)
      return differs(op.getLoc(), "`" + op.getName().getStringRef() + "`", "an op that can be lowered", "this one");
    auto message = messages.find(complete.getRequest());
    if (message == messages.end())
      return differs(op.getLoc(), "complete", "a message that was posted", "none");
    return take(&op, "complete", "pp_complete", {CallOperand::of(message->second)});
  }

  LogicalResult check(SlotOp slot) {
    SmallVector<int64_t> offsets = payloadOffsets(slot.getSlot().getType().getPayload()), places = slot.tensorOffsets();
    int64_t end = static_cast<int64_t>((slot.getHost() ? rank.getHostBytes() : rank.getArenaBytes()).value_or(0));
    for (auto [i, place] : llvm::enumerate(places))
      if (place < 0 || place + (offsets[i + 1] - offsets[i]) > end)
        return differs(slot.getLoc(), "slot `" + slot.getLabel() + "`", Twine(end) + " bytes of memory",
                       "a tensor from byte " + Twine(place) + " to " + Twine(place + (offsets[i + 1] - offsets[i])));
    return text.checkSlot(slot);
  }

  /// A launch while the calls of its turns are read.
  struct Launched {
    LaunchOp launch;
    func::FuncOp body;
    int64_t unit;
    SmallVector<CallOperand> addresses;
    SmallVector<bool> apart;
    SmallVector<const llvm::Function *> functions; ///< by turn
  };

  static std::string nameOf(LaunchOp launch) { return "`" + launch.getUnit().str() + "`"; }

  /// Checks a launch and the one beside it turn by turn; then each body as a whole.
  LogicalResult check(LaunchOp launch) {
    if (launch.leader())
      return success();
    SmallVector<Launched, 2> both;
    for (LaunchOp each : {launch, launch.follower()})
      if (each && failed(begin(each, units++, both)))
        return failure();
    size_t turns = launch.getBeside().value_or(ArrayRef<int64_t>()).size();
    for (size_t turn = 0; turn < std::max<size_t>(turns, 1); ++turn)
      if (failed(checkTurn(both[turn % 2])))
        return failure();
    for (Launched &each : both)
      if (failed(checkBodyOf(each)) || failed(text.checkUnit(each.launch, each.unit, flopsOf(each.body))))
        return failure();
    return both.size() == 2 ? checkMessages(both) : success();
  }

  /// One that is done over, under the number of the step.
  LogicalResult check(LaunchOp launch, int64_t unit) {
    SmallVector<Launched, 1> one;
    return success(succeeded(begin(launch, unit, one)) && succeeded(checkTurn(one[0])) &&
                   succeeded(checkBodyOf(one[0])));
  }

  /// No message is posted in one of two bodies while it is under way in the other.
  LogicalResult checkMessages(ArrayRef<Launched> both) {
    if (!pairs.insert({both[0].functions.front(), both[1].functions.front()}).second)
      return success();
    llvm::DenseSet<int64_t> open;
    for (size_t turn = 0; turn < both[0].functions.size() + both[1].functions.size(); ++turn) {
      const Launched &its = both[turn % 2];
      std::vector<ReadCall> inside;
      (void)readCalls(*its.functions[turn / 2], inside); // checked with the body
      for (const ReadCall &call : inside) {
        bool posts = call.callee->getName() == "pp_post_collective", ends = call.callee->getName() == "pp_complete";
        if (ends)
          open.erase(call.operands[1].number);
        if (posts && !open.insert(call.operands[1].number).second)
          return differs(LaunchOp(its.launch).getLoc(), "turn " + Twine(turn), "a message that is not under way",
                         "message " + Twine(call.operands[1].number));
      }
    }
    return success();
  }

  LogicalResult begin(LaunchOp launch, int64_t unit, SmallVectorImpl<Launched> &into) {
    auto body = symbols.lookup<func::FuncOp>(launch.getCallee());
    if (!body)
      return differs(launch.getLoc(), nameOf(launch), "a body `@" + launch.getCallee() + "`", "none");
    SmallVector<CallOperand> addresses = {CallOperand::of(CallAddress{0, 0})};
    SmallVector<bool> apart;
    for (Value value : launch.slots()) {
      auto slot = value.getDefiningOp<SlotOp>();
      apart.push_back(slot.getPlaces().has_value());
      if (apart.back())
        for (int64_t place : slot.tensorOffsets())
          addresses.push_back(arena(place));
      else
        addresses.push_back(arena(slotBegin(slot)));
    }
    addresses.push_back(launch.getScratch() ? arena(slotBegin(launch.getScratch().getDefiningOp<SlotOp>()))
                                            : CallOperand::of(CallAddress()));
    into.push_back({launch, body, unit, addresses, apart, {}});
    return success();
  }

  LogicalResult checkTurn(Launched &its) {
    std::string where = nameOf(its.launch);
    CallOperand unit = CallOperand::of(its.unit);
    if (failed(take(its.launch, where, "pp_begin_unit", {unit})))
      return failure();
    if (next == calls.size())
      return differs(its.launch.getLoc(), where, "a call of its body", "no further call");
    const ReadCall &call = calls[next++];
    if (call.callee->isDeclaration() || !call.callee->hasLocalLinkage())
      return differs(its.launch.getLoc(), where, "a call of its body", nameOf(call));
    if (failed(compareCalls(its.launch.getLoc(), number, where, call.callee->getName(), its.addresses, call)))
      return failure();
    its.functions.push_back(call.callee);
    if (failed(take(its.launch, where, "pp_end_unit", {unit})))
      return failure();
    if (!its.launch.getJudges())
      return success();
    auto norm = its.launch.getInputs().back().getDefiningOp<SlotOp>();
    return take(its.launch, where, "pp_judge", {unit, arena(slotBegin(norm))});
  }

  /// The functions of the body's turns, which together are compared with the body at their first calls.
  LogicalResult checkBodyOf(Launched &its) {
    std::string where = nameOf(its.launch);
    for (const llvm::Function *function : its.functions) {
      auto found = bodies.find(function);
      if (found != bodies.end() && (found->second.body != its.body || found->second.apart != its.apart ||
                                    found->second.functions != its.functions))
        return differs(its.launch.getLoc(), where, "the body `@" + its.launch.getCallee() + "`",
                       "`" + function->getName() + "`, which is the body `@" + found->second.body.getSymName() + "`");
    }
    if (llvm::all_of(its.functions, [&](const llvm::Function *function) { return bodies.count(function); }))
      return success();
    for (const llvm::Function *function : its.functions) {
      if (!seen.insert(function).second)
        return differs(its.launch.getLoc(), where, "functions of its own, once each", "`" + function->getName() + "`");
      bodies.insert({function, its});
    }
    return checkBody(its.body, its.apart, number, its.functions, text);
  }

  LogicalResult check(PostOp post) {
    int64_t message = text.countMessages();
    if (failed(check(post, message)))
      return failure();
    messageNumbers.push_back(message);
    if (post.getThing().getRole() == Role::weight)
      weightNumbers.push_back(message);
    return text.checkMessage(post, message);
  }

  LogicalResult check(PostOp post, int64_t message) {
    std::string where = "the " + stringifyPostKind(post.getKind()).str() + " of `" + post.getThing().str() + "`";
    SmallVector<CallOperand> operands = {CallOperand::of(message),
                                         arena(slotBegin(post.getSlot().getDefiningOp<SlotOp>()))};
    if (post.isCollective())
      operands.push_back(post.getShard()                    ? arena(slotBegin(post.getShard().getDefiningOp<SlotOp>()))
                         : post.getAxes() && post.getCuts() ? operands.back() // its shard lies in the whole
                                                            : CallOperand::of(CallAddress()));
    std::string name = post.isCollective() ? "collective" : stringifyPostKind(post.getKind()).str();
    if (failed(take(post, where, "pp_post_" + name, operands)))
      return failure();
    messages[post.getRequest()] = message;
    return success();
  }

  /// Nothing is in the module that the step does not lead to, and nothing runs beside it.
  LogicalResult checkModule() {
    for (const llvm::Function &function : lowered)
      if (!function.isDeclaration() && !seen.contains(&function))
        return differs(rank.getLoc(), "`" + function.getName() + "`", "a call of it", "none");
    if (!lowered.alias_empty() || !lowered.ifunc_empty() || !lowered.getModuleInlineAsm().empty() ||
        lowered.global_size() != 1)
      return differs(rank.getLoc(), "its module", "one text",
                     Twine(lowered.global_size()) + " globals, or other symbols");
    return success();
  }

  RankOp rank;
  int64_t number;
  const llvm::Module &lowered;
  SymbolTable symbols;
  TextCheck text;
  std::vector<ReadCall> calls;
  size_t next = 0;   ///< the first call that is not yet compared
  int64_t units = 0; ///< launches so far
  llvm::DenseMap<Value, int64_t> messages;
  std::vector<int64_t> messageNumbers, weightNumbers; ///< of the posts of the step, in their order
  llvm::DenseSet<const llvm::Function *> seen;
  llvm::DenseMap<const llvm::Function *, Launched> bodies;                         ///< by the functions of their turns
  llvm::DenseSet<std::pair<const llvm::Function *, const llvm::Function *>> pairs; ///< of bodies that run side by side
};

} // namespace

LogicalResult pp::checkLowered(RankOp rank, RankOp forward, RankOp redo, const llvm::Module &lowered) {
  return RankCheck(rank, lowered).run(forward, redo);
}

//===-- The table -----------------------------------------------------------------------------------------------===//

LogicalResult pp::checkLoweredTable(ProgramOp program, ArrayRef<int64_t> ranks, bool evaluates, bool isLate,
                                    const llvm::Module &lowered) {
  auto differs = [&](const Twine &where, const Twine &expected, const Twine &got) -> LogicalResult {
    return emitError(program.getLoc()) << "the table of ranks is not what was proved: " << where << ": expected "
                                       << expected << ", got " << got << "; this is a fault of pp-compile";
  };
  auto *count = lowered.getNamedGlobal("pp_rank_count");
  auto *counted = count && count->hasInitializer() ? dyn_cast<llvm::ConstantInt>(count->getInitializer()) : nullptr;
  if (!counted || counted->getSExtValue() != static_cast<int64_t>(ranks.size()))
    return differs("`pp_rank_count`", Twine(ranks.size()),
                   counted ? Twine(counted->getSExtValue()) : Twine("no number"));
  auto checkTable = [&](StringRef name, ArrayRef<StringLiteral> prefixes) -> LogicalResult {
    auto *table = lowered.getNamedGlobal(name);
    auto *type = table && table->hasInitializer() ? dyn_cast<llvm::ArrayType>(table->getValueType()) : nullptr;
    if (!type || type->getNumElements() != ranks.size())
      return differs("`" + name + "`", Twine(ranks.size()) + " entries", "another number");
    for (auto [i, rank] : llvm::enumerate(ranks)) {
      const llvm::Constant *entry = table->getInitializer()->getAggregateElement(static_cast<unsigned>(i));
      for (auto [field, prefix] : llvm::enumerate(prefixes)) {
        const llvm::Constant *part = entry ? entry->getAggregateElement(static_cast<unsigned>(field)) : nullptr;
        std::string expected = (prefix + Twine(rank)).str();
        if (prefix == "pp_eval_" && !evaluates) {
          if (!part || !part->isNullValue())
            return differs("entry " + Twine(i), "no step for evaluation", "one");
          continue;
        }
        if (!part || part->getName() != expected || !cast<llvm::GlobalValue>(part)->isDeclaration())
          return differs("entry " + Twine(i), "`" + expected + "`",
                         part ? "`" + part->getName() + "`" : Twine("nothing"));
      }
    }
    return success();
  };
  if (failed(checkTable("pp_rank_table", {"pp_json_", "pp_step_", "pp_eval_"})) ||
      (isLate && failed(checkTable("pp_late_table", {"pp_drain_", "pp_undo_", "pp_head_"}))))
    return failure();
  if (!isLate && lowered.getNamedGlobal("pp_late_table"))
    return differs("`pp_late_table`", "none", "one");
  if (std::string why = checkFormulas(program->getParentOfType<ModuleOp>(), lowered); !why.empty())
    return emitError(program.getLoc()) << "`pp_formulas`: " << why << "; this is a fault of pp-compile";
  std::optional<StringRef> text = textOf(lowered, "pp_program_json");
  if (!text)
    return differs("`pp_program_json`", "a text", "none");
  return checkProgramText(program, *text);
}
