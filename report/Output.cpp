// Writes files by way of a temporary beside them, and everything else directly.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "report/Output.h"
#include "mlir/Support/LLVM.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include <climits>
#include <unistd.h>

using namespace mlir;
using namespace pp;
namespace fs = llvm::sys::fs;

/// The descriptor that a path names; -1 if it names none. It must not be opened anew: that would begin at byte 0 of a
/// file that the shell appends to.
static int descriptorOf(StringRef path) {
  if (path == "-" || path == "/dev/stdout")
    return STDOUT_FILENO;
  if (path == "/dev/stderr")
    return STDERR_FILENO;
  int number = -1;
  if ((path.consume_front("/dev/fd/") || path.consume_front("/proc/self/fd/")) && path.getAsInteger(10, number))
    return -1;
  return number;
}

/// What a symbolic link says; empty if the path is none.
static std::string linkAt(const std::string &path) {
  char target[PATH_MAX];
  ssize_t length = readlink(path.c_str(), target, sizeof target);
  if (length <= 0)
    return "";
  SmallString<128> full(StringRef(target, length));
  if (llvm::sys::path::is_relative(full)) {
    full = llvm::sys::path::parent_path(path);
    llvm::sys::path::append(full, StringRef(target, length));
  }
  return std::string(full);
}

Output Output::of(StringRef path) {
  Output output;
  output.path = path.str();
  constexpr int mostLinks = 40; // as the kernel counts
  for (int links = 0; links < mostLinks; ++links) {
    output.descriptor = descriptorOf(output.path);
    std::string target = output.descriptor < 0 ? linkAt(output.path) : "";
    if (target.empty())
      break;
    output.path = target;
  }
  fs::file_status status;
  if (output.descriptor >= 0)
    output.kind = Descriptor;
  else if (!fs::status(output.path, status) && fs::exists(status))
    output.kind = fs::is_directory(status) ? Folder : fs::is_regular_file(status) ? File : Special;
  return output;
}

/// Closes or flushes, and says what went wrong in between.
static std::string finish(llvm::raw_fd_ostream &os, bool closes) {
  closes ? os.close() : os.flush();
  std::string why = os.has_error() ? os.error().message() : "";
  os.clear_error();
  return why;
}

static LogicalResult writeFile(const std::string &path, std::string &why,
                               function_ref<LogicalResult(llvm::raw_pwrite_stream &)> fill) {
  llvm::Expected<fs::TempFile> temporary = fs::TempFile::create(path + ".%%%%%%");
  if (!temporary) {
    why = llvm::toString(temporary.takeError());
    return failure();
  }
  bool filled;
  {
    llvm::raw_fd_ostream os(temporary->FD, /*shouldClose=*/false);
    filled = succeeded(fill(os));
    why = finish(os, /*closes=*/false);
  }
  if (filled && why.empty()) {
    llvm::Error kept = temporary->keep(path);
    if (!kept)
      return success();
    why = llvm::toString(std::move(kept));
  }
  llvm::consumeError(temporary->discard());
  return failure();
}

LogicalResult pp::writeOutput(StringRef path, std::string &why,
                              function_ref<LogicalResult(llvm::raw_pwrite_stream &)> fill) {
  Output output = Output::of(path);
  why.clear();
  if (output.kind == Output::File)
    return writeFile(output.path, why, fill);
  if (output.kind == Output::Folder) {
    why = "it is a folder";
    return failure();
  }
  std::error_code error;
  if (output.descriptor == STDOUT_FILENO) {
    LogicalResult filled = fill(llvm::outs());
    why = finish(llvm::outs(), /*closes=*/false);
    return success(succeeded(filled) && why.empty());
  }
  llvm::raw_fd_ostream os = output.descriptor >= 0 ? llvm::raw_fd_ostream(output.descriptor, /*shouldClose=*/false)
                                                   : llvm::raw_fd_ostream(output.path, error, fs::CD_OpenExisting);
  if (error) {
    why = error.message();
    return failure();
  }
  LogicalResult filled = fill(os);
  why = finish(os, /*closes=*/output.descriptor < 0);
  return success(succeeded(filled) && why.empty());
}
