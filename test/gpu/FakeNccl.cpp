// The part of NCCL that ours calls, between processes of one machine: strict where NCCL leaves wrong use undefined.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A communicator is a piece of shared memory that its id names, with a pipe from each member to each other. A send is
// done when its receive has taken all of it, never before: NCCL may buffer, and nobody may count on it. Operations of a
// stream hold it up; those of a group go on together, and those between the same two members in order. Communicators
// that do not block answer ncclInProgress for a while after every call, and only then put the operation on the stream.
// A graph holds on to the communicators whose operations it captured: to destroy one before the graph hangs.
// What does not fit (other lengths, other kinds, a second stream, a first use inside a capture) is an error.
//   PP_FAKE_NCCL=KIND:RANK:K   on this rank (-1: on all) the K-th operation (connect*: communicator), from 0, fails:
//     withhold (never begins)  hang (the process sleeps)  die (SIGKILL)  error (reported later)  refuse (at the call)
//     shorten (by one element) connect-hang  connect-die  connect-refuse  connect-greedy (with buffers of all channels)
//   PP_FAKE_CALLS=1   at its end the process says how often each collective was called
#include "runtime/transport/GroupSums.h"
#include "test/gpu/FakeCuda.h"
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <nccl.h>
#include <set>
#include <sys/mman.h>
#include <tuple>
#include <unistd.h>

namespace {

constexpr int mostMembers = 8, patience = 3; ///< how often ncclInProgress is the answer
constexpr size_t ringBytes = size_t(1) << 14;

/// A pipe from one member to another. It keeps the last two keys (kind and length), since a receiver may be one ahead.
struct Pipe {
  std::atomic<uint64_t> sends, receives, sendKeys[2], receiveKeys[2], written, read;
  char ring[ringBytes];
};
struct Room {
  std::atomic<int32_t> joined;
  Pipe pipes[mostMembers][mostMembers];
};

struct Fault : pp::FakeFault {
  long operations = 0, communicators = 0;
  Fault() : FakeFault("PP_FAKE_NCCL") {}
} fault;

void sleepForever() {
  for (;;)
    pause();
}

/// The work of one member on one pipe.
struct Leg {
  int peer = 0;
  bool sends = false;
  char *data = nullptr;
  size_t bytes = 0;
  uint64_t key = 0;
  bool isPosted = false;
  size_t done = 0;
};

/// Legs that run together, and the work of this member when they are done.
struct Phase {
  std::vector<Leg> legs;
  std::function<void()> after;
};

/// A call in a group; a collective has more than one phase.
struct Call {
  ncclComm_t comm;
  cudaStream_t stream;
  std::function<std::vector<Phase>()> phases;
  bool isJoint;
  pp::FakeRanges ranges;
};

struct Counts {
  std::map<std::string, long> calls;
  ~Counts() {
    for (const auto &[name, count] : calls)
      if (getenv("PP_FAKE_CALLS"))
        fprintf(stderr, "calls: %ld of %s\n", count, name.c_str());
  }
} counts;

int depth = 0;
std::vector<Call> calls;
ncclResult_t wrong = ncclSuccess;

} // namespace

struct ncclComm {
  int members = 0, place = 0;
  bool blocking = true, connectsForever = false;
  Room *room = nullptr;
  bool isOpen = false;
  int asked = 0; ///< answers of ncclInProgress still to come
  ncclResult_t error = ncclSuccess;
  std::string why;
  std::vector<std::function<void()>> launches;
  std::shared_ptr<int> references = std::make_shared<int>(); ///< of graphs that have captured an operation
  cudaStream_t stream = nullptr;
  std::set<std::tuple<int, bool, bool>> met; ///< peers, whether as sender, and whether in a collective
  int64_t channels = 0, taken = 0;           ///< blocks of threads, and bytes of the device

  void fail(ncclResult_t its, std::string reason) {
    if (error == ncclSuccess) {
      error = its;
      why = std::move(reason);
    }
  }
  bool goOn(Leg &leg);
  bool goOn(Phase &phase);
  void tryOpen();
};

namespace {
std::string lastError;
ncclResult_t refuse(ncclResult_t error, std::string why) {
  lastError = std::move(why);
  return error;
}
} // namespace

