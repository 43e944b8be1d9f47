// The code of formulas against the C library in f64: every function, width and instruction set, in place and with gaps.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/pipeline/Pipeline.h"
#include "lowering/formula/Code.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Parser/Parser.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <random>

using namespace mlir;
using namespace pp;

namespace {

using Code = void (*)(int64_t rows, const int64_t *strides, void *const *tensors);
constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool isHere(unsigned set) {
  return set == 0 || (set == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) ||
         (set == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
}

/// The code of one formula, for each instruction set that this machine has.
struct Compiled {
  std::unique_ptr<llvm::orc::LLJIT> jit;
  std::vector<std::pair<unsigned, Code>> sets;

  /// `map`: `nn.map` and what stands behind it, of %x, %y, %w and %n.
  Compiled(const std::string &arguments, const std::string &map) {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    DialectRegistry registry;
    registry.insert<nn::NnDialect, func::FuncDialect, arith::ArithDialect, math::MathDialect>();
    MLIRContext context(registry);
    OwningOpRef<ModuleOp> module =
        parseSourceString<ModuleOp>("func.func private @f(" + arguments + ") { " + map + "\n return }", &context);
    auto builder = cantFail(llvm::orc::JITTargetMachineBuilder::detectHost());
    builder.setCPU("");
    builder.getFeatures() = llvm::SubtargetFeatures();
    auto machine = cantFail(builder.createTargetMachine());
    jit = cantFail(llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(builder).create());
    if (!module)
      return;
    nn::MapOp op;
    module->walk([&](nn::MapOp each) { op = each; });
    auto own = std::make_unique<llvm::LLVMContext>();
    std::unique_ptr<llvm::Module> lowered;
    if (failed(lowerFormulas(op, *machine, *own, lowered)))
      return;
    cantFail(jit->addIRModule(llvm::orc::ThreadSafeModule(std::move(lowered), std::move(own))));
    for (unsigned set = 0; set < kFormulaSets; ++set)
      if (std::string name = formulaFunction(op, set); !name.empty() && isHere(set))
        sets.push_back({set, cantFail(jit->lookup(name)).toPtr<Code>()});
  }
};

std::string tensor(std::vector<int64_t> shape, const std::string &type) {
  std::string text = "tensor<";
  for (int64_t size : shape)
    text += std::to_string(size) + "x";
  return text + type + ">";
}

/// x and y, both full, to one full tensor.
Compiled elementwise(int64_t width, const std::string &type, const std::string &sums, const std::string &region) {
  std::string full = tensor({1, 3, width}, type);
  return {"%x: " + full + ", %y: " + full,
          R"(%r = nn.map reads(%x: "thd", %y: "thd") makes("thd") heads 1 { ^bb0(%a: )" + sums + ", %b: " + sums +
              "): " + region + " nn.give %r : " + sums + " } : (" + full + ", " + full + ") -> " + full};
}

struct Function {
  std::string op;
  std::function<double(double)> exact;
  float least, most; ///< where results are compared
  double ulps;
};
std::vector<Function> functions() {
  return {{"math.exp", [](double x) { return std::exp(x); }, -80, 80, 2},
          {"math.log", [](double x) { return std::log(x); }, 1e-30F, 1e30F, 2},
          {"math.log1p", [](double x) { return std::log1p(x); }, -0.99F, 1e10F, 4},
          {"math.expm1", [](double x) { return std::expm1(x); }, -20, 60, 4},
          {"math.tanh", [](double x) { return std::tanh(x); }, -9, 9, 4},
          {"math.erf", [](double x) { return std::erf(x); }, -4, 4, 6},
          {"math.sqrt", [](double x) { return std::sqrt(x); }, 0, 1e30F, 1},
          {"math.rsqrt", [](double x) { return 1 / std::sqrt(x); }, 1e-30F, 1e30F, 2},
          {"math.absf", [](double x) { return std::abs(x); }, -1e30F, 1e30F, 0},
          {"arith.negf", [](double x) { return -x; }, -1e30F, 1e30F, 0},
          {"nn.sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, -80, 80, 4},
          {"nn.softplus", [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }, -80, 80, 4}};
}

/// Errors in units of the last place of f32.
double ulpsApart(float ours, double exact) {
  if (std::isnan(exact) || std::isinf(static_cast<float>(exact)))
    return std::isnan(exact) == std::isnan(ours) && (std::isnan(exact) || ours == static_cast<float>(exact)) ? 0 : 1e9;
  constexpr double least = 1.2e-38; // below the normal numbers all is as good as 0
  if (std::abs(exact) < least && std::abs(ours) < least)
    return 0;
  double size = std::max(std::abs(exact), least);
  return std::abs(ours - exact) / std::ldexp(1.0, std::ilogb(size) - 23);
}

/// In place, 1 float behind an aligned address, with a gap behind each row that nothing may write.
std::vector<float> runInPlace(Code code, std::vector<float> x, int64_t width) {
  constexpr int64_t rows = 3, gap = 5;
  std::vector<float> own(1 + rows * (width + gap), 7.0F), y = own;
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(x.begin() + row * width, width, own.begin() + 1 + row * (width + gap));
  int64_t strides[] = {width + gap, width + gap, width + gap};
  void *tensors[] = {own.data() + 1, y.data() + 1, own.data() + 1};
  code(rows, strides, tensors);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < gap; ++i)
      EXPECT_EQ(own[1 + row * (width + gap) + width + i], 7.0F) << "row " << row << " is written beyond its end";
    std::copy_n(own.begin() + 1 + row * (width + gap), width, x.begin() + row * width);
  }
  EXPECT_EQ(own[0], 7.0F);
  return x;
}

} // namespace

