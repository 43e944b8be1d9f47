// What cannot be projected: sums without a share on the rank they go to, collectives of no known kind, unplanned bodies.
// RUN: pp-opt %s --split-input-file --pp-project-ranks --verify-diagnostics

!g0 = !pipeline.val<grad, tuple<tensor<16xf32>>, [0]>
!g1 = !pipeline.val<grad, tuple<tensor<16xf32>>, [1]>
!sum = !pipeline.val<grad, tuple<tensor<16xf32>>, [0, 1] partial>
!g2 = !pipeline.val<grad, tuple<tensor<16xf32>>, [2]>

pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", -1]] at <[0]>
  %a = pipeline.input <grad stage 0> : !g0
  %b = pipeline.input <grad stage 0> : !g1
  %c = pipeline.join %a, %b : !g0, !g1 -> !sum
  // expected-error@+1 {{sums on rank 2, which has no share}}
  %f = pipeline.move <grad stage 0> %c : !sum -> <!g2>
}

// -----

!w0 = !pipeline.val<weight, tuple<tensor<16xf32>>, [0]>
!w01 = !pipeline.val<weight, tuple<tensor<16xf32>>, [0, 1] shard>

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", -1]] at <[0]>
  %w = pipeline.input <weight stage 0> : !w0
  // expected-error@+1 {{is a scatter, which is not supported yet}}
  %f = pipeline.move <weight stage 0> %w : !w0 -> <!w01>
}

// -----

func.func private @f()
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", -1]] at <[0]>
  // expected-error@+1 {{calls `f`, whose memory is not planned}}
  pipeline.task @f <F stage 0 mb 0> on [0]() ties [] : () -> ()
}

// -----

// Its weights are an input, and it has no place.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", -1]]
  // expected-error@+1 {{is a weight of stage 0, which no rank holds}}
  pipeline.input <weight stage 0> : !pipeline.val<weight, tuple<tensor<16xf32>>, [0]>
}
