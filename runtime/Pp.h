// The C ABI between an emitted program and the runtime: kernels, messages and marks, all bound before the first step.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An emitted ELF holds, for each rank r, a step function `pp_step_<r>`, a second one, `pp_eval_<r>`, that runs forward
// alone and changes nothing that the first one keeps, and a JSON text that describes everything the two refer to by
// number: ops, messages, units, slots (runtime/Program.h reads it once, at start). A step only calls
// the functions below with constants and addresses in the rank's arena; it allocates nothing and looks nothing up.
// Every function returns a status; nothing below `main` prints or exits. Shapes are row-major; T is tokens =
// batch*length.
#ifndef PP_RUNTIME_PP_H
#define PP_RUNTIME_PP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Why a call failed. The text is in the rank (`Rank::fail`), built where the fact was known.
typedef enum pp_status_t {
  PP_OK = 0,
  PP_INVALID = 1, ///< the user's input is wrong (file, flag, size)
  PP_IO = 2,      ///< the operating system refused
  PP_PEER = 3,    ///< another rank failed, ended or is overdue
  PP_INTERNAL = 4 ///< a library refused what the compiler promised would work
} pp_status_t;

/// One rank while it runs: its prepared ops, its transport, its scalars (opaque to emitted code).
typedef struct pp_rank_t pp_rank_t;

/// The step of one rank: `arena` is the rank's one block of memory, at least the planned bytes, 64-byte aligned.
typedef int32_t (*pp_step_t)(pp_rank_t *rank, char *arena);

/// The table that an emitted ELF exports, one entry a rank, `pp_rank_count` entries; `json` is NUL-terminated.
typedef struct pp_rank_entry_t {
  const char *json;
  pp_step_t step;
  pp_step_t eval; ///< null: it was compiled without
} pp_rank_entry_t;
extern const pp_rank_entry_t pp_rank_table[];

/// Of a program whose updates do not wait for the norm (docs/barrier.md), what undoes one that was wrong. `drain`
/// completes what a step has posted before its judge and not completed; `undo` does the update before over; `head` runs
/// the step up to its judge once more.
typedef struct pp_late_entry_t {
  pp_step_t drain, undo, head;
} pp_late_entry_t;
/// In those programs alone; elsewhere its address is null.
extern const pp_late_entry_t pp_late_table[] __attribute__((weak));

/// A formula of the program's models. `text`: what it computes (runtime/cpu/Formula.h); `number`: how calls name it;
/// `bodies`: code for CPUs without vectors, with AVX2 and with AVX-512, or null. On `rows` rows that are `strides`
/// elements apart a body reads and makes `tensors`, in the order of the text. The rest is for GPUs.
typedef struct pp_formula_t {
  const char *text;
  void (*bodies[3])(int64_t rows, const int64_t *strides, void *const *tensors);
  const char *ptx;
  int64_t number;
  int32_t rowsOfPart, block, passes;
} pp_formula_t;
/// Ends with an entry without text. In programs with formulas alone; elsewhere its address is null.
extern const pp_formula_t pp_formulas[] __attribute__((weak));
extern const int32_t pp_rank_count;
extern const char pp_program_json[];

// --- Marks and messages: called by the rank programs ----------------------------------------------------------------

/// The unit with this number in the rank's `units` begins now (trace, and the unit named in a failure).
int32_t pp_begin_unit(pp_rank_t *rank, int32_t unit);
/// The unit that began last is done.
int32_t pp_end_unit(pp_rank_t *rank, int32_t unit);

/// The squared norm of the gradients of the step before is known: its update was right, or is done over now.
int32_t pp_judge(pp_rank_t *rank, int32_t unit, const double *norm2);

