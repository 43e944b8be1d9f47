// Parses JSON, and refuses what llvm::json takes: of two equal keys the last one, and any depth of brackets.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/costs/JsonFile.h"
#include "llvm/ADT/StringSet.h"
#include <cmath>

static constexpr size_t kDeepest = 100;

static llvm::Error wrong(const llvm::Twine &text) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), text);
}

/// Where the string that begins here ends: at its second quote, or at the text's end.
static size_t endOfString(llvm::StringRef text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    at += text[at] == '\\';
  return std::min(at, text.size());
}

/// Looks at keys and brackets alone, in a text that need not be JSON.
static llvm::Error checkKeys(llvm::StringRef text) {
  llvm::SmallVector<llvm::StringSet<>> open; // the keys so far of what is open; of a list none
  for (size_t at = 0; at < text.size(); ++at) {
    char c = text[at];
    if (c == '{' || c == '[') {
      open.emplace_back();
      if (open.size() > kDeepest)
        return wrong("is nested " + llvm::Twine(open.size()) + " deep; the limit is " + llvm::Twine(kDeepest));
    } else if ((c == '}' || c == ']') && !open.empty()) {
      open.pop_back();
    } else if (c == '"') {
      size_t end = endOfString(text, at);
      llvm::StringRef word = text.slice(at, end + 1);
      bool isKey = !open.empty() && text.substr(end + 1).ltrim(" \t\r\n").starts_with(":");
      at = end;
      if (!isKey)
        continue;
      auto key = llvm::json::parse(word); // as what its escapes stand for
      if (key && key->getAsString() && !open.back().insert(*key->getAsString()).second)
        return wrong("has the key `" + *key->getAsString() + "` twice in one object, in line " +
                     llvm::Twine(text.take_front(end).count('\n') + 1));
      if (!key)
        llvm::consumeError(key.takeError()); // what is no JSON is said below
    }
  }
  return llvm::Error::success();
}

llvm::Expected<llvm::json::Value> pp::parseJson(llvm::StringRef text) {
  if (llvm::Error error = checkKeys(text))
    return error;
  llvm::Expected<llvm::json::Value> value = llvm::json::parse(text);
  if (!value)
    return wrong("is no JSON: " + llvm::toString(value.takeError()));
  return value;
}

bool pp::isQuantity(std::optional<double> number) { return number && std::isfinite(*number) && *number >= 0; }
