// Reads expressions, and holds what all parts of the parser share.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/syntax/Parser.h"
#include "llvm/Support/SaveAndRestore.h"

using namespace llvm;
using namespace pp;

//===-- Words ---------------------------------------------------------------------------------------------------===//

Token TokenReader::next() {
  Token token = peek();
  previousEnd = token.end;
  if (position + 1 < tokens.size())
    ++position;
  return token;
}

bool TokenReader::take(StringRef word) {
  if (!at(word))
    return false;
  next();
  return true;
}

void TokenReader::fail(SMLoc at, const Twine &message, SMLoc noteAt, const Twine &note) {
  if (broken)
    return;
  bool isTold = peek().kind == Token::Wrong; // by the lexer
  broken = true;
  ++mishaps;
  if (isTold)
    return;
  ++errors;
  mlir::InFlightDiagnostic diagnostic = source.error(at) << message;
  if (noteAt.isValid())
    diagnostic.attachNote(source.location(noteAt)) << note;
}

void TokenReader::failExpected(const Twine &what, ArrayRef<StringRef> known) {
  const Token &got = peek();
  if (got.kind == Token::End)
    return fail(got.at, "expected " + what + " before the end of the file");
  StringRef text = got.kind == Token::String ? StringRef(got.at.getPointer(), got.end - got.at.getPointer()) : got.text;
  bool reserved = got.kind == Token::Keyword || got.kind == Token::UnitLetter;
  std::string more = got.kind == Token::Name ? didYouMean(text, known)
                     : reserved              ? ("; `" + text + "` is a reserved word").str()
                                             : "";
  fail(got.at, "expected " + what + ", got `" + text + "`" + more);
}

void TokenReader::expect(StringRef word) {
  if (!take(word))
    failExpected("`" + word + "`");
}

Name TokenReader::expectName() {
  if (peek().kind != Token::Name) {
    failExpected("a name");
    return {};
  }
  Token token = next();
  return {token.text, token.at};
}

Name TokenReader::expectWord() {
  if (peek().kind != Token::Keyword && peek().kind != Token::UnitLetter)
    return expectName();
  Token token = next();
  return {token.text, token.at};
}

StringRef TokenReader::expectString() {
  if (peek().kind != Token::String) {
    failExpected("a string");
    return {};
  }
  return next().text;
}

//===-- After an error ------------------------------------------------------------------------------------------===//

TokenReader::TokenReader(Source &source, std::vector<Token> words)
    : source(source), tokens(std::move(words)),
      errors(llvm::count_if(tokens, [](const Token &token) { return token.kind == Token::Wrong; })) {}

bool TokenReader::startsLine(size_t i) const {
  return i == 0 || StringRef(tokens[i - 1].end, tokens[i].at.getPointer() - tokens[i - 1].end).contains('\n');
}

/// The column of the first word on the line of word i.
size_t TokenReader::indentOf(size_t i) const {
  while (!startsLine(i))
    --i;
  const char *begin = tokens[i].at.getPointer(), *first = tokens.front().at.getPointer(), *line = begin;
  while (line != first && line[-1] != '\n')
    --line;
  return begin - line;
}

/// One that can begin an item, and does not stand inside one.
bool TokenReader::isWord(size_t i) const {
  const Token &word = tokens[i];
  for (const char *inside : {"then", "else", "in", "and", "or", "of", "at", "from", "to", "over", "with"})
    if (word.is(inside))
      return false;
  return word.kind == Token::Name || word.kind == Token::Keyword || word.kind == Token::UnitLetter;
}

/// A word that does not go on with what the line before it began.
bool TokenReader::startsItem(size_t i) const {
  const Token &before = tokens[i - 1];
  bool isOpen = before.kind == Token::Mark && !before.is(")") && !before.is("]") && !before.is("}");
  return startsLine(i) && isWord(i) && !isOpen;
}

bool TokenReader::startsDeclaration(size_t i) const {
  for (const char *word : {"fn", "schedule", "model", "block", "train", "cluster", "family"})
    if (tokens[i].text == word && tokens[i].kind != Token::String)
      return startsLine(i) && indentOf(i) == 0;
  return false;
}

/// The error was in the item whose first word is `begin`. Goes on with the next item of the same block, or with its
/// `}`. That is the next line that is indented no more than the item's line. False if no such line comes before the
/// next declaration.
bool TokenReader::recover(size_t begin) {
  size_t indent = indentOf(begin), end = std::max(position, begin + 1);
  int depth = 0;
  for (size_t i = begin; errors < kMostErrors && i + 1 < tokens.size() && !(i > begin && startsDeclaration(i)); ++i) {
    bool isNext = i >= end && depth == 0 && startsItem(i) && indentOf(i) <= indent;
    bool isClosed = i >= end && depth == 0 && tokens[i].is("}") && !(startsLine(i) && indentOf(i) >= indent);
    if (isNext || isClosed) {
      position = i;
      broken = false;
      return true;
    }
    depth += tokens[i].is("{") ? 1 : tokens[i].is("}") && depth ? -1 : 0;
  }
  return false;
}

