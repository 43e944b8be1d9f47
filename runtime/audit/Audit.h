// Finds bits that flip in silence: checksums of messages, of weights that devices keep twice, and of weights at rest.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   step 10  messages: both ends note checksums | weights: their checksums | all devices compare     --audit 10
//   between  checkpoint, evaluation, waiting
//   step 11  weights: are their checksums what they were?
//
// All that is said between devices is one sum behind the step. Only where it is not 0 does device 0 get all that was
// noted, and looks for what differs.
#ifndef PP_RUNTIME_AUDIT_AUDIT_H
#define PP_RUNTIME_AUDIT_AUDIT_H

#include "runtime/Emitted.h"
#include "runtime/audit/AuditedTransport.h"
#include "runtime/device/Device.h"
#include <memory>

namespace pp {

class Audit {
public:
  Audit(Emitted &emitted, const RankProgram &program, Transport &transport, Device &device)
      : emitted(emitted), program(program), transport(transport), device(device) {}
  /// Finds what other devices have, too. Every `every`-th step is audited.
  Status open(int64_t every);

  /// Before a step of training. The messages of an audited one are the audit's.
  void begin(int64_t step, pp_rank_t &rank);
  /// Whether the step before was audited, as on all devices; and whether this device's weights are what they were then.
  [[nodiscard]] bool rests() const { return isResting; }
  Status checkRest(int64_t step);
  /// After the step. Collective if it is audited. `clean`: nothing is wrong; else all devices call `find`.
  Status end(int64_t step, pp_rank_t &rank, bool &clean);
  /// Finds the fault; device 0 gets it. Collective.
  Status find(int64_t step);
  /// The numbers of audited steps, and of messages (or parts of them) and copies that this device compared.
  int64_t audited = 0, received = 0, copies = 0;
  /// Weights may change before the next step.
  void forget() { isResting = false; }

private:
  /// A weight or a state of this device.
  struct Tensor {
    const TensorSpec *spec;
    uint64_t key;
    int32_t share; ///< 0: no other device has it
  };
  using Table = std::vector<AuditEntry>; ///< of one device

  Status checksums(std::vector<uint64_t> &out);
  Status sumOf(const TensorSpec &tensor, uint64_t &out);
  Status gather(std::vector<Table> &tables);
  Status describe(int64_t step, const std::vector<Table> &tables);
  Status describeReceived(int64_t step, int32_t device, const AuditEntry &entry, int32_t from, uint64_t given);
  Status describeCopies(int64_t step, const std::vector<std::pair<int32_t, AuditEntry>> &copies);

  Emitted &emitted;
  const RankProgram &program;
  Transport &transport;
  Device &device;
  int64_t every = 0;
  Ledger ledger;
  std::unique_ptr<AuditedTransport> messages;
  std::vector<Tensor> tensors;
  std::vector<uint64_t> resting; ///< checksums of tensors behind the last step that was audited
  bool isResting = false;
  int64_t restsSince = 0;
  std::vector<char> room; ///< for what is copied from a device
};

} // namespace pp

#endif // PP_RUNTIME_AUDIT_AUDIT_H
