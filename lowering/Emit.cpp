// Emits LLVM modules as text and as object files, one per rank, several at a time.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Proof.h"
#include "lowering/Lowering.h"
#include "lowering/formula/Code.h"
#include "lowering/formula/Table.h"
#include "lowering/formula/Threads.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/Threading.h"
#include "report/Output.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"
#include <mutex>

using namespace mlir;
using namespace pp;

// A rank program is glue: constants, addresses, calls, compares. Any CPU of the architecture runs it equally fast, so
// an object names no CPU and is the same on every machine. Optimising does not pay, either: 1e5 calls take 1.4 s to
// compile without it. The first level takes more than ten times as long and makes objects a seventh smaller.
static std::unique_ptr<llvm::TargetMachine>
makeTargetMachine(std::string &error, llvm::CodeGenOptLevel level = llvm::CodeGenOptLevel::None) {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
  std::string triple = llvm::sys::getDefaultTargetTriple();
  const llvm::Target *target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target)
    return nullptr;
  return std::unique_ptr<llvm::TargetMachine>(target->createTargetMachine(
      triple, /*CPU=*/"", /*Features=*/"", llvm::TargetOptions(), llvm::Reloc::PIC_, std::nullopt, level));
}

/// Refuses what GPUs do not run: once, for its bodies are in the programs of many ranks.
static LogicalResult checkTarget(ModuleOp module) {
  if (programTarget(module) != "cuda")
    return success();
  for (auto body : module.getOps<func::FuncOp>()) {
    WalkResult walked = body.walk([](Operation *op) {
      std::string why;
      if (isa<nn::QuantizeOp>(op))
        why = "products of 8 bits run on CPUs only for now; compile with `--target=cpu`";
      else if (auto map = dyn_cast<nn::MapOp>(op))
        why = whyNoThreads(map);
      return why.empty() ? WalkResult::advance() : WalkResult(emitError(op->getLoc()) << why);
    });
    if (walked.wasInterrupted())
      return failure();
  }
  return success();
}

LogicalResult pp::writeLlvmText(ModuleOp module, int64_t rank, llvm::raw_ostream &os) {
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> lowered;
  if (failed(checkTarget(module)) || failed(lowerRank(module, rank, context, lowered)))
    return failure();
  lowered->print(os, nullptr);
  return success();
}

static LogicalResult writeObject(llvm::Module &module, llvm::TargetMachine &machine, StringRef path, Location loc) {
  module.setTargetTriple(machine.getTargetTriple().str());
  module.setDataLayout(machine.createDataLayout());
  std::string refused;
  auto fill = [&](llvm::raw_pwrite_stream &os) -> LogicalResult {
    llvm::legacy::PassManager passes;
    if (machine.addPassesToEmitFile(passes, os, nullptr, llvm::CodeGenFileType::ObjectFile))
      return emitError(loc) << "this machine's code generator writes no object files";
    passes.run(module);
    return success();
  };
  if (succeeded(writeOutput(path, refused, fill)))
    return success();
  if (!refused.empty())
    return emitError(loc) << "cannot write `" << path << "`: " << refused;
  return failure();
}

static LogicalResult writeObject(llvm::Module &module, StringRef path, Location loc) {
  std::string why;
  std::unique_ptr<llvm::TargetMachine> machine = makeTargetMachine(why);
  return machine ? writeObject(module, *machine, path, loc)
                 : LogicalResult(emitError(loc) << "no code generator for this machine: " << why);
}

/// Formulas alone are computed by what is emitted here: their code is optimised.
static LogicalResult writeFormulas(ArrayRef<nn::MapOp> maps, StringRef path, Location loc) {
  std::string why;
  std::unique_ptr<llvm::TargetMachine> machine = makeTargetMachine(why, llvm::CodeGenOptLevel::Default);
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> lowered;
  if (!machine)
    return emitError(loc) << "no code generator for this machine: " << why;
  return success(succeeded(lowerFormulas(maps, *machine, context, lowered)) &&
                 succeeded(writeObject(*lowered, *machine, path, loc)));
}

/// The kernels of formulas for GPUs, as texts for their driver.
static LogicalResult writeKernels(ArrayRef<nn::MapOp> maps, StringRef path, Location loc) {
  std::vector<std::string> texts(maps.size());
  auto write = [&](size_t i) -> LogicalResult {
    FailureOr<std::string> text = writeThreads(maps[i]);
    if (succeeded(text))
      texts[i] = *text;
    return text;
  };
  if (failed(failableParallelForEachN(loc.getContext(), 0, maps.size(), write)))
    return failure();
  llvm::LLVMContext context;
  llvm::Module module("formulas", context);
  for (auto [map, text] : llvm::zip(maps, texts)) {
    llvm::Constant *value = llvm::ConstantDataArray::getString(context, text);
    new llvm::GlobalVariable(module, value->getType(), /*isConstant=*/true, llvm::GlobalValue::ExternalLinkage, value,
                             kernelsOfFormula(map));
  }
  return writeObject(module, path, loc);
}

LogicalResult pp::emitObject(const ProvedModule &proved, int64_t rank, StringRef path) {
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> lowered;
  if (failed(checkTarget(proved.get())) || failed(lowerRank(proved.get(), rank, context, lowered)))
    return failure();
  return writeObject(*lowered, path, proved.get().getLoc());
}

LogicalResult pp::emitObjects(const ProvedModule &proved, ArrayRef<int64_t> ranks, StringRef folder,
                              SmallVectorImpl<std::string> &paths) {
  ModuleOp module = proved.get();
  if (std::error_code error = llvm::sys::fs::create_directories(folder))
    return emitError(module.getLoc()) << "cannot make folder `" << folder << "`: " << error.message();
  if (failed(checkTarget(module)))
    return failure();
  auto formulas = formulasOf(module);
  if (failed(formulas))
    return failure();
  auto maps = llvm::map_to_vector(*formulas, [](auto each) { return each.second; });
  // One task per rank, one for the table, and a last one for the formulas.
  size_t first = paths.size();
  for (int64_t rank : ranks)
    paths.push_back((folder + "/rank" + Twine(rank) + ".o").str());
  paths.push_back((folder + "/table.o").str());
  if (!maps.empty())
    paths.push_back((folder + "/formulas.o").str());
  return failableParallelForEachN(module.getContext(), 0, paths.size() - first, [&](size_t i) -> LogicalResult {
    if (i > ranks.size())
      return programTarget(module) == "cuda" ? writeKernels(maps, paths[first + i], module.getLoc())
                                             : writeFormulas(maps, paths[first + i], module.getLoc());
    llvm::LLVMContext context;
    std::unique_ptr<llvm::Module> lowered;
    LogicalResult status =
        i < ranks.size() ? lowerRank(module, ranks[i], context, lowered) : lowerTable(module, ranks, context, lowered);
    return failed(status) ? failure() : writeObject(*lowered, paths[first + i], module.getLoc());
  });
}
