// Reads a file and its imports, and elaborates the training program that they hold.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/Frontend.h"
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include "frontend/Train.h"
#include "frontend/evaluate/CommandLine.h"
#include "frontend/syntax/Parser.h"
#include "mlir/IR/Verifier.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/SaveAndRestore.h"

using namespace llvm;
using namespace pp;

namespace {
/// Files read so far, each once, and what they declare.
class Loader {
public:
  Loader(Source &source, const FrontendOptions &options) : source(source), options(options) {}

  LogicalResult load(unsigned buffer) {
    StringRef text = source.text(buffer);
    FailureOr<File> file = parse(source, text);
    if (failed(file))
      return failure();
    bool isRead = true;
    for (const Name &import : file->imports)
      isRead &= succeeded(loadImport(import, directoryOf(buffer)));
    if (!isRead)
      return failure();
    schedules[source.manager.getMemoryBuffer(buffer)->getBufferIdentifier()] = file->schedules;
    return declare(*file);
  }

  /// A library file, for schedules that are drawn without a model of their own.
  LogicalResult loadImport(Name import, StringRef directory) {
    SmallString<128> full = pathOf(import.text, directory);
    if (is_contained(open, full.str()))
      return source.error(import.at) << "`" << import.text << "` imports itself, through the files between";
    if (!read.insert(full).second)
      return success();
    std::string why;
    unsigned buffer = source.addFile(full, why);
    if (!buffer)
      return source.error(import.at) << "cannot open `" << import.text << "`: " << why
                                     << (import.text.starts_with("std/")
                                             ? "; the library is in `" + options.stdlibDir + "`"
                                             : "");
    open.push_back(full.str().str());
    LogicalResult loaded = load(buffer);
    open.pop_back();
    return loaded;
  }

  /// A library file that the program does not import: names of the program's own go before.
  LogicalResult loadUnasked(StringRef path) {
    SaveAndRestore unasked(isUnasked, true);
    return loadImport({path, declared.begin}, "");
  }

  /// Whether the clusters that the command line and the training programs name are declared.
  bool hasClusters(StringRef given) {
    SmallVector<StringRef> wanted;
    if (!given.empty())
      wanted.push_back(given);
    for (const Train *train : declared.trains)
      for (const Option &option : train->options)
        if (option.name.text == "cluster" && option.value)
          wanted.push_back(option.value->name);
        else if (option.name.text == "cluster")
          for (const Choice &choice : option.choices)
            wanted.push_back(choice.call->name);
    return all_of(wanted, [&](StringRef name) {
      return any_of(declared.clusters, [&](const Cluster *cluster) { return cluster->name.text == name; });
    });
  }

  /// Those that this file, which was loaded, declares itself.
  ArrayRef<const Schedule *> schedulesOf(StringRef path) { return schedules[pathOf(path, "")]; }

  Declarations declared;

private:
  SmallString<128> pathOf(StringRef path, StringRef directory) const {
    SmallString<128> full(path);
    if (path.consume_front("std/"))
      (full = options.stdlibDir).append(("/" + path).str());
    else if (sys::path::is_relative(path) && !directory.empty())
      (full = directory).append(("/" + path).str());
    sys::path::remove_dots(full, /*remove_dot_dot=*/true);
    return full;
  }

  // The folder of a buffer's file; one part of a split file is named "within split at FILE:LINE offset ".
  std::string directoryOf(unsigned buffer) {
    StringRef name = source.manager.getMemoryBuffer(buffer)->getBufferIdentifier();
    if (name.consume_front("within split at "))
      name = name.rsplit(':').first;
    return sys::path::parent_path(name).str();
  }

  template <typename T> LogicalResult add(std::vector<const T *> &into, const std::vector<const T *> &from) {
    for (const T *one : from) {
      auto [first, isNew] = names.insert({one->name.text, one->name.at});
      if (!isNew && isUnasked)
        continue;
      if (!isNew) {
        mlir::InFlightDiagnostic error = source.error(one->name.at) << "`" << one->name.text << "` is defined twice";
        error.attachNote(source.location(first->second)) << "first defined here";
        return error;
      }
      into.push_back(one);
    }
    return success();
  }

  LogicalResult declare(const File &file) {
    declared.trains.insert(declared.trains.end(), file.trains.begin(), file.trains.end());
    return success(succeeded(add(declared.functions, file.functions)) &&
                   succeeded(add(declared.schedules, file.schedules)) && succeeded(add(declared.models, file.models)) &&
                   succeeded(add(declared.clusters, file.clusters)));
  }

