// Changes inputs at random, and has each read in a process of its own; or reads what libFuzzer draws.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Each input is read in a child, so that a crash ends the child alone. Built by the preset `fuzz`, the program has
// libFuzzer in it: `pp-fuzz inputs KIND --libfuzzer ..` reads what that draws in one process.
#include "test/fuzz/Inputs.h"
#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sys/wait.h>
#include <unistd.h>

// A function of libFuzzer, if that is linked.
extern "C" __attribute__((weak)) int LLVMFuzzerRunDriver(int *argc, char ***argv,
                                                         int (*read)(const uint8_t *data, size_t size));
extern "C" __attribute__((weak)) size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

/// libFuzzer calls it by this name. Half of the changes are its own.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
  pp::fuzz::Dice dice(seed);
  if (dice.oneIn(2))
    return LLVMFuzzerMutate(data, size, most);
  std::string changed = pp::fuzz::mutateInput({reinterpret_cast<char *>(data), size}, dice);
  changed.resize(std::min(changed.size(), most));
  std::copy(changed.begin(), changed.end(), data);
  return changed.size();
}

namespace pp::fuzz {
namespace {

const InputKind *drawn = nullptr; ///< what libFuzzer's bytes are

constexpr unsigned kSeconds = 20; ///< longer is a failure

bool isWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

/// The words of a text, as [begin, end).
std::vector<std::pair<size_t, size_t>> wordsOf(const std::string &text) {
  std::vector<std::pair<size_t, size_t>> words;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && isWord(text[end]))
      ++end;
    if (end > at)
      words.push_back({at, end});
    at = std::max(end, at + 1);
  }
  return words;
}

/// The lines of a text, with their ends.
std::vector<std::string> linesOf(const std::string &text) {
  std::vector<std::string> lines;
  for (size_t at = 0, end; at < text.size(); at = end) {
    end = text.find('\n', at);
    end = end == std::string::npos ? text.size() : end + 1;
    lines.push_back(text.substr(at, end - at));
  }
  return lines;
}

std::string changeBytes(std::string bytes, Dice &dice) {
  if (bytes.empty())
    return std::string(1, char(dice.below(256)));
  auto at = size_t(dice.below(int64_t(bytes.size())));
  auto length = size_t(dice.between(1, 8));
  switch (dice.below(5)) {
  case 0:
    bytes[at] = char(bytes[at] ^ (1 << dice.below(8)));
    break;
  case 1:
    bytes[at] = char(dice.below(256));
    break;
  case 2:
    bytes.erase(at, length);
    break;
  case 3:
    bytes.insert(at, bytes.substr(at, length));
    break;
  default:
    if (dice.oneIn(4))
      bytes.resize(at);
    else
      bytes.insert(at, 1, "{}[]()<>,:\"\n "[dice.below(13)]);
  }
  return bytes;
}

std::string changeLines(const std::string &text, Dice &dice) {
  std::vector<std::string> lines = linesOf(text);
  if (lines.size() < 2)
    return changeBytes(text, dice);
  int64_t count = static_cast<int64_t>(lines.size()), first = dice.below(count), second = dice.below(count);
  std::string copy = lines[size_t(first)];
  switch (dice.below(3)) {
  case 0:
    lines.erase(lines.begin() + first);
    break;
  case 1:
    lines.insert(lines.begin() + second, copy);
    break;
  default:
    std::swap(lines[size_t(first)], lines[size_t(second)]);
  }
  return llvm::join(lines, "");
}

/// A number becomes one at an edge, a word another word of the text, or nothing.
std::string changeWord(std::string text, Dice &dice) {
  static const char *const edges[] = {"0",
                                      "1",
                                      "2",
                                      "3",
                                      "7",
                                      "-1",
                                      "64",
                                      "1000",
                                      "2147483648",
                                      "4294967297",
                                      "9223372036854775807",
                                      "-9223372036854775808",
                                      "1e400",
                                      "0.5",
                                      "-0.0",
                                      "nan"};
  auto words = wordsOf(text);
  if (words.empty())
    return text;
  std::vector<std::pair<size_t, size_t>> numbers;
  for (auto word : words)
    if (std::isdigit(static_cast<unsigned char>(text[word.first])))
      numbers.push_back(word);
  auto [begin, end] = !numbers.empty() && dice.oneIn(2) ? dice.pick(numbers) : dice.pick(words);
  auto [otherBegin, otherEnd] = dice.pick(words);
  std::string other = text.substr(otherBegin, otherEnd - otherBegin);
  bool isNumber = std::isdigit(static_cast<unsigned char>(text[begin]));
  text.replace(begin, end - begin, isNumber && !dice.oneIn(4) ? dice.pick(edges) : dice.oneIn(4) ? "" : other);
  return text;
}

