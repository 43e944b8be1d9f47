// What a program for GPUs has of each formula: its kernels as PTX, and how they are launched.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All kernels of a formula take the same arguments: i64 rows, i64 rows of a part, the address of the parts, then the
// address of each tensor, what is read first, then for each tensor i64 elements from a row to the next.
//
//   wide    accesses of `pack` elements, for addresses that are multiples of 16 bytes
//   narrow  accesses of one element, for all others
//   sums    adds up the parts, where what is made has sums over rows
//
// A formula without reductions and sums runs a thread for each pack of all rows. Any other runs a block for each part,
// which goes row by row. Of each sum over rows a part has its own, in the type of sums: `part` elements in all.
#ifndef PP_RUNTIME_CUDA_FORMULAKERNEL_H
#define PP_RUNTIME_CUDA_FORMULAKERNEL_H

#include <cstdint>
#include <vector>

extern "C" {
typedef struct pp_formula_kernel_t {
  const char *ptx;                       ///< null: the end of the table
  int64_t number, width, heads, tensors; ///< as the calls say them (runtime/kernels/Kernels.def)
  int64_t pack;                          ///< elements; 1: there is no `wide`
  int64_t wideThreads, narrowThreads;    ///< of a block; of `sums` there are 256
  int64_t byRows;                        ///< a block goes row by row
  int64_t part;                          ///< elements of a part
  int64_t longest;                       ///< elements of the longest sum; a block of `sums` makes 32 of each
} pp_formula_kernel_t;
/// In programs for GPUs with formulas alone; elsewhere its address is null.
extern const pp_formula_kernel_t pp_formula_kernels[] __attribute__((weak));
}

namespace pp {

constexpr int64_t formulaKernelFields = 10; ///< behind the address

/// Rows of a part: sums have at most 512 parts, and without sums a row is a part.
constexpr int64_t rowsOfFormulaPart(int64_t rows, int64_t part) {
  return part == 0 || rows == 0 ? 1 : (rows + 511) / 512;
}
/// How many parts there are.
constexpr int64_t partsOfFormula(int64_t rows, int64_t part) {
  const int64_t each = rowsOfFormulaPart(rows, part);
  return rows == 0 ? 0 : (rows + each - 1) / each;
}
/// Bytes of scratch; `bytesOfSum`: of an element of the type of sums.
constexpr int64_t scratchOfFormulaParts(int64_t rows, int64_t part, int64_t bytesOfSum) {
  return part == 0 ? 0 : partsOfFormula(rows, part) * part * bytesOfSum;
}

/// One call of a formula.
struct FormulaCall {
  bool isWide;
  int64_t blocks, threads; ///< of `wide` or `narrow`
  int64_t blocksOfSums;    ///< 0: there are no sums
  std::vector<uint64_t> arguments;

  /// `strides`: elements from a row to the next. A number for each row or head is not read in packs.
  FormulaCall(const pp_formula_kernel_t &its, int64_t rows, void *scratch, void *const *tensors, const int64_t *strides)
      : isWide(its.pack > 1), blocksOfSums(its.part > 0 ? (its.longest + 31) / 32 : 0) {
    arguments = {uint64_t(rows), uint64_t(rowsOfFormulaPart(rows, its.part)), reinterpret_cast<uint64_t>(scratch)};
    for (int64_t i = 0; i < its.tensors; ++i) {
      arguments.push_back(reinterpret_cast<uint64_t>(tensors[i]));
      isWide = isWide && arguments.back() % 16 == 0 && (strides[i] < its.width || strides[i] % its.pack == 0);
    }
    arguments.insert(arguments.end(), strides, strides + its.tensors);
    threads = isWide ? its.wideThreads : its.narrowThreads;
    const int64_t packs = rows * (its.width / (isWide ? its.pack : 1));
    blocks = its.byRows ? partsOfFormula(rows, its.part) : (packs + threads - 1) / threads;
  }
};

} // namespace pp

#endif // PP_RUNTIME_CUDA_FORMULAKERNEL_H
