// Derives the task bodies of all pieces from the model's parts, one class of bodies for pieces with the same parts.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: func @pre(%x, %g) .. func @post(..)                  After: the same, and
//         piece @s0 parts [["embed", -1], ["pre", 0], ..]             func @s0.F, @s0.B, @s0.B.first, @s0.U, ..
//         piece @s1 parts [["pre", 1], ..]                            func @s1.F, ..
//         piece @s2 parts [["pre", 2], ..]                            piece @s2 .. bodies "s1" {weights = [..]}
#include "passes/derive/DeriveTasks.h"
#include "analysis/Actions.h"
#include "analysis/Keys.h"
#include "analysis/Optimizer.h"
#include "analysis/Vocabulary.h"
#include "dialect/pipeline/Clauses.h"
#include "passes/Passes.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"

namespace pp {
#define GEN_PASS_DEF_DERIVETASKS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {
/// The pieces of one program, their weights, and who shares what with whom.
class PieceTable {
public:
  PieceTable(ModuleOp module, ProgramOp program) : module(module), program(program) {}
  LogicalResult read();
  LogicalResult derive();

private:
  struct Entry {
    PieceOp op;
    PieceModel model;
    std::string key;                   ///< equal for pieces that share their bodies
    bool keeps = false, saves = false; ///< of rank programs: whether its bodies have a group `kept`, or `stash`
  };
  LogicalResult readPiece(PieceOp op, unsigned number);
  LogicalResult readPart(Entry &entry, unsigned number, StringRef name, int64_t layer,
                         llvm::StringMap<unsigned> &known);
  void readSums();
  void putFrozenLast(PieceModel &model);
  LogicalResult readSharers();
  void readPhases();
  LogicalResult readLaunches();
  LogicalResult readCut(LaunchOp launch, BodyAttr body, PieceModel &model);
  void readRecompute();
  void readEnds();
  void readKeys();
  void readSkips();
  LogicalResult readSlices();
  LogicalResult readChunks();

  ModuleOp module;
  ProgramOp program;
  const bool isOfRanks = !program.getOps<RankOp>().empty();
  bool helps = false; ///< a rank attends for another one
  std::vector<Entry> entries;
  SmallVector<SequenceSlice> slices;
  llvm::StringMap<unsigned> owners; ///< of shared weights: the first piece that uses them
};
} // namespace

void PieceModel::add(std::vector<CutRequest> &cuts, const CutRequest &cut) {
  if (llvm::none_of(cuts, [&](const CutRequest &other) {
        return other.phase == cut.phase && other.slice == cut.slice && other.plan == cut.plan;
      }))
    cuts.push_back(cut);
}

static StringRef stringOf(DictionaryAttr dictionary, StringRef name) {
  auto value = dictionary.getAs<StringAttr>(name);
  return value ? value.getValue() : StringRef();
}

