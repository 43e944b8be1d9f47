// Reads functions of calls back from LLVM's own data structures, without the code that wrote them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "lowering/ReadCalls.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/IR/DataLayout.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Operator.h"
#include "llvm/Support/raw_ostream.h"
#include <optional>

using namespace pp;

static void printAddress(const CallAddress &address, llvm::raw_ostream &os) {
  if (address.argument < 0)
    os << "null";
  else
    os << "argument " << address.argument;
  if (address.offset != 0)
    os << " + " << address.offset;
}

std::string CallOperand::str() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (kind == Number)
    os << number;
  else if (kind == Pointer)
    printAddress(address, os);
  else {
    os << "list (";
    llvm::interleaveComma(list, os, [&](const CallAddress &each) { printAddress(each, os); });
    os << ")";
  }
  return text;
}

namespace {

/// One function on the way from its first block to its last.
class CallReader {
public:
  CallReader(const llvm::Function &function, std::vector<ReadCall> &calls)
      : function(function), layout(function.getParent()->getDataLayout()), calls(calls) {}

  std::string read() {
    const llvm::BasicBlock *block = &function.getEntryBlock();
    size_t blocks = 0;
    while (block && why.empty()) {
      // Every later block has one block before it: no call is made twice.
      if (blocks++ > 0 && !block->getSinglePredecessor())
        return "a block is reached from more than one place";
      block = readBlock(*block);
    }
    if (why.empty() && blocks + (exit ? 1 : 0) != function.size())
      return "there are blocks that no call leads to";
    if (why.empty() && exit)
      readExit();
    return why;
  }

private:
  using Lists = llvm::DenseMap<const llvm::AllocaInst *, llvm::SmallVector<std::optional<CallAddress>, 0>>;

  /// The block that follows when all is well; null at the end, or after something that is not understood (`why`).
  const llvm::BasicBlock *readBlock(const llvm::BasicBlock &block) {
    const llvm::CallInst *call = nullptr;
    const llvm::ICmpInst *test = nullptr;
    for (const llvm::Instruction &instruction : block) {
      if (auto *made = llvm::dyn_cast<llvm::CallInst>(&instruction); made && !call) {
        call = made;
        readCall(*made);
      } else if (auto *compare = llvm::dyn_cast<llvm::ICmpInst>(&instruction); compare && !test) {
        test = compare;
      } else if (auto *list = llvm::dyn_cast<llvm::AllocaInst>(&instruction)) {
        readList(*list);
      } else if (auto *store = llvm::dyn_cast<llvm::StoreInst>(&instruction)) {
        readStore(*store);
      } else if (auto *branch = llvm::dyn_cast<llvm::BranchInst>(&instruction)) {
        return readBranch(block, *branch, call, test);
      } else if (auto *end = llvm::dyn_cast<llvm::ReturnInst>(&instruction)) {
        auto *status = llvm::dyn_cast_or_null<llvm::ConstantInt>(end->getReturnValue());
        if (call || !status || !status->isZero())
          say("it returns something else than zero at its end", instruction);
        return nullptr;
      } else if (!llvm::isa<llvm::GetElementPtrInst>(instruction)) {
        say("it does something else than calls", instruction);
      }
      if (!why.empty())
        return nullptr;
    }
    return nullptr;
  }

  const llvm::BasicBlock *readBranch(const llvm::BasicBlock &block, const llvm::BranchInst &branch,
                                     const llvm::CallInst *call, const llvm::ICmpInst *test) {
    auto *zero = test ? llvm::dyn_cast<llvm::ConstantInt>(test->getOperand(1)) : nullptr;
    bool isTest = call && zero && zero->isZero() && test->getPredicate() == llvm::ICmpInst::ICMP_NE &&
                  test->getOperand(0) == call && branch.isConditional() && branch.getCondition() == test;
    if (!isTest || (exit && branch.getSuccessor(0) != exit) || branch.getSuccessor(1) == branch.getSuccessor(0))
      return say("it does not test the status of a call", branch), nullptr;
    exit = branch.getSuccessor(0);
    statuses.push_back({&block, call});
    return branch.getSuccessor(1);
  }

