// Which attentions a library may be asked for, and the most memory that it may want for one.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Sdpa.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>

using namespace pp;

SdpaShape::SdpaShape(const PreparedOp &op)
    : batch(op.dims[0]), queries(op.dims[1]), keys(op.chunks[0].length), heads(op.dims[2]), groups(op.dims[3]),
      width(op.dims[4]), causal(op.has(Causal)), backward(op.kernel == Kernel::attention_bwd), type(op.type) {}

bool SdpaShape::fits(const PreparedOp &op) {
  bool attention = op.kernel == Kernel::attention || op.kernel == Kernel::attention_bwd;
  // The graphs know neither windows, scales of the model's own, caps, documents nor queries in two runs: our kernels
  // skip what these hide.
  bool plain = std::none_of(std::begin(op.params), std::end(op.params), [](double param) { return param > 0; });
  return attention && plain && !op.has(OpFlag(Documents | Zigzag)) && (op.type == Type::Bf16 || op.type == Type::F16) &&
         op.chunkCount == 1 && op.dims[4] % 8 == 0 && op.dims[4] <= 256 &&
         (!op.has(Causal) || op.dims[5] == op.chunks[0].position) &&
         !op.has(OpFlag(Accumulate | Sums | AccumulateKv)) && !Sdpa::isWished("off") &&
         (op.kernel == Kernel::attention || !Sdpa::isWished("forward"));
}

int64_t SdpaShape::plannedBytes() const {
  constexpr int64_t small = int64_t(64) << 10;
  const int64_t rows = batch * heads * queries, shared = heads > groups ? 4 * batch * heads * keys * width : 0;
  auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  return backward ? aligned(4 * rows) + 2 * aligned(4 * rows * width) + shared + small : small;
}

std::string SdpaShape::excess(int64_t wanted) const {
  const int64_t planned = plannedBytes();
  return wanted <= planned ? ""
                           : "it wants " + std::to_string(wanted) + " bytes for an attention, and " +
                                 std::to_string(planned) + " are planned";
}

bool Sdpa::isWished(const char *what) {
  const char *wish = std::getenv("PP_CUDNN");
  return wish && std::strcmp(wish, what) == 0;
}
