// What the kernels of the device cuda refuse at prepare, and in which words; what a wrong token leaves behind.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Memory.h"
#include "test/unit/Kernels.h"

using namespace pp;
using namespace pp::test;

TEST(KernelsLimits, NamesTheOpAndWhatIsTooMuch) {
  std::vector<int64_t> dims = {1, 8, 4, 4, 16, 0};
  for (int64_t i = 0; i < 257; ++i)
    dims.insert(dims.end(), {8, 8 * i});
  EXPECT_EQ(refusal({"attention", Type::Bf16, dims, {}, {}}),
            "op 1 `attention`: 257 chunks are more than the 256 that one call takes");
  EXPECT_EQ(refusal({"attention_merge", Type::F32, {1, 8, 4, 16, 300}, {}, {}}),
            "op 1 `attention_merge`: 300 parts are more than the 256 that one call takes");
  EXPECT_EQ(refusal({"cross_entropy_merge", Type::F32, {8, 257}, {}, {}}),
            "op 1 `cross_entropy_merge`: 257 parts are more than the 256 that one call takes");
  // Two tiles of 32 rows of 1001 numbers, and four warps' 4 * 1000 + 64, in f64.
  EXPECT_EQ(refusal({"attention", Type::F64, {1, 8, 1, 1, 1000, 0, 8, 0}, {}, {}}),
            "op 1 `attention`: heads of width 1000 need " + std::to_string(8 * (2 * 32 * 1001 + 4 * 4064)) +
                " bytes of shared memory; a block of this device has at most " + std::to_string(sharedMemoryLimit()));
  // Tiles of 32 rows of 33 numbers: 7 of rows, and 38 of a state of 1200 rows; and 5 rows of 32.
  EXPECT_EQ(refusal({"scan_bwd", Type::F32, {1, 8, 1, 1, 1200, 4}, {}, {}}),
            "op 1 `scan_bwd`: heads of width 1200 need " + std::to_string(4 * ((7 + 38) * 32 * 33 + 5 * 32)) +
                " bytes of shared memory; a block of this device has at most " + std::to_string(sharedMemoryLimit()));
  EXPECT_EQ(refusal({"convolve", Type::F32, {1}, {}, {}}), "op 1 `convolve`: there is no such kernel");
}

/// A wrong token is reported by its op's number; the other rows are what they are.
TEST(KernelsLimits, WrongTokensAreReportedAndSkipped) {
  int64_t h = 4, rows = 10;
  std::vector<int32_t> tokens = {3, 10, -1, 3};
  Values table = random(size_t(h * rows), 1);
  OneOp op("embedding", Type::F32, {4, h, rows});
  Array x(Type::F32, Values(size_t(4 * h), 7));
  EXPECT_EQ(op.status(pp_embedding, tokens, Array(Type::F32, table), x), PP_INVALID);
  EXPECT_EQ(wordOfDevice(op.kernels->failures()), 1);
  for (size_t j = 0; j < size_t(h); ++j) {
    EXPECT_EQ(x.get()[j], x.get()[3 * size_t(h) + j]);
    EXPECT_EQ(x.get()[size_t(h) + j], 7);
  }
  OneOp back("embedding_dw", Type::F32, {4, h, rows});
  Array sum(Type::F32, size_t(h * rows));
  EXPECT_EQ(back.status(pp_embedding_dw, tokens, Array(Type::F32, Values(size_t(4 * h), 1)), sum), PP_INVALID);
  for (size_t i = 0; i < size_t(h * rows); ++i)
    EXPECT_EQ(sum.get()[i], int64_t(i) / h == 3 ? 2 : 0) << i;
}

TEST(KernelsLimits, CallOfAnotherOpFails) {
  OneOp op("add", Type::F32, {4});
  Array x(Type::F32, 4);
  EXPECT_EQ(pp_gelu(&op.rank, 0, x, x), PP_INTERNAL);
  EXPECT_EQ(op.rank.message, "op 0 is not a prepared `gelu`");
}

/// The memory beside the arena: one table for a hundred equal ropes.
TEST(KernelsLimits, SharesTables) {
  std::unique_ptr<Kernels> one, many;
  std::string message;
  OpSpec rope{"rope", Type::F32, {1, 64, 2, 16, 0}, {1e4}, {}};
  ASSERT_EQ(Kernels::prepare({rope}, one, message), PP_OK) << message;
  ASSERT_EQ(Kernels::prepare(std::vector<OpSpec>(100, rope), many, message), PP_OK) << message;
  EXPECT_GE(one->scratchBytes(), 64 * 8 * 2 * 4);
  EXPECT_EQ(many->scratchBytes(), one->scratchBytes());
}
