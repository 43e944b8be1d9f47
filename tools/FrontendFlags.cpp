// Reads the command line of every tool that reads `.pipe` files, and finds the standard library.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/FrontendFlags.h"
#include "runtime/Version.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/WithColor.h"

using namespace mlir;
namespace cl = llvm::cl;

cl::OptionCategory &pp::frontendFlags() { // a function, for options in other files may be initialised first
  static cl::OptionCategory category("options of a `.pipe` file");
  return category;
}

namespace {
cl::list<std::string> defines("D", cl::Prefix, cl::value_desc("name=value"), cl::cat(pp::frontendFlags()),
                              cl::desc("give a parameter of the schedule, model or train program a value"));
cl::opt<std::string> schedule("schedule", cl::desc("compile this schedule of the file instead of its train program"),
                              cl::value_desc("name"), cl::cat(pp::frontendFlags()));
cl::opt<std::string> cluster("cluster", cl::desc("run on this cluster, of the file or of std/clusters.pipe"),
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

static std::string executable() {
  return llvm::sys::fs::getMainExecutable(nullptr, reinterpret_cast<void *>(&executable));
}

LogicalResult pp::usage(const llvm::Twine &message) {
  llvm::WithColor::error(llvm::errs(), llvm::sys::path::stem(executable())) << message << "\n";
  return failure();
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
  return options;
}
