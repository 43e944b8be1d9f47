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
    for (const Name &import : file->imports)
      if (failed(loadImport(import, directoryOf(buffer))))
        return failure();
    return declare(*file);
  }

  /// A library file, for schedules that are drawn without a model of their own.
  LogicalResult loadImport(Name import, StringRef directory) {
    StringRef path = import.text;
    SmallString<128> full(path);
    bool library = path.consume_front("std/");
    if (library)
      (full = options.stdlibDir).append(("/" + path).str());
    else if (sys::path::is_relative(path) && !directory.empty())
      (full = directory).append(("/" + path).str());
    sys::path::remove_dots(full, /*remove_dot_dot=*/true);
    if (is_contained(open, full.str()))
      return source.error(import.at) << "`" << import.text << "` imports itself, through the files between";
    if (!read.insert(full).second)
      return success();
    std::string included;
    unsigned buffer = source.manager.AddIncludeFile(full.str().str(), SMLoc(), included);
    if (!buffer)
      return source.error(import.at) << "cannot open `" << import.text << "`"
                                     << (library ? "; the library is in `" + options.stdlibDir + "`" : "");
    open.push_back(full.str().str());
    LogicalResult loaded = load(buffer);
    open.pop_back();
    return loaded;
  }

  Declarations declared;

private:
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
  StringMap<SMLoc> names;
};
} // namespace

mlir::OwningOpRef<mlir::ModuleOp> pp::importPipe(SourceMgr &manager, mlir::MLIRContext *context,
                                                 const FrontendOptions &options) {
  context->loadDialect<mlir::func::FuncDialect, pp::nn::NnDialect, pp::pipeline::PipelineDialect>();
  Source source(manager, context);
  CommandLine commandLine(source, options);
  Loader loader(source, options);
  unsigned main = manager.getMainFileID();
  loader.declared.begin = SMLoc::getFromPointer(manager.getMemoryBuffer(main)->getBufferStart());
  if (failed(loader.load(main)))
    return nullptr;
  bool drawn = loader.declared.trains.empty() || !options.schedule.empty();
  if (drawn && loader.declared.models.empty() &&
      failed(loader.loadImport({"std/models/llama.pipe", loader.declared.begin}, "")))
    return nullptr;
  if (options.aloneMicrobatches && failed(loader.loadImport({"std/single.pipe", loader.declared.begin}, "")))
    return nullptr;
  if (const auto &given = options.replacement) {
    unsigned text = manager.AddNewSourceBuffer(MemoryBuffer::getMemBufferCopy(given->text, given->schedule), SMLoc());
    if (failed(loader.load(text)))
      return nullptr;
  }
  auto isWanted = [&](const Cluster *cluster) { return cluster->name.text == options.cluster; };
  if (!options.cluster.empty() && none_of(loader.declared.clusters, isWanted) &&
      failed(loader.loadImport({"std/clusters.pipe", loader.declared.begin}, "")))
    return nullptr;
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(source.location(loader.declared.begin));
  if (failed(elaborateProgram(source, loader.declared, options, commandLine, *module)) || failed(mlir::verify(*module)))
    return nullptr;
  return module;
}
