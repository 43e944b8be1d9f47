// Reads the list of a mixture and gives each row of a run to the file that is farthest behind its weight.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Mixture.h"
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

namespace pp {
namespace {

constexpr std::string_view mark = "mix:";
constexpr size_t mostFiles = 1000, mostStages = 1000;
constexpr int64_t unit = 1000000; ///< of weights

/// A number with at most six decimals; -1: it is none.
int64_t weightOf(std::string_view text) {
  const size_t dot = std::min(text.find('.'), text.size());
  std::string_view whole = text.substr(0, dot), part = text.substr(std::min(dot + 1, text.size()));
  constexpr std::string_view digits = "0123456789";
  if (whole.empty() || whole.size() > 6 || part.size() > 6 || (dot < text.size() && part.empty()) ||
      whole.find_first_not_of(digits) != text.npos || part.find_first_not_of(digits) != text.npos)
    return -1;
  std::string padded = std::string(part) + std::string(6 - part.size(), '0');
  return std::stoll(std::string(whole)) * unit + std::stoll(padded);
}

/// Reads a number of a step behind `before`; 0 if it is none.
int64_t stepOf(std::string_view text, int64_t before) {
  int64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  return error == std::errc() && end == text.data() + text.size() && step > before && step <= mostSteps ? step : 0;
}

/// `0.7`, or `0.7,0.2@1001,0@2001`: weights, each but the first with the step from which on it holds.
Status readWeights(std::string_view text, std::map<int64_t, int64_t> &weights) {
  const bool changes = text.find(',') != text.npos;
  for (bool more = true; more;) {
    const std::string_view each = text.substr(0, text.find(',')), number = each.substr(0, each.find('@'));
    more = each.size() < text.size();
    text.remove_prefix(each.size() + more);
    const int64_t weight = weightOf(number), last = weights.empty() ? 0 : weights.rbegin()->first;
    if (weight < 0 || (weight == 0 && !changes))
      return invalid("expected a weight, a number ", changes ? "of at least" : "above", " 0 and below ", unit,
                     " with at most six decimals, got `", number, "`");
    if (number.size() == each.size() ? last != 0 : last == 0)
      return invalid("expected ", last ? "`WEIGHT@STEP` behind the first weight" : "a first weight without a step",
                     ", got `", each, "`");
    const int64_t step = last ? stepOf(each.substr(number.size() + 1), last) : 1;
    if (step == 0)
      return invalid("expected a step from ", last + 1, " to ", mostSteps, " behind `@`, got `", each, "`");
    weights[step] = weight;
  }
  return {};
}

/// The name of a data file, relative to the list's folder; a prefix of the name may say how wide tokens are.
std::string besides(const std::string &list, const std::string &data) {
  const std::string path = tokenPath(data);
  return data.substr(0, data.size() - path.size()) + (std::filesystem::path(list).parent_path() / path).string();
}

} // namespace

bool isMixture(const std::string &data) { return data.starts_with(mark); }

Status readMixture(const std::string &data, std::vector<MixedFile> &files) {
  if (!isMixture(data)) {
    files = {{data, {{1, unit}}}};
    return {};
  }
  const std::string path = data.substr(mark.size());
  Mapping mapping;
  PP_TRY(mapping.open(path, "data "));
  constexpr std::string_view blanks = " \t\r";
  std::string_view rest = mapping.bytes();
  std::map<std::filesystem::path, int64_t> lineOf; // two readers of a file would read each of its rows twice in turn
  for (int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    line.remove_prefix(std::min(line.find_first_not_of(blanks), line.size()));
    if (line.empty() || line.front() == '#')
      continue;
    line = line.substr(0, line.find_last_not_of(blanks) + 1);
    const size_t end = std::min(line.find_first_of(blanks), line.size());
    const std::string name(line.substr(std::min(line.find_first_not_of(blanks, end), line.size())));
    std::map<int64_t, int64_t> weights;
    if (Status read = readWeights(line.substr(0, end), weights); !read.ok())
      return invalid("`", path, "`, line ", number, ": ", read.message());
    if (name.empty() || name == "random" || isMixture(name))
      return invalid("`", path, "`, line ", number, ": expected the name of a file after the weight, got `", name, "`");
    files.push_back({besides(path, name), std::move(weights)});
    std::error_code none;
    const std::filesystem::path spelled = tokenPath(files.back().data);
    const std::filesystem::path place = std::filesystem::weakly_canonical(spelled, none);
    const auto [at, isNew] = lineOf.emplace(none ? spelled : place, number);
    if (!isNew)
      return invalid("`", path, "`, line ", number, ": line ", at->second, " names `", name,
                     "`, too; one line with the sum of both weights reads it once");
    if (files.size() > mostFiles)
      return invalid("`", path, "` has more than ", mostFiles, " files");
  }
  return files.empty() ? invalid("`", path, "` names no file; its lines are a weight and the name of a file each")
                       : Status();
}

Status Mixture::open(const std::string &data, int64_t vocab, uint64_t seed, bool check,
                     const std::vector<ColumnSpec> &columns) {
  std::vector<MixedFile> files;
  PP_TRY(readMixture(data, files));
  PP_TRY(openStages(data, files));
  for (const MixedFile &file : files) {
    Source &source = sources.emplace_back();
    source.data = file.data;
    PP_TRY(source.tokens.open(file.data, vocab, seed, check, columns));
  }
  return {};
}

Status Mixture::openStages(const std::string &data, const std::vector<MixedFile> &files) {
  std::set<int64_t> steps;
  for (const MixedFile &file : files)
    for (const auto &[step, weight] : file.weights)
      steps.insert(step);
  if (steps.size() > mostStages)
    return invalid("`", data.substr(mark.size()), "`: weights change at ", steps.size() - 1,
                   " steps; expected at most ", mostStages - 1);
  for (int64_t step : steps) {
    Stage &its = stages.emplace_back();
    its.step = step;
    its.row = step == 1 ? 0 : INT64_MAX;
    int64_t factor = 0;
    for (const MixedFile &file : files) {
      its.weights.push_back(std::prev(file.weights.upper_bound(step))->second);
      factor = std::gcd(factor, its.weights.back());
    }
    if (factor == 0)
      return invalid("`", data.substr(mark.size()), "`: all weights are 0 from step ", step, " on");
    for (int64_t &weight : its.weights)
      its.total += weight /= factor;
  }
  return {};
}

Status Mixture::cut(int64_t length, Packing packing, int32_t pad, int64_t group) {
  for (Source &source : sources)
    PP_TRY(source.rows.open(source.tokens, tokenPath(source.data), length, packing, pad, group));
  return {};
}

void Mixture::shuffle(uint64_t seed) {
  for (Source &source : sources)
    source.rows.shuffle(seed++);
}

std::vector<Rows::Place> Mixture::placesAt(int64_t n) {
  if (isOne())
    return {rows().placeOf(n)};
  cover(n, n);
  std::vector<Rows::Place> out;
  for (Source &source : sources)
    out.push_back(source.rows.placeOf(source.drawn));
  return out;
}

void Mixture::startAt(const std::vector<Rows::Place> &its, int64_t step, int64_t rowsPerStep) {
  for (size_t i = 0; i < sources.size(); ++i) // where a run has other files, they are read from their begins
    sources[i].rows.startAt(i < its.size() ? its[i] : Rows::Place());
  for (Stage &stage : stages) {
    stage.row = std::max<int64_t>(stage.step - 1 - step, 0) * rowsPerStep;
    stage.drawn.clear();
  }
  stages.front().drawn.assign(sources.size(), 0);
  places.clear();
  restart(0);
  first = 0;
}

bool Mixture::hasCounted() const {
  return std::any_of(sources.begin(), sources.end(), [](const Source &its) { return its.tokens.hasCounted(); });
}

bool Mixture::hasWeights() const {
  return std::any_of(sources.begin(), sources.end(), [](const Source &its) { return its.tokens.hasWeights(); });
}

Status Mixture::findDocuments(bool isAsked, bool &all) const {
  auto has = [](const Source &its) { return !its.tokens.documents().empty(); };
  all = std::all_of(sources.begin(), sources.end(), has);
  auto with = std::find_if(sources.begin(), sources.end(), has),
       without = std::find_if_not(sources.begin(), sources.end(), has);
  if (isAsked && !all && with != sources.end())
    return invalid("`", without->data, "` has no documents, and `", with->data,
                   "` of the same mixture has; `--pack stream` does not tell documents apart");
  return {};
}

std::string Mixture::fingerprint(bool withDocuments) const {
  if (isOne())
    return tokens().fingerprint(withDocuments);
  std::string out = "a mixture";
  for (size_t i = 0; i < sources.size(); ++i)
    out += text(i == 0 ? ": " : "; ", shareOf(i), " from ", sources[i].tokens.fingerprint(withDocuments));
  return out;
}

std::string Mixture::checksum(bool withDocuments) const {
  std::string out;
  for (const Source &its : sources)
    out += text(out.empty() ? "" : " ", its.tokens.checksum(withDocuments));
  return out;
}

std::string Mixture::shareOf(size_t source) const {
  std::string out;
  for (const Stage &its : stages)
    out += text(its.step == 1 ? "" : text(", from step ", its.step, " on "), its.weights[source], " of ", its.total,
                " rows");
  return stages.size() > 1 ? out + "," : out;
}

std::string Mixture::describe(int64_t rowsPerStep) {
  std::string out;
  for (const Stage &its : stages)
    for (size_t i = 0; i < sources.size(); ++i) {
      Source &source = sources[i];
      if (its.weights[i] == 0)
        continue;
      char line[160];
      const double share = double(its.weights[i]) / double(its.total);
      snprintf(line, sizeof line,
               "%5.1f %% of the rows are from %lld tokens, read once every %.1f steps: ", 100 * share,
               static_cast<long long>(source.tokens.count()),
               double(source.rows.rowsPerEpoch()) / (share * double(rowsPerStep)));
      out += text("data: ", its.step == 1 ? "" : text("from step ", its.step, " on "), line, source.data, "\n");
    }
  return out;
}

/// The last one that begins at this row or before.
size_t Mixture::stageOf(int64_t row) const {
  auto after = [](int64_t row, const Stage &its) { return row < its.row; };
  return size_t(std::upper_bound(stages.begin() + 1, stages.end(), row, after) - stages.begin()) - 1;
}

/// The next row is the first one of this stage; the one before it is known.
void Mixture::enter(size_t its) {
  stage = its;
  next = stages[its].row;
  for (size_t i = 0; i < sources.size(); ++i)
    sources[i].credit = 0, sources[i].drawn = stages[its].drawn[i];
}

/// Begins with the last row up to this one at which all files have exactly their shares of its stage.
void Mixture::restart(int64_t row) {
  const size_t wanted = stageOf(row);
  for (size_t its = 0;; ++its) {
    enter(its);
    const Stage &now = stages[its];
    const int64_t periods = ((its < wanted ? stages[its + 1].row : row) - now.row) / now.total;
    next += periods * now.total;
    for (size_t i = 0; i < sources.size(); ++i)
      sources[i].drawn += periods * now.weights[i];
    if (its == wanted)
      return;
    Stage &then = stages[its + 1];
    if (!then.drawn.empty())
      continue;
    for (; next < then.row; ++next)
      draw();
    for (const Source &source : sources)
      then.drawn.push_back(source.drawn);
  }
}

/// The source of the next row, which it has then drawn.
size_t Mixture::draw() {
  const Stage &its = stages[stage];
  for (size_t i = 0; i < sources.size(); ++i)
    sources[i].credit += its.weights[i];
  // max_element has the first of equal ones.
  auto most = std::max_element(sources.begin(), sources.end(),
                               [](const Source &a, const Source &b) { return a.credit < b.credit; });
  most->credit -= its.total;
  ++most->drawn;
  return size_t(most - sources.begin());
}

void Mixture::cover(int64_t begin, int64_t end) {
  if (isOne())
    return rows().cover(begin, end);
  const Stage &its = stages[stage];
  if (begin < first || stageOf(begin) != stage || (begin - its.row) / its.total > (next - its.row) / its.total) {
    places.clear();
    restart(begin);
  }
  for (; !places.empty() && first < begin; ++first)
    places.pop_front();
  for (; next < end; ++next) {
    if (stageOf(next) != stage)
      restart(next);
    const size_t source = draw();
    if (next >= begin)
      places.push_back({source, sources[source].drawn - 1});
  }
  first = next - int64_t(places.size());
  for (size_t number = 0; number < sources.size(); ++number) {
    int64_t low = INT64_MAX, high = 0;
    for (const Place &place : places)
      if (place.source == number)
        low = std::min(low, place.row), high = place.row + 1;
    if (low < high)
      sources[number].rows.cover(low, high);
  }
}

std::pair<const Rows &, int64_t> Mixture::rowOf(int64_t n) const {
  const Place place = placeOf(n);
  return {sources[place.source].rows, place.row};
}

void Mixture::read(int64_t n, Rows::What what, int32_t *out, int64_t from, int64_t count, int64_t ahead) const {
  const auto [rows, row] = rowOf(n);
  rows.read(row, what, out, from, count, ahead);
}

void Mixture::readColumn(int64_t n, size_t column, double *out, int64_t from, int64_t count) const {
  const auto [rows, row] = rowOf(n);
  rows.readColumn(row, column, out, from, count);
}

double Mixture::columnSum(int64_t n, size_t column) const {
  const auto [rows, row] = rowOf(n);
  return rows.columnSum(row, column);
}

int64_t Mixture::documentsOf(int64_t n) const {
  const auto [rows, row] = rowOf(n);
  return rows.documentsOf(row);
}

int64_t Mixture::groupsOf(int64_t n) const {
  const auto [rows, row] = rowOf(n);
  return rows.groupsOf(row);
}

Counted Mixture::counted(int64_t n, int64_t ahead) const {
  const auto [rows, row] = rowOf(n);
  return rows.counted(row, ahead);
}

int64_t Mixture::filled(int64_t n) const {
  const auto [rows, row] = rowOf(n);
  return rows.filled(row);
}

} // namespace pp
