// Prints JSON as canonical text with line ends for people, and hashes it without.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "report/program/Canonical.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/SHA256.h"
#include <charconv>
#include <cmath>
#include <map>

using namespace mlir;
using namespace pp;
namespace json = llvm::json;

/// The shortest digits that give this number again: 3, 0.25, 1e-07.
static void printNumber(double value, llvm::raw_ostream &os) {
  char text[400];
  auto form = value == 0 || std::abs(value) >= 1e-4 ? std::chars_format::fixed : std::chars_format::scientific;
  os << StringRef(text, std::to_chars(text, std::end(text), value, form).ptr - text);
}

/// Whether each element gets a line of its own: in a list of objects or lists, and in an object with such a list.
static bool isBroken(const json::Value &value) {
  if (const json::Array *array = value.getAsArray())
    return !array->empty() && (array->front().getAsArray() || array->front().getAsObject());
  const json::Object *object = value.getAsObject();
  return object && llvm::any_of(*object, [](auto &member) { return isBroken(member.second); });
}

void pp::printCanonical(const json::Value &value, llvm::raw_ostream &os) {
  StringRef end = isBroken(value) ? "\n" : "", comma = end.empty() ? "," : ",\n";
  if (const json::Object *object = value.getAsObject()) {
    std::map<StringRef, const json::Value *> sorted;
    for (auto &[key, member] : *object)
      sorted[key] = &member;
    os << "{" << end;
    llvm::interleave(
        sorted, os, [&](auto &member) { os << json::Value(member.first) << ":", printCanonical(*member.second, os); },
        comma);
    os << end << "}";
  } else if (const json::Array *array = value.getAsArray()) {
    os << "[" << end;
    llvm::interleave(*array, os, [&](const json::Value &item) { printCanonical(item, os); }, comma);
    os << end << "]";
  } else if (std::optional<int64_t> integer = value.getAsInteger()) {
    os << *integer;
  } else if (std::optional<double> number = value.getAsNumber()) {
    printNumber(*number, os);
  } else {
    os << value;
  }
}

std::string pp::sha256(StringRef text) {
  return llvm::toHex(llvm::SHA256::hash(llvm::arrayRefFromStringRef(text)), /*LowerCase=*/true);
}

std::string pp::sha256(const json::Value &value) {
  std::string text;
  llvm::raw_string_ostream os(text);
  printCanonical(value, os);
  llvm::erase(text, '\n'); // in strings they are escaped
  return sha256(StringRef(text));
}
