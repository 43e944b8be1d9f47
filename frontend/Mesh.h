// What the clause `mesh` of a training program says: how many devices a rank is, along which axes, in which order.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_MESH_H
#define PP_FRONTEND_MESH_H

#include "dialect/pipeline/Pipeline.h"
#include "frontend/evaluate/CommandLine.h"
#include "llvm/ADT/StringSet.h"
#include <array>
#include <map>

namespace pp {

struct ModelOutline;

class MeshClause {
public:
  explicit MeshClause(Evaluator &evaluator) : evaluator(evaluator) {}

  /// Whether `mesh` has an option of this name.
  mlir::LogicalResult checkName(SMLoc at, StringRef name);
  /// Reads `mesh` and each `mesh of`, and what the command line says in their place.
  mlir::LogicalResult read(llvm::ArrayRef<Option> options, llvm::ArrayRef<Override> overrides, Scope &scope,
                           const ModelOutline &model);

  /// The number of devices that run the program of one rank.
  int64_t devicesOfRank() const {
    return size(pipeline::Axis::tensor) * size(pipeline::Axis::context) * size(pipeline::Axis::data);
  }
  /// The number of devices of a rank that read their own sequences.
  int64_t replicas() const { return size(pipeline::Axis::data); }
  /// The number of ranks on a node of so many devices, 0 for all; nothing if the devices of a rank do not fill nodes.
  std::optional<int64_t> ranksPerNode(int64_t devicesPerNode) const;
  /// Says at the parts what `mesh of PART` says of them.
  mlir::LogicalResult markParts(mlir::ModuleOp module) const;
  /// The mesh as an attribute; null if each rank is one device.
  pipeline::MeshAttr attribute(int64_t ranks, mlir::MLIRContext *context) const;

private:
  struct Given {
    int64_t value;
    SMLoc at; ///< invalid: the default
  };

  mlir::LogicalResult set(Name name, SMLoc at, const Value &value);
  mlir::LogicalResult setOrder(SMLoc at, StringRef words);
  mlir::LogicalResult readAll(const Option &option, Scope &scope);
  mlir::LogicalResult readPart(const Option &option, Scope &scope, const ModelOutline &model);
  mlir::LogicalResult checkPartOption(SMLoc at, StringRef name);
  mlir::LogicalResult setOfPart(llvm::ArrayRef<Name> parts, Name name, SMLoc at, const Value &value,
                                const ModelOutline &model);
  mlir::LogicalResult check();
  /// Whether devices gather what a backward may gather again.
  bool gathers() const { return sequence.value != 0 || size(pipeline::Axis::context) > 1 || expert.value > 1; }
  int64_t size(pipeline::Axis axis) const { return sizes[static_cast<size_t>(axis)].value; }

  Evaluator &evaluator;
  std::array<Given, 3> sizes = {Given{1, {}}, Given{1, {}}, Given{1, {}}}; ///< of tensor, context, data
  Given expert{1, {}}, zero{0, {}}, sequence{0, {}};
  llvm::StringSet<> wholeParts, expertParts; ///< with `tensor = 1`, and with `expert = 1`
  pipeline::Again again = pipeline::Again::inputs;
  std::map<StringRef, pipeline::Again> againOfParts;
  std::string attention = "gather"; ///< how queries and keys meet over `context`
  SMLoc attentionAt;                ///< where it is said
  std::map<StringRef, std::pair<std::string, SMLoc>> attentionOfParts;
  llvm::SmallVector<pipeline::Axis> order = {pipeline::Axis::tensor, pipeline::Axis::context, pipeline::Axis::data,
                                             pipeline::Axis::pipeline};
};

} // namespace pp

#endif // PP_FRONTEND_MESH_H
