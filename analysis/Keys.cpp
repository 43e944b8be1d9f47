// Finds the parts of the model whose attention reads keys and values that come in from another piece.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Keys.h"
#include "dialect/nn/Nn.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// The places of k and v among the arguments of the part that are neither weights nor data.
static SmallVector<unsigned, 2> keyPlaces(func::FuncOp part) {
  auto attentions = llvm::to_vector(part.getOps<nn::Attends>());
  if (attentions.size() != 1 || attentions.front().getKv().size() != 2)
    return {};
  SmallVector<unsigned, 2> places;
  for (Value key : attentions.front().getKv()) {
    auto argument = dyn_cast<BlockArgument>(key);
    if (!argument || !argument.hasOneUse())
      return {};
    unsigned place = 0;
    for (unsigned i = 0; i <= argument.getArgNumber(); ++i) {
      bool flows = llvm::none_of(ArrayRef<StringRef>{nn::kWeightAttr, nn::kDataAttr, nn::kStatsAttr, nn::kFromAttr},
                                 [&](StringRef kind) { return part.getArgAttr(i, kind) != nullptr; });
      if (!flows && i == argument.getArgNumber())
        return {};
      place += flows;
    }
    places.push_back(place - 1);
  }
  return places;
}

namespace {
/// The role of a part of the model for slices of a sequence.
struct PartKeys {
  SmallVector<unsigned, 2> places;
  bool attends = true, hasWeights = true, carries = false; ///< where the part is only named, as in tests
};
} // namespace

static PartKeys readPart(func::FuncOp part) {
  if (!part || part.empty())
    return {};
  auto isWeight = [&](unsigned i) { return part.getArgAttr(i, nn::kWeightAttr) != nullptr; };
  return {keyPlaces(part), !part.getOps<nn::Attends>().empty(),
          llvm::any_of(llvm::seq(part.getNumArguments()), isWeight), !part.getOps<nn::Carries>().empty()};
}

bool KeysBefore::hasHelps(ProgramOp program) {
  return llvm::any_of(program.getBody().getOps<TogetherOp>(),
                      [](TogetherOp together) { return !together.getOps<AttendOp>().empty(); });
}

KeysBefore::KeysBefore(ProgramOp program, const SmallVector<PieceOp> &pieces, bool helps)
    : places(pieces.size()), alone(pieces.size()), attends(pieces.size()), carries(pieces.size()) {
  if (program.getSlices() == 0)
    return;
  auto module = program->getParentOfType<ModuleOp>();
  llvm::StringMap<PartKeys> known;
  for (size_t piece = 0; piece < pieces.size(); ++piece) {
    PieceOp op = pieces[piece];
    for (auto [number, entry] : llvm::enumerate(op.getParts())) {
      auto pair = dyn_cast<ArrayAttr>(entry);
      auto name = pair && !pair.empty() ? dyn_cast<StringAttr>(pair[0]) : StringAttr();
      auto [it, isNew] = known.try_emplace(name ? name.getValue() : "");
      if (isNew && name)
        it->second = readPart(module.lookupSymbol<func::FuncOp>(name));
      attends[piece] = attends[piece] || it->second.attends;
      carries[piece] = carries[piece] || it->second.carries;
      if (number == 0 && piece > 0 && !helps)
        places[piece] = it->second.places;
      alone[piece] = op.getParts().size() == 1 && !it->second.hasWeights;
    }
  }
}
