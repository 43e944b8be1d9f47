// A `.pipe` file that an editor has open: what is wrong with it, what its words mean, and the step that it makes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_EDITOR_DOCUMENT_H
#define PP_TOOLS_EDITOR_DOCUMENT_H

#include "analysis/Simulate.h"
#include "frontend/Frontend.h"
#include "frontend/syntax/Lexer.h"
#include "llvm/ADT/StringMap.h"

namespace pp {

/// A word in a file, in columns from `column` up to `end`. Lines and columns count from 0. Columns count the 16-bit
/// units of UTF-16, as the protocol does.
struct TextPlace {
  std::string file;
  unsigned line = 0, column = 0, end = 0;
};

/// An error or a warning, and the notes that belong to it.
struct Told {
  TextPlace place;
  mlir::DiagnosticSeverity severity;
  std::string message;
  std::vector<std::pair<TextPlace, std::string>> notes;
};

/// A name that a file declares.
struct DeclaredName {
  llvm::StringRef kind; ///< the reserved word before it; `parameter`, or `for` of a loop's name
  llvm::StringRef name;
  llvm::SMLoc at;
  unsigned buffer;
};

/// Reads, proves and simulates the file once; then answers.
///
/// A file with a `train` is what `pp-compile FILE` reads. Of a file with schedules alone the last one is drawn, with 4
/// ranks, 8 microbatches, 4 slices, 8 layers, or as many as its stages share equally. A comment
/// `# pp: --schedule=NAME --cluster=NAME -D name=value ..` says otherwise. A file with neither has only its syntax
/// checked.
class Document {
public:
  /// `open`: texts that an editor holds, by path; they go before the files.
  Document(llvm::StringRef path, llvm::StringRef text, FrontendOptions options,
           const llvm::StringMap<std::string> &open);

  const std::vector<Told> &told() const { return messages; }
  /// Whether it depends on that file.
  bool imports(llvm::StringRef path) const { return llvm::is_contained(attempt.files, path); }
  /// The figure of the step; empty where the file is wrong.
  std::string timeline(bool messages, bool memory) const;
  /// What the word there is: its declaration with the comment above, and of a unit where and when it runs. Markdown.
  std::string hover(unsigned line, unsigned column) const;
  /// Where the name there, or the imported file, is declared.
  std::optional<TextPlace> definition(unsigned line, unsigned column) const;
  /// What may be written there; the kind of each.
  std::vector<std::pair<std::string, llvm::StringRef>> completions(unsigned line, unsigned column) const;

private:
  mlir::MLIRContext context;
  mutable llvm::SourceMgr manager; ///< it remembers where lines begin
  std::unique_ptr<Source> words;   ///< for the words of all buffers
  FrontendOptions options;
  Attempt attempt;                        ///< the last one
  unsigned imported = 2;                  ///< the first buffer of what it imports, as it was read last
  std::vector<std::vector<Token>> tokens; ///< by buffer, from 1
  std::vector<DeclaredName> names;
  std::vector<Told> messages;
  mlir::OwningOpRef<mlir::ModuleOp> module; ///< proved; null where the file is wrong
  std::optional<Timeline> step;

  void readOptions();
  bool chooseSchedule();
  void check();
  bool compile();
  void readWords(unsigned first, unsigned last);
  void declare(unsigned buffer);
  void tell(mlir::Diagnostic &diagnostic);
  TextPlace placeOf(mlir::Location location) const;
  TextPlace placeOf(unsigned buffer, llvm::SMLoc at) const;
  const char *pointerAt(unsigned line, unsigned column) const;
  const Token *wordAt(unsigned line, unsigned column) const;
  const DeclaredName *declarationOf(const Token &word) const;
  std::string unitsAt(const Token &word) const;
  void writeWait(const Idle &idle, llvm::raw_ostream &os) const;
  pipeline::ProgramOp program() const;
};

} // namespace pp

#endif // PP_TOOLS_EDITOR_DOCUMENT_H