TEST(FormulaCode, functionsAreNearTheLibrarysInF64) {
  std::mt19937 random(1);
  for (const Function &function : functions()) {
    constexpr int64_t width = 45; // a block of 32 and a rest
    Compiled compiled = elementwise(width, "f32", "f32", "%r = " + function.op + " %a : f32");
    ASSERT_FALSE(compiled.sets.empty()) << function.op;
    std::vector<float> x(3 * width);
    std::uniform_real_distribution<float> near(std::max(function.least, -10.0F), std::min(function.most, 10.0F)),
        power(-1, 1);
    for (float &each : x)
      each = random() % 2 ? near(random)
                          : std::clamp(std::pow(10.0F, 30 * power(random)) * (random() % 2 ? 1 : -1), function.least,
                                       function.most);
    x[0] = kInfinity, x[1] = -kInfinity, x[2] = std::nanf(""), x[3] = 0;
    for (auto [set, code] : compiled.sets) {
      std::vector<float> made = runInPlace(code, x, width);
      for (size_t i = 0; i < x.size(); ++i)
        EXPECT_LE(ulpsApart(made[i], function.exact(x[i])), function.ulps)
            << function.op << " of " << x[i] << " is " << made[i] << ", set " << set;
    }
  }
}

TEST(FormulaCode, anElementsBitsDoNotDependOnItsPlace) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::string region = "%s = nn.sigmoid %a : f32 %t = math.tanh %s : f32 %r = arith.mulf %t, %a : f32";
  Compiled one = elementwise(1, "f32", "f32", region);
  for (int64_t width : {1, 2, 3, 4, 5, 7, 8, 15, 31, 32, 33, 63, 64, 65, 100, 199}) {
    Compiled compiled = elementwise(width, "f32", "f32", region);
    std::vector<float> x(3 * width);
    for (float &each : x)
      each = 4 * normal(random);
    for (size_t k = 0; k < compiled.sets.size(); ++k) {
      std::vector<float> made = runInPlace(compiled.sets[k].second, x, width);
      for (size_t i = 0; i < x.size(); ++i)
        EXPECT_EQ(made[i], runInPlace(one.sets[k].second, {x[i], 0, 0}, 1)[0]) << "width " << width << ", place " << i;
    }
  }
}

TEST(FormulaCode, bf16IsRoundedToEven) {
  constexpr int64_t width = 40;
  Compiled compiled = elementwise(width, "bf16", "f32", "%r = arith.addf %a, %b : f32");
  std::vector<uint16_t> x(3 * width), y(3 * width), made(3 * width);
  std::mt19937 random(3);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = random(), y[i] = random(); // all kinds of numbers, NaN and infinities, too
  auto wide = [](uint16_t bits) { return llvm::bit_cast<float>(uint32_t(bits) << 16); };
  for (auto [set, code] : compiled.sets) {
    int64_t strides[] = {width, width, width};
    void *tensors[] = {x.data(), y.data(), made.data()};
    code(3, strides, tensors);
    for (size_t i = 0; i < x.size(); ++i) {
      llvm::APFloat exact(wide(x[i]) + wide(y[i]));
      bool loses = false;
      exact.convert(llvm::APFloat::BFloat(), llvm::APFloat::rmNearestTiesToEven, &loses);
      if (exact.isNaN())
        EXPECT_TRUE(std::isnan(wide(made[i])));
      else
        EXPECT_EQ(made[i], exact.bitcastToAPInt().getZExtValue()) << wide(x[i]) << " + " << wide(y[i]);
    }
  }
}

