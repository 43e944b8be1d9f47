// Writes a formula as loops over rows, heads and blocks of columns, with explicit vectors, and lowers them to LLVM.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   for each row:
//     for each pass: numbers of the row
//       for each head: numbers of the head; for each block of its columns: elements, and their part of reductions
//   the last pass stores what is made
//
// A reduction ends a pass: what reads it is computed in a later one, from the tensors again, which lie in the cache.
// Masks cut the last block, so an element's bits do not depend on its place. Elements are rounded by integers where
// LLVM would call a library; multiply-adds are made here or not at all.
#include "lowering/FormulaCode.h"
#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"
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

/// How deep a value lies in the loops.
enum class Level : uint8_t { row, head, column };
Level levelOf(unsigned axes) {
  return axes & Along::columns ? Level::column : axes & Along::heads ? Level::head : Level::row;
}

/// Variances as means, sums of what is the same all along as products, and sums over the axes that made values without
/// columns lack.
struct Plan {
  Formula formula;
  SmallVector<Formula::Made> made;
  std::vector<unsigned> passes; ///< by value: the first in which it can be computed
  unsigned last = 0;

  explicit Plan(MapOp map);
};

Plan::Plan(MapOp map) {
  MapFormula its = formulaOf(map);
  auto heads = static_cast<int64_t>(map.getHeads()), columns = widthOfFormula(map) / heads;
  std::vector<unsigned> now;
  for (unsigned value = 0; value < its.formula.size(); ++value) {
    const Formula::Term &term = its.formula.at(value);
    auto of = llvm::map_to_vector(term.of, [&](unsigned operand) { return now[operand]; });
    if (term.op == Element::leaf) {
      now.push_back(formula.leaf(term.leaf, term.axes));
    } else if (term.op == Element::number) {
      now.push_back(formula.number(term.number));
    } else if (isReduction(term.op) && !(formula.at(of[0]).axes & term.over) && term.op != Element::variance_over) {
      int64_t count = (term.over & Along::heads ? heads : 1) * (term.over & Along::columns ? columns : 1);
      bool isSum = term.op == Element::sum_over;
      now.push_back(isSum ? formula.make(Element::mul, {of[0], formula.number(static_cast<double>(count))}) : of[0]);
    } else if (term.op == Element::variance_over) {
      unsigned mean = formula.keep(Element::mean_over, of, term.over), far = formula.keep(Element::sub, {of[0], mean});
      now.push_back(formula.keep(Element::mean_over, formula.keep(Element::mul, {far, far}), term.over));
    } else {
      now.push_back(formula.keep(term.op, of, term.over));
    }
  }
  for (Formula::Made each : its.made) {
    unsigned value = now[each.value];
    if (unsigned over = formula.at(value).axes & Along::width & ~each.axes; over && !(each.axes & Along::columns))
      value = formula.keep(Element::sum_over, value, over);
    made.push_back({value, each.axes});
  }
  for (unsigned value = 0; value < formula.size(); ++value) {
    unsigned pass = 0;
    for (unsigned operand : formula.at(value).of)
      pass = std::max(pass, passes[operand]);
    passes.push_back(pass + (isReduction(formula.at(value).op) ? 1 : 0));
  }
  for (Formula::Made each : made)
    last = std::max(last, passes[each.value]);
}

//===-- One function --------------------------------------------------------------------------------------------===//

class Writer {
public:
  Writer(ImplicitLocOpBuilder &b, const Plan &plan, MapOp map, const InstructionSet &set);
  void write(LLVM::LLVMFuncOp function);

private:
  struct Reduction {
    Value parts;  ///< where what the blocks or heads have so far lies
    Value result; ///< where the results lie, one for each head or one
  };
  using Known = llvm::DenseMap<unsigned, Value>;

  // Constants, loops and memory.
  Value whole(int64_t number) { return b.create<arith::ConstantIntOp>(number, 64); }
  Value real(double number, Type type);
  Value bits(int64_t number, Type like);
  void loop(Value from, Value to, int64_t step, llvm::function_ref<void(Value)> body);
  Value allocate(Type type, int64_t count = 1);
  Type storageOf(Type element) { return element.isBF16() ? Type(b.getI16Type()) : element; }
  Value widen(Type element, Value value);
  Value narrow(Type element, Value value);
  Value load(Type element, Value base, Value index, Value mask, bool isVector);
  void store(Type element, Value value, Value base, Value index, Value mask);
  Value fromBits(Value bits);
  Value toBits(Value value);
  Type like(Type scalar, Type shape) const;
  Value splat(Value value);
  Value place(size_t tensor, unsigned axes, Value head, Value column, Value &index);

