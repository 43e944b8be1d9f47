// Reads the command line of every tool that reads `.pipe` files, and finds the standard library.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/FrontendFlags.h"
#include "frontend/evaluate/CommandLine.h"
#include "runtime/Version.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/WithColor.h"

using namespace mlir;
namespace cl = llvm::cl;

cl::OptionCategory &pp::frontendFlags() { // a function, for options in other files may be initialised first
  static cl::OptionCategory category("input options");
  return category;
}

namespace {
cl::list<std::string> defines("D", cl::Prefix, cl::value_desc("name=value"), cl::cat(pp::frontendFlags()),
                              cl::desc("give a parameter a value: ranks=4, model.layers=8, optimizer.lr=1e-3"));
cl::opt<std::string> schedule("schedule", cl::desc("compile this schedule of the file instead of its train program"),
                              cl::value_desc("name"), cl::cat(pp::frontendFlags()));
cl::opt<std::string> cluster("cluster", cl::desc("use this cluster of the file or of std/clusters.pipe"),
                             cl::value_desc("name"), cl::cat(pp::frontendFlags()));
cl::opt<int64_t> maxSteps("max-steps", cl::init(pp::Budget().steps), cl::value_desc("N"), cl::cat(pp::frontendFlags()),
                          cl::desc("expressions and statements that a schedule may evaluate"));
cl::opt<int64_t> maxActions("max-actions", cl::init(pp::Budget().actions), cl::value_desc("N"),
                            cl::cat(pp::frontendFlags()),
                            cl::desc("units, moves, limits and pieces that a schedule may emit"));
cl::opt<int64_t> maxMegabytes("max-megabytes", cl::init(pp::Budget().bytes / 1'000'000), cl::value_desc("N"),
                              cl::cat(pp::frontendFlags()),
                              cl::desc("memory that a schedule's lists and actions may take while it is evaluated"));
cl::opt<std::string> stdlibDir("stdlib", cl::desc("folder of the standard library"), cl::cat(pp::frontendFlags()));
} // namespace

static const char *startedAs = "pp";
void pp::setTool(const char *path) { startedAs = path; }
StringRef pp::toolName() { return llvm::sys::path::stem(startedAs); }

static std::string executable() {
  return llvm::sys::fs::getMainExecutable(startedAs, reinterpret_cast<void *>(&executable));
}

static bool wrongCommandLine = false;
static std::pair<std::string, std::string> lastDefine; ///< no name: there is none

void pp::setDefine(StringRef name, StringRef value) { lastDefine = {name.str(), value.str()}; }

LogicalResult pp::refuse(const llvm::Twine &message) {
  llvm::WithColor::error(llvm::errs(), toolName()) << message << "\n";
  return failure();
}

LogicalResult pp::usage(const llvm::Twine &message) {
  wrongCommandLine = true;
  return refuse(message);
}

void pp::watchCommandLine(MLIRContext &context) {
  context.getDiagEngine().registerHandler([](Diagnostic &diagnostic) {
    auto at = diagnostic.getLocation()->findInstanceOf<FileLineColLoc>();
    if (at && at.getFilename() == kCommandLine && diagnostic.getSeverity() == DiagnosticSeverity::Error)
      wrongCommandLine = true;
    return failure(); // and on to who prints it
  });
}

/// Refuses what LLVM would refuse in other words: an option that does not exist, a value that has no name.
static LogicalResult checkWord(StringRef word, ArrayRef<pp::NamedValues> named, bool &takesNext) {
  StringRef text = word.ltrim('-'), name = text.split('=').first;
  auto &options = cl::getRegisteredOptions();
  auto found = options.find(name);
  takesNext = false;
  if (found == options.end() && text.starts_with("D"))
    found = options.find("D");
  if (found == options.end()) {
    SmallVector<StringRef> names;
    for (auto &entry : options)
      if (entry.getValue()->getOptionHiddenFlag() == cl::NotHidden)
        names.push_back(entry.getKey());
    llvm::sort(names);
    StringRef nearest = pp::nearestName(name, names);
    return pp::usage("there is no option `" + word.split('=').first + "`" +
                     (nearest.empty()
                          ? "; see --help"
                          : "; did you mean `" + llvm::Twine(nearest.size() > 1 ? "--" : "-") + nearest + "`?"));
  }
  takesNext = text == found->getKey() && found->second->getValueExpectedFlag() == cl::ValueRequired;
  for (const pp::NamedValues &its : named)
    if (StringRef value = text.split('=').second;
        its.option == name && text.contains('=') && !llvm::is_contained(its.values, value))
      return pp::usage("`--" + name + "` has no value `" + value + "`" + pp::didYouMean(value, its.values) + "; " +
                       pp::thereAre(its.values));
  return success();
}