LogicalResult PieceTable::readPart(Entry &entry, unsigned number, StringRef name, int64_t layer,
                                   llvm::StringMap<unsigned> &known) {
  auto function = module.lookupSymbol<func::FuncOp>(name);
  if (!function || function.empty())
    return emitError(entry.op.getLoc()) << "the model has no part `" << name << "`, of which `" << entry.op.getSymName()
                                        << "` is made";
  Builder builder(module.getContext());
  PartUse use{function, {}, layer};
  if (ArrayAttr again = entry.op.getRecomputeAttr()) {
    use.again = llvm::is_contained(again, StringAttr::get(module.getContext(), name));
    entry.key += use.again ? "again " : "kept ";
  }
  for (auto [i, type] : llvm::enumerate(function.getArgumentTypes())) {
    auto declared = function.getArgAttrOfType<nn::WeightAttr>(i, nn::kWeightAttr);
    if (!declared)
      continue;
    bool shared = declared.getShared();
    std::string id = declared.getName().str();
    if (!shared)
      id = (name + "/" + Twine(layer) + "/" + id).str();
    else if (VocabularyAttr shard = entry.op.getVocabularyAttr()) // rows or columns of it
      id += "/" + std::to_string(shard.getFirst());
    auto [it, isNew] = known.try_emplace(id, entry.model.weights.size());
    if (isNew) {
      int64_t primary = shared ? owners.try_emplace(id, number).first->second : number;
      bool tied = primary != number;
      auto named = builder.getStringAttr(nn::weightName(declared, function, layer));
      bool frozen = entry.op.getFrozenAttr() && llvm::is_contained(entry.op.getFrozenAttr(), named);
      auto weight = WeightAttr::get(module.getContext(), named, cast<RankedTensorType>(type), tied, frozen, declared);
      entry.model.weights.push_back({weight, tied && !frozen ? primary : -1}); // a frozen copy needs no exchange
    }
    use.weights.push_back(it->second);
  }
  entry.model.parts.push_back(use);
  entry.key += name.str() + " ";
  if (llvm::any_of(function.front(), [](Operation &op) { return nn::dropoutSiteOf(&op); })) // a mask is the layer's
    entry.key += "layer " + std::to_string(layer) + " ";
  return success();
}

/// With `mesh zero` each replica of a rank updates a shard; a piece that the schedule already cuts over ranks is
/// refused.
static LogicalResult readReplicas(ProgramOp program, PieceOp op, PieceModel &model) {
  MeshAttr mesh = program.getMeshAttr();
  if (!mesh || mesh.getZero() == 0 || mesh.sumMembers() == 1 || model.isForward)
    return success();
  model.replicas = mesh.sumMembers();
  model.sumsShards = mesh.getZero() > 1 && !op.getSumsWhole();
  std::string name = op.getCoord().isStage() ? "stage " + op.getCoord().str() : "`" + op.getCoord().str() + "`";
  auto refuse = [&](const Twine &why) -> LogicalResult {
    Location clause = clauseLoc(program, "mesh.zero", op.getLoc());
    InFlightDiagnostic error = emitError(clause) << "`zero = " << mesh.getZero() << "` " << why;
    if (clause != op.getLoc())
      error.attachNote(op.getLoc()) << name << " is declared here";
    return error;
  };
  if (model.shards > 0)
    return refuse("and `opt at shard(..)` of " + name + " both cut the optimizer state; leave one away");
  if (op.getVocabularyAttr())
    return refuse("cuts the optimizer state of " + name +
                  ", which is a shard of the vocabulary; that is not built yet");
  return success();
}

/// `zero = 2` sums a gradient over the replicas of the rank that makes it, behind each of its backwards. A gradient
/// that moves, or that another rank reads, is whole until it is there; its sum is then cut once, as with `zero = 1`.
void PieceTable::readSums() {
  if (isOfRanks || program.getForward() || program.sumMembers() == 1 || program.getMeshAttr().getZero() < 2)
    return;
  Pieces pieces(program);
  bool said = false;
  auto stayWhole = [&](int64_t piece, Location loc, const Twine &why) {
    if (pieces.isSharded(piece)) // refused
      return;
    if (!said)
      emitWarning(loc) << "`zero = 2`: the gradient of " << pieces.describe(piece)
                       << " is summed whole, and only its sum is cut, as with `zero = 1`: " << why;
    said = true;
    pieces.op(piece).setSumsWhole(true);
  };
  auto sumsApart = [&](int64_t piece) {
    return llvm::any_of(pieces.op(piece).getParts(), [&](Attribute part) {
      auto function = module.lookupSymbol<func::FuncOp>(cast<StringAttr>(cast<ArrayAttr>(part)[0]));
      return function && llvm::any_of(llvm::seq(function.getNumArguments()), [&](unsigned i) {
               auto weight = function.getArgAttrOfType<nn::WeightAttr>(i, nn::kWeightAttr);
               return weight && isSummedApart(program, weight);
             });
    });
  };
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    if (pieces.isReplicated(piece))
      stayWhole(piece, pieces.op(piece).getLoc(), "several ranks update all of it");
    else if (sumsApart(piece))
      stayWhole(piece, pieces.op(piece).getLoc(),
                "its experts are cut over other devices than its other weights, or a router has a bias");
  program.walk([&](TransferOp move) {
    if (move.getThing().getRole() == Role::grad)
      stayWhole(pieces.find(move.getThing().getCoord()), move.getLoc(), "it moves here");
  });
  program.walk([&](UnitOp unit) {
    Phase phase = unit.getUnit().getPhase();
    int64_t piece = pieces.find(unit.getUnit().getCoord()), rank = unit.getRanks().front(), owner = pieces.owner(piece);
    if ((phase == Phase::B || phase == Phase::W) && owner >= 0 && rank != owner)
      stayWhole(piece, unit.getLoc(), "rank " + Twine(rank) + " makes it here, and rank " + Twine(owner) + " reads it");
  });
}

