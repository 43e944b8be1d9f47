// The part of cuBLASLt that runtime/cuda/Gemm.cpp calls, on this CPU: what descriptors and layouts say, by plain loops.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// With it Gemm.cpp itself runs without a GPU, if the headers are installed; else EmulatedGemm.cpp stands in for it.
// Matrices are column-major: D[m,n] = op(A)[m,k] op(B)[k,n] + beta C, then the bias of each row, then gelu. It refuses
// what cublasLt.h forbids: layouts that do not fit, an algorithm of another product, addresses that the algorithm does
// not take, and a C that overlaps D (but for the same place with the same layout). A trial that writes or reads past
// its memory ends the test. f64 has no epilogues, as in the library. The device is older than Hopper, so by default the
// code for every GPU runs.
#include "runtime/files/Half.h"
#include "runtime/simt/BlockFibers.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <map>
#include <type_traits>
#include <vector>

using namespace pp;

namespace {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
/// The type in which an element is computed.
template <class E> using Acc = std::conditional_t<std::is_same_v<E, double>, double, float>;
float widen(float x) { return x; }
double widen(double x) { return x; }
float widen(Bf16 x) { return fromBf16(x.bits); }
float widen(F16 x) { return fromF16(x.bits); }
void narrow(float &to, float value) { to = value; }
void narrow(double &to, double value) { to = value; }
void narrow(Bf16 &to, float value) { to.bits = roundToBf16(value); }
void narrow(F16 &to, float value) { to.bits = roundToF16(value); }

struct FakeLayout {
  cudaDataType_t type;
  int64_t rows, columns, leading;
  bool operator==(const FakeLayout &) const = default;
};
struct FakeProduct {
  cudaDataType_t scale = CUDA_R_32F;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *bias = nullptr, *aux = nullptr;
  int64_t auxLeading = 0;
  int32_t multiprocessors = 0;