  // Arithmetic.
  Value multiplyAdd(Value x, Value y, Value z);
  Value polynomial(Value x, ArrayRef<double> powers);
  Value clampedExp(Value x);
  Value tanh(Value x);
  Value library(StringRef name, Value x);
  Value function(Element op, Value x);
  Value compute(const Formula::Term &term, ArrayRef<Value> of);
  Value combine(Element op, Value x, Value y);
  double neutral(Element op) const;

  // Passes.
  void pass(unsigned number);
  void head(unsigned number, ArrayRef<unsigned> needed, const Known &row, Value head);
  void block(unsigned number, ArrayRef<unsigned> needed, Known known, Value head, Value column, Value mask);
  void computeLevel(Level level, ArrayRef<unsigned> needed, Known &known, Value head, Value column, Value mask);
  void begin(ArrayRef<unsigned> reductions, bool perHead);
  void end(ArrayRef<unsigned> reductions, bool perHead, Value head);
  void storeLevel(Level level, Known &known, Value head, Value column, Value mask);
  SmallVector<unsigned> reductionsOf(unsigned number) const;
  bool isPerHead(unsigned reduction) const { return plan.formula.at(reduction).over == Along::columns; }

  ImplicitLocOpBuilder &b;
  const Plan &plan;
  const InstructionSet &set;
  int64_t heads, columns, lanes;
  FloatType sums;
  Type pointer, full;             ///< `full`: of full tensors
  SmallVector<Type> elements;     ///< by tensor, what is read first
  SmallVector<unsigned> axes;     ///< by tensor
  SmallVector<Value> bases, rows; ///< by tensor: its address, and that of the row
  std::map<unsigned, Reduction> reductions;
  LLVM::LLVMFuncOp own;
  size_t reads;
};

/// What is read, then what is made.
SmallVector<Value> tensorsOf(MapOp map) {
  SmallVector<Value> all(map.getTensors());
  llvm::append_range(all, map.getMade());
  return all;
}

/// The type of another context.
Type copyOf(Type type, MLIRContext *context) {
  Builder builder(context);
  return type.isBF16()  ? Type(builder.getBF16Type())
         : type.isF16() ? Type(builder.getF16Type())
         : type.isF64() ? Type(builder.getF64Type())
                        : Type(builder.getF32Type());
}

} // namespace

Writer::Writer(ImplicitLocOpBuilder &b, const Plan &plan, MapOp map, const InstructionSet &set)
    : b(b), plan(plan), set(set), heads(static_cast<int64_t>(map.getHeads())), columns(widthOfFormula(map) / heads),
      pointer(LLVM::LLVMPointerType::get(b.getContext())), reads(map.getTensors().size()) {
  sums = cast<FloatType>(copyOf(sumType(map.elementType()), b.getContext()));
  full = copyOf(map.elementType(), b.getContext());
  lanes = std::clamp<int64_t>(static_cast<int64_t>(llvm::PowerOf2Ceil(columns)), 4, sums.isF64() ? 16 : 32);
  for (Value tensor : tensorsOf(map))
    elements.push_back(copyOf(cast<RankedTensorType>(tensor.getType()).getElementType(), b.getContext()));
  for (ArrayAttr texts : {map.getReads(), map.getMakes()})
    for (StringRef text : texts.getAsValueRange<StringAttr>())
      axes.push_back(*Along::read(text));
}

//===-- Constants, loops and memory -----------------------------------------------------------------------------===//

Type Writer::like(Type scalar, Type shape) const {
  auto vector = dyn_cast<VectorType>(shape);
  return vector ? Type(VectorType::get(vector.getShape(), scalar)) : scalar;
}

Value Writer::real(double number, Type type) {
  TypedAttr value = b.getFloatAttr(sums, number);
  if (isa<VectorType>(type))
    value = DenseElementsAttr::get(cast<ShapedType>(like(sums, type)), ArrayRef<Attribute>(value));
  return b.create<arith::ConstantOp>(value);
}

