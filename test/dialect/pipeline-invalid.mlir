// What the verifiers of the pipeline dialect refuse, each with its message; and what its attributes do not parse.
// RUN: pp-opt %s --split-input-file --verify-diagnostics

!a = !pipeline.val<act, tuple<tensor<2xf32>>, [0]>

// One tie for each result.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <act stage 0 mb 0> : !a
  // expected-error@+1 {{has 1 results and 2 ties}}
  %b = pipeline.task @s0.F <F stage 0 mb 0> on [0] (%a) ties [-1, -1] : (!a) -> !a
}

// -----

!a = !pipeline.val<act, tuple<tensor<2xf32>>, [0]>

// A tie names an operand.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <act stage 0 mb 0> : !a
  // expected-error@+1 {{result 0 is tied to operand 1, there are 1}}
  %b = pipeline.task @s0.F <F stage 0 mb 0> on [0] (%a) ties [1] : (!a) -> !a
}

// -----

!a = !pipeline.val<act, tuple<tensor<2xf32>>, [0]>
!g = !pipeline.val<grad, tuple<tensor<2xf32>>, [0]>

// In place means the same type.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <act stage 0 mb 0> : !a
  // expected-error@+1 {{result 0 is tied to operand 0 of another type}}
  %b = pipeline.task @s0.F <F stage 0 mb 0> on [0] (%a) ties [0] : (!a) -> !g
}

// -----

!a0 = !pipeline.val<act, tuple<tensor<2xf32>>, [0]>
!a1 = !pipeline.val<act, tuple<tensor<2xf32>>, [1]>

// A task reads only what is on its rank: a missing transfer is a type error.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <act stage 0 mb 0> : !a0
  // expected-error@+1 {{operand 0 is on rank 0, the task runs on rank 1}}
  %b = pipeline.task @s1.F <F stage 1 mb 0> on [1] (%a) ties [-1] : (!a0) -> !a1
}

// -----

!a0 = !pipeline.val<act, tuple<tensor<2xf32>>, [0]>
!a1 = !pipeline.val<act, tuple<tensor<2xf32>>, [1]>

// And makes its results there.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <act stage 0 mb 0> : !a1
  // expected-error@+1 {{result 0 is on rank 0, the task runs on rank 1}}
  %b = pipeline.task @s1.F <F stage 1 mb 0> on [1] (%a) ties [-1] : (!a1) -> !a0
}

// -----

!both = !pipeline.val<act, tuple<tensor<2xf32>>, [0, 1]>
!a0 = !pipeline.val<act, tuple<tensor<2xf32>>, [0]>

// A task of a group needs its values on every rank of the group.
pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <act stage 0 mb 0> : !both
  // expected-error@+1 {{operand 0 is on ranks 0, 1, the task runs on rank 2}}
  %b = pipeline.task @s1.F <F stage 1 mb 0> on [0, 2] (%a) ties [-1] : (!both) -> !a0
}

// -----

!a = !pipeline.val<act, tuple<tensor<2xf32>>, [0]>
!d = !pipeline.val<dact, tuple<tensor<2xf32>>, [1]>

// A move changes the place and nothing else: neither the role ..
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <act stage 0 mb 0> : !a
  // expected-error@+1 {{changes more than the place: from '!pipeline.val<act, tuple<tensor<2xf32>>, [0]>' to '!pipeline.val<dact, tuple<tensor<2xf32>>, [1]>'}}
  %b = pipeline.move <act stage 0 mb 0> %a : !a -> <!d>
}

// -----

!a = !pipeline.val<act, tuple<tensor<2xf32>>, [0]>
!b = !pipeline.val<act, tuple<tensor<3xf32>>, [1]>

// .. nor the payload.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <act stage 0 mb 0> : !a
  // expected-error@+1 {{changes more than the place}}
  %b = pipeline.move <act stage 0 mb 0> %a : !a -> <!b>
}

// -----

!full = !pipeline.val<grad, tuple<tensor<2xf32>>, [0]>
!partial = !pipeline.val<grad, tuple<tensor<2xf32>>, [0, 1] partial>

