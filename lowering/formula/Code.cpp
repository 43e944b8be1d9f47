// Writes a formula as loops over rows, heads and blocks of columns, with explicit vectors, and lowers them to LLVM.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   for each row:
//     for each pass: numbers of the row
//       for each head: numbers of the head; for each block of its columns: elements, and their part of reductions
//   the last pass stores what is made
//
// A reduction ends a pass: what reads it is computed in a later one, from the tensors again, which lie in the cache.
// Masks cut the last block, so an element's bits do not depend on its place.
#include "lowering/formula/Code.h"
#include "lowering/formula/Writer.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/IR/Module.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/TargetParser/Triple.h"

using namespace mlir;
using namespace pp;
using namespace pp::nn;

namespace {

struct InstructionSet {
  llvm::StringLiteral name, features, width;
  bool hasFma;
};
constexpr InstructionSet kSets[kFormulaSets] = {
    {"plain", "", "128", false},
    {"avx2", "+avx2,+fma,+f16c", "256", true},
    {"avx512", "+avx2,+fma,+f16c,+avx512f,+avx512bw,+avx512dq,+avx512vl", "512", true}};

//===-- One function --------------------------------------------------------------------------------------------===//

class Writer final : FormulaWriter {
public:
  Writer(ImplicitLocOpBuilder &b, const FormulaPlan &plan, MapOp map, const InstructionSet &set);
  void write(LLVM::LLVMFuncOp function);

private:
  struct Reduction {
    Value parts;  ///< where what the blocks or heads have so far lies
    Value result; ///< where the results lie, one for each head or one
  };

  void pass(unsigned number);
  void head(unsigned number, ArrayRef<unsigned> needed, const Known &row, Value head);
  void block(unsigned number, ArrayRef<unsigned> needed, Known known, Value head, Value column, Value mask);
  void begin(ArrayRef<unsigned> reductions, bool perHead);
  void end(ArrayRef<unsigned> reductions, bool perHead, Value head);
  void storeLevel(Depth level, Known &known, Value head, Value column, Value mask);
  Value reduced(unsigned value, Value head, Value column) override;
  bool isPerHead(unsigned reduction) const { return plan.formula.at(reduction).over == Along::columns; }

  std::map<unsigned, Reduction> reductions;
};

} // namespace

Writer::Writer(ImplicitLocOpBuilder &b, const FormulaPlan &plan, MapOp map, const InstructionSet &set)
    : FormulaWriter(b, plan, map) {
  hasFma = set.hasFma;
  lanes = std::clamp<int64_t>(static_cast<int64_t>(llvm::PowerOf2Ceil(columns)), 4, sums.isF64() ? 16 : 32);
}

Value Writer::reduced(unsigned value, Value head, Value /*column*/) {
  Value index = plan.formula.at(value).axes & Along::heads ? head : whole(0);
  return b.create<LLVM::LoadOp>(sums, addressOf(sums, reductions[value].result, index));
}

/// Sets what has been reduced to nothing.
void Writer::begin(ArrayRef<unsigned> these, bool perHead) {
  for (unsigned value : these) {
    const Formula::Term &term = plan.formula.at(value);
    if (isPerHead(value) != perHead)
      continue;
    Type type = term.over & Along::columns ? Type(VectorType::get(lanes, sums)) : Type(sums);
    b.create<LLVM::StoreOp>(real(neutral(term.op), type), reductions[value].parts);
  }
}

/// Joins the parts, and stores the results: of one head, or of the row.
void Writer::end(ArrayRef<unsigned> these, bool perHead, Value head) {
  for (unsigned value : these) {
    const Formula::Term &term = plan.formula.at(value);
    if (isPerHead(value) != perHead)
      continue;
    Value sum;
    if (term.over & Along::columns) {
      Value parts = b.create<LLVM::LoadOp>(VectorType::get(lanes, sums), reductions[value].parts);
      auto kind = term.op == Element::max_over   ? vector::CombiningKind::MAXIMUMF
                  : term.op == Element::min_over ? vector::CombiningKind::MINIMUMF
                                                 : vector::CombiningKind::ADD;
      sum = b.create<vector::ReductionOp>(kind, parts, arith::FastMathFlags::reassoc);
    } else {
      sum = b.create<LLVM::LoadOp>(sums, reductions[value].parts);
    }
    if (term.op == Element::mean_over)
      sum = b.create<arith::DivFOp>(sum, real(countOf(term), sums));
    Value index = term.axes & Along::heads ? head : whole(0);
    b.create<LLVM::StoreOp>(sum, addressOf(sums, reductions[value].result, index));
  }
}

