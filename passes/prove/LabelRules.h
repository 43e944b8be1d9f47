// The rules of labels: what every group of every task body must hold and what it makes, one row each.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_LABELRULES_H
#define PP_PASSES_LABELRULES_H

#include "analysis/BodyTable.h"
#include "passes/prove/Labels.h"

namespace pp {

/// Which coordinates of the unit the labels of a group have. `Tokens`: microbatch and slice; `Chunk`: those of the
/// unit, but for the slice, which is the number in the group's name: of keys, of states, and of their gradients. `Cut`:
/// those of the unit, and the group's number is that of a step or an attention.
enum class LabelSpan : uint8_t { Step, Tokens, Piece, Unit, Chunk, Cut };

struct GroupRule {
  pipeline::GroupKind kind;
  What what;
  LabelSpan span;
  int32_t from = 0; ///< an input comes from, and keys go to, the piece so much further on in the model
};

/// A group of a body.
struct BodyGroup {
  const GroupRule *rule;
  int32_t chunk;     ///< the 2 of `kv.2` and `kv.2.1`, and of `act.2`, a value that skips parts; else -1
  int32_t attention; ///< the 1 of `kv.2.1`, else -1
  const GroupRule *operator->() const { return rule; }
};

/// What a body adds to the terms of a sum.
enum class Adds : uint8_t { Nothing, Unit, None, Share, Tied, Norm };

/// The rule of all bodies of a phase and variant, on every slice and shard, whole or cut.
struct BodyRule {
  pipeline::Phase phase;
  pipeline::BodyVariant variant;
  Adds adds = Adds::Nothing; ///< `None`: a sum without terms
  bool whole = false;        ///< the gradient that it reads has all its terms
  bool updated = false;      ///< it reads weights after their update
};

/// A task body bound to its rules.
struct BodyLabels {
  pipeline::BodyAttr identity;
  const BodyRule *rule = nullptr;
  llvm::SmallVector<BodyGroup> inputs, results;
  llvm::SmallVector<int64_t> ties; ///< per result the input whose slot it takes over, or -1

  bool has(What what, bool input) const;
  /// Whether it adds up two shares of the gradient of a chunk of keys.
  bool sumsChunk() const {
    return llvm::any_of(inputs, [](const BodyGroup &group) { return group->kind == pipeline::GroupKind::dterm; });
  }

  /// Whether the body makes its gradient as a new term of a sum, and does not add it to the sum.
  bool beginsSum() const {
    return identity.getPhase() == pipeline::Phase::U && identity.getVariant() == pipeline::BodyVariant::first;
  }

  /// What the body adds to the terms of a sum. A part of an attention adds nothing to gradients of weights.
  Adds adds() const { return identity.isPart() ? Adds::Nothing : rule->adds; }

  /// Reads the body's identity and groups; a body or group without a rule is an error: nothing is proved by silence.
  static mlir::FailureOr<BodyLabels> get(mlir::ModuleOp module, pipeline::LaunchOp launch);
};

/// What a message that names this role may carry.
llvm::ArrayRef<What> cargoOf(pipeline::Role role);

} // namespace pp

#endif // PP_PASSES_LABELRULES_H
