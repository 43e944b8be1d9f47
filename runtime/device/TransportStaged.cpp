// Messages of a device over MPI, through memory of the host: slow, and there wherever MPI is.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What is sent is copied to the host behind the kernels that made it, and handed to MPI at the next `complete`: the
// host waits there in any case, and all that the device still has to do for it waits for nobody. What comes is handed
// to MPI when it is posted, and copied to the device in `complete`, in a stream that waits for the kernels before the
// post.
#include "runtime/device/BesideMpi.h"
#include <deque>

namespace pp {
namespace {

class StagedTransport final : public BesideMpi {
public:
  using BesideMpi::BesideMpi;
  std::string_view name() const override { return "mpi"; }

private:
  using Kind = MessageSpec::Kind;

  struct Bound {
    char *staged = nullptr, *stagedShard = nullptr; ///< on the host
    void *data = nullptr, *shard = nullptr;         ///< on the device
    Driver::Event posted = -1, moved = -1;
  };

  Status bind() override;
  Status begin(pp_rank_t &state, int32_t message, void *data, void *shard) override;
  Status finishMessage(pp_rank_t &state, int32_t message) override;
  Status handOver(pp_rank_t &state);
  Status bring(int32_t message);

  [[nodiscard]] int64_t shardBytes(const MessageSpec &message) const {
    return message.shardBytes(message.memberOf(rank));
  }
  /// Whether this rank's shard lies beside the whole.
  [[nodiscard]] static bool hasShard(const MessageSpec &message) {
    return (message.isSharded() && !message.inPlace) || message.kind == Kind::AllToAll;
  }
  [[nodiscard]] bool givesData(const MessageSpec &message) const {
    return message.kind == Kind::Send || message.kind == Kind::AllReduce || message.kind == Kind::Reduce ||
           message.kind == Kind::ReduceScatter || message.inPlace ||
           (message.kind == Kind::Broadcast && message.root == rank);
  }
  [[nodiscard]] bool takesData(const MessageSpec &message) const {
    return message.kind == Kind::Receive || message.kind == Kind::AllReduce || message.kind == Kind::AllGather ||
           message.kind == Kind::AllToAll || message.inPlace ||
           (message.kind == Kind::Reduce && message.root == rank) ||
           (message.kind == Kind::Broadcast && message.root != rank);
  }

  std::vector<Bound> bounds;
  std::deque<int32_t> leaving; ///< posted, and not yet handed to MPI
  Driver::Stream down = -1, up = -1;
};

Status StagedTransport::bind() {
  PP_TRY(inner->prepare(*program));
  PP_TRY(driver.makeStream(down));
  PP_TRY(driver.makeStream(up));
  bounds = std::vector<Bound>(program->messages.size());
  for (size_t i = 0; i < bounds.size(); ++i) {
    const MessageSpec &message = program->messages[i];
    if (message.host)
      continue;
    void *memory = nullptr;
    PP_TRY(driver.allocateHost(size_t(message.bytes), memory));
    bounds[i].staged = static_cast<char *>(memory);
    if (hasShard(message))
      PP_TRY(driver.allocateHost(size_t(shardBytes(message)), memory));
    bounds[i].stagedShard = static_cast<char *>(memory);
    PP_TRY(driver.makeEvent(bounds[i].posted));
    PP_TRY(driver.makeEvent(bounds[i].moved));
  }
  return {};
}

Status StagedTransport::begin(pp_rank_t &state, int32_t message, void *data, void *shard) {
  Bound &bound = bounds[message];
  const MessageSpec &its = spec(message);
  bound.data = data;
  bound.shard = shard;
  PP_TRY(driver.record(bound.posted, device.compute()));
  if (its.kind == Kind::Receive) {
    pp_status_t code = inner->postReceive(state, message, bound.staged);
    return code == PP_OK ? Status() : Status(code, state.message);
  }
  PP_TRY(driver.wait(down, bound.posted));
  if (givesData(its))
    PP_TRY(driver.copy(down, bound.staged, data, size_t(its.bytes)));
  if (hasShard(its) && its.kind != Kind::ReduceScatter)
    PP_TRY(driver.copy(down, bound.stagedShard, shard, size_t(shardBytes(its))));
  PP_TRY(driver.record(bound.moved, down));
  leaving.push_back(message);
  return {};
}

/// Hands to MPI what has been posted, in the order of the posts.
Status StagedTransport::handOver(pp_rank_t &state) {
  for (; !leaving.empty(); leaving.pop_front()) {
    int32_t message = leaving.front();
    Bound &bound = bounds[message];
    PP_TRY(driver.finish(bound.moved));
    pp_status_t code = spec(message).kind == Kind::Send
                           ? inner->postSend(state, message, bound.staged)
                           : inner->postCollective(state, message, bound.staged, bound.stagedShard);
    if (code != PP_OK)
      return {code, state.message};
  }
  return {};
}

Status StagedTransport::bring(int32_t message) {
  Bound &bound = bounds[message];
  const MessageSpec &its = spec(message);
  PP_TRY(driver.wait(up, bound.posted));
  if (takesData(its))
    PP_TRY(driver.copy(up, bound.data, bound.staged, size_t(its.bytes)));
  if (its.kind == Kind::ReduceScatter && !its.inPlace)
    PP_TRY(driver.copy(up, bound.shard, bound.stagedShard, size_t(shardBytes(its))));
  PP_TRY(driver.record(bound.moved, up));
  return driver.wait(device.compute(), bound.moved);
}

Status StagedTransport::finishMessage(pp_rank_t &state, int32_t message) {
  PP_TRY(handOver(state));
  int64_t before = inner->received();
  if (pp_status_t code = inner->complete(state, message); code != PP_OK)
    return {code, state.message};
  receivedBytes += inner->received() - before;
  return spec(message).kind == Kind::Send ? Status() : bring(message);
}

} // namespace

std::unique_ptr<Transport> makeStagedTransport(std::unique_ptr<Transport> mpi, Driver &driver, StreamDevice &device,
                                               int32_t rank) {
  return std::make_unique<StagedTransport>(std::move(mpi), driver, device, rank);
}

} // namespace pp
