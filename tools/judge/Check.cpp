// Makes a training program small, runs its schedule and one rank, and compares losses and gradients.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/judge/Check.h"
#include "analysis/Actions.h"
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include "lowering/Lowering.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"
#include "passes/Passes.h"
#include "tools/Forms.h"
#include "tools/FrontendFlags.h"
#include "tools/judge/Gradients.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"

using namespace mlir;
using namespace pp;
namespace cl = llvm::cl;

namespace {
cl::opt<bool> checkOption("check", cl::desc("run a small step in f64 and compare all gradients with those of one rank"),
                          cl::cat(compileOptions()));

constexpr double kBound = 1e-11;         ///< of the largest gradient of a tensor
constexpr double kMostOperations = 2e12; ///< of a step of one rank: some minutes
constexpr unsigned kSecondsToRun = 600;

/// A number that may be made smaller, as -D names it.
struct Size {
  std::string name;
  int64_t written, chosen, least;
  bool isData;
  bool matters = true; ///< there is less to compute with a smaller one
};

class Checker {
public:
  Checker(llvm::MemoryBufferRef source, const FrontendOptions &given, MakeExecutable make, llvm::raw_ostream &os)
      : source(source), options(given), make(make), os(os) {
    options.precision = "f64";
  }

  LogicalResult run();

private:
  OwningOpRef<ModuleOp> import(MLIRContext &context, const FrontendOptions &how);
  bool elaborates(int64_t microbatches);
  bool passes(ModuleOp module);
  bool isGiven(StringRef name) const;
  LogicalResult findSizes();
  void makeSmaller();
  void halve();
  bool lower(Size &size);
  LogicalResult refuseLarge();
  FrontendOptions sized() const;
  LogicalResult compile(StringRef path, bool alone);
  FailureOr<Gradients> step(StringRef path);
  LogicalResult compare(const Gradients &ours, const Gradients &reference);
  void say();

  llvm::MemoryBufferRef source;
  FrontendOptions options;
  MakeExecutable make;
  llvm::raw_ostream &os;
  std::vector<Size> sizes;
  bool asksPasses = false; ///< whether a size is taken; else the frontend alone is asked, which is faster
  std::string title;
  int64_t microbatches = 0, batch = 0, replicas = 1, sequence = 0;
  double parameters = 0; ///< of the model that was elaborated last
};
} // namespace

bool pp::wantsCheck() { return checkOption; }

//===-- Sizes ---------------------------------------------------------------------------------------------------===//

/// Numbers in all weights, layer by layer.
static double countParameters(ModuleOp module, int64_t layers) {
  double count = 0;
  for (auto function : module.getOps<func::FuncOp>())
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      if (function.getArgAttr(i, nn::kWeightAttr))
        count += double(cast<ShapedType>(function.getArgument(i).getType()).getNumElements()) *
                 (function->hasAttr(nn::kPerLayerAttr) ? layers : 1);
  return count;
}

static int64_t trainNumber(pipeline::ProgramOp program, StringRef name) {
  return program.getTrain().getAs<IntegerAttr>(name).getInt();
}

OwningOpRef<ModuleOp> Checker::import(MLIRContext &context, const FrontendOptions &how) {
  llvm::SourceMgr manager;
  manager.AddNewSourceBuffer(llvm::MemoryBuffer::getMemBuffer(source), llvm::SMLoc());
  OwningOpRef<ModuleOp> module = importPipe(manager, &context, how);
  if (!module)
    return module;
  for (auto program : module->getOps<pipeline::ProgramOp>())
    parameters = countParameters(*module, trainNumber(program, "layers"));
  return module;
}

/// Whether sizes can be cut over a mesh, over shards and in chunks is known to passes.
bool Checker::passes(ModuleOp module) {
  PassManager manager(module.getContext());
  buildPipeline(manager, Until::Step, {}, {});
  return succeeded(manager.run(module));
}

/// Whether the sizes are taken; nothing is said where they are not.
bool Checker::elaborates(int64_t alone) {
  MLIRContext context;
  loadLoweringDialects(context);
  ScopedDiagnosticHandler silent(&context, [](Diagnostic &) { return success(); });
  FrontendOptions how = sized();
  how.aloneMicrobatches = asksPasses ? 0 : alone;
  OwningOpRef<ModuleOp> module = import(context, how);
  return module && (!asksPasses || passes(*module));
}

/// Whether -D says it: by its own name, or by that of a parameter of `train` that it is probably made of.
bool Checker::isGiven(StringRef name) const {
  return llvm::any_of(options.defines, [&](auto &define) {
    StringRef own = name.rsplit('.').second, said = define.first;
    return said == name || said == own || (said.consume_front("train.") && said == own);
  });
}

