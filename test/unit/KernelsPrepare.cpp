// What prepare refuses, and in which words; what a call with a wrong number says.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "bench/gpu/Cases.h"
#include "runtime/Pp.h"
#include "runtime/kernels/Scan.h"
#include "runtime/kernels/Specs.h"
#include "test/unit/Kernels.h"
#include <map>
#include <thread>

using namespace pp;
using namespace pp::test;

namespace {

struct Shapes {
  int64_t t = 70, k = 48, n = 64;
};

template <class... Pointers> constexpr size_t pointers(int32_t (*)(pp_rank_t *, int32_t, Pointers...)) {
  return sizeof...(Pointers);
}

} // namespace

/// Calls that are timed on a GPU have all pointers of the C ABI: with one too few, the kernel read behind the list's
/// end.
TEST(KernelsPrepare, TimedCallsHaveTheirArguments) {
  std::map<std::string, size_t> expected;
#define PP_KERNEL(name, ...) expected[#name] = pointers(pp_##name);
#include "runtime/kernels/Kernels.def"
  for (const Case &one : timedCases())
    EXPECT_EQ(one.arguments.size(), expected.at(one.spec.kernel)) << one.spec.kernel;
}

TEST(KernelsPrepare, NamesTheOpAndWhatIsWrong) {
  EXPECT_EQ(refusal({"convolve", Type::F32, {1}, {}, {}}), "op 1 `convolve`: there is no such kernel");
  EXPECT_EQ(refusal({"linear", Type::F32, {1, 2}, {}, {}}), "op 1 `linear`: expected 3 dims, got 2");
  EXPECT_EQ(refusal({"rmsnorm", Type::F32, {4, 8}, {}, {}}), "op 1 `rmsnorm`: expected 1 param, got 0");
  EXPECT_EQ(refusal({"linear", Type::F32, {1, 0, 2}, {}, {}}), "op 1 `linear`: dim 1 is 0");
  EXPECT_EQ(refusal({"add", Type::F32, {1}, {}, {"causal"}}), "op 1 `add`: it takes no flag `causal`");
  EXPECT_EQ(refusal({"add", Type(7), {1}, {}, {}}), "op 1 `add`: unsupported type number 7");
  EXPECT_EQ(refusal({"rope", Type::F32, {1, 8, 6, 4, 0, 0}, {500.0}, {"packed"}}),
            "op 1 `rope`: with the flag `packed` at least one head passes");
  EXPECT_EQ(refusal({"rope", Type::F32, {1, 8, 6, 4, 0, 2, 4}, {500.0}, {"packed", "zigzag"}}),
            "op 1 `rope`: it takes not both flags, `packed` and `zigzag`");
  EXPECT_EQ(refusal({"rope", Type::F32, {1, 8, 6, 4, 2}, {500.0}, {"packed"}}), "op 1 `rope`: expected 5 dims, got 4");
  EXPECT_EQ(refusal({"swiglu", Type::F32, {12, 5}, {}, {"packed"}}),
            "op 1 `swiglu`: 12 elements are not whole rows of 5");
  EXPECT_EQ(refusal({"glu", Type::F32, {0}, {0, 1, 0}, {"packed"}}),
            "op 1 `glu`: with the flag `packed` p has at least one column");
  EXPECT_EQ(refusal({"attention", Type::F32, {1, 8, 6, 4, 16, 0, 8, 0}, {}, {}}),
            "op 1 `attention`: 6 heads are no multiple of 4 kv heads");
  EXPECT_EQ(refusal({"attention", Type::F32, {1, 8, 4, 4, 16, 0}, {}, {}}),
            "op 1 `attention`: expected 6 dims and two for each chunk, got 6");
  EXPECT_EQ(refusal({"attention_bwd", Type::F32, {1, 8, 4, 4, 16, 0, 8}, {}, {}}),
            "op 1 `attention_bwd`: expected 6 dims and two for each chunk, got 7");
  EXPECT_EQ(refusal({"attention", Type::F32, {1, 8, 4, 4, 16, 0, 8, 0, 0, 8}, {}, {}}), "op 1 `attention`: dim 8 is 0");
  EXPECT_EQ(refusal({"attention", Type::F32, {1, 8, 4, 4, 16, 0, 8, -1}, {}, {}}), "op 1 `attention`: dim 7 is -1");
  EXPECT_EQ(refusal({"cross_entropy_dz", Type::F32, {4, 8, 16, 16}, {1}, {}}),
            "op 1 `cross_entropy_dz`: columns 16 to 23 do not fit a vocabulary of 16");
  EXPECT_EQ(refusal({"embedding", Type::F32, {4, 8, 17, 0, 16}, {}, {}}),
            "op 1 `embedding`: rows 0 to 16 do not fit a vocabulary of 16");
  EXPECT_EQ(
      refusal({"rope", Type::F32, {1, 8, 2, 8, 0}, {1, 1, 1, 1, 1, 1}, {}}),
      "op 1 `rope`: expected 1 param, or a factor, a frequency for each pair that turns, and three of a growth, got 6");
  EXPECT_EQ(refusal({"embedding_dw", Type::F32, {4, 8, 8}, {1, 2}, {}}),
            "op 1 `embedding_dw`: expected 0 params or 1, got 2");
  EXPECT_EQ(refusal({"rope", Type::F32, {1, 8, 2, 7, 0}, {1e4}, {}}),
            "op 1 `rope`: a head of width 7 has no pairs; expected an even width");
  EXPECT_EQ(refusal({"positions", Type::F32, {1, 8, 4, 9, 16}, {}, {}}),
            "op 1 `positions`: positions 9 to 16 do not fit a context of 16");
  EXPECT_EQ(refusal({"slice_columns", Type::F32, {1, 8, 4, 5}, {}, {}}),
            "op 1 `slice_columns`: columns 4 to 8 do not fit a width of 8");
  EXPECT_EQ(refusal({"sum_heads", Type::F32, {1, 5, 2, 8, 4}, {}, {}}),
            "op 1 `sum_heads`: columns 4 to 8 do not fit a width of 8");
  EXPECT_EQ(refusal({"place_columns", Type::F32, {4, 8, 0, 5, 3}, {}, {}}),
            "op 1 `place_columns`: 4 rows are no multiple of 3");
}

