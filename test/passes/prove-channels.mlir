// Channels whose ends agree: messages of both directions and of several lanes apart, a sum joined by all its members.
// RUN: pp-opt %s --pp-prove-channels | FileCheck %s

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// CHECK: pipeline.program @p
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %n = pipeline.slot act "n" : !s
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    %1 = pipeline.post send <weight stage 0> %b with [1] channel 5 : !s
    %2 = pipeline.post receive <dact stage 1 mb 0> %b with [1] channel 2 : !s
    %3 = pipeline.post send <act stage 0 mb 1> %a with [1] channel 1 : !s
    %4 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] channel 4 : !s
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %n = pipeline.slot act "n" : !s
    // The lane of the weight is not that of the activations, so it may come before or after them.
    %0 = pipeline.post receive <weight stage 0> %b with [0] channel 5 : !s
    %1 = pipeline.post receive <act stage 0 mb 0> %a with [0] channel 1 : !s
    %2 = pipeline.post receive <act stage 0 mb 1> %a with [0] channel 1 : !s
    %3 = pipeline.post send <dact stage 1 mb 0> %b with [0] channel 2 : !s
    %4 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] channel 4 : !s
  }
}
