// Plans of slots whose tensors lie apart, with one defect each.
// RUN: pp-opt %s --split-input-file --pp-prove-slots --verify-diagnostics

// A tensor that is handed on is planned elsewhere: I would not have moved it.
!two = !pipeline.slot<tuple<tensor<16xf32>, tensor<16xf32>>>
func.func private @i(tensor<16xf32>, tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>) attributes {
  pipeline.inputs = #pipeline.groups<stash x 2>, pipeline.results = #pipeline.groups<pending x 2>, pipeline.ties = array<i64: -1>,
  pipeline.handed = array<i64: 0, 1, 1, 0>}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    %s = pipeline.slot stash "stash" places [0, 64] : !two
    %p = pipeline.slot stash "pending" places [128, 192] : !two
    pipeline.launch @f <F stage 0 mb 0>() -> (%s) : () -> !two
    // expected-error@+1 {{`I(0, 0)` hands on tensor 1 of `stash`, which lies at byte 64 of rank 0, as tensor 0 of `pending`, which is planned at byte 128}}
    pipeline.launch @i <I stage 0 mb 0>(%s) -> (%p) handed [0, 1, 1, 0] : (!two) -> !two
  }
}

// -----

// Somebody reads the stash after I, where the pending gradient lies by then.
!two = !pipeline.slot<tuple<tensor<16xf32>, tensor<16xf32>>>
func.func private @i(tensor<16xf32>, tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>) attributes {
  pipeline.inputs = #pipeline.groups<stash x 2>, pipeline.results = #pipeline.groups<pending x 2>, pipeline.ties = array<i64: -1>,
  pipeline.handed = array<i64: 0, 1, 1, 0>}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    // expected-note@+1 {{`stash` is here}}
    %s = pipeline.slot stash "stash" places [0, 64] : !two
    // expected-error@+1 {{`pending` overlaps `stash` on rank 0 at position 3}}
    %p = pipeline.slot stash "pending" places [64, 192] : !two
    pipeline.launch @f <F stage 0 mb 0>() -> (%s) : () -> !two
    pipeline.launch @i <I stage 0 mb 0>(%s) -> (%p) handed [0, 1, 1, 0] : (!two) -> !two
    pipeline.launch @f <B stage 0 mb 0>(%s) -> () : (!two) -> ()
    pipeline.launch @w <W stage 0 mb 0>(%p) -> () : (!two) -> ()
  }
}

// -----

// The launch is silent about what its body hands on: the plan took no account of it.
!two = !pipeline.slot<tuple<tensor<16xf32>, tensor<16xf32>>>
func.func private @i(tensor<16xf32>, tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>) attributes {
  pipeline.inputs = #pipeline.groups<stash x 2>, pipeline.results = #pipeline.groups<pending x 2>, pipeline.ties = array<i64: -1>,
  pipeline.handed = array<i64: 0, 1, 1, 0>}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    %s = pipeline.slot stash "stash" offset 0 : !two
    %p = pipeline.slot stash "pending" offset 128 : !two
    pipeline.launch @f <F stage 0 mb 0>() -> (%s) : () -> !two
    // expected-error@+1 {{`I(0, 0)` does not say what `@i` hands on}}
    pipeline.launch @i <I stage 0 mb 0>(%s) -> (%p) : (!two) -> !two
  }
}

// -----

// Tensors that lie apart overlap each other's neighbours like slots do.
!two = !pipeline.slot<tuple<tensor<16xf32>, tensor<16xf32>>>
!s = !pipeline.slot<tuple<tensor<16xf32>>>
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    // expected-note@+1 {{`stash` is here}}
    %s = pipeline.slot stash "stash" places [0, 128] : !two
    // expected-error@+1 {{`a` overlaps `stash` on rank 0 at position 3}}
    %a = pipeline.slot act "a" offset 128 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%s) : () -> !two
    pipeline.launch @f <F stage 0 mb 1>() -> (%a) : () -> !s
    pipeline.launch @f <B stage 0 mb 0>(%s, %a) -> () : (!two, !s) -> ()
  }
}