/// Posts message number `message` of the rank's `messages`; never blocks. The memory belongs to the transport until
/// `pp_complete` of the same number: a send may be read meanwhile, a receive may not be touched.
int32_t pp_post_send(pp_rank_t *rank, int32_t message, const void *data);
int32_t pp_post_receive(pp_rank_t *rank, int32_t message, void *data);
/// Joins a collective of the message's group, in place. all_reduce: every member gets the sum, added in rank order
/// (f64, f32, or 16 bits that are added in f32 and rounded once, as the message says). reduce: the root gets it, the
/// others' data may be read meanwhile. broadcast: every member gets the root's data, which may be read meanwhile.
/// all_gather: every member's data get the shards of all, reduce_scatter: every member's shard its range of the sum of
/// the data; all_to_all: every member's data get, as the message says, parts of what the shards of all have. `shard` is
/// null elsewhere. Where shards lie in the whole, each where it belongs, `shard` is `data`.
int32_t pp_post_collective(pp_rank_t *rank, int32_t message, void *data, void *shard);
/// Blocks until the message is done; PP_PEER when it is overdue or its peer is gone.
int32_t pp_complete(pp_rank_t *rank, int32_t message);

// --- Kernels ---------------------------------------------------------------------------------------------------------
//
// `op` is the number of an entry of the rank's `ops`: {"kernel": name without pp_, "type": "f32"|"bf16"|"f16"|"f64",
// "dims": [..], "params": [..], "flags": [..]}. dims, params and flags are given with each kernel below. `e` is the
// entry's type; `acc` is f64 if e is f64, else f32. Pointers of what is absent (flag not set) are null.
// The flag "accumulate" means: add to what the destination holds (beta = 1); without it the destination is written.

/// y[T,N] = x[T,K] . w[K,N] + b[N]; e. dims T K N. flags: "transposed" (w is [N,K]), "bias".
int32_t pp_linear(pp_rank_t *, int32_t op, const void *x, const void *w, const void *b, void *y);
/// dx[T,K] (+)= dy[T,N] . w^T; e. dims T K N. flags: "transposed", "accumulate".
int32_t pp_linear_dx(pp_rank_t *, int32_t op, const void *dy, const void *w, void *dx);
/// dw[K,N] (+)= x^T . dy, dw in acc ([N,K] if "transposed"). dims T K N. flags: "transposed", "accumulate".
int32_t pp_linear_dw(pp_rank_t *, int32_t op, const void *x, const void *dy, void *dw);
/// db[N] (+)= column sums of dy[T,N], db in acc. dims T N. flags: "accumulate".
int32_t pp_bias_dw(pp_rank_t *, int32_t op, const void *dy, void *db);
/// Pairs of calls, as one kernel where a library has one; else, as on the CPU, one after the other with the same bits.
/// u as pp_linear, and y[T,N] = gelu(u), tanh form; a library makes y before it rounds u. flags: "transposed", "bias".
int32_t pp_linear_gelu(pp_rank_t *, int32_t op, const void *x, const void *w, const void *b, void *u, void *y);
/// y[T,N] = x . w + b + r[T,N]; a library does not round x . w + b. y is not r. flags: "transposed", "bias".
int32_t pp_linear_add(pp_rank_t *, int32_t op, const void *x, const void *w, const void *b, const void *r, void *y);
/// du[T,K] = (dy . w^T) * gelu'(u[T,K]). dims T K N. flags: "transposed".
int32_t pp_linear_dx_gelu(pp_rank_t *, int32_t op, const void *dy, const void *w, const void *u, void *du);
/// dw as pp_linear_dw and db as pp_bias_dw. dims T K N. flags: "transposed", "accumulate" (both).
int32_t pp_linear_dw_bias(pp_rank_t *, int32_t op, const void *x, const void *dy, void *dw, void *db);

/// x[T,h] = table[tokens[t] - first], or 0 outside of it: rows [first, first + rows) of V. dims T h rows first V; or T
/// h V.
int32_t pp_embedding(pp_rank_t *, int32_t op, const int32_t *tokens, const void *table, void *x);
/// dtable[rows,h] (+)= rows of dx summed by token; acc; without "accumulate" cleared first. dims as above.
/// params none, or the token whose row takes no gradient.
int32_t pp_embedding_dw(pp_rank_t *, int32_t op, const int32_t *tokens, const void *dx, void *dtable);
/// x[b,s,h] = p[offset + t]; the tokens give only the shape. dims b s h offset context.
int32_t pp_positions(pp_rank_t *, int32_t op, const int32_t *tokens, const void *p, void *x);
/// dp[context,h] (+)= sum over b of dx; acc; without "accumulate" cleared first. dims b s h offset context.
int32_t pp_positions_dw(pp_rank_t *, int32_t op, const void *dx, void *dp);

