// Lowers the program of one rank: a chain of functions of at most a thousand calls, the bodies it uses, its JSON text.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: launch @s0.F #unit(%a, %w) -> (%b) scratch %t;  %r = post send #thing %b;  complete %r
// After:  pp_begin_unit(rank, 0); s0.F(rank, arena + 0, arena + 64, arena + 128, arena + 192); pp_end_unit(rank, 0);
//         pp_post_send(rank, 0, arena + 128); pp_complete(rank, 0), each followed by `return if the status is not 0`.
// The forward program of the rank becomes a second chain, `pp_eval_<rank>`, with the bodies and in the text of the
// first one. Of a program that does an update over (docs/barrier.md) three stretches become chains: `pp_drain_<rank>`,
// `pp_undo_<rank>` and `pp_head_<rank>`. Their units and messages are those of the step, and have its numbers.
#include "analysis/Actions.h"
#include "analysis/lives/Redo.h"
#include "dialect/pipeline/Pipeline.h"
#include "lowering/Bodies.h"
#include "lowering/Calls.h"
#include "lowering/CheckLowered.h"
#include "lowering/Describe.h"
#include "lowering/Lowering.h"
#include "lowering/formula/Table.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/IR/Module.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// LLVM takes 17 s for one function of 1e5 calls, and 1 s for a hundred functions of a thousand calls.
static constexpr unsigned kCallsPerFunction = 1000;

static FailureOr<ProgramOp> findProgram(ModuleOp module) {
  auto programs = module.getOps<ProgramOp>();
  int64_t count =
      llvm::count_if(programs, [](ProgramOp program) { return !program.getForward() && !program.getRedo(); });
  if (count != 1)
    return module.emitError() << "expected one `pipeline.program` to lower, got " << count;
  return ProgramOp::trainingOf(module);
}

/// The program of a rank; null if there is none.
static RankOp findRank(ProgramOp program, int64_t number) {
  if (program)
    for (auto rank : program.getOps<RankOp>())
      if (static_cast<int64_t>(rank.getRank()) == number)
        return rank;
  return {};
}

namespace {

/// The steps of one rank under construction.
class RankLowering {
public:
  RankLowering(RankOp rank, ProgramOp program)
      : rank(rank), pieces(program), calls(rank.getLoc()), text(rank), bodies(calls, text),
        symbols(program->getParentOfType<ModuleOp>()) {}

  /// `forward`: the rank's program for evaluation, or null; `redo`: that which does an update over, or null.
  FailureOr<OwningOpRef<ModuleOp>> run(RankOp forward, RankOp redo);

private:
  LogicalResult lower(Operation &op);
  LogicalResult lower(LaunchOp launch);
  /// The launch's body with so many ops in each turn; null after an error.
  const Body *find(LaunchOp launch, ArrayRef<int64_t> turns);
  LogicalResult call(LaunchOp launch, const Body &body, int32_t unit, size_t turn);
  LogicalResult lower(PostOp post);
  LogicalResult lower(PostOp post, int32_t message);
  LogicalResult lower(CompleteOp complete);
  FailureOr<Value> slotAddress(Operation *user, Value slot);
  /// If a slot's tensors lie apart, an address for each of them.
  LogicalResult addAddresses(Operation *user, Value slot, SmallVectorImpl<Value> &addresses);
  /// The function that takes the next calls; a new one where the last is full.
  CallChain &chain();
  std::string name(StringRef prefix) { return (prefix + Twine(rank.getRank())).str(); }
  LogicalResult lowerStep(RankOp program, StringRef called);
  LogicalResult lowerRedo(RankOp redo);
  LogicalResult lowerAgain(ArrayRef<Operation *> ops, StringRef called, ArrayRef<int32_t> units,
                           ArrayRef<int32_t> posts);
  void beginChain(StringRef called);
  void finishChain();

  RankOp rank;
  StringRef stepName;                                            ///< `pp_step_`, `pp_eval_`, ..
  SmallVector<int32_t> unitsOfStep, postsOfStep, postsOfWeights; ///< numbers, in order
  Pieces pieces;
  CallModule calls;
  RankText text;
  Bodies bodies;
  SymbolTable symbols;
  SmallVector<LLVM::LLVMFuncOp> links;
  std::unique_ptr<CallChain> link;
  llvm::DenseMap<Value, int64_t> offsets;  ///< of slots
  llvm::DenseMap<Value, int32_t> messages; ///< of requests
};

} // namespace

CallChain &RankLowering::chain() {
  // A launch is three calls and stays in one function, so that a failure names its unit in one place.
  if (link && link->size() + 3 <= kCallsPerFunction)
    return *link;
  if (link)
    link->finish();
  links.push_back(calls.addFunction(name(stepName) + "_link_" + std::to_string(links.size()), /*pointers=*/2,
                                    /*internal=*/true, rank.getLoc()));
  link = std::make_unique<CallChain>(calls, links.back());
  return *link;
}

