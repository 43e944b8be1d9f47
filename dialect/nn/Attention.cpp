// Shapes, kernels and costs of rope and of attention: whole, over chunks of keys, in parts that merge.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"

using namespace mlir;
using namespace pp::nn;

INFER(RopeOp) {
  Check check{"rope", loc};
  if (failed(check.operands(a, 1, 2)) || failed(check.numbers("x", a.getX())) || failed(check.rank("x", a.getX(), 3)) ||
      failed(check.heads("x", widthOf(a.getX()), a.getHeads(), /*even=*/!a.getTable())))
    return failure();
  if (a.getStyle() != "half" && a.getStyle() != "pair")
    return emitOptionalError(loc, "`rope` expects the style \"half\" or \"pair\", got \"", a.getStyle(), "\"");
  if (failed(check.starts(a.getStarts(), a.getX())))
    return failure();
  int64_t width = widthOf(a.getX()) / static_cast<int64_t>(a.getHeads());
  if (auto table = a.getTable(); table && (table->size() < 2 || static_cast<int64_t>(table->size()) > 1 + width / 2))
    return emitOptionalError(loc, "`rope` expects a table of a factor and a frequency for each pair that turns, so of ",
                             "length 2 to ", 1 + width / 2, " for heads of width ", width, ", got ", table->size());
  if (auto growth = a.getGrowth();
      growth && (growth->size() != 3 || !((*growth)[1] > 0) || !((*growth)[2] >= 0) || width % 2 || !a.getTable() ||
                 static_cast<int64_t>(a.getTable()->size()) != 1 + width / 2))
    return emitOptionalError(loc, "`rope` expects a growth of three numbers, of which the second is above 0 and the ",
                             "third at least 0, beside a table for all ", width / 2, " pairs of a head");
  if (const int64_t passing = a.getPassing(), heads = a.getHeads(); passing < 0 || passing >= heads)
    return emitOptionalError(loc, "`rope` expects fewer heads that pass than the ", heads, " of a row, got ", passing);
  if (a.getPassing() > 0 && a.getZigzag() > 0)
    return emitOptionalError(loc, "`rope` expects no `zigzag` where heads pass, got ", a.getZigzag());
  types.push_back(a.getX().getType());
  return success();
}

Dims RopeOp::dims() {
  auto type = tensorOf(getX());
  const int64_t heads = getHeads(), passing = getPassing(), offset = getOffset();
  Dims dims = {type.getDimSize(0), type.getDimSize(1), heads - passing, type.getDimSize(2) / heads, offset};
  TwoRuns(*this, getX()).addTo(dims);
  if (passing > 0)
    dims.push_back(passing);
  return dims;
}
SmallVector<Varying> RopeOp::varying() { return TwoRuns(*this, getX()).varying(4, 5); }
SmallVector<double> RopeOp::params() {
  if (std::optional<ArrayRef<double>> table = getTable()) {
    SmallVector<double> params = llvm::to_vector(*table);
    params.append(llvm::to_vector(getGrowth().value_or(ArrayRef<double>())));
    return params;
  }
  return {getTheta().convertToDouble()};
}
double RopeOp::flops() {
  const int64_t heads = getHeads(), passing = getPassing(), width = widthOf(getX()) / heads;
  const int64_t pairs = getTable() ? static_cast<int64_t>(getTable()->size()) - 1 : width / 2;
  return 6.0 * rowsOf(getX()) * (heads - passing) * pairs;
}
Flags RopeOp::flags() {
  return flagsOf({{"pair", getStyle() == "pair"},
                  {"inverse", getInverse()},
                  {"documents", getStarts() != nullptr},
                  {"zigzag", getZigzag() > 0},
                  {"packed", getPassing() > 0}});
}
SmallVector<Value> RopeOp::pointers() { return {getX(), getStarts(), getY()}; }

//===-- Chunks --------------------------------------------------------------------------------------------------===//

