// Names and colours of what pictures show.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "report/Names.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

std::string pp::colorOf(Phase phase, int64_t piece, int64_t pieces) {
  static constexpr uint32_t base[] = {0x56B4E9, 0x009E73, 0xE69F00, 0xF0E442, 0xCC79A7, 0x999999}; // F B I W R U
  uint32_t color = base[static_cast<int>(phase)], mixed = 0;
  double light = pieces > 1 ? 0.6 * piece / (pieces - 1) : 0;
  for (int shift : {16, 8, 0}) {
    double part = (color >> shift) & 0xFF;
    mixed |= static_cast<uint32_t>(part + (255 - part) * light + 0.5) << shift;
  }
  return llvm::formatv("#{0}", llvm::format_hex_no_prefix(mixed, 6)).str();
}

// Darker than those of phases, on which they lie.
StringRef pp::colorOfPart(int64_t part) {
  static constexpr StringLiteral colors[] = {"#1b1b1b", "#b2182b", "#5e3c99", "#01665e", "#7f3b08", "#c51b7d"};
  return colors[part % std::size(colors)];
}

// None is that of a phase or of a cause of idle time: one picture shows all three.
StringRef pp::colorOf(Role role) {
  static constexpr StringLiteral colors[] = {"#332288", "#882255", "#0072b2", "#cc6677", "#999933", "#661100",
                                             "#aa4499", "#666666", "#7d8a96", "#c7c7c7", "#ddcc77", "#c7c7c7",
                                             "#c7c7c7", "#117733", "#88ccee", "#44aa99"};
  return colors[static_cast<int>(role)];
}

StringRef pp::colorOf(IdleCause cause) {
  static constexpr StringLiteral colors[] = {"#edc87e", "#d55e00", "#4a7fb5", "#b4b8be"};
  return colors[static_cast<int>(cause)];
}

StringRef pp::describe(Phase phase) {
  static constexpr StringLiteral names[] = {"forward",          "backward",  "input gradient",
                                            "weight gradients", "recompute", "update"};
  return names[static_cast<int>(phase)];
}

ArrayRef<Role> pp::stackedRoles() {
  static constexpr Role roles[] = {Role::weight, Role::opt,  Role::grad,      Role::data, Role::stash,
                                   Role::act,    Role::dact, Role::kv,        Role::dkv,  Role::state,
                                   Role::dstate, Role::stat, Role::temporary, Role::undo};
  return roles;
}

//===-- Units ---------------------------------------------------------------------------------------------------===//

UnitNames::UnitNames(ProgramOp program) {
  for (auto piece : program.getOps<PieceOp>())
    if (CoordAttr coord = piece.getCoord(); !coord.isStage() && partNames.insert(coord.getPart()))
      partWords.push_back(coord.getPart().str() + (piece.getVocabularyAttr() ? ", in shards" : ""));
  for (auto rank : program.getOps<RankOp>()) {
    llvm::StringMap<int64_t> &places = ofRank.emplace_back();
    for (auto launch : rank.getOps<LaunchOp>())
      places.insert({launch.getUnit().getCoord().pieceName(), 0});
    llvm::DenseMap<mlir::Attribute, int64_t> counts; // by part
    for (auto piece : program.getOps<PieceOp>())
      if (auto found = places.find(piece.getSymName()); found != places.end()) {
        found->second = counts[piece.getCoord().getPart()]++;
        most = std::max(most, found->second + 1);
      }
    oneEach &= places.size() <= 1;
  }
}

int64_t UnitNames::partOf(UnitIdAttr unit) const {
  auto found = llvm::find(partNames, unit.getCoord().getPart());
  return found == partNames.end() ? -1 : found - partNames.begin();
}

std::string UnitNames::shortOf(UnitIdAttr unit) const {
  CoordAttr coord = unit.getCoord();
  SmallVector<std::string, 3> parts;
  if (!oneEach || coord.getMicrobatch() < 0)
    parts.push_back(coord.isStage() ? std::to_string(coord.getIndex()) : coord.pieceName());
  for (int64_t number : {coord.getMicrobatch(), coord.getSlice()})
    if (number >= 0)
      parts.push_back(std::to_string(number));
  return llvm::join(parts, ".");
}

int64_t UnitNames::pieceOf(int64_t rank, UnitIdAttr unit) const {
  return ofRank[rank].lookup(unit.getCoord().pieceName());
}

std::string pp::titleOf(ProgramOp program) {
  auto name = program.getTrain().getAs<StringAttr>("schedule");
  return llvm::formatv("{0}, p = {1}, m = {2}", name ? name.getValue() : program.getSymName(), program.getRanks(),
                       program.getMicrobatches());
}

std::string pp::withUnit(int64_t bytes) {
  static constexpr StringLiteral units[] = {"B", "kB", "MB", "GB", "TB"};
  double value = bytes;
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(units); ++unit)
    value /= 1000;
  return llvm::formatv("{0} {1}",
                       llvm::format(value < 10 && unit    ? "%.2f"
                                    : value < 100 && unit ? "%.1f"
                                                          : "%.0f",
                                    value),
                       units[unit]);
}
