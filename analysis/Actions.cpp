// Reads the actions of a schedule: what each unit and transfer waits for, and what it brings about.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Actions.h"
#include "analysis/Keys.h"
#include "analysis/Vocabulary.h"
#include "dialect/nn/Nn.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

Pieces::Pieces(ProgramOp program) : isForward(program.getForward()) {
  zero = program.getMeshAttr() && program.sumMembers() > 1 ? program.getMeshAttr().getZero() : 0;
  for (Operation &op : program.getBody().front()) {
    if (levelOf(&op)) // pieces stand before what there may be a million of
      break;
    auto piece = dyn_cast<PieceOp>(op);
    if (!piece)
      continue;
    numbers[{piece.getCoord().getPart(), piece.getCoord().getIndex()}] = ops.size();
    ops.push_back(piece);
    if (ArrayAttr weights = piece.getWeightsAttr())
      for (auto weight : weights.getAsRange<WeightAttr>())
        if (weight.getTied())
          tiedNames.insert(weight.getName());
  }
  auto isFrozen = [](PieceOp piece) { return bool(piece.getFrozenAttr()); };
  while ((isForward || llvm::any_of(ops, isFrozen)) && firstTrained < size() && !trains(firstTrained))
    ++firstTrained;
  readSkips(program);
}

/// The parts of the model that give or take values past the part after them, by name.
static llvm::StringMap<func::FuncOp> partsWithSkips(ModuleOp module) {
  llvm::StringMap<func::FuncOp> parts;
  bool found = false;
  for (auto part : module.getOps<func::FuncOp>()) {
    bool takes = part.getArgAttrsAttr() && llvm::any_of(llvm::seq(part.getNumArguments()), [&](unsigned i) {
                   return part.getArgAttr(i, nn::kFromAttr) != nullptr;
                 });
    found |= takes;
    if (takes || part->hasAttr(nn::kSkipsAttr))
      parts[part.getSymName()] = part;
  }
  return found ? parts : llvm::StringMap<func::FuncOp>();
}

// A value whose readers are all in the piece of its maker goes nowhere, and is not here.
void Pieces::readSkips(ProgramOp program) {
  llvm::StringMap<func::FuncOp> parts = partsWithSkips(program->getParentOfType<ModuleOp>());
  if (parts.empty())
    return;
  llvm::MapVector<StringAttr, int64_t> makers;
  DenseMap<StringAttr, SmallVector<int64_t, 2>> readers;
  for (int64_t number = 0; number < size(); ++number)
    for (Attribute entry : ops[number].getParts()) {
      auto pair = dyn_cast<ArrayAttr>(entry);
      auto name = pair && !pair.empty() ? dyn_cast<StringAttr>(pair[0]) : StringAttr();
      func::FuncOp part = name ? parts.lookup(name.getValue()) : func::FuncOp();
      for (unsigned i = 0; part && i < part.getNumArguments(); ++i)
        if (auto from = part.getArgAttrOfType<StringAttr>(i, nn::kFromAttr))
          if (auto *it = makers.find(from);
              it != makers.end() && it->second != number && !llvm::is_contained(readers[from], number))
            readers[from].push_back(number);
      if (auto made = part ? part->getAttrOfType<ArrayAttr>(nn::kSkipsAttr) : ArrayAttr())
        for (auto value : made.getAsRange<StringAttr>())
          makers.insert({value, number});
    }
  auto add = [&](StringAttr name, int64_t index, Role role, int64_t maker, ArrayRef<int64_t> readBy) {
    numbers[{name, index}] = size() + static_cast<int64_t>(skips.size());
    skips.push_back({CoordAttr::get(name.getContext(), name, index, -1, -1), role, maker, llvm::to_vector<2>(readBy)});
  };
  for (auto [name, maker] : makers)
    if (!readers[name].empty())
      add(name, -1, Role::act, maker, readers[name]);
  for (auto [name, maker] : makers)
    for (auto [k, reader] : llvm::enumerate(readers[name]))
      add(name, static_cast<int64_t>(k), Role::dact, reader, maker);
}

