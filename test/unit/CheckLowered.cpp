// The last check of the lowering finds every mutant of a lowered program, and nothing in the program itself.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A mutant differs in one place: a constant, an argument, an element of a list, a call left out, made twice or in
// another's place; of the JSON texts one leaf, a key or an entry left out, an entry twice, two swapped. Of each kind
// some are sampled at random, of every program and rank; with PP_MUTANTS=all each is made, which takes an hour.
#include "lowering/CheckLowered.h"
#include "analysis/Proof.h"
#include "dialect/nn/Nn.h"
#include "frontend/Frontend.h"
#include "lowering/Lowering.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "passes/Passes.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;
using Text = nlohmann::ordered_json;

namespace {

//===-- Programs ------------------------------------------------------------------------------------------------===//

struct Case {
  const char *name;
  std::vector<std::pair<const char *, const char *>> values;
};

std::ostream &operator<<(std::ostream &os, const Case &each) { return os << each.name; }

struct Proved {
  std::unique_ptr<MLIRContext> context;
  OwningOpRef<ModuleOp> module;
  ProgramOp program() { return ProgramOp::trainingOf(*module); }
  /// The rank's program for evaluation.
  RankOp forward(RankOp rank) {
    auto ranks = ProgramOp::forwardOf(*module).getOps<RankOp>();
    return *std::next(ranks.begin(), static_cast<int64_t>(rank.getRank()));
  }
  /// The program that repeats an update; null if updates wait for the norm.
  RankOp redo(RankOp rank) {
    ProgramOp redo = ProgramOp::redoOf(*module);
    return redo ? *std::next(redo.getOps<RankOp>().begin(), static_cast<int64_t>(rank.getRank())) : RankOp();
  }
  bool isLate() { return bool(ProgramOp::redoOf(*module)); }
  LogicalResult check(RankOp rank, const llvm::Module &lowered) {
    return checkLowered(rank, forward(rank), redo(rank), lowered);
  }
};

/// A schedule of the library, planned and proved; hidden sizes are small where the case does not say them.
Proved compile(const Case &wanted) {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, nn::NnDialect, PipelineDialect>();
  Proved proved{std::make_unique<MLIRContext>(registry, MLIRContext::Threading::DISABLED), {}};
  proved.context->loadAllAvailableDialects();
  loadLoweringDialects(*proved.context);
  FrontendOptions options;
  options.stdlibDir = PP_STDLIB_DIR;
  std::map<std::string, std::string> values = {{"ranks", "4"},   {"microbatches", "4"}, {"layers", "4"},
                                               {"hidden", "16"}, {"heads", "2"},        {"ffn", "32"},
                                               {"vocab", "32"},  {"microbatch", "1"},   {"sequence", "8"}};
  for (auto [name, value] : wanted.values)
    values[name] = value;
  for (auto &[name, value] : values)
    options.defines.push_back({name, value});
  llvm::SourceMgr sources;
  sources.AddNewSourceBuffer(std::move(*llvm::MemoryBuffer::getFile(PP_STDLIB_DIR "/../examples/train.pipe")), {});
  proved.module = importPipe(sources, proved.context.get(), options);
  PassManager passes(proved.context.get());
  ChangeOptions changes;
  changes.forward = true;
  buildPipeline(passes, Until::Ranks, {}, changes);
  if (proved.module && failed(passes.run(*proved.module)))
    proved.module = {};
  return proved;
}

/// The error of a check; empty if it finds nothing.
std::string errorOf(MLIRContext *context, llvm::function_ref<LogicalResult()> check) {
  std::string said;
  ScopedDiagnosticHandler handler(context, [&](Diagnostic &diagnostic) { said += diagnostic.str() + "\n"; });
  bool holds = succeeded(check());
  EXPECT_EQ(holds, said.empty()) << said;
  return holds ? "" : said;
}

//===-- Mutants of the code -------------------------------------------------------------------------------------===//

using llvm::CallInst;
using llvm::ConstantInt;
using llvm::Instruction;

template <typename Inst> std::vector<Inst *> all(llvm::Module &module) {
  std::vector<Inst *> found;
  for (llvm::Function &function : module)
    for (llvm::BasicBlock &block : function)
      for (Instruction &instruction : block)
        if (auto *one = llvm::dyn_cast<Inst>(&instruction))
          found.push_back(one);
  return found;
}

std::vector<llvm::Use *> constants(llvm::Module &module) {
  std::vector<llvm::Use *> found;
  for (Instruction *instruction : all<Instruction>(module))
    for (llvm::Use &use : instruction->operands())
      if (llvm::isa<ConstantInt>(use))
        found.push_back(&use);
  return found;
}

void addTo(llvm::Use &use, int64_t more) {
  auto *old = llvm::cast<ConstantInt>(use);
  use.set(ConstantInt::get(old->getType(), static_cast<uint64_t>(old->getSExtValue() + more)));
}

/// Another address: 64 bytes further, or the rank itself where there was none.
void move(llvm::Use &use) {
  auto *user = llvm::cast<Instruction>(use.getUser());
  llvm::IRBuilder<> builder(user);
  if (llvm::isa<llvm::ConstantPointerNull>(use))
    use.set(user->getFunction()->getArg(0));
  else
    use.set(builder.CreateConstGEP1_64(builder.getInt8Ty(), use, 64));
}

std::vector<llvm::Use *> pointers(llvm::Module &module) {
  std::vector<llvm::Use *> found;
  for (CallInst *call : all<CallInst>(module))
    for (llvm::Use &use : call->args())
      if (use->getType()->isPointerTy())
        found.push_back(&use);
  for (llvm::StoreInst *store : all<llvm::StoreInst>(module))
    found.push_back(&store->getOperandUse(0));
  return found;
}

/// The call and the test behind it go; what it would have led to follows at once.
void leaveOut(CallInst &call) {
  llvm::BasicBlock *block = call.getParent();
  auto *branch = llvm::cast<llvm::BranchInst>(block->getTerminator());
  llvm::BasicBlock *exit = branch->getSuccessor(0), *next = branch->getSuccessor(1);
  exit->removePredecessor(block, /*KeepOneInputPHIs=*/true);
  llvm::BranchInst::Create(next, branch->getIterator());
  branch->eraseFromParent();
  while (!call.use_empty())
    llvm::cast<Instruction>(call.user_back())->eraseFromParent();
  call.eraseFromParent();
  if (exit->hasNPredecessors(0))
    exit->eraseFromParent();
}

/// The call stands there twice, each with a test of its own.
void makeTwice(CallInst &call) {
  llvm::BasicBlock *block = call.getParent();
  llvm::BasicBlock *exit = llvm::cast<llvm::BranchInst>(block->getTerminator())->getSuccessor(0);
  llvm::BasicBlock *rest = block->splitBasicBlock(&call);
  llvm::IRBuilder<> builder(block->getTerminator());
  auto *copy = llvm::cast<CallInst>(builder.Insert(call.clone()));
  builder.CreateCondBr(builder.CreateICmpNE(copy, builder.getInt32(0)), exit, rest);
  block->getTerminator()->eraseFromParent();
  for (llvm::PHINode &phi : exit->phis())
    phi.addIncoming(copy, block);
}

/// Whether two operands are one value, or one address computed twice.
bool isSame(const llvm::Value *a, const llvm::Value *b) {
  if (!a->getType()->isPointerTy())
    return a == b;
  const llvm::DataLayout layout("");
  llvm::APInt here(64, 0), there(64, 0);
  a = a->stripAndAccumulateConstantOffsets(layout, here, true);
  b = b->stripAndAccumulateConstantOffsets(layout, there, true);
  return a == b && here == there;
}

/// Each of two calls of one shape does what the other did.
bool swapCalls(CallInst &a, CallInst &b) {
  bool same = a.getCalledFunction() == b.getCalledFunction();
  if (a.getFunctionType() != b.getFunctionType())
    return false;
  for (unsigned i = 0; i < a.arg_size(); ++i)
    same &= isSame(a.getArgOperand(i), b.getArgOperand(i));
  if (same)
    return false;
  llvm::Function *callee = a.getCalledFunction();
  a.setCalledFunction(b.getCalledFunction());
  b.setCalledFunction(callee);
  for (unsigned i = 0; i < a.arg_size(); ++i) {
    llvm::Value *argument = a.getArgOperand(i);
    a.setArgOperand(i, b.getArgOperand(i));
    b.setArgOperand(i, argument);
  }
  return true;
}

/// A way to change a module: in how many places, and the change in one; false where that changes nothing.
struct Mutation {
  const char *name;
  size_t (*count)(llvm::Module &);
  bool (*change)(llvm::Module &, size_t);
};

const Mutation kMutations[] = {
    {"constant", [](llvm::Module &m) { return constants(m).size(); },
     [](llvm::Module &m, size_t i) { return addTo(*constants(m)[i], 1), true; }},
    {"constant, by 64", [](llvm::Module &m) { return constants(m).size(); },
     [](llvm::Module &m, size_t i) { return addTo(*constants(m)[i], -64), true; }},
    {"address", [](llvm::Module &m) { return pointers(m).size(); },
     [](llvm::Module &m, size_t i) { return move(*pointers(m)[i]), true; }},
    {"call left out", [](llvm::Module &m) { return all<CallInst>(m).size(); },
     [](llvm::Module &m, size_t i) { return leaveOut(*all<CallInst>(m)[i]), true; }},
    {"call made twice", [](llvm::Module &m) { return all<CallInst>(m).size(); },
     [](llvm::Module &m, size_t i) { return makeTwice(*all<CallInst>(m)[i]), true; }},
    {"calls swapped", [](llvm::Module &m) { return all<CallInst>(m).size() - 1; },
     [](llvm::Module &m, size_t i) {
       auto calls = all<CallInst>(m);
       for (size_t j = i + 1; j < calls.size(); ++j) // the next of its shape
         if (calls[i]->getFunction() == calls[j]->getFunction() &&
             calls[i]->getFunctionType() == calls[j]->getFunctionType())
           return swapCalls(*calls[i], *calls[j]);
       return false;
     }},
    {"store left out", [](llvm::Module &m) { return all<llvm::StoreInst>(m).size(); },
     [](llvm::Module &m, size_t i) { return all<llvm::StoreInst>(m)[i]->eraseFromParent(), true; }},
    {"status not tested", [](llvm::Module &m) { return all<llvm::ICmpInst>(m).size(); },
     [](llvm::Module &m, size_t i) { return all<llvm::ICmpInst>(m)[i]->setPredicate(llvm::ICmpInst::ICMP_SLT), true; }},
};

//===-- Mutants of the texts ------------------------------------------------------------------------------------===//

void change(Text &leaf) {
  if (leaf.is_boolean())
    leaf = !leaf.get<bool>();
  else if (leaf.is_string())
    leaf = leaf.get<std::string>() + "x";
  else if (leaf.is_number_integer())
    leaf = leaf.get<int64_t>() + 1;
  else
    leaf = leaf.is_number() ? Text(leaf.get<double>() * 2 + 1) : Text(1);
}

/// Every text with one change: of a leaf, a key or an entry left out, an entry twice, an entry swapped with the next.
void collect(const Text &root, const Text::json_pointer &at, std::vector<Text> &mutants) {
  auto with = [&](auto apply) {
    Text mutant = root;
    apply(mutant[at]);
    if (mutant != root)
      mutants.push_back(std::move(mutant));
  };
  const Text &here = root[at];
  if (here.is_object())
    for (auto &[key, value] : here.items()) {
      with([&](Text &object) { object.erase(key); });
      collect(root, at / key, mutants);
    }
  else if (here.is_array())
    for (size_t i = 0; i < here.size(); ++i) {
      with([&](Text &list) { list.erase(i); });
      with([&](Text &list) { list.insert(list.begin() + static_cast<std::ptrdiff_t>(i), Text(list[i])); });
      if (i + 1 < here.size())
        with([&](Text &list) { std::swap(list[i], list[i + 1]); });
      collect(root, at / i, mutants);
    }
  else
    with([](Text &leaf) { change(leaf); });
}

std::string textIn(llvm::Module &module, const std::string &name) {
  return llvm::cast<llvm::ConstantDataArray>(module.getNamedGlobal(name)->getInitializer())->getAsCString().str();
}

void setText(llvm::Module &module, const std::string &name, const std::string &text) {
  llvm::GlobalVariable *old = module.getNamedGlobal(name);
  llvm::Constant *data = llvm::ConstantDataArray::getString(module.getContext(), text);
  auto *changed = new llvm::GlobalVariable(module, data->getType(), true, old->getLinkage(), data);
  changed->takeName(old);
  old->eraseFromParent();
}

//===-- Tests ---------------------------------------------------------------------------------------------------===//

class LoweredPrograms : public testing::TestWithParam<Case> {
protected:
  /// Up to `most` of `count` numbers.
  std::vector<size_t> sample(size_t count, size_t most) {
    std::vector<size_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), size_t(0));
    std::shuffle(numbers.begin(), numbers.end(), random);
    if (!getenv("PP_MUTANTS") && count > most)
      numbers.resize(most);
    return numbers;
  }
  std::mt19937 random{7};
};

