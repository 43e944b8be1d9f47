// Lowers task bodies to functions of kernel calls, once for each rank that uses them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_BODIES_H
#define PP_LOWERING_BODIES_H

#include "dialect/pipeline/BodyGroups.h"
#include "lowering/Calls.h"
#include "lowering/Describe.h"
#include <map>

namespace pp {

/// A lowered body: `i32 @name(ptr rank, ptr <each pointer of its groups>, ptr scratch)`; of a group in a slot whose
/// tensors lie apart a pointer for each of them. Where it runs in turn with another one, a function for each turn: what
/// is posted in one may be completed in a later one.
struct Body {
  std::string name; ///< the body's, and a number where slots lie apart, or ops run, in more than one way
  llvm::SmallVector<mlir::LLVM::LLVMFuncOp> functions; ///< by turn
  BodyGroups groups;
  llvm::SmallVector<int64_t> begins; ///< by group's pointer: the number of its first one here; last, their number
  llvm::SmallVector<bool> apart;     ///< by group's pointer
  int64_t scratch = 0;
  double flops = 0;
  bool follows = false; ///< it runs beside the launch before it

  /// The launch's slots are the body's groups, in number and payload.
  mlir::LogicalResult checkLaunch(pipeline::LaunchOp launch) const;
  /// The argument of the signature and the offset from it for a place that plan-bodies gave.
  std::pair<unsigned, int64_t> argumentOf(std::pair<int64_t, int64_t> place) const;
};

/// The bodies of one rank.
class Bodies {
public:
  /// Pointer of the signature (-1: scratch) and byte offset of a value.
  using Places = llvm::DenseMap<mlir::Value, std::pair<int64_t, int64_t>>;

  Bodies(CallModule &calls, RankText &text) : calls(calls), text(text) {}

  /// The lowered body for slots that lie as the launch's do, with so many ops in each turn, all in one where that is
  /// empty; lowered at the first request. Null after an error, which is reported once.
  const Body *get(mlir::func::FuncOp function, pipeline::LaunchOp launch, llvm::ArrayRef<int64_t> turns);

private:
  mlir::LogicalResult lower(mlir::func::FuncOp function, llvm::ArrayRef<int64_t> turns, Body &body);
  mlir::LogicalResult lower(mlir::Operation &op, CallChain &chain, Places &places, const Body &body);
  mlir::LogicalResult lowerExchange(nn::Exchange exchange, CallChain &chain, Places &places, const Body &body);
  void complete(CallChain &chain);
  mlir::LogicalResult lowerList(llvm::ArrayRef<mlir::Operation *> run, CallChain &chain, Places &places,
                                const Body &body);

  CallModule &calls;
  RankText &text;
  /// Of a function by where slots lie apart, by turns, and whether it follows.
  using Variant = std::tuple<llvm::SmallVector<bool>, llvm::SmallVector<int64_t>, bool>;
  llvm::DenseMap<mlir::Operation *, std::map<Variant, std::unique_ptr<Body>>> bodies;
  std::optional<std::pair<mlir::Location, int32_t>> posted; ///< the body's message that is not yet completed
};

} // namespace pp

#endif // PP_LOWERING_BODIES_H
