// Numbers of 16 bits, bf16 and f16, to and from f32: rounded to nearest, ties to even, in words that SIMD has.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Always inlined: loops of several ISAs use them, and none may get another's code from the linker.
#ifndef PP_RUNTIME_FILES_HALF_H
#define PP_RUNTIME_FILES_HALF_H

#include <bit>
#include <cstdint>

namespace pp {

[[nodiscard, gnu::always_inline]] inline float fromBf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t(bits) << 16);
}
/// A NaN stays one.
[[nodiscard, gnu::always_inline]] inline uint16_t roundToBf16(float value) {
  auto u = std::bit_cast<uint32_t>(value);
  uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return uint16_t((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

/// Exact. The eleven bits of a subnormal become those of 0.5 + x, from which 0.5 is taken away.
[[nodiscard, gnu::always_inline]] inline float fromF16(uint16_t bits) {
  uint32_t sign = uint32_t(bits & 0x8000) << 16, rest = bits & 0x7fff;
  uint32_t normal = (rest << 13) + (rest >= 0x7c00 ? 0x70000000 : 0x38000000);
  auto small = std::bit_cast<uint32_t>(std::bit_cast<float>(0x3f000000 | rest) - 0.5f);
  return std::bit_cast<float>(sign | (rest < 0x400 ? small : normal));
}
/// Values from 65520 on become infinite; a NaN stays a NaN. Adding 0.5 rounds a subnormal result.
[[nodiscard, gnu::always_inline]] inline uint16_t roundToF16(float value) {
  auto u = std::bit_cast<uint32_t>(value);
  uint32_t sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
  uint32_t normal = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
  uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + 0.5f) - 0x3f000000;
  uint32_t large = rest > 0x7f800000 ? 0x7e00 : 0x7c00;
  return uint16_t(sign | (rest >= 0x47800000 ? large : rest < 0x38800000 ? small : normal));
}

} // namespace pp

#endif // PP_RUNTIME_FILES_HALF_H