SmallVector<int64_t, 2> Pieces::skipsFrom(int64_t piece, Role role) const {
  SmallVector<int64_t, 2> found;
  for (auto [i, skip] : llvm::enumerate(skips))
    if (skip.role == role && skip.maker == piece)
      found.push_back(size() + static_cast<int64_t>(i));
  return found;
}

SmallVector<int64_t, 2> Pieces::skipsInto(int64_t piece, Role role) const {
  SmallVector<int64_t, 2> found;
  for (auto [i, skip] : llvm::enumerate(skips))
    if (skip.role == role && llvm::is_contained(skip.readers, piece))
      found.push_back(size() + static_cast<int64_t>(i));
  return found;
}

SmallVector<int64_t> Pieces::runs(int64_t piece) const {
  PieceOp op = ops[piece];
  SmallVector<int64_t> numbers;
  for (auto weight : op.getWeightsAttr().getAsRange<WeightAttr>())
    numbers.push_back(runOf(numbers.size(), tiedNames.contains(weight.getName()), weight.getFrozen()));
  return numbers;
}

int64_t Pieces::summedTensors(int64_t piece, int64_t shard) const {
  PieceOp op = ops[piece];
  SmallVector<Type> types;
  SmallVector<bool> counts;
  auto program = op->getParentOfType<ProgramOp>();
  for (auto weight : op.getWeightsAttr().getAsRange<WeightAttr>()) {
    types.push_back(weight.getType());
    counts.push_back(!weight.getTied() && !weight.getFrozen() && !isSummedApart(program, weight.getDeclared()));
  }
  if (shard < 0)
    return llvm::count(counts, true);
  PayloadCut cut = cutPayload(types, shards(piece).size(), runs(piece));
  return llvm::count_if(cut.shards[shard], [&](const ElementRange &range) { return counts[range.tensor]; });
}

bool Pieces::hasTerms(int64_t piece) const {
  PieceOp op = ops[piece];
  auto program = op->getParentOfType<ProgramOp>();
  auto isTerm = [&](WeightAttr weight) { return !weight.getFrozen() && !axesOfTerms(program, weight).empty(); };
  return op.getWeightsAttr() && llvm::any_of(op.getWeightsAttr().getAsRange<WeightAttr>(), isTerm);
}

bool pp::isSummedApart(ProgramOp program, nn::WeightAttr weight) {
  const bool cuts = program.getMeshAttr() && program.sumMembers() > 1 && program.getMeshAttr().getZero() > 0;
  return weight.getExperts() > 1 || (weight.getSteer() && cuts);
}

SmallVector<nn::Axis> pp::axesOfTerms(ProgramOp program, WeightAttr weight) {
  nn::WeightAttr declared = weight.getDeclared();
  if (declared.getExperts() > 1)
    return program.sizeOf(Axis::copies) > 1 ? SmallVector<nn::Axis>{nn::Axis::copies} : SmallVector<nn::Axis>();
  SmallVector<nn::Axis> axes;
  if (declared.getTerms())
    axes.push_back(nn::Axis::tensor);
  if (isSummedApart(program, declared))
    llvm::append_range(axes, program.sumAxes().getAxes());
  return axes;
}

bool Pieces::trains(int64_t piece) const {
  PieceOp op = ops[piece];
  return !isForward && op.getWeightsAttr() &&
         llvm::any_of(op.getWeightsAttr().getAsRange<WeightAttr>(),
                      [](WeightAttr weight) { return !weight.getFrozen(); });
}

int64_t Pieces::find(CoordAttr coord) const {
  auto it = numbers.find({coord.getPart(), coord.getIndex()});
  return it == numbers.end() ? -1 : it->second;
}

ArrayRef<int64_t> Pieces::homes(int64_t piece) const {
  PieceOp op = ops[piece];
  PlaceAttr place = op.getHomesAttr() ? op.getHomesAttr() : op.getAtAttr();
  return place ? place.getRanks() : ArrayRef<int64_t>();
}

bool Pieces::homesAreShards(int64_t piece) const {
  PieceOp op = ops[piece];
  PlaceAttr place = op.getHomesAttr() ? op.getHomesAttr() : op.getAtAttr();
  return place && place.getLayout() == Layout::shard;
}

