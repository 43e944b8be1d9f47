// Verifiers of programs, pieces and actions: a program has one level, and its ops name what it has.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/pipeline/Ranges.h"
#include "mlir/IR/Builders.h"
#include <cmath>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

//===-- Levels --------------------------------------------------------------------------------------------------===//

std::optional<Level> pp::pipeline::levelOf(Operation *op) {
  if (op->hasTrait<OfActions>())
    return Level::actions;
  if (op->hasTrait<OfStep>())
    return Level::step;
  if (op->hasTrait<OfRanks>())
    return Level::ranks;
  return std::nullopt;
}

StringRef pp::pipeline::describe(Level level) {
  switch (level) {
  case Level::actions:
    return "actions";
  case Level::step:
    return "the step";
  case Level::ranks:
    return "programs of ranks";
  }
  llvm_unreachable("a level");
}

static ProgramOp findProgram(ModuleOp module, bool forward, bool redo = false) {
  for (auto program : module.getOps<ProgramOp>())
    if (program.getForward() == forward && program.getRedo() == redo)
      return program;
  return {};
}

ProgramOp ProgramOp::trainingOf(ModuleOp module) { return findProgram(module, /*forward=*/false); }
ProgramOp ProgramOp::forwardOf(ModuleOp module) { return findProgram(module, /*forward=*/true); }
ProgramOp ProgramOp::redoOf(ModuleOp module) { return findProgram(module, /*forward=*/false, /*redo=*/true); }

//===-- Builders ------------------------------------------------------------------------------------------------===//

void ProgramOp::build(OpBuilder &builder, OperationState &state, StringRef name, int64_t ranks, int64_t microbatches,
                      int64_t slices, DictionaryAttr train) {
  auto &properties = state.getOrAddProperties<Properties>();
  properties.sym_name = builder.getStringAttr(name);
  properties.ranks = builder.getI64IntegerAttr(ranks);
  properties.microbatches = builder.getI64IntegerAttr(microbatches);
  properties.slices = builder.getI64IntegerAttr(slices);
  properties.train = train;
  state.addRegion();
}

void PieceOp::build(OpBuilder &builder, OperationState &state, CoordAttr coord, ArrayAttr parts, PlaceAttr at,
                    PlaceAttr homes, PlaceAttr owner) {
  auto &properties = state.getOrAddProperties<Properties>();
  properties.sym_name = builder.getStringAttr(coord.pieceName());
  properties.coord = coord;
  properties.parts = parts;
  properties.at = at;
  properties.homes = homes;
  properties.owner = owner;
}

void UnitOp::build(OpBuilder &builder, OperationState &state, UnitIdAttr unit, ArrayRef<int64_t> ranks,
                   IntegerAttr version) {
  auto &properties = state.getOrAddProperties<Properties>();
  properties.unit = unit;
  properties.ranks = builder.getDenseI64ArrayAttr(ranks);
  properties.version = version;
}

void RankOp::build(OpBuilder &builder, OperationState &state, int64_t rank) {
  state.getOrAddProperties<Properties>().rank = builder.getI64IntegerAttr(rank);
  state.addRegion();
}

//===-- Ranges --------------------------------------------------------------------------------------------------===//

/// `, with r = 1, i = 3`, or nothing.
static std::string withLoopsOf(Operation *op) {
  std::string values = loopValues(op->getLoc());
  return values.empty() ? "" : ", with " + values;
}

/// `4 ranks, 0 to 3`, `1 microbatch, number 0`, or `no slices`.
static std::string countOf(StringRef what, int64_t count) {
  std::string several = (what + (what.ends_with("h") ? "es" : "s")).str();
  if (count == 0)
    return "no " + several;
  return std::to_string(count) + " " +
         (count == 1 ? what.str() + ", number 0" : several + ", 0 to " + std::to_string(count - 1));
}

LogicalResult pp::pipeline::verifyNumber(Operation *op, StringRef what, int64_t number, int64_t count) {
  if (number >= 0 && number < count)
    return success();
  return op->emitError() << what << " " << number << " does not exist; this schedule has " << countOf(what, count)
                         << withLoopsOf(op);
}

LogicalResult pp::pipeline::verifyRanks(Operation *op, ProgramOp program, ArrayRef<int64_t> ranks) {
  for (int64_t rank : ranks)
    if (failed(verifyNumber(op, "rank", rank, static_cast<int64_t>(program.getRanks()))))
      return failure();
  return success();
}

