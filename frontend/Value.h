// The values of a `.pipe` program while it is evaluated at compile time.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_VALUE_H
#define PP_FRONTEND_VALUE_H

#include "llvm/ADT/StringRef.h"
#include <memory>
#include <optional>
#include <variant>
#include <vector>

namespace pp {

/// A stage (no part name) or a part of the model; index -1 for a part that exists once.
struct PieceName {
  llvm::StringRef part;
  int64_t index = -1;
  bool operator==(const PieceName &other) const = default;
};

/// An int, a bool, a number (models and trains), a string, a list or a piece. Lists are values: copies share their
/// items until one of them is changed.
class Value {
public:
  using List = std::vector<Value>;
  Value() = default;
  Value(int64_t value) : data(value) {}
  Value(bool value) : data(value) {}
  Value(double value) : data(value) {}
  Value(llvm::StringRef value) : data(value) {}
  Value(PieceName value) : data(value) {}
  Value(List items) : data(std::make_shared<List>(std::move(items))) {}

  const int64_t *asInt() const { return std::get_if<int64_t>(&data); }
  const bool *asBool() const { return std::get_if<bool>(&data); }
  const double *asNumber() const { return std::get_if<double>(&data); }
  const llvm::StringRef *asString() const { return std::get_if<llvm::StringRef>(&data); }
  const PieceName *asPiece() const { return std::get_if<PieceName>(&data); }
  const List *asList() const {
    auto *list = std::get_if<std::shared_ptr<List>>(&data);
    return list ? list->get() : nullptr;
  }
  /// The items of a list, to be changed: shared with no other value.
  List &ownItems();

  bool sameTypeAs(const Value &other) const { return data.index() == other.data.index(); }
  /// "int", "list", ..
  llvm::StringRef type() const;
  /// As a program would write it.
  std::string text() const;
  /// The types of the first two values, here or inside lists, that cannot be compared; nullopt where there are none.
  std::optional<std::pair<llvm::StringRef, llvm::StringRef>> unlike(const Value &other) const;
  /// The order of `sorted`: ints by size, lists lexicographically; values of unlike types by type.
  int compare(const Value &other) const;

private:
  std::variant<std::monostate, int64_t, bool, double, llvm::StringRef, std::shared_ptr<List>, PieceName> data;
};

} // namespace pp

#endif // PP_FRONTEND_VALUE_H
