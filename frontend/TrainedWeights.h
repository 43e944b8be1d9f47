// What `freeze` and `lora` of a training program say: which weights are trained, and which are added to be trained.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_TRAINEDWEIGHTS_H
#define PP_FRONTEND_TRAINEDWEIGHTS_H

#include "dialect/pipeline/Pipeline.h"
#include "frontend/evaluate/CommandLine.h"
#include "llvm/ADT/SetVector.h"

namespace pp {

class TrainedWeights {
public:
  TrainedWeights(Source &source, Evaluator &evaluator) : source(source), evaluator(evaluator) {}

  /// Whether `lora` has an option of this name.
  mlir::LogicalResult checkName(SMLoc at, StringRef name);
  /// Reads both options of `train`, null where it has none, and what the command line says in their place.
  mlir::LogicalResult read(const Option *freeze, const Option *lora, llvm::ArrayRef<Override> overrides, Scope &scope);
  /// Checks that every text of `freeze` is in a weight's name, and that every target of `lora` is a module.
  mlir::LogicalResult check(mlir::ModuleOp module, StringRef model);
  /// Checks that a text of this option of the optimizer is in one of the names that `check` found.
  mlir::LogicalResult checkText(SMLoc at, StringRef option, StringRef text);
  /// Adds what the passes need to know to the attributes of the program.
  void addTo(llvm::SmallVectorImpl<mlir::NamedAttribute> &attributes, mlir::Builder &builder) const;

private:
  mlir::LogicalResult set(Name name, SMLoc at, const Value &value);
  mlir::LogicalResult setTargets(SMLoc at, const Value &value);
  mlir::LogicalResult checkLora(SMLoc at);

  Source &source;
  Evaluator &evaluator;
  llvm::SmallVector<Name> freeze, targets; ///< parts of names, and names of modules
  llvm::SetVector<StringRef> names;        ///< of the model's weights
  SMLoc loraAt;                            ///< invalid: there is none
  int64_t rank = 0;
  double alpha = 0, dropout = 0;
  bool rslora = false;
};

} // namespace pp

#endif // PP_FRONTEND_TRAINEDWEIGHTS_H
