// Products through cuBLASLt: row-major operands as their column-major transposes, plans made once for each shape.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   c[m,n] = a[m,k] b[k,n], row-major   is   c^T[n,m] = b^T a^T, column-major: cuBLASLt's first operand is our b.
//
// A plan promises an alignment of its operands. Slots of the arena are aligned, a tensor inside a group need not be: so
// each product has two plans, for addresses at multiples of 16 bytes and for any, and picks one by the addresses.
#include "runtime/cuda/Gemm.h"
#include <cstdlib>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <vector>

using namespace pp;

namespace {

/// What cuBLASLt recommends for Hopper.
constexpr size_t workspaceBytes = size_t(32) << 20;
constexpr int mostCandidates = 16;

cublasLtHandle_t handle() {
  static cublasLtHandle_t one = [] {
    cublasLtHandle_t made = nullptr;
    return cublasLtCreate(&made) == CUBLAS_STATUS_SUCCESS ? made : nullptr;
  }();
  return one;
}

cudaDataType_t kindOf(Type type) {
  return type == Type::F64 ? CUDA_R_64F : type == Type::F32 ? CUDA_R_32F : type == Type::F16 ? CUDA_R_16F : CUDA_R_16BF;
}
size_t sizeOf(Type type) { return type == Type::F64 ? 8 : type == Type::F32 ? 4 : 2; }

/// PP_TF32 rounds the operands of f32 products to 10 bits of mantissa, for eight times the speed.
cublasComputeType_t arithmeticOf(Type type) {
  static bool tf32 = std::getenv("PP_TF32") != nullptr;
  return type == Type::F64           ? CUBLAS_COMPUTE_64F
         : type == Type::F32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                     : CUBLAS_COMPUTE_32F;
}

template <class T, cublasStatus_t (*destroy)(T)> struct Owned {
  T it = nullptr;
  Owned() = default;
  Owned(const Owned &) = delete;
  ~Owned() {
    if (it)
      destroy(it);
  }
};
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

/// Memory for the time of tuning.
struct Buffer {
  void *at = nullptr;
  explicit Buffer(size_t bytes) {
    if (cudaMalloc(&at, bytes) != cudaSuccess ||
        cudaMemset(at, 0x3c, bytes) != cudaSuccess) // small numbers in any type
      cudaFree(at), at = nullptr;
  }
  ~Buffer() { cudaFree(at); }
};

} // namespace

struct Gemm::State {
  GemmShape shape;
  Type sumType; ///< of c
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
  Layout left, right, result;         ///< of b, a, c
  cublasLtMatmulAlgo_t algorithms[2]; ///< for any addresses, and for multiples of 16 bytes
  bool known[2] = {false, false};
  size_t workspace = 0;
  bool epilogueBias = false;

  explicit State(const GemmShape &shape)
      : shape(shape), sumType(!shape.sums               ? shape.type
                              : shape.type == Type::F64 ? Type::F64
                                                        : Type::F32) {}
  cublasStatus_t describe();
  cublasStatus_t setBias(bool on);
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(bool wide, int most);
  cublasStatus_t multiply(const void *a, const void *b, void *c, const cublasLtMatmulAlgo_t &algorithm, void *scratch,
                          void *stream);
  void tune(const std::vector<cublasLtMatmulHeuristicResult_t> &found, cublasLtMatmulAlgo_t &best);
  bool choose(bool tunes);
};

