// Lowers task bodies to functions of kernel calls, once for each rank that uses them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_BODIES_H
#define PP_LOWERING_BODIES_H

#include "dialect/Pipeline.h"
#include "lowering/Calls.h"
#include "lowering/Describe.h"
#include "passes/PlanBodies.h"

namespace pp {

/// A lowered body: `i32 @name(ptr rank, ptr <each pointer of its groups>, ptr scratch)`.
struct Body {
  mlir::LLVM::LLVMFuncOp function;
  BodyGroups groups;
  int64_t scratch = 0;
  double flops = 0;

  /// The launch's slots are the body's groups, in number and payload.
  mlir::LogicalResult checkLaunch(pipeline::LaunchOp launch) const;
};

/// The bodies of one rank.
class Bodies {
public:
  /// Pointer of the signature (-1: scratch) and byte offset of a value.
  using Places = llvm::DenseMap<mlir::Value, std::pair<int64_t, int64_t>>;

  Bodies(CallModule &calls, RankText &text) : calls(calls), text(text) {}

  /// The lowered body; lowered at the first request. Null after an error, which is reported once.
  const Body *get(mlir::func::FuncOp function);

private:
  mlir::LogicalResult lower(mlir::func::FuncOp function, Body &body);
  mlir::LogicalResult lower(mlir::Operation &op, CallChain &chain, Places &places, unsigned pointers);

  CallModule &calls;
  RankText &text;
  llvm::DenseMap<mlir::Operation *, std::unique_ptr<Body>> bodies;
};

} // namespace pp

#endif // PP_LOWERING_BODIES_H