// Heads of odd widths, reductions over columns, heads and rows, and what is made along each kind of axes.
TEST(FormulaCode, reductionsAndSumsOverRows) {
  for (int64_t columns : {1, 3, 8, 37, 70})
    for (int64_t heads : {1, 3}) {
      constexpr int64_t rows = 4;
      int64_t width = heads * columns;
      std::string full = tensor({2, 2, width}, "f64"), w = tensor({columns}, "f64"), s = tensor({heads}, "f64"),
                  each = tensor({2, 2, heads}, "f64"), row = tensor({2, 2}, "f64"), all = tensor({width}, "f64"),
                  number = tensor({1}, "f64");
      std::string made = full + ", " + each + ", " + row + ", " + all + ", " + w + ", " + s + ", " + number + ", " + w;
      Compiled compiled("%x: " + full + ", %w: " + w + ", %s: " + s,
                        R"(%r:8 = nn.map reads(%x: "thd", %w: "d", %s: "h")
                           makes("thd", "th", "t", "hd", "d", "h", "", "d") heads )" +
                            std::to_string(heads) + R"( { ^bb0(%a: f64, %b: f64, %c: f64):
          %v = nn.reduce "variance" "d" %a : f64
          %g = nn.reduce "max" "hd" %a : f64
          %o = nn.reduce "sum" "h" %v : f64
          %p = arith.mulf %a, %b : f64
          %q = arith.mulf %p, %c : f64
          %y = arith.addf %q, %v : f64
          %m = nn.reduce "mean" "hd" %y : f64
          %l = nn.reduce "min" "d" %y : f64
          %z = arith.subf %y, %m : f64
          %e = arith.addf %o, %g : f64
          %t = arith.addf %e, %m : f64
          %u = arith.mulf %t, %b : f64
          nn.give %z, %l, %t, %z, %y, %y, %t, %u : f64, f64, f64, f64, f64, f64, f64, f64
        } : ()" + full + ", " +
                            w + ", " + s + ") -> (" + made + ")");
      ASSERT_FALSE(compiled.sets.empty());
      std::mt19937 random(columns * 10 + heads);
      std::normal_distribution<double> normal;
      auto draw = [&](int64_t n) {
        std::vector<double> made(n);
        for (double &value : made)
          value = normal(random);
        return made;
      };
      std::vector<double> x = draw(rows * width), gain = draw(columns), scale = draw(heads), z(rows * width),
                          l(rows * heads), t(rows), sumAll(width), sumColumns(columns), sumHeads(heads), sum(1),
                          sumOnce(columns);
      for (int64_t r = 0; r < rows; ++r) {
        double total = 0, greatest = -1e300, mean = 0;
        std::vector<double> y(width);
        for (int64_t h = 0; h < heads; ++h) {
          const double *own = &x[r * width + h * columns];
          double average = 0, variance = 0;
          for (int64_t c = 0; c < columns; ++c)
            average += own[c] / double(columns), greatest = std::max(greatest, own[c]);
          for (int64_t c = 0; c < columns; ++c)
            variance += (own[c] - average) * (own[c] - average) / double(columns);
          total += variance, l[r * heads + h] = 1e300;
          for (int64_t c = 0; c < columns; ++c) {
            double value = own[c] * gain[c] * scale[h] + variance;
            y[h * columns + c] = value, mean += value / double(width);
            l[r * heads + h] = std::min(l[r * heads + h], value);
            sumColumns[c] += value, sumHeads[h] += value;
          }
        }
        t[r] = total + greatest + mean, sum[0] += t[r];
        for (int64_t c = 0; c < columns; ++c)
          sumOnce[c] += t[r] * gain[c]; // has no heads
        for (int64_t i = 0; i < width; ++i)
          z[r * width + i] = y[i] - mean, sumAll[i] += y[i] - mean;
      }
      std::vector<std::vector<double>> wanted = {z, l, t, sumAll, sumColumns, sumHeads, sum, sumOnce};
      for (auto [set, code] : compiled.sets) {
        std::vector<std::vector<double>> ours;
        std::vector<void *> tensors = {x.data(), gain.data(), scale.data()};
        std::vector<int64_t> strides = {width, 0, 0, width, heads, 1, 0, 0, 0, 0, 0};
        for (const auto &its : wanted)
          ours.emplace_back(its.size(), 99.0);
        for (auto &its : ours)
          tensors.push_back(its.data());
        code(rows, strides.data(), tensors.data());
        for (size_t k = 0; k < wanted.size(); ++k)
          for (size_t i = 0; i < wanted[k].size(); ++i)
            EXPECT_NEAR(ours[k][i], wanted[k][i], 1e-11)
                << columns << " columns, " << heads << " heads, tensor " << k << ", set " << set;
      }
    }
}
