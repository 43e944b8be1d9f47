// Cuts a `.pipe` file into words: names, reserved words, unit letters, numbers, strings and marks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/syntax/Lexer.h"
#include "llvm/ADT/StringExtras.h"
#include <cmath>

using namespace llvm;
using namespace pp;

static constexpr StringRef kKeywords[] = {
    "import", "fn",       "schedule", "model",  "train", "cluster",      "part",    "stage",  "of",
    "at",     "weight",   "opt",      "layers", "let",   "var",          "require", "return", "for",
    "in",     "repeat",   "while",    "if",     "then",  "else",         "on",      "move",   "from",
    "to",     "together", "attend",   "over",   "limit", "recompute",    "shard",   "host",   "and",
    "or",     "not",      "true",     "false",  "ranks", "microbatches", "slices",  "with",   "updates"};

// Longer marks before their prefixes.
static const char *const kMarks[] = {"==", "!=", "<=", ">=", "//", "..", "(", ")", "{", "}", "[",
                                     "]",  ",",  "=",  "<",  ">",  "+",  "-", "*", "/", "%", ";"};

ArrayRef<StringRef> pp::reservedWords() { return kKeywords; }

namespace {
class Lexer {
public:
  Lexer(Source &source, StringRef buffer) : source(source), at(buffer.begin()), end(buffer.end()) {
    for (StringRef word : kKeywords)
      keywords.insert(word);
  }

  std::vector<Token> run() {
    std::vector<Token> tokens;
    for (unsigned errors = 0;;) {
      skipBlanks();
      Token token;
      token.at = SMLoc::getFromPointer(at);
      if (at != end && mlir::failed(next(token))) {
        token.kind = Token::Wrong;
        at = ++errors < kMostErrors ? at : end;
      }
      token.end = at;
      tokens.push_back(token);
      if (token.kind == Token::End)
        return tokens;
    }
  }

private:
  void skipBlanks() {
    while (at != end) {
      if (*at == '#')
        while (at != end && *at != '\n')
          ++at;
      else if (isSpace(*at))
        ++at;
      else
        return;
    }
  }

  mlir::LogicalResult next(Token &token) {
    if (isAlpha(*at) || *at == '_')
      return word(token);
    if (isDigit(*at))
      return number(token);
    if (*at == '"')
      return string(token);
    StringRef rest(at, end - at);
    if (rest.starts_with("**")) {
      at += 2;
      return source.error(token.at) << "`**` is no operator; write square(x) or power(x, 2)";
    }
    for (const char *mark : kMarks) {
      if (!rest.starts_with(mark))
        continue;
      token.kind = Token::Mark;
      token.text = mark;
      at += token.text.size();
      return mlir::success();
    }
    if (rest.starts_with(".") && rest.size() > 1 && isAlpha(rest[1])) {
      StringRef name = rest.drop_front().take_while([](char c) { return isAlnum(c) || c == '_'; });
      at += 1 + name.size();
      return source.error(token.at) << "functions stand without a dot: " << name << "(x)";
    }
    at += firstCharacter(rest).size();
    if (rest.starts_with("@"))
      return source.error(token.at) << "`@` is no operator; a product of matrices is linear(x, w)";
    if (rest.starts_with("^"))
      return source.error(token.at) << "`^` is no operator; write square(x) or power(x, 2)";
    return source.error(token.at) << "`" << firstCharacter(rest) << "` has no meaning here";
  }

  // One whole UTF-8 character, so that the message is not cut in the middle of one.
  static StringRef firstCharacter(StringRef rest) {
    size_t size = 1;
    while (size < rest.size() && (rest[size] & 0xC0) == 0x80)
      ++size;
    return rest.take_front(size);
  }

  mlir::LogicalResult word(Token &token) {
    const char *begin = at;
    while (at != end && (isAlnum(*at) || *at == '_'))
      ++at;
    token.text = source.intern(StringRef(begin, at - begin));
    if (token.text.size() == 1 && StringRef("FBIWRU").contains(token.text[0]))
      token.kind = Token::UnitLetter;
    else
      token.kind = keywords.contains(token.text) ? Token::Keyword : Token::Name;
    return mlir::success();
  }

  void digits() {
    while (at != end && isDigit(*at))
      ++at;
  }

  mlir::LogicalResult number(Token &token) {
    const char *begin = at;
    token.kind = Token::Integer;
    digits();
    if (at + 1 < end && *at == '.' && isDigit(at[1])) { // `0..4` is a range, not a number
      token.kind = Token::Number;
      ++at;
      digits();
    }
    const char *exponent = at;
    if (at != end && (*at == 'e' || *at == 'E')) {
      ++at;
      if (at != end && (*at == '-' || *at == '+'))
        ++at;
      if (at != end && isDigit(*at)) {
        token.kind = Token::Number;
        digits();
      } else {
        at = exponent;
      }
    }
    token.text = StringRef(begin, at - begin);
    if (at != end && (isAlpha(*at) || *at == '_')) {
      while (at != end && (isAlnum(*at) || *at == '_'))
        ++at;
      return source.error(token.at) << "`" << StringRef(begin, at - begin) << "` is neither a number nor a name";
    }
    if (token.kind == Token::Integer && token.text.getAsInteger(10, token.integer))
      return source.error(token.at) << "`" << token.text << "` is too large; the limit is " << INT64_MAX;
    if (token.kind == Token::Number)
      if (const char *wrong = readNumber(token.text, token.number))
        return source.error(token.at) << "`" << token.text << "` is " << wrong;
    return mlir::success();
  }

  mlir::LogicalResult string(Token &token) {
    const char *begin = ++at;
    while (at != end && *at != '"' && *at != '\n')
      ++at;
    if (at == end || *at == '\n')
      return source.error(token.at) << "this string has no closing quote on its line";
    token.kind = Token::String;
    token.text = source.intern(StringRef(begin, at - begin));
    ++at;
    return mlir::success();
  }

  Source &source;
  const char *at;
  const char *end;
  StringSet<> keywords;
};
} // namespace

const char *pp::readNumber(StringRef text, double &number) {
  if (text.getAsDouble(number) || std::isnan(number))
    return "no number";
  if (std::isinf(number))
    return "too large; the limit is 1.79769e308";
  bool vanishes = number == 0 && text.take_until([](char c) {
                                       return c == 'e' || c == 'E';
                                     }).find_first_of("123456789") != StringRef::npos;
  return vanishes ? "too small: it would be 0" : nullptr;
}

std::vector<Token> pp::lex(Source &source, StringRef buffer) { return Lexer(source, buffer).run(); }
