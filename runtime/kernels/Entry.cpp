// The C ABI's kernels: finds the prepared op by its number, checks that it is the kernel called, and runs it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Rank.h"
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

/// Keeps the arguments in the order of the C ABI. Drops their constness: a body knows which of them it writes.
template <class... Pointers>
int32_t run(pp_rank_t *rank, int32_t number, Kernel kernel, const char *name, Pointers... pointers) {
  const PreparedOp *op = find(rank, number);
  if (!op || op->kernel != kernel)
    return rank->fail(PP_INTERNAL, "op " + std::to_string(number) + " is not a prepared `" + name + "`");
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

/// With the weights of the targets behind the other arguments. Targets without any, in a step that has weights, would
/// count otherwise than the loss's divisor says.
template <class... Pointers>
int32_t runLoss(pp_rank_t *rank, int32_t number, Kernel kernel, const char *name, const void *from,
                const int32_t *targets, Pointers... pointers) {
  const float *weights = rank->find(rank->targetWeights, targets);
  if (!weights && !rank->targetWeights.empty())
    return rank->fail(PP_INTERNAL, "op " + std::to_string(number) + " `" + name + "` has targets without weights");
  return run(rank, number, kernel, name, from, targets, pointers..., weights);
}

} // namespace

#define PP_RUN_LOSS(name, ...) runLoss(rank, op, Kernel::name, #name, __VA_ARGS__)
#define PP_RUN(name, ...) run(rank, op, Kernel::name, #name, __VA_ARGS__)

int32_t pp_linear(pp_rank_t *rank, int32_t op, const void *x, const void *w, const void *b, void *y) {
  return PP_RUN(linear, x, w, b, y);
}

int32_t pp_linear_dx(pp_rank_t *rank, int32_t op, const void *dy, const void *w, void *dx) {
  return PP_RUN(linear_dx, dy, w, dx);
}

int32_t pp_linear_dw(pp_rank_t *rank, int32_t op, const void *x, const void *dy, void *dw) {
  return PP_RUN(linear_dw, x, dy, dw);
}

int32_t pp_linear_gelu(pp_rank_t *rank, int32_t op, const void *x, const void *w, const void *b, void *u, void *y) {
  return PP_RUN(linear_gelu, x, w, b, u, y);
}

int32_t pp_linear_add(pp_rank_t *rank, int32_t op, const void *x, const void *w, const void *b, const void *r,
                      void *y) {
  return PP_RUN(linear_add, x, w, b, r, y);
}

int32_t pp_linear_dx_gelu(pp_rank_t *rank, int32_t op, const void *dy, const void *w, const void *u, void *du) {
  return PP_RUN(linear_dx_gelu, dy, w, u, du);
}

int32_t pp_linear_dw_bias(pp_rank_t *rank, int32_t op, const void *x, const void *dy, void *dw, void *db) {
  return PP_RUN(linear_dw_bias, x, dy, dw, db);
}

int32_t pp_bias_dw(pp_rank_t *rank, int32_t op, const void *dy, void *db) { return PP_RUN(bias_dw, dy, db); }

int32_t pp_embedding(pp_rank_t *rank, int32_t op, const int32_t *tokens, const void *table, void *x) {
  return PP_RUN(embedding, tokens, table, x);
}

int32_t pp_embedding_dw(pp_rank_t *rank, int32_t op, const int32_t *tokens, const void *dx, void *dtable) {
  return PP_RUN(embedding_dw, tokens, dx, dtable);
}

int32_t pp_positions(pp_rank_t *rank, int32_t op, const int32_t *tokens, const void *p, void *x) {
  return PP_RUN(positions, tokens, p, x);
}

int32_t pp_positions_dw(pp_rank_t *rank, int32_t op, const void *dx, void *dp) { return PP_RUN(positions_dw, dx, dp); }

int32_t pp_layernorm(pp_rank_t *rank, int32_t op, const void *x, const void *g, const void *b, void *y, void *mean,
                     void *rstd) {
  return PP_RUN(layernorm, x, g, b, y, mean, rstd);
}

int32_t pp_layernorm_rebuild(pp_rank_t *rank, int32_t op, const void *x, const void *g, const void *b, const void *mean,
                             const void *rstd, void *y) {
  return PP_RUN(layernorm_rebuild, x, g, b, mean, rstd, y);
}

