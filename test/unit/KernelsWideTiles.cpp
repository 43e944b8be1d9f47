// The attention tile of AVX-512 (16 lanes, 8 rows), lowered to whatever this CPU has, against the tile in use here.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/kernels/BlockedBackward.h"
#include "runtime/kernels/BlockedForward.h"
#include "test/unit/Kernels.h"
#include <cstdlib>

using namespace pp::test;

namespace {

struct Results {
  Values o, lse, dq, dk, dv;
};

struct WideCase {
  std::vector<int64_t> dims; // b s H G d, then position and one chunk of keys
  bool causal;
  WideCase(std::vector<int64_t> sizes, bool causal) : dims(std::move(sizes)), causal(causal) {
    dims.insert(dims.end(), {0, dims[1], 0});
  }
  size_t queries() const { return size_t(dims[0] * dims[1] * dims[2] * dims[4]); }
  size_t keys() const { return size_t(dims[0] * dims[1] * dims[3] * dims[4]); }
  size_t rows() const { return size_t(dims[0] * dims[1] * dims[2]); }
};

template <class Forward, class Backward>
Results compute(const WideCase &c, Type type, Forward forward, Backward backward) {
  Array q(type, random(c.queries(), 1)), k(type, random(c.keys(), 2)), v(type, random(c.keys(), 3));
  Array dout(type, random(c.queries(), 4)), o(type, c.queries()), lse(Type::F32, c.rows());
  Array dq(type, c.queries()), dk(type, c.keys()), dv(type, c.keys()), delta(Type::F32, random(c.rows(), 5));
  const void *kv[] = {k, v};
  void *dkv[] = {dk, dv};
  forward(q.data(), kv, o.data(), lse.data());
  backward(dout.data(), q.data(), lse.data(), delta.data(), kv, dq.data(), dkv);
  return {o.get(), lse.get(), dq.get(), dk.get(), dv.get()};
}

template <int lanes, int tileRows, class E> Results computeWith(const WideCase &c, Type type) {
  using Forward = BlockedForward<lanes, tileRows>;
  using Backward = BlockedBackward<lanes, tileRows>;
  PreparedOp op{};
  std::copy_n(c.dims.begin(), 6, op.dims);
  Chunk chunk{c.dims[6], c.dims[7]};
  op.chunks = &chunk;
  op.chunkCount = 1;
  op.type = type;
  op.flags = c.causal ? uint32_t(Causal) : 0;
  AttentionShape shape(op);
  int64_t bytes = std::max(Forward::scratchBytes(shape), Backward::scratchBytes(shape));
  op.scratch = static_cast<char *>(std::aligned_alloc(64, size_t(bytes + 63) / 64 * 64));
  Results results = compute(
      c, type,
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

Results computeHere(const WideCase &c, Type type) {
  std::vector<std::string> flags = c.causal ? std::vector<std::string>{"causal"} : std::vector<std::string>{};
  OneOp forward("attention", type, c.dims, {}, flags), backward("attention_bwd", type, c.dims, {}, flags);
  return compute(
      c, type, [&](auto... pointers) { forward(pp_attention, pointers...); },
      [&](auto... pointers) { backward(pp_attention_bwd, pointers...); });
}

template <int lanes, int tileRows> void compareWith() {
  for (const WideCase &c :
       {WideCase{{1, 1, 1, 1, 5}, true}, WideCase{{1, 48, 1, 1, 16}, true}, WideCase{{2, 100, 4, 2, 64}, true},
        WideCase{{1, 211, 2, 1, 40}, false}, WideCase{{1, 290, 1, 1, 128}, true}, WideCase{{1, 145, 1, 1, 200}, true}})
    for (Type type : {Type::F32, Type::Bf16}) {
      SCOPED_TRACE(nameOf(type) + std::string(" ") + std::to_string(c.dims[1]));
      Results here = computeHere(c, type);
      Results wide = type == Type::F32 ? computeWith<lanes, tileRows, float>(c, type)
                                       : computeWith<lanes, tileRows, Bf16>(c, type);
      double tolerance = type == Type::F32 ? 1e-5 : 1e-2;
      expectNear(wide.o, here.o, tolerance, "o");
      expectNear(wide.lse, here.lse, 1e-5, "lse");
      expectNear(wide.dq, here.dq, tolerance, "dq");
      expectNear(wide.dk, here.dk, tolerance, "dk");
      expectNear(wide.dv, here.dv, tolerance, "dv");
    }
}

} // namespace

TEST(KernelsWideTiles, Avx512TileEqualsThisCpus) { compareWith<16, 8>(); }
TEST(KernelsWideTiles, Avx2TileEqualsThisCpus) { compareWith<8, 4>(); }
TEST(KernelsWideTiles, NarrowTileEqualsThisCpus) { compareWith<4, 4>(); }
