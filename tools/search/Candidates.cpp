// Lists the schedules of a search, and writes stages as the text of a schedule.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/search/Candidates.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include <algorithm>

using namespace pp;

namespace {
constexpr int64_t kMostChunks = 4, kMostWaves = 2;

std::string listed(const std::vector<int64_t> &numbers, const char *between) {
  std::string list;
  for (int64_t number : numbers)
    list += (list.empty() ? "" : between) + std::to_string(number);
  return list;
}
} // namespace

std::string StageCut::describe() const {
  std::string text = family;
  bool isEven = *std::max_element(layers.begin(), layers.end()) == *std::min_element(layers.begin(), layers.end());
  if (!isEven)
    text += ", layers " + listed(layers, " ");
  for (auto [s, saving] : llvm::enumerate(savings)) {
    auto first = llvm::find(savings, saving) - savings.begin();
    if (saving.kind != Saving::None && first == static_cast<int64_t>(s))
      text += ", " + described(saving);
  }
  return text;
}

/// `recomputed 0 1`, `recomputed attn post of 2`, `all in host memory`: the stages with this saving.
std::string StageCut::described(const Saving &saving) const {
  std::vector<int64_t> stages;
  for (auto [s, its] : llvm::enumerate(savings))
    if (its == saving)
      stages.push_back(static_cast<int64_t>(s));
  std::string list = stages.size() == savings.size() ? "all" : listed(stages, " ");
  if (saving.kind == Saving::Host)
    return list + " in host memory";
  if (saving.kind == Saving::Parts)
    return "recomputed " + llvm::join(saving.parts, " ") + " of " + list;
  return stages.size() == savings.size() ? "all recomputed" : "recomputed " + list;
}

/// One microbatch after the other: the order that needs the least memory, from which the planner starts.
Replacement StageCut::replacement(const SearchSizes &sizes) const {
  std::string text = "schedule one_by_one(ranks p, microbatches m) {\n  stage s of " + std::to_string(places.size()) +
                     " at [" + listed(places, ", ") + "][s] layers [" + listed(layers, ", ") + "][s]\n";
  for (auto [s, saving] : llvm::enumerate(savings))
    if (saving.kind == Saving::Parts || saving.kind == Saving::Whole)
      text += "  recompute " + llvm::join(saving.parts, ", ") + (saving.kind == Saving::Parts ? " of " : "") +
              "stage(" + std::to_string(s) + ")\n";
  text += "  for i in microbatches {\n";
  auto add = [&](size_t s, const std::string &action) {
    text += "    on " + std::to_string(places[s]) + " { " + action + " }\n";
  };
  for (size_t s = 0; s < places.size(); ++s) {
    std::string stage = "(" + std::to_string(s) + ", i)", host = " host(" + std::to_string(places[s]) + ")";
    add(s, "F" + stage + (savings[s].kind == Saving::Host ? " move stash" + stage + " to" + host : ""));
  }
  for (size_t s = places.size(); s-- > 0;) {
    std::string stage = "(" + std::to_string(s) + ", i)", rank = std::to_string(places[s]);
    std::string back = "move stash" + stage + " from host(" + rank + ") to " + rank + " ";
    add(s, (savings[s].kind == Saving::Host ? back : "") + "B" + stage);
  }
  text += "  }\n}\n";
  return {text, "one_by_one", {{"ranks", sizes.ranks}, {"microbatches", sizes.microbatches}}};
}

static StageCut evenCut(const std::string &family, std::vector<int64_t> places, const SearchSizes &sizes) {
  auto stages = static_cast<int64_t>(places.size());
  StageCut cut = {family, std::move(places), {}, std::vector<Saving>(stages)};
  for (int64_t s = 0; s < stages; ++s)
    cut.layers.push_back(sizes.layers / stages + (s < sizes.layers % stages ? 1 : 0));
  return cut;
}