/// y, mean[T], rstd[T] (acc) of x[T,h], gain g[h], bias b[h]. dims T h. params epsilon.
int32_t pp_layernorm(pp_rank_t *, int32_t op, const void *x, const void *g, const void *b, void *y, void *mean,
                     void *rstd);
/// y again, bit for bit, from x and the saved statistics. dims T h.
int32_t pp_layernorm_rebuild(pp_rank_t *, int32_t op, const void *x, const void *g, const void *b, const void *mean,
                             const void *rstd, void *y);
/// dx[T,h] (+)= ..; dg[h], db[h] in acc are always written (docs/derivatives.md R3). dims T h. flags: "accumulate" (dx
/// only).
int32_t pp_layernorm_bwd(pp_rank_t *, int32_t op, const void *dy, const void *x, const void *g, const void *mean,
                         const void *rstd, void *dx, void *dg, void *db);
/// y, rstd[T] (acc) of x[T,h], gain g[h]. dims T h. params epsilon. flags: "plus_one" (of all three: the gain is
/// g + 1).
int32_t pp_rmsnorm(pp_rank_t *, int32_t op, const void *x, const void *g, void *y, void *rstd);
int32_t pp_rmsnorm_rebuild(pp_rank_t *, int32_t op, const void *x, const void *g, const void *rstd, void *y);
/// dx[T,h] (+)= ..; dg[h] in acc always written. dims T h. flags: "accumulate" (dx only), "plus_one".
int32_t pp_rmsnorm_bwd(pp_rank_t *, int32_t op, const void *dy, const void *x, const void *g, const void *rstd,
                       void *dx, void *dg);

/// y[b,s,H*d] = x with each pair (j, j + d/2) of a head turned by position * theta^(-2j/d). x == y allowed.
/// dims b s H d offset. params theta; or the factor of cosines and sines and then for each pair the angle from one
/// position to the next; n of these, n <= d/2, turn the first 2n columns, pairs (j, j + n), and the others are copied.
/// flags: "pair" (pairs are 2j, 2j+1), "inverse" (turn back: the derivative), "documents"
/// (positions count from starts[b,s], where in the sequence the token's document begins; else starts is null), "packed"
/// (behind the H heads of a row are n more, which are copied; n is one dim more).
int32_t pp_rope(pp_rank_t *, int32_t op, const void *x, const int32_t *starts, void *y);

