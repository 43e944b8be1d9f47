// Runs the expressions and the plain statements of a program, once, at compile time.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_EVALUATOR_H
#define PP_FRONTEND_EVALUATOR_H

#include "frontend/evaluate/Budget.h"
#include "frontend/evaluate/Value.h"
#include "frontend/syntax/Ast.h"
#include "frontend/syntax/Source.h"
#include "llvm/ADT/DenseSet.h"
#include <optional>

namespace pp {

struct Attempt;

/// A name and what it stands for: a value, or a function with the scope around its declaration.
struct Binding {
  Name name;
  Value value;
  bool changes = false;
  const Function *function = nullptr;
  SMLoc given = {};     ///< on the command line
  bool isWrong = false; ///< what defines it failed, and that is told: who reads it fails without a word
};

/// The names of one block; lives as long as the block runs, so functions are not values and cannot outlive it.
struct Scope {
  explicit Scope(Scope *parent, const Function *function = nullptr) : parent(parent), function(function) {}
  Scope *parent;
  const Function *function; // whose parameters these are
  llvm::SmallVector<Binding, 4> bindings;

  Binding *find(StringRef name);
  void bind(Name name, Value value, bool changes = false) { bindings.push_back({name, std::move(value), changes}); }
};

class Evaluator {
public:
  Evaluator(Source &source, Budget budget) : source(source), budget(budget) {}
  virtual ~Evaluator() = default;

  mlir::FailureOr<Value> evaluate(const Expr *expr, Scope &scope);
  mlir::FailureOr<int64_t> evaluateInt(const Expr *expr, Scope &scope, const llvm::Twine &what);
  mlir::FailureOr<double> evaluateNumber(const Expr *expr, Scope &scope);
  mlir::LogicalResult run(Block block, Scope &scope);

  /// File-level functions, which come last when a name is looked up.
  Scope globals{nullptr};
  /// A name that is not found may be one that could not be read; that is no error of its own.
  bool isIncomplete = false;
  /// No error is told.
  bool isQuiet = false;
  /// If not null, receives what the program lacks.
  Attempt *attempt = nullptr;

  /// Says `message` at `at` with the calls and loop values that led there; once at each place. Always failure.
  mlir::LogicalResult fail(SMLoc at, const llvm::Twine &message, SMLoc noteAt = {}, const llvm::Twine &note = "");
  /// `at` with the calls and loop values that led there.
  mlir::Location location(SMLoc at);
  /// What is said from now on was reached by these calls, outermost first.
  void setCallers(ArrayRef<SMLoc> calls);
  /// So many microbatches, ranks, layers need an action each.
  mlir::LogicalResult checkCount(SMLoc at, const llvm::Twine &what, int64_t count);

protected:
  /// Statements that only a schedule has.
  virtual mlir::LogicalResult act(const Statement *statement, Scope &scope);
  /// The value of a name that no scope binds: `ranks`, `layers`, a part of the model; nullopt if there is none.
  virtual std::optional<mlir::FailureOr<Value>> predefined(StringRef name, SMLoc at) { return std::nullopt; }
  /// The place on the command line that set it; invalid if none did.
  virtual SMLoc predefinedBy(StringRef name) { return {}; }
  /// `stage(2)`, `attn(3)`; nullopt if `name` is no piece.
  virtual std::optional<mlir::FailureOr<Value>> pieceCall(const Expr *call, Scope &scope) { return std::nullopt; }
  /// The number of tokens behind the next one that the model predicts.
  virtual int64_t furtherTokens() const { return 0; }
  virtual void addNames(llvm::SmallVectorImpl<StringRef> &names) {}
  /// Told of a statement that could not be read, and that may have cut the model into parts.
  virtual void loseCuts() {}

  /// `fail`, and nothing is run after it.
  mlir::LogicalResult stop(SMLoc at, const llvm::Twine &message, SMLoc noteAt = {}, const llvm::Twine &note = "");
  mlir::LogicalResult runUnknown(Block body, ArrayRef<Name> names, Scope &scope);
  mlir::LogicalResult spend(SMLoc at, int64_t count = 1);
  /// Lists of `more` items in all are about to be made.
  mlir::LogicalResult reserve(SMLoc at, int64_t more);
  /// One more item is about to be added to `items`.
  mlir::LogicalResult reserveOne(SMLoc at, const Value::List &items);
  mlir::LogicalResult checkNesting(SMLoc at, unsigned nesting);
  /// The order of two values, at the cost of the items that it takes to tell.
  mlir::FailureOr<int> order(SMLoc at, const llvm::Twine &word, const Value &a, const Value &b);
  int64_t comparisonsLeft();
  /// An action of `bytes` is about to be made.
  mlir::LogicalResult spendAction(SMLoc at, int64_t bytes);
  /// The list begin .. end.
  mlir::FailureOr<Value> countUp(SMLoc at, int64_t begin, int64_t end);

