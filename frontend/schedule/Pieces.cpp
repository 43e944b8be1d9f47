// Stages and parts: what the schedule cuts the model into, and where each piece lives.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Nn.h"
#include "frontend/Cluster.h"
#include "frontend/evaluate/CommandLine.h"
#include "frontend/schedule/Elaborator.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/Support/MathExtras.h"

using namespace llvm;
using namespace pp;
using namespace pp::pipeline;

std::string Elaborator::Family::str(int64_t index) const {
  if (name.empty())
    return "stage " + std::to_string(index);
  return "part `" + name.str() + (indexed ? "(" + std::to_string(index) + ")`" : "`");
}

//===-- Names ---------------------------------------------------------------------------------------------------===//

std::optional<FailureOr<Value>> Elaborator::predefined(StringRef name, SMLoc at) {
  bool isOfModel = name == "layers" || name == "kinds";
  if (is_contained(wrongCuts, name) || (isOfModel && model.isUnknown))
    return failure();
  if (name == "ranks" || name == "microbatches" || name == "kinds" || (name == "slices" && sizes.slices))
    return listOnce(name, at);
  if (name == "layers")
    return Value(model.layers);
  for (const Family &family : families)
    if (!family.name.empty() && family.name == name)
      return Value(PieceName{family.name, -1});
  if (name == "nodes")
    return knowsNodes ? listOnce(name, at) : FailureOr<Value>(failure());
  return std::nullopt;
}

// Makes the list once: a loop may ask for it at every turn.
FailureOr<Value> Elaborator::listOnce(StringRef name, SMLoc at) {
  for (auto &[known, list] : lists)
    if (known == name)
      return list;
  auto count = llvm::StringSwitch<int64_t>(name)
                   .Case("microbatches", sizes.microbatches)
                   .Case("slices", sizes.slices)
                   .Case("kinds", int64_t(model.kindOf.size()))
                   .Default(sizes.ranks);
  if (count < 0)
    return failure();
  FailureOr<Value> made = countUp(at, 0, count);
  if (name == "nodes" && !sizes.ranksPerNode)
    return noNodes(*this, at);
  if (name == "nodes" && succeeded(made))
    made = nodesOf(sizes.ranks, *sizes.ranksPerNode);
  if (name == "kinds" && succeeded(made))
    for (auto [item, kind] : zip(made->ownItems(), model.kindOf))
      item = Value(model.kinds[kind]);
  if (succeeded(made))
    lists.push_back({name, *made});
  return made;
}

void Elaborator::addNames(SmallVectorImpl<StringRef> &names) {
  names.append({"ranks", "microbatches", "layers", "kinds", "nodes"});
  for (const Family &family : families)
    if (!family.name.empty())
      names.push_back(family.name);
}

std::optional<FailureOr<Value>> Elaborator::pieceCall(const Expr *call, Scope &scope) {
  if (is_contained(wrongCuts, call->name))
    return failure();
  bool isStage = call->name == "stage";
  auto family =
      find_if(families, [&](const Family &family) { return !family.name.empty() && family.name == call->name; });
  if (!isStage && family == families.end())
    return std::nullopt;
  FailureOr<Value> made = failure();
  if (call->operands.size() != 1) {
    made = fail(call->at, "`" + call->name + "` takes 1 value, got " + Twine(call->operands.size()));
  } else if (!isStage && !family->indexed) {
    made =
        fail(call->at, "part `" + call->name + "` exists once; write it without an index", family->at, "declared here");
  } else {
    FailureOr<int64_t> index = evaluateInt(call->operands[0], scope, "as an index");
    if (succeeded(index))
      made = Value(PieceName{isStage ? StringRef() : family->name, *index});
  }
  return made;
}

LogicalResult Elaborator::checkExists(SMLoc at, StringRef what, int64_t index, int64_t count, SMLoc noteAt,
                                      const Twine &note) {
  if (0 <= index && (index < count || count < 0))
    return success();
  if (count < 0)
    return failure();
  std::string plural = what == "microbatch" ? "microbatches" : (what + "s").str();
  StringRef whose = what == "layer" ? "the model" : "this schedule";
  return fail(at,
              what + " " + Twine(index) + " does not exist; " + whose + " has " + Twine(count) + " " +
                  (count == 1 ? what.str() : plural) + (count == 1 ? ", 0" : ", 0 to " + std::to_string(count - 1)),
              noteAt, note);
}

