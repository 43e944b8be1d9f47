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

/// Refuses what a clause asks for, at its place, because of a size of the model, which a note points at. Where no place
/// is known, the error stands at the size.
inline mlir::InFlightDiagnostic refuseClause(mlir::ModuleOp module, llvm::StringRef clause, mlir::Location size,
                                             const llvm::Twine &message) {
  mlir::Location at = size, model = size;
  for (auto program : module.getOps<ProgramOp>()) {
    at = clauseLoc(program, clause, at);
    model = clauseLoc(program, "model", model);
  }
  mlir::InFlightDiagnostic error = mlir::emitError(at) << message;
  if (at != size)
    error.attachNote(model) << "the size comes from here";
  return error;
}

} // namespace pp::pipeline

#endif // PP_DIALECT_PIPELINE_CLAUSES_H
