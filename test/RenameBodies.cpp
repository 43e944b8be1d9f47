// pp-rename-bodies: pp-opt that can exchange the names of all derived functions, to show that nothing reads them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// `--pp-all-renamed=seed=7` is the whole pipeline with that pass behind derive-tasks, and again behind complete-step,
// which makes some functions more. Every function gets the name of another one: who reads a name takes one body for
// another.
#include "analysis/BodyTable.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "passes/Passes.h"
#include <random>

using namespace mlir;

namespace {

struct RenameBodies : public PassWrapper<RenameBodies, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(RenameBodies)
  RenameBodies() = default;
  RenameBodies(const RenameBodies &other) : PassWrapper(other) {}
  StringRef getArgument() const override { return "test-rename-bodies"; }
  StringRef getDescription() const override { return "exchange the names of derived functions at random"; }

  void runOnOperation() override {
    SmallVector<func::FuncOp> bodies;
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (pp::identityOf(function))
        bodies.push_back(function);
    std::mt19937 dice(seed);
    for (size_t i = bodies.size(); i > 1; --i)
      std::swap(bodies[i - 1], bodies[dice() % i]);
    llvm::DenseMap<Attribute, FlatSymbolRefAttr> names; // one round trip through all of them: no name stays
    for (size_t i = 0; i < bodies.size(); ++i)
      names[FlatSymbolRefAttr::get(bodies[i])] = FlatSymbolRefAttr::get(bodies[(i + 1) % bodies.size()]);
    for (func::FuncOp body : bodies)
      body.setSymNameAttr(names.lookup(FlatSymbolRefAttr::get(body)).getAttr());
    getOperation().walk([&](pp::pipeline::TaskOp task) {
      if (FlatSymbolRefAttr name = names.lookup(task.getCalleeAttr()))
        task.setCalleeAttr(name);
    });
  }

  Option<unsigned> seed{*this, "seed", llvm::cl::desc("of the names that are drawn"), llvm::cl::init(1)};
};

struct Options : public PassPipelineOptions<Options> {
  Option<unsigned> seed{*this, "seed", llvm::cl::desc("of the names that are drawn"), llvm::cl::init(1)};
};

/// The whole pipeline as text, with the exchange of names behind the passes that make functions.
void buildRenamed(OpPassManager &manager, const Options &options) {
  OpPassManager whole(ModuleOp::getOperationName());
  pp::buildPipeline(whole);
  for (Pass &pass : whole) {
    std::string text;
    llvm::raw_string_ostream os(text);
    pass.printAsTextualPipeline(os);
    if (pass.getArgument() == "pp-derive-tasks" || pass.getArgument() == "pp-complete-step")
      os << ",test-rename-bodies{seed=" << options.seed << "}";
    if (failed(parsePassPipeline(text, manager)))
      llvm::report_fatal_error("the pipeline does not parse as it is printed");
  }
}

} // namespace

int main(int argc, char **argv) {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, pp::nn::NnDialect, pp::pipeline::PipelineDialect>();
  pp::registerPpPasses();
  PassRegistration<RenameBodies>();
  PassPipelineRegistration<>("pp-all", "the whole pipeline",
                             [](OpPassManager &manager) { pp::buildPipeline(manager); });
  PassPipelineRegistration<Options>("pp-all-renamed", "the whole pipeline, with names that say nothing", buildRenamed);
  return asMainReturnCode(MlirOptMain(argc, argv, "the passes of pp, and an exchange of names\n", registry));
}
