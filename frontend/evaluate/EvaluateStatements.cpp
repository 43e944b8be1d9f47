// Plain statements: definitions, loops, conditions; and where an action or an error comes from.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/pipeline/Pipeline.h"
#include "frontend/evaluate/CommandLine.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/SaveAndRestore.h"

using namespace llvm;
using namespace pp;

//===-- Where ---------------------------------------------------------------------------------------------------===//

// The location of one call and of what calls it, in MLIR's context.
static constexpr int64_t kLocationBytes = 50;

mlir::Location Evaluator::location(SMLoc at) {
  mlir::Location made = source.location(at);
  std::optional<mlir::Location> around;
  for (Call &call : callers) {
    if (!call.location) {
      mlir::Location site = source.location(call.at);
      call.location = around ? mlir::Location(mlir::CallSiteLoc::get(site, *around)) : site;
      actionBytes += kLocationBytes;
    }
    around = call.location;
  }
  if (around)
    made = mlir::CallSiteLoc::get(made, *around);
  return pipeline::withLoopValues(made, loops);
}

void Evaluator::setCallers(ArrayRef<SMLoc> calls) {
  callers.clear();
  for (SMLoc at : calls)
    callers.push_back({at, std::nullopt});
}

LogicalResult Evaluator::fail(SMLoc at, const Twine &message, SMLoc noteAt, const Twine &note) {
  if (isOver || isQuiet || !told.insert(at.getPointer()).second)
    return failure();
  isOver = told.size() == kMostErrors;
  mlir::Location where = location(at);
  std::string text = message.str();
  if (std::string values = pipeline::loopValues(where); !values.empty())
    text += (StringRef(text).ends_with("?") ? " with " : ", with ") + values;
  mlir::InFlightDiagnostic diagnostic = mlir::emitError(where, text);
  if (noteAt.isValid())
    diagnostic.attachNote(source.location(noteAt)) << note;
  return diagnostic;
}

LogicalResult Evaluator::stop(SMLoc at, const Twine &message, SMLoc noteAt, const Twine &note) {
  (void)fail(at, message, noteAt, note);
  isOver = true;
  return failure();
}

//===-- Statements ----------------------------------------------------------------------------------------------===//

LogicalResult Evaluator::run(Block block, Scope &scope) { return runBlock(block, scope); }

FailureOr<Evaluator::Flow> Evaluator::runBlock(Block block, Scope &scope) {
  for (const Statement *statement : block) {
    size_t outer = loops.size();
    FailureOr<Flow> flow = failure();
    if (!statement->isWrong && !lost.contains(statement))
      flow = runStatement(statement, scope);
    if (failed(flow) && canFollow(statement)) {
      forget(statement, scope);
      lost.insert(statement);
      ++statementsLost;
      loops.truncate(outer);
      flow = Flow::Next;
    }
    if (failed(flow) || *flow == Flow::Return)
      return flow;
  }
  return Flow::Next;
}

/// This statement and all in it.
static void visit(const Statement *statement, function_ref<void(const Statement *)> each) {
  each(statement);
  auto visitAll = [&](Block block) {
    for (const Statement *inner : block)
      visit(inner, each);
  };
  TypeSwitch<const Statement *>(statement)
      .Case<ForStatement, RepeatStatement, WhileStatement, OnStatement, JointStatement>(
          [&](auto *around) { visitAll(around->body); })
      .Case<IfStatement>([&](const IfStatement *branch) {
        visitAll(branch->body);
        visitAll(branch->otherwise);
      })
      .Case<LostStatement>([&](const LostStatement *lost) {
        if (lost->head)
          visit(lost->head, each);
        visitAll(lost->body);
      });
}

/// Whether what comes after a statement that failed is worth a look: code after a `return` may not be meant to run.
bool Evaluator::canFollow(const Statement *statement) const {
  bool isNeeded = false;
  visit(statement, [&](const Statement *inner) { isNeeded |= isa<ReturnStatement, UpdatesStatement>(inner); });
  return goesOn && !isOver && !expressionDepth && !isNeeded;
}

/// Forgets the variables that a failed statement would have defined or changed.
void Evaluator::forget(const Statement *statement, Scope &scope) {
  auto forgetName = [&](Name name, bool changes) {
    if (!name.text.empty() && !scope.find(name.text))
      scope.bindings.push_back({name, Value(), changes, nullptr, {}, /*isWrong=*/true});
  };
  auto *lost = dyn_cast<LostStatement>(statement);
  const Statement *head = lost && lost->head ? lost->head : statement;
  if (auto *let = dyn_cast<LetStatement>(head))
    for (const LetStatement::Definition &definition : let->definitions)
      forgetName(definition.name, let->changes);
  if (auto *function = dyn_cast<Function>(head))
    forgetName(function->name, /*changes=*/false);
  visit(statement, [&](const Statement *inner) {
    if (statement->isWrong && isa<CutStatement, LostStatement>(inner))
      loseCuts();
    auto *assign = dyn_cast<AssignStatement>(inner);
    for (Scope *around = &scope; assign && around; around = around->parent)
      if (Binding *found = around->find(assign->name))
        found->isWrong = true;
  });
}

