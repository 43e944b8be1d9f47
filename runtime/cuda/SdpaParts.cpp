// Runs an attention by a library's plans: by one, or by one for each chunk of keys, and adds up what these give.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   forward    o, lse = merged over the chunks from (o, lse) of each, in f32; rounded at the end
//   backward   dq = the sum over the chunks, in f32, rounded at the end; dk and dv of a chunk are written, or added
#include "runtime/cuda/Memory.h"
#include "runtime/cuda/Sdpa.h"
#include "runtime/simt/Launch.h"
#include <algorithm>

using namespace pp;

namespace {

/// Runs one of our kernels over flat arrays; of one that only writes, `from` is what it writes to.
pp_status_t runFlat(const PreparedOp &op, Kernel kernel, Type type, int64_t elements, const void *from,
                    void *to = nullptr) {
  PreparedOp flat = op;
  flat.kernel = kernel, flat.type = type, flat.flags = 0, flat.dims[0] = elements;
  void *const arguments[] = {const_cast<void *>(from), to};
  return elementwiseBody(kernel, type)(flat, arguments);
}

/// total, lse and a part with its own become one in total and `lseOfAll`.
pp_status_t merge(const PreparedOp &op, void *total, void *lse, void *part, void *lseOfPart, void *lseOfAll) {
  PreparedOp one = op;
  one.kernel = Kernel::attention_merge, one.type = Type::F32, one.flags = 0;
  one.dims[3] = op.dims[4], one.dims[4] = 2;
  void *parts[] = {total, lse, part, lseOfPart};
  void *const arguments[] = {parts, total, lseOfAll};
  return mergeAttentionBody(one.kernel, one.type)(one, arguments);
}

/// dk or dv of a chunk as the op wants it, from what the plan wrote.
pp_status_t handKeys(const PreparedOp &op, const SdpaShape &shape, const void *from, void *to) {
  const int64_t elements = shape.batch * shape.keys * shape.groups * shape.width;
  const Type type = shape.sumsKeys() ? Type::F32 : op.type;
  if (from == to)
    return PP_OK;
  if (!op.has(OpFlag(Sums | AccumulateKv)))
    return runFlat(op, Kernel::round, op.type, elements, from, to);
  if (!op.has(AccumulateKv))
    if (pp_status_t status = runFlat(op, Kernel::zero, Type::F32, elements, to))
      return status;
  return runFlat(op, Kernel::accumulate, type, elements, from, to);
}

/// Whether what a plan writes of dk and dv is what the op wants.
bool writesKeys(const PreparedOp &op, const SdpaShape &shape) {
  return !op.has(AccumulateKv) && shape.sumsKeys() == op.has(Sums);
}

} // namespace

std::unique_ptr<Sdpa> Sdpa::create(const PreparedOp &op) {
  auto made = std::make_unique<Sdpa>();
  made->parts = SdpaShape::inParts(op);
  for (int64_t i = 0; i < op.chunkCount; ++i) {
    made->plans.push_back(SdpaPlan::shared(SdpaShape(op, i)));
    if (!made->plans.back())
      return nullptr;
  }
  return made;
}

int64_t Sdpa::scratchBytes() const {
  int64_t most = 0;
  for (const SdpaPlan *plan : plans)
    most = std::max(most, plan->shape().partBytes() + plan->scratchBytes());
  return most;
}

bool Sdpa::takes(const PreparedOp &op, void *const *a) {
  const bool backward = op.kernel == Kernel::attention_bwd;
  bool all = backward ? a[7] && aligned(a[0], a[1], a[2], a[5], a[7]) : aligned(a[0], a[2], a[3]);
  for (int64_t i = 0; i < 2 * op.chunkCount; ++i)
    all = all && aligned(inList<void>(a[backward ? 4 : 1], i)) && (!backward || aligned(inList<void>(a[6], i)));
  return all;
}

pp_status_t Sdpa::run(const PreparedOp &op, void *const *a) const {
  return op.kernel == Kernel::attention_bwd ? backward(op, a) : forward(op, a);
}

pp_status_t Sdpa::forward(const PreparedOp &op, void *const *a) const {
  void *stream = op.launches->stream;
  auto k = [&](size_t i) { return inList<void>(a[1], int64_t(2 * i)); };
  auto v = [&](size_t i) { return inList<void>(a[1], int64_t(2 * i + 1)); };
  if (!parts)
    return plans[0]->run({a[0], k(0), v(0), a[2], a[3]}, op.scratch, stream);
  const SdpaShape &shape = plans[0]->shape();
  const int64_t elements = shape.rows() * shape.width, sums = align(4 * elements), statistics = align(4 * shape.rows());
  char *total = op.scratch, *part = total + sums, *lse = part + sums, *lseOfPart = lse + statistics;
  char *rest = lseOfPart + statistics;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (pp_status_t status = plans[i]->run({a[0], k(i), v(i), i ? part : total, i ? lseOfPart : lse}, rest, stream))
      return status;
    if (i > 0)
      if (pp_status_t status = merge(op, total, lse, part, lseOfPart, i + 1 == plans.size() ? a[3] : lse))
        return status;
  }
  return runFlat(op, Kernel::round, op.type, elements, total, a[2]);
}

pp_status_t Sdpa::backward(const PreparedOp &op, void *const *a) const {
  void *stream = op.launches->stream;
  auto chunk = [&](int list, size_t i) { return inList<void>(a[list], int64_t(i)); };
  if (!parts)
    return plans[0]->run({a[1], chunk(4, 0), chunk(4, 1), a[7], a[2], a[0], a[5], chunk(6, 0), chunk(6, 1)}, op.scratch,
                         stream);
  const int64_t elements = plans[0]->shape().rows() * plans[0]->shape().width;
  char *total = op.scratch, *part = total + align(4 * elements);
  if (op.has(Accumulate)) {
    if (pp_status_t status = runFlat(op, Kernel::zero, Type::F32, elements, total))
      return status;
    if (pp_status_t status = runFlat(op, Kernel::accumulate, op.type, elements, a[5], total))
      return status;
  }
  for (size_t i = 0; i < plans.size(); ++i) {
    const SdpaShape &shape = plans[i]->shape();
    const bool writes = writesKeys(op, shape), adds = i > 0 || op.has(Accumulate);
    char *dk = part + align(4 * elements), *dv = dk + shape.bytesOfKeys();
    SdpaTensors its = {a[1], chunk(4, 2 * i), chunk(4, 2 * i + 1), a[7], a[2], a[0], adds ? part : total};
    its.dk = writes ? chunk(6, 2 * i) : dk;
    its.dv = writes ? chunk(6, 2 * i + 1) : dv;
    if (pp_status_t status = plans[i]->run(its, op.scratch + shape.partBytes(), stream))
      return status;
    if (adds)
      if (pp_status_t status = runFlat(op, Kernel::accumulate, Type::F32, elements, part, total))
        return status;
    for (int of : {0, 1})
      if (pp_status_t status = handKeys(op, shape, of ? its.dv : its.dk, chunk(6, 2 * i + size_t(of))))
        return status;
  }
  return runFlat(op, Kernel::round, op.type, elements, total, a[5]);
}
