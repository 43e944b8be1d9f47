// Writes a formula as kernels of threads for GPUs. A thread computes packs of columns that lie side by side.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Without reductions and sums over rows a thread computes one pack of one row. Otherwise a block goes row by row:
//
//   heads   | 0       | 1       | 0       | 1       |     Groups of G threads share a head; they go from head to head,
//   threads | 0 1 2 3 | 4 5 6 7 | 0 1 2 3 | 4 5 6 7 |     and the threads of a group from pack to pack. (G = 4, with
//   heads   | 2       | 3       | 2       | 3       |     blocks of 8 threads and 4 heads of 8 packs.)
//
// A reduction ends a pass. Each thread puts what it has into shared memory; after a barrier some threads join that, in
// a fixed order; after another one all read the result. A pass reads the tensors again, and the last one stores. So a
// thread reads and writes the same packs in each pass: what is made may lie on what is read. Sums over rows are kept
// for each part of the rows, and `sums` adds up the parts in order: the bits are the same in each run.
#include "lowering/formula/Threads.h"
#include "lowering/formula/Ptx.h"
#include "lowering/formula/Writer.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include <numeric>

using namespace mlir;
using namespace pp;
using namespace pp::nn;

namespace {

constexpr int64_t kMostThreads = 256, kSharedBytes = 48 * 1024, kColumnsOfSums = 32;

/// How threads share a row, in packs of `lanes` columns.
struct Shape {
  int64_t threads, group; ///< of a block, and those that share a head

  Shape(int64_t heads, int64_t columns, int64_t lanes) {
    int64_t packs = static_cast<int64_t>(llvm::PowerOf2Ceil(columns / lanes));
    int64_t all = static_cast<int64_t>(llvm::PowerOf2Ceil(packs * heads));
    threads = std::clamp<int64_t>(all, 32, kMostThreads);
    group = heads == 1 ? threads : std::min<int64_t>(packs, 32);
  }
  [[nodiscard]] int64_t groups() const { return threads / group; }
  /// Shares that one thread joins at first, about as many as the threads that do: 16 of 256.
  [[nodiscard]] int64_t joins() const { return int64_t(1) << llvm::Log2_64(threads) / 2; }
};

/// Whose results a reduction has: the row's, each head's, or those of the columns that heads have in common.
enum class Kind : uint8_t { row, heads, columns };
Kind kindOf(const FormulaPlan &plan, unsigned value, int64_t heads) {
  const Formula::Term &term = plan.formula.at(value);
  if (term.axes & Along::columns)
    return Kind::columns;
  return heads > 1 && (term.axes & Along::heads) ? Kind::heads : Kind::row;
}

/// Where reductions lie in shared memory, in elements of the type of sums. Shares of a pass lie where those of other
/// passes lay; results stay for the row.
struct Places {
  std::map<unsigned, int64_t> shares, results;
  int64_t count = 0;

