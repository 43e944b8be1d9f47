// The values of parameters: from the command line, from the call in `train`, or by default.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_PARAMETERS_H
#define PP_FRONTEND_PARAMETERS_H

#include "frontend/evaluate/CommandLine.h"

namespace pp {

/// A declaration with parameters: `schedule one_f_one_b`.
struct Callee {
  StringRef kind; // schedule, model, cluster, train
  Name name;
  ArrayRef<Parameter> parameters;

  const Parameter *find(StringRef text) const;
  /// "; did you mean `microbatches`?"
  std::string nearest(StringRef text) const;
};

/// A call that a training program chose; null: it names no arguments.
struct ChosenCall {
  const Expr *call;
  Callee callee;
};

/// Warns of each parameter of the training program that -D sets and nothing that is chosen reads.
void warnOfUnread(Source &source, const Train &train, ArrayRef<ChosenCall> chosen, ArrayRef<Override> overrides);

/// Binds every parameter of `callee` in `into`; `call` holds the arguments (or is null), evaluated in `around`.
mlir::LogicalResult bindParameters(Evaluator &evaluator, const Callee &callee, const Expr *call, Scope &around,
                                   ArrayRef<Override> overrides, Scope &into);

} // namespace pp

#endif // PP_FRONTEND_PARAMETERS_H
