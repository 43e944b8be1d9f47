// What pictures call units and messages, and how they colour phases, roles and causes: the same in all of them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_REPORT_NAMES_H
#define PP_REPORT_NAMES_H

#include "analysis/Simulate.h"

namespace pp {

/// `#rrggbb`, of a palette that people who see colours differently can tell apart (Okabe and Ito). Where a rank has
/// several stages, or several pieces of one part, the later ones are lighter.
std::string colorOf(pipeline::Phase phase, int64_t piece = 0, int64_t pieces = 1);
/// The color of the stripe on the units of a part, which tells them from units of stages and of other parts.
llvm::StringRef colorOfPart(int64_t part);
llvm::StringRef colorOf(pipeline::Role role);
llvm::StringRef colorOf(IdleCause cause);

/// The words of a legend.
llvm::StringRef describe(pipeline::Phase phase);

/// The roles in the order of stacking: values that stay for the whole step are at the bottom.
llvm::ArrayRef<pipeline::Role> stackedRoles();

/// The names of a program's units, which depend on all units together.
class UnitNames {
public:
  explicit UnitNames(pipeline::ProgramOp program);
  /// `3` for microbatch 3 where a rank has one stage, else `1.3`; slices follow: `1.3.0`.
  std::string shortOf(pipeline::UnitIdAttr unit) const;
  /// Which of the rank's stages, or pieces of the same part, the unit is of, and how many the rank with most has.
  int64_t pieceOf(int64_t rank, pipeline::UnitIdAttr unit) const;
  int64_t pieces() const { return most; }
  bool hasOnePieceEach() const { return oneEach; }
  /// The number of the unit's part in `parts`; -1 of a stage's unit.
  int64_t partOf(pipeline::UnitIdAttr unit) const;
  /// The parts of the model that are pieces of their own, in their order: `attn`, `head`, `head, in shards`.
  llvm::ArrayRef<std::string> parts() const { return partWords; }

private:
  std::vector<llvm::StringMap<int64_t>> ofRank; ///< piece names to their places
  llvm::SetVector<mlir::StringAttr> partNames;
  std::vector<std::string> partWords;
  int64_t most = 1;
  bool oneEach = true;
};

/// `one_f_one_b, p = 4, m = 8`.
std::string titleOf(pipeline::ProgramOp program);

/// `1.5 GB`, `12 kB`, `0 B`.
std::string withUnit(int64_t bytes);

} // namespace pp

#endif // PP_REPORT_NAMES_H
