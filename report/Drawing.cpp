// Draws the order of units for a terminal, coloured by phase: a unit takes one cell, or one cell per unit of time.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   r0 | F0 F1 .. .. B0 .. B1          --to-scale:    r0 | F0 F1 .. .. B0--- .. B1---
//   r1 | .. F0 B0 F1 B1                               r1 | .. F0 B0--- F1 B1---
//
// Two units that run in turn on a mesh have a plus between them: F3+B0.
//
// A drawing wider than the terminal, or than --columns, goes on below: each run of cells is a block of all ranks.
#include "report/Pictures.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/WithColor.h"
#include <cmath>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// The units of every rank that take time, in order.
static std::vector<std::vector<Span>> workOf(const Timeline &timeline) {
  std::vector<std::vector<Span>> work(timeline.ranks.size());
  for (auto [rank, spans] : llvm::zip(timeline.ranks, work))
    llvm::copy_if(rank.spans, std::back_inserter(spans),
                  [](const Span &span) { return span.isWork() && span.end > span.start; });
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

namespace {
/// A drawing on a grid of cells: what stands where, and how wide.
class Grid {
public:
  Grid(ProgramOp program, ArrayRef<std::vector<Span>> ranks) : oneEach(hasOneStageEach(program, ranks)) {
    for (auto &spans : ranks) {
      auto &cells = rows.emplace_back();
      double now = 0;
      for (const Span &span : spans) {
        width = std::max(width, labelOf(span).size());
        for (; now < span.start; ++now)
          cells.emplace_back();
        cells.push_back({&span, true});
        for (now = span.start + 1; now < span.end; ++now) // what is shorter than a cell has one, too
          cells.push_back({&span, false});
        now = span.end;
      }
      length = std::max(length, cells.size());
    }
  }

  /// All of it, in blocks of so many columns of text; 0: in one.
  void draw(size_t columns, llvm::raw_ostream &os) const {
    size_t name = std::to_string(rows.size() - 1).size(), margin = name + 3;
    size_t fit = columns ? std::max<size_t>(columns > margin ? (columns - margin) / (width + 1) : 0, 1) : length;
    for (size_t from = 0; from < length; from += fit) {
      if (fit < length)
        os << (from ? "\n" : "") << "t = " << from << "\n";
      for (auto [rank, cells] : llvm::enumerate(rows)) {
        os << "r" << llvm::left_justify(std::to_string(rank), name) << " |";
        for (size_t at = from; at < std::min(from + fit, cells.size());)
          at = drawCell(cells, at, std::min(from + fit, cells.size()), os);
        os << "\n";
      }
    }
  }

private:
  struct Cell {
    const Span *span = nullptr; ///< null: idle
    bool starts = false;
  };

  std::string labelOf(const Span &span) const {
    if (!oneEach)
      return span.unit().cell();
    return stringifyPhase(span.unit().getPhase()).str() + std::to_string(span.unit().getCoord().getMicrobatch());
  }

  /// Draws a cell's text up to the end of the cell or block; returns this end.
  size_t drawCell(ArrayRef<Cell> cells, size_t at, size_t end, llvm::raw_ostream &os) const {
    const Cell &cell = cells[at++];
    os << (cell.starts && LaunchOp(cell.span->launch).leader() ? "+" : " ");
    if (!cell.span) {
      os << llvm::left_justify("..", width);
      return at;
    }
    std::string label = cell.starts ? labelOf(*cell.span) : "";
    size_t wide = width;
    for (; at < end && cells[at].span == cell.span; ++at)
      wide += width + 1;
    label.resize(wide, wide > width || !cell.starts ? '-' : ' ');
    llvm::WithColor(os, terminalColor(cell.span->unit().getPhase())) << label;
    return at;
  }

  bool oneEach;
  std::vector<std::vector<Cell>> rows;
  size_t width = 2, length = 0;
};
} // namespace

void pp::drawTimeline(ProgramOp program, const DrawingOptions &options, llvm::raw_ostream &os) {
  UnitCosts toScale(program);
  CellCosts inCells(program);
  std::vector<std::vector<Span>> ranks = workOf(*simulate(program, options.toScale ? toScale : inCells));
  Grid(program, ranks).draw(options.columns, os);
}
