// What the arena holds by name: first weights, weights from a file, and every tensor's bytes in a file's layout.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRAINER_WEIGHTS_H
#define PP_RUNTIME_TRAINER_WEIGHTS_H

#include "runtime/Emitted.h"
#include "runtime/device/Device.h"
#include "runtime/files/WeightFiles.h"
#include "runtime/transport/Transport.h"

namespace pp {

/// One rank's memory and its way to the others.
struct RankMemory {
  Emitted &emitted;
  const RankProgram &program;
  Transport &transport;
  Device &device;
};

/// Matches the tensors of files with the model: each tensor is a weight, a copy of one, or none of the model's.
struct WeightMatch {
  std::map<std::string, FilePlace> weights;  ///< by the names of the model
  std::map<std::string, std::string> copies; ///< a tensor of the files -> the weight whose values it repeats
};

/// Finds the tensor of every weight of all ranks. A name may carry or lack `model.` or `transformer.`. A tensor that is
/// no weight is an error, unless a pattern in `allowed` names it (null: all are), the program's family keeps it, it is
/// a buffer of a published model, or an output layer that repeats the token table to which the model's is tied.
/// Adapters are not looked for.
Status matchWeights(RankMemory &memory, const WeightFiles &files, const std::vector<std::string> *allowed,
                    WeightMatch &match);
/// Reads every weight of this rank, masters too. One that is not in the files gets its first value: a function of seed,
/// name and element alone, rounded from f64; masters get the f32 value that the weight is rounded from. PP_THREADS
/// threads draw them, by default as many as there are processors for each rank. `vanished`: values that were too small
/// for f16 and became 0.
Status loadWeights(RankMemory &memory, const WeightMatch &match, uint64_t seed, int64_t &vanished);

/// Stores a value that was computed in f64; 16 bits go through f32, which is what their master holds.
void storeElement(char *at, Type type, double value);
/// Stores the values in the type; a finite one beyond its range is an error that names the tensor and the value.
/// `vanished` counts those that become 0.
Status convert(const std::string &name, SafeTensors::Reader read, const char *from, int64_t count, Type type, char *out,
               int64_t &vanished);

/// The number, in the file's tensor, of an element of the whole tensor.
[[nodiscard]] int64_t placeInFile(const TensorSpec::Turned &turned, int64_t element);
/// Reads the part of a tensor that lies in the arena. `isFinite`: a number in the file must be finite.
Status fromFile(const TensorSpec &tensor, FilePlace place, bool isFinite, Device &device, int64_t &vanished);

/// The shape a file has for a tensor.
[[nodiscard]] std::vector<int64_t> fileShape(const TensorSpec &tensor);

} // namespace pp

#endif // PP_RUNTIME_TRAINER_WEIGHTS_H