Value Writer::bits(int64_t number, Type type) {
  TypedAttr value = b.getI32IntegerAttr(static_cast<int32_t>(number));
  if (isa<VectorType>(type))
    value = DenseElementsAttr::get(cast<ShapedType>(like(b.getI32Type(), type)), ArrayRef<Attribute>(value));
  return b.create<arith::ConstantOp>(value);
}

void Writer::loop(Value from, Value to, int64_t step, llvm::function_ref<void(Value)> body) {
  auto loop = b.create<scf::ForOp>(from, to, whole(step));
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  body(loop.getInductionVar());
}

/// In the first block of the function, so that LLVM keeps it in registers where it can.
Value Writer::allocate(Type type, int64_t count) {
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(&own.getBody().front());
  return b.create<LLVM::AllocaOp>(pointer, type, whole(count));
}

Value Writer::fromBits(Value bits) { return b.create<arith::BitcastOp>(like(b.getF32Type(), bits.getType()), bits); }
Value Writer::toBits(Value value) { return b.create<arith::BitcastOp>(like(b.getI32Type(), value.getType()), value); }

/// As it is stored, to the type of sums.
Value Writer::widen(Type element, Value value) {
  auto type = value.getType();
  if (element.isBF16()) {
    value = b.create<arith::ExtUIOp>(like(b.getI32Type(), type), value);
    return fromBits(b.create<arith::ShLIOp>(value, bits(16, type)));
  }
  return element == sums ? value : b.create<arith::ExtFOp>(like(sums, type), value);
}

/// From the type of sums to how it is stored.
Value Writer::narrow(Type element, Value value) {
  if (!element.isBF16())
    return element == sums ? value : b.create<arith::TruncFOp>(like(element, value.getType()), value);
  Value own = toBits(value); // as Half.h
  auto type = own.getType();
  Value high = b.create<arith::ShRUIOp>(own, bits(16, type)), odd = b.create<arith::AndIOp>(high, bits(1, type));
  Value up = b.create<arith::AddIOp>(b.create<arith::AddIOp>(own, bits(0x7fff, type)), odd);
  Value size = b.create<arith::AndIOp>(own, bits(0x7fffffff, type));
  Value isNan = b.create<arith::CmpIOp>(arith::CmpIPredicate::ugt, size, bits(0x7f800000, type));
  Value quiet = b.create<arith::OrIOp>(high, bits(0x40, type));
  up = b.create<arith::SelectOp>(isNan, quiet, b.create<arith::ShRUIOp>(up, bits(16, type)));
  return b.create<arith::TruncIOp>(like(b.getI16Type(), type), up);
}

/// Elements of a tensor, in the type of sums. `mask`: those that are there, null for all.
Value Writer::load(Type element, Value base, Value index, Value mask, bool isVector) {
  Type scalar = storageOf(element), type = isVector ? VectorType::get(lanes, scalar) : scalar;
  unsigned bytes = scalar.getIntOrFloatBitWidth() / 8;
  Value address = b.create<LLVM::GEPOp>(pointer, scalar, base, ValueRange{index});
  if (mask)
    return widen(element,
                 b.create<LLVM::MaskedLoadOp>(type, address, mask, ValueRange{b.create<LLVM::ZeroOp>(type)}, bytes));
  return widen(element, b.create<LLVM::LoadOp>(type, address, bytes));
}

void Writer::store(Type element, Value value, Value base, Value index, Value mask) {
  Type scalar = storageOf(element);
  unsigned bytes = scalar.getIntOrFloatBitWidth() / 8;
  Value address = b.create<LLVM::GEPOp>(pointer, scalar, base, ValueRange{index}), stored = narrow(element, value);
  if (mask)
    b.create<LLVM::MaskedStoreOp>(stored, address, mask, bytes);
  else
    b.create<LLVM::StoreOp>(stored, address, bytes);
}

Value Writer::splat(Value value) {
  return isa<VectorType>(value.getType())
             ? value
             : b.create<vector::BroadcastOp>(VectorType::get(lanes, value.getType()), value);
}