bool ncclComm::goOn(Leg &leg) {
  Pipe &pipe = leg.sends ? room->pipes[place][leg.peer] : room->pipes[leg.peer][place];
  std::atomic<uint64_t> &mine = leg.sends ? pipe.sends : pipe.receives,
                        &theirs = leg.sends ? pipe.receives : pipe.sends;
  if (!leg.isPosted) {
    (leg.sends ? pipe.sendKeys : pipe.receiveKeys)[mine % 2] = leg.key;
    ++mine;
    leg.isPosted = true;
  }
  if (theirs < mine)
    return false;
  if (uint64_t key = (leg.sends ? pipe.receiveKeys : pipe.sendKeys)[(mine - 1) % 2]; key != leg.key) {
    fail(ncclInvalidUsage, "an operation of kind " + std::to_string(leg.key % 8) + " with " +
                               std::to_string(leg.key / 8) + " bytes meets one of kind " + std::to_string(key % 8) +
                               " with " + std::to_string(key / 8));
    return false;
  }
  while (leg.done < leg.bytes) {
    uint64_t at = leg.sends ? pipe.written : pipe.read;
    size_t ready = leg.sends ? ringBytes - (at - pipe.read) : pipe.written - at;
    size_t part = std::min({ready, leg.bytes - leg.done, ringBytes - size_t(at % ringBytes)});
    if (part == 0)
      return false;
    char *here = leg.data + leg.done, *there = pipe.ring + at % ringBytes;
    memcpy(leg.sends ? there : here, leg.sends ? here : there, part);
    leg.done += part;
    (leg.sends ? pipe.written : pipe.read) += part;
  }
  return !leg.sends || pipe.read == pipe.written;
}

/// Legs between the same two members, in the same direction, one after the other.
bool ncclComm::goOn(Phase &phase) {
  std::set<std::pair<int, bool>> blocked;
  std::erase_if(phase.legs, [&](Leg &leg) {
    if (blocked.count({leg.peer, leg.sends}))
      return false;
    if (goOn(leg))
      return true;
    blocked.insert({leg.peer, leg.sends});
    return false;
  });
  if (!phase.legs.empty())
    return false;
  if (auto after = std::exchange(phase.after, nullptr))
    after();
  return true;
}

void ncclComm::tryOpen() { isOpen = isOpen || (!connectsForever && room->joined >= members); }

