// Writes the arithmetic of a formula's elements: what the code for CPUs and the code for GPUs have in common.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A value is a number of the row, a number of the head, or a vector of `lanes` columns that lie side by side. A writer
// of loops (Code.cpp) or of threads (Threads.cpp) says where elements lie and how reductions are made.
#ifndef PP_LOWERING_FORMULA_WRITER_H
#define PP_LOWERING_FORMULA_WRITER_H

#include "dialect/formula/Formula.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace llvm {
class LLVMContext;
class Module;
class TargetMachine;
} // namespace llvm

namespace pp {

/// How deep a value lies in the loops.
enum class Depth : uint8_t { row, head, column };
Depth depthOf(unsigned axes);

/// Variances as means, sums of what is the same all along as products, and sums over the axes that made values without
/// columns lack.
struct FormulaPlan {
  nn::Formula formula;
  llvm::SmallVector<nn::Formula::Made> made;
  std::vector<unsigned> passes; ///< by value: the first in which it can be computed
  unsigned last = 0;

  explicit FormulaPlan(nn::MapOp map);
  /// Whether a reduction over heads keeps columns: no loop over heads lies inside one over columns.
  bool reducesHeadsOfColumns() const;
  /// The values that this pass reduces, and the values that it computes.
  llvm::SmallVector<unsigned> reductionsOf(unsigned pass) const;
  std::vector<unsigned> neededIn(unsigned pass) const;
};

/// What is read, then what is made.
llvm::SmallVector<mlir::Value> tensorsOf(nn::MapOp map);

class FormulaWriter {
protected:
  using Value = mlir::Value;
  using Type = mlir::Type;
  using Known = llvm::DenseMap<unsigned, Value>;

  FormulaWriter(mlir::ImplicitLocOpBuilder &b, const FormulaPlan &plan, nn::MapOp map);
  virtual ~FormulaWriter() = default;

  // Constants, loops and memory.
  Value whole(int64_t number);
  Value real(double number, Type type);
  Value bits(int64_t number, Type like);
  void loop(Value from, Value to, int64_t step, llvm::function_ref<void(Value)> body);
  /// In the first block of the function, so that LLVM keeps it in registers where it can.
  Value allocate(Type type, int64_t count = 1);
  Type storageOf(Type element);
  Type like(Type scalar, Type shape) const;
  Value splat(Value value);
  Value widen(Type element, Value value);
  Value narrow(Type element, Value value);
  /// Elements of a tensor, in the type of sums. `mask`: those that are there, null for all.
  Value load(Type element, Value base, Value index, Value mask, bool isVector);
  void store(Type element, Value value, Value base, Value index, Value mask);
  Value addressOf(Type scalar, Value base, Value index);
  /// The address from which `index` counts an element of the tensor.
  Value place(size_t tensor, unsigned axes, Value head, Value column, Value &index);

  // Arithmetic.
  Value compute(const nn::Formula::Term &term, llvm::ArrayRef<Value> of);
  Value combine(nn::Element op, Value x, Value y);
  static double neutral(nn::Element op);
  /// How many elements a reduction goes over.
  double countOf(const nn::Formula::Term &term) const;

  /// Computes what this level has of the values, all operands of outer levels being known.
  void computeLevel(Depth level, llvm::ArrayRef<unsigned> needed, Known &known, Value head, Value column, Value mask);
  /// What a reduction has made of the row, of this head, or of these columns.
  virtual Value reduced(unsigned value, Value head, Value column) = 0;

  mlir::ImplicitLocOpBuilder &b;
  const FormulaPlan &plan;
  bool hasFma = true;
  llvm::StringRef library = ""; ///< stands before the names of the functions of f64
  int64_t heads, columns, lanes = 1;
  int64_t packBytes = 0; ///< an address of `lanes` elements is a multiple of it; 0: of an element
  mlir::FloatType sums;
  Type pointer, full;                   ///< `full`: of full tensors
  llvm::SmallVector<Type> elements;     ///< by tensor, what is read first
  llvm::SmallVector<Value> bases, rows; ///< by tensor: its address, and that of the row
  mlir::LLVM::LLVMFuncOp function;      ///< that is written
  size_t reads;

private:
  Value fromBits(Value bits);
  Value toBits(Value value);
  unsigned alignmentOf(Type scalar, bool isVector) const;
  Value multiplyAdd(Value x, Value y, Value z);
  Value polynomial(Value x, llvm::ArrayRef<double> powers);
  Value clampedExp(Value x);
  Value tanh(Value x);
  Value call(llvm::StringRef name, Value x);
  Value special(nn::Element op, Value x);
};

/// MLIR's polynomials for what has no instruction; on machines without a multiply-add two operations.
mlir::LogicalResult approximateFunctions(mlir::LLVM::LLVMFuncOp function, bool hasFma);

/// The dialects in which formulas are written, and their way to LLVM.
void registerWritten(mlir::DialectRegistry &registry);

/// The LLVM module of written functions, which `prepare` completes, optimised for the machine.
mlir::LogicalResult lowerWritten(mlir::ModuleOp module, llvm::TargetMachine &machine, llvm::LLVMContext &context,
                                 std::unique_ptr<llvm::Module> &result,
                                 llvm::function_ref<mlir::LogicalResult(llvm::Module &)> prepare = nullptr);

} // namespace pp

#endif // PP_LOWERING_FORMULA_WRITER_H
