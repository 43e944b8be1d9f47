// Parts that are cut by the vocabulary: pieces on single ranks, and how they hang together with the pieces around them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The shards of a part are pieces next to each other, numbered by their coordinate, with a `vocabulary` attribute. All
// of them read what the piece before makes; what they make, activations and gradients of activations, is added up for
// who reads it.
#ifndef PP_ANALYSIS_VOCABULARY_H
#define PP_ANALYSIS_VOCABULARY_H

#include "analysis/Actions.h"
#include "llvm/ADT/Sequence.h"

namespace pp {

/// Over how many pieces the part that this is a shard of is cut; 0 if it is whole.
inline int64_t vocabularyShards(pipeline::PieceOp piece) {
  return piece.getVocabulary() ? piece.getVocabulary()->getShards() : 0;
}
inline int64_t vocabularyShards(const Pieces &pieces, int64_t piece) { return vocabularyShards(pieces.op(piece)); }

/// The first of the shards of its part; the piece itself if it is whole.
inline int64_t leadOf(const Pieces &pieces, int64_t piece) {
  return vocabularyShards(pieces, piece) ? piece - pieces.op(piece).getCoord().getIndex() : piece;
}

/// The shards of its part, or the piece alone.
inline llvm::iota_range<int64_t> groupOf(const Pieces &pieces, int64_t piece) {
  int64_t lead = leadOf(pieces, piece);
  return llvm::seq(lead, lead + std::max<int64_t>(1, vocabularyShards(pieces, piece)));
}

/// The pieces whose activations this one reads, and those that read its own: none, one, or all shards of a part.
inline llvm::iota_range<int64_t> piecesBefore(const Pieces &pieces, int64_t piece) {
  int64_t lead = leadOf(pieces, piece);
  return lead > 0 ? groupOf(pieces, lead - 1) : llvm::seq<int64_t>(0, 0);
}
inline llvm::iota_range<int64_t> piecesAfter(const Pieces &pieces, int64_t piece) {
  int64_t next = *groupOf(pieces, piece).end();
  return next < pieces.size() ? groupOf(pieces, next) : llvm::seq<int64_t>(0, 0);
}

} // namespace pp

#endif // PP_ANALYSIS_VOCABULARY_H
