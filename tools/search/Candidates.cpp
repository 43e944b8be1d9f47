// Lists the schedules of a search, and writes stages as parameters of std/stages.pipe.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/search/Candidates.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include <algorithm>
#include <cmath>
#include <numeric>

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

Defines StageCut::arguments() const {
  auto list = [](const std::vector<int64_t> &numbers) { return "[" + listed(numbers, ",") + "]"; };
  std::vector<int64_t> whole, hosted, partsOf;
  std::vector<std::string> parts;
  for (auto [s, saving] : llvm::enumerate(savings)) {
    auto stage = static_cast<int64_t>(s);
    if (saving.kind == Saving::Whole)
      whole.push_back(stage);
    if (saving.kind == Saving::Host)
      hosted.push_back(stage);
    for (const std::string &part : saving.parts) {
      parts.push_back(part);
      partsOf.push_back(stage);
    }
  }
  Defines made = {{"places", list(places)}, {"held", list(layers)}};
  if (!whole.empty())
    made.push_back({"whole", list(whole)});
  if (!hosted.empty())
    made.push_back({"hosted", list(hosted)});
  if (!parts.empty())
    made.insert(made.end(), {{"parts", "[" + llvm::join(parts, ",") + "]"}, {"parts_of", list(partsOf)}});
  return made;
}

static StageCut evenCut(const std::string &family, std::vector<int64_t> places, int64_t layers) {
  auto stages = static_cast<int64_t>(places.size());
  StageCut cut = {family, std::move(places), {}, std::vector<Saving>(stages)};
  for (int64_t s = 0; s < stages; ++s)
    cut.layers.push_back(layers / stages + (s < layers % stages ? 1 : 0));
  return cut;
}

