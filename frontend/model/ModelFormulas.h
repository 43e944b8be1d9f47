// The formulas of a part of a model that is being built: values that are computed, and not yet written as tensors.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_MODELFORMULAS_H
#define PP_FRONTEND_MODELFORMULAS_H

#include "dialect/formula/Formula.h"
#include "frontend/evaluate/Evaluator.h"

namespace pp {

class ModelFormulas {
public:
  /// A value of a formula. It is as wide as the tensors that it is made of, and so is a number of a row; 0: none of
  /// them has a width.
  struct Formed {
    unsigned value;
    int64_t width = 0, heads = 1;
    StringRef text; ///< as written
  };
  using FormedOr = mlir::FailureOr<Formed>;

  /// Tensors that are written have this element type.
  ModelFormulas(Evaluator &evaluator, mlir::OpBuilder &builder, mlir::Type element)
      : evaluator(evaluator), builder(builder), element(element) {}
  void clear();

  /// Whether formulas have a function of this name.
  static bool isFunction(StringRef name);
  static ArrayRef<StringRef> functionNames();

  FormedOr tensor(const Expr *expr, mlir::Value value);
  /// A tensor in the type of sums, such as a column of the dataset: a number for each token [b, s], or k [b, s, k].
  Formed ofTokens(StringRef text, mlir::Value value);
  Formed number(const Expr *expr, double number) { return {formula.number(number), 0, 1, expr->text}; }
  /// An operator, or a comparison, which may be a chain.
  FormedOr apply(const Expr *expr, ArrayRef<Formed> operands);
  /// A function of formulas. `heads` is that of `heads = n`, or the n of every_head and of_heads.
  FormedOr call(const Expr *expr, ArrayRef<Formed> operands, int64_t heads);

  FormedOr difference(const Expr *expr, Formed left, Formed right) { return combine(expr, Element::sub, left, right); }
  FormedOr product(const Expr *expr, Formed left, Formed right) { return combine(expr, Element::mul, left, right); }
  Formed squaredRelu(Formed x);
  FormedOr sum(const Expr *expr, Formed left, Formed right) { return combine(expr, Element::add, left, right); }
  /// Whether it is one number for each token.
  bool isOfTokens(Formed value) const { return axesOf(value) == nn::Along::rows && !isCondition(value); }
  /// Writes one number for each token as a tensor [b, s].
  mlir::FailureOr<mlir::Value> writeTokens(const Expr *expr, Formed value);
  /// Writes a number for each head of a token as a tensor [b, s, heads].
  mlir::FailureOr<mlir::Value> writeHeads(const Expr *expr, Formed value);
  /// The tensors that a value is made of.
  llvm::SmallVector<mlir::Value> tensorsOf(Formed value) const;

  /// Writes a full value as a tensor, once; `reader` takes it.
  mlir::FailureOr<mlir::Value> write(const Expr *expr, Formed value, StringRef reader = "a part");

private:
  /// Of one formula: its backward reads them, a gradient and kept rows, and nn.map reads at most 64.
  static constexpr int64_t kMostTensors = 32;
  using Element = nn::Element;
  /// Folds numbers; all else is computed as written, so that `0 * x` is as wide as x and not a number where x is none.
  unsigned make(Element op, ArrayRef<unsigned> of, unsigned over = 0);
  unsigned number(double number) { return formula.number(number); }
  unsigned axesOf(Formed value) const { return formula.at(value.value).axes; }
  bool isFull(Formed value) const { return axesOf(value) == nn::Along::all; }
  bool isCondition(Formed value) const { return nn::isCondition(formula.at(value.value).op); }
  mlir::LogicalResult checkConditions(const Expr *expr, ArrayRef<Formed> operands);
  mlir::LogicalResult join(const Expr *expr, Formed &left, Formed &right);
  mlir::LogicalResult failWidths(const Expr *expr, Formed left, Formed right);
  FormedOr combine(const Expr *expr, Element op, Formed left, Formed right);
  FormedOr compare(const Expr *expr, ArrayRef<Formed> operands);
  FormedOr reduce(const Expr *expr, Formed x, int64_t heads);
  FormedOr byHeads(const Expr *expr, Formed x, int64_t heads);
  FormedOr power(const Expr *expr, Formed x, Formed exponent);
  std::optional<unsigned> function(StringRef name, unsigned x);
  FormedOr written(const Expr *expr, Formed row);
  mlir::FailureOr<mlir::Value> store(const Expr *expr, Formed value, unsigned axes);
  mlir::FailureOr<nn::MapOp> map(const Expr *expr, Formed value, unsigned axes);
  mlir::LogicalResult checkElements(const Expr *expr, Formed value);
  /// Whether full tensors that it reads are columns, or others, in another type than what is written.
  std::pair<bool, bool> readsColumns(Formed value) const;

  Evaluator &evaluator;
  mlir::OpBuilder &builder;
  mlir::Type element;
  nn::Formula formula;
  llvm::SmallVector<mlir::Value> tensors; ///< that are read
  llvm::SmallVector<unsigned> reads;      ///< their axes
  llvm::DenseMap<unsigned, mlir::Value> made;
};

} // namespace pp

#endif // PP_FRONTEND_MODELFORMULAS_H
