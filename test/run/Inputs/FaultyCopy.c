// A copy between ranks that changes what it carries: the first of its numbers in f64 is off by a billionth.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <stddef.h>

void *ppFaultyCopy(void *to, const void *from, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i)
    ((char *)to)[i] = ((const char *)from)[i];
  if (bytes >= 64 && bytes % 8 == 0)
    *(double *)to *= 1 + 1e-9;
  return to;
}
