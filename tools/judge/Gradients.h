// What `--grads` and `--log` of an emitted program in f64 wrote, and how far two of them are apart.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_JUDGE_GRADIENTS_H
#define PP_TOOLS_JUDGE_GRADIENTS_H

#include "mlir/Support/LLVM.h"
#include <map>
#include <string>
#include <vector>

namespace pp {

/// The numbers of each tensor, by its name in checkpoints; the loss is a tensor of one number.
using Gradients = std::map<std::string, std::vector<double>>;

/// Reads a .safetensors file and the log of one step; reports once why they cannot be read.
mlir::FailureOr<Gradients> readGradients(llvm::StringRef tensors, llvm::StringRef log);

/// The difference of a tensor from the reference, relative to the reference's largest number. If all numbers of a
/// tensor are small beside those of other tensors, they may be only rounding: then it is relative to 1e-4 of the
/// largest number of all.
struct Difference {
  std::string name;
  double relative = 0;
};

/// The differences in the order of names; fails if the two have different tensors.
mlir::FailureOr<std::vector<Difference>> differencesOf(const Gradients &ours, const Gradients &reference);

} // namespace pp

#endif // PP_TOOLS_JUDGE_GRADIENTS_H
