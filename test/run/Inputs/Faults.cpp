// The runtime with a fault: one flipped bit, in a message, in a term of a sum or in a weight; or all messages are off.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// PP_FAULT=STEP:DEVICE:KIND:SEED[:NAME] draws a message or a tensor (whose name has NAME, or ends in it: NAME$) of the
// device and a bit of it, and flips that in the step. KIND: given, taken, term (over MPI), weight (behind the step),
// rest (before the next). It says `flipped WHAT` or `flipped nothing` on stderr. PP_FAULT=all: the first number, in
// f64, of all that a device receives is off by a billionth. What makes transports and devices has its own here; the
// files below are therefore no longer files of their own.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#define makeHostDevice makeWholeDevice
#include "runtime/device/DeviceHost.cpp"
#undef makeHostDevice
#define makeThreadTransport makeWholeThreadTransport
#include "runtime/transport/TransportThreads.cpp"
#undef makeThreadTransport
#define makeStreamTransport makeWholeStreamTransport
#include "runtime/device/TransportStreams.cpp"
#undef makeStreamTransport
#ifdef PP_WITH_MPI
#define makeMpiTransport makeWholeMpiTransport
#include "runtime/transport/TransportMpi.cpp"
#undef makeMpiTransport
#endif
#include <map>
#include <random>

namespace pp {
namespace {

using Kind = MessageSpec::Kind;

struct Fault {
  int64_t step = 0, device = -1;
  std::string kind, name;
  std::mt19937_64 draw;

  explicit Fault(const char *text) {
    if (!text)
      return;
    kind = text;
    if (kind == "all")
      return;
    std::istringstream words(text);
    std::string word[4];
    for (std::string &each : word)
      std::getline(words, each, ':');
    std::getline(words, name);
    step = std::stoll(word[0]);
    device = std::stoll(word[1]);
    kind = word[2];
    draw.seed(std::stoull(word[3]));
  }
};

/// Each device of a process has its own.
Fault wanted() { return Fault(getenv("PP_FAULT")); }

void flipBit(void *data, uint64_t bit) { static_cast<unsigned char *>(data)[bit / 8] ^= 1u << bit % 8; }

void sayFlipped(const std::string &what) { fprintf(stderr, "flipped %s\n", what.c_str()); }

std::mutex stepMutex;
std::map<int32_t, int64_t> stepOf; ///< by device, which step of training it is in

thread_local Fault *armed = nullptr; ///< for the next call of MPI that brings terms of a sum to others

class FlippingTransport final : public TransportOver {
public:
  explicit FlippingTransport(std::unique_ptr<Transport> inner, int32_t device)
      : TransportOver(std::move(inner)), device(device) {}

