// Products through oneDNN matmul: plain strides for y, dx and dw, a sum post-op to accumulate, primitives made once.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Without AVX-512 the f32 dw goes through OpenBLAS: reading the first operand down its columns, oneDNN falls to 39 to
// 57 GFLOP/s where rows are a multiple of 4096 bytes, OpenBLAS keeps 72 to 95 (256 tokens, sgemm of 1024^3 90, on
// AVX2).
//
// oneDNN's bf16 pays only with AMX; below it, it is slower than its f32. With AVX512-BF16 the product is our own. Else
// bf16 is a storage format: the operands are widened into scratch, multiplied in f32, and the result is rounded once.
// f16 always works like that: this oneDNN has no product of f16 for CPUs.
#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/Bf16Gemm.h"
#include <algorithm>
#include <cblas.h>
#include <climits>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

using namespace pp;

namespace {

dnnl::engine &cpuEngine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

bool cpuHasAmx() {
  static bool has = dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx;
  return has;
}

bool cpuHasAvx512() {
  static bool has =
      (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & static_cast<unsigned>(dnnl::cpu_isa::avx512_core)) ==
      static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  return has;
}

/// OpenBLAS counts in an int.
bool fitsBlas(const GemmShape &shape) {
  return std::max({shape.m, shape.n, shape.k, shape.aColumn, shape.bRow}) <= INT_MAX;
}

int64_t align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

} // namespace

struct Gemm::State {
  GemmShape shape;
  bool dots;       ///< through Bf16Gemm.cpp
  bool widened;    ///< to f32
  bool blas;       ///< through OpenBLAS
  int threads = 1; ///< that share the columns of a product of Bf16Gemm.cpp
  dnnl::matmul primitive;
  dnnl::stream stream;
  dnnl::memory a, b, bias, c, workspace;
  std::vector<dnnl_exec_arg_t> arguments; ///< made once: the C++ interface would make such a list at every call
  int64_t workspaceBytes = 0;

  State(const GemmShape &shape);
  int64_t widenedBytes() const {
    return widened ? align64(4 * shape.m * shape.k) + align64(4 * shape.k * shape.n) + align64(4 * shape.n) +
                         align64(4 * shape.m * shape.n)
                   : 0;
  }
};

Gemm::State::State(const GemmShape &shape)
    : shape(shape), dots(shape.type == Type::Bf16 && !cpuHasAmx() && isaTable().multipliesBf16),
      widened(shape.half() && !dots && (shape.type == Type::F16 || !cpuHasAmx())),
      blas(!dots && shape.aColumn != 1 && !cpuHasAvx512() && fitsBlas(shape)), stream(cpuEngine()) {
  if (dots) {
    threads = omp_get_max_threads();
    workspaceBytes = threads * bf16GemmBytes(shape);
  }
  if (dots || blas)
    return;
  using Kind = dnnl::memory::data_type;
  Kind input = shape.half() && !widened ? Kind::bf16 : Kind::f32;
  Kind output = shape.halfOut() && !widened ? Kind::bf16 : Kind::f32;
  auto describe = [](int64_t rows, int64_t columns, Kind kind, int64_t row, int64_t column) {
    return dnnl::memory::desc({rows, columns}, kind, dnnl::memory::dims{row, column});
  };
  auto aKind = describe(shape.m, shape.k, input, shape.aRow, shape.aColumn);
  auto bKind = describe(shape.k, shape.n, input, shape.bRow, shape.bColumn);
  auto cKind = describe(shape.m, shape.n, output, shape.n, 1);
  auto biasKind = describe(1, shape.n, input, shape.n, 1);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  // A widened result of 16 bits is added when it is rounded, so that it is rounded once.
  if (shape.accumulate && !(widened && shape.halfOut())) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  auto description =
      shape.bias ? dnnl::matmul::desc(aKind, bKind, biasKind, cKind) : dnnl::matmul::desc(aKind, bKind, cKind);
  dnnl::matmul::primitive_desc plan(description, attributes, cpuEngine());
  primitive = dnnl::matmul(plan);
  workspaceBytes = int64_t(plan.scratchpad_desc().get_size());
  a = dnnl::memory(aKind, cpuEngine(), nullptr);
  b = dnnl::memory(bKind, cpuEngine(), nullptr);
  c = dnnl::memory(cKind, cpuEngine(), nullptr);
  workspace = dnnl::memory(plan.scratchpad_desc(), cpuEngine(), nullptr);
  arguments = {{DNNL_ARG_SRC, a.get()},
               {DNNL_ARG_WEIGHTS, b.get()},
               {DNNL_ARG_DST, c.get()},
               {DNNL_ARG_SCRATCHPAD, workspace.get()}};
  if (shape.bias) {
    bias = dnnl::memory(biasKind, cpuEngine(), nullptr);
    arguments.push_back({DNNL_ARG_BIAS, bias.get()});
  }
}

