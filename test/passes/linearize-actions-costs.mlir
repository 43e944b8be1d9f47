// Where the program has costs of the model's parts, they are the clock of the merge.
// RUN: pp-opt %s --pp-linearize-actions | FileCheck %s

//   rank 0 | q0 s0 s0 s0 q4       quick takes 1, slow 2.5: q4 begins at 3.5, after q5; in units it would at 2, before q5
//   rank 1 | q1 q2 q3 q5
pipeline.program @p ranks 2 microbatches 6 slices 0 attributes {train = {}, costs = {slow = 2.5 : f64, quick = 1.0 : f64}} {
  pipeline.piece @quick0 <part "quick" 0> parts [["quick", 0]] {weights = []}
  pipeline.piece @slow0 <part "slow" 0> parts [["slow", 0], ["free", 0]] {weights = []}
  pipeline.unit <F part "quick" 0 mb 0> on [0]
  pipeline.unit <F part "slow" 0 mb 0> on [0]
  pipeline.unit <F part "quick" 0 mb 4> on [0]
  pipeline.unit <F part "quick" 0 mb 1> on [1]
  pipeline.unit <F part "quick" 0 mb 2> on [1]
  pipeline.unit <F part "quick" 0 mb 3> on [1]
  pipeline.unit <F part "quick" 0 mb 5> on [1]
}
// CHECK:      unit <F part "quick" 0 mb 0> on [0]
// CHECK-NEXT: unit <F part "quick" 0 mb 1> on [1]
// CHECK-NEXT: unit <F part "slow" 0 mb 0> on [0]
// CHECK-NEXT: unit <F part "quick" 0 mb 2> on [1]
// CHECK-NEXT: unit <F part "quick" 0 mb 3> on [1]
// CHECK-NEXT: unit <F part "quick" 0 mb 5> on [1]
// CHECK-NEXT: unit <F part "quick" 0 mb 4> on [0]
