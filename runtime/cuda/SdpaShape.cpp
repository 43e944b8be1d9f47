// Which attentions a library may be asked for, and the most memory that it may want for one.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Sdpa.h"
#include "runtime/kernels/Facts.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>

using namespace pp;

namespace {

/// Which keys the queries see: all, each query those up to its own place, or others, which no graph of ours
/// has.
enum class Sight { Other, All, Causal };

Sight sightOf(const PreparedOp &op, const Chunk &chunk) {
  if (!op.has(Causal) || chunk.position + chunk.length <= op.dims[5])
    return Sight::All;
  return chunk.position == op.dims[5] ? Sight::Causal : Sight::Other;
}

} // namespace

SdpaShape::SdpaShape(const PreparedOp &op)
    : batch(op.dims[0]), queries(op.dims[1]), keys(op.chunks[0].length), heads(op.dims[2]), groups(op.dims[3]),
      width(op.dims[4]), causal(sightOf(op, op.chunks[0]) == Sight::Causal),
      backward(op.kernel == Kernel::attention_bwd), queryStride(op.queryStride()), keyStride(op.keyStride()),
      type(op.type) {}

bool SdpaShape::fits(const PreparedOp &op) {
  bool attention = op.kernel == Kernel::attention || op.kernel == Kernel::attention_bwd;
  // The graphs know neither windows, scales of the model's own, caps, documents nor queries in two runs: our kernels
  // skip what these hide.
  bool plain = std::none_of(std::begin(op.params), std::end(op.params), [](double param) { return param > 0; });
  const auto added = OpFlag(Accumulate | Sums | AccumulateKv);
  return attention && plain && !op.has(OpFlag(Documents | Zigzag | added)) &&
         (op.type == Type::Bf16 || op.type == Type::F16) && op.dims[4] % 8 == 0 && op.dims[4] <= 256 &&
         op.chunkCount == 1 && sightOf(op, op.chunks[0]) != Sight::Other && !SdpaPlan::isWished("off") &&
         (op.kernel == Kernel::attention || !SdpaPlan::isWished("forward"));
}

int64_t SdpaShape::plannedBytes() const {
  return sdpaScratch(backward, rows(), heads > groups ? batch * heads * keys : 0, width);
}

std::string SdpaShape::excess(int64_t wanted) const {
  const int64_t planned = plannedBytes();
  return wanted <= planned ? ""
                           : "it wants " + std::to_string(wanted) + " bytes for an attention, and " +
                                 std::to_string(planned) + " are planned";
}

bool SdpaPlan::isWished(const char *what) {
  const char *wish = std::getenv("PP_CUDNN");
  return wish && std::strcmp(wish, what) == 0;
}