/// Attention of a run of queries over a list of chunks of keys: softmax of q k^T / sqrt(d) over all of them together.
/// o[b,s,H*d], lse[b,H,s] (acc) of q[b,s,H*d]; `kv` lists the addresses of k0, v0, k1, v1, .., each [b,length,G*d]. A
/// query that sees no key has o = 0 and lse = -inf. dims b s H G d position, then length and position of each chunk,
/// where positions are those of first rows in the sequence. flags: "causal" (a query sees keys up to its position);
/// "documents": `kv` ends with starts[b,s] (i32), where in the sequence the query's document begins: it sees no earlier
/// key, and no start is before that of an earlier query. params, none or 0 where absent: window (a query sees so many
/// keys, the last its own), scale (in place of 1 / sqrt(d)), softcap (a score x becomes softcap * tanh(x / softcap)).
/// With the flag "dropout" three or four params more, rate, site, the length of a whole sequence and what to add to the
/// number of a head, and at the end of `kv` rows[b,s] (i32): the weight of a query and a key is 0, or times
/// 1 / (1 - rate), as element (head * length + position of the query) * length + position of the key is in pp_dropout,
/// before it multiplies v; lse is that of all keys. With the flag "packed" q, k0 and v0 are one tensor
/// [b,s,(H + 2G)*d], the columns of q before those of k before those of v, and all three addresses are its own.
int32_t pp_attention(pp_rank_t *, int32_t op, const void *q, const void *const *kv, void *o, void *lse);
/// o, lse as if one attention had seen all that the parts saw; `parts` lists o0, lse0, o1, lse1, ..; o == o0 with
/// lse == lse0 allowed. dims b s H d parts.
int32_t pp_attention_merge(pp_rank_t *, int32_t op, const void *const *parts, void *o, void *lse);
/// As if each head's softmax had one score more, s[H], without a value: lse_y = log(e^lse + e^s),
/// y = e^(lse - lse_y) o. y == o with lse_y == lse allowed. dims b s H d.
int32_t pp_sink(pp_rank_t *, int32_t op, const void *o, const void *lse, const void *s, void *y, void *lse_y);
/// ds[H] (acc) = -sum over b and s of e^(s - lse) delta, with the lse of pp_sink and the delta of its y. dims b s H.
int32_t pp_sink_bwd(pp_rank_t *, int32_t op, const void *s, const void *lse, const void *delta, void *ds);
/// delta[b,H,s] (acc) = the sum of dout * o over each head's row. dims b s H d.
int32_t pp_attention_delta(pp_rank_t *, int32_t op, const void *dout, const void *o, void *delta);
/// dq (+)= and `dkv` (dk0, dv0, dk1, dv1, ..) from some of the chunks, with lse and delta of all together: calls for
/// different chunks add. dims as above. flags: "causal"; "accumulate" (dq only); "sums": dk, dv in acc;
/// "accumulate_kv": dk, dv in acc and added to; "packed": as above, dq is the gradient of all three, and `dkv` is null.
/// `o`, the output of all together, may be null: libraries make
/// delta of it.
int32_t pp_attention_bwd(pp_rank_t *, int32_t op, const void *dout, const void *q, const void *lse, const void *delta,
                         const void *const *kv, void *dq, void *const *dkv, const void *o);

/// y = gelu(x), tanh form. dims n. flags: "exact" (erf form).
int32_t pp_gelu(pp_rank_t *, int32_t op, const void *x, void *y);
/// dx = dy * gelu'(x); dy == dx allowed. dims n. flags: "exact".
int32_t pp_gelu_bwd(pp_rank_t *, int32_t op, const void *dy, const void *x, void *dx);
/// y = p * sigmoid(p) * q. dims n. flags: "packed" (p is [n/w, 2w], the columns of p before those of q; q is null, and
/// w is one dim more).
int32_t pp_swiglu(pp_rank_t *, int32_t op, const void *p, const void *q, void *y);
/// dp, dq from dy, p, q; dp == p and dq == q allowed. dims n. flags: "packed" (q and dq are null, dims as pp_swiglu).
int32_t pp_swiglu_bwd(pp_rank_t *, int32_t op, const void *dy, const void *p, const void *q, void *dp, void *dq);
/// y = act(g) * (u + plus) with g = min(p, limit), u = q within +-limit. dims n. params limit (0: none), alpha, plus.
/// act(g) is g * sigmoid(alpha * g). flags: "exact" or "tanh" (act is gelu, in that form), "packed" as pp_swiglu.
int32_t pp_glu(pp_rank_t *, int32_t op, const void *p, const void *q, void *y);
/// dp, dq from dy, p, q; dp == p and dq == q allowed. dims, params, flags as pp_glu.
int32_t pp_glu_bwd(pp_rank_t *, int32_t op, const void *dy, const void *p, const void *q, void *dp, void *dq);
/// logits[T,n] (acc) = x[T,h] * wr[h,n]. dims T h n.
int32_t pp_router(pp_rank_t *, int32_t op, const void *x, const void *wr, void *logits);
/// dx (+)= dlogits * wr^T. dims T h n. flags: "accumulate".
int32_t pp_router_dx(pp_rank_t *, int32_t op, const void *dlogits, const void *wr, void *dx);
/// dwr (acc) (+)= x^T * dlogits. dims T h n. flags: "accumulate".
int32_t pp_router_dw(pp_rank_t *, int32_t op, const void *x, const void *dlogits, void *dwr);
/// Of logits[T,n]: p[T,n] = softmax, lse[T] = log of the sum of their powers; sel[T,k]: the k largest p, of equal ones
/// the lower first; w[T,k] = scale * p[sel], over the sum of the k p with "renormalise". The rows of all choices are
/// ordered by expert, then by token: counts[n] of each expert, places[T,k] the row of a choice. All but integers are of
/// the type of the logits. dims T n k g s r: the experts are in s equal sections of r rows each. A section takes
/// choices until it is full, first choices of all tokens first; one without a row has place -1, which the calls below
/// leave out. params scale, balance, z, capacity: balance and z for what the run says of its losses over g rows each,
/// sums over tokens; with a capacity above 0 a section takes ceil(capacity k tokens / s) choices at most. flags:
/// "renormalise", "sigmoid" (p of each logit, lse = 0). `bias`[n] of e, or null, is added to p where experts are
/// chosen. `rows`[T], or null: where it is negative there is no token; such a row has sel and places -1, w, p and lse
/// 0, and counts nowhere. Two further params: runs of experts, and of how many of these with the largest sums of their
/// two largest p + bias experts are chosen.
int32_t pp_route(pp_rank_t *, int32_t op, const void *logits, const void *bias, const int32_t *rows, void *w,
                 int32_t *sel, void *p, void *lse, int32_t *places, int32_t *counts);
