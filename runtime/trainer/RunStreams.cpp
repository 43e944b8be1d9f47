// Runs all ranks of a program on one device: each rank's trainer is a fiber of this thread.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/device/StreamDevice.h"
#include "runtime/trainer/Run.h"

namespace pp {

int runStreams(Emitted &emitted, const Options &options, Driver &driver) {
  const Mesh &mesh = emitted.program().mesh;
  int32_t ranks = mesh.devices();
  Fibers fibers(ranks);
  bool timed = options.isTimed();
  StepGroup group(driver, &fibers, ranks, !options.noGraph && !timed);
  std::shared_ptr<StreamMeeting> meeting = makeStreamMeeting(ranks, driver, &fibers);
  Status status = fibers.run(
      [&](int32_t rank) {
        StreamDevice device(driver, group, timed);
        std::unique_ptr<Transport> transport =
            driver.check(makeStreamTransport(meeting, rank, device), device, rank, /*apart=*/false);
        Trainer trainer(emitted, options, *transport, device, rank);
        Outcome outcome = trainer.run();
        leave(*meeting, rank);
        if (!outcome.status.ok() && (!outcome.together || outcome.mine))
          fibers.breakOff(rank, outcome.status);
      },
      [&] { return standstillOf(*meeting); });
  if (!status.ok())
    return say(status);
  return fibers.failure().ok() ? 0 : say(fibers.failure(), mesh, fibers.failed());
}

} // namespace pp
