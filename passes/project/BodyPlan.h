// The plan of one task body while it is made: buffers, each a range of memory that several values use in turn.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_BODYPLAN_H
#define PP_PASSES_BODYPLAN_H

#include "dialect/pipeline/BodyGroups.h"
#include <optional>

namespace pp {

/// A place: pointer of the signature (-1: scratch) and byte offset.
using Place = std::pair<int64_t, int64_t>;

/// A run of memory that holds one value after another, each tied to the one before.
struct Buffer {
  int64_t birth, death; ///< numbers of ops, both included; -1 for arguments, the number of ops for the return
  int64_t bytes;
  bool given = false;         ///< holds an argument at birth
  std::optional<Place> place; ///< none: scratch, not yet placed
  int64_t values = 1;         ///< how many it holds
  unsigned into;              ///< its own number, or that of the buffer that took it in
  int64_t shift = 0;          ///< where in that one it begins
};

class BodyPlan {
public:
  BodyPlan(mlir::func::FuncOp body, BodyGroups groups, bool hands) : body(body), groups(std::move(groups)) {
    for (const BodyGroups::Group &group : this->groups.results)
      if (hands && group.name == pipeline::GroupKind::pending)
        pending = &group;
  }
  mlir::LogicalResult run();

private:
  mlir::Operation *terminator() { return body.front().getTerminator(); }
  void copyReturned();
  void number();
  std::pair<unsigned, int64_t> find(mlir::Value value);
  Buffer &bufferOf(mlir::Value value) { return buffers[find(value).first]; }
  int64_t lastUse(mlir::Value value) const;
  void merge(mlir::Value into, mlir::Value from, int64_t offset = 0);
  mlir::LogicalResult tieRequired(mlir::Operation &op);
  mlir::LogicalResult placeResults();
  mlir::LogicalResult checkOverwrite(mlir::Value written, Place place);
  void tieAllowed(mlir::Operation &op);
  int64_t colour(bool bySize, llvm::SmallVectorImpl<int64_t> &offsets);
  void write();
  // PlanViews.cpp
  static int64_t bytesOf(mlir::Value value);
  bool isWhole(mlir::Value value) {
    auto [buffer, offset] = find(value);
    return offset == 0 && bytesOf(value) == buffers[buffer].bytes;
  }
  void copyParts();
  void mergeViews(mlir::Operation &op);
  // PlanWaits.cpp
  int64_t landingOf(mlir::Operation &exchange) const;
  void keepUnderWay(mlir::Operation &op);
  void markOverlaps();
  // HandStash.cpp
  bool isPending(unsigned position) const {
    return pending && position >= pending->first && position < pending->first + pending->payload.size();
  }
  bool dies(mlir::Value value) const;
  bool canReplace(mlir::Value argument, mlir::Value returned);
  void hand(mlir::Value argument, unsigned position);
  void handOn();

  mlir::func::FuncOp body;
  BodyGroups groups;
  llvm::DenseMap<mlir::Operation *, int64_t> numbers;
  llvm::SmallVector<Buffer> buffers;
  llvm::DenseMap<mlir::Value, unsigned> index; ///< of the buffer that was made for the value
  llvm::DenseMap<mlir::Value, Place> argumentPlaces;
  llvm::DenseMap<Place, llvm::SmallVector<mlir::Value, 1>> argumentsAt;
  llvm::SmallVector<Place> resultPlaces;
  const BodyGroups::Group *pending = nullptr; ///< what takes over memory of the stash; null if nothing may
  llvm::DenseSet<mlir::Value> gone;           ///< arguments whose memory is handed on
  llvm::SmallVector<int64_t> handed;
  llvm::DenseSet<unsigned> taken; ///< results that lie in such memory
};

} // namespace pp

#endif // PP_PASSES_BODYPLAN_H
