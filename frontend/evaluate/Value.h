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

/// Allocates what lists hold, and counts the bytes.
template <typename T> struct ListAllocator {
  using value_type = T;
  ListAllocator() = default;
  template <typename U> ListAllocator(const ListAllocator<U> &) {}
  T *allocate(size_t count);
  void deallocate(T *items, size_t count);
  bool operator==(const ListAllocator &) const { return true; }
};

/// An int, a bool, a number (models and trains), a string, a list or a piece. Lists are values: copies share their
/// items until one of them is changed.
class Value {
public:
  using List = std::vector<Value, ListAllocator<Value>>;
  Value() = default;
  Value(int64_t value) : data(value) {}
  Value(bool value) : data(value) {}
  Value(double value) : data(value) {}
  Value(llvm::StringRef value) : data(value) {}
  Value(PieceName value) : data(value) {}
  Value(List items);

  const int64_t *asInt() const { return std::get_if<int64_t>(&data); }
  const bool *asBool() const { return std::get_if<bool>(&data); }
  const double *asNumber() const { return std::get_if<double>(&data); }
  const llvm::StringRef *asString() const { return std::get_if<llvm::StringRef>(&data); }
  const PieceName *asPiece() const { return std::get_if<PieceName>(&data); }
  const List *asList() const {
    auto *list = std::get_if<std::shared_ptr<Items>>(&data);
    return list ? &(*list)->list : nullptr;
  }
  /// Whether another value has the items of this list, too.
  bool isShared() const { return std::get<std::shared_ptr<Items>>(data).use_count() > 1; }
  /// The items of a list, to be changed: shared with no other value.
  List &ownItems();
  /// Lists in lists: at most so many deep; 0: no list.
  unsigned nesting() const;
  /// An item of such nesting was put into this list, so many lists below.
  void deepen(unsigned nesting);

  /// Bytes that the lists of this thread hold now.
  static thread_local int64_t listBytes;

  bool sameTypeAs(const Value &other) const { return data.index() == other.data.index(); }
  /// "int", "list", ..
  llvm::StringRef type() const;
  /// The value as a program would write it.
  std::string text() const;
  /// The types of the first two values, here or inside lists, that cannot be compared; nullopt where there are none.
  /// Each item that is looked at takes one of `left`, for lists may share their items and be long in few bytes; when
  /// none is left, the answer means nothing.
  std::optional<std::pair<llvm::StringRef, llvm::StringRef>> unlike(const Value &other, int64_t &left) const;
  /// The order of `sorted`: ints by size, lists lexicographically; values of unlike types by type. `left` as above.
  int compare(const Value &other, int64_t &left) const;

private:
  struct Items {
    List list;
    unsigned nesting; // no less than the lists in lists here
  };
  std::string text(unsigned depth) const;

  std::variant<std::monostate, int64_t, bool, double, llvm::StringRef, std::shared_ptr<Items>, PieceName> data;
};

template <typename T> T *ListAllocator<T>::allocate(size_t count) {
  Value::listBytes += int64_t(count * sizeof(T));
  return std::allocator<T>().allocate(count);
}
template <typename T> void ListAllocator<T>::deallocate(T *items, size_t count) {
  Value::listBytes -= int64_t(count * sizeof(T));
  std::allocator<T>().deallocate(items, count);
}

} // namespace pp

#endif // PP_FRONTEND_VALUE_H
