// With `zero 2` each replica sums its shard of every gradient, and adds it to that of earlier ones: one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<32xf32>
!s = !pipeline.slot<tuple<!t>>
#w = #pipeline.weight<"w" : !t declared <"w" zero>>
#mesh = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 1, zero 2>

func.func private @s0.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W first>,
  pipeline.inputs = #pipeline.groups<tokens x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U first>,
  pipeline.inputs = #pipeline.groups<share x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.sum(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U sum>,
  pipeline.inputs = #pipeline.groups<grad x 1, share x 1>, pipeline.results = #pipeline.groups<grad x 1>,
  pipeline.ties = array<i64: 0>}
func.func private @s0.norm.first(!t) -> tensor<f64> attributes {
  pipeline.body = #pipeline.body<"s0" U norm_first>,
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<norm x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.U(!t, !t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, opt x 1>, pipeline.results = #pipeline.groups<weight x 1, opt x 1>,
  pipeline.ties = array<i64: 0, 2>}

// All is well here: the second gradient has the memory of the first one.
pipeline.program @right ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    %s = pipeline.slot grad "s" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %0
    pipeline.launch @s0.first <U stage 0>(%g) -> (%s) : (!s) -> !s
    pipeline.launch @s0.W.first <W stage 0 mb 1>(%t1) -> (%g) : (!s) -> !s
    %1 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %1
    pipeline.launch @s0.sum <U stage 0>(%s, %g) -> () : (!s, !s) -> ()
    pipeline.launch @s0.U <U stage 0>(%w, %s, %o) -> () : (!s, !s, !s) -> ()
    %9 = pipeline.post all_gather <weight stage 0> %w with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %9
  }
}

// The shard of the second gradient is nowhere in the sum.
pipeline.program @left_out ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    %s = pipeline.slot grad "s" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %0
    pipeline.launch @s0.first <U stage 0>(%g) -> (%s) : (!s) -> !s
    pipeline.launch @s0.W.first <W stage 0 mb 1>(%t1) -> (%h) : (!s) -> !s
    // expected-note@+1 {{a share with it is left on rank 0, which comes from the sum over replicas that rank 0 joined here}}
    %1 = pipeline.post reduce_scatter <grad stage 0> %h with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %1
    // expected-error@+1 {{`U(0)` on rank 0 lacks the gradient of microbatch 1}}
    pipeline.launch @s0.U <U stage 0>(%w, %s, %o) -> () : (!s, !s, !s) -> ()
  }
}

// The sum would have the first gradient two times.
pipeline.program @added_twice ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    %s = pipeline.slot grad "s" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    // expected-note@+1 {{the other comes from the sum over replicas that rank 0 joined here}}
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %0
    // expected-note@+1 {{one term was last added to here, by `first` of `U(0)` on rank 0}}
    pipeline.launch @s0.first <U stage 0>(%g) -> (%s) : (!s) -> !s
    // expected-error@+1 {{`sum` of `U(0)` on rank 0 adds the gradient of microbatch 0 twice}}
    pipeline.launch @s0.sum <U stage 0>(%s, %g) -> () : (!s, !s) -> ()
  }
}

// The sum of the replicas is not there yet.
pipeline.program @read_too_early ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    %s = pipeline.slot grad "s" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    // expected-note@+1 {{its sum is posted here, and is complete only after the read}}
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    // expected-error@+1 {{`first` of `U(0)` on rank 0 reads `grad(0)` in the replica's shard before it has arrived}}
    pipeline.launch @s0.first <U stage 0>(%g) -> (%s) : (!s) -> !s
  }
}

// A shard of what one replica alone has made is no sum.
pipeline.program @never_scattered ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    %s = pipeline.slot grad "s" binding <grad @s0> : !s
    // expected-note@+1 {{`grad(0)` of one replica was last added to here, by `W(0, 0)` on rank 0}}
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    // expected-error@+1 {{`first` of `U(0)` on rank 0 reads `grad(0)` of one replica where it needs `grad(0)` in the replica's shard}}
    pipeline.launch @s0.first <U stage 0>(%g) -> (%s) : (!s) -> !s
  }
}

// The memory of the first gradient has its next one before it is added.
pipeline.program @overwritten ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    %s = pipeline.slot grad "s" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    // expected-note@+1 {{`grad(0)` comes from the sum over replicas that rank 0 joined here}}
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %0
    // expected-error@+1 {{`W(0, 1)` on rank 0 writes over the gradient of microbatch 0, which nothing has taken}}
    pipeline.launch @s0.W.first <W stage 0 mb 1>(%t1) -> (%g) : (!s) -> !s
  }
}

// The same of a gradient that is not the first.
pipeline.program @second_never_scattered ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    %s = pipeline.slot grad "s" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    // expected-note@+1 {{`grad(0)` in the replica's shard is in another slot of rank 0: it comes from the sum over replicas that rank 0 joined here}}
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %0
    pipeline.launch @s0.first <U stage 0>(%g) -> (%s) : (!s) -> !s
    // expected-note@+1 {{`grad(0)` of one replica was last added to here, by `W(0, 1)` on rank 0}}
    pipeline.launch @s0.W.first <W stage 0 mb 1>(%t1) -> (%h) : (!s) -> !s
    // expected-error@+1 {{`sum` of `U(0)` on rank 0 reads `grad(0)` of one replica where it needs `grad(0)` in the replica's shard}}
    pipeline.launch @s0.sum <U stage 0>(%s, %h) -> () : (!s, !s) -> ()
  }
}

// The sums of two replicas would be added up over both once more.
pipeline.program @scattered_twice ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    %s = pipeline.slot grad "s" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    // expected-note@+1 {{`grad(0)` in the replica's shard comes from the sum over replicas that rank 0 joined here}}
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %0
    // expected-error@+1 {{rank 0 sums `grad(0)` over data, and its replicas have done so before}}
    %1 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %1
  }
}

// The norm would count the last gradient alone.
pipeline.program @norm_of_one ranks 1 microbatches 2 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    %s = pipeline.slot grad "s" binding <grad @s0> : !s
    %n = pipeline.slot stat "n" : !pipeline.slot<tuple<tensor<f64>>>
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t0) -> (%g) : (!s) -> !s
    %0 = pipeline.post reduce_scatter <grad stage 0> %g with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %0
    // expected-note@+1 {{a share with it is left on rank 0, which was last added to here, by `first` of `U(0)` on rank 0}}
    pipeline.launch @s0.first <U stage 0>(%g) -> (%s) : (!s) -> !s
    pipeline.launch @s0.W.first <W stage 0 mb 1>(%t1) -> (%h) : (!s) -> !s
    %1 = pipeline.post reduce_scatter <grad stage 0> %h with [0] over <data> tensors 1 cuts [0, 128, 128] channel 1 : !s
    pipeline.complete %1
    // expected-error@+1 {{`norm.first` of `U(0)` on rank 0 lacks the gradient of microbatch 0}}
    pipeline.launch @s0.norm.first <U stage 0>(%h) -> (%n) : (!s) -> !pipeline.slot<tuple<tensor<f64>>>
  }
}
