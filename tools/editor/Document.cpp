// Reads a `.pipe` file as pp-compile does, keeps what it says of the file, and answers what an editor asks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/editor/Document.h"
#include "analysis/Proof.h"
#include "dialect/nn/Nn.h"
#include "frontend/evaluate/CommandLine.h"
#include "frontend/syntax/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "passes/Passes.h"
#include "report/Names.h"
#include "report/Pictures.h"
#include "tools/Forms.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/Path.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;
using llvm::SMLoc;

// What is larger is not proved while somebody types; pp-compile proves it.
static constexpr int64_t kMostActions = 50'000, kMostSteps = 5'000'000;
static constexpr size_t kMostUnits = 8; ///< that a hover lists

static DialectRegistry dialects() {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, nn::NnDialect, PipelineDialect>();
  return registry;
}

Document::Document(StringRef path, StringRef text, FrontendOptions given, const llvm::StringMap<std::string> &open)
    : context(dialects(), MLIRContext::Threading::DISABLED), options(std::move(given)) {
  context.loadAllAvailableDialects();
  context.printOpOnDiagnostic(false);
  options.openFiles = &open;
  options.budget.actions = std::min(options.budget.actions, kMostActions);
  options.budget.steps = std::min(options.budget.steps, kMostSteps);
  manager.AddNewSourceBuffer(llvm::MemoryBuffer::getMemBufferCopy(text, path), SMLoc());
  readOptions();
  words = std::make_unique<Source>(manager, &context);
  readWords(1, 1);
  check();
  readWords(imported, manager.getNumBuffers());
}

//===-- What is wrong -------------------------------------------------------------------------------------------===//

/// `# pp: --schedule=eager -D ranks=4`
void Document::readOptions() {
  StringRef text = manager.getMemoryBuffer(1)->getBuffer();
  llvm::SmallVector<StringRef> lines, parts;
  text.split(lines, '\n');
  for (StringRef line : lines)
    if (line.consume_front("# pp:"))
      llvm::SplitString(line, parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    StringRef word = parts[i];
    if (word.consume_front("--schedule="))
      options.schedule = word.str();
    else if (word.consume_front("--cluster="))
      options.cluster = word.str();
    else if (word.consume_front("-D")) {
      auto [name, value] = (word.empty() && i + 1 < parts.size() ? parts[++i] : word).split('=');
      options.defines.push_back({name.str(), value.str()});
    }
  }
}

static bool isTrain(const DeclaredName &name) { return name.buffer == 1 && name.kind == "train"; }

/// Chooses the schedule that is drawn where the file has no `train`. False if there is none, either.
bool Document::chooseSchedule() {
  if (llvm::any_of(names, isTrain) || !options.schedule.empty())
    return true;
  for (const DeclaredName &name : names)
    if (name.buffer == 1 && name.kind == "schedule")
      options.schedule = name.name.str();
  return !options.schedule.empty();
}

void Document::check() {
  if (!chooseSchedule()) {
    ScopedDiagnosticHandler handler(&context,
                                    [&](mlir::Diagnostic &diagnostic) { return tell(diagnostic), success(); });
    Source source(manager, &context);
    (void)parse(source, source.text(1));
    return;
  }
  options.attempt = &attempt;
  bool isDrawn = llvm::none_of(names, isTrain);
  if (isDrawn)
    attempt.sizes = {{"ranks", 4}, {"microbatches", 8}, {"slices", 4}, {"layers", 8}};
  compile();
  bool isSpread =
      llvm::any_of(options.defines, [](const auto &define) { return StringRef(define.first).ends_with("layers"); });
  if (!isDrawn || isSpread || !attempt.layers)
    return;
  options.defines.push_back({"layers", std::to_string(attempt.layers)});
  compile(); // once, for more stages may come of more layers
}

