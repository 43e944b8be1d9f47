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
#include "analysis/Vocabulary.h"
#include "passes/Passes.h"
#include "passes/order/VocabularyPart.h"

namespace pp {
#define GEN_PASS_DEF_SPLITVOCABULARY
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// One part of the model at `shard(ranks)`.
struct CutPart {
  PieceOp piece;
  SmallVector<int64_t> ranks; ///< ascending
  VocabularyPart core;
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
  llvm::DenseMap<CoordAttr, unsigned> numbers; ///< of parts, by the coordinates of the piece

  static std::string describe(PieceOp piece) {
    return (piece.getCoord().isStage() ? "stage " : "`") + piece.getCoord().str() +
           (piece.getCoord().isStage() ? "" : "`");
  }

  //===-- What is cut -------------------------------------------------------------------------------------------===//

  LogicalResult read(PieceOp piece) {
    PlaceAttr at = *piece.getAt();
    std::string name = describe(piece);
    auto fail = [&](const Twine &why) { return emitError(piece.getLoc()) << name << " " << why; };
    if (piece.getHomesAttr() != at || piece.getOwnerAttr() != at)
      return fail("runs at " + at.str() + "; its weights and their optimizer state must be there, too");
    auto entry = cast<ArrayAttr>(piece.getParts()[0]);
    auto function = module.lookupSymbol<func::FuncOp>(cast<StringAttr>(entry[0]));
    std::optional<VocabularyPart> core = function ? VocabularyPart::find(function) : std::nullopt;
    if (piece.getParts().size() != 1 || !core)
      return fail("runs at " + at.str() +
                  ", and nothing in it can be cut by the vocabulary: this needs a part with an " +
                  "`embedding`, or with a `linear` without bias whose logits only losses read");
    CutPart part{piece, SmallVector<int64_t>(at.getRanks()), *core};
    llvm::sort(part.ranks);
    if (core->vocabulary() < static_cast<int64_t>(part.ranks.size()))
      return fail("is cut over " + Twine(part.ranks.size()) + " ranks; the vocabulary has " +
                  Twine(core->vocabulary()) + " rows");
    numbers[piece.getCoord()] = parts.size();
    parts.push_back(std::move(part));
    return success();
  }

  /// A weight of several parts is cut alike in all of them.
  LogicalResult checkSharing(CutPart &part) {
    nn::WeightAttr declared = part.core.weight();
    if (!declared.getShared())
      return success();
    for (auto piece : program.getOps<PieceOp>()) {
      auto cut = numbers.find(piece.getCoord());
      bool isCutAlike = cut != numbers.end() && parts[cut->second].ranks == part.ranks &&
                        parts[cut->second].core.weight() == declared && parts[cut->second].core.rows == part.core.rows;
      for (Attribute entry : piece.getParts()) {
        auto function = module.lookupSymbol<func::FuncOp>(cast<StringAttr>(cast<ArrayAttr>(entry)[0]));
        for (unsigned i = 0; function && !isCutAlike && i < function.getNumArguments(); ++i)
          if (function.getArgAttr(i, nn::kWeightAttr) == declared) {
            auto error = emitError(part.piece.getLoc())
                         << describe(part.piece) << " is cut over ranks, and its weight `"
                         << declared.getName().strref() << "` is also that of " << describe(piece)
                         << ", which is not cut in the same way";
            error.attachNote(piece.getLoc()) << "placed here";
            return error;
          }
      }
    }
    return success();
  }

  //===-- Pieces ------------------------------------------------------------------------------------------------===//

  LogicalResult split(CutPart &part) {
    auto next = dyn_cast_or_null<PieceOp>(part.piece->getNextNode());
    auto previous = dyn_cast_or_null<PieceOp>(part.piece->getPrevNode());
    PieceOp neighbour = part.core.embedding ? next : previous;
    std::string rest = (part.core.function.getName() + (part.core.embedding ? ".after" : ".before")).str();
    if (!neighbour || vocabularyShards(neighbour) || numbers.contains(neighbour.getCoord()))
      return emitError(part.piece.getLoc())
             << describe(part.piece) << " is cut over ranks, and there is no whole piece "
             << (part.core.embedding ? "behind" : "before") << " it";
    if (part.core.writeRest(builder, rest)) {
      SmallVector<Attribute> list(neighbour.getParts().getValue());
      Attribute entry = builder.getArrayAttr({builder.getStringAttr(rest), builder.getI64IntegerAttr(-1)});
      list.insert(part.core.embedding ? list.begin() : list.end(), entry);
      neighbour.setPartsAttr(builder.getArrayAttr(list));
    }
    builder.setInsertionPoint(part.piece);
    for (auto [k, rank] : llvm::enumerate(part.ranks)) {
      std::string name = (part.core.function.getName() + "." + Twine(k)).str();
      part.core.writeShard(builder, name, k, part.ranks.size());
      CoordAttr coord = CoordAttr::get(module.getContext(), part.piece.getCoord().getPart(), k, -1, -1);
      auto at = PlaceAttr::get(module.getContext(), {rank}, Layout::full);
      auto entry = builder.getArrayAttr({builder.getStringAttr(name), builder.getI64IntegerAttr(-1)});
      builder.setInsertionPoint(part.piece);
      auto shard = builder.create<PieceOp>(part.piece.getLoc(), coord, builder.getArrayAttr({entry}), at, at, at);
      shard.setVocabularyAttr(VocabularyAttr::get(module.getContext(), part.core.firstOf(k, part.ranks.size()),
                                                  cast<RankedTensorType>(part.core.table.getType()),
                                                  part.ranks.size()));
    }
    part.piece.erase();
    return success();
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
        if (numbers.contains(transfer.getThing().getCoord().with(-1, -1)))
          return emitError(transfer.getLoc())
                 << "`move " << transfer.getThing().str() << "`: a part that is cut by the vocabulary stays where it is"
                 << withLoops(transfer);
        continue;
      }
      auto unit = cast<UnitOp>(action);
      auto it = numbers.find(unit.getUnit().getCoord().with(-1, -1));
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
                             ArrayRef<int64_t>(rank), unit.getVersionAttr());
    }
    unit.erase();
    return success();
  }
};

struct SplitVocabulary : public pp::impl::SplitVocabularyBase<SplitVocabulary> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(Splitter(getOperation(), program).run()))
        return signalPassFailure();
  }
};

} // namespace
