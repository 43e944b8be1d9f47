// One alive too many, by one: arrivals, departures and halves of backwards.
// RUN: pp-opt %s --split-input-file --pp-verify-limits --verify-diagnostics

!w0 = !pipeline.val<weight, tuple<tensor<4xf32>>, [0]>
!w1 = !pipeline.val<weight, tuple<tensor<4xf32>>, [1]>
!g0 = !pipeline.val<grad, tuple<tensor<4xf32>>, [0]>
!g1 = !pipeline.val<grad, tuple<tensor<4xf32>>, [1]>

// What leaves and what comes in one `together` are there at the same time.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  // expected-error@+1 {{rank 1 holds 2 weights at once; the limit is 1}}
  pipeline.limit weight 1 on [1]
  %a = pipeline.input <weight stage 0> : !w0
  %b = pipeline.input <weight stage 1> : !w1
  // expected-note@+1 {{the last of them arrives here}}
  %fa = pipeline.move <weight stage 0> %a group 0 : !w0 -> <!w1>
  %fb = pipeline.move <weight stage 1> %b group 0 : !w1 -> <!w0>
  %ra = pipeline.wait %fa : <!w1> -> !w1
  // expected-note@+1 {{one of them is kept for its use here}}
  pipeline.task @s0.F <F stage 0 mb 0> on [1](%ra) ties [] : (!w1) -> ()
}

// -----

!w0 = !pipeline.val<weight, tuple<tensor<4xf32>>, [0]>
!w1 = !pipeline.val<weight, tuple<tensor<4xf32>>, [1]>
!g0 = !pipeline.val<grad, tuple<tensor<4xf32>>, [0]>
!g1 = !pipeline.val<grad, tuple<tensor<4xf32>>, [1]>

// A message takes room from its post on, not from its wait.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  // expected-error@+1 {{rank 1 holds 2 grads at once; the limit is 1}}
  pipeline.limit grad 1 on [1]
  %g = pipeline.task @s0.B.first <B stage 0 mb 0> on [1]() ties [-1] : () -> !g1
  %a = pipeline.input <grad stage 0> : !g0
  // expected-note@+1 {{the last of them arrives here}}
  %fa = pipeline.move <grad stage 0> %a : !g0 -> <!g1>
  %ra = pipeline.wait %fa : <!g1> -> !g1
  // expected-note@+1 {{one of them is kept for its use here}}
  %s = pipeline.task @s0.sum <U stage 0> on [1](%g, %ra) ties [0] : (!g1, !g1) -> !g1
}

// -----

// With a backward in halves a stash stays until W.
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  // expected-error@+1 {{rank 0 holds 2 stashes at once; the limit is 1}}
  pipeline.limit stash 1 on [0]
  pipeline.task @s0.F <F stage 0 mb 0> on [0]() ties [] : () -> ()
  pipeline.task @s0.I <I stage 0 mb 0> on [0]() ties [] : () -> ()
  // expected-note@+1 {{the last of them arrives here}}
  pipeline.task @s0.F <F stage 0 mb 1> on [0]() ties [] : () -> ()
  pipeline.task @s0.W <W stage 0 mb 0> on [0]() ties [] : () -> ()
  pipeline.task @s0.I <I stage 0 mb 1> on [0]() ties [] : () -> ()
  // expected-note@+1 {{one of them is kept for its use here}}
  pipeline.task @s0.W <W stage 0 mb 1> on [0]() ties [] : () -> ()
}

// -----

// A part of the stash that F keeps is a stash from F on, although R makes the rest.
!s0 = !pipeline.val<stash, tuple<tensor<4xf32>>, [0]>
func.func private @s0.F.light() -> tensor<4xf32> attributes {pipeline.body = #pipeline.body<"s0" F light>}
pipeline.program @partly ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  // expected-error@+1 {{rank 0 holds 2 stashes at once; the limit is 1}}
  pipeline.limit stash 1 on [0]
  %k = pipeline.task @s0.F.light <F stage 0 mb 0> on [0]() ties [-1] : () -> !s0
  // expected-note@+1 {{the last of them arrives here}}
  %l = pipeline.task @s0.F.light <F stage 0 mb 1> on [0]() ties [-1] : () -> !s0
  %a = pipeline.task @s0.R <R stage 0 mb 0> on [0](%k) ties [-1] : (!s0) -> !s0
  pipeline.task @s0.B <B stage 0 mb 0> on [0](%k, %a) ties [] : (!s0, !s0) -> ()
  %b = pipeline.task @s0.R <R stage 0 mb 1> on [0](%l) ties [-1] : (!s0) -> !s0
  // expected-note@+1 {{one of them is kept for its use here}}
  pipeline.task @s0.B <B stage 0 mb 1> on [0](%l, %b) ties [] : (!s0, !s0) -> ()
}
