// Binds what a `cluster` says: nodes, ranks, memory, the speed of a device and of the links between two.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_CLUSTER_H
#define PP_FRONTEND_CLUSTER_H

#include "frontend/evaluate/Evaluator.h"
#include "mlir/IR/Builders.h"

namespace pp {

struct ClusterOutline {
  Name name = {};
  int64_t ranksPerNode = 0;
  int64_t nodes = 0; ///< at most; 0: as many as it takes
  /// The attribute `cluster` of the program: {name, ranks_per_node, memory, device = {..}, efficiency = {..}, inside =
  /// {..}, between = {..}}, numbers in bytes, seconds, and bytes or FLOP a second.
  mlir::DictionaryAttr attribute;
};

/// Reads the options of a cluster whose parameters `scope` binds.
mlir::FailureOr<ClusterOutline> outlineCluster(Evaluator &evaluator, const Cluster &cluster, Scope &scope,
                                               mlir::MLIRContext *context);

/// Checks that the cluster has room for these ranks and their devices, at this precision; errors are at `at`, where it
/// is chosen.
mlir::LogicalResult checkRoom(Evaluator &evaluator, const ClusterOutline &cluster, int64_t ranks, int64_t devicesOfRank,
                              StringRef precision, SMLoc at);

/// The predefined `nodes`: ranks 0, 1, .. in lists of as many as a node has, or all in one (0).
Value nodesOf(int64_t ranks, int64_t ranksPerNode);
/// Reports a schedule that reads `nodes` although the devices of a rank neither fill nodes nor share one.
mlir::LogicalResult noNodes(Evaluator &evaluator, SMLoc at);

} // namespace pp

#endif // PP_FRONTEND_CLUSTER_H
