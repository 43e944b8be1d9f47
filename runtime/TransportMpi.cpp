// Messages between ranks that are processes under mpirun: posted without blocking, waited for with an eye on the clock.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// The C interface alone: the C++ bindings of mpi.h would need their own library.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "runtime/Presence.h"
#include "runtime/Transport.h"
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mpi.h>
#include <sched.h>
#include <tuple>
#include <unistd.h>

namespace pp {
namespace {

std::string errorText(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, length);
}

class MpiTransport final : public Transport {
public:
  MpiTransport(int32_t rank, int32_t ranks, TransportOptions options) : rank(rank), ranks(ranks), options(options) {}
  Status open();

  Status prepare(const RankProgram &program) override;
  pp_status_t postSend(pp_rank_t &state, int32_t message, const void *data) override;
  pp_status_t postReceive(pp_rank_t &state, int32_t message, void *data) override;
  pp_status_t postCollective(pp_rank_t &state, int32_t message, void *data, void *shard) override;
  pp_status_t complete(pp_rank_t &state, int32_t message) override;
  int64_t outstanding() const override { return posted; }
  Status send(int32_t to, const void *data, size_t bytes) override;
  Status receive(int32_t from, void *data, size_t bytes) override;
  Status sum(std::span<double> values) override;
  Status agree(const Status &mine, int32_t &failed, pp_status_t &code) override;
  void markStep(int64_t step) override { keepStep(step); }
  double now() const override { return MPI_Wtime() - clockStart; }
  std::string_view name() const override { return "mpi"; }

private:
  /// One message of the step; a collective is one send and one receive for each other member, as far as it needs them.
  struct Bound {
    const MessageSpec *message = nullptr;
    std::vector<MPI_Request> requests;
    void *data = nullptr;    ///< of a collective: where its sum goes
    size_t member = 0;       ///< of a collective: which one this rank is
    std::vector<char> parts; ///< of a sum that this rank gets: what the other members have
    int count = 0;
    MPI_Datatype type = MPI_BYTE;
    bool active = false;

    /// What is the k-th member's in a collective: its shard, or all.
    [[nodiscard]] int64_t bytesOf(size_t k) const {
      return message->isSharded() ? message->cuts[k + 1] - message->cuts[k] : message->bytes;
    }
  };

  Status bind(Bound &bound, const MessageSpec &message, int tagLimit);
  Bound *take(pp_rank_t &state, int32_t message, bool (*fits)(const MessageSpec &));
  pp_status_t check(pp_rank_t &state, int code, const MessageSpec &message);
  Status await(MPI_Request *requests, int count, MPI_Status *statuses, const std::string *what,
               const MessageSpec *message);
  void addParts(Bound &bound);
  void giveWay(uint64_t polls) const;

  int32_t rank, ranks;
  TransportOptions options;
  MPI_Comm stepComm = MPI_COMM_NULL, sumComm = MPI_COMM_NULL, asideComm = MPI_COMM_NULL;
  std::vector<Bound> bounds;
  std::vector<MPI_Status> statuses;
  int64_t posted = 0;
  double clockStart = 0;
  bool crowded = false; ///< more ranks than cores
};

Status MpiTransport::open() {
  for (MPI_Comm *comm : {&stepComm, &sumComm, &asideComm}) {
    if (int code = MPI_Comm_dup(MPI_COMM_WORLD, comm); code != MPI_SUCCESS)
      return internal("MPI_Comm_dup: ", errorText(code));
    MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
  }
  enterPresence(rank);
  crowded = ranksHere() > sysconf(_SC_NPROCESSORS_ONLN);
  MPI_Barrier(asideComm);
  clockStart = MPI_Wtime();
  if (isOneMachine()) // one clock for all: start it where rank 0 did
    MPI_Bcast(&clockStart, 1, MPI_DOUBLE, 0, asideComm);
  return {};
}

/// So many bytes as MPI counts them; -1 where they are too many.
std::pair<int, MPI_Datatype> sized(int64_t bytes) {
  bool words = bytes % 8 == 0;
  int64_t count = words ? bytes / 8 : bytes;
  return {count > INT_MAX ? -1 : int(count), words ? MPI_INT64_T : MPI_BYTE};
}

Status MpiTransport::bind(Bound &bound, const MessageSpec &message, int tagLimit) {
  bound.message = &message;
  bound.requests.assign(message.isCollective() ? 2 * (message.group.size() - 1) : 1, MPI_REQUEST_NULL);
  std::tie(bound.count, bound.type) = sized(message.bytes);
  if (bound.count < 0)
    return invalid("message ", describe(message), " is too long for MPI: ", message.bytes, " bytes");
  if (message.isCollective())
    bound.member = std::find(message.group.begin(), message.group.end(), rank) - message.group.begin();
  bool sum = message.isCollective() && jointName(message) == "sum";
  if (sum && (message.kind != MessageSpec::Kind::Reduce || message.root == rank))
    bound.parts.resize(bound.bytesOf(bound.member) * (message.group.size() - 1));
  if (message.channel < 0 || message.channel > tagLimit)
    return invalid("message ", describe(message), " needs channel ", message.channel, ", but this MPI has tags 0 to ",
                   tagLimit);
  return {};
}

Status MpiTransport::prepare(const RankProgram &program) {
  void *limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void *>(&limit), &found);
  int tagLimit = found ? *static_cast<int *>(limit) : 32767;
  bounds = std::vector<Bound>(program.messages.size());
  size_t most = 1;
  for (size_t i = 0; i < bounds.size(); ++i) {
    PP_TRY(bind(bounds[i], program.messages[i], tagLimit));
    most = std::max(most, bounds[i].requests.size());
  }
  statuses.resize(most);
  return {};
}

