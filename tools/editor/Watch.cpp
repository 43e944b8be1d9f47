// Runs pp-compile again and again: once at first, then whenever one of the files that it read has changed.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   watching process          compiling process, once for each change
//   --watch ..  ------------> --watched=LIST ..
//   waits for a change        writes the output, and the names of the files that it read to LIST
//   of what LIST names <----- ends
//   changes OUT.watch.js      a page that is open sees that, and loads itself again
//
// A page in a browser may not read files, but it may load a script from beside it. With --serve the output is a figure
// in a temporary file, and this process shows it, or what the compiling process said, in browsers.
#include "tools/editor/Watch.h"
#include "tools/Forms.h"
#include "tools/editor/Serve.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/Signals.h"
#include <chrono>
#include <map>
#include <set>
#include <thread>

using namespace mlir;
using namespace pp;
namespace cl = llvm::cl;
using llvm::StringRef;

static cl::opt<bool> watchOption("watch", cl::desc("compile again whenever the file or one of its imports changes"),
                                 cl::cat(compileOptions()));
static cl::opt<std::string> serveOption("serve", cl::ValueOptional, cl::value_desc("port"), cl::cat(compileOptions()),
                                        cl::desc("watch, and show the figure in browsers of this machine"));
static std::set<std::string> &filesRead() {
  static std::set<std::string> files;
  return files;
}

bool pp::wantsWatch() { return watchOption || serveOption.getNumOccurrences(); }

void pp::noteFiles(const llvm::SourceMgr &manager, llvm::ArrayRef<std::string> imports) {
  filesRead().insert(imports.begin(), imports.end());
  for (unsigned buffer = 1; buffer <= manager.getNumBuffers(); ++buffer)
    filesRead().insert(manager.getMemoryBuffer(buffer)->getBufferIdentifier().str());
}

void pp::tellFiles() {
  if (watchedList().empty())
    return;
  std::error_code error;
  llvm::raw_fd_ostream os(watchedList(), error);
  for (const std::string &file : filesRead())
    os << file << "\n";
}

namespace {
/// The state of a file: its identity changes if an editor writes a new file in its place.
using Sight = std::tuple<uint64_t, int64_t, uint64_t>;

class Watcher {
public:
  Watcher(llvm::ArrayRef<const char *> command, StringRef input, StringRef list, StringRef figure, StringRef said,
          PageServer *server)
      : list(list), figure(figure), said(said), server(server) {
    files.insert(input.str());
    path = llvm::sys::fs::getMainExecutable(command.front(), reinterpret_cast<void *>(&pp::wantsWatch));
    words = {path};
    for (const char *word : command.drop_front())
      if (StringRef name = StringRef(word).ltrim('-').split('=').first;
          (name != "watch" && name != "serve") || word[0] != '-')
        words.push_back(word);
    words.push_back("--watched=" + this->list);
    if (server && !isFormRequested())
      words.push_back("--emit=svg");
    if (server)
      words.insert(words.end(), {"-o", this->figure});
    if (requestedForm() == Form::Report && isOutputNamed()) {
      script = watchScript();
      llvm::sys::RemoveFileOnSignal(script);
    }
  }

  int run() {
    for (int64_t round = 1;; ++round) {
      std::map<std::string, Sight> before = look(); // what changes while it is read is read again
      int64_t start = std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
      llvm::SmallVector<StringRef> arguments(words.begin(), words.end());
      std::string why;
      std::optional<StringRef> redirects[] = {std::nullopt, std::nullopt, std::nullopt};
      if (server) {
        std::error_code error;
        llvm::raw_fd_ostream(said, error); // empties it: what a process writes stands over what was there
        redirects[2] = said;
      }
      int status = llvm::sys::ExecuteAndWait(path, arguments, std::nullopt, redirects, 0, 0, &why);
      if (status == -1 || (status < 0 && !server))
        return exitCode(refuse("--watch: " + why));
      if (server)
        show(status, why);
      if (!readList()) // no change of a file mends the command line
        return status;
      for (const auto &[file, sight] : look()) // of those that are new in the list
        before.insert({file, std::get<1>(sight) < start ? sight : Sight()});
      tellPages(round);
      llvm::errs() << "watching " << files.size() << (files.size() == 1 ? " file" : " files") << "; ^C ends\n";
      while (look() == before)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::this_thread::sleep_for(std::chrono::milliseconds(20)); // an editor may write in pieces
    }
  }

private:
  std::map<std::string, Sight> look() const {
    std::map<std::string, Sight> seen;
    for (const std::string &file : files) {
      llvm::sys::fs::file_status status;
      bool exists = !llvm::sys::fs::status(file, status) && status.type() == llvm::sys::fs::file_type::regular_file;
      seen[file] = exists ? Sight{status.getUniqueID().getFile(),
                                  status.getLastModificationTime().time_since_epoch().count(), status.getSize()}
                          : Sight();
    }
    return seen;
  }