TEST_P(LoweredPrograms, EveryMutantOfTheCodeIsFound) {
  Proved proved = compile(GetParam());
  ASSERT_TRUE(proved.module);
  size_t made = 0;
  for (RankOp rank : proved.program().getOps<RankOp>()) {
    llvm::LLVMContext context;
    std::unique_ptr<llvm::Module> lowered;
    ASSERT_TRUE(succeeded(lowerRank(*proved.module, static_cast<int64_t>(rank.getRank()), context, lowered)));
    for (const Mutation &mutation : kMutations)
      for (size_t site : sample(mutation.count(*lowered), 10)) {
        std::unique_ptr<llvm::Module> mutant = llvm::CloneModule(*lowered);
        if (!mutation.change(*mutant, site))
          continue;
        ++made;
        std::string error = errorOf(proved.context.get(), [&] { return proved.check(rank, *mutant); });
        EXPECT_TRUE(StringRef(error).contains("this is a fault of pp-compile"))
            << mutation.name << " " << site << " on rank " << rank.getRank() << ": " << error;
      }
  }
  EXPECT_GE(made, 100u);
  std::cout << made << " mutants\n";
}

TEST_P(LoweredPrograms, EveryMutantOfTheTextsIsFound) {
  Proved proved = compile(GetParam());
  ASSERT_TRUE(proved.module);
  llvm::LLVMContext context;
  auto check = [&](llvm::Module &lowered, const std::string &name, size_t most, auto checkIt) {
    std::vector<Text> mutants;
    collect(Text::parse(textIn(lowered, name)), Text::json_pointer(), mutants);
    for (size_t i : sample(mutants.size(), most)) {
      setText(lowered, name, mutants[i].dump());
      std::string error = errorOf(proved.context.get(), checkIt);
      EXPECT_TRUE(StringRef(error).contains("this is a fault of pp-compile")) << name << ": " << mutants[i].dump();
    }
    setText(lowered, name, "{\"rank\": ");
    EXPECT_NE(errorOf(proved.context.get(), checkIt), "") << "a text that ends too soon";
    return mutants.size();
  };
  SmallVector<int64_t> ranks = programRanks(*proved.module);
  for (RankOp rank : proved.program().getOps<RankOp>()) {
    std::unique_ptr<llvm::Module> lowered;
    ASSERT_TRUE(succeeded(lowerRank(*proved.module, static_cast<int64_t>(rank.getRank()), context, lowered)));
    check(*lowered, "pp_json_" + std::to_string(rank.getRank()), 10, [&] { return proved.check(rank, *lowered); });
  }
  std::unique_ptr<llvm::Module> table;
  ASSERT_TRUE(succeeded(lowerTable(*proved.module, ranks, context, table)));
  auto checkTable = [&] {
    return checkLoweredTable(proved.program(), ranks, /*evaluates=*/true, proved.isLate(), *table);
  };
  EXPECT_EQ(errorOf(proved.context.get(), checkTable), "");
  check(*table, "pp_program_json", 40, checkTable);
}