/// Checks a place of the program; null is valid.
static LogicalResult verifyPlace(Operation *op, ProgramOp program, PlaceAttr place, StringRef what) {
  if (!place)
    return success();
  if (place.getRanks().empty())
    return op->emitError() << "expected ranks in `" << what << "`, got none" << withLoopsOf(op);
  return verifyRanks(op, program, place.getRanks());
}

LogicalResult pp::pipeline::verifyShare(Operation *op, FloatAttr share) {
  if (!share || (share.getValueAsDouble() >= 0 && share.getValueAsDouble() <= 1))
    return success();
  return op->emitError() << "does the share " << share << " of its unit; expected 0 to 1" << withLoopsOf(op);
}

LogicalResult pp::pipeline::verifyUnit(Operation *op, ProgramOp program, UnitIdAttr unit) {
  CoordAttr coord = unit.getCoord();
  if (unit.getPhase() == Phase::U && coord.getMicrobatch() < 0)
    return success();
  int64_t slices = static_cast<int64_t>(program.getSlices());
  if (failed(verifyNumber(op, "microbatch", coord.getMicrobatch(), static_cast<int64_t>(program.getMicrobatches()))))
    return failure();
  if (unit.getPhase() == Phase::U || (coord.getSlice() < 0 && slices == 0))
    return success();
  if (coord.getSlice() < 0)
    return op->emitError() << "`" << unit.str() << "` names no slice; this schedule has " << countOf("slice", slices)
                           << withLoopsOf(op);
  return verifyNumber(op, "slice", coord.getSlice(), slices);
}

static bool containsOnly(DictionaryAttr entries, llvm::function_ref<bool(Attribute)> isRight) {
  return !entries || llvm::all_of(entries, [&](NamedAttribute entry) { return isRight(entry.getValue()); });
}

//===-- Programs ------------------------------------------------------------------------------------------------===//

/// Ranks, microbatches, slices, and microbatches of slices of pieces: passes have tables of them.
static constexpr int64_t kMost = 20'000'000;

/// A number, or those of a list; empty if it is neither.
static SmallVector<double> numbersOf(Attribute attr) {
  if (auto number = dyn_cast<IntegerAttr>(attr); number && number.getType().isSignlessInteger(64))
    return {static_cast<double>(number.getInt())};
  if (auto number = dyn_cast<FloatAttr>(attr))
    return {number.getValueAsDouble()};
  if (auto list = dyn_cast<DenseI64ArrayAttr>(attr))
    return SmallVector<double>(list.asArrayRef());
  auto list = dyn_cast<DenseF64ArrayAttr>(attr);
  return list ? SmallVector<double>(list.asArrayRef()) : SmallVector<double>();
}

static LogicalResult verifyCosts(ProgramOp program) {
  if (DictionaryAttr costs = program.getCostsAttr())
    for (NamedAttribute entry : costs) {
      auto number = dyn_cast<FloatAttr>(entry.getValue());
      if (!number || !number.getValue().isFinite() || number.getValue().isNegative())
        return program.emitOpError() << "has the cost " << entry.getValue() << " of `" << entry.getName().getValue()
                                     << "`; expected a floating-point number of at least 0";
    }
  return success();
}

/// The range that a figure of a cluster must have, and whether the number is in it.
static std::pair<StringRef, bool> judgeFigure(StringRef option, StringRef label, double number) {
  if (option == "efficiency")
    return {"a share above 0, up to 1", number > 0 && number <= 1};
  if (label == "latency" || label == "launch")
    return {"a finite number of seconds of at least 0", number >= 0 && std::isfinite(number)};
  if (label == "nics" || label == "ranks_per_node" || label == "multiprocessors")
    return {"an int from 1 to 2147483647", number >= 1 && number <= INT32_MAX && number == std::floor(number)};
  if (label == "memory")
    return {"a number of bytes from 1 to 9e18", number >= 1 && number <= 9e18};
  return {"a finite number above 0", number > 0 && std::isfinite(number)};
}

/// A list has an entry for each device of a node, or of several nodes.
static LogicalResult verifyLength(ProgramOp program, StringRef name, Attribute figure, size_t length) {
  auto node = dyn_cast_or_null<IntegerAttr>(program.getClusterAttr().get("ranks_per_node"));
  if (!isa<DenseI64ArrayAttr, DenseF64ArrayAttr>(figure) || !node || node.getInt() < 1 || length % node.getInt() == 0)
    return success();
  return program.emitOpError() << "has " << length << " numbers in the cluster's `" << name << "`; expected "
                               << node.getInt() << ", one for each device of a node, or a multiple of that";
}