  /// The block that a bad status leads to returns that status.
  void readExit() {
    auto *phi = llvm::dyn_cast<llvm::PHINode>(&exit->front());
    auto *end = llvm::dyn_cast<llvm::ReturnInst>(exit->getTerminator());
    if (!phi || !end || exit->size() != 2 || end->getReturnValue() != phi ||
        phi->getNumIncomingValues() != statuses.size())
      return say("it does not return the status of a call that failed", exit->front());
    llvm::DenseMap<const llvm::BasicBlock *, const llvm::Value *> incoming;
    for (unsigned i = 0; i < phi->getNumIncomingValues(); ++i)
      incoming[phi->getIncomingBlock(i)] = phi->getIncomingValue(i);
    for (auto [block, call] : statuses)
      if (incoming.lookup(block) != call)
        return say("it returns another status than that of the call that failed", *phi);
  }

  void readCall(const llvm::CallInst &call) {
    const llvm::Function *callee = call.getCalledFunction();
    if (!callee || call.hasOperandBundles() || call.getFunctionType() != callee->getFunctionType())
      return say("it calls something that is no function of the module", call);
    ReadCall read{callee, {}};
    for (const llvm::Value *argument : call.args())
      read.operands.push_back(readOperand(*argument));
    calls.push_back(std::move(read));
  }

  CallOperand readOperand(const llvm::Value &value) {
    if (auto *number = llvm::dyn_cast<llvm::ConstantInt>(&value); number && number->getBitWidth() <= 64)
      return CallOperand::of(number->getSExtValue());
    if (auto *list = llvm::dyn_cast<llvm::AllocaInst>(&value)) {
      llvm::SmallVector<CallAddress, 0> addresses;
      for (const std::optional<CallAddress> &address : lists[list]) {
        if (!address)
          say("it hands over a list that is not filled", *list);
        addresses.push_back(address.value_or(CallAddress()));
      }
      return CallOperand::of(addresses);
    }
    return CallOperand::of(addressOf(value));
  }

  CallAddress addressOf(const llvm::Value &value) {
    auto [base, offset] = split(value);
    if (auto *argument = llvm::dyn_cast<llvm::Argument>(base); argument && argument->getType()->isPointerTy())
      return {argument->getArgNo(), offset};
    if (!llvm::isa<llvm::ConstantPointerNull>(base) || offset != 0)
      say("it hands over what is neither a number nor an address in memory that it was given", value);
    return {};
  }

  /// A pointer as LLVM understands it: what it was computed from, and the bytes between.
  std::pair<const llvm::Value *, int64_t> split(const llvm::Value &value) {
    int64_t bytes = 0;
    const llvm::Value *base = &value;
    while (auto *element = llvm::dyn_cast<llvm::GEPOperator>(base)) {
      llvm::APInt offset(64, 0);
      if (!element->accumulateConstantOffset(layout, offset))
        say("it computes an address with a number that is not constant", value);
      bytes += offset.getSExtValue();
      base = element->getPointerOperand();
    }
    return {base, bytes};
  }

  void readList(const llvm::AllocaInst &list) {
    auto *count = llvm::dyn_cast<llvm::ConstantInt>(list.getArraySize());
    if (!count || !list.getAllocatedType()->isPointerTy() || list.getParent() != &function.getEntryBlock() ||
        count->getZExtValue() > instructions) // each place is filled by a store
      return say("it takes memory that is no list of addresses", list);
    lists[&list].resize(count->getZExtValue());
  }

  void readStore(const llvm::StoreInst &store) {
    auto [base, offset] = split(*store.getPointerOperand());
    auto *list = llvm::dyn_cast<llvm::AllocaInst>(base);
    int64_t place = offset / static_cast<int64_t>(sizeof(void *));
    if (!list || offset % static_cast<int64_t>(sizeof(void *)) != 0 || place < 0 ||
        place >= static_cast<int64_t>(lists[list].size()) || !store.getValueOperand()->getType()->isPointerTy())
      return say("it writes where no place of a list is", store);
    if (lists[list][place])
      return say("it writes a place of a list twice", store);
    lists[list][place] = addressOf(*store.getValueOperand());
  }

  void say(llvm::StringRef what, const llvm::Value &where) {
    if (!why.empty())
      return;
    llvm::raw_string_ostream os(why);
    os << what << ": `";
    std::string text;
    llvm::raw_string_ostream(text) << where;
    os << llvm::StringRef(text).trim() << "`";
  }

  const llvm::Function &function;
  const llvm::DataLayout &layout;
  const uint64_t instructions = function.getInstructionCount();
  std::vector<ReadCall> &calls;
  std::string why;
  Lists lists;
  const llvm::BasicBlock *exit = nullptr;
  std::vector<std::pair<const llvm::BasicBlock *, const llvm::CallInst *>> statuses;
};

} // namespace

std::string pp::readCalls(const llvm::Function &function, std::vector<ReadCall> &calls) {
  return CallReader(function, calls).read();
}
