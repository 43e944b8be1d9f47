// Tables of rotary positions: the angle by which each pair of a head turns from one position to the next.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   [a, f_0, f_1, ..]   cosines and sines are multiplied by a; pair j turns by position * f_j
//
// Plain rotary positions (Su et al. 2021) have f_j = theta^(-2j/width). The other tables serve longer sequences. The
// width is that of the columns that turn, a head's or fewer; an odd one has a pair more than half of it.
#include "frontend/evaluate/Evaluator.h"
#include <cmath>
#include <numbers>

using namespace llvm;
using namespace pp;

namespace {
/// The numbers that a call gives, and the table that they make.
struct RopeTableOf {
  SmallVector<double> numbers;
  std::vector<double> divisors; ///< of longrope, one for each pair
  bool truncates = true;        ///< of yarn: the ramp begins and ends at a pair

  double theta() const { return numbers[0]; }
  double width() const { return numbers[1]; }
  double plain(double j, double theta) const { return std::pow(theta, -2 * j / width()); }
  double plain(double j) const { return plain(j, theta()); }

  /// NTK-aware (bloc97 2023), for a sequence of `length` where `positions` were trained.
  double dynamicTheta() const {
    double factor = numbers[2], positions = numbers[3], length = std::max(numbers[4], positions);
    return theta() * std::pow(factor * length / positions - (factor - 1), width() / (width() - 2));
  }

  /// Llama 3.1: long waves are divided, short ones stay, those between are mixed.
  double llama3(double j) const {
    double factor = numbers[2], low = numbers[3], high = numbers[4], original = numbers[5], f = plain(j);
    double share = std::clamp((original * f / (2 * std::numbers::pi) - low) / (high - low), 0.0, 1.0);
    return (1 - share) * f / factor + share * f;
  }

  /// YaRN (Peng et al. 2023): pairs that turn often enough in `original` positions stay.
  double yarn(double j) const {
    double factor = numbers[2], original = numbers[3];
    auto pairOf = [&](double turns) {
      return width() * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta()));
    };
    double first = pairOf(numbers[4]), last = pairOf(numbers[5]);
    double low = std::max(truncates ? std::floor(first) : first, 0.0),
           high = std::min(truncates ? std::ceil(last) : last, width() - 1);
    high += low == high ? 0.001 : 0;
    double ramp = std::clamp((j - low) / (high - low), 0.0, 1.0);
    return plain(j) * (ramp / factor + 1 - ramp);
  }
};
} // namespace

static Value::List tableOf(StringRef name, const RopeTableOf &table, int64_t pairs) {
  Value::List made = {Value(name == "rope_yarn" || name == "rope_longrope" ? table.numbers.back() : 1.0)};
  for (int64_t j = 0; j < pairs; ++j)
    made.push_back(Value(name == "rope_linear"     ? table.plain(double(j)) / table.numbers[2]
                         : name == "rope_dynamic"  ? table.plain(double(j), table.dynamicTheta())
                         : name == "rope_llama3"   ? table.llama3(double(j))
                         : name == "rope_yarn"     ? table.yarn(double(j))
                         : name == "rope_longrope" ? table.plain(double(j)) / table.divisors[size_t(j)]
                                                   : table.plain(double(j))));
  return made;
}

FailureOr<Value> Evaluator::ropeTable(const Expr *expr, const Value::List &values) {
  static const struct {
    StringRef name, parameters;
  } kTables[] = {{"rope_default", "theta, width"},
                 {"rope_linear", "theta, width, factor"},
                 {"rope_dynamic", "theta, width, factor, positions, sequence"},
                 {"rope_llama3", "theta, width, factor, low, high, original"},
                 {"rope_yarn", "theta, width, factor, original, fast, slow, attention[, truncate]"},
                 {"rope_longrope", "theta, width, divisors, attention"}};
  StringRef name = expr->name;
  StringRef parameters = find_if(kTables, [&](auto &table) { return table.name == name; })->parameters;
  SmallVector<StringRef> words;
  bool mayTruncate = parameters.ends_with("[, truncate]");
  parameters.drop_back(mayTruncate ? StringRef("[, truncate]").size() : 0).split(words, ", ");
  bool saysTruncate = mayTruncate && values.size() == words.size() + 1;
  if (values.size() != words.size() + saysTruncate)
    return fail(expr->at, "`" + name + "` takes " + Twine(words.size()) + (mayTruncate ? " or 8" : "") +
                              " values, got " + Twine(values.size()) + ": `" + name + "(" + parameters + ")`");
  RopeTableOf table;
  if (saysTruncate && !values.back().asBool())
    return fail(expr->at, "`" + name + "` expects true or false for `truncate`, got " + values.back().text());
  table.truncates = !saysTruncate || *values.back().asBool();
  auto numberOf = [](const Value &value) -> std::optional<double> {
    if (value.asInt())
      return double(*value.asInt());
    return value.asNumber() ? std::optional(*value.asNumber()) : std::nullopt;
  };
  for (auto [word, value] : zip_first(words, values)) {
    bool isList = word == "divisors", fits = !isList || value.asList();
    for (const Value &item : isList &&value.asList() ? *value.asList() : Value::List{value}) {
      std::optional<double> number = numberOf(item);
      if (!number || !std::isfinite(*number) || *number <= 0)
        fits = false;
      else if (isList)
        table.divisors.push_back(*number);
      else
        table.numbers.push_back(*number);
    }
    if (!fits)
      return fail(expr->at, "`" + name + "` expects " + (isList ? "a list of numbers" : "a number") + " above 0 for `" +
                                word + "`, got " + value.text());
  }
  const int64_t *width = values[1].asInt();
  if (!width || *width > 1 << 16 || (*width % 2 && name == "rope_yarn"))
    return fail(expr->at, "`" + name + "` expects " + (name == "rope_yarn" ? "an even" : "a") +
                              " width of heads, got " + values[1].text());
  if (name == "rope_dynamic" && *width <= 2)
    return fail(expr->at, "`rope_dynamic` expects a width of heads above 2, got " + Twine(*width));
  int64_t pairs = (*width + 1) / 2;
  if (name == "rope_longrope" && int64_t(table.divisors.size()) != pairs)
    return fail(expr->at, "`rope_longrope` expects " + Twine(pairs) + " divisors for heads of width " + Twine(*width) +
                              ", got " + Twine(table.divisors.size()));
  if (name == "rope_llama3" && table.numbers[3] >= table.numbers[4])
    return fail(expr->at,
                "`rope_llama3` expects `low` below `high`, got " + values[3].text() + " and " + values[4].text());
  if (failed(reserve(expr->at, pairs + 1)))
    return failure();
  return Value(tableOf(name, table, pairs));
}