/// load[e] (acc) (+)= (n counts[e] - sum of counts) / gcd(n, k). dims n k. flags: "accumulate".
int32_t pp_expert_load(pp_rank_t *, int32_t op, const int32_t *counts, void *load);
/// often[T/g,n] (acc): how often each g rows, one behind the other, chose each expert of sel[T,k]. dims T n k g.
int32_t pp_choice_counts(pp_rank_t *, int32_t op, const int32_t *sel, void *often);
/// dlogits from dw[T,k]: dp is what w's derivative gives, plus f * balance * n / k times the expert's share of the
/// choices of the group of g rows, per token; dlogits = p (dp - sum of dp p) + 2 f * z * lse * p; f is the loss scale
/// over the tokens of the update; `lse` may be null where z is 0. `often`[T/g,n], or null: how often the rows of the
/// group chose each expert, with those of other devices; this device's share is then added to the run's balance. Rows
/// whose sel is negative give 0. dims T n k g. params scale, balance, z. flags: "renormalise", "sigmoid" (the balance
/// is that of p / sum of p).
int32_t pp_route_bwd(pp_rank_t *, int32_t op, const void *dw, const void *w, const int32_t *sel, const void *p,
                     const void *lse, const void *often, void *dlogits);
/// rows[places[t,j]] = x[t]. dims T k h.
int32_t pp_dispatch(pp_rank_t *, int32_t op, const void *x, const int32_t *places, void *rows);
/// rows[Q] (acc): rows[places[t,j]] = w[t,j] (acc), 0 elsewhere. dims T k Q.
int32_t pp_place_weights(pp_rank_t *, int32_t op, const void *w, const int32_t *places, void *rows);
/// w[t,j] (acc) = rows[places[t,j]] (acc), 0 without a row. dims T k Q.
int32_t pp_take_weights(pp_rank_t *, int32_t op, const void *rows, const int32_t *places, void *w);
/// y[t] (+)= sum over j of rows[places[t,j]]. dims T k h. flags: "accumulate".
int32_t pp_combine(pp_rank_t *, int32_t op, const void *rows, const int32_t *places, void *y);
/// y[Q,N]: the rows of x[Q,K] of each of n experts times w[e] of w[n,K,N]. x has s equal sections; in the i-th the
/// counts[i,e] rows of each expert lie one behind the other, and behind them are rows that are neither read nor
/// written. dims Q K N n s.
int32_t pp_expert_linear(pp_rank_t *, int32_t op, const void *x, const void *w, const int32_t *counts, void *y);
/// dx (+)= the rows of dy times w[e]^T. dims Q K N n s. flags: "accumulate".
int32_t pp_expert_linear_dx(pp_rank_t *, int32_t op, const void *dy, const void *w, const int32_t *counts, void *dx);
/// dw[n,K,N] (acc) (+)= x^T dy, expert by expert, its sections one after the other. dims Q K N n s. flags:
/// "accumulate".
int32_t pp_expert_linear_dw(pp_rank_t *, int32_t op, const void *x, const void *dy, const int32_t *counts, void *dw);
/// y[places[t,j]] = w[t,j] (acc) * a[places[t,j]]; y == a allowed. Without places row i has weight i. dims T k h.
int32_t pp_scale_rows(pp_rank_t *, int32_t op, const void *a, const void *w, const int32_t *places, void *y);
/// da, and dw[t,j] (acc) = the sum of dy * a over the row, from dy, a, w; da == dy allowed. dims T k h.
int32_t pp_scale_rows_bwd(pp_rank_t *, int32_t op, const void *dy, const void *a, const void *w, const int32_t *places,
                          void *da, void *dw);