/// The address from which `index` counts an element of the tensor.
Value Writer::place(size_t tensor, unsigned its, Value head, Value column, Value &index) {
  index = its & Along::columns ? column : its & Along::heads ? head : whole(0);
  if ((its & Along::width) == Along::width)
    index = b.create<arith::AddIOp>(b.create<arith::MulIOp>(head, whole(columns)), column);
  return its & Along::rows ? rows[tensor] : bases[tensor];
}

//===-- Arithmetic ----------------------------------------------------------------------------------------------===//

Value Writer::multiplyAdd(Value x, Value y, Value z) {
  if (set.hasFma)
    return b.create<math::FmaOp>(x, y, z);
  return b.create<arith::AddFOp>(b.create<arith::MulFOp>(x, y), z);
}

/// The highest power first.
Value Writer::polynomial(Value x, ArrayRef<double> powers) {
  Value sum = real(powers.front(), x.getType());
  for (double power : powers.drop_front())
    sum = multiplyAdd(sum, x, real(power, x.getType()));
  return sum;
}

/// e^x as `exponential` of runtime/kernels/Element.h: x is cut to where f32 has the result.
Value Writer::clampedExp(Value x) {
  auto type = x.getType();
  auto cut = [&](double limit, arith::CmpFPredicate beyond) {
    Value bound = real(limit, type);
    x = b.create<arith::SelectOp>(b.create<arith::CmpFOp>(beyond, x, bound), bound, x);
  };
  cut(88, arith::CmpFPredicate::OGT);
  cut(-87, arith::CmpFPredicate::OLT);
  Value shifter = real(12582912, type);
  Value shifted = multiplyAdd(x, real(1.44269504, type), shifter), n = b.create<arith::SubFOp>(shifted, shifter);
  Value r = multiplyAdd(n, real(2.12194440e-4, type), multiplyAdd(n, real(-0.693359375, type), x));
  Value p = polynomial(
      r, {1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1});
  p = multiplyAdd(p, b.create<arith::MulFOp>(r, r), b.create<arith::AddFOp>(r, real(1, type)));
  Value power = b.create<arith::ShLIOp>(toBits(shifted), bits(23, type));
  return fromBits(b.create<arith::AddIOp>(toBits(p), power));
}

Value Writer::tanh(Value x) {
  auto type = x.getType();
  Value size = b.create<math::AbsFOp>(x), one = real(1, type);
  Value p = clampedExp(b.create<arith::MulFOp>(real(-2, type), size));
  Value far = b.create<arith::DivFOp>(b.create<arith::SubFOp>(one, p), b.create<arith::AddFOp>(one, p));
  Value q = b.create<arith::MulFOp>(x, x);
  Value near = b.create<arith::MulFOp>(polynomial(q, {0.0218694885, -0.0539682540, 0.133333333, -0.333333333, 1}), x);
  Value isNear = b.create<arith::CmpFOp>(arith::CmpFPredicate::OLT, size, real(0.3, type));
  return b.create<arith::SelectOp>(isNear, near, b.create<math::CopySignOp>(far, x));
}

/// f64, one element after the other.
Value Writer::library(StringRef name, Value x) {
  auto module = own->getParentOfType<ModuleOp>();
  auto callee = module.lookupSymbol<LLVM::LLVMFuncOp>(name);
  if (!callee) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(module.getBody());
    callee = b.create<LLVM::LLVMFuncOp>(name, LLVM::LLVMFunctionType::get(sums, {sums}));
  }
  auto vector = dyn_cast<VectorType>(x.getType());
  if (!vector)
    return b.create<LLVM::CallOp>(callee, ValueRange{x}).getResult();
  Value all = x;
  for (int64_t i = 0; i < lanes; ++i) {
    Value each = b.create<vector::ExtractOp>(x, i);
    all = b.create<vector::InsertOp>(b.create<LLVM::CallOp>(callee, ValueRange{each}).getResult(), all, i);
  }
  return all;
}

