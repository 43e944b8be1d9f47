// Stages and parts: what the schedule cuts the model into, and where each piece lives.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/Cluster.h"
#include "frontend/Elaborator.h"

using namespace llvm;
using namespace pp;
using namespace pp::pipeline;
using mlir::failed;
using mlir::failure;
using mlir::FailureOr;
using mlir::LogicalResult;
using mlir::success;

std::string Elaborator::Family::str(int64_t index) const {
  if (name.empty())
    return "stage " + std::to_string(index);
  return "part `" + name.str() + (indexed ? "(" + std::to_string(index) + ")`" : "`");
}

//===-- Names ---------------------------------------------------------------------------------------------------===//

FailureOr<Value> Elaborator::predefined(StringRef name) {
  auto upTo = [](int64_t count) {
    Value::List items;
    for (int64_t i = 0; i < count; ++i)
      items.emplace_back(i);
    return Value(std::move(items));
  };
  if (name == "ranks")
    return upTo(sizes.ranks);
  if (name == "microbatches")
    return upTo(sizes.microbatches);
  if (name == "slices" && sizes.slices)
    return upTo(sizes.slices);
  if (name == "layers")
    return Value(model.layers);
  for (const Family &family : families)
    if (!family.name.empty() && family.name == name)
      return Value(PieceName{family.name, -1});
  if (name == "nodes")
    return nodesOf(sizes.ranks, sizes.ranksPerNode);
  return failure();
}

void Elaborator::addNames(SmallVectorImpl<StringRef> &names) {
  names.append({"ranks", "microbatches", "layers", "nodes"});
  for (const Family &family : families)
    if (!family.name.empty())
      names.push_back(family.name);
}

std::optional<FailureOr<Value>> Elaborator::pieceCall(const Expr *call, Scope &scope) {
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
  if (0 <= index && index < count)
    return success();
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
  return &pieces[family.first + index];
}

FailureOr<Elaborator::Piece *> Elaborator::findPiece(const Expr *expr, Scope &scope) {
  FailureOr<Value> value = evaluate(expr, scope);
  if (failed(value))
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
  SmallVector<int64_t> unique;
  for (const Value &item : ranks) {
    if (!item.asInt())
      return fail(place->at, "expected a rank or a list of ranks, got " + value->type() + " " + value->text());
    if (failed(checkExists(place->at, "rank", *item.asInt(), sizes.ranks)))
      return failure();
    if (is_contained(unique, *item.asInt()))
      return fail(place->at, "rank " + Twine(*item.asInt()) + " stands twice in the place " + value->text() +
                                 "; `unique(..)` keeps one of each");
    unique.push_back(*item.asInt());
  }
  // A shard of one rank is the whole.
  Layout layout = place->kind == Place::Host                         ? Layout::host
                  : place->kind == Place::Shard && unique.size() > 1 ? Layout::shard
                                                                     : Layout::full;
  return PlaceAttr::get(builder.getContext(), unique, layout);
}

