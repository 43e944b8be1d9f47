// pp-translate: schedules of other systems to `.pipe` files, and our schedules to theirs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/Input.h"
#include "frontend/csv/Csv.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Support/ToolUtilities.h"
#include "passes/Passes.h"
#include "report/Output.h"
#include "report/Report.h"
#include "tools/FrontendFlags.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/Path.h"

using namespace mlir;
namespace cl = llvm::cl;

namespace {

cl::OptionCategory category("output options");
cl::opt<std::string> input(cl::Positional, cl::desc("FILE"), cl::init("-"), cl::cat(category));
cl::opt<std::string> output("o", cl::desc("output file, else standard output"), cl::value_desc("OUT"),
                            cl::cat(category));
cl::opt<bool> imports("import-csv", cl::desc("a schedule CSV of PyTorch to a `.pipe` file"), cl::cat(category));
cl::opt<bool> exports("export-csv", cl::desc("a `.pipe` file to a schedule CSV of PyTorch"), cl::cat(category));
cl::opt<pp::CsvDialect> dialect(
    "dialect", cl::desc("what the letters of the CSV mean (import)"), cl::init(pp::CsvDialect::Current),
    cl::cat(category),
    cl::values(clEnumValN(pp::CsvDialect::Current, "current", "B is the full backward, I and W are its halves"),
               clEnumValN(pp::CsvDialect::V25, "2.5", "PyTorch 2.5: BW is the full backward, B and W its halves")));
cl::opt<std::string> name("name", cl::desc("name of the schedule that is written (import)"), cl::init("imported"),
                          cl::cat(category));
cl::opt<bool> messages("comms", cl::desc("write the messages, too: PyTorch's compute_comms (export)"),
                       cl::cat(category));
cl::opt<bool> waits("waits", cl::init(true), cl::cat(category),
                    cl::desc("write WAIT_SEND and WAIT_REDUCE_GRAD, which older versions of PyTorch do not know "
                             "(export; true)"));
cl::opt<bool> verifyDiagnostics("verify-diagnostics", cl::desc("check expected-error comments"), cl::Hidden,
                                cl::cat(category));
cl::opt<std::string> splitInput("split-input-file", cl::ValueOptional, cl::Hidden, cl::cat(category),
                                cl::desc("treat each part between lines with this marker as a file"));

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
    pp::writePipe(program, program.getSymName(), nameOf(*sources), os);
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

/// One file, or one part of a split file.
static LogicalResult translate(std::unique_ptr<llvm::MemoryBuffer> buffer, llvm::raw_ostream &os) {
  MLIRContext context;
  auto sources = std::make_shared<llvm::SourceMgr>();
  sources->AddNewSourceBuffer(std::move(buffer), llvm::SMLoc());
  auto run = [&] { return imports ? importCsv(sources, os, &context) : exportCsv(sources, os, &context); };
  if (!verifyDiagnostics) {
    SourceMgrDiagnosticHandler handler(*sources, &context);
    pp::watchCommandLine(context);
    return run();
  }
  context.disableMultithreading();
  SourceMgrDiagnosticVerifierHandler handler(*sources, &context);
  (void)run();
  return handler.verify();
}

/// Checks that one of the two directions is asked for, and that every option has an effect in it.
static LogicalResult checkRequest() {
  if (imports == exports)
    return pp::usage(imports ? "--import-csv and --export-csv are two ways; give one"
                             : "say what to do: --import-csv or --export-csv; see --help");
  static constexpr llvm::StringLiteral ofImports[] = {"dialect", "name"};
  static constexpr llvm::StringLiteral ofExports[] = {"comms",  "waits",     "D",           "schedule",     "cluster",
                                                      "stdlib", "max-steps", "max-actions", "max-megabytes"};
  for (StringRef option : imports ? ArrayRef(ofExports) : ArrayRef(ofImports))
    if (cl::getRegisteredOptions().lookup(option)->getNumOccurrences())
      return pp::usage("`" + llvm::Twine(option.size() > 1 ? "--" : "-") + option + "` has no effect here; it is for " +
                       (imports ? "--export-csv" : "--import-csv"));
  bool same = false;
  if (!output.empty() && !llvm::sys::fs::equivalent(output, input, same) && same)
    return pp::usage("`" + output + "` would be written over: it is what this reads; name another file with -o");
  return success();
}

static LogicalResult run() {
  if (failed(checkRequest()))
    return failure();
  std::string why;
  std::unique_ptr<llvm::MemoryBuffer> buffer = pp::readInput(input, why);
  if (!buffer)
    return pp::refuse("cannot read `" + input + "`: " + why);
  if (splitInput.getNumOccurrences())
    return splitAndProcessBuffer(std::move(buffer), translate, llvm::outs(), splitInput, splitInput);
  auto fill = [&](llvm::raw_pwrite_stream &os) { return translate(std::move(buffer), os); };
  if (succeeded(pp::writeOutput(output.empty() ? "-" : StringRef(output), why, fill)))
    return success();
  return why.empty()
             ? failure()
             : pp::refuse("cannot write " + (output.empty() ? "standard output" : "`" + output + "`") + ": " + why);
}

int main(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  pp::setVersion("pp-translate");
  cl::extrahelp more("\nexit codes:\n\n  0  it is done\n  1  the file is wrong, or cannot be read or written\n"
                     "  2  the command line is wrong\n");
  bool read = pp::readCommandLine(argc, argv, "pp-translate: schedules of other systems and ours\n",
                                  {&pp::frontendFlags(), &category}, {pp::namedValues(dialect)});
  return pp::exitCode(success(read && succeeded(run())));
}
