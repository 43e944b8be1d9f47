// What the files of the `nn` ops share: sizes of tensors, checks of operands with their words, names of set flags.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NNSHAPES_H
#define PP_DIALECT_NNSHAPES_H

#include "dialect/nn/Nn.h"
#include <limits>

namespace pp::nn {
using namespace mlir; // only the ops' own files read this

using Dims = SmallVector<int64_t>;
using Flags = SmallVector<StringRef>;

/// The names whose condition holds.
inline Flags flagsOf(std::initializer_list<std::pair<StringRef, bool>> all) {
  Flags flags;
  for (auto [name, set] : all)
    if (set)
      flags.push_back(name);
  return flags;
}

inline RankedTensorType tensorOf(Value value) { return cast<RankedTensorType>(value.getType()); }
inline int64_t widthOf(Value value) { return tensorOf(value).getShape().back(); }
inline int64_t elementsOf(Value value) { return tensorOf(value).getNumElements(); }
inline int64_t rowsOf(Value value) { return elementsOf(value) / widthOf(value); }

inline RankedTensorType withWidth(Value like, int64_t width) {
  SmallVector<int64_t> shape(tensorOf(like).getShape());
  shape.back() = width;
  return RankedTensorType::get(shape, tensorOf(like).getElementType());
}

/// One statistic for each row.
inline RankedTensorType statistic(Value like) {
  auto type = tensorOf(like);
  return RankedTensorType::get(type.getShape().drop_back(), sumType(type.getElementType()));
}

inline RankedTensorType inSums(Value like, ArrayRef<int64_t> shape) {
  return RankedTensorType::get(shape, sumType(tensorOf(like).getElementType()));
}

/// Pairs of a query and a key that it sees: `queries` from position `first` on, `keys` from `position` on; a causal
/// query sees the keys up to its own position. A closed form, so that a cost does not take longer for longer sequences.
double visiblePairs(int64_t queries, int64_t first, int64_t keys, int64_t position, bool causal, int64_t window = 0);

/// Dropouts that have masks of their own: a site has 16 bits of their counter.
constexpr int64_t kDropoutSites = 1 << 16;

/// Reports a fault in the operands of one op at its location; the first complaint ends the check.
struct Check {
  StringRef op;
  std::optional<Location> loc;

  /// The attributes that the op needs are there and `least` to `most` operands, all ranked static tensors.
  template <typename Adaptor> LogicalResult operands(Adaptor adaptor, size_t least, size_t most) {
    size_t count = adaptor.getOperands().size();
    if (count < least || count > most) {
      if (least == most)
        return emitOptionalError(loc, "`", op, "` expects ", least, least == 1 ? " operand" : " operands", ", got ",
                                 count);
      if (most == std::numeric_limits<size_t>::max())
        return emitOptionalError(loc, "`", op, "` expects at least ", least, " operands, got ", count);
      return emitOptionalError(loc, "`", op, "` expects ", least, " to ", most, " operands, got ", count);
    }
    for (Value value : adaptor.getOperands())
      if (auto type = dyn_cast<RankedTensorType>(value.getType()); !type || !type.hasStaticShape())
        return emitOptionalError(loc, "`", op, "` expects tensors of fixed shape, got ", value.getType());
    return adaptor.verify(loc.value_or(UnknownLoc::get(adaptor.getOperands().getTypes()[0].getContext())));
  }
  LogicalResult rank(StringRef name, Value value, int64_t rank) {
    int64_t got = tensorOf(value).getRank();
    if (got == rank)
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", name, " with ", rank, rank == 1 ? " dimension" : " dimensions",
                             ", got ", got);
  }
  LogicalResult numbers(StringRef name, Value value) {
    if (isa<FloatType>(tensorOf(value).getElementType()) && tensorOf(value).getRank() > 0)
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", name, " to hold numbers, got ", value.getType());
  }
  LogicalResult tokens(StringRef name, Value value) {
    if (tensorOf(value).getElementType().isInteger(32) && tensorOf(value).getRank() == 2)
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", name, " to be i32 [batch, length], got ", value.getType());
  }
  /// Tokens are i32: there is none for a row beyond.
  LogicalResult vocabulary(int64_t rows) {
    if (rows <= std::numeric_limits<int32_t>::max())
      return success();
    return emitOptionalError(loc, "`", op, "` expects a vocabulary of at most ", std::numeric_limits<int32_t>::max(),
                             " tokens, got ", rows);
  }
  LogicalResult equal(StringRef what, int64_t expected, StringRef name, int64_t got) {
    if (expected == got)
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", what, " ", expected, " to be ", name, ", got ", got);
  }
  LogicalResult type(StringRef name, Value value, Type expected) {
    if (value.getType() == expected)
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", name, " as ", expected, ", got ", value.getType());
  }
  LogicalResult same(StringRef name, Value value, StringRef otherName, Value other) {
    if (value.getType() == other.getType())
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", name, " and ", otherName, " of one shape and type, got ",
                             value.getType(), " and ", other.getType());
  }
  LogicalResult sameElements(StringRef name, Value value, StringRef otherName, Value other) {
    Type a = tensorOf(value).getElementType(), b = tensorOf(other).getElementType();
    if (a == b)
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", name, " and ", otherName, " of one element type, got ", a,
                             " and ", b);
  }
  /// Absent, or the position in the sequence at which the document of each row of x begins.
  LogicalResult starts(Value starts, Value x) {
    auto i32 = IntegerType::get(x.getContext(), 32);
    return !starts ? success()
                   : type("starts", starts, RankedTensorType::get(tensorOf(x).getShape().take_front(2), i32));
  }
  /// The sum so far has the result's type.
  LogicalResult into(Value acc, Type result) {
    if (!acc || acc.getType() == result)
      return success();
    return emitOptionalError(loc, "`", op, "` adds ", result, " into a tensor of another type ", acc.getType());
  }
  /// `width` is `heads` heads of equal, even width.
  LogicalResult heads(StringRef name, int64_t width, int64_t heads, bool even) {
    if (heads <= 0 || width % heads != 0)
      return emitOptionalError(loc, "`", op, "` expects ", name, "'s width to be a multiple of ", heads, " heads, got ",
                               width);
    if (even && width / heads % 2 != 0)
      return emitOptionalError(loc, "`", op, "` expects heads of even width, got ", width / heads);
    return success();
  }
};

