// Lowers GPU kernels to PTX by LLVM's code generator, with the toolkit's functions of f64 where kernels call some.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "lowering/formula/Ptx.h"
#include "lowering/Config.h"
#include "lowering/formula/Writer.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/IRReader/IRReader.h"
#include "llvm/Linker/Linker.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include <mutex>

using namespace mlir;
using namespace pp;

static DialectRegistry writtenDialects() {
  DialectRegistry registry;
  registerWritten(registry);
  return registry;
}

PtxModule::PtxModule()
    : context(writtenDialects(), MLIRContext::Threading::DISABLED), b(UnknownLoc::get(&context), &context) {
  context.loadAllAvailableDialects();
  module = ModuleOp::create(b.getLoc());
  b.setInsertionPointToEnd(module->getBody());
}

LogicalResult PtxModule::addKernel(StringRef name, int64_t threads) {
  kernels.push_back({name.str(), threads});
  return approximateFunctions(module->lookupSymbol<LLVM::LLVMFuncOp>(name), /*hasFma=*/true);
}

bool pp::hasFunctionsOfF64() { return llvm::sys::fs::exists(PP_LIBDEVICE); }

static std::unique_ptr<llvm::TargetMachine> makeMachine() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
  std::string triple = "nvptx64-nvidia-cuda", error;
  const llvm::Target *target = llvm::TargetRegistry::lookupTarget(triple, error);
  return std::unique_ptr<llvm::TargetMachine>(
      target ? target->createTargetMachine(triple, "sm_80", "+ptx70", llvm::TargetOptions(), std::nullopt, std::nullopt,
                                           llvm::CodeGenOptLevel::Default)
             : nullptr);
}

/// Links those of the toolkit's functions that are called, and hides them.
static LogicalResult linkFunctions(llvm::Module &module) {
  bool isCalled = llvm::any_of(module, [](llvm::Function &each) { return each.getName().starts_with("__nv_"); });
  if (!isCalled)
    return success();
  llvm::SMDiagnostic why;
  std::unique_ptr<llvm::Module> library = llvm::parseIRFile(PP_LIBDEVICE, why, module.getContext());
  if (!library)
    return failure();
  library->setTargetTriple(module.getTargetTriple());
  library->setDataLayout(module.getDataLayout());
  if (llvm::Linker::linkModules(module, std::move(library), llvm::Linker::LinkOnlyNeeded))
    return failure();
  for (llvm::Function &each : module)
    if (each.getName().starts_with("__nv_") && !each.isDeclaration())
      each.setLinkage(llvm::GlobalValue::InternalLinkage);
  return success();
}

/// Says what a kernel is, and how many threads its blocks have: so many registers a thread may take.
static void markKernel(llvm::Module &module, StringRef name, int64_t threads) {
  llvm::LLVMContext &context = module.getContext();
  llvm::Function *kernel = module.getFunction(name);
  llvm::NamedMDNode *all = module.getOrInsertNamedMetadata("nvvm.annotations");
  auto add = [&](StringRef what, int64_t number) {
    llvm::Metadata *its[] = {
        llvm::ValueAsMetadata::get(kernel), llvm::MDString::get(context, what),
        llvm::ConstantAsMetadata::get(llvm::ConstantInt::get(llvm::Type::getInt32Ty(context), number))};
    all->addOperand(llvm::MDNode::get(context, its));
  };
  add("kernel", 1);
  add("maxntidx", threads);
}

FailureOr<std::string> PtxModule::print() {
  std::unique_ptr<llvm::TargetMachine> machine = makeMachine();
  llvm::LLVMContext own;
  std::unique_ptr<llvm::Module> lowered;
  auto prepare = [&](llvm::Module &its) {
    for (const auto &[name, threads] : kernels)
      markKernel(its, name, threads);
    return linkFunctions(its);
  };
  if (!machine || failed(lowerWritten(*module, *machine, own, lowered, prepare)))
    return failure();
  llvm::SmallString<0> text;
  llvm::raw_svector_ostream out(text);
  llvm::legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, out, nullptr, llvm::CodeGenFileType::AssemblyFile))
    return failure();
  passes.run(*lowered);
  return text.str().str();
}
