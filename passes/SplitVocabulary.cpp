// Cuts the parts of the model that stand at `shard(ranks)` by the vocabulary: a piece, and its units, for every rank.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: piece @s1 parts [.., ["post", 3]]          After: piece @s1 parts [.., ["post", 3], ["head.before", -1]]
//         piece @head at [0, 1] shard                       piece @head0 at [0] shards 2, piece @head1 at [1] shards 2
//         unit F(head, 3) on [0, 1]                         together { unit F(head(0), 3)  unit F(head(1), 3) }
//
//   tokens -> embedding of its rows -> sum over shards -> the rest of the part, which joins the piece behind it
//   x -> what precedes the logits, which joins the piece before it -> every shard: its columns of the logits
//        -> statistics of all shards -> loss, and its part of the gradients of x and of its columns
//
// The k-th of the ranks in ascending order has the k-th run of rows. From here on the shards are pieces as any other.
#include "dialect/Nn.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "passes/Vocabulary.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// The ops of a part that are cut, and the weight that they read by rows or columns.
struct Core {
  nn::EmbeddingOp embedding;
  nn::LinearOp linear;
  nn::CrossEntropyOp loss;
  BlockArgument table;
  bool rows = true; ///< of the table, not columns
  int64_t vocabulary() const { return cast<RankedTensorType>(table.getType()).getDimSize(rows ? 0 : 1); }
};

/// One part of the model at `shard(ranks)`.
struct CutPart {
  PieceOp piece;
  func::FuncOp function;
  SmallVector<int64_t> ranks; ///< ascending
  Core core;
};

class Splitter {
public:
  Splitter(ModuleOp module, ProgramOp program) : module(module), program(program), builder(module.getContext()) {}

  LogicalResult run() {
    for (auto piece : llvm::to_vector(program.getOps<PieceOp>()))
      if (piece.getAt() && piece.getAt()->getLayout() == Layout::shard)
        if (failed(read(piece)))
          return failure();
    for (CutPart &part : parts)
      if (failed(checkSharing(part)))
        return failure();
    for (CutPart &part : parts)
      if (failed(split(part)))
        return failure();
    return splitUnits();
  }

private:
  ModuleOp module;
  ProgramOp program;
  OpBuilder builder;
  std::vector<CutPart> parts;
  llvm::StringMap<unsigned> numbers; ///< of parts, by the piece's name

  static std::string describe(PieceOp piece) {
    return (piece.getCoord().isStage() ? "stage " : "`") + piece.getCoord().str() +
           (piece.getCoord().isStage() ? "" : "`");
  }

  //===-- What is cut -------------------------------------------------------------------------------------------===//

  static bool isWeight(Value value) {
    auto argument = dyn_cast<BlockArgument>(value);
    return argument &&
           cast<func::FuncOp>(argument.getOwner()->getParentOp()).getArgAttr(argument.getArgNumber(), "nn.weight");
  }

  static std::optional<Core> findCore(func::FuncOp function) {
    Core core;
    for (auto embedding : function.getOps<nn::EmbeddingOp>())
      if (isWeight(embedding.getTable()))
        return core.embedding = embedding, core.table = cast<BlockArgument>(embedding.getTable()), core;
    for (auto loss : function.getOps<nn::CrossEntropyOp>()) {
      auto linear = loss.getZ().getDefiningOp<nn::LinearOp>();
      if (!linear || linear.getBias())
        continue;
      auto transpose = linear.getW().getDefiningOp<nn::TransposeOp>();
      Value table = transpose ? transpose.getW() : linear.getW();
      if (!isWeight(table))
        continue;
      core.linear = linear, core.loss = loss, core.table = cast<BlockArgument>(table), core.rows = bool(transpose);
      return core;
    }
    return std::nullopt;
  }