/// The functions that no instruction has.
Value Writer::function(Element op, Value x) {
  auto type = x.getType();
  if (op == Element::sigmoid) {
    Value minus = b.create<arith::NegFOp>(x), one = real(1, type);
    Value e = sums.isF64() ? library("exp", minus) : clampedExp(minus);
    return b.create<arith::DivFOp>(one, b.create<arith::AddFOp>(one, e));
  }
  if (op == Element::softplus) {
    Value e = function(Element::exp, b.create<arith::NegFOp>(b.create<math::AbsFOp>(x)));
    return b.create<arith::AddFOp>(b.create<arith::MaximumFOp>(x, real(0, type)), function(Element::log1p, e));
  }
  if (sums.isF64())
    return library(nameOf(op), x);
  switch (op) {
  case Element::tanh:
    return tanh(x);
  case Element::exp:
    return b.create<math::ExpOp>(x);
  case Element::log:
    return b.create<math::LogOp>(x);
  case Element::log1p:
    return b.create<math::Log1pOp>(x);
  case Element::expm1:
    return b.create<math::ExpM1Op>(x);
  default:
    return b.create<math::ErfOp>(x);
  }
}

Value Writer::compute(const Formula::Term &term, ArrayRef<Value> of) {
  auto compare = [&](arith::CmpFPredicate predicate) -> Value {
    return b.create<arith::CmpFOp>(predicate, of[0], of[1]);
  };
  switch (term.op) {
  case Element::add:
    return b.create<arith::AddFOp>(of[0], of[1]);
  case Element::sub:
    return b.create<arith::SubFOp>(of[0], of[1]);
  case Element::mul:
    return b.create<arith::MulFOp>(of[0], of[1]);
  case Element::div:
    return b.create<arith::DivFOp>(of[0], of[1]);
  case Element::max:
    return b.create<arith::MaximumFOp>(of[0], of[1]);
  case Element::min:
    return b.create<arith::MinimumFOp>(of[0], of[1]);
  case Element::fma:
    return multiplyAdd(of[0], of[1], of[2]);
  case Element::select:
    return b.create<arith::SelectOp>(of[0], of[1], of[2]);
  case Element::neg:
    return b.create<arith::NegFOp>(of[0]);
  case Element::abs:
    return b.create<math::AbsFOp>(of[0]);
  case Element::sqrt:
    return b.create<math::SqrtOp>(of[0]);
  case Element::rsqrt:
    return b.create<arith::DivFOp>(real(1, of[0].getType()), b.create<math::SqrtOp>(of[0]));
  case Element::stop:
    return of[0];
  case Element::rounded:
    return widen(full, narrow(full, of[0]));
  case Element::gt:
    return compare(arith::CmpFPredicate::OGT);
  case Element::ge:
    return compare(arith::CmpFPredicate::OGE);
  case Element::lt:
    return compare(arith::CmpFPredicate::OLT);
  case Element::le:
    return compare(arith::CmpFPredicate::OLE);
  case Element::eq:
    return compare(arith::CmpFPredicate::OEQ);
  case Element::ne:
    return compare(arith::CmpFPredicate::UNE);
  case Element::both:
    return b.create<arith::AndIOp>(of[0], of[1]);
  case Element::either:
    return b.create<arith::OrIOp>(of[0], of[1]);
  case Element::unlike:
    return b.create<arith::XOrIOp>(of[0], of[1]);
  default:
    return function(term.op, of[0]);
  }
}

Value Writer::combine(Element op, Value x, Value y) {
  if (op == Element::max_over)
    return b.create<arith::MaximumFOp>(x, y);
  if (op == Element::min_over)
    return b.create<arith::MinimumFOp>(x, y);
  return b.create<arith::AddFOp>(x, y);
}

double Writer::neutral(Element op) const {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return op == Element::max_over ? -infinity : op == Element::min_over ? infinity : 0;
}

//===-- Passes --------------------------------------------------------------------------------------------------===//

/// Those that this pass makes, and that a later one or what is made reads.
SmallVector<unsigned> Writer::reductionsOf(unsigned number) const {
  SmallVector<unsigned> its;
  for (auto &[value, places] : reductions)
    if (plan.passes[value] == number + 1)
      its.push_back(value);
  return its;
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
    double count = (term.over & Along::heads ? heads : 1) * (term.over & Along::columns ? columns : 1);
    if (term.op == Element::mean_over)
      sum = b.create<arith::DivFOp>(sum, real(count, sums));
    Value index = term.axes & Along::heads ? head : whole(0);
    b.create<LLVM::StoreOp>(sum, b.create<LLVM::GEPOp>(pointer, sums, reductions[value].result, ValueRange{index}));
  }
}

