// The tensor cores' attention at and beyond every tile: each width of tile, wide and odd heads, tails, unaligned rows.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Attention.h"
#include <cstdlib>

using namespace pp;
using namespace pp::test;

/// Widths 64, 128 and 256 of tiles, all full, and parts of each; the last ones have odd rows, which no pack can read.
TEST(KernelsTiles, EveryWidthEqualsTheDenseDefinition) {
  for (int64_t d : {64, 72, 128, 136, 256, 31, 129, 250})
    for (bool causal : {true, false}) {
      Slice n{1, d > 64 ? 70 : 150, 2, 1, d, causal};
      compare(n, Type::Bf16);
      if (causal)
        compare(n, Type::F16);
    }
}

/// Exactly a tile of queries and of keys, one more and one less.
TEST(KernelsTiles, LengthsAroundTheTiles) {
  for (int64_t s : {63, 64, 65, 127, 128, 129, 192})
    compare(Slice{1, s, 1, 1, 64, true}, s % 2 ? Type::Bf16 : Type::F16);
}

/// Many chunks, of which some lie behind the queries: tiles that nothing sees are skipped, their gradients zero.
TEST(KernelsTiles, ChunksBeforeAndBehind) {
  Slice n(2, 130, 4, 2, 64, true, 200, {{64, 0}, {100, 64}, {70, 164}, {96, 234}, {40, 330}, {64, 500}});
  for (Type type : halfTypes)
    compare(n, type);
  Slice wide(1, 100, 2, 2, 256, true, 60, {{64, 0}, {100, 64}, {33, 164}});
  compare(wide, Type::Bf16);
}

/// Two runs of queries around the tiles, over several chunks: runs that end within a tile, keys between the runs that
/// only the second one sees, chunks that nobody sees. With windows, documents and dropout, too.
TEST(KernelsTiles, TwoRunsOverChunks) {
  for (auto [run, first, second, d] :
       {std::tuple(65, 0, 200, 40), {63, 70, 133, 64}, {31, 5, 300, 136}, {128, 64, 192, 72}}) {
    Slice n = Slice(1, 2 * run, 2, 1, d, true, first)
                  .inTwoRuns(second, {{67, 0}, {100, 67}, {33, 167}, {140, 200}, {60, 340}});
    for (Type type : {Type::Bf16, Type::F16, Type::F32}) {
      compare(n, type);
      compare(n.windowed(90).dropped(0.25, 400), type);
      compare(n.withDocuments({first + run / 2, second + 3}), type);
    }
  }
}

/// Large scores: the running maximum moves, most weights underflow; tolerances hold because q and k are exact in the
/// type.
TEST(KernelsTiles, LargeScores) {
  for (Type type : halfTypes)
    for (bool causal : {false, true}) {
      Slice n{1, 150, 2, 1, 64, causal};
      Values q = rounded(type, random(n.queries(), 1, 3));
      Keys keys = randomKeys(n, type, 3, 3);
      Output want = reference(n, q, keys), got = forward(n, type, q, keys);
      expectNear(got.o, want.o, toleranceOf(type), "o");
      expectNear(got.lse, want.lse, 2e-5, "lse");
    }
}

/// Heads wider than the tiles take the plain kernels.
TEST(KernelsTiles, HeadsWiderThanTheTiles) {
  for (Type type : halfTypes)
    compare(Slice{1, 40, 2, 1, 264, true}, type);
}

/// No sum depends on the order in which blocks run. (cuDNN's do, in the backward.)
TEST(KernelsTiles, Deterministic) {
  setenv("PP_CUDNN", "forward", 1);
  Slice n{2, 200, 4, 2, 64, true};
  Values q = rounded(Type::Bf16, random(n.queries(), 1)), dout = rounded(Type::Bf16, random(n.queries(), 2));
  Keys keys = randomKeys(n, Type::Bf16, 3);
  Output f = forward(n, Type::Bf16, q, keys);
  Gradients g = backward(n, Type::Bf16, dout, q, keys, f), again = backward(n, Type::Bf16, dout, q, keys, f);
  expectEqual(again.dq, g.dq, "dq");
  expectEqual(again.dk[0], g.dk[0], "dk");
  expectEqual(again.dv[0], g.dv[0], "dv");
  unsetenv("PP_CUDNN");
}