// No message makes partial sums of a whole.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <grad stage 0> : !full
  // expected-error@+1 {{has no verb from rank 0 (full) to ranks 0, 1 (partial)}}
  %b = pipeline.move <grad stage 0> %a : !full -> <!partial>
}

// -----

!full = !pipeline.val<weight, tuple<tensor<2xf32>>, [0, 1]>
!shard = !pipeline.val<weight, tuple<tensor<2xf32>>, [0, 1] shard>

// Copies on several ranks are not scattered: one rank is.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <weight stage 0> : !full
  // expected-error@+1 {{has no verb from ranks 0, 1 (full) to shards of ranks 0, 1 (shard)}}
  %b = pipeline.move <weight stage 0> %a : !full -> <!shard>
}

// -----

!a = !pipeline.val<act, tuple<tensor<2xf32>>, [0]>
!b = !pipeline.val<act, tuple<tensor<2xf32>>, [1]>

// A wait gives what its future holds.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <act stage 0 mb 0> : !a
  %f = pipeline.move <act stage 0 mb 0> %a : !a -> <!b>
  // expected-error@+1 {{gives '!pipeline.val<act, tuple<tensor<2xf32>>, [0]>', the future holds '!pipeline.val<act, tuple<tensor<2xf32>>, [1]>'}}
  %b = pipeline.wait %f : <!b> -> !a
}

// -----

!g0 = !pipeline.val<grad, tuple<tensor<2xf32>>, [0]>
!g1 = !pipeline.val<grad, tuple<tensor<2xf32>>, [1]>
!full = !pipeline.val<grad, tuple<tensor<2xf32>>, [0, 1]>

// Seen as one, two values are shards or partial sums.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <grad stage 0> : !g0
  %b = pipeline.input <grad stage 0> : !g1
  // expected-error@+1 {{makes shards or partial sums, not a full value}}
  %c = pipeline.join %a, %b : !g0, !g1 -> !full
}

// -----

!g0 = !pipeline.val<grad, tuple<tensor<2xf32>>, [0]>
!partial = !pipeline.val<grad, tuple<tensor<2xf32>>, [0, 1] partial>

// One value for each rank of the group ..
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <grad stage 0> : !g0
  // expected-error@+1 {{joins 1 values on a group of 2}}
  %c = pipeline.join %a : !g0 -> !partial
}

// -----

!g0 = !pipeline.val<grad, tuple<tensor<2xf32>>, [0]>
!partial = !pipeline.val<grad, tuple<tensor<2xf32>>, [0, 1] partial>

// .. on that rank.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <grad stage 0> : !g0
  // expected-error@+1 {{expected a value on rank 1, got '!pipeline.val<grad, tuple<tensor<2xf32>>, [0]>'}}
  %c = pipeline.join %a, %a : !g0, !g0 -> !partial
}

// -----

!partial = !pipeline.val<grad, tuple<tensor<2xf32>>, [0, 1] partial>
!g2 = !pipeline.val<grad, tuple<tensor<2xf32>>, [2]>

// A rank outside the group holds no piece.
pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {}} {
  %a = pipeline.input <grad stage 0> : !partial
  // expected-error@+1 {{takes what rank 2 holds of a value on ranks 0, 1}}
  %b = pipeline.split %a : !partial -> !g2
}

// -----

// Pieces and rank programs belong to a program.
// expected-error@+1 {{expects parent op 'pipeline.program'}}
pipeline.piece @s0 <stage 0> parts [["embed", -1]]

// -----

// expected-error@+1 {{expects parent op 'pipeline.program'}}
pipeline.rank 0 {
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // A phase, a role and a layout are one of a known few.
  // expected-error@+1 {{expected a phase, got `X`}}
  pipeline.unit <X stage 0 mb 0> on [0]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{expected a role, got `gradient`}}
  pipeline.transfer <gradient stage 0> to <[0]> anchors [0]
}

// -----

// expected-error@+1 {{expected a role, got `buffer`}}
!v = !pipeline.val<buffer, tuple<tensor<2xf32>>, [0]>

// -----

