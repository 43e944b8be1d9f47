// Philox4x32-10 (Salmon et al. 2011): four words of 32 bits from a key and a counter, with no state between calls.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_PHILOX_H
#define PP_RUNTIME_FILES_PHILOX_H

#include <cstdint>

#ifdef __CUDACC__
#define PP_PHILOX __device__ __forceinline__
#else
#define PP_PHILOX [[gnu::always_inline]] inline // the loops of each instruction set have their own
#endif

namespace pp {

struct Words {
  uint32_t v[4];
};

/// Each round multiplies the first and third word by these factors, and adds these numbers to the key's halves.
inline constexpr uint32_t kPhiloxFactor0 = 0xd2511f53, kPhiloxFactor2 = 0xcd9e8d57;
inline constexpr uint32_t kPhiloxStep0 = 0x9e3779b9, kPhiloxStep1 = 0xbb67ae85;
inline constexpr int kPhiloxRounds = 10;

PP_PHILOX Words philox(uint64_t key, Words counter) {
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    uint64_t a = uint64_t(kPhiloxFactor0) * counter.v[0], b = uint64_t(kPhiloxFactor2) * counter.v[2];
    counter = {
        {uint32_t(b >> 32) ^ counter.v[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ counter.v[3] ^ k1, uint32_t(a)}};
    k0 += kPhiloxStep0, k1 += kPhiloxStep1;
  }
  return counter;
}

/// Decides which elements a dropout drops (runtime/Pp.h).
struct DropoutMask {
  uint64_t seed;
  uint32_t site, threshold;

  PP_PHILOX DropoutMask(uint64_t seed, int64_t site, double rate)
      : seed(seed), site(uint32_t(site)), threshold(uint32_t(rate * 4294967296.0)) {}

  /// Words for the elements 4 group to 4 group + 3 of a sequence.
  PP_PHILOX Words words(int64_t group, int32_t row) const {
    return philox(seed, {{uint32_t(group), (uint32_t(group >> 32) & 0xffff) | site << 16, uint32_t(row), 0}});
  }
};

} // namespace pp

#endif // PP_RUNTIME_FILES_PHILOX_H
