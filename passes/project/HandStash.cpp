// Finds what I hands on to W in place: memory of the stash that becomes memory of what is pending.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// I ends the stash. What waits for W and is in the stash already stays where it is, and what is made late enough takes
// the place of a tensor of its size that nobody reads any more (docs/derivatives.md, "I turns inputs into outputs in
// place"):
//
//   stash    x [----]  q [----]  o [-------------]       `pipeline.handed`: tensor by tensor, which result lies where
//   pending       a [---]   dq [---]  o [--------]       which argument lay; all other slots lie in one run
//   op       0   1   2   3   4
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include "passes/project/BodyPlan.h"
#include <set>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// An argument that no launch reads after this one, and whose memory is still its own.
bool BodyPlan::dies(Value value) const {
  auto argument = dyn_cast<BlockArgument>(value);
  if (!argument || gone.contains(value))
    return false;
  return llvm::any_of(groups.inputs, [&](const BodyGroups::Group &group) {
    unsigned number = argument.getArgNumber();
    return (group.name == GroupKind::stash || group.name == GroupKind::kept) && number >= group.first &&
           number < group.first + group.payload.size();
  });
}

void BodyPlan::hand(Value argument, unsigned position) {
  unsigned number = cast<BlockArgument>(argument).getArgNumber();
  for (const BodyGroups::Group &group : groups.inputs)
    if (number >= group.first && number < group.first + group.payload.size())
      handed.append({group.pointer, number - group.first, pending->pointer, position - pending->first});
  gone.insert(argument);
  taken.insert(position);
}

/// Whether nobody reads the argument from the op on that begins what is returned; but that op itself may work in place.
bool BodyPlan::canReplace(Value argument, Value returned) {
  const Buffer &old = bufferOf(argument), &made = bufferOf(returned);
  if (old.bytes != made.bytes || old.values != 1 || old.death > made.birth)
    return false;
  if (old.death < made.birth)
    return true;
  for (Operation *op : argument.getUsers()) {
    auto inPlace = dyn_cast<nn::InPlace>(op);
    if (numbers.lookup(op) != made.birth)
      continue;
    if (!inPlace || llvm::count(op->getOperands(), argument) != 1)
      return false;
    return llvm::any_of(inPlace.getAllowedTies(), [&](nn::Tie tie) {
      return op->getOperand(tie.operand) == argument && &bufferOf(op->getResult(tie.result)) == &made;
    });
  }
  return false;
}

// First come, first served; of the places that are free that which was free last, so that more are left for the next.
void BodyPlan::handOn() {
  Operation *end = terminator();
  SmallVector<unsigned> order;
  for (unsigned position = 0; position < end->getNumOperands(); ++position)
    if (isPending(position) && !taken.contains(position) && !bufferOf(end->getOperand(position)).given)
      order.push_back(position);
  auto birth = [&](unsigned position) { return bufferOf(end->getOperand(position)).birth; };
  llvm::stable_sort(order, [&](unsigned a, unsigned b) { return birth(a) < birth(b); });
  std::set<std::tuple<int64_t, int64_t, int64_t>> free; // bytes, death, and the number from the last argument on
  int64_t last = body.getNumArguments() - 1;
  for (BlockArgument argument : order.empty() ? ArrayRef<BlockArgument>() : body.getArguments())
    if (dies(argument))
      free.insert({bufferOf(argument).bytes, bufferOf(argument).death, last - argument.getArgNumber()});
  for (unsigned position : order) {
    Value returned = end->getOperand(position);
    const Buffer &made = bufferOf(returned);
    auto it = free.upper_bound({made.bytes, made.birth, last});
    while (it != free.begin() && std::get<0>(*std::prev(it)) == made.bytes) {
      Value argument = body.getArgument(last - std::get<2>(*--it));
      if (!canReplace(argument, returned))
        continue;
      hand(argument, position);
      free.erase(it);
      break;
    }
  }
}