std::string readAll(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// How the child ended; empty if it ended well.
std::string readInChild(const InputKind &kind, const std::string &bytes) {
  pid_t child = fork();
  if (child == 0) {
    alarm(kSeconds);
    kind.read(bytes);
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child)
    return "no process";
  if (WIFSIGNALED(status))
    return WTERMSIG(status) == SIGALRM ? "takes more than " + std::to_string(kSeconds) + " s"
                                       : strsignal(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "exit " + std::to_string(WEXITSTATUS(status));
}

} // namespace

std::string mutateInput(std::string bytes, Dice &dice) {
  for (int64_t changes = dice.between(1, 4); changes > 0; --changes)
    switch (dice.below(8)) {
    case 0:
    case 1:
      bytes = changeLines(bytes, dice);
      break;
    case 2:
      bytes = changeBytes(bytes, dice);
      break;
    default:
      bytes = changeWord(bytes, dice);
    }
  return bytes;
}

int runInputs(int argc, char **argv) {
  const InputKind *kind = nullptr;
  std::vector<std::string> seeds;
  std::string keep;
  int64_t runs = 0, seed = 1;
  for (int i = 0; i < argc; ++i) {
    llvm::StringRef word(argv[i]);
    if (word.consume_front("--runs=")   ? word.getAsInteger(10, runs)
        : word.consume_front("--seed=") ? word.getAsInteger(10, seed)
                                        : false)
      return 2;
    if (llvm::StringRef(argv[i]).starts_with("--runs=") || llvm::StringRef(argv[i]).starts_with("--seed="))
      continue;
    if (word.consume_front("--keep="))
      keep = word.str();
    else if (word == "--libfuzzer" && kind && LLVMFuzzerRunDriver) {
      drawn = kind;
      int rest = argc - i;
      char **words = argv + i;
      return LLVMFuzzerRunDriver(&rest, &words, [](const uint8_t *data, size_t size) {
        drawn->read(
            std::string(reinterpret_cast<const char *>(data), size)); // with a 0 behind it, which parsers ask for
        return 0;
      });
    } else if (!kind)
      for (const InputKind &each : inputKinds())
        kind = word == each.name ? &each : kind;
    else
      for (llvm::StringRef rest = *new std::string(readAll(argv[i])), part; !rest.empty();) {
        std::tie(part, rest) = rest.split("// -----");
        seeds.push_back(part.str());
      }
  }
  if (!kind || seeds.empty()) {
    fprintf(stderr, "usage: pp-fuzz inputs KIND FILE.. [--runs=N] [--seed=S] [--keep=FOLDER]\n");
    return 2;
  }
  int64_t failed = 0;
  Dice dice{uint64_t(seed)};
  auto total = static_cast<int64_t>(seeds.size()) + runs;
  for (int64_t number = 0; number < total; ++number) {
    bool isSeed = number < static_cast<int64_t>(seeds.size());
    std::string bytes = isSeed ? seeds[size_t(number)] : mutateInput(dice.pick(seeds), dice);
    std::string why = readInChild(*kind, bytes);
    if (why.empty())
      continue;
    ++failed;
    std::string name = std::string(kind->name) + "-" + llvm::utohexstr(llvm::hash_value(bytes), true);
    printf("FAIL %s: %s\n", name.c_str(), why.c_str());
    if (!keep.empty())
      std::ofstream(keep + "/" + name, std::ios::binary) << bytes;
  }
  printf("%s: %lld passed, %lld failed\n", kind->name, (long long)(total - failed), (long long)failed);
  return failed ? 1 : 0;
}

} // namespace pp::fuzz
