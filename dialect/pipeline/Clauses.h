// Where the clauses of a training program are given, so that passes can refuse a value at its place in the text.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   fused[program, "mlp.chunks"("train.pipe":7:16), "lora.dropout"("<command line>":1:17)]
#ifndef PP_DIALECT_PIPELINE_CLAUSES_H
#define PP_DIALECT_PIPELINE_CLAUSES_H

#include "dialect/pipeline/Pipeline.h"

namespace pp::pipeline {

/// The location of a program with these clauses.
inline mlir::Location withClauses(mlir::Location program,
                                  llvm::ArrayRef<std::pair<std::string, mlir::Location>> clauses) {
  llvm::SmallVector<mlir::Location> all = {program};
  for (const auto &[name, at] : clauses)
    all.push_back(mlir::NameLoc::get(mlir::StringAttr::get(program.getContext(), name), at));
  return clauses.empty() ? program : mlir::FusedLoc::get(program.getContext(), all);
}

/// Where this clause is given, `lora.dropout` or `mlp.chunks`; where it is not known, `otherwise`.
inline mlir::Location clauseLoc(ProgramOp program, llvm::StringRef clause, mlir::Location otherwise) {
  if (auto fused = mlir::dyn_cast<mlir::FusedLoc>(program.getLoc()))
    for (mlir::Location one : fused.getLocations())
      if (auto named = mlir::dyn_cast<mlir::NameLoc>(one); named && named.getName() == clause)
        return named.getChildLoc();
  return otherwise;
}
inline mlir::Location clauseLoc(ProgramOp program, llvm::StringRef clause) {
  return clauseLoc(program, clause, program.getLoc());
}

/// The same for the programs of an op's module.
inline mlir::Location clauseLoc(mlir::Operation *in, llvm::StringRef clause, mlir::Location otherwise) {
  for (auto program : in->getParentOfType<mlir::ModuleOp>().getOps<ProgramOp>())
    otherwise = clauseLoc(program, clause, otherwise);
  return otherwise;
}

/// Refuses what a clause asks for, at its place, because of what the model is; a note points at the model. Where no
/// place is known, the error stands at the op.
inline mlir::InFlightDiagnostic refuseClause(mlir::Operation *op, llvm::StringRef clause, const llvm::Twine &message) {
  mlir::Location at = clauseLoc(op, clause, op->getLoc());
  mlir::InFlightDiagnostic error = mlir::emitError(at) << message;
  if (at != op->getLoc())
    error.attachNote(clauseLoc(op, "model", op->getLoc())) << "the model is given here";
  return error;
}

} // namespace pp::pipeline

#endif // PP_DIALECT_PIPELINE_CLAUSES_H
