// Draws the figure that a paper would print: one row a rank, units to scale in the colours of their phases.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   title
//   rank 0 |0|1|2|3|        |  0  |4|  1  | ..       boxes: time to scale; a label where it fits
//   rank 1    |0|1|2|    |  0  |3|  1  | ..          --messages: an arrow from the sender's row to the receiver's
//          0         10        20        30  time
//   rank 0 4 GB |____/----\___                        --memory: bytes by role, stacked, one scale for all ranks
//   legend
//
// All units have labels, or none: stage and microbatch where those of all fit, else the microbatches where these do. A
// unit of a part of the model has a stripe in the part's colour.
#include "report/Names.h"
#include "report/Pictures.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>
#include <map>
#include <set>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

constexpr double kTop = 40, kCharacter = 6, kWidest = 1680;

class Figure {
public:
  Figure(ProgramOp program, const Timeline &timeline, const PictureOptions &options);
  void writeTo(llvm::raw_ostream &out);

private:
  double x(double time) const { return left + time * scale; }
  double y(int64_t rank) const { return kTop + rank * (row + gap); }
  /// Two units that run in turn share the height of the row.
  double heightOf(const Span &span) const { return span.lane ? row / 2 : row; }
  double top(int64_t rank, const Span &span) const { return y(rank) + (span.lane == 2 ? row / 2 : 0); }
  double bottom() const { return y(timeline.ranks.size()); }
  std::string number(double value) const;
  void writeStyle(llvm::raw_ostream &out) const;
  void draw();
  std::string title() const;
  void units(int64_t rank);
  void crowd(int64_t rank);
  bool isCrowded() const { return narrowest < 2; }
  double stripe() const { return std::max(row / 5, 1.0); }
  std::string labelOf(UnitIdAttr unit) const;
  double arrowWidth() const { return std::clamp(narrowest / 15, 0.2, 0.8); }
  void arrow(const Flight &flight);
  void axis(double at, double height);
  void memory(int64_t rank, double at, int64_t most);
  void bytesAxis(double at, int64_t most, bool named);
  double legend(double at);
  double entry(double at, double top, StringRef fill, StringRef text);
  void text(double at, double baseline, StringRef kind, const Twine &words);

  ProgramOp program;
  const Timeline &timeline;
  const PictureOptions &options;
  UnitNames unitNames;
  std::set<std::pair<Phase, int64_t>> shown; ///< phases and pieces, for styles and legend
  std::string body;
  llvm::raw_string_ostream os{body};
  double left, height = 0, end = 0, row = 0, gap = 3, scale = 0, band = 0;
  double narrowest = 0; ///< pixels of the shortest unit; below two, units have no labels, edges or titles
  enum class Labels { none, behindStage, whole } labels = Labels::none;
  std::string crowdedArrows;
};

} // namespace

/// `3` of `1.3`, `3.0` of `1.3.0`: a label without its stage or part, where it has one.
static std::string behindStage(const UnitNames &names, const std::string &label) {
  size_t dot = names.hasOnePieceEach() ? std::string::npos : label.find('.');
  return dot == std::string::npos ? label : label.substr(dot + 1);
}

