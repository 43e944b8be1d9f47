// Reads files and JSON that people hand in, with a bound on the size, on the depth of brackets and on the waiting.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/Input.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Diagnostics.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSwitch.h"
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace mlir;
using namespace pp;

//===-- Files ---------------------------------------------------------------------------------------------------===//

static constexpr int64_t kLargestFile = int64_t(1) << 30, kLongestStream = int64_t(1) << 28;
static constexpr int kSilentSeconds = 10; // of a pipe: it may have no writer, or one that never writes

/// Reads to the end of a pipe or a terminal; null if it is too long, or if nothing comes.
static std::unique_ptr<llvm::MemoryBuffer> readStream(int file, bool waits, StringRef name, std::string &why) {
  SmallString<0> text;
  pollfd ready{file, POLLIN, 0};
  while (true) {
    int count = poll(&ready, 1, waits ? -1 : kSilentSeconds * 1000);
    if (count < 0 && errno == EINTR)
      continue;
    if (count == 0) {
      why = "it is a pipe, and nothing came through it for " + std::to_string(kSilentSeconds) + " s";
      return nullptr;
    }
    char block[1 << 16];
    ssize_t bytes = read(file, block, sizeof block);
    if (bytes == 0)
      return llvm::MemoryBuffer::getMemBufferCopy(text, name);
    if (bytes < 0 && errno != EINTR && errno != EAGAIN) {
      why = strerror(errno);
      return nullptr;
    }
    text.append(block, block + std::max<ssize_t>(bytes, 0));
    if (int64_t(text.size()) > kLongestStream) {
      why = "more than " + std::to_string(kLongestStream >> 20) + " MiB came through it";
      return nullptr;
    }
  }
}

std::unique_ptr<llvm::MemoryBuffer> pp::readInput(StringRef path, std::string &why) {
  const bool isStandard = path == "-";
  int file = isStandard ? STDIN_FILENO : open(path.str().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  auto closeFile = llvm::make_scope_exit([&] { isStandard || file < 0 || close(file); });
  struct stat info;
  char first;
  if (file < 0 || fstat(file, &info) != 0)
    why = strerror(errno);
  else if (S_ISDIR(info.st_mode))
    why = "it is a folder";
  else if (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode) || isatty(file))
    return readStream(file, /*waits=*/isStandard, isStandard ? "<stdin>" : path, why);
  else if (!S_ISREG(info.st_mode) && read(file, &first, 1) != 0) // /dev/null is an empty file
    why = "it is a device";
  else if (info.st_size > kLargestFile)
    why = "it has " + std::to_string(info.st_size) + " bytes; the limit is " + std::to_string(kLargestFile);
  else if (auto buffer = llvm::MemoryBuffer::getOpenFile(file, isStandard ? "<stdin>" : path, /*FileSize=*/-1); !buffer)
    why = buffer.getError().message();
  else if ((*buffer)->getBuffer().starts_with("version https://git-lfs.github.com/spec/"))
    why = "it is a pointer of git-LFS in place of the file; fetch the file with `git lfs pull` in its folder";
  else
    return std::move(*buffer);
  return nullptr;
}

//===-- JSON ----------------------------------------------------------------------------------------------------===//

static constexpr size_t kDeepestJson = 100, kDeepestIr = 64;

static std::string nestedTooDeep(size_t limit) { return "this is nested more than " + std::to_string(limit) + " deep"; }

/// The end of the string that begins here: its second quote, or the end of the text.
static size_t endOfString(StringRef text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    at += text[at] == '\\';
  return std::min(at, text.size());
}

/// Looks at keys and brackets alone, in a text that need not be JSON. False: `error` says what is wrong.
static bool checkKeys(StringRef text, TextError &error) {
  SmallVector<llvm::StringMap<size_t>> open; // the keys so far of what is open; of a list none
  for (size_t at = 0; at < text.size(); ++at) {
    char c = text[at];
    if (c == '{' || c == '[') {
      open.emplace_back();
      if (open.size() > kDeepestJson) {
        error = {at, nestedTooDeep(kDeepestJson)};
        return false;
      }
    } else if ((c == '}' || c == ']') && !open.empty()) {
      open.pop_back();
    } else if (c == '"') {
      size_t begin = at, end = endOfString(text, at);
      bool isKey = !open.empty() && text.substr(end + 1).ltrim(" \t\r\n").starts_with(":");
      at = end;
      if (!isKey)
        continue;
      auto key = llvm::json::parse(text.slice(begin, end + 1)); // as what its escapes stand for
      if (!key || !key->getAsString()) {
        llvm::consumeError(key.takeError()); // what is no JSON is said later
        continue;
      }
      auto [first, isNew] = open.back().try_emplace(*key->getAsString(), begin);
      if (isNew)
        continue;
      error = {begin, ("`" + *key->getAsString() + "` stands here twice").str(), first->second};
      return false;
    }
  }
  return true;
}