LogicalResult Evaluator::define(Name name, Scope &scope) {
  if (Binding *first = scope.find(name.text))
    return fail(name.at, "`" + name.text + "` is defined twice", first->name.at, "first defined here");
  return success();
}

FailureOr<Evaluator::Flow> Evaluator::runStatement(const Statement *statement, Scope &scope) {
  if (failed(spend(statement->at)) || failed(checkDepth(statement->at)))
    return failure();
  SaveAndRestore deeper(depth, depth + 1);
  auto next = [](LogicalResult done) { return failed(done) ? FailureOr<Flow>(failure()) : Flow::Next; };
  switch (statement->kind) {
  case Statement::Let:
    return next(runLet(cast<LetStatement>(statement), scope));
  case Statement::Assign:
    return next(runAssign(cast<AssignStatement>(statement), scope));
  case Statement::Call:
    return next(call(cast<CallStatement>(statement)->call, scope, /*asStatement=*/true));
  case Statement::Function: {
    auto *function = cast<Function>(statement);
    if (failed(define(function->name, scope)))
      return failure();
    scope.bindings.push_back({function->name, Value(), false, function});
    return Flow::Next;
  }
  case Statement::Require:
    return next(runRequire(cast<RequireStatement>(statement), scope));
  case Statement::Return: {
    if (callers.empty())
      return fail(statement->at, "`return` stands outside a function");
    FailureOr<Value> value = evaluate(cast<ReturnStatement>(statement)->value, scope);
    if (failed(value))
      return failure();
    returned = std::move(*value);
    return Flow::Return;
  }
  case Statement::For:
    return runFor(cast<ForStatement>(statement), scope);
  case Statement::Repeat:
    return runRepeat(cast<RepeatStatement>(statement), scope);
  case Statement::While:
    return runWhile(cast<WhileStatement>(statement), scope);
  case Statement::If: {
    auto *branch = cast<IfStatement>(statement);
    FailureOr<bool> holds = evaluateBool(branch->condition, scope, "`if`");
    if (failed(holds))
      return failure();
    Scope inner(&scope);
    return runBlock(*holds ? branch->body : branch->otherwise, inner);
  }
  default:
    if (expressionDepth)
      return fail(statement->at, "a function that emits actions is called as a statement, not inside an expression");
    return next(act(statement, scope));
  }
}

LogicalResult Evaluator::act(const Statement *statement, Scope &scope) {
  return fail(statement->at, "actions belong in a schedule");
}

LogicalResult Evaluator::runLet(const LetStatement *let, Scope &scope) {
  for (const LetStatement::Definition &definition : let->definitions) {
    FailureOr<Value> value = evaluate(definition.value, scope);
    if (failed(value) || failed(define(definition.name, scope)))
      return failure();
    scope.bind(definition.name, std::move(*value), let->changes);
    if (loops.empty()) // a `require` of a name that a loop defines is rare, and this takes time
      scope.bindings.back().given = givenOf(definition.value, scope);
  }
  return success();
}

LogicalResult Evaluator::runAssign(const AssignStatement *assign, Scope &scope) {
  Binding *found = nullptr;
  const Function *crossed = nullptr;
  for (Scope *around = &scope; around && !found; around = around->parent) {
    found = around->find(assign->name);
    if (!found && around->function && !crossed)
      crossed = around->function;
  }
  if (!found)
    return unknown(assign->name, assign->at, scope);
  if (found->isWrong)
    return failure();
  if (crossed)
    return fail(assign->at,
                "`" + assign->name + "` belongs to the code around `" + crossed->name.text +
                    "`; a function changes only its own variables",
                crossed->name.at, "`" + crossed->name.text + "` is declared here");
  if (!found->changes)
    return fail(assign->at, "`" + assign->name + "` does not change; declare it with `var` to assign to it",
                found->name.at, "`" + assign->name + "` is declared here");
  SmallVector<Value, 2> indices;
  for (Expr *expr : assign->indices) {
    FailureOr<Value> index = evaluate(expr, scope);
    if (failed(index))
      return failure();
    indices.push_back(std::move(*index));
  }
  const Expr *sum = assign->value->kind == Expr::Add ? assign->value : nullptr;
  FailureOr<Value> value = evaluate(sum ? sum->operands[0] : assign->value, scope), added = Value();
  if (failed(value) || (sum && failed(added = evaluate(sum->operands[1], scope))))
    return failure();
  bool grows = value->asList() && added->asList();
  if (sum && !grows && failed(value = arithmetic(sum, *value, *added)))
    return failure();
  Value *target = &found->value;
  unsigned nesting = std::max(value->nesting(), added->nesting()), below = indices.size();
  if (failed(checkNesting(assign->at, below + nesting)))
    return failure();
  for (auto [expr, index] : zip(assign->indices, indices)) {
    if (failed(checkedIndex(expr->at, *target, index)))
      return failure();
    Value::List &items = target->ownItems();
    target->deepen(nesting + below--);
    target = &items[*index.asInt()];
  }
  if (grows && value->asList() == target->asList())
    *target = Value(); // `xs = xs + [x]`: the sum alone has the list now, and grows it in place
  if (grows && failed(value = concatenate(sum->at, std::move(*value), *added)))
    return failure();
  *target = std::move(*value);
  return success();
}

