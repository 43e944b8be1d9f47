// The pipeline, the proofs with their diagnostics captured, and the adversaries.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/fuzz/Judge.h"
#include "dialect/Nn.h"
#include "frontend/Frontend.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "passes/Passes.h"
#include "llvm/Support/SourceMgr.h"
#include <mutex>

using namespace mlir;

namespace pp::fuzz {

namespace {
/// Rules under which a program is refused though it happens to run clean.
struct Rule {
  const char *name, *shape;
};
constexpr Rule rules[] = {
    {"", ""},
};
} // namespace

std::string stricterRule(const std::string &message) {
  std::string shape = shapeOf(message);
  for (const Rule &rule : rules)
    if (*rule.shape && shape.find(rule.shape) != std::string::npos)
      return rule.name;
  return "";
}

std::string shapeOf(const std::string &message) {
  std::string shape;
  bool quoted = false;
  for (char c : message.substr(0, message.find(", with "))) {
    if (c == '`')
      shape += (quoted = !quoted) ? "`.." : "`";
    else if (quoted)
      continue;
    else if (!std::isdigit(c))
      shape += c;
    else if (shape.empty() || shape.back() != '#')
      shape += '#';
  }
  return shape;
}

Judge::Judge(std::string stdlib) : stdlib(std::move(stdlib)), context(MLIRContext::Threading::DISABLED) {
  static std::once_flag once;
  std::call_once(once, [] { registerPpPasses(); });
  DialectRegistry registry;
  registry.insert<func::FuncDialect, nn::NnDialect, pipeline::PipelineDialect>();
  context.appendDialectRegistry(registry);
  context.loadAllAvailableDialects();
  context.printOpOnDiagnostic(false);
  PassManager manager(&context);
  buildPipeline(manager);
  for (Pass &pass : manager.getPasses())
    if (pass.getArgument().starts_with("pp-prove-"))
      proofs.push_back(pass.getArgument().str());
}

OwningOpRef<ModuleOp> Judge::compileText(const std::string &text, std::string &why) {
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error && why.empty())
      why = diagnostic.str();
    return success();
  });
  llvm::SourceMgr sources;
  sources.AddNewSourceBuffer(llvm::MemoryBuffer::getMemBufferCopy(text, "fuzz.pipe"), llvm::SMLoc());
  FrontendOptions options;
  options.stdlibDir = stdlib;
  OwningOpRef<ModuleOp> module = importPipe(sources, &context, options);
  PassManager manager(&context);
  buildPipeline(manager);
  if (!module || failed(manager.run(*module)))
    return {};
  return module;
}

bool Judge::compile(const Schedule &schedule, std::string &why) {
  single = schedule.single;
  if (!references.count(single)) {
    OwningOpRef<ModuleOp> module = compileText(single, why);
    Code code;
    Loader one(table);
    if (!module || !one.load(*module, code, why) || !table.prepare())
      return false;
    references[single] = record(code, *table.prepare());
    if (references[single].empty()) {
      why = "the one-rank program fails";
      return false;
    }
  }
  base = compileText(schedule.text, why);
  loader = std::make_unique<Loader>(table);
  return bool(base);
}

Verdict Judge::prove(ModuleOp module) {
  Verdict verdict;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error && verdict.message.empty())
      verdict.message = diagnostic.str();
    return success();
  });
  for (const std::string &proof : proofs) {
    PassManager manager(&context);
    if (succeeded(parsePassPipeline(proof, manager)) && succeeded(manager.run(module)))
      continue;
    verdict.proved = false;
    verdict.proof = proof.substr(strlen("pp-prove-"));
    break;
  }
  return verdict;
}

Outcome Judge::execute(ModuleOp module, uint64_t seed, bool threads, std::string &disagreement) {
  Code code;
  std::string why;
  if (!loader->load(module, code, why))
    return {Truth::Fault, why};
  const Kernels *kernels = table.prepare();
  if (!kernels)
    return {Truth::Fault, "a kernel cannot be prepared"};
  const Reference &reference = references[single];
  Outcome outcome;
  for (Adversary adversary : {Adversary::Early, Adversary::Eager, Adversary::Late, Adversary::Mixed}) {
    outcome = run(code, *kernels, adversary, seed++, reference);
    if (outcome.truth != Truth::Clean)
      break;
  }
  if (!threads)
    return outcome;
  Outcome other = runThreads(code, table.all(), reference);
  // A program that breaks for an unkind transport may run well on a kind one; never the other way round.
  bool stops = outcome.truth == Truth::Hang;
  if ((outcome.truth == Truth::Clean && other.truth != Truth::Clean) || (stops && other.truth == Truth::Clean))
    disagreement = other.truth == Truth::Clean ? "ends" : other.why;
  return outcome;
}

Case Judge::judge(ModuleOp module, uint64_t seed, bool threads) {
  Case result;
  {
    // The loader's complaints are part of the outcome, not errors of this program.
    ScopedDiagnosticHandler quiet(&context, [](Diagnostic &) { return success(); });
    result.outcome = execute(module, seed, threads, result.threads);
  }
  result.verdict = prove(module);
  if (!result.verdict.proved && result.isClean())
    result.rule = stricterRule(result.verdict.message);
  if (!result.agrees()) {
    llvm::raw_string_ostream os(result.text);
    module.print(os, OpPrintingFlags().enableDebugInfo(false));
  }
  return result;
}

} // namespace pp::fuzz
