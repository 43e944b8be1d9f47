// Messages between ranks that are processes under mpirun: posted without blocking, waited for with an eye on the clock.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "runtime/files/Random.h"
#include "runtime/transport/Deadline.h"
#include "runtime/transport/MpiCollective.h"
#include "runtime/transport/Presence.h"
#include "runtime/transport/Transport.h"
#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mpi.h>
#include <optional>
#include <sched.h>
#include <tuple>
#include <unistd.h>

namespace pp {
namespace {

class MpiTransport final : public Transport {
public:
  MpiTransport(int32_t rank, const Mesh &mesh, TransportOptions options)
      : rank(rank), ranks(mesh.devices()), own(mesh.name(rank)), options(options) {}
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
  void audit(bool wanted) override {
    for (Bound &bound : bounds)
      if (bound.joint)
        bound.joint->audit(wanted);
  }
  const SumParts *partsOf(int32_t message) const override {
    const MpiCollective *joint = bounds[size_t(message)].joint.get();
    return joint ? joint->summedParts() : nullptr;
  }
  int32_t ranksBeside() const override { return ranksHere() > 0 ? ranksHere() : ranks; }
  int64_t scratchBytes() const override { return sums ? sums->most() : 0; }
  std::string_view name() const override { return "mpi"; }

private:
  /// One message of the step. A collective uses `joint`; a send or a receive uses the rest.
  struct Bound {
    const MessageSpec *message = nullptr;
    MPI_Request request = MPI_REQUEST_NULL;
    int count = 0;
    MPI_Datatype type = MPI_BYTE;
    std::unique_ptr<MpiCollective> joint;
    bool active = false;
  };

  Status bind(Bound &bound, const MessageSpec &message, int tagLimit);
  Bound *take(pp_rank_t &state, int32_t message, bool (*fits)(const MessageSpec &));
  pp_status_t check(pp_rank_t &state, int code, const MessageSpec &message);
  Status await(MPI_Request *requests, int count, MPI_Status *statuses, const std::string *what,
               const MessageSpec *message);
  void giveWay(uint64_t polls) const;

