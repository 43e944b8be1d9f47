// Units, joints and limits: what a schedule emits, in the order in which it says so.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/schedule/Elaborator.h"
#include "llvm/Support/SaveAndRestore.h"

using namespace llvm;
using namespace pp;
using namespace pp::pipeline;
using mlir::IntegerAttr;

/// A unit may ask for a version this many updates old: each version is one more copy of the weights.
static constexpr int64_t kMostVersions = 64;

Elaborator::Elaborator(Source &source, Budget budget, const ModelOutline &model, ScheduleSizes sizes,
                       mlir::Block *program)
    : Evaluator(source, budget), model(model), sizes(sizes), builder(source.context), program(program) {
  builder.setInsertionPointToEnd(program);
}

LogicalResult Elaborator::elaborate(const Schedule &schedule, Scope &parameters) {
  Scope scope(&parameters);
  goesOn = true;
  bool isKnown = !schedule.isWrong && !model.isIncomplete && !model.isUnknown;
  bool isRun = succeeded(run(schedule.body, scope)) && told.empty() && isKnown;
  return success(isRun && wrongCuts.empty() && succeeded(checkCoverage(schedule)));
}

LogicalResult Elaborator::act(const Statement *statement, Scope &scope) {
  switch (statement->kind) {
  case Statement::On:
    return on(cast<OnStatement>(statement), scope);
  case Statement::Unit:
    return unit(cast<UnitStatement>(statement), scope);
  case Statement::Move:
    return move(cast<MoveStatement>(statement), scope);
  case Statement::Joint:
    return joint(cast<JointStatement>(statement), scope);
  case Statement::Cut:
    return cut(cast<CutStatement>(statement), scope);
  case Statement::Limit:
    return limit(cast<LimitStatement>(statement), scope);
  case Statement::Recompute:
    return recompute(cast<RecomputeStatement>(statement), scope);
  case Statement::Updates:
    return updates(cast<UpdatesStatement>(statement), scope);
  case Statement::Attend:
    return attend(cast<AttendStatement>(statement), scope);
  default:
    llvm_unreachable("a plain statement");
  }
}

// One more action, on so many ranks: an op, its coordinates, its location with the values of the loops.
LogicalResult Elaborator::spendFor(SMLoc at, size_t ranks) {
  return spendAction(at, 300 + 8 * int64_t(ranks) + 50 * int64_t(loops.size()));
}

//===-- on, together, limit, recompute --------------------------------------------------------------------------===//

LogicalResult Elaborator::on(const OnStatement *statement, Scope &scope) {
  if (rank)
    return fail(statement->at, "`on` inside `on`: the statements here already run on rank " + Twine(*rank));
  FailureOr<Value> ranks = evaluate(statement->ranks, scope);
  SMLoc at = statement->ranks->at;
  if (succeeded(ranks) && !statement->name.empty() && !ranks->asList())
    ranks = fail(at, "expected a list of ranks after `in`, got " + ranks->type() + " " + ranks->text());
  if (failed(ranks)) {
    SaveAndRestore someRank(rank, std::optional<int64_t>(0));
    return runUnknown(statement->body, Name{statement->name, statement->at}, scope);
  }
  if (statement->name.empty())
    return onRank(statement, at, *ranks, scope);
  for (const Value &item : *ranks->asList())
    if (failed(onRank(statement, at, item, scope)))
      return failure();
  return success();
}

LogicalResult Elaborator::onRank(const OnStatement *statement, SMLoc at, const Value &value, Scope &scope) {
  if (!value.asInt())
    return fail(at, "expected a rank after `on`, got " + value.type() + " " + value.text());
  if (failed(checkExists(at, "rank", *value.asInt(), sizes.ranks)))
    return failure();
  Scope inner(&scope);
  if (!statement->name.empty()) {
    inner.bind({statement->name, statement->at}, value);
    loops.push_back({statement->name, *value.asInt()});
  }
  rank = *value.asInt();
  LogicalResult done = run(statement->body, inner);
  rank.reset();
  if (!statement->name.empty())
    loops.pop_back();
  return done;
}

