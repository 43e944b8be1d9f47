// What a kernel is written with: CUDA's own words under nvcc, and the same words over fibers for any C++ compiler.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Fragments of the tensor cores' 16x8x16 product (lane = 4 g + t; PTX, "matrix fragments for mma.m16n8k16"):
//   a: rows g, g+8, columns 2t, 2t+1 | the same rows, columns 2t+8, 2t+9      b: rows 2t, 2t+1 | 2t+8, 2t+9, column g
//   c: row g, columns 2t, 2t+1 | row g+8, the same columns
#ifndef PP_RUNTIME_SIMT_SIMT_H
#define PP_RUNTIME_SIMT_SIMT_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define PP_UNROLL _Pragma("unroll")
#define PP_ROLLED _Pragma("unroll 1")
#else
#include "runtime/files/Half.h"
#include "runtime/simt/BlockFibers.h"
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define PP_UNROLL
#define PP_ROLLED
#define threadIdx (::pp::simtPlace().thread)
#define blockIdx (::pp::simtPlace().block)
#define blockDim (::pp::simtPlace().threads)
#define gridDim (::pp::simtPlace().blocks)
#endif

#define PP_DEVICE __device__ __forceinline__

namespace pp {

/// Two of them make a word, the first one low.
struct Bf16 {
  uint16_t bits;
  static PP_DEVICE float valueOf(uint16_t bits);
  static PP_DEVICE uint16_t bitsOf(float value);
  static PP_DEVICE uint32_t pairOf(float low, float high);
};
struct F16 {
  uint16_t bits;
  static PP_DEVICE float valueOf(uint16_t bits);
  static PP_DEVICE uint16_t bitsOf(float value);
  static PP_DEVICE uint32_t pairOf(float low, float high);
};

template <class E> struct AccOf {
  using Kind = float;
};
template <> struct AccOf<double> {
  using Kind = double;
};
/// The type of sums, statistics and gradients of weights.
template <class E> using Acc = typename AccOf<E>::Kind;

#ifdef __CUDACC__

template <class T> PP_DEVICE T *sharedMemory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return reinterpret_cast<T *>(memory);
}
PP_DEVICE void checkAligned(const void *, int) {}
PP_DEVICE void waitBlock() { __syncthreads(); }
PP_DEVICE void waitWarp() { __syncwarp(); }
template <class T> PP_DEVICE T shuffleXor(T value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
PP_DEVICE float Bf16::valueOf(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
PP_DEVICE uint16_t Bf16::bitsOf(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
PP_DEVICE uint32_t Bf16::pairOf(float low, float high) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<uint32_t *>(&pair);
}
PP_DEVICE float F16::valueOf(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
PP_DEVICE uint16_t F16::bitsOf(float value) { return __half_as_ushort(__float2half_rn(value)); }
PP_DEVICE uint32_t F16::pairOf(float low, float high) {
  __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<uint32_t *>(&pair);
}
/// 2^x to a relative 2^-22, as one instruction: results below 2^-126 are 0.
PP_DEVICE float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// The larger one of those that are numbers, by one instruction.
PP_DEVICE float largerNumber(float x, float y) { return fmaxf(x, y); }
PP_DEVICE void setOnce(int32_t *word, int32_t value) { atomicCAS(word, 0, value); }

PP_DEVICE void loadMatrices(uint32_t (&r)[4], const void *row) {
  uint32_t address = uint32_t(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
PP_DEVICE void loadMatricesTransposed(uint32_t (&r)[4], const void *row) {
  uint32_t address = uint32_t(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
#define PP_MULTIPLY(type)                                                                                              \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "   \
               "{%0,%1,%2,%3};\n"                                                                                      \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <class E> PP_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<E, F16>)
    PP_MULTIPLY("f16");
  else
    PP_MULTIPLY("bf16");
}
#undef PP_MULTIPLY
/// 16 bytes from global to shared memory, later; zeros when `present` is false.
PP_DEVICE void copyLater(void *to, const void *from, bool present) {
  uint32_t address = uint32_t(__cvta_generic_to_shared(to));
  int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}
PP_DEVICE void commitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int GroupsLeft> PP_DEVICE void waitCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(GroupsLeft) : "memory");
}

#else

template <class T> T *sharedMemory() { return reinterpret_cast<T *>(simtPlace().shared); }
/// Checks the address of a packed access: the device ends a kernel if it is not a multiple of the access's bytes.
inline void checkAligned(const void *p, int bytes) {
  if (reinterpret_cast<uintptr_t>(p) % unsigned(bytes))
    simtMisaligned(p, bytes);
}
inline void waitBlock() { simtWaitBlock(); }
inline void waitWarp() { simtWaitWarp(); }
template <class T> T shuffleXor(T value, int mask) {
  const char *all = simtExchange(value);
  std::memcpy(&value, all + ((threadIdx.x % 32) ^ unsigned(mask)) * simtSlotBytes, sizeof(T));
  return value;
}
inline float Bf16::valueOf(uint16_t bits) { return fromBf16(bits); }
inline uint16_t Bf16::bitsOf(float value) { return roundToBf16(value); }
inline uint32_t Bf16::pairOf(float low, float high) { return uint32_t(bitsOf(high)) << 16 | bitsOf(low); }
inline float F16::valueOf(uint16_t bits) { return fromF16(bits); }
inline uint16_t F16::bitsOf(float value) { return roundToF16(value); }
inline uint32_t F16::pairOf(float low, float high) { return uint32_t(bitsOf(high)) << 16 | bitsOf(low); }
/// No better than the device's: the last two bits are cleared, and small results are 0.
inline float power2(float x) {
  float y = std::exp2(x);
  uint32_t bits;
  std::memcpy(&bits, &y, 4);
  bits = y < 0x1p-126f ? 0 : std::isfinite(y) ? bits & ~3u : bits;
  std::memcpy(&y, &bits, 4);
  return y;
}
inline float largerNumber(float x, float y) { return x > y || y != y ? x : y; }
inline void setOnce(int32_t *word, int32_t value) {
  if (!*word)
    *word = value;
}

/// Row `row` of matrix `matrix`: its eight elements, from the lane that gave the row's address.
inline const uint16_t *matrixRow(const char *addresses, unsigned matrix, unsigned row) {
  const uint16_t *p;
  std::memcpy(&p, addresses + (matrix * 8 + row) * simtSlotBytes, sizeof(p));
  return p;
}
inline void loadMatrices(uint32_t (&r)[4], const void *row) {
  checkAligned(row, 16);
  const char *all = simtExchange(row);
  unsigned lane = threadIdx.x % 32, t = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const uint16_t *from = matrixRow(all, i, lane / 4) + 2 * t;
    r[i] = uint32_t(from[1]) << 16 | from[0];
  }
}
inline void loadMatricesTransposed(uint32_t (&r)[4], const void *row) {
  checkAligned(row, 16);
  const char *all = simtExchange(row);
  unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (unsigned i = 0; i < 4; ++i)
    r[i] = uint32_t(matrixRow(all, i, 2 * t + 1)[g]) << 16 | matrixRow(all, i, 2 * t)[g];
}
/// Each lane widens what it has, once for all that read it.
template <class E> void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Fragment {
    float left[2][4], right[2][2]; // of each half of a's columns
  } mine;
  for (unsigned half = 0; half < 2; ++half) {
    const uint32_t words[3] = {a[2 * half], a[2 * half + 1], half ? b1 : b0};
    for (unsigned low = 0; low < 2; ++low) {
      mine.left[half][low] = E::valueOf(uint16_t(words[0] >> 16 * low));
      mine.left[half][2 + low] = E::valueOf(uint16_t(words[1] >> 16 * low));
      mine.right[half][low] = E::valueOf(uint16_t(words[2] >> 16 * low));
    }
  }
  unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const char *all = simtExchange(mine);
  auto of = [all](unsigned from) -> const Fragment & {
    return *reinterpret_cast<const Fragment *>(all + from * simtSlotBytes);
  };
  float c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];
  for (unsigned half = 0; half < 2; ++half)
    for (unsigned owner = 0; owner < 4; ++owner) {
      const float(&x)[4] = of(g * 4 + owner).left[half];
      const float(&y)[2] = of(2 * t * 4 + owner).right[half], (&z)[2] = of((2 * t + 1) * 4 + owner).right[half];
      c0 = c0 + x[0] * y[0] + x[1] * y[1];
      c1 = c1 + x[0] * z[0] + x[1] * z[1];
      c2 = c2 + x[2] * y[0] + x[3] * y[1];
      c3 = c3 + x[2] * z[0] + x[3] * z[1];
    }
  c[0] = c0, c[1] = c1, c[2] = c2, c[3] = c3;
}
inline void copyLater(void *to, const void *from, bool present) {
  checkAligned(to, 16);
  checkAligned(from, 16); // of what is not present, too
  simtCopyLater(to, from, present ? 16 : 0);
}
inline void commitCopies() { simtCommitCopies(); }
template <int GroupsLeft> void waitCopies() { simtWaitCopies(GroupsLeft); }

#endif

} // namespace pp

#endif // PP_RUNTIME_SIMT_SIMT_H
