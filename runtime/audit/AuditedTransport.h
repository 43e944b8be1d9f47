// The messages of an audited step: each goes its way as always, and both of its ends write its checksum down.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_AUDIT_AUDITEDTRANSPORT_H
#define PP_RUNTIME_AUDIT_AUDITEDTRANSPORT_H

#include "runtime/audit/Ledger.h"
#include "runtime/device/Device.h"
#include "runtime/transport/Transport.h"

namespace pp {

/// Takes the place of a transport that is prepared, for one step. No message is added: what is given is read before its
/// post, what has come behind its complete.
class AuditedTransport final : public Transport {
public:
  AuditedTransport(Transport &inner, const RankProgram &program, Device &device, Ledger &ledger);

  /// A step begins or ends.
  void begin();
  void end() { inner.audit(false); }

  Status prepare(const RankProgram &its) override { return inner.prepare(its); }
  pp_status_t postSend(pp_rank_t &state, int32_t message, const void *data) override;
  pp_status_t postReceive(pp_rank_t &state, int32_t message, void *data) override;
  pp_status_t postCollective(pp_rank_t &state, int32_t message, void *data, void *shard) override;
  pp_status_t complete(pp_rank_t &state, int32_t message) override;
  int64_t outstanding() const override { return inner.outstanding(); }
  Status send(int32_t to, const void *data, size_t bytes) override { return inner.send(to, data, bytes); }
  Status receive(int32_t from, void *data, size_t bytes) override { return inner.receive(from, data, bytes); }
  Status sum(std::span<double> values) override { return inner.sum(values); }
  Status agree(const Status &mine, int32_t &failed, pp_status_t &code) override {
    return inner.agree(mine, failed, code);
  }
  void markStep(int64_t step) override { inner.markStep(step); }
  double now() const override { return inner.now(); }
  int32_t ranksBeside() const override { return inner.ranksBeside(); }
  std::string_view name() const override { return inner.name(); }

private:
  /// A message, and what is known of it while it is under way.
  struct Bound {
    const MessageSpec *message = nullptr;
    uint64_t lane = 0;   ///< hash of its ends and its channel
    size_t counter = 0;  ///< of the messages of its lane
    uint64_t number = 0; ///< in its lane
    const void *data = nullptr, *shard = nullptr;
  };

  Bound *take(int32_t message, const void *data, const void *shard);
  Status give(const Bound &bound, AuditEntry entry);
  Status receive(const Bound &bound, AuditEntry entry);
  void addParts(const Bound &bound, AuditEntry entry);
  void add(const Bound &bound, AuditEntry entry, int64_t share, uint64_t sum, size_t from = 0, size_t to = 0);
  Status see(const void *at, int64_t bytes, const char *&seen) { return memory.see(at, size_t(bytes), room, seen); }

  Transport &inner;
  Device &memory;
  const int32_t device;
  Ledger &ledger;
  std::vector<char> room;
  std::vector<Bound> bounds;
  std::vector<uint64_t> counters; ///< of messages in each lane, so far
};

} // namespace pp

#endif // PP_RUNTIME_AUDIT_AUDITEDTRANSPORT_H
