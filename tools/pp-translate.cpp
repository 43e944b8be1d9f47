// pp-translate: schedules of other systems to `.pipe` files, and our schedules to theirs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/Csv.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Tools/mlir-translate/MlirTranslateMain.h"
#include "mlir/Tools/mlir-translate/Translation.h"
#include "passes/Passes.h"
#include "passes/Report.h"
#include "tools/FrontendFlags.h"
#include "llvm/Support/Path.h"

using namespace mlir;
namespace cl = llvm::cl;

namespace {

cl::opt<pp::CsvDialect> dialect(
    "dialect", cl::desc("what the letters of the CSV mean"), cl::init(pp::CsvDialect::Current),
    cl::values(clEnumValN(pp::CsvDialect::Current, "current", "B is the full backward, I and W are its halves"),
               clEnumValN(pp::CsvDialect::V25, "2.5", "PyTorch 2.5: BW is the full backward, B and W its halves")));
cl::opt<std::string> name("name", cl::desc("name of the schedule that is written"), cl::init("imported"));
cl::opt<bool> messages("comms", cl::desc("write the messages, too (PyTorch's compute_comms)"));
cl::opt<bool>
    waits("waits", cl::init(true),
          cl::desc("write WAIT_SEND and WAIT_REDUCE_GRAD, which older versions of PyTorch do not know (true)"));

using Sources = std::shared_ptr<llvm::SourceMgr>;

StringRef nameOf(const llvm::SourceMgr &sources) {
  return llvm::sys::path::filename(sources.getMemoryBuffer(sources.getMainFileID())->getBufferIdentifier());
}

/// Judged by the passes that judge a `.pipe` file, with the cells in the place of its lines.
LogicalResult importCsv(const Sources &sources, llvm::raw_ostream &os, MLIRContext *context) {
  context->printOpOnDiagnostic(false);
  OwningOpRef<ModuleOp> module = pp::importCsv(*sources, context, dialect, name);
  if (!module)
    return failure();
  OwningOpRef<ModuleOp> merged = module->clone();
  PassManager manager(context);
  manager.addPass(pp::createVerifyUnits());
  manager.addPass(pp::createLinearizeActions());
  if (failed(manager.run(*merged)))
    return failure();
  for (auto program : module->getOps<pp::pipeline::ProgramOp>())
    pp::writePipe(program, nameOf(*sources), os);
  return success();
}

LogicalResult exportCsv(const Sources &sources, llvm::raw_ostream &os, MLIRContext *context) {
  context->printOpOnDiagnostic(false);
  auto options = pp::frontendOptions();
  if (failed(options))
    return failure();
  OwningOpRef<ModuleOp> module = pp::importPipe(*sources, context, *options);
  if (!module)
    return failure();
  for (auto program : module->getOps<pp::pipeline::ProgramOp>())
    if (failed(pp::checkTorch(program)))
      return failure();
  PassManager manager(context);
  pp::buildPipeline(manager, pp::Until::Ranks, {},
                    {/*fuse=*/false, /*hoist=*/false, /*costs=*/""}); // cell by cell what the schedule says
  if (failed(manager.run(*module)))
    return failure();
  for (auto program : module->getOps<pp::pipeline::ProgramOp>())
    if (failed(pp::exportTorch(program, {messages, waits}, os)))
      return failure();
  return success();
}

} // namespace

int main(int argc, char **argv) {
  TranslateRegistration read("import-csv", "a schedule CSV of PyTorch to a `.pipe` file", importCsv);
  TranslateRegistration write("export-csv", "a `.pipe` file to a schedule CSV of PyTorch", exportCsv);
  pp::setVersion("pp-translate");
  return failed(mlirTranslateMain(argc, argv, "pp-translate: schedules of other systems and ours\n"));
}
