// What the command line says of a program: a buffer of the program's text, so that diagnostics can point into it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_COMMANDLINE_H
#define PP_FRONTEND_COMMANDLINE_H

#include "frontend/Frontend.h"
#include "frontend/evaluate/Evaluator.h"

namespace pp {

/// The name of the buffer that holds what the command line says.
inline constexpr llvm::StringLiteral kCommandLine = "<command line>";

/// A `-D name=value` whose owner is known: `model`, `schedule`, `cluster`, `data`, `optimizer` or
/// `train`.
struct Override {
  std::string name; // as given
  Value value;
  StringRef owner, parameter;
  SMLoc at, valueAt; ///< on the command line; invalid for what the compiler itself gives
};

/// The options that name parameters, schedule and cluster, each on a line of its own: `-D ranks=4`.
class CommandLine {
public:
  /// Adds the buffer `<command line>` to the program's.
  CommandLine(Source &source, const FrontendOptions &options);

  /// The values of -D: an int, a number, true or false, a list, else a string.
  mlir::FailureOr<std::vector<Override>> readDefines();

  SMLoc schedule, cluster; ///< the names that are given; invalid if none is

private:
  struct Define {
    std::string name;
    StringRef text;
    SMLoc at, valueAt;
  };
  mlir::FailureOr<Value> read(StringRef text, SMLoc at);

  Source &source;
  std::vector<Define> defines;
};

/// Collects the names that an expression reads.
void addNames(const Expr *expr, llvm::SmallVectorImpl<StringRef> &names);

/// The place on the command line that set a name which the expression reads, the first one; invalid if none did.
SMLoc givenOf(const Expr *expr, Scope &scope);

/// The origin of an expression's value: this place if there is one, else the expression.
SMLoc originOf(const Expr *expr, Scope &scope);

} // namespace pp

#endif // PP_FRONTEND_COMMANDLINE_H