TEST_P(LoweredPrograms, EveryMutantOfTheTableIsFound) {
  Proved proved = compile(GetParam());
  ASSERT_TRUE(proved.module);
  llvm::LLVMContext context;
  SmallVector<int64_t> ranks = programRanks(*proved.module);
  auto isFound = [&](auto change) {
    std::unique_ptr<llvm::Module> table;
    ASSERT_TRUE(succeeded(lowerTable(*proved.module, ranks, context, table)));
    change(*table);
    EXPECT_NE(errorOf(proved.context.get(),
                      [&] {
                        return checkLoweredTable(proved.program(), ranks, /*evaluates=*/true, proved.isLate(), *table);
                      }),
              "");
  };
  isFound([](llvm::Module &table) {
    llvm::GlobalVariable *count = table.getNamedGlobal("pp_rank_count");
    count->setInitializer(ConstantInt::get(count->getValueType(), 3));
  });
  isFound([](llvm::Module &table) { // ranks 0 and 1 in each other's place
    llvm::GlobalVariable *list = table.getNamedGlobal("pp_rank_table");
    std::vector<llvm::Constant *> entries;
    for (unsigned i = 0; i < 4; ++i)
      entries.push_back(list->getInitializer()->getAggregateElement(i ^ (i < 2)));
    list->setInitializer(llvm::ConstantArray::get(llvm::cast<llvm::ArrayType>(list->getValueType()), entries));
  });
  isFound([](llvm::Module &table) { // the step of rank 0 that trains in the place of the one that evaluates
    llvm::GlobalVariable *list = table.getNamedGlobal("pp_rank_table");
    std::vector<llvm::Constant *> entries;
    for (unsigned i = 0; i < 4; ++i)
      entries.push_back(list->getInitializer()->getAggregateElement(i));
    llvm::Constant *step = entries[0]->getAggregateElement(1);
    entries[0] = llvm::ConstantStruct::get(llvm::cast<llvm::StructType>(entries[0]->getType()),
                                           {entries[0]->getAggregateElement(0U), step, step});
    list->setInitializer(llvm::ConstantArray::get(llvm::cast<llvm::ArrayType>(list->getValueType()), entries));
  });
}

