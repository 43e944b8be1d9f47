// Limits that are reached and kept: a value lives from its arrival to its last use.
// RUN: pp-opt %s --pp-verify-limits | FileCheck %s

!w0 = !pipeline.val<weight, tuple<tensor<4xf32>>, [0]>
!w1 = !pipeline.val<weight, tuple<tensor<4xf32>>, [1]>
!g0 = !pipeline.val<grad, tuple<tensor<4xf32>>, [0]>
!g1 = !pipeline.val<grad, tuple<tensor<4xf32>>, [1]>

// The weights of three stages come to rank 1 one after the other: each has been used when the next is sent.
// CHECK: pipeline.program @visitors
pipeline.program @visitors ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  // CHECK: pipeline.limit weight 1 on [1]
  pipeline.limit weight 1 on [1]
  pipeline.limit weight 2 on [0]
  %a = pipeline.input <weight stage 0> : !w0
  %b = pipeline.input <weight stage 1> : !w0
  %fa = pipeline.move <weight stage 0> %a : !w0 -> <!w1>
  %ra = pipeline.wait %fa : <!w1> -> !w1
  pipeline.task @s0.F <F stage 0 mb 0> on [1](%ra) ties [] : (!w1) -> ()
  %fb = pipeline.move <weight stage 1> %b : !w0 -> <!w1>
  %rb = pipeline.wait %fb : <!w1> -> !w1
  pipeline.task @s1.F <F stage 1 mb 0> on [1](%rb) ties [] : (!w1) -> ()
}

// A gradient that is added to in place is one gradient.
// CHECK: pipeline.program @sum
pipeline.program @sum ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.limit grad 1 on [0]
  pipeline.limit stash 1 on [0]
  pipeline.task @s0.F <F stage 0 mb 0> on [0]() ties [] : () -> ()
  %g = pipeline.task @s0.B.first <B stage 0 mb 0> on [0]() ties [-1] : () -> !g0
  pipeline.task @s0.F <F stage 0 mb 1> on [0]() ties [] : () -> ()
  %h = pipeline.task @s0.B <B stage 0 mb 1> on [0](%g) ties [0] : (!g0) -> !g0
  pipeline.output <grad stage 0> %h : !g0
}

// Where F keeps nothing but its inputs there is a stash from R on: the second is made when the first is used up. What F
// keeps of it counts from F.
!s0 = !pipeline.val<stash, tuple<tensor<4xf32>>, [0]>
func.func private @s0.F.light() attributes {pipeline.body = #pipeline.body<"s0" F light>}
// CHECK: pipeline.program @forgotten
pipeline.program @forgotten ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.limit stash 1 on [0]
  pipeline.task @s0.F.light <F stage 0 mb 0> on [0]() ties [] : () -> ()
  pipeline.task @s0.F.light <F stage 0 mb 1> on [0]() ties [] : () -> ()
  %a = pipeline.task @s0.R <R stage 0 mb 0> on [0]() ties [-1] : () -> !s0
  pipeline.task @s0.B <B stage 0 mb 0> on [0](%a) ties [] : (!s0) -> ()
  %b = pipeline.task @s0.R <R stage 0 mb 1> on [0]() ties [-1] : () -> !s0
  pipeline.task @s0.B <B stage 0 mb 1> on [0](%b) ties [] : (!s0) -> ()
}

// A stash in host memory does not count: it is there until it leaves, and from when it comes back.
!h0 = !pipeline.val<stash, tuple<tensor<4xf32>>, [0] host>
// CHECK: pipeline.program @offloaded
pipeline.program @offloaded ranks 1 microbatches 3 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.limit stash 2 on [0]
  %a = pipeline.task @s0.F <F stage 0 mb 0> on [0]() ties [-1] : () -> !s0
  %fa = pipeline.move <stash stage 0 mb 0> %a : !s0 -> <!h0>
  %b = pipeline.task @s0.F <F stage 0 mb 1> on [0]() ties [-1] : () -> !s0
  %c = pipeline.task @s0.F <F stage 0 mb 2> on [0]() ties [-1] : () -> !s0
  pipeline.task @s0.B <B stage 0 mb 2> on [0](%c) ties [] : (!s0) -> ()
  %ha = pipeline.wait %fa : <!h0> -> !h0
  %ga = pipeline.move <stash stage 0 mb 0> %ha : !h0 -> <!s0>
  pipeline.task @s0.B <B stage 0 mb 1> on [0](%b) ties [] : (!s0) -> ()
  %ra = pipeline.wait %ga : <!s0> -> !s0
  pipeline.task @s0.B <B stage 0 mb 0> on [0](%ra) ties [] : (!s0) -> ()
}