MpiTransport::Bound *MpiTransport::take(pp_rank_t &state, int32_t message, bool (*fits)(const MessageSpec &)) {
  if (message < 0 || size_t(message) >= bounds.size() || !fits(*bounds[message].message) || bounds[message].active) {
    (void)state.fail(PP_INTERNAL, text("message ", message, " of ", bounds.size(),
                                       " cannot be posted here: it is unknown, of another kind, or still under way"));
    return nullptr;
  }
  ++posted;
  bounds[message].active = true;
  return &bounds[message];
}

pp_status_t MpiTransport::check(pp_rank_t &state, int code, const MessageSpec &message) {
  return code == MPI_SUCCESS ? PP_OK : state.fail(PP_INTERNAL, text(describe(message), ": MPI: ", errorText(code)));
}

pp_status_t MpiTransport::postSend(pp_rank_t &state, int32_t message, const void *data) {
  Bound *bound = take(state, message, [](const MessageSpec &spec) { return spec.kind == MessageSpec::Kind::Send; });
  if (!bound)
    return PP_INTERNAL;
  const MessageSpec &spec = *bound->message;
  auto start = options.sends == Sends::Rendezvous ? MPI_Issend : MPI_Isend;
  return check(state, start(data, bound->count, bound->type, spec.peer, spec.channel, stepComm, &bound->requests[0]),
               spec);
}

pp_status_t MpiTransport::postReceive(pp_rank_t &state, int32_t message, void *data) {
  Bound *bound = take(state, message, [](const MessageSpec &spec) { return spec.kind == MessageSpec::Kind::Receive; });
  if (!bound)
    return PP_INTERNAL;
  const MessageSpec &spec = *bound->message;
  return check(
      state, MPI_Irecv(data, bound->count, bound->type, spec.peer, spec.channel, stepComm, &bound->requests[0]), spec);
}

/// Whether data go from `from` to `to` in this collective.
bool flows(const MessageSpec &message, int32_t from, int32_t to) {
  if (message.kind == MessageSpec::Kind::Broadcast || message.kind == MessageSpec::Kind::Reduce)
    return (message.kind == MessageSpec::Kind::Broadcast ? from : to) == message.root;
  return true;
}