LogicalResult Elaborator::joint(const JointStatement *statement, Scope &scope) {
  if (together)
    return fail(statement->at, "`together` inside `together`", {}, "");
  if (failed(spendFor(statement->at, 0)))
    return failure();
  auto op = builder.create<TogetherOp>(location(statement->at));
  together = op;
  builder.setInsertionPointToStart(&op.getBody().emplaceBlock());
  Scope inner(&scope);
  LogicalResult done = run(statement->body, inner);
  builder.setInsertionPointAfter(op);
  together.reset();
  if (op.getBody().front().empty())
    op.erase();
  return done;
}

LogicalResult Elaborator::attend(const AttendStatement *statement, Scope &scope) {
  if (!sizes.slices)
    return fail(statement->at,
                "`attend` takes slices of keys to another rank; this schedule has no `slices` parameter");
  Phase phase = *symbolizePhase(StringRef(&statement->unit->phase, 1));
  Piece *piece = nullptr;
  FailureOr<CoordAttr> coord = coordinates(StringRef(&statement->unit->phase, 1), statement->unit->at,
                                           statement->unit->coordinates, scope, phase == Phase::U, piece);
  FailureOr<Value> list = failed(coord) ? FailureOr<Value>(failure()) : evaluate(statement->slices, scope);
  FailureOr<int64_t> helper =
      failed(list) ? FailureOr<int64_t>(failure()) : evaluateInt(statement->rank, scope, "after `on`");
  if (failed(helper) || failed(checkExists(statement->rank->at, "rank", *helper, sizes.ranks)))
    return failure();
  if (!list->asList())
    return fail(statement->slices->at,
                "expected a list of slices after `over`, got " + list->type() + " " + list->text());
  SmallVector<int64_t> slices;
  for (const Value &item : *list->asList()) {
    if (!item.asInt())
      return fail(statement->slices->at, "expected slices after `over`, got " + item.type() + " " + item.text());
    slices.push_back(*item.asInt());
  }
  if (slices.empty())
    return success();
  if (failed(spendFor(statement->at, slices.size())))
    return failure();
  builder.create<AttendOp>(location(statement->at), UnitIdAttr::get(builder.getContext(), phase, *coord), slices,
                           *helper);
  return success();
}

LogicalResult Elaborator::limit(const LimitStatement *statement, Scope &scope) {
  SmallVector<int64_t> ranks;
  for (int64_t r = 0; r < sizes.ranks; ++r)
    if (!rank || *rank == r)
      ranks.push_back(r);
  for (const LimitStatement::Claim &claim : statement->claims) {
    FailureOr<int64_t> count = evaluateInt(claim.count, scope, "as the limit");
    if (failed(count) || failed(spendFor(statement->at, ranks.size())))
      return failure();
    if (*count < 0)
      return fail(claim.count->at, "expected a limit of at least 0, got " + Twine(*count));
    builder.create<LimitOp>(location(statement->at), *symbolizeRole(claim.role.text), *count, ranks);
  }
  return success();
}

/// A part of the model that is no piece of this schedule, for it lies inside other pieces; else an empty name. A text
/// may name it, too.
StringRef Elaborator::modelPart(const Expr *expr, Scope &scope) {
  StringRef name = expr->kind == Expr::Variable || expr->kind == Expr::String ? expr->name : "";
  if (const Binding *bound = expr->kind == Expr::Variable ? scope.find(name) : nullptr;
      bound && bound->value.asString())
    name = *bound->value.asString();
  bool isPiece = any_of(families, [&](auto &family) { return family.name == name; });
  bool isPart = any_of(model.parts, [&](const ModelOutline::Part &part) { return part.name == name; });
  return isPart && !isPiece ? name : "";
}

LogicalResult Elaborator::recompute(const RecomputeStatement *statement, Scope &scope) {
  if (!statement->of.empty())
    return recomputeParts(statement, scope);
  for (const Expr *expr : statement->pieces) {
    if (StringRef part = modelPart(expr, scope); !part.empty()) {
      recomputedParts.push_back(part);
      for (Piece &piece : pieces)
        if (holds(piece, part))
          piece.again.push_back(part);
    } else if (failed(recomputePiece(expr, scope))) {
      return failure();
    }
  }
  return success();
}