bool Document::compile() {
  attempt.files.clear();
  attempt.layers = 0;
  messages.clear();
  module = nullptr;
  step.reset();
  imported = manager.getNumBuffers() + 1;
  ScopedDiagnosticHandler handler(&context, [&](mlir::Diagnostic &diagnostic) { return tell(diagnostic), success(); });
  OwningOpRef<ModuleOp> made = importPipe(manager, &context, options);
  if (!made)
    return false;
  PassManager passes(&context);
  passes.enableVerifier(false); // the pipeline has passes for it
  ChangeOptions changes;
  changes.improve = false; // no figure and no message is about gaps in a memory plan that fits
  buildPipeline(passes, Until::Ranks, {}, changes);
  if (failed(ProvedModule::run(passes, *made)))
    return false;
  module = std::move(made);
  std::unique_ptr<CostModel> costs = makeCosts(program(), requestedCosts(), "");
  FailureOr<Timeline> simulated = failure();
  if (costs && succeeded(simulated = simulate(program(), *costs)))
    step = std::move(*simulated);
  return true;
}

ProgramOp Document::program() const {
  return *llvm::find_if(module.get().getOps<ProgramOp>(), [](ProgramOp each) { return !each.getRedo(); });
}

void Document::tell(mlir::Diagnostic &diagnostic) {
  Told made = {placeOf(diagnostic.getLocation()), diagnostic.getSeverity(), diagnostic.str(), {}};
  for (mlir::Diagnostic &note : diagnostic.getNotes())
    made.notes.push_back({placeOf(note.getLocation()), note.str()});
  messages.push_back(std::move(made));
}

/// UTF-16 has two units for a character of four bytes of UTF-8, and else one.
static unsigned unitsOf(StringRef text) {
  unsigned units = 0;
  for (unsigned char byte : text)
    units += (byte < 0x80 || byte >= 0xC0) + (byte >= 0xF0);
  return units;
}

/// What stands on no line of a file (the command line) is told at the top of this one.
TextPlace Document::placeOf(mlir::Location location) const {
  std::optional<FileLineColLoc> found;
  location->walk([&](mlir::Location each) {
    if (auto line = dyn_cast<FileLineColLoc>(each))
      found = line;
    return found ? WalkResult::interrupt() : WalkResult::advance();
  });
  for (unsigned buffer = 1; found && buffer <= manager.getNumBuffers(); ++buffer)
    if (manager.getMemoryBuffer(buffer)->getBufferIdentifier() == found->getFilename() &&
        found->getFilename() != kCommandLine)
      if (SMLoc at = manager.FindLocForLineAndColumn(buffer, found->getLine(), found->getColumn()); at.isValid())
        return placeOf(buffer, at);
  return placeOf(1, SMLoc::getFromPointer(manager.getMemoryBuffer(1)->getBufferStart()));
}

TextPlace Document::placeOf(unsigned buffer, SMLoc at) const {
  auto [line, column] = manager.getLineAndColumn(at, buffer);
  StringRef rest(at.getPointer(), manager.getMemoryBuffer(buffer)->getBufferEnd() - at.getPointer());
  size_t length = rest.take_while([](char c) { return llvm::isAlnum(c) || c == '_'; }).size();
  unsigned begin = unitsOf(StringRef(at.getPointer() - (column - 1), column - 1));
  return {manager.getMemoryBuffer(buffer)->getBufferIdentifier().str(), line - 1, begin,
          unsigned(begin + std::max<size_t>(length, 1))};
}

//===-- What words mean -----------------------------------------------------------------------------------------===//

/// Of some buffers; their errors are told by who compiles them.
void Document::readWords(unsigned first, unsigned last) {
  ScopedDiagnosticHandler quiet(&context, [](mlir::Diagnostic &) { return success(); });
  tokens.resize(last + 1);
  for (unsigned buffer = first; buffer <= last; ++buffer) {
    if (manager.getMemoryBuffer(buffer)->getBufferIdentifier() == kCommandLine)
      continue;
    tokens[buffer] = lex(*words, words->text(buffer));
    declare(buffer);
  }
}

static bool isDeclaration(StringRef word) {
  return word == "schedule" || word == "model" || word == "train" || word == "cluster";
}