FailureOr<Value> RankLowering::slotAddress(Operation *user, Value slot) {
  auto found = offsets.find(slot);
  if (found == offsets.end())
    return user->emitOpError("uses a slot that is not in its rank's program");
  return link->address(link->argument(1), found->second);
}

LogicalResult RankLowering::addAddresses(Operation *user, Value slot, SmallVectorImpl<Value> &addresses) {
  if (auto op = slot.getDefiningOp<SlotOp>(); op && op.getPlaces()) {
    for (int64_t place : op.tensorOffsets())
      addresses.push_back(link->address(link->argument(1), place));
    return success();
  }
  FailureOr<Value> address = slotAddress(user, slot);
  if (succeeded(address))
    addresses.push_back(*address);
  return address;
}

const Body *RankLowering::find(LaunchOp launch, ArrayRef<int64_t> turns) {
  auto function = symbols.lookup<func::FuncOp>(launch.getCallee());
  if (!function) {
    launch.emitOpError() << "runs `@" << launch.getCallee() << "`, which is no function of the module";
    return nullptr;
  }
  const Body *body = bodies.get(function, launch, turns);
  if (!body || failed(body->checkLaunch(launch)))
    return nullptr;
  return body;
}

/// The next turn of a launch.
LogicalResult RankLowering::call(LaunchOp launch, const Body &body, int32_t unit, size_t turn) {
  CallChain &chain = this->chain();
  chain.callRuntime(launch.getLoc(), "pp_begin_unit", unit);
  SmallVector<Value> arguments = {chain.argument(0)};
  SmallVector<Value> slots = launch.slots();
  if (launch.getScratch())
    slots.push_back(launch.getScratch());
  for (Value slot : slots)
    if (failed(addAddresses(launch, slot, arguments)))
      return failure();
  if (!launch.getScratch())
    arguments.push_back(chain.null());
  chain.call(launch.getLoc(), body.functions[turn], arguments);
  chain.callRuntime(launch.getLoc(), "pp_end_unit", unit);
  if (!launch.getJudges())
    return success();
  FailureOr<Value> norm = slotAddress(launch, launch.getInputs().back());
  if (failed(norm))
    return failure();
  chain.callRuntime(launch.getLoc(), "pp_judge", unit, *norm);
  return success();
}

/// A launch, and the one beside it, in their turns.
LogicalResult RankLowering::lower(LaunchOp launch) {
  LaunchOp launches[] = {launch, launch.follower()};
  ArrayRef<int64_t> turns = launch.getBeside().value_or(ArrayRef<int64_t>());
  if (launches[1] && turns.empty())
    return launch.emitOpError("has no turns; interleave-units gives it some");
  SmallVector<int64_t> lengths[2];
  for (auto [i, length] : llvm::enumerate(turns))
    lengths[i % 2].push_back(length);
  const Body *found[2] = {};
  int32_t units[2] = {};
  for (int which : {0, 1}) {
    if (!launches[which])
      continue;
    if (!(found[which] = find(launches[which], lengths[which])))
      return failure();
    unitsOfStep.push_back(units[which] = text.addUnit(launches[which], found[which]->flops));
  }
  for (size_t turn = 0; turn < std::max<size_t>(turns.size(), 1); ++turn)
    if (failed(call(launches[turn % 2], *found[turn % 2], units[turn % 2], turn / 2)))
      return failure();
  return success();
}

LogicalResult RankLowering::lower(PostOp post) {
  if (post.getPeers().empty())
    return post.emitOpError("expected a peer, got none");
  int32_t message = text.addMessage(post);
  postsOfStep.push_back(message);
  if (post.getThing().getRole() == Role::weight)
    postsOfWeights.push_back(message);
  return lower(post, message);
}

LogicalResult RankLowering::lower(PostOp post, int32_t message) {
  CallChain &chain = this->chain();
  FailureOr<Value> address = slotAddress(post, post.getSlot());
  FailureOr<Value> shard = post.getShard()    ? slotAddress(post, post.getShard())
                           : post.isInPlace() ? address
                                              : FailureOr<Value>(chain.null());
  if (failed(address) || failed(shard))
    return failure();
  messages[post.getRequest()] = message;
  if (post.isCollective())
    chain.callRuntime(post.getLoc(), "pp_post_collective", message, {*address, *shard});
  else
    chain.callRuntime(post.getLoc(), ("pp_post_" + stringifyPostKind(post.getKind())).str(), message, *address);
  return success();
}

