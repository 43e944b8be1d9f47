// A part of the model that can be cut by the vocabulary: an embedding, or a linear and the losses of its logits.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_VOCABULARYPART_H
#define PP_PASSES_VOCABULARYPART_H

#include "dialect/nn/Nn.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include <optional>

namespace pp {

/// The ops that are cut, and the weight that they read by rows or columns.
struct VocabularyPart {
  mlir::func::FuncOp function;
  nn::EmbeddingOp embedding;
  nn::LinearOp linear;
  llvm::SmallVector<mlir::Operation *> columns;    ///< elementwise formulas of logits, in order
  llvm::SmallVector<mlir::Operation *> statistics; ///< of logits: cross-entropies, and what losses of tokens read
  llvm::SmallVector<mlir::Operation *> tail;       ///< what is made of statistics and data, in order
  mlir::BlockArgument table;
  bool rows = true; ///< of the table, not columns

  /// Nothing if there is nothing to cut.
  static std::optional<VocabularyPart> find(mlir::func::FuncOp function);
  int64_t vocabulary() const { return mlir::cast<mlir::RankedTensorType>(table.getType()).getDimSize(rows ? 0 : 1); }
  /// How the weight is declared.
  nn::WeightAttr weight();
  /// The first row or column of the k-th shard.
  int64_t firstOf(int64_t k, int64_t shards) const { return k * vocabulary() / shards; }

  /// Writes the ops that are not cut as their own part; false if there are none.
  bool writeRest(mlir::OpBuilder &builder, llvm::StringRef name);
  /// The part as its k-th shard sees it.
  void writeShard(mlir::OpBuilder &builder, llvm::StringRef name, int64_t k, int64_t shards);

private:
  bool readHead(nn::LinearOp logits);
  mlir::func::FuncOp begin(mlir::OpBuilder &builder, llvm::StringRef name);
};

} // namespace pp

#endif // PP_PASSES_VOCABULARYPART_H
