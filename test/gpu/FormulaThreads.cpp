// The kernels of formulas, run from their PTX on this CPU, against the formulas' code for CPUs; and what ptxas says.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "lowering/formula/Code.h"
#include "lowering/formula/Threads.h"
#include "runtime/cuda/FormulaKernel.h"
#include "runtime/files/Half.h"
#include "test/gpu/FormulaCases.h"
#include "test/gpu/PtxMachine.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace mlir;
using namespace pp;

namespace {

using Code = void (*)(int64_t rows, const int64_t *strides, void *const *tensors);

/// The code for CPUs: with multiply-adds, as on GPUs, if this machine has them.
struct CpuCode {
  std::unique_ptr<llvm::orc::LLJIT> jit;
  Code code = nullptr;

  explicit CpuCode(nn::MapOp map) {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    auto builder = cantFail(llvm::orc::JITTargetMachineBuilder::detectHost());
    builder.setCPU("");
    builder.getFeatures() = llvm::SubtargetFeatures();
    auto machine = cantFail(builder.createTargetMachine());
    jit = cantFail(llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(builder).create());
    auto own = std::make_unique<llvm::LLVMContext>();
    std::unique_ptr<llvm::Module> lowered;
    if (failed(lowerFormulas(map, *machine, *own, lowered)))
      return;
    cantFail(jit->addIRModule(llvm::orc::ThreadSafeModule(std::move(lowered), std::move(own))));
    unsigned set = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0;
    if (std::string name = formulaFunction(map, set); !name.empty())
      code = cantFail(jit->lookup(name)).toPtr<Code>();
  }
};

/// The kernels, and how a call runs them.
struct GpuCode {
  std::string ptx, why;
  std::map<std::string, std::shared_ptr<PtxKernel>> kernels;
  pp_formula_kernel_t entry = {};

  explicit GpuCode(nn::MapOp map) {
    FailureOr<std::string> text = writeThreads(map);
    if (failed(text))
      return;
    ptx = *text;
    kernels = PtxKernel::read(ptx, why);
    FormulaLaunch its(map);
    entry = {ptx.c_str(),
             nn::numberOfFormula(map),
             nn::widthOfFormula(map),
             static_cast<int64_t>(map.getHeads()),
             static_cast<int64_t>(map->getNumOperands() + map->getNumResults()),
             its.pack,
             its.wideThreads,
             its.narrowThreads,
             its.byRows,
             its.part,
             its.longest};
  }
  /// Whether packs were read.
  bool run(int64_t rows, const int64_t *strides, void *const *tensors, int64_t bytesOfSum) {
    std::vector<double> scratch(scratchOfFormulaParts(rows, entry.part, bytesOfSum) / 8 + 32, std::nan(""));
    auto *aligned = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(scratch.data()) + 255) / 256 * 256);
    FormulaCall call(entry, rows, aligned, tensors, strides);
    kernels[call.isWide ? "wide" : "narrow"]->run(call.blocks, unsigned(call.threads), call.arguments);
    if (call.blocksOfSums > 0)
      kernels["sums"]->run(call.blocksOfSums, 256, call.arguments);
    return call.isWide;
  }
};

/// A tensor with bytes around it and behind each row that nothing may write.
struct Tensor {
  static constexpr int64_t gap = 16; ///< elements
  std::string type;
  int64_t rows, width, stride, shift, bytes;
  std::vector<char> all;