namespace {

size_t bytesOf(ncclDataType_t type) {
  return type == ncclInt8 ? 1 : type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : 2;
}
pp::Type typeOf(ncclDataType_t type) {
  return type == ncclFloat64    ? pp::Type::F64
         : type == ncclFloat32  ? pp::Type::F32
         : type == ncclBfloat16 ? pp::Type::Bf16
                                : pp::Type::F16;
}

Leg legTo(int peer, bool sends, const void *data, size_t bytes, int kind) {
  return {peer, sends, static_cast<char *>(const_cast<void *>(data)), bytes, bytes * 8 + uint64_t(kind), false, 0};
}

/// One operation, which blocks its stream until all of its phases are done.
void launch(ncclComm_t comm, cudaStream_t stream, std::vector<Call> its, bool isWithheld) {
  for (const Call &call : its)
    if (pp::fakeAccesses)
      pp::fakeAccesses(stream, call.ranges);
  auto reference = pp::fakeIsCaptured(stream) ? comm->references : nullptr;
  (void)pp::fakeEnqueue(stream, [=]() -> pp::FakeWork {
    (void)reference;
    auto phases = std::make_shared<std::vector<Phase>>(1); // the first: sends and receives, which go on together
    for (const Call &call : its)
      for (Phase &phase : call.phases()) {
        if (call.isJoint)
          phases->push_back(std::move(phase));
        else
          phases->front().legs.insert(phases->front().legs.end(), phase.legs.begin(), phase.legs.end());
      }
    return [=, at = size_t(0), begun = false]() mutable {
      begun = begun || pp::fakeOccupy(comm->channels); // until it ends: its blocks spin
      while (begun && !isWithheld && comm->error == ncclSuccess && at < phases->size() && comm->goOn((*phases)[at]))
        ++at;
      return begun && at == phases->size() && pp::fakeOccupy(-comm->channels);
    };
  });
}

void take(ncclComm_t comm, int64_t bytes) {
  comm->taken += bytes;
  pp::fakeTake(bytes);
}
/// Rounds up to blocks of 2 MiB, as NCCL allocates them.
int64_t inBlocks(int64_t bytes) { return (bytes + (2 << 20) - 1) >> 21 << 21; }
/// Counts the memory of NCCL 2.28.9 for connections: buffers of three protocols for each channel (init.cc,
/// transport/p2p.cc).
void takeConnections(ncclComm_t comm, int64_t count) {
  take(comm, count * comm->channels * inBlocks((4 << 20) + 4915200 + 524288 + 4096));
}

/// In a capture NCCL may not make new connections. Sends and receives have a connection for each pair and direction.
/// Collectives on one machine use a ring and a chain, however this stand-in moves the bytes.
bool connects(ncclComm_t comm, const std::vector<Call> &its) {
  size_t before = comm->met.size();
  for (const Call &call : its)
    for (const Phase &phase : call.phases())
      for (const Leg &leg : phase.legs) {
        auto isJoint = [](const auto &peer) { return std::get<2>(peer); };
        bool isFirst = std::none_of(comm->met.begin(), comm->met.end(), isJoint);
        bool isNew = comm->met.insert({leg.peer, leg.sends, call.isJoint}).second;
        if (isNew && (isFirst || !call.isJoint))
          takeConnections(comm, call.isJoint ? 2 * std::min(comm->members - 1, 2) : 1);
      }
  return comm->met.size() > before;
}

ncclResult_t issue(ncclComm_t comm, std::vector<Call> its) {
  cudaStream_t stream = its[0].stream;
  long number = fault.operations++;
  fault.stopHere(number);
  if (fault.meets("refuse", number))
    return refuse(ncclInternalError, "refused for a test");
  if (fault.meets("error", number))
    comm->fail(ncclRemoteError, "an error for a test");
  if (!comm->isOpen || comm->asked > 0)
    return refuse(ncclInvalidUsage, "the communicator is still busy with what it was asked before");
  if (comm->stream && comm->stream != stream)
    return refuse(ncclInvalidUsage, "a communicator is used on two streams");
  comm->stream = stream;
  if (connects(comm, its) && pp::fakeIsCaptured(stream))
    return refuse(ncclInternalError, "two ranks would be connected while a graph is captured");
  bool isWithheld = fault.meets("withhold", number);
  comm->launches.push_back([=] { launch(comm, stream, its, isWithheld); });
  if (comm->blocking) {
    comm->launches.back()();
    comm->launches.clear();
    return ncclSuccess;
  }
  comm->asked = patience;
  return ncclInProgress;
}

ncclResult_t call(ncclComm_t comm, cudaStream_t stream, bool isJoint, pp::FakeRanges ranges,
                  std::function<std::vector<Phase>()> phases) {
  calls.push_back({comm, stream, std::move(phases), isJoint, std::move(ranges)});
  if (depth > 0)
    return ncclSuccess;
  return issue(comm, std::exchange(calls, {}));
}
ncclResult_t call(ncclComm_t comm, cudaStream_t stream, bool isJoint, const void *from, const void *to, size_t bytes,
                  std::function<std::vector<Phase>()> phases) {
  return call(comm, stream, isJoint, {{static_cast<const char *>(from), bytes}, {static_cast<const char *>(to), bytes}},
              std::move(phases));
}

/// Every member's part comes to the root, and is added there, last member first.
Phase reduction(ncclComm_t comm, const void *part, void *sum, size_t count, ncclDataType_t type, int root) {
  Phase phase;
  size_t bytes = count * bytesOf(type);
  if (comm->place != root) {
    phase.legs = {legTo(root, true, part, bytes, 2)};
    return phase;
  }
  auto parts = std::make_shared<std::vector<std::vector<char>>>(size_t(comm->members), std::vector<char>(bytes));
  for (int k = 0; k < comm->members; ++k)
    if (k != root)
      phase.legs.push_back(legTo(k, false, (*parts)[size_t(k)].data(), bytes, 2));
  phase.after = [=] {
    memcpy((*parts)[size_t(root)].data(), part, bytes);
    std::vector<const void *> sources;
    for (int k = comm->members; k-- > 0;)
      sources.push_back((*parts)[size_t(k)].data());
    pp::sumMembers(typeOf(type), sources, sum, int64_t(bytes));
  };
  return phase;
}

Phase spread(ncclComm_t comm, const void *from, void *to, size_t bytes, int root) {
  Phase phase;
  if (comm->place != root)
    phase.legs = {legTo(root, false, to, bytes, 3)};
  for (int k = 0; comm->place == root && k < comm->members; ++k)
    if (k != root)
      phase.legs.push_back(legTo(k, true, from, bytes, 3));
  if (comm->place == root)
    phase.after = [=] { memmove(to, from, bytes); };
  return phase;
}

/// Every member gives all others its shard.
Phase gathering(ncclComm_t comm, const void *shard, char *whole, size_t bytes) {
  Phase phase;
  for (int k = 0; k < comm->members; ++k)
    if (k != comm->place) {
      phase.legs.push_back(legTo(k, true, shard, bytes, 4));
      phase.legs.push_back(legTo(k, false, whole + size_t(k) * bytes, bytes, 4));
    }
  phase.after = [=] { memmove(whole + size_t(comm->place) * bytes, shard, bytes); };
  return phase;
}

/// Every member gets its range of all others, and adds them up, last member first.
Phase scattering(ncclComm_t comm, const char *whole, void *shard, size_t count, ncclDataType_t type) {
  Phase phase;
  const size_t bytes = count * bytesOf(type);
  auto parts = std::make_shared<std::vector<std::vector<char>>>(size_t(comm->members), std::vector<char>(bytes));
  for (int k = 0; k < comm->members; ++k)
    if (k != comm->place) {
      phase.legs.push_back(legTo(k, true, whole + size_t(k) * bytes, bytes, 5));
      phase.legs.push_back(legTo(k, false, (*parts)[size_t(k)].data(), bytes, 5));
    }
  phase.after = [=] {
    memcpy((*parts)[size_t(comm->place)].data(), whole + size_t(comm->place) * bytes, bytes);
    std::vector<const void *> sources;
    for (int k = comm->members; k-- > 0;)
      sources.push_back((*parts)[size_t(k)].data());
    pp::sumMembers(typeOf(type), sources, shard, int64_t(bytes));
  };
  return phase;
}

/// NCCL works in place where a shard is this member's range of the whole; else the two must lie apart.
bool lieApart(ncclComm_t comm, const char *whole, const char *shard, size_t bytes) {
  return shard == whole + size_t(comm->place) * bytes || shard + bytes <= whole ||
         shard >= whole + size_t(comm->members) * bytes;
}

} // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  int file = memfd_create("pp-fake-nccl", 0); // open until this process ends
  snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", int(getpid()), file);
  bool made = file >= 0 && ftruncate(file, sizeof(Room)) == 0;
  return made ? ncclSuccess : refuse(ncclSystemError, "no shared memory");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *made, int members, ncclUniqueId id, int place, ncclConfig_t *config) {
  long number = fault.communicators++;
  if (fault.meets("connect-die", number))
    raise(SIGKILL);
  if (fault.meets("connect-refuse", number))
    return refuse(ncclInvalidUsage, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0");
  for (const char *name : {"NCCL_GRAPH_REGISTER", "NCCL_GRAPH_MIXING_SUPPORT"})
    if (!getenv(name))
      return refuse(ncclInvalidUsage, std::string(name) + " is left to NCCL");
  if (config->maxCTAs < 1 || config->maxCTAs > 4)
    return refuse(ncclInvalidUsage, "a message may take up to 32 blocks of threads");
  if (members > mostMembers || place >= members)
    return refuse(ncclInvalidArgument, "too many members");
  int file = open(id.internal, O_RDWR | O_CLOEXEC);
  void *memory = mmap(nullptr, sizeof(Room), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED)
    return refuse(ncclSystemError, "the id names nothing");
  auto *comm = *made = new ncclComm;
  comm->members = members;
  comm->place = place;
  comm->room = static_cast<Room *>(memory);
  comm->blocking = config->blocking != 0;
  comm->connectsForever = fault.meets("connect-hang", number);
  const char *blocks = getenv("NCCL_MAX_CTAS"); // as in NCCL it goes before what a program asks for
  comm->channels = fault.meets("connect-greedy", number) ? 32 : blocks ? atoi(blocks) : config->maxCTAs;
  take(comm, (2 + 3 * comm->channels) * inBlocks(1)); // channel.cc, and devCommSetup in init.cc
  comm->asked = comm->blocking ? 0 : patience;
  ++comm->room->joined;
  while (comm->blocking && !comm->isOpen)
    comm->tryOpen();
  return comm->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
  pp::fakeGoOn();
  comm->tryOpen();
  if (comm->isOpen && comm->asked > 0 && --comm->asked == 0) {
    for (const auto &launches : std::exchange(comm->launches, {}))
      launches();
  }
  *state = comm->error != ncclSuccess ? comm->error : !comm->isOpen || comm->asked > 0 ? ncclInProgress : ncclSuccess;
  if (comm->error != ncclSuccess)
    lastError = comm->why;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  comm->asked = comm->blocking ? 0 : patience;
  return comm->blocking ? ncclSuccess : ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->references.use_count() > 1)
    sleepForever(); // NCCL waits until no graph has its operations
  munmap(comm->room, sizeof(Room));
  take(comm, -comm->taken);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }

const char *ncclGetErrorString(ncclResult_t result) {
  return result == ncclInternalError  ? "internal error"
         : result == ncclInvalidUsage ? "invalid usage"
         : result == ncclRemoteError  ? "remote process exited or there was a network error"
         : result == ncclSystemError  ? "unhandled system error"
                                      : "an error";
}
const char *ncclGetLastError(ncclComm_t) { return lastError.c_str(); }

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--depth > 0)
    return ncclSuccess;
  ncclResult_t result = std::exchange(wrong, ncclSuccess);
  std::vector<Call> all = std::exchange(calls, {});
  while (!all.empty()) { // each communicator's calls, in their order, are one operation
    ncclComm_t comm = all[0].comm;
    std::vector<Call> its, others;
    for (Call &each : all)
      (each.comm == comm ? its : others).push_back(std::move(each));
    all = std::move(others);
    ncclResult_t issued = issue(comm, std::move(its));
    result = result == ncclSuccess || result == ncclInProgress ? std::max(result, issued) : result;
  }
  return result;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  size_t bytes = (count - (fault.meets("shorten", fault.operations) ? 1 : 0)) * bytesOf(type);
  return call(comm, stream, false, data, data, bytes, [=] {
    return std::vector<Phase>{{{legTo(peer, true, data, bytes, 1)}, nullptr}};
  });
}
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  size_t bytes = count * bytesOf(type);
  return call(comm, stream, false, data, data, bytes, [=] {
    return std::vector<Phase>{{{legTo(peer, false, data, bytes, 1)}, nullptr}};
  });
}
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  ++counts.calls["ncclBroadcast"];
  return call(comm, stream, true, comm->place == root ? from : to, to, count * bytesOf(type),
              [=] { return std::vector<Phase>{spread(comm, from, to, count * bytesOf(type), root)}; });
}
ncclResult_t ncclReduce(const void *part, void *sum, size_t count, ncclDataType_t type, ncclRedOp_t, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  ++counts.calls["ncclReduce"];
  return call(comm, stream, true, part, comm->place == root ? sum : part, count * bytesOf(type),
              [=] { return std::vector<Phase>{reduction(comm, part, sum, count, type, root)}; });
}
ncclResult_t ncclAllReduce(const void *part, void *sum, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t stream) {
  ++counts.calls["ncclAllReduce"];
  return call(comm, stream, true, part, sum, count * bytesOf(type), [=] {
    return std::vector<Phase>{reduction(comm, part, sum, count, type, 0),
                              spread(comm, sum, sum, count * bytesOf(type), 0)};
  });
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  ++counts.calls["ncclAllGather"];
  const auto *shard = static_cast<const char *>(from);
  auto *whole = static_cast<char *>(to);
  size_t bytes = count * bytesOf(type);
  if (!lieApart(comm, whole, shard, bytes))
    return refuse(ncclInvalidArgument, "a shard lies in the whole, and not where it belongs");
  return call(comm, stream, true, {{shard, bytes}, {whole, bytes * size_t(comm->members)}},
              [=] { return std::vector<Phase>{gathering(comm, shard, whole, bytes)}; });
}
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
  ++counts.calls["ncclReduceScatter"];
  const auto *whole = static_cast<const char *>(from);
  auto *shard = static_cast<char *>(to);
  size_t bytes = count * bytesOf(type);
  if (!lieApart(comm, whole, shard, bytes))
    return refuse(ncclInvalidArgument, "a shard lies in the whole, and not where it belongs");
  return call(comm, stream, true, {{whole, bytes * size_t(comm->members)}, {shard, bytes}},
              [=] { return std::vector<Phase>{scattering(comm, whole, shard, count, type)}; });
}

} // extern "C"