  /// The int values of the loops around, outermost first.
  llvm::SmallVector<std::pair<StringRef, int64_t>> loops;
  /// Inside an expression no action may be emitted, because its place in the order would not be visible.
  int expressionDepth = 0;
  /// Whether a statement that fails is followed by the next one, so that all errors are told.
  bool goesOn = false;
  /// The places of reported errors.
  llvm::DenseSet<const char *> told;

  Source &source;
  const Budget budget;

private:
  enum class Flow { Next, Return };
  mlir::FailureOr<Flow> runBlock(Block block, Scope &scope);
  mlir::FailureOr<Flow> runStatement(const Statement *statement, Scope &scope);
  bool canFollow(const Statement *statement) const;
  void forget(const Statement *statement, Scope &scope);
  mlir::FailureOr<Flow> runFor(const ForStatement *loop, Scope &scope);
  mlir::FailureOr<Flow> runRepeat(const RepeatStatement *loop, Scope &scope);
  mlir::FailureOr<Flow> runWhile(const WhileStatement *loop, Scope &scope);
  mlir::LogicalResult define(Name name, Scope &scope);
  mlir::LogicalResult runLet(const LetStatement *let, Scope &scope);
  mlir::LogicalResult runAssign(const AssignStatement *assign, Scope &scope);
  mlir::LogicalResult runRequire(const RequireStatement *require, Scope &scope);

  mlir::FailureOr<Value> evaluateOperands(const Expr *expr, Scope &scope);
  mlir::FailureOr<Value> variable(const Expr *expr, Scope &scope);
  mlir::FailureOr<Value> arithmetic(const Expr *expr, Scope &scope);
  mlir::FailureOr<Value> arithmetic(const Expr *expr, const Value &left, const Value &right);
  mlir::FailureOr<Value> concatenate(SMLoc at, Value list, const Value &more);
  mlir::FailureOr<Value> range(const Expr *expr, Scope &scope);
  mlir::FailureOr<bool> contains(SMLoc at, const Value::List &items, const Value &wanted);
  mlir::FailureOr<Value> compare(const Expr *expr, Scope &scope);
  mlir::FailureOr<Value> index(const Expr *expr, Scope &scope);
  mlir::FailureOr<Value> call(const Expr *expr, Scope &scope, bool asStatement);
  mlir::FailureOr<Value> callFunction(const Function *function, Scope *around, const Expr *expr, Scope &scope,
                                      bool asStatement);
  mlir::FailureOr<Value> callBuiltin(const Expr *expr, Scope &scope);
  mlir::FailureOr<Value> sorted(const Expr *expr, Value &list);
  mlir::FailureOr<Value> power(const Expr *expr, ArrayRef<Value> values);
  mlir::FailureOr<Value> unique(const Expr *expr, const Value &list);
  mlir::FailureOr<Value> layersOf(const Expr *expr, Scope &scope, const Value &layout); // Layout.cpp
  mlir::FailureOr<Value> ropeTable(const Expr *expr, const Value::List &values);        // RopeTables.cpp
  mlir::LogicalResult comprehend(const Expr *expr, unsigned depth, Scope &scope, Value::List &items);
  mlir::LogicalResult bindPattern(const Generator &generator, const Value &item, Scope &scope);
  mlir::FailureOr<bool> evaluateBool(const Expr *expr, Scope &scope, StringRef after);
  mlir::LogicalResult checkedIndex(SMLoc at, const Value &list, const Value &index);
  mlir::LogicalResult checkDepth(SMLoc at);
  mlir::LogicalResult unknown(StringRef name, SMLoc at, Scope &scope);

  int64_t steps = 0, actions = 0, actionBytes = 0;
  bool isOver = false;                    ///< because of a limit, or of so many errors
  unsigned statementsLost = 0;            ///< how often one failed and was followed by the next one
  llvm::DenseSet<const Statement *> lost; ///< these; in further turns of a loop they are left out
  unsigned depth = 0;                     // of expressions, blocks and calls, on the stack of this process
  Value returned;
  /// The calls around, outermost first; a location is made when something there needs it.
  struct Call {
    SMLoc at;
    std::optional<mlir::Location> location;
  };
  llvm::SmallVector<Call> callers;
};

} // namespace pp

#endif // PP_FRONTEND_EVALUATOR_H
