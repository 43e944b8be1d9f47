// Formulas of a model as the CPU runs them: their text, read once, and an interpreter that goes row by row.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   element bf16                  the element type of full tensors
//   width 64
//   heads 1
//   read thd bf16                 value 0, an element of the first tensor, with its axes
//   read hd bf16                  value 1
//   mul 0 0                       value 2
//   mean_over hd 2                value 3
//   number 1e-06                  value 4
//   add 3 4                       value 5
//   ..
//   make thd bf16 9               the first tensor that is made; `-` in place of axes: one number
//
// Axes are rows `t`, heads `h` and the columns of a head `d`. What is made without rows is the sum over them, and over
// all axes that it lacks.
#ifndef PP_RUNTIME_CPU_FORMULA_H
#define PP_RUNTIME_CPU_FORMULA_H

#include "runtime/kernels/Op.h"

namespace pp {

enum class Function : uint8_t;

class Formula {
public:
  using Code = void (*)(int64_t rows, const int64_t *strides, void *const *tensors);

  /// The formula of the op, of those that the program has. `why` says what is wrong with it.
  static std::unique_ptr<Formula> find(const PreparedOp &op, std::string &why);
  /// Reads the text; null and `why` if it is wrong.
  static std::unique_ptr<Formula> read(const std::string &text, std::string &why);

  int64_t scratchBytes() const { return bytes; }
  void run(int64_t rows, void *const *tensors, char *scratch) const;

private:
  struct Step {
    Function op;
    unsigned axes = 0, over = 0;
    unsigned of[3] = {};
    double number = 0;
    int64_t at = 0; ///< of its elements in the scratch
  };
  struct Tensor {
    unsigned axes;
    Type type;
    unsigned value;
    int64_t at = 0; ///< of its sums in the scratch
  };

  std::string readLine(const std::vector<std::string> &words);
  std::string readStep(const std::vector<std::string> &words);
  void place();
  int64_t sizeOf(unsigned axes) const;
  template <class F> struct Row;
  template <class F> void runAs(int64_t rows, void *const *tensors, char *scratch) const;

  Type element = Type::F32;
  int64_t width = 0, heads = 1, bytes = 0;
  std::vector<Step> steps; ///< the tensors that are read first
  std::vector<Tensor> reads, makes;
  std::vector<int64_t>
      strides;         ///< elements from a row to the next, of those that are read and then those that are made
  Code code = nullptr; ///< for this CPU; null: it is interpreted
};

pp_status_t runFormula(const PreparedOp &op, void *const *arguments);

} // namespace pp

#endif // PP_RUNTIME_CPU_FORMULA_H
