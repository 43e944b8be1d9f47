// Products by libraries: primitives of oneDNN with plain strides and a sum post-op, its sgemm, and calls of OpenBLAS.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What oneDNN's primitives need beside the operands is asked of them and lies in the rank's scratch. Below AVX-512 they
// pack into memory of their own, at most 8.0 MB in 1500 products of random sizes (2.6.3, AVX2). OpenBLAS packs into
// memory of its own, too: as many columns of b as it is given, so it is given few of them at a time.
//
// With AVX-512 a primitive packs b only if b is read down its columns. Where it is not, and its rows lie a multiple of
// 4096 bytes apart, 1024 x 3072 x 768 makes 50 GFLOP/s; oneDNN's own sgemm, which packs what it reads, makes 140, and
// is ahead in most other sizes, so it multiplies all of these. It packs as OpenBLAS does, by columns: at most 6.6 MiB
// in 700 products of random sizes.
#include "runtime/cpu/Product.h"
#include <algorithm>
#include <cblas.h>
#include <climits>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

using namespace pp;

namespace {

dnnl::engine &cpuEngine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

/// The code that multiplies: a primitive of oneDNN, oneDNN's sgemm, or OpenBLAS.
enum class By { Primitive, Sgemm, Blas };

/// OpenBLAS counts in an int.
bool fitsBlas(const ProductShape &s) {
  return !s.half && std::max({s.m, s.n, s.k, s.aRow, s.aColumn, s.bRow, s.bColumn, s.cRow}) <= INT_MAX;
}

/// The distance of rows that a library is told. The distance of a single row may be less than its length (k or n of 1
/// read down).
int64_t leading(int64_t apart, int64_t length) { return std::max(apart, length); }

constexpr int64_t blasColumns = 2048, sgemmColumns = 4096; // of c in one call

/// Rows of c before a product is added to them.
void startRows(const ProductShape &s, const float *added, float *c) {
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j)
      c[i * s.cRow + j] = (s.accumulate ? c[i * s.cRow + j] : 0.0f) + added[j];
}

} // namespace

bool pp::cpuHasAmx() {
  static bool has = dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx;
  return has;
}

bool pp::cpuHasAvx512() {
  static bool has =
      (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & static_cast<unsigned>(dnnl::cpu_isa::avx512_core)) ==
      static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  return has;
}

struct Product::State {
  ProductShape shape;
  By by;
  bool fits = true;
  dnnl::matmul primitive;
  dnnl::stream stream;
  dnnl::memory a, b, bias, c, workspace;
  std::vector<dnnl_exec_arg_t> arguments; ///< made once: the C++ interface would make such a list at every call
  int64_t workspaceBytes = 0;

  State(const ProductShape &shape, bool wantsBlas, int64_t most);
  void make(const dnnl::matmul::primitive_desc &plan);
  void multiplyByBlas(const float *left, const float *right, bool adds, float *result) const;
  bool multiplyBySgemm(const float *left, const float *right, bool adds, float *result) const;
};

Product::State::State(const ProductShape &shape, bool wantsBlas, int64_t most)
    : shape(shape), by(wantsBlas && fitsBlas(shape)                          ? By::Blas
                       : !shape.half && shape.bColumn == 1 && cpuHasAvx512() ? By::Sgemm
                                                                             : By::Primitive),
      stream(cpuEngine()) {
  if (by != By::Primitive)
    return;
  using Kind = dnnl::memory::data_type;
  Kind input = shape.half ? Kind::bf16 : Kind::f32, output = shape.halfOut ? Kind::bf16 : Kind::f32;
  auto describe = [](int64_t rows, int64_t columns, Kind kind, int64_t row, int64_t column) {
    return dnnl::memory::desc({rows, columns}, kind, dnnl::memory::dims{row, column});
  };
  auto aKind = describe(shape.m, shape.k, input, shape.aRow, shape.aColumn);
  auto bKind = describe(shape.k, shape.n, input, shape.bRow, shape.bColumn);
  auto cKind = describe(shape.m, shape.n, output, shape.cRow, 1);
  auto biasKind = describe(1, shape.n, input, shape.n, 1);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  auto description =
      shape.bias ? dnnl::matmul::desc(aKind, bKind, biasKind, cKind) : dnnl::matmul::desc(aKind, bKind, cKind);
  dnnl::matmul::primitive_desc plan(description, attributes, cpuEngine());
  workspaceBytes = int64_t(plan.scratchpad_desc().get_size());
  if (workspaceBytes <= most) {
    make(plan);
  } else {
    workspaceBytes = 0;
    fits = fitsBlas(shape);
    by = By::Blas;
  }
}

