// Sums of what the members of a group have, in the members' order: the same bits from every transport and in every run.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRANSPORT_GROUPSUMS_H
#define PP_RUNTIME_TRANSPORT_GROUPSUMS_H

#include "runtime/Kernels.h"
#include "runtime/files/Half.h"
#include <span>

namespace pp {

/// out[i] = sources[0][i] + sources[1][i] + ..; `out` may be one of the sources.
template <typename Element> void addMembers(std::span<const void *const> sources, void *out, int64_t count) {
  auto *sum = static_cast<Element *>(out);
  for (int64_t i = 0; i < count; ++i) {
    Element total = static_cast<const Element *>(sources[0])[i];
    for (const void *source : sources.subspan(1))
      total += static_cast<const Element *>(source)[i];
    sum[i] = total;
  }
}

/// Terms in 16 bits are summed in f32, and the sum is rounded once.
template <float (*widen)(uint16_t), uint16_t (*narrow)(float)>
void addRoundedMembers(std::span<const void *const> sources, void *out, int64_t count) {
  auto *sum = static_cast<uint16_t *>(out);
  for (int64_t i = 0; i < count; ++i) {
    float total = 0;
    for (const void *source : sources)
      total += widen(static_cast<const uint16_t *>(source)[i]);
    sum[i] = narrow(total);
  }
}

inline void sumMembers(Type type, std::span<const void *const> sources, void *out, int64_t bytes) {
  if (type == Type::F64)
    addMembers<double>(sources, out, bytes / 8);
  else if (type == Type::F32)
    addMembers<float>(sources, out, bytes / 4);
  else if (type == Type::F16)
    addRoundedMembers<fromF16, roundToF16>(sources, out, bytes / 2);
  else
    addRoundedMembers<fromBf16, roundToBf16>(sources, out, bytes / 2);
}

} // namespace pp

#endif // PP_RUNTIME_TRANSPORT_GROUPSUMS_H