  bool writesAux() const {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  bool hasAux() const { return writesAux() || epilogue == CUBLASLT_EPILOGUE_DGELU; }
  bool addsBias() const { return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
  bool sumsColumns() const { return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB; }
};
/// Alignments of A, B, C and D.
struct FakeWish {
  uint32_t alignments[4] = {1, 1, 1, 1};
  uint64_t workspace = 0;
};
/// The product for which an algorithm was chosen, in the words of a cublasLtMatmulAlgo_t.
struct Choice {
  int64_t m, n, k;
  uint32_t alignments[4];
  int32_t epilogue, biasAlignment, auxAlignment, padding;
};
static_assert(sizeof(Choice) <= sizeof(cublasLtMatmulAlgo_t));

template <class Fake, class Handle> Fake &of(Handle handle) { return *reinterpret_cast<Fake *>(handle); }
template <class Fake, class Handle> cublasStatus_t make(Handle *made, const Fake &fake) {
  *made = reinterpret_cast<Handle>(new Fake(fake));
  return CUBLAS_STATUS_SUCCESS;
}
template <class Fake, class Handle> cublasStatus_t end(Handle handle) {
  delete &of<Fake>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
template <class T> cublasStatus_t read(T &to, const void *from, size_t bytes) {
  if (bytes != sizeof(T))
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/// At most 16.
int32_t alignmentOf(const void *address) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(address) | 16;
  return int32_t(bits & (~bits + 1));
}
int64_t bytesOf(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

/// Memory of trials, whose ends are known.
std::map<const char *, size_t> &trials() {
  static auto &all = *new std::map<const char *, size_t>;
  return all;
}
/// Whether so many bytes end where the block of their trial does, or earlier; true of memory of no trial.
bool isThere(const void *address, int64_t bytes) {
  const char *begin = static_cast<const char *>(address);
  auto behind = trials().upper_bound(begin);
  if (behind == trials().begin())
    return true;
  auto [block, size] = *std::prev(behind);
  return begin >= block + size || begin + bytes <= block + size;
}

/// One call, whose operands are known.
struct Call {
  FakeProduct its;
  FakeLayout a, b, c, d;
  const void *A, *B, *C;
  void *D;
  double alpha, beta;

  int64_t depth() const { return its.a == CUBLAS_OP_N ? a.columns : a.rows; }
};

/// Element (i, j) of op(X).
template <class E> struct Operand {
  const E *data;
  int64_t row, column;
  Operand(const void *data, const FakeLayout &its, cublasOperation_t op)
      : data(static_cast<const E *>(data)), row(op == CUBLAS_OP_N ? 1 : its.leading),
        column(op == CUBLAS_OP_N ? its.leading : 1) {}
  Acc<E> at(int64_t i, int64_t j) const { return widen(data[i * row + j * column]); }
};

/// The tanh form; or its slope.
double gelu(double u, bool slope) {
  const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (u + 0.044715 * u * u * u));
  return slope ? 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * c * (1 + 3 * 0.044715 * u * u) : 0.5 * u * (1 + t);
}

/// Column j of D from its sums.
template <class E, class R> void finish(const Call &call, int64_t j, const std::vector<Acc<E>> &sums) {
  using A = Acc<E>;
  const FakeProduct &its = call.its;
  const R *c = static_cast<const R *>(call.C) + j * call.c.leading;
  R *d = static_cast<R *>(call.D) + j * call.d.leading;
  E *aux = static_cast<E *>(its.aux) + (its.hasAux() ? j * its.auxLeading : 0);
  for (int64_t i = 0; i < call.d.rows; ++i) {
    A sum = A(call.alpha) * sums[size_t(i)] + (call.beta != 0 ? A(call.beta) * A(widen(c[i])) : A(0));
    if (its.addsBias())
      sum += widen(static_cast<const E *>(its.bias)[i]);
    if (its.writesAux()) {
      narrow(aux[i], sum);
      sum = A(gelu(double(sum), false));
    } else if (its.hasAux()) {
      sum *= A(gelu(double(widen(aux[i])), true));
    }
    narrow(d[i], sum);
  }
}

/// Sums over the depth of each row of op(A) or of each column of op(B), over what was there.
template <class E, class R> void sumOperand(const Call &call, const Operand<E> &a, const Operand<E> &b) {
  bool ofA = call.its.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  for (int64_t i = 0; i < (ofA ? call.d.rows : call.d.columns); ++i) {
    Acc<E> sum = 0;
    for (int64_t l = 0; l < call.depth(); ++l)
      sum += ofA ? a.at(i, l) : b.at(l, i);
    narrow(static_cast<R *>(call.its.bias)[i], sum);
  }
}

template <class E, class R> void multiply(const Call &call) {
  const Operand<E> a(call.A, call.a, call.its.a), b(call.B, call.b, call.its.b);
  if (call.its.sumsColumns())
    sumOperand<E, R>(call, a, b);
  std::vector<Acc<E>> sums(size_t(call.d.rows));
  for (int64_t j = 0; j < call.d.columns; ++j) {
    std::fill(sums.begin(), sums.end(), Acc<E>(0));
    for (int64_t l = 0; l < call.depth(); ++l) {
      const Acc<E> factor = b.at(l, j);
      for (int64_t i = 0; i < call.d.rows; ++i)
        sums[size_t(i)] += a.at(i, l) * factor;
    }
    finish<E, R>(call, j, sums);
  }
}
template <class E> void multiplyAs(const Call &call) {
  if (call.d.type == call.a.type)
    multiply<E, E>(call);
  else
    multiply<E, Acc<E>>(call);
}

/// Whether the layouts are those of one product.
bool fits(const FakeProduct &its, const FakeLayout &a, const FakeLayout &b, const FakeLayout &c, const FakeLayout &d) {
  for (const FakeLayout &each : {a, b, c, d})
    if (each.leading < each.rows)
      return false;
  const bool straightA = its.a == CUBLAS_OP_N, straightB = its.b == CUBLAS_OP_N;
  bool isWide = a.type == CUDA_R_64F;
  return (straightA ? a.rows : a.columns) == d.rows && (straightB ? b.columns : b.rows) == d.columns &&
         (straightA ? a.columns : a.rows) == (straightB ? b.rows : b.columns) && c.rows == d.rows &&
         c.columns == d.columns && a.type == b.type && c.type == d.type && (d.type == a.type || d.type == CUDA_R_32F) &&
         (its.scale == CUDA_R_64F) == isWide &&
         (!its.hasAux() || (its.auxLeading >= d.rows && its.auxLeading % 8 == 0));
}

bool hasMemory(const Call &call) {
  auto all = [](const void *address, const FakeLayout &its) {
    return isThere(address, ((its.columns - 1) * its.leading + its.rows) * bytesOf(its.type));
  };
  const FakeProduct &its = call.its;
  int64_t sums = its.epilogue == CUBLASLT_EPILOGUE_BGRADB ? call.d.columns : call.d.rows;
  return all(call.A, call.a) && all(call.B, call.b) && all(call.D, call.d) &&
         (call.beta == 0 || (call.C && all(call.C, call.c))) &&
         (!its.hasAux() || isThere(its.aux, call.d.columns * its.auxLeading * bytesOf(call.a.type))) &&
         (!its.addsBias() || isThere(its.bias, sums * bytesOf(call.a.type))) &&
         (!its.sumsColumns() || isThere(its.bias, sums * bytesOf(call.d.type)));
}

/// Whether the call is what its algorithm was chosen for.
bool serves(const Choice &choice, const Call &call) {
  const void *addresses[] = {call.A, call.B, call.C, call.D};
  for (int i = 0; i < 4; ++i)
    if (uint32_t(alignmentOf(addresses[i])) < choice.alignments[i])
      return false;
  const FakeProduct &its = call.its;
  bool hasBias = its.addsBias() || its.sumsColumns();
  return choice.m == call.d.rows && choice.n == call.d.columns && choice.k == call.depth() &&
         choice.epilogue == its.epilogue && (!hasBias || (its.bias && alignmentOf(its.bias) >= choice.biasAlignment)) &&
         (!its.hasAux() || (its.aux && alignmentOf(its.aux) >= choice.auxAlignment));
}

/// Whether C lies where D does, as it does, or nowhere in it.
bool isApart(const Call &call) {
  if (call.C == call.D)
    return call.c == call.d;
  auto from = [](const void *address) { return reinterpret_cast<uintptr_t>(address); };
  auto behind = [&](const void *address, const FakeLayout &its) {
    return from(address) + size_t(((its.columns - 1) * its.leading + its.rows) * bytesOf(its.type));
  };
  return behind(call.C, call.c) <= from(call.D) || behind(call.D, call.d) <= from(call.C);
}

} // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t *made) { return make(made, 0); }
const char *cublasLtGetStatusString(cublasStatus_t) { return "refused by the stand-in"; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t, cudaDataType_t scale) {
  return make(made, FakeProduct{.scale = scale});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t its) { return end<FakeProduct>(its); }
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  return make(made, FakeLayout{type, int64_t(rows), int64_t(columns), leading});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t its) { return end<FakeLayout>(its); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made) { return make(made, FakeWish{}); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t its) { return end<FakeWish>(its); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t bytes) {
  auto &its = of<FakeProduct>(product);
  switch (what) {
  case CUBLASLT_MATMUL_DESC_TRANSA:
    return read(its.a, value, bytes);
  case CUBLASLT_MATMUL_DESC_TRANSB:
    return read(its.b, value, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE:
    return read(its.epilogue, value, bytes);
  case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
    return read(its.bias, value, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
    return read(its.aux, value, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
    return read(its.auxLeading, value, bytes);
  case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
    return read(its.multiprocessors, value, bytes);
  default:
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wish,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void *value,
                                                    size_t bytes) {
  auto &its = of<FakeWish>(wish);
  switch (what) {
  case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
    return read(its.workspace, value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    return read(its.alignments[0], value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    return read(its.alignments[1], value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    return read(its.alignments[2], value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
    return read(its.alignments[3], value, bytes);
  default:
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

/// One algorithm, twice if so many are asked for.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t *found, int *count) {
  const auto &its = of<FakeProduct>(product);
  const auto &left = of<FakeLayout>(a), &result = of<FakeLayout>(d);
  *count = 0;
  if (!fits(its, left, of<FakeLayout>(b), of<FakeLayout>(c), result))
    return CUBLAS_STATUS_INVALID_VALUE;
  bool isHalf = bytesOf(left.type) == 2;
  if ((left.type == CUDA_R_64F && its.epilogue != CUBLASLT_EPILOGUE_DEFAULT) || (its.hasAux() && !isHalf))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  Choice choice = {result.rows,
                   result.columns,
                   its.a == CUBLAS_OP_N ? left.columns : left.rows,
                   {},
                   its.epilogue,
                   alignmentOf(its.bias),
                   alignmentOf(its.aux),
                   0};
  std::copy_n(of<FakeWish>(wish).alignments, 4, choice.alignments);
  for (*count = 0; *count < std::min(most, 2); ++*count) {
    found[*count] = {};
    std::memcpy(&found[*count].algo, &choice, sizeof(choice));
    found[*count].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
                              const void *C, cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algorithm, void *, size_t, cudaStream_t stream) {
  const auto &its = of<FakeProduct>(product);
  auto number = [&](const void *at) {
    return its.scale == CUDA_R_64F ? *static_cast<const double *>(at) : double(*static_cast<const float *>(at));
  };
  Call call = {its, of<FakeLayout>(a), of<FakeLayout>(b), of<FakeLayout>(c), of<FakeLayout>(d), A, B, C,
               D,   number(alpha),     number(beta)};
  Choice choice;
  std::memcpy(&choice, algorithm, sizeof(choice));
  if (!fits(its, call.a, call.b, call.c, call.d) || !serves(choice, call) || !isApart(call))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!hasMemory(call)) { // on a GPU nothing would say so
    std::fprintf(stderr, "cuBLASLt reaches behind memory of a trial\n");
    std::abort();
  }
  simtLaunch(stream, [call] {
    if (call.a.type == CUDA_R_64F)
      multiplyAs<double>(call);
    else if (call.a.type == CUDA_R_32F)
      multiplyAs<float>(call);
    else if (call.a.type == CUDA_R_16F)
      multiplyAs<F16>(call);
    else
      multiplyAs<Bf16>(call);
  });
  return CUBLAS_STATUS_SUCCESS;
}

// Other calls of Gemm.cpp to the device: its age, its memory and events of trials.
cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) {
  *value = 8;
  return cudaSuccess;
}
cudaError_t cudaMemset(void *memory, int value, size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void *memory) {
  trials().erase(static_cast<const char *>(memory));
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}
namespace pp {
void *allocateForTrial(size_t bytes) {
  void *memory = std::malloc(bytes);
  trials()[static_cast<const char *>(memory)] = bytes;
  return memory;
}
} // namespace pp
