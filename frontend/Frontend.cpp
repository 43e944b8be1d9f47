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

  /// After an error, `declared` has what could be read.
  LogicalResult load(unsigned buffer) {
    File file = parse(source, source.text(buffer));
    bool isRead = !file.isWrong;
    for (const Name &import : file.imports)
      isRead &= succeeded(loadImport(import, directoryOf(buffer)));
    declared.isIncomplete |= file.isIncomplete;
    schedules[source.manager.getMemoryBuffer(buffer)->getBufferIdentifier()] = file.schedules;
    return success(succeeded(declare(file)) && isRead);
  }

  /// A library file, for schedules that are drawn without a model of their own.
  LogicalResult loadImport(Name import, StringRef directory) {
    SmallString<128> full = pathOf(import.text, directory);
    if (is_contained(open, full.str()))
      return source.error(import.at) << "`" << import.text << "` imports itself, through the files between";
    if (!read.insert(full).second)
      return success();
    if (options.attempt)
      options.attempt->files.push_back(full.str().str());
    std::string why;
    unsigned buffer = addFile(full, why);
    declared.isIncomplete |= !buffer;
    if (!buffer)
      return source.error(import.at) << "cannot open `" << import.text << "`: " << why
                                     << (import.text.starts_with("std/")
                                             ? "; the library is in `" + options.stdlibDir + "`"
                                             : "");
    source.setUser(SMLoc::getFromPointer(source.manager.getMemoryBuffer(buffer)->getBufferStart()), import.at);
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
  /// The number of the buffer with the text that an editor holds of this file, else with the file's.
  unsigned addFile(StringRef path, std::string &why) {
    if (options.openFiles)
      if (auto held = options.openFiles->find(path); held != options.openFiles->end())
        return source.manager.AddNewSourceBuffer(MemoryBuffer::getMemBufferCopy(held->second, path), SMLoc());
    return source.addFile(path, why);
  }

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

  /// A block may have the name of a function or a schedule, and a user's block that of one of the library.
  template <typename T> std::string keyOf(const T *one) {
    bool isBlock = std::is_same_v<T, ModelBlock>;
    StringRef kind = !isBlock ? "" : source.isOfLibrary(one->name.at) ? "library " : "block ";
    return (kind + one->name.text).str();
  }

  template <typename T> bool add(std::vector<const T *> &into, const std::vector<const T *> &from) {
    bool isRight = true;
    for (const T *one : from) {
      auto [first, isNew] = names.insert({keyOf(one), one->name.at});
      if (!isNew && isUnasked)
        continue;
      if (!isNew) {
        mlir::InFlightDiagnostic error = source.error(one->name.at) << "`" << one->name.text << "` is defined twice";
        error.attachNote(source.location(first->second)) << "first defined here";
        isRight = false;
        continue;
      }
      into.push_back(one);
    }
    return isRight;
  }

  LogicalResult declare(const File &file) {
    declared.trains.insert(declared.trains.end(), file.trains.begin(), file.trains.end());
    bool isRight = add(declared.functions, file.functions);
    isRight &= add(declared.schedules, file.schedules);
    isRight &= add(declared.models, file.models);
    isRight &= add(declared.blocks, file.blocks);
    return success(add(declared.clusters, file.clusters) && isRight);
  }

  Source &source;
  const FrontendOptions &options;
  StringSet<> read;
  std::vector<std::string> open;
  StringMap<std::vector<const Schedule *>> schedules; ///< by the path of their file
  StringMap<SMLoc> names;
  bool isUnasked = false; ///< what is read now
};

/// Holds back the diagnostics of a program, and then emits them in the order of the text: one error at each place, and
/// only the first ones.
class InOrderOfText {
public:
  explicit InOrderOfText(const Source &source) : source(source), engine(source.context->getDiagEngine()) {
    handler = engine.registerHandler([this](mlir::Diagnostic &said) { held.push_back(std::move(said)); });
  }
  ~InOrderOfText() {
    engine.eraseHandler(handler);
    StringMap<size_t> files; // those of which something is said, in this order
    using Place = std::array<size_t, 3>;
    std::vector<std::pair<Place, mlir::Diagnostic>> all;
    for (mlir::Diagnostic &said : held) {
      std::optional<mlir::Diagnostic> moved = source.library->forUser(said);
      mlir::Diagnostic &told = moved ? *moved : said;
      auto at = told.getLocation()->findInstanceOf<mlir::FileLineColLoc>();
      size_t file = files.try_emplace(at ? at.getFilename().getValue() : "", files.size()).first->second;
      all.emplace_back(Place{file, at ? at.getLine() : 0, at ? at.getColumn() : 0}, std::move(told));
    }
    stable_sort(all, [](const auto &a, const auto &b) { return a.first < b.first; });
    unsigned errors = 0;
    std::optional<Place> last;
    for (auto &[place, said] : all) {
      bool isError = said.getSeverity() == mlir::DiagnosticSeverity::Error;
      if (isError && (std::exchange(last, place) == place || ++errors > kMostErrors))
        continue;
      engine.emit(std::move(said));
    }
  }

private:
  const Source &source;
  mlir::DiagnosticEngine &engine;
  mlir::DiagnosticEngine::HandlerID handler;
  std::vector<mlir::Diagnostic> held;
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
  Source source(manager, context);
  source.libraryFolder = options.stdlibDir;
  InOrderOfText inOrder(source);
  CommandLine commandLine(source, options);
  Loader loader(source, options);
  unsigned main = manager.getMainFileID();
  loader.declared.begin = SMLoc::getFromPointer(manager.getMemoryBuffer(main)->getBufferStart());
  loader.declared.isWrong = failed(loader.load(main));
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
  if (failed(elaborateProgram(source, loader.declared, options, commandLine, *module)) || loader.declared.isWrong ||
      failed(mlir::verify(*module)))
    return nullptr;
  return module;
}