  LogicalResult read(PieceOp piece) {
    PlaceAttr at = *piece.getAt();
    std::string name = describe(piece);
    auto fail = [&](const Twine &why) { return emitError(piece.getLoc()) << name << " " << why; };
    if (piece.getHomesAttr() != at || piece.getOwnerAttr() != at)
      return fail("runs at " + at.str() + "; its weights and their optimizer state must be there, too");
    auto entry = cast<ArrayAttr>(piece.getParts()[0]);
    auto function = module.lookupSymbol<func::FuncOp>(cast<StringAttr>(entry[0]));
    std::optional<Core> core = function ? findCore(function) : std::nullopt;
    if (piece.getParts().size() != 1 || !core)
      return fail("runs at " + at.str() +
                  ", and nothing in it can be cut by the vocabulary: that takes a part with an " +
                  "`embedding`, or with a `linear` without bias before `cross_entropy`");
    CutPart part{piece, function, SmallVector<int64_t>(at.getRanks()), *core};
    llvm::sort(part.ranks);
    if (core->vocabulary() < static_cast<int64_t>(part.ranks.size()))
      return fail("is cut over " + Twine(part.ranks.size()) + " ranks; the vocabulary has " +
                  Twine(core->vocabulary()) + " rows");
    numbers[piece.getSymName()] = parts.size();
    parts.push_back(std::move(part));
    return success();
  }

  static StringRef stringOf(DictionaryAttr dictionary, StringRef name) {
    auto value = dictionary ? dictionary.getAs<StringAttr>(name) : StringAttr();
    return value ? value.getValue() : StringRef();
  }

  /// A weight of several parts is cut alike in all of them.
  LogicalResult checkSharing(CutPart &part) {
    DictionaryAttr declared = weightOf(part);
    auto shared = declared.getAs<BoolAttr>("shared");
    if (!shared || !shared.getValue())
      return success();
    for (auto piece : program.getOps<PieceOp>()) {
      auto cut = numbers.find(piece.getSymName());
      bool isCutAlike = cut != numbers.end() && parts[cut->second].ranks == part.ranks &&
                        weightOf(parts[cut->second]) == declared && parts[cut->second].core.rows == part.core.rows;
      for (Attribute entry : piece.getParts()) {
        auto function = module.lookupSymbol<func::FuncOp>(cast<StringAttr>(cast<ArrayAttr>(entry)[0]));
        for (unsigned i = 0; function && !isCutAlike && i < function.getNumArguments(); ++i)
          if (function.getArgAttrOfType<DictionaryAttr>(i, "nn.weight") == declared) {
            auto error = emitError(part.piece.getLoc())
                         << describe(part.piece) << " is cut over ranks, and its weight `" << stringOf(declared, "name")
                         << "` is also that of " << describe(piece) << ", which is not cut alike";
            error.attachNote(piece.getLoc()) << "placed here";
            return error;
          }
      }
    }
    return success();
  }

  static DictionaryAttr weightOf(CutPart &part) {
    return part.function.getArgAttrOfType<DictionaryAttr>(part.core.table.getArgNumber(), "nn.weight");
  }

  //===-- Pieces ------------------------------------------------------------------------------------------------===//

  LogicalResult split(CutPart &part) {
    auto next = dyn_cast_or_null<PieceOp>(part.piece->getNextNode());
    auto previous = dyn_cast_or_null<PieceOp>(part.piece->getPrevNode());
    PieceOp neighbour = part.core.embedding ? next : previous;
    std::string rest = (part.function.getName() + (part.core.embedding ? ".after" : ".before")).str();
    if (!neighbour || vocabularyShards(neighbour) || numbers.contains(neighbour.getSymName()))
      return emitError(part.piece.getLoc())
             << describe(part.piece) << " is cut over ranks, and there is no whole piece "
             << (part.core.embedding ? "behind" : "before") << " it";
    if (writeRest(part, rest)) {
      SmallVector<Attribute> list(neighbour.getParts().getValue());
      Attribute entry = builder.getArrayAttr({builder.getStringAttr(rest), builder.getI64IntegerAttr(-1)});
      list.insert(part.core.embedding ? list.begin() : list.end(), entry);
      neighbour.setPartsAttr(builder.getArrayAttr(list));
    }
    builder.setInsertionPoint(part.piece);
    for (auto [k, rank] : llvm::enumerate(part.ranks)) {
      std::string name = (part.function.getName() + "." + Twine(k)).str();
      writeShard(part, name, k);
      CoordAttr coord = CoordAttr::get(module.getContext(), part.piece.getCoord().getPart(), k, -1, -1);
      auto at = PlaceAttr::get(module.getContext(), {rank}, Layout::full);
      auto entry = builder.getArrayAttr({builder.getStringAttr(name), builder.getI64IntegerAttr(-1)});
      builder.setInsertionPoint(part.piece);
      auto shard = builder.create<PieceOp>(part.piece.getLoc(), coord.pieceName(), coord, builder.getArrayAttr({entry}),
                                           at, at, at, ArrayAttr(), ArrayAttr(), StringAttr());
      shard->setAttr("shards", builder.getI64IntegerAttr(part.ranks.size()));
      shard->setAttr("first", builder.getI64IntegerAttr(firstOf(part, k)));
      shard->setAttr("whole", TypeAttr::get(part.core.table.getType()));
    }
    part.piece.erase();
    return success();
  }