// expected-error@+1 {{expected a layout, got `whole`}}
!v = !pipeline.val<act, tuple<tensor<2xf32>>, [0] whole>

// -----

!s = !pipeline.slot<tuple<tensor<2xi32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{is `act` and bound as `tokens`, which is `data`}}
    %a = pipeline.slot act "a" binding <tokens mb 0> : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

// The root of a collective is one of its members ..
pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" : !s
    // expected-error@+1 {{has root 2, which is not a member}}
    %0 = pipeline.post broadcast <weight stage 0> %w with [0, 1] root 2 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

// .. and those that have one name it, as no other does.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %g = pipeline.slot grad "g" : !s
    // expected-error@+1 {{reduce needs a root}}
    %0 = pipeline.post reduce <grad stage 0> %g with [0, 1] : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %g = pipeline.slot grad "g" : !s
    // expected-error@+1 {{all_reduce has no root}}
    %0 = pipeline.post all_reduce <grad stage 0> %g with [0, 1] root 0 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

// Members have one order, so that a group has one name.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %g = pipeline.slot grad "g" : !s
    // expected-error@+1 {{lists the members of a collective in ascending order}}
    %0 = pipeline.post all_reduce <grad stage 0> %g with [1, 0] : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<64xf32>>>
!half = !pipeline.slot<tuple<tensor<32xf32>>>

// A gather has a shard of each member's own length between its cuts ..
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" : !s
    %v = pipeline.slot weight "v" : !half
    // expected-error@+1 {{has a shard of 128 bytes; between its cuts are 64}}
    %0 = pipeline.post all_gather <weight stage 0> %w shard %v with [0, 1] cuts [0, 64, 256] : !s shard !half
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<64xf32>>>
!half = !pipeline.slot<tuple<tensor<32xf32>>>

// .. and these go through the whole.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" : !s
    %v = pipeline.slot weight "v" : !half
    // expected-error@+1 {{cuts 192 bytes; the whole has 256}}
    %0 = pipeline.post reduce_scatter <grad stage 0> %w shard %v with [0, 1] cuts [0, 128, 192] : !s shard !half
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<64xf32>>>

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" : !s
    // expected-error@+1 {{all_gather needs a shard and cuts}}
    %0 = pipeline.post all_gather <weight stage 0> %w with [0, 1] : !s
  }
}

// -----

!two = !pipeline.slot<tuple<tensor<16xf32>, tensor<16xf32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{has 3 places for its 2 tensors}}
    %s = pipeline.slot stash "s" places [0, 64, 128] : !two
  }
}

// -----

!two = !pipeline.slot<tuple<tensor<16xf32>, tensor<16xf32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{has places for its tensors; expected no offset, no binding, and not to be in host memory}}
    %s = pipeline.slot stash "s" offset 0 places [0, 64] : !two
  }
}

// -----

!two = !pipeline.slot<tuple<tensor<16xf32>, tensor<16xf32>>>

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %s = pipeline.slot stash "s" places [0, 128] : !two
    // expected-error@+1 {{takes a slot whose tensors lie apart; a message goes from one run of bytes to another}}
    %0 = pipeline.post send <stash stage 0 mb 0> %s with [1] channel 1 : !two
  }
}

// -----

!two = !pipeline.slot<tuple<tensor<16xf32>, tensor<32xf32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %s = pipeline.slot stash "s" : !two
    %p = pipeline.slot stash "p" : !two
    // expected-error@+1 {{hands tensor 0 of slot 0 on as tensor 1 of slot 1; expected an input's and a result's, of one size}}
    pipeline.launch @i <I stage 0 mb 0>(%s) -> (%p) handed [0, 0, 1, 1] : (!two) -> !two
  }
}

// -----

!two = !pipeline.slot<tuple<tensor<16xf32>, tensor<16xf32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %s = pipeline.slot stash "s" : !two
    %p = pipeline.slot stash "p" : !two
    // expected-error@+1 {{hands on as tensor 1 of slot 1 what is handed on already}}
    pipeline.launch @i <I stage 0 mb 0>(%s) -> (%p) handed [0, 0, 1, 0, 0, 0, 1, 1] : (!two) -> !two
  }
}

