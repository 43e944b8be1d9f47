// How the config.json of a published model spells rotary positions, as the call of a table of ours.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_ROPEFIELDS_H
#define PP_FRONTEND_ROPEFIELDS_H

#include "frontend/model/FolderConfig.h"

namespace pp {

/// The fields that a config.json may have for rotary positions; `ropeCall` reads them all.
inline constexpr llvm::StringLiteral kRopeFields[] = {"rope_theta", "rope_scaling", "rope_parameters",
                                                      "partial_rotary_factor", "original_max_position_embeddings"};

/// The call that makes the table of heads of `width`, for sequences of `sequence` tokens: `rope_linear(10000, 64, 4)`.
mlir::FailureOr<std::string> ropeCall(Source &source, const FolderConfig &config, int64_t width, int64_t sequence);

} // namespace pp

#endif // PP_FRONTEND_ROPEFIELDS_H
