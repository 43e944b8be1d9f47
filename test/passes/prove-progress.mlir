// Waits without a cycle, with no buffering anywhere: all ranks come to their end.
// RUN: pp-opt %s --pp-prove-progress | FileCheck %s

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Two ranks exchange: both post before either waits.
// CHECK: pipeline.program @exchange
pipeline.program @exchange ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    %1 = pipeline.post receive <dact stage 1 mb 0> %b with [1] channel 2 : !s
    pipeline.complete %0
    pipeline.complete %1
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %0 = pipeline.post send <dact stage 1 mb 0> %b with [0] channel 2 : !s
    %1 = pipeline.post receive <act stage 0 mb 0> %a with [0] channel 1 : !s
    pipeline.complete %0
    pipeline.complete %1
  }
}

// A ring in which every second rank receives first.
// CHECK: pipeline.program @ring
pipeline.program @ring ranks 4 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %0 = pipeline.post send <weight stage 0> %a with [1] channel 0 : !s
    pipeline.complete %0
    %1 = pipeline.post receive <weight stage 3> %b with [3] channel 3 : !s
    pipeline.complete %1
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %1 = pipeline.post receive <weight stage 0> %b with [0] channel 0 : !s
    pipeline.complete %1
    %0 = pipeline.post send <weight stage 1> %a with [2] channel 1 : !s
    pipeline.complete %0
  }
  pipeline.rank 2 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %0 = pipeline.post send <weight stage 2> %a with [3] channel 2 : !s
    pipeline.complete %0
    %1 = pipeline.post receive <weight stage 1> %b with [1] channel 1 : !s
    pipeline.complete %1
  }
  pipeline.rank 3 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %1 = pipeline.post receive <weight stage 2> %b with [2] channel 2 : !s
    pipeline.complete %1
    %0 = pipeline.post send <weight stage 3> %a with [0] channel 3 : !s
    pipeline.complete %0
  }
}

// A sum needs all members; what stands before it on each may differ.
// CHECK: pipeline.program @sum
pipeline.program @sum ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %n = pipeline.slot act "n" : !s
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    %1 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] channel 9 : !s
    pipeline.complete %1
    pipeline.complete %0
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %n = pipeline.slot act "n" : !s
    %1 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] channel 9 : !s
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [0] channel 1 : !s
    pipeline.complete %0
    pipeline.complete %1
  }
}