LogicalResult RankLowering::lower(Operation &op) {
  if (auto slot = dyn_cast<SlotOp>(op)) {
    if (slot.getPlaces())
      return success();
    if (!slot.getOffset())
      return slot.emitOpError("has no offset; plan-slots gives it one");
    offsets[slot.getSlot()] =
        static_cast<int64_t>(*slot.getOffset()) + (slot.getHost() ? hostBegin(slot->getParentOfType<RankOp>()) : 0);
    return text.addSlot(slot, pieces);
  }
  if (auto launch = dyn_cast<LaunchOp>(op))
    return launch.leader() ? success() : lower(launch);
  if (auto post = dyn_cast<PostOp>(op))
    return lower(post);
  if (auto complete = dyn_cast<CompleteOp>(op))
    return lower(complete);
  return op.emitOpError("cannot be lowered in a rank's program");
}

LogicalResult RankLowering::lower(CompleteOp complete) {
  auto found = messages.find(complete.getRequest());
  if (found == messages.end())
    return complete.emitOpError("completes a request that no `post` before it made");
  chain().callRuntime(complete.getLoc(), "pp_complete", found->second);
  return success();
}

void RankLowering::beginChain(StringRef called) {
  stepName = called;
  links.clear();
  link.reset();
}

LogicalResult RankLowering::lowerStep(RankOp program, StringRef called) {
  beginChain(called);
  for (Operation &op : program.getBody().front())
    if (failed(lower(op)))
      return failure();
  finishChain();
  return success();
}

void RankLowering::finishChain() {
  if (link)
    link->finish();
  CallChain step(calls, calls.addFunction(name(stepName), /*pointers=*/2, /*internal=*/false, rank.getLoc()));
  for (LLVM::LLVMFuncOp function : links)
    step.call(rank.getLoc(), function, {step.argument(0), step.argument(1)});
  step.finish();
}

/// Ops of the redo program under the numbers that the step has for them.
LogicalResult RankLowering::lowerAgain(ArrayRef<Operation *> ops, StringRef called, ArrayRef<int32_t> units,
                                       ArrayRef<int32_t> posts) {
  beginChain(called);
  for (Operation *op : ops) {
    if (auto complete = dyn_cast<CompleteOp>(op)) {
      if (failed(lower(complete)))
        return failure();
    } else if (auto post = dyn_cast<PostOp>(op)) {
      chain();
      if (failed(lower(post, posts.front())))
        return failure();
      posts = posts.drop_front();
    } else if (auto launch = dyn_cast<LaunchOp>(op)) {
      const Body *body = find(launch, {});
      if (!body || failed(call(launch, *body, units.front(), /*turn=*/0)))
        return failure();
      units = units.drop_front();
    }
  }
  finishChain();
  return success();
}

/// Lowers the part between the judges of the redo program: the drain; the update, which has the launches that end the
/// step and its messages with weights; and the head.
LogicalResult RankLowering::lowerRedo(RankOp redo) {
  RedoParts parts = redoPartsOf(redo);
  ArrayRef<int32_t> units(unitsOfStep), posts(postsOfStep);
  size_t post = 0;
  for (Operation &op : redo.getBody().front())
    if (auto slot = dyn_cast<SlotOp>(op); slot && slot.getOffset())
      offsets[slot.getSlot()] = static_cast<int64_t>(*slot.getOffset()) + (slot.getHost() ? hostBegin(rank) : 0);
  for (Operation *op : parts.head)
    if (auto sent = dyn_cast<PostOp>(op))
      messages[sent.getRequest()] = posts[post++];
  auto count = [](ArrayRef<Operation *> ops, auto is) { return size_t(llvm::count_if(ops, is)); };
  size_t launches = count(parts.undo, llvm::IsaPred<LaunchOp>), sent = count(parts.undo, llvm::IsaPred<PostOp>);
  if (sent != postsOfWeights.size())
    return redo.emitOpError() << "posts " << sent << " messages with weights, and its step " << postsOfWeights.size();
  return success(succeeded(lowerAgain(parts.drain, "pp_drain_", {}, {})) &&
                 succeeded(lowerAgain(parts.undo, "pp_undo_", units.take_back(launches), postsOfWeights)) &&
                 succeeded(lowerAgain(parts.again, "pp_head_", units, posts)));
}

FailureOr<OwningOpRef<ModuleOp>> RankLowering::run(RankOp forward, RankOp redo) {
  if (failed(lowerStep(rank, "pp_step_")) || (redo && failed(lowerRedo(redo))))
    return failure();
  text.setScratch(scratchOf(rank, forward));
  if (forward) {
    text.beginForward();
    if (failed(lowerStep(forward, "pp_eval_")))
      return failure();
  }
  calls.addText(name("pp_json_"), text.take());
  return std::move(calls.module);
}

//===-- To LLVM -------------------------------------------------------------------------------------------------===//

void pp::loadLoweringDialects(MLIRContext &context) {
  DialectRegistry registry;
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  context.appendDialectRegistry(registry);
  context.loadDialect<LLVM::LLVMDialect>();
}