  int32_t rank, ranks; ///< devices
  std::string own;     ///< this one as people know it
  TransportOptions options;
  MPI_Comm stepComm = MPI_COMM_NULL, asideComm = MPI_COMM_NULL;
  MpiGroups groups;
  std::optional<SumScratch> sums;
  std::vector<Bound> bounds;
  std::vector<MPI_Status> statuses;
  int64_t posted = 0;
  double clockStart = 0;
  bool crowded = false; ///< more ranks than cores
};

/// The timeout of the run that has begun; MPI's end learns it only from here.
double timeoutOfRun = 600;

Status MpiTransport::open() {
  Deadline all("the start of all ranks", options.timeoutSeconds);
  for (MPI_Comm *comm : {&stepComm, &asideComm}) {
    if (int code = MPI_Comm_dup(MPI_COMM_WORLD, comm); code != MPI_SUCCESS)
      return internal("MPI_Comm_dup: ", mpiErrorText(code));
    MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
  }
  enterPresence(rank, own);
  crowded = ranksHere() > sysconf(_SC_NPROCESSORS_ONLN);
  MPI_Barrier(asideComm);
  clockStart = MPI_Wtime();
  if (isOneMachine()) // one clock for all: start it where rank 0 did
    MPI_Bcast(&clockStart, 1, MPI_DOUBLE, 0, asideComm);
  return {};
}

Status MpiTransport::bind(Bound &bound, const MessageSpec &message, int tagLimit) {
  bound.message = &message;
  if (message.isCollective()) {
    bound.joint = std::make_unique<MpiCollective>();
    return bound.joint->bind(message, rank, groups.of(message), options.sends == Sends::Rendezvous);
  }
  std::tie(bound.count, bound.type) = mpiSized(message.bytes);
  if (bound.count < 0)
    return invalid("message ", describe(message), " is too long for MPI: ", message.bytes, " bytes");
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
  {
    Deadline all("the making of groups that sum or gather", options.timeoutSeconds);
    PP_TRY(groups.make(program));
  }
  sums.emplace(program.messageBytes);
  bounds = std::vector<Bound>(program.messages.size());
  size_t most = 1;
  for (size_t i = 0; i < bounds.size(); ++i) {
    PP_TRY(bind(bounds[i], program.messages[i], tagLimit));
    if (bounds[i].joint)
      most = std::max(most, bounds[i].joint->pending().size());
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
  return code == MPI_SUCCESS ? PP_OK : state.fail(PP_INTERNAL, text(describe(message), ": MPI: ", mpiErrorText(code)));
}

pp_status_t MpiTransport::postSend(pp_rank_t &state, int32_t message, const void *data) {
  Bound *bound = take(state, message, [](const MessageSpec &spec) { return spec.kind == MessageSpec::Kind::Send; });
  if (!bound)
    return PP_INTERNAL;
  const MessageSpec &spec = *bound->message;
  auto start = options.sends == Sends::Rendezvous ? MPI_Issend : MPI_Isend;
  return check(state, start(data, bound->count, bound->type, spec.peer, spec.channel, stepComm, &bound->request), spec);
}

pp_status_t MpiTransport::postReceive(pp_rank_t &state, int32_t message, void *data) {
  Bound *bound = take(state, message, [](const MessageSpec &spec) { return spec.kind == MessageSpec::Kind::Receive; });
  if (!bound)
    return PP_INTERNAL;
  const MessageSpec &spec = *bound->message;
  return check(state, MPI_Irecv(data, bound->count, bound->type, spec.peer, spec.channel, stepComm, &bound->request),
               spec);
}

pp_status_t MpiTransport::postCollective(pp_rank_t &state, int32_t message, void *data, void *shard) {
  Bound *bound = take(state, message, [](const MessageSpec &spec) { return spec.isCollective(); });
  return bound ? check(state, bound->joint->post(data, shard, *sums), *bound->message) : PP_INTERNAL;
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

constexpr double keptAfterSeconds = 0.05; ///< a wait that is longer may be one for ever

/// Waits without sleeping inside MPI, so that a dead peer and the deadline are seen.
Status MpiTransport::await(MPI_Request *requests, int count, MPI_Status *results, const std::string *what,
                           const MessageSpec *message) {
  double start = 0;
  struct Wait { // others of this machine can read what for
    bool isKept = false;
    ~Wait() {
      if (isKept)
        keepWait({});
    }
  } wait;
  for (uint64_t polls = 1;; ++polls) {
    int done = 0;
    int code = count == 1 ? MPI_Test(requests, &done, results) : MPI_Testall(count, requests, &done, results);
    if (code != MPI_SUCCESS)
      return internal(what ? *what : describe(*message), ": MPI: ", mpiErrorText(code));
    if (done)
      return {};
    giveWay(polls);
    if (polls % (crowded && polls > 300 ? 16 : 1024) != 0) // asleep in between, even a few polls take long
      continue;
    double now = MPI_Wtime();
    start = start == 0 ? now : start;
    if (!wait.isKept && now - start > keptAfterSeconds) {
      wait.isKept = true;
      keepWait(what ? *what : describe(*message));
    }
    if (now - start > options.timeoutSeconds)
      return {PP_PEER, text(what ? *what : describe(*message), " is overdue after ", options.timeoutSeconds, " s",
                            describeOthers())};
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
  std::vector<MPI_Request> *all = bound.joint ? &bound.joint->pending() : nullptr;
  Status status =
      await(all ? all->data() : &bound.request, all ? int(all->size()) : 1, statuses.data(), nullptr, bound.message);
  if (!status.ok())
    return state.fail(status.code(), status.message());
  if (bound.joint) {
    int code = MPI_SUCCESS;
    while (bound.joint->goesOn(code)) {
      if (pp_status_t posted = check(state, code, *bound.message); posted != PP_OK)
        return posted;
      status = await(all->data(), int(all->size()), statuses.data(), nullptr, bound.message);
      if (!status.ok())
        return state.fail(status.code(), status.message());
    }
    receivedBytes += bytesIn(*bound.message, rank);
    return PP_OK;
  }
  if (bound.message->kind == MessageSpec::Kind::Receive) {
    int count = 0; // of elements: MPI cannot count the bytes of long messages in an int
    MPI_Get_count(&statuses[0], bound.type, &count);
    if (count != bound.count)
      return state.fail(PP_INTERNAL,
                        text(describe(*bound.message), ": expected ", bound.count, " elements, got ", count));
    receivedBytes += bound.message->host ? 0 : bound.message->bytes;
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
      return internal(what, ": MPI: ", mpiErrorText(code));
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
      return internal(what, ": MPI: ", mpiErrorText(code));
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
    return internal(what, ": MPI: ", mpiErrorText(code));
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
    return internal(what, ": MPI: ", mpiErrorText(code));
  PP_TRY(await(&request, 1, MPI_STATUS_IGNORE, &what, nullptr));
  failed = result == INT_MAX ? -1 : result / codes;
  status = result == INT_MAX ? PP_OK : pp_status_t(result % codes);
  return {};
}

} // namespace

Status startMpi(const TransportOptions &options, int32_t &rank) {
  int provided = 0, runs = 0;
  MPI_Initialized(&runs);
  if (!runs) {
    timeoutOfRun = options.timeoutSeconds;
    Deadline all("the start of MPI on all ranks", timeoutOfRun);
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
      return internal("MPI does not start");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return {};
}

Status compareOverMpi(const std::string &compared, const std::string &said, int32_t &other, std::string &first,
                      std::string &theirs) {
  Deadline all("what the ranks of the run have in common", timeoutOfRun);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::array<uint64_t, 2> own = {keyOf(0, compared), said.size()};
  std::vector<std::array<uint64_t, 2>> keys(ranks);
  if (int code = MPI_Allgather(own.data(), 2, MPI_UINT64_T, keys.data(), 2, MPI_UINT64_T, MPI_COMM_WORLD);
      code != MPI_SUCCESS)
    return internal("MPI_Allgather: ", mpiErrorText(code));
  auto differs = std::find_if(keys.begin(), keys.end(), [&](const auto &key) { return key[0] != keys.front()[0]; });
  other = differs == keys.end() ? -1 : int32_t(differs - keys.begin());
  for (auto [from, text] : {std::pair(0, &first), {other, &theirs}}) {
    if (other < 0)
      continue;
    *text = rank == from ? said : std::string(keys[from][1], ' ');
    if (int code = MPI_Bcast(text->data(), int(text->size()), MPI_BYTE, from, MPI_COMM_WORLD); code != MPI_SUCCESS)
      return internal("MPI_Bcast: ", mpiErrorText(code));
  }
  return {};
}

Status makeMpiTransport(const Mesh &mesh, TransportOptions options, int32_t &rank, std::unique_ptr<Transport> &made) {
  int ranks = 0;
  PP_TRY(startMpi(options, rank));
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (const int32_t expected = mesh.devices(); ranks != expected)
    return invalid("this program has ", mesh.describe(),
                   getenv("OMPI_COMM_WORLD_SIZE") || ranks > 1 ? text("; mpirun started ", ranks)
                                                               : std::string("; it was started without mpirun"),
                   ": run `mpirun -n ", expected, " <program>`, or the program alone with --in-process");
  auto transport = std::make_unique<MpiTransport>(rank, mesh, options);
  PP_TRY(transport->open());
  made = std::move(transport);
  return {};
}

bool claimMpiReport() { return claimReport(); }

void finishMpi() {
  constexpr double later = 1; // the child of a stopped rank speaks first
  watchEnd(timeoutOfRun);
  {
    Deadline all("the end of all ranks", timeoutOfRun + later);
    leavePresence();
  }
  Deadline all("the end of MPI on all ranks", timeoutOfRun + later);
  MPI_Finalize();
}

constexpr double abortSeconds = 10;

void abortMpi(int code) {
  code = codeOfFirst(code); // before the others see that this rank failed
  markFailed();
  // mpirun ends the others when one exits, and they look at the table. MPI_Abort does it across machines, but OpenMPI
  // 4.1's mpirun then often adds an error of its own to what was printed.
  if (!isOneMachine()) {
    Deadline all("the end of other machines' ranks", std::min(timeoutOfRun, abortSeconds));
    MPI_Abort(MPI_COMM_WORLD, code);
  }
  _exit(code);
}

} // namespace pp
