// The pipeline, the proofs with their diagnostics captured, and the adversaries.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/fuzz/Judge.h"
#include "dialect/nn/Nn.h"
#include "frontend/Frontend.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "passes/Passes.h"
#include "llvm/Support/SourceMgr.h"
#include <mutex>

using namespace mlir;

namespace pp::fuzz {

namespace {
/// A rule under which a program is refused though it happens to run clean.
struct Rule {
  const char *name, *proof, *shape;
  enum class If {
    Any,
    Unused, ///< the program runs clean without a launch of the named unit, or without one of the unit's inputs
    Unread, ///< the program runs clean without the message at which the error stands: a window may hide all its keys
    Shared, ///< it does not when every slot has bytes of its own
    Keys,   ///< the message names keys of two slices of one sequence
    Tied,   ///< it names weights of two pieces that share their table, the same rows
    Rows    ///< it names the numbers of one row for two slices of it
  } holds;
};
constexpr Rule rules[] = {
    // The second run writes what the first wrote. It costs time, and nobody meant it.
    {"a unit that runs again makes the same again", "units", "runs twice", Rule::If::Any},
    // The forward of a stage with recomputation whose activation nobody takes: its stash is made anew by R.
    {"a unit that does not run made nothing that is used", "units", "no rank runs", Rule::If::Any},
    // The norm is below what gradients are clipped to, with the term and without it.
    {"a norm that clips nothing lacks a term", "values", "clips by a norm without the gradient of", Rule::If::Unused},
    {"a unit that reads the wrong thing makes nothing that is used", "values", "from a slot that nothing has written",
     Rule::If::Unused},
    // Or the kernels that read it make what nobody takes, as the R of a norm that is rebuilt from its statistics.
    {"a unit has the wrong thing where nothing comes of it", "values", "", Rule::If::Unused},
    // Two pieces on one rank: the sum of the squares is the same whichever comes first.
    {"the terms of the norm change places", "values", "`norm` of", Rule::If::Any},
    {"the terms of the norm change places", "values", "`norm.", Rule::If::Any}, // of shards
    // A copy of a weight that no unit reads any more.
    {"a message that carries the wrong thing goes where nobody reads it", "values", "sends", Rule::If::Unread},
    {"a message that carries the wrong thing goes where nobody reads it", "slots", "posts `..` while it is in flight",
     Rule::If::Unread},
    // Another name for bytes that hold the right value, by luck of this plan of memory.
    {"a wrong slot lies where the right one does", "values", "", Rule::If::Shared},
    // All keys that a helper is sent are attended whole, and a softmax does not know in which order.
    {"keys change places where all of them are attended", "channels", "is `..`, and the receiver expects `..`",
     Rule::If::Keys},
    {"keys change places where all of them are attended", "values", "of `..` as `..`", Rule::If::Keys},
    // Embedding and head have one table, and on this rank the same rows of it.
    {"a weight is read from the piece that shares it", "values", "reads `..` where it needs `..`", Rule::If::Tied},
    // Dropout draws by the number of the row, and all slices of a row have the same.
    {"the number of a row is read from another slice of it", "values", "reads `..` where it needs `..`",
     Rule::If::Rows},
    // W adds to the only gradient of its stage: the sum is the same, whichever term comes first.
    {"the terms of a gradient change places", "values", "left for `..` where it needs what `..` left for `..`",
     Rule::If::Any},
    // The same message or unit twice: the second gradient is equal to the one that it replaces.
    {"a gradient is written over by an equal one", "values", "which nothing has taken", Rule::If::Any},
    // A launch runs twice, or a thing arrives twice: an equal copy is written over the first one while that travels.
    {"what is in flight is written over by an equal one", "slots", "writes `..` while it is in flight", Rule::If::Any},
    {"what is in flight is written over by an equal one", "slots", "receives over `..` while", Rule::If::Any},
    // Two names for the same bytes that mean the same value, a value that nobody reads any more, or the memory of a
    // send whose receiver must already have it: true by luck of this plan or of other ranks, and false after the next
    // change.
    {"two slots share bytes when it does no harm", "slots", "overlaps", Rule::If::Any},
    // I may write its results anywhere; only tensors that it leaves in place must be read there.
    {"what is handed on is looked for where I writes it", "slots", "hands on tensor", Rule::If::Any},
};
} // namespace

using Changed = llvm::SmallVector<OwningOpRef<ModuleOp>>;

/// A tensor that a launch hands on has the same place in its result as in its input.
static void followHanded(pipeline::LaunchOp launch) {
  llvm::ArrayRef<int64_t> left = launch.getHanded().value_or(llvm::ArrayRef<int64_t>());
  for (; !left.empty(); left = left.drop_front(4)) {
    auto from = launch.slots()[size_t(left[0])].getDefiningOp<pipeline::SlotOp>();
    auto to = launch.slots()[size_t(left[2])].getDefiningOp<pipeline::SlotOp>();
    llvm::SmallVector<int64_t> places = to.tensorOffsets();
    places[size_t(left[3])] = from.tensorOffsets()[size_t(left[1])];
    to.removeOffsetAttr();
    to.setPlaces(places);
  }
}

/// The programs without one launch of this unit, and those in which one of its launches reads NaN instead of one input.
static Changed withoutUse(ModuleOp module, llvm::StringRef unit) {
  Changed changed;
  auto launchesOf = [&](ModuleOp program) {
    llvm::SmallVector<pipeline::LaunchOp> launches;
    program.walk([&](pipeline::LaunchOp launch) {
      if (launch.getUnit().str() == unit)
        launches.push_back(launch);
    });
    return launches;
  };
  for (auto [i, launch] : llvm::enumerate(launchesOf(module))) {
    launchesOf(*changed.emplace_back(ModuleOp(module->clone())))[i].erase();
    for (unsigned input = 0; input < launch.getInputs().size(); ++input) {
      pipeline::LaunchOp blind = launchesOf(*changed.emplace_back(ModuleOp(module->clone())))[i];
      auto rank = blind->getParentOfType<pipeline::RankOp>();
      auto old = blind.getInputs()[input].getDefiningOp<pipeline::SlotOp>();
      auto fresh = llvm::cast<pipeline::SlotOp>(old->clone());
      blind->getBlock()->push_front(fresh);
      fresh.removeBindingAttr();
      fresh.removePlacesAttr();
      fresh.setOffset(*rank.getArenaBytes());
      rank.setArenaBytes(*rank.getArenaBytes() +
                         uint64_t(pipeline::payloadOffsets(old.getSlot().getType().getPayload()).back()));
      blind->setOperand(input, fresh.getSlot());
      followHanded(blind);
    }
  }
  return changed;
}

/// The program without the message of this thing that was written at this place (both its ends were); null if it has
/// none.
static OwningOpRef<ModuleOp> withoutMessage(ModuleOp module, Location loc, llvm::StringRef thing) {
  OwningOpRef<ModuleOp> without = ModuleOp(module->clone());
  llvm::SmallVector<pipeline::PostOp> ends;
  without->walk([&](pipeline::PostOp post) {
    if (post.getLoc() == loc && (thing.empty() || post.getThing().str() == thing))
      ends.push_back(post);
  });
  for (pipeline::PostOp post : ends) {
    for (Operation *user : llvm::make_early_inc_range(post.getRequest().getUsers()))
      user->erase();
    post.erase();
  }
  return ends.empty() ? OwningOpRef<ModuleOp>() : std::move(without);
}

/// The program with a plan in which no two slots share a byte.
static OwningOpRef<ModuleOp> withoutSharing(ModuleOp module) {
  OwningOpRef<ModuleOp> apart = ModuleOp(module->clone());
  apart->walk([&](pipeline::RankOp rank) {
    uint64_t bytes = 0;
    for (auto slot : rank.getOps<pipeline::SlotOp>()) {
      slot.removePlacesAttr();
      slot.setOffset(bytes);
      bytes += uint64_t(pipeline::payloadOffsets(slot.getSlot().getType().getPayload()).back());
    }
    rank.setArenaBytes(bytes);
    for (auto launch : rank.getOps<pipeline::LaunchOp>())
      followHanded(launch);
  });
  return apart;
}

/// The text in back quotes after these words.
static llvm::StringRef quotedAfter(llvm::StringRef message, llvm::StringRef words) {
  return message.split((words + " `").str()).second.split('`').first;
}

/// `.. is \`kv(1, 5, 0)\`, and the receiver expects \`kv(1, 5, 1)\``, or
/// `sends .. of \`kv(1, 5, 0)\` as \`kv(1, 5, 1)\``.
static bool namesKeysOfOneSequence(llvm::StringRef message) {
  llvm::SmallVector<llvm::StringRef> quotes;
  message.split(quotes, '`');
  llvm::erase_if(quotes, [](llvm::StringRef text) { return !text.starts_with("kv("); });
  return quotes.size() == 2 && quotes[0].rsplit(',').first == quotes[1].rsplit(',').first;
}

/// `.. reads \`weight(head(2))\` where it needs \`weight(embed(2))\``.
static bool namesTiedRows(llvm::StringRef message) {
  llvm::StringRef is = quotedAfter(message, " reads"), needed = quotedAfter(message, " needs");
  auto isOf = [](llvm::StringRef thing, llvm::StringRef part) {
    return thing.starts_with(("weight(" + part + "(").str());
  };
  return is.rsplit('(').second == needed.rsplit('(').second &&
         ((isOf(is, "head") && isOf(needed, "embed")) || (isOf(is, "embed") && isOf(needed, "head")));
}

/// `.. reads \`data(rows, 1, 3)\` where it needs \`data(rows, 1, 0)\``.
static bool namesOneRow(llvm::StringRef message) {
  llvm::StringRef is = quotedAfter(message, " reads"), needed = quotedAfter(message, " needs");
  return is.starts_with("data(rows, ") && is.rsplit(',').first == needed.rsplit(',').first;
}

std::string Judge::stricterRule(ModuleOp module, const Verdict &verdict, uint64_t seed) {
  std::string shape = shapeOf(verdict.message), ignored;
  auto isClean = [&](ModuleOp other) { return execute(other, seed, /*threads=*/false, ignored).truth == Truth::Clean; };
  // Asks the same of the program with separate slots, so that it does not pass by luck twice.
  OwningOpRef<ModuleOp> apart = withoutSharing(module);
  llvm::StringRef unit = llvm::StringRef(verdict.message).rsplit(" on rank").first;
  unit = unit.rsplit('`').first.rsplit('`').second;
  llvm::StringRef thing = quotedAfter(verdict.message, "sends"), lacked = quotedAfter(verdict.message, "gradient of");
  std::string lacks = "U(" + lacked.str() + ")"; // whose term the norm has not
  for (const Rule &rule : rules) {
    bool says = shape.find(rule.shape) != std::string::npos || verdict.message.find(rule.shape) == 0;
    if (verdict.proof != rule.proof || !says)
      continue;
    Changed changed;
    if (rule.holds == Rule::If::Unused)
      changed = withoutUse(*apart, shape.find("clips by a norm") != std::string::npos ? lacks : unit);
    if (auto without = rule.holds == Rule::If::Unread ? withoutMessage(*apart, *verdict.at, thing) : nullptr)
      changed.push_back(std::move(without));
    if (rule.holds == Rule::If::Any || (rule.holds == Rule::If::Keys && namesKeysOfOneSequence(verdict.message)) ||
        (rule.holds == Rule::If::Tied && namesTiedRows(verdict.message)) ||
        (rule.holds == Rule::If::Rows && namesOneRow(verdict.message)) ||
        (rule.holds == Rule::If::Shared && !isClean(*apart)) ||
        llvm::any_of(changed, [&](OwningOpRef<ModuleOp> &other) { return isClean(*other); }))
      return rule.name;
  }
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
    else
      passes += (passes.empty() ? "" : ",") + pass.getArgument().str();
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
  // The text says itself whether weights leave earlier than it has them.
  std::string all = passes;
  if (StringRef rest = text; rest.consume_front("# hoist ")) {
    StringRef step = "pp-complete-step", distance = rest.take_until([](char c) { return c == '\n'; });
    all.insert(all.find(step) + step.size(), (",pp-hoist-moves{distance=" + distance + "}").str());
  }
  PassManager manager(&context);
  if (!module || failed(parsePassPipeline(all, manager)) || failed(manager.run(*module)))
    return {};
  return module;
}

bool Judge::compile(const Schedule &schedule, std::string &why) {
  one = &ones[schedule.single];
  if (!one->loader) {
    OwningOpRef<ModuleOp> module = compileText(schedule.single, why);
    one->loader = std::make_unique<Loader>(table);
    if (!module || !one->loader->load(*module, one->code, why))
      return false;
  }
  if (!reference(0)) {
    why = "the one-rank program fails";
    return false;
  }
  base = compileText(schedule.text(), why);
  loader = std::make_unique<Loader>(table);
  return bool(base);
}

OwningOpRef<ModuleOp> Judge::read(StringRef path) { return parseSourceFile<ModuleOp>(path, &context); }

Verdict Judge::prove(ModuleOp module, bool allMaps) {
  Verdict verdict;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error && verdict.message.empty()) {
      verdict.message = diagnostic.str();
      verdict.at = diagnostic.getLocation();
    }
    return success();
  });
  // A mutant may be no program at all. The pipeline has verify-ops before the proofs, for they expect well-formed ops.
  if (failed(verify(module))) {
    verdict.proved = false;
    verdict.proof = "ops";
    return verdict;
  }
  for (const std::string &proof : proofs) {
    PassManager manager(&context);
    std::string options = allMaps && proof == "pp-prove-progress" ? "{all=true}" : "";
    if (succeeded(parsePassPipeline(proof + options, manager)) && succeeded(manager.run(module)))
      continue;
    verdict.proved = false;
    verdict.proof = proof.substr(strlen("pp-prove-"));
    break;
  }
  return verdict;
}

