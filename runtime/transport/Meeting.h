// Where ranks that are threads of one process meet: lanes of messages, joints of collectives, and who waits for what.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One mutex guards who has posted what; copies and sums run outside it, between two posted messages that nobody else
// may touch. A rank that waits is counted; when every rank that has not ended waits, nothing can move any more, and the
// rank that closed the ring reports where each one stands.
#ifndef PP_RUNTIME_TRANSPORT_MEETING_H
#define PP_RUNTIME_TRANSPORT_MEETING_H

#include "runtime/transport/Transport.h"
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <tuple>

namespace pp {

class Meeting {
public:
  /// One posted message as its own rank sees it.
  struct Ticket {
    std::atomic<bool> done = true;
    int32_t rank = 0;
    std::chrono::steady_clock::time_point since; ///< when it was done, where messages are delayed
  };

  /// A send and a receive that meet.
  struct Slot {
    const void *source = nullptr;
    void *target = nullptr;
    size_t sent = 0, expected = 0;
    Ticket *sender = nullptr, *receiver = nullptr; ///< gone as soon as they are done
    int32_t from = 0, to = 0;
    bool buffered = false;
  };

  /// An ordered lane from one rank to another: the k-th send meets the k-th receive. The ring is one longer than a step
  /// needs, because a buffered send may be done before its receive is posted.
  struct Lane {
    std::vector<Slot> ring;
    uint64_t sends = 0, receives = 0;              ///< posted so far
    int64_t sendsPerStep = 0, receivesPerStep = 0; ///< as the two programs say
    std::vector<char> buffer;
    bool bufferTaken = false;
  };

  /// One collective of a group that members arrive at.
  struct Joint {
    explicit Joint(size_t members) : data(members), shards(members), tickets(members), messages(members) {}
    std::vector<void *> data, shards;
    std::vector<Ticket *> tickets;
    std::vector<const MessageSpec *> messages; ///< what each member takes it for
    size_t arrived = 0;
  };

  /// The collectives of one group on one channel, in the order every member posts them.
  struct JointLane {
    std::vector<int32_t> group;
    std::vector<Joint> ring;
    std::vector<uint64_t> posts;
    std::vector<int64_t> perStep; ///< by member
  };

  Meeting(int32_t ranks, TransportOptions options) : ranks(ranks), options(options), places(ranks) {}

  struct Place : Standing {
    std::condition_variable wake;
    Ticket *waitsFor = nullptr;
  };

  std::mutex mutex;
  int32_t ranks;
  TransportOptions options;
  std::vector<Place> places;
  std::map<std::tuple<int32_t, int32_t, int32_t>, Lane> lanes;
  std::map<std::pair<int32_t, int32_t>, Lane> asides; ///< between steps
  std::map<std::pair<std::vector<int32_t>, int32_t>, JointLane> joints;
  std::atomic<bool> broken = false;
  Status failure;
  int32_t failedRank = -1;
  int32_t waiting = 0, ended = 0;
  std::atomic<int64_t> step = 0;

  // The functions below are called with the mutex held. A rank is woken only after it has been given back: the woken
  // one may take the core at once, and would find the mutex held by the one it has put to sleep.

  void finish(Ticket &ticket);
  void wake(int32_t rank) { places[rank].wake.notify_one(); }

  void breakOff(int32_t rank, Status status);

  /// Reports a standstill if every rank that has not ended waits.
  void checkStandstill(int32_t rank);

  /// Posts one end of a message; copies if the other end is there, and then has given the mutex back.
  Status postSend(std::unique_lock<std::mutex> &lock, Lane &lane, Ticket &ticket, const void *data, size_t bytes);
  Status postReceive(std::unique_lock<std::mutex> &lock, Lane &lane, Ticket &ticket, void *data, size_t bytes);
  Status meet(std::unique_lock<std::mutex> &lock, Lane &lane, Slot &slot);
  Status postJoint(std::unique_lock<std::mutex> &lock, JointLane &lane, size_t member, Ticket &ticket, void *data,
                   void *shard, const MessageSpec &message);
  JointLane &jointLane(const std::vector<int32_t> &group, int32_t channel);

  /// Blocks until the ticket is done, the run breaks, or the time is over.
  pp_status_t wait(std::unique_lock<std::mutex> &lock, int32_t rank, Ticket &ticket, const MessageSpec *message);
};

} // namespace pp

#endif // PP_RUNTIME_TRANSPORT_MEETING_H