/// Stores what is made of values of this level, or adds it to the sum over all rows.
void Writer::storeLevel(Depth level, Known &known, Value head, Value column, Value mask) {
  for (auto [i, each] : llvm::enumerate(plan.made)) {
    if (depthOf(each.axes) != level)
      continue;
    Value value = known.lookup(each.value), index, base = place(reads + i, each.axes, head, column, index);
    Type element = elements[reads + i];
    if (level == Depth::column)
      value = splat(value);
    OpBuilder::InsertionGuard guard(b);
    bool isOfEachHead = (each.axes | plan.formula.at(each.value).axes) & Along::heads;
    if (level == Depth::column && !isOfEachHead && heads > 1) { // all heads come to the same element: it is added once
      Value isFirst = b.create<arith::CmpIOp>(arith::CmpIPredicate::eq, head, whole(0));
      b.setInsertionPointToStart(b.create<scf::IfOp>(isFirst, /*withElseRegion=*/false).thenBlock());
    }
    if (!(each.axes & Along::rows))
      value = b.create<arith::AddFOp>(load(element, base, index, mask, level == Depth::column), value);
    store(element, value, base, index, mask);
  }
}

void Writer::block(unsigned number, ArrayRef<unsigned> needed, Known known, Value head, Value column, Value mask) {
  computeLevel(Depth::column, needed, known, head, column, mask);
  auto type = VectorType::get(lanes, sums);
  for (unsigned value : plan.reductionsOf(number)) {
    const Formula::Term &term = plan.formula.at(value);
    if (!(term.over & Along::columns))
      continue;
    Value its = splat(known.lookup(term.of[0])), parts = reductions[value].parts;
    if (mask)
      its = b.create<arith::SelectOp>(mask, its, real(neutral(term.op), type));
    b.create<LLVM::StoreOp>(combine(term.op, b.create<LLVM::LoadOp>(type, parts), its), parts);
  }
  if (number == plan.last)
    storeLevel(Depth::column, known, head, column, mask);
}

void Writer::head(unsigned number, ArrayRef<unsigned> needed, const Known &row, Value head) {
  Known known = row;
  SmallVector<unsigned> its = plan.reductionsOf(number);
  computeLevel(Depth::head, needed, known, head, {}, {});
  for (unsigned value : its)
    if (const Formula::Term &term = plan.formula.at(value); term.over == Along::heads) {
      Value parts = reductions[value].parts, sum = b.create<LLVM::LoadOp>(sums, parts);
      b.create<LLVM::StoreOp>(combine(term.op, sum, known.lookup(term.of[0])), parts);
    }
  bool hasColumns = llvm::any_of(its, [&](unsigned value) { return plan.formula.at(value).over & Along::columns; }) ||
                    (number == plan.last &&
                     llvm::any_of(plan.made, [](Formula::Made each) { return depthOf(each.axes) == Depth::column; }));
  if (hasColumns) {
    begin(its, /*perHead=*/true);
    int64_t rest = columns % lanes;
    if (columns > rest)
      loop(whole(0), whole(columns - rest), lanes,
           [&](Value column) { block(number, needed, known, head, column, {}); });
    if (rest) {
      SmallVector<bool> isThere(lanes);
      std::fill_n(isThere.begin(), rest, true);
      auto type = VectorType::get(lanes, b.getI1Type());
      Value mask = b.create<arith::ConstantOp>(DenseElementsAttr::get(type, ArrayRef<bool>(isThere)));
      block(number, needed, known, head, whole(columns - rest), mask);
    }
    end(its, /*perHead=*/true, head);
  }
  if (number == plan.last)
    storeLevel(Depth::head, known, head, {}, {});
}

void Writer::pass(unsigned number) {
  SmallVector<unsigned> its = plan.reductionsOf(number);
  std::vector<unsigned> needed = plan.neededIn(number);
  Known known;
  computeLevel(Depth::row, needed, known, {}, {}, {});
  begin(its, /*perHead=*/false);
  loop(whole(0), whole(heads), 1, [&](Value at) { head(number, needed, known, at); });
  end(its, /*perHead=*/false, {});
  if (number == plan.last)
    storeLevel(Depth::row, known, {}, {}, {});
}

