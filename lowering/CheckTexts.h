// What the checks of a lowered rank share: its JSON text, entry by entry, and the words for a difference.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_CHECKTEXTS_H
#define PP_LOWERING_CHECKTEXTS_H

#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include "lowering/ReadCalls.h"
#include <memory>

namespace pp {

/// The error for a difference between a rank's program and what was made of it; always a failure.
mlir::LogicalResult reportDifference(mlir::Location loc, int64_t rank, const llvm::Twine &where,
                                     const llvm::Twine &expected, const llvm::Twine &got);

/// Operand by operand; `where` names the call.
mlir::LogicalResult compareCalls(mlir::Location loc, int64_t rank, const llvm::Twine &where, llvm::StringRef callee,
                                 llvm::ArrayRef<CallOperand> expected, const ReadCall &got);

/// Where a slot's memory begins in the rank's block: host memory lies behind the arena, from the next page on.
int64_t slotBegin(pipeline::SlotOp slot);

/// An entry of `ops` as a body needs it.
struct ExpectedKernel {
  std::string kernel;
  mlir::Type type;
  llvm::SmallVector<int64_t> dims;
  llvm::SmallVector<double> params;
  llvm::SmallVector<llvm::StringRef> flags;
  /// By number of the size: in what it differs from device to device.
  llvm::SmallVector<std::pair<size_t, nn::Varying>> varying = {};
  /// By number of the param: the same.
  llvm::SmallVector<std::pair<size_t, nn::Varying>> varied = {};
  /// By number of the pointer, those of lists one by one: by how many bytes each device moves it on.
  llvm::SmallVector<std::pair<size_t, nn::Varying>> moved = {};

  void add(nn::Kernel its, size_t first = 0) {
    for (nn::Varying each : its.varying())
      varying.push_back({first + each.dim, each});
    for (nn::Varying each : its.variedParams())
      varied.push_back({each.dim, each});
  }
  /// Of a list `pointers` are there; it has all of the kernel's but the second one.
  void addMoved(nn::Kernel its, std::optional<size_t> pointers = {}) {
    for (nn::Varying each : its.moved())
      moved.push_back({!pointers ? each.dim : *pointers + (each.dim == 0 ? 0 : each.dim - 1), each});
  }
};

/// The JSON text of one rank, compared with its program entry by entry.
class TextCheck {
public:
  TextCheck(pipeline::RankOp rank, llvm::StringRef text);
  ~TextCheck();

  /// Its head: the rank, its memory, its peaks.
  mlir::LogicalResult checkHead(pipeline::RankOp forward);
  mlir::LogicalResult checkUnit(pipeline::LaunchOp launch, int64_t number, double flops);
  /// The next message that no body posts.
  mlir::LogicalResult checkMessage(pipeline::PostOp post, int64_t number);
  /// A message inside a body: one that was there before, or the next one.
  mlir::LogicalResult checkExchange(nn::Exchange exchange, int64_t number);
  /// So many are compared.
  int64_t countMessages() const;
  mlir::LogicalResult checkKernel(mlir::Operation *op, int64_t number, const ExpectedKernel &kernel);
  /// What follows is the forward program's, if there is one: its first unit and message have these numbers.
  void beginForward(int64_t units, int64_t messages, bool exists);
  /// The entries that the slot's binding asks for; slots come in the order of the program.
  mlir::LogicalResult checkSlot(pipeline::SlotOp slot);
  /// There is nothing else in the text, and every kernel is used.
  mlir::LogicalResult finish();

private:
  struct State;
  std::unique_ptr<State> state;
};

/// The text of `pp_program_json`.
mlir::LogicalResult checkProgramText(pipeline::ProgramOp program, llvm::StringRef text);

} // namespace pp

#endif // PP_LOWERING_CHECKTEXTS_H
