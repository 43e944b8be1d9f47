// PTX where kernels are emulated: an interpreter runs it, on the streams that emulated kernels have.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Formula.h"
#include "runtime/simt/BlockFibers.h"
#include "test/gpu/PtxMachine.h"

using namespace pp;

namespace {

class EmulatedPtx final : public PtxLibrary {
public:
  pp_status_t launch(void *stream, size_t kernel, int64_t blocks, int64_t threads,
                     const std::vector<uint64_t> &arguments, std::string &why) const override {
    std::shared_ptr<PtxKernel> its = kernels[kernel];
    if (threads > its->mostThreads() || arguments.size() != its->argumentCount()) {
      why = "a formula's kernel with " + std::to_string(threads) + " threads a block and " +
            std::to_string(arguments.size()) + " arguments";
      return PP_INTERNAL;
    }
    simtLaunch(stream, [=] { its->run(blocks, unsigned(threads), arguments); });
    return PP_OK;
  }
  std::vector<std::shared_ptr<PtxKernel>> kernels;
};

} // namespace

std::unique_ptr<PtxLibrary> PtxLibrary::load(const char *ptx, const std::vector<const char *> &kernels,
                                             std::string &why) {
  std::map<std::string, std::shared_ptr<PtxKernel>> all = PtxKernel::read(ptx, why);
  auto library = std::make_unique<EmulatedPtx>();
  for (const char *name : kernels) {
    library->kernels.push_back(all[name]);
    if (!all[name] && why.empty())
      why = std::string("a formula has no kernel `") + name + "`";
  }
  return why.empty() ? std::move(library) : nullptr;
}
