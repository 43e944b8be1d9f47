// Reads what an emitted program is handed as its trainer does: weights, tokens, the state of a checkpoint.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Pp.h"
#include "runtime/files/SafeTensors.h"
#include "runtime/files/Tokens.h"
#include "runtime/trainer/Checkpoint.h"
#include "test/fuzz/Inputs.h"
#include <fstream>
#include <unistd.h>

// Symbols of an emitted program: none is linked here, and nothing below uses them.
extern "C" {
extern const pp_rank_entry_t pp_rank_table[1] = {};
extern const int32_t pp_rank_count = 0;
extern const char pp_program_json[1] = "";
}

namespace pp::fuzz {

HandedFile::HandedFile(std::string_view bytes, const char *name)
    : folder(std::filesystem::temp_directory_path() / ("pp-fuzz-" + std::to_string(getpid()))) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / name, std::ios::binary) << bytes;
  path = (folder / name).string();
}

HandedFile::~HandedFile() {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

namespace {

/// The first and the last number of every tensor.
void readTensors(std::string_view bytes) {
  HandedFile file(bytes, "weights.safetensors");
  SafeTensors tensors;
  if (!tensors.open(file.path).ok())
    return;
  double sum = 0;
  for (const auto &[name, tensor] : tensors.tensors())
    if (SafeTensors::Reader at = SafeTensors::readerOf(tensor.type); at && tensor.elements() > 0)
      sum += at(tensors.data(tensor), 0) + at(tensors.data(tensor), tensor.elements() - 1);
  volatile double used = sum;
  (void)used;
}

void readTokens(std::string_view bytes, const char *name, const std::string &format) {
  HandedFile file(bytes, name);
  Tokens tokens;
  if (!tokens.open(format + file.path, 256, 1, /*check=*/true).ok() || tokens.count() == 0)
    return;
  (void)tokens.fingerprint(true);
  int64_t sum = 0;
  for (int64_t at : {int64_t(0), tokens.count() / 2, tokens.count() - 1})
    sum += tokens.at(at) + tokens.isCounted(at);
  volatile int64_t used = sum;
  (void)used;
}

void readState(std::string_view bytes) {
  HandedFile file(bytes, "state.json");
  Program program;
  program.precision = bytes.size() % 2 == 0 ? "f16" : "f32";
  RunState state;
  std::vector<StateChange> changes;
  (void)readRunState(program, file.folder.string(), state, changes);
}

} // namespace

const std::vector<InputKind> &runtimeKinds() {
  static const std::vector<InputKind> kinds = {
      {"safetensors", readTensors},
      {"tokens", [](std::string_view bytes) { readTokens(bytes, "tokens.bin", ""); }},
      {"plain", [](std::string_view bytes) { readTokens(bytes, "tokens", "u16:"); }},
      {"dataset", [](std::string_view bytes) { readTokens(bytes, "tokens.safetensors", ""); }},
      {"state", readState},
  };
  return kinds;
}

} // namespace pp::fuzz