  Tensor(std::string type, int64_t rows, int64_t width, bool hasGaps, bool isShifted)
      : type(std::move(type)), rows(rows), width(width), stride(width + (hasGaps ? gap : 0)),
        shift(gap + (isShifted ? 1 : 0)), bytes(this->type == "f64"   ? 8
                                                : this->type == "f32" ? 4
                                                                      : 2),
        all((2 * gap + rows * stride + 1) * bytes + 16, '\x55') {}
  char *data() {
    return reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(all.data()) + 15) / 16 * 16) + shift * bytes;
  }
  double at(int64_t i) {
    const char *from = data() + (i / width * stride + i % width) * bytes;
    if (bytes == 8)
      return *reinterpret_cast<const double *>(from);
    if (bytes == 4)
      return *reinterpret_cast<const float *>(from);
    uint16_t bits = *reinterpret_cast<const uint16_t *>(from);
    return type == "bf16" ? fromBf16(bits) : fromF16(bits);
  }
  void put(int64_t i, double value) {
    char *to = data() + (i / width * stride + i % width) * bytes;
    if (bytes == 8)
      *reinterpret_cast<double *>(to) = value;
    else if (bytes == 4)
      *reinterpret_cast<float *>(to) = static_cast<float>(value);
    else
      *reinterpret_cast<uint16_t *>(to) =
          type == "bf16" ? roundToBf16(static_cast<float>(value)) : roundToF16(static_cast<float>(value));
  }
};

/// How the tensors of a run lie.
struct Lie {
  bool hasGaps = false, isShifted = false, isInPlace = false;
};

/// A formula with both codes.
struct Both {
  const FormulaCase &its;
  std::string type, sums;
  int64_t heads, columns;
  MadeFormula made;
  CpuCode cpu;
  GpuCode gpu;

  Both(const FormulaCase &its, const std::string &type, int64_t heads, int64_t columns)
      : its(its), type(type), sums(type == "f64" ? "f64" : "f32"), heads(heads), columns(columns),
        made(its, type, 4, heads, columns), cpu(made.map), gpu(made.map) {}
  std::string name() const {
    return std::string(its.name) + " " + type + ", " + std::to_string(heads) + " heads of " + std::to_string(columns);
  }
  /// What differs from the code for CPUs; empty if nothing does.
  std::string judge(int64_t rows, Lie lie);
};

} // namespace

std::string Both::judge(int64_t rows, Lie lie) {
  if (!cpu.code || gpu.kernels.empty())
    return "no code: " + gpu.why;
  std::mt19937 random(static_cast<unsigned>(columns * 7 + heads + rows));
  std::normal_distribution<double> normal;
  std::vector<Tensor> ours, theirs;
  std::vector<int64_t> strides;
  auto add = [&](llvm::StringRef axes, bool isRead) {
    bool h = axes.contains('h'), d = axes.contains('d'), t = axes.contains('t');
    int64_t width = (h ? heads : 1) * (d ? columns : 1);
    Tensor tensor(axes == "thd" ? type : sums, t ? rows : 1, width, lie.hasGaps && axes == "thd", lie.isShifted);
    for (int64_t i = 0; isRead && i < tensor.rows * width; ++i)
      tensor.put(i, normal(random));
    ours.push_back(tensor);
    theirs.push_back(tensor);
    strides.push_back(t ? tensor.stride : 0);
  };
  for (llvm::StringRef axes : made.reads)
    add(axes, true);
  for (llvm::StringRef axes : made.makes)
    add(axes, false);
  auto addresses = [&](std::vector<Tensor> &all) {
    std::vector<void *> them;
    for (Tensor &tensor : all)
      them.push_back(tensor.data());
    if (lie.isInPlace && made.reads[0] == "thd" && made.makes[0] == "thd")
      them[made.reads.size()] = them[0];
    return them;
  };
  if (gpu.run(rows, strides.data(), addresses(ours).data(), sums == "f64" ? 8 : 4) !=
      (gpu.entry.pack > 1 && !lie.isShifted))
    return "packs are read where they lie at no multiple of 16 bytes, or are not read";
  cpu.code(rows, strides.data(), addresses(theirs).data());
  // Sums are made in another order; elements are the same, but f64's functions are another library's.
  const double ulp = type == "bf16" ? 0x1p-7 : type == "f16" ? 0x1p-10 : 0, ofSums = sums == "f64" ? 0x1p-52 : 0x1p-23;
  const double bound = gpu.entry.byRows ? 40 * ofSums * std::sqrt(double(rows)) : type == "f64" ? 40 * ofSums : 0;
  for (size_t k = 0; k < ours.size(); ++k) {
    Tensor &a = ours[k], &b = theirs[k];
    for (int64_t i = 0; i < a.rows * a.width; ++i)
      if (double error = std::abs(a.at(i) - b.at(i)) / (1 + std::abs(b.at(i)));
          !(error <= bound + (a.bytes == 2 && bound > 0 ? ulp : 0)))
        return "tensor " + std::to_string(k) + ", element " + std::to_string(i) + ": " + std::to_string(a.at(i)) +
               ", not " + std::to_string(b.at(i));
    for (Tensor *each : {&a, &b}) // what lies between
      for (int64_t i = 0; i < each->rows * each->width; ++i)
        each->put(i, 0);
    if (!std::equal(a.data() - a.shift * a.bytes, a.data() + (a.rows * a.stride + Tensor::gap / 2) * a.bytes,
                    b.data() - b.shift * b.bytes))
      return "tensor " + std::to_string(k) + ": bytes beside it are written";
  }
  return "";
}

