// What one device writes down in an audited step: checksums of bits that other devices must have, too.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All entries with one key must have one checksum. Each has a share; the shares of a key add up to 0, as 1 of a sender
// and -1 of a receiver. So the sum of share * hash(key, checksum) over all devices is 0 if every key is in order, and
// one small sum tells whether anything is to be looked for.
#ifndef PP_RUNTIME_AUDIT_LEDGER_H
#define PP_RUNTIME_AUDIT_LEDGER_H

#include "runtime/transport/WordSum.h"
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace pp {

/// A hash of what is added to it.
class AuditKey {
public:
  AuditKey &add(uint64_t word) {
    state += 0x9e3779b97f4a7c15u + word; // splitmix64
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
    state = (state ^ state >> 27) * 0x94d049bb133111ebu;
    state ^= state >> 31;
    return *this;
  }
  AuditKey &add(std::string_view text) {
    for (char c : text)
      add(uint64_t(static_cast<unsigned char>(c)));
    return add(uint64_t(text.size()));
  }
  [[nodiscard]] uint64_t value() const { return state; }

private:
  uint64_t state = 0;
};

struct AuditEntry {
  /// A message from one to another; a part of a collective, likewise; a sum that all members have; a weight or state.
  enum class Kind : int32_t { Message, Part, Sum, Tensor };
  uint64_t key = 0, sum = 0; ///< sum: the checksum
  Kind kind = Kind::Message;
  int32_t share = 0;
  int32_t number = -1; ///< of the message or the tensor, in the tables of the device
  int32_t from = -1;   ///< of a part: the device that gave it
  int32_t unit = -1;   ///< in which it came
};

class Ledger {
public:
  void add(const AuditEntry &entry) { entries.push_back(entry); }
  void clear() { entries.clear(); }
  [[nodiscard]] std::vector<AuditEntry> &all() { return entries; }
  /// This device's terms of the sum that must be 0: two numbers below 2^32.
  [[nodiscard]] std::array<double, 2> totals() const {
    uint32_t low = 0, high = 0;
    for (const AuditEntry &entry : entries) {
      const uint64_t hash = AuditKey().add(entry.key).add(entry.sum).value();
      low += uint32_t(entry.share) * uint32_t(hash);
      high += uint32_t(entry.share) * uint32_t(hash >> 32);
    }
    return {double(low), double(high)};
  }

private:
  std::vector<AuditEntry> entries;
};

} // namespace pp

#endif // PP_RUNTIME_AUDIT_LEDGER_H
