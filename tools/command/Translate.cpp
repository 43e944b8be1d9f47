// Translates schedules of other systems to `.pipe` files: --import-csv.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/command/Translate.h"
#include "dialect/Input.h"
#include "frontend/csv/Csv.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Support/ToolUtilities.h"
#include "passes/Passes.h"
#include "tools/Forms.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

using namespace mlir;
namespace cl = llvm::cl;

namespace {

cl::opt<bool> imports("import-csv", cl::desc("a schedule CSV of PyTorch to a `.pipe` file"),
                      cl::cat(pp::translateOptions()));
cl::opt<pp::CsvDialect> dialect(
    "dialect", cl::desc("what the letters of the CSV mean"), cl::init(pp::CsvDialect::Current),
    cl::cat(pp::translateOptions()),
    cl::values(clEnumValN(pp::CsvDialect::Current, "current", "B is the full backward, I and W are its halves"),
               clEnumValN(pp::CsvDialect::V25, "2.5", "PyTorch 2.5: BW is the full backward, B and W its halves")));
cl::opt<std::string> name("name", cl::desc("name of the schedule that is written"), cl::init("imported"),
                          cl::cat(pp::translateOptions()));
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

} // namespace

cl::OptionCategory &pp::translateOptions() { // a function, for options in other files may be initialised first
  static cl::OptionCategory category("translation options");
  return category;
}

pp::NamedValues pp::dialectNames() { return namedValues(dialect); }
bool pp::wantsTranslation() { return imports; }

ArrayRef<StringRef> pp::optionsOfTranslation() {
  static const StringRef options[] = {"import-csv", "dialect", "name", "o"};
  return options;
}

/// Checks that every option has an effect.
static LogicalResult checkRequest(StringRef input) {
  static const StringRef known[] = {"color", "verify-diagnostics", "split-input-file"};
  SmallVector<StringRef> given;
  for (auto &entry : cl::getRegisteredOptions())
    if (entry.getValue()->getNumOccurrences() && !llvm::is_contained(known, entry.getKey()) &&
        !llvm::is_contained(pp::optionsOfTranslation(), entry.getKey()))
      given.push_back(entry.getKey());
  llvm::sort(given);
  if (!given.empty())
    return pp::usage("`" + llvm::Twine(given[0].size() > 1 ? "--" : "-") + given[0] +
                     "` has no effect here; it is not for --import-csv");
  bool same = false;
  std::string output = pp::namedOutput();
  if (!output.empty() && !llvm::sys::fs::equivalent(output, input, same) && same)
    return pp::usage("`" + output + "` would be written over: it is what this reads; name another file with -o");
  return success();
}

LogicalResult pp::translate(StringRef input, bool verifies, bool splits) {
  if (failed(checkRequest(input)))
    return failure();
  std::string why;
  std::unique_ptr<llvm::MemoryBuffer> buffer = readInput(input, why);
  if (!buffer)
    return refuse("cannot read `" + input + "`: " + why);
  auto one = [&](std::unique_ptr<llvm::MemoryBuffer> part, llvm::raw_ostream &os) -> LogicalResult {
    MLIRContext context;
    auto sources = std::make_shared<llvm::SourceMgr>();
    sources->AddNewSourceBuffer(std::move(part), llvm::SMLoc());
    auto run = [&] { return ::importCsv(sources, os, &context); };
    if (!verifies) {
      SourceMgrDiagnosticHandler handler(*sources, &context);
      watchCommandLine(context);
      return run();
    }
    context.disableMultithreading();
    SourceMgrDiagnosticVerifierHandler handler(*sources, &context);
    (void)run();
    return handler.verify();
  };
  if (splits)
    return splitAndProcessBuffer(std::move(buffer), one, llvm::outs(), "# -----", "# -----");
  return writeProgramText([&](llvm::raw_ostream &os) { return one(std::move(buffer), os); });
}