void Product::State::make(const dnnl::matmul::primitive_desc &plan) {
  primitive = dnnl::matmul(plan);
  a = dnnl::memory(plan.src_desc(), cpuEngine(), nullptr);
  b = dnnl::memory(plan.weights_desc(), cpuEngine(), nullptr);
  c = dnnl::memory(plan.dst_desc(), cpuEngine(), nullptr);
  workspace = dnnl::memory(plan.scratchpad_desc(), cpuEngine(), nullptr);
  arguments = {{DNNL_ARG_SRC, a.get()},
               {DNNL_ARG_WEIGHTS, b.get()},
               {DNNL_ARG_DST, c.get()},
               {DNNL_ARG_SCRATCHPAD, workspace.get()}};
  if (shape.bias) {
    bias = dnnl::memory(plan.bias_desc(), cpuEngine(), nullptr);
    arguments.push_back({DNNL_ARG_BIAS, bias.get()});
  }
}

void Product::State::multiplyByBlas(const float *left, const float *right, bool adds, float *result) const {
  const ProductShape &s = shape;
  bool aDown = s.aColumn != 1, bDown = s.bColumn != 1;
  for (int64_t j = 0; j < s.n; j += blasColumns)
    cblas_sgemm(CblasRowMajor, aDown ? CblasTrans : CblasNoTrans, bDown ? CblasTrans : CblasNoTrans, int(s.m),
                int(std::min(blasColumns, s.n - j)), int(s.k), 1.0f, left,
                int(aDown ? leading(s.aColumn, s.m) : leading(s.aRow, s.k)), right + j * s.bColumn,
                int(bDown ? leading(s.bColumn, s.k) : leading(s.bRow, s.n)), adds ? 1.0f : 0.0f, result + j,
                int(s.cRow));
}

/// The rows of b lie side by side.
bool Product::State::multiplyBySgemm(const float *left, const float *right, bool adds, float *result) const {
  const ProductShape &s = shape;
  bool aDown = s.aColumn != 1, done = true;
  for (int64_t j = 0; j < s.n; j += sgemmColumns)
    done &= dnnl_sgemm(aDown ? 'T' : 'N', 'N', s.m, std::min(sgemmColumns, s.n - j), s.k, 1.0f, left,
                       aDown ? leading(s.aColumn, s.m) : leading(s.aRow, s.k), right + j, leading(s.bRow, s.n),
                       adds ? 1.0f : 0.0f, result + j, s.cRow) == dnnl_success;
  return done;
}

Product::Product(const ProductShape &shape, bool blas, int64_t most)
    : state(std::make_unique<State>(shape, blas, most)) {}
Product::~Product() = default;
bool Product::fits() const { return state->fits; }
int64_t Product::scratchBytes() const { return state->workspaceBytes; }

pp_status_t Product::run(const void *a, const void *b, const void *bias, void *c, char *scratch) {
  State &s = *state;
  if (s.by != By::Primitive) {
    auto *left = static_cast<const float *>(a), *right = static_cast<const float *>(b);
    auto *result = static_cast<float *>(c);
    if (s.shape.bias)
      startRows(s.shape, static_cast<const float *>(bias), result);
    bool adds = s.shape.bias || s.shape.accumulate;
    if (s.by == By::Sgemm)
      return s.multiplyBySgemm(left, right, adds, result) ? PP_OK : PP_INTERNAL;
    s.multiplyByBlas(left, right, adds, result);
    return PP_OK;
  }
  bool done = true;
  auto bind = [&](const dnnl::memory &memory, const void *data) {
    done = done && dnnl_memory_set_data_handle(memory.get(), const_cast<void *>(data)) == dnnl_success;
  };
  bind(s.a, a);
  bind(s.b, b);
  bind(s.c, c);
  bind(s.workspace, scratch);
  if (s.shape.bias)
    bind(s.bias, bias);
  return done && dnnl_primitive_execute(s.primitive.get(), s.stream.get(), int(s.arguments.size()),
                                        s.arguments.data()) == dnnl_success
             ? PP_OK
             : PP_INTERNAL;
}
