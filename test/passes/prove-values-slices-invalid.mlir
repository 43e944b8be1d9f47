// Keys of another slice, gradients of keys without the part of a slice, with it twice, or lost: one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>

func.func private @s0.F.0() -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F slice 0>,
  pipeline.inputs = #pipeline.groups<>, pipeline.results = #pipeline.groups<kv[0] x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.F.1(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F slice 1>,
  pipeline.inputs = #pipeline.groups<kv[0] x 1>, pipeline.results = #pipeline.groups<kv[1] x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.F.2(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F slice 2>,
  pipeline.inputs = #pipeline.groups<kv[0] x 1, kv[1] x 1>, pipeline.results = #pipeline.groups<kv[2] x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.B.2(!t, !t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" B slice 2>,
  pipeline.inputs = #pipeline.groups<kv[0] x 1, kv[1] x 1, kv[2] x 1>, pipeline.results = #pipeline.groups<dkv[0] x 1, dkv[1] x 1>,
  pipeline.ties = array<i64: -1, -1>}
func.func private @s0.B.1(!t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" B slice 1>,
  pipeline.inputs = #pipeline.groups<dkv[0] x 1, dkv[1] x 1>, pipeline.results = #pipeline.groups<dkv[0] x 1, dkv[1] x 1>,
  pipeline.ties = array<i64: 0, 1>}
func.func private @s0.B.0(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" B slice 0>,
  pipeline.inputs = #pipeline.groups<dkv[0] x 1>, pipeline.results = #pipeline.groups<dkv[0] x 1>, pipeline.ties = array<i64: 0>}

// As it should be.
pipeline.program @right ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %k0 = pipeline.slot kv "k0" : !s
    %k1 = pipeline.slot kv "k1" : !s
    %k2 = pipeline.slot kv "k2" : !s
    %d0 = pipeline.slot dkv "d0" : !s
    %d1 = pipeline.slot dkv "d1" : !s
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%k0) : () -> !s
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>(%k0) -> (%k1) : (!s) -> !s
    pipeline.launch @s0.F.2 <F stage 0 mb 0 slice 2>(%k0, %k1) -> (%k2) : (!s, !s) -> !s
    pipeline.launch @s0.B.2 <B stage 0 mb 0 slice 2>(%k0, %k1, %k2) -> (%d0, %d1) : (!s, !s, !s) -> (!s, !s)
    pipeline.launch @s0.B.1 <B stage 0 mb 0 slice 1>(%d0, %d1) -> () : (!s, !s) -> ()
    pipeline.launch @s0.B.0 <B stage 0 mb 0 slice 0>(%d0) -> () : (!s) -> ()
  }
}

// The chunks of slices 0 and 1 exchanged.
pipeline.program @other_chunk ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %k0 = pipeline.slot kv "k0" : !s
    %k1 = pipeline.slot kv "k1" : !s
    %k2 = pipeline.slot kv "k2" : !s
    // expected-note@+1 {{`kv(0, 0, 0)` is in another slot of rank 0: it was made here, by `F(0, 0, 0)` on rank 0}}
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%k0) : () -> !s
    // expected-note@+1 {{`kv(0, 0, 1)` was made here, by `F(0, 0, 1)` on rank 0}}
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>(%k0) -> (%k1) : (!s) -> !s
    // expected-error@+1 {{`F(0, 0, 2)` on rank 0 reads `kv(0, 0, 1)` where it needs `kv(0, 0, 0)`}}
    pipeline.launch @s0.F.2 <F stage 0 mb 0 slice 2>(%k1, %k0) -> (%k2) : (!s, !s) -> !s
  }
}

// The body of slice 1 runs for slice 2.
pipeline.program @other_body ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %k0 = pipeline.slot kv "k0" : !s
    %k1 = pipeline.slot kv "k1" : !s
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%k0) : () -> !s
    // expected-error@+1 {{`F(0, 0, 2)` on rank 0 runs `@s0.F.1`, which is not its body}}
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 2>(%k0) -> (%k1) : (!s) -> !s
  }
}