/// Rows that are two runs of every sequence, where an op has `zigzag` (Nn_Zigzag): which they are differs by device.
struct TwoRuns {
  int64_t devices, length; ///< along `context`; of a run
  int64_t start;           ///< of the sequence, or of the slice of it that is cut
  AxesAttr axes;

  template <typename Op>
  TwoRuns(Op op, Value x)
      : devices(op.getZigzag()), length(tensorOf(x).getDimSize(1) / 2), start(op.getOffset()),
        axes(devices > 0 ? AxesAttr::get(op.getContext(), Axis::context) : AxesAttr()) {}
  /// Of whole sequences of `rows` rows.
  TwoRuns(int64_t devices, int64_t rows, MLIRContext *context)
      : devices(devices), length(devices > 0 ? rows / (2 * devices) : 0), start(0),
        axes(devices > 0 ? AxesAttr::get(context, Axis::context) : AxesAttr()) {}
  /// Adds the position of the second run (of the first device) behind all other dims.
  void addTo(Dims &dims) const {
    if (devices > 0)
      dims.push_back(start + (2 * devices - 1) * length);
  }
  /// Sizes number `first` and `second` are where the runs begin.
  SmallVector<Varying> varying(unsigned first, unsigned second) const {
    return devices > 0 ? SmallVector<Varying>{{first, axes, length}, {second, axes, -length}} : SmallVector<Varying>();
  }
};

/// A device's shard of tensors that lie one behind the other; it may begin and end in any of them.
struct FlatShard {
  int64_t begin;   ///< of one tensor among the others, in elements
  int64_t shard;   ///< elements that a device has
  int64_t devices; ///< that have one each
  int64_t packed;  ///< elements of the tensor where its gradient is in a shard like the state; else 0

  explicit FlatShard(ArrayRef<int64_t> flat)
      : begin(flat[0]), shard(flat[1]), devices(flat[2]), packed(flat.size() > 3 ? flat[3] : 0) {}
  static LogicalResult verify(ArrayRef<int64_t> flat, StringRef name, std::optional<Location> loc);
  /// The first element of the tensor that this device has, or one before it.
  int64_t firstOf(Value tensor, int64_t device) const;
  /// The elements of the tensor, or of the weight whose gradient lies in a shard.
  int64_t elementsIn(Value tensor) const;
  /// Size 0 of a kernel: the number of the tensor's elements that each device has.
  Varying countsOf(Value tensor) const;
  /// The bytes by which the pointer of the tensor, or of a shard of state, moves on.
  Varying beginsOf(Value tensor, unsigned pointer) const;
  Varying placesOf(Value tensor, Value state, unsigned pointer) const;
};

} // namespace pp::nn

#define INFER(Op)                                                                                                      \
  LogicalResult Op::inferReturnTypes(MLIRContext *context, std::optional<Location> loc, Op::Adaptor a,                 \
                                     SmallVectorImpl<Type> &types)

#endif // PP_DIALECT_NNSHAPES_H
