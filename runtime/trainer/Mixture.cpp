// Reads the list of a mixture and gives each row of a run to the file that is farthest behind its weight.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Mixture.h"
#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>

namespace pp {
namespace {

constexpr std::string_view mark = "mix:";
constexpr size_t mostFiles = 1000;
constexpr int64_t unit = 1000000; ///< of weights

/// A number above 0 with at most six decimals; 0: it is none.
int64_t weightOf(std::string_view text) {
  const size_t dot = std::min(text.find('.'), text.size());
  std::string_view whole = text.substr(0, dot), part = text.substr(std::min(dot + 1, text.size()));
  constexpr std::string_view digits = "0123456789";
  if (whole.empty() || whole.size() > 6 || part.size() > 6 || (dot < text.size() && part.empty()) ||
      whole.find_first_not_of(digits) != text.npos || part.find_first_not_of(digits) != text.npos)
    return 0;
  std::string padded = std::string(part) + std::string(6 - part.size(), '0');
  return std::stoll(std::string(whole)) * unit + std::stoll(padded);
}

/// Of a name that may say how wide tokens are before the path.
std::string besides(const std::string &list, const std::string &data) {
  const std::string path = tokenPath(data);
  return data.substr(0, data.size() - path.size()) + (std::filesystem::path(list).parent_path() / path).string();
}

} // namespace

bool isMixture(const std::string &data) { return data.starts_with(mark); }

Status readMixture(const std::string &data, std::vector<MixedFile> &files) {
  if (!isMixture(data)) {
    files = {{data, 1}};
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
    const std::string weight(line.substr(0, end));
    const std::string name(line.substr(std::min(line.find_first_not_of(blanks, end), line.size())));
    if (weightOf(weight) == 0)
      return invalid("`", path, "`, line ", number, ": expected a weight, a number above 0 and below ", unit,
                     " with at most six decimals, got `", weight, "`");
    if (name.empty() || name == "random" || isMixture(name))
      return invalid("`", path, "`, line ", number, ": expected the name of a file after the weight, got `", name, "`");
    files.push_back({besides(path, name), weightOf(weight)});
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

Status Mixture::open(const std::string &data, int64_t vocab, uint64_t seed, bool check) {
  std::vector<MixedFile> files;
  PP_TRY(readMixture(data, files));
  int64_t factor = 0;
  for (const MixedFile &file : files)
    factor = std::gcd(factor, file.weight);
  total = 0;
  for (const MixedFile &file : files) {
    Source &source = sources.emplace_back();
    source.data = file.data;
    source.weight = file.weight / factor;
    total += source.weight;
    PP_TRY(source.tokens.open(file.data, vocab, seed, check));
  }
  return {};
}

Status Mixture::cut(int64_t length, Packing packing, int32_t pad) {
  for (Source &source : sources)
    PP_TRY(source.rows.open(source.tokens, tokenPath(source.data), length, packing, pad));
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

void Mixture::startAt(const std::vector<Rows::Place> &its) {
  for (size_t i = 0; i < sources.size(); ++i) // where a run has other files, they are read from their begins
    sources[i].rows.startAt(i < its.size() ? its[i] : Rows::Place());
  places.clear();
  restart(0);
  first = 0;
}

bool Mixture::hasCounted() const {
  return std::any_of(sources.begin(), sources.end(), [](const Source &its) { return its.tokens.hasCounted(); });
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
  for (const Source &source : sources)
    out += text(&source == &sources.front() ? ": " : "; ", source.weight, " of ", total, " rows from ",
                source.tokens.fingerprint(withDocuments));
  return out;
}

std::string Mixture::describe(int64_t rowsPerStep) {
  std::string out;
  for (Source &source : sources) {
    char line[160];
    const double share = double(source.weight) / double(total);
    snprintf(line, sizeof line,
             "data: %5.1f %% of the rows are from %lld tokens, read once every %.1f steps: ", 100 * share,
             static_cast<long long>(source.tokens.count()),
             double(source.rows.rowsPerEpoch()) / (share * double(rowsPerStep)));
    out += line + source.data + "\n";
  }
  return out;
}

/// Begins with the last row up to this one at which all files have exactly their shares.
void Mixture::restart(int64_t row) {
  next = row / total * total;
  for (Source &source : sources) {
    source.credit = 0;
    source.drawn = row / total * source.weight;
  }
}

void Mixture::cover(int64_t begin, int64_t end) {
  if (isOne())
    return rows().cover(begin, end);
  if (begin < first || begin / total > next / total) {
    places.clear();
    restart(begin);
  }
  for (; !places.empty() && first < begin; ++first)
    places.pop_front();
  for (; next < end; ++next) {
    for (Source &source : sources)
      source.credit += source.weight;
    // max_element has the first of equal ones.
    auto most = std::max_element(sources.begin(), sources.end(),
                                 [](const Source &a, const Source &b) { return a.credit < b.credit; });
    most->credit -= total;
    if (next >= begin)
      places.push_back({size_t(most - sources.begin()), most->drawn});
    ++most->drawn;
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

void Mixture::read(int64_t n, Rows::What what, int32_t *out, int64_t from, int64_t count, int64_t ahead) const {
  const Place place = placeOf(n);
  sources[place.source].rows.read(place.row, what, out, from, count, ahead);
}

int64_t Mixture::counted(int64_t n, int64_t ahead) const {
  const Place place = placeOf(n);
  return sources[place.source].rows.counted(place.row, ahead);
}

int64_t Mixture::filled(int64_t n) const {
  const Place place = placeOf(n);
  return sources[place.source].rows.filled(place.row);
}

} // namespace pp