/// Pairs of values of a body in its scratch memory where the second is made while the first waits for its last reader.
std::vector<std::pair<Operation *, Operation *>> pairsAlive(func::FuncOp body) {
  std::vector<Operation *> made;
  std::vector<std::pair<Operation *, Operation *>> pairs;
  for (Operation &op : body.front().without_terminator()) {
    if (op.getNumResults() != 1 || isa<nn::View>(op) || bufferOf(op.getResult(0)).first != -1)
      continue;
    for (Operation *before : made)
      if (llvm::any_of(before->getUsers(), [&](Operation *user) { return op.isBeforeInBlock(user); }))
        pairs.push_back({before, &op});
    made.push_back(&op);
  }
  return pairs;
}

TEST_P(LoweredPrograms, ValuesInEachOthersPlaceAreFound) {
  Proved proved = compile(GetParam());
  ASSERT_TRUE(proved.module);
  size_t made = 0;
  for (RankOp rank : proved.program().getOps<RankOp>()) {
    DenseSet<StringRef> launched;
    for (LaunchOp launch : rank.getOps<LaunchOp>())
      launched.insert(launch.getCallee());
    for (func::FuncOp body : proved.module->getOps<func::FuncOp>()) {
      if (!launched.contains(body.getSymName()))
        continue;
      auto pairs = pairsAlive(body);
      for (size_t i : sample(pairs.size(), 3)) {
        auto [first, second] = pairs[i];
        Attribute kept = second->getAttr(kBuffersAttr);
        if (kept == first->getAttr(kBuffersAttr))
          continue; // the second is made in place of the first, which only views read
        second->setAttr(kBuffersAttr, first->getAttr(kBuffersAttr));
        llvm::LLVMContext context;
        std::unique_ptr<llvm::Module> lowered;
        std::string error = errorOf(proved.context.get(), [&] {
          return lowerRank(*proved.module, static_cast<int64_t>(rank.getRank()), context, lowered);
        });
        EXPECT_TRUE(StringRef(error).contains("this is a fault of pp-compile")) << body.getSymName().str() << error;
        second->setAttr(kBuffersAttr, kept);
        ++made;
      }
    }
  }
  std::cout << made << " mutants\n";
  EXPECT_GE(made, 4u);
}