int32_t pp_layernorm_bwd(pp_rank_t *rank, int32_t op, const void *dy, const void *x, const void *g, const void *mean,
                         const void *rstd, void *dx, void *dg, void *db) {
  return PP_RUN(layernorm_bwd, dy, x, g, mean, rstd, dx, dg, db);
}

int32_t pp_rmsnorm(pp_rank_t *rank, int32_t op, const void *x, const void *g, void *y, void *rstd) {
  return PP_RUN(rmsnorm, x, g, y, rstd);
}

int32_t pp_rmsnorm_rebuild(pp_rank_t *rank, int32_t op, const void *x, const void *g, const void *rstd, void *y) {
  return PP_RUN(rmsnorm_rebuild, x, g, rstd, y);
}

int32_t pp_rmsnorm_bwd(pp_rank_t *rank, int32_t op, const void *dy, const void *x, const void *g, const void *rstd,
                       void *dx, void *dg) {
  return PP_RUN(rmsnorm_bwd, dy, x, g, rstd, dx, dg);
}

int32_t pp_rope(pp_rank_t *rank, int32_t op, const void *x, const int32_t *starts, void *y) {
  return PP_RUN(rope, x, starts, y);
}

int32_t pp_attention(pp_rank_t *rank, int32_t op, const void *q, const void *const *kv, void *o, void *lse) {
  KeyList keys;
  void *const *list = keys.of(find(rank, op), const_cast<void *>(q), const_cast<void *const *>(kv));
  return PP_RUN(attention, q, list, o, lse, rank->scalars());
}

int32_t pp_attention_merge(pp_rank_t *rank, int32_t op, const void *const *parts, void *o, void *lse) {
  return PP_RUN(attention_merge, parts, o, lse);
}

int32_t pp_sink(pp_rank_t *rank, int32_t op, const void *o, const void *lse, const void *s, void *y, void *lseY) {
  return PP_RUN(sink, o, lse, s, y, lseY);
}

int32_t pp_sink_bwd(pp_rank_t *rank, int32_t op, const void *s, const void *lse, const void *delta, void *ds) {
  return PP_RUN(sink_bwd, s, lse, delta, ds);
}

int32_t pp_attention_delta(pp_rank_t *rank, int32_t op, const void *dout, const void *o, void *delta) {
  return PP_RUN(attention_delta, dout, o, delta);
}

int32_t pp_attention_bwd(pp_rank_t *rank, int32_t op, const void *dout, const void *q, const void *lse,
                         const void *delta, const void *const *kv, void *dq, void *const *dkv, const void *o) {
  KeyList keys, gradients;
  void *const *list = keys.of(find(rank, op), const_cast<void *>(q), const_cast<void *const *>(kv));
  return PP_RUN(attention_bwd, dout, q, lse, delta, list, dq, gradients.of(find(rank, op), dq, dkv), o,
                rank->scalars());
}

int32_t pp_gelu(pp_rank_t *rank, int32_t op, const void *x, void *y) { return PP_RUN(gelu, x, y); }

int32_t pp_gelu_bwd(pp_rank_t *rank, int32_t op, const void *dy, const void *x, void *dx) {
  return PP_RUN(gelu_bwd, dy, x, dx);
}

int32_t pp_swiglu(pp_rank_t *rank, int32_t op, const void *p, const void *q, void *y) {
  return PP_RUN(swiglu, p, q, y);
}

int32_t pp_swiglu_bwd(pp_rank_t *rank, int32_t op, const void *dy, const void *p, const void *q, void *dp, void *dq) {
  return PP_RUN(swiglu_bwd, dy, p, q, dp, dq);
}

int32_t pp_glu(pp_rank_t *rank, int32_t op, const void *p, const void *q, void *y) { return PP_RUN(glu, p, q, y); }

int32_t pp_glu_bwd(pp_rank_t *rank, int32_t op, const void *dy, const void *p, const void *q, void *dp, void *dq) {
  return PP_RUN(glu_bwd, dy, p, q, dp, dq);
}

int32_t pp_router(pp_rank_t *rank, int32_t op, const void *x, const void *wr, void *logits) {
  return PP_RUN(router, x, wr, logits);
}

