// A program as lists of plain data: its messages, and the values and actions of its ranks (report/PROGRAM.md).
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_REPORT_PROGRAM_LISTS_H
#define PP_REPORT_PROGRAM_LISTS_H

#include "analysis/Actions.h"
#include "analysis/lives/Lifetimes.h"
#include "report/Report.h"
#include <set>

namespace pp {

/// The files that lines name: those that were read, then others that a `.mlir` file speaks of.
class Lines {
public:
  explicit Lines(llvm::ArrayRef<SourceText> sources);
  /// `[file, line, column, "with r = 1 called at f.pipe:3:2"]`, or null.
  llvm::json::Value of(mlir::Location loc);
  llvm::json::Array files() { return std::move(entries); }

private:
  llvm::json::Array entries;
  llvm::StringMap<int64_t> numbers;

  int64_t add(llvm::StringRef path, llvm::json::Value hash);
};

/// Weights that several pieces use: the pieces that share the same ones with one owner.
struct Tie {
  int64_t owner;
  llvm::SmallVector<llvm::StringRef> weights, names; ///< as checkpoints call them, and as the model does
  llvm::SmallVector<int64_t> sharers;
};

/// What is alive from one action of a rank to another, both included. `last` is -1 of what nothing uses, and the number
/// of actions of what is there when the step ends.
struct ValueLife {
  pipeline::SlotOp slot;
  Segment segment;
};

/// The launches, posts and completes of a rank in order, with what its slots hold meanwhile.
struct RankActions {
  explicit RankActions(pipeline::RankOp rank);

  std::vector<mlir::Operation *> ops;
  std::vector<ValueLife> lives;
  llvm::DenseMap<mlir::Value, int64_t> values; ///< by slot its number; kernels' scratch has none

private:
  llvm::DenseMap<mlir::Value, size_t> open; ///< by slot the life that it is in

  /// Of a slot that nothing has written there is no life; a program that has such a slot is not proved.
  void touch(mlir::Value slot, int64_t position) {
    if (auto life = open.find(slot); life != open.end())
      lives[life->second].segment.last = position;
  }
  void write(mlir::Value slot, int64_t position) {
    open[slot] = lives.size();
    lives.push_back({slot.getDefiningOp<pipeline::SlotOp>(), {position, position}});
  }
};

/// One of the module's programs: its messages, and the lists of its ranks. Lanes, lines and needs are of all of them.
class ProgramLists {
public:
  ProgramLists(pipeline::ProgramOp program, Lines &lines, llvm::json::Array &lanes, std::set<llvm::StringRef> &needs);

  llvm::json::Array writePieces();
  llvm::json::Array writeTies() const;

  llvm::json::Array messages, programs, counts;
  pipeline::PostOp unnamed; ///< on a second channel from one rank to another, for which lanes have no words

private:
  pipeline::ProgramOp program;
  BodyTable bodies;
  Pieces pieces;
  std::vector<Tie> ties;
  Lines &lines;
  llvm::json::Array &lanes;
  std::set<llvm::StringRef> &needs;
  llvm::DenseSet<mlir::Value> tied; ///< slots that hold the weights that pieces share, or gradients of these, alone
  llvm::DenseSet<int64_t> again;    ///< pieces that R runs
  /// What goes one way in order: its messages, and how many one rank has posted so far of each side.
  struct Path {
    llvm::SmallVector<int64_t> messages;
    int64_t rank = -1, posted[2] = {0, 0};
    llvm::json::Value lane = nullptr; ///< to the host's memory nothing goes over a lane
  };
  std::map<std::tuple<int64_t, int64_t, int64_t, const void *>, Path> paths; ///< by ends and channel, or members
  llvm::DenseMap<mlir::Operation *, int64_t> numbers;                        ///< of posts: their messages

  llvm::json::Value pieceOf(pipeline::CoordAttr coord) const {
    int64_t piece = pieces.find(coord);
    return piece < 0 ? llvm::json::Value(nullptr) : llvm::json::Value(pieces.makerOf(piece));
  }

  void noteLaunch(pipeline::LaunchOp launch, pipeline::BodyAttr body);
  void notePost(pipeline::PostOp post);
  void addEnd(pipeline::PostOp post, int64_t rank);
  int64_t laneOf(llvm::json::Object lane);
  llvm::json::Value tieOf(pipeline::PostOp post) const;
  llvm::json::Object messageOf(pipeline::PostOp post, int64_t rank, Path &path);
  llvm::json::Object bindingOf(pipeline::BindingAttr binding) const;
  llvm::json::Object valueOf(pipeline::SlotOp slot) const;
  llvm::json::Array actionOf(mlir::Operation *op, const RankActions &actions, llvm::json::Array dead);
  llvm::json::Object countsOf(const RankActions &actions) const;
  void writeRank(pipeline::RankOp rank);
};

} // namespace pp

#endif // PP_REPORT_PROGRAM_LISTS_H