INSTANTIATE_TEST_SUITE_P(
    Of, LoweredPrograms,
    testing::Values(Case{"gpt2_1f1b", {{"schedule", "1f1b"}, {"model", "gpt2"}}},
                    Case{"weights_travel", {{"schedule", "weipipe_interleave"}, {"precision", "bf16"}}},
                    Case{"fsdp", {{"schedule", "fsdp"}, {"precision", "f16"}}},
                    Case{"exchange",
                         {{"schedule", "slimpipe"}, {"exchange", "true"}, {"slices", "4"}, {"kv_heads", "1"}}},
                    Case{"offload", {{"schedule", "gpipe_offload"}}},
                    Case{"handed_on", {{"schedule", "zb_h1"}, {"model", "gpt2"}}},
                    Case{"without_barrier", {{"schedule", "zb_h1"}, {"model", "gpt2"}, {"optimizer.barrier", "false"}}},
                    Case{"cut_vocabulary", {{"schedule", "1f1b_vocabulary"}, {"model", "gpt2"}}},
                    Case{"beside", {{"schedule", "1f1b_overlap"}, {"ranks", "2"}, {"mesh.tensor", "2"}}}),
    [](const auto &info) { return std::string(info.param.name); });

/// The bodies that rank 0 launches.
std::vector<func::FuncOp> launchedBodies(Proved &proved) {
  std::vector<func::FuncOp> bodies;
  RankOp rank = *proved.program().getOps<RankOp>().begin();
  for (func::FuncOp body : proved.module->getOps<func::FuncOp>())
    if (llvm::any_of(rank.getOps<LaunchOp>(), [&](LaunchOp launch) { return launch.getCallee() == body.getName(); }))
      bodies.push_back(body);
  return bodies;
}