/// Names that mean something where the expression stands; those of a comprehension mean one thing after the other.
static void collectNames(const Expr *expr, SmallVectorImpl<const Expr *> &names) {
  if (expr->kind == Expr::Comprehension)
    return;
  bool known = any_of(names, [&](const Expr *other) { return other->name == expr->name; });
  if (expr->kind == Expr::Variable && !known)
    names.push_back(expr);
  for (const Expr *operand : expr->operands)
    collectNames(operand, names);
}

LogicalResult Evaluator::runRequire(const RequireStatement *require, Scope &scope) {
  FailureOr<bool> holds = evaluateBool(require->condition, scope, "`require`");
  if (failed(holds) || *holds)
    return holds;
  SmallVector<const Expr *> names;
  collectNames(require->condition, names);
  std::string values;
  SMLoc given = givenOf(require->condition, scope);
  for (const Expr *name : names) {
    given = given.isValid() ? given : predefinedBy(name->name);
    FailureOr<Value> value = variable(name, scope);
    if (failed(value))
      return failure();
    values += (values.empty() ? ", and " : ", ") + name->name.str() + " = " + value->text();
  }
  return stop(given.isValid() ? given : require->at, require->reason,
              SMLoc::getFromPointer(require->condition->text.begin()),
              "this requires `" + require->condition->text + "`" + values);
}

//===-- Loops ---------------------------------------------------------------------------------------------------===//

/// The body of a loop whose list or count is wrong: errors that do not depend on it are told, too. Always failure.
LogicalResult Evaluator::runUnknown(Block body, ArrayRef<Name> names, Scope &scope) {
  Scope inner(&scope);
  for (Name name : names)
    inner.bindings.push_back({name, Value(), false, nullptr, {}, /*isWrong=*/true});
  if (goesOn && !isOver && !expressionDepth)
    (void)runBlock(body, inner);
  return failure();
}

FailureOr<Evaluator::Flow> Evaluator::runFor(const ForStatement *loop, Scope &scope) {
  const Generator &generator = loop->generator;
  FailureOr<Value> list = evaluate(generator.list, scope);
  if (succeeded(list) && !list->asList())
    list = fail(generator.list->at, "expected a list after `in`, got " + list->type() + " " + list->text());
  if (failed(list))
    return runUnknown(loop->body, generator.names, scope);
  size_t outer = loops.size();
  for (const Value &item : *list->asList()) {
    Scope inner(&scope);
    if (failed(spend(loop->at)) || failed(bindPattern(generator, item, inner)))
      return failure();
    for (const Binding &binding : inner.bindings)
      if (auto *value = binding.value.asInt())
        loops.push_back({binding.name.text, *value});
    FailureOr<Flow> flow = runBlock(loop->body, inner);
    if (failed(flow))
      return failure();
    loops.truncate(outer);
    if (*flow == Flow::Return)
      return flow;
  }
  return Flow::Next;
}

FailureOr<Evaluator::Flow> Evaluator::runRepeat(const RepeatStatement *loop, Scope &scope) {
  FailureOr<int64_t> count = evaluateInt(loop->count, scope, "after `repeat`");
  if (succeeded(count) && *count < 0)
    count = fail(loop->count->at, "`repeat` expects a count of at least 0, got " + Twine(*count));
  if (failed(count))
    return runUnknown(loop->body, {}, scope);
  for (int64_t i = 0; i < *count; ++i) {
    Scope inner(&scope);
    if (failed(spend(loop->at)))
      return failure();
    FailureOr<Flow> flow = runBlock(loop->body, inner);
    if (failed(flow) || *flow == Flow::Return)
      return flow;
  }
  return Flow::Next;
}

FailureOr<Evaluator::Flow> Evaluator::runWhile(const WhileStatement *loop, Scope &scope) {
  for (;;) {
    FailureOr<bool> holds = evaluateBool(loop->condition, scope, "`while`");
    if (failed(holds))
      return failure();
    if (!*holds)
      return Flow::Next;
    Scope inner(&scope);
    unsigned before = statementsLost;
    FailureOr<Flow> flow = runBlock(loop->body, inner);
    if (before != statementsLost) // what would have ended the loop may be among them
      return failure();
    if (failed(flow) || *flow == Flow::Return)
      return flow;
  }
}
