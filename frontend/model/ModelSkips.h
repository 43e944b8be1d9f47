// What a part reads by name beside the value of the part before: `part head(x, e from embed)`, and columns of datasets.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_MODELSKIPS_H
#define PP_FRONTEND_MODELSKIPS_H

#include "frontend/model/Model.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/StringMap.h"

namespace pp {

class ModelSkips {
public:
  ModelSkips(Evaluator &evaluator, const Model &model, mlir::OpBuilder &builder)
      : evaluator(evaluator), model(model), builder(builder) {}

  struct Value {
    mlir::StringAttr name; ///< `embed.e`
    mlir::Type type;
  };
  /// The value for this parameter of `reader`; an empty name if it does not come from a named part.
  mlir::FailureOr<Value> find(const ModelPart &reader, size_t parameter);
  /// The names of a part's values that parts after it take.
  llvm::SmallVector<Name> wantedOf(const ModelPart &part) const;
  void add(const ModelPart &part, Name name, mlir::Type type) { types[nameOf(part, name)] = type; }
  static std::string nameOf(const ModelPart &part, Name name) { return (part.name.text + "." + name.text).str(); }

private:
  Evaluator &evaluator;
  const Model &model;
  mlir::OpBuilder &builder;
  llvm::StringMap<mlir::Type> types; ///< by name, once the part is built
};

/// The columns of the dataset that a model declares; its last part reads them.
class ModelColumns {
public:
  ModelColumns(Evaluator &evaluator, const Model &model, Scope &parameters, BatchShape shape, mlir::Builder builder)
      : evaluator(evaluator), model(model), parameters(parameters), shape(shape), builder(builder) {}

  /// Finds widths and defaults.
  mlir::LogicalResult read();
  struct Column {
    Name name;
    mlir::RankedTensorType type; ///< [b, s] or [b, s, k]: i32, or the type of sums
    mlir::DictionaryAttr said;   ///< name, width, int, default: an entry of the program's `columns`
    bool isInt() const { return type.getElementType().isInteger(32); }
    bool isMade() const { return ModelColumns::isMade(name.text); }
  };
  /// What follows from the rows, with `data .., group = N`: `group` is where a token's group begins, `member` which
  /// document of it the token is of.
  static bool isMade(StringRef name) { return name == "group" || name == "member"; }
  ArrayRef<Column> all() const { return columns; }
  const Column *find(StringRef name) const;
  /// Numbers the columns that are read, of those that are arguments from number `first` on, and erases the others.
  /// The list of those that stay is the program's `columns`.
  void finish(mlir::func::FuncOp part, unsigned first, llvm::SmallVectorImpl<mlir::Attribute> &list);

private:
  mlir::FailureOr<Column> columnOf(const ColumnDeclaration &declared);
  void addMade(StringRef name, mlir::Type element);
  mlir::FailureOr<mlir::Attribute> absentOf(const ColumnDeclaration &declared);

  Evaluator &evaluator;
  const Model &model;
  Scope &parameters;
  BatchShape shape;
  mlir::Builder builder;
  llvm::SmallVector<Column> columns;
};

} // namespace pp

#endif // PP_FRONTEND_MODELSKIPS_H