  /// A compilation with errors may have read fewer files: those of before are watched, too. False if it read none.
  bool readList() {
    auto text = llvm::MemoryBuffer::getFile(list);
    SmallVector<StringRef> names;
    if (text)
      (*text)->getBuffer().split(names, '\n', -1, /*KeepEmpty=*/false);
    for (StringRef file : names)
      files.insert(file.str());
    return !names.empty();
  }

  /// A compilation that failed has no figure, whatever it has written.
  void show(int status, const std::string &why) const {
    auto text = [](const std::string &path) {
      auto buffer = llvm::MemoryBuffer::getFile(path, /*IsText=*/false, /*RequiresNullTerminator=*/false);
      return buffer ? (*buffer)->getBuffer().str() : std::string();
    };
    std::string messages = text(said) + (status < 0 ? (toolName() + ": " + why + "\n").str() : "");
    llvm::errs() << messages;
    server->show(status == 0 ? text(figure) : "", messages);
  }

  void tellPages(int64_t round) const {
    std::error_code error;
    if (!script.empty())
      llvm::raw_fd_ostream(script, error) << "watched(" << round << ");\n";
  }

  std::string list, path, script, figure, said;
  PageServer *server; ///< null without --serve
  std::vector<std::string> words;
  std::set<std::string> files;
};
} // namespace

/// For --serve: null if it is not asked for.
static llvm::FailureOr<std::unique_ptr<PageServer>> openServer(StringRef input) {
  if (!serveOption.getNumOccurrences())
    return std::unique_ptr<PageServer>();
  if (isOutputNamed() || (isFormRequested() && requestedForm() != Form::Svg))
    return usage("--serve shows the figure of --emit=svg in a browser; leave -o and other forms out");
  unsigned port = 0;
  if (!serveOption.empty() && (StringRef(serveOption).getAsInteger(10, port) || port > 65535))
    return usage("expected a port of at most 65535 for --serve, got `" + serveOption + "`");
  std::string why;
  std::unique_ptr<PageServer> server = PageServer::open(port, llvm::sys::path::filename(input), why);
  if (!server)
    return refuse("--serve: cannot listen on port " + llvm::Twine(port) + " of 127.0.0.1: " + why);
  llvm::errs() << "http://127.0.0.1:" << server->port() << "/ shows the figure\n";
  return server;
}

int pp::watch(llvm::ArrayRef<const char *> command, StringRef input) {
  if (input == "-")
    return exitCode(usage("--watch waits for a file to change; standard input is none"));
  llvm::FailureOr<std::unique_ptr<PageServer>> server = openServer(input);
  if (failed(server))
    return exitCode(llvm::failure());
  llvm::SmallString<128> paths[3]; // the names of the files, the figure, what is said
  for (llvm::SmallString<128> &path : paths) {
    if (std::error_code error = llvm::sys::fs::createTemporaryFile("pp-watch", "txt", path))
      return exitCode(refuse("--watch: cannot make a temporary file: " + error.message()));
    llvm::sys::RemoveFileOnSignal(path);
  }
  int code = Watcher(command, input, paths[0], paths[1], paths[2], server->get()).run();
  for (StringRef path : paths)
    llvm::sys::fs::remove(path);
  return code;
}
