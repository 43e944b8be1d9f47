// Reads a function of an LLVM module back as the chain of calls that it makes, with every address as base and offset.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_READCALLS_H
#define PP_LOWERING_READCALLS_H

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <cstdint>
#include <string>
#include <vector>

namespace llvm {
class Function;
} // namespace llvm

namespace pp {

/// The target of a pointer: an argument of the function and bytes behind it, or nothing.
struct CallAddress {
  int64_t argument = -1; ///< -1: null
  int64_t offset = 0;
  bool operator==(const CallAddress &other) const { return argument == other.argument && offset == other.offset; }
};

/// An argument of a call: a number, an address, or a list of addresses on the stack at the time of the call.
struct CallOperand {
  enum Kind { Number, Pointer, List } kind = Number;
  int64_t number = 0;
  CallAddress address;
  llvm::SmallVector<CallAddress, 0> list;

  static CallOperand of(int64_t number) { return {Number, number, {}, {}}; }
  static CallOperand of(CallAddress address) { return {Pointer, 0, address, {}}; }
  static CallOperand of(llvm::ArrayRef<CallAddress> list) {
    return {List, 0, {}, llvm::SmallVector<CallAddress, 0>(list)};
  }
  bool operator==(const CallOperand &other) const {
    return kind == other.kind && number == other.number && address == other.address && list == other.list;
  }
  /// `7`, `null`, `argument 1 + 4096`, `list (argument 2, argument 3 + 64)`.
  std::string str() const;
};

struct ReadCall {
  const llvm::Function *callee;
  llvm::SmallVector<CallOperand, 6> operands;
};

/// The calls of a function in the order in which it makes them. It must do nothing else: each call is followed by a
/// test of its status, a status that is not zero is returned at once, and zero at the end. Returns what it does
/// otherwise, or nothing.
std::string readCalls(const llvm::Function &function, std::vector<ReadCall> &calls);

} // namespace pp

#endif // PP_LOWERING_READCALLS_H
