// Hashes what a model computes, so that a run is not continued with another function of the same weights.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Nn.h"
#include "frontend/model/Model.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/xxhash.h"

using namespace llvm;
using namespace pp;

std::string pp::hashOfParts(mlir::ModuleOp module) {
  std::string text;
  raw_string_ostream out(text);
  for (auto part : module.getOps<mlir::func::FuncOp>()) {
    out << part.getSymName() << part->getDiscardableAttrDictionary() << "\n";
    DenseMap<mlir::Value, size_t> numbers;
    for (mlir::Value argument : part.getArguments()) {
      if (mlir::Attribute from = part.getArgAttr(numbers.size(), nn::kFromAttr))
        out << numbers.size() << from << "\n";
      numbers.try_emplace(argument, numbers.size());
    }
    for (mlir::Operation &op : part.getBody().front()) {
      out << op.getName() << op.getAttrDictionary();
      for (mlir::Value operand : op.getOperands())
        out << " " << numbers.lookup(operand);
      for (mlir::Region &region : op.getRegions()) // of a formula
        region.walk(
            [&](mlir::Operation *inner) { inner->print(out << "\n", mlir::OpPrintingFlags().useLocalScope()); });
      out << "\n";
      for (mlir::Value result : op.getResults())
        numbers.try_emplace(result, numbers.size());
    }
  }
  return utohexstr(xxh3_64bits(text), /*LowerCase=*/true);
}
