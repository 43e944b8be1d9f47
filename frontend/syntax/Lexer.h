// The words of a `.pipe` file.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_LEXER_H
#define PP_FRONTEND_LEXER_H

#include "frontend/syntax/Source.h"
#include <vector>

namespace pp {

struct Token {
  enum Kind { End, Name, Keyword, UnitLetter, Integer, Number, String, Mark, Wrong };
  Kind kind = End;
  /// Interned for names, keywords and letters; without its quotes for a string.
  llvm::StringRef text;
  llvm::SMLoc at;
  const char *end = nullptr;
  int64_t integer = 0;
  double number = 0;

  bool is(llvm::StringRef word) const {
    return (kind == Keyword || kind == Mark || kind == UnitLetter) && text == word;
  }
};

/// Reads a number with `.` or `e`; null, or why it is none: one that is infinite or vanishes was meant to be another.
const char *readNumber(llvm::StringRef text, double &number);

/// The words that are no names.
llvm::ArrayRef<llvm::StringRef> reservedWords();

/// All tokens of a buffer; the last one is `End`. A wrong character is reported, and its token is `Wrong`.
std::vector<Token> lex(Source &source, llvm::StringRef buffer);

} // namespace pp

#endif // PP_FRONTEND_LEXER_H