/// After an error in what stands in front of a block, reading goes on with the block, if it begins on the same line.
/// The error may be at the first word, `begin`.
bool TokenReader::findBody(SMLoc begin) {
  if (startsLine(position) && tokens[position].at != begin)
    return false;
  for (size_t i = position; broken && errors < kMostErrors && i + 1 < tokens.size(); ++i) {
    if ((i > position && startsLine(i)) || tokens[i].is("}"))
      return false;
    if (!tokens[i].is("{"))
      continue;
    position = i;
    broken = false;
    mended = true;
    return true;
  }
  return false;
}

bool TokenReader::isRead(function_ref<void()> item) {
  SaveAndRestore outside(mended, false);
  item();
  return !broken && !mended;
}

void TokenReader::braces(function_ref<void()> item) {
  SMLoc open = peek().at;
  expect("{");
  while (!at("}") && !ended()) {
    size_t begin = position;
    item();
    if (broken && !recover(begin))
      return;
  }
  if (ended() && failed()) // the brace may be missing because of the error before
    broken = true;
  if (ended())
    fail(peek().at, "expected `}` before the end of the file", open, "the block opened here");
  next();
}

void TokenReader::declarations(function_ref<void()> item) {
  for (size_t begin = 0;; item()) {
    if (broken && errors < kMostErrors) {
      for (position = std::max(position, begin + 1); position + 1 < tokens.size() && !startsDeclaration(position);)
        ++position;
      broken = false;
    }
    while (failed() && take("}")) // of a block whose begin was not understood
      continue;
    begin = position;
    if (ended())
      return;
  }
}

//===-- Expressions, from the loosest operator to the tightest --------------------------------------------------===//

Expr *ExpressionParser::node(Expr::Kind kind, SMLoc at, ArrayRef<Expr *> operands) {
  Expr *expr = make<Expr>();
  expr->kind = kind;
  expr->at = at;
  expr->operands = keep(operands);
  expr->text = textFrom(at);
  for (Expr *operand : operands)
    expr->depth = std::max(expr->depth, operand->depth + 1);
  if (expr->depth > 1000) // a + b + c + .. is as deep as it is long
    fail(at, "this expression is too long; the limit is 1000 operators");
  return expr;
}

Expr *ExpressionParser::binary(Expr::Kind kind, const Token &op, Expr *left, Expr *right) {
  Expr *expr = node(kind, op.at, {left, right});
  expr->text = textFrom(SMLoc::getFromPointer(left->text.data()));
  expr->name = op.text;
  return expr;
}

Expr *ExpressionParser::expression() {
  Nested level(*this);
  if (at("if"))
    return conditional();
  return disjunction();
}

Expr *ExpressionParser::conditional() {
  SMLoc begin = next().at;
  Expr *condition = expression();
  expect("then");
  Expr *yes = expression();
  expect("else");
  Expr *no = expression();
  return node(Expr::Conditional, begin, {condition, yes, no});
}

Expr *ExpressionParser::disjunction() {
  Expr *left = conjunction();
  while (at("or")) {
    Token op = next();
    left = binary(Expr::Or, op, left, conjunction());
  }
  return left;
}

Expr *ExpressionParser::conjunction() {
  Expr *left = negation();
  while (at("and")) {
    Token op = next();
    left = binary(Expr::And, op, left, negation());
  }
  return left;
}

Expr *ExpressionParser::negation() {
  if (!at("not"))
    return comparison();
  Nested level(*this);
  SMLoc begin = next().at;
  Expr *operand = negation();
  return node(Expr::Not, begin, {operand});
}

static std::optional<Expr::Comparison> comparisonOf(const Token &token) {
  static const std::pair<const char *, Expr::Comparison> kinds[] = {
      {"==", Expr::Equal},  {"!=", Expr::Unequal},      {"<", Expr::Less}, {"<=", Expr::LessEqual},
      {">", Expr::Greater}, {">=", Expr::GreaterEqual}, {"in", Expr::In}};
  for (auto [text, kind] : kinds)
    if (token.is(text))
      return kind;
  return std::nullopt;
}

Expr *ExpressionParser::comparison() {
  Expr *first = range();
  if (!comparisonOf(peek()))
    return first;
  Token op = peek();
  SmallVector<Expr *> operands = {first};
  SmallVector<Expr::Comparison> comparisons;
  while (std::optional<Expr::Comparison> kind = comparisonOf(peek())) {
    next();
    comparisons.push_back(*kind);
    operands.push_back(range());
  }
  Expr *expr = binary(Expr::Compare, op, first, first);
  expr->operands = keep(ArrayRef<Expr *>(operands));
  expr->comparisons = keep(ArrayRef<Expr::Comparison>(comparisons));
  return expr;
}

Expr *ExpressionParser::range() {
  Expr *left = sum();
  if (!at(".."))
    return left;
  Token op = next();
  return binary(Expr::Range, op, left, sum());
}

