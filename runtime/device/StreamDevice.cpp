// Allocates a rank's arena on a device, and turns the steps of all ranks of the process into one graph.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/device/StreamDevice.h"
#include <cstring>
#include <numeric>

namespace pp {

Status StreamDevice::allocate(const RankProgram &program, int64_t more) {
  constexpr int64_t alignment = 256;
  arenaBytes = program.arenaBytes;
  deviceBytes = arenaBytes - program.hostBytes;
  moreAt = (deviceBytes + alignment - 1) / alignment * alignment;
  PP_TRY(driver.makeStream(stream));
  void *memory = nullptr;
  PP_TRY(driver.allocate(size_t(more ? moreAt + more : deviceBytes), memory));
  arena = static_cast<char *>(memory);
  if (program.hostBytes) {
    PP_TRY(driver.allocateHost(size_t(program.hostBytes), memory));
    host = static_cast<char *>(memory);
  }
  return {};
}

Status StreamDevice::upload(int64_t offset, const void *from, size_t bytes) {
  PP_TRY(driver.copy(stream, const_cast<char *>(at(offset)), from, bytes));
  return driver.finish();
}

Status StreamDevice::download(int64_t offset, void *to, size_t bytes) {
  PP_TRY(driver.copy(stream, to, at(offset), bytes));
  return driver.finish();
}

/// Pieces with at most `most` bytes between them are one run.
Status StreamDevice::layOut(const std::vector<StepCopy> &pieces, int64_t most, Staging &staging) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return pieces[a].offset < pieces[b].offset; });
  staging.runs.clear();
  std::vector<int64_t> at(pieces.size());
  int64_t size = 0;
  for (size_t each : order) {
    const StepCopy &piece = pieces[each];
    const int64_t end = piece.offset + int64_t(piece.bytes);
    Staging::Run *last = staging.runs.empty() ? nullptr : &staging.runs.back();
    if (!last || piece.offset - (last->offset + last->bytes) > most || partOf(piece.offset) != partOf(last->offset)) {
      size = (size + 63) / 64 * 64;
      last = &staging.runs.emplace_back(piece.offset, 0, size);
    }
    last->bytes = std::max(last->bytes, end - last->offset);
    size = last->at + last->bytes;
    at[each] = last->at + piece.offset - last->offset;
  }
  if (size > staging.size) {
    void *memory = nullptr;
    PP_TRY(driver.allocateHost(size_t(size), memory));
    staging.memory = static_cast<char *>(memory);
    staging.size = size;
  }
  staging.places.clear();
  for (int64_t place : at)
    staging.places.push_back(staging.memory + place);
  return {};
}

/// Slots begin at multiples of 64 bytes: what is between two of them that are nearer belongs to nobody.
Status StreamDevice::give(const std::vector<StepCopy> &inputs) {
  PP_TRY(layOut(inputs, 63, given));
  for (size_t i = 0; i < inputs.size(); ++i)
    memcpy(given.places[i], inputs[i].host, inputs[i].bytes);
  for (const Staging::Run &run : given.runs)
    PP_TRY(driver.copy(stream, const_cast<char *>(at(run.offset)), given.memory + run.at, size_t(run.bytes)));
  return {};
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

/// If a mark fails, the end of the step reports it.
int64_t StreamDevice::mark() {
  if (marksFailed.ok() && marks == timers.size())
    marksFailed = driver.makeTimer(timers.emplace_back());
  if (marksFailed.ok())
    marksFailed = driver.record(timers[marks], stream);
  return marksFailed.ok() ? int64_t(marks++) : 0;
}

pp_status_t StreamDevice::run(pp_step_t step, pp_rank_t &rank, const std::vector<StepCopy> &results) {
  constexpr int64_t worthACopy = 4096; // bytes that take longer than a copy of their own
  Status status = layOut(results, worthACopy, made);
  if (status.ok())
    status = driver.beforeStep(rank);
  if (timed) {
    marks = 0;
    begun = Trace::now();
    mark();
  }
  if (status.ok())
    status = group.run(step, rank, arena, stream);
  for (const Staging::Run &each : made.runs)
    if (status.ok())
      status = driver.copy(stream, made.memory + each.at, place(arena + each.offset), size_t(each.bytes));
  if (status.ok()) {
    status = driver.afterStep(rank); // which waits for the step and for them
    for (size_t i = 0; status.ok() && i < results.size(); ++i)
      memcpy(results[i].host, made.places[i], results[i].bytes);
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
    PP_TRY(driver.makeEvent(ended));
  }
  PP_TRY(driver.beginCapture(origin));
  PP_TRY(driver.record(begin, origin));
  for (const Lane &lane : lanes)
    PP_TRY(driver.wait(lane.compute, begin));
  return {};
}

/// All ranks have asked for their steps. The streams of messages need no wait: their ranks have waited for them. What
/// is captured ends with the ranks' streams; a graph that is launched again begins behind what they were asked for
/// before the step, such as its scalars, and they go on behind it.
Status StepGroup::close(Kind &kind) {
  if (how == How::Calls)
    return {};
  for (const Lane &lane : lanes) {
    PP_TRY(driver.record(lane.end, lane.compute));
    PP_TRY(driver.wait(origin, lane.end));
  }
  if (how == How::Capture)
    PP_TRY(driver.endCapture(origin, kind.graph));
  PP_TRY(driver.launch(kind.graph, origin));
  PP_TRY(driver.record(ended, origin));
  for (const Lane &lane : lanes)
    PP_TRY(driver.wait(lane.compute, ended));
  return {};
}

} // namespace pp