/// The tensors of integers behind all k and v: `starts` or not, and with dropout `rows`.
template <typename Range> static Range dataOf(Range lists) {
  auto isInteger = [](Value value) { return tensorOf(value).getElementType().isInteger(32); };
  size_t keys = lists.size();
  while (keys > 0 && isInteger(lists[keys - 1]))
    --keys;
  return lists.drop_front(keys);
}
template <typename Range> static Range keysOf(Range lists) { return lists.drop_back(dataOf(lists).size()); }
template <typename Op> static Value startsOf(Op op) {
  auto data = dataOf(op.getLists());
  return data.size() > (op.getDropoutAttr() ? 1 : 0) ? data.front() : Value();
}
template <typename Op> static Value sequencesOf(Op op) {
  auto data = dataOf(op.getLists());
  return op.getDropoutAttr() && !data.empty() ? data.back() : Value();
}

OperandRange AttentionOp::getKv() { return keysOf(getLists()); }
OperandRange AttentionBwdOp::getKv() { return keysOf(getLists()); }
Value AttentionOp::getStarts() { return startsOf(*this); }
Value AttentionBwdOp::getStarts() { return startsOf(*this); }
Value AttentionOp::getRows() { return sequencesOf(*this); }
Value AttentionBwdOp::getRows() { return sequencesOf(*this); }

/// The position of the first key of each chunk: as given, else chunks follow each other from 0 on.
template <typename Op> static SmallVector<int64_t> positionsOf(Op op) {
  if (std::optional<ArrayRef<int64_t>> given = op.getKvOffsets())
    return llvm::to_vector(*given);
  SmallVector<int64_t> positions;
  int64_t next = 0;
  for (size_t i = 0; i < op.getKv().size(); i += 2) {
    positions.push_back(next);
    next += tensorOf(op.getKv()[i]).getDimSize(1);
  }
  return positions;
}

static LogicalResult checkPositions(Check check, int64_t offset, std::optional<ArrayRef<int64_t>> given,
                                    size_t chunks) {
  if (given && given->size() != chunks)
    return emitOptionalError(check.loc, "`", check.op, "` expects as many kv_offsets as chunks of keys, got ",
                             given->size(), " for ", chunks);
  if (offset < 0)
    return emitOptionalError(check.loc, "`", check.op, "` expects an offset of at least 0, got ", offset);
  if (given)
    for (int64_t position : *given)
      if (position < 0)
        return emitOptionalError(check.loc, "`", check.op, "` expects kv_offsets of at least 0, got ", position);
  return success();
}

/// k and v of one chunk.
static LogicalResult checkChunk(Check check, Value q, Value k, Value v, int64_t heads, int64_t kvHeads) {
  if (failed(check.rank("k", k, 3)) || failed(check.same("k", k, "v", v)) ||
      failed(check.sameElements("q", q, "k", k)) || failed(check.heads("k", widthOf(k), kvHeads, false)))
    return failure();
  return success(succeeded(check.equal("q's head width", widthOf(q) / heads, "k's", widthOf(k) / kvHeads)) &&
                 succeeded(check.equal("q's batch", tensorOf(q).getDimSize(0), "k's", tensorOf(k).getDimSize(0))));
}

/// Checks the operands that bound and shape the scores.
template <typename Adaptor> static LogicalResult checkScores(Check check, Adaptor a) {
  int64_t window = static_cast<int64_t>(a.getWindow());
  if (window < 0)
    return emitOptionalError(check.loc, "`", check.op, "` expects a window of at least 0, got ", window);
  if (window > 0 && !a.getCausal())
    return emitOptionalError(check.loc, "`", check.op, "` expects `causal` where it has a window");
  if (Value starts = startsOf(a)) {
    if (!a.getCausal())
      return emitOptionalError(check.loc, "`", check.op, "` expects `causal` where rows hold documents");
    if (failed(check.starts(starts, a.getQ())))
      return failure();
  }
  for (auto [name, value] : {std::pair("scale", a.getScale()), {"softcap", a.getSoftcap()}})
    if (!(value.convertToDouble() >= 0) || value.isInfinity())
      return emitOptionalError(check.loc, "`", check.op, "` expects a ", name, " of at least 0, got ",
                               value.convertToDouble());
  return success();
}

