// A file in the making: written beside its place, renamed into it when it is whole, and removed if it never is.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_DRAFT_H
#define PP_RUNTIME_FILES_DRAFT_H

#include "runtime/Status.h"
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <unistd.h>

namespace pp {

/// The path that links lead to, whether a file is there or not. A circle of links stays as it is.
[[nodiscard]] std::string followLinks(const std::string &path);
/// Makes the names inside a folder durable.
Status syncFolder(const std::string &path);
/// The same of one that is open.
Status syncOpen(int folder, const std::string &path);

class Draft {
public:
  Draft() = default;
  ~Draft() { drop(); }
  Draft(const Draft &) = delete;
  Draft &operator=(const Draft &) = delete;

  /// `asked` may be a link to the file's place. A file that lies where the draft would lie is somebody's: it stays.
  /// `in`: the folder of the file, which is open; what has its path meanwhile does not matter.
  Status open(const std::string &asked, int in = AT_FDCWD) {
    drop();
    folder = in;
    place = folder == AT_FDCWD ? followLinks(asked) : asked;
    int number = -1;
    for (int tries = 0; number < 0 && tries < 100; ++tries) {
      draft = tries ? text(place, ".tmp", tries) : place + ".tmp";
      number = openat(folder, named(draft), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (number < 0 && errno != EEXIST)
        break;
    }
    stream = number < 0 ? nullptr : fdopen(number, "wb");
    return stream ? Status() : refused("cannot write `", place, "`: ", strerror(errno));
  }

  /// The stream to write to; null before `open` and after `finish`.
  [[nodiscard]] FILE *file() const { return stream; }

  /// Waits until the file is on the disk, and puts it into its place.
  Status finish() {
    bool whole = !ferror(stream) && fflush(stream) == 0 && fsync(fileno(stream)) == 0;
    Status status = whole ? Status() : refused("cannot write `", place, "`: ", strerror(errno));
    if (fclose(stream) != 0 && status.ok())
      status = refused("cannot write `", place, "`: ", strerror(errno));
    stream = nullptr;
    if (status.ok() && renameat(folder, named(draft), folder, named(place)) != 0)
      status = refused("cannot rename to `", place, "`: ", strerror(errno));
    if (!status.ok())
      unlinkat(folder, named(draft), 0);
    const std::string parent = std::filesystem::path(place).parent_path().string();
    return !status.ok() ? status : folder == AT_FDCWD ? syncFolder(parent) : syncOpen(folder, parent);
  }

private:
  /// The path as the system takes it beside `folder`.
  [[nodiscard]] const char *named(const std::string &path) const {
    return path.c_str() + (folder == AT_FDCWD ? 0 : path.rfind('/') + 1);
  }
  void drop() {
    if (!stream)
      return;
    fclose(stream);
    unlinkat(folder, named(draft), 0);
    stream = nullptr;
  }

  std::string place, draft;
  int folder = AT_FDCWD;
  FILE *stream = nullptr;
};

} // namespace pp

#endif // PP_RUNTIME_FILES_DRAFT_H
