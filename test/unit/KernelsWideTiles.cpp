// The attention tile of AVX-512 (16 lanes, 8 rows), lowered to whatever this CPU has, against the tile in use here.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/kernels/BlockedBackward.h"
#include "runtime/kernels/BlockedForward.h"
#include "runtime/kernels/Specs.h"
#include "test/unit/Attention.h"
#include <cstdlib>

using namespace pp::test;

namespace {

struct Results {
  Values o, lse, dq;
  std::vector<Values> dkv;
};

template <class Forward, class Backward>
Results compute(const Slice &n, Type type, Forward forward, Backward backward) {
  Array q(type, random(n.queries(), 1)), dout(type, random(n.queries(), 2)), o(type, n.queries());
  Array lse(Type::F32, n.rows()), delta(Type::F32, random(n.rows(), 3)), dq(type, n.queries());
  ArrayList kv = listOf(n, type, randomKeys(n, type, 4)), dkv;
  for (size_t i = 0; i < 2 * n.chunks.size(); ++i)
    dkv.add(Array(type, n.keys(i / 2)));
  forward(q.data(), kv.inputs(), o.data(), lse.data());
  backward(dout.data(), q.data(), lse.data(), delta.data(), kv.inputs(), dq.data(), dkv.outputs(), nullptr);
  Results results{o.get(), lse.get(), dq.get(), {}};
  for (const Array &each : dkv.arrays)
    results.dkv.push_back(each.get());
  return results;
}

template <int lanes, int tileRows, class E> Results computeWith(const Slice &n, Type type) {
  using Forward = BlockedForward<lanes, tileRows>;
  using Backward = BlockedBackward<lanes, tileRows>;
  PreparedOp op{};
  std::vector<int64_t> dims = n.dims();
  std::copy_n(dims.begin(), 6, op.dims);
  op.chunks = n.chunks.data();
  op.chunkCount = int64_t(n.chunks.size());
  op.type = type;
  op.flags = (n.causal ? uint32_t(Causal) : 0) | (n.starts.empty() ? 0 : uint32_t(Documents));
  std::vector<double> params = n.params();
  std::copy(params.begin(), params.end(), op.params);
  AttentionShape shape(op);
  int64_t bytes = std::max(Forward::scratchBytes(shape), Backward::scratchBytes(shape));
  op.scratch = static_cast<char *>(std::aligned_alloc(64, size_t(bytes + 63) / 64 * 64));
  Results results = compute(
      n, type,
      [&](auto... pointers) {
        void *arguments[] = {const_cast<void *>(static_cast<const void *>(pointers))...};
        EXPECT_EQ(Forward::template run<E>(op, arguments), PP_OK);
      },
      [&](auto... pointers) {
        void *arguments[] = {const_cast<void *>(static_cast<const void *>(pointers))...};
        EXPECT_EQ(Backward::template run<E>(op, arguments), PP_OK);
      });
  std::free(op.scratch);
  return results;
}

Results computeHere(const Slice &n, Type type) {
  OneOp forward("attention", type, n.dims(), n.params(), n.flags()),
      backward("attention_bwd", type, n.dims(), n.params(), n.flags());
  return compute(
      n, type, [&](auto... pointers) { forward(pp_attention, pointers...); },
      [&](auto... pointers) { backward(pp_attention_bwd, pointers...); });
}

template <int lanes, int tileRows> void compareWith() {
  for (const Slice &n :
       {Slice(1, 1, 1, 1, 5, true), Slice(1, 48, 1, 1, 16, true), Slice(2, 100, 4, 2, 64, true),
        Slice(1, 211, 2, 1, 40, false), Slice(1, 290, 1, 1, 128, true), Slice(1, 145, 1, 1, 200, true),
        // Chunks in front of the queries, across them, and behind some.
        Slice(1, 150, 4, 2, 40, true, 120, {{70, 0}, {83, 70}, {61, 153}, {20, 260}}),
        Slice(2, 37, 2, 1, 64, true, 10, {{90, 30}, {5, 0}}), Slice(1, 211, 2, 1, 40, true).windowed(33),
        Slice(2, 211, 2, 1, 40, true).withDocuments({5, 90, 91})})
    for (Type type : {Type::F32, Type::Bf16, Type::F16}) {
      SCOPED_TRACE(nameOf(type) + std::string(" ") + n.text());
      Results here = computeHere(n, type);
      Results wide = type == Type::F32   ? computeWith<lanes, tileRows, float>(n, type)
                     : type == Type::F16 ? computeWith<lanes, tileRows, F16>(n, type)
                                         : computeWith<lanes, tileRows, Bf16>(n, type);
      double tolerance = type == Type::F32 ? 1e-5 : toleranceOf(type);
      expectNear(wide.o, here.o, tolerance, "o");
      expectNear(wide.lse, here.lse, 1e-5, "lse");
      expectNear(wide.dq, here.dq, tolerance, "dq");
      for (size_t i = 0; i < here.dkv.size(); ++i)
        expectNear(wide.dkv[i], here.dkv[i], tolerance, "dk, dv " + std::to_string(i));
    }
}

/// What a tile's attention needs is at most what is planned for every CPU, also where a block of queries carries
/// something from chunk to chunk, in one run of rows or in two.
template <class Forward, class Backward> void expectPlanned(Type type) {
  for (int64_t s : {2, 48, 64, 96, 290, 1024})
    for (int64_t d : {5, 16, 40, 64, 72, 128, 200})
      for (const Slice &n : {Slice(1, s, 4, 2, d, true), Slice(1, s, 4, 1, d, true, s, {{s, 0}, {70, s}}),
                             Slice(1, s, 4, 2, d, true).inTwoRuns(s, {{2 * s, 0}}),
                             Slice(1, s, 4, 2, d, true, 70).inTwoRuns(70 + s, {{70, 0}, {2 * s, 70}})})
        for (const char *kernel : {"attention", "attention_bwd"}) {
          OpSpec spec{kernel, type, n.dims(), n.params(), n.flags()};
          PreparedOp op{};
          std::vector<Chunk> chunks;
          ASSERT_EQ(readSpec(spec, op, chunks), "");
          const AttentionShape shape(op);
          EXPECT_LE(op.kernel == Kernel::attention ? Forward::scratchBytes(shape) : Backward::scratchBytes(shape),
                    cpuScratch(sizesOf(spec)))
              << kernel << " " << nameOf(type) << " " << n.text();
        }
}

} // namespace

TEST(KernelsWideTiles, Avx512TileEqualsThisCpus) { compareWith<16, 8>(); }
TEST(KernelsWideTiles, Avx2TileEqualsThisCpus) { compareWith<8, 4>(); }
TEST(KernelsWideTiles, NarrowTileEqualsThisCpus) { compareWith<4, 4>(); }
TEST(KernelsWideTiles, ScratchIsPlanned) {
  expectPlanned<BlockedForward<16, 8>, BlockedBackward<16, 8>>(Type::F32);
  expectPlanned<BlockedForward<8, 4>, BlockedBackward<8, 4>>(Type::F32);
  expectPlanned<BlockedForward<4, 4>, BlockedBackward<4, 4>>(Type::F32);
  expectPlanned<BlockedForward<16, 8, true>, BlockedBackward<16, 8, true>>(Type::Bf16);
}
