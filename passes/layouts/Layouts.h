// Layouts of values over the devices of an axis, and the rules by which an op computes on what each device has.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_LAYOUTS_H
#define PP_PASSES_LAYOUTS_H

#include "dialect/nn/Nn.h"
#include <optional>

namespace pp::nn {

/// What the devices of an axis have of one value.
struct DeviceLayout {
  enum class Kind {
    none,    ///< it has no gradient and fits every rule: integers, zeros
    data,    ///< numbers of the dataset: all have those of their rows, and it has no gradient
    full,    ///< all have it, and all compute and get all of its gradient
    copy,    ///< all have it; its gradient is the sum of what they get
    shard,   ///< each has one of equal pieces of a dimension
    rows,    ///< each has one of equal runs of the rows of all sequences, [1, rows, width]
    partial, ///< it is the sum of what they have
  };
  Kind kind = Kind::full;
  int64_t dim = 0; ///< of a shard
  /// Of a shard: the dimension is so many blocks, each cut for itself (q|k|v). Of rows with copies: so many heads.
  int64_t runs = 1;
  int64_t copies = 1; ///< of a shard: each piece is on so many neighbours; of rows: so many of each head side by side
  /// With copies: what the neighbours have of their piece.
  Kind among = Kind::full;

  static DeviceLayout of(Kind kind) { return {kind}; }
  static DeviceLayout shard(int64_t dim, int64_t runs = 1, int64_t copies = 1, Kind among = Kind::full) {
    return {Kind::shard, dim, runs, copies, among};
  }
  bool operator==(const DeviceLayout &other) const {
    return kind == other.kind && dim == other.dim && runs == other.runs && copies == other.copies &&
           among == other.among;
  }
  bool operator!=(const DeviceLayout &other) const { return !(*this == other); }
  /// The same pieces of another dimension.
  DeviceLayout along(int64_t other) const { return {kind, other, runs, copies, among}; }
  /// That of its gradient.
  DeviceLayout transposed() const;
  /// `shard 2, 3 runs`, `copy`.
  std::string text() const;
};

/// The layouts of the op's results over the axis from those of its operands; nothing where no rule allows these. Over
/// `tensor` every op is replicated, from `full` to `full`, or distributed, where no operand is `full`; over `context` a
/// device has `rows` of activations and a `copy` of weights (docs/meshes.md). `isOfDevice`: the op is what a device
/// computes, so that a formula of one head may be of the device's own.
std::optional<llvm::SmallVector<DeviceLayout>> inferLayouts(mlir::Operation *op, llvm::ArrayRef<DeviceLayout> operands,
                                                            Axis axis, bool isOfDevice = false);

/// The same over `tensor` and `context`, of an op that is no exchange: by the factors that it states.
std::optional<llvm::SmallVector<DeviceLayout>>
layoutsByFactors(mlir::Operation *op, llvm::ArrayRef<DeviceLayout> operands, Axis axis, bool isOfDevice = false);

/// A size in the op's attributes, as heads, that is divided where this operand is cut. `isInner`: so may be what it
/// counts.
struct CutSize {
  llvm::StringRef attribute;
  unsigned operand;
  bool isInner;
};
llvm::SmallVector<CutSize, 2> cutSizesOf(mlir::Operation *op, llvm::ArrayRef<DeviceLayout> operands);
/// Divides these sizes.
void cutSizes(mlir::Operation *op, llvm::ArrayRef<DeviceLayout> operands, int64_t devices,
              mlir::NamedAttrList &attributes);
/// The dimension of an operand whose columns, or heads, devices may have apart.
std::optional<int64_t> dimOfColumns(mlir::Operation *op, unsigned operand);

/// The same over `expert`. Only what belongs to experts has a layout there: rows, and the numbers of rows, are of the
/// own tokens, `rows`, or of the own experts, `shard 1`; weights of experts and their gradients are `shard 0`.
std::optional<llvm::SmallVector<DeviceLayout>> inferExpertLayouts(mlir::Operation *op,
                                                                  llvm::ArrayRef<DeviceLayout> operands);

/// Along which axes devices hand each other this op's operand, or read it as theirs; null of other ops.
AxesAttr axesOfExchange(mlir::Operation *op);

/// Whether an attribute of the op says that each device of the axis begins behind the one before it: `first_by`, or
/// `heads over` of a dropout. An op that has a piece must have it, and one that has the whole must not.
bool countsBy(mlir::Operation *op, Axis axis);
/// What a message about its layouts adds of that; empty for other ops.
std::string whatCounts(mlir::Operation *op, Axis axis);

/// How many elements of a dimension of this size a device has; what is beyond the end does not exist.
int64_t localSize(int64_t whole, const DeviceLayout &layout, int64_t devices);

/// That of what the trainer reads from files.
DeviceLayout layoutOfData(mlir::Type data);

/// That of a weight which is declared so.
DeviceLayout layoutOf(WeightAttr declared);

} // namespace pp::nn

#endif // PP_PASSES_LAYOUTS_H