std::vector<StageCut> pp::evenCuts(int64_t p, int64_t layers) {
  std::vector<StageCut> cuts;
  for (int64_t chunks = 1; chunks <= kMostChunks && chunks * p <= layers; ++chunks) {
    std::vector<int64_t> places;
    for (int64_t s = 0; s < chunks * p; ++s)
      places.push_back(s % p);
    cuts.push_back(evenCut(chunks == 1 ? "a stage a rank" : "a loop of " + std::to_string(chunks), places, layers));
  }
  for (int64_t waves = 1; p > 1 && waves <= kMostWaves && 2 * waves * p <= layers; ++waves) {
    std::vector<int64_t> places;
    for (int64_t s = 0; s < 2 * waves * p; ++s)
      places.push_back(s / p % 2 == 0 ? s % p : p - 1 - s % p);
    cuts.push_back(evenCut(waves == 1 ? "V" : std::to_string(waves) + " waves", places, layers));
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

std::vector<double> pp::loadsOf(const StageCut &cut, llvm::ArrayRef<double> work, int64_t ranks) {
  std::vector<double> loads(ranks, 0);
  for (auto [place, its] : llvm::zip(cut.places, work))
    loads[place] += its;
  return loads;
}

std::vector<double> pp::layersOf(const StageCut &cut, llvm::ArrayRef<double> work, int64_t ranks) {
  std::vector<double> least(ranks, INFINITY);
  for (auto [place, its, layers] : llvm::zip(cut.places, work, cut.layers))
    least[place] = std::min(least[place], its / static_cast<double>(std::max<int64_t>(layers, 1)));
  return least;
}

std::optional<StageCut> pp::shiftedCut(const StageCut &cut, llvm::ArrayRef<double> loads, llvm::ArrayRef<double> more) {
  std::vector<double> then(loads.begin(), loads.end());
  for (auto [load, its] : llvm::zip(then, more))
    load += its;
  auto heavy = std::max_element(loads.begin(), loads.end()) - loads.begin();
  auto light = std::min_element(then.begin(), then.end()) - then.begin();
  int64_t from = -1, to = -1;
  for (int64_t s = 0; s < static_cast<int64_t>(cut.places.size()); ++s) {
    bool isEnd =
        s == 0 || s + 1 == static_cast<int64_t>(cut.places.size()); // the embedding, the head: enough for a stage
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

StageCut pp::balancedCut(StageCut cut, std::vector<double> work, int64_t ranks) {
  std::vector<double> layer;
  for (auto [its, layers] : llvm::zip_equal(work, cut.layers))
    layer.push_back(its / static_cast<double>(std::max<int64_t>(layers, 1)));
  auto unevenness = [](const std::vector<double> &loads) {
    return std::accumulate(loads.begin(), loads.end(), 0.0, [](double sum, double load) { return sum + load * load; });
  };
  while (true) {
    std::vector<double> loads = loadsOf(cut, work, ranks);
    std::optional<StageCut> next = shiftedCut(cut, loads, layersOf(cut, work, ranks));
    for (size_t s = 0; next && s < work.size(); ++s)
      work[s] += static_cast<double>(next->layers[s] - cut.layers[s]) * layer[s];
    if (!next || unevenness(loadsOf(*next, work, ranks)) >= unevenness(loads))
      return cut;
    cut = *next;
  }
}

Candidate pp::planned(const MeshLayout &layout, const StageCut &cut) {
  return {layout, "stages", "stages", cut.arguments(), std::nullopt, 1, cut};
}

std::string Candidate::call() const {
  std::string text = name + "(";
  if (name != "single")
    text += std::to_string(layout.ranks) + ", ";
  text += std::to_string(layout.microbatches);
  for (const auto &[parameter, value] : arguments)
    text += ", " + parameter + " = " + value;
  return text + ")";
}

std::string Candidate::describe(const MeshLayout &written) const {
  std::string text = cut ? cut->describe() : call();
  if (recompute)
    text += *recompute == "stage" ? ", all recomputed"
            : recompute->empty()  ? ", nothing recomputed"
                                  : ", recomputed " + *recompute;
  return layout == written ? text : text + "; " + layout.describe();
}

namespace {

/// Writes down the library for one layout.
class Library {
public:
  Library(const MeshLayout &layout, int64_t layers, int64_t length)
      : layout(layout), layers(layers), length(length), p(layout.ranks), m(layout.microbatches) {}

  std::vector<Candidate> list() {
    if (p == 1) {
      add("single", "single");
      return std::move(all);
    }
    addStages();
    addWeights();
    return std::move(all);
  }

  std::vector<Candidate> sliced() {
    if (p > 1)
      addSlices();
    return std::move(all);
  }

private:
  const MeshLayout &layout;
  int64_t layers, length, p, m;
  std::vector<Candidate> all;

  void add(const char *file, const char *name, std::vector<std::pair<std::string, int64_t>> numbers = {},
           Defines arguments = {}) {
    for (const auto &[parameter, value] : numbers)
      arguments.push_back({parameter, std::to_string(value)});
    all.push_back({layout, file, name, std::move(arguments), std::nullopt});
  }

  /// Numbers of stages on a rank that cut the layers evenly, and 2.
  std::vector<int64_t> chunks() const {
    std::vector<int64_t> made;
    for (int64_t v = 2; v * p <= layers && made.size() < 4; ++v)
      if (v == 2 || layers % (v * p) == 0)
        made.push_back(v);
    return made;
  }

  void addStages() {
    add("1f1b", "one_f_one_b");
    add("zb_v", "zb_v");
    add("dualpipev", "dualpipe_v");
    add("v_half", "v_half");
    add("v_half", "v_half", {}, {{"memory", "min"}});
    for (int64_t v : chunks())
      add("interleaved", "interleaved_1f1b", {{"chunks", v}});
    add("zb_h", "zb_h", {{"k", 1}});
    add("zb_h", "zb_h", {{"k", 2}});
    add("1f1b_overlap", "one_f_one_b_overlap");
    add("1f1b_vocabulary", "one_f_one_b_vocabulary");
    add("gpipe", "gpipe");
    add("gpipe_offload", "gpipe_offload");
    add("bpipe", "bpipe");
    add("looped_bfs", "looped_bfs", {{"chunks", 2}});
    add("hanayo", "hanayo", {{"waves", 1}});
    add("hanayo", "hanayo", {{"waves", 2}});
    add("1f1b_recompute", "one_f_one_b_recompute", {{"whole", p / 2}});
    add("chimera", "chimera");
    add("dualpipe", "dualpipe");
    for (int64_t replicas = 2; replicas <= p; replicas *= 2)
      for (int64_t level : {0, 1})
        add("replicated", "replicated_1f1b", {{"replicas", replicas}, {"level", level}});
  }

  void addSlices() {
    auto addSliced = [&](const char *file, const char *name, int64_t n, Defines arguments = {}) {
      if (length % n != 0)
        return;
      add(file, name, {{"slices", n}}, std::move(arguments));
      all.back().slices = n;
    };
    for (int64_t n : {p, 2 * p}) {
      addSliced("slimpipe", "slimpipe", n, {{"exchange", "false"}, {"vocabulary", "false"}});
      addSliced("slimpipe", "slimpipe", n);
      if (2 * p <= layers)
        addSliced("slimpipe", "slimpipe", n, {{"chunks", "2"}});
    }
    for (int64_t n : {2, 4})
      addSliced("terapipe", "terapipe", n);
    for (int64_t folds : {1, 2}) // parts of layers on ranks of their own
      add("helixpipe", "helixpipe", {{"folds", folds}});
    for (int64_t n : {p, 2 * p})
      addSliced("ring_attention", "ring_attention", n, {{"sharded", "true"}});
  }

  void addWeights() {
    add("fsdp", "fsdp", {{"ahead", 1}});
    add("fsdp", "fsdp", {{"ahead", 2}});
    add("zero", "data_parallel");
    add("zero", "zero", {{"level", 1}});
    add("zero", "zero", {{"level", 2}});
    add("weipipe", "weipipe_interleave");
    add("weipipe", "weipipe_interleave", {}, {{"prefetch", "true"}});
    add("weipipe", "weipipe_naive");
    add("wzb1", "wzb1");
    add("wzb2", "wzb2");
    for (int64_t groups = 2; groups <= p / 2; groups *= 2)
      add("tawpipe", "tawpipe", {{"groups", groups}});
    add("ring_of_nodes", "ring_of_nodes", {{"groups", 2}});
  }
};

} // namespace

std::vector<Candidate> pp::libraryOf(const MeshLayout &layout, int64_t layers) {
  return Library(layout, layers, 0).list();
}

std::vector<Candidate> pp::slicedLibraryOf(const MeshLayout &layout, int64_t layers, int64_t length) {
  return Library(layout, layers, length).sliced();
}