  Source &source;
  const FrontendOptions &options;
  StringSet<> read;
  std::vector<std::string> open;
  StringMap<std::vector<const Schedule *>> schedules; ///< by the path of their file
  StringMap<SMLoc> names;
  bool isUnasked = false; ///< what is read now
};

/// Holds back the diagnostics of a program, and then emits them in the order of the text.
class InOrderOfText {
public:
  explicit InOrderOfText(mlir::MLIRContext *context) : engine(context->getDiagEngine()) {
    handler = engine.registerHandler([this](mlir::Diagnostic &said) {
      auto place = said.getLocation()->findInstanceOf<mlir::FileLineColLoc>();
      auto file = files.try_emplace(place ? place.getFilename().getValue() : "", files.size()).first;
      held.emplace_back(std::array<size_t, 3>{file->second, place ? place.getLine() : 0, place ? place.getColumn() : 0},
                        std::move(said));
    });
  }
  ~InOrderOfText() {
    engine.eraseHandler(handler);
    stable_sort(held, [](const auto &a, const auto &b) { return a.first < b.first; });
    for (auto &[_, said] : held)
      engine.emit(std::move(said));
  }

private:
  mlir::DiagnosticEngine &engine;
  mlir::DiagnosticEngine::HandlerID handler;
  StringMap<size_t> files; ///< those of which something is said, in this order
  std::vector<std::pair<std::array<size_t, 3>, mlir::Diagnostic>> held;
};
} // namespace

std::pair<std::string, std::string> pp::scheduleFile(StringRef given) {
  size_t end = given.ends_with(".pipe") ? given.size() - 5 : given.rfind(".pipe:");
  if (end == StringRef::npos)
    return {};
  return {given.take_front(end + 5).str(), given.drop_front(std::min(end + 6, given.size())).str()};
}

/// The schedule of the file that `--schedule=FILE.pipe:NAME` names.
static LogicalResult loadSchedule(Loader &loader, Source &source, StringRef given, SMLoc at) {
  auto [path, name] = scheduleFile(given);
  if (failed(loader.loadImport({source.intern(path), at}, "")))
    return failure();
  SmallVector<StringRef> names;
  for (const Schedule *one : loader.schedulesOf(path)) {
    names.push_back(one->name.text);
    if (name.empty() || names.back() == name)
      loader.declared.chosen = one;
  }
  if (name.empty() && names.size() > 1)
    return source.error(at) << "`" << path << "` has " << names.size()
                            << " schedules; name one with --schedule=" << path << ":NAME; " << thereAre(names);
  if (!loader.declared.chosen)
    return source.error(at) << "`" << path << "` has no schedule `" << name << "`" << didYouMean(name, names);
  return success();
}

mlir::OwningOpRef<mlir::ModuleOp> pp::importPipe(SourceMgr &manager, mlir::MLIRContext *context,
                                                 const FrontendOptions &options) {
  context->loadDialect<mlir::func::FuncDialect, pp::nn::NnDialect, pp::pipeline::PipelineDialect>();
  InOrderOfText inOrder(context);
  Source source(manager, context);
  source.libraryFolder = options.stdlibDir;
  CommandLine commandLine(source, options);
  Loader loader(source, options);
  unsigned main = manager.getMainFileID();
  loader.declared.begin = SMLoc::getFromPointer(manager.getMemoryBuffer(main)->getBufferStart());
  if (failed(loader.load(main)))
    return nullptr;
  bool isFile = !scheduleFile(options.schedule).first.empty();
  bool drawn = loader.declared.trains.empty() || (!options.schedule.empty() && !isFile);
  if (drawn && loader.declared.models.empty() && failed(loader.loadUnasked("std/models/llama.pipe")))
    return nullptr;
  if (options.aloneMicrobatches && failed(loader.loadUnasked("std/single.pipe")))
    return nullptr;
  if (options.aloneMicrobatches)
    loader.declared.single = loader.schedulesOf("std/single.pipe").front();
  if (isFile && failed(loadSchedule(loader, source, options.schedule, commandLine.schedule)))
    return nullptr;
  if (!loader.hasClusters(options.cluster) && failed(loader.loadUnasked("std/clusters.pipe")))
    return nullptr;
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(source.location(loader.declared.begin));
  if (failed(elaborateProgram(source, loader.declared, options, commandLine, *module)) || failed(mlir::verify(*module)))
    return nullptr;
  return module;
}