cublasStatus_t Gemm::State::describe() {
  const GemmShape &g = shape;
  cudaDataType_t scale = g.type == Type::F64 ? CUDA_R_64F : CUDA_R_32F;
  cublasOperation_t leftOp = g.bColumn == 1 ? CUBLAS_OP_N : CUBLAS_OP_T;
  cublasOperation_t rightOp = g.aColumn == 1 ? CUBLAS_OP_N : CUBLAS_OP_T;
  auto layout = [](Layout &to, Type type, bool straight, int64_t rows, int64_t columns, int64_t stride) {
    return cublasLtMatrixLayoutCreate(&to.it, kindOf(type), uint64_t(straight ? rows : columns),
                                      uint64_t(straight ? columns : rows), stride);
  };
  cublasStatus_t status = cublasLtMatmulDescCreate(&product.it, arithmeticOf(g.type), scale);
  auto next = [&](auto call) { status = status == CUBLAS_STATUS_SUCCESS ? call() : status; };
  next(
      [&] { return cublasLtMatmulDescSetAttribute(product.it, CUBLASLT_MATMUL_DESC_TRANSA, &leftOp, sizeof(leftOp)); });
  next([&] {
    return cublasLtMatmulDescSetAttribute(product.it, CUBLASLT_MATMUL_DESC_TRANSB, &rightOp, sizeof(rightOp));
  });
  next([&] {
    bool straight = leftOp == CUBLAS_OP_N;
    return layout(left, g.type, straight, g.n, g.k, straight ? g.bRow : g.bColumn);
  });
  next([&] {
    bool straight = rightOp == CUBLAS_OP_N;
    return layout(right, g.type, straight, g.k, g.m, straight ? g.aRow : g.aColumn);
  });
  next([&] { return layout(result, sumType, true, g.n, g.m, g.n); });
  return status;
}

cublasStatus_t Gemm::State::setBias(bool on) {
  cublasLtEpilogue_t epilogue = on ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  epilogueBias = on;
  return cublasLtMatmulDescSetAttribute(product.it, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
}

std::vector<cublasLtMatmulHeuristicResult_t> Gemm::State::candidates(bool wide, int most) {
  std::vector<cublasLtMatmulHeuristicResult_t> found(size_t(most), cublasLtMatmulHeuristicResult_t{});
  Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> wish;
  if (cublasLtMatmulPreferenceCreate(&wish.it) != CUBLAS_STATUS_SUCCESS)
    return {};
  auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const auto &value) {
    return cublasLtMatmulPreferenceSetAttribute(wish.it, what, &value, sizeof(value)) == CUBLAS_STATUS_SUCCESS;
  };
  uint32_t operand = wide ? 16 : uint32_t(sizeOf(shape.type)), sum = wide ? 16 : uint32_t(sizeOf(sumType));
  int count = 0;
  if (!set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspaceBytes)) ||
      !set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, operand) ||
      !set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, operand) ||
      !set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, sum) || !set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, sum) ||
      cublasLtMatmulAlgoGetHeuristic(handle(), product.it, left.it, right.it, result.it, result.it, wish.it, most,
                                     found.data(), &count) != CUBLAS_STATUS_SUCCESS)
    count = 0;
  found.resize(size_t(count));
  std::erase_if(found, [](const auto &each) { return each.state != CUBLAS_STATUS_SUCCESS; });
  return found;
}

cublasStatus_t Gemm::State::multiply(const void *a, const void *b, void *c, const cublasLtMatmulAlgo_t &algorithm,
                                     void *scratch, void *stream) {
  double wideOne = 1, wideBeta = shape.accumulate ? 1 : 0;
  float one = 1, beta = shape.accumulate ? 1 : 0;
  bool wide = shape.type == Type::F64;
  return cublasLtMatmul(handle(), product.it, wide ? static_cast<void *>(&wideOne) : &one, b, left.it, a, right.it,
                        wide ? static_cast<void *>(&wideBeta) : &beta, c, result.it, c, result.it, &algorithm, scratch,
                        workspace, static_cast<cudaStream_t>(stream));
}

