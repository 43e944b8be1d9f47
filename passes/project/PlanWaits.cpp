// Plans while which ops an exchange of a body may be under way: memory for it, and a mark at each of them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   %s = all_reduce %dx                        posted
//   %dw = linear_dw %x, %dy                    runs beside it: `pipeline.overlaps`
//   %dg = norm_bwd %s, ..                      reads it: waits
//
// Nobody else may use the memory that is sent or received until the first op that reads the received value, or until
// the next exchange: a body has one message under way. An op that still touches this memory waits.
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include "passes/project/BodyPlan.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// The number of the first op that waits for what is exchanged.
int64_t BodyPlan::landingOf(Operation &exchange) const {
  int64_t landing = numbers.lookup(exchange.getBlock()->getTerminator());
  for (Operation *reader : nn::readersOf(exchange.getResult(0)))
    landing = std::min(landing, numbers.lookup(reader));
  for (Operation *next = exchange.getNextNode(); next && numbers.lookup(next) < landing; next = next->getNextNode())
    if (isa<nn::Exchange>(next))
      return numbers.lookup(next);
  return landing;
}

void BodyPlan::keepUnderWay(Operation &op) {
  if (!isa<nn::Exchange>(op))
    return;
  int64_t last = landingOf(op) - 1;
  for (Value value : {op.getOperand(0), Value(op.getResult(0))})
    bufferOf(value).death = std::max(bufferOf(value).death, last);
}

namespace {
struct Range {
  Place place;
  int64_t bytes;
  bool meets(const Range &other) const {
    return place.first == other.place.first && place.second < other.place.second + other.bytes &&
           other.place.second < place.second + bytes;
  }
};
} // namespace

// Decides by the places alone, without the reasons above: the check of the lowering sees only the places, too.
void BodyPlan::markOverlaps() {
  auto rangeOf = [&](Value value) {
    auto argument = argumentPlaces.find(value);
    return Range{argument == argumentPlaces.end() ? pipeline::bufferOf(cast<OpResult>(value)) : argument->second,
                 bytesOf(value)};
  };
  std::optional<std::pair<Range, Range>> underWay; // what is sent, and what comes
  for (Operation &op : body.front().without_terminator()) {
    op.removeAttr(kOverlapsAttr);
    if (isa<nn::Exchange>(op)) {
      underWay = {rangeOf(op.getOperand(0)), rangeOf(op.getResult(0))};
      continue;
    }
    auto comes = [&](Value value) { return underWay->second.meets(rangeOf(value)); };
    auto sent = [&](Value value) { return underWay->first.meets(rangeOf(value)); };
    if (underWay && (llvm::any_of(op.getOperands(), comes) || llvm::any_of(op.getResults(), comes) ||
                     llvm::any_of(op.getResults(), sent)))
      underWay.reset();
    if (underWay)
      op.setAttr(kOverlapsAttr, UnitAttr::get(op.getContext()));
  }
}
