// Each unit once, on one rank with its forward: nothing to say, nothing changed.
// RUN: pp-opt %s --pp-verify-units | FileCheck %s

// A whole backward for microbatch 0, its halves for microbatch 1; a stage without a place of its own; an update.
// CHECK: pipeline.program @halves
pipeline.program @halves ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [1]
  pipeline.unit <B stage 0 mb 0> on [1]
  pipeline.unit <F stage 0 mb 1> on [0]
  pipeline.unit <R stage 0 mb 1> on [0]
  pipeline.unit <I stage 0 mb 1> on [0]
  pipeline.unit <W stage 0 mb 1> on [0]
  // CHECK: pipeline.unit <U stage 0> on [0]
  pipeline.unit <U stage 0> on [0]
}

// Slices are units of their own, and a `together` is looked into.
// CHECK: pipeline.program @slices
pipeline.program @slices ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0 slice 0> on [0]
  pipeline.unit <F stage 0 mb 0 slice 1> on [0]
  pipeline.together {
    pipeline.unit <B stage 0 mb 0 slice 1> on [0]
    pipeline.unit <B stage 0 mb 0 slice 0> on [0]
  }
}