  func::FuncOp beginFunction(CutPart &part, StringRef name) {
    builder.setInsertionPoint(part.function);
    auto function = builder.create<func::FuncOp>(part.function.getLoc(), name, builder.getFunctionType({}, {}));
    function.setPrivate();
    builder.setInsertionPointToEnd(function.addEntryBlock());
    return function;
  }

  static Value addArgument(func::FuncOp function, Type type, DictionaryAttr attributes = {}) {
    function.insertArgument(function.getNumArguments(), type, attributes, function.getLoc());
    return function.getArguments().back();
  }

  void endFunction(func::FuncOp function, ValueRange results) {
    builder.create<func::ReturnOp>(function.getLoc(), results);
    function.setType(builder.getFunctionType(function.getArgumentTypes(), results.getTypes()));
  }

  /// What of the part is not cut, as a part of its own; false if that is nothing.
  bool writeRest(CutPart &part, StringRef name) {
    Core &core = part.core;
    Operation *end = part.function.front().getTerminator();
    DenseSet<Operation *> cut = {core.embedding, core.linear, core.loss, end};
    if (core.linear)
      cut.insert(core.linear.getW().getDefiningOp());
    if (llvm::all_of(part.function.front(), [&](Operation &op) { return cut.contains(&op); }))
      return false;
    func::FuncOp function = beginFunction(part, name);
    IRMapping mapping;
    if (core.embedding)
      mapping.map(core.embedding.getX(), addArgument(function, core.embedding.getX().getType()));
    for (BlockArgument argument : part.function.getArguments()) {
      bool read = llvm::any_of(argument.getUsers(), [&](Operation *user) { return !cut.contains(user); });
      if (read || (core.linear && argument == core.linear.getX()))
        mapping.map(argument,
                    addArgument(function, argument.getType(), part.function.getArgAttrDict(argument.getArgNumber())));
    }
    for (Operation &op : part.function.front())
      if (!cut.contains(&op))
        builder.clone(op, mapping);
    SmallVector<Value> results =
        core.embedding ? SmallVector<Value>(end->getOperands()) : SmallVector<Value>({core.linear.getX()});
    for (Value &result : results)
      result = mapping.lookup(result);
    endFunction(function, results);
    return true;
  }

  /// The first row or column of the k-th shard.
  static int64_t firstOf(CutPart &part, int64_t k) {
    return k * part.core.vocabulary() / static_cast<int64_t>(part.ranks.size());
  }