  Places(const FormulaPlan &plan, const Shape &shape, int64_t heads, int64_t columns) {
    auto take = [](int64_t &from, int64_t elements) { // packs begin at multiples of four
      return std::exchange(from, static_cast<int64_t>(llvm::alignTo(from + elements, 4)));
    };
    for (unsigned number = 0; number < plan.last; ++number) {
      int64_t at = 0;
      for (unsigned value : plan.reductionsOf(number)) {
        Kind kind = kindOf(plan, value, heads);
        shares[value] = take(at, kind == Kind::heads     ? heads * (shape.group + 1) // another bank for each head
                                 : kind == Kind::columns ? shape.groups() * strideOf(columns)
                                                         : shape.threads);
      }
      count = std::max(count, at);
    }
    for (unsigned number = 0; number < plan.last; ++number)
      for (unsigned value : plan.reductionsOf(number)) {
        Kind kind = kindOf(plan, value, heads);
        results[value] = take(count, kind == Kind::heads     ? heads
                                     : kind == Kind::columns ? columns
                                                             : shape.threads / shape.joins());
      }
  }
  /// From the columns of a group to those of the next.
  static int64_t strideOf(int64_t columns) { return static_cast<int64_t>(llvm::alignTo(columns, 4)); }
};

/// Elements of a thread's access: 16 bytes of a full tensor, or fewer where they do not divide the columns.
int64_t packOf(MapOp map) {
  int64_t columns = widthOfFormula(map) / static_cast<int64_t>(map.getHeads());
  return std::gcd(columns, int64_t(16) / (map.elementType().getIntOrFloatBitWidth() / 8));
}

//===-- One kernel ----------------------------------------------------------------------------------------------===//

class ThreadWriter final : FormulaWriter {
public:
  /// The kernels of one formula with this pack, for blocks of this shape.
  ThreadWriter(ImplicitLocOpBuilder &b, const FormulaPlan &plan, MapOp map, int64_t pack);
  void writePacks(StringRef name);
  void writeRows(StringRef name);
  void writeSums(StringRef name);

private:
  void begin(StringRef name);
  void finish();
  Value intrinsic(StringRef name);
  void barrier() { b.create<LLVM::CallIntrinsicOp>(TypeRange(), "llvm.nvvm.barrier0", ValueRange()); }
  void when(Value condition, llvm::function_ref<void()> body);
  Value less(Value x, Value y) { return b.create<arith::CmpIOp>(arith::CmpIPredicate::slt, x, y); }
  Value isZero(Value x) { return b.create<arith::CmpIOp>(arith::CmpIPredicate::eq, x, whole(0)); }
  Value plus(Value x, Value y) { return b.create<arith::AddIOp>(x, y); }
  Value times(Value x, int64_t y) { return b.create<arith::MulIOp>(x, whole(y)); }
  Value quotient(Value x, int64_t y) { return b.create<arith::DivUIOp>(x, whole(y)); }
  Value rest(Value x, int64_t y) { return b.create<arith::RemUIOp>(x, whole(y)); }
  void takeRow(Value row);

  // Shared memory: elements of the type of sums.
  int64_t take(int64_t count) { return std::exchange(shared, static_cast<int64_t>(llvm::alignTo(shared + count, 4))); }
  Value get(Value index) { return b.create<LLVM::LoadOp>(sums, addressOf(sums, memory, index)); }
  void put(Value value, Value index) { b.create<LLVM::StoreOp>(value, addressOf(sums, memory, index)); }
  Value joined(Element op, Value first, int64_t count, int64_t step);

  // Passes over a row.
  Kind kindOf(unsigned value) const { return ::kindOf(plan, value, heads); }
  bool hasColumns(unsigned pass) const;
  Value reduced(unsigned value, Value head, Value column) override;
  void pass(unsigned number);
  void head(unsigned number, ArrayRef<unsigned> needed, const Known &row, Value head);
  void clear(unsigned value);
  void add(unsigned value, Value its);
  Value ofOneHead(unsigned value, Value head, Value its);
  void addColumns(unsigned value, Value its, Value column);
  Value shareOf(unsigned value, Value column);
  Value had(unsigned value);
  void join(ArrayRef<unsigned> reductions);
  void storeLevel(Depth level, const Known &known, Value head, Value column);
  void storeOne(size_t made, Depth level, Value value, Value head, Value column);
  void clearPart(Value base);

  const Shape shape;
  const Places places; ///< of reductions
  const SmallVector<RowSum> sumPlaces;
  const int64_t part;
  int64_t shared = 0;
  bool keepsSums = false;         ///< a block has the sums of its part in shared memory
  std::map<unsigned, Value> own;  ///< by reduction: where this thread has its share
  std::map<unsigned, Value> made; ///< by reduction: the result of the row
  std::string name;
  Value thread, memory, sumsOfPart;
  SmallVector<Value> strides;
  Value lane, group;   ///< a thread's place among those of its head, and its group's
  Value inHead, inRow; ///< 0: this thread stores what a head or a row has one of
};

} // namespace

