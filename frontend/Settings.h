// The options of a `train` that are written `name = value`: of `data`, `mlp` and `optimizer`, with what each may be.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_SETTINGS_H
#define PP_FRONTEND_SETTINGS_H

#include "frontend/evaluate/Evaluator.h"
#include "mlir/IR/Builders.h"

namespace pp {

struct Setting {
  /// The kind of a setting's value, in the order of the table in Settings.cpp.
  enum Range { Size, Count, AtLeast0, Above0, Below1, Share, Bit, Flag, Word, Texts, Factors };
  StringRef name;
  double value; ///< of a word its number in `words`
  Range range;
  bool scalesLoss = false; ///< for precision f16 alone
  llvm::ArrayRef<StringRef> words = {};
  SMLoc at = {}; ///< where it is given
  std::vector<StringRef> texts = {};
  std::vector<double> factors = {}; ///< of `Factors`, one for each text

  bool isInt() const { return range == Size || range == Count || range == Bit; }
};

/// Schedules of the learning rate; the runtime has the formulas (runtime/trainer/Rate.h).
inline constexpr StringRef kRates[] = {"cosine", "linear", "constant", "wsd"};
/// The optimizers; docs/optimizers.md has the formulas.
inline constexpr StringRef kOptimizers[] = {"adamw", "muon", "sgd"};

class Settings {
public:
  Setting data[4] = {{"microbatch", 1, Setting::Size},
                     {"sequence", 64, Setting::Size},
                     {"documents", 0, Setting::Flag},
                     {"group", 1, Setting::Size}};
  Setting mlp[1] = {{"chunks", 1, Setting::Size}};
  std::vector<Setting> optimizer; ///< of the one that is chosen

  Settings() { choose("adamw"); }
  /// Sets the settings of this optimizer to their defaults; false: there is no such optimizer.
  bool choose(StringRef kind);
  StringRef chosen() const { return kind; }
  bool has(StringRef option, StringRef name);

  /// All settings by the name of their option.
  std::array<std::pair<StringRef, llvm::MutableArrayRef<Setting>>, 3> all() {
    return {{{"data", data}, {"mlp", mlp}, {"optimizer", optimizer}}};
  }
  llvm::MutableArrayRef<Setting> of(StringRef option);

  /// An error unless `option` has a setting of this name.
  mlir::LogicalResult check(Evaluator &evaluator, SMLoc at, StringRef option, StringRef name);
  /// Takes a value that was given at `at`, if it is in range.
  mlir::LogicalResult set(Evaluator &evaluator, SMLoc at, StringRef option, StringRef name, const Value &value);
  /// An error if an optimizer option that is given has no effect with this precision and rate.
  mlir::LogicalResult checkOptimizer(Evaluator &evaluator, StringRef precision);

  mlir::DictionaryAttr dictionaryOf(StringRef option, StringRef precision, mlir::Builder &builder);

private:
  Setting &find(llvm::MutableArrayRef<Setting> settings, StringRef name);

  StringRef kind; ///< of the optimizer
};

} // namespace pp

#endif // PP_FRONTEND_SETTINGS_H
