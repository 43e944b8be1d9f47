// Plans that hold: places shared one after the other, slots read while they are sent, written when they have left.
// RUN: pp-opt %s --pp-prove-slots | FileCheck %s

!s = !pipeline.slot<tuple<tensor<16xf32>>>

func.func private @add(tensor<16xf32>) -> tensor<16xf32> attributes {
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 0>}

// CHECK: pipeline.program @p
pipeline.program @p ranks 3 microbatches 4 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 128 {
    %a = pipeline.slot grad "a" offset 0 : !s
    %b = pipeline.slot grad "b" offset 64 : !s
    %c = pipeline.slot grad "c" offset 0 : !s
    pipeline.launch @f <B stage 0 mb 0>() -> (%a) : () -> !s
    // To two ranks at once, and read here meanwhile.
    %0 = pipeline.post send <grad stage 0> %a with [1] channel 1 : !s
    %1 = pipeline.post send <grad stage 0> %a with [2] channel 2 : !s
    pipeline.launch @f <B stage 0 mb 1>(%a) -> (%b) : (!s) -> !s
    pipeline.complete %1
    pipeline.complete %0
    // Both have left: the slot may be added to in place, and then its memory be another's.
    pipeline.launch @add <B stage 0 mb 2>(%a) -> () : (!s) -> ()
    %2 = pipeline.post receive <grad stage 0> %c with [1] channel 3 : !s
    pipeline.complete %2
    pipeline.launch @f <B stage 0 mb 3>(%b, %c) -> () : (!s, !s) -> ()
  }
}
