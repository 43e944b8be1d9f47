// A search makes a plan smaller only where that makes it fit. Here first fit needs 256 bytes, and the best plan 192.
// RUN: pp-opt %s --pp-plan-slots --pp-prove-slots | FileCheck %s -DARENA=192
// RUN: pp-opt %s --pp-plan-slots="improve=false limit=256" --pp-prove-slots | FileCheck %s -DARENA=256
// RUN: pp-opt %s --pp-plan-slots="improve=false limit=255" --pp-prove-slots | FileCheck %s -DARENA=192
// RUN: pp-opt %s --pp-plan-slots="improve=false limit=192" --pp-prove-slots | FileCheck %s -DARENA=192
// RUN: pp-opt %s --pp-plan-slots="improve=false limit=191" --pp-prove-slots | FileCheck %s -DARENA=256

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// CHECK: pipeline.rank 0 arena [[ARENA]]
pipeline.program @p ranks 1 microbatches 4 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %short = pipeline.slot act "short" : !s
    %long = pipeline.slot act "long" : !s
    %late = pipeline.slot act "late" : !big
    pipeline.launch @f <F stage 0 mb 0>() -> (%short) : () -> !s
    pipeline.launch @f <F stage 0 mb 1>(%short) -> (%long) : (!s) -> !s
    pipeline.launch @f <F stage 0 mb 2>() -> (%late) : () -> !big
    pipeline.launch @f <F stage 0 mb 3>(%long, %late) -> () : (!s, !big) -> ()
  }
}
