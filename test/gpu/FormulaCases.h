// Formulas as the compiler makes them, for the tests of their kernels: a name, what is read, and the op.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_GPU_FORMULACASES_H
#define PP_TEST_GPU_FORMULACASES_H

#include "dialect/formula/Formula.h"
#include "dialect/pipeline/Pipeline.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Parser/Parser.h"

namespace pp {

/// `reads`, `makes`: axes, separated by blanks, `-` for none. `region` computes %r0, %r1, .. of %a0, %a1, .., in the
/// type of sums, `F`.
struct FormulaCase {
  const char *name, *reads, *makes, *region;
  bool needsHeads = false;
};

/// Elements; reductions over the width and over heads; conditions; gains of every head; gradients of gains, of numbers
/// of heads and of one number.
inline const FormulaCase kFormulaCases[] = {
    {"squared_relu", "thd", "thd", R"(
      %zero = arith.constant 0.0 : F
      %u = arith.maximumf %a0, %zero : F
      %r0 = arith.mulf %u, %u : F)"},
    {"swiglu", "thd thd", "thd", R"(
      %s = nn.sigmoid %a0 : F
      %p = arith.mulf %a0, %s : F
      %r0 = arith.mulf %p, %a1 : F)"},
    {"functions", "thd thd", "thd", R"(
      %half = arith.constant 0.5 : F
      %1 = math.tanh %a0 : F
      %2 = math.erf %a1 : F
      %3 = nn.softplus %1 : F
      %4 = math.expm1 %2 : F
      %5 = math.absf %a0 : F
      %6 = arith.addf %5, %half : F
      %7 = math.log %6 : F
      %8 = math.log1p %5 : F
      %9 = arith.mulf %3, %4 : F
      %10 = arith.subf %7, %8 : F
      %11 = math.sqrt %6 : F
      %12 = math.rsqrt %6 : F
      %13 = arith.divf %10, %11 : F
      %14 = nn.rounded %9 : F
      %15 = math.fma %14, %12, %13 : F
      %16 = arith.negf %5 : F
      %17 = math.exp %16 : F
      %r0 = arith.addf %15, %17 : F)"},
    {"conditions", "thd thd t", "thd", R"(
      %zero = arith.constant 0.0 : F
      %yes = arith.constant true
      %1 = arith.cmpf ogt, %a0, %a1 : F
      %2 = arith.cmpf olt, %a0, %zero : F
      %3 = arith.xori %2, %yes : i1
      %4 = arith.andi %1, %3 : i1
      %5 = arith.cmpf une, %a1, %a2 : F
      %6 = arith.ori %4, %2 : i1
      %7 = arith.andi %5, %6 : i1
      %8 = arith.select %7, %a0, %a2 : F
      %9 = arith.minimumf %8, %a1 : F
      %10 = arith.maximumf %9, %a0 : F
      %r0 = arith.subf %10, %8 : F)"},
    {"rmsnorm", "thd hd", "thd t", R"(
      %eps = arith.constant 1.0e-6 : F
      %1 = arith.mulf %a0, %a0 : F
      %2 = nn.reduce "mean" "hd" %1 : F
      %3 = arith.addf %2, %eps : F
      %r1 = math.rsqrt %3 : F
      %4 = arith.mulf %a0, %r1 : F
      %r0 = arith.mulf %4, %a1 : F)"},
    {"layernorm", "thd hd hd", "thd", R"(
      %eps = arith.constant 1.0e-5 : F
      %1 = nn.reduce "mean" "hd" %a0 : F
      %2 = nn.reduce "variance" "hd" %a0 : F
      %3 = arith.addf %2, %eps : F
      %4 = math.rsqrt %3 : F
      %5 = arith.subf %a0, %1 : F
      %6 = arith.mulf %5, %4 : F
      %7 = arith.mulf %6, %a1 : F
      %r0 = arith.addf %7, %a2 : F)"},
    {"softmax", "thd", "thd", R"(
      %1 = nn.reduce "max" "hd" %a0 : F
      %2 = nn.reduce "min" "hd" %a0 : F
      %3 = arith.subf %a0, %1 : F
      %4 = math.exp %3 : F
      %5 = nn.reduce "sum" "hd" %4 : F
      %6 = arith.divf %4, %5 : F
      %r0 = arith.mulf %6, %2 : F)"},
    {"norm_of_heads", "thd d h", "thd th", R"(
      %eps = arith.constant 1.0e-6 : F
      %1 = arith.mulf %a0, %a0 : F
      %2 = nn.reduce "mean" "d" %1 : F
      %3 = arith.addf %2, %eps : F
      %r1 = math.rsqrt %3 : F
      %4 = arith.mulf %a0, %r1 : F
      %5 = arith.mulf %4, %a1 : F
      %r0 = arith.mulf %5, %a2 : F)",
     true},
    {"rows_of_heads", "thd th", "thd t", R"(
      %1 = nn.reduce "max" "d" %a0 : F
      %2 = nn.reduce "sum" "h" %1 : F
      %3 = nn.reduce "mean" "hd" %a0 : F
      %4 = arith.mulf %2, %3 : F
      %5 = nn.reduce "min" "h" %a1 : F
      %r1 = arith.addf %4, %5 : F
      %6 = arith.subf %a0, %r1 : F
      %r0 = arith.addf %6, %1 : F)",
     true},
    {"gradient_of_gain", "thd thd hd t", "thd hd", R"(
      %1 = arith.mulf %a0, %a2 : F
      %2 = arith.mulf %a1, %a3 : F
      %3 = arith.mulf %1, %2 : F
      %4 = nn.reduce "mean" "hd" %3 : F
      %5 = arith.mulf %2, %4 : F
      %6 = arith.subf %1, %5 : F
      %r0 = arith.mulf %6, %a3 : F
      %r1 = arith.mulf %a0, %2 : F)"},
    {"gradients_of_weights", "thd thd d h -", "thd d h - hd", R"(
      %1 = arith.mulf %a0, %a1 : F
      %2 = arith.mulf %a0, %a4 : F
      %r0 = arith.mulf %2, %a2 : F
      %r1 = arith.mulf %1, %a3 : F
      %r2 = arith.mulf %1, %a2 : F
      %r3 = arith.mulf %1, %a3 : F
      %r4 = arith.addf %1, %a1 : F)",
     true},
    {"sums_of_rows", "t d", "d - h", R"(
      %1 = math.exp %a0 : F
      %r0 = arith.mulf %1, %a1 : F
      %r1 = arith.addf %1, %a0 : F
      %r2 = arith.addf %1, %1 : F)",
     true},
    {"numbers_of_rows", "t t", "t", R"(
      %1 = arith.subf %a0, %a1 : F
      %2 = math.exp %1 : F
      %3 = arith.subf %2, %1 : F
      %r0 = nn.softplus %3 : F)"},
};

