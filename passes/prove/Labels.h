// What a slot holds, as the proof of values sees it: a label of a few numbers, and a sum's terms as intervals.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_LABELS_H
#define PP_PASSES_LABELS_H

#include "analysis/Actions.h"
#include "llvm/ADT/SmallVector.h"
#include <optional>

namespace pp {

/// Kinds of values. `fresh` and `share` are what pieces with tied weights exchange: new values and gradients of theirs.
/// `kept` is what F keeps of a stash of which R makes the rest. The slice of `kv` and `dkv` is that of the keys, and of
/// `state` and `dstate` that behind which scans have this state. Of
/// units cut at their attentions: `carry` goes from step to step, `query` to the ranks that compute a part of an
/// attention, and `part` comes from them, a sum over slices of keys; the same with a `d` in the backward.
/// `stats`: of the logits, for the loss. Of a part that is cut by the vocabulary `act`, `dact`, `stats` are the first
/// shard's.
enum class What : uint8_t {
  nothing,
  act,
  dact,
  kv,
  dkv,
  state,
  dstate,
  kept,
  stash,
  pending,
  carry,
  dcarry,
  query,
  dquery,
  part,
  dpart,
  tokens,
  targets,
  source,
  starts,
  positions,
  rows,
  column,
  weight,
  opt,
  fresh,
  grad,
  share,
  norm,
  loss,
  stats,
  undo,    ///< what an update was made from
  doubtful ///< what depends on an update that is not judged yet
};

/// A value. Coordinates that a kind does not have are -1. `version`: of weights and optimizer states, after so many of
/// this step's updates, below 0 before those of earlier steps; of a norm the update that it is for.
struct Label {
  What what = What::nothing;
  bool pending = false; ///< of a gradient: it is a replica's own, and is still to be summed over the mesh
  bool terms = false;   ///< of a gradient: devices along `tensor` have terms of some of it, still to be summed
  bool part = false;    ///< of a gradient or weights: a replica has it in its shard alone, and other values beside it
  int32_t version = 0;
  int32_t piece = -1, microbatch = -1, slice = -1;
  /// -1: the whole. Of data how many places on, if any, or which column. Where units are cut, of which attention, or
  /// made by which step.
  int32_t shard = -1;

  bool operator==(const Label &other) const {
    return what == other.what && version == other.version && piece == other.piece && microbatch == other.microbatch &&
           slice == other.slice && shard == other.shard && pending == other.pending && terms == other.terms &&
           part == other.part;
  }
  bool operator!=(const Label &other) const { return !(*this == other); }
  /// Whether its terms are counted: see Terms.
  bool isSum() const {
    return what == What::grad || what == What::share || what == What::norm || what == What::dkv || isPart();
  }
  bool isPart() const { return what == What::part || what == What::dpart; }
  /// The label as diagnostics write it: `act(0, 2)`, `data(tokens, 2)`, `weight(0)` after its update, ..
  std::string str(const Pieces &pieces) const;
};

/// The terms of a sum: sorted intervals, both ends included. Schedules go through microbatches in runs, so a gradient
/// is one or two intervals whatever the number of microbatches.
class Terms {
public:
  bool empty() const { return intervals.empty(); }
  bool contains(int32_t term) const;
  /// Adds what `other` holds, moved by `shift`; where the two meet, the first common term, and nothing is added.
  std::optional<int32_t> add(const Terms &other, int32_t shift = 0);
  std::optional<int32_t> add(int32_t term) { return add(Terms(term)); }
  /// The first of 0..count-1 that is not there.
  std::optional<int32_t> firstMissing(int32_t count) const;
  /// The first term of this that `other` has too.
  std::optional<int32_t> firstCommon(const Terms &other, int32_t shift = 0) const;
  int64_t size() const;
  /// The first of begin..end-1 that is not there; the first that is.
  std::optional<int32_t> firstMissing(int32_t begin, int32_t end) const;
  std::optional<int32_t> firstOf(int32_t begin, int32_t end) const;
  int32_t front() const { return intervals.front().first; }

  Terms() = default;
  explicit Terms(int32_t term) : Terms(term, term) {}
  Terms(int32_t first, int32_t last) : intervals({{first, last}}) {}
  bool operator==(const Terms &other) const { return intervals == other.intervals; }

private:
  using Interval = std::pair<int32_t, int32_t>;
  llvm::SmallVector<Interval, 1> intervals;
};

} // namespace pp

#endif // PP_PASSES_LABELS_H
