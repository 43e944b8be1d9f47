// Writes the arithmetic of a formula's elements, for one machine or another, with vectors of columns.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Elements are rounded by integers where LLVM would call a library; multiply-adds are made here or not at all.
#include "lowering/formula/Writer.h"
#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Target/TargetMachine.h"

using namespace mlir;
using namespace pp;
using namespace pp::nn;

Depth pp::depthOf(unsigned axes) {
  return axes & Along::columns ? Depth::column : axes & Along::heads ? Depth::head : Depth::row;
}

//===-- Passes over a row ---------------------------------------------------------------------------------------===//

FormulaPlan::FormulaPlan(MapOp map) {
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

bool FormulaPlan::reducesHeadsOfColumns() const {
  for (unsigned value = 0; value < formula.size(); ++value)
    if (const Formula::Term &term = formula.at(value);
        term.over == Along::heads && (formula.at(term.of[0]).axes & Along::columns))
      return true;
  return false;
}

/// Those that a later pass or what is made reads.
SmallVector<unsigned> FormulaPlan::reductionsOf(unsigned pass) const {
  SmallVector<unsigned> its;
  for (unsigned value = 0; value < formula.size(); ++value)
    if (isReduction(formula.at(value).op) && passes[value] == pass + 1 && passes[value] <= last)
      its.push_back(value);
  return its;
}

std::vector<unsigned> FormulaPlan::neededIn(unsigned pass) const {
  SmallVector<unsigned> roots;
  for (unsigned value : reductionsOf(pass))
    roots.push_back(formula.at(value).of[0]);
  for (Formula::Made each : made)
    if (pass == last)
      roots.push_back(each.value);
  return formula.neededFor(roots, /*throughReductions=*/false);
}

//===-- Constants, loops and memory -----------------------------------------------------------------------------===//

SmallVector<Value> pp::tensorsOf(MapOp map) {
  SmallVector<Value> all(map.getTensors());
  llvm::append_range(all, map.getMade());
  return all;
}

/// The type of another context.
static Type copyOf(Type type, MLIRContext *context) {
  Builder builder(context);
  return type.isBF16()  ? Type(builder.getBF16Type())
         : type.isF16() ? Type(builder.getF16Type())
         : type.isF64() ? Type(builder.getF64Type())
                        : Type(builder.getF32Type());
}

FormulaWriter::FormulaWriter(ImplicitLocOpBuilder &b, const FormulaPlan &plan, MapOp map)
    : b(b), plan(plan), heads(static_cast<int64_t>(map.getHeads())), columns(widthOfFormula(map) / heads),
      pointer(LLVM::LLVMPointerType::get(b.getContext())), reads(map.getTensors().size()) {
  sums = cast<FloatType>(copyOf(sumType(map.elementType()), b.getContext()));
  full = copyOf(map.elementType(), b.getContext());
  for (Value tensor : tensorsOf(map))
    elements.push_back(copyOf(cast<RankedTensorType>(tensor.getType()).getElementType(), b.getContext()));
}

Value FormulaWriter::whole(int64_t number) { return b.create<arith::ConstantIntOp>(number, 64); }
Type FormulaWriter::storageOf(Type element) { return element.isBF16() ? Type(b.getI16Type()) : element; }

Type FormulaWriter::like(Type scalar, Type shape) const {
  auto vector = dyn_cast<VectorType>(shape);
  return vector ? Type(VectorType::get(vector.getShape(), scalar)) : scalar;
}

Value FormulaWriter::real(double number, Type type) {
  TypedAttr value = b.getFloatAttr(sums, number);
  if (isa<VectorType>(type))
    value = DenseElementsAttr::get(cast<ShapedType>(like(sums, type)), ArrayRef<Attribute>(value));
  return b.create<arith::ConstantOp>(value);
}

Value FormulaWriter::bits(int64_t number, Type type) {
  TypedAttr value = b.getI32IntegerAttr(static_cast<int32_t>(number));
  if (isa<VectorType>(type))
    value = DenseElementsAttr::get(cast<ShapedType>(like(b.getI32Type(), type)), ArrayRef<Attribute>(value));
  return b.create<arith::ConstantOp>(value);
}

void FormulaWriter::loop(Value from, Value to, int64_t step, llvm::function_ref<void(Value)> body) {
  auto loop = b.create<scf::ForOp>(from, to, whole(step));
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  body(loop.getInductionVar());
}

Value FormulaWriter::allocate(Type type, int64_t count) {
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(&function.getBody().front());
  return b.create<LLVM::AllocaOp>(pointer, type, whole(count));
}

Value FormulaWriter::fromBits(Value bits) {
  return b.create<arith::BitcastOp>(like(b.getF32Type(), bits.getType()), bits);
}
Value FormulaWriter::toBits(Value value) {
  return b.create<arith::BitcastOp>(like(b.getI32Type(), value.getType()), value);
}

/// As it is stored, to the type of sums.
Value FormulaWriter::widen(Type element, Value value) {
  auto type = value.getType();
  if (element.isBF16()) {
    value = b.create<arith::ExtUIOp>(like(b.getI32Type(), type), value);
    return fromBits(b.create<arith::ShLIOp>(value, bits(16, type)));
  }
  return element == sums ? value : b.create<arith::ExtFOp>(like(sums, type), value);
}

/// From the type of sums to how it is stored.
Value FormulaWriter::narrow(Type element, Value value) {
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

Value FormulaWriter::addressOf(Type scalar, Value base, Value index) {
  return b.create<LLVM::GEPOp>(base.getType(), scalar, base, ValueRange{index});
}

/// Bytes of which an address is a multiple, at least.
unsigned FormulaWriter::alignmentOf(Type scalar, bool isVector) const {
  int64_t bytes = scalar.getIntOrFloatBitWidth() / 8;
  return static_cast<unsigned>(isVector && packBytes > 0 ? std::min(packBytes, lanes * bytes) : bytes);
}

Value FormulaWriter::load(Type element, Value base, Value index, Value mask, bool isVector) {
  Type scalar = storageOf(element), type = isVector ? VectorType::get(lanes, scalar) : scalar;
  unsigned bytes = alignmentOf(scalar, isVector);
  Value address = addressOf(scalar, base, index);
  if (mask)
    return widen(element,
                 b.create<LLVM::MaskedLoadOp>(type, address, mask, ValueRange{b.create<LLVM::ZeroOp>(type)}, bytes));
  return widen(element, b.create<LLVM::LoadOp>(type, address, bytes));
}

void FormulaWriter::store(Type element, Value value, Value base, Value index, Value mask) {
  Type scalar = storageOf(element);
  unsigned bytes = alignmentOf(scalar, isa<VectorType>(value.getType()));
  Value address = addressOf(scalar, base, index), stored = narrow(element, value);
  if (mask)
    b.create<LLVM::MaskedStoreOp>(stored, address, mask, bytes);
  else
    b.create<LLVM::StoreOp>(stored, address, bytes);
}

Value FormulaWriter::splat(Value value) {
  return isa<VectorType>(value.getType())
             ? value
             : b.create<vector::BroadcastOp>(VectorType::get(lanes, value.getType()), value);
}

Value FormulaWriter::place(size_t tensor, unsigned its, Value head, Value column, Value &index) {
  index = its & Along::columns ? column : its & Along::heads ? head : whole(0);
  if ((its & Along::width) == Along::width)
    index = b.create<arith::AddIOp>(b.create<arith::MulIOp>(head, whole(columns)), column);
  return its & Along::rows ? rows[tensor] : bases[tensor];
}

//===-- Arithmetic ----------------------------------------------------------------------------------------------===//

Value FormulaWriter::multiplyAdd(Value x, Value y, Value z) {
  if (hasFma)
    return b.create<math::FmaOp>(x, y, z);
  return b.create<arith::AddFOp>(b.create<arith::MulFOp>(x, y), z);
}

/// The highest power first.
Value FormulaWriter::polynomial(Value x, ArrayRef<double> powers) {
  Value sum = real(powers.front(), x.getType());
  for (double power : powers.drop_front())
    sum = multiplyAdd(sum, x, real(power, x.getType()));
  return sum;
}

/// e^x as `exponential` of runtime/kernels/Element.h: x is cut to where f32 has the result.
Value FormulaWriter::clampedExp(Value x) {
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

Value FormulaWriter::tanh(Value x) {
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
Value FormulaWriter::call(StringRef its, Value x) {
  std::string name = (library + its).str();
  auto module = function->getParentOfType<ModuleOp>();
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
Value FormulaWriter::special(Element op, Value x) {
  auto type = x.getType();
  if (op == Element::sigmoid) {
    Value minus = b.create<arith::NegFOp>(x), one = real(1, type);
    Value e = sums.isF64() ? call("exp", minus) : clampedExp(minus);
    return b.create<arith::DivFOp>(one, b.create<arith::AddFOp>(one, e));
  }
  if (op == Element::softplus) {
    Value e = special(Element::exp, b.create<arith::NegFOp>(b.create<math::AbsFOp>(x)));
    return b.create<arith::AddFOp>(b.create<arith::MaximumFOp>(x, real(0, type)), special(Element::log1p, e));
  }
  if (sums.isF64())
    return call(nameOf(op), x);
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

Value FormulaWriter::compute(const Formula::Term &term, ArrayRef<Value> of) {
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
    return special(term.op, of[0]);
  }
}

Value FormulaWriter::combine(Element op, Value x, Value y) {
  if (op == Element::max_over)
    return b.create<arith::MaximumFOp>(x, y);
  if (op == Element::min_over)
    return b.create<arith::MinimumFOp>(x, y);
  return b.create<arith::AddFOp>(x, y);
}

double FormulaWriter::neutral(Element op) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return op == Element::max_over ? -infinity : op == Element::min_over ? infinity : 0;
}

double FormulaWriter::countOf(const Formula::Term &term) const {
  return static_cast<double>((term.over & Along::heads ? heads : 1) * (term.over & Along::columns ? columns : 1));
}

void FormulaWriter::computeLevel(Depth level, ArrayRef<unsigned> needed, Known &known, Value head, Value column,
                                 Value mask) {
  for (unsigned value : needed) {
    const Formula::Term &term = plan.formula.at(value);
    if (depthOf(term.axes) != level)
      continue;
    if (term.op == Element::leaf) {
      Value index, base = place(term.leaf, term.axes, head, column, index);
      known[value] = load(elements[term.leaf], base, index, mask, level == Depth::column);
    } else if (term.op == Element::number) {
      known[value] = real(term.number, sums);
    } else if (term.op == Element::yes) {
      known[value] = b.create<arith::ConstantIntOp>(1, 1);
    } else if (isReduction(term.op)) {
      known[value] = reduced(value, head, column);
    } else {
      auto of = llvm::map_to_vector(term.of, [&](unsigned operand) {
        Value its = known.lookup(operand);
        return level == Depth::column ? splat(its) : its;
      });
      known[value] = compute(term, of);
    }
  }
}

/// MLIR's polynomials for what has no instruction; on CPUs without a multiply-add two operations.
LogicalResult pp::approximateFunctions(LLVM::LLVMFuncOp function, bool hasFma) {
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

void pp::registerWritten(DialectRegistry &registry) {
  registry.insert<arith::ArithDialect, math::MathDialect, scf::SCFDialect, vector::VectorDialect,
                  cf::ControlFlowDialect, LLVM::LLVMDialect>();
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
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

LogicalResult pp::lowerWritten(ModuleOp module, llvm::TargetMachine &machine, llvm::LLVMContext &context,
                               std::unique_ptr<llvm::Module> &result,
                               llvm::function_ref<LogicalResult(llvm::Module &)> prepare) {
  PassManager passes(module.getContext());
  passes.addPass(createConvertSCFToCFPass());
  passes.addPass(createConvertVectorToLLVMPass());
  passes.addPass(createConvertMathToLLVMPass());
  passes.addPass(createArithToLLVMConversionPass());
  passes.addPass(createConvertControlFlowToLLVMPass());
  passes.addPass(createReconcileUnrealizedCastsPass());
  if (failed(passes.run(module)))
    return failure();
  result = translateModuleToLLVMIR(module, context, "formulas");
  if (!result)
    return failure();
  result->setTargetTriple(machine.getTargetTriple().str());
  result->setDataLayout(machine.createDataLayout());
  if (prepare && failed(prepare(*result)))
    return failure();
  optimise(*result, machine);
  return success();
}