LogicalResult Checker::findSizes() {
  std::vector<std::pair<std::string, int64_t>> found;
  FrontendOptions how = options;
  how.modelSizes = &found;
  MLIRContext context;
  llvm::SourceMgr manager;
  manager.AddNewSourceBuffer(llvm::MemoryBuffer::getMemBuffer(source), llvm::SMLoc());
  SourceMgrDiagnosticHandler handler(manager, &context);
  watchCommandLine(context);
  context.printOpOnDiagnostic(false);
  OwningOpRef<ModuleOp> module = importPipe(manager, &context, how);
  if (!module)
    return failure();
  auto programs = module->getOps<pipeline::ProgramOp>();
  pipeline::ProgramOp program = *programs.begin();
  if (hasVersions(program))
    return emitError(program.getLoc()) << "`--check` compares one update with one rank; this schedule has several, or "
                                          "reads older weights: `updates` or `with weight(..)`";
  microbatches = program.getMicrobatches();
  sizes.push_back({"data.sequence", trainNumber(program, "sequence"), 0, 16, true});
  sizes.push_back({"data.microbatch", trainNumber(program, "batch"), 0, 2, true});
  for (auto &[name, value] : found)
    if (name != "layers") // schedules cut by it
      sizes.push_back({"model." + name, value, 0, 16, false});
  llvm::erase_if(sizes, [&](const Size &size) { return isGiven(size.name); });
  for (Size &size : sizes)
    size.chosen = size.written;
  llvm::raw_string_ostream(title) << program.getTrain().getAs<StringAttr>("model").getValue() << ", schedule "
                                  << program.getTrain().getAs<StringAttr>("schedule").getValue() << " on "
                                  << program.getRanks() << " ranks, " << microbatches << " microbatches, "
                                  << trainNumber(program, "layers") << " layers";
  batch = trainNumber(program, "batch");
  replicas = program.sizeOf(pipeline::Axis::data);
  sequence = trainNumber(program, "sequence");
  return success();
}

FrontendOptions Checker::sized() const {
  FrontendOptions how = options;
  for (const Size &size : sizes)
    if (size.chosen != size.written)
      how.defines.push_back({size.name, std::to_string(size.chosen)});
  return how;
}

/// Halves a size while the program can be elaborated with it and has less to compute; true if it became smaller.
bool Checker::lower(Size &size) {
  int64_t before = size.chosen;
  while (size.chosen / 2 >= size.least) {
    int64_t last = size.chosen;
    double had = parameters;
    size.chosen = last / 2;
    // The schedule may have rules about the data; of the model it sees the layers alone.
    bool taken = elaborates(size.isData ? 0 : microbatches);
    size.matters = !taken || size.isData || parameters < had; // rope's theta is an int, too
    if (taken && size.matters)
      continue;
    size.chosen = last;
    parameters = had;
    break;
  }
  return size.chosen != before;
}

void Checker::halve() {
  elaborates(microbatches); // counts the parameters
  for (bool changed = true; changed;) {
    changed = false;
    for (Size &size : sizes)
      changed |= lower(size);
  }
}

/// Most programs can have any size that the frontend takes. If this one cannot, each size is tried with the passes.
void Checker::makeSmaller() {
  halve();
  asksPasses = true;
  if (!elaborates(0)) {
    for (Size &size : sizes)
      size.chosen = size.written, size.matters = true;
    halve();
  }
  for (const Size &size : sizes)
    if (size.isData)
      (size.name == "data.sequence" ? sequence : batch) = size.chosen;
}

/// A step that would take hours is refused, with the numbers that could not be made smaller.
LogicalResult Checker::refuseLarge() {
  double operations = 6 * parameters * double(batch * replicas) * sequence * microbatches;
  if (operations <= kMostOperations)
    return success();
  std::string large;
  llvm::raw_string_ostream stream(large);
  for (const Size &size : sizes)
    if (size.matters && size.chosen > 2 * size.least)
      stream << (large.empty() ? "" : ", ") << size.name << " = " << size.chosen;
  return refuse(
      llvm::formatv("--check could not make this program small: a step of one rank has {0:e1} operations; give smaller "
                    "numbers with -D{1}",
                    operations, large.empty() ? "" : ", for example of " + large));
}

//===-- Running -------------------------------------------------------------------------------------------------===//

LogicalResult Checker::compile(StringRef path, bool alone) {
  MLIRContext context;
  loadLoweringDialects(context);
  context.printOpOnDiagnostic(false);
  llvm::SourceMgr manager;
  manager.AddNewSourceBuffer(llvm::MemoryBuffer::getMemBuffer(source), llvm::SMLoc());
  SourceMgrDiagnosticHandler handler(manager, &context);
  watchCommandLine(context);
  ScopedDiagnosticHandler known(&context, [](Diagnostic &diagnostic) { // warnings were shown before
    return success(diagnostic.getSeverity() == DiagnosticSeverity::Warning);
  });
  FrontendOptions how = sized();
  how.aloneMicrobatches = alone ? microbatches : 0;
  OwningOpRef<ModuleOp> module = importPipe(manager, &context, how);
  return success(module && succeeded(make(*module, path)));
}

