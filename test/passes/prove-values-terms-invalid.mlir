// Devices along `tensor` have terms of the gradient of a gain and sum them once, before replicas do: one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<32xf32>
!s = !pipeline.slot<tuple<!t>>
#w = #pipeline.weight<"w" : !t declared <"w" zero terms>>
#mesh = #pipeline.mesh<tensor 2, context 1, data 2, pipeline 1, sequence>

func.func private @s0.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W first>,
  pipeline.inputs = #pipeline.groups<tokens x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.W(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W>,
  pipeline.inputs = #pipeline.groups<tokens x 1, grad x 1>, pipeline.results = #pipeline.groups<grad x 1>,
  pipeline.ties = array<i64: 1>}
func.func private @s0.merge(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U merge>,
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 0>}
func.func private @s0.U(!t, !t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, opt x 1>, pipeline.results = #pipeline.groups<weight x 1, opt x 1>,
  pipeline.ties = array<i64: 0, 2>}

// All is well here.
pipeline.program @right ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    pipeline.launch @s0.W <W stage 0 mb 1>(%t1, %g) -> () : (!s, !s) -> ()
    pipeline.launch @s0.merge <U stage 0>(%g) -> () : (!s) -> ()
    %0 = pipeline.post all_reduce <grad stage 0> %g with [0] over <data> tensors 1 channel 1 : !s
    pipeline.complete %0
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
  }
}

// The replicas sum the terms of one device each.
pipeline.program @never_merged ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    // expected-note@+1 {{`grad(0)` of one replica in terms was last added to here, by `W(0, 1)` on rank 0}}
    pipeline.launch @s0.W <W stage 0 mb 1>(%t1, %g) -> () : (!s, !s) -> ()
    // expected-error@+1 {{rank 0 gives `grad(0)` of one replica in terms to the sum of `grad(0)`}}
    %0 = pipeline.post all_reduce <grad stage 0> %g with [0] over <data> tensors 1 channel 1 : !s
    pipeline.complete %0
  }
}

// The sum would be added up over both devices once more.
pipeline.program @merged_twice ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    pipeline.launch @s0.W <W stage 0 mb 1>(%t1, %g) -> () : (!s, !s) -> ()
    // expected-note@+1 {{`grad(0)` of one replica was last added to here, by `merge` of `U(0)` on rank 0}}
    pipeline.launch @s0.merge <U stage 0>(%g) -> () : (!s) -> ()
    // expected-error@+1 {{`merge` of `U(0)` on rank 0 reads `grad(0)` of one replica where it needs `grad(0)` of one replica in terms}}
    pipeline.launch @s0.merge <U stage 0>(%g) -> () : (!s) -> ()
  }
}

// The second microbatch is not there yet.
pipeline.program @too_early ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    // expected-error@+1 {{`merge` of `U(0)` on rank 0 lacks the gradient of microbatch 1}}
    pipeline.launch @s0.merge <U stage 0>(%g) -> () : (!s) -> ()
  }
}
