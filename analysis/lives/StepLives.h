// When each value of a step is alive on its rank: what the limits of a schedule count.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_STEPLIVES_H
#define PP_ANALYSIS_STEPLIVES_H

#include "analysis/Actions.h"
#include "analysis/lives/Lifetimes.h"
#include <map>

namespace pp {

/// The life of one value on one rank, in positions of the step.
struct ValueLife : Segment {
  mlir::Operation *born, *kept; ///< the ops at both ends
};

/// A weight lives from its arrival to its last use, a gradient share until it is moved away or consumed, a stash from F
/// to its last backward; arriving and leaving values of one `together` both count (docs/proofs.md 8). A copy that no op
/// waits for has its slot until the rank's next group of messages, where project-ranks completes its message. Shards
/// are no weights and no gradients: they are not counted.
class StepLives {
public:
  StepLives(pipeline::ProgramOp program, const BodyTable &bodies);
  llvm::ArrayRef<ValueLife> of(pipeline::Role role, int64_t rank) const;

private:
  using RoleRank = std::pair<int64_t, int64_t>;
  using UnitRank = std::pair<mlir::Attribute, int64_t>; ///< by coordinate

  Pieces pieces;
  const BodyTable &bodies;
  llvm::DenseMap<mlir::Operation *, int64_t> positions; ///< moves of one `together` share a position
  std::map<int64_t, std::vector<int64_t>> groups;       ///< by rank: the positions of its groups of messages
  int64_t end = 0;
  std::map<RoleRank, std::vector<ValueLife>> lives;
  llvm::DenseSet<mlir::Value> shards;
  llvm::DenseMap<mlir::Value, std::pair<RoleRank, size_t>> storage;        ///< the life that a value continues
  llvm::DenseMap<UnitRank, std::pair<int64_t, mlir::Operation *>> stashes; ///< alive: where each began

  void number(pipeline::ProgramOp program);
  void findShards(pipeline::ProgramOp program);
  bool isFresh(mlir::Value value) const;
  void extend(ValueLife &life, mlir::Value value);
  void begin(mlir::Value value, int64_t first, mlir::Operation *born);
  void readWait(pipeline::WaitOp wait);
  void readMove(pipeline::MoveOp move);
  int64_t endOfArrival(pipeline::MoveOp move, int64_t rank) const;
  void readStashMove(pipeline::MoveOp move);
  void endStash(UnitRank key, mlir::Operation *end);
  bool goesOn(mlir::Value value, mlir::Value before);
  void readTask(pipeline::TaskOp task);
  void readStash(pipeline::TaskOp task);
};

} // namespace pp

#endif // PP_ANALYSIS_STEPLIVES_H
