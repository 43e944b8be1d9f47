// What a pass says of a program that nothing has verified before it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_UNIT_PASSERROR_H
#define PP_TEST_UNIT_PASSERROR_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "passes/Passes.h"
#include <gtest/gtest.h>

namespace pp {

/// The first error of the pass on this text; empty if it succeeds.
inline std::string firstErrorOf(const std::string &text, std::unique_ptr<mlir::Pass> pass) {
  mlir::DialectRegistry registry;
  registry.insert<mlir::func::FuncDialect, nn::NnDialect, pipeline::PipelineDialect>();
  mlir::MLIRContext context(registry);
  context.loadAllAvailableDialects();
  std::string first;
  mlir::ScopedDiagnosticHandler handler(&context, [&](mlir::Diagnostic &diagnostic) {
    if (first.empty())
      first = diagnostic.str();
  });
  auto module = mlir::parseSourceString<mlir::ModuleOp>(text, mlir::ParserConfig(&context, /*verifyAfterParse=*/false));
  if (!module)
    return "does not parse: " + first;
  mlir::PassManager passes(&context);
  passes.enableVerifier(false);
  passes.addPass(std::move(pass));
  bool fine = succeeded(passes.run(*module));
  EXPECT_EQ(fine, first.empty());
  return first;
}

} // namespace pp

#endif // PP_TEST_UNIT_PASSERROR_H