FailureOr<Elaborator::Piece *> Elaborator::pieceAt(SMLoc at, unsigned number, int64_t index) {
  const Family &family = families[number];
  if (!family.indexed)
    return &pieces[family.first];
  bool isStage = family.name.empty();
  if (failed(checkExists(at, isStage ? "stage" : "layer", index, family.count, family.at,
                         isStage ? "the stages are declared here" : "the part is declared here")))
    return failure();
  Piece &piece = pieces[family.first + index];
  if (!piece.exists)
    return fail(at, model.describe(index) + " has no part `" + family.name + "`", family.at,
                "the part is declared here");
  return &piece;
}

FailureOr<Elaborator::Piece *> Elaborator::findPiece(const Expr *expr, Scope &scope) {
  FailureOr<Value> value = evaluate(expr, scope);
  if (failed(value) || !wrongCuts.empty())
    return failure();
  PieceName name;
  if (auto *index = value->asInt())
    name.index = *index;
  else if (auto *piece = value->asPiece())
    name = *piece;
  else
    return fail(expr->at, "expected a stage or a part, got " + value->type() + " " + value->text());
  for (auto [i, family] : enumerate(families)) {
    if (family.name != name.part)
      continue;
    if (family.indexed && name.index < 0 && !name.part.empty())
      return fail(expr->at, "part `" + family.name + "` is in every layer; write which, `" + family.name + "(layer)`",
                  family.at, "declared here");
    return pieceAt(expr->at, i, name.index);
  }
  return fail(expr->at, "stage " + Twine(name.index) + " does not exist; no `stage` is declared before this");
}

//===-- Places --------------------------------------------------------------------------------------------------===//

FailureOr<PlaceAttr> Elaborator::evaluatePlace(const Place *place, Scope &scope) {
  FailureOr<Value> value = evaluate(place->ranks, scope);
  if (failed(value))
    return failure();
  Value::List ranks = value->asList() ? *value->asList() : Value::List{*value};
  if (place->kind == Place::Host && value->asList())
    return fail(place->at, "expected a rank after `host`, got list " + value->text());
  if (place->kind == Place::Shard && !value->asList())
    return fail(place->at, "expected a list of ranks after `shard`, got " + value->type() + " " + value->text());
  if (ranks.empty())
    return fail(place->at, "this place is an empty list of ranks");
  SmallSetVector<int64_t, 8> unique;
  for (const Value &item : ranks) {
    if (!item.asInt())
      return fail(place->at, "expected a rank or a list of ranks, got " + value->type() + " " + value->text());
    if (failed(checkExists(place->at, "rank", *item.asInt(), sizes.ranks)))
      return failure();
    if (!unique.insert(*item.asInt()))
      return fail(place->at, "rank " + Twine(*item.asInt()) + " appears twice in the place " + value->text() +
                                 "; `unique(..)` keeps one of each");
  }
  // A shard of one rank is the whole.
  Layout layout = place->kind == Place::Host                         ? Layout::host
                  : place->kind == Place::Shard && unique.size() > 1 ? Layout::shard
                                                                     : Layout::full;
  return PlaceAttr::get(builder.getContext(), unique.getArrayRef(), layout);
}

// Bytes that a piece takes beside itself: for its queues of counted units, its location and its op.
static constexpr int64_t kPieceBytes = 1500;

LogicalResult Elaborator::placePiece(const CutStatement *statement, Piece &piece, Scope &scope) {
  if (failed(spendAction(statement->at, sizeof(Piece) + kPieceBytes)))
    return failure();
  Scope inner(&scope);
  size_t outer = loops.size();
  if (!statement->index.text.empty()) {
    inner.bind(statement->index, Value(piece.name.index));
    loops.push_back({statement->index.text, piece.name.index});
  }
  piece.location = location(statement->at);
  for (const Clause &clause : statement->clauses) {
    if (clause.layers) {
      if (failed(readLayers(clause, piece, inner)))
        return failure();
      continue;
    }
    FailureOr<PlaceAttr> place = evaluatePlace(clause.place, inner);
    if (failed(place))
      return failure();
    if (place->getLayout() == Layout::host)
      return fail(clause.place->at, "a piece lives on ranks, not in host memory");
    if (clause.word.text == "at")
      piece.at = *place;
    else
      (clause.word.text == "weight" ? piece.homes : piece.owner) = *place;
  }
  if (!piece.homes)
    piece.homes = piece.at;
  if (!piece.owner)
    piece.owner = piece.at;
  loops.truncate(outer);
  return success();
}

