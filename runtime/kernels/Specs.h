// Reads an op by its kernel's record, takes pairs of ops apart, and finds the keys in tensors that hold q, k and v.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_SPECS_H
#define PP_RUNTIME_KERNELS_SPECS_H

#include "runtime/kernels/Facts.h"
#include "runtime/kernels/Op.h"
#include <array>

namespace pp {

/// Turns a spec into an op with its flags, dims, params and chunks, which stay where `chunks` holds them; empty on
/// success, else what is wrong.
std::string readSpec(const OpSpec &spec, PreparedOp &op, std::vector<Chunk> &chunks);

/// Views the spec's sizes and numbers.
SizedCall sizesOf(const OpSpec &spec);

/// The positions of a rope's table.
inline RopeRows ropeRows(const PreparedOp &rope) {
  return {rope.dims[1], rope.dims[4], rope.has(Documents), rope.second};
}

/// cos and sin of the turn of pair j at a position. `params` are those of a rope over heads of width d: theta, or a
/// factor of both and the frequency of each pair. Computed in f64, because f32 products of large positions are wrong by
/// whole degrees.
std::array<double, 2> ropeTurn(const std::vector<double> &params, int64_t d, int64_t position, int64_t j);

/// Whether an op stands for two plain ones.
bool isPair(Kernel kernel);
/// The specs of the two ops of a pair; the pair's spec must be right.
std::array<OpSpec, 2> partsOf(const OpSpec &pair);
/// Runs a pair that has no kernel of its own: its two prepared `parts`, one after the other, with their own bits.
pp_status_t runParts(const PreparedOp &pair, void *const *arguments);

/// The list of an attention's keys, or of their gradients. Of one tensor that has q, k and v, kernels get the places
/// where k and v begin in its first row, behind q: they differ from those of tensors of their own by the stride alone.
class KeyList {
public:
  KeyList() = default;
  KeyList(const KeyList &) = delete;

  /// Lives as long as this; `given` itself where k and v have tensors of their own, or where there is no op. `q` is
  /// where the queries begin, or their gradient. Of a packed list, only what follows k and v is taken from `given`,
  /// which may be null.
  const void *const *of(const PreparedOp *op, const void *q, const void *const *given);

private:
  const void *own[4] = {}; ///< k, v, starts of documents, numbers of sequences
};

} // namespace pp

#endif // PP_RUNTIME_KERNELS_SPECS_H