ArrayRef<int64_t> Pieces::owners(int64_t piece) const {
  PieceOp op = ops[piece];
  PlaceAttr place = op.getOwnerAttr() ? op.getOwnerAttr() : op.getAtAttr();
  return place && place.getLayout() != Layout::shard ? place.getRanks() : ArrayRef<int64_t>();
}

ArrayRef<int64_t> Pieces::shards(int64_t piece) const {
  PieceOp op = ops[piece];
  PlaceAttr place = op.getOwnerAttr() ? op.getOwnerAttr() : op.getAtAttr();
  return place && place.getLayout() == Layout::shard ? place.getRanks() : ArrayRef<int64_t>();
}

int64_t Pieces::shardOf(int64_t piece, int64_t rank) const {
  return llvm::count_if(shards(piece), [&](int64_t other) { return other < rank; });
}

SmallVector<int64_t> Pieces::sharers(int64_t piece) const {
  SmallVector<int64_t> ranks(isReplicated(piece) ? owners(piece) : shards(piece));
  llvm::sort(ranks);
  return ranks;
}

bool Pieces::hasWeights(int64_t piece) const {
  PieceOp op = ops[piece];
  return op.getWeightsAttr() && !op.getWeightsAttr().empty();
}

bool Pieces::mayHaveWeights(int64_t piece) const {
  PieceOp op = ops[piece];
  return !op.getWeightsAttr() || !op.getWeightsAttr().empty();
}

int64_t Pieces::primary(int64_t piece) const {
  if (isForward)
    return -1;
  auto weightsOf = [&](int64_t of) {
    PieceOp op = ops[of];
    return op.getWeightsAttr() ? op.getWeightsAttr().getValue() : ArrayRef<Attribute>();
  };
  auto isSame = [&](Attribute a, Attribute b, int64_t other) {
    return !cast<WeightAttr>(a).getFrozen() && cast<WeightAttr>(a).getName() == cast<WeightAttr>(b).getName() &&
           op(piece).getVocabularyAttr() == op(other).getVocabularyAttr();
  };
  for (Attribute mine : weightsOf(piece))
    for (int64_t other = 0; cast<WeightAttr>(mine).getTied() && other < piece; ++other)
      for (Attribute theirs : weightsOf(other))
        if (!cast<WeightAttr>(theirs).getTied() && isSame(theirs, mine, other))
          return other;
  return -1;
}

int64_t Pieces::tieNumber(int64_t piece) const {
  int64_t owner = primary(piece), number = 0;
  for (int64_t other = 0; other < piece; ++other)
    number += primary(other) == owner;
  return number;
}

std::string pp::withLoops(Operation *op) {
  std::string values = loopValues(op->getLoc());
  return values.empty() ? "" : ", with " + values;
}

SmallVector<int64_t> pp::sliceStarts(ProgramOp program) {
  auto attr = program.getTrain().getAs<IntegerAttr>("sequence");
  int64_t sequence = attr ? attr.getInt() : 0, slices = std::max<int64_t>(program.getSlices(), 1);
  auto given = program.getSliceLengthsAttr();
  SmallVector<int64_t> starts = {0};
  for (int64_t k = 0; k < slices; ++k) {
    int64_t equal = sequence / slices + (k < sequence % slices);
    starts.push_back(starts.back() + (given && k < given.size() ? given[k] : equal));
  }
  return starts;
}

int64_t pp::updateOf(ProgramOp program, int64_t microbatch) {
  return microbatch < 0 ? 0 : microbatch / (static_cast<int64_t>(program.getMicrobatches()) / program.countUpdates());
}

bool pp::hasVersions(ProgramOp program) {
  bool found = program.countUpdates() > 1;
  program.walk([&](UnitOp unit) {
    found |= unit.getVersion().has_value();
    return found ? WalkResult::interrupt() : WalkResult::advance();
  });
  return found;
}

bool pp::readsNorm(ProgramOp program) {
  if (auto precision = program.getTrain().getAs<StringAttr>("precision"); precision && precision.getValue() == "f16")
    return true;
  auto optimizer = program.getTrain().getAs<DictionaryAttr>("optimizer");
  Attribute clip = optimizer ? optimizer.get("clip") : Attribute();
  if (auto number = dyn_cast_or_null<FloatAttr>(clip))
    return number.getValueAsDouble() > 0;
  auto integer = dyn_cast_or_null<IntegerAttr>(clip);
  return integer && integer.getInt() > 0;
}