/// A formula: makes tensors of tensors, element by element and row by row. `tensors`: what it reads, then what it
/// makes; a full tensor that is made may lie on one that is read. dims rows width heads number, then for each tensor
/// how many elements lie between two rows; 0: it has none.
int32_t pp_formula(pp_rank_t *, int32_t op, void *const *tensors);
/// z = x + y; z == x or z == y allowed. dims n.
int32_t pp_add(pp_rank_t *, int32_t op, const void *x, const void *y, void *z);
/// y = factor * x; y == x allowed. dims n. params factor.
/// y[b,s,w] = x with each element 0, or times 1 / (1 - rate) if a word of Philox4x32-10 is at least rate 2^32: word
/// i mod 4 of the key `seed` of the rank's scalars and the counter i / 4 (48 bits), site (16 bits), rows[b,s] (64 bits)
/// with i = (offset + t) w + c. y == x allowed; where the step only holds, y = x. dims b s w offset site. params rate.
int32_t pp_dropout(pp_rank_t *, int32_t op, const void *x, const int32_t *rows, void *y);
int32_t pp_scale(pp_rank_t *, int32_t op, const void *x, void *y);
/// y[T,h] = x + bias[h], y == x allowed. dims T h.
int32_t pp_add_bias(pp_rank_t *, int32_t op, const void *x, const void *bias, void *y);

/// loss[0] (acc) = scale * sum of (lse_t - z[t,target]); dz = scale * loss scale * (softmax - onehot); dz == z allowed;
/// a target < 0 is ignored, others count by their weights. z, dz in e; the loss scale is a scalar of the rank. dims T
/// V. params scale. flags: "counted" (of kernels with a scale: divided by a scalar, the update's weights). A further
/// param c above 0, of this kernel, its stats and dz, makes c tanh(z / c) of the logits first. Behind it, or 0,
/// "counted" may have another: how many places further on the targets are than the next token, up to 3. Behind that, or
/// 0, one w above 0, of this kernel, its loss and dz: loss[1] = scale * sum of w lse_t^2, whose slope is in dz.
int32_t pp_cross_entropy(pp_rank_t *, int32_t op, const void *z, const int32_t *targets, void *dz, void *loss);

/// stats[T,3] (acc) of the columns [first, first + n) of the logits z[T,V]: largest, sum of exp(z - largest), and the
/// target's logit, 0 if it is another column's. dims T n first V.
int32_t pp_cross_entropy_stats(pp_rank_t *, int32_t op, const void *z, const int32_t *targets, void *stats);
/// stats of all columns from those of the parts, in their order; stats == parts[0] allowed. dims T parts.
int32_t pp_cross_entropy_merge(pp_rank_t *, int32_t op, const void *const *parts, void *stats);
/// loss[0] (acc) as pp_cross_entropy, from merged stats. dims T. params scale. flags: "counted".
int32_t pp_cross_entropy_loss(pp_rank_t *, int32_t op, const void *stats, const int32_t *targets, void *loss);
/// The columns' part of dz as pp_cross_entropy, from merged stats; dz == z allowed. dims T n first V. params scale.
/// flags: "counted".
int32_t pp_cross_entropy_dz(pp_rank_t *, int32_t op, const void *z, const int32_t *targets, const void *stats,
                            void *dz);