LogicalResult PieceTable::readPiece(PieceOp op, unsigned number) {
  entries.push_back({op, PieceModel{program, op.getSymNameAttr(), op.getLoc(), {}, {}, {}}, ""});
  Entry &entry = entries.back();
  entry.model.isForward = program.getForward();
  if (entry.model.isForward)
    entry.model.name = StringAttr::get(op.getContext(), "forward." + op.getSymName());
  if (PlaceAttr owner = op.getOwnerAttr(); owner && owner.getLayout() == Layout::shard) {
    entry.model.shards = owner.getRanks().size();
    entry.model.cutsWeights = op.getHomesAttr() && op.getHomesAttr().getLayout() != Layout::shard;
    entry.key += (entry.model.cutsWeights ? "cut in " : "in ") + std::to_string(entry.model.shards) + " ";
  }
  if (failed(readReplicas(program, op, entry.model)))
    return failure();
  entry.key += op.getSumsWhole() ? "sums whole " : "";
  llvm::StringMap<unsigned> known;
  for (Attribute attr : op.getParts()) {
    auto part = dyn_cast<ArrayAttr>(attr);
    auto name = part && part.size() == 2 ? dyn_cast<StringAttr>(part[0]) : StringAttr();
    auto layer = name ? dyn_cast<IntegerAttr>(part[1]) : IntegerAttr();
    if (!layer)
      return emitError(op.getLoc()) << "expected [part, layer] in the parts of `" << op.getSymName() << "`, got "
                                    << attr;
    if (failed(readPart(entry, number, name, layer.getInt(), known)))
      return failure();
  }
  if (entry.model.parts.empty())
    return emitError(op.getLoc()) << "`" << op.getSymName() << "` holds no part of the model";
  putFrozenLast(entry.model);
  for (auto [i, weight] : llvm::enumerate(entry.model.weights))
    if (weight.isTied())
      entry.key += "tied " + std::to_string(i) + " ";
    else if (weight.isFrozen())
      entry.key += "frozen " + weight.attr.getDeclared().getName().str() + " ";
  return success();
}

/// So a gradient's payload is like the first tensors of the weights', and is cut over ranks at the same elements. On a
/// mesh weights that are summed apart, then tied ones, stand before those that are frozen: the gradients of the others
/// are summed as one run.
void PieceTable::putFrozenLast(PieceModel &model) {
  SmallVector<unsigned> order = llvm::to_vector(llvm::seq<unsigned>(0, model.weights.size()));
  const bool hasMesh = bool(program.getMeshAttr());
  auto placeOf = [&](unsigned i) {
    const PieceWeight &weight = model.weights[i];
    if (weight.isFrozen())
      return 3;
    return hasMesh && weight.isTied() ? 2 : isSummedApart(program, weight.attr.getDeclared()) ? 1 : 0;
  };
  llvm::stable_sort(order, [&](unsigned a, unsigned b) { return placeOf(a) < placeOf(b); });
  SmallVector<PieceWeight> sorted;
  SmallVector<unsigned> place(order.size());
  for (auto [i, old] : llvm::enumerate(order)) {
    sorted.push_back(model.weights[old]);
    place[old] = i;
  }
  model.weights = std::move(sorted);
  for (PartUse &use : model.parts)
    for (unsigned &weight : use.weights)
      weight = place[weight];
}

