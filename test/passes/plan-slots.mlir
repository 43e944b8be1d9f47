// Offsets in the arena: slots that live at the same time lie apart, others share; every size is a multiple of 64 bytes.
// RUN: pp-opt %s --pp-plan-slots --pp-prove-slots | FileCheck %s

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// A chain a -> b -> c of 64 bytes each: c takes the place of a, so two places do. The peak is said by role.
// CHECK-LABEL: pipeline.program @chain
// CHECK: pipeline.rank 0 arena 128 attributes {peak = {act = 128 : i64, live = 128 : i64, total = 128 : i64}}
pipeline.program @chain ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.piece @s2 <stage 2> parts [["s2", 0]]
  pipeline.rank 0 {
    // CHECK: pipeline.slot act "a" offset 0
    %a = pipeline.slot act "a" : !s
    // CHECK: pipeline.slot act "b" offset 64
    %b = pipeline.slot act "b" : !s
    // CHECK: pipeline.slot act "c" offset 0
    %c = pipeline.slot act "c" : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    pipeline.launch @f <F stage 1 mb 0>(%a) -> (%b) : (!s) -> !s
    pipeline.launch @f <F stage 2 mb 0>(%b) -> (%c) : (!s) -> !s
  }
}

// A slot that is sent is in use until the send is complete, one that is received from the post on.
// CHECK-LABEL: pipeline.program @flights
// CHECK: pipeline.rank 0 arena 192
pipeline.program @flights ranks 2 microbatches 4 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    // CHECK: pipeline.slot act "sent" offset 0
    %a = pipeline.slot act "sent" : !s
    // CHECK: pipeline.slot act "made" offset 64
    %b = pipeline.slot act "made" : !s
    // CHECK: pipeline.slot act "received" offset 128
    %c = pipeline.slot act "received" : !s
    // CHECK: pipeline.slot act "after" offset 0
    %d = pipeline.slot act "after" : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    pipeline.launch @f <F stage 0 mb 1>() -> (%b) : () -> !s
    %1 = pipeline.post receive <dact stage 1 mb 0> %c with [1] channel 2 : !s
    pipeline.complete %0
    pipeline.launch @f <F stage 0 mb 2>(%b) -> (%d) : (!s) -> !s
    pipeline.complete %1
    pipeline.launch @f <F stage 0 mb 3>(%c, %d) -> () : (!s, !s) -> ()
  }
}

// The home of a weight that travels: after its last use its memory serves the stash, until the new version comes.
// CHECK-LABEL: pipeline.program @home
// CHECK: pipeline.rank 0 arena 128 attributes {peak = {{.*}}live = 128 : i64
pipeline.program @home ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.rank 0 {
    // CHECK: pipeline.slot weight "weight(0)" offset 0
    %w = pipeline.slot weight "weight(0)" binding <weight @s0 save> : !big
    // CHECK: pipeline.slot stash "guest" offset 0
    %g = pipeline.slot stash "guest" : !big
    pipeline.launch @f <F stage 0 mb 0>(%w) -> () : (!big) -> ()
    pipeline.launch @f <F stage 1 mb 0>() -> (%g) : () -> !big
    pipeline.launch @f <B stage 1 mb 0>(%g) -> () : (!big) -> ()
    %0 = pipeline.post receive <weight stage 0> %w with [1] channel 2 : !big
    pipeline.complete %0
  }
}

// What the trainer puts in is there from the start, what it reads stays to the end: neither is shared, though neither is
// used in the middle. Data may go after its last reader.
// CHECK-LABEL: pipeline.program @bound
// CHECK: pipeline.rank 0 arena 192
pipeline.program @bound ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    // CHECK: pipeline.slot opt "opt" offset 0
    %o = pipeline.slot opt "opt" binding <opt @s0> : !s
    // CHECK: pipeline.slot data "tokens" offset 64
    %t = pipeline.slot data "tokens" binding <tokens mb 0> : !s
    // CHECK: pipeline.slot stat "loss" offset 128
    %l = pipeline.slot stat "loss" binding <loss mb 0> : !s
    // CHECK: pipeline.slot act "a" offset 64
    %a = pipeline.slot act "a" : !s
    pipeline.launch @f <F stage 0 mb 0>(%t) -> (%l) : (!s) -> !s
    pipeline.launch @f <F stage 0 mb 1>() -> (%a) : () -> !s
    pipeline.launch @u <U stage 0>(%o) -> () : (!s) -> ()
  }
}

// Scratch memory belongs to one launch; beside its inputs and results.
// CHECK-LABEL: pipeline.program @scratch
// CHECK: pipeline.rank 0 arena 192
pipeline.program @scratch ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    // CHECK: pipeline.slot temporary "t0" offset 64
    %t = pipeline.slot temporary "t0" : !big
    // CHECK: pipeline.slot temporary "t1" offset 64
    %u = pipeline.slot temporary "t1" : !big
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) scratch %t : () -> !s scratch !big
    pipeline.launch @f <B stage 0 mb 0>(%a) -> () scratch %u : (!s) -> () scratch !big
  }
}

// Two slots that are written anew, one after the other, share a place; what lives beside the first lies apart from it.
// CHECK-LABEL: pipeline.program @anew
// CHECK: pipeline.rank 0 arena 128
pipeline.program @anew ranks 1 microbatches 9 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    // CHECK: pipeline.slot act "early" offset 0
    %a = pipeline.slot act "early" : !s
    // CHECK: pipeline.slot act "late" offset 0
    %b = pipeline.slot act "late" : !s
    // CHECK: pipeline.slot act "beside" offset 64
    %c = pipeline.slot act "beside" : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    pipeline.launch @f <F stage 0 mb 1>() -> (%c) : () -> !s
    pipeline.launch @f <F stage 0 mb 2>(%a, %c) -> () : (!s, !s) -> ()
    pipeline.launch @f <F stage 0 mb 3>() -> (%a) : () -> !s
    pipeline.launch @f <F stage 0 mb 4>(%a) -> () : (!s) -> ()
    pipeline.launch @f <F stage 0 mb 5>() -> (%b) : () -> !s
    pipeline.launch @f <F stage 0 mb 6>(%b) -> () : (!s) -> ()
    pipeline.launch @f <F stage 0 mb 7>() -> (%b) : () -> !s
    pipeline.launch @f <F stage 0 mb 8>(%b) -> () : (!s) -> ()
  }
}
