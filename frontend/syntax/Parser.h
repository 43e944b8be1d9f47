// Reads the words of a `.pipe` file into its tree.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_PARSER_H
#define PP_FRONTEND_PARSER_H

#include "frontend/syntax/Ast.h"
#include "frontend/syntax/Lexer.h"

namespace pp {

/// The tree of a buffer; after errors, of what could be read.
File parse(Source &source, llvm::StringRef buffer);

/// The base of the parsers of files, statements and expressions: reads words, and recovers after an error.
class TokenReader {
public:
  TokenReader(Source &source, std::vector<Token> words);

protected:
  const Token &peek(unsigned ahead = 0) const {
    return broken ? tokens.back() : tokens[std::min(position + ahead, tokens.size() - 1)];
  }
  bool at(StringRef word) const { return peek().is(word); }
  bool ended() const { return peek().kind == Token::End; }
  Token next();
  bool take(StringRef word);
  void expect(StringRef word);
  Name expectName();
  /// A name or a reserved word: option and argument names.
  Name expectWord();
  StringRef expectString();
  /// Says `message` at `at`; from there on every word is `End`, until `recover` finds where reading can go on.
  void fail(SMLoc at, const llvm::Twine &message, SMLoc noteAt = {}, const llvm::Twine &note = "");
  /// `known`: words that may stand here, in case one of them is misspelt.
  void failExpected(const llvm::Twine &what, ArrayRef<StringRef> known = {});
  bool failed() const { return errors > 0; }
  bool findBody(SMLoc begin = {});
  /// `item`; whether it was read without an error, but for errors in the items of blocks in it.
  bool isRead(llvm::function_ref<void()> item);
  /// Whether an error at this word may be one of what stands before it: it is on the same line, or no word at all.
  bool mayGoOn() const { return position > 0 && !(startsLine(position) && isWord(position)); }
  /// `{ item item .. }`; after an error in an item, the next one is read.
  void braces(llvm::function_ref<void()> item);
  /// `item item ..` up to the end of the file, in the same way.
  void declarations(llvm::function_ref<void()> item);
  StringRef textFrom(SMLoc begin) const { return {begin.getPointer(), size_t(previousEnd - begin.getPointer())}; }

  template <typename T> T *make() { return new (source.arena()) T(); }
  template <typename T> ArrayRef<T> keep(ArrayRef<T> items) { return items.copy(source.arena()); }
  /// `item {"," item}`
  template <typename T> ArrayRef<T> list(llvm::function_ref<T()> item) {
    llvm::SmallVector<T> items = {item()};
    while (take(","))
      items.push_back(item());
    return keep(ArrayRef<T>(items));
  }

  Source &source;
  unsigned mishaps = 0; ///< errors of the lexer and of the parser that were reached
  bool broken = false;  ///< since the last of them nothing is read

private:
  bool recover(size_t begin);
  bool startsLine(size_t i) const;
  bool isWord(size_t i) const;
  bool startsItem(size_t i) const;
  bool startsDeclaration(size_t i) const;
  size_t indentOf(size_t i) const;

  std::vector<Token> tokens;
  size_t position = 0;
  const char *previousEnd = nullptr;
  bool mended = false; ///< an error stood in front of a block that was read
  unsigned errors = 0;
};

class ExpressionParser : public TokenReader {
protected:
  using TokenReader::TokenReader;
  Expr *expression();
  Expr *postfix();
  Generator generator();
  /// One level deeper, for as long as it lives: what is nested without end would end in the stack.
  struct Nested {
    explicit Nested(ExpressionParser &parser) : parser(parser) {
      if (++parser.depth > kDeepest)
        parser.fail(parser.peek().at, "this is nested more than " + llvm::Twine(kDeepest) + " deep");
    }
    ~Nested() { --parser.depth; }
    ExpressionParser &parser;
  };
  static constexpr int kDeepest = 200;

  /// Forms that are legal here beside the grammar of schedules.
  bool allowsNumbers = false, allowsLabels = false, allowsWords = false;

private:
  int depth = 0;
  Expr *binary(Expr::Kind kind, const Token &op, Expr *left, Expr *right);
  Expr *node(Expr::Kind kind, SMLoc at, ArrayRef<Expr *> operands);
  Expr *conditional();
  Expr *disjunction();
  Expr *conjunction();
  Expr *negation();
  Expr *comparison();
  Expr *range();
  Expr *sum();
  Expr *product();
  Expr *unary();
  Expr *call(Name name);
  Expr *primary();
  Expr *listOf();
};

class StatementParser : public ExpressionParser {
protected:
  using ExpressionParser::ExpressionParser;
  Block block();
  Function *function();
  RecomputeStatement *recompute();
  Statement *statement();

private:
  Statement *plainStatement();
  Statement *loop();
  Statement *let();
  Statement *assignOrCall();
  Statement *require();
  Statement *conditional();
  Statement *on();
  UnitStatement *unit();
  Statement *move();
  Thing thing();
  const Place *place();
  Statement *attend();
  CutStatement *cut();
  Clause clause();
  Statement *limit();
};

} // namespace pp

#endif // PP_FRONTEND_PARSER_H
