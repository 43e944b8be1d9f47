// Attention that a library serves, over a stand-in of cuDNN: its gradients, its memory, the delta that is left to it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Sdpa.h"
#include "test/unit/Attention.h"
#include <cstdlib>

using namespace pp;
using namespace pp::test;

namespace {

class KernelsSdpa : public testing::Test {
protected:
  void SetUp() override { setenv("PP_EMULATE_CUDNN", "on", 1); }
  void TearDown() override {
    unsetenv("PP_EMULATE_CUDNN");
    unsetenv("PP_CUDNN");
  }

  /// A delta and the backward that reads it, prepared together; `more`: other ops of the rank.
  struct Pair {
    Slice n;
    Type type = Type::Bf16;
    Values dout, q;
    Keys keys;
    Output total;
    std::unique_ptr<Kernels> kernels;
    pp_rank_t rank;
    Array delta, dq;

    explicit Pair(const Slice &n, std::vector<std::string> flags = {"remade"}, const std::vector<OpSpec> &more = {})
        : n(n), dout(rounded(type, random(n.queries(), 2))), q(rounded(type, random(n.queries(), 1))),
          keys(randomKeys(n, type, 3)), delta(accOf(type), Values(n.rows(), 77)), dq(type, n.queries()) {
      total = reference(n, q, keys);
      total.o = rounded(type, total.o);
      std::vector<OpSpec> specs = {{"attention_delta", type, {n.b, n.s, n.heads, n.d}, {}, std::move(flags)},
                                   {"attention_bwd", type, n.dims(), n.params(), n.flags()}};
      specs.insert(specs.end(), more.begin(), more.end());
      std::string message;
      EXPECT_EQ(Kernels::prepare(specs, kernels, message), PP_OK) << message;
      rank.kernels = kernels.get();
    }
    /// Delta, after the kernel that makes it; `offset`: by how many elements the output lies beside a multiple of 16.
    Values run(size_t offset = 0) {
      Values shifted = total.o;
      shifted.insert(shifted.begin(), offset, 0);
      Array o(type, shifted), lse(accOf(type), total.lse), slopes(type, dout), queries(type, q);
      const char *output = static_cast<const char *>(o.data()) + 2 * offset;
      ArrayList kv = listOf(n, type, keys), dkv;
      dkv.add(Array(type, n.keys(0)));
      dkv.add(Array(type, n.keys(0)));
      EXPECT_EQ(pp_attention_delta(&rank, 0, slopes, output, delta), PP_OK);
      Values made = delta.get();
      EXPECT_EQ(pp_attention_bwd(&rank, 1, slopes, queries, lse, delta, kv.inputs(), dq, dkv.outputs(), output), PP_OK);
      setenv("PP_CUDNN", "off", 1);
      Gradients ours = backward(n, type, dout, q, keys, total);
      unsetenv("PP_CUDNN");
      expectNear(Gradients{dq.get(), {dkv.arrays[0].get()}, {dkv.arrays[1].get()}}, ours, gradientTolerance(type));
      return made;
    }
  };
};

const Slice grouped(2, 40, 4, 2, 64, true);

void expectForward(const std::vector<Slice> &slices) {
  for (const Slice &n : slices)
    for (Type type : halfTypes) {
      Values q = rounded(type, random(n.queries(), 1));
      Keys keys = randomKeys(n, type, 3);
      Output got = forward(n, type, q, keys), want = reference(n, q, keys);
      expectNear(got.o, want.o, toleranceOf(type), "o");
      expectNear(got.lse, want.lse, 2e-5, "lse");
    }
}

} // namespace

TEST_F(KernelsSdpa, ForwardIsThatOfOurs) { expectForward({grouped, Slice(1, 33, 2, 2, 40, false)}); }

/// q, k and v as the columns of one tensor.
TEST_F(KernelsSdpa, OfOneTensor) {
  const Slice one = grouped.inOneTensor();
  expectForward({one});
  for (Type type : halfTypes) {
    Values q = rounded(type, random(one.queries(), 1)), dout = rounded(type, random(one.queries(), 2));
    Keys keys = randomKeys(one, type, 3);
    Gradients want;
    Output total = reference(one, q, keys, &dout, &want);
    total.o = rounded(type, total.o);
    expectNear(backward(one, type, dout, q, keys, total), want, 2 * gradientTolerance(type));
  }
}

