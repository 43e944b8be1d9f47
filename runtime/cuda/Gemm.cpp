// Products through cuBLASLt: row-major operands as their column-major transposes, plans made once for each shape.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   c[m,n] = a[m,k] b[k,n], row-major   is   c^T[n,m] = b^T a^T, column-major: cuBLASLt's first operand is our b.
//
// A plan promises an alignment of its operands. Slots of the arena are aligned, a tensor inside a group need not be: so
// each product has two plans, for addresses at multiples of 16 bytes and for any, and picks one by the addresses.
//
// Epilogues, by cublasLt.h of CUDA 13 and, where it is silent, by what the projects say that use them:
//   Gelu     GELU_AUX(_BIAS)  The tanh form, ours: PyTorch and TensorRT-LLM take gelu's tanh for the same function. aux
//                             is u, in c's type, with rows at multiples of 8 elements. tanh itself is approximate, also
//                             in f32 (1e-4), where it is not asked for.
//   GeluBwd  DGELU            aux as above, read. (DGELU_BGRAD would sum a bias gradient too, but in c's type: 16 bits,
//                             where R4 of docs/derivatives.md wants f32.)
//   BiasDw   BGRADA, BGRADB   The sums over k of cuBLASLt's A, not transposed, or of its B, transposed: of dy in a dw,
//                             or in a transposed one. The product is written in c's type, the type of sums; our own
//                             kernel adds it.
//   Add      DEFAULT, BIAS    No epilogue of cuBLASLt's, but beta = 1: D = A B + C, where C is the residual and has the
//                             layout of D, then the bias. All in f32, rounded once. C is read where it lies; D lies
//                             elsewhere.
// Where cuBLASLt has no kernel its answer is NOT_SUPPORTED, or no algorithm; which types go with which epilogue is not
// said anywhere, and found out only when an algorithm is asked for, so that INVALID_VALUE to an epilogue counts as no,
// too.
#include "runtime/cuda/Gemm.h"
#include "runtime/cuda/Memory.h"
#include <cstdlib>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <vector>

using namespace pp;

namespace {

constexpr int mostCandidates = 16;

cublasLtHandle_t handle() {
  static cublasLtHandle_t one = [] {
    cublasLtHandle_t made = nullptr;
    return cublasLtCreate(&made) == CUBLAS_STATUS_SUCCESS ? made : nullptr;
  }();
  return one;
}

cudaDataType_t kindOf(Type type) {
  static constexpr cudaDataType_t kinds[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_64F, CUDA_R_16F}; // in the order of Type
  return kinds[size_t(type)];
}
/// True from Hopper on: llm.c measured that older GPUs lose time by gelu in an epilogue.
bool hasFastEpilogues() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
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
    at = allocateForTrial(bytes);
    if (at && cudaMemset(at, 0x3c, bytes) != cudaSuccess) // small numbers in any type
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
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;

  explicit State(const GemmShape &shape)
      : shape(shape), sumType(!shape.sums               ? shape.type
                              : shape.type == Type::F64 ? Type::F64
                                                        : Type::F32) {}
  cublasStatus_t describe();
  bool hasAux() const { return shape.epilogue == Epilogue::Gelu || shape.epilogue == Epilogue::GeluBwd; }
  bool addsBias() const { return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
  std::vector<cublasLtEpilogue_t> epilogues() const;
  template <class T> cublasStatus_t set(cublasLtMatmulDescAttributes_t what, const T &value) {
    return cublasLtMatmulDescSetAttribute(product.it, what, &value, sizeof(value));
  }
  cublasStatus_t setEpilogue(cublasLtEpilogue_t wanted);
  cublasStatus_t setPointers(const void *bias, void *aux);
  cublasStatus_t candidates(bool wide, std::vector<cublasLtMatmulHeuristicResult_t> &found);
  cublasStatus_t multiply(const GemmOperands &operands, const cublasLtMatmulAlgo_t &algorithm, void *scratch,
                          void *stream);
  void tune(const std::vector<cublasLtMatmulHeuristicResult_t> &found, cublasLtMatmulAlgo_t &best);
  cublasStatus_t choose(bool tunes);
  std::string text() const;
};

cublasStatus_t Gemm::State::describe() {
  const GemmShape &g = shape;
  cudaDataType_t scale = g.type == Type::F64 ? CUDA_R_64F : CUDA_R_32F;
  const OperandLayout b = OperandLayout::left(g), a = OperandLayout::right(g);
  auto op = [](const OperandLayout &its) { return its.straight ? CUBLAS_OP_N : CUBLAS_OP_T; };
  auto layout = [](Layout &to, Type type, int64_t rows, int64_t columns, int64_t leading) {
    return cublasLtMatrixLayoutCreate(&to.it, kindOf(type), uint64_t(rows), uint64_t(columns), leading);
  };
  const OperandLayout c = OperandLayout::result(g);
  cublasStatus_t status = cublasLtMatmulDescCreate(&product.it, arithmeticOf(g.type), scale);
  auto next = [&](auto call) { status = status == CUBLAS_STATUS_SUCCESS ? call() : status; };
  next([&] { return set(CUBLASLT_MATMUL_DESC_TRANSA, op(b)); });
  next([&] { return set(CUBLASLT_MATMUL_DESC_TRANSB, op(a)); });
  if (const int32_t left = multiprocessorsLeft)
    next([&] { return set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, left); });
  next([&] { return layout(left, g.type, b.rows, b.columns, b.leading); });
  next([&] { return layout(right, g.type, a.rows, a.columns, a.leading); });
  next([&] { return layout(result, sumType, c.rows, c.columns, c.leading); });
  return status;
}

