// The values of parameters: from the command line, from the call in `train`, or by default.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_PARAMETERS_H
#define PP_FRONTEND_PARAMETERS_H

#include "frontend/Evaluator.h"

namespace pp {

/// A `-D name=value`, once it is known whose it is: `model`, `schedule`, `cluster`, `data`, `optimizer` or
/// `train`.
struct Override {
  std::string name; // as given
  Value value;
  StringRef owner, parameter;
};

/// `value` as -D reads it: an int, a number, true or false, else a string.
Value readOverride(Source &source, StringRef text);

/// What has parameters: `schedule one_f_one_b`.
struct Callee {
  StringRef kind; // schedule, model, cluster, train
  Name name;
  ArrayRef<Parameter> parameters;

  const Parameter *find(StringRef text) const;
  /// "; did you mean `microbatches`?"
  std::string nearest(StringRef text) const;
};

/// Binds every parameter of `callee` in `into`; `call` holds the arguments (or is null), evaluated in `around`.
mlir::LogicalResult bindParameters(Evaluator &evaluator, const Callee &callee, const Expr *call, Scope &around,
                                   ArrayRef<Override> overrides, Scope &into);

} // namespace pp

#endif // PP_FRONTEND_PARAMETERS_H