/// `layers 2`, or `layers [2, 1]`: with so many of the parts that stand behind all layers.
LogicalResult Elaborator::readLayers(const Clause &clause, Piece &piece, Scope &scope) {
  FailureOr<Value> value = evaluate(clause.layers, scope);
  if (failed(value))
    return failure();
  Value::List counts = value->asList() ? *value->asList() : Value::List{*value};
  if (counts.empty() || counts.size() > 2 || any_of(counts, [](const Value &count) { return !count.asInt(); }))
    return fail(clause.layers->at, "expected an int after `layers`, or a list of layers and parts behind them, got " +
                                       value->type() + " " + value->text());
  for (const Value &count : counts)
    if (*count.asInt() < 0)
      return fail(clause.word.at, "a stage cannot hold " + Twine(*count.asInt()) +
                                      (&count == counts.data() ? " layers" : " parts behind the layers"));
  piece.layers = *counts[0].asInt();
  piece.behind = counts.size() > 1 ? *counts[1].asInt() : 0;
  return success();
}

//===-- Cuts ----------------------------------------------------------------------------------------------------===//

LogicalResult Elaborator::cut(const CutStatement *statement, Scope &scope) {
  if (wrongCuts.empty() && succeeded(declarePieces(statement, scope)))
    return success();
  wrongCuts.push_back(statement->isStage ? StringRef("stage") : statement->name.text);
  return failure();
}

LogicalResult Elaborator::declarePieces(const CutStatement *statement, Scope &scope) {
  bool cuts = statement->isStage || !statement->index.text.empty();
  for (const Family &family : families) {
    bool sameName = !statement->isStage && family.name == statement->name.text;
    if (sameName)
      return fail(statement->at, "part `" + family.name + "` is declared twice", family.at, "first declared here");
    bool byStages = statement->isStage || family.name.empty();
    if (cuts && family.indexed && byStages)
      return fail(statement->at, "the model is cut a second time", family.at, "first cut here");
  }
  // The op of a piece lists the parts of its layers.
  constexpr int64_t kEntryBytes = 400;
  if (cuts && failed(spendAction(statement->at, kEntryBytes * model.layers * int64_t(model.parts.size()))))
    return failure();
  return statement->isStage ? cutStages(statement, scope) : cutPart(statement, scope);
}

// Every microbatch and slice of every piece is a unit; where the budget has no room for so many, that is said before
// they are counted one by one.
LogicalResult Elaborator::checkUnits(SMLoc at, int64_t count) {
  uint64_t slices = std::max<int64_t>(sizes.slices, 1),
           each = SaturatingMultiply<uint64_t>(std::max<int64_t>(sizes.microbatches, 1), slices);
  if (SaturatingMultiply<uint64_t>(count, each) <= uint64_t(budget.actions))
    return success();
  std::string times = Twine(count).str() + (count == 1 ? " piece" : " pieces") +
                      (sizes.microbatches < 0 ? "" : " times " + std::to_string(sizes.microbatches) + " microbatches") +
                      (slices > 1 ? " times " + std::to_string(slices) + " slices" : "");
  return fail(at, times + " need an action each; the limit is " + Twine(budget.actions) + " (`--max-actions`)");
}

// Always of the family declared last.
Elaborator::Piece &Elaborator::addPiece(PieceName name, mlir::Location location) {
  Piece &piece = pieces.emplace_back(name, families.size() - 1, location);
  for (auto &[recomputed, at] : recomputes)
    piece.recomputed |= recomputed == name;
  piece.recomputed |= recomputesAll || is_contained(recomputedParts, name.part);
  return piece;
}

/// Whether a part of the model with this name lies inside the piece.
bool Elaborator::holds(const Piece &piece, StringRef part) {
  for (unsigned number = 0; number < model.parts.size(); ++number)
    if (model.parts[number].name == part && holds(piece, number))
      return true;
  return false;
}

