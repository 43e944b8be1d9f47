// Reads from a program's settings how each of its weights is updated.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Optimizer.h"
#include <cmath>

using namespace mlir;
using namespace pp;
using pp::pipeline::WeightAttr;

Optimizer::Optimizer(pipeline::ProgramOp program)
    : loc(program.getLoc()), settings(program.getTrain().getAs<DictionaryAttr>("optimizer")),
      alone(program.getRanks() == 1) {
  StringAttr kind = settings ? settings.getAs<StringAttr>("kind") : StringAttr();
  if (kind && kind.getValue() == "sgd")
    rule = Rule::sgd;
  if (kind && kind.getValue() == "muon")
    rule = Rule::muon;
}

Optimizer::Rule Optimizer::ruleFor(WeightAttr weight) const {
  if (weight.getDeclared().getSteer())
    return Rule::steer;
  bool isInLayer = nn::isNumbered(weight.getDeclared().getAs().getValue());
  if (rule == Rule::muon && (weight.getType().getRank() != 2 || !isInLayer))
    return Rule::adamw;
  return rule;
}

llvm::SmallVector<llvm::StringRef> Optimizer::stateOf(WeightAttr weight) const {
  llvm::SmallVector<llvm::StringRef> kinds = {"u"};
  if (ruleFor(weight) == Rule::adamw)
    kinds = {"m", "v"};
  if (ruleFor(weight) == Rule::steer)
    kinds.clear();
  if (weight.getType().getElementTypeBitWidth() == 16)
    kinds.push_back("master");
  return kinds;
}

llvm::ArrayRef<Attribute> Optimizer::listed(llvm::StringRef setting) const {
  auto items = settings ? settings.getAs<ArrayAttr>(setting) : ArrayAttr();
  return items ? items.getValue() : llvm::ArrayRef<Attribute>();
}

/// The text of an item: alone, or before the factor of its group.
static StringAttr textOf(Attribute item) {
  auto group = dyn_cast<ArrayAttr>(item);
  return cast<StringAttr>(group ? group[0] : item);
}

/// Compares the name that all layers share, so that layers share their functions, too.
static bool isNamed(WeightAttr weight, Attribute text) {
  nn::WeightAttr declared = weight.getDeclared();
  llvm::StringRef name =
      declared.getAs() && !declared.getAs().empty() ? declared.getAs().getValue() : declared.getName().getValue();
  return name.contains(textOf(text).getValue());
}

double Optimizer::factorOf(WeightAttr weight, llvm::StringRef setting) const {
  for (Attribute group : listed(setting))
    if (isNamed(weight, group))
      return cast<FloatAttr>(cast<ArrayAttr>(group)[1]).getValueAsDouble();
  return 1;
}

bool Optimizer::decays(WeightAttr weight) const {
  return weight.getType().getRank() >= 2 &&
         llvm::none_of(listed("no_decay"), [&](Attribute text) { return isNamed(weight, text); });
}

bool Optimizer::isNesterov() const {
  auto nesterov = settings ? settings.getAs<BoolAttr>("nesterov") : BoolAttr();
  return nesterov && nesterov.getValue();
}

bool Optimizer::hasBarrier() const {
  auto barrier = settings ? settings.getAs<BoolAttr>("barrier") : BoolAttr();
  return !barrier || barrier.getValue() || alone;
}

double Optimizer::lengthOf(RankedTensorType matrix) const {
  auto in = static_cast<double>(matrix.getDimSize(0)), out = static_cast<double>(matrix.getDimSize(1));
  auto adjust = settings ? settings.getAs<StringAttr>("adjust") : StringAttr();
  if (adjust && adjust.getValue() == "match_rms_adamw")
    return 0.2 * std::sqrt(std::max(in, out));
  return std::sqrt(std::max(1.0, out / in));
}

LogicalResult Optimizer::check(llvm::ArrayRef<WeightAttr> weights) const {
  for (llvm::StringRef setting : {"no_decay", "lr_scale", "decay_scale"})
    for (Attribute text : listed(setting))
      if (llvm::none_of(weights, [&](WeightAttr weight) { return isNamed(weight, text); }))
        return emitError(loc) << "`" << setting << "`: no weight has " << textOf(text) << " in its name";
  return success();
}