/// Checks what dropout reads, and that queries, and keys that they may see, are inside the sequence.
template <typename Adaptor> static LogicalResult checkDropout(Check check, Adaptor a) {
  size_t data = dataOf(ValueRange(a.getLists())).size(), most = a.getDropoutAttr() ? 2 : 1;
  if (data > most || data + 1 < most)
    return emitOptionalError(check.loc, "`", check.op, "` expects ",
                             a.getDropoutAttr() ? "1 or 2 tensors" : "at most 1 tensor",
                             " of integers behind its keys, got ", data);
  if (!a.getDropoutAttr())
    return success();
  int64_t end = static_cast<int64_t>(a.getOffset()) +
                tensorOf(a.getQ()).getDimSize(1) * std::max<int64_t>(1, static_cast<int64_t>(a.getZigzag()));
  if (int64_t length = a.getDropoutAttr().getLength(); end > length)
    return emitOptionalError(check.loc, "`", check.op, "` expects queries of a sequence of ", length,
                             " tokens where it has dropout, got some up to position ", end - 1);
  auto i32 = IntegerType::get(a.getQ().getContext(), 32);
  return check.type("rows", sequencesOf(a), RankedTensorType::get(tensorOf(a.getQ()).getShape().take_front(2), i32));
}

/// The number of heads with columns in q's tensor: heads of q alone, or of q, k and v.
template <typename Op> static int64_t headsInQ(Op op) {
  int64_t heads = op.getHeads(), kvHeads = op.getKvHeads();
  return op.getPacked() ? heads + 2 * (kvHeads > 0 ? kvHeads : heads) : heads;
}
template <typename Op> static int64_t headWidth(Op op) { return widthOf(op.getQ()) / headsInQ(op); }
/// The type of o.
template <typename Op> static RankedTensorType outputType(Op op) {
  auto q = tensorOf(op.getQ());
  return q.clone({q.getDimSize(0), q.getDimSize(1), static_cast<int64_t>(op.getHeads()) * headWidth(op)});
}

/// One tensor stands for q, k and v.
template <typename Adaptor> static LogicalResult checkPacked(Check check, Adaptor a) {
  ValueRange kv = keysOf(ValueRange(a.getLists()));
  if (kv.size() != 2 || kv[0] != a.getQ() || kv[1] != a.getQ() || a.getZigzag() > 0 || a.getOffset() > 0 ||
      a.getKvOffsets())
    return emitOptionalError(check.loc, "`", check.op,
                             "` expects, where it is packed, one tensor for q, k and v of a whole sequence");
  return success();
}

/// Shapes of q and of all chunks.
template <typename Adaptor> static LogicalResult checkAttention(Check check, Adaptor a) {
  Value q = a.getQ();
  ValueRange kv = keysOf(ValueRange(a.getLists()));
  if (failed(check.numbers("q", q)) || failed(check.rank("q", q, 3)))
    return failure();
  if (kv.empty() || kv.size() % 2)
    return emitOptionalError(check.loc, "`", check.op, "` expects k and v of one chunk or more, got ", kv.size(),
                             kv.size() == 1 ? " tensor" : " tensors");
  int64_t heads = a.getHeads(), kvHeads = a.getKvHeads() ? static_cast<int64_t>(a.getKvHeads()) : heads;
  if (failed(check.heads("q", widthOf(q), headsInQ(a), false)))
    return failure();
  if (heads % kvHeads != 0)
    return emitOptionalError(check.loc, "`", check.op, "` expects heads to be a multiple of kv_heads, got ", heads,
                             " and ", kvHeads);
  if (failed(checkDropout(check, a)) || failed(checkScores(check, a)))
    return failure();
  if (a.getZigzag() > 0 && tensorOf(q).getDimSize(1) % 2 != 0)
    return emitOptionalError(check.loc, "`", check.op, "` expects an even number of queries where these are two runs, ",
                             "got ", tensorOf(q).getDimSize(1));
  if (a.getPacked())
    return checkPacked(check, a);
  for (size_t i = 0; i < kv.size(); i += 2)
    if (failed(checkChunk(check, q, kv[i], kv[i + 1], heads, kvHeads)))
      return failure();
  return checkPositions(check, a.getOffset(), a.getKvOffsets(), kv.size() / 2);
}