LogicalResult Elaborator::placePiece(const CutStatement *statement, Piece &piece, Scope &scope) {
  Scope inner(&scope);
  size_t outer = loops.size();
  if (!statement->index.text.empty()) {
    inner.bind(statement->index, Value(piece.name.index));
    loops.push_back({statement->index.text, piece.name.index});
  }
  piece.location = location(statement->at);
  for (const Clause &clause : statement->clauses) {
    if (clause.layers) {
      FailureOr<int64_t> layers = evaluateInt(clause.layers, inner, "after `layers`");
      if (failed(layers))
        return failure();
      if (*layers < 0)
        return fail(clause.word.at, "a stage cannot hold " + Twine(*layers) + " layers");
      piece.layers = *layers;
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

//===-- Cuts ----------------------------------------------------------------------------------------------------===//

LogicalResult Elaborator::cut(const CutStatement *statement, Scope &scope) {
  bool cuts = statement->isStage || !statement->index.text.empty();
  for (const Family &family : families) {
    bool sameName = !statement->isStage && family.name == statement->name.text;
    if (sameName)
      return fail(statement->at, "part `" + family.name + "` is declared twice", family.at, "first declared here");
    bool byStages = statement->isStage || family.name.empty();
    if (cuts && family.indexed && byStages)
      return fail(statement->at, "the model is cut a second time", family.at, "first cut here");
  }
  return statement->isStage ? cutStages(statement, scope) : cutPart(statement, scope);
}

// Always of the family declared last.
Elaborator::Piece &Elaborator::addPiece(PieceName name, mlir::Location location) {
  Piece &piece = pieces.emplace_back(name, families.size() - 1, location);
  for (auto &[recomputed, at] : recomputes)
    piece.recomputed |= recomputed == name;
  piece.recomputed |= is_contained(recomputedParts, name.part);
  return piece;
}

/// Whether this part of the model lies inside the piece: one of its own, or one at an end that no piece declares.
bool Elaborator::holds(const Piece &piece, StringRef part) {
  const Family &family = families[piece.family];
  auto *found = find_if(model.parts, [&](const ModelOutline::Part &other) { return other.name == part; });
  unsigned number = found - model.parts.begin();
  if (is_contained(family.parts, number))
    return piece.layers > 0 || !family.indexed;
  if (found->perLayer || !family.indexed)
    return false;
  bool front = none_of(ArrayRef(model.parts).take_front(number), [](auto &before) { return before.perLayer; });
  return &piece - pieces.data() == (front ? family.first : family.first + family.count - 1);
}

LogicalResult Elaborator::cutStages(const CutStatement *statement, Scope &scope) {
  FailureOr<int64_t> count = evaluateInt(statement->count, scope, "after `of`");
  if (failed(count))
    return failure();
  if (*count < 1)
    return fail(statement->count->at, "the model is cut into at least 1 stage, got " + Twine(*count));
  bool given = any_of(statement->clauses, [](const Clause &clause) { return clause.layers; });
  if (!given && model.layers % *count)
    return fail(statement->at, Twine(model.layers) + " layers do not divide into " + Twine(*count) +
                                   " equal stages; `layers` says how many each stage holds");
  Family family{"", statement->at, /*indexed=*/true, unsigned(pieces.size()), unsigned(*count), {}};
  for (auto [i, part] : enumerate(model.parts))
    if (part.perLayer)
      family.parts.push_back(i);
  families.push_back(family);
  for (int64_t s = 0; s < *count; ++s) {
    Piece &piece = addPiece({"", s}, location(statement->at));
    piece.layers = model.layers / *count;
    if (failed(placePiece(statement, piece, scope)))
      return failure();
    copy_if(recomputedParts, std::back_inserter(piece.again), [&](StringRef part) { return holds(piece, part); });
  }
  return checkLayers(statement, family, given);
}

LogicalResult Elaborator::checkLayers(const CutStatement *statement, const Family &family, bool given) {
  int64_t layers = 0;
  for (Piece &piece : MutableArrayRef(pieces).slice(family.first, family.count)) {
    piece.firstLayer = layers;
    layers += piece.layers;
  }
  if (given && layers != model.layers)
    return fail(statement->at, "the stages hold " + Twine(layers) + " layers; the model has " + Twine(model.layers));
  return success();
}

LogicalResult Elaborator::cutPart(const CutStatement *statement, Scope &scope) {
  for (const Clause &clause : statement->clauses)
    if (clause.layers)
      return fail(clause.word.at, "`layers` belongs to stages; a part holds its own layer");
  bool indexed = !statement->index.text.empty();
  Family family{
      statement->name.text, statement->at, indexed, unsigned(pieces.size()), unsigned(indexed ? model.layers : 1), {}};
  if (failed(joinParts(statement, family)))
    return failure();
  families.push_back(family);
  for (int64_t i = 0; i < family.count; ++i) {
    Piece &piece = addPiece({family.name, indexed ? i : -1}, location(statement->at));
    piece.firstLayer = i;
    piece.layers = indexed;
    if (failed(placePiece(statement, piece, scope)))
      return failure();
    copy_if(recomputedParts, std::back_inserter(piece.again), [&](StringRef part) { return holds(piece, part); });
  }
  return success();
}

// The model parts that a declared part holds: the one of its name, or those it lists.
LogicalResult Elaborator::joinParts(const CutStatement *statement, Family &family) {
  SmallVector<StringRef> names;
  for (const ModelOutline::Part &part : model.parts)
    names.push_back(part.name);
  SmallVector<Name> joined(statement->joined);
  if (joined.empty())
    joined.push_back(statement->name);
  for (const Name &name : joined) {
    auto found = find(names, name.text);
    if (found == names.end())
      return fail(name.at, "the model has no part `" + name.text + "`" + didYouMean(name.text, names), model.at,
                  "model `" + model.name + "` is declared here");
    unsigned number = found - names.begin();
    if (model.parts[number].perLayer && !family.indexed)
      return fail(name.at, "part `" + name.text + "` is in every layer; declare it with an index, `part " +
                               statement->name.text + "(l)`");
    if (!model.parts[number].perLayer && family.indexed)
      return fail(name.at, "part `" + name.text + "` exists once; declare it without an index");
    if (!family.parts.empty() && family.parts.back() + 1 != number)
      return fail(name.at,
                  "`" + names[family.parts.back()] + "` and `" + name.text + "` do not follow each other in the model");
    for (const Family &other : families)
      if (!other.name.empty() && is_contained(other.parts, number))
        return fail(name.at, "part `" + name.text + "` of the model is declared twice", other.at,
                    "first declared here");
    family.parts.push_back(number);
  }
  return success();
}

//===-- The pieces as ops ---------------------------------------------------------------------------------------===//

LogicalResult Elaborator::checkCoverage(const Schedule &schedule) {
  if (none_of(families, [](const Family &family) { return family.indexed; }))
    return fail(schedule.name.at, "the schedule cuts the model into no stages or parts");
  for (auto [i, part] : enumerate(model.parts))
    if (part.perLayer && none_of(families, [&, i = i](const Family &family) { return is_contained(family.parts, i); }))
      return fail(schedule.name.at, "part `" + part.name + "` of the model belongs to no part of this schedule");
  for (auto &[name, at] : recomputes)
    if (none_of(pieces, [&, name = name](const Piece &piece) { return piece.name == name; }))
      return fail(at, "this schedule has no " + Value(name).text() + " to recompute", schedule.name.at,
                  "the schedule is declared here");
  return success();
}

SmallVector<unsigned> Elaborator::piecesInModelOrder() {
  SmallVector<unsigned> order(pieces.size());
  for (unsigned i = 0; i < order.size(); ++i)
    order[i] = i;
  auto key = [&](unsigned i) {
    const Piece &piece = pieces[i];
    const Family &family = families[piece.family];
    unsigned part = family.parts.front();
    bool back = any_of(ArrayRef(model.parts).take_front(part), [](auto &before) { return before.perLayer; });
    int64_t layer = family.indexed ? piece.firstLayer : back ? model.layers : -1;
    return std::make_tuple(layer, part, piece.name.index);
  };
  llvm::stable_sort(order, [&](unsigned a, unsigned b) { return key(a) < key(b); });
  return order;
}

void Elaborator::emitPieces() {
  mlir::MLIRContext *context = builder.getContext();
  builder.setInsertionPointToStart(program);
  auto entry = [&](unsigned part, int64_t layer) -> mlir::Attribute {
    return builder.getArrayAttr({builder.getStringAttr(model.parts[part].name), builder.getI64IntegerAttr(layer)});
  };
  // Parts outside the layers that no piece declares join the first or the last piece.
  SmallVector<mlir::Attribute> front, back;
  bool passedLayers = false;
  for (auto [i, part] : enumerate(model.parts)) {
    passedLayers |= part.perLayer;
    bool declared = any_of(families, [&, i = i](const Family &family) { return is_contained(family.parts, i); });
    if (!part.perLayer && !declared)
      (passedLayers ? back : front).push_back(entry(i, -1));
  }
  SmallVector<unsigned> order = piecesInModelOrder();
  for (unsigned number : order) {
    const Piece &piece = pieces[number];
    const Family &family = families[piece.family];
    SmallVector<mlir::Attribute> parts;
    if (number == order.front())
      parts = front;
    for (int64_t layer = piece.firstLayer; layer < piece.firstLayer + piece.layers; ++layer)
      for (unsigned part : family.parts)
        parts.push_back(entry(part, layer));
    for (unsigned part : family.parts)
      if (!family.indexed)
        parts.push_back(entry(part, -1));
    if (number == order.back())
      parts.append(back);
    auto coord = CoordAttr::get(context, builder.getStringAttr(piece.name.part), piece.name.index, -1, -1);
    mlir::ArrayAttr again;
    if (!piece.recomputed && !piece.again.empty())
      again = builder.getStrArrayAttr(piece.again);
    builder.create<PieceOp>(piece.location, coord.pieceName(), coord, builder.getArrayAttr(parts), piece.at,
                            piece.homes, piece.owner, again, mlir::ArrayAttr(), mlir::StringAttr());
  }
}