  Status prepare(const RankProgram &its) override {
    program = &its;
    under.resize(its.messages.size());
    if (flip.device == device && (flip.kind == "given" || flip.kind == "taken" || flip.kind == "term")) {
      std::vector<int32_t> fit;
      for (size_t i = 0; i < its.stepMessages(); ++i)
        if (fits(its.messages[i]))
          fit.push_back(int32_t(i));
      if (!fit.empty())
        chosen = fit[flip.draw() % fit.size()];
      else
        sayFlipped("nothing");
    }
    return inner->prepare(its);
  }
  pp_status_t postSend(pp_rank_t &state, int32_t message, const void *data) override {
    if (isNow(message, "given"))
      flipIn(message, const_cast<void *>(data), size_t(program->messages[size_t(message)].bytes));
    return inner->postSend(state, message, data);
  }
  pp_status_t postReceive(pp_rank_t &state, int32_t message, void *data) override {
    under[size_t(message)] = data;
    return inner->postReceive(state, message, data);
  }
  pp_status_t postCollective(pp_rank_t &state, int32_t message, void *data, void *shard) override {
    under[size_t(message)] = data;
    const MessageSpec &spec = program->messages[size_t(message)];
    if (isNow(message, "given")) {
      if (spec.kind == Kind::Broadcast)
        flipIn(message, data, size_t(spec.bytes));
      else
        flipIn(message, static_cast<char *>(shard) + (spec.inPlace ? (*spec.ranges(spec.memberOf(device))).shard : 0),
               size_t(spec.kind == Kind::AllToAll ? spec.bytes : (*spec.ranges(spec.memberOf(device))).bytes));
    }
    if (isNow(message, "term")) {
      armed = &flip;
      isDone = true;
      sayFlipped(describe(spec));
    }
    pp_status_t code = inner->postCollective(state, message, data, shard);
    armed = nullptr;
    return code;
  }
  pp_status_t complete(pp_rank_t &state, int32_t message) override {
    const int64_t before = inner->received();
    pp_status_t code = inner->complete(state, message);
    receivedBytes += inner->received() - before;
    const MessageSpec &spec = program->messages[size_t(message)];
    if (code == PP_OK && flip.kind == "all" && spec.kind != Kind::Send && spec.bytes >= 64)
      *static_cast<double *>(under[size_t(message)]) *= 1 + 1e-9;
    if (code == PP_OK && isNow(message, "taken"))
      flipIn(message, under[size_t(message)], size_t(spec.bytes));
    return code;
  }
  int64_t outstanding() const override { return inner->outstanding(); }
  void markStep(int64_t its) override {
    step = forward ? 0 : its;
    if (!forward) {
      std::lock_guard lock(stepMutex);
      stepOf[device] = its;
    }
    inner->markStep(its);
  }
  std::string_view name() const override { return inner->name(); }

private:
  /// Whose bits another device has, too: after the message, or before it.
  [[nodiscard]] bool fits(const MessageSpec &spec) const {
    if (spec.bytes == 0 || (spec.isCollective() && spec.group.size() < 2) ||
        (!flip.name.empty() && spec.label.find(flip.name) == std::string::npos))
      return false;
    const bool isRoot = spec.root == device;
    if (flip.kind == "term")
      return spec.kind == Kind::AllReduce || spec.kind == Kind::ReduceScatter || (spec.kind == Kind::Reduce && !isRoot);
    if (flip.kind == "given")
      return spec.kind == Kind::Send || spec.kind == Kind::AllToAll || (spec.kind == Kind::Broadcast && isRoot) ||
             (spec.kind == Kind::AllGather && (*spec.ranges(spec.memberOf(device))).bytes > 0);
    return spec.kind == Kind::Receive || spec.kind == Kind::AllToAll || spec.kind == Kind::AllGather ||
           spec.kind == Kind::AllReduce || (spec.kind == Kind::Broadcast && !isRoot);
  }
  bool isNow(int32_t message, const char *kind) const {
    return !isDone && message == chosen && step == flip.step && flip.kind == kind;
  }
  void flipIn(int32_t message, void *data, size_t bytes) {
    flipBit(data, flip.draw() % (8 * bytes));
    isDone = true;
    sayFlipped(describe(program->messages[size_t(message)]));
  }

  int32_t device;
  Fault flip = wanted();
  const RankProgram *program = nullptr;
  std::vector<void *> under;
  int32_t chosen = -1;
  int64_t step = 0;
  bool isDone = false;
};

class FlippingDevice final : public Device {
public:
  explicit FlippingDevice(std::unique_ptr<Device> inner) : inner(std::move(inner)) {}
  Status allocate(const RankProgram &its, int64_t more) override {
    program = &its;
    return inner->allocate(its, more);
  }
  Status upload(int64_t offset, const void *from, size_t bytes) override { return inner->upload(offset, from, bytes); }
  Status download(int64_t offset, void *to, size_t bytes) override { return inner->download(offset, to, bytes); }
  const char *base() const override { return inner->base(); }
  const char *at(int64_t offset) const override { return inner->at(offset); }
  void bind(pp_rank_t &rank) override { inner->bind(rank); }
  Status give(const std::vector<StepCopy> &pieces) override {
    if (isNow("rest", 1))
      flipTensor();
    return inner->give(pieces);
  }
  pp_status_t run(pp_step_t step, pp_rank_t &rank, const std::vector<StepCopy> &results) override {
    pp_status_t code = inner->run(step, rank, results);
    if (isNow("weight", 0))
      flipTensor();
    return code;
  }
  Status see(const void *at, size_t bytes, std::vector<char> &room, const char *&seen) override {
    return inner->see(at, bytes, room, seen);
  }
  int64_t usedBytes() const override { return inner->usedBytes(); }
  bool isTimed() const override { return inner->isTimed(); }
  std::string name() const override { return inner->name(); }

private:
  bool isNow(const char *kind, int64_t later) {
    if (isDone || flip.kind != kind || flip.device != program->device)
      return false;
    std::lock_guard lock(stepMutex);
    return stepOf[program->device] == flip.step + later;
  }
  void flipTensor() {
    isDone = true;
    std::vector<std::pair<std::string, const TensorSpec *>> fit;
    for (const WeightSpec &weight : program->weights)
      fit.push_back({weight.name, &weight});
    for (const StateSpec &state : program->state)
      fit.push_back({state.name + "." + state.kind, &state});
    std::erase_if(fit, [&](const auto &each) {
      const std::string &name = flip.name;
      return each.second->elements() == 0 ||
             (name.ends_with('$') ? !each.first.ends_with(name.substr(0, name.size() - 1))
                                  : each.first.find(name) == std::string::npos);
    });
    if (fit.empty())
      return sayFlipped("nothing");
    const auto &[name, tensor] = fit[flip.draw() % fit.size()];
    const uint64_t bit = flip.draw() % uint64_t(8 * tensor->bytes());
    flipBit(const_cast<char *>(inner->base()) + tensor->offset, bit);
    sayFlipped("`" + name + "`");
  }

