// Tensors of one slot at places of their own: where whole slots would leave gaps, and where I hands what F saved on to W.
// RUN: pp-opt %s --pp-plan-slots --pp-prove-slots | FileCheck %s
// RUN: pp-opt %s --pp-plan-slots=improve=false --pp-prove-slots | FileCheck %s --check-prefix=WHOLE
// RUN: pp-opt %s "--pp-plan-slots=improve=false limit=320" | FileCheck %s --check-prefix=WHOLE
// RUN: pp-opt %s "--pp-plan-slots=improve=false limit=319" | FileCheck %s --check-prefix=LIMIT

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!two = !pipeline.slot<tuple<tensor<16xf32>, tensor<16xf32>>>

// b, c and d keep their places. A stash of twice their size comes while c and d, then b and d, then b and c are free: whole,
// it would need each two of the three side by side, which cannot be, and 320 bytes. So the tensors of one lie apart. An
// editor takes the 320 bytes, if the memory is not less.
// CHECK-LABEL: pipeline.program @apart
// CHECK: pipeline.rank 0 arena 256 attributes {peak = {{.*}}live = 256 : i64
// WHOLE: pipeline.rank 0 arena 320
// WHOLE: pipeline.slot stash "stash1" offset 192
// LIMIT: pipeline.rank 0 arena 256
pipeline.program @apart ranks 1 microbatches 4 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %c = pipeline.slot act "c" : !s
    %d = pipeline.slot act "d" : !s
    // CHECK: pipeline.slot stash "stash{{.}}" places
    %0 = pipeline.slot stash "stash0" : !two
    %1 = pipeline.slot stash "stash1" : !two
    %2 = pipeline.slot stash "stash2" : !two
    pipeline.launch @f <F stage 0 mb 0>() -> (%a, %b, %c, %d) : () -> (!s, !s, !s, !s)
    pipeline.launch @f <B stage 0 mb 0>(%a, %b, %c, %d) -> () : (!s, !s, !s, !s) -> ()
    pipeline.launch @f <F stage 0 mb 1>() -> (%a, %b, %0) : () -> (!s, !s, !two)
    pipeline.launch @f <B stage 0 mb 1>(%0, %a, %b) -> () : (!two, !s, !s) -> ()
    pipeline.launch @f <F stage 0 mb 2>() -> (%a, %c, %1) : () -> (!s, !s, !two)
    pipeline.launch @f <B stage 0 mb 2>(%1, %a, %c) -> () : (!two, !s, !s) -> ()
    pipeline.launch @f <F stage 0 mb 3>() -> (%a, %d, %2) : () -> (!s, !s, !two)
    pipeline.launch @f <B stage 0 mb 3>(%2, %a, %d) -> () : (!two, !s, !s) -> ()
  }
}

// One that is sent stays in one run; here another order of the others makes room for it.
// CHECK-LABEL: pipeline.program @sent
// CHECK: pipeline.rank 0 arena 256
pipeline.program @sent ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %c = pipeline.slot act "c" : !s
    %d = pipeline.slot act "d" : !s
    // CHECK: pipeline.slot stash "stash" offset {{[0-9]+}} : <
    %s = pipeline.slot stash "stash" : !two
    pipeline.launch @f <F stage 0 mb 0>() -> (%a, %b, %c, %d) : () -> (!s, !s, !s, !s)
    pipeline.launch @f <F stage 0 mb 1>() -> (%s) : () -> !two
    %0 = pipeline.post send <stash stage 0 mb 1> %s with [1] channel 1 : !two
    pipeline.complete %0
    pipeline.launch @f <B stage 0 mb 1>(%s, %a, %c) -> () : (!two, !s, !s) -> ()
  }
}

// What I hands on lies where it lay, and counts once: the stash's second tensor goes on as the first of what waits for W.
// CHECK-LABEL: pipeline.program @handed
// CHECK: pipeline.rank 0 arena 192 attributes {peak = {{.*}}live = 192 : i64
pipeline.program @handed ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    // CHECK: pipeline.slot stash "stash" places [0, 64]
    %s = pipeline.slot stash "stash" : !two
    // CHECK: pipeline.slot stash "pending" places [64, 128]
    %p = pipeline.slot stash "pending" : !two
    pipeline.launch @f <F stage 0 mb 0>() -> (%s) : () -> !two
    pipeline.launch @i <I stage 0 mb 0>(%s) -> (%p) handed [0, 1, 1, 0] : (!two) -> !two
    pipeline.launch @w <W stage 0 mb 0>(%p) -> () : (!two) -> ()
  }
}

func.func private @i(tensor<16xf32>, tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>) attributes {
  pipeline.inputs = #pipeline.groups<stash x 2>, pipeline.results = #pipeline.groups<pending x 2>, pipeline.ties = array<i64: -1>,
  pipeline.handed = array<i64: 0, 1, 1, 0>}