/// Computes what this level has of the values, all operands of outer levels being known.
void Writer::computeLevel(Level level, ArrayRef<unsigned> needed, Known &known, Value head, Value column, Value mask) {
  for (unsigned value : needed) {
    const Formula::Term &term = plan.formula.at(value);
    if (levelOf(term.axes) != level)
      continue;
    if (term.op == Element::leaf) {
      Value index, base = place(term.leaf, term.axes, head, column, index);
      known[value] = load(elements[term.leaf], base, index, mask, level == Level::column);
    } else if (term.op == Element::number) {
      known[value] = real(term.number, sums);
    } else if (term.op == Element::yes) {
      known[value] = b.create<arith::ConstantIntOp>(1, 1);
    } else if (isReduction(term.op)) {
      Value index = level == Level::head ? head : whole(0);
      Value from = b.create<LLVM::GEPOp>(pointer, sums, reductions[value].result, ValueRange{index});
      known[value] = b.create<LLVM::LoadOp>(sums, from);
    } else {
      auto of = llvm::map_to_vector(term.of, [&](unsigned operand) {
        Value its = known.lookup(operand);
        return level == Level::column ? splat(its) : its;
      });
      known[value] = compute(term, of);
    }
  }
}

/// Stores what is made of values of this level, or adds it to the sum over all rows.
void Writer::storeLevel(Level level, Known &known, Value head, Value column, Value mask) {
  for (auto [i, each] : llvm::enumerate(plan.made)) {
    if (levelOf(each.axes) != level)
      continue;
    Value value = known.lookup(each.value), index, base = place(reads + i, each.axes, head, column, index);
    Type element = elements[reads + i];
    if (level == Level::column)
      value = splat(value);
    OpBuilder::InsertionGuard guard(b);
    bool isOfEachHead = (each.axes | plan.formula.at(each.value).axes) & Along::heads;
    if (level == Level::column && !isOfEachHead && heads > 1) { // all heads come to the same element: it is added once
      Value isFirst = b.create<arith::CmpIOp>(arith::CmpIPredicate::eq, head, whole(0));
      b.setInsertionPointToStart(b.create<scf::IfOp>(isFirst, /*withElseRegion=*/false).thenBlock());
    }
    if (!(each.axes & Along::rows))
      value = b.create<arith::AddFOp>(load(element, base, index, mask, level == Level::column), value);
    store(element, value, base, index, mask);
  }
}

void Writer::block(unsigned number, ArrayRef<unsigned> needed, Known known, Value head, Value column, Value mask) {
  computeLevel(Level::column, needed, known, head, column, mask);
  auto type = VectorType::get(lanes, sums);
  for (unsigned value : reductionsOf(number)) {
    const Formula::Term &term = plan.formula.at(value);
    if (!(term.over & Along::columns))
      continue;
    Value its = splat(known.lookup(term.of[0])), parts = reductions[value].parts;
    if (mask)
      its = b.create<arith::SelectOp>(mask, its, real(neutral(term.op), type));
    b.create<LLVM::StoreOp>(combine(term.op, b.create<LLVM::LoadOp>(type, parts), its), parts);
  }
  if (number == plan.last)
    storeLevel(Level::column, known, head, column, mask);
}

void Writer::head(unsigned number, ArrayRef<unsigned> needed, const Known &row, Value head) {
  Known known = row;
  SmallVector<unsigned> its = reductionsOf(number);
  computeLevel(Level::head, needed, known, head, {}, {});
  for (unsigned value : its)
    if (const Formula::Term &term = plan.formula.at(value); term.over == Along::heads) {
      Value parts = reductions[value].parts, sum = b.create<LLVM::LoadOp>(sums, parts);
      b.create<LLVM::StoreOp>(combine(term.op, sum, known.lookup(term.of[0])), parts);
    }
  bool hasColumns = llvm::any_of(its, [&](unsigned value) { return plan.formula.at(value).over & Along::columns; }) ||
                    (number == plan.last &&
                     llvm::any_of(plan.made, [](Formula::Made each) { return levelOf(each.axes) == Level::column; }));
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
    storeLevel(Level::head, known, head, {}, {});
}

