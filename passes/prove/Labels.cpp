// Labels as text, and sums of disjoint terms.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/prove/Labels.h"

using namespace mlir;
using namespace pp;

static StringRef nameOf(What what) {
  switch (what) {
  case What::act:
    return "act";
  case What::dact:
    return "dact";
  case What::kv:
    return "kv";
  case What::dkv:
    return "dkv";
  case What::state:
    return "state";
  case What::dstate:
    return "dstate";
  case What::stash:
    return "stash";
  case What::stats:
    return "stat";
  case What::weight:
    return "weight";
  case What::opt:
    return "opt";
  case What::grad:
    return "grad";
  default:
    return "";
  }
}

/// ` after its update`, ` of 1 update before`, or nothing for the version that the step begins with.
static std::string describeVersion(int64_t version) {
  if (version == 0)
    return "";
  if (version == 1)
    return " after its update";
  if (version > 1)
    return " after " + std::to_string(version) + " updates";
  return " of " + std::to_string(-version) + (version < -1 ? " updates" : " update") + " before";
}

std::string Label::str(const Pieces &pieces) const {
  std::string coord = piece < 0 ? "" : pieces.coordOf(piece).with(microbatch, slice).str();
  std::string data = std::to_string(microbatch) + (slice < 0 ? "" : ", " + std::to_string(slice));
  switch (what) {
  case What::nothing:
    return "nothing";
  case What::tokens:
    return "`data(tokens, " + data + ")`";
  case What::targets:
    return "`data(targets, " + data + ")`";
  case What::source:
    return "`data(source, " + data + ")`";
  case What::starts:
    return "`data(starts, " + data + ")`";
  case What::positions:
    return "`data(positions, " + data + ")`";
  case What::rows:
    return "`data(rows, " + data + ")`";
  case What::column:
    return "`data(column " + std::to_string(shard) + ", " + data + ")`";
  case What::loss:
    return "the loss of microbatch " + std::to_string(microbatch);
  case What::norm:
    return "the norm of the gradients" + (version > 0 ? " of update " + std::to_string(version) : "");
  case What::kept:
    return "what `F(" + coord + ")` keeps for `R`";
  case What::pending:
    return "what `I(" + coord + ")` left for `W`";
  case What::carry:
  case What::dcarry:
    return "what a step of `" + std::string(what == What::carry ? "F" : "B") + "(" + coord + ")` left for the next";
  case What::query:
  case What::dquery:
    return "the queries of `" + std::string(what == What::query ? "F" : "B") + "(" + coord + ")`";
  case What::part:
  case What::dpart:
    return "a part of the attention of `" + std::string(what == What::part ? "F" : "B") + "(" + coord + ")`";
  case What::fresh:
    return "the new tied weights for " + pieces.describe(piece);
  case What::undo:
    return "what the update of " + pieces.describe(piece) + " was made from";
  case What::doubtful:
    return "what depends on an update that is not judged";
  case What::share:
    return "the gradient of the tied weights of " + pieces.describe(piece);
  default:
    return ((shard >= 0 ? "shard " + std::to_string(shard) + " of `" : "`") + nameOf(what) + "(" + coord + ")`" +
            describeVersion(version) + (pending ? " of one replica" : "") + (terms ? " in terms" : "") +
            (part ? " in the replica's shard" : ""))
        .str();
  }
}

//===-- Terms ---------------------------------------------------------------------------------------------------===//

bool Terms::contains(int32_t term) const {
  auto *after = llvm::upper_bound(intervals, term,
                                  [](int32_t value, const Interval &interval) { return value < interval.first; });
  return after != intervals.begin() && std::prev(after)->second >= term;
}

std::optional<int32_t> Terms::firstCommon(const Terms &other, int32_t shift) const {
  for (size_t i = 0, j = 0; i < intervals.size() && j < other.intervals.size();) {
    int32_t begin = other.intervals[j].first + shift, end = other.intervals[j].second + shift;
    int32_t common = std::max(intervals[i].first, begin);
    if (common <= std::min(intervals[i].second, end))
      return common;
    if (intervals[i].second < end)
      ++i;
    else
      ++j;
  }
  return std::nullopt;
}

std::optional<int32_t> Terms::add(const Terms &other, int32_t shift) {
  if (auto common = firstCommon(other, shift))
    return common;
  for (auto [begin, end] : other.intervals) {
    Interval added(begin + shift, end + shift);
    auto *at = llvm::lower_bound(intervals, added);
    bool joinsAfter = at != intervals.end() && at->first == added.second + 1;
    bool joinsBefore = at != intervals.begin() && std::prev(at)->second + 1 == added.first;
    if (joinsBefore && joinsAfter) {
      std::prev(at)->second = at->second;
      intervals.erase(at);
    } else if (joinsBefore) {
      std::prev(at)->second = added.second;
    } else if (joinsAfter) {
      at->first = added.first;
    } else {
      intervals.insert(at, added);
    }
  }
  return std::nullopt;
}

std::optional<int32_t> Terms::firstMissing(int32_t count) const {
  int32_t next = 0;
  for (auto [begin, end] : intervals) {
    if (begin > next)
      break;
    next = end + 1;
  }
  return next < count ? std::optional(next) : std::nullopt;
}

std::optional<int32_t> Terms::firstMissing(int32_t begin, int32_t end) const {
  for (auto [first, last] : intervals)
    if (first <= begin && begin <= last)
      begin = last + 1;
  return begin < end ? std::optional(begin) : std::nullopt;
}

std::optional<int32_t> Terms::firstOf(int32_t begin, int32_t end) const {
  for (auto [first, last] : intervals)
    if (begin < end && first < end && last >= begin)
      return std::max(first, begin);
  return std::nullopt;
}

int64_t Terms::size() const {
  int64_t size = 0;
  for (auto [begin, end] : intervals)
    size += end - begin + 1;
  return size;
}