/// Whether this part lies inside the piece: one of its own, or one outside the layers that no piece declares.
bool Elaborator::holds(const Piece &piece, unsigned part) {
  const Family &family = families[piece.family];
  auto has = [&](int64_t layer) { return piece.firstLayer <= layer && layer < piece.firstLayer + piece.layers; };
  if (is_contained(family.parts, part))
    return !family.indexed || any_of(seq(piece.firstLayer, piece.firstLayer + piece.layers),
                                     [&](int64_t layer) { return model.isIn(part, layer); });
  if (model.parts[part].kind || !family.indexed)
    return false;
  int64_t before = model.layersBefore(part);
  if (before == 0 || before == model.layers) {
    unsigned last = stageBehind(part).value_or(family.first + family.count - 1);
    return &piece - pieces.data() == (before == 0 ? family.first : last);
  }
  auto *first =
      find_if(model.parts, [&](const ModelOutline::Part &other) { return other.kind == model.kindOf[before]; });
  return has(before) && is_contained(family.parts, first - model.parts.begin());
}

/// Pieces that hold parts which an earlier `recompute` names.
void Elaborator::recomputeDeclared(const Family &family) {
  for (Piece &piece : MutableArrayRef(pieces).slice(family.first, family.count))
    copy_if(recomputedParts, std::back_inserter(piece.again), [&](StringRef part) { return holds(piece, part); });
}

LogicalResult Elaborator::cutStages(const CutStatement *statement, Scope &scope) {
  FailureOr<int64_t> count = evaluateInt(statement->count, scope, "after `of`");
  if (failed(count))
    return failure();
  if (*count < 1)
    return fail(originOf(statement->count, scope), "the model is cut into at least 1 stage, got " + Twine(*count));
  bool given = any_of(statement->clauses, [](const Clause &clause) { return clause.layers; });
  int64_t least = model.layers / *count, more = model.layers % *count;
  if (!given && more > 0 && attempt)
    attempt->layers = *count;
  // Where the numbers of layers do not fit, the stages are declared all the same: errors of units are told, too.
  if (!given && least == 0 && !model.isUnknown) {
    SMLoc by = givenOf(statement->count, scope);
    by = by.isValid() ? by : model.layersGiven;
    (void)fail(by.isValid() ? by : statement->at,
               Twine(*count) + " stages need a layer each, and the model has " + Twine(model.layers) +
                   "; `layers` says how many each stage holds, 0 too",
               by.isValid() ? statement->at : by, "the stages are cut here");
  }
  if (failed(checkUnits(statement->at, *count)))
    return failure();
  Family family{"", statement->at, /*indexed=*/true, unsigned(pieces.size()), unsigned(*count), {}};
  for (auto [i, part] : enumerate(model.parts))
    if (part.kind)
      family.parts.push_back(i);
  families.push_back(family);
  for (int64_t s = 0; s < *count; ++s) {
    Piece &piece = addPiece({"", s}, location(statement->at));
    piece.layers = least + (s < more);
    if (failed(placePiece(statement, piece, scope)))
      return failure();
  }
  checkLayers(statement, family, given);
  if (!given && least > 0 && more > 0)
    mlir::emitRemark(location(statement->at))
        << model.layers << " layers in " << *count << " stages: the first "
        << (more == 1 ? "holds " : std::to_string(more) + " hold ") << least + 1 << ", the others " << least;
  recomputeDeclared(family);
  return success();
}

void Elaborator::checkLayers(const CutStatement *statement, const Family &family, bool given) {
  int64_t layers = 0;
  MutableArrayRef<Piece> its = MutableArrayRef(pieces).slice(family.first, family.count);
  for (Piece &piece : its) {
    piece.firstLayer = layers;
    layers += piece.layers;
  }
  if (given && layers != model.layers) {
    if (!model.isUnknown)
      (void)fail(statement->at, "the stages hold " + Twine(layers) + " layers; the model has " + Twine(model.layers));
    for (Piece &piece : its) // the model does not have these layers: nothing is said of what they do
      piece.firstLayer = piece.layers = piece.behind = 0;
  }
  for (Piece &piece : its)
    if (piece.behind > 0 && piece.firstLayer + piece.layers < layers)
      (void)fail(statement->at, str(piece) + " holds a part behind all layers, and layer " +
                                    Twine(piece.firstLayer + piece.layers) + " stands in a later stage");
}

