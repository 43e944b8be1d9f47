// prove-units finds units outside of the schedule by itself: it does not rely on the verifier of `launch`.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/PassError.h"

using namespace mlir;
using namespace pp;

namespace {

/// The first error of prove-units on one launch, of which nothing else was checked.
std::string proveUnitsOf(StringRef unit, int64_t microbatches, int64_t slices) {
  std::string text = ("pipeline.program @p ranks 1 microbatches " + Twine(microbatches) + " slices " + Twine(slices) +
                      " attributes {train = {}} {\n"
                      "  pipeline.piece @s0 <stage 0> parts [[\"a\", 0]] at <[0]>\n"
                      "  pipeline.rank 0 {\n"
                      "    pipeline.launch @s0.F <" +
                      unit + ">() -> () : () -> ()\n  }\n}\n")
                         .str();
  std::string first = firstErrorOf(text, createProveUnits());
  EXPECT_FALSE(first.empty());
  return first;
}

} // namespace

TEST(UnverifiedUnits, AMicrobatchTooMany) {
  EXPECT_EQ(proveUnitsOf("F stage 0 mb 2", 2, 0),
            "rank 0 runs `F(0, 2)`, but microbatch 2 does not exist; this schedule has 2 microbatches, 0 to 1");
}

TEST(UnverifiedUnits, ASliceTooMany) {
  EXPECT_EQ(proveUnitsOf("F stage 0 mb 0 slice 2", 1, 2),
            "rank 0 runs `F(0, 0, 2)`, but slice 2 does not exist; this schedule has 2 slices, 0 to 1");
}

TEST(UnverifiedUnits, AStageThatIsNotThere) {
  EXPECT_EQ(proveUnitsOf("F stage 7 mb 0", 1, 0), "`F(7, 0)` names a piece that this schedule does not have");
}