/// Times every candidate five times on memory of its own and keeps the fastest.
void Gemm::State::tune(const std::vector<cublasLtMatmulHeuristicResult_t> &found, cublasLtMatmulAlgo_t &best) {
  size_t operand = sizeOf(shape.type);
  Buffer a(operand * size_t(shape.m * shape.k)), b(operand * size_t(shape.k * shape.n));
  Buffer c(sizeOf(sumType) * size_t(shape.m * shape.n)), bias(operand * size_t(shape.n)), scratch(workspaceBytes);
  if (!a.at || !b.at || !c.at || !bias.at || !scratch.at)
    return;
  if (epilogueBias)
    cublasLtMatmulDescSetAttribute(product.it, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.at, sizeof(bias.at));
  cudaEvent_t from, to;
  cudaEventCreate(&from);
  cudaEventCreate(&to);
  float least = 1e30f;
  for (const auto &each : found) {
    bool runs = multiply(a.at, b.at, c.at, each.algo, scratch.at, nullptr) == CUBLAS_STATUS_SUCCESS;
    cudaEventRecord(from);
    for (int i = 0; runs && i < 5; ++i)
      runs = multiply(a.at, b.at, c.at, each.algo, scratch.at, nullptr) == CUBLAS_STATUS_SUCCESS;
    cudaEventRecord(to);
    float time = 0;
    if (cudaEventSynchronize(to) != cudaSuccess || cudaEventElapsedTime(&time, from, to) != cudaSuccess || !runs)
      continue;
    if (time < least)
      least = time, best = each.algo;
  }
  cudaEventDestroy(from);
  cudaEventDestroy(to);
}

/// Algorithms for both alignments; false if cuBLASLt knows none for aligned operands. Where it has none for others, a
/// call with such fails.
bool Gemm::State::choose(bool tunes) {
  for (bool wide : {false, true}) {
    auto found = candidates(wide, tunes ? mostCandidates : 1);
    known[wide] = !found.empty();
    if (found.empty())
      continue;
    algorithms[wide] = found[0].algo;
    workspace = workspaceBytes;
    if (tunes && wide)
      tune(found, algorithms[wide]);
  }
  return known[true];
}

Gemm::Gemm() = default;
Gemm::~Gemm() = default;
const GemmShape &Gemm::shape() const { return state->shape; }
int64_t Gemm::scratchBytes() const { return int64_t(state->workspace); }
bool Gemm::addsBias() const { return state->epilogueBias; }

pp_status_t Gemm::create(const GemmShape &shape, bool tunes, std::unique_ptr<Gemm> &gemm, std::string &message) {
  gemm.reset(new Gemm);
  gemm->state = std::make_unique<State>(shape);
  if (!handle()) {
    message = "cuBLASLt could not be started";
    return PP_INTERNAL;
  }
  State &state = *gemm->state;
  cublasStatus_t status = state.describe();
  bool chosen = false;
  // Not every type has a bias in the epilogue.
  for (bool bias : {true, false}) {
    if (status != CUBLAS_STATUS_SUCCESS || chosen || (bias && (!shape.bias || shape.type == Type::F64)))
      continue;
    status = state.setBias(bias);
    chosen = status == CUBLAS_STATUS_SUCCESS && state.choose(tunes);
  }
  if (chosen)
    return PP_OK;
  message = std::string("cuBLASLt refused the product: ") +
            (status == CUBLAS_STATUS_SUCCESS ? "it has no algorithm for it" : cublasLtGetStatusString(status));
  return PP_INTERNAL;
}

pp_status_t Gemm::run(const void *a, const void *b, const void *bias, void *c, char *scratch, void *stream) {
  if (state->epilogueBias && cublasLtMatmulDescSetAttribute(state->product.it, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                            sizeof(bias)) != CUBLAS_STATUS_SUCCESS)
    return PP_INTERNAL;
  uintptr_t addresses =
      reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | reinterpret_cast<uintptr_t>(c);
  bool wide = addresses % 16 == 0;
  if (!state->known[wide])
    return PP_INTERNAL;
  return state->multiply(a, b, c, state->algorithms[wide], scratch, stream) == CUBLAS_STATUS_SUCCESS ? PP_OK
                                                                                                     : PP_INTERNAL;
}
