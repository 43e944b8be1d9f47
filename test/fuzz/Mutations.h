// Changes proved rank programs in the ways in which compilers and people break them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_FUZZ_MUTATIONS_H
#define PP_TEST_FUZZ_MUTATIONS_H

#include "dialect/pipeline/Pipeline.h"
#include "mlir/IR/OwningOpRef.h"
#include "test/fuzz/Dice.h"

namespace pp::fuzz {

/// Names of all mutations, in the order of the table.
llvm::ArrayRef<llvm::StringRef> mutationNames();

/// Applies one; false where the program has nothing to which it applies (the module may have changed all the same).
/// Afterwards every post still stands before its completes and every value is defined.
bool mutate(mlir::ModuleOp module, llvm::StringRef name, Dice &dice);

/// A copy of the module with a mutation that is drawn, or with `only`, and the mutation's name; null where none of six
/// tries applies.
mlir::OwningOpRef<mlir::ModuleOp> drawMutant(mlir::ModuleOp module, Dice &dice, llvm::StringRef &name,
                                             llvm::StringRef only = "");

/// pp-fuzz mutants FILE.mlir FOLDER SEED COUNT: writes mutants of rank programs that pp-compile has emitted, each in a
/// file with the name of its mutation.
int writeMutants(int argc, char **argv);

/// pp-fuzz verdicts FILE.mlir SEED COUNT: of the program and of its mutants, on two lines each, what the proofs
/// say, and the mutant as JSON (pp.program/1), whether it is proved or not.
int writeVerdicts(int argc, char **argv);

} // namespace pp::fuzz

#endif // PP_TEST_FUZZ_MUTATIONS_H