/// dims b s H G d position, then length and position of each chunk; of two runs, where the second begins.
template <typename Op> static Dims attentionDims(Op op) {
  auto q = tensorOf(op.getQ());
  int64_t heads = op.getHeads(), kvHeads = op.countKeyHeads();
  Dims dims = {q.getDimSize(0), q.getDimSize(1), heads, kvHeads, headWidth(op)};
  dims.push_back(op.getOffset());
  for (auto [i, position] : llvm::enumerate(positionsOf(op)))
    dims.append({tensorOf(op.getKv()[2 * i]).getDimSize(1), position});
  TwoRuns(op, op.getQ()).addTo(dims);
  return dims;
}

/// The sum of clamp(u, 0, keys) over all u < end: a triangle, and `keys` for each u behind it.
static __int128 clampedSum(int64_t end, int64_t keys) {
  if (end <= 0)
    return 0;
  auto triangle = static_cast<__int128>(std::min(end - 1, keys));
  return triangle * (triangle + 1) / 2 + static_cast<__int128>(std::max<int64_t>(end - 1 - keys, 0)) * keys;
}

double pp::nn::visiblePairs(int64_t queries, int64_t first, int64_t keys, int64_t position, bool causal,
                            int64_t window) {
  if (!causal)
    return static_cast<double>(static_cast<__int128>(queries) * keys);
  // Query t sees clamp(seen + t, 0, keys) keys, but for clamp(seen + t - window, 0, keys) before its window.
  auto keysUpTo = [&](int64_t seen) { return clampedSum(seen + queries, keys) - clampedSum(seen, keys); };
  int64_t seen = first + 1 - position;
  return static_cast<double>(keysUpTo(seen) - (window > 0 ? keysUpTo(seen - window) : 0));
}

/// Pairs of a query and a key that it sees, times the width: each costs 4 forward (two products).
template <typename Op> static double attentionPairs(Op op) {
  Dims dims = attentionDims(op);
  double pairs = 0;
  SmallVector<std::pair<int64_t, int64_t>, 2> runs = {{dims[1], dims[5]}}; // of queries: length and first position
  if (op.getZigzag() > 0)
    runs = {{dims[1] / 2, dims[5]}, {dims[1] / 2, dims.back()}};
  for (auto [queries, first] : runs)
    for (size_t i = 6; i + 1 < dims.size(); i += 2)
      pairs += visiblePairs(queries, first, dims[i], dims[i + 1], op.getCausal(), op.getWindow());
  return static_cast<double>(dims[0] * dims[2] * dims[4]) * pairs;
}

/// Arithmetic of all pairs; dropout makes a word for each.
template <typename Op> static double attentionFlops(Op op, double perElement) {
  double elements = attentionPairs(op), width = static_cast<double>(headWidth(op));
  return perElement * elements + (op.getDropoutAttr() ? 15 * (elements / width) : 0);
}

/// Window, scale and softcap, up to the last that says something; with dropout all, and its own.
template <typename Op> static SmallVector<double> attentionParams(Op op) {
  SmallVector<double> params = {static_cast<double>(op.getWindow()), op.getScale().convertToDouble(),
                                op.getSoftcap().convertToDouble()};
  if (DropoutAttr dropout = op.getDropoutAttr()) {
    params.append({dropout.getRate().getValueAsDouble(), static_cast<double>(dropout.getSite()),
                   static_cast<double>(dropout.getLength())});
    if (dropout.getHeadsBy())
      params.push_back(0); // the device's first head
    return params;
  }
  while (!params.empty() && params.back() == 0)
    params.pop_back();
  return params;
}

/// The first of the device's heads, of which dropout counts those of all devices.
template <typename Op> static SmallVector<Varying> firstHead(Op op) {
  DropoutAttr dropout = op.getDropoutAttr();
  return dropout && dropout.getHeadsBy()
             ? SmallVector<Varying>{{6, dropout.getHeadsBy(), static_cast<int64_t>(op.getHeads())}}
             : SmallVector<Varying>();
}

/// [batch, heads, length], in sums.
static RankedTensorType headStatistic(Value q, int64_t heads) {
  return inSums(q, {tensorOf(q).getDimSize(0), heads, tensorOf(q).getDimSize(1)});
}

static unsigned count(ValueRange values) { return static_cast<unsigned>(values.size()); }

//===-- Attention -----------------------------------------------------------------------------------------------===//