/// Whether the part stands behind all layers and is no piece of its own.
bool Elaborator::isBehind(unsigned part) {
  return !model.parts[part].kind && model.layersBefore(part) == model.layers && !isDeclared(part);
}

/// The stage whose `layers` says that it holds this part behind all layers. The last piece holds those that none says.
std::optional<unsigned> Elaborator::stageBehind(unsigned part) {
  if (!isBehind(part))
    return std::nullopt;
  int64_t number = count_if(seq(0u, part), [&](unsigned other) { return isBehind(other); });
  for (auto [i, piece] : enumerate(pieces)) {
    if (number < piece.behind)
      return i;
    number -= piece.behind;
  }
  return std::nullopt;
}

/// The last part makes the loss, so it stands in the last piece.
LogicalResult Elaborator::checkBehind() {
  int64_t held = 0,
          there = count_if(seq<unsigned>(0, model.parts.size()), [&](unsigned part) { return isBehind(part); });
  for (const Piece &piece : pieces) {
    held += piece.behind;
    bool isLast = &piece == &pieces.back() ||
                  families[piece.family].first + families[piece.family].count == unsigned(&piece - pieces.data() + 1);
    if (piece.behind > 0 && held > there - !isLast)
      return fail(families[piece.family].at, "the stages up to " + str(piece) + " hold " + Twine(held) +
                                                 " of the parts behind the layers; the model has " + Twine(there) +
                                                 ", and the last one belongs to the last stage");
  }
  return success();
}

LogicalResult Elaborator::cutPart(const CutStatement *statement, Scope &scope) {
  for (const Clause &clause : statement->clauses)
    if (clause.layers)
      return fail(clause.word.at, "`layers` belongs to stages; a part holds its own layer");
  bool indexed = !statement->index.text.empty();
  if (indexed && model.isUnknown)
    return failure();
  Family family{
      statement->name.text, statement->at, indexed, unsigned(pieces.size()), unsigned(indexed ? model.layers : 1), {}};
  if (failed(checkUnits(statement->at, family.count)) || failed(joinParts(statement, family)))
    return failure();
  families.push_back(family);
  for (int64_t i = 0; i < family.count; ++i) {
    Piece &piece = addPiece({family.name, indexed ? i : -1}, location(statement->at));
    piece.firstLayer = i;
    piece.layers = indexed;
    piece.exists = !indexed || any_of(family.parts, [&](unsigned part) { return model.isIn(part, i); });
    if (piece.exists && failed(placePiece(statement, piece, scope)))
      return failure();
  }
  recomputeDeclared(family);
  return success();
}

// The model parts that a declared part holds: the one of its name, or those it lists, in every kind that has them.
LogicalResult Elaborator::joinParts(const CutStatement *statement, Family &family) {
  ArrayRef<Name> joined = statement->joined.empty() ? ArrayRef(statement->name) : statement->joined;
  for (const Name &name : joined)
    if (failed(joinPart(statement, name, family)))
      return failure();
  llvm::sort(family.parts);
  return success();
}

LogicalResult Elaborator::joinPart(const CutStatement *statement, const Name &name, Family &family) {
  SmallVector<StringRef> names;
  for (const ModelOutline::Part &part : model.parts)
    names.push_back(part.name);
  if (!is_contained(names, name.text) && model.isIncomplete)
    return failure();
  if (!is_contained(names, name.text))
    return fail(name.at, "the model has no part `" + name.text + "`" + didYouMean(name.text, names), model.at,
                "model `" + model.name + "` is declared here");
  for (auto [number, part] : enumerate(model.parts)) {
    if (part.name != name.text)
      continue;
    if (part.kind && !family.indexed)
      return fail(name.at, "part `" + name.text + "` is in every layer; declare it with an index, `part " +
                               statement->name.text + "(l)`");
    if (!part.kind && family.indexed)
      return fail(name.at, "part `" + name.text + "` exists once; declare it without an index");
    auto isBeside = [&, kind = part.kind](unsigned other) { return model.parts[other].kind == kind; };
    auto last = find_if(reverse(family.parts), isBeside);
    if (last != family.parts.rend() && *last + 1 != number) {
      bool named = part.kind && !model.kinds[*part.kind].empty();
      return fail(name.at, "`" + names[*last] + "` and `" + name.text + "` do not follow each other in the " +
                               (named ? "layers of kind `" + model.kinds[*part.kind] + "`" : Twine("model")));
    }
    for (const Family &other : families)
      if (!other.name.empty() && is_contained(other.parts, number))
        return fail(name.at, "part `" + name.text + "` of the model is declared twice", other.at,
                    "first declared here");
    family.parts.push_back(number);
  }
  return success();
}

