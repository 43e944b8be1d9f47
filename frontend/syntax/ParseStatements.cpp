// Reads the statements of schedules and functions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/syntax/Parser.h"

using namespace llvm;
using namespace pp;

static const StringRef kStatements[] = {"let",   "var",   "fn",        "require", "return",   "for",    "repeat",
                                        "while", "if",    "on",        "move",    "together", "attend", "stage",
                                        "part",  "limit", "recompute", "updates", "at",       "weight", "layers"};
static const StringRef kThings[] = {"weight", "grad", "act", "dact", "stash", "kv", "dkv", "opt"};

Block StatementParser::block() {
  SmallVector<Statement *> statements;
  findBody();
  braces([&] {
    bool isOne = mayGoOn() && !statements.empty();
    statements.push_back(statement());
    if (isOne && statements.back()->isWrong)
      statements.end()[-2]->isWrong = true;
  });
  return keep(ArrayRef<Statement *>(statements));
}

Statement *StatementParser::statement() {
  Nested level(*this);
  SMLoc begin = peek().at;
  Statement *made = nullptr;
  bool isWrong = !isRead([&] {
    made = plainStatement();
    if (!findBody(begin)) // of a misspelt `repeat`
      return;
    auto *lost = make<LostStatement>();
    lost->head = made;
    lost->body = block();
    made = lost;
  });
  made->isWrong |= isWrong;
  made->at = begin;
  return made;
}

Statement *StatementParser::plainStatement() {
  const Token &first = peek();
  Statement *made = nullptr;
  if (first.kind == Token::Name)
    made = assignOrCall();
  else if (first.kind == Token::UnitLetter)
    made = unit();
  else if (at("let") || at("var"))
    made = let();
  else if (at("fn"))
    made = function();
  else if (at("require"))
    made = require();
  else if (take("return")) {
    auto *node = make<ReturnStatement>();
    node->value = expression();
    made = node;
  } else if (at("for") || at("repeat") || at("while"))
    made = loop();
  else if (at("if"))
    made = conditional();
  else if (at("on"))
    made = on();
  else if (at("move"))
    made = move();
  else if (take("together")) {
    auto *node = make<JointStatement>();
    node->body = block();
    made = node;
  } else if (at("attend"))
    made = attend();
  else if (at("stage") || at("part"))
    made = cut();
  else if (at("limit"))
    made = limit();
  else if (at("recompute"))
    made = recompute();
  else if (take("updates")) {
    auto *node = make<UpdatesStatement>();
    node->count = expression();
    made = node;
  } else {
    failExpected("a statement", kStatements);
    made = make<LostStatement>();
  }
  return made;
}

Statement *StatementParser::loop() {
  if (at("for")) {
    auto *node = make<ForStatement>();
    node->generator = generator();
    node->body = block();
    return node;
  }
  if (take("repeat")) {
    auto *node = make<RepeatStatement>();
    node->count = expression();
    node->body = block();
    return node;
  }
  next();
  auto *node = make<WhileStatement>();
  node->condition = expression();
  node->body = block();
  return node;
}

Statement *StatementParser::let() {
  auto *node = make<LetStatement>();
  node->changes = next().text == "var";
  node->definitions = list<LetStatement::Definition>([&] {
    Name name = expectName();
    expect("=");
    return LetStatement::Definition{name, expression()};
  });
  return node;
}

Statement *StatementParser::assignOrCall() {
  if (peek(1).is("(")) {
    auto *node = make<CallStatement>();
    node->call = postfix();
    return node;
  }
  if (!peek(1).is("=") && !peek(1).is("[") && !nearestName(peek().text, kStatements).empty()) {
    failExpected("a statement", kStatements);
    return make<LostStatement>();
  }
  auto *node = make<AssignStatement>();
  node->name = next().text;
  SmallVector<Expr *> indices;
  while (take("[")) {
    indices.push_back(expression());
    expect("]");
  }
  node->indices = keep(ArrayRef<Expr *>(indices));
  expect("=");
  node->value = expression();
  return node;
}

Function *StatementParser::function() {
  auto *node = make<Function>();
  node->at = next().at;
  node->name = expectName();
  expect("(");
  if (!at(")"))
    node->parameters = list<Name>([&] { return expectName(); });
  expect(")");
  if (take("="))
    node->value = expression();
  else
    node->body = block();
  return node;
}

Statement *StatementParser::require() {
  next();
  auto *node = make<RequireStatement>();
  node->condition = expression();
  expect(",");
  node->reason = expectString();
  return node;
}