/// One step of all ranks in one process, with sends that wait for their receives.
FailureOr<Gradients> Checker::step(StringRef path) {
  std::string gradients = (path + ".grads").str(), log = (path + ".log").str(), said = (path + ".out").str();
  StringRef arguments[] = {path, "--in-process", "--sends", "rendezvous", "--data",  "random", "--seed",
                           "1",  "--steps",      "1",       "--grads",    gradients, "--log",  log};
  std::optional<StringRef> redirects[] = {StringRef(""), StringRef(said), StringRef(said)};
  std::string why;
  int status = llvm::sys::ExecuteAndWait(path, arguments, std::nullopt, redirects, kSecondsToRun, 0, &why);
  if (status != 0) {
    auto text = llvm::MemoryBuffer::getFile(said);
    return refuse("--check: the program " + (why.empty() ? "ended with status " + std::to_string(status) : why) + "\n" +
                  (text ? (*text)->getBuffer().rtrim() : StringRef()));
  }
  return readGradients(gradients, log);
}

//===-- The verdict ---------------------------------------------------------------------------------------------===//

/// `layers.*.w` of `layers.3.w`: the layers of a weight are one line.
static std::string withoutNumbers(StringRef name) {
  SmallVector<StringRef> words;
  name.split(words, '.');
  for (StringRef &word : words)
    if (!word.empty() && llvm::all_of(word, llvm::isDigit))
      word = "*";
  return llvm::join(words, ".");
}

void Checker::say() {
  os << title << "\n";
  std::string changes;
  for (const Size &size : sizes)
    if (size.chosen != size.written)
      changes += (changes.empty() ? "" : ", ") + size.name + " " + std::to_string(size.written) + " -> " +
                 std::to_string(size.chosen);
  os << (changes.empty() ? "sizes as given" : "made smaller: " + changes) << "; f64\n";
}

LogicalResult Checker::compare(const Gradients &ours, const Gradients &reference) {
  FailureOr<std::vector<Difference>> differences = differencesOf(ours, reference);
  if (failed(differences))
    return failure();
  std::map<std::string, std::pair<int64_t, Difference>> lines;
  for (const Difference &difference : *differences) {
    auto &[count, worst] = lines[withoutNumbers(difference.name)];
    if (!count++ || !(difference.relative <= worst.relative))
      worst = difference;
  }
  size_t width = 4;
  for (auto &line : lines)
    width = std::max(width, line.first.size());
  os << llvm::left_justify("gradient of", width) << "  tensors  worst difference\n";
  Difference worst;
  for (auto &[name, line] : lines) {
    auto &[count, difference] = line;
    bool good = difference.relative <= kBound;
    os << llvm::left_justify(name, width) << "  "
       << llvm::format("%7lld  %16.1e", (long long)count, difference.relative)
       << (good        ? ""
           : count > 1 ? "  wrong, in " + difference.name
                       : "  wrong")
       << "\n";
    if (!(difference.relative <= worst.relative))
      worst = difference;
  }
  bool right = worst.relative <= kBound;
  os << (right ? "right" : "wrong")
     << llvm::format(": the worst difference is %.1e of the largest gradient of a tensor, the bound is %.0e\n",
                     worst.relative, double(kBound));
  return success(right);
}

LogicalResult Checker::run() {
  if (failed(findSizes()))
    return failure();
  makeSmaller();
  if (failed(refuseLarge()))
    return failure();
  say();
  llvm::SmallString<128> folder;
  if (std::error_code error = llvm::sys::fs::createUniqueDirectory("pp-check", folder))
    return refuse("cannot make a temporary folder: " + error.message());
  auto removeFolder = llvm::make_scope_exit([&] { llvm::sys::fs::remove_directories(folder); });
  std::string ours = (folder + "/schedule").str(), single = (folder + "/single").str();
  if (failed(compile(ours, /*alone=*/false)) || failed(compile(single, /*alone=*/true)))
    return failure();
  FailureOr<Gradients> theirs = step(single), made = FailureOr<Gradients>(failure());
  if (succeeded(theirs))
    made = step(ours);
  return success(succeeded(made) && succeeded(compare(*made, *theirs)));
}

LogicalResult pp::check(llvm::MemoryBufferRef source, const FrontendOptions &options, MakeExecutable make,
                        llvm::raw_ostream &os) {
  return Checker(source, options, make, os).run();
}