bool pp::updatesTogether(ProgramOp program, const Pieces &pieces) {
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    if (pieces.primary(piece) >= 0)
      return true;
  return readsNorm(program);
}

namespace {
/// The other actions on which an action's conditions depend.
struct Others {
  Others(ProgramOp program, const Pieces &pieces)
      : keys(program, pieces.all()), updates(program.countUpdates()),
        together(updates > 1 && updatesTogether(program, pieces)) {
    program.walk([&](UnitOp unit) {
      if (unit.getUnit().getPhase() == Phase::R)
        remade.insert(unit.getUnit().getCoord());
    });
    program.walk([&](TransferOp op) {
      if (op.getThing().getRole() == Role::stash && op.getTo().getLayout() == Layout::full)
        for (int64_t rank : op.getTo().getRanks())
          brought.insert({op.getThing().getCoord(), rank});
    });
  }

  KeysBefore keys;
  int64_t updates;
  bool together;                                   ///< an update waits for all pieces
  DenseSet<CoordAttr> remade;                      ///< the units with an R
  DenseSet<std::pair<Attribute, int64_t>> brought; ///< the stashes that a move brings to a rank
};
} // namespace

static void readUnit(UnitOp op, const Pieces &pieces, const Others &others, Action &action) {
  CoordAttr coord = op.getUnit().getCoord();
  Phase phase = op.getUnit().getPhase();
  int64_t piece = pieces.find(coord), mb = coord.getMicrobatch(), slice = coord.getSlice();
  auto need = [&](Condition::Kind kind, int64_t of, int64_t k) { action.needs.push_back({kind, of, mb, k, -1}); };
  if (phase == Phase::F) {
    for (int64_t before : piecesBefore(pieces, piece))
      need(Condition::Forward, before, slice);
    for (int64_t k = 0; others.keys.reads(piece) && k < slice; ++k)
      need(Condition::Forward, piece - 1, k);
    if (slice > 0 && others.keys.chains(piece))
      need(Condition::Forward, piece, slice - 1);
  } else if (phase != Phase::U) {
    need(phase == Phase::W ? Condition::Backward : Condition::Forward, piece, slice);
  }
  if (phase == Phase::B || phase == Phase::I) {
    if (others.remade.contains(coord))
      need(Condition::Again, piece, slice);
    for (int64_t after : piecesAfter(pieces, piece))
      need(Condition::Backward, after, slice);
    for (int64_t shard : groupOf(pieces, piece)) // whose statistics it reads
      if (shard != piece)
        need(Condition::Forward, shard, slice);
    int64_t slices = op->getParentOfType<ProgramOp>().getSlices();
    for (int64_t k = slice + 1; others.keys.makes(piece) && k < slices; ++k)
      need(Condition::Backward, piece + 1, k);
    if (slice >= 0 && slice + 1 < slices && others.keys.chains(piece))
      need(Condition::Backward, piece, slice + 1);
  }
  if (phase != Phase::W && phase != Phase::U && pieces.mayHaveWeights(piece))
    for (int64_t rank : op.getRanks())
      action.needs.push_back({Condition::Weight, piece, -1, -1, rank});
  auto program = others.updates > 1 ? op->getParentOfType<ProgramOp>() : ProgramOp();
  if (program && pieces.mayTrain(piece)) {
    int64_t version = versionOf(program, op);
    if (version > 0 && phase != Phase::W && phase != Phase::U)
      action.needs.push_back({Condition::Gradient, others.together ? -1 : piece, version - 1, -1, -1});
    if (phase == Phase::B || phase == Phase::W)
      action.adds.push_back({piece, updateOf(program, mb)});
  }
  if (phase == Phase::F)
    action.makes.push_back({Condition::Forward, piece, mb, slice, -1});
  for (int64_t rank : op.getRanks())
    if (phase == Phase::F && !others.brought.empty() && others.brought.contains({coord, rank}))
      action.makes.push_back({Condition::Stash, piece, mb, slice, rank});
  if (phase == Phase::R)
    action.makes.push_back({Condition::Again, piece, mb, slice, -1});
  if (phase == Phase::B || phase == Phase::I)
    action.makes.push_back({Condition::Backward, piece, mb, slice, -1});
  action.anchors.append(op.getRanks().begin(), op.getRanks().end());
}

