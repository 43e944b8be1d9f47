// Messages from GPU to GPU by NCCL, each channel a communicator; between two of one machine by copy engines.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// With `--transport copies` all ranks are on one machine, and collectives are copies and sums, too (PeerGroup.h).
//
// Each channel has a stream, and all are connected at start. NCCL's sends and receives block their stream, as our own
// do (PeerCopies.h), and a communicator takes its operations in order: with one of each for every channel the proof of
// the channel map is the proof of what runs here. Communicators do not block the host: after every call the host asks
// until NCCL has put it on the stream. NCCL does not say that a peer never posts, so each message writes a mark to the
// host when it is done, and a step that is overdue names the first without one, and what the other ranks of this
// machine wait for. NCCL does not compare the ends of a message, either: the members of a channel do so at start. NCCL
// makes the sums: they are the same in every run on a machine, but not in the order of ranks.
#include "runtime/Emitted.h"
#include "runtime/cuda/PeerGroup.h"
#include "runtime/device/BesideMpi.h"
#include "runtime/transport/Presence.h"
#include <algorithm>
#include <chrono>
#include <map>
#include <nccl.h>
#include <sched.h>
#include <set>

namespace pp {
namespace {

class NcclTransport final : public BesideMpi {
public:
  NcclTransport(std::unique_ptr<Transport> mpi, const TransportOptions &options, Emitted &emitted, Driver &driver,
                StreamDevice &device, int32_t rank, bool copiesAlone)
      : BesideMpi(std::move(mpi), driver, device, rank), options(options), emitted(emitted), copiesAlone(copiesAlone),
        copies(driver, device, *inner, rank) {}
  ~NcclTransport() override;
  std::string_view name() const override { return copiesAlone ? "copies" : "nccl"; }
  void markStep(int64_t step) override;
  int64_t scratchBytes() const override;

private:
  using Kind = MessageSpec::Kind;
  /// The members in the order of their places in the communicator, and the channel.
  using Key = std::pair<std::vector<int32_t>, int32_t>;
  struct Lane {
    ncclComm_t comm = nullptr;        ///< null: copy engines serve it
    std::unique_ptr<PeerGroup> group; ///< of a collective's channel, then
    Driver::Stream stream = -1;
    int place = 0; ///< of this rank
    std::string name;
    bool isInsideUnits = false;             ///< it has messages that are posted inside units
    bool exchanges = false;                 ///< it has an all_to_all
    bool gathers = false, scatters = false; ///< it has one with equal shards
    int64_t mostBytes = 0;                  ///< of a message
    int64_t packedBytes = 0; ///< of the largest one whose rows do not lie together in the arena; 0: it has none
    void *packed = nullptr;  ///< on the device, for these rows
  };
  struct Bound {
    Lane *lane = nullptr;
    Driver::Event posted = -1, done = -1;
    bool joins = false; ///< what waits for the message waits for its mark, too
  };

