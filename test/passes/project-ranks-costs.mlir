// With costs of parts, a send may be on its way for as long as the longest unit: its receiver may have begun one just before.
// RUN: pp-opt %s --pp-project-ranks | FileCheck %s
// RUN: pp-opt %s --pp-project-ranks=stretch=1 | FileCheck %s

func.func private @make() attributes {pipeline.scratch_bytes = 0 : i64}
!a0 = !pipeline.val<act, tuple<tensor<16xf32>>, [0]>
!a1 = !pipeline.val<act, tuple<tensor<16xf32>>, [1]>

pipeline.program @p ranks 2 microbatches 4 slices 0 attributes {train = {}, costs = {slow = 2.5 : f64, quick = 1.0 : f64}} {
  pipeline.piece @quick0 <part "quick" 0> parts [["quick", 0]]
  pipeline.piece @slow0 <part "slow" 0> parts [["slow", 0]]
  %a = pipeline.task @make <F part "quick" 0 mb 0> on [0]() ties [-1] : () -> !a0
  pipeline.task @make <F part "slow" 0 mb 3> on [1]() ties [] : () -> ()
  %f = pipeline.move <act part "quick" 0 mb 0> %a : !a0 -> <!a1>
  pipeline.task @make <F part "quick" 0 mb 1> on [0]() ties [] : () -> ()
  pipeline.task @make <F part "quick" 0 mb 2> on [0]() ties [] : () -> ()
  pipeline.task @make <F part "quick" 0 mb 3> on [0]() ties [] : () -> ()
  %x = pipeline.wait %f : <!a1> -> !a1
  pipeline.task @make <F part "slow" 0 mb 0> on [1](%x) ties [] : (!a1) -> ()
}
// CHECK:      %[[S:.*]] = pipeline.post send
// CHECK-NEXT: pipeline.launch @make <F part "quick" 0 mb 1>
// CHECK-NEXT: pipeline.launch @make <F part "quick" 0 mb 2>
// CHECK-NEXT: pipeline.launch @make <F part "quick" 0 mb 3>
// CHECK-NEXT: pipeline.complete %[[S]]

// A receive is posted as long before it is waited for, here above two quick units, though the value is made after both.
pipeline.program @q ranks 2 microbatches 4 slices 0 attributes {train = {}, costs = {slow = 2.0 : f64, quick = 1.0 : f64}} {
  pipeline.piece @quick0 <part "quick" 0> parts [["quick", 0]]
  pipeline.piece @slow0 <part "slow" 0> parts [["slow", 0]]
  pipeline.task @make <F part "quick" 0 mb 1> on [1]() ties [] : () -> ()
  pipeline.task @make <F part "quick" 0 mb 2> on [1]() ties [] : () -> ()
  pipeline.task @make <F part "quick" 0 mb 3> on [1]() ties [] : () -> ()
  %a = pipeline.task @make <F part "quick" 0 mb 0> on [0]() ties [-1] : () -> !a0
  %f = pipeline.move <act part "quick" 0 mb 0> %a : !a0 -> <!a1>
  %x = pipeline.wait %f : <!a1> -> !a1
  pipeline.task @make <F part "slow" 0 mb 0> on [1](%x) ties [] : (!a1) -> ()
}
// CHECK:      pipeline.rank 1
// CHECK:      pipeline.rank 1
// CHECK-NEXT: pipeline.launch @make <F part "quick" 0 mb 1>
// CHECK-NEXT: %[[X:.*]] = pipeline.slot
// CHECK-NEXT: %[[R:.*]] = pipeline.post receive {{.*}}%[[X]]
// CHECK-NEXT: pipeline.launch @make <F part "quick" 0 mb 2>
// CHECK-NEXT: pipeline.launch @make <F part "quick" 0 mb 3>
// CHECK-NEXT: pipeline.complete %[[R]]
// CHECK-NEXT: pipeline.launch @make <F part "slow" 0 mb 0>