/// Who has something for another member sends it directly: a collective needs nobody's help once all have posted, sums
/// have the same bits in every run, and sends are rendezvous where all are. (MPI's own collectives promise none of it.)
pp_status_t MpiTransport::postCollective(pp_rank_t &state, int32_t message, void *data, void *shard) {
  Bound *bound = take(state, message, [](const MessageSpec &spec) { return spec.isCollective(); });
  if (!bound)
    return PP_INTERNAL;
  const MessageSpec &spec = *bound->message;
  bool gathers = spec.kind == MessageSpec::Kind::AllGather, scatters = spec.kind == MessageSpec::Kind::ReduceScatter;
  auto rangeOf = [&](size_t member) { return static_cast<char *>(data) + spec.cuts[member]; };
  if (gathers)
    memcpy(rangeOf(bound->member), shard, size_t(bound->bytesOf(bound->member)));
  if (scatters)
    memcpy(shard, rangeOf(bound->member), size_t(bound->bytesOf(bound->member)));
  bound->data = scatters ? shard : data;
  auto start = options.sends == Sends::Rendezvous ? MPI_Issend : MPI_Isend;
  size_t other = 0;
  for (size_t k = 0; k < spec.group.size(); ++k) {
    if (k == bound->member)
      continue;
    int32_t member = spec.group[k];
    auto [inCount, inType] = sized(bound->bytesOf(scatters ? bound->member : k));
    auto [outCount, outType] = sized(bound->bytesOf(scatters ? k : bound->member));
    void *target = !bound->parts.empty() ? bound->parts.data() + other * size_t(bound->bytesOf(bound->member))
                   : gathers             ? rangeOf(k)
                                         : data;
    const void *source = gathers ? shard : scatters ? rangeOf(k) : data;
    int code = MPI_SUCCESS;
    if (flows(spec, member, rank))
      code = MPI_Irecv(target, inCount, inType, member, spec.channel, sumComm, &bound->requests[2 * other]);
    if (code == MPI_SUCCESS && flows(spec, rank, member))
      code = start(source, outCount, outType, member, spec.channel, sumComm, &bound->requests[2 * other + 1]);
    if (code != MPI_SUCCESS)
      return check(state, code, spec);
    ++other;
  }
  return PP_OK;
}

template <typename Element>
void addInOrder(Element *mine, const Element *parts, int64_t count, const std::vector<int32_t> &group, int32_t rank) {
  for (int64_t i = 0; i < count; ++i) {
    Element total = 0, self = mine[i];
    int64_t other = 0;
    for (size_t member = 0; member < group.size(); ++member) {
      Element value = group[member] == rank ? self : parts[other++ * count + i];
      total = member == 0 ? value : total + value;
    }
    mine[i] = total;
  }
}

void MpiTransport::addParts(Bound &bound) {
  const MessageSpec &spec = *bound.message;
  int64_t bytes = bound.bytesOf(bound.member);
  if (spec.type == Type::F64)
    addInOrder(static_cast<double *>(bound.data), reinterpret_cast<double *>(bound.parts.data()), bytes / 8, spec.group,
               rank);
  else
    addInOrder(static_cast<float *>(bound.data), reinterpret_cast<float *>(bound.parts.data()), bytes / 4, spec.group,
               rank);
}

/// Leaves the core to others while waiting. With more ranks than cores a rank that only yields still takes its share
/// from those that compute (15 % of a step with 4 ranks on 2 cores); asleep it wakes some 50 us late.
void MpiTransport::giveWay(uint64_t polls) const {
  if (crowded && polls > 300) {
    timespec moment = {0, 1000};
    nanosleep(&moment, nullptr);
  } else if (polls > 100) {
    sched_yield();
  }
}

/// Waits without sleeping inside MPI, so that a dead peer and the deadline are seen.
Status MpiTransport::await(MPI_Request *requests, int count, MPI_Status *results, const std::string *what,
                           const MessageSpec *message) {
  double start = 0;
  for (uint64_t polls = 1;; ++polls) {
    int done = 0;
    int code = count == 1 ? MPI_Test(requests, &done, results) : MPI_Testall(count, requests, &done, results);
    if (code != MPI_SUCCESS)
      return internal(what ? *what : describe(*message), ": MPI: ", errorText(code));
    if (done)
      return {};
    giveWay(polls);
    if (polls % 1024 != 0)
      continue;
    double now = MPI_Wtime();
    start = start == 0 ? now : start;
    if (now - start > options.timeoutSeconds)
      return {PP_PEER, text(what ? *what : describe(*message), " is overdue after ", options.timeoutSeconds, " s")};
    if (hasAnotherFailed())
      return {PP_PEER, "another rank failed"};
    if (std::string dead = now - start > 0.2 ? findDead() : std::string(); !dead.empty())
      return {PP_PEER, dead};
  }
}

pp_status_t MpiTransport::complete(pp_rank_t &state, int32_t message) {
  if (message < 0 || size_t(message) >= bounds.size() || !bounds[message].active)
    return state.fail(PP_INTERNAL, text("message ", message, " of ", bounds.size(), " was not posted"));
  Bound &bound = bounds[message];
  bound.active = false;
  --posted;
  if (bound.requests.empty())
    return PP_OK;
  Status status = await(bound.requests.data(), int(bound.requests.size()), statuses.data(), nullptr, bound.message);
  if (!status.ok())
    return state.fail(status.code(), status.message());
  if (!bound.parts.empty())
    addParts(bound);
  bool receives = bound.message->kind == MessageSpec::Kind::Receive && !bound.message->host;
  for (size_t i = 0; i < bound.requests.size() && (receives || bound.message->isCollective()); i += 2) {
    int bytes = 0; // what a request that was not needed brought is nothing
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    receivedBytes += bytes;
  }
  if (bound.message->kind == MessageSpec::Kind::Receive) {
    int count = 0;
    MPI_Get_count(&statuses[0], bound.type, &count);
    if (count != bound.count)
      return state.fail(PP_INTERNAL,
                        text(describe(*bound.message), ": expected ", bound.count, " elements, got ", count));
  }
  return PP_OK;
}