ThreadWriter::ThreadWriter(ImplicitLocOpBuilder &b, const FormulaPlan &plan, MapOp map, int64_t pack)
    : FormulaWriter(b, plan, map), shape(heads, columns, pack), places(plan, shape, heads, columns),
      sumPlaces(rowSumsOf(map)), part(partOfFormula(map)) {
  lanes = pack;
  packBytes = 16;
  library = "__nv_";
}

//===-- What threads do -----------------------------------------------------------------------------------------===//

/// The function with its arguments (runtime/cuda/FormulaKernel.h).
void ThreadWriter::begin(StringRef its) {
  name = its.str();
  Type i64 = b.getI64Type(), global = LLVM::LLVMPointerType::get(b.getContext(), 1);
  SmallVector<Type> types = {i64, i64, global};
  types.append(elements.size(), global);
  types.append(elements.size(), i64);
  function =
      b.create<LLVM::LLVMFuncOp>(name, LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(b.getContext()), types));
  b.setInsertionPointToEnd(function.addEntryBlock(b));
  auto arguments = function.getArguments().drop_front(3);
  bases.assign(arguments.begin(), arguments.begin() + elements.size());
  strides.assign(arguments.begin() + elements.size(), arguments.end());
  memory = b.create<LLVM::AddressOfOp>(LLVM::LLVMPointerType::get(b.getContext(), 3), "shared_" + name);
  thread = intrinsic("llvm.nvvm.read.ptx.sreg.tid.x");
}

void ThreadWriter::finish() {
  b.create<LLVM::ReturnOp>(ValueRange());
  b.setInsertionPointAfter(function);
  auto type = LLVM::LLVMArrayType::get(sums, std::max<int64_t>(shared, 1));
  b.create<LLVM::GlobalOp>(type, /*isConstant=*/false, LLVM::Linkage::Internal, "shared_" + name, Attribute(),
                           /*alignment=*/16, /*addrSpace=*/3);
}

Value ThreadWriter::intrinsic(StringRef its) {
  Value number = b.create<LLVM::CallIntrinsicOp>(Type(b.getI32Type()), its, ValueRange()).getResult(0);
  return b.create<arith::ExtUIOp>(b.getI64Type(), number);
}

void ThreadWriter::when(Value condition, llvm::function_ref<void()> body) {
  auto choice = b.create<scf::IfOp>(condition, /*withElseRegion=*/false);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(choice.thenBlock());
  body();
}

void ThreadWriter::takeRow(Value row) {
  rows.clear();
  for (size_t i = 0; i < elements.size(); ++i)
    rows.push_back(addressOf(storageOf(elements[i]), bases[i], b.create<arith::MulIOp>(row, strides[i])));
}

/// `count` elements of shared memory, `step` apart, in this order.
Value ThreadWriter::joined(Element op, Value first, int64_t count, int64_t step) {
  Value all = get(first);
  for (int64_t i = 1; i < count; ++i)
    all = combine(op, all, get(plus(first, whole(i * step))));
  return all;
}

//===-- A pack of all rows --------------------------------------------------------------------------------------===//

void ThreadWriter::writePacks(StringRef its) {
  begin(its);
  const int64_t packs = columns / lanes;
  Value block = intrinsic("llvm.nvvm.read.ptx.sreg.ctaid.x");
  Value number = plus(times(block, kMostThreads), thread), count = times(function.getArgument(0), heads * packs);
  when(less(number, count), [&] {
    takeRow(quotient(number, heads * packs));
    inRow = rest(number, heads * packs);
    inHead = rest(inRow, packs);
    Value head = quotient(inRow, packs), column = times(inHead, lanes);
    std::vector<unsigned> needed = plan.neededIn(0);
    Known known;
    for (Depth level : {Depth::row, Depth::head, Depth::column}) {
      computeLevel(level, needed, known, head, column, {});
      storeLevel(level, known, head, column);
    }
  });
  finish();
}