/// Scratch does not grow with a product: a vocabulary of 128256 and 4096 tokens take what is planned for any product,
/// 8 MiB (runtime/kernels/Facts.h), in every type, whatever multiplies here. The operands are 0.2 to 2 GB.
TEST(KernelsPrepare, ScratchOfProductsIsBounded) {
  std::vector<std::vector<int64_t>> sizes = {
      {4096, 4096, 128256}, {1, 128256, 4096}, {4095, 14337, 4097}, {300, 70, 900}};
  for (const char *kernel : {"linear", "linear_dx", "linear_dw"})
    for (Type type : allTypes)
      for (const std::vector<int64_t> &dims : sizes)
        for (bool transposed : {false, true}) {
          OneOp op(kernel, type, dims, {},
                   transposed ? std::vector<std::string>{"transposed"} : std::vector<std::string>{});
          ASSERT_TRUE(op.kernels);
          EXPECT_LE(op.kernels->scratchBytes(), 8 << 20) << kernel << " " << nameOf(type) << " " << dims[2];
        }
}

TEST(KernelsPrepare, CallOfAnotherOpFails) {
  OneOp op("add", Type::F32, {4});
  float x[4] = {}, y[4] = {};
  EXPECT_EQ(pp_gelu(&op.rank, 0, x, y), PP_INTERNAL);
  EXPECT_EQ(op.rank.message, "op 0 is not a prepared `gelu`");
  op.rank.message.clear();
  EXPECT_EQ(pp_add(&op.rank, 1, x, x, y), PP_INTERNAL);
  EXPECT_EQ(op.rank.message, "op 1 is not a prepared `add`");
  EXPECT_EQ(pp_add(&op.rank, -1, x, x, y), PP_INTERNAL);
}

