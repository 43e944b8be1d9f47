// The arithmetic that ops claim: pairs of attention against a loop over queries and keys, others counted by hand.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"
#include "test/unit/PassError.h"

using pp::nn::visiblePairs;

namespace {

/// One after the other: query first + t sees key position + u when it does not lie ahead.
int64_t counted(int64_t queries, int64_t first, int64_t keys, int64_t position, bool causal, int64_t window = 0) {
  int64_t pairs = 0;
  for (int64_t t = 0; t < queries; ++t)
    for (int64_t u = 0; u < keys; ++u)
      pairs += (!causal || position + u <= first + t) && (!window || position + u > first + t - window);
  return pairs;
}

// Slices and chunks before, across, behind and beside the diagonal, with gaps and of unequal lengths.
TEST(VisiblePairs, EqualTheLoop) {
  for (int64_t queries : {1, 2, 3, 7, 16})
    for (int64_t first : {0, 1, 5, 16, 40})
      for (int64_t keys : {1, 2, 5, 16, 33})
        for (int64_t position : {0, 1, 4, 5, 6, 15, 16, 17, 40, 55, 56, 57, 100})
          for (bool causal : {false, true})
            EXPECT_EQ(visiblePairs(queries, first, keys, position, causal),
                      double(counted(queries, first, keys, position, causal)))
                << queries << " queries from " << first << ", " << keys << " keys from " << position;
}

TEST(VisiblePairs, OfWindowsEqualTheLoop) {
  for (int64_t queries : {1, 3, 16})
    for (int64_t first : {0, 5, 40})
      for (int64_t keys : {1, 5, 33})
        for (int64_t position : {0, 4, 6, 17, 40, 56})
          for (int64_t window : {1, 2, 7, 16, 100})
            EXPECT_EQ(visiblePairs(queries, first, keys, position, true, window),
                      double(counted(queries, first, keys, position, true, window)))
                << queries << " queries from " << first << ", " << keys << " keys from " << position << ", window "
                << window;
  // The pairs of a whole sequence: s m - m (m - 1) / 2 with m = min(s, window).
  EXPECT_EQ(visiblePairs(8192, 0, 8192, 0, true, 512), 8192.0 * 512 - 512.0 * 511 / 2);
}

// The chunks of a sequence hold the pairs of the whole, which are n (n + 1) / 2.
TEST(VisiblePairs, OfChunksAddUp) {
  constexpr int64_t kTokens = 4194304;
  double slices = 0;
  for (int64_t q = 0; q < 8; ++q)
    for (int64_t k = 0; k < 8; ++k)
      slices += visiblePairs(kTokens / 8, q * kTokens / 8, kTokens / 8, k * kTokens / 8, true);
  EXPECT_EQ(slices, 8796095119360.0); // 4194304 * 4194305 / 2
  EXPECT_EQ(visiblePairs(kTokens, 0, kTokens, 0, true), slices);
}

// Beyond 64 bits the count is rounded; it does not wrap.
TEST(VisiblePairs, DoNotWrap) {
  EXPECT_EQ(visiblePairs(int64_t(1) << 40, 0, int64_t(1) << 40, 0, true), 0x1p79 + 0x1p39);
  EXPECT_EQ(visiblePairs(int64_t(1) << 40, 0, int64_t(1) << 40, 0, false), 0x1p80);
}

/// By the order of ops: what each claims.
std::vector<double> flopsOf(const std::string &ops) {
  mlir::MLIRContext context;
  context.loadDialect<mlir::func::FuncDialect, pp::nn::NnDialect>();
  const std::string arguments = "%x: tensor<1x2x3xf32>, %w: tensor<3x5xf32>, %b: tensor<5xf32>, %y: tensor<1x2x5xf32>, "
                                "%n: tensor<1x3x8xf32>, %g: tensor<8xf32>, %s: tensor<1x3xf32>, %h: tensor<1x3x16xf32>";
  auto module =
      mlir::parseSourceString<mlir::ModuleOp>("func.func @f(" + arguments + ") {\n" + ops + "return\n}", &context);
  std::vector<double> flops;
  if (module)
    module->walk([&](pp::nn::Kernel kernel) { flops.push_back(kernel.flops()); });
  return flops;
}

TEST(Flops, OfProductsNormsAndRotations) {
  // A bias is added to each element. A norm made again is (x - mean) rstd gain + bias, or x rstd gain.
  EXPECT_EQ(flopsOf(R"(
    %0 = nn.linear %x, %w : (tensor<1x2x3xf32>, tensor<3x5xf32>) -> tensor<1x2x5xf32>
    %1 = nn.linear %x, %w bias %b : (tensor<1x2x3xf32>, tensor<3x5xf32>, tensor<5xf32>) -> tensor<1x2x5xf32>
    %2 = nn.layernorm_rebuild %n, %g, %g, %s, %s
      : (tensor<1x3x8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<1x3xf32>, tensor<1x3xf32>) -> tensor<1x3x8xf32>
    %3 = nn.rmsnorm_rebuild %n, %g, %s : (tensor<1x3x8xf32>, tensor<8xf32>, tensor<1x3xf32>) -> tensor<1x3x8xf32>
  )"),
            (std::vector<double>{2 * 2 * 3 * 5, 2 * 2 * 3 * 5 + 2 * 5, 4 * 3 * 8, 2 * 3 * 8}));
  // Four products and two sums a pair: of 2 heads of 4 pairs, then of the 3 pairs that a table turns.
  EXPECT_EQ(flopsOf(R"(
    %0 = nn.rope %h {heads = 2 : i64} : (tensor<1x3x16xf32>) -> tensor<1x3x16xf32>
    %1 = nn.rope %h {heads = 2 : i64, table = array<f64: 1.0, 1.0, 0.5, 0.25>}
      : (tensor<1x3x16xf32>) -> tensor<1x3x16xf32>
    %2 = nn.swiglu %n {packed = true} : (tensor<1x3x8xf32>) -> tensor<1x3x4xf32>
  )"),
            (std::vector<double>{6 * 3 * 2 * 4, 6 * 3 * 2 * 3, 10 * 3 * 4}));
}

TEST(Flops, OfAPairAreThoseOfItsTwo) {
  std::vector<double> flops = flopsOf(R"(
    %0 = nn.linear %x, %w bias %b : (tensor<1x2x3xf32>, tensor<3x5xf32>, tensor<5xf32>) -> tensor<1x2x5xf32>
    %1 = nn.gelu %0 : (tensor<1x2x5xf32>) -> tensor<1x2x5xf32>
    %2 = nn.add %0, %y : (tensor<1x2x5xf32>, tensor<1x2x5xf32>) -> tensor<1x2x5xf32>
    %3 = nn.linear_dx %y, %w : (tensor<1x2x5xf32>, tensor<3x5xf32>) -> tensor<1x2x3xf32>
    %4 = nn.gelu_bwd %3, %x : (tensor<1x2x3xf32>, tensor<1x2x3xf32>) -> tensor<1x2x3xf32>
    %5 = nn.linear_dw %x, %y : (tensor<1x2x3xf32>, tensor<1x2x5xf32>) -> tensor<3x5xf32>
    %6 = nn.bias_dw %y : (tensor<1x2x5xf32>) -> tensor<5xf32>
    %7:2 = nn.linear_gelu %x, %w bias %b
      : (tensor<1x2x3xf32>, tensor<3x5xf32>, tensor<5xf32>) -> (tensor<1x2x5xf32>, tensor<1x2x5xf32>)
    %8 = nn.linear_add %x, %w bias %b to %y
      : (tensor<1x2x3xf32>, tensor<3x5xf32>, tensor<5xf32>, tensor<1x2x5xf32>) -> tensor<1x2x5xf32>
    %9 = nn.linear_dx_gelu %y, %w, %x : (tensor<1x2x5xf32>, tensor<3x5xf32>, tensor<1x2x3xf32>) -> tensor<1x2x3xf32>
    %a:2 = nn.linear_dw_bias %x, %y : (tensor<1x2x3xf32>, tensor<1x2x5xf32>) -> (tensor<3x5xf32>, tensor<5xf32>)
  )");
  ASSERT_EQ(flops.size(), 11u);
  EXPECT_EQ(flops[7], flops[0] + flops[1]);
  EXPECT_EQ(flops[8], flops[0] + flops[2]);
  EXPECT_EQ(flops[9], flops[3] + flops[4]);
  EXPECT_EQ(flops[10], flops[5] + flops[6]);
}

} // namespace
