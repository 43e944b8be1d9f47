// Where a run may write: never over what it reads, over what somebody else made, or beside another run.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRAINER_OUTPUTS_H
#define PP_RUNTIME_TRAINER_OUTPUTS_H

#include "runtime/Options.h"
#include <cstdio>

namespace pp {

/// Nothing that is written is read or written by another option, too, or lies in a folder that a save replaces.
Status checkPaths(const Options &options);
/// Can a file be written at `path`, and is what is there now a file of the same kind? `--log` may also name a pipe.
Status checkFile(const std::string &option, const std::string &path);
/// Opens the file of --log, which no other run may write. Without `appends` what is there goes.
Status openLog(const std::string &path, bool appends, FILE *&log);

/// Held by the one run that saves to a folder, through a file beside the folder.
class FolderLock {
public:
  FolderLock() = default;
  ~FolderLock();
  FolderLock(const FolderLock &) = delete;
  FolderLock &operator=(const FolderLock &) = delete;

  Status take(const std::string &folder);

private:
  std::string path;
  int file = -1;
};

} // namespace pp

#endif // PP_RUNTIME_TRAINER_OUTPUTS_H