Figure::Figure(ProgramOp program, const Timeline &timeline, const PictureOptions &options)
    : program(program), timeline(timeline), options(options), unitNames(program), left(options.memory ? 112 : 64),
      end(std::max({timeline.makespan, timeline.step, 1e-12})) {
  size_t count = timeline.ranks.size(), longest[2] = {1, 1}; // labels: whole, and behind the stage
  double least = end;
  bool inTurn = false;
  for (auto [number, rank] : llvm::enumerate(timeline.ranks))
    for (const Span &span : rank.spans) {
      if (span.end == span.start)
        continue;
      shown.insert({span.unit().getPhase(), unitNames.pieceOf(number, span.unit())});
      if (!span.isWork())
        continue;
      std::string label = unitNames.shortOf(span.unit());
      longest[0] = std::max(longest[0], label.size());
      longest[1] = std::max(longest[1], behindStage(unitNames, label).size());
      least = std::min(least, span.end - span.start);
      inTurn |= span.lane > 0;
    }
  static constexpr std::pair<int64_t, double> rowHeights[] = {{8, 24}, {16, 20}, {32, 14}, {64, 9}}; // up to so many
  auto *known = llvm::find_if(rowHeights, [&](auto &height) { return int64_t(count) <= height.first; });
  row = known != std::end(rowHeights) ? known->second : std::max(2.0, 640.0 / count);
  gap = options.messages && count <= 32 ? 12 : row >= 9 ? 3 : 1;
  band = count <= 8 ? 44 : count <= 32 ? 24 : 12;
  // The shortest unit shows its label if the whole does not become too wide; unit times fall on whole pixels.
  scale = std::min((kCharacter * longest[0] + 12) / least, (kWidest - left) / end);
  if (timeline.unitTime && scale >= 1)
    scale = std::floor(scale);
  narrowest = least * scale;
  auto fits = [&](size_t length) { return length * kCharacter + 2 <= narrowest; };
  if ((inTurn ? row / 2 >= 10 : row >= 12) && fits(longest[1]))
    labels = fits(longest[0]) ? Labels::whole : Labels::behindStage;
}

/// Empty where units have none; updates never do.
std::string Figure::labelOf(UnitIdAttr unit) const {
  if (labels == Labels::none || unit.getPhase() == Phase::U)
    return "";
  std::string label = unitNames.shortOf(unit);
  return labels == Labels::whole ? label : behindStage(unitNames, label);
}

std::string Figure::number(double value) const {
  std::string text = llvm::formatv("{0:F2}", value);
  while (StringRef(text).ends_with("0"))
    text.pop_back();
  if (StringRef(text).ends_with("."))
    text.pop_back();
  return text;
}

void Figure::text(double at, double baseline, StringRef kind, const Twine &words) {
  os << llvm::formatv("<text class=\"{0}\" x=\"{1}\" y=\"{2}\">{3}</text>\n", kind, number(at), number(baseline),
                      words.str());
}

//===-- Units and messages --------------------------------------------------------------------------------------===//

void Figure::writeStyle(llvm::raw_ostream &out) const {
  out << "<style>\n"
         "text { font: 11px sans-serif; fill: #222; } .title { font-size: 13px; font-weight: bold; }\n"
         ".unit { font-size: 10px; text-anchor: middle; } .rank { text-anchor: end; } .tick { text-anchor: "
         "middle; }\n"
         ".axis { stroke: #666; fill: none; } .grid { stroke: #222; stroke-opacity: 0.25; stroke-width: 0.5; fill: "
         "none; }\n"
         ".bytes { font-size: 9px; fill: #666; text-anchor: end; } @media print { svg { width: 100%; height: auto; } "
         "}\n"
         ".total { stroke: #222; stroke-width: 0.7; fill: none; }\n"
      << llvm::formatv(".message {{ stroke: #222; stroke-width: {0}; stroke-opacity: 0.7; fill: none; }\n",
                       number(arrowWidth()));
  if (!isCrowded())
    out << llvm::formatv("rect.u {{ stroke: #fff; stroke-width: {0}; }\n",
                         number(std::min({1.0, row / 24, narrowest / 8})));
  for (auto [phase, piece] : shown)
    out << "." << stringifyPhase(phase) << piece << " { fill: " << colorOf(phase, piece, unitNames.pieces()) << "; }\n";
  for (size_t part = 0; part < unitNames.parts().size(); ++part)
    out << ".part" << part << " { fill: " << colorOfPart(part) << "; }\n";
  out << "</style>\n";
  if (options.messages)
    out << "<defs><marker id=\"tip\" viewBox=\"0 0 6 6\" refX=\"5.5\" refY=\"3\" markerWidth=\"5\" markerHeight=\"5\" "
           "orient=\"auto\"><path d=\"M0 0L6 3L0 6Z\" fill=\"#222\"/></marker></defs>\n";
}

