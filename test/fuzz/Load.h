// Turns the rank programs of a module into what the executor runs; bodies are read once for all mutants of a module.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_FUZZ_LOAD_H
#define PP_TEST_FUZZ_LOAD_H

#include "dialect/pipeline/Pipeline.h"
#include "test/fuzz/Machine.h"
#include <map>
#include <string>

namespace pp::fuzz {

/// The kernels of all programs of a thread, prepared once; they grow as new shapes appear.
class KernelTable {
public:
  int32_t add(const OpSpec &spec);
  /// The prepared kernels; null if one of them is refused.
  const Kernels *prepare();
  const std::vector<OpSpec> &all() const { return specs; }

private:
  std::vector<OpSpec> specs;
  std::map<std::string, int32_t> numbers;
  std::unique_ptr<Kernels> kernels;
  size_t prepared = 0;
};

class Loader {
public:
  explicit Loader(KernelTable &table) : table(table) {}

  /// False with the reason where the programs cannot even be linked: a slot outside its arena, a launch that does not
  /// fit its body, an unknown peer. The code points into the loader.
  bool load(mlir::ModuleOp module, Code &code, std::string &why);

private:
  bool loadRank(pipeline::RankOp rank, pipeline::ProgramOp program, const Program &whole, RankCode &code,
                std::string &why);
  const BodyCode *body(mlir::func::FuncOp function);

  KernelTable &table;
  std::map<std::string, BodyCode> bodies;
};

} // namespace pp::fuzz

#endif // PP_TEST_FUZZ_LOAD_H
