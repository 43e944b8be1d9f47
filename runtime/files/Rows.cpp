// Packs the documents of an epoch into rows, and reads tokens, targets and starts of a row from its pieces.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Rows.h"
#include "runtime/files/Random.h"
#include <algorithm>
#include <cstring>

namespace pp {
namespace {

constexpr int32_t notCounted = -100; ///< as in PyTorch: a target that is ignored

int32_t bitsOf(float weight) {
  int32_t bits = 0;
  memcpy(&bits, &weight, sizeof bits);
  return bits;
}

} // namespace

const char *nameOf(Packing packing) {
  constexpr const char *names[] = {"stream", "whole", "split"};
  return names[size_t(packing)];
}

Status Rows::open(const Tokens &data, const std::string &path, int64_t rowLength, Packing how, int32_t padToken,
                  int64_t ofGroup) {
  tokens = &data;
  length = rowLength;
  packing = how;
  pad = padToken;
  group = how == Packing::Whole ? ofGroup : 1;
  if (data.isRandom())
    return {};
  windows = (data.count() - 1) / length;
  const int64_t needed = packing == Packing::Stream ? length + 1 : 1;
  if (data.count() < needed)
    return invalid("data `", path, "` has ", data.count(), " tokens; one sequence of ", length, " needs ", needed);
  const std::vector<int64_t> &begins = data.documents();
  const int64_t count = int64_t(begins.size()) - 1;
  if (group > 1 && count % group != 0)
    return invalid("data `", path, "` has ", count, " documents; the program reads groups of ", group);
  for (int64_t i = 0; group > 1 && i < count; i += group)
    if (const int64_t size = begins[size_t(i + group)] - begins[size_t(i)]; size > length)
      return invalid("documents ", i, " to ", i + group - 1, " of `", path, "` are a group of ", size,
                     " tokens; a row of this program has ", length,
                     ", and groups are not cut: compile it with a larger `data.sequence`");
  return {};
}

Rows::Epoch Rows::pack(int64_t number, int64_t firstRow) const {
  const std::vector<int64_t> &begins = tokens->documents();
  const int64_t count = (int64_t(begins.size()) - 1) / group;
  const Place begin = number == start.epoch ? start : Place{number};
  Epoch epoch;
  epoch.number = number;
  epoch.firstRow = firstRow;
  epoch.rows = {0};
  int64_t used = 0; // places of the row that is being filled
  auto closeRow = [&] {
    epoch.rows.push_back(epoch.pieces.size());
    used = 0;
  };
  auto add = [&](int64_t at, int64_t end) {
    while (at < end) {
      int64_t size = std::min(length, end - at);
      if (packing == Packing::Split)
        size = std::min(size, length - used);
      else if (used + size > length)
        closeRow();
      const bool goesOn = packing == Packing::Split && at + size < end;
      epoch.pieces.push_back({at, uint32_t(size), uint32_t(used) & INT32_MAX, goesOn});
      at += size;
      used += size;
      if (used == length)
        closeRow();
    }
  };
  for (int64_t i = begin.document; i < count; ++i) {
    const int64_t first = group * (order ? shuffled(*order, number, i, count) : i);
    if (group > 1 && used + begins[size_t(first + group)] - begins[size_t(first)] > length)
      closeRow();
    for (int64_t document = first; document < first + group; ++document)
      add(begins[size_t(document)] + (i == begin.document && document == first ? begin.token : 0),
          begins[size_t(document) + 1]);
  }
  if (used > 0)
    closeRow();
  return epoch;
}

void Rows::startAt(const Place &place) {
  start = place;
  packed.clear();
  nextEpoch = start.epoch;
}

int64_t Rows::firstWindows() const {
  // A shuffled epoch lacks as many rows as have been read; another one goes on at the token.
  const int64_t left = order ? windows - start.token / length : (tokens->count() - 1 - start.token) / length;
  return std::max<int64_t>(left, 0);
}

Rows::Place Rows::placeOfWindow(int64_t row) const {
  if (tokens->isRandom())
    return {0, 0, start.token + row * (length + 1)};
  const int64_t first = firstWindows();
  if (row >= first)
    return {start.epoch + 1 + (row - first) / windows, 0, (row - first) % windows * length};
  return {start.epoch, 0, (order ? (windows - first) * length : start.token) + row * length};
}

Rows::Place Rows::placeOf(int64_t row) {
  if (packing == Packing::Stream)
    return placeOfWindow(row);
  cover(row, row + 1);
  auto epoch = std::find_if(packed.begin(), packed.end(),
                            [row](const Epoch &each) { return row >= each.firstRow && row < each.end(); });
  const Piece &piece = epoch->pieces[epoch->rows[size_t(row - epoch->firstRow)]];
  const std::vector<int64_t> &begins = tokens->documents();
  const int64_t count = (int64_t(begins.size()) - 1) / group, its = memberOf(piece).group;
  int64_t place = order ? 0 : its;
  while (order && shuffled(*order, epoch->number, place, count) != its)
    ++place;
  return {epoch->number, place, piece.begin - begins[size_t(its * group)]};
}

Rows::Member Rows::memberOf(const Piece &piece) const {
  const std::vector<int64_t> &begins = tokens->documents();
  if (packing == Packing::Stream)
    return {};
  const int64_t document = std::upper_bound(begins.begin(), begins.end(), piece.begin) - begins.begin() - 1;
  return {document / group, document % group};
}

int64_t Rows::rowsPerEpoch() const {
  if (packing == Packing::Stream)
    return windows;
  const int64_t whole = start == Place() ? 0 : start.epoch + 1;
  return pack(whole, 0).end();
}

int64_t Rows::rowsOf(int64_t epochs, int64_t most) const {
  const bool packsAnew = order && packing == Packing::Whole; // every epoch
  const int64_t further = epochs - start.epoch - 1;          // epochs behind the one in which row 0 lies
  if (further < 0)
    return 0;
  auto exceeds = [further](int64_t each) { return further > INT64_MAX / 2 / std::max<int64_t>(each, 1); };
  if (packing == Packing::Stream)
    return exceeds(windows) ? INT64_MAX : firstWindows() + further * windows;
  const int64_t full = std::max<int64_t>(tokens->documents().back() / length, 1); // an epoch has at least as many
  if (further > most / full ||
      (packsAnew && further > most / std::max<int64_t>(int64_t(tokens->documents().size()), 1)))
    return INT64_MAX;
  int64_t rows = pack(start.epoch, 0).end();
  if (further > 0 && !packsAnew)
    return exceeds(rowsPerEpoch()) ? INT64_MAX : rows + further * rowsPerEpoch();
  for (int64_t number = start.epoch + 1; number < epochs; ++number)
    rows = pack(number, rows).end();
  return rows;
}

void Rows::cover(int64_t begin, int64_t end) {
  if (packing == Packing::Stream)
    return;
  if (!packed.empty() && begin < packed.front().firstRow)
    startAt(start);
  end = std::min(end, last);
  for (int64_t row = packed.empty() ? 0 : packed.back().end(); row < end; row = packed.back().end()) {
    packed.push_back(pack(nextEpoch++, row));
    while (packed.size() > 1 && packed.front().end() <= begin)
      packed.pop_front();
  }
}

Rows::Piece Rows::window(int64_t n, bool before) const {
  const Place place = placeOfWindow(n);
  if (tokens->isRandom())
    return {place.token - before * (length + 1), uint32_t(length), 0, 1};
  int64_t begin = place.token;
  if (order)
    begin = shuffled(*order, place.epoch, begin / length, windows) * length;
  if (before)
    begin = begin >= length ? begin - length : (windows - 1) * length;
  return {begin, uint32_t(length), 0, 1};
}

template <class Use> void Rows::forPieces(int64_t n, Use use) const {
  if (n >= last)
    return;
  if (packing == Packing::Stream)
    return use(window(n, /*before=*/false));
  for (const Epoch &epoch : packed)
    if (n >= epoch.firstRow && n < epoch.end())
      for (size_t i = epoch.rows[size_t(n - epoch.firstRow)]; i < epoch.rows[size_t(n - epoch.firstRow) + 1]; ++i)
        use(epoch.pieces[i]);
}

int64_t Rows::targetOf(const Piece &piece, int64_t place) const {
  const int64_t length = piece.length, next = piece.begin + place + 1;
  const bool exists = place < length && (place + 1 < length || piece.goesOn);
  return exists && tokens->isCounted(next) ? next : -1;
}

void Rows::read(int64_t n, What what, int32_t *out, int64_t from, int64_t count, int64_t ahead) const {
  count = count < 0 ? length - from : count;
  int64_t filled = 0; // places of the row, padding included
  auto add = [&](const Piece &piece) {
    const int64_t begin = std::max<int64_t>(piece.column, from);
    const int64_t end = std::min<int64_t>(piece.column + piece.length, from + count);
    const Member member = what == What::Groups || what == What::Members ? memberOf(piece) : Member();
    const int64_t before = group > 1 && what == What::Groups // tokens of its group
                               ? piece.begin - tokens->documents()[size_t(member.group * group)]
                               : 0;
    for (int64_t t = begin; t < end; ++t) {
      const int64_t place = t - piece.column + ahead;
      const bool ofTargets = what == What::Targets || what == What::Weights;
      const int64_t target = ofTargets ? targetOf(piece, place) : -1;
      out[t - from] = what == What::Starts            ? int32_t(piece.column)
                      : what == What::Groups          ? int32_t(piece.column - before)
                      : what == What::Members         ? int32_t(member.number)
                      : what == What::Filled          ? 1
                      : what == What::Targets         ? (target < 0 ? notCounted : tokens->at(target))
                      : what == What::Weights         ? (target < 0 ? 0 : bitsOf(tokens->weightOf(target)))
                      : place < int64_t(piece.length) ? tokens->at(piece.begin + place)
                                                      : pad;
    }
    filled = piece.column + piece.length;
  };
  if (what == What::Before)
    add(window(n, /*before=*/true));
  else
    forPieces(n, add);
  int32_t rest = pad;
  if (what == What::Starts || what == What::Groups)
    rest = int32_t(filled);
  else if (what == What::Filled || what == What::Weights || what == What::Members)
    rest = 0;
  else if (what == What::Targets)
    rest = notCounted;
  for (int64_t t = std::max(filled, from); t < from + count; ++t)
    out[t - from] = rest;
}

template <class Use> void Rows::forTargets(int64_t n, int64_t from, int64_t count, Use use) const {
  forPieces(n, [&](const Piece &piece) {
    const int64_t end = std::min<int64_t>(piece.column + piece.length, from + count);
    for (int64_t t = std::max<int64_t>(piece.column, from); t < end; ++t)
      if (const int64_t target = targetOf(piece, t - piece.column); target >= 0)
        use(t, target);
  });
}

void Rows::readColumn(int64_t n, size_t column, double *out, int64_t from, int64_t count) const {
  const int64_t values = tokens->valuesOf(column);
  std::fill_n(out, count * values, 0.0);
  forTargets(n, from, count, [&](int64_t t, int64_t target) {
    for (int64_t i = 0; i < values; ++i)
      out[(t - from) * values + i] = tokens->valueOf(column, target, i);
  });
}

void Rows::scatter(int64_t n, const float *numbers, float *ofTokens) const {
  forTargets(n, 0, length, [&](int64_t t, int64_t target) { ofTokens[target] = numbers[t]; });
}

double Rows::columnSum(int64_t n, size_t column) const {
  double sum = 0;
  forTargets(n, 0, length, [&](int64_t, int64_t target) {
    sum += double(tokens->weightOf(target)) * tokens->valueOf(column, target, 0);
  });
  return sum;
}

bool Rows::hasTarget(const Piece &piece) const {
  int64_t place = 0;
  while (place < piece.length && targetOf(piece, place) < 0)
    ++place;
  return place < piece.length;
}

int64_t Rows::documentsOf(int64_t n) const {
  int64_t count = 0;
  forPieces(n, [&](const Piece &piece) { count += hasTarget(piece); });
  return count;
}

int64_t Rows::groupsOf(int64_t n) const {
  int64_t count = 0, last = -1; // the one that was counted
  forPieces(n, [&](const Piece &piece) {
    if (const int64_t its = memberOf(piece).group; its != last && hasTarget(piece))
      ++count, last = its;
  });
  return count;
}

Counted Rows::counted(int64_t n, int64_t ahead) const {
  Counted sum;
  forPieces(n, [&](const Piece &piece) {
    const int64_t targets = std::max(int64_t(piece.length) - (piece.goesOn ? 0 : 1) - ahead, int64_t(0));
    if (!tokens->hasCounted())
      sum += {targets, double(targets)};
    for (int64_t t = 0; tokens->hasCounted() && t < targets; ++t)
      if (const double weight = tokens->weightOf(piece.begin + ahead + t + 1); weight != 0)
        sum += {1, weight};
  });
  return sum;
}

int64_t Rows::filled(int64_t n) const {
  int64_t sum = 0;
  forPieces(n, [&](const Piece &piece) { sum += piece.length; });
  return sum;
}

} // namespace pp