// -----

!two = !pipeline.slot<tuple<tensor<16xf32>, tensor<16xf32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %s = pipeline.slot stash "s" : !two
    %p = pipeline.slot stash "p" : !two
    // expected-error@+1 {{expected `handed` to have four numbers for each tensor}}
    pipeline.launch @i <I stage 0 mb 0>(%s) -> (%p) handed [0, 0, 1] : (!two) -> !two
  }
}

// -----

// expected-error@+1 {{expected a phase, got `X`}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" X>}

// -----

// expected-error@+1 {{expected the class of pieces that the body is of}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"" F>}

// -----

// expected-error@+1 {{`F` has no body `first`}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" F first>}

// -----

// expected-error@+1 {{`B` has no body `norm`}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" B norm>}

// -----

// expected-error@+1 {{`tie_in` needs the number of a sharer}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" U tie_in>}

// -----

// expected-error@+1 {{`norm` has no sharer}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" U norm sharer 0>}

// -----

// expected-error@+1 {{`F` works on whole pieces, not on shard 1}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" F shard 1>}

// -----

// expected-error@+1 {{an update is of all slices, not of slice 1}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" U slice 1>}

// -----

// expected-error@+1 {{only F, B and I of a slice can be cut at their attentions}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" W slice 1 step 0 of 2>}

// -----

// expected-error@+1 {{only F, B and I of a slice can be cut at their attentions}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" F step 0 of 2>}

// -----

// expected-error@+1 {{step 2 does not exist; the unit has 2 steps, from 0 on}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" F slice 1 step 2 of 2>}

// -----

// expected-error@+1 {{a `part` attends the keys of one entry, got 2}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" F slice 1 part 0 keys [0], [1]>}

// -----

// expected-error@+1 {{a `rest` needs the keys that others attend}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" F slice 1 rest 0>}

// -----

// expected-error@+1 {{only a `part` can be `next`}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" F slice 1 step 0 of 1 next>}

// -----

// expected-error@+1 {{expected slices in ascending order, got 1 behind 2}}
func.func private @body() attributes {pipeline.body = #pipeline.body<"s0" F slice 3 part 0 keys [2, 1]>}

// -----

// Over the mesh a shard lies in the whole, and all devices cut it alike.
!s = !pipeline.slot<tuple<tensor<64xf32>>>
#mesh = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 1, zero 1>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" : !s
    // expected-error@+1 {{has cuts that are not those of 1 tensors over 2 devices: 0, 128, 256}}
    %0 = pipeline.post all_gather <weight stage 0> %w with [0] over <data> tensors 1 cuts [0, 192, 256] : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<64xf32>>>
#mesh = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 1, zero 1>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" : !s
    %v = pipeline.slot weight "v" : !s
    // expected-error@+1 {{all_gather over the mesh needs cuts, and no shard}}
    %0 = pipeline.post all_gather <weight stage 0> %w shard %v with [0] over <data> tensors 1 cuts [0, 128, 256] : !s shard !s
  }
}

// -----

// expected-error@+1 {{expected zero 0, 1 or 2, got 3}}
#mesh = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 1, zero 3>

// -----

pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{runs beside the launch behind it; expected one there}}
    pipeline.launch @f <F stage 0 mb 0>() -> () beside [1, 1] : () -> ()
  }
}

// -----

pipeline.program @p ranks 1 microbatches 3 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    pipeline.launch @f <F stage 0 mb 0>() -> () beside [1, 1] : () -> ()
    // expected-error@+1 {{runs beside the launch before it and the one behind it; expected two launches}}
    pipeline.launch @f <F stage 0 mb 1>() -> () beside [1, 1] : () -> ()
    pipeline.launch @f <F stage 0 mb 2>() -> () : () -> ()
  }
}

// -----

pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{has a turn of -1 ops; expected 0 or more}}
    pipeline.launch @f <F stage 0 mb 0>() -> () beside [1, -1] : () -> ()
    pipeline.launch @f <F stage 0 mb 1>() -> () : () -> ()
  }
}