const Reference *Judge::reference(int64_t data) {
  auto [found, isNew] = one->references.try_emplace(data);
  if (const Kernels *kernels = isNew ? table.prepare() : nullptr)
    found->second = record(one->code, *kernels, data);
  return found->second.steps.empty() ? nullptr : &found->second;
}

/// Runs the program with every adversary in turn, until one run fails.
static Outcome runAll(const Code &code, const Kernels &kernels, uint64_t seed, const Reference &reference) {
  Outcome outcome;
  for (Adversary adversary : {Adversary::Early, Adversary::Eager, Adversary::Late, Adversary::Mixed}) {
    outcome = run(code, kernels, adversary, seed++, reference);
    if (outcome.truth != Truth::Clean)
      break;
  }
  return outcome;
}

Outcome Judge::executeOtherwise(ModuleOp module, uint64_t seed) {
  Code code;
  std::string why;
  Outcome outcome;
  if (!loader->load(module, code, why) || !table.prepare())
    return {Truth::Fault, why};
  for (int64_t data = 1; data < code.program.vocab && outcome.truth == Truth::Clean; ++data)
    if (const Reference *expected = reference(data))
      outcome = runAll(code, *table.prepare(), pp::hashOf(seed, uint64_t(data)), *expected);
  return outcome;
}

