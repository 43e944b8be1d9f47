// Collects what a rank's step refers to by number (ops, units, messages, slots) for the texts of runtime/Program.h.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_DESCRIBE_H
#define PP_LOWERING_DESCRIBE_H

#include "analysis/lives/Scratch.h"
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include <map>
#include <memory>
#include <string>

namespace pp {

class Pieces;

/// The begin of a rank's host memory in its block of memory: behind the arena, at a new page.
int64_t hostBegin(pipeline::RankOp rank);

/// A type as the runtime's texts write it: f32, bf16, f16, f64 or i32.
std::string typeName(mlir::Type type);

/// One kernel call as the runtime prepares it: an entry of the rank's `ops`.
/// A size that differs from device to device: by the coordinates along the axes, the last of which runs fastest.
struct DimTable {
  llvm::SmallVector<std::string> by;
  llvm::SmallVector<int64_t> of;
};

struct KernelEntry {
  std::string kernel; ///< name without `pp_`
  std::string type;   ///< f32, bf16, f16 or f64
  llvm::SmallVector<int64_t> dims;
  llvm::SmallVector<double> params;
  llvm::SmallVector<std::string> flags;
  std::map<unsigned, DimTable> tables = {}; ///< by number of the size that each stands for
  std::map<unsigned, DimTable> varied = {}; ///< by number of the param
  std::map<unsigned, DimTable> moved = {};  ///< by pointer, those of lists one by one: by how many bytes it moves on
};

/// The JSON text of one rank while it grows; every `add` gives the number that the step will use.
class RankText {
public:
  explicit RankText(pipeline::RankOp rank);
  ~RankText();

  /// Equal entries share one number.
  int32_t addOp(const KernelEntry &entry);
  int32_t addUnit(pipeline::LaunchOp launch, double flops);
  int32_t addMessage(pipeline::PostOp post);
  /// A message of the devices of the rank; equal ones share one number and are posted as often as they stand in bodies.
  /// `follows`: of a body that runs beside another, while a message of that one may be under way.
  mlir::FailureOr<int32_t> addExchange(nn::Exchange exchange, bool follows);
  /// The kernel's sizes, params and pointers that differ from device to device. Its sizes stand in the entry from
  /// number `first` on. In a list so many `pointers` stand before its own, of which the list has all but the second.
  mlir::LogicalResult addTables(nn::Kernel kernel, KernelEntry &entry, unsigned first = 0,
                                std::optional<size_t> pointers = {});
  /// Sets the bytes that kernels and sums need beside the arena.
  void setScratch(const RankScratch &scratch);
  /// Everything that is added from here on belongs to the forward program.
  void beginForward();
  /// Lists the slot in the tables that its binding names; fails where binding and payload do not fit.
  mlir::LogicalResult addSlot(pipeline::SlotOp slot, const Pieces &pieces);
  /// The whole text; the tables are spent.
  std::string take();

private:
  struct Tables;
  /// The table of what differs from device to device; `size`: where nothing else is said.
  mlir::FailureOr<DimTable> tableOf(nn::Kernel kernel, const nn::Varying &each, int64_t size) const;
  std::unique_ptr<Tables> tables;
};

/// The text of `pp_program_json`; flops are summed over all rank programs, recomputation left out.
mlir::FailureOr<std::string> describeProgram(pipeline::ProgramOp program);

} // namespace pp

#endif // PP_LOWERING_DESCRIBE_H