/// Units too narrow to be seen one by one: for every style one path of boxes.
void Figure::crowd(int64_t rank) {
  std::map<std::pair<Phase, int64_t>, std::string> boxes;
  std::map<int64_t, std::string> stripes;
  for (const Span &span : timeline.ranks[rank].spans)
    if (span.end > span.start) {
      UnitIdAttr unit = span.unit();
      std::string from = number(x(span.start)), width = number((span.end - span.start) * scale);
      auto box = [&](double at, double high) {
        return llvm::formatv("M{0} {1}h{2}v{3}h-{2}z", from, number(at), width, number(high)).str();
      };
      double at = top(rank, span), high = heightOf(span);
      boxes[{unit.getPhase(), unitNames.pieceOf(rank, unit)}] += box(at, high);
      if (int64_t part = unitNames.partOf(unit); part >= 0)
        stripes[part] += box(at + high - stripe(), stripe());
    }
  for (auto &[style, path] : boxes)
    os << llvm::formatv("<path class=\"{0}{1}\" d=\"{2}\"/>\n", stringifyPhase(style.first), style.second, path);
  for (auto &[part, path] : stripes)
    os << llvm::formatv("<path class=\"part{0}\" d=\"{1}\"/>\n", part, path);
}

void Figure::units(int64_t rank) {
  auto every = static_cast<int64_t>(std::ceil(11 / (row + gap))); // names do not overlap
  if (rank % every == 0)
    text(left - 6, y(rank) + row / 2 + 4, "rank", "rank " + Twine(rank));
  if (isCrowded())
    return crowd(rank);
  for (const Span &span : timeline.ranks[rank].spans) {
    double width = (span.end - span.start) * scale, at = top(rank, span), high = heightOf(span);
    if (width <= 0)
      continue;
    UnitIdAttr unit = span.unit();
    auto box = [&](const Twine &style, double from, double tall) {
      os << llvm::formatv("<rect class=\"{0}\" x=\"{1}\" y=\"{2}\" width=\"{3}\" height=\"{4}\"", style.str(),
                          number(x(span.start)), number(from), number(width), number(tall));
    };
    box("u " + stringifyPhase(unit.getPhase()) + Twine(unitNames.pieceOf(rank, unit)), at, high);
    os << "><title>" << unit.cell() << "</title></rect>\n";
    int64_t part = unitNames.partOf(unit);
    if (part >= 0) {
      box("part" + Twine(part), at + high - stripe(), stripe());
      os << "/>\n";
    }
    if (std::string label = labelOf(unit); !label.empty())
      text(x(span.start) + width / 2, at + (high - (part >= 0 ? stripe() : 0)) / 2 + 3.5, "unit", label);
  }
}

void Figure::arrow(const Flight &flight) {
  if (flight.kind() == PostKind::send) {
    bool down = flight.ranks[0] < flight.ranks[1];
    double from = y(flight.ranks[0]) + (down ? row : 0), to = y(flight.ranks[1]) + (down ? 0 : row);
    std::string line =
        llvm::formatv("M{0} {1}L{2} {3}", number(x(flight.start)), number(from), number(x(flight.end)), number(to));
    if (isCrowded())
      crowdedArrows += line;
    else
      os << llvm::formatv("<path class=\"message\" marker-end=\"url(#tip)\" d=\"{0}\"><title>{1}</title></path>\n",
                          line, PostOp(flight.posts[0]).getThing().str());
    return;
  }
  auto [first, last] = std::minmax_element(flight.ranks.begin(), flight.ranks.end());
  os << llvm::formatv("<path class=\"message\" d=\"M{0} {1}V{2}\"><title>{3}</title></path>\n", number(x(flight.end)),
                      number(y(*first)), number(y(*last) + row), PostOp(flight.posts[0]).getThing().str());
}

