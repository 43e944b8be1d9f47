// A module of GPU kernels under construction, and its text in PTX.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_FORMULA_PTX_H
#define PP_LOWERING_FORMULA_PTX_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace pp {

/// Functions of the LLVM dialect, `arith`, `math`, `scf` and `vector`, in a context of their own.
class PtxModule {
public:
  PtxModule();
  mlir::ImplicitLocOpBuilder &builder() { return b; }
  /// A function that the builder has made is a kernel, for blocks of so many threads.
  mlir::LogicalResult addKernel(llvm::StringRef name, int64_t threads);
  /// The text, for compute capability 8.0 and PTX 7.0: a driver translates it for its GPU.
  mlir::FailureOr<std::string> print();

private:
  mlir::MLIRContext context;
  mlir::ImplicitLocOpBuilder b;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  llvm::SmallVector<std::pair<std::string, int64_t>> kernels;
};

/// Whether the toolkit's file of functions of f64 is there, without which there are none.
bool hasFunctionsOfF64();

} // namespace pp

#endif // PP_LOWERING_FORMULA_PTX_H