constexpr size_t pieceBytes = size_t(1) << 30;

Status MpiTransport::send(int32_t to, const void *data, size_t bytes) {
  std::string what = text("a tensor to rank ", to);
  for (size_t at = 0; at < bytes; at += pieceBytes) {
    MPI_Request request;
    int code = MPI_Isend(static_cast<const char *>(data) + at, int(std::min(pieceBytes, bytes - at)), MPI_BYTE, to, 0,
                         asideComm, &request);
    if (code != MPI_SUCCESS)
      return internal(what, ": MPI: ", errorText(code));
    PP_TRY(await(&request, 1, MPI_STATUS_IGNORE, &what, nullptr));
  }
  return {};
}

Status MpiTransport::receive(int32_t from, void *data, size_t bytes) {
  std::string what = text("a tensor from rank ", from);
  for (size_t at = 0; at < bytes; at += pieceBytes) {
    MPI_Request request;
    int code = MPI_Irecv(static_cast<char *>(data) + at, int(std::min(pieceBytes, bytes - at)), MPI_BYTE, from, 0,
                         asideComm, &request);
    if (code != MPI_SUCCESS)
      return internal(what, ": MPI: ", errorText(code));
    PP_TRY(await(&request, 1, MPI_STATUS_IGNORE, &what, nullptr));
  }
  return {};
}

Status MpiTransport::sum(std::span<double> values) {
  static const std::string what = "the sum between steps";
  size_t count = values.size();
  std::vector<double> all(count * ranks);
  MPI_Request request;
  int code =
      MPI_Iallgather(values.data(), int(count), MPI_DOUBLE, all.data(), int(count), MPI_DOUBLE, asideComm, &request);
  if (code != MPI_SUCCESS)
    return internal(what, ": MPI: ", errorText(code));
  PP_TRY(await(&request, 1, MPI_STATUS_IGNORE, &what, nullptr));
  for (size_t i = 0; i < count; ++i) {
    values[i] = all[i];
    for (int32_t other = 1; other < ranks; ++other)
      values[i] += all[other * count + i];
  }
  return {};
}

Status MpiTransport::agree(const Status &mine, int32_t &failed, pp_status_t &status) {
  static const std::string what = "the other ranks' answer";
  constexpr int codes = 16; // more than there are
  int lowest = mine.ok() ? INT_MAX : rank * codes + mine.code(), result = INT_MAX;
  MPI_Request request;
  int code = MPI_Iallreduce(&lowest, &result, 1, MPI_INT, MPI_MIN, asideComm, &request);
  if (code != MPI_SUCCESS)
    return internal(what, ": MPI: ", errorText(code));
  PP_TRY(await(&request, 1, MPI_STATUS_IGNORE, &what, nullptr));
  failed = result == INT_MAX ? -1 : result / codes;
  status = result == INT_MAX ? PP_OK : pp_status_t(result % codes);
  return {};
}

} // namespace

Status makeMpiTransport(int32_t expected, TransportOptions options, int32_t &rank, std::unique_ptr<Transport> &made) {
  int provided = 0, ranks = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
    return internal("MPI does not start");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != expected)
    return invalid("this program has ", expected, expected == 1 ? " rank" : " ranks",
                   getenv("OMPI_COMM_WORLD_SIZE") || ranks > 1 ? text("; mpirun started ", ranks)
                                                               : std::string("; it was started without mpirun"),
                   ": run `mpirun -n ", expected, " <program>`, or the program alone with --in-process");
  auto transport = std::make_unique<MpiTransport>(rank, ranks, options);
  PP_TRY(transport->open());
  made = std::move(transport);
  return {};
}

bool claimMpiReport() { return claimReport(); }

void finishMpi() {
  leavePresence();
  MPI_Finalize();
}

void abortMpi(int code) {
  markFailed();
  // mpirun ends the others when one exits, and they look at the table. MPI_Abort does it across machines, but OpenMPI
  // 4.1's mpirun then often adds an error of its own to what was printed.
  if (!isOneMachine())
    MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

} // namespace pp
