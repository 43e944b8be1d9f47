// What cannot be projected yet: messages of groups, and bodies whose memory is not planned.
// RUN: pp-opt %s --split-input-file --pp-project-ranks --verify-diagnostics

!w0 = !pipeline.val<weight, tuple<tensor<16xf32>>, [0]>
!w12 = !pipeline.val<weight, tuple<tensor<16xf32>>, [1, 2]>

pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", -1]] at <[0]>
  %w = pipeline.input <weight stage 0> : !w0
  // expected-error@+1 {{is a broadcast, which is not supported yet}}
  %f = pipeline.move <weight stage 0> %w : !w0 -> <!w12>
}

// -----

func.func private @f()
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", -1]] at <[0]>
  // expected-error@+1 {{calls `f`, whose memory is not planned}}
  pipeline.task @f <F stage 0 mb 0> on [0]() ties [] : () -> ()
}