/// 1, 2 or 5 times a power of ten, so that about `count` of them make `whole`.
static double niceStep(double whole, double count) {
  double step = std::pow(10, std::floor(std::log10(whole / count)));
  for (double factor : {1.0, 2.0, 5.0, 10.0})
    if (whole / (step * factor) <= count)
      return step * factor;
  return step * 10;
}

void Figure::axis(double at, double height) {
  double step = niceStep(end, std::max(2.0, end * scale / 80)), milli = timeline.unitTime ? 1 : 1e3;
  os << llvm::formatv("<path class=\"axis\" d=\"M{0} {1}H{2}", number(x(0)), number(at), number(x(end)));
  int64_t ticks = static_cast<int64_t>(end / step + 1e-9);
  for (int64_t tick = 0; tick <= ticks; ++tick)
    os << llvm::formatv("M{0} {1}v{2}", number(x(tick * step)), number(at), number(height));
  os << "\"/>\n";
  for (int64_t tick = 0; tick <= ticks; ++tick)
    text(x(tick * step), at + height + 11, "tick",
         llvm::formatv("{0}", llvm::format("%.6g", tick * step * milli)).str());
  text(x(end) + 10, at + 4, "note", timeline.unitTime ? "time" : "ms");
}

//===-- Memory --------------------------------------------------------------------------------------------------===//

void Figure::memory(int64_t rank, double at, int64_t most) {
  const std::vector<MemoryPoint> &points = timeline.ranks[rank].memory;
  std::vector<int64_t> below(points.size());
  int64_t peak = 0;
  auto level = [&](int64_t bytes) { return number(at + band - band * bytes / std::max<int64_t>(most, 1)); };
  // The upper edge of a layer to the right, the lower one back.
  auto edge = [&](ArrayRef<int64_t> upper) {
    std::string path = "M" + number(x(0)) + " " + level(upper.front());
    for (size_t i = 1; i < points.size(); ++i)
      if (upper[i] != upper[i - 1])
        path += "H" + number(x(points[i].time)) + "V" + level(upper[i]);
    return path + "H" + number(x(end));
  };
  auto back = [&](ArrayRef<int64_t> lower) {
    std::string path = "V" + level(lower.back());
    for (size_t i = points.size() - 1; i > 0; --i)
      if (lower[i] != lower[i - 1])
        path += "H" + number(x(points[i].time)) + "V" + level(lower[i - 1]);
    return path + "H" + number(x(0)) + "Z";
  };
  for (Role role : stackedRoles()) {
    std::vector<int64_t> upper = below;
    for (size_t i = 0; i < points.size(); ++i)
      upper[i] += points[i].bytes[static_cast<int>(role)];
    if (upper != below)
      os << llvm::formatv("<path fill=\"{0}\" d=\"{1}\"><title>{2}</title></path>\n", colorOf(role),
                          edge(upper) + back(below), stringifyRole(role));
    below = upper;
  }
  for (const MemoryPoint &point : points)
    peak = std::max(peak, point.total);
  if (!points.empty())
    os << llvm::formatv("<path class=\"total\" d=\"{0}\"/>\n", edge(below)); // with the peaks of no duration
  text(left - 50, at + band / 2 + 4, "rank", "rank " + Twine(rank));
  text(x(end) + 10, at + band / 2 + 4, "note", "peak " + withUnit(peak));
  bytesAxis(at, most, /*named=*/band >= 20 || rank % 2 == 0);
}

/// Of one rank: round numbers of bytes, two where there is room.
void Figure::bytesAxis(double at, int64_t most, bool named) {
  double step = niceStep(std::max<double>(most, 1), 2.5), base = at + band; // at least one line
  os << llvm::formatv("<path class=\"axis\" d=\"M{0} {1}V{2}\"/>\n", number(x(0)), number(at), number(base));
  for (double bytes = 0; bytes <= static_cast<double>(most); bytes += step) {
    double level = base - band * bytes / static_cast<double>(std::max<int64_t>(most, 1));
    os << llvm::formatv("<path class=\"grid\" d=\"M{0} {1}H{2}\"/>\n", number(x(0) - 4), number(level), number(x(end)));
    if (named && (bytes > 0 || band >= 40))
      text(left - 6, level + 3, "bytes", bytes > 0 ? withUnit(std::llround(bytes)) : "0");
  }
}

