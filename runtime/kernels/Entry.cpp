// The C ABI's kernels: finds the prepared op by its number, checks that it is the kernel called, and runs it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Rank.h"
#include "runtime/files/Trace.h"
#include "runtime/kernels/Specs.h"

using namespace pp;

namespace {

int32_t failRun(pp_rank_t *rank, int32_t number, const char *name, pp_status_t status) {
  std::string where = "op " + std::to_string(number) + " `" + name + "`";
  if (status == PP_INVALID)
    return rank->fail(status, where + " met a token or target outside its vocabulary");
  return rank->fail(status, where + ": " + Kernels::whyFailed());
}

/// Copies of a call's arguments: its lists of addresses lie on the stack of the task body, and later work needs its
/// own.
struct KeptArguments {
  std::vector<void *> pointers;
  std::vector<std::vector<void *>> lists;

  void keep(const void *pointer, size_t) { pointers.push_back(const_cast<void *>(pointer)); }
  void keep(const void *const *list, size_t length) {
    std::vector<void *> &its = lists.emplace_back();
    for (size_t i = 0; i < length; ++i)
      its.push_back(const_cast<void *>(list[i]));
    pointers.push_back(its.data());
  }
  /// Moves each pointer by its number of bytes, to the shard that this device along `data` updates.
  void move(const std::vector<int64_t> *bytes) {
    if (!bytes)
      return;
    std::vector<void *> &moving = lists.empty() ? pointers : lists.front();
    for (size_t i = 0; i < bytes->size() && i < moving.size(); ++i)
      if (moving[i])
        moving[i] = static_cast<char *>(moving[i]) + (*bytes)[i];
  }
};

/// Addresses in each list that the op is called with.
size_t listLength(const PreparedOp &op) {
  switch (op.kernel) {
  case Kernel::attention:
  case Kernel::attention_bwd:
    return size_t(2 * op.chunkCount) + op.has(Documents) + op.has(Dropped);
  case Kernel::attention_merge:
    return size_t(2 * op.dims[4]);
  case Kernel::cross_entropy_merge:
  case Kernel::token_merge:
    return size_t(op.dims[1]);
  case Kernel::adamw_all:
    return size_t(5 * op.chunkCount);
  case Kernel::sum_squares_all:
  case Kernel::formula:
    return size_t(op.chunkCount);
  default:
    return 0;
  }
}

const PreparedOp *find(const pp_rank_t *rank, int32_t number) {
  return rank->kernels ? rank->kernels->find(number) : nullptr;
}

template <class... Pointers>
int32_t runLater(pp_rank_t *rank, int32_t number, const PreparedOp *op, const char *name, Pointers... pointers) {
  auto kept = std::make_shared<KeptArguments>();
  (kept->keep(pointers, listLength(*op)), ...);
  kept->move(op->moved);
  return rank->queue->add(*rank, [=] {
    pp_status_t status = op->body(*op, kept->pointers.data());
    return status == PP_OK ? PP_OK : pp_status_t(failRun(rank, number, name, status));
  });
}

template <class... Pointers>
int32_t runNow(pp_rank_t *rank, int32_t number, const PreparedOp *op, const char *name, Pointers... pointers) {
  if (rank->queue)
    return runLater(rank, number, op, name, pointers...);
  if (op->moved) {
    KeptArguments kept;
    (kept.keep(pointers, listLength(*op)), ...);
    kept.move(op->moved);
    pp_status_t moved = op->body(*op, kept.pointers.data());
    return moved == PP_OK ? PP_OK : failRun(rank, number, name, moved);
  }
  void *const arguments[] = {const_cast<void *>(static_cast<const void *>(pointers))...};
  pp_status_t status = op->body(*op, arguments);
  return status == PP_OK ? PP_OK : failRun(rank, number, name, status);
}

/// Keeps the arguments in the order of the C ABI. Drops their constness: a body knows which of them it writes.
template <class... Pointers>
int32_t run(pp_rank_t *rank, int32_t number, Kernel kernel, const char *name, Pointers... pointers) {
  const PreparedOp *op = find(rank, number);
  if (!op || op->kernel != kernel)
    return rank->fail(PP_INTERNAL, "op " + std::to_string(number) + " is not a prepared `" + name + "`");
  if (!rank->trace || !rank->trace->hasOps())
    return runNow(rank, number, op, name, pointers...);
  int64_t start = rank->trace->mark();
  int32_t status = runNow(rank, number, op, name, pointers...);
  rank->trace->computed(number, start);
  return status;
}

/// With the weights of the targets behind the other arguments. Targets without any, in a step that has weights, would
/// count otherwise than the loss's divisor says.
template <class... Pointers>
int32_t runLoss(pp_rank_t *rank, int32_t number, Kernel kernel, const char *name, const void *from,
                const int32_t *targets, Pointers... pointers) {
  const PreparedOp *op = find(rank, number);
  const bool isOfRuns = op && op->has(Zigzag); // a mean over documents, which have no weights; gathered targets
  const float *weights = isOfRuns ? nullptr : rank->find(rank->targetWeights, targets);
  if (!weights && !isOfRuns && !rank->targetWeights.empty())
    return rank->fail(PP_INTERNAL, "op " + std::to_string(number) + " `" + name + "` has targets without weights");
  return run(rank, number, kernel, name, from, targets, pointers..., weights);
}

} // namespace

#define PP_KERNEL(name, dims, params, flags, parameters, arguments)                                                    \
  int32_t pp_##name(pp_rank_t *rank, int32_t op, PP_EACH parameters) {                                                 \
    return run(rank, op, Kernel::name, #name, PP_EACH arguments);                                                      \
  }
#define PP_LOSS(name, dims, params, flags, parameters, arguments)                                                      \
  int32_t pp_##name(pp_rank_t *rank, int32_t op, PP_EACH parameters) {                                                 \
    return runLoss(rank, op, Kernel::name, #name, PP_EACH arguments);                                                  \
  }
#include "runtime/kernels/Kernels.def"
