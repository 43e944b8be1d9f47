// The options of pp-compile that say what to prove, and the table of what was proved.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_PROOFS_H
#define PP_TOOLS_PROOFS_H

#include "analysis/Proof.h"
#include "mlir/IR/BuiltinOps.h"
#include "passes/Passes.h"
#include "tools/FrontendFlags.h"

namespace pp {

/// The heading of the options beside this in `--help`.
llvm::cl::OptionCategory &proofOptions();

/// The values of --channels.
NamedValues channelNames();

/// --channels and --memory-limit; fails, said once on stderr, where the limit is not a number of bytes.
llvm::FailureOr<ProofOptions> requestedProofs();

/// True if --prove asks for the table.
bool wantsProof();
/// And no form is asked for.
bool wantsProofAlone();

/// Writes what was proved of the programs of a module, in the form that --prove names.
void writeProof(mlir::ModuleOp module, const PassTimes &times, llvm::raw_ostream &os);

} // namespace pp

#endif // PP_TOOLS_PROOFS_H