TEST(FormulaThreads, kernelsAsTheCodeForCpus) {
  for (std::string type : {"f32", "bf16", "f64", "f16"})
    for (const FormulaCase &each : kFormulaCases)
      for (auto [heads, columns] :
           std::vector<std::pair<int64_t, int64_t>>{{1, 48}, {1, 37}, {3, 8}, {5, 1}, {2, 70}}) {
        if ((heads > 1 && !each.needsHeads) || (columns != 37 && columns != 8 && type.ends_with("16")))
          continue;
        Both both(each, type, heads, columns);
        EXPECT_EQ(both.judge(3, {}), "") << both.name();
        EXPECT_EQ(both.judge(2, {.hasGaps = true, .isInPlace = true}), "") << both.name() << ", in place, with gaps";
        EXPECT_EQ(both.judge(3, {.isShifted = true}), "") << both.name() << ", shifted";
      }
}

TEST(FormulaThreads, manyRowsAndWideRows) {
  for (const FormulaCase &each : kFormulaCases) {
    Both tall(each, "f32", each.needsHeads ? 2 : 1, 12), wide(each, "bf16", each.needsHeads ? 3 : 1, 2504);
    EXPECT_EQ(tall.judge(1100, {}), "") << tall.name() << ", parts of three rows";
    EXPECT_EQ(wide.judge(2, {}), "") << wide.name();
    if (!each.needsHeads)
      continue;
    Both many(each, "bf16", 40, 32);
    EXPECT_EQ(many.judge(2, {}), "") << many.name() << ", more heads than groups of threads";
  }
}