/// Our own kernels run attention with keys in chunks, or with gradients that are added to others: cuDNN has plans for
/// both, but these plans were wrong on a GPU. The stand-in adds nothing up, so its gradients would be wrong.
TEST_F(KernelsSdpa, WhatIsAddedUpIsOurs) {
  const Slice sliced(2, 24, 4, 2, 40, true, 56, {{32, 0}, {24, 32}, {24, 56}}),
      before(2, 24, 4, 4, 64, true, 32, {{32, 0}});
  expectForward({sliced});
  for (Type type : halfTypes)
    for (const Slice &n : {sliced, before}) {
      Values q = rounded(type, random(n.queries(), 1)), dout = rounded(type, random(n.queries(), 2));
      Keys keys = randomKeys(n, type, 3);
      Gradients want;
      Output total = reference(n, q, keys, &dout, &want);
      total.o = rounded(type, total.o);
      Values there = rounded(type, random(n.queries(), 90));
      Array dq(type, there);
      ArrayList kv = listOf(n, type, keys), dkv;
      for (size_t i = 0; i < 2 * n.chunks.size(); ++i)
        dkv.add(Array(Type::F32, Values(n.keys(i / 2))));
      OneOp("attention_bwd", type, n.dims(), n.params(), n.flags({"accumulate", "accumulate_kv"}))(
          pp_attention_bwd, Array(type, dout), Array(type, q), Array(Type::F32, total.lse),
          Array(Type::F32, delta(n, type, dout, total.o)), kv.inputs(), dq, dkv.outputs(), Array(type, total.o));
      Gradients got{dq.get(), {}, {}};
      for (size_t i = 0; i < 2 * n.chunks.size(); ++i)
        (i % 2 ? got.dv : got.dk).push_back(dkv.arrays[i].get());
      for (size_t j = 0; j < there.size(); ++j)
        got.dq[j] -= there[j];
      expectNear(got, want, 2 * gradientTolerance(type));
    }
}

/// The delta keeps its old value: its kernel does nothing, and the gradients are right without it.
TEST_F(KernelsSdpa, DeltaIsLeftToTheLibrary) {
  Pair pair(grouped);
  for (double value : pair.run())
    EXPECT_EQ(value, 77);
}

/// Each of these is a reason to make it.
TEST_F(KernelsSdpa, DeltaIsMadeWhereItMayBeRead) {
  auto isMade = [](Pair pair, size_t offset = 0) {
    Values made = pair.run(offset), want = delta(pair.n, pair.type, pair.dout, pair.total.o);
    return made == want;
  };
  OpSpec inTwo = {"attention_bwd", Type::Bf16, {2, 40, 4, 2, 64, 0, 20, 0, 20, 20}, {}, {"causal"}};
  OpSpec other = {"attention_bwd", Type::Bf16, {2, 40, 4, 2, 32, 0, 20, 0, 20, 20}, {}, {"causal"}};
  EXPECT_TRUE(isMade(Pair(grouped, {}))) << "somebody else reads it";
  EXPECT_TRUE(isMade(Pair(grouped, {"remade"}, {inTwo}))) << "our kernels serve another backward of these sizes";
  EXPECT_FALSE(isMade(Pair(grouped, {"remade"}, {other}))) << "of other sizes";
  setenv("PP_EMULATE_CUDNN", "", 1);
  EXPECT_TRUE(isMade(Pair(grouped))) << "our kernels serve";
}

/// At addresses that the library does not take our kernels serve, and make the delta first.
TEST_F(KernelsSdpa, DeltaIsMadeForUnalignedOutputs) {
  Pair pair(grouped);
  for (double value : pair.run(/*offset=*/1))
    EXPECT_EQ(value, 77);
  expectNear(pair.delta.get(), delta(grouped, pair.type, pair.dout, pair.total.o), 2e-5, "delta");
}

/// The block of memory is as large as the library says, and no larger than planned; who asks for more does not serve.
TEST_F(KernelsSdpa, TakesWhatIsPlanned) {
  OpSpec spec = {"attention_bwd", Type::Bf16, grouped.dims(), {}, grouped.flags()};
  auto bytesOf = [&] {
    std::unique_ptr<Kernels> kernels;
    std::string message;
    EXPECT_EQ(Kernels::prepare({spec}, kernels, message), PP_OK) << message;
    return kernels->scratchBytes();
  };
  const int64_t rows = 2 * 40 * 4;
  EXPECT_GE(bytesOf(), 4 * rows * (1 + 64) + 4 * rows * 64);
  EXPECT_LE(bytesOf(), 4 * rows * (1 + 2 * 64) + 4 * rows * 64 + 65536 + 4096);
  setenv("PP_EMULATE_CUDNN", "greedy", 1);
  EXPECT_LE(bytesOf(), 4096);
}

/// The compiler counts the same: its number of this shape is in test/passes/prove-memory-cuda.pipe.
TEST_F(KernelsSdpa, IsPlannedAsTheCompilerDoes) {
  Chunk keys = {128, 0};
  PreparedOp op{};
  op.kernel = Kernel::attention_bwd;
  op.type = Type::Bf16;
  op.chunks = &keys;
  op.chunkCount = 1;
  int64_t dims[] = {1, 128, 4, 2, 16, 0};
  std::copy_n(dims, 6, op.dims);
  EXPECT_TRUE(SdpaShape::fits(op));
  EXPECT_EQ(SdpaShape(op).plannedBytes(), 165888);
}
