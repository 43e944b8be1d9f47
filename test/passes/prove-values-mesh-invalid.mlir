// Gradients of replicas that are not summed, summed twice, too early, or not all of them: one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>
!two = !pipeline.slot<tuple<!t, !t>>
#w = #pipeline.weight<"w" : !t declared <"w" zero>>
#v = #pipeline.weight<"v" : !t declared <"v" zero>>
#mesh = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 1>

func.func private @s0.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W first>,
  pipeline.inputs = #pipeline.groups<tokens x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.W(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W>,
  pipeline.inputs = #pipeline.groups<tokens x 1, grad x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 1>}
func.func private @s0.norm.first(!t) -> tensor<f64> attributes {
  pipeline.body = #pipeline.body<"s0" U norm_first>,
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<norm x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.U(!t, !t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, opt x 1>, pipeline.results = #pipeline.groups<weight x 1, opt x 1>,
  pipeline.ties = array<i64: 0, 2>}
func.func private @s1.W.first(!t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s1" W first>,
  pipeline.inputs = #pipeline.groups<tokens x 1>, pipeline.results = #pipeline.groups<grad x 2>, pipeline.ties = array<i64: -1>}

// The update reads what its own replica made.
pipeline.program @never_summed ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    // expected-note@+1 {{`grad(0)` of one replica was last added to here, by `W(0, 0)` on rank 0}}
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-error@+1 {{`U(0)` on rank 0 reads `grad(0)` of one replica where it needs `grad(0)`}}
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
  }
}

// The norm counts what its own replica made.
pipeline.program @norm_before_the_sum ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %n = pipeline.slot stat "n" : !pipeline.slot<tuple<tensor<f64>>>
    // expected-note@+1 {{`grad(0)` of one replica was last added to here, by `W(0, 0)` on rank 0}}
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-error@+1 {{`norm.first` of `U(0)` on rank 0 reads `grad(0)` of one replica where it needs `grad(0)`}}
    pipeline.launch @s0.norm.first <U stage 0>(%g) -> (%n) : (!s) -> !pipeline.slot<tuple<tensor<f64>>>
    %0 = pipeline.post all_reduce <grad stage 0> %g with [0] over <data> tensors 1 channel 1 : !s
    pipeline.complete %0
  }
}

// Each replica would add what the other has added already.
pipeline.program @summed_twice ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+1 {{`grad(0)` comes from the sum over replicas that rank 0 joined here}}
    %0 = pipeline.post all_reduce <grad stage 0> %g with [0] over <data> tensors 1 channel 1 : !s
    pipeline.complete %0
    // expected-error@+1 {{rank 0 sums `grad(0)` over data, and its replicas have done so before}}
    %1 = pipeline.post all_reduce <grad stage 0> %g with [0] over <data> tensors 1 channel 1 : !s
    pipeline.complete %1
  }
}

// The second microbatch of the other replicas never comes.
pipeline.program @summed_too_early ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %u = pipeline.slot data "u" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+1 {{`grad(0)` comes from the sum over replicas that rank 0 joined here}}
    %0 = pipeline.post all_reduce <grad stage 0> %g with [0] over <data> tensors 1 channel 1 : !s
    pipeline.complete %0
    // expected-error@+1 {{`W(0, 1)` on rank 0 reads `grad(0)` where it needs `grad(0)` of one replica}}
    pipeline.launch @s0.W <W stage 0 mb 1>(%u, %g) -> () : (!s, !s) -> ()
  }
}

// One of two weights stays as its replica made it.
pipeline.program @half_summed ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s1 <stage 0> parts [["a", 0]] at <[0]> bodies "s1" {weights = [#w, #v]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !two
    pipeline.launch @s1.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !two
    // expected-error@+1 {{rank 0 sums 1 tensors of `grad(0)` over data; expected 2 over data}}
    %0 = pipeline.post all_reduce <grad stage 0> %g with [0] over <data> tensors 1 channel 1 : !two
    pipeline.complete %0
  }
}

// What the trainer writes to a file is no gradient.
pipeline.program @handed_in_unsummed ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    // expected-error@+1 {{when the step ends, rank 0 holds `grad(0)` of one replica where `grad(0)` belongs}}
    %g = pipeline.slot grad "g" binding <grad @s0> : !s
    // expected-note@+1 {{`grad(0)` of one replica was last added to here, by `W(0, 0)` on rank 0}}
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
  }
}