void Writer::pass(unsigned number) {
  SmallVector<unsigned> its = reductionsOf(number), roots;
  for (unsigned value : its)
    roots.push_back(plan.formula.at(value).of[0]);
  for (Formula::Made each : plan.made)
    if (number == plan.last)
      roots.push_back(each.value);
  std::vector<unsigned> needed = plan.formula.neededFor(roots, /*throughReductions=*/false);
  Known known;
  computeLevel(Level::row, needed, known, {}, {}, {});
  begin(its, /*perHead=*/false);
  loop(whole(0), whole(heads), 1, [&](Value at) { head(number, needed, known, at); });
  end(its, /*perHead=*/false, {});
  if (number == plan.last)
    storeLevel(Level::row, known, {}, {}, {});
}

void Writer::write(LLVM::LLVMFuncOp function) {
  own = function;
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
      rows.push_back(b.create<LLVM::GEPOp>(pointer, storageOf(elements[i]), bases[i],
                                           ValueRange{b.create<arith::MulIOp>(row, strides[i])}));
    for (unsigned number = 0; number <= plan.last; ++number)
      pass(number);
  });
  b.create<LLVM::ReturnOp>(ValueRange());
}

//===-- All functions -------------------------------------------------------------------------------------------===//

/// No loop over heads lies inside one over columns, and x86 alone has the sets.
static bool hasCode(MapOp map, unsigned set) {
  Plan plan(map);
  for (unsigned value = 0; value < plan.formula.size(); ++value)
    if (const Formula::Term &term = plan.formula.at(value);
        term.over == Along::heads && (plan.formula.at(term.of[0]).axes & Along::columns))
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

/// MLIR's polynomials for what has no instruction; on CPUs without a multiply-add two operations.
static LogicalResult approximate(LLVM::LLVMFuncOp function, bool hasFma) {
  RewritePatternSet patterns(function.getContext());
  populateMathPolynomialApproximationPatterns(patterns);
  if (failed(applyPatternsAndFoldGreedily(function, std::move(patterns))))
    return failure();
  if (!hasFma)
    function.walk([](math::FmaOp op) {
      OpBuilder builder(op);
      Value product = builder.create<arith::MulFOp>(op.getLoc(), op.getA(), op.getB());
      op.replaceAllUsesWith(builder.create<arith::AddFOp>(op.getLoc(), product, op.getC()).getResult());
      op.erase();
    });
  return success();
}

static void optimise(llvm::Module &module, llvm::TargetMachine &machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O1).run(module, modules);
}

LogicalResult pp::lowerFormulas(ArrayRef<MapOp> maps, llvm::TargetMachine &machine, llvm::LLVMContext &context,
                                std::unique_ptr<llvm::Module> &result) {
  DialectRegistry registry;
  registry.insert<arith::ArithDialect, math::MathDialect, scf::SCFDialect, vector::VectorDialect,
                  cf::ControlFlowDialect, LLVM::LLVMDialect>();
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  MLIRContext own(registry, MLIRContext::Threading::DISABLED); // ranks are lowered side by side
  own.loadAllAvailableDialects();
  ImplicitLocOpBuilder b(UnknownLoc::get(&own), &own);
  OwningOpRef<ModuleOp> module = ModuleOp::create(b.getLoc());
  for (MapOp map : maps) {
    Plan plan(map);
    for (auto [i, set] : llvm::enumerate(kSets))
      if (std::string name = formulaFunction(map, i); !name.empty()) {
        b.setInsertionPointToEnd(module->getBody());
        LLVM::LLVMFuncOp function = addFunction(b, name, set);
        Writer(b, plan, map, set).write(function);
        if (failed(approximate(function, set.hasFma)))
          return map.emitOpError("cannot be lowered: MLIR's approximations of functions failed");
      }
  }
  PassManager passes(&own);
  passes.addPass(createConvertSCFToCFPass());
  passes.addPass(createConvertVectorToLLVMPass());
  passes.addPass(createConvertMathToLLVMPass());
  passes.addPass(createArithToLLVMConversionPass());
  passes.addPass(createConvertControlFlowToLLVMPass());
  passes.addPass(createReconcileUnrealizedCastsPass());
  if (failed(passes.run(*module)))
    return failure();
  result = translateModuleToLLVMIR(*module, context, "formulas");
  if (!result)
    return failure();
  result->setTargetTriple(machine.getTargetTriple().str());
  result->setDataLayout(machine.createDataLayout());
  optimise(*result, machine);
  return success();
}