/// Checks the figures that frontend/Cluster.cpp lets a cluster have; readers that need more figures ask for them.
static LogicalResult verifyCluster(ProgramOp program) {
  auto figure = [&](StringRef option, NamedAttribute entry) -> LogicalResult {
    StringRef label = entry.getName().getValue();
    Attribute its = entry.getValue();
    SmallVector<double> numbers = numbersOf(its);
    bool isOfDevice = option.empty() ? label == "memory" : option != "inside" && option != "between";
    bool isInt = isa<IntegerAttr, DenseI64ArrayAttr>(its), isList = isa<DenseI64ArrayAttr, DenseF64ArrayAttr>(its);
    bool areRight = !numbers.empty() && (label == "memory" || isInt == (label == "ranks_per_node"));
    for (double number : numbers)
      areRight &= judgeFigure(option, label, number).second;
    std::string name = (option + (option.empty() ? "" : ".") + label).str();
    if (areRight && (isOfDevice || !isList))
      return verifyLength(program, name, its, numbers.size());
    return program.emitOpError() << "has the cluster's `" << name << "` " << its << "; expected "
                                 << judgeFigure(option, label, 0).first << (isOfDevice ? ", or a list of such" : "");
  };
  DictionaryAttr cluster = program.getClusterAttr();
  for (NamedAttribute entry : cluster ? cluster : DictionaryAttr::get(program.getContext())) {
    StringRef name = entry.getName().getValue();
    bool isList = llvm::is_contained({"device", "efficiency", "inside", "between", "host"}, name);
    auto figures = dyn_cast<DictionaryAttr>(entry.getValue());
    if (name == "name" ? !isa<StringAttr>(entry.getValue())
        : isList       ? !figures
                       : name != "memory" && name != "ranks_per_node")
      return program.emitOpError() << "has the cluster's `" << name << "` " << entry.getValue()
                                   << "; expected a `name`, `ranks_per_node`, `memory`, and numbers in `device`, "
                                      "`efficiency`, `inside`, `between` and `host`";
    if (!isList && name != "name" && failed(figure("", entry)))
      return failure();
    for (NamedAttribute inner : isList ? figures : DictionaryAttr::get(program.getContext()))
      if (failed(figure(name, inner)))
        return failure();
  }
  return success();
}

LogicalResult ProgramOp::verify() {
  int64_t ranks = getRanks(), microbatches = getMicrobatches(), slices = getSlices(), updates = countUpdates();
  for (auto [what, count, least] :
       {std::tuple("ranks", ranks, 1), std::tuple("microbatches", microbatches, 1), std::tuple("slices", slices, 0)})
    if (count < least)
      return emitOpError() << "has " << count << " " << what << "; expected at least " << least;
  for (auto [what, count] : {std::pair("ranks", ranks), {"microbatches", microbatches}, {"slices", slices}})
    if (count > kMost)
      return emitOpError() << "has " << count << " " << what << "; expected at most " << kMost;
  if (updates < 1 || microbatches % updates != 0)
    return emitOpError() << "has " << updates << " updates; expected a divisor of its " << microbatches
                         << " microbatches";
  if (auto lengths = getSliceLengths(); lengths && static_cast<int64_t>(lengths->size()) != slices)
    return emitOpError() << "has " << lengths->size() << " slice lengths for its " << slices << " slices";
  if (auto target = getTarget(); target && *target != "cpu" && *target != "cuda")
    return emitOpError() << "has the target `" << *target << "`; expected `cpu` or `cuda`";
  if (MeshAttr mesh = getMeshAttr(); mesh && mesh.sizeOf(Axis::pipeline) != ranks)
    return emitOpError() << "has " << ranks << " ranks, and its mesh " << mesh.sizeOf(Axis::pipeline);
  if (failed(verifyCosts(*this)) || failed(verifyCluster(*this)))
    return failure();
  if (!containsOnly(getProofAttr(), [](Attribute attr) {
        auto facts = dyn_cast<DictionaryAttr>(attr);
        return facts && containsOnly(facts, llvm::IsaPred<IntegerAttr, StringAttr>);
      }))
    return emitOpError("expected a dictionary of numbers and words for each entry of `proof`");
  return success();
}

namespace {
/// The pieces of a program, by their coordinates and by their symbols.
struct KnownPieces {
  llvm::DenseMap<std::pair<Attribute, int64_t>, PieceOp> byCoord;
  llvm::DenseSet<Attribute> symbols;
};
} // namespace

