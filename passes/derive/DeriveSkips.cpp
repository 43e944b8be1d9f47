// Lets a piece read values of parts further before it, and adds up the gradients that their readers give back.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   part embed(tokens)               let e = embedding(tokens, t)  return e
//   part head(x, targets, e from embed)
//
// `act.k` of a body that reads is the k-th value that comes in, of a body that makes it the k-th that goes out;
// `dact.k` likewise, the gradient that one reader gives. Gradients are added from the last reader to the first, as
// where all parts are in one piece, and never in the order in which they come.
#include "passes/derive/PieceGraph.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// A value of a part of this piece, or one that comes in.
Value PieceGraph::skipOf(StringAttr name, Type type) {
  Value &value = named[name];
  if (value)
    return value;
  auto *in = llvm::find_if(piece.skipsIn, [&](const PieceModel::Skip &skip) { return skip.name == name; });
  if (in == piece.skipsIn.end())
    return value;
  skips.resize(piece.skipsIn.size());
  return value = skips[in - piece.skipsIn.begin()] = scratch.addArguments({type}).front();
}

/// Takes the values for other parts out of what a part returns.
void PieceGraph::nameSkips(func::FuncOp part, SmallVectorImpl<Value> &results) {
  auto names = part->getAttrOfType<ArrayAttr>(nn::kSkipsAttr);
  if (!names || results.empty())
    return;
  size_t flowing = results.size() - names.size();
  for (auto [name, value] : llvm::zip(names.getAsRange<StringAttr>(), ArrayRef<Value>(results).drop_front(flowing)))
    named[name] = value;
  results.truncate(flowing);
}

void PieceGraph::collectSkips() {
  for (const PieceModel::Skip &skip : piece.skipsOut)
    skipsOut.push_back(named.lookup(skip.name));
}

void PieceGraph::seedSkips(nn::Gradients &gradients) {
  for (auto [skip, value] : llvm::zip(piece.skipsOut, skipsOut))
    for (unsigned reader = 0; reader < skip.gradients; ++reader)
      dskips.push_back(scratch.addArguments({value.getType()}).front());
  size_t next = dskips.size();
  for (auto [skip, value] : llvm::reverse(llvm::zip(piece.skipsOut, skipsOut)))
    for (unsigned reader = 0; reader < skip.gradients; ++reader)
      gradients.add(piece.loc, value, dskips[--next]);
}

void PieceGraph::collectSkipGradients(nn::Gradients &gradients) {
  for (auto [skip, value] : llvm::zip(piece.skipsIn, skips)) {
    Value gradient = gradients.get(value);
    if (skip.gradients && !gradient)
      gradient = nn::zeroOf(gradients.builder, piece.loc, value.getType());
    dskipsOut.push_back(skip.gradients ? gradient : Value());
  }
}

SmallVector<Group> PieceGraph::skipGroups(GroupKind kind, ArrayRef<Value> values) {
  SmallVector<Group> groups;
  for (auto [number, value] : llvm::enumerate(values))
    if (value)
      groups.push_back({{kind, static_cast<int64_t>(number)}, {value}});
  return groups;
}
