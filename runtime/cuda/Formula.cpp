// Finds the kernels of formulas in the program, loads each once, and launches them on the rank's stream.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Formula.h"
#include "runtime/simt/Launch.h"
#include <map>
#include <mutex>

using namespace pp;

namespace {

/// In the order in which they are asked for.
enum Which : size_t { ofElements, ofPacks, ofParts };

/// The library of the text, which ranks of one process share.
std::shared_ptr<const PtxLibrary> shared(const pp_formula_kernel_t &entry, std::string &why) {
  static std::mutex mutex;
  static auto &all = *new std::map<const char *, std::weak_ptr<const PtxLibrary>>;
  std::lock_guard lock(mutex);
  std::weak_ptr<const PtxLibrary> &known = all[entry.ptx];
  std::shared_ptr<const PtxLibrary> library = known.lock();
  if (library)
    return library;
  std::vector<const char *> kernels = {"narrow"};
  kernels.push_back(entry.pack > 1 ? "wide" : "narrow");
  kernels.push_back(entry.part > 0 ? "sums" : "narrow");
  library = PtxLibrary::load(entry.ptx, kernels, why);
  known = library;
  return library;
}

int64_t bytesOfSum(const PreparedOp &op) { return op.type == Type::F64 ? 8 : 4; }

} // namespace

std::unique_ptr<Formula> Formula::find(const PreparedOp &op, std::string &why) {
  const pp_formula_kernel_t *entry = pp_formula_kernels;
  while (entry && entry->ptx && entry->number != op.dims[3])
    ++entry;
  const std::string number = std::to_string(op.dims[3]);
  if (!entry || !entry->ptx) {
    why = "the program has no kernels of formula " + number + " for GPUs: it was compiled for CPUs";
    return nullptr;
  }
  if (entry->width != op.dims[1] || entry->heads != op.dims[2] || entry->tensors != op.chunkCount) {
    why = "formula " + number + " has other sizes";
    return nullptr;
  }
  auto formula = std::make_unique<Formula>();
  formula->entry = entry;
  formula->library = shared(*entry, why);
  return formula->library ? std::move(formula) : nullptr;
}

int64_t Formula::scratchBytes(const PreparedOp &op) const {
  return scratchOfFormulaParts(op.dims[0], entry->part, bytesOfSum(op));
}

pp_status_t Formula::run(const PreparedOp &op, void *const *tensors) const {
  std::vector<int64_t> strides;
  for (int64_t i = 0; i < op.chunkCount; ++i)
    strides.push_back(op.chunks[i].length);
  const FormulaCall call(*entry, op.dims[0], op.scratch, tensors, strides.data());
  auto launch = [&](Which which, int64_t blocks, int64_t threads) {
    return blocks == 0 ? PP_OK
                       : library->launch(op.launches->stream, which, blocks, threads, call.arguments, whyNotLaunched);
  };
  pp_status_t status = launch(call.isWide ? ofPacks : ofElements, call.blocks, call.threads);
  return status == PP_OK ? launch(ofParts, call.blocksOfSums, 256) : status;
}
