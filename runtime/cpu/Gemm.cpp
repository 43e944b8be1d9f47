// Products in the rank's scratch: as a library or our own kernel has them, or widened from 16 bits block by block.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Without AVX-512 the f32 dw goes through OpenBLAS. This product reads its first operand down the columns. If rows are
// a multiple of 4096 bytes, oneDNN then falls to 39 to 57 GFLOP/s, and OpenBLAS keeps 72 to 95 (256 tokens, on AVX2,
// where sgemm of 1024^3 reaches 90).
//
// oneDNN's bf16 pays only with AMX; below it, it is slower than its f32. With AVX512-BF16 the product is our own. Else
// bf16 is a storage format: the operands are widened into scratch, multiplied in f32, and the result is rounded once.
// f16 always works like that: this oneDNN has no product of f16 for CPUs. Where all of them would be more than the
// plan has room for, one block is widened after the other:
//
//              n 512 ..                  c[block] = 0 + a[0] b[0] + a[1] b[1] + .., in f32, and is rounded once
//        k 1024 [ b[0] | ]
//               [ b[1] | ]
//   m 512  [ a[0] a[1] ] [ c ]
#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/Bf16Gemm.h"
#include "runtime/cpu/Product.h"
#include <algorithm>
#include <map>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <utility>

using namespace pp;

namespace {

int64_t align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// A run of rows, columns and depth of a widened product.
struct Block {
  int64_t i, j, l, m, n, k;
};

} // namespace

struct Gemm::State {
  GemmShape shape;
  bool dots;       ///< through Bf16Gemm.cpp
  bool widened;    ///< to f32
  int threads = 1; ///< that the plan's bytes are there for; they share the columns of a product of Bf16Gemm.cpp
  Block most;      ///< of a widened product; all of it where there is room
  std::unique_ptr<Product> product;                                                         ///< that is not widened
  std::map<std::tuple<int64_t, int64_t, int64_t, bool>, std::unique_ptr<Product>> products; ///< of blocks
  int64_t workspaceBytes = 0;

  State(const GemmShape &shape);
  bool byBlas() const { return shape.aColumn != 1 && !cpuHasAvx512(); }
  bool takesWhole();
  void cutIntoBlocks();
  void makeBlocks();
  int64_t blockBytes() const {
    return align64(4 * most.m * most.k) + align64(4 * most.k * most.n) + align64(4 * most.n) +
           (shape.halfOut() ? align64(4 * most.m * most.n) : 0);
  }
  int64_t bytes() const { return align64(workspaceBytes) + (widened ? blockBytes() : 0); }
  pp_status_t runBlocks(const void *a, const void *b, const void *bias, void *c, char *scratch);
  pp_status_t runBlock(const Block &block, const char *a, const char *b, const char *bias, char *c, char *scratch);
};

Gemm::State::State(const GemmShape &shape)
    : shape(shape), dots(shape.type == Type::Bf16 && !cpuHasAmx() && isaTable().multipliesBf16),
      widened(shape.half() && !dots && (shape.type == Type::F16 || !cpuHasAmx())), threads(omp_get_max_threads()),
      most{0, 0, 0, shape.m, shape.n, shape.k} {
  if (!dots && !widened && !takesWhole())
    (isaTable().multipliesBf16 ? dots : widened) = true;
  if (dots)
    workspaceBytes = threads * bf16GemmBytes(shape);
  if (widened)
    cutIntoBlocks(), makeBlocks();
}

/// A product of operands as they are, by a library; false where it needs more scratch than is planned.
bool Gemm::State::takesWhole() {
  ProductShape s = {shape.m,       shape.n, shape.k,    shape.aRow,       shape.aColumn, shape.bRow,
                    shape.bColumn, shape.n, shape.bias, shape.accumulate, shape.half(),  shape.halfOut()};
  product = std::make_unique<Product>(s, byBlas() && !shape.half(), threads * shape.scratchLimit());
  workspaceBytes = product->scratchBytes();
  return product->fits();
}

void Gemm::State::cutIntoBlocks() {
  if (shape.scratchLimit() == mostOfProduct)
    most = {
        0, 0, 0, std::min<int64_t>(shape.m, 512), std::min<int64_t>(shape.n, 512), std::min<int64_t>(shape.k, 1024)};
}