//===-- Row by row ----------------------------------------------------------------------------------------------===//

/// Sets this thread's share to nothing.
void ThreadWriter::clear(unsigned value) {
  const Formula::Term &term = plan.formula.at(value);
  auto vector = VectorType::get(lanes, sums);
  if (kindOf(value) == Kind::columns)
    return loop(times(lane, lanes), whole(columns), shape.group * lanes,
                [&](Value column) { store(sums, real(neutral(term.op), vector), memory, shareOf(value, column), {}); });
  Type type = term.over & Along::columns ? Type(vector) : Type(sums);
  Value &place = own[value];
  if (!place)
    place = allocate(type);
  b.create<LLVM::StoreOp>(real(neutral(term.op), type), place);
}

/// Columns that all heads have in common count once in a reduction over columns alone.
Value ThreadWriter::ofOneHead(unsigned value, Value head, Value its) {
  const Formula::Term &term = plan.formula.at(value);
  if (heads == 1 || term.over != Along::columns || (term.axes & Along::heads))
    return its;
  return b.create<arith::SelectOp>(isZero(head), its, real(neutral(term.op), its.getType()));
}

/// Where this thread's share of a column lies, which its group has of all of its heads.
Value ThreadWriter::shareOf(unsigned value, Value column) {
  return plus(plus(whole(places.shares.at(value)), times(group, Places::strideOf(columns))), column);
}

void ThreadWriter::addColumns(unsigned value, Value its, Value column) {
  Value before = load(sums, memory, shareOf(value, column), {}, /*isVector=*/true);
  store(sums, combine(plan.formula.at(value).op, before, its), memory, shareOf(value, column), {});
}

void ThreadWriter::add(unsigned value, Value its) {
  b.create<LLVM::StoreOp>(combine(plan.formula.at(value).op, b.create<LLVM::LoadOp>(its.getType(), own[value]), its),
                          own[value]);
}

/// This thread's share, its lanes joined.
Value ThreadWriter::had(unsigned value) {
  const Formula::Term &term = plan.formula.at(value);
  if (!(term.over & Along::columns))
    return b.create<LLVM::LoadOp>(sums, own[value]);
  Value all = b.create<LLVM::LoadOp>(VectorType::get(lanes, sums), own[value]);
  Value share = b.create<vector::ExtractOp>(all, 0);
  for (int64_t i = 1; i < lanes; ++i)
    share = combine(term.op, share, b.create<vector::ExtractOp>(all, i));
  return share;
}

Value ThreadWriter::reduced(unsigned value, Value head, Value column) {
  Kind kind = kindOf(value);
  if (kind == Kind::row)
    return made[value];
  Value first = whole(places.results.at(value));
  return kind == Kind::heads ? get(plus(first, head)) : load(sums, memory, plus(first, column), {}, /*isVector=*/true);
}

/// Joins what the threads have, in a fixed order, for all of them.
void ThreadWriter::join(ArrayRef<unsigned> reductions) {
  const int64_t joins = shape.joins(), joiners = shape.threads / joins;
  auto finished = [&](unsigned value, Value sum) -> Value {
    const Formula::Term &term = plan.formula.at(value);
    return term.op == Element::mean_over ? b.create<arith::DivFOp>(sum, real(countOf(term), sums)) : sum;
  };
  barrier();
  for (unsigned value : reductions) {
    Element op = plan.formula.at(value).op;
    Value share = whole(places.shares.at(value)), result = whole(places.results.at(value));
    auto each = [&](int64_t count, int64_t factor, int64_t shares, int64_t step) {
      loop(thread, whole(count), shape.threads, [&](Value number) {
        put(finished(value, joined(op, plus(share, times(number, factor)), shares, step)), plus(result, number));
      });
    };
    if (kindOf(value) == Kind::heads)
      each(heads, shape.group + 1, shape.group, 1);
    else if (kindOf(value) == Kind::columns)
      each(columns, 1, shape.groups(), Places::strideOf(columns));
    else
      when(less(thread, whole(joiners)),
           [&] { put(joined(op, plus(share, thread), joins, joiners), plus(result, thread)); });
  }
  barrier();
  for (unsigned value : reductions)
    if (kindOf(value) == Kind::row)
      made[value] = finished(value, joined(plan.formula.at(value).op, whole(places.results.at(value)), joiners, 1));
}

