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
#include "runtime/kernels/MergeAttention.h"
#include "runtime/kernels/Optimizer.h"
#include "runtime/kernels/PlainAttention.h"
#include "runtime/kernels/Rows.h"

namespace {
using namespace pp;

#ifndef PP_LANES // an ISA's file may set the attention tile; this is what 16 registers of 128 bits hold
#define PP_LANES 4
#define PP_ROWS 4
#endif
using AttentionForward = BlockedForward<PP_LANES, PP_ROWS>;
using AttentionBackward = BlockedBackward<PP_LANES, PP_ROWS>;

template <class E> constexpr void fillType(IsaTable &table, Type type) {
  auto set = [&](Kernel kernel, Body body) { table.bodies[int(kernel)][int(type)] = body; };
  set(Kernel::bias_dw, bias_dw<E>);
  set(Kernel::embedding, embedding<E>);
  set(Kernel::embedding_dw, embedding_dw<E>);
  set(Kernel::positions, positions<E>);
  set(Kernel::positions_dw, positions_dw<E>);
  set(Kernel::layernorm, layernorm<E>);
  set(Kernel::layernorm_rebuild, layernorm_rebuild<E>);
  set(Kernel::layernorm_bwd, layernorm_bwd<E>);
  set(Kernel::rmsnorm, rmsnorm<E>);
  set(Kernel::rmsnorm_rebuild, rmsnorm_rebuild<E>);
  set(Kernel::rmsnorm_bwd, rmsnorm_bwd<E>);
  set(Kernel::rope, rope<E>);
  if constexpr (sizeof(E) == 8) {
    set(Kernel::attention, plainAttention);
    set(Kernel::attention_bwd, plainAttentionBackward);
  } else {
    set(Kernel::attention, AttentionForward::run<E>);
    set(Kernel::attention_bwd, AttentionBackward::run<E>);
  }
  set(Kernel::attention_merge, attention_merge<E>);
  set(Kernel::attention_delta, attention_delta<E>);
  set(Kernel::sink, sink<E>);
  set(Kernel::sink_bwd, sink_bwd<E>);
  set(Kernel::gelu, gelu<E>);
  set(Kernel::gelu_bwd, gelu_bwd<E>);
  set(Kernel::swiglu, swiglu<E>);
  set(Kernel::swiglu_bwd, swiglu_bwd<E>);
  set(Kernel::glu, glu<E>);
  set(Kernel::glu_bwd, glu_bwd<E>);
  set(Kernel::route, route<E>);
  set(Kernel::route_bwd, route_bwd<E>);
  if constexpr (sizeof(E) >= 4) {
    set(Kernel::choice_counts, choice_counts<E>);
    set(Kernel::expert_load, expert_load<E>);
  }
  set(Kernel::dispatch, dispatch<E>);
  set(Kernel::combine, combine<E>);
  if constexpr (sizeof(E) >= 4) {
    set(Kernel::place_weights, place_weights<E>);
    set(Kernel::take_weights, take_weights<E>);
  }
  set(Kernel::scale_rows, scale_rows<E>);
  set(Kernel::scale_rows_bwd, scale_rows_bwd<E>);
  set(Kernel::add, add<E>);
  set(Kernel::add_bias, add_bias<E>);
  set(Kernel::scale, scale<E>);
  set(Kernel::dropout, dropout<E>);
  set(Kernel::cross_entropy, cross_entropy<E>);
  set(Kernel::cross_entropy_stats, cross_entropy_stats<E>);
  set(Kernel::cross_entropy_merge, cross_entropy_merge<E>);
  set(Kernel::cross_entropy_loss, cross_entropy_loss<E>);
  set(Kernel::cross_entropy_dz, cross_entropy_dz<E>);
  set(Kernel::slice_columns, slice_columns<E>);
  set(Kernel::place_columns, place_columns<E>);
  set(Kernel::repeat_heads, repeat_heads<E>);
  set(Kernel::sum_heads, sum_heads<E>);
  set(Kernel::copy, copy<E>);
  set(Kernel::zero, zero<E>);
  set(Kernel::accumulate, accumulate<E>);
  set(Kernel::round, round<E>);
  set(Kernel::sum_squares, sum_squares<E>);
  set(Kernel::sum_squares_all, sum_squares_all<E>);
  set(Kernel::adamw, adamw<E>);
  set(Kernel::adamw_all, adamw_all<E>);
  set(Kernel::sgd, sgd<E>);
  set(Kernel::steer, steer<E>);
  set(Kernel::muon_momentum, muon_momentum<E>);
  set(Kernel::unit_norm, unit_norm<E>);
  set(Kernel::newton_schulz, newton_schulz<E>);
  set(Kernel::muon, muon<E>);
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
  table.bodies[int(Kernel::linear)][int(Type::F64)] = doubleLinear;
  table.bodies[int(Kernel::linear_dx)][int(Type::F64)] = doubleLinearDx;
  table.bodies[int(Kernel::linear_dw)][int(Type::F64)] = doubleLinearDw;
  table.bodies[int(Kernel::router)][int(Type::F64)] = doubleRouter;
  table.bodies[int(Kernel::router_dx)][int(Type::F64)] = doubleRouterDx;
  table.bodies[int(Kernel::router_dw)][int(Type::F64)] = doubleRouterDw;
  table.bodies[int(Kernel::expert_linear)][int(Type::F64)] = doubleExpertLinear;
  table.bodies[int(Kernel::expert_linear_dx)][int(Type::F64)] = doubleExpertLinearDx;
  table.bodies[int(Kernel::expert_linear_dw)][int(Type::F64)] = doubleExpertLinearDw;
  return table;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_LOOPS_H
