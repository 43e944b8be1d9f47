// Stands in for a driver in programs for `cpu`: kernels run at once, on the thread of their rank.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/device/Driver.h"

namespace pp {

std::string_view linkedTarget() { return "cpu"; }

Status openDriver(const Options &options, int32_t, std::unique_ptr<Driver> &) {
  if (options.noGraph)
    return invalid("`--no-graph` has no effect: this program runs on a CPU");
  return {};
}

} // namespace pp