/// The coordinates that an op names of a piece, and the attribute that names them; null if there is none.
static std::pair<CoordAttr, Attribute> ownerOf(Operation *op) {
  if (auto unit = dyn_cast<UnitOp>(op))
    return {unit.getUnit().getCoord(), unit.getUnit()};
  if (auto attend = dyn_cast<AttendOp>(op))
    return {attend.getUnit().getCoord(), attend.getUnit()};
  if (auto transfer = dyn_cast<TransferOp>(op))
    return {transfer.getThing().getCoord(), transfer.getThing()};
  if (auto task = dyn_cast<TaskOp>(op))
    return {task.getUnit().getCoord(), task.getUnit()};
  if (auto launch = dyn_cast<LaunchOp>(op))
    return {launch.getUnit().getCoord(), launch.getUnit()};
  if (auto input = dyn_cast<InputOp>(op); input && input.getThing().getRole() != Role::data)
    return {input.getThing().getCoord(), input.getThing()};
  if (auto output = dyn_cast<OutputOp>(op); output && output.getThing().getRole() == Role::grad)
    return {output.getThing().getCoord(), output.getThing()};
  return {};
}

static LogicalResult verifyPieces(Operation *op, const KnownPieces &pieces) {
  for (Region &region : op->getRegions())
    for (Operation &inner : region.front())
      if (failed(verifyPieces(&inner, pieces)))
        return failure();
  if (auto slot = dyn_cast<SlotOp>(op); slot && slot.getBinding() && slot.getBinding()->getPiece() &&
                                        !pieces.symbols.contains(slot.getBinding()->getPiece().getAttr()))
    return slot.emitOpError() << "is bound to " << slot.getBinding()->getPiece()
                              << ", which is no piece of its program";
  auto [coord, name] = ownerOf(op);
  if (!coord || pieces.byCoord.contains({coord.getPart(), coord.getIndex()}))
    return success();
  auto unit = dyn_cast<UnitIdAttr>(name);
  return op->emitError() << "`" << (unit ? unit.str() : cast<ThingAttr>(name).str())
                         << "` names a piece that this schedule does not have" << withLoopsOf(op);
}

/// An error unless all shards of a part are there, next to each other and in order.
static LogicalResult verifyShards(PieceOp piece) {
  int64_t index = piece.getCoord().getIndex(), shards = piece.getVocabularyAttr().getShards();
  auto isShard = [&](Operation *op, int64_t number) {
    auto other = dyn_cast_or_null<PieceOp>(op);
    return other && other.getVocabularyAttr() && other.getVocabularyAttr().getShards() == shards &&
           other.getCoord().getPart() == piece.getCoord().getPart() && other.getCoord().getIndex() == number;
  };
  bool isRight = index >= 0 && index < shards && (index == 0 || isShard(piece->getPrevNode(), index - 1)) &&
                 (index + 1 == shards || isShard(piece->getNextNode(), index + 1));
  return isRight ? success()
                 : piece.emitOpError() << "is shard " << index << " of " << shards
                                       << " of its part; expected all of them next to each other, from 0 on";
}

LogicalResult ProgramOp::verifyRegions() {
  KnownPieces pieces;
  llvm::DenseMap<int64_t, RankOp> ranks;
  Operation *first = nullptr;
  for (Operation &op : getBody().front()) {
    if (auto piece = dyn_cast<PieceOp>(op)) {
      if (first) {
        auto error = piece.emitOpError("stands behind what names pieces; expected all pieces before it");
        error.attachNote(first->getLoc()) << "`" << first->getName() << "` stands here";
        return error;
      }
      auto [it, isNew] = pieces.byCoord.try_emplace({piece.getCoord().getPart(), piece.getCoord().getIndex()}, piece);
      if (!isNew) {
        auto error = piece.emitOpError() << "is declared twice";
        error.attachNote(it->second.getLoc()) << "first here";
        return error;
      }
      pieces.symbols.insert(piece.getSymNameAttr());
      if (piece.getVocabularyAttr() && failed(verifyShards(piece)))
        return failure();
      continue;
    }
    std::optional<Level> level = levelOf(&op);
    if (!level) {
      if (!isa<LimitOp>(op))
        return op.emitError() << "`" << op.getName() << "` does not belong in a program";
      continue;
    }
    first = first ? first : &op;
    if (*level != *levelOf(first)) {
      auto error = op.emitError() << "`" << op.getName() << "` belongs to " << describe(*level)
                                  << "; expected ops of one level in `@" << getSymName() << "`";
      error.attachNote(first->getLoc()) << "`" << first->getName() << "` belongs to " << describe(*levelOf(first));
      return error;
    }
    if (failed(verifyPieces(&op, pieces)))
      return failure();
    if (auto rank = dyn_cast<RankOp>(op))
      if (auto [it, isNew] = ranks.try_emplace(rank.getRank(), rank); !isNew) {
        auto error = rank.emitOpError() << "is a second program of rank " << rank.getRank();
        error.attachNote(it->second.getLoc()) << "the first is here";
        return error;
      }
  }
  int64_t each = static_cast<int64_t>(getMicrobatches()) * std::max<int64_t>(getSlices(), 1); // below kMost squared
  if (auto count = static_cast<int64_t>(pieces.byCoord.size()); count > 0 && each > kMost / count)
    return emitOpError() << "has " << count << " pieces, " << getMicrobatches() << " microbatches and " << getSlices()
                         << " slices; expected at most " << kMost << " slices of microbatches of pieces";
  return success();
}