Expr *ExpressionParser::sum() {
  Expr *left = product();
  while (at("+") || at("-")) {
    Token op = next();
    left = binary(op.text == "+" ? Expr::Add : Expr::Subtract, op, left, product());
  }
  return left;
}

Expr *ExpressionParser::product() {
  Expr *left = unary();
  while (at("*") || at("//") || at("%") || at("/")) {
    if (at("/") && !allowsNumbers) {
      fail(peek().at, "expected an operator, got `/`; integers divide with `//`, rounding down");
      return left;
    }
    Token op = next();
    Expr::Kind kind = op.text == "*"    ? Expr::Multiply
                      : op.text == "/"  ? Expr::Quotient
                      : op.text == "//" ? Expr::Divide
                                        : Expr::Modulo;
    left = binary(kind, op, left, unary());
  }
  return left;
}

Expr *ExpressionParser::unary() {
  if (!at("-"))
    return postfix();
  Nested level(*this);
  SMLoc begin = next().at;
  Expr *operand = unary();
  return node(Expr::Negate, begin, {operand});
}

Expr *ExpressionParser::postfix() {
  Expr *expr = primary();
  for (;;) {
    if (at("[")) {
      Token bracket = next();
      Expr *index = expression();
      expect("]");
      expr = binary(Expr::Index, bracket, expr, index);
    } else if (at("(") && expr->kind == Expr::Variable) {
      expr = call({expr->name, expr->at});
    } else {
      return expr;
    }
  }
}

Expr *ExpressionParser::call(Name name) {
  expect("(");
  SmallVector<Expr *> values;
  SmallVector<Name> labels;
  while (!at(")") && !ended()) {
    Name label;
    if (peek(1).is("=")) {
      if (!allowsLabels)
        fail(peek(1).at,
             "values have no names here; only models, schedules and ops in a model or train take named ones");
      label = expectWord();
      next();
    }
    values.push_back(expression());
    labels.push_back(label);
    if (!take(","))
      break;
  }
  expect(")");
  Expr *expr = node(Expr::Call, name.at, values);
  expr->name = name.text;
  expr->labels = keep(ArrayRef<Name>(labels));
  return expr;
}

// Reserved words that are names of values somewhere.
static bool isValueWord(const Token &token, bool everywhere) {
  for (const char *word : {"ranks", "microbatches", "slices", "layers", "stage"})
    if (token.is(word))
      return true;
  return everywhere && (token.is("model") || token.is("schedule"));
}

Expr *ExpressionParser::primary() {
  const Token token = peek();
  Expr *expr = nullptr;
  if (token.kind == Token::Integer || token.kind == Token::Number) {
    next();
    if (token.kind == Token::Number && !allowsNumbers)
      fail(token.at, "expected an int, got `" + token.text + "`; schedules count in ints");
    expr = node(token.kind == Token::Integer ? Expr::Integer : Expr::Number, token.at, {});
    expr->integer = token.integer;
    expr->number = token.number;
  } else if (token.kind == Token::String) {
    next();
    expr = node(Expr::String, token.at, {});
    expr->name = token.text;
  } else if (at("true") || at("false")) {
    next();
    expr = node(Expr::Boolean, token.at, {});
    expr->integer = token.text == "true";
  } else if (token.kind == Token::Name || isValueWord(token, allowsWords)) {
    next();
    expr = node(Expr::Variable, token.at, {});
    expr->name = token.text;
  } else if (take("(")) {
    expr = expression();
    expect(")");
    expr->text = textFrom(token.at);
  } else if (at("[")) {
    expr = listOf();
  } else {
    failExpected("a value");
    expr = node(Expr::Integer, token.at, {});
  }
  return expr;
}

Generator ExpressionParser::generator() {
  expect("for");
  Generator made;
  made.unpacks = take("[");
  if (made.unpacks) {
    made.names = list<Name>([&] { return expectName(); });
    expect("]");
  } else {
    Name name = expectName();
    made.names = keep(ArrayRef<Name>(name));
  }
  if (at("{"))
    fail(peek().at, "expected `in` and a list after `for " + made.names[0].text + "`; `on " + made.names[0].text +
                        " { .. }` holds what a rank does");
  expect("in");
  made.list = expression();
  return made;
}

Expr *ExpressionParser::listOf() {
  SMLoc begin = next().at;
  SmallVector<Expr *> items;
  SmallVector<Generator> generators;
  Expr *filter = nullptr;
  if (!at("]"))
    items.push_back(expression());
  while (at("for"))
    generators.push_back(generator());
  if (!generators.empty() && take("if"))
    filter = expression();
  if (generators.empty())
    while (take(","))
      items.push_back(expression());
  expect("]");
  Expr *expr = node(generators.empty() ? Expr::List : Expr::Comprehension, begin, items);
  expr->generators = keep(ArrayRef<Generator>(generators));
  expr->filter = filter;
  return expr;
}
