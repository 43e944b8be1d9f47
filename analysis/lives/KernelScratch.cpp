// Bounds the scratch of the CPU's kernels. A rank whose kernels need more than this says does not start.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/lives/KernelScratch.h"
#include "dialect/formula/Formula.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace pp::nn;

/// Scratch of a product of t x k x n by any library: f32 copies of the operands if these are small, else blocks of
/// them; the library's own scratch is in it. runtime/kernels/GemmShape.h has the same limit.
static int64_t productBytes(ArrayRef<int64_t> dims) {
  int64_t t = dims[0], k = dims[1], n = dims[2], copies = 4 * (t * k + k * n + t * n) + 512 * (t + k + n);
  return std::min<int64_t>(8 << 20, (1 << 18) + copies);
}

/// Blocked attention with tiles of AVX-512, whose panels are the widest: dense keys and values of one kv head, a block
/// of 96 queries, and what the blocks of queries carry from chunk to chunk if there are several.
static int64_t attentionBytes(ArrayRef<int64_t> dims, bool backward, bool wide) {
  int64_t s = dims[1], share = dims[2] / dims[3], d = dims[4], chunks = (dims.size() - 6) / 2, longest = 0, all = 0;
  for (int64_t i = 0; i < chunks; ++i)
    longest = std::max(longest, dims[6 + 2 * i]), all += dims[6 + 2 * i];
  if (wide)
    return backward ? 0 : 8 * (all + d);
  constexpr int64_t queries = 96, panel = 48;
  int64_t width = llvm::alignTo(d, 16), keys = static_cast<int64_t>(llvm::alignTo(longest, 16)) * width;
  int64_t block = d <= 64 ? 96 : d <= 128 ? 64 : 32, kept = chunks > 1 ? share * llvm::divideCeil(s, queries) : 1;
  int64_t forward = 2 * keys + 2 * queries * width + block * panel + kept * queries * (width + 2);
  int64_t back = 4 * keys + 4 * queries * width + 2 * block * queries + 3 * queries + kept * queries * width;
  return 4 * (backward ? back : forward);
}

/// All values of a row of a formula, and the sums over rows, each with up to 64 bytes to align it.
static int64_t formulaBytes(MapOp map) {
  MapFormula its = formulaOf(map);
  auto heads = static_cast<int64_t>(map.getHeads());
  int64_t columns = widthOfFormula(map) / heads, bytes = 0;
  auto add = [&](unsigned axes) {
    bytes += 8 * (axes & Along::heads ? heads : 1) * (axes & Along::columns ? columns : 1) + 64;
  };
  for (unsigned value = 0; value < its.formula.size(); ++value)
    add(its.formula.at(value).axes);
  for (Formula::Made each : its.made)
    add(each.axes);
  return bytes;
}

int64_t pp::nn::scratchBytesOf(Kernel kernel) {
  bool wide = kernel.elementType().isF64();
  SmallVector<int64_t> dims = kernel.dims();
  return llvm::TypeSwitch<Operation *, int64_t>(kernel)
      .Case<LinearOp, LinearDxOp, LinearDwOp, LinearGeluOp, LinearAddOp, LinearDxGeluOp, LinearDwBiasOp>(
          [&](Operation *) { return wide ? int64_t(8 * 192 * (4 + 256)) : productBytes(dims); })
      .Case<RouterOp, RouterDxOp, RouterDwOp, ExpertLinearOp, ExpertLinearDxOp, ExpertLinearDwOp>([&](Operation *) {
        if (wide)
          return int64_t(8 * 192 * (4 + 256));
        if (!kernel.elementType().isF32()) // three blocks of f32, 512 x 512
          return int64_t(3 * 512 * 512 * 4);
        return isa<ExpertLinearOp, ExpertLinearDxOp>(kernel) ? 16 * (dims[1] + dims[2]) * 4 : int64_t(0); // 16 rows
      })
      .Case<RouteOp, RouteBwdOp>([&](Operation *) { return 24 * dims[1]; })
      .Case([&](AttentionOp) { return attentionBytes(dims, false, wide); })
      .Case([&](AttentionBwdOp) { return attentionBytes(dims, true, wide); })
      .Case([&](MapOp map) { return formulaBytes(map); })
      .Case([&](AttentionMergeOp) { return 8 * (dims[3] + dims[4]); })
      .Default([](Operation *) { return 0; });
}

RopeTable pp::nn::ropeTableOf(RopeOp rope) {
  SmallVector<int64_t> dims = rope.dims();
  SmallVector<double> params = rope.params();
  bool wide = cast<RankedTensorType>(rope.getX().getType()).getElementType().isF64();
  int64_t first = rope.getStarts() || rope.getZigzag() > 0 ? 0 : dims[4], count = dims[1] + dims[4] - first;
  if (rope.getZigzag() > 0)
    count = dims[5] + dims[1] / 2; // of the first device, whose second run is the last of all
  int64_t pairs = params.size() > 1 ? static_cast<int64_t>(params.size()) - 1 : dims[3] / 2;
  RopeTable table{"", 2 * count * pairs * (wide ? 8 : 4)};
  llvm::raw_string_ostream text(table.key);
  text << first << " " << count << " " << dims[3] << " " << wide;
  for (double param : params)
    text << " " << llvm::bit_cast<uint64_t>(param);
  return table;
}