/// The error of the lowering of rank 0 as the program is now.
std::string errorOfRank(Proved &proved) {
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> lowered;
  return errorOf(proved.context.get(), [&] { return lowerRank(*proved.module, 0, context, lowered); });
}

// Each op that waits for what is exchanged before it is told not to: it touches memory of the message.
TEST(LoweredExchanges, AnOpThatDoesNotWaitForWhatItTouchesIsFound) {
  for (const char *option : {"mesh.tensor", "mesh.context"}) {
    Proved proved = compile({"", {{"schedule", "1f1b"}, {"ranks", "1"}, {option, "2"}}});
    ASSERT_TRUE(proved.module);
    EXPECT_EQ(errorOfRank(proved), "");
    size_t waits = 0, overlaps = 0;
    for (func::FuncOp body : launchedBodies(proved)) {
      Operation *message = nullptr;
      for (Operation &op : body.front().without_terminator()) {
        overlaps += op.hasAttr(kOverlapsAttr);
        if (message && !op.hasAttr(kOverlapsAttr) && !isa<nn::View>(op) && !isa<nn::Exchange>(op)) {
          op.setAttr(kOverlapsAttr, UnitAttr::get(op.getContext()));
          std::string error = errorOfRank(proved);
          EXPECT_TRUE(StringRef(error).contains("expected `pp_complete` of message")) << error;
          op.removeAttr(kOverlapsAttr);
          ++waits;
        }
        if (!op.hasAttr(kOverlapsAttr))
          message = isa<nn::Exchange>(op) ? &op : nullptr;
      }
    }
    EXPECT_GE(waits, 4u) << option;
    EXPECT_GE(overlaps, 8u) << option;
  }
}