/// Keys attended ahead of their unit.
static void readAhead(AttendOp op, const Pieces &pieces, Action &action) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = pieces.find(coord), mb = coord.getMicrobatch(), slice = coord.getSlice();
  bool isForward = op.getUnit().getPhase() == Phase::F;
  action.needs.push_back({Condition::Forward, isForward ? piece - 1 : piece, mb, slice, -1});
  if (!isForward)
    for (int64_t after : piecesAfter(pieces, piece))
      action.needs.push_back({Condition::Backward, after, mb, slice, -1});
  for (int64_t k : isForward ? op.getSlices() : ArrayRef<int64_t>())
    action.needs.push_back({Condition::Forward, piece - 1, mb, k, -1});
}

static void readTransfer(TransferOp op, const Pieces &pieces, const Others &others, Action &action) {
  CoordAttr coord = op.getThing().getCoord();
  int64_t piece = pieces.find(coord);
  switch (op.getThing().getRole()) {
  case Role::weight:
    if (op.getFrom())
      for (int64_t rank : op.getFromAttr().getRanks())
        action.needs.push_back(
            {op.getFrom()->getLayout() == Layout::shard ? Condition::Shard : Condition::Weight, piece, -1, -1, rank});
    for (int64_t rank : op.getTo().getRanks())
      action.makes.push_back({Condition::Weight, piece, -1, -1, rank});
    break;
  case Role::kv:
    if (!others.keys.hasNoKeys(piece))
      action.needs.push_back(
          {Condition::Forward, piece - others.keys.reads(piece), coord.getMicrobatch(), coord.getSlice(), -1});
    break;
  case Role::stash:
    action.needs.push_back({Condition::Forward, piece, coord.getMicrobatch(), coord.getSlice(), -1});
    if (int64_t from = op.getFrom()->getRanks().front();
        op.getFrom()->getLayout() == Layout::full && others.brought.contains({coord, from}))
      action.needs.push_back({Condition::Stash, piece, coord.getMicrobatch(), coord.getSlice(), from});
    if (op.getTo().getLayout() == Layout::full)
      action.makes.push_back(
          {Condition::Stash, piece, coord.getMicrobatch(), coord.getSlice(), op.getTo().getRanks().front()});
    break;
  case Role::act:
    action.needs.push_back({Condition::Forward, piece, coord.getMicrobatch(), coord.getSlice(), -1});
    break;
  case Role::dact:
    action.needs.push_back({Condition::Backward, piece, coord.getMicrobatch(), coord.getSlice(), -1});
    break;
  default: // a gradient share may be empty; stash and others are made on the spot
    break;
  }
  action.anchors.append(op.getAnchors().begin(), op.getAnchors().end());
}

std::vector<Action> pp::readActions(ProgramOp program, const Pieces &pieces) {
  std::vector<Action> actions;
  Others others(program, pieces);
  Block &body = program.getBody().front();
  actions.reserve(std::distance(body.begin(), body.end()));
  for (Operation &op : body) {
    if (!isa<UnitOp, TransferOp, TogetherOp, AttendOp>(op))
      continue;
    Action &action = actions.emplace_back(Action{&op, {}, {}, {}, {}});
    op.walk([&](Operation *inner) {
      if (auto unit = dyn_cast<UnitOp>(inner))
        readUnit(unit, pieces, others, action);
      if (auto transfer = dyn_cast<TransferOp>(inner))
        readTransfer(transfer, pieces, others, action);
      if (auto attend = dyn_cast<AttendOp>(inner))
        action.anchors.push_back(attend.getRank());
    });
    if (auto attend = dyn_cast<AttendOp>(op))
      readAhead(attend, pieces, action);
    llvm::sort(action.anchors);
    action.anchors.erase(llvm::unique(action.anchors), action.anchors.end());
  }
  return actions;
}