//===-- The pieces as ops ---------------------------------------------------------------------------------------===//

bool Elaborator::isDeclared(unsigned part) {
  return any_of(families, [&](const Family &family) { return is_contained(family.parts, part); });
}

LogicalResult Elaborator::checkCoverage(const Schedule &schedule) {
  if (none_of(families, [](const Family &family) { return family.indexed; }))
    return fail(schedule.name.at, "the schedule cuts the model into no stages or parts");
  for (auto [i, part] : enumerate(model.parts))
    if (part.kind && !isDeclared(i)) {
      StringRef kind = model.kinds[*part.kind];
      return fail(schedule.name.at, "part `" + part.name + "` of " +
                                        (kind.empty() ? Twine("the model") : "layer kind `" + kind + "`") +
                                        " belongs to no part of this schedule");
    }
  for (auto &[name, at] : recomputes)
    if (none_of(pieces, [&, name = name](const Piece &piece) { return piece.name == name; }))
      return fail(at, "this schedule has no " + Value(name).text() + " to recompute", schedule.name.at,
                  "the schedule is declared here");
  for (const Family &family : families)
    if (!family.indexed && failed(checkBetween(family)))
      return failure();
  return checkBehind();
}

/// A declared part that stands between layers is a piece of its own: no stage may hold layers on both sides.
LogicalResult Elaborator::checkBetween(const Family &family) {
  int64_t before = model.layersBefore(family.parts.front());
  for (const Piece &piece : pieces)
    if (families[piece.family].indexed && piece.firstLayer < before && before < piece.firstLayer + piece.layers)
      return fail(family.at,
                  "part `" + family.name + "` stands between layers " + Twine(before - 1) + " and " + Twine(before) +
                      " of the model, and " + str(piece) + " holds both",
                  families[piece.family].at, "declared here");
  return success();
}

/// The position of a piece: the layers before it, its first part, its number; -1 layers for pieces that come first.
std::tuple<int64_t, unsigned, int64_t> Elaborator::positionOf(const Piece &piece) {
  const Family &family = families[piece.family];
  unsigned part = family.parts.front();
  if (family.indexed && piece.layers > 0)
    part = *find_if(family.parts, [&](unsigned part) { return model.isIn(part, piece.firstLayer); });
  int64_t before = family.indexed ? piece.firstLayer : model.layersBefore(part);
  return {family.indexed || before > 0 ? before : -1, part, piece.name.index};
}

SmallVector<unsigned> Elaborator::piecesInModelOrder() {
  SmallVector<unsigned> order;
  for (auto [i, piece] : enumerate(pieces))
    if (piece.exists)
      order.push_back(i);
  llvm::stable_sort(order, [&](unsigned a, unsigned b) { return positionOf(pieces[a]) < positionOf(pieces[b]); });
  return order;
}

/// Finds pieces for the parts outside the layers that no piece declares. A part before all layers joins the piece
/// behind it, and a part behind all layers joins the piece before it. Any other part joins the layer that follows it.
void Elaborator::collectUndeclared(ArrayRef<unsigned> order) {
  for (unsigned part = 0; part < model.parts.size(); ++part) {
    if (model.parts[part].kind || isDeclared(part))
      continue;
    int64_t before = model.layersBefore(part);
    auto isBehind = [&](unsigned piece) {
      return positionOf(pieces[piece]) > std::make_tuple(before > 0 ? before : -1, part, int64_t(0));
    };
    auto *next = find_if(order, isBehind);
    undeclared.push_back({part, before, stageBehind(part).value_or(before == 0 ? *next : next[-1])});
  }
}