/// Its gradient has no update here, which would say how two of them are added.
static LogicalResult checkStays(ProgramOp program, PieceOp op, int64_t number) {
  Pieces pieces(program);
  WalkResult walked = program.walk([&](TransferOp move) {
    bool isIts = move.getThing().getRole() == Role::grad && pieces.find(move.getThing().getCoord()) == number;
    return isIts ? WalkResult::interrupt() : WalkResult::advance();
  });
  if (!walked.wasInterrupted())
    return success();
  return emitError(op.getLoc()) << "all weights of `" << op.getSymName()
                                << "` are shared with an earlier piece; then its gradient cannot move";
}

LogicalResult PieceTable::readSharers() {
  for (Entry &entry : entries) {
    bool isTied = !entry.model.weights.empty() &&
                  llvm::all_of(entry.model.weights, [](const PieceWeight &weight) { return weight.isTied(); });
    if (isTied && failed(checkStays(program, entry.op, &entry - entries.data())))
      return failure();
    int64_t primary = -1;
    Sharer sharer;
    for (PieceWeight &weight : entry.model.weights) {
      if (!weight.isTied())
        continue;
      if (primary >= 0 && primary != weight.primary)
        return emitError(entry.op.getLoc())
               << "`" << entry.op.getSymName() << "` shares weights with two pieces, `"
               << entries[primary].op.getSymName() << "` and `" << entries[weight.primary].op.getSymName()
               << "`; it may share with one piece only";
      primary = weight.primary;
      auto &owned = entries[primary].model.weights;
      auto *same =
          llvm::find_if(owned, [&](const PieceWeight &other) { return other.attr.getName() == weight.attr.getName(); });
      sharer.weights.push_back(same - owned.begin());
    }
    if (primary < 0)
      continue;
    entries[primary].model.sharers.push_back(sharer);
    entries[primary].key += "shares";
    for (unsigned weight : sharer.weights)
      entries[primary].key += " " + std::to_string(weight);
    entries[primary].key += " ";
  }
  return success();
}

void PieceTable::readPhases() {
  Pieces pieces(program);
  program.walk([&](UnitOp unit) {
    Entry &entry = entries[pieces.find(unit.getUnit().getCoord())];
    entry.model.phases |= 1u << static_cast<unsigned>(unit.getUnit().getPhase());
  });
  Exchanges exchanges(program);
  bool told = false;
  for (auto &[unit, cut] : exchanges.allAhead()) {
    Entry &entry = entries[pieces.find(unit.getCoord())];
    PieceModel::add(entry.model.aheads, {unit.getPhase(), unit.getCoord().getSlice(), cut.plan});
  }
  for (auto together : program.getBody().getOps<TogetherOp>()) {
    for (auto attend : together.getOps<AttendOp>())
      if (CoordAttr coord = attend.getUnit().getCoord(); exchanges.hasNoKeys(coord) && !program.getForward() && !told) {
        emitRemark(attend.getLoc()) << pieces.describe(pieces.find(coord)) << " has scans or convolutions and no "
                                    << "attention: of such pieces `attend` and `move kv` do nothing";
        told = true;
      }
    helps |= !together.getOps<AttendOp>().empty();
    for (CutUnit unit : exchanges.of(together)) {
      CoordAttr coord = unit.op.getUnit().getCoord();
      Entry &entry = entries[pieces.find(coord)];
      PieceModel::add(entry.model.cuts, {unit.op.getUnit().getPhase(), coord.getSlice(), unit.plan});
    }
  }
}

