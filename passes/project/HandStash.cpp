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
    return (group.name == "stash" || group.name == "kept") && number >= group.first &&
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

/// Whether nobody reads the old value from the op on that begins the new one; but that op itself may work in place.
bool BodyPlan::canReplace(const Buffer &old, const Buffer &made) {
  if (old.bytes != made.bytes || old.values.size() != 1 || old.death > made.birth)
    return false;
  if (old.death < made.birth)
    return true;
  for (Operation *op : old.values.front().getUsers()) {
    auto inPlace = dyn_cast<nn::InPlace>(op);
    if (numbers.lookup(op) != made.birth)
      continue;
    if (!inPlace || llvm::count(op->getOperands(), old.values.front()) != 1)
      return false;
    return llvm::any_of(inPlace.getAllowedTies(), [&](nn::Tie tie) {
      return op->getOperand(tie.operand) == old.values.front() &&
             llvm::is_contained(made.values, op->getResult(tie.result));
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
  for (unsigned position : order) {
    Value best;
    for (Value argument : body.getArguments())
      if (dies(argument) && canReplace(bufferOf(argument), bufferOf(end->getOperand(position))) &&
          (!best || bufferOf(argument).death > bufferOf(best).death))
        best = argument;
    if (best)
      hand(best, position);
  }
}