bool pp::readCommandLine(ArrayRef<const char *> given, StringRef overview, ArrayRef<const cl::OptionCategory *> shown,
                         ArrayRef<NamedValues> named) {
  if (const char *none = getenv("NO_COLOR"); none && *none) // --color counts more
    llvm::WithColor::setAutoDetectFunction([](const llvm::raw_ostream &os) {
      cl::Option *color = cl::getRegisteredOptions().lookup("color");
      return color && color->getNumOccurrences() && llvm::WithColor::defaultAutoDetectFunction()(os);
    });
  cl::HideUnrelatedOptions(shown);
  for (StringRef hidden : {"help-list"})
    if (cl::Option *option = cl::getRegisteredOptions().lookup(hidden))
      option->setHiddenFlag(cl::Hidden);
  SmallVector<const char *> words(given);
  bool isValue = false;
  for (const char *&word : MutableArrayRef(words).drop_front()) {
    StringRef text = word;
    if (std::exchange(isValue, false) || !text.starts_with("-") || text == "-")
      continue;
    if (text == "--")
      break;
    if (text == "-h")
      word = "--help";
    else if (failed(checkWord(text, named, isValue)))
      return false;
  }
  std::string wrong;
  llvm::raw_string_ostream stream(wrong);
  if (cl::ParseCommandLineOptions(words.size(), words.data(), overview, &stream))
    return true;
  wrongCommandLine = true;
  if (StringRef line = StringRef(wrong).split('\n').first; !line.empty())
    (void)refuse(line.split(": ").second + "; see --help");
  return false;
}

int pp::exitCode(LogicalResult done) {
  llvm::outs().flush();
  if (llvm::outs().has_error()) {
    done = refuse("cannot write standard output: " + llvm::outs().error().message());
    llvm::outs().clear_error();
  }
  return succeeded(done) ? 0 : wrongCommandLine ? 2 : 1;
}

void pp::setVersion(StringRef tool, ArrayRef<llvm::StringLiteral> targets) {
  cl::SetVersionPrinter([=](llvm::raw_ostream &os) {
    os << tool << " " << version() << ", LLVM " LLVM_VERSION_STRING;
    if (!targets.empty())
      os << (targets.size() == 1 ? ", target " : ", targets ") << llvm::join(targets, ", ");
    os << "\n";
  });
}

/// The standard library: --stdlib, else beside the tool's folder. In a build that is a link to the sources, whose paths
/// messages then show.
static std::string findStdlib() {
  if (!stdlibDir.empty())
    return stdlibDir;
  std::string self = executable();
  llvm::SmallString<256> beside(llvm::sys::path::parent_path(llvm::sys::path::parent_path(self))), real;
  llvm::sys::path::append(beside, "share", "pp", "stdlib");
  return llvm::sys::fs::real_path(beside, real) ? std::string(beside) : std::string(real);
}

FailureOr<pp::FrontendOptions> pp::frontendOptions() {
  FrontendOptions options;
  options.schedule = schedule;
  options.cluster = cluster;
  options.stdlibDir = findStdlib();
  if (maxSteps < 0 || maxActions < 0 || maxMegabytes < 0 || maxMegabytes > INT64_MAX / 1'000'000)
    return usage("expected a limit of at least 0 for --max-steps, --max-actions, --max-megabytes");
  options.budget = {maxSteps, maxActions, maxMegabytes * 1'000'000};
  for (StringRef define : defines) {
    auto [name, value] = define.split('=');
    if (name.empty() || name.size() == define.size())
      return usage("expected -D name=value, got `-D " + define + "`");
    options.defines.push_back({name.str(), value.str()});
  }
  if (!lastDefine.first.empty())
    options.defines.push_back(lastDefine);
  return options;
}
