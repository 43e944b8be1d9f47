// From rank programs to an executable: LLVM modules, objects, and the link with the runtime.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: a module with task bodies (planned by plan-bodies) and a `pipeline.program` of `pipeline.rank` programs whose
// slots have offsets (plan-slots). After: one LLVM module, one object, per rank, and one for the table of ranks.
#ifndef PP_LOWERING_LOWERING_H
#define PP_LOWERING_LOWERING_H

#include "mlir/IR/BuiltinOps.h"
#include <memory>
#include <string>

namespace llvm {
class LLVMContext;
class Module;
class raw_ostream;
} // namespace llvm

namespace pp {

class ProvedModule;

/// What a program runs on: `cpu` or `cuda`.
llvm::StringRef programTarget(mlir::ModuleOp module);

/// What this compiler can link programs for: `cpu`, and `cuda` where it was built beside the toolkit.
llvm::ArrayRef<llvm::StringLiteral> linkedTargets();

/// Loads the LLVM dialect and its translation; once for a context, before anything below and from one thread.
void loadLoweringDialects(mlir::MLIRContext &context);

/// The LLVM module of one rank: its task bodies, `pp_step_<rank>`, and its JSON text `pp_json_<rank>`.
mlir::LogicalResult lowerRank(mlir::ModuleOp module, int64_t rank, llvm::LLVMContext &context,
                              std::unique_ptr<llvm::Module> &result);

/// The LLVM module with `pp_rank_table` (one entry for each of `ranks`), `pp_rank_count` and `pp_program_json`.
mlir::LogicalResult lowerTable(mlir::ModuleOp module, llvm::ArrayRef<int64_t> ranks, llvm::LLVMContext &context,
                               std::unique_ptr<llvm::Module> &result);

/// Writes the LLVM module of one rank as text, for people and tests.
mlir::LogicalResult writeLlvmText(mlir::ModuleOp module, int64_t rank, llvm::raw_ostream &os);

/// Writes the object file of one rank, for this machine's architecture.
mlir::LogicalResult emitObject(const ProvedModule &proved, int64_t rank, llvm::StringRef path);

/// Writes one object per rank and one for their table into `folder`, in parallel if the context allows threads.
mlir::LogicalResult emitObjects(const ProvedModule &proved, llvm::ArrayRef<int64_t> ranks, llvm::StringRef folder,
                                llvm::SmallVectorImpl<std::string> &paths);

/// Links objects with the runtime by the C++ compiler driver ($CXX, c++, g++ or clang++). `output`, a file that is
/// there or not, appears whole or not at all. `runtimeLibrary` empty: `libpp-runtime.a`, or for cuda
/// `libpp-runtime-cuda.a`, in `lib` beside the folder of this tool or of the build.
mlir::LogicalResult linkExecutable(llvm::ArrayRef<std::string> objects, llvm::StringRef target,
                                   llvm::StringRef runtimeLibrary, llvm::StringRef output, mlir::Location loc);

/// All of it: objects in a temporary folder, which does not outlive the call, then the link.
mlir::LogicalResult emitExecutable(const ProvedModule &proved, llvm::StringRef runtimeLibrary, llvm::StringRef output);

} // namespace pp

#endif // PP_LOWERING_LOWERING_H