LogicalResult PieceOp::verify() {
  auto program = cast<ProgramOp>((*this)->getParentOp());
  CoordAttr coord = getCoord();
  if (coord.getMicrobatch() >= 0 || coord.getSlice() >= 0)
    return emitOpError("has a microbatch or a slice; expected the coordinates of a piece alone");
  if (coord.isStage() && coord.getIndex() < 0)
    return emitOpError() << "is stage " << coord.getIndex() << "; stages count from 0";
  for (Attribute entry : getParts()) {
    auto pair = dyn_cast<ArrayAttr>(entry);
    if (!pair || pair.size() != 2 || !isa<StringAttr>(pair[0]) || !isa<IntegerAttr>(pair[1]))
      return emitOpError() << "expected [part, layer] in its parts, got " << entry;
  }
  return success(succeeded(verifyPlace(*this, program, getAtAttr(), "at")) &&
                 succeeded(verifyPlace(*this, program, getHomesAttr(), "homes")) &&
                 succeeded(verifyPlace(*this, program, getOwnerAttr(), "owner")));
}

//===-- Actions -------------------------------------------------------------------------------------------------===//

LogicalResult UnitOp::verify() {
  auto program = (*this)->getParentOfType<ProgramOp>();
  if (getRanks().empty())
    return emitError() << "`" << getUnit().str() << "` runs on no rank" << withLoopsOf(*this);
  if (failed(verifyRanks(*this, program, getRanks())) || failed(verifyUnit(*this, program, getUnit())))
    return failure();
  int64_t update = program.countUpdates() - 1;
  if (auto version = getVersion(); version && static_cast<int64_t>(*version) > update)
    return emitError() << "version " << static_cast<int64_t>(*version)
                       << " does not exist; the last one that a unit may "
                       << "read is " << update << withLoopsOf(*this);
  return success();
}

LogicalResult TransferOp::verify() {
  auto program = (*this)->getParentOfType<ProgramOp>();
  CoordAttr coord = getThing().getCoord();
  if (coord.getMicrobatch() >= 0 &&
      failed(verifyNumber(*this, "microbatch", coord.getMicrobatch(), static_cast<int64_t>(program.getMicrobatches()))))
    return failure();
  if (coord.getSlice() >= 0 &&
      failed(verifyNumber(*this, "slice", coord.getSlice(), static_cast<int64_t>(program.getSlices()))))
    return failure();
  if (getThing().getRole() == Role::stash && !getFrom())
    return emitError() << "`" << getThing().str() << "` moves from nowhere; a stash moves from one place to another"
                       << withLoopsOf(*this);
  return success(succeeded(verifyPlace(*this, program, getFromAttr(), "from")) &&
                 succeeded(verifyPlace(*this, program, getToAttr(), "to")) &&
                 succeeded(verifyRanks(*this, program, getAnchors())));
}

LogicalResult AttendOp::verify() {
  auto program = (*this)->getParentOfType<ProgramOp>();
  if (getSlices().empty())
    return emitError() << "`" << getUnit().str() << "` gets no slices attended here" << withLoopsOf(*this);
  if (failed(verifyUnit(*this, program, getUnit())) ||
      failed(verifyRanks(*this, program, ArrayRef(static_cast<int64_t>(getRank())))))
    return failure();
  for (int64_t slice : getSlices())
    if (failed(verifyNumber(*this, "slice", slice, static_cast<int64_t>(program.getSlices()))))
      return failure();
  return success();
}

LogicalResult LimitOp::verify() {
  if (static_cast<int64_t>(getCount()) < 0)
    return emitError() << "a limit of " << static_cast<int64_t>(getCount()) << " values; expected 0 or more"
                       << withLoopsOf(*this);
  return verifyRanks(*this, cast<ProgramOp>((*this)->getParentOp()), getRanks());
}