LogicalResult Elaborator::recompute(SMLoc at, ArrayRef<StringRef> names) {
  SmallVector<StringRef> parts;
  for (const ModelOutline::Part &part : model.parts)
    parts.push_back(part.name);
  for (StringRef name : names) {
    recomputesAll |= name == "stage";
    if (is_contained(parts, name))
      recomputedParts.push_back(name);
    else if (name != "stage" && model.isIncomplete)
      return failure();
    else if (name != "stage")
      return fail(at, "`recompute`: the model has no part `" + name + "`" + didYouMean(name, parts), at,
                  thereAre(parts) + "; `stage` is all that a piece does");
  }
  return success();
}

LogicalResult Elaborator::recomputePiece(const Expr *expr, Scope &scope) {
  if (families.empty()) { // in `train`: the schedule has not run yet
    FailureOr<Value> value = evaluate(expr, scope);
    if (failed(value))
      return failure();
    if (!value->asPiece())
      return fail(expr->at, "expected a stage or a part, got " + value->type() + " " + value->text());
    recomputes.push_back({*value->asPiece(), expr->at});
    return success();
  }
  auto family = find_if(families, [&](const Family &family) { return family.name == expr->name; });
  if (expr->kind == Expr::Variable && family != families.end()) { // a part in every layer
    for (Piece &piece : MutableArrayRef(pieces).slice(family->first, family->count))
      piece.recomputed = true;
    return success();
  }
  FailureOr<Piece *> piece = findPiece(expr, scope);
  if (failed(piece))
    return failure();
  (*piece)->recomputed = true;
  return success();
}

LogicalResult Elaborator::recomputeParts(const RecomputeStatement *statement, Scope &scope) {
  for (const Expr *expr : statement->pieces)
    if (modelPart(expr, scope).empty() && model.isIncomplete)
      return failure();
    else if (modelPart(expr, scope).empty())
      return fail(expr->at, "expected a part of the model before `of` that is not a piece of this schedule");
  for (const Expr *whole : statement->of) {
    if (families.empty())
      return fail(whole->at, "`of` names a piece, and only schedules have pieces");
    FailureOr<Piece *> piece = findPiece(whole, scope);
    if (failed(piece))
      return failure();
    for (const Expr *expr : statement->pieces) {
      StringRef part = modelPart(expr, scope);
      if (!holds(**piece, part))
        return fail(expr->at, str(**piece) + " has no part `" + part + "`", families[(*piece)->family].at,
                    "declared here");
      (*piece)->again.push_back(part);
    }
  }
  return success();
}

//===-- Units ---------------------------------------------------------------------------------------------------===//

// The words of an error about the number of coordinates: `F(stage, microbatch, slice)`.
static std::string form(StringRef word, bool wholePiece, bool slices) {
  return ("`" + word +
          (wholePiece ? "(stage)`"
           : slices   ? "(stage, microbatch, slice)`"
                      : "(stage, microbatch)`"))
      .str();
}

FailureOr<CoordAttr> Elaborator::coordinates(StringRef word, SMLoc at, ArrayRef<Expr *> exprs, Scope &scope,
                                             bool wholePiece, Piece *&piece) {
  size_t expected = wholePiece ? 1 : sizes.slices ? 3 : 2;
  if (exprs.size() == 3 && expected == 2) {
    FailureOr<int64_t> slice = evaluateInt(exprs[2], scope, "as the slice");
    if (failed(slice))
      return failure();
    return fail(exprs[2]->at, "slice " + Twine(*slice) + " does not exist; this schedule has no `slices` parameter");
  }
  if (exprs.size() != expected)
    return fail(at, "expected " + form(word, wholePiece, sizes.slices) + ", got " + Twine(exprs.size()) +
                        (exprs.size() == 1 ? " coordinate" : " coordinates") +
                        (sizes.slices && !wholePiece ? "; this schedule has slices" : ""));
  FailureOr<Piece *> found = findPiece(exprs[0], scope);
  if (failed(found))
    return failure();
  piece = *found;
  int64_t numbers[2] = {-1, -1};
  for (unsigned i = 1; i < expected; ++i) {
    bool slice = i == 2;
    FailureOr<int64_t> number = evaluateInt(exprs[i], scope, slice ? "as the slice" : "as the microbatch");
    if (failed(number) || failed(checkExists(exprs[i]->at, slice ? "slice" : "microbatch", *number,
                                             slice ? sizes.slices : sizes.microbatches)))
      return failure();
    numbers[i - 1] = *number;
  }
  return CoordAttr::get(builder.getContext(), builder.getStringAttr(piece->name.part), piece->name.index, numbers[0],
                        numbers[1]);
}