/// The units of rank programs, and how they are cut: the first steps of their bodies say it.
LogicalResult PieceTable::readLaunches() {
  BodyTable bodies(module);
  Pieces pieces(program);
  llvm::DenseSet<std::pair<Attribute, int64_t>> seen;
  for (auto rank : program.getOps<RankOp>())
    for (auto launch : rank.getOps<LaunchOp>()) {
      int64_t piece = pieces.find(launch.getUnit().getCoord());
      BodyAttr body = bodies.of(launch);
      if (piece < 0 || piece >= pieces.size() || !body || !seen.insert({launch.getCalleeAttr(), piece}).second)
        continue; // what is no unit is prove-units' matter
      Entry &entry = entries[piece];
      entry.model.phases |= 1u << static_cast<unsigned>(launch.getUnit().getPhase());
      for (StringRef name : {kInputsAttr, kResultsAttr})
        if (auto groups = bodies.find(body)->getAttrOfType<GroupsAttr>(name))
          for (GroupAttr group : groups.getGroups()) {
            entry.keeps |= group.getKind() == GroupKind::kept;
            entry.saves |= group.getKind() == GroupKind::stash;
          }
      if (body.isStep() && failed(readCut(launch, body, entry.model)))
        return failure();
    }
  return success();
}

LogicalResult PieceTable::readCut(LaunchOp launch, BodyAttr body, PieceModel &model) {
  Phase phase = launch.getUnit().getPhase();
  int64_t slice = launch.getUnit().getCoord().getSlice();
  CutPlan plan = CutPlan::of(body.getCut());
  int64_t attended = 0;
  for (KeysAttr keys : plan.helps)
    attended += static_cast<int64_t>(keys.getSlices().size());
  bool fits = isCutAtAttentions(phase) && slice >= 0 && slice < static_cast<int64_t>(program.getSlices()) &&
              llvm::none_of(plan.helps, [](KeysAttr keys) { return keys.getSlices().empty(); }) &&
              static_cast<int64_t>(plan.kept(slice).size()) + attended == slice + 1;
  if (!fits)
    return emitError(launch.getLoc()) << "`" << launch.getUnit().str() << "` cannot be cut as `@" << launch.getCallee()
                                      << "` says: others attend each of the slices up to its own at most once";
  helps |= !body.isRestOfAhead();
  PieceModel::add(body.isRestOfAhead() ? model.aheads : model.cuts, {phase, slice, plan});
  return success();
}

/// Rank programs launch no R where it has nothing to do: where F keeps all that it saves, or saves nothing, as the only
/// MLP of a piece in chunks, which R would make again.
void PieceTable::readRecompute() {
  for (Entry &entry : entries)
    if (entry.keeps || (!entry.saves && !entry.model.isForward && entry.model.chunks > 1 &&
                        llvm::any_of(entry.model.parts, [](const PartUse &part) { return hasMlp(part.function); })))
      entry.model.phases |= 1u << static_cast<unsigned>(Phase::R);
}

/// If no piece upstream is trained, these pieces have no backward, and the first piece behind them makes no `dact`.
void PieceTable::readEnds() {
  if (program.getForward()) {
    for (Entry &entry : entries)
      entry.model.endsBackward = true;
    return;
  }
  if (llvm::none_of(entries, [](Entry &entry) { return bool(entry.op.getFrozenAttr()); }))
    return;
  Pieces pieces(program);
  auto hasBackward = [&](int64_t piece) {
    return entries[piece].model.runs(Phase::B) || entries[piece].model.runs(Phase::I);
  };
  for (int64_t piece = 0; piece < pieces.size(); ++piece) {
    PieceModel &model = entries[piece].model;
    // A unit that other ranks help has one step for each attention, so its queries keep their gradients.
    model.endsBackward = piece > 0 && model.cuts.empty() && llvm::none_of(piecesBefore(pieces, piece), hasBackward);
    entries[piece].key += !hasBackward(piece) ? "forward " : model.endsBackward ? "ends " : "";
  }
}

