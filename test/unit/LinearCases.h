// The cases of products and of their replacements: every type, transposed or not, with a flag or without, in all sizes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_UNIT_LINEARCASES_H
#define PP_TEST_UNIT_LINEARCASES_H

#include "test/unit/Kernels.h"

namespace pp::test {

/// t rows, k columns of x, n of y.
struct LinearSizes {
  int64_t t, k, n;
};

struct LinearCase : LinearSizes {
  Type type;
  bool transposed, flag;
  std::vector<std::string> flags(const char *name) const {
    std::vector<std::string> list;
    if (transposed)
      list.push_back("transposed");
    if (flag)
      list.push_back(name);
    return list;
  }
  /// The index of w[row][column].
  size_t weight(int64_t row, int64_t column) const { return size_t(transposed ? column * k + row : row * n + column); }
  std::string text() const {
    return std::string(nameOf(type)) + " " + std::to_string(t) + "x" + std::to_string(k) + "x" + std::to_string(n) +
           (transposed ? " transposed" : "") + (flag ? " with flag" : "");
  }
};

inline void forEachLinear(std::initializer_list<LinearSizes> sizes,
                          const std::function<void(const LinearCase &)> &test) {
  for (Type type : allTypes)
    for (LinearSizes size : sizes)
      for (bool transposed : {false, true})
        for (bool flag : {false, true})
          test({size, type, transposed, flag});
}

} // namespace pp::test

#endif // PP_TEST_UNIT_LINEARCASES_H
