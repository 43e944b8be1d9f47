// A device with streams that is this CPU, and a transport that compares its messages with the rank programs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_GPU_EMULATED_H
#define PP_TEST_GPU_EMULATED_H

#include "runtime/device/StreamDevice.h"
#include "test/gpu/Order.h"

namespace pp {

/// Runs everything on this CPU when it is waited for, in an order that streams and events allow, drawn from `seed`: it
/// finds what CUDA's timing would hide. The wait number `dropped` of the run is left out (-1: none).
[[nodiscard]] std::unique_ptr<Driver> makeEmulatedDriver(uint64_t seed, int64_t dropped);

/// The ranges that a copy of rows reads and writes, with the bytes between the rows.
[[nodiscard]] inline std::vector<std::pair<const char *, size_t>> rangesOf(const RowsSpec &its) {
  auto range = [&](const void *first, int64_t stride) {
    return std::pair(static_cast<const char *>(first), size_t((its.rows - 1) * stride + its.bytes));
  };
  return {range(its.from, its.fromStride), range(its.to, its.toStride)};
}

/// A transport that checks every message against the rank programs, in the order that the driver keeps. `apart`: each
/// rank has a device of its own, and checks only its own end of a message.
class CheckedMeeting;
[[nodiscard]] std::shared_ptr<CheckedMeeting> makeCheckedMeeting(bool apart);
[[nodiscard]] std::unique_ptr<Transport> makeCheckedTransport(std::shared_ptr<CheckedMeeting> meeting,
                                                              std::unique_ptr<Transport> inner, StreamDevice &device,
                                                              Order &order, int32_t rank);

} // namespace pp

#endif // PP_TEST_GPU_EMULATED_H
