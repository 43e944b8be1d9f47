// Keys from the piece before: the gradient that its backward reads lacks the share of a slice, or has it twice, one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>

func.func private @q.F.0() -> !t attributes {
  pipeline.body = #pipeline.body<"q" F slice 0>,
  pipeline.inputs = #pipeline.groups<>, pipeline.results = #pipeline.groups<keys x 1>, pipeline.ties = array<i64: -1>}
func.func private @a.F.0(!t) attributes {
  pipeline.body = #pipeline.body<"a" F slice 0>,
  pipeline.inputs = #pipeline.groups<kv[0] x 1>, pipeline.results = #pipeline.groups<>, pipeline.ties = array<i64>}
func.func private @a.F.1(!t) attributes {
  pipeline.body = #pipeline.body<"a" F slice 1>,
  pipeline.inputs = #pipeline.groups<kv[0] x 1>, pipeline.results = #pipeline.groups<>, pipeline.ties = array<i64>}
func.func private @a.B.1(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"a" B slice 1>,
  pipeline.inputs = #pipeline.groups<kv[0] x 1>, pipeline.results = #pipeline.groups<dkv[0] x 1>, pipeline.ties = array<i64: -1>}
func.func private @a.B.0(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"a" B slice 0>,
  pipeline.inputs = #pipeline.groups<kv[0] x 1>, pipeline.results = #pipeline.groups<dkv[0] x 1>, pipeline.ties = array<i64: -1>}
func.func private @a.dkv.sum.0(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"a" U sum_keys slice 0>,
  pipeline.inputs = #pipeline.groups<dkv[0] x 1, dterm[0] x 1>, pipeline.results = #pipeline.groups<dkv[0] x 1>, pipeline.ties = array<i64: 0>}
func.func private @q.B.0(!t) attributes {
  pipeline.body = #pipeline.body<"q" B slice 0>,
  pipeline.inputs = #pipeline.groups<dkeys x 1>, pipeline.results = #pipeline.groups<>, pipeline.ties = array<i64>}

// As it should be.
pipeline.program @right ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @q <part "q" 0> parts [["q", 0]] at <[0]> bodies "q"
  pipeline.piece @a <part "a" 0> parts [["a", 0]] at <[0]> bodies "a"
  pipeline.rank 0 {
    %k = pipeline.slot kv "k" : !s
    %d0 = pipeline.slot dkv "d0" : !s
    %d1 = pipeline.slot dkv "d1" : !s
    pipeline.launch @q.F.0 <F part "q" 0 mb 0 slice 0>() -> (%k) : () -> !s
    pipeline.launch @a.F.1 <F part "a" 0 mb 0 slice 1>(%k) -> () : (!s) -> ()
    pipeline.launch @a.F.0 <F part "a" 0 mb 0 slice 0>(%k) -> () : (!s) -> ()
    pipeline.launch @a.B.0 <B part "a" 0 mb 0 slice 0>(%k) -> (%d0) : (!s) -> !s
    pipeline.launch @a.B.1 <B part "a" 0 mb 0 slice 1>(%k) -> (%d1) : (!s) -> !s
    pipeline.launch @a.dkv.sum.0 <U part "a" 0 mb 0 slice 0>(%d0, %d1) -> () : (!s, !s) -> ()
    pipeline.launch @q.B.0 <B part "q" 0 mb 0 slice 0>(%d0) -> () : (!s) -> ()
  }
}

// The keys of the piece are not those that it attends.
pipeline.program @other_keys ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @q <part "q" 0> parts [["q", 0]] at <[0]> bodies "q"
  pipeline.piece @a <part "a" 0> parts [["a", 0]] at <[0]> bodies "a"
  pipeline.rank 0 {
    %k = pipeline.slot kv "k" : !s
    // expected-error@+1 {{`F(a(0), 0, 0)` on rank 0 reads `kv(a(0), 0, 0)` from a slot that nothing has written}}
    pipeline.launch @a.F.0 <F part "a" 0 mb 0 slice 0>(%k) -> () : (!s) -> ()
  }
}

// The share of slice 1 stays where it is.
pipeline.program @lacks ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @q <part "q" 0> parts [["q", 0]] at <[0]> bodies "q"
  pipeline.piece @a <part "a" 0> parts [["a", 0]] at <[0]> bodies "a"
  pipeline.rank 0 {
    %k = pipeline.slot kv "k" : !s
    %d0 = pipeline.slot dkv "d0" : !s
    %d1 = pipeline.slot dkv "d1" : !s
    pipeline.launch @q.F.0 <F part "q" 0 mb 0 slice 0>() -> (%k) : () -> !s
    // expected-note@+1 {{it was last added to here, by `B(a(0), 0, 0)` on rank 0}}
    pipeline.launch @a.B.0 <B part "a" 0 mb 0 slice 0>(%k) -> (%d0) : (!s) -> !s
    // expected-note@+1 {{`B(a(0), 0, 1)` adds it here, on rank 0}}
    pipeline.launch @a.B.1 <B part "a" 0 mb 0 slice 1>(%k) -> (%d1) : (!s) -> !s
    // expected-error@+1 {{`B(q(0), 0, 0)` on rank 0 reads `dkv(a(0), 0, 0)` without the part of slice 1}}
    pipeline.launch @q.B.0 <B part "q" 0 mb 0 slice 0>(%d0) -> () : (!s) -> ()
  }
}

// The share of slice 1 is added twice.
pipeline.program @twice ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @q <part "q" 0> parts [["q", 0]] at <[0]> bodies "q"
  pipeline.piece @a <part "a" 0> parts [["a", 0]] at <[0]> bodies "a"
  pipeline.rank 0 {
    %k = pipeline.slot kv "k" : !s
    %d0 = pipeline.slot dkv "d0" : !s
    %d1 = pipeline.slot dkv "d1" : !s
    pipeline.launch @q.F.0 <F part "q" 0 mb 0 slice 0>() -> (%k) : () -> !s
    pipeline.launch @a.B.0 <B part "a" 0 mb 0 slice 0>(%k) -> (%d0) : (!s) -> !s
    // expected-note@+1 {{the other was last added to here, by `B(a(0), 0, 1)` on rank 0}}
    pipeline.launch @a.B.1 <B part "a" 0 mb 0 slice 1>(%k) -> (%d1) : (!s) -> !s
    // expected-note@+1 {{one term was last added to here, by `dkv.sum.0` of `U(a(0), 0, 0)` on rank 0}}
    pipeline.launch @a.dkv.sum.0 <U part "a" 0 mb 0 slice 0>(%d0, %d1) -> () : (!s, !s) -> ()
    // expected-error@+1 {{`dkv.sum.0` of `U(a(0), 0, 0)` on rank 0 adds the gradient of slice 1 twice}}
    pipeline.launch @a.dkv.sum.0 <U part "a" 0 mb 0 slice 0>(%d0, %d1) -> () : (!s, !s) -> ()
  }
}

// The share of slice 1 is overwritten.
pipeline.program @lost ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @q <part "q" 0> parts [["q", 0]] at <[0]> bodies "q"
  pipeline.piece @a <part "a" 0> parts [["a", 0]] at <[0]> bodies "a"
  pipeline.rank 0 {
    %k = pipeline.slot kv "k" : !s
    %d0 = pipeline.slot dkv "d0" : !s
    pipeline.launch @q.F.0 <F part "q" 0 mb 0 slice 0>() -> (%k) : () -> !s
    // expected-note@+1 {{`dkv(a(0), 0, 0)` was last added to here, by `B(a(0), 0, 1)` on rank 0}}
    pipeline.launch @a.B.1 <B part "a" 0 mb 0 slice 1>(%k) -> (%d0) : (!s) -> !s
    // expected-error@+1 {{`B(a(0), 0, 0)` on rank 0 writes over the gradient of slice 1, which nothing has taken}}
    pipeline.launch @a.B.0 <B part "a" 0 mb 0 slice 0>(%k) -> (%d0) : (!s) -> !s
  }
}
