// Links objects and the runtime to an executable with the C++ compiler driver that the machine has.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Proof.h"
#include "dialect/pipeline/Pipeline.h"
#include "lowering/Config.h"
#include "lowering/Lowering.h"
#include "mlir/IR/Diagnostics.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/BinaryFormat/Magic.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Process.h"
#include "llvm/Support/Program.h"

using namespace mlir;
using namespace pp;
namespace fs = llvm::sys::fs;

static FailureOr<std::string> findDriver(Location loc) {
  SmallVector<std::string> names = {"c++", "g++", "clang++"};
  if (auto given = llvm::sys::Process::GetEnv("CXX"); given && !given->empty())
    names = {*given};
  for (const std::string &name : names)
    if (auto path = llvm::sys::findProgramByName(name))
      return *path;
  if (names.size() == 1)
    return emitError(loc) << "cannot link: `" << names.front() << "`, which CXX names, is not in PATH";
  return emitError(loc) << "cannot link: no C++ compiler in PATH (looked for " << llvm::join(names, ", ")
                        << "); install one or name it in CXX";
}

static FailureOr<std::string> findRuntime(StringRef given, StringRef target, Location loc) {
  std::string name = target == "cpu" ? "libpp-runtime.a" : ("libpp-runtime-" + target + ".a").str();
  SmallVector<std::string> places;
  if (!given.empty()) {
    places.push_back(given.str());
  } else {
    static int here; // an address in this tool, by which the system finds its path
    std::string self = fs::getMainExecutable(nullptr, &here);
    StringRef prefix = llvm::sys::path::parent_path(llvm::sys::path::parent_path(self));
    places = {(prefix + "/lib/pp/" + name).str(), (prefix + "/lib/" + name).str()}; // installed, and in a build
  }
  for (const std::string &place : places)
    if (fs::exists(place))
      return place;
  return emitError(loc) << "cannot link: no runtime library at `" << llvm::join(places, "` nor `") << "`";
}

/// The text of a file, without trailing white space; empty if it cannot be read.
static std::string readText(StringRef path) {
  auto buffer = llvm::MemoryBuffer::getFile(path);
  return buffer ? (*buffer)->getBuffer().rtrim().str() : "";
}

StringRef pp::programTarget(ModuleOp module) {
  for (auto program : module.getOps<pipeline::ProgramOp>())
    if (auto target = program.getTarget())
      return *target;
  return "cpu";
}

ArrayRef<llvm::StringLiteral> pp::linkedTargets() {
  static constexpr llvm::StringLiteral targets[] = {"cpu", "cuda"};
  return ArrayRef(targets).take_front(StringRef(PP_CUDA_LINK_FLAGS).empty() ? 1 : 2);
}

LogicalResult pp::linkExecutable(ArrayRef<std::string> objects, StringRef target, StringRef runtimeLibrary,
                                 StringRef output, Location loc) {
  StringRef flags = target == "cuda" ? PP_CUDA_LINK_FLAGS : PP_LINK_FLAGS;
  if (flags.empty())
    return emitError(loc) << "cannot link for `" << target << "`: this pp-compile was built without CUDA; link the "
                          << "objects of `--emit=obj` where the toolkit is";
  FailureOr<std::string> driver = findDriver(loc), runtime = findRuntime(runtimeLibrary, target, loc);
  if (failed(driver) || failed(runtime))
    return failure();

  // Linked beside the output, so that the rename at the end cannot cross file systems. Absolute paths do not begin with
  // `-` or `@`, which the driver would take for an option or for a file of options.
  SmallString<256> temporary(output), messages, library(*runtime);
  std::error_code error = fs::make_absolute(temporary);
  if (error || (error = fs::make_absolute(library)) || (error = fs::createUniqueFile(temporary + ".%%%%%%", temporary)))
    return emitError(loc) << "cannot write `" << output << "`: " << error.message();
  auto removeTemporary = llvm::make_scope_exit([&] { fs::remove(temporary); });
  if ((error = fs::createTemporaryFile("pp-link", "txt", messages)))
    return emitError(loc) << "cannot write a temporary file: " << error.message();
  auto removeMessages = llvm::make_scope_exit([&] { fs::remove(messages); });

  SmallVector<StringRef> arguments = {*driver};
  arguments.append(objects.begin(), objects.end());
  arguments.push_back(library);
  flags.split(arguments, ';', -1, /*KeepEmpty=*/false);
  // In a third of the time of GNU's; with threads so small a program takes longer.
  if (llvm::sys::findProgramByName("ld.lld"))
    arguments.append({"-fuse-ld=lld", "-Wl,--threads=1"});
  arguments.append({"-o", temporary});
  std::optional<StringRef> redirects[] = {StringRef(""), StringRef(messages), StringRef(messages)};
  std::string why;
  int status = llvm::sys::ExecuteAndWait(*driver, arguments, std::nullopt, redirects, 0, 0, &why);
  if (status != 0) {
    std::string said = readText(messages);
    return emitError(loc) << "cannot link `" << output << "`: `" << *driver << "` "
                          << (status < 0 ? "did not run: " + why : "failed with status " + std::to_string(status))
                          << (said.empty() ? "" : "\n" + said);
  }
  // A file with nothing in it was made above: something else than a linker may leave it so, and end with 0.
  llvm::file_magic magic;
  if (identify_magic(temporary, magic) || magic == llvm::file_magic::unknown || !fs::can_execute(temporary))
    return emitError(loc) << "cannot link `" << output << "`: `" << *driver
                          << "` ended with status 0 and wrote no program";
  if ((error = fs::rename(temporary, output)))
    return emitError(loc) << "cannot write `" << output << "`: " << error.message();
  removeTemporary.release();
  return success();
}

LogicalResult pp::emitExecutable(const ProvedModule &proved, StringRef runtimeLibrary, StringRef output) {
  ModuleOp module = proved.get();
  SmallString<256> folder;
  if (std::error_code error = fs::createUniqueDirectory("pp-objects", folder))
    return emitError(module.getLoc()) << "cannot make a temporary folder: " << error.message();
  auto removeFolder = llvm::make_scope_exit([&] { fs::remove_directories(folder); });
  SmallVector<std::string> objects;
  if (failed(emitObjects(proved, programRanks(module), folder, objects)))
    return failure();
  return linkExecutable(objects, programTarget(module), runtimeLibrary, output, module.getLoc());
}