LogicalResult Elaborator::unit(const UnitStatement *statement, Scope &scope) {
  Phase phase = *symbolizePhase(StringRef(&statement->phase, 1));
  size_t given = statement->coordinates.size();
  bool countable = !sizes.slices && phase != Phase::R && phase != Phase::U;
  if (countable && (given == 1 || (given == 0 && phase == Phase::W))) {
    Piece *piece = nullptr;
    if (given) {
      FailureOr<Piece *> found = findPiece(statement->coordinates[0], scope);
      if (failed(found))
        return failure();
      piece = *found;
    }
    return countedUnit(statement, phase, piece, scope);
  }
  Piece *piece = nullptr;
  FailureOr<CoordAttr> coord = coordinates(StringRef(&statement->phase, 1), statement->at, statement->coordinates,
                                           scope, phase == Phase::U, piece);
  if (failed(coord) || failed(noteForm(statement, phase, *piece, /*numbered=*/true)))
    return failure();
  return emitUnit(statement, phase, *piece, *coord, scope);
}

LogicalResult Elaborator::countedUnit(const UnitStatement *statement, Phase phase, Piece *piece, Scope &scope) {
  if (!piece && !rank)
    return fail(statement->at, "`W()` needs `on <rank>`: it does the oldest weight pass that this rank owes");
  if (piece && failed(noteForm(statement, phase, *piece, /*numbered=*/false)))
    return failure();
  std::optional<int64_t> microbatch = nextMicrobatch(phase, piece);
  if (!microbatch)
    return success(); // past the last one nothing is left to emit
  auto coord =
      CoordAttr::get(builder.getContext(), builder.getStringAttr(piece->name.part), piece->name.index, *microbatch, -1);
  return emitUnit(statement, phase, *piece, coord, scope);
}

// The microbatch that a counted form stands for; for `W()` the piece too.
std::optional<int64_t> Elaborator::nextMicrobatch(Phase phase, Piece *&piece) {
  if (phase == Phase::W && !piece) {
    auto &owed = owedOn[*rank];
    while (!owed.empty() && pieces[owed.front().first].paid.contains(owed.front().second))
      owed.pop_front();
    if (owed.empty())
      return std::nullopt;
    piece = &pieces[owed.front().first];
    return owed.front().second;
  }
  if (phase == Phase::W) {
    while (!piece->owed.empty() && piece->paid.contains(piece->owed.front()))
      piece->owed.pop_front();
    return piece->owed.empty() ? std::nullopt : std::optional(piece->owed.front());
  }
  int64_t &next = phase == Phase::F ? piece->nextForward : piece->nextBackward;
  return next < sizes.microbatches ? std::optional(next++) : std::nullopt;
}

// A stage whose microbatches are counted here and written there would have two meanings.
LogicalResult Elaborator::noteForm(const UnitStatement *statement, Phase phase, Piece &piece, bool numbered) {
  if (phase == Phase::R || phase == Phase::U)
    return success();
  SMLoc(&forms)[2] = piece.written[phase == Phase::F ? 0 : phase == Phase::W ? 2 : 1];
  if (forms[!numbered].isValid())
    return fail(statement->at,
                "`" + Twine(statement->phase) + "` of " + str(piece) + " is given " +
                    (numbered ? "with a microbatch here and without one elsewhere"
                              : "without a microbatch here and with one elsewhere"),
                forms[!numbered], "elsewhere");
  if (!forms[numbered].isValid())
    forms[numbered] = statement->at;
  return success();
}

