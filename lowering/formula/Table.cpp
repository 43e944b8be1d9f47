// Writes the formulas of all task bodies as a table of texts, each once, and reads the table back.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "lowering/formula/Table.h"
#include "dialect/formula/Formula.h"
#include "dialect/pipeline/BodyGroups.h"
#include "lowering/Lowering.h"
#include "lowering/formula/Code.h"
#include "lowering/formula/Threads.h"
#include "runtime/cuda/FormulaKernel.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/Module.h"

using namespace mlir;
using namespace pp;

FailureOr<std::map<int64_t, nn::MapOp>> pp::formulasOf(ModuleOp module) {
  std::map<int64_t, nn::MapOp> formulas;
  for (auto body : module.getOps<func::FuncOp>())
    if (BodyGroups::isBody(body) && !body.empty())
      for (auto map : body.getOps<nn::MapOp>()) {
        auto [it, isNew] = formulas.try_emplace(nn::numberOfFormula(map), map);
        if (!isNew && nn::textOfFormula(it->second) != nn::textOfFormula(map))
          return map.emitOpError() << "has the number of another formula, " << it->first;
      }
  return formulas;
}

std::string pp::kernelsOfFormula(nn::MapOp map) {
  return ("pp_formula_" + Twine(nn::numberOfFormula(map)) + "_ptx").str();
}

/// The numbers of pp_formula_kernel_t, in its order.
static std::array<int64_t, formulaKernelFields> launchOf(nn::MapOp map) {
  FormulaLaunch its(map);
  auto heads = static_cast<int64_t>(map.getHeads());
  auto tensors = static_cast<int64_t>(map->getNumOperands() + map->getNumResults());
  return {nn::numberOfFormula(map), nn::widthOfFormula(map), heads,    tensors,    its.pack, its.wideThreads,
          its.narrowThreads,        its.byRows ? 1 : 0,      its.part, its.longest};
}

static LogicalResult addKernels(Location loc, const std::map<int64_t, nn::MapOp> &formulas, CallModule &calls) {
  OpBuilder &builder = calls.builder;
  auto numbers = LLVM::LLVMArrayType::get(builder.getI64Type(), formulaKernelFields);
  auto entry = LLVM::LLVMStructType::getLiteral(builder.getContext(), {calls.pointer, numbers});
  auto table = LLVM::LLVMArrayType::get(entry, formulas.size() + 1);
  builder.setInsertionPointToEnd(calls.module->getBody());
  for (auto [number, map] : formulas)
    builder.create<LLVM::GlobalOp>(loc, builder.getI8Type(), /*isConstant=*/true, LLVM::Linkage::External,
                                   kernelsOfFormula(map), Attribute());
  auto global = builder.create<LLVM::GlobalOp>(loc, table, /*isConstant=*/true, LLVM::Linkage::External,
                                               "pp_formula_kernels", Attribute());
  OpBuilder::InsertionGuard guard(builder);
  builder.createBlock(&global.getInitializerRegion());
  Value value = builder.create<LLVM::ZeroOp>(loc, table);
  int64_t i = 0;
  for (auto [number, map] : formulas) {
    Value text = builder.create<LLVM::AddressOfOp>(loc, calls.pointer, kernelsOfFormula(map));
    value = builder.create<LLVM::InsertValueOp>(loc, value, text, ArrayRef<int64_t>{i, 0});
    for (auto [k, its] : llvm::enumerate(launchOf(map))) {
      Value constant = builder.create<LLVM::ConstantOp>(loc, builder.getI64IntegerAttr(its));
      value =
          builder.create<LLVM::InsertValueOp>(loc, value, constant, ArrayRef<int64_t>{i, 1, static_cast<int64_t>(k)});
    }
    ++i;
  }
  builder.create<LLVM::ReturnOp>(loc, value);
  return success();
}

