// Factors: index ranges that operands and results of an op share, and the notation in which an op states them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   linear          x: b s k, w: k n -> y: b s n              k is summed: of a cut k a device has a term of y
//   attention       q: b s (g r d!), [k: b S! (g d!), v: b S! (g e!)] -> o: b s (g r e!), lse: b (g r) s ; counts
//   linear_dx       x: b s k, w: k n -> y: b s n | d(y) w acc -> d(x)=acc
//
// In front of `->` stand the operands, behind it the results, each by its name and the factors of its dimensions. What
// the op takes any number of stands in brackets, and an operand that is absent is left out. A dimension is a factor or
// several, `(outer inner)`. `(* c)` is as many blocks side by side as the widest tensor is wider than the narrowest;
// each block is cut for itself. `..` are all dimensions, whatever the rank.
//   f!        nobody cuts it                        #v      data: integers, without a gradient
//   f@        where it is cut, an attribute says    ~v      a number whose gradient another op makes
//             from where a device counts it         y=acc   goes on in the operand `acc`
// Behind `;` stand words. The op `counts` positions, so rows without their order are refused. It is `ranked` if it
// numbers rows of its own, and `linear` in all operands together if terms and copies pass. It computes `each` element
// by itself. It `copies` if copies pass and terms do not. `heads(g r)`: the attribute counts these factors, or lists
// their sizes, so a cut divides it.
//
// Behind `|` stands an op that is called with values of the op before it and their gradients, `d(y)`. A gradient has
// the factors of its value, and all else follows: a factor that a gradient lacks is summed, and the op is linear in
// gradients.
#ifndef PP_DIALECT_FACTORS_H
#define PP_DIALECT_FACTORS_H

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <optional>
#include <string>
#include <vector>

namespace pp {

struct FactorRule {
  struct Factor {
    std::string name;
    bool isWhole = false;   ///< nobody cuts it
    bool isCounted = false; ///< an attribute says from where a device counts it
  };
  struct Port {
    std::string name;
    /// Of each dimension its factors by number, the outer one first; -1: blocks.
    llvm::SmallVector<llvm::SmallVector<int, 3>, 4> dims;
    bool isData = false, hasNoGradient = false, isEach = false;
    std::string into; ///< of a result: the operand in which it goes on

    bool has(int factor) const;
  };
  /// One operand or result of the op's definition: a tensor, or any number of them that repeat these.
  using Group = std::vector<Port>;

  llvm::SmallVector<Factor> factors;
  std::vector<Group> operands, results;
  bool counts = false, isRanked = false, isLinear = false, isEach = false, copies = false;
  llvm::SmallVector<std::string> linearIn; ///< linear in these operands together, the others fixed
  /// An attribute, and the factors that it counts, the outer one first.
  llvm::SmallVector<std::pair<std::string, llvm::SmallVector<int, 3>>> sizes;

  int numberOf(llvm::StringRef factor) const;
};

/// Reads a statement; nothing if it is wrong, and `why` then says where.
std::optional<FactorRule> parseFactors(llvm::StringRef text, std::string &why);

} // namespace pp

#endif // PP_DIALECT_FACTORS_H
