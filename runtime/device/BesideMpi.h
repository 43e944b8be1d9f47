// What the transports of a process with a device have in common: MPI between steps, host memory by copies of their own.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_DEVICE_BESIDEMPI_H
#define PP_RUNTIME_DEVICE_BESIDEMPI_H

#include "runtime/device/StreamDevice.h"

namespace pp {

class BesideMpi : public TransportOver {
public:
  BesideMpi(std::unique_ptr<Transport> mpi, Driver &driver, StreamDevice &device, int32_t rank)
      : TransportOver(std::move(mpi)), driver(driver), device(device), rank(rank),
        own(makeStreamTransport(makeStreamMeeting(rank + 1, driver, nullptr), rank, device)) {}

  Status prepare(const RankProgram &its) override {
    program = &its;
    posted.resize(its.messages.size());
    PP_TRY(own->prepare(its));
    return bind();
  }
  pp_status_t postSend(pp_rank_t &state, int32_t message, const void *data) override {
    return isHost(message) ? own->postSend(state, message, data)
                           : post(state, message, MessageSpec::Kind::Send, const_cast<void *>(data), nullptr);
  }
  pp_status_t postReceive(pp_rank_t &state, int32_t message, void *data) override {
    return isHost(message) ? own->postReceive(state, message, data)
                           : post(state, message, MessageSpec::Kind::Receive, data, nullptr);
  }
  pp_status_t postCollective(pp_rank_t &state, int32_t message, void *data, void *shard) override {
    return post(state, message, std::nullopt, data, shard);
  }
  pp_status_t complete(pp_rank_t &state, int32_t message) override {
    if (isHost(message))
      return own->complete(state, message);
    if (!isKnown(message) || !posted[message])
      return state.fail(PP_INTERNAL, text("message ", message, " of ", posted.size(), " was not posted"));
    posted[message] = false;
    --under;
    Status status = finishMessage(state, message);
    return status.ok() ? PP_OK : state.fail(status.code(), status.message());
  }
  int64_t outstanding() const override { return under + own->outstanding(); }

protected:
  /// Makes what the messages need; the program is known.
  virtual Status bind() = 0;
  /// The end of a message that is of the right kind and not under way.
  virtual Status begin(pp_rank_t &state, int32_t message, void *data, void *shard) = 0;
  virtual Status finishMessage(pp_rank_t &state, int32_t message) = 0;

  [[nodiscard]] const MessageSpec &spec(int32_t message) const { return program->messages[message]; }

  Driver &driver;
  StreamDevice &device;
  int32_t rank;
  const RankProgram *program = nullptr;

private:
  [[nodiscard]] bool isKnown(int32_t message) const { return message >= 0 && size_t(message) < posted.size(); }
  [[nodiscard]] bool isHost(int32_t message) const { return isKnown(message) && spec(message).host; }
  pp_status_t post(pp_rank_t &state, int32_t message, std::optional<MessageSpec::Kind> kind, void *data, void *shard) {
    if (!isKnown(message) || posted[message] || (kind ? spec(message).kind != *kind : !spec(message).isCollective()))
      return state.fail(PP_INTERNAL,
                        text("message ", message, " of ", posted.size(),
                             " cannot be posted here: it is unknown, of another kind, or still under way"));
    posted[message] = true;
    ++under;
    Status status = begin(state, message, data, shard);
    return status.ok() ? PP_OK : state.fail(status.code(), status.message());
  }

  std::unique_ptr<Transport> own; ///< of the rank to its host memory
  std::vector<bool> posted;
  int64_t under = 0;
};

} // namespace pp

#endif // PP_RUNTIME_DEVICE_BESIDEMPI_H