  /// The part as its k-th shard sees it.
  void writeShard(CutPart &part, StringRef name, int64_t k) {
    Core &core = part.core;
    int64_t shards = part.ranks.size(), vocab = core.vocabulary();
    int64_t first = firstOf(part, k), count = firstOf(part, k + 1) - first;
    func::FuncOp function = beginFunction(part, name);
    Location loc = function.getLoc();
    auto whole = cast<RankedTensorType>(core.table.getType());
    SmallVector<int64_t> shape(whole.getShape());
    shape[core.rows ? 0 : 1] = count;
    auto weight = builder.getNamedAttr("nn.weight", weightOf(part));
    auto dataOf = [&](Value value) {
      return addArgument(function, value.getType(),
                         part.function.getArgAttrDict(cast<BlockArgument>(value).getArgNumber()));
    };
    if (core.embedding) {
      Value tokens = dataOf(core.embedding.getTokens());
      Value table = addArgument(function, whole.clone(shape), builder.getDictionaryAttr(weight));
      auto lookup = builder.create<nn::EmbeddingOp>(loc, core.embedding.getX().getType(), tokens, table);
      lookup->setAttr("first", builder.getI64IntegerAttr(first));
      lookup->setAttr("whole", builder.getI64IntegerAttr(vocab));
      return endFunction(function, lookup.getX());
    }
    Value x = addArgument(function, core.linear.getX().getType()), targets = dataOf(core.loss.getTargets());
    Value table = addArgument(function, whole.clone(shape), builder.getDictionaryAttr(weight));
    SmallVector<int64_t> logits(cast<RankedTensorType>(core.linear.getY().getType()).getShape());
    auto element = cast<RankedTensorType>(core.loss.getLoss().getType()).getElementType();
    logits.back() = 3;
    auto statsType = RankedTensorType::get(logits, element);
    logits.back() = count;
    Value z = builder.create<nn::LinearOp>(loc, whole.clone(logits), x, table, Value(), core.rows);
    auto own = builder.create<nn::CrossEntropyStatsOp>(loc, statsType, z, targets, first, vocab);
    SmallVector<Value> all;
    auto stats = builder.getDictionaryAttr(builder.getNamedAttr("nn.stats", builder.getUnitAttr()));
    for (int64_t i = 0; i < shards; ++i) {
      Value other = addArgument(function, statsType, stats);
      all.push_back(i == k ? own.getStats() : other);
    }
    Value merged = builder.create<nn::CrossEntropyMergeOp>(loc, statsType, all);
    Value loss = builder.create<nn::CrossEntropyLossOp>(loc, core.loss.getLoss().getType(), merged, targets,
                                                        builder.getF64FloatAttr(1.0));
    endFunction(function, k + 1 == shards ? ValueRange(loss) : ValueRange());
  }

  //===-- Units -------------------------------------------------------------------------------------------------===//

  LogicalResult splitUnits() {
    SmallVector<Operation *> actions;
    program.walk([&](Operation *op) {
      if (isa<UnitOp, TransferOp>(op))
        actions.push_back(op);
    });
    for (Operation *action : actions) {
      if (auto transfer = dyn_cast<TransferOp>(action)) {
        if (numbers.contains(transfer.getThing().getCoord().pieceName()))
          return emitError(transfer.getLoc())
                 << "`move " << transfer.getThing().str() << "`: a part that is cut by the vocabulary stays where it is"
                 << withLoops(transfer);
        continue;
      }
      auto unit = cast<UnitOp>(action);
      auto it = numbers.find(unit.getUnit().getCoord().pieceName());
      if (it != numbers.end() && failed(splitUnit(unit, parts[it->second])))
        return failure();
    }
    return success();
  }

  /// On all ranks of the part one joint of a unit for each shard; inside `on r` that of r's shard alone.
  LogicalResult splitUnit(UnitOp unit, const CutPart &part) {
    builder.setInsertionPoint(unit);
    CoordAttr coord = unit.getUnit().getCoord();
    if (unit.getRanks().size() > 1 && !unit->getParentOfType<TogetherOp>()) {
      auto joint = builder.create<TogetherOp>(unit.getLoc());
      builder.setInsertionPointToStart(&joint.getBody().emplaceBlock());
    }
    for (int64_t rank : unit.getRanks()) {
      auto *found = llvm::find(part.ranks, rank);
      if (found == part.ranks.end())
        return emitError(unit.getLoc()) << "`" << unit.getUnit().str() << "` runs on rank " << rank
                                        << ", which has no shard of `" << coord.getPart().strref() << "`"
                                        << withLoops(unit);
      auto shard = CoordAttr::get(module.getContext(), coord.getPart(), found - part.ranks.begin(),
                                  coord.getMicrobatch(), coord.getSlice());
      builder.create<UnitOp>(unit.getLoc(), UnitIdAttr::get(module.getContext(), unit.getUnit().getPhase(), shard),
                             ArrayRef<int64_t>(rank));
    }
    unit.erase();
    return success();
  }
};

struct SplitVocabulary : public PassWrapper<SplitVocabulary, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(SplitVocabulary)
  StringRef getArgument() const override { return "pp-split-vocabulary"; }
  StringRef getDescription() const override {
    return "a part at `shard(ranks)` becomes a piece for every rank, cut by rows of the vocabulary";
  }
  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(Splitter(getOperation(), program).run()))
        return signalPassFailure();
  }
};

} // namespace

std::unique_ptr<Pass> pp::createSplitVocabulary() { return std::make_unique<SplitVocabulary>(); }
