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
/// elements apart a body reads and makes `tensors`, in the order of the text.
typedef struct pp_formula_t {
  const char *text;
  void (*bodies[3])(int64_t rows, const int64_t *strides, void *const *tensors);
  int64_t number;
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
// "dims": [..], "params": [..], "flags": [..]}. runtime/kernels/Kernels.def has the record of each kernel. `e` is the
// entry's type; `acc` is f64 if e is f64, else f32. Pointers of what is absent (flag not set) are null.
// The flag "accumulate" means: add to what the destination holds (beta = 1); without it the destination is written.

#define PP_KERNEL(name, dims, params, flags, parameters, arguments)                                                    \
  int32_t pp_##name(pp_rank_t *, int32_t op, PP_EACH parameters);
#include "runtime/kernels/Kernels.def"

#ifdef __cplusplus
}
#endif
#endif // PP_RUNTIME_PP_H