Gemm::Gemm() = default;
Gemm::~Gemm() = default;
const GemmShape &Gemm::shape() const { return state->shape; }
int64_t Gemm::scratchBytes() const { return align64(state->workspaceBytes) + state->widenedBytes(); }

pp_status_t Gemm::create(const GemmShape &shape, std::unique_ptr<Gemm> &gemm, std::string &message) {
  try {
    gemm.reset(new Gemm);
    gemm->state = std::make_unique<State>(shape);
    return PP_OK;
  } catch (const dnnl::error &error) {
    message = std::string("oneDNN refused the product: ") + error.what();
    return PP_INTERNAL;
  }
}

/// Panels of columns in one run for each thread; who computes an element does not change its sum.
static void runDots(const GemmShape &g, int threads, const void *a, const void *b, const void *bias, void *c,
                    char *scratch) {
  int64_t panels = (g.n + bf16Panel - 1) / bf16Panel, bytes = bf16GemmBytes(g);
  auto share = [&](int64_t part) { return std::min(g.n, panels * part / threads * bf16Panel); };
  if (threads == 1)
    return bf16Gemm(g, a, b, bias, c, scratch, 0, g.n);
#pragma omp parallel for num_threads(threads)
  for (int part = 0; part < threads; ++part)
    bf16Gemm(g, a, b, bias, c, scratch + part * bytes, share(part), share(part + 1));
}

pp_status_t Gemm::run(const void *a, const void *b, const void *bias, void *c, char *scratch) {
  State &s = *state;
  const GemmShape &g = s.shape;
  if (s.dots) {
    runDots(g, s.threads, a, b, bias, c, scratch);
    return PP_OK;
  }
  char *next = scratch + align64(s.workspaceBytes);
  auto widen = [&](const void *half, int64_t n) -> const void * {
    float *f32 = reinterpret_cast<float *>(next);
    isaTable().widen[int(g.type)](half, f32, n);
    next += align64(4 * n);
    return f32;
  };
  void *result = c;
  if (s.widened) {
    a = widen(a, g.m * g.k);
    b = widen(b, g.k * g.n);
    bias = g.bias ? widen(bias, g.n) : nullptr;
    result = g.halfOut() ? next : c;
  }
  if (s.blas) {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, int(g.m), int(g.n), int(g.k), 1.0f,
                static_cast<const float *>(a), int(g.aColumn), static_cast<const float *>(b), int(g.bRow),
                g.accumulate ? 1.0f : 0.0f, static_cast<float *>(result), int(g.n));
    return PP_OK;
  }
  bool done = true;
  auto bind = [&](const dnnl::memory &memory, const void *data) {
    done = done && dnnl_memory_set_data_handle(memory.get(), const_cast<void *>(data)) == dnnl_success;
  };
  bind(s.a, a);
  bind(s.b, b);
  bind(s.c, result);
  bind(s.workspace, scratch);
  if (g.bias)
    bind(s.bias, bias);
  if (!done || dnnl_primitive_execute(s.primitive.get(), s.stream.get(), int(s.arguments.size()), s.arguments.data()) !=
                   dnnl_success)
    return PP_INTERNAL;
  if (s.widened && g.halfOut())
    isaTable().narrow[int(g.type)](static_cast<const float *>(result), c, g.m * g.n, g.accumulate);
  return PP_OK;
}

pp_status_t pp::runLinear(const PreparedOp &op, void *const *arguments) {
  return op.gemm->run(arguments[0], arguments[1], arguments[2], arguments[3], op.scratch);
}

pp_status_t pp::runLinearDx(const PreparedOp &op, void *const *arguments) {
  return op.gemm->run(arguments[0], arguments[1], nullptr, arguments[2], op.scratch);
}

pp_status_t pp::runLinearDw(const PreparedOp &op, void *const *arguments) {
  if (op.has(Transposed))
    return op.gemm->run(arguments[1], arguments[0], nullptr, arguments[2], op.scratch);
  return op.gemm->run(arguments[0], arguments[1], nullptr, arguments[2], op.scratch);
}
