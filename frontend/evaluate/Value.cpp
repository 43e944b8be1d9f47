// Values in text, in order, and in copies that share their items until one is changed.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/evaluate/Value.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include <charconv>

using namespace llvm;
using namespace pp;

thread_local int64_t Value::listBytes = 0;

StringRef Value::type() const {
  static const char *const names[] = {"nothing", "int", "bool", "number", "string", "list", "piece"};
  return names[data.index()];
}

/// The shortest text that reads back as this number, and as no int.
static std::string shortest(double number) {
  char text[32];
  std::string shown(text, std::to_chars(text, std::end(text), number).ptr);
  return StringRef(shown).find_first_not_of("-0123456789") == StringRef::npos ? shown + ".0" : shown;
}

Value::Value(List items) {
  unsigned nesting = 1;
  for (const Value &item : items)
    nesting = std::max(nesting, item.nesting() + 1);
  data = std::allocate_shared<Items>(ListAllocator<Items>(), Items{std::move(items), nesting});
}

unsigned Value::nesting() const {
  auto *list = std::get_if<std::shared_ptr<Items>>(&data);
  return list ? (*list)->nesting : 0;
}

void Value::deepen(unsigned nesting) {
  unsigned &deepest = std::get<std::shared_ptr<Items>>(data)->nesting;
  deepest = std::max(deepest, nesting);
}

std::string Value::text() const { return text(/*depth=*/0); }

// Eight items of a list, three lists deep: what shares its items would be long.
std::string Value::text(unsigned depth) const {
  if (auto *value = asInt())
    return std::to_string(*value);
  if (auto *value = asBool())
    return *value ? "true" : "false";
  if (auto *value = asNumber())
    return shortest(*value);
  if (auto *value = asString())
    return ("\"" + *value + "\"").str();
  if (auto *value = asPiece()) {
    std::string name = value->part.empty() ? "stage" : value->part.str();
    return value->index < 0 ? name : name + "(" + std::to_string(value->index) + ")";
  }
  if (!asList())
    return "nothing";
  if (depth == 3)
    return "[..]";
  SmallVector<std::string> items;
  for (const Value &item : ArrayRef(*asList()).take_front(8))
    items.push_back(item.text(depth + 1));
  return "[" + join(items, ", ") + (asList()->size() > 8 ? ", ..]" : "]");
}

std::optional<std::pair<StringRef, StringRef>> Value::unlike(const Value &other, int64_t &left) const {
  if (left-- <= 0)
    return std::nullopt;
  if (!sameTypeAs(other))
    return std::pair(type(), other.type());
  if (asList() && asList() != other.asList())
    for (auto [item, its] : zip(*asList(), *other.asList()))
      if (auto types = item.unlike(its, left))
        return types;
  return std::nullopt;
}

int Value::compare(const Value &other, int64_t &left) const {
  if (left-- <= 0)
    return 0;
  if (!sameTypeAs(other))
    return data.index() < other.data.index() ? -1 : 1;
  auto order = [](auto a, auto b) { return a < b ? -1 : b < a ? 1 : 0; };
  if (auto *value = asInt())
    return order(*value, *other.asInt());
  if (auto *value = asBool())
    return order(*value, *other.asBool());
  if (auto *value = asNumber())
    return order(*value, *other.asNumber());
  if (auto *value = asString())
    return value->compare(*other.asString());
  if (auto *value = asPiece()) {
    int parts = value->part.compare(other.asPiece()->part);
    return parts ? parts : order(value->index, other.asPiece()->index);
  }
  if (!asList() || asList() == other.asList())
    return 0;
  const List &a = *asList(), &b = *other.asList();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (int found = a[i].compare(b[i], left); found || left <= 0)
      return found;
  return order(a.size(), b.size());
}

Value::List &Value::ownItems() {
  auto &list = std::get<std::shared_ptr<Items>>(data);
  if (isShared())
    list = std::allocate_shared<Items>(ListAllocator<Items>(), *list);
  return list->list;
}