/// Blocks at the ends are smaller, and only the first of a sum begins it.
void Gemm::State::makeBlocks() {
  bool down = shape.aColumn != 1, across = shape.bColumn != 1;
  for (int64_t l : {int64_t(0), most.k, shape.k - shape.k % most.k})
    for (int64_t m : {most.m, shape.m % most.m})
      for (int64_t n : {most.n, shape.n % most.n}) {
        int64_t k = std::min(most.k, shape.k - l);
        if (m == 0 || n == 0 || k <= 0 || products.count({m, n, k, l == 0}))
          continue;
        ProductShape s = {m,
                          n,
                          k,
                          down ? 1 : k,
                          down ? m : 1,
                          across ? 1 : n,
                          across ? k : 1,
                          shape.halfOut() ? n : shape.n,
                          shape.bias && l == 0,
                          l > 0 || (shape.accumulate && !shape.halfOut())};
        auto made = std::make_unique<Product>(s, byBlas(), threads * shape.scratchLimit() - blockBytes());
        workspaceBytes = std::max(workspaceBytes, made->scratchBytes());
        products[{m, n, k, l == 0}] = std::move(made);
      }
}

Gemm::Gemm() = default;
Gemm::~Gemm() = default;
const GemmShape &Gemm::shape() const { return state->shape; }
int64_t Gemm::scratchBytes() const { return state->bytes(); }

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

/// A block of a matrix of 16 bits to dense f32, in the direction in which the matrix lies.
static void widenBlock(Type type, const char *from, int64_t rows, int64_t columns, int64_t row, int64_t column,
                       float *to) {
  if (column != 1)
    return widenBlock(type, from, columns, rows, column, 1, to);
  auto *widen = isaTable().widen[int(type)];
  if (row == columns)
    return widen(from, to, rows * columns);
  for (int64_t i = 0; i < rows; ++i)
    widen(from + 2 * i * row, to + i * columns, columns);
}

pp_status_t Gemm::State::runBlock(const Block &x, const char *a, const char *b, const char *bias, char *c,
                                  char *scratch) {
  char *next = scratch + align64(workspaceBytes);
  auto take = [&](int64_t count) { return reinterpret_cast<float *>(std::exchange(next, next + align64(4 * count))); };
  float *left = take(most.m * most.k), *right = take(most.k * most.n), *added = take(most.n);
  widenBlock(shape.type, a + 2 * (x.i * shape.aRow + x.l * shape.aColumn), x.m, x.k, shape.aRow, shape.aColumn, left);
  widenBlock(shape.type, b + 2 * (x.l * shape.bRow + x.j * shape.bColumn), x.k, x.n, shape.bRow, shape.bColumn, right);
  if (shape.bias && x.l == 0)
    isaTable().widen[int(shape.type)](bias + 2 * x.j, added, x.n);
  float *sums = shape.halfOut() ? reinterpret_cast<float *>(next) : reinterpret_cast<float *>(c) + x.i * shape.n + x.j;
  if (pp_status_t status = products.at({x.m, x.n, x.k, x.l == 0})->run(left, right, added, sums, scratch))
    return status;
  if (!shape.halfOut() || x.l + x.k < shape.k)
    return PP_OK;
  // A term of a widened 16-bit result is added when the result is rounded, so that it is rounded once.
  auto *narrow = isaTable().narrow[int(shape.type)];
  if (x.n == shape.n)
    narrow(sums, c + 2 * x.i * shape.n, x.m * x.n, shape.accumulate);
  for (int64_t i = 0; i < x.m && x.n != shape.n; ++i)
    narrow(sums + i * x.n, c + 2 * ((x.i + i) * shape.n + x.j), x.n, shape.accumulate);
  return PP_OK;
}

pp_status_t Gemm::State::runBlocks(const void *a, const void *b, const void *bias, void *c, char *scratch) {
  for (int64_t j = 0; j < shape.n; j += most.n)
    for (int64_t i = 0; i < shape.m; i += most.m)
      for (int64_t l = 0; l < shape.k; l += most.k) {
        Block block = {
            i, j, l, std::min(most.m, shape.m - i), std::min(most.n, shape.n - j), std::min(most.k, shape.k - l)};
        if (pp_status_t status = runBlock(block, static_cast<const char *>(a), static_cast<const char *>(b),
                                          static_cast<const char *>(bias), static_cast<char *>(c), scratch))
          return status;
      }
  return PP_OK;
}

pp_status_t Gemm::run(const void *a, const void *b, const void *bias, void *c, char *scratch) {
  State &s = *state;
  if (s.dots) {
    runDots(s.shape, s.threads, a, b, bias, c, scratch);
    return PP_OK;
  }
  return s.widened ? s.runBlocks(a, b, bias, c, scratch) : s.product->run(a, b, bias, c, scratch);
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