int32_t pp_router_dx(pp_rank_t *rank, int32_t op, const void *dlogits, const void *wr, void *dx) {
  return PP_RUN(router_dx, dlogits, wr, dx);
}

int32_t pp_router_dw(pp_rank_t *rank, int32_t op, const void *x, const void *dlogits, void *dwr) {
  return PP_RUN(router_dw, x, dlogits, dwr);
}

int32_t pp_route(pp_rank_t *rank, int32_t op, const void *logits, const void *bias, const int32_t *rows, void *w,
                 int32_t *sel, void *p, void *lse, int32_t *places, int32_t *counts) {
  return PP_RUN(route, logits, bias, rows, w, sel, p, lse, places, counts, &rank->routed);
}

int32_t pp_expert_load(pp_rank_t *rank, int32_t op, const int32_t *counts, void *load) {
  return PP_RUN(expert_load, counts, load);
}

int32_t pp_choice_counts(pp_rank_t *rank, int32_t op, const int32_t *sel, void *often) {
  return PP_RUN(choice_counts, sel, often);
}

int32_t pp_route_bwd(pp_rank_t *rank, int32_t op, const void *dw, const void *w, const int32_t *sel, const void *p,
                     const void *lse, const void *often, void *dlogits) {
  return PP_RUN(route_bwd, dw, w, sel, p, lse, often, dlogits, rank->scalars(), &rank->routed);
}

int32_t pp_dispatch(pp_rank_t *rank, int32_t op, const void *x, const int32_t *places, void *rows) {
  return PP_RUN(dispatch, x, places, rows);
}

int32_t pp_combine(pp_rank_t *rank, int32_t op, const void *rows, const int32_t *places, void *y) {
  return PP_RUN(combine, rows, places, y);
}

int32_t pp_expert_linear(pp_rank_t *rank, int32_t op, const void *x, const void *w, const int32_t *counts, void *y) {
  return PP_RUN(expert_linear, x, w, counts, y);
}

int32_t pp_expert_linear_dx(pp_rank_t *rank, int32_t op, const void *dy, const void *w, const int32_t *counts,
                            void *dx) {
  return PP_RUN(expert_linear_dx, dy, w, counts, dx);
}

int32_t pp_expert_linear_dw(pp_rank_t *rank, int32_t op, const void *x, const void *dy, const int32_t *counts,
                            void *dw) {
  return PP_RUN(expert_linear_dw, x, dy, counts, dw);
}

int32_t pp_place_weights(pp_rank_t *rank, int32_t op, const void *w, const int32_t *places, void *rows) {
  return PP_RUN(place_weights, w, places, rows);
}

int32_t pp_take_weights(pp_rank_t *rank, int32_t op, const void *rows, const int32_t *places, void *w) {
  return PP_RUN(take_weights, rows, places, w);
}

int32_t pp_scale_rows(pp_rank_t *rank, int32_t op, const void *a, const void *w, const int32_t *places, void *y) {
  return PP_RUN(scale_rows, a, w, places, y);
}

int32_t pp_scale_rows_bwd(pp_rank_t *rank, int32_t op, const void *dy, const void *a, const void *w,
                          const int32_t *places, void *da, void *dw) {
  return PP_RUN(scale_rows_bwd, dy, a, w, places, da, dw);
}

int32_t pp_formula(pp_rank_t *rank, int32_t op, void *const *tensors) { return PP_RUN(formula, tensors); }
int32_t pp_add(pp_rank_t *rank, int32_t op, const void *x, const void *y, void *z) { return PP_RUN(add, x, y, z); }
int32_t pp_add_bias(pp_rank_t *rank, int32_t op, const void *x, const void *bias, void *y) {
  return PP_RUN(add_bias, x, bias, y);
}
int32_t pp_scale(pp_rank_t *rank, int32_t op, const void *x, void *y) { return PP_RUN(scale, x, y); }

int32_t pp_dropout(pp_rank_t *rank, int32_t op, const void *x, const int32_t *rows, void *y) {
  return PP_RUN(dropout, x, rows, y, rank->scalars());
}

int32_t pp_cross_entropy(pp_rank_t *rank, int32_t op, const void *z, const int32_t *targets, void *dz, void *loss) {
  return PP_RUN_LOSS(cross_entropy, z, targets, dz, loss, rank->scalars(), rank->find(rank->tokenLosses, targets));
}

