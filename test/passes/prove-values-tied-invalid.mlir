// Weights that two stages share, with one defect each in their exchange.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>
#w = #pipeline.weight<"w" : !t declared <"w" zero>>
#w1 = #pipeline.weight<"w1" : !t declared <"w1" zero>>
#tied = #pipeline.weight<"w" : !t tied declared <"w" zero>>

func.func private @s0.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W first>,
  pipeline.inputs = #pipeline.groups<tokens x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.W(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W>,
  pipeline.inputs = #pipeline.groups<tokens x 1, grad x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 1>}
func.func private @s0.U(!t, !t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, opt x 1>, pipeline.results = #pipeline.groups<weight x 1, opt x 1>,
  pipeline.ties = array<i64: 0, 2>}
func.func private @s0.tie.fresh.0(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U tie_fresh sharer 0>,
  pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<fresh x 1>, pipeline.ties = array<i64: -1>}
func.func private @s1.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s1" W first>,
  pipeline.inputs = #pipeline.groups<targets x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s1.tie.out(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s1" U tie_out>,
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<share x 1>, pipeline.ties = array<i64: -1>}
func.func private @s1.U(!t, !t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s1" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, fresh x 1>, pipeline.results = #pipeline.groups<weight x 1>,
  pipeline.ties = array<i64: 0>}

// The gradient of the tied weights never leaves the stage that has a copy of them.
pipeline.program @share_kept ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1, #tied]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+2 {{`move grad(1) from 1 to 0` before would bring it}}
    // expected-error@+1 {{`U(0)` on rank 0 lacks the gradient of microbatch 0 from the tied weights of stage 1}}
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
  }
  pipeline.rank 1 {
    %t = pipeline.slot data "t" binding <targets mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    pipeline.launch @s1.W.first <W stage 1 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+1 {{a share with it is left on rank 1, which was last added to here, by `tie.out` of `U(1)` on rank 1}}
    pipeline.launch @s1.tie.out <U stage 1>(%g) -> (%h) : (!s) -> !s
  }
}

// Taken out too early: the second microbatch is not in it.
pipeline.program @early_share ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1, #tied]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <targets mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    pipeline.launch @s1.W.first <W stage 1 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-error@+1 {{`tie.out` of `U(1)` on rank 0 lacks the gradient of microbatch 1}}
    pipeline.launch @s1.tie.out <U stage 1>(%g) -> (%h) : (!s) -> !s
  }
}

// The copy gets the values from before the update.
pipeline.program @not_fresh ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1, #tied]}
  pipeline.rank 0 {
    // expected-note@+1 {{the old one is there when the step begins}}
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %f = pipeline.slot weight "f" : !s
    // expected-error@+1 {{`tie.fresh.0` of `U(0)` on rank 0 reads `weight(0)`, which should be updated by now}}
    pipeline.launch @s0.tie.fresh.0 <U stage 0>(%w) -> (%f) : (!s) -> !s
  }
}

// And updates itself with nothing.
pipeline.program @no_fresh ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1, #tied]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s1> : !s
    %t = pipeline.slot data "t" binding <targets mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %f = pipeline.slot weight "f" : !s
    pipeline.launch @s1.W.first <W stage 1 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-error@+1 {{`U(1)` on rank 0 reads the new tied weights for stage 1 from a slot that nothing has written}}
    pipeline.launch @s1.U <U stage 1>(%w, %g, %f) -> () : (!s, !s, !s) -> ()
  }
}