void Writer::write(LLVM::LLVMFuncOp its) {
  function = its;
  Block *entry = function.addEntryBlock(b);
  b.setInsertionPointToEnd(entry);
  auto read = [&](Type type, Value base, int64_t i) -> Value {
    return b.create<LLVM::LoadOp>(type, b.create<LLVM::GEPOp>(pointer, type, base, ArrayRef<LLVM::GEPArg>{int32_t(i)}));
  };
  SmallVector<Value> strides;
  for (size_t i = 0; i < elements.size(); ++i) {
    bases.push_back(read(pointer, function.getArgument(2), static_cast<int64_t>(i)));
    strides.push_back(read(b.getI64Type(), function.getArgument(1), static_cast<int64_t>(i)));
  }
  for (unsigned value = 0; value < plan.formula.size(); ++value)
    if (const Formula::Term &term = plan.formula.at(value); isReduction(term.op) && plan.passes[value] <= plan.last) {
      Type parts = term.over & Along::columns ? Type(VectorType::get(lanes, sums)) : Type(sums);
      reductions[value] = {allocate(parts), allocate(sums, heads)};
    }
  for (auto [i, each] : llvm::enumerate(plan.made))
    if (!(each.axes & Along::rows)) {
      int64_t count = (each.axes & Along::heads ? heads : 1) * (each.axes & Along::columns ? columns : 1);
      b.create<LLVM::MemsetOp>(bases[reads + i], b.create<arith::ConstantIntOp>(0, 8),
                               whole(count * elements[reads + i].getIntOrFloatBitWidth() / 8), /*isVolatile=*/false);
    }
  loop(whole(0), function.getArgument(0), 1, [&](Value row) {
    for (size_t i = 0; i < elements.size(); ++i)
      rows.push_back(addressOf(storageOf(elements[i]), bases[i], b.create<arith::MulIOp>(row, strides[i])));
    for (unsigned number = 0; number <= plan.last; ++number)
      pass(number);
  });
  b.create<LLVM::ReturnOp>(ValueRange());
}

//===-- All functions -------------------------------------------------------------------------------------------===//

/// No loop over heads lies inside one over columns, and x86 alone has the sets.
static bool hasCode(MapOp map, unsigned set) {
  if (FormulaPlan(map).reducesHeadsOfColumns())
    return false;
  bool isX86 = llvm::Triple(llvm::sys::getDefaultTargetTriple()).isX86();
  bool hasF16 = llvm::any_of(
      tensorsOf(map), [](Value tensor) { return cast<RankedTensorType>(tensor.getType()).getElementType().isF16(); });
  return set == 0 ? !isX86 || !hasF16 : isX86;
}

std::string pp::formulaFunction(MapOp map, unsigned set) {
  return hasCode(map, set) ? ("pp_formula_" + Twine(numberOfFormula(map)) + "_" + kSets[set].name).str() : "";
}

static LLVM::LLVMFuncOp addFunction(ImplicitLocOpBuilder &b, StringRef name, const InstructionSet &set) {
  Type pointer = LLVM::LLVMPointerType::get(b.getContext());
  auto type = LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(b.getContext()), {b.getI64Type(), pointer, pointer});
  auto function = b.create<LLVM::LLVMFuncOp>(name, type);
  SmallVector<StringRef> features;
  set.features.split(features, ',', -1, /*KeepEmpty=*/false);
  if (!features.empty()) {
    function.setTargetFeaturesAttr(LLVM::TargetFeaturesAttr::get(b.getContext(), features));
    function.setPassthroughAttr(b.getArrayAttr(b.getStrArrayAttr({"prefer-vector-width", set.width})));
  }
  return function;
}

LogicalResult pp::lowerFormulas(ArrayRef<MapOp> maps, llvm::TargetMachine &machine, llvm::LLVMContext &context,
                                std::unique_ptr<llvm::Module> &result) {
  DialectRegistry registry;
  registerWritten(registry);
  MLIRContext own(registry, MLIRContext::Threading::DISABLED); // ranks are lowered side by side
  own.loadAllAvailableDialects();
  ImplicitLocOpBuilder b(UnknownLoc::get(&own), &own);
  OwningOpRef<ModuleOp> module = ModuleOp::create(b.getLoc());
  for (MapOp map : maps) {
    FormulaPlan plan(map);
    for (auto [i, set] : llvm::enumerate(kSets))
      if (std::string name = formulaFunction(map, i); !name.empty()) {
        b.setInsertionPointToEnd(module->getBody());
        LLVM::LLVMFuncOp function = addFunction(b, name, set);
        Writer(b, plan, map, set).write(function);
        if (failed(approximateFunctions(function, set.hasFma)))
          return map.emitOpError("cannot be lowered: MLIR's approximations of functions failed");
      }
  }
  return lowerWritten(*module, machine, context, result);
}
