// Assembles one ISA's table of loops for the four element types.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_LOOPS_H
#define PP_RUNTIME_KERNELS_LOOPS_H

#include "runtime/kernels/BlockedBackward.h"
#include "runtime/kernels/BlockedForward.h"
#include "runtime/kernels/CrossEntropy.h"
#include "runtime/kernels/DoubleGemm.h"
#include "runtime/kernels/Elementwise.h"
#include "runtime/kernels/Experts.h"
#include "runtime/kernels/Optimizer.h"
#include "runtime/kernels/PlainAttention.h"
#include "runtime/kernels/Rows.h"
#include "runtime/kernels/Scan.h"

namespace {
using namespace pp;

#ifndef PP_LANES // an ISA's file may set the attention tile; this is what 16 registers of 128 bits hold
#define PP_LANES 4
#define PP_ROWS 4
#endif
using AttentionForward = BlockedForward<PP_LANES, PP_ROWS>;
using AttentionBackward = BlockedBackward<PP_LANES, PP_ROWS>;

template <class E> constexpr Body attention = AttentionForward::run<E>;
template <> constexpr Body attention<double> = plainAttention;
template <class E> constexpr Body attention_bwd = AttentionBackward::run<E>;
template <> constexpr Body attention_bwd<double> = plainAttentionBackward;

/// A body in f64; a library serves the other types.
template <class E> constexpr Body inDouble(Body body) { return sizeof(E) == 8 ? body : nullptr; }
template <class E> constexpr Body linear = inDouble<E>(doubleLinear);
template <class E> constexpr Body linear_dx = inDouble<E>(doubleLinearDx);
template <class E> constexpr Body linear_dw = inDouble<E>(doubleLinearDw);
template <class E> constexpr Body router = inDouble<E>(doubleRouter);
template <class E> constexpr Body router_dx = inDouble<E>(doubleRouterDx);
template <class E> constexpr Body router_dw = inDouble<E>(doubleRouterDw);
template <class E> constexpr Body expert_linear = inDouble<E>(doubleExpertLinear);
template <class E> constexpr Body expert_linear_dx = inDouble<E>(doubleExpertLinearDx);
template <class E> constexpr Body expert_linear_dw = inDouble<E>(doubleExpertLinearDw);
/// Pairs of ops have no loops of their own, and formulas have their program's.
template <class E> constexpr Body formula = nullptr;
template <class E> constexpr Body linear_gelu = nullptr;
template <class E> constexpr Body linear_add = nullptr;
template <class E> constexpr Body linear_dx_gelu = nullptr;
template <class E> constexpr Body linear_dw_bias = nullptr;

template <class E> constexpr void fillType(IsaTable &table, Type type) {
#define PP_KERNEL(name, ...) table.bodies[int(Kernel::name)][int(type)] = name<E>;
#include "runtime/kernels/Kernels.def"
}

template <class E> void widenLoop(const void *half, float *f32, int64_t n) { widenRun(in<E>(half), f32, n); }

template <class E> void narrowLoop(const float *f32, void *half, int64_t n, bool accumulates) {
  E *y = out<E>(half);
  if (!accumulates)
    return narrowRun(f32, y, n);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    put(y, i, f32[i] + get(y, i));
}

constexpr IsaTable makeTable(const char *name, bool multipliesBf16 = false) {
  IsaTable table{name, multipliesBf16, {}, {}, {}};
  table.widen[int(Type::Bf16)] = widenLoop<Bf16>, table.narrow[int(Type::Bf16)] = narrowLoop<Bf16>;
  table.widen[int(Type::F16)] = widenLoop<F16>, table.narrow[int(Type::F16)] = narrowLoop<F16>;
  fillType<float>(table, Type::F32);
  fillType<Bf16>(table, Type::Bf16);
  fillType<F16>(table, Type::F16);
  fillType<double>(table, Type::F64);
  return table;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_LOOPS_H