/// Whether another process that runs these kernels, in some order of threads, finds something else, or ends.
static bool isFound(Both &both, const std::string &ptx) {
  pid_t child = fork();
  if (child == 0) {
    std::freopen("/dev/null", "w", stderr);
    both.gpu.kernels = PtxKernel::read(ptx, both.gpu.why);
    bool found = false;
    for (const char *order : {"up", "down", "1", "2", "3", "4"}) {
      setenv("PP_SIMT_ORDER", order, 1);
      std::thread([&] { // which has an emulation of its own
        found = found || !both.judge(7, {}).empty() || !both.judge(7, {.isShifted = true}).empty();
      })
          .join();
    }
    _exit(found ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/// Each barrier, each stride and each bound of a loop or of the last pack in turn is wrong.
TEST(FormulaThreads, faultsAreFound) {
  unsigned barriers = 0, strides = 0, bounds = 0, harmless = 0;
  for (const FormulaCase &each : kFormulaCases)
    for (int64_t columns : {37, 48}) { // more packs than threads that join
      Both both(each, "f32", each.needsHeads ? 3 : 1, columns);
      const std::string &ptx = both.gpu.ptx;
      EXPECT_FALSE(isFound(both, ptx)) << both.name() << ": an order of threads";
      for (size_t at = 0; (at = ptx.find("bar.sync", at)) != std::string::npos; ++at, ++barriers) {
        // Without heads a thread that reads no packs copies the sums that it has made.
        size_t next = ptx.find("bar.sync", at + 1), sums = ptx.find(".entry sums"), narrow = ptx.find(".entry narrow");
        if (both.heads == 1 && narrow < at && at < sums && sums < next && both.gpu.entry.part > 0)
          continue;
        std::string mutant = ptx;
        mutant.replace(at, ptx.find('\n', at) - at, "");
        EXPECT_TRUE(isFound(both, mutant)) << both.name() << ": without the barrier at " << at;
      }
      // The strides of what has rows are the last arguments.
      for (int64_t i = 0; i < both.gpu.entry.tensors; ++i) {
        std::string name = "narrow_param_" + std::to_string(3 + both.gpu.entry.tensors + i) + "]";
        size_t at = ptx.find(name);
        if (at == std::string::npos)
          continue;
        std::string mutant = ptx;
        mutant.replace(at, name.size(), "narrow_param_0]");
        EXPECT_TRUE(isFound(both, mutant)) << both.name() << ": another stride of tensor " << i;
        ++strides;
      }
      // Comparisons with a constant that is no 0: of places, not of bits of numbers.
      for (size_t at = 0; (at = ptx.find("setp.", at)) != std::string::npos; ++at) {
        size_t end = ptx.find(';', at), number = ptx.rfind(' ', end) + 1;
        char *last = nullptr;
        long long bound = std::strtoll(ptx.c_str() + number, &last, 10);
        if (ptx.compare(at + 8, 2, "f3") == 0 || *last != ';' || bound <= 0 || bound > 4096)
          continue;
        for (int by : {-1, 1}) {
          std::string mutant = ptx;
          mutant.replace(number, end - number, std::to_string(bound + by));
          isFound(both, mutant) ? ++bounds : ++harmless;
        }
      }
    }
  std::cout << barriers << " barriers, " << strides << " strides, " << bounds << " bounds are found, " << harmless
            << " other bounds change nothing that is stored\n";
  EXPECT_GT(barriers, 30U);
  EXPECT_GT(strides, 30U);
}

/// The code for CPUs has none of these: the interpreter serves.
TEST(FormulaThreads, reductionsOfHeadsThatKeepColumns) {
  const FormulaCase its = {"columns_of_heads", "thd thd", "thd d -", R"(
      %1 = nn.reduce "sum" "h" %a0 : F
      %2 = nn.reduce "max" "h" %a1 : F
      %3 = nn.reduce "mean" "hd" %1 : F
      %4 = arith.mulf %a0, %1 : F
      %r0 = arith.addf %4, %2 : F
      %r1 = arith.mulf %1, %3 : F
      %r2 = arith.mulf %1, %2 : F)"};
  constexpr int64_t rows = 5;
  for (int64_t heads : {1, 3, 40})
    for (int64_t columns : {5, 8, 130}) {
      MadeFormula made(its, "f64", rows, heads, columns);
      ASSERT_EQ(whyNoThreads(made.map), "");
      GpuCode gpu(made.map);
      ASSERT_FALSE(gpu.kernels.empty()) << gpu.why;
      const int64_t width = heads * columns;
      std::mt19937 random(static_cast<unsigned>(width));
      std::normal_distribution<double> normal;
      std::vector<double> x(rows * width), y(x), z(x), sums(columns), wanted(columns), all(1);
      double wantedOfAll = 0;
      for (int64_t i = 0; i < rows * width; ++i)
        x[i] = normal(random), y[i] = normal(random);
      void *tensors[] = {x.data(), y.data(), z.data(), sums.data(), all.data()};
      const int64_t strides[] = {width, width, width, 0, 0};
      gpu.run(rows, strides, tensors, 8);
      for (int64_t t = 0; t < rows; ++t) {
        std::vector<double> sum(columns), most(columns, -INFINITY);
        double mean = 0;
        for (int64_t i = 0; i < width; ++i) {
          sum[i % columns] += x[t * width + i];
          most[i % columns] = std::max(most[i % columns], y[t * width + i]);
        }
        for (double each : sum)
          mean += each / double(columns);
        for (int64_t i = 0; i < width; ++i)
          EXPECT_NEAR(z[t * width + i], x[t * width + i] * sum[i % columns] + most[i % columns], 1e-12) << heads;
        for (int64_t c = 0; c < columns; ++c)
          wanted[c] += sum[c] * mean, wantedOfAll += sum[c] * most[c];
      }
      for (int64_t c = 0; c < columns; ++c)
        EXPECT_NEAR(sums[c], wanted[c], 1e-11) << heads << " heads of " << columns;
      EXPECT_NEAR(all[0], wantedOfAll, 1e-10) << heads << " heads of " << columns;
    }
}

TEST(FormulaThreads, noRows) {
  for (const FormulaCase &each : kFormulaCases)
    if (llvm::StringRef(each.makes).contains(" hd")) {
      MadeFormula made(each, "f32", 4, each.needsHeads ? 2 : 1, 12);
      GpuCode gpu(made.map);
      std::vector<float> own(64, 1.0F);
      std::vector<void *> tensors(gpu.entry.tensors, own.data());
      std::vector<int64_t> strides(gpu.entry.tensors, 0);
      FormulaCall call(gpu.entry, 0, nullptr, tensors.data(), strides.data());
      EXPECT_EQ(call.blocks, 0);
      gpu.kernels["sums"]->run(call.blocksOfSums, 256, call.arguments);
      EXPECT_EQ(own[0], 0.0F) << each.name;
    }
}

/// Prints registers and spills of each kernel; without ptxas the test is skipped.
TEST(FormulaThreads, ptxasTakesAllKernels) {
  auto ptxas = llvm::sys::findProgramByName("ptxas", {"/usr/local/cuda/bin"});
  if (!ptxas)
    ptxas = llvm::sys::findProgramByName("ptxas");
  if (!ptxas)
    GTEST_SKIP() << "there is no ptxas on this machine";
  llvm::SmallString<128> input, output;
  ASSERT_FALSE(llvm::sys::fs::createTemporaryFile("formula", "ptx", input));
  ASSERT_FALSE(llvm::sys::fs::createTemporaryFile("formula", "txt", output));
  unsigned count = 0, most = 0, spills = 0, turn = 0;
  for (const char *type : {"f32", "bf16", "f64"})
    for (const FormulaCase &each : kFormulaCases)
      for (int64_t columns : {128, 37}) {
        MadeFormula made(each, type, 64, each.needsHeads ? 32 : 1, each.needsHeads ? columns : 16 * columns);
        FailureOr<std::string> text = writeThreads(made.map);
        ASSERT_TRUE(succeeded(text)) << each.name;
        std::error_code error;
        llvm::raw_fd_ostream(input, error) << *text;
        // One of the two by turns, and for the next formula the other way round.
        const char *arch = ((turn ^ turn >> 1) & 1) != 0 ? "-arch=sm_80" : "-arch=sm_90";
        ++turn;
        std::optional<llvm::StringRef> redirects[] = {std::nullopt, llvm::StringRef(output), llvm::StringRef(output)};
        int status =
            llvm::sys::ExecuteAndWait(*ptxas, {*ptxas, arch, "-v", input, "-o", "/dev/null"}, std::nullopt, redirects);
        std::string said = (*llvm::MemoryBuffer::getFile(output))->getBuffer().str();
        EXPECT_EQ(status, 0) << each.name << " " << type << " " << arch << "\n" << said;
        for (size_t at = 0; (at = said.find("Used ", at)) != std::string::npos; ++at, ++count)
          most = std::max(most, unsigned(std::strtoul(said.c_str() + at + 5, nullptr, 10)));
        for (size_t at = 0; (at = said.find(" bytes spill stores", at)) != std::string::npos; ++at)
          spills += said.compare(said.rfind(' ', at - 1) + 1, 2, "0 ") != 0;
      }
  llvm::sys::fs::remove(input);
  llvm::sys::fs::remove(output);
  std::cout << count << " kernels, at most " << most << " registers a thread, " << spills << " with spills\n";
  EXPECT_LE(most, 128U);
}