/// Finds the pieces that make keys for the piece after them, and those that read keys of the piece before.
void PieceTable::readKeys() {
  KeysBefore keys(program, llvm::map_to_vector<8>(entries, [](const Entry &entry) { return entry.op; }), helps);
  for (size_t piece = 1; piece < entries.size(); ++piece) {
    entries[piece].model.keysIn.assign(keys.of(piece).begin(), keys.of(piece).end());
    entries[piece - 1].model.keysOut = entries[piece].model.keysIn;
    for (unsigned place : keys.of(piece))
      entries[piece - 1].key += "key " + std::to_string(place) + " ";
    entries[piece].key += keys.reads(piece) ? "reads keys " : "";
  }
}

/// Values that skip parts, and their gradients: those of makers that have a backward.
void PieceTable::readSkips() {
  Pieces pieces(program);
  auto hasBackward = [&](int64_t piece) {
    return entries[piece].model.runs(Phase::B) || entries[piece].model.runs(Phase::I);
  };
  for (auto [piece, entry] : llvm::enumerate(entries)) {
    for (int64_t number : pieces.skipsInto(piece, Role::act)) {
      const Pieces::Skip &skip = pieces.skip(number);
      entry.model.skipsIn.push_back({skip.coord.getPart(), hasBackward(skip.maker)});
      entry.key += "from " + skip.coord.getPart().str() + (hasBackward(skip.maker) ? " " : " forward ");
    }
    for (int64_t number : pieces.skipsFrom(piece, Role::act)) {
      const Pieces::Skip &skip = pieces.skip(number);
      entry.model.skipsOut.push_back({skip.coord.getPart(), unsigned(skip.readers.size())});
      entry.key += "skip " + skip.coord.getPart().str() + " " + std::to_string(skip.readers.size()) + " ";
    }
  }
}

LogicalResult PieceTable::readSlices() {
  int64_t count = program.getSlices();
  if (count == 0) {
    slices.emplace_back();
    return success();
  }
  auto sequence = program.getTrain().getAs<IntegerAttr>("sequence");
  if (!sequence)
    return emitError(program.getLoc()) << "this program has slices, but its `train` has no `sequence` to cut";
  SmallVector<int64_t> starts = sliceStarts(program);
  if (starts.back() != sequence.getInt())
    return emitError(program.getLoc()) << "the slices hold " << starts.back() << " tokens; a sequence has "
                                       << sequence.getInt();
  for (int64_t k = 0; k < count; ++k) {
    slices.push_back({k, count, starts, program.sizeOf(Axis::context)});
    if (starts[k + 1] <= starts[k])
      return emitError(program.getLoc()) << "slice " << k << " of " << count << " is empty; a sequence has "
                                         << sequence.getInt() << " tokens";
  }
  return success();
}

/// Reads `mlp chunks = n` of the training program.
LogicalResult PieceTable::readChunks() {
  auto mlp = program.getTrain().getAs<DictionaryAttr>("mlp");
  auto chunks = mlp ? mlp.getAs<IntegerAttr>("chunks") : IntegerAttr();
  bool found = false;
  for (Entry &entry : entries) {
    entry.model.chunks = chunks ? chunks.getInt() : 1;
    entry.model.chunksLoc = clauseLoc(program, "mlp.chunks", entry.model.loc);
    found |= llvm::any_of(entry.model.parts, [](const PartUse &part) { return hasMlp(part.function); });
  }
  if (chunks && !found)
    return emitError(clauseLoc(program, "mlp.chunks"))
           << "`mlp chunks = " << chunks.getInt()
           << "`: the model has no linears with a gelu, swiglu or formula between them";
  return success();
}

