// What the arena holds by name: first weights, weights from a file, and every tensor's bytes in a file's layout.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRAINER_WEIGHTS_H
#define PP_RUNTIME_TRAINER_WEIGHTS_H

#include "runtime/Emitted.h"
#include "runtime/device/Device.h"
#include "runtime/files/SafeTensors.h"
#include "runtime/transport/Transport.h"

namespace pp {

/// One rank's memory and its way to the others.
struct RankMemory {
  Emitted &emitted;
  const RankProgram &program;
  Transport &transport;
  Device &device;
};

/// Writes the first value of every weight: a function of seed, name and element alone, rounded from f64. The masters of
/// a program of 16 bits get the f32 value that the weight is rounded from.
Status initWeights(RankMemory &memory, uint64_t seed);

/// Reads every weight of this rank from `file`, masters too. A name may carry or lack `model.` or `transformer.`;
/// on rank 0
/// `remark` says which tensors of the file no rank uses, if any.
Status loadWeights(RankMemory &memory, const SafeTensors &file, std::string &remark);

/// Stores a value that was computed in f64; 16 bits go through f32, which is what their master holds.
void storeElement(char *at, Type type, double value);

/// Copies a whole tensor at `from` into the file's layout.
void toFileLayout(const TensorSpec &tensor, const char *from, char *out);
/// Reads from the file what of a tensor lies in the arena.
Status fromFile(const TensorSpec &tensor, const SafeTensors &file, const std::string &fileName, Device &device);

/// The shape a file has for a tensor.
[[nodiscard]] std::vector<int64_t> fileShape(const TensorSpec &tensor);

} // namespace pp

#endif // PP_RUNTIME_TRAINER_WEIGHTS_H