/// y[T,width] = columns [start, start+width) of x[T,total]. dims T total start width.
int32_t pp_slice_columns(pp_rank_t *, int32_t op, const void *x, void *y);
/// columns [start, start+width) of y[T,total] = x[T,width]; the other columns are left. dims T total start width.
int32_t pp_place_columns(pp_rank_t *, int32_t op, const void *x, void *y);
/// y[T,n,d] = x[T,d], n copies side by side. dims T d n.
int32_t pp_repeat_heads(pp_rank_t *, int32_t op, const void *x, void *y);
/// y[T,d] = the sum of x[T,n,d] over its n copies, added in acc in their order, rounded once. dims T d n.
int32_t pp_sum_heads(pp_rank_t *, int32_t op, const void *x, void *y);

/// y = x, n elements of e. dims n.
int32_t pp_copy(pp_rank_t *, int32_t op, const void *x, void *y);
/// y = 0, n elements of e. dims n.
int32_t pp_zero(pp_rank_t *, int32_t op, void *y);
/// y += x, n elements, y of acc, x of e. dims n.
int32_t pp_accumulate(pp_rank_t *, int32_t op, const void *x, void *y);
/// y = x rounded, n elements, x of acc, y of e. dims n.
int32_t pp_round(pp_rank_t *, int32_t op, const void *x, void *y);

/// sum[0] (f64) (+)= sum of grad[i]^2 in blocks of 4096 (acc inside a block, f64 over blocks). dims n.
/// flags: "accumulate".
int32_t pp_sum_squares(pp_rank_t *, int32_t op, const void *grad, double *sum);
/// AdamW in place: m, v, master in acc, w = round(master). Learning rate, step number, betas, epsilon, weight decay and
/// the clip norm are scalars of the rank, set before the step; `norm2` (f64) is the squared global gradient norm, null:
/// no clipping. Gradients and norm2 are those of loss scale times the loss; nothing changes if norm2 is not finite.
/// For e f32 and f64 master is null and w itself is the master. dims n. flags: "decay" (weight decay). params:
/// none, or what the rate and the weight decay are multiplied by here; so for all updates, behind the params they have.
int32_t pp_adamw(pp_rank_t *, int32_t op, const void *grad, const double *norm2, void *w, void *m, void *v,
                 void *master);

/// The same for all tensors of a list in one call, as if one by one. `grads` lists their addresses; `tensors` grad, w,
/// m, v and master of each. dims: for each tensor its size, and 1 for weight decay or 0. flags: "accumulate" (the sum).
int32_t pp_sum_squares_all(pp_rank_t *, int32_t op, const void *const *grads, double *sum);
int32_t pp_adamw_all(pp_rank_t *, int32_t op, const double *norm2, void *const *tensors);

/// SGD in place: g = gradient + decay w; u = momentum u + g; w -= lr (nesterov: g + momentum u, else u). u and master
/// in acc; norm2 and scalars as for pp_adamw. dims n. flags: "decay", "nesterov".
int32_t pp_sgd(pp_rank_t *, int32_t op, const void *grad, const double *norm2, void *w, void *u, void *master);
/// w[i] -= rate * sign of grad[i], in place; norm2 and master as for pp_adamw. dims n. params rate.
int32_t pp_steer(pp_rank_t *, int32_t op, const void *grad, const double *norm2, void *w, void *master);
/// Muon's momentum in place: u = momentum u + (1 - momentum) g; way = momentum u + (1 - momentum) g; all in acc.
/// dims n.
int32_t pp_muon_momentum(pp_rank_t *, int32_t op, const void *grad, const double *norm2, void *u, void *way);
/// y = x / max(sqrt(sum), 1e-7), of e; y may be x. dims n.
int32_t pp_unit_norm(pp_rank_t *, int32_t op, const void *x, const double *sum, void *y);
/// p = a I + b g + c gg, n x n of e, (a, b, c) = (3.4445, -4.7750, 2.0315); p may be gg. dims n.
int32_t pp_newton_schulz(pp_rank_t *, int32_t op, const void *g, const void *gg, void *p);
/// w -= lr (decay w + factor way), by Muon's rate and decay; way and master in acc. dims n. params factor.
/// flags: "decay".
int32_t pp_muon(pp_rank_t *, int32_t op, const void *way, const double *norm2, void *w, void *master);

#ifdef __cplusplus
}
#endif
#endif // PP_RUNTIME_PP_H