/// Infinity and NaN as strings of the same length.
static std::string withoutInfinity(StringRef text) {
  std::string made = text.str();
  for (size_t at = 0; at < text.size(); ++at)
    if (text[at] == '"')
      at = endOfString(text, at);
    else
      for (StringRef word : {"-Infinity", "Infinity", "NaN"})
        if (text.substr(at).starts_with(word)) {
          made[at] = made[at + word.size() - 1] = '"';
          std::copy_n(word.begin(), word.size() - 2, made.begin() + at + 1);
          at += word.size() - 1;
          break;
        }
  return made;
}

/// The complaint of llvm::json in our words.
static StringRef inOurWords(StringRef said) {
  return llvm::StringSwitch<StringRef>(said)
      .Case("Unexpected EOF", "the file ends in the middle of a value")
      .Case("Expected object key", "expected a key in quotes")
      .Case("Expected : after object key", "expected `:` after a key")
      .Case("Expected , or } after object property", "expected `,` or `}` after the value of a key")
      .Case("Expected , or ] after array element", "expected `,` or `]` after an item of a list")
      .Case("Text after end of document", "expected the end of the file after the value")
      .Case("Unterminated string", "this string has no end")
      .Case("Control character in string", "this string holds a control character")
      .StartsWith("Invalid JSON value", "expected a value: a string, a number, a list, an object, true, false or null")
      .StartsWith("Invalid UTF-8", "this is no UTF-8")
      .Default(said);
}

std::optional<llvm::json::Value> pp::parseJson(StringRef text, TextError &error) {
  if (!checkKeys(text, error))
    return std::nullopt;
  const size_t mark = text.consume_front("\xEF\xBB\xBF") ? 3 : 0; // which Windows writes
  llvm::Expected<llvm::json::Value> value = llvm::json::parse(withoutInfinity(text));
  if (value)
    return std::move(*value);
  std::string said = llvm::toString(value.takeError()); // [LINE:COLUMN, byte=AT]: WHAT
  auto [place, what] = StringRef(said).split("]: ");
  size_t at = 0;
  if (place.rsplit('=').second.getAsInteger(10, at))
    what = said;
  else if (at > 0 && (what.starts_with("Expected") || what.starts_with("Invalid JSON value")))
    --at; // behind the character that it did not expect
  error = {mark + std::min(at, text.size()), "this is no JSON: " + inOurWords(what).str()};
  return std::nullopt;
}

static Location locationAt(StringRef path, StringRef text, size_t at, MLIRContext *context) {
  StringRef before = text.take_front(at);
  return FileLineColLoc::get(context, path, before.count('\n') + 1, at - (before.rfind('\n') + 1) + 1);
}

FailureOr<llvm::json::Value> pp::parseJsonFile(StringRef path, StringRef text, MLIRContext *context) {
  TextError error;
  if (std::optional<llvm::json::Value> value = parseJson(text, error))
    return std::move(*value);
  auto diagnostic = emitError(locationAt(path, text, error.at, context)) << error.what;
  if (error.first)
    diagnostic.attachNote(locationAt(path, text, *error.first, context)) << "first here";
  return diagnostic;
}

bool pp::isQuantity(std::optional<double> number) { return number && std::isfinite(*number) && *number >= 0; }

//===-- IR ------------------------------------------------------------------------------------------------------===//

LogicalResult pp::checkNesting(StringRef path, StringRef text, MLIRContext *context) {
  size_t open = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    char c = text[at];
    if (c == '"')
      at = endOfString(text, at);
    else if (c == '/' && text.substr(at).starts_with("//"))
      at = std::min(text.find('\n', at), text.size());
    else if (StringRef("([{<").contains(c) && ++open > kDeepestIr)
      return emitError(locationAt(path, text, at, context)) << nestedTooDeep(kDeepestIr);
    else if (StringRef(")]}>").contains(c) && open > 0 && !(c == '>' && at > 0 && text[at - 1] == '-'))
      --open;
  }
  return success();
}