Outcome Judge::execute(ModuleOp module, uint64_t seed, bool threads, std::string &disagreement) {
  // The loader's complaints are part of the outcome, not errors of this program.
  ScopedDiagnosticHandler quiet(&context, [](Diagnostic &) { return success(); });
  Code code;
  std::string why;
  if (!loader->load(module, code, why))
    return {Truth::Fault, why};
  const Kernels *kernels = table.prepare();
  if (!kernels)
    return {Truth::Fault, "a kernel cannot be prepared"};
  const Reference &expected = *reference(0);
  Outcome outcome = runAll(code, *kernels, seed, expected);
  if (!threads)
    return outcome;
  Outcome other = runThreads(code, table.all(), expected);
  // Other timing may show what the executor's draws did not; but what hangs there must not end here.
  if (outcome.truth == Truth::Hang && other.truth == Truth::Clean)
    disagreement = "ends";
  if (outcome.truth == Truth::Clean && other.truth != Truth::Clean)
    return {other.truth, "between threads: " + other.why};
  return outcome;
}

Case Judge::judge(ModuleOp module, uint64_t seed, bool threads) {
  Case result;
  result.outcome = execute(module, seed, threads, result.threads);
  result.verdict = prove(module);
  if (!result.verdict.proved && result.isClean())
    result.rule = stricterRule(module, result.verdict, seed);
  if (!result.verdict.proved && result.isClean() && result.rule.empty())
    result.outcome = executeOtherwise(module, seed);
  if (!result.agrees()) {
    llvm::raw_string_ostream os(result.text);
    module.print(os, OpPrintingFlags().enableDebugInfo(false));
  }
  return result;
}

} // namespace pp::fuzz
