// How the config.json of a published model spells rotary positions, as the call of a table of ours.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_ROPEFIELDS_H
#define PP_FRONTEND_ROPEFIELDS_H

#include "frontend/model/FolderConfig.h"

namespace pp {

/// The fields that a config.json may have for rotary positions; `ropeCall` reads them all.
inline constexpr llvm::StringLiteral kRopeFields[] = {"rope_theta", "rope_scaling", "rope_parameters",
                                                      "partial_rotary_factor", "original_max_position_embeddings"};

/// A family's settings of rotary positions: the heads, and the values for fields that its config.json lacks.
struct RopeDefaults {
  int64_t width = 0;
  /// The type of layers that turn by the table, where types differ; they all do if empty. What is said of no type is
  /// said of `full_attention`.
  llvm::StringRef kind = "";
  double theta = 10000;
  llvm::StringRef base = "rope_theta"; ///< the field that has theta, beside `rope_scaling`
  std::optional<double> partial;       ///< the share of a head that turns; none: heads turn as a whole
  std::optional<double> original;      ///< the sequence's length in training, whatever the dictionary says
  bool isNeeded = false;               ///< transformers has a dictionary of its own where the file has none
  bool grows = false;                  ///< the dictionary says, too, how scores grow with positions
  llvm::StringRef yarn = "yarn";       ///< the type that `yarn` stands for
};

/// The call that makes the table, for sequences of `sequence` tokens: `rope_linear(10000, 64, 4)`.
mlir::FailureOr<std::string> ropeCall(Source &source, const FolderConfig &config, const RopeDefaults &defaults,
                                      int64_t sequence);

/// What multiplies the scores of latent attention beside 1 / sqrt(d).
mlir::FailureOr<double> ropeTemperature(Source &source, const FolderConfig &config);

/// By what the scores of queries grow, `llama_4_scaling_beta`, as the growth of `rope`.
mlir::FailureOr<std::string> ropeGrowth(Source &source, const FolderConfig &config);

} // namespace pp

#endif // PP_FRONTEND_ROPEFIELDS_H