/// The first is wanted; the others are taken where it is refused.
std::vector<cublasLtEpilogue_t> Gemm::State::epilogues() const {
  switch (shape.epilogue) {
  case Epilogue::Gelu:
    return {shape.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX};
  case Epilogue::GeluBwd:
    return {CUBLASLT_EPILOGUE_DGELU};
  case Epilogue::BiasDw: // cuBLASLt's A is our b
    return {shape.dyIsA ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA};
  case Epilogue::Add: // with a kernel for the bias behind it the sum would be rounded twice
    return {shape.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT};
  case Epilogue::None:
    break;
  }
  if (shape.bias && shape.type != Type::F64) // not every type has a bias in the epilogue
    return {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DEFAULT};
  return {CUBLASLT_EPILOGUE_DEFAULT};
}

cublasStatus_t Gemm::State::setEpilogue(cublasLtEpilogue_t wanted) {
  epilogue = wanted;
  cublasStatus_t status = set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  return status == CUBLAS_STATUS_SUCCESS && hasAux() ? set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.n) : status;
}

cublasStatus_t Gemm::State::setPointers(const void *bias, void *aux) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (addsBias())
    status = set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (status == CUBLAS_STATUS_SUCCESS && shape.epilogue == Epilogue::BiasDw)
    status = set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, aux);
  else if (status == CUBLAS_STATUS_SUCCESS && hasAux())
    status = set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  return status;
}

/// Finds as many candidates as there is room for.
cublasStatus_t Gemm::State::candidates(bool wide, std::vector<cublasLtMatmulHeuristicResult_t> &found) {
  Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> wish;
  cublasStatus_t status = cublasLtMatmulPreferenceCreate(&wish.it);
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto &value) {
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatmulPreferenceSetAttribute(wish.it, what, &value, sizeof(value));
  };
  uint32_t operand = wide ? 16 : uint32_t(sizeOf(shape.type)), sum = wide ? 16 : uint32_t(sizeOf(sumType));
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspaceOfProduct));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, operand);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, operand);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, sum);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, sum);
  // Nothing is read there: only the alignment counts.
  auto *somewhere = reinterpret_cast<char *>(uintptr_t(4096) + (wide ? 0 : operand));
  if (status == CUBLAS_STATUS_SUCCESS)
    status = setPointers(somewhere, somewhere);
  int count = 0;
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulAlgoGetHeuristic(handle(), product.it, left.it, right.it, result.it, result.it, wish.it,
                                            int(found.size()), found.data(), &count);
  found.resize(size_t(count));
  std::erase_if(found, [](const auto &each) { return each.state != CUBLAS_STATUS_SUCCESS; });
  return status;
}

cublasStatus_t Gemm::State::multiply(const GemmOperands &o, const cublasLtMatmulAlgo_t &algorithm, void *scratch,
                                     void *stream) {
  double wideOne = 1, wideBeta = shape.adds() ? 1 : 0;
  float one = 1, beta = shape.adds() ? 1 : 0;
  bool wide = shape.type == Type::F64;
  if (cublasStatus_t status = setPointers(o.bias, o.aux))
    return status;
  return cublasLtMatmul(handle(), product.it, wide ? static_cast<void *>(&wideOne) : &one, o.b, left.it, o.a, right.it,
                        wide ? static_cast<void *>(&wideBeta) : &beta, o.added(), result.it, o.c, result.it, &algorithm,
                        scratch, workspace, static_cast<cudaStream_t>(stream));
}