// The result of an op, while a message is under way, is placed in the memory that sends or receives the message.
TEST(LoweredExchanges, AnOpThatWritesOverWhatIsUnderWayIsFound) {
  Proved proved = compile({"", {{"schedule", "1f1b"}, {"ranks", "1"}, {"mesh.tensor", "2"}}});
  ASSERT_TRUE(proved.module);
  size_t made = 0;
  for (func::FuncOp body : launchedBodies(proved)) {
    Operation *message = nullptr;
    for (Operation &op : body.front().without_terminator()) {
      if (isa<nn::Exchange>(op))
        message = &op;
      if (!message || !op.hasAttr(kOverlapsAttr) || op.getNumResults() != 1 || isa<nn::View>(op) ||
          bufferOf(op.getResult(0)).first != -1)
        continue;
      Attribute kept = op.getAttr(kBuffersAttr);
      op.setAttr(kBuffersAttr, message->getAttr(kBuffersAttr));
      EXPECT_TRUE(StringRef(errorOfRank(proved)).contains("this is a fault of pp-compile")) << body.getSymName().str();
      op.setAttr(kBuffersAttr, kept);
      ++made;
    }
  }
  EXPECT_GE(made, 2u);
}

// Both bodies are right by themselves, and post one message while it is under way.
TEST(LoweredTurns, OneMessageInBothBodiesIsFound) {
  Proved proved = compile({"", {{"schedule", "1f1b_overlap"}, {"ranks", "1"}, {"mesh.tensor", "2"}}});
  ASSERT_TRUE(proved.module);
  RankOp rank = *proved.program().getOps<RankOp>().begin();
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> lowered;
  ASSERT_TRUE(succeeded(lowerRank(*proved.module, 0, context, lowered)));
  Text text = Text::parse(textIn(*lowered, "pp_json_0"));
  std::map<std::string, int> seen; // inner messages that only differ in their number
  std::map<int64_t, int64_t> same;
  for (size_t i = 0; i < text["messages"].size(); ++i) {
    Text message = text["messages"][i];
    message.erase("line");
    if (auto [found, isNew] = seen.try_emplace(message.dump(), int(i)); !isNew)
      same[int64_t(i)] = found->second;
  }
  ASSERT_FALSE(same.empty());
  for (CallInst *call : all<CallInst>(*lowered)) {
    StringRef name = call->getCalledFunction()->getName();
    if (name != "pp_post_collective" && name != "pp_complete")
      continue;
    auto *number = llvm::cast<ConstantInt>(call->getArgOperand(1));
    if (auto found = same.find(number->getSExtValue()); found != same.end())
      call->setArgOperand(1, ConstantInt::get(number->getType(), uint64_t(found->second)));
  }
  std::string error = errorOf(proved.context.get(), [&] { return proved.check(rank, *lowered); });
  EXPECT_TRUE(StringRef(error).contains("a message that is not under way")) << error;
}

// The fault that this check was written after: MLIR kept static indices in 29 bits and wrapped the rest (issue 14).
TEST(LoweredAddresses, TruncatedToBitsOfAStaticIndexAreFound) {
  Proved proved = compile(
      {"large", {{"schedule", "single"}, {"ranks", "1"}, {"model", "gpt2"}, {"vocab", "139264"}, {"hidden", "256"}}});
  ASSERT_TRUE(proved.module);
  RankOp rank = *proved.program().getOps<RankOp>().begin();
  ASSERT_GT(*rank.getArenaBytes(), uint64_t(512) << 20);
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> lowered;
  ASSERT_TRUE(succeeded(lowerRank(*proved.module, 0, context, lowered)));
  size_t wide = 0;
  for (llvm::GetElementPtrInst *element : all<llvm::GetElementPtrInst>(*lowered)) {
    llvm::Use &index = element->getOperandUse(1);
    int64_t offset = llvm::cast<ConstantInt>(index)->getSExtValue(), wrapped = llvm::SignExtend64<29>(offset);
    if (offset == wrapped)
      continue;
    ++wide;
    addTo(index, wrapped - offset);
    EXPECT_NE(errorOf(proved.context.get(), [&] { return proved.check(rank, *lowered); }), "") << offset;
    addTo(index, offset - wrapped);
  }
  EXPECT_GE(wide, 20u);
  EXPECT_EQ(errorOf(proved.context.get(), [&] { return proved.check(rank, *lowered); }), "");
}

} // namespace