/// By the words alone, so that a file with errors has its names, too.
void Document::declare(unsigned buffer) {
  const std::vector<Token> &its = tokens[buffer];
  auto add = [&](StringRef kind, const Token &word) {
    if (word.kind == Token::Name)
      names.push_back({kind, word.text, word.at, buffer});
  };
  bool inHead = false;
  int braces = 0, depth = 0, heads = 0; // that are open: braces, brackets; brackets around the head's parameters
  for (size_t i = 0; i + 1 < its.size(); ++i) {
    StringRef text = its[i].text;
    bool isWord = its[i].kind == Token::Keyword;
    if (its[i].kind == Token::Mark && (text == "(" || text == "["))
      ++depth;
    else if (its[i].kind == Token::Mark && (text == ")" || text == "]"))
      inHead &= --depth >= heads;
    braces += its[i].is("{") - its[i].is("}");
    bool isRole = isWord && (text == "ranks" || text == "microbatches" || text == "slices");
    bool begins = its[i].kind == Token::Mark && (text == "(" || text == ",");
    if (inHead && depth == heads && (begins || isRole))
      add("parameter", its[i + 1]);
    if (!isWord)
      continue;
    if (text == "fn" || (braces == 0 && isDeclaration(text))) { // `schedule` in a `train` is no declaration
      add(text, its[i + 1]);
      inHead = i + 2 < its.size() && its[i + 2].is("(");
      heads = depth + 1;
    }
    if (llvm::is_contained({"let", "var", "part", "weight", "stage"}, text))
      add(text, its[i + 1]);
    for (size_t j = i + 1; text == "for" && j < its.size() && !its[j].is("in"); ++j)
      add("for", its[j]);
  }
}

/// The end of the line if it is shorter; null if there is no such line.
const char *Document::pointerAt(unsigned line, unsigned column) const {
  SMLoc begin = manager.FindLocForLineAndColumn(1, line + 1, 1);
  if (!begin.isValid())
    return nullptr;
  const char *at = begin.getPointer(), *end = manager.getMemoryBuffer(1)->getBufferEnd();
  for (unsigned units = 0; at != end && *at != '\n'; ++at)
    if (unsigned more = unitsOf(StringRef(at, 1)); (units += more) > column && more)
      break;
  return at;
}

const Token *Document::wordAt(unsigned line, unsigned column) const {
  const char *at = pointerAt(line, column);
  for (const Token &word : tokens[1])
    if (at && word.at.getPointer() <= at && at < word.end)
      return &word;
  return nullptr;
}

/// The nearest declaration before it in this file, else one behind it, else one of an import that others may use.
const DeclaredName *Document::declarationOf(const Token &word) const {
  const DeclaredName *found = nullptr;
  for (const DeclaredName &name : names) {
    if (name.name != word.text || name.buffer != 1)
      continue;
    bool isBefore = name.at.getPointer() <= word.at.getPointer();
    if (!found || isBefore)
      found = &name;
  }
  for (const DeclaredName &name : names)
    if (!found && name.name == word.text && name.buffer != 1 && (name.kind == "fn" || isDeclaration(name.kind)))
      found = &name;
  return found;
}

std::optional<TextPlace> Document::definition(unsigned line, unsigned column) const {
  const Token *word = wordAt(line, column);
  if (!word)
    return std::nullopt;
  if (word->kind == Token::String) {
    for (unsigned buffer = 2; buffer <= manager.getNumBuffers(); ++buffer) {
      StringRef file = manager.getMemoryBuffer(buffer)->getBufferIdentifier(), wanted = word->text;
      wanted.consume_front("std");
      if (file.ends_with(wanted))
        return TextPlace{file.str(), 0, 0, 0};
    }
    return std::nullopt;
  }
  const DeclaredName *declared = declarationOf(*word);
  return declared ? std::optional(placeOf(declared->buffer, declared->at)) : std::nullopt;
}

