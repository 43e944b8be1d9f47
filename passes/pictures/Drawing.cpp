// Draws the order of units for a terminal, every unit one cell wide, coloured by phase.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/pictures/Pictures.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/WithColor.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// The units of every rank, in order.
static std::vector<std::vector<Span>> workOf(const Timeline &timeline) {
  std::vector<std::vector<Span>> work(timeline.ranks.size());
  for (auto [rank, spans] : llvm::zip(timeline.ranks, work))
    llvm::copy_if(rank.spans, std::back_inserter(spans), [](const Span &span) { return span.isWork(); });
  return work;
}

static llvm::raw_ostream::Colors terminalColor(Phase phase) {
  switch (phase) {
  case Phase::F:
    return llvm::raw_ostream::BLUE;
  case Phase::B:
    return llvm::raw_ostream::GREEN;
  case Phase::I:
    return llvm::raw_ostream::CYAN;
  case Phase::W:
    return llvm::raw_ostream::YELLOW;
  case Phase::R:
  case Phase::U:
    return llvm::raw_ostream::MAGENTA;
  }
  return llvm::raw_ostream::SAVEDCOLOR;
}

/// Where every rank has one stage, the stage goes without saying: F3 for 1F3.
static bool hasOneStageEach(ProgramOp program, ArrayRef<std::vector<Span>> ranks) {
  bool oneEach = llvm::range_size(program.getOps<PieceOp>()) == ranks.size();
  for (auto &spans : ranks)
    for (const Span &span : spans) {
      CoordAttr coord = span.unit().getCoord();
      oneEach &=
          coord.isStage() && coord.getSlice() < 0 && coord.getIndex() == spans.front().unit().getCoord().getIndex();
    }
  return oneEach;
}

void pp::drawTimeline(ProgramOp program, llvm::raw_ostream &os) {
  std::vector<std::vector<Span>> ranks = workOf(*simulate(program, UnitCosts(1, 1, 1, 1, 1)));
  bool oneEach = hasOneStageEach(program, ranks);
  auto cell = [&](const Span &span) {
    if (!oneEach)
      return span.unit().cell();
    return stringifyPhase(span.unit().getPhase()).str() + std::to_string(span.unit().getCoord().getMicrobatch());
  };
  size_t width = 2, name = std::to_string(ranks.size() - 1).size();
  for (auto &spans : ranks)
    for (const Span &span : spans)
      width = std::max(width, cell(span).size());
  for (auto [rank, spans] : llvm::enumerate(ranks)) {
    os << "r" << llvm::left_justify(std::to_string(rank), name) << " |";
    double now = 0;
    for (const Span &span : spans) {
      for (; now < span.start; ++now)
        os << " " << llvm::left_justify("..", width);
      os << " ";
      llvm::WithColor(os, terminalColor(span.unit().getPhase())) << llvm::left_justify(cell(span), width);
      now = span.end;
    }
    os << "\n";
  }
}
