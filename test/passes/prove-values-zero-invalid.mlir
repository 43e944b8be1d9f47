// With `zero 1` each replica has the sum of its shard of a gradient, and updates that: one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>
#w = #pipeline.weight<"w" : !t declared <"w" zero>>
#mesh = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 1, zero 1>
#whole = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 1>

func.func private @s0.F(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F>,
  pipeline.inputs = #pipeline.groups<tokens x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>,
  pipeline.ties = array<i64: -1>}
func.func private @s0.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W first>,
  pipeline.inputs = #pipeline.groups<tokens x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.norm.first(!t) -> tensor<f64> attributes {
  pipeline.body = #pipeline.body<"s0" U norm_first>,
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<norm x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.U(!t, !t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, opt x 1>, pipeline.results = #pipeline.groups<weight x 1, opt x 1>,
  pipeline.ties = array<i64: 0, 2>}

// All is well here.
pipeline.program @right ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 64, 64] channel 1 : !s
    pipeline.complete %0
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
    %1 = pipeline.post all_gather <weight stage 0> %w with [0] over <data> tensors 1 cuts [0, 64, 64] channel 1 : !s
    pipeline.complete %1
  }
}

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
    // expected-error@+1 {{`U(0)` on rank 0 reads `grad(0)` of one replica where it needs `grad(0)` in the replica's shard}}
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
  }
}

// Beside its shard the norm would count what the replica alone has added, or count all of it twice.
pipeline.program @norm_before_the_sum ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %n = pipeline.slot stat "n" : !pipeline.slot<tuple<tensor<f64>>>
    // expected-note@+1 {{`grad(0)` of one replica was last added to here, by `W(0, 0)` on rank 0}}
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-error@+1 {{reads `grad(0)` of one replica where it needs `grad(0)` in the replica's shard}}
    pipeline.launch @s0.norm.first <U stage 0>(%g) -> (%n) : (!s) -> !pipeline.slot<tuple<tensor<f64>>>
  }
}

// All of the sum on each replica: its bytes twice for nothing.
pipeline.program @summed_whole ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-error@+1 {{rank 0 sums all of `grad(0)` over data, and its replicas update a shard each}}
    %0 = pipeline.post all_reduce <grad stage 0> %g with [0] over <data> tensors 1 channel 1 : !s
    pipeline.complete %0
  }
}

// Where every replica updates all of its weights, each needs all of the sum.
pipeline.program @cut_for_nobody ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #whole} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-error@+1 {{rank 0 cuts `grad(0)` over data, and each of its replicas updates all of it}}
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 64, 64] channel 1 : !s
    pipeline.complete %0
  }
}

// The shard would be added once more.
pipeline.program @summed_twice ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+1 {{comes from the sum over replicas that rank 0 joined here}}
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 64, 64] channel 1 : !s
    pipeline.complete %0
    // expected-error@+1 {{rank 0 sums `grad(0)` over data, and its replicas have done so before}}
    %1 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 64, 64] channel 1 : !s
    pipeline.complete %1
  }
}

// The next step would begin with old weights beside the shard.
pipeline.program @never_gathered ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    // expected-error@+1 {{when the step ends, rank 0 holds `weight(0)` after its update in the replica's shard where `weight(0)` after its update belongs}}
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 64, 64] channel 1 : !s
    pipeline.complete %0
    // expected-note@+1 {{was made here, by `U(0)` on rank 0}}
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
  }
}

// What is gathered is old, and the update comes too late.
pipeline.program @gathered_too_early ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    // expected-note@+1 {{`weight(0)` is there when the step begins}}
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    // expected-error@+1 {{rank 0 gives `weight(0)` to the gather of `weight(0)`}}
    %1 = pipeline.post all_gather <weight stage 0> %w with [0] over <data> tensors 1 cuts [0, 64, 64] channel 1 : !s
    pipeline.complete %1
  }
}