  Status bind() override;
  Status begin(pp_rank_t &state, int32_t message, void *data, void *shard) override;
  Status finishMessage(pp_rank_t &state, int32_t message) override;
  void joinMarks(size_t from, size_t to);
  [[nodiscard]] Key keyOf(const MessageSpec &message) const;
  [[nodiscard]] std::string plan(const Key &key) const;
  Status comparePlans(const Key &key, const Lane &lane);
  Status connect(const Key &key, Lane &lane);
  Status connectToPeer(const Key &key, const Lane &lane, bool &served);
  Status connectGroup(const Key &key, Lane &lane);
  Status meetByCopies(int32_t other);
  [[nodiscard]] bool isEdge(const Key &key) const { return key.second >= 0; }
  Status firstUse(const Key &key, const Lane &lane);
  void warnOfMemory(int64_t before) const;
  Status ask(const MessageSpec &message, const Lane &lane, void *data, void *shard);
  ncclResult_t shareEqually(const MessageSpec &message, const Lane &lane, void *data, void *shard,
                            ncclDataType_t type) const;
  ncclResult_t shareApart(const MessageSpec &message, const Lane &lane, void *data, void *shard,
                          ncclDataType_t type) const;
  Status exchange(const MessageSpec &message, const Lane &lane, void *data, void *shard);
  Status pack(const MessageSpec &message, const Lane &lane, void *data, void *shard, bool gives);
  /// Waits until NCCL has done with the host what it was called for, to post the message or without one.
  Status settle(ncclResult_t result, const Lane &lane, const MessageSpec *message = nullptr) const;
  Status endGroup(ncclResult_t result, const Lane &lane, const MessageSpec *message = nullptr) const;
  Status look(bool overdue);
  [[nodiscard]] bool isOpen(size_t message) const { return !program->messages[message].host && marks[message] != 1; }
  /// A message inside units is posted again and again: its mark is 2 from its start on the device until its end.
  [[nodiscard]] bool isUnderWay(size_t message) const {
    return program->messages[message].inside && marks[message] == 2;
  }
  /// The messages of a step that trains come first, behind them those of one that evaluates.
  [[nodiscard]] size_t first() const { return forward ? program->stepMessages() : 0; }
  [[nodiscard]] size_t last(const RankProgram &its) const { return forward ? its.messages.size() : its.stepMessages(); }
  [[nodiscard]] std::string under(const Lane &lane) const;
  [[nodiscard]] size_t openMessage() const;
  [[nodiscard]] Status missing() const;
  [[nodiscard]] std::string whatOthersDo() const;

