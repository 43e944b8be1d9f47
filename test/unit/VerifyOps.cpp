// An op that is not well formed is found by verify-ops, though nothing checked it when it was made.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/PassError.h"

using namespace mlir;
using namespace pp;

namespace {

/// The first error of verify-ops on what the body of a rank says; empty if there is none.
std::string errorOf(StringRef rank) {
  std::string text = ("!s = !pipeline.slot<tuple<tensor<16xf32>>>\n"
                      "pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {\n"
                      "  pipeline.piece @s0 <stage 0> parts [[\"a\", 0]]\n"
                      "  pipeline.rank 0 {\n"
                      "  }\n"
                      "  pipeline.rank 1 {\n    %a = pipeline.slot stash \"a\" : !s\n" +
                      rank + "  }\n}\n")
                         .str();
  return firstErrorOf(text, createVerifyOps());
}

} // namespace

TEST(VerifyOps, AcceptsWhatIsWellFormed) {
  EXPECT_EQ(errorOf("    pipeline.launch @f <B stage 0 mb 0>(%a) -> () : (!s) -> ()\n"), "");
}

TEST(VerifyOps, FindsWhatAnOpCannotSay) {
  EXPECT_EQ(errorOf("    pipeline.launch @f <B stage 0 mb 0>(%a) -> () handed [0, 0, 7, 0] : (!s) -> ()\n"),
            "'pipeline.launch' op hands tensor 0 of slot 0 on as tensor 0 of slot 7; expected an input's and a "
            "result's, of one size");
}

TEST(VerifyOps, FindsAnOperandThatComesLater) {
  EXPECT_EQ(errorOf("    pipeline.launch @f <B stage 0 mb 0>(%b) -> () : (!s) -> ()\n"
                    "    %b = pipeline.slot stash \"b\" : !s\n"),
            "operand #0 does not dominate this use");
}