LogicalResult PieceTable::read() {
  if (failed(readSlices()))
    return failure();
  readSums();
  for (auto [i, op] : llvm::enumerate(program.getBody().getOps<PieceOp>()))
    if (failed(readPiece(op, i)))
      return failure();
  if (!isOfRanks)
    readPhases();
  else if (failed(readLaunches()))
    return failure();
  readEnds();
  readKeys();
  readSkips();
  if (failed(readSharers()) || failed(readChunks()))
    return failure();
  if (isOfRanks)
    readRecompute();
  return success();
}

/// 1 / tokens of an update, if the parts end in a loss that is divided by them: its targets are one microbatch's. A
/// loss whose targets are counted is divided when it runs, and a total by nothing.
static double lossScale(const PieceModel &model, int64_t microbatches) {
  for (PartUse part : model.parts)
    for (auto loss : part.function.getOps<nn::Loss>())
      if (loss.isDivided())
        return 1.0 / (static_cast<double>(microbatches) *
                      cast<RankedTensorType>(loss->getOperand(1).getType()).getNumElements());
  return 1.0;
}

/// If devices share each sequence, or each microbatch, no device sees all choices of a group of the balance.
static void shareBalance(const PieceModel &model, ProgramOp program) {
  AxesAttr shared = program.sumAxes();
  if (!shared)
    return;
  for (PartUse part : model.parts)
    for (auto route : part.function.getOps<nn::RouteOp>()) {
      SmallVector<nn::Axis> axes;
      int64_t members = 1;
      for (Axis axis : shared.getAxes()) {
        if (axis == Axis::data && route.getOver() == "sequence")
          continue;
        axes.push_back(axis);
        members *= program.sizeOf(axis);
      }
      if (members == 1)
        continue;
      route.setSharedAttr(nn::AxesAttr::get(program.getContext(), axes));
    }
}

LogicalResult PieceTable::derive() {
  llvm::MapVector<StringRef, SmallVector<Entry *>> classes;
  for (Entry &entry : entries)
    classes[entry.key].push_back(&entry);
  Builder builder(module.getContext());
  SmallVector<WeightAttr> all;
  for (Entry &entry : entries)
    for (PieceWeight &weight : entry.model.weights)
      all.push_back(weight.attr);
  if (failed(Optimizer(program).check(all)))
    return failure();
  for (auto &[key, members] : classes) {
    PieceModel &model = members.front()->model;
    shareBalance(model, program);
    for (Entry *member : members) {
      model.phases |= member->model.phases;
      for (auto cuts : {&PieceModel::cuts, &PieceModel::aheads})
        for (const CutRequest &cut : member == members.front() ? std::vector<CutRequest>() : member->model.*cuts)
          PieceModel::add(model.*cuts, cut);
      SmallVector<Attribute> weights;
      for (PieceWeight &weight : member->model.weights)
        weights.push_back(weight.attr);
      member->op.setWeightsAttr(builder.getArrayAttr(weights));
      member->op.setBodiesAttr(model.name);
    }
    model.readsNorm = readsNorm(program);
    model.rounds = stringOf(program.getTrain(), "gradients").ends_with("16");
    int64_t microbatches = program.getMicrobatches() / program.countUpdates() * program.sumMembers();
    model.lossScale = lossScale(model, microbatches);
    for (const SequenceSlice &slice : slices)
      if (failed(derivePhases(module, model, slice)))
        return failure();
    if (!model.isForward && failed(deriveUpdates(module, model)))
      return failure();
  }
  return success();
}

LogicalResult pp::deriveTasks(ModuleOp module, ProgramOp program) {
  PieceTable table(module, program);
  return success(succeeded(table.read()) && succeeded(table.derive()));
}

namespace {
struct DeriveTasks : public pp::impl::DeriveTasksBase<DeriveTasks> {
  void runOnPrograms() override {
    for (auto program : llvm::to_vector(getOperation().getOps<ProgramOp>()))
      if (failed(deriveTasks(getOperation(), program)))
        return signalPassFailure();
  }
};
} // namespace
