// A formula as a graph: the values of a map's region without their order, each made once, and simplified as it is made.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_FORMULA_H
#define PP_DIALECT_FORMULA_H

#include "dialect/nn/Nn.h"
#include <map>
#include <string>
#include <vector>

namespace pp::nn {

/// The axes along which a value has elements, as a set of bits; `thd` in text.
struct Along {
  static constexpr unsigned rows = 1, heads = 2, columns = 4, width = heads | columns, all = rows | width;

  static std::string text(unsigned axes);
  static std::optional<unsigned> read(llvm::StringRef text);
};

/// What makes a value of a formula.
enum class Element : uint8_t {
#define PP_ELEMENT(name, operands) name,
#include "runtime/cpu/Elements.def"
};
llvm::StringRef nameOf(Element element);
inline bool isReduction(Element element) { return element >= Element::sum_over; }
inline bool isCondition(Element element) {
  return element == Element::yes || (element >= Element::gt && element <= Element::unlike);
}

class Formula {
public:
  struct Term {
    Element op;
    llvm::SmallVector<unsigned, 3> of = {};
    double number = 0;
    unsigned leaf = 0; ///< the number of the tensor
    unsigned over = 0; ///< of a reduction
    unsigned axes = 0;
  };
  struct Made {
    unsigned value, axes;
  };

  unsigned leaf(unsigned tensor, unsigned axes);
  unsigned number(double number);
  /// The value as it is, where nothing may change its bits.
  unsigned keep(Element op, llvm::ArrayRef<unsigned> of, unsigned over = 0);
  /// The value, or a simpler one that equals it for all finite operands.
  unsigned make(Element op, llvm::ArrayRef<unsigned> of, unsigned over = 0);

  const Term &at(unsigned value) const { return terms[value]; }
  unsigned size() const { return static_cast<unsigned>(terms.size()); }
  /// The number; NaN of what is none.
  double numberAt(unsigned value) const;
  bool isZero(unsigned value) const { return numberAt(value) == 0; }
  /// The values that these are made of, and they, in an order in which they can be made; or not what reductions are
  /// made of.
  std::vector<unsigned> neededFor(llvm::ArrayRef<unsigned> values, bool throughReductions = true) const;

private:
  unsigned add(Term term);

  std::vector<Term> terms;
  std::map<std::tuple<Element, std::vector<unsigned>, uint64_t, unsigned, unsigned>, unsigned> known;
};

/// The region of a map, with a value for each of its ops; and what it gives.
struct MapFormula {
  Formula formula;
  llvm::SmallVector<Formula::Made> made;
  llvm::SmallVector<unsigned> reads; ///< axes of the tensors
};
MapFormula formulaOf(MapOp map);

/// Makes the op, which reads those of the tensors that the values need.
MapOp createMap(mlir::OpBuilder &builder, mlir::Location loc, const Formula &formula,
                llvm::ArrayRef<mlir::Value> tensors, llvm::ArrayRef<unsigned> reads, llvm::ArrayRef<Formula::Made> made,
                int64_t heads);

/// The values without columns from which values with columns, or the formula's own results, are made: numbers of a row
/// that a backward reads again, at most `most`.
llvm::SmallVector<unsigned> rowsToKeep(const Formula &formula, llvm::ArrayRef<unsigned> results, unsigned most = 4);

/// What the interpreter needs for all values of a row, and the sums over rows, each with up to 64 bytes to align it.
int64_t scratchOfFormula(MapOp map);
int64_t rowsOfFormula(MapOp map);
int64_t widthOfFormula(MapOp map);

/// Where a part of the rows has its sum of a tensor that is made without rows: `count` elements from `first` on, and
/// `times` such runs, one for each head, which come to one sum. Of a tensor with rows: no elements.
struct RowSum {
  int64_t first = 0, count = 0, times = 1;
};
llvm::SmallVector<RowSum> rowSumsOf(MapOp map);
/// The elements of a part, in the type of sums.
int64_t partOfFormula(MapOp map);

/// What the runtime reads of a formula (runtime/cpu/Formula.h), and the number by which a call names it.
std::string textOfFormula(MapOp map);
int64_t numberOfFormula(MapOp map);

} // namespace pp::nn

#endif // PP_DIALECT_FORMULA_H
