// The memory that a GPU's libraries and kernels take beside the arena: bounds by their sources, and by measurement.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_DEVICESCRATCH_H
#define PP_ANALYSIS_DEVICESCRATCH_H

#include "dialect/nn/Nn.h"

namespace pp {

namespace nn {
/// The bytes that an op needs of the block that all ops of a rank share, by the library or kernel that takes them.
struct DeviceScratch {
  int64_t products = 0;  ///< cuBLASLt
  int64_t attention = 0; ///< cuDNN, where it serves
  int64_t kernels = 0;   ///< ours
};
DeviceScratch deviceScratchOf(Kernel kernel);

/// Whether cuDNN computes this attention, forward or backward, on a GPU of today's; else kernels of ours do.
bool isServedByCudnn(Kernel kernel);
} // namespace nn

/// Blocks of threads of a message (runtime/cuda/TransportNccl.cpp: mostCtas), each on a multiprocessor of its own.
inline constexpr int64_t kBlocksOfMessage = 4;

/// A channel of some devices, for which NCCL has a communicator.
struct Communicator {
  int64_t members = 2;
  bool isEdge = false;    ///< one of two members sends, the other receives
  bool exchanges = false; ///< each member sends to each other one
  bool shares = false;    ///< it gathers or scatters
  /// Bytes on each of its devices, at most.
  int64_t bytes() const;
};

} // namespace pp

#endif // PP_ANALYSIS_DEVICESCRATCH_H