static LogicalResult translate(ModuleOp module, StringRef name, llvm::LLVMContext &context,
                               std::unique_ptr<llvm::Module> &result) {
  result = translateModuleToLLVMIR(module, context, name);
  return success(result != nullptr);
}

LogicalResult pp::lowerRank(ModuleOp module, int64_t number, llvm::LLVMContext &context,
                            std::unique_ptr<llvm::Module> &result) {
  FailureOr<ProgramOp> program = findProgram(module);
  if (failed(program))
    return failure();
  RankOp rank = findRank(*program, number), forward = findRank(ProgramOp::forwardOf(module), number),
         redo = findRank(ProgramOp::redoOf(module), number);
  if (!rank)
    return program->emitOpError() << "has no program for rank " << number << "; it has " << program->getRanks()
                                  << " ranks";
  FailureOr<OwningOpRef<ModuleOp>> lowered = RankLowering(rank, *program).run(forward, redo);
  if (failed(lowered) || failed(translate(**lowered, ("rank" + Twine(number)).str(), context, result)))
    return failure();
  return checkLowered(rank, forward, redo, *result);
}

// { ptr json, ptr step, ptr eval } per rank: pp_rank_entry_t of runtime/Pp.h.
//
// Without a barrier also { ptr drain, ptr undo, ptr head } per rank, pp_late_entry_t: a table of its own, so that those
// of other programs stay what they are.
static void addTable(CallModule &calls, ArrayRef<int64_t> ranks, StringRef name, ArrayRef<StringRef> prefixes,
                     bool evaluates) {
  OpBuilder &builder = calls.builder;
  Location loc = calls.module->getLoc();
  auto entry = LLVM::LLVMStructType::getLiteral(builder.getContext(), {calls.pointer, calls.pointer, calls.pointer});
  auto table = LLVM::LLVMArrayType::get(entry, ranks.size());
  bool isMain = prefixes.front() == "pp_json_";
  for (int64_t rank : ranks) {
    for (StringRef prefix : prefixes)
      if (prefix != "pp_json_" && (evaluates || prefix != "pp_eval_"))
        calls.addFunction((prefix + Twine(rank)).str(), 2, /*internal=*/false, loc);
    if (isMain)
      builder.create<LLVM::GlobalOp>(loc, builder.getI8Type(), /*isConstant=*/true, LLVM::Linkage::External,
                                     ("pp_json_" + Twine(rank)).str(), Attribute());
  }
  auto global =
      builder.create<LLVM::GlobalOp>(loc, table, /*isConstant=*/true, LLVM::Linkage::External, name, Attribute());
  if (isMain)
    builder.create<LLVM::GlobalOp>(loc, calls.i32, /*isConstant=*/true, LLVM::Linkage::External, "pp_rank_count",
                                   builder.getI32IntegerAttr(static_cast<int32_t>(ranks.size())));
  OpBuilder::InsertionGuard guard(builder);
  builder.createBlock(&global.getInitializerRegion());
  Value value = builder.create<LLVM::UndefOp>(loc, table);
  for (auto [i, rank] : llvm::enumerate(ranks))
    for (auto [field, prefix] : llvm::enumerate(prefixes)) {
      int64_t position[] = {static_cast<int64_t>(i), static_cast<int64_t>(field)};
      Value address;
      if (evaluates || prefix != "pp_eval_")
        address = builder.create<LLVM::AddressOfOp>(loc, calls.pointer, (prefix + Twine(rank)).str());
      else
        address = builder.create<LLVM::ZeroOp>(loc, calls.pointer);
      value = builder.create<LLVM::InsertValueOp>(loc, value, address, position);
    }
  builder.create<LLVM::ReturnOp>(loc, value);
}

LogicalResult pp::lowerTable(ModuleOp module, ArrayRef<int64_t> ranks, llvm::LLVMContext &context,
                             std::unique_ptr<llvm::Module> &result) {
  FailureOr<ProgramOp> program = findProgram(module);
  if (failed(program))
    return failure();
  FailureOr<std::string> text = describeProgram(*program);
  if (failed(text))
    return failure();
  CallModule calls(module.getLoc());
  calls.addText("pp_program_json", *text);
  bool evaluates = bool(ProgramOp::forwardOf(module));
  bool isLate = bool(ProgramOp::redoOf(module));
  addTable(calls, ranks, "pp_rank_table", {"pp_json_", "pp_step_", "pp_eval_"}, evaluates);
  if (isLate)
    addTable(calls, ranks, "pp_late_table", {"pp_drain_", "pp_undo_", "pp_head_"}, /*evaluates=*/true);
  if (failed(addFormulas(module, calls)))
    return failure();
  if (failed(translate(*calls.module, "table", context, result)))
    return failure();
  return checkLoweredTable(*program, ranks, evaluates, isLate, *result);
}
