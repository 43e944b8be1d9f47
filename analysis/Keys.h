// Which pieces attend keys and values that the piece before makes: then attentions of slices run beside each other.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_KEYS_H
#define PP_ANALYSIS_KEYS_H

#include "analysis/Actions.h"

namespace pp {

/// Of every piece of a program with slices the places of k and v among the values that come in, where its first part
/// has one attention and nothing else reads them: `part attn(q, k, v, x)` has 1 and 2. F of the piece before makes the
/// keys of a slice then, and its backward reads their gradient, a sum of shares of all slices that saw them. Elsewhere
/// none: keys are made, and their gradients summed, slice by slice inside the piece. So they are in a program where a
/// rank helps another one with its attentions (`helps`).
class KeysBefore {
public:
  KeysBefore(pipeline::ProgramOp program, const llvm::SmallVector<pipeline::PieceOp> &pieces)
      : KeysBefore(program, pieces, hasHelps(program)) {}
  KeysBefore(pipeline::ProgramOp program, const llvm::SmallVector<pipeline::PieceOp> &pieces, bool helps);
  llvm::ArrayRef<unsigned> of(int64_t piece) const { return places[piece]; }
  /// Whether the piece attends keys of the piece before; whether the piece after attends its own.
  bool reads(int64_t piece) const { return !places[piece].empty(); }
  bool makes(int64_t piece) const { return piece + 1 < static_cast<int64_t>(places.size()) && reads(piece + 1); }
  /// Whether the piece is only such an attention, without weights: then it may be attended ahead, key by key.
  bool isAlone(int64_t piece) const { return reads(piece) && alone[piece]; }
  /// Whether it has scans or convolutions and no attention, so that there are no keys of it.
  bool hasNoKeys(int64_t piece) const { return carries[piece] && !attends[piece]; }
  /// Whether slices of the piece wait for each other: it makes the keys of its attentions itself, or goes on from the
  /// state behind the slice before.
  bool chains(int64_t piece) const { return carries[piece] || (attends[piece] && !reads(piece)); }

private:
  static bool hasHelps(pipeline::ProgramOp program);

  std::vector<llvm::SmallVector<unsigned, 2>> places;
  std::vector<bool> alone, attends, carries;
};

} // namespace pp

#endif // PP_ANALYSIS_KEYS_H