INFER(AttentionOp) {
  Check check{"attention", loc};
  if (failed(check.operands(a, 3, std::numeric_limits<size_t>::max())) || failed(checkAttention(check, a)))
    return failure();
  types.assign({outputType(a), headStatistic(a.getQ(), a.getHeads())});
  return success();
}

Dims AttentionOp::dims() { return attentionDims(*this); }
SmallVector<double> AttentionOp::params() { return attentionParams(*this); }
SmallVector<Varying> AttentionOp::varying() { return TwoRuns(*this, getQ()).varying(5, 6 + getKv().size()); }
SmallVector<Varying> AttentionOp::variedParams() { return firstHead(*this); }
double AttentionOp::flops() { return attentionFlops(*this, 4); }
Flags AttentionOp::flags() {
  return flagsOf({{"causal", getCausal()},
                  {"documents", getStarts() != nullptr},
                  {"dropout", getRows() != nullptr},
                  {"zigzag", getZigzag() > 0},
                  {"packed", getPacked()}});
}
SmallVector<Run> AttentionOp::lists() { return {{1, count(getLists())}}; }

INFER(AttentionMergeOp) {
  Check check{"attention_merge", loc};
  if (failed(check.operands(a, 2, std::numeric_limits<size_t>::max())))
    return failure();
  ValueRange parts = a.getParts();
  if (parts.size() % 2)
    return emitOptionalError(loc, "`attention_merge` expects o and lse of each part, got ", parts.size(), " tensors");
  int64_t heads = a.getHeads();
  if (failed(check.numbers("o", parts[0])) || failed(check.rank("o", parts[0], 3)) ||
      failed(check.heads("o", widthOf(parts[0]), heads, false)))
    return failure();
  Type statistic = headStatistic(parts[0], heads);
  for (size_t i = 0; i < parts.size(); i += 2)
    if (failed(check.same("the first o", parts[0], "every other", parts[i])) ||
        failed(check.type("lse", parts[i + 1], statistic)))
      return failure();
  types.assign({parts[0].getType(), statistic});
  return success();
}

Dims AttentionMergeOp::dims() {
  auto o = tensorOf(getO());
  int64_t heads = getHeads(), parts = count(getParts()) / 2;
  return {o.getDimSize(0), o.getDimSize(1), heads, o.getDimSize(2) / heads, parts};
}
double AttentionMergeOp::flops() { return static_cast<double>(elementsOf(getO())) * count(getParts()); }
SmallVector<Run> AttentionMergeOp::lists() { return {{0, count(getParts())}}; }

INFER(SinkOp) {
  Check check{"sink", loc};
  if (failed(check.operands(a, 3, 3)) || failed(check.numbers("o", a.getO())) || failed(check.rank("o", a.getO(), 3)) ||
      failed(check.rank("s", a.getS(), 1)) || failed(check.sameElements("o", a.getO(), "s", a.getS())) ||
      failed(check.heads("o", widthOf(a.getO()), widthOf(a.getS()), false)) ||
      failed(check.type("lse", a.getLse(), headStatistic(a.getO(), widthOf(a.getS())))))
    return failure();
  types.assign({a.getO().getType(), a.getLse().getType()});
  return success();
}

Dims SinkOp::dims() {
  auto o = tensorOf(getO());
  int64_t heads = widthOf(getS());
  return {o.getDimSize(0), o.getDimSize(1), heads, o.getDimSize(2) / heads};
}
double SinkOp::flops() { return elementsOf(getO()) + 20.0 * elementsOf(getLse()); }

INFER(SinkBwdOp) {
  Check check{"sink_bwd", loc};
  if (failed(check.operands(a, 3, 3)) || failed(check.numbers("s", a.getS())) || failed(check.rank("s", a.getS(), 1)) ||
      failed(check.rank("lse", a.getLse(), 3)) || failed(check.same("lse", a.getLse(), "delta", a.getDelta())) ||
      failed(check.equal("the heads of s,", widthOf(a.getS()), "lse's", tensorOf(a.getLse()).getDimSize(1))))
    return failure();
  types.push_back(inSums(a.getS(), tensorOf(a.getS()).getShape()));
  return check.type("lse", a.getLse(), inSums(a.getS(), tensorOf(a.getLse()).getShape()));
}

