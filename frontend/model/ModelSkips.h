// Values that a part of a model takes from another one than the part before it: `part head(x, targets, e from embed)`.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_MODELSKIPS_H
#define PP_FRONTEND_MODELSKIPS_H

#include "frontend/evaluate/Evaluator.h"
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

} // namespace pp

#endif // PP_FRONTEND_MODELSKIPS_H