/// Stores what is made of values of this level.
void ThreadWriter::storeLevel(Depth level, const Known &known, Value head, Value column) {
  for (auto [i, each] : llvm::enumerate(plan.made)) {
    if (depthOf(each.axes) != level)
      continue;
    Value value = known.lookup(each.value);
    bool isOfEachHead = (each.axes | plan.formula.at(each.value).axes) & Along::heads;
    auto store = [&, i = i] { storeOne(i, level, value, head, column); };
    if (level == Depth::row)
      when(isZero(inRow), store);
    else if (level == Depth::head)
      when(isZero(inHead), store);
    else if (!isOfEachHead && heads > 1) // all heads come to the same element: it is added once
      when(isZero(head), store);
    else
      store();
  }
}

/// Stores one element or pack, or adds it to its sum over the rows of the part. A sum's element is always the same
/// thread's.
void ThreadWriter::storeOne(size_t number, Depth level, Value value, Value head, Value column) {
  Formula::Made each = plan.made[number];
  if (level == Depth::column)
    value = splat(value);
  if (each.axes & Along::rows) {
    Value index, base = place(reads + number, each.axes, head, column, index);
    return store(elements[reads + number], value, base, index, {});
  }
  const RowSum &sum = sumPlaces[number];
  Value index = whole(sum.first);
  if (level != Depth::row && sum.count * sum.times > (level == Depth::column ? columns : 1))
    index = plus(index, times(head, level == Depth::column ? columns : 1));
  if (level == Depth::column)
    index = plus(index, column);
  Value before = load(sums, sumsOfPart, index, {}, level == Depth::column);
  store(sums, b.create<arith::AddFOp>(before, value), sumsOfPart, index, {});
}

bool ThreadWriter::hasColumns(unsigned number) const {
  auto isOverColumns = [&](unsigned value) {
    return (plan.formula.at(value).over & Along::columns) || kindOf(value) == Kind::columns;
  };
  auto isColumn = [](Formula::Made each) { return depthOf(each.axes) == Depth::column; };
  return llvm::any_of(plan.reductionsOf(number), isOverColumns) ||
         (number == plan.last && llvm::any_of(plan.made, isColumn));
}

void ThreadWriter::head(unsigned number, ArrayRef<unsigned> needed, const Known &row, Value head) {
  Known known = row;
  SmallVector<unsigned> its = plan.reductionsOf(number);
  computeLevel(Depth::head, needed, known, head, {}, {});
  for (unsigned value : its)
    if (const Formula::Term &term = plan.formula.at(value); term.over == Along::heads && kindOf(value) != Kind::columns)
      add(value, b.create<arith::SelectOp>(isZero(lane), known.lookup(term.of[0]), real(neutral(term.op), sums)));
  for (unsigned value : its)
    if (kindOf(value) == Kind::heads)
      clear(value);
  if (hasColumns(number))
    loop(times(lane, lanes), whole(columns), shape.group * lanes, [&](Value column) {
      Known here = known;
      computeLevel(Depth::column, needed, here, head, column, {});
      for (unsigned value : its)
        if (const Formula::Term &term = plan.formula.at(value); kindOf(value) == Kind::columns)
          addColumns(value, here.lookup(term.of[0]), column);
        else if (term.over & Along::columns)
          add(value, ofOneHead(value, head, splat(here.lookup(term.of[0]))));
      if (number == plan.last)
        storeLevel(Depth::column, here, head, column);
    });
  for (unsigned value : its)
    if (kindOf(value) == Kind::heads)
      put(had(value), plus(whole(places.shares.at(value)), plus(times(head, shape.group + 1), lane)));
  if (number == plan.last)
    storeLevel(Depth::head, known, head, {});
}

