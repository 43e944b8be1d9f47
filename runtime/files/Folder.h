// The folder of a checkpoint on disk: whether it may be replaced, the exchange, and the files beside the weights.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FOLDER_H
#define PP_RUNTIME_FOLDER_H

#include "runtime/files/WeightFiles.h"
#include <set>

namespace pp {

inline constexpr const char *optimizerStem = "optimizer"; ///< of the files with the optimizer's state
inline constexpr const char *stateFile = "state.json";
inline constexpr const char *mergeFile = "pp_merge.json"; ///< the mark of a folder of --merge

/// A path without the slashes at its end.
[[nodiscard]] std::string withoutEndSlash(std::string path);

/// Refuses a folder that exists unless it is empty or all in it is ours: what our mark in it, `state.json` or
/// `pp_merge.json`, lists as `files`, and what a save that was killed left.
Status checkReplaceable(const std::string &folder);
/// Whether a name that a file says is one of a file in its own folder.
[[nodiscard]] bool isFileName(const std::string &name);
/// Reads the file to its end. A wrong checksum is an error.
Status checkSum(const std::string &path, const std::string &expected);
/// Which older checkpoints stay beside the newest one, as `<folder>.step-N`.
struct Keeping {
  int64_t most = 1;      ///< checkpoints, the newest among them
  int64_t below = 0;     ///< only those of steps before this one: later ones are of a run that was given up
  std::string read;      ///< this one stays in any case: the run reads it
  std::set<int64_t> own; ///< steps of which this run has written checkpoints
};
/// Before a run: whether the folder can be written and replaced, and whether what would be removed is what its mark
/// says, to the checksum. `isRead`: the run resumes from it, and what is damaged there has been said.
Status checkTarget(const std::string &folder, const Keeping &keeping, bool isRead);
/// The older checkpoints of ours beside the folder, with their steps, newest first.
[[nodiscard]] std::vector<std::pair<int64_t, std::string>> keptBeside(const std::string &folder);
[[nodiscard]] std::string keptFolder(const std::string &folder, int64_t step);

/// Makes an empty folder `<folder>.tmp`. What a run left there that was killed while it replaced `folder` is kept, too.
Status makeFresh(const std::string &folder, const Keeping &keeping, std::string &fresh);
/// Removes a folder of ours, the marks last: what is left of it if we are killed is still ours.
void removeOurs(const std::string &folder);
/// Puts the finished folder `fresh` where `folder` is; at no moment is there none.
Status replaceFolder(const std::string &fresh, const std::string &folder, const Keeping &keeping);

/// The folder in which rank 0 makes a checkpoint, as another rank sees it. Rank 0 leaves a number there. The rank that
/// has read it keeps the folder open and writes into that one, whatever its path leads to. On network file systems the
/// path may lead to the checkpoint before, which has just been renamed; and a rank that outlives its run must not write
/// into the folder of the next one.
class SharedFolder {
public:
  SharedFolder() = default;
  ~SharedFolder() { leave(); }
  SharedFolder(const SharedFolder &) = delete;
  SharedFolder &operator=(const SharedFolder &) = delete;

  /// Rank 0: it lies where a draft of the mark does, so what a run leaves that is killed is known as ours.
  static Status sign(const std::string &fresh, const std::string &mark, uint32_t number);
  /// `host`: that of rank 0. Tries it for so many seconds: other hosts may see late what was made.
  Status enter(const std::string &fresh, const std::string &mark, uint32_t number, const std::string &host,
               int64_t seconds);
  void leave();
  [[nodiscard]] int descriptor() const { return folder; }

private:
  int folder = -1;
};

/// Writes a mark: it is there whole or not at all. It is the first file in its folder, and leaves as the last. It may
/// not be on the disk yet, unless `waits`.
Status writeMark(const std::string &path, const std::string &body, bool waits);
/// Writes the file and, if it `waits`, until it is on the disk.
Status writeText(const std::string &path, const std::string &body, bool waits);
/// Reads a file; `path` names it in errors.
Status readText(const std::string &path, std::string &body);

/// The files of a model's folder beside its weights: config.json, the tokenizer's files and the like, but no code and
/// no weights of other formats. `tooLarge` gets the files that are too large for that.
Status filesBeside(const std::string &model, std::vector<std::string> &names, std::vector<std::string> &tooLarge);
/// Whether such a file belongs to the tokenizer.
bool isOfTokenizer(const std::string &name);
/// The text of a config.json whose `dtype` and `torch_dtype`, where it has them, are this one. No other byte changes.
[[nodiscard]] std::string withDtype(const std::string &config, const std::string &dtype);

} // namespace pp

#endif // PP_RUNTIME_FOLDER_H
