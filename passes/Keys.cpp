// Finds the parts of the model whose attention reads keys and values that come in from another piece.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Keys.h"
#include "dialect/Nn.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// The places of k and v among the arguments of the part that are neither weights nor data.
static SmallVector<unsigned, 2> keyPlaces(func::FuncOp part) {
  auto attentions = llvm::to_vector(part.getOps<nn::AttentionOp>());
  if (attentions.size() != 1 || attentions.front().getKv().size() != 2)
    return {};
  SmallVector<unsigned, 2> places;
  for (Value key : attentions.front().getKv()) {
    auto argument = dyn_cast<BlockArgument>(key);
    if (!argument || !argument.hasOneUse())
      return {};
    unsigned place = 0;
    for (unsigned i = 0; i <= argument.getArgNumber(); ++i) {
      bool flows = !part.getArgAttr(i, "nn.weight") && !part.getArgAttr(i, "nn.data") && !part.getArgAttr(i, "nn.stats");
      if (!flows && i == argument.getArgNumber())
        return {};
      place += flows;
    }
    places.push_back(place - 1);
  }
  return places;
}

KeysBefore::KeysBefore(ProgramOp program, const SmallVector<PieceOp> &pieces) : places(pieces.size()) {
  bool helps = false;
  for (auto together : program.getBody().getOps<TogetherOp>())
    helps |= !together.getOps<AttendOp>().empty();
  if (program.getSlices() == 0 || helps)
    return;
  auto module = program->getParentOfType<ModuleOp>();
  llvm::StringMap<SmallVector<unsigned, 2>> known;
  for (size_t piece = 1; piece < pieces.size(); ++piece) {
    PieceOp op = pieces[piece];
    auto first = op.getParts().empty() ? ArrayAttr() : dyn_cast<ArrayAttr>(op.getParts()[0]);
    auto name = first && !first.empty() ? dyn_cast<StringAttr>(first[0]) : StringAttr();
    if (!name)
      continue;
    auto [it, isNew] = known.try_emplace(name.getValue());
    if (auto part = isNew ? module.lookupSymbol<func::FuncOp>(name) : func::FuncOp(); part && !part.empty())
      it->second = keyPlaces(part);
    places[piece] = it->second;
  }
}