Statement *StatementParser::conditional() {
  next();
  auto *node = make<IfStatement>();
  node->condition = expression();
  node->body = block();
  if (take("else")) {
    if (at("if")) {
      Statement *nested = statement();
      node->otherwise = keep(ArrayRef<Statement *>(nested));
    } else {
      node->otherwise = block();
    }
  }
  return node;
}

Statement *StatementParser::on() {
  SMLoc begin = next().at;
  auto *node = make<OnStatement>();
  if (peek().kind == Token::Name && peek(1).is("in")) {
    node->name = next().text;
    next();
  }
  node->ranks = expression();
  if (!at("{") && node->name.empty())
    fail(begin, "expected `{` after `on " + node->ranks->text + "`; the place of a stage is given with `at`");
  node->body = block();
  return node;
}

UnitStatement *StatementParser::unit() {
  auto *node = make<UnitStatement>();
  node->at = peek().at;
  node->phase = next().text[0];
  expect("(");
  if (!at(")"))
    node->coordinates = list<Expr *>([&] { return expression(); });
  expect(")");
  node->text = textFrom(node->at);
  if (!take("with"))
    return node;
  expect("weight");
  expect("(");
  SmallVector<Expr *> weight = {expression()};
  expect(",");
  weight.push_back(expression());
  expect(")");
  node->weight = keep(ArrayRef<Expr *>(weight));
  return node;
}

static bool isThing(const Token &token) {
  return is_contained(kThings, token.text) && (token.kind == Token::Name || token.kind == Token::Keyword);
}

Thing StatementParser::thing() {
  Thing made;
  SMLoc begin = peek().at;
  if (!isThing(peek())) {
    failExpected("one of weight, grad, act, dact, stash, kv, dkv, opt", kThings);
    return made;
  }
  made.role = expectWord();
  expect("(");
  made.coordinates = list<Expr *>([&] { return expression(); });
  expect(")");
  made.text = textFrom(begin);
  return made;
}

const Place *StatementParser::place() {
  Place *made = make<Place>();
  made->at = peek().at;
  made->kind = at("shard") ? Place::Shard : at("host") ? Place::Host : Place::Plain;
  if (made->kind == Place::Plain) {
    made->ranks = expression();
    return made;
  }
  next();
  expect("(");
  made->ranks = expression();
  expect(")");
  return made;
}

Statement *StatementParser::move() {
  next();
  auto *node = make<MoveStatement>();
  node->things = list<Thing>([&] { return thing(); });
  if (take("from"))
    node->from = place();
  expect("to");
  node->to = place();
  return node;
}

Statement *StatementParser::attend() {
  next();
  auto *node = make<AttendStatement>();
  if (peek().kind != Token::UnitLetter) {
    failExpected("a unit");
    return node;
  }
  node->unit = unit();
  expect("over");
  node->slices = expression();
  expect("on");
  node->rank = expression();
  return node;
}

Clause StatementParser::clause() {
  Clause made;
  made.word = expectWord();
  if (made.word.text == "layers") {
    made.layers = expression();
    return made;
  }
  if (made.word.text != "at")
    expect("at");
  made.place = place();
  return made;
}

CutStatement *StatementParser::cut() {
  auto *node = make<CutStatement>();
  node->isStage = next().text == "stage";
  node->name = expectName();
  if (node->isStage) {
    node->index = node->name;
    expect("of");
    node->count = expression();
  } else {
    if (take("(")) {
      node->index = expectName();
      expect(")");
    }
    if (take("=")) {
      SmallVector<Name> parts = {expectName()};
      while (take("+"))
        parts.push_back(expectName());
      node->joined = keep(ArrayRef<Name>(parts));
    }
  }
  SmallVector<Clause> clauses;
  while (at("at") || at("weight") || at("opt") || at("layers")) {
    Clause next = clause();
    for (const Clause &first : clauses)
      if (first.word.text == next.word.text)
        fail(next.word.at, "`" + next.word.text + "` is given twice", first.word.at, "first given here");
    clauses.push_back(next);
  }
  node->clauses = keep(ArrayRef<Clause>(clauses));
  return node;
}

Statement *StatementParser::limit() {
  next();
  auto *node = make<LimitStatement>();
  node->claims = list<LimitStatement::Claim>([&] {
    LimitStatement::Claim claim{};
    if (!isThing(peek())) {
      failExpected("one of weight, grad, act, dact, stash, kv, dkv, opt", kThings);
      return claim;
    }
    claim.role = expectWord();
    claim.count = expression();
    return claim;
  });
  return node;
}

RecomputeStatement *StatementParser::recompute() {
  auto *node = make<RecomputeStatement>();
  node->at = next().at;
  node->pieces = list<Expr *>([&] { return expression(); });
  if (at("of")) {
    next();
    node->of = list<Expr *>([&] { return expression(); });
  }
  return node;
}