  std::unique_ptr<Device> inner;
  const RankProgram *program = nullptr;
  Fault flip = wanted();
  bool isDone = false;
};

#ifdef PP_WITH_MPI
/// A bit of what the other members get.
void flipTerm(const void *data, size_t bytes) {
  if (armed && bytes > 0)
    flipBit(const_cast<void *>(data), std::exchange(armed, nullptr)->draw() % (8 * bytes));
}

size_t bytesOf(MPI_Datatype type, int count) {
  int size = 0;
  MPI_Type_size(type, &size);
  return size_t(size) * size_t(count);
}
#endif

} // namespace

std::unique_ptr<Device> makeHostDevice() { return std::make_unique<FlippingDevice>(makeWholeDevice()); }

std::unique_ptr<Transport> makeThreadTransport(std::shared_ptr<Meeting> meeting, int32_t rank) {
  return std::make_unique<FlippingTransport>(makeWholeThreadTransport(std::move(meeting), rank), rank);
}

std::unique_ptr<Transport> makeStreamTransport(std::shared_ptr<StreamMeeting> meeting, int32_t rank,
                                               StreamDevice &device) {
  return std::make_unique<FlippingTransport>(makeWholeStreamTransport(std::move(meeting), rank, device), rank);
}

#ifdef PP_WITH_MPI
Status makeMpiTransport(const Mesh &mesh, TransportOptions options, int32_t &rank, std::unique_ptr<Transport> &made) {
  PP_TRY(makeWholeMpiTransport(mesh, options, rank, made));
  made = std::make_unique<FlippingTransport>(std::move(made), rank);
  return {};
}
#endif

} // namespace pp

#ifdef PP_WITH_MPI
// MPI's interface for profilers: what is called here is still there under another name.
extern "C" int MPI_Iallgather(const void *data, int count, MPI_Datatype type, void *to, int toCount,
                              MPI_Datatype toType, MPI_Comm comm, MPI_Request *request) {
  pp::flipTerm(data, pp::bytesOf(type, count));
  return PMPI_Iallgather(data, count, type, to, toCount, toType, comm, request);
}

extern "C" int MPI_Igather(const void *data, int count, MPI_Datatype type, void *to, int toCount, MPI_Datatype toType,
                           int root, MPI_Comm comm, MPI_Request *request) {
  pp::flipTerm(data, pp::bytesOf(type, count));
  return PMPI_Igather(data, count, type, to, toCount, toType, root, comm, request);
}

extern "C" int MPI_Ialltoallv(const void *data, const int *counts, const int *places, MPI_Datatype type, void *to,
                              const int *toCounts, const int *toPlaces, MPI_Datatype toType, MPI_Comm comm,
                              MPI_Request *request) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  for (int other = 0; other < size; ++other)
    if (other != rank)
      pp::flipTerm(static_cast<const char *>(data) + pp::bytesOf(type, places[other]),
                   pp::bytesOf(type, counts[other]));
  return PMPI_Ialltoallv(data, counts, places, type, to, toCounts, toPlaces, toType, comm, request);
}
#endif
