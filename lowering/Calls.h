// Builds an LLVM dialect module whose functions are chains of calls, each left at the first status that is not zero.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_CALLS_H
#define PP_LOWERING_CALLS_H

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/StringMap.h"

namespace pp {

/// A module of status functions: `i32 @name(ptr..)` of our own, `i32 @pp_name(ptr rank[, i32 number], ptr..)` called.
class CallModule {
public:
  explicit CallModule(mlir::Location loc);

  mlir::OwningOpRef<mlir::ModuleOp> module;
  mlir::OpBuilder builder;
  mlir::Type pointer, i32;

  /// The runtime function of this name and shape, declared at its first use.
  mlir::LLVM::LLVMFuncOp runtimeFunction(llvm::StringRef name, unsigned pointers);
  /// A new `i32 @name(ptr..)`, empty; internal functions are seen by this module only.
  mlir::LLVM::LLVMFuncOp addFunction(llvm::StringRef name, unsigned pointers, bool internal, mlir::Location loc);
  /// A constant global that holds `text` and a final zero byte.
  mlir::LLVM::GlobalOp addText(llvm::StringRef name, llvm::StringRef text);

private:
  llvm::StringMap<mlir::LLVM::LLVMFuncOp> declared;
};

/// The body of one function under construction.
class CallChain {
public:
  CallChain(CallModule &calls, mlir::LLVM::LLVMFuncOp function);

  mlir::Value argument(unsigned i) { return function.getArgument(i); }
  /// `base + bytes`, computed where it is used: a value kept over a thousand calls would only be spilled.
  mlir::Value address(mlir::Value base, int64_t bytes);
  mlir::Value null();
  /// An array of addresses on the stack.
  mlir::Value list(mlir::ValueRange addresses);

  /// Calls one of our own functions.
  void call(mlir::Location loc, mlir::LLVM::LLVMFuncOp callee, mlir::ValueRange arguments);
  /// Calls `pp_name(rank, number, pointers..)`; argument 0 of every function is the rank.
  void callRuntime(mlir::Location loc, llvm::StringRef name, int32_t number, mlir::ValueRange pointers = {});
  /// Returns zero; nothing may follow.
  void finish();
  unsigned size() const { return count; }

private:
  CallModule &calls;
  mlir::LLVM::LLVMFuncOp function;
  mlir::Block *current, *exit = nullptr;
  unsigned count = 0;
};

} // namespace pp

#endif // PP_LOWERING_CALLS_H