void ThreadWriter::pass(unsigned number) {
  SmallVector<unsigned> its = plan.reductionsOf(number);
  std::vector<unsigned> needed = plan.neededIn(number);
  Known known;
  computeLevel(Depth::row, needed, known, {}, {}, {});
  for (unsigned value : its)
    if (kindOf(value) != Kind::heads)
      clear(value);
  loop(group, whole(heads), shape.groups(), [&](Value at) { head(number, needed, known, at); });
  for (unsigned value : its)
    if (kindOf(value) == Kind::row)
      put(had(value), plus(whole(places.shares.at(value)), thread));
  if (number == plan.last)
    storeLevel(Depth::row, known, {}, {});
  else
    join(its);
}

void ThreadWriter::writeRows(StringRef its) {
  begin(its);
  take(places.count);
  keepsSums = (shared + part) * sums.getWidth() / 8 <= kSharedBytes;
  lane = inHead = rest(thread, shape.group), group = quotient(thread, shape.group), inRow = thread;
  Value block = intrinsic("llvm.nvvm.read.ptx.sreg.ctaid.x"), rowsOfPart = function.getArgument(1);
  Value first = b.create<arith::MulIOp>(block, rowsOfPart);
  Value end = b.create<arith::MinSIOp>(plus(first, rowsOfPart), function.getArgument(0));
  Value inMemory = addressOf(sums, function.getArgument(2), times(block, part));
  sumsOfPart = keepsSums && part > 0 ? addressOf(sums, memory, whole(take(part))) : inMemory;
  auto eachSum = [&](llvm::function_ref<void(Value)> body) { loop(thread, whole(part), shape.threads, body); };
  if (part > 0) {
    eachSum([&](Value i) { b.create<LLVM::StoreOp>(real(0, sums), addressOf(sums, sumsOfPart, i)); });
    if (plan.last == 0) // else reductions come first, with barriers
      barrier();
  }
  loop(first, end, 1, [&](Value row) {
    takeRow(row);
    for (unsigned number = 0; number <= plan.last; ++number)
      pass(number);
  });
  if (part > 0 && keepsSums) {
    barrier();
    eachSum([&](Value i) {
      Value sum = b.create<LLVM::LoadOp>(sums, addressOf(sums, sumsOfPart, i));
      b.create<LLVM::StoreOp>(sum, addressOf(sums, inMemory, i));
    });
  }
  finish();
}

//===-- Sums of parts -------------------------------------------------------------------------------------------===//

/// 32 elements of each sum a block. Of 8 threads of an element each adds up every eighth part.
void ThreadWriter::writeSums(StringRef its) {
  begin(its);
  constexpr int64_t slices = kMostThreads / kColumnsOfSums;
  take(kMostThreads);
  Value column = rest(thread, kColumnsOfSums), slice = quotient(thread, kColumnsOfSums);
  Value element = plus(times(intrinsic("llvm.nvvm.read.ptx.sreg.ctaid.x"), kColumnsOfSums), column);
  Value rowsOfPart = function.getArgument(1), rounded = plus(function.getArgument(0), plus(rowsOfPart, whole(-1)));
  Value count = b.create<arith::DivUIOp>(rounded, rowsOfPart);
  const RowSum *first = llvm::find_if(sumPlaces, [](const RowSum &sum) { return sum.count > 0; });
  for (auto [i, sum] : llvm::enumerate(sumPlaces)) {
    if (sum.count == 0)
      continue;
    Value share = allocate(sums), isThere = less(element, whole(sum.count));
    b.create<LLVM::StoreOp>(real(0, sums), share);
    Value end = b.create<arith::SelectOp>(isThere, count, whole(0));
    loop(slice, end, slices, [&, &sum = sum](Value number) {
      Value begin = plus(times(number, part), plus(whole(sum.first), element));
      loop(whole(0), whole(sum.times), 1, [&](Value time) {
        Value its =
            b.create<LLVM::LoadOp>(sums, addressOf(sums, function.getArgument(2), plus(begin, times(time, sum.count))));
        b.create<LLVM::StoreOp>(b.create<arith::AddFOp>(b.create<LLVM::LoadOp>(sums, share), its), share);
      });
    });
    if (&sum != first) // its shares have been read
      barrier();
    put(b.create<LLVM::LoadOp>(sums, share), thread);
    barrier();
    when(b.create<arith::AndIOp>(isThere, isZero(slice)), [&, i = i] {
      store(sums, joined(Element::sum_over, column, slices, kColumnsOfSums), bases[reads + i], element, {});
    });
  }
  finish();
}

