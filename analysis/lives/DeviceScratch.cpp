// Bounds what a GPU's libraries and kernels take beside the arena; the runtime refuses or warns where one takes more.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// cuBLASLt gets the workspace that runtime/cuda/Gemm.cpp hands to it, and takes no other.
//
// cuDNN's backward gets delta and dq's sums in f32 from runtime/cuda/Sdpa.cpp. Its own workspace is what cuDNN 9.19
// asks for on an H100 and an A100 that are only described, at 20 shapes each: on the A100 the sums of dq once more; on
// both, where heads share keys, dk and dv of every head in 16 bits. Nothing says that other versions ask for as much;
// an engine that asks for more is not taken (SdpaShape::excess; `ctest -R cudnn-plans`).
//
// NCCL 2.28.9, by its sources. A connection has, for each channel, buffers of all three protocols (init.cc: LL 512 x 8
// x 8 x 16 bytes, LL128 640 x 120 x 8 x 8, SIMPLE 4 MiB) in one block beside some KiB (transport/p2p.cc); blocks are of
// whole 2 MiB (alloc.h: cuMemGetAllocationGranularity). A communicator has three blocks for itself (init.cc), and three
// for each channel (channel.cc). There are at most as many channels as blocks of threads (maxCTAs; TransportNccl.cpp).
// What is connected: of an edge one direction; of sums a ring and two trees, so at most five neighbours both ways; of
// exchanges all pairs; and nothing that is not used (NCCL_RUNTIME_CONNECT, by default). Gathers and scatters go round
// the ring, or, where each machine has one member, to those 1, 2, 4, .. places before and behind (transport/generic.cc:
// ncclTransportPatConnect). With NVLink SHARP a member has 2 MiB more for each channel and member of its machine, of
// which there are 8 (transport/nvls.cc).
#include "analysis/lives/DeviceScratch.h"
#include "dialect/formula/Formula.h"
#include "runtime/cuda/FormulaKernel.h"
#include "runtime/kernels/Facts.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace pp;
using namespace pp::nn;

static constexpr int64_t kMiB = int64_t(1) << 20;

//===-- Kernels -------------------------------------------------------------------------------------------------===//

/// dims b s H groups d position, a length and a position of each chunk. cuDNN serves one chunk of which the queries see
/// all, or which begins where they do, if nothing is added to its results (SdpaShape::fits).
bool pp::nn::isServedByCudnn(Kernel kernel) {
  SmallVector<int64_t> dims = kernel.dims();
  Type type = kernel.elementType();
  SmallVector<StringRef> flags = kernel.flags();
  auto has = [&](StringRef flag) { return llvm::is_contained(flags, flag); };
  bool isPlain = dims.size() == 8 && !has("documents") && !has("zigzag") && !has("accumulate") && !has("sums") &&
                 !has("accumulate_kv") && llvm::none_of(kernel.params(), [](double param) { return param > 0; });
  if (!isPlain || !(type.isBF16() || type.isF16()) || dims[4] % 8 != 0 || dims[4] > 256)
    return false;
  return !has("causal") || dims[6] + dims[7] <= dims[5] || dims[7] == dims[5];
}

static int64_t attentionBytes(Kernel kernel, ArrayRef<int64_t> dims) {
  const int64_t heads = dims[0] * dims[2];
  return sdpaScratch(kernel.kernelName() == "attention_bwd", heads * dims[1], dims[2] > dims[3] ? heads * dims[6] : 0,
                     dims[4]);
}

DeviceScratch pp::nn::deviceScratchOf(Kernel kernel) {
  SmallVector<int64_t> dims = kernel.dims();
  DeviceScratch scratch;
  SmallVector<double> params = kernel.params();
  StringRef name = kernel.kernelName();
  if (name.starts_with("linear"))
    scratch.products = workspaceOfProduct + (name == "linear_dw_bias" ? 4 * dims[2] : 0);
  if ((name == "attention" || name == "attention_bwd") && isServedByCudnn(kernel))
    scratch.attention = attentionBytes(kernel, dims);
  if (auto map = dyn_cast<MapOp>(*kernel)) {
    const int64_t bytes = sumType(map.elementType()).getIntOrFloatBitWidth() / 8;
    scratch.kernels = scratchOfFormulaParts(rowsOfFormula(map), partOfFormula(map), bytes);
    return scratch;
  }
  scratch.kernels = simtScratch({name, dims, params, kernel.elementType().getIntOrFloatBitWidth() / 8});
  return scratch;
}

//===-- NCCL ----------------------------------------------------------------------------------------------------===//

int64_t Communicator::bytes() const {
  constexpr int64_t channels = kBlocksOfMessage;
  constexpr int64_t block = 2 * kMiB, buffers = 512 * 8 * 8 * 16 + 640 * 120 * 8 * 8 + 4 * kMiB, beside = 8192;
  constexpr int64_t connection = (buffers + beside + block - 1) / block * block;
  int64_t own = (3 + 3 * channels) * block, others = members - 1;
  if (isEdge)
    return own + channels * connection;
  int64_t powers = shares ? 2 * static_cast<int64_t>(llvm::Log2_64_Ceil(members)) : 0;
  int64_t joint = 2 * std::min<int64_t>(others, 5 + powers), pairs = exchanges ? 2 * others : 0;
  int64_t switched = members > 2 ? channels * block * std::min<int64_t>(members, 8) : 0;
  return own + channels * connection * (joint + pairs) + switched;
}