SmallVector<mlir::Attribute> Elaborator::entriesOf(unsigned number) {
  const Piece &piece = pieces[number];
  const Family &family = families[piece.family];
  SmallVector<mlir::Attribute> entries;
  auto add = [&](unsigned part, int64_t layer) {
    entries.push_back(
        builder.getArrayAttr({builder.getStringAttr(model.parts[part].function), builder.getI64IntegerAttr(layer)}));
  };
  auto addUndeclared = [&](int64_t before, bool joins) {
    for (const Undeclared &one : undeclared)
      if (one.before == before && (!joins || one.piece == number))
        add(one.part, -1);
  };
  addUndeclared(0, /*joins=*/true);
  for (int64_t layer = piece.firstLayer; layer < piece.firstLayer + piece.layers; ++layer) {
    bool isFirst = true;
    for (unsigned part = 0; part < model.parts.size(); ++part) {
      if (!model.isIn(part, layer))
        continue;
      bool isOwn = is_contained(family.parts, part);
      if (isOwn && isFirst && layer > 0)
        addUndeclared(layer, /*joins=*/false);
      if (isOwn)
        add(part, layer);
      isFirst = false;
    }
  }
  for (unsigned part : family.parts)
    if (!family.indexed)
      add(part, -1);
  addUndeclared(model.layers, /*joins=*/true);
  return entries;
}

LogicalResult Elaborator::emitPieces() {
  mlir::MLIRContext *context = builder.getContext();
  builder.setInsertionPointToStart(program);
  SmallVector<unsigned> order = piecesInModelOrder();
  collectUndeclared(order);
  mlir::Attribute last; // the part before a piece
  for (unsigned number : order) {
    const Piece &piece = pieces[number];
    SmallVector<mlir::Attribute> parts = entriesOf(number);
    if (parts.empty() && last)
      parts.push_back(passOn(last, piece.location));
    last = parts.empty() ? last : parts.back();
    auto coord = CoordAttr::get(context, builder.getStringAttr(piece.name.part), piece.name.index, -1, -1);
    auto op =
        builder.create<PieceOp>(piece.location, coord, builder.getArrayAttr(parts), piece.at, piece.homes, piece.owner);
    if (!piece.recomputed && !piece.again.empty())
      op.setRecomputeAttr(recomputedOf(piece));
  }
  return checkKeys();
}

/// Whether the function returns what it takes, and does nothing else.
static bool passesOn(mlir::func::FuncOp function) {
  mlir::Block &block = function.front();
  return block.without_terminator().empty() && block.getTerminator()->getOperands() == block.getArguments();
}

/// A part for a stage that holds none: it returns what the part before it hands on.
mlir::Attribute Elaborator::passOn(mlir::Attribute before, mlir::Location location) {
  auto module = program->getParentOp()->getParentOfType<mlir::ModuleOp>();
  auto maker = module.lookupSymbol<mlir::func::FuncOp>(cast<mlir::StringAttr>(cast<mlir::ArrayAttr>(before)[0]));
  auto skips = maker->getAttrOfType<mlir::ArrayAttr>(nn::kSkipsAttr);
  SmallVector<mlir::Type> types(maker.getResultTypes().drop_back(skips ? skips.size() : 0));
  mlir::OpBuilder::InsertionGuard guard(builder);
  std::string name = "pass";
  for (int number = 2; auto known = module.lookupSymbol(name); ++number) {
    auto function = dyn_cast<mlir::func::FuncOp>(known);
    if (function && passesOn(function) && function.getArgumentTypes() == ArrayRef(types))
      return builder.getArrayAttr({builder.getStringAttr(name), builder.getI64IntegerAttr(-1)});
    name = "pass" + std::to_string(number);
  }
  builder.setInsertionPoint(program->getParentOp());
  auto made = builder.create<mlir::func::FuncOp>(location, name, builder.getFunctionType(types, types));
  made.setPrivate();
  builder.setInsertionPointToStart(made.addEntryBlock());
  builder.create<mlir::func::ReturnOp>(location, made.getArguments());
  return builder.getArrayAttr({builder.getStringAttr(name), builder.getI64IntegerAttr(-1)});
}

/// The functions of the parts that R runs again, in every kind of layers of the piece.
mlir::ArrayAttr Elaborator::recomputedOf(const Piece &piece) {
  SmallVector<mlir::Attribute> functions;
  for (StringRef name : piece.again)
    for (auto [number, part] : enumerate(model.parts))
      if (part.name == name && holds(piece, unsigned(number)))
        functions.push_back(builder.getStringAttr(part.function));
  return builder.getArrayAttr(functions);
}