LogicalResult pp::addFormulas(ModuleOp module, CallModule &calls) {
  auto formulas = formulasOf(module);
  if (failed(formulas))
    return failure();
  if (formulas->empty())
    return success();
  Location loc = module.getLoc();
  if (programTarget(module) == "cuda")
    return addKernels(loc, *formulas, calls);
  OpBuilder &builder = calls.builder;
  Type i64 = builder.getI64Type(), bodies = LLVM::LLVMArrayType::get(calls.pointer, kFormulaSets);
  auto entry = LLVM::LLVMStructType::getLiteral(builder.getContext(), {calls.pointer, bodies, i64});
  auto function =
      LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(builder.getContext()), {i64, calls.pointer, calls.pointer});
  for (auto [number, map] : *formulas) {
    calls.addText(("pp_formula_" + Twine(number)).str(), nn::textOfFormula(map));
    builder.setInsertionPointToEnd(calls.module->getBody());
    for (unsigned set = 0; set < kFormulaSets; ++set)
      if (std::string name = formulaFunction(map, set); !name.empty())
        builder.create<LLVM::LLVMFuncOp>(loc, name, function);
  }
  auto table = LLVM::LLVMArrayType::get(entry, formulas->size() + 1);
  builder.setInsertionPointToEnd(calls.module->getBody());
  auto global = builder.create<LLVM::GlobalOp>(loc, table, /*isConstant=*/true, LLVM::Linkage::External, "pp_formulas",
                                               Attribute());
  OpBuilder::InsertionGuard guard(builder);
  builder.createBlock(&global.getInitializerRegion());
  Value value = builder.create<LLVM::ZeroOp>(loc, table);
  int64_t i = 0;
  for (auto [number, map] : *formulas) {
    for (unsigned set = 0; set < kFormulaSets; ++set)
      if (std::string name = formulaFunction(map, set); !name.empty()) {
        Value code = builder.create<LLVM::AddressOfOp>(loc, calls.pointer, name);
        value = builder.create<LLVM::InsertValueOp>(loc, value, code, ArrayRef<int64_t>{i, 1, set});
      }
    Value address = builder.create<LLVM::AddressOfOp>(loc, calls.pointer, ("pp_formula_" + Twine(number)).str());
    Value its = builder.create<LLVM::ConstantOp>(loc, builder.getI64IntegerAttr(number));
    value = builder.create<LLVM::InsertValueOp>(loc, value, address, ArrayRef<int64_t>{i, 0});
    value = builder.create<LLVM::InsertValueOp>(loc, value, its, ArrayRef<int64_t>{i++, 2});
  }
  builder.create<LLVM::ReturnOp>(loc, value);
  return success();
}

/// The entry names the code of this formula for each instruction set, and no other.
static bool hasItsCode(nn::MapOp map, const llvm::Constant *bodies) {
  for (unsigned set = 0; set < kFormulaSets; ++set) {
    const llvm::Constant *code = bodies ? bodies->getAggregateElement(set) : nullptr;
    std::string name = formulaFunction(map, set);
    if (!code || (name.empty() ? !code->isNullValue() : code->getName() != name))
      return false;
  }
  return true;
}

/// The entry names the kernels of this formula, and how they are launched.
static bool hasItsKernels(nn::MapOp map, const llvm::Constant *entry) {
  const llvm::Constant *text = entry->getAggregateElement(0U), *numbers = entry->getAggregateElement(1U);
  for (auto [k, wanted] : llvm::enumerate(launchOf(map))) {
    auto *its = numbers ? dyn_cast_or_null<llvm::ConstantInt>(numbers->getAggregateElement(k)) : nullptr;
    if (!its || its->getSExtValue() != wanted)
      return false;
  }
  return text && text->getName() == kernelsOfFormula(map);
}

std::string pp::checkFormulas(ModuleOp module, const llvm::Module &lowered) {
  auto formulas = formulasOf(module);
  const bool isForGpus = programTarget(module) == "cuda";
  auto *table = lowered.getNamedGlobal(isForGpus ? "pp_formula_kernels" : "pp_formulas");
  if (failed(formulas) || formulas->empty())
    return table ? "expected no table, got one" : "";
  auto *type = table && table->hasInitializer() ? dyn_cast<llvm::ArrayType>(table->getValueType()) : nullptr;
  if (!type || type->getNumElements() != formulas->size() + 1)
    return "expected " + std::to_string(formulas->size()) + " formulas and an end, got another number";
  const llvm::Constant *all = table->getInitializer();
  unsigned i = 0;
  for (auto [number, map] : *formulas) {
    const llvm::Constant *entry = all->getAggregateElement(i++);
    if (isForGpus && entry && hasItsKernels(map, entry))
      continue;
    auto *address = dyn_cast_or_null<llvm::GlobalVariable>(entry ? entry->getAggregateElement(0U) : nullptr);
    auto *its = dyn_cast_or_null<llvm::ConstantInt>(entry ? entry->getAggregateElement(2U) : nullptr);
    auto *written = address && address->hasInitializer()
                        ? dyn_cast<llvm::ConstantDataSequential>(address->getInitializer())
                        : nullptr;
    if (!its || its->getSExtValue() != number || !written || !written->isCString() ||
        written->getAsCString() != nn::textOfFormula(map) || !hasItsCode(map, entry->getAggregateElement(1U)))
      return "expected formula " + std::to_string(number) + " as entry " + std::to_string(i - 1) + ", got another one";
  }
  const llvm::Constant *end = all->getAggregateElement(i);
  return end && end->isNullValue() ? "" : "expected an end behind the last formula";
}
