// Allocates a rank's arena on a device, and turns the steps of all ranks of the process into one graph.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/device/StreamDevice.h"

namespace pp {

Status StreamDevice::allocate(const RankProgram &program) {
  deviceBytes = program.arenaBytes - program.hostBytes;
  PP_TRY(driver.makeStream(stream));
  void *memory = nullptr;
  PP_TRY(driver.allocate(size_t(deviceBytes), memory));
  arena = static_cast<char *>(memory);
  if (program.hostBytes) {
    PP_TRY(driver.allocateHost(size_t(program.hostBytes), memory));
    host = static_cast<char *>(memory);
  }
  return {};
}

Status StreamDevice::upload(int64_t offset, const void *from, size_t bytes) {
  PP_TRY(driver.copy(stream, place(arena + offset), from, bytes));
  return driver.finish();
}

Status StreamDevice::download(int64_t offset, void *to, size_t bytes) {
  PP_TRY(driver.copy(stream, to, place(arena + offset), bytes));
  return driver.finish();
}

Status StreamDevice::see(const void *at, size_t bytes, std::vector<char> &room, const char *&seen) {
  if (sees < 0)
    PP_TRY(driver.makeEvent(sees));
  room.resize(std::max(room.size(), bytes));
  PP_TRY(driver.copy(stream, room.data(), place(at), bytes));
  PP_TRY(driver.record(sees, stream));
  seen = room.data();
  return driver.finish(sees);
}

/// A mark that fails is found at the end of the step.
int64_t StreamDevice::mark() {
  if (marksFailed.ok() && marks == timers.size())
    marksFailed = driver.makeTimer(timers.emplace_back());
  if (marksFailed.ok())
    marksFailed = driver.record(timers[marks], stream);
  return marksFailed.ok() ? int64_t(marks++) : 0;
}

pp_status_t StreamDevice::run(pp_step_t step, pp_rank_t &rank) {
  Status status = driver.beforeStep(rank);
  if (timed) {
    marks = 0;
    begun = Trace::now();
    mark();
  }
  if (status.ok())
    status = group.run(step, rank, arena, stream);
  if (status.ok()) {
    status = driver.afterStep(rank);
    if (status.ok() && timed)
      status = marksFailed;
    if (status.ok() && timed)
      rank.trace->settle();
  }
  return status.ok() ? PP_OK : rank.fail(status.code(), status.message());
}

Status StepGroup::run(pp_step_t step, pp_rank_t &rank, char *arena, Driver::Stream compute) {
  Status others(PP_PEER, "another rank failed");
  int64_t number = closed;
  if (number == 0) {
    lanes.push_back({compute, -1});
    PP_TRY(driver.makeEvent(lanes.back().end));
  }
  Kind &kind = rank.forward ? evaluation : training;
  if (++arrived == ranks) {
    PP_TRY(open(kind));
    ++opened;
  }
  if (!await([&] { return opened > number; }))
    return others;
  if (how != How::Replay)
    if (int32_t code = step(&rank, arena); code != PP_OK)
      return {pp_status_t(code), rank.message};
  rank.unit = -1; // all is asked for; which unit the device is at is not known
  if (++issued == ranks) {
    PP_TRY(close(kind));
    arrived = issued = 0;
    ++closed;
  }
  return await([&] { return closed > number; }) ? Status() : others;
}

/// All ranks are here. A capture begins in one stream, and the ranks' streams follow it.
Status StepGroup::open(Kind &kind) {
  how = calls ? How::Calls : kind.graph >= 0 ? How::Replay : graphWanted && kind.called ? How::Capture : How::Calls;
  kind.called = true;
  if (how != How::Capture)
    return {};
  if (origin < 0) {
    PP_TRY(driver.makeStream(origin));
    PP_TRY(driver.makeEvent(begin));
  }
  PP_TRY(driver.beginCapture(origin));
  PP_TRY(driver.record(begin, origin));
  for (const Lane &lane : lanes)
    PP_TRY(driver.wait(lane.compute, begin));
  return {};
}

/// All ranks have asked for their steps. The streams of messages need no wait: their ranks have waited for them. What
/// is captured ends with the ranks' streams; a graph that is launched again begins behind what they were asked for
/// before the step, such as its scalars.
Status StepGroup::close(Kind &kind) {
  if (how != How::Calls) {
    for (const Lane &lane : lanes) {
      PP_TRY(driver.record(lane.end, lane.compute));
      PP_TRY(driver.wait(origin, lane.end));
    }
    if (how == How::Capture)
      PP_TRY(driver.endCapture(origin, kind.graph));
    PP_TRY(driver.launch(kind.graph, origin));
  }
  return driver.finish();
}

} // namespace pp