TEST(KernelsPrepare, TokenOutsideTheVocabularyFails) {
  OneOp op("embedding", Type::F32, {2, 4, 10});
  int32_t tokens[2] = {3, 10};
  float table[40] = {}, x[8];
  EXPECT_EQ(pp_embedding(&op.rank, 0, tokens, table, x), PP_INVALID);
  EXPECT_EQ(op.rank.message, "op 0 `embedding` met a token or target outside its vocabulary");
}

/// Ops of a rank share scratch and tables: 100 equal ropes cost one table.
TEST(KernelsPrepare, SharesTables) {
  std::unique_ptr<Kernels> one, many;
  std::string message;
  OpSpec rope{"rope", Type::F32, {1, 64, 2, 16, 0}, {1e4}, {}};
  ASSERT_EQ(Kernels::prepare({rope}, one, message), PP_OK);
  ASSERT_EQ(Kernels::prepare(std::vector<OpSpec>(100, rope), many, message), PP_OK);
  EXPECT_EQ(one->scratchBytes(), 64 * 8 * 2 * 4);
  EXPECT_EQ(many->scratchBytes(), one->scratchBytes());
}

/// In threads mode every rank is a thread with its own Kernels; no rank can change the results of another.
TEST(KernelsPrepare, RanksAsThreadsAgree) {
  const int ranks = 4;
  const Shapes n;
  std::vector<Values> results(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      Array x(Type::F32, random(size_t(n.t * n.k), 1)), w(Type::F32, random(size_t(n.k * n.n), 2));
      Array y(Type::F32, size_t(n.t * n.n)), lse(Type::F32, size_t(n.t * 4)), o(Type::F32, size_t(n.t * n.n));
      OneOp linear("linear", Type::F32, {n.t, n.k, n.n}),
          attention("attention", Type::F32, {1, n.t, 4, 4, n.n / 4, 0, n.t, 0});
      const void *kv[] = {y, y};
      for (int i = 0; i < 20; ++i) {
        linear(pp_linear, x, w, nullptr, y);
        attention(pp_attention, y, kv, o, lse);
      }
      results[size_t(r)] = o.get();
    });
  for (std::thread &thread : threads)
    thread.join();
  for (const Values &result : results)
    expectEqual(result, results[0], "rank");
}

/// What a scan has in scratch is what Facts.h says.
TEST(KernelsPrepare, ScratchOfScansIsPlanned) {
  for (const char *kernel : {"scan", "scan_bwd"})
    for (const std::vector<double> &params : {std::vector<double>{}, {0, 1}})
      for (Type type : {Type::F32, Type::F64})
        for (std::vector<int64_t> dims : {std::vector<int64_t>{1, 1, 1, 1, 5, 7},
                                          {1, 32, 2, 2, 16, 33},
                                          {1, 33, 6, 2, 128, 128},
                                          {2, 4096, 4, 4, 64, 256}}) {
          const OpSpec spec{kernel, type, dims, params, {"delta"}};
          PreparedOp op{};
          std::vector<Chunk> chunks;
          ASSERT_EQ(readSpec(spec, op, chunks), "");
          const ScanShape shape(op, nullptr);
          const bool backward = op.kernel == Kernel::scan_bwd;
          auto bytes = [&](auto places) { return decltype(places)::type::Places::bytes(shape, backward); };
          EXPECT_EQ(!params.empty()     ? type == Type::F32 ? bytes(std::type_identity<ChannelScan<float>>{})
                                                            : bytes(std::type_identity<ChannelScan<double>>{})
                        : type == Type::F32 ? bytes(std::type_identity<Scan<float>>{})
                                        : bytes(std::type_identity<Scan<double>>{}),
                    cpuScratch(sizesOf(spec)))
              << kernel << " " << nameOf(type) << " " << dims[1];
        }
}