std::vector<StageCut> pp::evenCuts(const SearchSizes &sizes) {
  int64_t p = sizes.ranks;
  std::vector<StageCut> cuts;
  for (int64_t chunks = 1; chunks <= kMostChunks && chunks * p <= sizes.layers; ++chunks) {
    std::vector<int64_t> places;
    for (int64_t s = 0; s < chunks * p; ++s)
      places.push_back(s % p);
    cuts.push_back(evenCut(chunks == 1 ? "a stage a rank" : "a loop of " + std::to_string(chunks), places, sizes));
  }
  for (int64_t waves = 1; p > 1 && waves <= kMostWaves && 2 * waves * p <= sizes.layers; ++waves) {
    std::vector<int64_t> places;
    for (int64_t s = 0; s < 2 * waves * p; ++s)
      places.push_back(s / p % 2 == 0 ? s % p : p - 1 - s % p);
    cuts.push_back(evenCut(waves == 1 ? "V" : std::to_string(waves) + " waves", places, sizes));
  }
  return cuts;
}

StageCut pp::savingCut(const StageCut &cut, const std::vector<Saving> &savings, const SavingModels::Choice &choice,
                       const std::vector<std::vector<std::string>> &held) {
  StageCut made = cut;
  for (size_t s = 0; s < choice.size(); ++s)
    made.savings[s] = savings[choice[s]].of(held[s]);
  return made;
}

std::optional<StageCut> pp::shiftedCut(const StageCut &cut, llvm::ArrayRef<double> work, int64_t ranks) {
  std::vector<double> loads(ranks, 0);
  for (size_t s = 0; s < work.size(); ++s)
    loads[cut.places[s]] += work[s];
  auto heavy = std::max_element(loads.begin(), loads.end()) - loads.begin();
  auto light = std::min_element(loads.begin(), loads.end()) - loads.begin();
  int64_t from = -1, to = -1;
  for (int64_t s = 0; s < static_cast<int64_t>(work.size()); ++s) {
    bool isEnd = s == 0 || s + 1 == static_cast<int64_t>(work.size()); // the embedding, the head: enough for a stage
    if (cut.places[s] == heavy && cut.layers[s] > (isEnd ? 0 : 1) && (from < 0 || cut.layers[s] > cut.layers[from]))
      from = s;
    if (cut.places[s] == light && (to < 0 || cut.layers[s] < cut.layers[to]))
      to = s;
  }
  if (from < 0 || to < 0 || heavy == light)
    return std::nullopt;
  StageCut shifted = cut;
  --shifted.layers[from];
  ++shifted.layers[to];
  return shifted;
}

std::vector<LibrarySchedule> pp::librarySchedules(const SearchSizes &sizes) {
  return {{"slimpipe", "slimpipe", {{"slices", sizes.ranks}}},
          {"slimpipe", "slimpipe", {{"slices", 2 * sizes.ranks}}},
          {"terapipe", "terapipe", {{"slices", 4}}},
          {"helixpipe", "helixpipe", {}},
          {"dualpipev", "dualpipe_v", {}},
          {"bpipe", "bpipe", {}},
          {"gpipe_offload", "gpipe_offload", {}},
          {"weipipe", "weipipe_interleave", {}},
          {"fsdp", "fsdp", {}}};
}

std::string LibrarySchedule::call(const SearchSizes &sizes) const {
  std::string text = std::string(name) + "(" + std::to_string(sizes.ranks) + ", " + std::to_string(sizes.microbatches);
  for (const auto &[parameter, value] : arguments)
    text += ", " + parameter + " = " + std::to_string(value);
  return text + ")";
}

Replacement LibrarySchedule::replacement(const SearchSizes &sizes) const {
  Replacement made = {"import \"std/" + std::string(file) + ".pipe\"\n",
                      name,
                      {{"ranks", sizes.ranks}, {"microbatches", sizes.microbatches}}};
  made.arguments.insert(made.arguments.end(), arguments.begin(), arguments.end());
  return made;
}