  TransportOptions options;
  Emitted &emitted;
  bool copiesAlone; ///< NCCL has no part in any message
  PeerCopies copies;
  std::map<Key, Lane> lanes;
  int64_t roomOfGroups = 0; ///< bytes of the device
  std::vector<Bound> bounds;
  volatile int32_t *marks = nullptr;   ///< on the host, by message: 1 as soon as it is done
  void *one = nullptr, *two = nullptr; ///< on the device
  char *space = nullptr;               ///< on the device, for the first use of a channel
  size_t firstOpen = 0;                ///< all messages of the step before this one are done
  const Lane *connecting = nullptr;    ///< before the first step
  int64_t step = 0;
};

/// Blocks of threads of a message: each spins on a multiprocessor of its own until the message is done. NCCL would take
/// 16 to 32 of them, so that a few messages in flight leave none for the kernels that they wait for. Each has its own
/// buffers, too: the plan (analysis/lives/DeviceScratch.cpp) knows the same number.
constexpr int mostCtas = 4;

/// NCCL takes the number of blocks of a message from its own variable first.
int64_t blocksOfMessage() {
  const char *given = getenv("NCCL_MAX_CTAS");
  const int blocks = given ? atoi(given) : 0;
  return blocks > 0 ? blocks : mostCtas;
}

/// Whether messages over NCCL leave multiprocessors to kernels; the driver hears how many.
Status checkMultiprocessors(const RankProgram &its, Driver &driver, bool allOverNccl) {
  const int64_t planned = allOverNccl ? its.ncclMultiprocessors : its.ncclMultiprocessorsOfCollectives;
  const int64_t messages = planned / mostCtas, held = messages * blocksOfMessage();
  const int64_t all = driver.multiprocessors(), most = all - (all + 3) / 4;
  if (held <= most) {
    driver.leaveMultiprocessors(held > 0 ? int32_t(all - held) : 0);
    return {};
  }
  const int64_t blocks = most / messages;
  return refused(its.name, ": up to ", messages, messages == 1 ? " message is" : " messages are",
                 " under way at once and ", messages == 1 ? "holds " : "hold ", held, " of the ", all,
                 " multiprocessors of this GPU; a quarter must be left to kernels: ",
                 blocks > 0 ? text("start it with NCCL_MAX_CTAS=", blocks) : std::string("take `--transport mpi`"));
}

/// The first failed call of a group; all of them may still be under way.
void note(ncclResult_t &all, ncclResult_t one) {
  if (all == ncclSuccess || all == ncclInProgress)
    all = one == ncclSuccess ? all : one;
}

/// Whether waiting has become useless.
Status checkOthers() {
  if (hasAnotherFailed())
    return {PP_PEER, "another rank failed"};
  if (std::string dead = findDead(); !dead.empty())
    return {PP_PEER, dead};
  return {};
}

/// A communicator that is idle is given back; one that is not is left to the end of the process, because ending it can
/// hang (NVIDIA/nccl issues 549 and 1013). It surely hangs as long as a graph is there that has captured an operation.
NcclTransport::~NcclTransport() {
  if (!driver.dropGraphs())
    return;
  for (auto &[key, lane] : lanes)
    if (ncclResult_t state = ncclSuccess; lane.comm && ncclCommGetAsyncError(lane.comm, &state) == ncclSuccess &&
                                          state == ncclSuccess && settle(ncclCommFinalize(lane.comm), lane).ok())
      ncclCommDestroy(lane.comm);
}

NcclTransport::Key NcclTransport::keyOf(const MessageSpec &message) const {
  if (message.isCollective())
    return {message.group, -1 - message.channel}; // beside the numbers of edges
  bool sends = message.kind == Kind::Send;
  return {{sends ? rank : message.peer, sends ? message.peer : rank}, message.channel};
}

Status NcclTransport::settle(ncclResult_t result, const Lane &lane, const MessageSpec *message) const {
  bool isLate = result == ncclInProgress; // what is found then may be an earlier message's
  auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.timeoutSeconds);
  for (uint64_t polls = 1; result == ncclInProgress; ++polls) {
    sched_yield();
    if (ncclResult_t asked = ncclCommGetAsyncError(lane.comm, &result); asked != ncclSuccess)
      result = asked;
    if (result == ncclInProgress && std::chrono::steady_clock::now() > deadline)
      return {PP_PEER, text(message ? describe(*message) : under(lane), " is overdue after ", options.timeoutSeconds,
                            " s: NCCL has not taken it")};
    if (result == ncclInProgress && polls % 1024 == 0)
      PP_TRY(checkOthers());
  }
  if (result == ncclSuccess)
    return {};
  const char *detail = ncclGetLastError(lane.comm);
  return internal(message && !isLate ? describe(*message) : under(lane), ": NCCL: ", ncclGetErrorString(result),
                  detail && *detail ? ": " : "", detail ? detail : "");
}

/// The text of all messages that this rank posts on a channel in a step, in order.
std::string NcclTransport::plan(const Key &key) const {
  std::string all;
  for (const MessageSpec &message : program->messages)
    if (!message.host && keyOf(message) == key) {
      std::string_view kind = message.isCollective() ? kindName(message.kind) : "message";
      all += text("a ", kind, " `", message.label, "` of ", message.bytes, " bytes\n");
    }
  return all;
}

/// Both ends must have the same plan: with different plans NCCL would move what fits, or wait for ever. No two ranks
/// may share a GPU: NCCL refuses that, too, but its message does not say what to do.
Status NcclTransport::comparePlans(const Key &key, const Lane &lane) {
  const std::string gpu = driver.identity(), mine = plan(key);
  std::string first = gpu + mine;
  uint64_t length = first.size();
  if (lane.place == 0) {
    for (size_t other = 1; other < key.first.size(); ++other) {
      PP_TRY(inner->send(key.first[other], &length, sizeof length));
      PP_TRY(inner->send(key.first[other], first.data(), length));
    }
    return {};
  }
  PP_TRY(inner->receive(key.first[0], &length, sizeof length));
  first.resize(length);
  PP_TRY(inner->receive(key.first[0], first.data(), length));
  if (!copiesAlone && !gpu.empty() && first.starts_with(gpu))
    return refused("ranks ", key.first[0], " and ", rank, " share a GPU, and NCCL wants one for each rank: start as ",
                   "many processes on a machine as it has GPUs, or take `--transport copies`, or `--in-process`");
  first.erase(0, gpu.size());
  std::istringstream theirs(first), ours(mine);
  for (int64_t number = 1; first != mine; ++number) {
    std::string their = "nothing", our = "nothing";
    std::getline(theirs, their);
    std::getline(ours, our);
    if (their != our)
      return internal("on ", lane.name, " rank ", key.first[0], " posts ", their, ", and rank ", rank, " ", our,
                      ", as number ", number, " of a step");
  }
  return {};
}

/// The first member makes the number by which the others find it. All ranks go through their channels in one order,
/// that of the keys, so nobody waits for one who waits for another.
Status NcclTransport::connect(const Key &key, Lane &lane) {
  ncclUniqueId id;
  const std::vector<int32_t> &members = key.first;
  connecting = &lane;
  lane.place = int(std::find(members.begin(), members.end(), rank) - members.begin());
  lane.name = text("channel ", std::max(key.second, -1 - key.second), " of ranks");
  for (size_t i = 0; i < members.size(); ++i)
    lane.name += text(i == 0 ? " " : i + 1 < members.size() ? ", " : " and ", members[i]);
  PP_TRY(comparePlans(key, lane));
  PP_TRY(driver.makeStream(lane.stream));
  if (copiesAlone && !isEdge(key))
    return connectGroup(key, lane);
  bool served = false;
  PP_TRY(isEdge(key) ? connectToPeer(key, lane, served) : Status());
  if (served)
    return {};
  if (lane.place == 0) {
    PP_TRY(settle(ncclGetUniqueId(&id), lane));
    for (size_t other = 1; other < members.size(); ++other)
      PP_TRY(inner->send(members[other], &id, sizeof id));
  } else {
    PP_TRY(inner->receive(members[0], &id, sizeof id));
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = mostCtas;
  ncclResult_t result = ncclCommInitRankConfig(&lane.comm, int(members.size()), id, lane.place, &config);
  PP_TRY(settle(result, lane));
  return firstUse(key, lane);
}

/// If the two ranks of an edge reach each other's memory, their messages are copied there.
Status NcclTransport::connectToPeer(const Key &key, const Lane &lane, bool &served) {
  const int32_t other = key.first[size_t(1 - lane.place)];
  PP_TRY(copiesAlone ? meetByCopies(other) : Status());
  PP_TRY(copies.meet(other, served));
  if (!served)
    return PeerCopies::mayServe(rank, other) ? checkMultiprocessors(*program, driver, /*allOverNccl=*/true) : Status();
  std::vector<int32_t> messages;
  for (size_t i = 0; i < program->messages.size(); ++i)
    if (bounds[i].lane == &lane)
      messages.push_back(int32_t(i));
  return copies.connect(other, messages);
}

/// Without NCCL there is no other way between the two.
Status NcclTransport::meetByCopies(int32_t other) {
  bool served = false;
  if (!PeerCopies::mayServe(rank, other))
    return refused("`--transport copies`: ranks ", std::min(rank, other), " and ", std::max(rank, other),
                   " have messages for each other and are on two machines, or PP_COPY_ENGINES is off: take ",
                   "`--transport nccl` or `--transport mpi`");
  PP_TRY(copies.meet(other, served));
  return served ? Status()
                : refused("`--transport copies`: ranks ", std::min(rank, other), " and ", std::max(rank, other),
                          " cannot open each other's GPU memory: take `--transport nccl` or `--transport mpi`");
}

/// Every member's memory is open to all others.
Status NcclTransport::connectGroup(const Key &key, Lane &lane) {
  for (int32_t other : key.first)
    PP_TRY(other == rank ? Status() : meetByCopies(other));
  lane.group = std::make_unique<PeerGroup>(driver, copies, key.first, size_t(lane.place), lane.mostBytes);
  return lane.group->connect();
}

/// NCCL connects two ranks when they first send; that may block, and must not happen while a graph is captured. In an
/// all_to_all each member sends to every other one; gathers and scatters may use other connections than sums.
Status NcclTransport::firstUse(const Key &key, const Lane &lane) {
  auto *stream = static_cast<cudaStream_t>(driver.native(lane.stream));
  ncclResult_t result = ncclSuccess;
  if (!isEdge(key))
    result = ncclAllReduce(space, space, 1, ncclFloat64, ncclSum, lane.comm, stream);
  else if (lane.place == 0)
    result = ncclSend(space, 8, ncclInt8, 1, lane.comm, stream);
  else
    result = ncclRecv(space, 8, ncclInt8, 0, lane.comm, stream);
  PP_TRY(settle(result, lane));
  if (lane.exchanges) {
    result = ncclGroupStart();
    for (int k = 0; k < int(key.first.size()); ++k)
      if (k != lane.place) {
        note(result, ncclSend(space, 8, ncclInt8, k, lane.comm, stream));
        note(result, ncclRecv(space + 8, 8, ncclInt8, k, lane.comm, stream)); // nobody reads it
      }
    PP_TRY(endGroup(result, lane));
  }
  char *own = space + 8 * lane.place; // of a word of each member
  if (lane.gathers)
    PP_TRY(settle(ncclAllGather(own, space, 1, ncclFloat64, lane.comm, stream), lane));
  if (lane.scatters)
    PP_TRY(settle(ncclReduceScatter(space, own, 1, ncclFloat64, ncclSum, lane.comm, stream), lane));
  Driver::Event used = -1;
  PP_TRY(driver.makeEvent(used));
  PP_TRY(driver.record(used, lane.stream));
  return driver.finish(used);
}

Status NcclTransport::bind() {
  // Buffers that NCCL registers with a graph can hang a run across hosts, and a communicator that is used with and
  // without a graph at once costs time; we do neither. Who sets these two knows better.
  setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", /*overwrite=*/0);
  void *memory = nullptr;
  size_t most = 2;
  for (const MessageSpec &message : program->messages)
    most = std::max(most, message.group.size());
  PP_TRY(driver.allocate(8 * most, memory));
  space = static_cast<char *>(memory);
  PP_TRY(driver.allocate(sizeof(int32_t), one));
  PP_TRY(driver.allocate(sizeof(int32_t), two));
  PP_TRY(driver.allocateHost(program->messages.size() * sizeof(int32_t), memory));
  marks = static_cast<int32_t *>(memory);
  bounds = std::vector<Bound>(program->messages.size());
  for (size_t i = 0; i < bounds.size(); ++i) {
    const MessageSpec &message = program->messages[i];
    if (message.host)
      continue;
    Lane &lane = *(bounds[i].lane = &lanes[keyOf(message)]);
    lane.isInsideUnits |= message.inside;
    lane.mostBytes = std::max(lane.mostBytes, message.bytes);
    lane.exchanges |= message.kind == Kind::AllToAll;
    lane.gathers |= message.kind == Kind::AllGather && message.hasEqualShards();
    lane.scatters |= message.kind == Kind::ReduceScatter && message.hasEqualShards();
    if (message.kind == Kind::AllToAll && message.sequences > 0 && !copiesAlone)
      lane.packedBytes = std::max(lane.packedBytes, message.bytes);
    PP_TRY(driver.makeEvent(bounds[i].posted));
    PP_TRY(driver.makeEvent(bounds[i].done));
  }
  joinMarks(0, program->stepMessages());
  joinMarks(program->stepMessages(), bounds.size());
  driver.watch([this](bool overdue) { return look(overdue); });
  for (auto &[key, lane] : lanes)
    roomOfGroups += copiesAlone && !isEdge(key) ? PeerGroup::roomFor(key.first.size(), lane.mostBytes) : 0;
  PP_TRY(copies.begin(*program, roomOfGroups));
  const int64_t before = driver.takenBytes();
  for (auto &[key, lane] : lanes) {
    PP_TRY(lane.packedBytes > 0 ? driver.allocate(size_t(lane.packedBytes), lane.packed) : Status());
    PP_TRY(connect(key, lane));
  }
  connecting = nullptr;
  warnOfMemory(before);
  static const int32_t numbers[] = {1, 2};
  PP_TRY(driver.copy(device.compute(), one, &numbers[0], sizeof(int32_t)));
  PP_TRY(driver.copy(device.compute(), two, &numbers[1], sizeof(int32_t)));
  return driver.finish();
}

/// A step ends when the marks of its messages are on the host. The kernels behind a message need not wait for its mark:
/// the last message of a channel does, and with it all before. What is inside units has no last one.
void NcclTransport::joinMarks(size_t from, size_t to) {
  std::set<const Lane *> joined;
  for (size_t i = to; i-- > from;)
    if (const Lane *lane = bounds[i].lane)
      bounds[i].joins = lane->isInsideUnits || joined.insert(lane).second;
}

/// The plan counts NCCL's buffers by its sources; what a rank does not have would be missed at a worse time.
void NcclTransport::warnOfMemory(int64_t before) const {
  const int64_t taken = driver.takenBytes() - before;
  if (before < 0 || program->ncclBytes < 0 || taken <= program->ncclBytes)
    return;
  const auto channels = std::count_if(lanes.begin(), lanes.end(), [](const auto &each) { return each.second.comm; });
  const std::string line =
      text("pp: warning: ", program->name, ": ", taken, " bytes of the GPU went while NCCL connected ", channels,
           " channels, and ", program->ncclBytes, " are planned\n");
  fwrite(line.data(), 1, line.size(), stderr);
}

Status NcclTransport::ask(const MessageSpec &message, const Lane &lane, void *data, void *shard) {
  auto *stream = static_cast<cudaStream_t>(driver.native(lane.stream));
  static constexpr ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat64,
                                             ncclFloat16}; // in the order of Type
  ncclDataType_t type = types[size_t(message.type)];
  if (message.kind == Kind::AllToAll)
    return exchange(message, lane, data, shard);
  int root = int(message.memberOf(message.root));
  auto bytes = size_t(message.bytes), count = size_t(message.count);
  ncclResult_t result = ncclGroupStart();
  if (message.kind == Kind::Send)
    note(result, ncclSend(data, bytes, ncclInt8, 1, lane.comm, stream));
  else if (message.kind == Kind::Receive)
    note(result, ncclRecv(data, bytes, ncclInt8, 0, lane.comm, stream));
  else if (message.kind == Kind::AllReduce)
    note(result, ncclAllReduce(data, data, count, type, ncclSum, lane.comm, stream));
  else if (message.kind == Kind::Reduce)
    note(result, ncclReduce(data, data, count, type, ncclSum, root, lane.comm, stream));
  else if (message.kind == Kind::Broadcast)
    note(result, ncclBroadcast(data, data, bytes, ncclInt8, root, lane.comm, stream));
  else if (message.hasEqualShards())
    note(result, shareEqually(message, lane, data, shard, type));
  else if (message.isSharded())
    note(result, shareApart(message, lane, data, shard, type));
  return endGroup(result, lane, &message);
}

/// Shards that differ in length, or lie in several ranges, each take a broadcast or a reduce of their own.
ncclResult_t NcclTransport::shareApart(const MessageSpec &message, const Lane &lane, void *data, void *shard,
                                       ncclDataType_t type) const {
  auto *stream = static_cast<cudaStream_t>(driver.native(lane.stream));
  ncclResult_t result = ncclSuccess;
  for (int k = 0; k < int(message.group.size()); ++k) {
    for (ShardRange range : message.ranges(size_t(k))) {
      void *all = static_cast<char *>(data) + range.whole;
      void *mine = k == lane.place ? static_cast<char *>(shard) + range.shard : all;
      auto length = size_t(range.bytes);
      note(result, message.kind == Kind::AllGather ? ncclBroadcast(mine, all, length, ncclInt8, k, lane.comm, stream)
                                                   : ncclReduce(all, mine, length / elementBytes(message.type), type,
                                                                ncclSum, k, lane.comm, stream));
    }
  }
  return result;
}

/// A shard that is a part of the whole lies at its own place there: by that NCCL knows that it need not copy the shard.
ncclResult_t NcclTransport::shareEqually(const MessageSpec &message, const Lane &lane, void *data, void *shard,
                                         ncclDataType_t type) const {
  auto *stream = static_cast<cudaStream_t>(driver.native(lane.stream));
  const ShardRange own = *message.ranges(size_t(lane.place));
  void *mine = static_cast<char *>(shard) + own.shard;
  auto bytes = size_t(own.bytes);
  return message.kind == Kind::AllGather
             ? ncclAllGather(mine, data, bytes, ncclInt8, lane.comm, stream)
             : ncclReduceScatter(data, mine, bytes / elementBytes(message.type), type, ncclSum, lane.comm, stream);
}

/// Ends a group of calls, of which `result` is the first that failed.
Status NcclTransport::endGroup(ncclResult_t result, const Lane &lane, const MessageSpec *message) const {
  ncclResult_t ended = ncclGroupEnd(); // which alone says whether all is under way
  bool isWrong = result != ncclSuccess && result != ncclInProgress;
  return settle(isWrong ? result : ended, lane, message);
}

/// Copies what this rank gives the others into the channel's memory, or copies what it got out of that memory. The
/// rank's own rows are copied once.
Status NcclTransport::pack(const MessageSpec &message, const Lane &lane, void *data, void *shard, bool gives) {
  auto own = size_t(lane.place);
  const int64_t each = message.bytes / message.blocks() / int64_t(message.group.size());
  char *packed = static_cast<char *>(lane.packed);
  for (int64_t i = 0; i < message.blocks(); ++i)
    for (size_t k = 0; k < message.group.size(); ++k, packed += each) {
      const Block block = gives ? message.block(own, k, i) : message.block(k, own, i);
      char *from = static_cast<char *>(shard) + block.give, *to = static_cast<char *>(data) + block.take;
      if (k == own)
        PP_TRY(driver.copyRows(lane.stream, {to, from, block.takeStride, block.giveStride, block.rows, block.bytes}));
      else if (gives)
        PP_TRY(driver.copyRows(lane.stream, {packed, from, block.bytes, block.giveStride, block.rows, block.bytes}));
      else
        PP_TRY(driver.copyRows(lane.stream, {to, packed, block.takeStride, block.bytes, block.rows, block.bytes}));
    }
  return {};
}

/// NCCL sends what lies together. Rows of a piece of the columns and equal sections do; rows of all columns are packed
/// and unpacked.
Status NcclTransport::exchange(const MessageSpec &message, const Lane &lane, void *data, void *shard) {
  auto *stream = static_cast<cudaStream_t>(driver.native(lane.stream));
  auto own = size_t(lane.place);
  const bool isCut = message.sequences > 0, packs = isCut && message.toColumns, unpacks = isCut && !message.toColumns;
  if (packs)
    PP_TRY(pack(message, lane, data, shard, /*gives=*/true));
  char *packed = static_cast<char *>(lane.packed);
  ncclResult_t result = ncclGroupStart();
  for (int64_t i = 0; i < message.blocks(); ++i)
    for (size_t k = 0; k < message.group.size(); ++k) {
      const Block given = message.block(own, k, i), taken = message.block(k, own, i);
      auto bytes = size_t(given.rows * given.bytes);
      if (k != own) {
        char *from = packs ? packed : static_cast<char *>(shard) + given.give;
        char *to = unpacks ? packed : static_cast<char *>(data) + taken.take;
        note(result, ncclSend(from, bytes, ncclInt8, int(k), lane.comm, stream));
        note(result, ncclRecv(to, bytes, ncclInt8, int(k), lane.comm, stream));
      }
      packed += unpacks || packs ? bytes : 0;
    }
  PP_TRY(endGroup(result, lane, &message));
  if (unpacks)
    return pack(message, lane, data, shard, /*gives=*/false);
  if (packs)
    return {};
  const Block kept = message.block(own, own, 0);
  return driver.copy(lane.stream, static_cast<char *>(data) + kept.take, static_cast<char *>(shard) + kept.give,
                     size_t(kept.bytes));
}

Status NcclTransport::begin(pp_rank_t &, int32_t message, void *data, void *shard) {
  Bound &bound = bounds[message];
  Driver::Stream stream = bound.lane->stream;
  PP_TRY(driver.record(bound.posted, device.compute()));
  PP_TRY(driver.wait(stream, bound.posted));
  if (spec(message).inside)
    PP_TRY(driver.copy(stream, const_cast<int32_t *>(marks + message), two, sizeof(int32_t)));
  PP_TRY(bound.lane->comm    ? ask(spec(message), *bound.lane, data, shard)
         : bound.lane->group ? bound.lane->group->ask(stream, spec(message), data, shard)
                             : copies.ask(stream, message, data));
  if (!bound.joins)
    PP_TRY(driver.record(bound.done, stream));
  PP_TRY(driver.copy(stream, const_cast<int32_t *>(marks + message), one, sizeof(int32_t)));
  return bound.joins ? driver.record(bound.done, stream) : Status();
}

Status NcclTransport::finishMessage(pp_rank_t &, int32_t message) {
  receivedBytes += bytesIn(spec(message), rank);
  return driver.wait(device.compute(), bounds[message].done);
}

int64_t NcclTransport::scratchBytes() const {
  int64_t bytes = inner->scratchBytes() + roomOfGroups;
  for (const auto &[key, lane] : lanes)
    bytes += lane.packedBytes;
  return bytes;
}

void NcclTransport::markStep(int64_t its) {
  step = its;
  firstOpen = first();
  for (size_t i = 0; i < bounds.size(); ++i)
    marks[i] = 0;
  keepOpen(int32_t(firstOpen));
  BesideMpi::markStep(its);
}

/// While the host waits for the device: has another rank ended, has NCCL met an error, which message is overdue?
Status NcclTransport::look(bool overdue) {
  PP_TRY(checkOthers());
  for (const auto &[key, lane] : lanes) {
    ncclResult_t state = ncclSuccess;
    if (lane.comm && ncclCommGetAsyncError(lane.comm, &state) == ncclSuccess && state != ncclSuccess &&
        state != ncclInProgress)
      return settle(state, lane);
  }
  if (connecting)
    return overdue ? Status(PP_PEER, text(under(*connecting), " is overdue after ", options.timeoutSeconds, " s"))
                   : Status();
  while (firstOpen < last(*program) && !isOpen(firstOpen))
    ++firstOpen;
  keepOpen(int32_t(openMessage()));
  return overdue ? missing() : Status();
}

/// The first message that is not done, or the one inside a unit at which the device is; behind the last one: none.
size_t NcclTransport::openMessage() const {
  for (size_t i = 0; i < program->messages.size(); ++i)
    if (isUnderWay(i))
      return i;
  return firstOpen;
}

/// The message of the step that a communicator is at.
std::string NcclTransport::under(const Lane &lane) const {
  if (connecting)
    return "connecting " + lane.name;
  for (size_t i = first(); i < last(*program); ++i)
    if (bounds[i].lane == &lane && isOpen(i))
      return describe(program->messages[i]);
  return lane.name;
}

Status NcclTransport::missing() const {
  const size_t at = openMessage();
  if (at == last(*program))
    return {};
  size_t open = 0;
  for (size_t i = firstOpen; i < last(*program); ++i)
    open += isOpen(i);
  return {PP_PEER, text(describe(program->messages[at]), " is overdue after ", options.timeoutSeconds, " s; of ",
                        last(*program) - first(), " messages of this rank's step ", last(*program) - first() - open,
                        " are done", whatOthersDo())};
}

std::string NcclTransport::whatOthersDo() const {
  constexpr int32_t most = 8;
  std::string all;
  int32_t told = 0;
  for (const Seen &seen : lookAround()) {
    const RankProgram *its = nullptr;
    if (seen.rank == rank || !emitted.of(seen.rank, its).ok() || told++ == most)
      continue;
    all += "; " + its->name;
    if (seen.seconds > std::max(1.0, options.timeoutSeconds / 2))
      all += text(" has not been heard of for ", int64_t(seen.seconds), " s, in step ", seen.step);
    else if (size_t(seen.open) < last(*its))
      all += " waits for " + describe(its->messages[size_t(seen.open)]);
    else
      all += text(" is through step ", seen.step);
  }
  return all;
}

} // namespace

Status shareMultiprocessors(Emitted &emitted, Driver &driver, int32_t rank) {
  const RankProgram *its = nullptr;
  PP_TRY(emitted.of(rank, its));
  return checkMultiprocessors(
      *its, driver, std::any_of(its->messages.begin(), its->messages.end(), [&](const MessageSpec &message) {
        return !message.isCollective() && !message.host && !PeerCopies::mayServe(rank, message.peer);
      }));
}

std::unique_ptr<Transport> makeNcclTransport(std::unique_ptr<Transport> mpi, const TransportOptions &options,
                                             Emitted &emitted, Driver &driver, StreamDevice &device, int32_t rank,
                                             bool copiesAlone) {
  return std::make_unique<NcclTransport>(std::move(mpi), options, emitted, driver, device, rank, copiesAlone);
}

} // namespace pp