Dims SinkBwdOp::dims() {
  auto lse = tensorOf(getLse());
  return {lse.getDimSize(0), lse.getDimSize(2), lse.getDimSize(1)};
}
double SinkBwdOp::flops() { return 12.0 * elementsOf(getLse()); }

INFER(AttentionDeltaOp) {
  Check check{"attention_delta", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("dout", a.getDout())) ||
      failed(check.rank("dout", a.getDout(), 3)) || failed(check.same("dout", a.getDout(), "o", a.getO())) ||
      failed(check.heads("o", widthOf(a.getO()), a.getHeads(), false)))
    return failure();
  types.push_back(headStatistic(a.getO(), a.getHeads()));
  return success();
}

Dims AttentionDeltaOp::dims() {
  auto o = tensorOf(getO());
  int64_t heads = getHeads();
  return {o.getDimSize(0), o.getDimSize(1), heads, o.getDimSize(2) / heads};
}
double AttentionDeltaOp::flops() { return 2.0 * elementsOf(getO()); }

INFER(AttentionBwdOp) {
  Check check{"attention_bwd", loc};
  if (failed(check.operands(a, 6, std::numeric_limits<size_t>::max())) || failed(checkAttention(check, a)) ||
      failed(check.type("dout", a.getDout(), outputType(a))))
    return failure();
  Type statistic = headStatistic(a.getQ(), a.getHeads());
  if (failed(check.type("lse", a.getLse(), statistic)) || failed(check.type("delta", a.getDelta(), statistic)))
    return failure();
  types.push_back(a.getQ().getType());
  if (failed(check.into(a.getAcc(), types[0])))
    return failure();
  if (a.getPacked() && (a.getAcc() || a.getSums() || !a.getKvAcc().empty()))
    return emitOptionalError(loc, "`attention_bwd` expects nothing to add to where it is packed");
  if (a.getPacked())
    return success();
  ValueRange kv = keysOf(ValueRange(a.getLists()));
  for (Value value : kv)
    types.push_back(a.getSums() ? inSums(value, tensorOf(value).getShape()) : value.getType());
  ValueRange sums = a.getKvAcc();
  if (sums.empty())
    return success();
  if (!a.getSums())
    return emitOptionalError(loc, "`attention_bwd` adds dk and dv only in the type of sums; expected `sums`");
  if (sums.size() != kv.size())
    return emitOptionalError(loc, "`attention_bwd` expects a sum for each k and v, got ", sums.size(), " for ",
                             kv.size());
  for (auto [sum, type] : llvm::zip(sums, llvm::drop_begin(types)))
    if (failed(check.into(sum, type)))
      return failure();
  return success();
}

Dims AttentionBwdOp::dims() { return attentionDims(*this); }
SmallVector<double> AttentionBwdOp::params() { return attentionParams(*this); }
SmallVector<Varying> AttentionBwdOp::varying() { return TwoRuns(*this, getQ()).varying(5, 6 + getKv().size()); }
SmallVector<Varying> AttentionBwdOp::variedParams() { return firstHead(*this); }
double AttentionBwdOp::flops() { return attentionFlops(*this, 10); }
Flags AttentionBwdOp::flags() {
  return flagsOf({{"causal", getCausal()},
                  {"documents", getStarts() != nullptr},
                  {"dropout", getRows() != nullptr},
                  {"accumulate", getAcc() != nullptr},
                  {"sums", getSums() && getKvAcc().empty()},
                  {"accumulate_kv", !getKvAcc().empty()},
                  {"zigzag", getZigzag() > 0},
                  {"packed", getPacked()}});
}
SmallVector<Run> AttentionBwdOp::lists() { return {{4, count(getLists())}, {5 + count(getLists()), count(getDkv())}}; }
SmallVector<Tie> AttentionBwdOp::getRequiredTies() {
  unsigned next = 4 + count(getLists());
  SmallVector<Tie> ties;
  if (getAcc())
    ties.push_back({0, next++});
  for (unsigned i = 0; i < getKvAcc().size(); ++i)
    ties.push_back({i + 1, next + i});
  return ties;
}