// Slice 0 goes before slice 1: the gradient of its keys is not whole.
pipeline.program @too_early ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %k0 = pipeline.slot kv "k0" : !s
    %k1 = pipeline.slot kv "k1" : !s
    %k2 = pipeline.slot kv "k2" : !s
    %d0 = pipeline.slot dkv "d0" : !s
    %d1 = pipeline.slot dkv "d1" : !s
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%k0) : () -> !s
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>(%k0) -> (%k1) : (!s) -> !s
    pipeline.launch @s0.F.2 <F stage 0 mb 0 slice 2>(%k0, %k1) -> (%k2) : (!s, !s) -> !s
    // expected-note@+1 {{it was last added to here, by `B(0, 0, 2)` on rank 0}}
    pipeline.launch @s0.B.2 <B stage 0 mb 0 slice 2>(%k0, %k1, %k2) -> (%d0, %d1) : (!s, !s, !s) -> (!s, !s)
    // expected-error@+1 {{`B(0, 0, 0)` on rank 0 reads `dkv(0, 0, 0)` without the part of slice 1}}
    pipeline.launch @s0.B.0 <B stage 0 mb 0 slice 0>(%d0) -> () : (!s) -> ()
    // expected-note@+1 {{`B(0, 0, 1)` adds it here, on rank 0}}
    pipeline.launch @s0.B.1 <B stage 0 mb 0 slice 1>(%d0, %d1) -> () : (!s, !s) -> ()
  }
}

// Slice 1 adds its part twice.
pipeline.program @twice ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %k0 = pipeline.slot kv "k0" : !s
    %k1 = pipeline.slot kv "k1" : !s
    %k2 = pipeline.slot kv "k2" : !s
    %d0 = pipeline.slot dkv "d0" : !s
    %d1 = pipeline.slot dkv "d1" : !s
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%k0) : () -> !s
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>(%k0) -> (%k1) : (!s) -> !s
    pipeline.launch @s0.F.2 <F stage 0 mb 0 slice 2>(%k0, %k1) -> (%k2) : (!s, !s) -> !s
    pipeline.launch @s0.B.2 <B stage 0 mb 0 slice 2>(%k0, %k1, %k2) -> (%d0, %d1) : (!s, !s, !s) -> (!s, !s)
    // expected-note@+1 {{one term was last added to here, by `B(0, 0, 1)` on rank 0}}
    pipeline.launch @s0.B.1 <B stage 0 mb 0 slice 1>(%d0, %d1) -> () : (!s, !s) -> ()
    // expected-error@+1 {{`B(0, 0, 1)` on rank 0 adds the gradient of slice 1 twice}}
    pipeline.launch @s0.B.1 <B stage 0 mb 0 slice 1>(%d0, %d1) -> () : (!s, !s) -> ()
  }
}

// Microbatch 1 takes the slot of a sum that its own slice has not used.
pipeline.program @lost ranks 1 microbatches 2 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %k0 = pipeline.slot kv "k0" : !s
    %k1 = pipeline.slot kv "k1" : !s
    %k2 = pipeline.slot kv "k2" : !s
    %d0 = pipeline.slot dkv "d0" : !s
    %d1 = pipeline.slot dkv "d1" : !s
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%k0) : () -> !s
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>(%k0) -> (%k1) : (!s) -> !s
    pipeline.launch @s0.F.2 <F stage 0 mb 0 slice 2>(%k0, %k1) -> (%k2) : (!s, !s) -> !s
    pipeline.launch @s0.B.2 <B stage 0 mb 0 slice 2>(%k0, %k1, %k2) -> (%d0, %d1) : (!s, !s, !s) -> (!s, !s)
    // expected-note@+1 {{`dkv(0, 0, 0)` was last added to here, by `B(0, 0, 1)` on rank 0}}
    pipeline.launch @s0.B.1 <B stage 0 mb 0 slice 1>(%d0, %d1) -> () : (!s, !s) -> ()
    pipeline.launch @s0.F.0 <F stage 0 mb 1 slice 0>() -> (%k0) : () -> !s
    pipeline.launch @s0.F.1 <F stage 0 mb 1 slice 1>(%k0) -> (%k1) : (!s) -> !s
    pipeline.launch @s0.F.2 <F stage 0 mb 1 slice 2>(%k0, %k1) -> (%k2) : (!s, !s) -> !s
    // expected-error@+1 {{`B(0, 1, 2)` on rank 0 writes over the gradient of slice 1 and 1 more, which nothing has taken}}
    pipeline.launch @s0.B.2 <B stage 0 mb 1 slice 2>(%k0, %k1, %k2) -> (%d0, %d1) : (!s, !s, !s) -> (!s, !s)
  }
}
