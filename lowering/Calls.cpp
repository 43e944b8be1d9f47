// Builds status functions in the LLVM dialect, directly: a dialect conversion of as many ops takes ten times longer.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "lowering/Calls.h"

using namespace mlir;
using namespace pp;

CallModule::CallModule(Location loc)
    : module(ModuleOp::create(loc)), builder(loc.getContext()), pointer(LLVM::LLVMPointerType::get(loc.getContext())),
      i32(IntegerType::get(loc.getContext(), 32)) {}

LLVM::LLVMFuncOp CallModule::runtimeFunction(StringRef name, unsigned pointers) {
  LLVM::LLVMFuncOp &function = declared[name];
  if (function)
    return function;
  SmallVector<Type> types(pointers + 2, pointer);
  types[1] = i32;
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(module->getBody());
  function = builder.create<LLVM::LLVMFuncOp>(module->getLoc(), name, LLVM::LLVMFunctionType::get(i32, types));
  return function;
}

LLVM::LLVMFuncOp CallModule::addFunction(StringRef name, unsigned pointers, bool internal, Location loc) {
  SmallVector<Type> types(pointers, pointer);
  builder.setInsertionPointToEnd(module->getBody());
  return builder.create<LLVM::LLVMFuncOp>(loc, name, LLVM::LLVMFunctionType::get(i32, types),
                                          internal ? LLVM::Linkage::Internal : LLVM::Linkage::External);
}

LLVM::GlobalOp CallModule::addText(StringRef name, StringRef text) {
  auto type = LLVM::LLVMArrayType::get(IntegerType::get(builder.getContext(), 8), text.size() + 1);
  builder.setInsertionPointToEnd(module->getBody());
  // StringRef's terminator counts: the attribute takes it along.
  return builder.create<LLVM::GlobalOp>(module->getLoc(), type, /*isConstant=*/true, LLVM::Linkage::External, name,
                                        builder.getStringAttr(Twine(text) + StringRef("\0", 1)));
}

CallChain::CallChain(CallModule &calls, LLVM::LLVMFuncOp function)
    : calls(calls), function(function), current(function.addEntryBlock(calls.builder)) {}

Value CallChain::address(Value base, int64_t bytes) {
  if (bytes == 0)
    return base;
  OpBuilder &builder = calls.builder;
  builder.setInsertionPointToEnd(current);
  // MLIR keeps a static index in fewer bits than its type has, and wraps silently what does not fit.
  bool isStatic = llvm::isInt<LLVM::kGEPConstantBitWidth>(bytes);
  LLVM::GEPArg index(isStatic ? static_cast<int32_t>(bytes) : 0);
  if (!isStatic)
    index = builder.create<LLVM::ConstantOp>(base.getLoc(), builder.getI64IntegerAttr(bytes)).getResult();
  return builder.create<LLVM::GEPOp>(base.getLoc(), calls.pointer, builder.getI8Type(), base, index);
}

Value CallChain::null() {
  calls.builder.setInsertionPointToEnd(current);
  return calls.builder.create<LLVM::ZeroOp>(function.getLoc(), calls.pointer);
}

Value CallChain::list(ValueRange addresses) {
  OpBuilder &builder = calls.builder;
  Location loc = function.getLoc();
  builder.setInsertionPointToStart(&function.getBody().front());
  Value count =
      builder.create<LLVM::ConstantOp>(loc, builder.getI32IntegerAttr(static_cast<int32_t>(addresses.size())));
  Value list = builder.create<LLVM::AllocaOp>(loc, calls.pointer, calls.pointer, count);
  for (auto [i, each] : llvm::enumerate(addresses)) {
    Value place = address(list, static_cast<int64_t>(i * sizeof(void *)));
    builder.setInsertionPointToEnd(current);
    builder.create<LLVM::StoreOp>(loc, each, place);
  }
  return list;
}

void CallChain::call(Location loc, LLVM::LLVMFuncOp callee, ValueRange arguments) {
  OpBuilder &builder = calls.builder;
  if (!exit) {
    exit = new Block();
    function.getBody().push_back(exit);
    exit->addArgument(calls.i32, function.getLoc());
  }
  builder.setInsertionPointToEnd(current);
  Value status = builder.create<LLVM::CallOp>(loc, callee, arguments).getResult();
  Value zero = builder.create<LLVM::ConstantOp>(loc, builder.getI32IntegerAttr(0));
  Value bad = builder.create<LLVM::ICmpOp>(loc, LLVM::ICmpPredicate::ne, status, zero);
  auto *next = new Block();
  function.getBody().getBlocks().insert(exit->getIterator(), next);
  builder.create<LLVM::CondBrOp>(loc, bad, exit, status, next, ValueRange());
  current = next;
  ++count;
}

void CallChain::callRuntime(Location loc, StringRef name, int32_t number, ValueRange pointers) {
  LLVM::LLVMFuncOp callee = calls.runtimeFunction(name, pointers.size());
  calls.builder.setInsertionPointToEnd(current);
  SmallVector<Value> arguments = {argument(0)};
  arguments.push_back(calls.builder.create<LLVM::ConstantOp>(loc, calls.builder.getI32IntegerAttr(number)));
  arguments.append(pointers.begin(), pointers.end());
  call(loc, callee, arguments);
}

void CallChain::finish() {
  OpBuilder &builder = calls.builder;
  builder.setInsertionPointToEnd(current);
  Value zero = builder.create<LLVM::ConstantOp>(function.getLoc(), builder.getI32IntegerAttr(0));
  builder.create<LLVM::ReturnOp>(function.getLoc(), zero);
  if (!exit)
    return;
  builder.setInsertionPointToEnd(exit);
  builder.create<LLVM::ReturnOp>(function.getLoc(), exit->getArgument(0));
}
