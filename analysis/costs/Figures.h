// A cluster as one of its devices has it: figures that are lists have an entry for each kind of device.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_FIGURES_H
#define PP_ANALYSIS_FIGURES_H

#include "dialect/pipeline/Pipeline.h"

namespace pp {

/// The attribute `cluster` with a number in place of each list: the device's entry. Devices of one kind have one
/// dictionary.
mlir::DictionaryAttr figuresOf(mlir::DictionaryAttr cluster, int64_t device);

/// The devices that run the program of a rank.
llvm::SmallVector<int64_t> devicesOf(pipeline::ProgramOp program, int64_t rank);

/// The kinds of them, each once.
llvm::SmallVector<mlir::DictionaryAttr> kindsOf(pipeline::ProgramOp program, int64_t rank);

} // namespace pp

#endif // PP_ANALYSIS_FIGURES_H
