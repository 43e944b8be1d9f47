// What is handed to pp from outside, as bytes: programs, schedules, costs, profiles, weights, tokens, checkpoints.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_FUZZ_INPUTS_H
#define PP_TEST_FUZZ_INPUTS_H

#include "test/fuzz/Dice.h"
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace pp::fuzz {

/// A kind of input, and what reads it. The reader may refuse the bytes, but must come back.
struct InputKind {
  const char *name;
  void (*read)(std::string_view bytes);
};

const std::vector<InputKind> &inputKinds();
const std::vector<InputKind> &runtimeKinds(); ///< those of them that emitted programs read

/// A file with these bytes, in a folder of this process, that is gone at the end.
struct HandedFile {
  HandedFile(std::string_view bytes, const char *name);
  ~HandedFile();
  HandedFile(const HandedFile &) = delete;
  HandedFile &operator=(const HandedFile &) = delete;
  std::filesystem::path folder;
  std::string path;
};

/// The bytes with one to four changes: numbers, words and lines of a text, or plain bytes.
std::string mutateInput(std::string bytes, Dice &dice);

/// pp-fuzz inputs KIND FILE.. [--runs=N] [--seed=S] [--keep=FOLDER]: every file, cut at lines `// -----`, as it is, and
/// then N mutants, each in a process of its own. pp-fuzz inputs KIND --libfuzzer ..: libFuzzer's options and folders.
int runInputs(int argc, char **argv);

} // namespace pp::fuzz

#endif // PP_TEST_FUZZ_INPUTS_H