//===-- The whole -----------------------------------------------------------------------------------------------===//

double Figure::entry(double at, double top, StringRef fill, StringRef words) {
  os << llvm::formatv("<rect {0} x=\"{1}\" y=\"{2}\" width=\"12\" height=\"12\"/>\n", fill, number(at), number(top));
  text(at + 17, top + 10, "note", words);
  return at + 34 + words.size() * 5.6;
}

double Figure::legend(double at) {
  double place = left, right = std::max(x(end), left + 480);
  auto add = [&](const std::string &fill, const std::string &words) {
    if (place > left && place + 17 + words.size() * kCharacter > right)
      place = left, at += 18;
    place = entry(place, at, fill, words);
  };
  Phase last = Phase::U;
  for (auto [phase, piece] : shown) { // of the pieces, the first and the last say how the others look
    bool ends = piece == 0 || !shown.count({phase, piece + 1});
    std::string words = (stringifyPhase(phase) + " " + describe(phase)).str();
    if (unitNames.pieces() > 1 && phase != Phase::U)
      words += piece == 0 ? ", a rank's first piece" : ", its last";
    if (ends && (phase != last || phase != Phase::U))
      add(llvm::formatv("class=\"{0}{1}\"", stringifyPhase(phase), piece), words);
    last = phase;
  }
  for (auto [part, words] : llvm::enumerate(unitNames.parts()))
    add(llvm::formatv("class=\"part{0}\"", part), "part " + words);
  if (options.memory)
    for (Role role : stackedRoles())
      if (llvm::any_of(timeline.ranks, [&](const RankTimeline &rank) {
            return llvm::any_of(rank.memory, [&](const MemoryPoint &point) { return point.bytes[int(role)] > 0; });
          }))
        add(llvm::formatv("fill=\"{0}\"", colorOf(role)), stringifyRole(role).str());
  if (!timeline.units.empty())
    text(left, (at += 18) + 10, "note", timeline.units);
  return at + 18;
}

void Figure::draw() {
  int64_t count = timeline.ranks.size(), most = 0;
  for (const RankTimeline &rank : timeline.ranks)
    for (const MemoryPoint &point : rank.memory)
      most = std::max(most, point.total);
  os << "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  text(left, 22, "title", title());
  for (int64_t rank = 0; rank < count; ++rank)
    units(rank);
  for (const Flight &flight : timeline.flights)
    if (options.messages)
      arrow(flight);
  if (!crowdedArrows.empty())
    os << "<path class=\"message\" d=\"" << crowdedArrows << "\"/>\n";
  axis(bottom() + 2, 4);
  double below = bottom() + 30;
  if (options.memory)
    for (int64_t rank = 0; rank < count; ++rank, below += band + 3)
      memory(rank, below, most);
  height = legend(below + (options.memory ? 8 : 0)) + 8;
}

std::string Figure::title() const {
  std::string words;
  llvm::raw_string_ostream(words) << titleOf(program) << ", bubble " << llvm::format("%.3g", 100 * timeline.bubble())
                                  << " %, makespan "
                                  << llvm::format("%.6g", timeline.makespan * (timeline.unitTime ? 1 : 1e3))
                                  << (timeline.unitTime ? "" : " ms");
  return words;
}

void Figure::writeTo(llvm::raw_ostream &out) {
  draw();
  out << llvm::formatv(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n",
      number(std::max(x(end) + (options.memory ? 96 : 76), left + 560)), number(height));
  writeStyle(out);
  out << body << "</svg>\n";
}

void pp::drawSvg(ProgramOp program, const Timeline &timeline, const PictureOptions &options, llvm::raw_ostream &os) {
  Figure(program, timeline, options).writeTo(os);
}