//===-- All kernels ---------------------------------------------------------------------------------------------===//

FormulaLaunch::FormulaLaunch(MapOp map) {
  FormulaPlan plan(map);
  auto heads = static_cast<int64_t>(map.getHeads()), columns = widthOfFormula(map) / heads;
  for (const RowSum &sum : rowSumsOf(map))
    longest = std::max(longest, sum.count);
  part = partOfFormula(map);
  pack = packOf(map);
  byRows = plan.last > 0 || part > 0;
  wideThreads = byRows ? Shape(heads, columns, pack).threads : kMostThreads;
  narrowThreads = byRows ? Shape(heads, columns, 1).threads : kMostThreads;
}

std::string pp::whyNoThreads(MapOp map) {
  FormulaPlan plan(map);
  auto heads = static_cast<int64_t>(map.getHeads()), columns = widthOfFormula(map) / heads, most = int64_t(0);
  for (int64_t pack : {int64_t(1), packOf(map)})
    most = std::max(most, Places(plan, Shape(heads, columns, pack), heads, columns).count);
  const int64_t bytes = most * static_cast<int64_t>(sumType(map.elementType()).getIntOrFloatBitWidth()) / 8;
  if (bytes > kSharedBytes)
    return (Twine("the reductions of this formula over ") + Twine(heads) + " heads need " + Twine(bytes) +
            " bytes of a GPU's shared memory, and a block has " + Twine(kSharedBytes) +
            "; make parts of it, or compile with `--target=cpu`")
        .str();
  bool callsFunctions = false;
  for (unsigned value = 0; value < plan.formula.size(); ++value)
    callsFunctions |= plan.formula.at(value).op >= Element::exp && plan.formula.at(value).op <= Element::softplus;
  if (map.elementType().isF64() && callsFunctions && !hasFunctionsOfF64())
    return "functions of f64 on GPUs need CUDA's toolkit where programs are compiled, and its file libdevice.10.bc is "
           "not there; take f32 or bf16, or compile with `--target=cpu`";
  return "";
}

FailureOr<std::string> pp::writeThreads(MapOp map) {
  PtxModule ptx;
  FormulaPlan plan(map);
  FormulaLaunch launch(map);
  ImplicitLocOpBuilder &b = ptx.builder();
  auto writeOne = [&](StringRef name, int64_t pack, int64_t threads) {
    ThreadWriter writer(b, plan, map, pack);
    launch.byRows ? writer.writeRows(name) : writer.writePacks(name);
    return ptx.addKernel(name, threads);
  };
  auto writeSums = [&] {
    ThreadWriter(b, plan, map, 1).writeSums("sums");
    return ptx.addKernel("sums", kMostThreads);
  };
  FailureOr<std::string> text = failure();
  if ((launch.pack == 1 || succeeded(writeOne("wide", launch.pack, launch.wideThreads))) &&
      succeeded(writeOne("narrow", 1, launch.narrowThreads)) && (launch.part == 0 || succeeded(writeSums())))
    text = ptx.print();
  if (failed(text))
    return map.emitOpError("cannot be lowered to PTX");
  return text;
}