inline std::string typeOfTensor(llvm::StringRef axes, const std::string &type, int64_t rows, int64_t heads,
                                int64_t columns) {
  bool h = axes.contains('h'), d = axes.contains('d');
  std::string text = "tensor<";
  if (axes.contains('t'))
    text += "1x" + std::to_string(rows) + "x";
  if (h || d || !axes.contains('t'))
    text += std::to_string((h ? heads : 1) * (d ? columns : 1)) + "x";
  return text + (axes == "thd" ? type : type == "f64" ? "f64" : "f32") + ">";
}

/// A formula, alive as long as this. `type`: of full tensors.
struct MadeFormula {
  mlir::MLIRContext context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  nn::MapOp map;
  llvm::SmallVector<llvm::StringRef> reads, makes;

  MadeFormula(const FormulaCase &its, const std::string &type, int64_t rows, int64_t heads, int64_t columns) {
    mlir::DialectRegistry registry;
    registry.insert<nn::NnDialect, mlir::func::FuncDialect, mlir::arith::ArithDialect, mlir::math::MathDialect>();
    context.appendDialectRegistry(registry);
    std::string sums = type == "f64" ? "f64" : "f32", arguments, read, made, types, values, inputs, block, results;
    llvm::StringRef(its.reads).split(reads, ' ');
    llvm::StringRef(its.makes).split(makes, ' ');
    auto add = [](std::string &text, const std::string &what) { text += (text.empty() ? "" : ", ") + what; };
    auto textOf = [](llvm::StringRef axes) { return "\"" + (axes == "-" ? std::string() : axes.str()) + "\""; };
    for (size_t i = 0; i < reads.size(); ++i) {
      std::string own = typeOfTensor(reads[i], type, rows, heads, columns), number = std::to_string(i);
      add(arguments, "%x" + number + ": " + own), add(inputs, own), add(block, "%a" + number + ": " + sums);
      add(read, "%x" + number + ": " + textOf(reads[i]));
    }
    for (size_t i = 0; i < makes.size(); ++i) {
      add(made, textOf(makes[i])), add(values, "%r" + std::to_string(i)), add(types, sums);
      add(results, typeOfTensor(makes[i], type, rows, heads, columns));
    }
    std::string region = its.region;
    for (size_t at = 0; (at = region.find(": F", at)) != std::string::npos;)
      region.replace(at, 3, ": " + sums);
    module = mlir::parseSourceString<mlir::ModuleOp>(
        "func.func private @f(" + arguments + ") { %m:" + std::to_string(makes.size()) + " = nn.map reads(" + read +
            ") makes(" + made + ") heads " + std::to_string(heads) + " { ^bb0(" + block + "):" + region +
            "\n nn.give " + values + " : " + types + " } : (" + inputs + ") -> (" + results + ")\n return }",
        &context);
    if (module)
      module->walk([&](nn::MapOp each) { map = each; });
  }
};

} // namespace pp

#endif // PP_TEST_GPU_FORMULACASES_H