std::string Document::hover(unsigned line, unsigned column) const {
  const Token *word = wordAt(line, column);
  if (!word)
    return "";
  if (std::string units = unitsAt(*word); !units.empty())
    return units;
  const DeclaredName *declared = declarationOf(*word);
  if (!declared)
    return "";
  StringRef text = manager.getMemoryBuffer(declared->buffer)->getBuffer();
  size_t at = declared->at.getPointer() - text.data(), begin = text.rfind('\n', at) + 1;
  StringRef said = text.slice(begin, text.find('\n', at)).trim(), before = text.take_front(begin);
  std::string comment;
  while (before.consume_back("\n")) {
    StringRef above = before.substr(before.rfind('\n') + 1);
    if (!above.ltrim().consume_front("#"))
      break;
    comment = (above.ltrim().ltrim('#').trim() + "\n" + comment).str();
    before = before.drop_back(above.size());
  }
  return ("```pipe\n" + said + "\n```\n" + comment).str();
}

/// How long, why, and for which message.
void Document::writeWait(const Idle &idle, llvm::raw_ostream &os) const {
  os << llvm::format(", after %g of waiting (%s)", idle.end - idle.start, stringifyIdleCause(idle.cause).str().c_str());
  if (idle.flight < 0)
    return;
  const Flight &flight = step->flights[idle.flight];
  os << " for `" << PostOp(flight.posts.front()).getThing().str() << "`";
  if (flight.kind() == PostKind::send)
    os << " from rank " << flight.ranks.front();
  os << ", " << withUnit(flight.bytes);
}

/// Of the unit that is written there: on which ranks it runs, when, and after what its rank has waited.
std::string Document::unitsAt(const Token &word) const {
  if (word.kind != Token::UnitLetter || !step)
    return "";
  TextPlace place = placeOf(1, word.at);
  std::string text;
  llvm::raw_string_ostream os(text);
  size_t count = 0, most = std::max<size_t>(1, kMostUnits / step->ranks.size()), shown = 0;
  for (auto [rank, timeline] : llvm::enumerate(step->ranks)) {
    size_t ofRank = 0;
    for (const Span &span : timeline.spans) {
      TextPlace its = placeOf(pipeline::LaunchOp(span.launch).getLoc());
      if (its.file != place.file || its.line != place.line || its.column != place.column)
        continue;
      ++count;
      if (ofRank++ >= most)
        continue;
      ++shown;
      os << "- rank " << rank << ": `" << span.unit().str() << "` from "
         << llvm::format("%g to %g", span.start, span.end);
      for (const Idle &idle : timeline.idles)
        if (idle.end == span.start && idle.end > idle.start)
          writeWait(idle, os);
      os << "\n";
    }
  }
  if (count > shown)
    os << "- and " << count - shown << " more\n";
  return text;
}

std::vector<std::pair<std::string, StringRef>> Document::completions(unsigned line, unsigned column) const {
  std::vector<std::pair<std::string, StringRef>> made;
  const char *begin = pointerAt(line, 0);
  StringRef before = begin ? StringRef(begin, pointerAt(line, column) - begin) : "";
  if (before.ltrim().starts_with("import")) {
    std::error_code error;
    for (llvm::sys::fs::recursive_directory_iterator file(options.stdlibDir, error), end; file != end && !error;
         file.increment(error))
      if (StringRef(file->path()).ends_with(".pipe"))
        made.push_back({("std" + StringRef(file->path()).substr(options.stdlibDir.size())).str(), "file"});
    llvm::sort(made);
    return made;
  }
  llvm::StringSet<> seen;
  for (const DeclaredName &name : names)
    if ((name.buffer == 1 || name.kind == "schedule" || name.kind == "model" || name.kind == "cluster") &&
        seen.insert(name.name).second)
      made.push_back({name.name.str(), name.kind});
  for (StringRef word : reservedWords())
    made.push_back({word.str(), "word"});
  return made;
}

std::string Document::timeline(bool withMessages, bool memory) const {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (step)
    drawSvg(program(), *step, {withMessages, memory}, os);
  return text;
}
