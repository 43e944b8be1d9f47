// Gathers named tensors, one at a time, from the ranks that hold their pieces to the one that writes them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRAINER_GATHER_H
#define PP_RUNTIME_TRAINER_GATHER_H

#include "runtime/trainer/Weights.h"
#include <functional>

namespace pp {

enum class TensorKind : uint8_t { Weights, State, Grads };

/// A tensor of one rank, or the piece of it that a device has, under its name in the file; the first of the devices
/// that have the same hands it in.
struct Held {
  std::string name;
  TensorSpec tensor;
  int32_t device = 0;
};

/// The pieces of a tensor in the order in which they lie in it.
using Pieces = std::vector<Held>;

/// The pieces of all tensors of a kind, by the tensor's name: all ranks know who hands in what. The state of a weight
/// is `<weight>.<kind>`. Each piece is there once.
Status piecesOf(Emitted &emitted, TensorKind kind, std::map<std::string, Pieces> &out);
/// This rank's own pieces of the optimizer's state, with copies that other ranks have, too.
Status ownState(RankMemory &memory, Pieces &out);

/// Device `to` gets the whole tensor, in our layout; those with pieces use `out` for them, and nobody else takes part.
Status gather(RankMemory &memory, const Pieces &pieces, int32_t to, std::vector<char> &out);
/// Hands a whole tensor, which lies in our layout, on in that of files, some elements at a time.
Status eachBlock(const TensorSpec &tensor, const std::vector<char> &values,
                 const std::function<Status(const char *, int64_t)> &take);
/// Brings a whole tensor from our layout to that of files.
void turnForFile(const TensorSpec &tensor, std::vector<char> &values);

/// Writes all gradients, multiplied by `factor`. Collective.
Status writeGradients(RankMemory &memory, const std::string &path, double factor);

} // namespace pp

#endif // PP_RUNTIME_TRAINER_GATHER_H
