// How the tensors of a payload lie in memory, and how a payload is cut in shards.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/pipeline/Ranges.h"
#include "mlir/IR/BuiltinTypes.h"

using namespace mlir;
using namespace pp::pipeline;

int64_t pp::pipeline::tensorBytes(RankedTensorType type) {
  int64_t bytes = llvm::divideCeil(type.getElementTypeBitWidth(), 8);
  if (llvm::is_contained(type.getShape(), 0))
    return 0;
  for (int64_t extent : type.getShape()) {
    if (bytes > kMostBytes / extent)
      return kMostBytes;
    bytes *= extent;
  }
  return bytes;
}

SmallVector<int64_t> pp::pipeline::payloadOffsets(TupleType payload) {
  SmallVector<int64_t> offsets = {0};
  for (Type type : payload.getTypes())
    offsets.push_back(std::min<int64_t>(
        llvm::alignTo(offsets.back() + tensorBytes(cast<RankedTensorType>(type)), kAlignment), kMostBytes));
  return offsets;
}

int64_t pp::pipeline::slotBytes(Value slot) {
  return payloadOffsets(cast<SlotType>(slot.getType()).getPayload()).back();
}

/// Elements between two places where tensors may be cut: kAlignment bytes of the shortest type.
static constexpr int64_t kCutUnit = kAlignment / 2;

/// Tensors [first, last) as one run, cut evenly.
static void cutRun(TypeRange tensors, unsigned first, unsigned last, PayloadCut &cut) {
  int64_t units = 0, unit = 0, shards = cut.shards.size();
  auto unitsOf = [&](unsigned i) {
    return llvm::divideCeil(cast<RankedTensorType>(tensors[i]).getNumElements(), kCutUnit);
  };
  for (unsigned i = first; i < last; ++i)
    units += unitsOf(i);
  SmallVector<int64_t> bytes(shards);
  for (unsigned i = first; i < last; ++i) {
    auto type = cast<RankedTensorType>(tensors[i]);
    int64_t elements = type.getNumElements(), begin = 0;
    for (int64_t left = unitsOf(i); left > 0;) {
      int64_t shard = ((unit + 1) * shards - 1) / units,
              end = (shard + 1) * units / shards; // the shard that has the unit
      int64_t taken = std::min(left, end - unit), count = std::min(taken * kCutUnit, elements - begin);
      cut.shards[shard].push_back({i, begin, count});
      bytes[shard] += llvm::alignTo(tensorBytes(RankedTensorType::get({count}, type.getElementType())), kAlignment);
      begin += count;
      left -= taken;
      unit += taken;
    }
  }
  for (int64_t shard : bytes)
    cut.bounds.push_back(cut.bounds.back() + shard);
}

int64_t pp::pipeline::runOf(int64_t weight, bool shared, bool frozen) { return frozen ? -1 : shared ? weight + 1 : 0; }

PayloadCut pp::pipeline::cutPayload(TypeRange tensors, int64_t shards, ArrayRef<int64_t> runs) {
  PayloadCut cut;
  cut.shards.resize(shards);
  cut.bounds = {0};
  auto runOf = [&](unsigned i) { return i < runs.size() ? runs[i] : 0; };
  for (unsigned first = 0, last = 0; first < tensors.size(); first = last) {
    last = first + 1;
    while (last < tensors.size() && runOf(first) == runOf(last))
      ++last;
    cutRun(tensors, first, last, cut);
  }
  return cut;
}

FlatCut pp::pipeline::cutFlat(TypeRange tensors, int64_t devices) {
  FlatCut cut;
  SmallVector<int64_t> bytes = payloadOffsets(TupleType::get(tensors.front().getContext(), tensors));
  int64_t elements = 0;
  for (Type tensor : tensors) {
    cut.begins.push_back(elements);
    elements += llvm::alignTo(cast<RankedTensorType>(tensor).getNumElements(), kCutUnit);
  }
  cut.shard = static_cast<int64_t>(llvm::divideCeil(elements / kCutUnit, devices)) * kCutUnit;
  for (int64_t device = 0; device <= devices; ++device) {
    int64_t at = std::min(device * cut.shard, elements);
    auto tensor = llvm::upper_bound(cut.begins, at) - cut.begins.begin() - 1;
    auto type = cast<RankedTensorType>(tensors[tensor]);
    int64_t inTensor =
        (at - cut.begins[tensor]) * static_cast<int64_t>(llvm::divideCeil(type.getElementTypeBitWidth(), 8));
    cut.bounds.push_back(at == elements ? bytes.back() : std::min(bytes[tensor] + inTensor, bytes[tensor + 1]));
  }
  return cut;
}

TupleType pp::pipeline::shardPayload(TupleType whole, ArrayRef<ElementRange> ranges) {
  SmallVector<Type> types;
  for (ElementRange range : ranges)
    types.push_back(
        RankedTensorType::get({range.count}, cast<RankedTensorType>(whole.getType(range.tensor)).getElementType()));
  return TupleType::get(whole.getContext(), types);
}
