// Writes the formulas of all task bodies as a table of texts, each once, and reads the table back.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "lowering/Formulas.h"
#include "dialect/formula/Formula.h"
#include "dialect/pipeline/BodyGroups.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/Module.h"
#include <map>

using namespace mlir;
using namespace pp;

using Texts = std::map<int64_t, std::string>;

static FailureOr<Texts> textsOf(ModuleOp module) {
  Texts texts;
  for (auto body : module.getOps<func::FuncOp>())
    if (BodyGroups::isBody(body) && !body.empty())
      for (auto map : body.getOps<nn::MapOp>()) {
        std::string text = nn::textOfFormula(map);
        auto [it, isNew] = texts.try_emplace(nn::numberOfFormula(map), text);
        if (!isNew && it->second != text)
          return map.emitOpError() << "has the number of another formula, " << it->first;
      }
  return texts;
}

LogicalResult pp::addFormulas(ModuleOp module, CallModule &calls) {
  FailureOr<Texts> texts = textsOf(module);
  if (failed(texts))
    return failure();
  if (texts->empty())
    return success();
  OpBuilder &builder = calls.builder;
  Location loc = module.getLoc();
  Type i64 = builder.getI64Type(), bodies = LLVM::LLVMArrayType::get(calls.pointer, 3);
  auto entry = LLVM::LLVMStructType::getLiteral(
      builder.getContext(), {calls.pointer, bodies, calls.pointer, i64, calls.i32, calls.i32, calls.i32});
  for (auto &[number, text] : *texts)
    calls.addText(("pp_formula_" + Twine(number)).str(), text);
  auto table = LLVM::LLVMArrayType::get(entry, texts->size() + 1);
  builder.setInsertionPointToEnd(calls.module->getBody());
  auto global = builder.create<LLVM::GlobalOp>(loc, table, /*isConstant=*/true, LLVM::Linkage::External, "pp_formulas",
                                               Attribute());
  OpBuilder::InsertionGuard guard(builder);
  builder.createBlock(&global.getInitializerRegion());
  Value value = builder.create<LLVM::ZeroOp>(loc, table);
  int64_t i = 0;
  for (auto &[number, text] : *texts) {
    Value address = builder.create<LLVM::AddressOfOp>(loc, calls.pointer, ("pp_formula_" + Twine(number)).str());
    Value its = builder.create<LLVM::ConstantOp>(loc, builder.getI64IntegerAttr(number));
    value = builder.create<LLVM::InsertValueOp>(loc, value, address, ArrayRef<int64_t>{i, 0});
    value = builder.create<LLVM::InsertValueOp>(loc, value, its, ArrayRef<int64_t>{i++, 3});
  }
  builder.create<LLVM::ReturnOp>(loc, value);
  return success();
}

std::string pp::checkFormulas(ModuleOp module, const llvm::Module &lowered) {
  FailureOr<Texts> texts = textsOf(module);
  auto *table = lowered.getNamedGlobal("pp_formulas");
  if (failed(texts) || texts->empty())
    return table ? "expected no table, got one" : "";
  auto *type = table && table->hasInitializer() ? dyn_cast<llvm::ArrayType>(table->getValueType()) : nullptr;
  if (!type || type->getNumElements() != texts->size() + 1)
    return "expected " + std::to_string(texts->size()) + " formulas and an end, got another number";
  const llvm::Constant *all = table->getInitializer();
  unsigned i = 0;
  for (auto &[number, text] : *texts) {
    const llvm::Constant *entry = all->getAggregateElement(i++);
    auto *address = dyn_cast_or_null<llvm::GlobalVariable>(entry ? entry->getAggregateElement(0U) : nullptr);
    auto *its = dyn_cast_or_null<llvm::ConstantInt>(entry ? entry->getAggregateElement(3U) : nullptr);
    auto *written = address && address->hasInitializer()
                        ? dyn_cast<llvm::ConstantDataSequential>(address->getInitializer())
                        : nullptr;
    if (!its || its->getSExtValue() != number || !written || !written->isCString() || written->getAsCString() != text)
      return "expected formula " + std::to_string(number) + " as entry " + std::to_string(i - 1) + ", got another one";
  }
  const llvm::Constant *end = all->getAggregateElement(i);
  return end && end->isNullValue() ? "" : "expected an end behind the last formula";
}