LogicalResult Elaborator::updates(const UpdatesStatement *statement, Scope &scope) {
  if (updatesAt.isValid())
    return fail(statement->at, "`updates` is given twice", updatesAt, "first given here");
  if (firstUnitAt.isValid())
    return fail(statement->at, "`updates` must stand before the units", firstUnitAt, "the first unit is here");
  FailureOr<int64_t> count = evaluateInt(statement->count, scope, "after `updates`");
  if (failed(count))
    return failure();
  if (*count < 1 || (sizes.microbatches >= 0 && sizes.microbatches % *count != 0))
    return fail(statement->count->at,
                (sizes.microbatches < 0
                     ? "expected at least 1"
                     : "expected a divisor of the " + std::to_string(sizes.microbatches) + " microbatches") +
                    " after `updates`, got " + Twine(*count));
  updatesAt = statement->at;
  updateCount = *count;
  if (updateCount > 1)
    cast<ProgramOp>(program->getParentOp()).setUpdates(updateCount);
  return success();
}

/// The version that `with weight(s, v)` names; null if the unit does not say.
FailureOr<IntegerAttr> Elaborator::versionOf(const UnitStatement *statement, Phase phase, const Piece &piece,
                                             CoordAttr coord, Scope &scope) {
  if (statement->weight.empty())
    return IntegerAttr();
  SMLoc at = statement->weight[0]->at;
  FailureOr<Piece *> named = findPiece(statement->weight[0], scope);
  FailureOr<int64_t> version =
      failed(named) ? FailureOr<int64_t>(failure()) : evaluateInt(statement->weight[1], scope, "as the version");
  if (failed(version))
    return failure();
  if (phase == Phase::W || phase == Phase::U)
    return fail(at, "`" + Twine(statement->phase) + "` reads no older weights; `with` belongs to F, B, I and R");
  if (*named != &piece)
    return fail(at, "expected the weights of " + str(piece) + " after `with`, got those of " + str(**named));
  if (sizes.microbatches < 0)
    return IntegerAttr();
  int64_t update = coord.getMicrobatch() / (sizes.microbatches / updateCount);
  if (*version <= update && *version >= -kMostVersions)
    return builder.getI64IntegerAttr(*version);
  return fail(statement->weight[1]->at, "version " + Twine(*version) + " is not there for microbatch " +
                                            Twine(coord.getMicrobatch()) + ", whose gradient is part of update " +
                                            Twine(update) + "; versions are " + Twine(-kMostVersions) + " to " +
                                            Twine(update));
}

LogicalResult Elaborator::emitUnit(const UnitStatement *statement, Phase phase, Piece &piece, CoordAttr coord,
                                   Scope &scope) {
  SMLoc at = statement->at;
  firstUnitAt = firstUnitAt.isValid() ? firstUnitAt : at;
  FailureOr<IntegerAttr> version = versionOf(statement, phase, piece, coord, scope);
  if (failed(version))
    return failure();
  ArrayRef<int64_t> ranks = rank ? ArrayRef<int64_t>(*rank) : piece.at ? piece.at.getRanks() : ArrayRef<int64_t>();
  if (ranks.empty())
    return fail(at, str(piece) + " has no place, so this unit needs `on <rank>`", families[piece.family].at,
                "declared without a place here");
  if (!rank && ranks.size() > 1 && piece.at.getLayout() == Layout::full)
    return fail(at, str(piece) + " lives on several ranks, so this unit needs `on <rank>`", families[piece.family].at,
                "declared here");
  bool backward = phase == Phase::B || phase == Phase::I;
  bool again = (piece.recomputed || !piece.again.empty()) && backward;
  if (failed(spendFor(at, ranks.size())) || (again && failed(spendFor(at, ranks.size()))))
    return failure();
  mlir::Location where = location(at);
  mlir::MLIRContext *context = builder.getContext();
  auto emit = [&](Phase which) {
    builder.create<UnitOp>(where, UnitIdAttr::get(context, which, coord), ranks, *version);
  };
  if (again) {
    mlir::OpBuilder::InsertionGuard guard(builder);
    if (together)
      builder.setInsertionPoint(*together);
    emit(Phase::R);
  }
  emit(phase);
  if (phase == Phase::B || phase == Phase::W)
    piece.sharers.insert(ranks.begin(), ranks.end());
  if (sizes.slices || (phase != Phase::I && phase != Phase::W))
    return success();
  if (phase == Phase::W) {
    piece.paid.insert(coord.getMicrobatch());
    return success();
  }
  piece.owed.push_back(coord.getMicrobatch());
  for (int64_t r : ranks)
    owedOn[r].push_back({unsigned(&piece - pieces.data()), coord.getMicrobatch()});
  return success();
}