/// Times every candidate five times on memory of its own and keeps the fastest.
void Gemm::State::tune(const std::vector<cublasLtMatmulHeuristicResult_t> &found, cublasLtMatmulAlgo_t &best) {
  size_t operand = sizeOf(shape.type), sum = sizeOf(sumType), results = size_t(shape.m * shape.n);
  Buffer a(operand * size_t(shape.m * shape.k)), b(operand * size_t(shape.k * shape.n)), c(sum * results);
  Buffer bias(operand * size_t(shape.n)), scratch(size_t{workspaceOfProduct});
  const bool adds = shape.epilogue == Epilogue::Add;
  Buffer aux(shape.epilogue == Epilogue::BiasDw ? sum * size_t(shape.m + shape.n)
             : hasAux()                         ? operand * results
                                                : operand);
  Buffer residual(adds ? operand * results : operand);
  if (!a.at || !b.at || !c.at || !bias.at || !scratch.at || !aux.at || !residual.at)
    return;
  GemmOperands operands = {a.at, b.at, c.at, bias.at, aux.at, adds ? residual.at : nullptr};
  cudaEvent_t from, to;
  cudaEventCreate(&from);
  cudaEventCreate(&to);
  float least = 1e30f;
  for (const auto &each : found) {
    bool runs = multiply(operands, each.algo, scratch.at, nullptr) == CUBLAS_STATUS_SUCCESS;
    cudaEventRecord(from);
    for (int i = 0; runs && i < 5; ++i)
      runs = multiply(operands, each.algo, scratch.at, nullptr) == CUBLAS_STATUS_SUCCESS;
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

/// Algorithms for both alignments; NOT_SUPPORTED if cuBLASLt knows none for aligned operands. Where it has none for
/// others, a call with such fails, or a pair runs as its two.
cublasStatus_t Gemm::State::choose(bool tunes) {
  for (bool wide : {false, true}) {
    if (!wide && !takesAnyAddress(shape))
      continue;
    std::vector<cublasLtMatmulHeuristicResult_t> found(tunes ? mostCandidates : 1);
    cublasStatus_t status = candidates(wide, found);
    if (status != CUBLAS_STATUS_SUCCESS && wide && shape.epilogue != Epilogue::None)
      return status;
    known[wide] = !found.empty();
    if (found.empty())
      continue;
    algorithms[wide] = found[0].algo;
    workspace = size_t(workspaceOfProduct);
    if (tunes && wide)
      tune(found, algorithms[wide]);
  }
  return known[true] ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

std::string Gemm::State::text() const {
  auto matrix = [](int64_t rows, int64_t columns) {
    return "[" + std::to_string(rows) + "," + std::to_string(columns) + "]";
  };
  static constexpr const char *names[] = {"f32", "bf16", "f64", "f16"}; // in the order of Type
  return matrix(shape.m, shape.k) + " x " + matrix(shape.k, shape.n) + " in " + names[size_t(shape.type)] +
         ", epilogue " + std::to_string(int(epilogue));
}

Gemm::Gemm() = default;
Gemm::~Gemm() = default;
const GemmShape &Gemm::shape() const { return state->shape; }
int64_t Gemm::scratchBytes() const { return int64_t(state->workspace); }
bool Gemm::addsBias() const { return state->addsBias(); }

pp_status_t Gemm::create(const GemmShape &shape, bool tunes, std::unique_ptr<Gemm> &gemm, std::string &message) {
  gemm.reset();
  if (shape.epilogue != Epilogue::None && !wantsEpilogue(shape, hasFastEpilogues()))
    return PP_OK;
  if (!handle()) {
    message = "cuBLASLt could not be started";
    return PP_INTERNAL;
  }
  std::unique_ptr<Gemm> made(new Gemm);
  made->state = std::make_unique<State>(shape);
  State &state = *made->state;
  cublasStatus_t status = state.describe();
  if (status == CUBLAS_STATUS_SUCCESS)
    for (cublasLtEpilogue_t epilogue : state.epilogues()) {
      status = state.setEpilogue(epilogue);
      if (status == CUBLAS_STATUS_SUCCESS)
        status = state.choose(tunes);
      if (status != CUBLAS_STATUS_NOT_SUPPORTED)
        break;
    }
  if (status == CUBLAS_STATUS_SUCCESS)
    gemm = std::move(made);
  bool isRefused = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
  if (status == CUBLAS_STATUS_SUCCESS || (isRefused && shape.epilogue != Epilogue::None))
    return PP_OK;
  message = "cuBLASLt refused the product " + state.text() + ": " +
            (status == CUBLAS_STATUS_NOT_SUPPORTED ? "it has no algorithm for it" : cublasLtGetStatusString(status));
  return PP_INTERNAL;
}

bool Gemm::takes(const GemmOperands &operands) const { return state->known[operands.aligned()]; }

pp_status_t Gemm::run(const GemmOperands &operands, char *scratch, void *stream) {
  if (!takes(operands))
    return PP_INTERNAL;
  return state->multiply(operands, state->algorithms[operands.aligned()], scratch, stream) == CUBLAS_STATUS_SUCCESS
             ? PP_OK
             : PP_INTERNAL;
}
