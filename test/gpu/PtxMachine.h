// Runs kernels from their PTX on this CPU, an instruction at a time, over the emulation of threads and barriers.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a GPU would be given is what runs here, so a fault of the compiler's code for GPUs shows without one. Only the
// instructions that our kernels have are known; any other is refused when the text is read. Global addresses are this
// process's own. An access to global memory must be a multiple of its bytes, and one to shared memory must lie in what
// the kernel has; otherwise the program ends, as it does at a barrier that not all threads reach.
#ifndef PP_TEST_GPU_PTXMACHINE_H
#define PP_TEST_GPU_PTXMACHINE_H

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace pp {

class PtxKernel {
public:
  /// All kernels of the text by name; empty and `why` if something in it is not known.
  static std::map<std::string, std::shared_ptr<PtxKernel>> read(const std::string &text, std::string &why);

  /// Each argument has 8 bytes.
  void run(int64_t blocks, unsigned threads, const std::vector<uint64_t> &arguments) const;
  unsigned mostThreads() const { return most; }
  size_t argumentCount() const { return parameters; }

  struct Instruction;

private:
  friend class PtxReader;

  std::vector<Instruction> code;
  std::vector<uint64_t> registers; ///< as they are at the start: constants
  size_t parameters = 0, sharedBytes = 0;
  unsigned most = 0; ///< threads of a block
};

} // namespace pp

#endif // PP_TEST_GPU_PTXMACHINE_H
