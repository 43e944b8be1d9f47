// States of another slice, and gradients of states that are not made yet or those of another slice: one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>

func.func private @s0.F.0() -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F slice 0>,
  pipeline.inputs = #pipeline.groups<>, pipeline.results = #pipeline.groups<state[0] x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.F.1(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F slice 1>,
  pipeline.inputs = #pipeline.groups<state[0] x 1>, pipeline.results = #pipeline.groups<state[1] x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.F.2(!t) -> () attributes {
  pipeline.body = #pipeline.body<"s0" F slice 2>,
  pipeline.inputs = #pipeline.groups<state[1] x 1>, pipeline.results = #pipeline.groups<>, pipeline.ties = array<i64>}
func.func private @s0.B.2(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" B slice 2>,
  pipeline.inputs = #pipeline.groups<state[1] x 1>, pipeline.results = #pipeline.groups<dstate[1] x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.B.1(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" B slice 1>,
  pipeline.inputs = #pipeline.groups<state[0] x 1, dstate[1] x 1>, pipeline.results = #pipeline.groups<dstate[0] x 1>,
  pipeline.ties = array<i64: -1>}
func.func private @s0.B.0(!t) -> () attributes {
  pipeline.body = #pipeline.body<"s0" B slice 0>,
  pipeline.inputs = #pipeline.groups<dstate[0] x 1>, pipeline.results = #pipeline.groups<>, pipeline.ties = array<i64>}

// As it should be: a state's place is free again behind the backward that reads it.
pipeline.program @right ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %a = pipeline.slot state "a" : !s
    %b = pipeline.slot state "b" : !s
    %d = pipeline.slot dstate "d" : !s
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%a) : () -> !s
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>(%a) -> (%b) : (!s) -> !s
    pipeline.launch @s0.F.2 <F stage 0 mb 0 slice 2>(%b) -> () : (!s) -> ()
    pipeline.launch @s0.B.2 <B stage 0 mb 0 slice 2>(%b) -> (%d) : (!s) -> !s
    pipeline.launch @s0.B.1 <B stage 0 mb 0 slice 1>(%a, %d) -> (%b) : (!s, !s) -> !s
    pipeline.launch @s0.B.0 <B stage 0 mb 0 slice 0>(%b) -> () : (!s) -> ()
  }
}

// The state behind slice 0 where that behind slice 1 belongs.
pipeline.program @other_state ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %a = pipeline.slot state "a" : !s
    %b = pipeline.slot state "b" : !s
    // expected-note@+1 {{`state(0, 0, 0)` was made here, by `F(0, 0, 0)` on rank 0}}
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%a) : () -> !s
    // expected-note@+1 {{`state(0, 0, 1)` is in another slot of rank 0: it was made here, by `F(0, 0, 1)` on rank 0}}
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>(%a) -> (%b) : (!s) -> !s
    // expected-error@+1 {{`F(0, 0, 2)` on rank 0 reads `state(0, 0, 0)` where it needs `state(0, 0, 1)`}}
    pipeline.launch @s0.F.2 <F stage 0 mb 0 slice 2>(%a) -> () : (!s) -> ()
  }
}

// The state of slice 0 is overwritten before its backward reads it.
pipeline.program @too_short ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %a = pipeline.slot state "a" : !s
    %d = pipeline.slot dstate "d" : !s
    // expected-note@+1 {{`state(0, 0, 0)` was made here, by `F(0, 0, 0)`, and is overwritten by now}}
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%a) : () -> !s
    // expected-note@+1 {{`state(0, 0, 1)` was made here, by `F(0, 0, 1)` on rank 0}}
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>(%a) -> (%a) : (!s) -> !s
    pipeline.launch @s0.F.2 <F stage 0 mb 0 slice 2>(%a) -> () : (!s) -> ()
    pipeline.launch @s0.B.2 <B stage 0 mb 0 slice 2>(%a) -> (%d) : (!s) -> !s
    // expected-error@+1 {{`B(0, 0, 1)` on rank 0 reads `state(0, 0, 1)` where it needs `state(0, 0, 0)`}}
    pipeline.launch @s0.B.1 <B stage 0 mb 0 slice 1>(%a, %d) -> (%d) : (!s, !s) -> !s
  }
}

// A gradient of a state before the slice that goes on from the state has made it.
pipeline.program @too_early ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %a = pipeline.slot state "a" : !s
    %b = pipeline.slot state "b" : !s
    %d = pipeline.slot dstate "d" : !s
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%a) : () -> !s
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>(%a) -> (%b) : (!s) -> !s
    pipeline.launch @s0.F.2 <F stage 0 mb 0 slice 2>(%b) -> () : (!s) -> ()
    // expected-error@+1 {{`B(0, 0, 1)` on rank 0 reads `dstate(0, 0, 1)` from a slot that nothing has written}}
    pipeline.launch @s0.B.1 <B stage 0 mb 0 slice 1>(%a, %d) -> (%d) : (!s, !s) -> !s
    // expected-note@+1 {{`dstate(0, 0, 1)` is made only here, by `B(0, 0, 2)`}}
    pipeline.launch @s0.B.2 <B stage 0 mb 0 slice 2>(%b) -> (%d) : (!s) -> !s
  }
}