int32_t pp_cross_entropy_stats(pp_rank_t *rank, int32_t op, const void *z, const int32_t *targets, void *stats) {
  return PP_RUN(cross_entropy_stats, z, targets, stats);
}

int32_t pp_cross_entropy_merge(pp_rank_t *rank, int32_t op, const void *const *parts, void *stats) {
  return PP_RUN(cross_entropy_merge, parts, stats);
}

int32_t pp_cross_entropy_loss(pp_rank_t *rank, int32_t op, const void *stats, const int32_t *targets, void *loss) {
  return PP_RUN_LOSS(cross_entropy_loss, stats, targets, loss, rank->scalars(), rank->find(rank->tokenLosses, targets));
}

int32_t pp_cross_entropy_dz(pp_rank_t *rank, int32_t op, const void *z, const int32_t *targets, const void *stats,
                            void *dz) {
  return PP_RUN_LOSS(cross_entropy_dz, z, targets, stats, dz, rank->scalars());
}

int32_t pp_slice_columns(pp_rank_t *rank, int32_t op, const void *x, void *y) { return PP_RUN(slice_columns, x, y); }

int32_t pp_place_columns(pp_rank_t *rank, int32_t op, const void *x, void *y) { return PP_RUN(place_columns, x, y); }

int32_t pp_repeat_heads(pp_rank_t *rank, int32_t op, const void *x, void *y) { return PP_RUN(repeat_heads, x, y); }

int32_t pp_sum_heads(pp_rank_t *rank, int32_t op, const void *x, void *y) { return PP_RUN(sum_heads, x, y); }

int32_t pp_copy(pp_rank_t *rank, int32_t op, const void *x, void *y) { return PP_RUN(copy, x, y); }

int32_t pp_zero(pp_rank_t *rank, int32_t op, void *y) { return PP_RUN(zero, y); }

int32_t pp_accumulate(pp_rank_t *rank, int32_t op, const void *x, void *y) { return PP_RUN(accumulate, x, y); }

int32_t pp_round(pp_rank_t *rank, int32_t op, const void *x, void *y) { return PP_RUN(round, x, y); }

int32_t pp_sum_squares(pp_rank_t *rank, int32_t op, const void *grad, double *sum) {
  return PP_RUN(sum_squares, grad, sum);
}

int32_t pp_sum_squares_all(pp_rank_t *rank, int32_t op, const void *const *grads, double *sum) {
  return PP_RUN(sum_squares_all, grads, sum);
}

int32_t pp_adamw_all(pp_rank_t *rank, int32_t op, const double *norm2, void *const *tensors) {
  return PP_RUN(adamw_all, norm2, tensors, rank->scalars());
}

int32_t pp_adamw(pp_rank_t *rank, int32_t op, const void *grad, const double *norm2, void *w, void *m, void *v,
                 void *master) {
  return PP_RUN(adamw, grad, norm2, w, m, v, master, rank->scalars());
}

int32_t pp_sgd(pp_rank_t *rank, int32_t op, const void *grad, const double *norm2, void *w, void *u, void *master) {
  return PP_RUN(sgd, grad, norm2, w, u, master, rank->scalars());
}

int32_t pp_steer(pp_rank_t *rank, int32_t op, const void *grad, const double *norm2, void *w, void *master) {
  return PP_RUN(steer, grad, norm2, w, master, rank->scalars());
}

int32_t pp_muon_momentum(pp_rank_t *rank, int32_t op, const void *grad, const double *norm2, void *u, void *way) {
  return PP_RUN(muon_momentum, grad, norm2, u, way, rank->scalars());
}

int32_t pp_unit_norm(pp_rank_t *rank, int32_t op, const void *x, const double *sum, void *y) {
  return PP_RUN(unit_norm, x, sum, y);
}

int32_t pp_newton_schulz(pp_rank_t *rank, int32_t op, const void *g, const void *gg, void *p) {
  return PP_RUN(newton_schulz, g, gg, p);
}

int32_t pp_muon(pp_rank_t *rank, int32_t op, const void *way, const double *norm2, void *w, void *master) {
  return PP_RUN(muon, way, norm2, w, master, rank->scalars());
}
