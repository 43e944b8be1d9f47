// `layers_of("Et*3|(tt|)*29|L")`: the layers of each stage, from the notation in which Megatron-LM lays a model out.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   layout = { item | "(" { item } ")*" N }          E embedding, t a layer, m one more that predicts a further token,
//   item   = ( "E" | "t" | "m" | "L" | "|" ) [ "*" N ]     L loss, | the end of a stage; commas are for the eye only
//
// A stage of E or L alone has no layers and gets its part from its place: `stage` gives embed to the first, head to the
// last. A stage may be empty: it passes on. Where `m` stands before the stage of L, its stage is [layers, how many m].
#include "frontend/evaluate/CommandLine.h"
#include "frontend/evaluate/Evaluator.h"
#include "llvm/ADT/StringExtras.h"

using namespace llvm;
using namespace pp;

namespace {

struct Letter {
  char letter;
  size_t position; // in the text
};

/// A fault of a layout, and its place.
struct Complaint {
  size_t position;
  std::string text;
};

class LayoutReader {
public:
  explicit LayoutReader(StringRef text) : text(text) {}

  std::optional<Complaint> complaint;
  std::optional<size_t> further; ///< where the first `m` stands
  int64_t furtherTokens = 0;

  bool read(Value::List &layers) { return unroll(text.size(), /*inside=*/false) && count(layers); }

private:
  static constexpr size_t kMost = 100'000; // letters, unrolled
  StringRef text;
  size_t at = 0;
  std::vector<Letter> letters;

  bool complain(size_t position, const Twine &what) {
    complaint = {position, what.str()};
    return false;
  }

  /// `*N` from here on, if there is one.
  bool repetition(int64_t &times) {
    times = 1;
    if (at == text.size() || text[at] != '*')
      return true;
    size_t star = at++;
    StringRef digits = text.substr(at).take_while(isDigit);
    if (digits.empty())
      return complain(at, "expected a number after `*`");
    at += digits.size();
    if (digits.getAsInteger(10, times) || times > int64_t(kMost))
      return complain(star + 1, "`" + digits + "` repetitions are too many; the limit is " + Twine(kMost));
    return times > 0 || complain(star + 1, "`*0` repeats nothing");
  }

  bool unroll(size_t end, bool inside) {
    while (at < end) {
      size_t begin = at, first = letters.size();
      char letter = text[at++];
      int64_t times = 1;
      if (letter == ',' || letter == ' ')
        continue;
      if (letter == '(') {
        size_t close = text.find(')', at);
        if (inside)
          return complain(begin, "`(` inside `(`");
        if (close == StringRef::npos)
          return complain(begin, "`(` is not closed");
        if (!unroll(close, /*inside=*/true))
          return false;
        at = close + 1;
        if (at == text.size() || text[at] != '*')
          return complain(at, "expected `*` and a number after `)`");
      } else if (!StringRef("EtmL|").contains(letter)) {
        return complain(begin, "expected one of E, t, m, L, |, (, got `" + Twine(letter) + "`");
      } else {
        letters.push_back({letter, begin});
      }
      if (!repetition(times))
        return false;
      std::vector<Letter> once(letters.begin() + first, letters.end());
      if (once.size() * times > kMost - first)
        return complain(begin, "the layout unrolls to more than " + Twine(kMost) + " letters");
      for (int64_t i = 1; i < times; ++i)
        letters.insert(letters.end(), once.begin(), once.end());
    }
    return true;
  }

  /// The layers of each stage; E begins the first, L ends the last.
  bool count(Value::List &layers) {
    int64_t inStage = 0, behind = 0;
    for (auto [i, letter] : enumerate(letters)) {
      bool first = i == 0, last = i + 1 == letters.size();
      if ((letter.letter == 'E') != first)
        return complain(letter.position, first ? "expected the embedding `E` first, got `" + Twine(letter.letter) + "`"
                                               : Twine("the embedding `E` comes first, and once"));
      if (letter.letter == 'L' && !last)
        return complain(letters[i + 1].position, "nothing comes after the loss `L`");
      if (letter.letter == 't' && furtherTokens > 0)
        return complain(letter.position, "no layer `t` comes after `m`");
      if (letter.letter == 'm' && furtherTokens++ == 0)
        further = letter.position;
      inStage += letter.letter == 't';
      behind += letter.letter == 'm';
      if (letter.letter == '|' && behind > 0)
        layers.push_back(Value(Value::List{Value(inStage), Value(behind)}));
      else if (letter.letter == '|' || last)
        layers.push_back(Value(inStage));
      else
        continue;
      inStage = behind = 0;
    }
    if (letters.empty() || letters.back().letter != 'L')
      return complain(text.size(), "the layout ends without the loss `L`");
    return true;
  }
};

} // namespace

FailureOr<Value> Evaluator::layersOf(const Expr *expr, Scope &scope, const Value &layout) {
  if (!layout.asString())
    return fail(expr->at, "`layers_of` expects a string, got " + layout.type() + " " + layout.text());
  StringRef text = *layout.asString();
  LayoutReader reader(text);
  Value::List layers;
  if (reader.read(layers)) {
    int64_t predicted = furtherTokens();
    if (!reader.further || reader.furtherTokens == predicted)
      return Value(std::move(layers));
    reader.complaint = {*reader.further, ("the layout predicts " + Twine(reader.furtherTokens) +
                                          " of the tokens behind the next one, the model " + Twine(predicted))
                                             .str()};
  }
  // A literal is in the file, so the place in it can be shown; a parameter's value may come from the command line.
  const Expr *operand = expr->operands.front();
  if (operand->kind == Expr::String)
    return fail(SMLoc::getFromPointer(operand->at.getPointer() + 1 + reader.complaint->position),
                reader.complaint->text);
  SMLoc origin = originOf(operand, scope);
  return fail(origin == operand->at ? expr->at : origin, reader.complaint->text + ", at character " +
                                                             Twine(reader.complaint->position + 1) + " of `" + text +
                                                             "`");
}
