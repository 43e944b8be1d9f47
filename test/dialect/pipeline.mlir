// Every op of the pipeline dialect at its three levels, every attribute and type, printed as it was read.
// RUN: pp-opt %s | pp-opt | FileCheck %s
// RUN: pp-opt %s | FileCheck %s --check-prefix=TYPES
// RUN: pp-opt %s --mlir-print-op-generic | pp-opt | FileCheck %s

!x = tensor<2x4xf32>

// What derived functions are: parts of an update, of a shard; steps and parts of units that are cut.
// CHECK: func.func private @a() attributes {pipeline.body = #pipeline.body<"s0" F>}
func.func private @a() attributes {pipeline.body = #pipeline.body<"s0" F>}
// CHECK: #pipeline.body<"s0" B first slice 2>
func.func private @b() attributes {pipeline.body = #pipeline.body<"s0" B first slice 2>}
// CHECK: #pipeline.body<"s0" U tie_in sharer 0 shard 1>
func.func private @c() attributes {pipeline.body = #pipeline.body<"s0" U tie_in sharer 0 shard 1>}
// CHECK: #pipeline.body<"s0" F light slice 3 step 1 of 2 keys [0, 1], [2] home>
func.func private @d() attributes {pipeline.body = #pipeline.body<"s0" F light slice 3 step 1 of 2 keys [0, 1], [2] home>}
// CHECK: #pipeline.body<"attn" I slice 3 part 0 keys [2] next>
func.func private @e() attributes {pipeline.body = #pipeline.body<"attn" I slice 3 part 0 keys [2] next>}
// CHECK: #pipeline.body<"s0" F slice 3 rest 1 keys [0]>
func.func private @f() attributes {pipeline.body = #pipeline.body<"s0" F slice 3 rest 1 keys [0]>}
// CHECK: #pipeline.cut<step 0 of 3>, {{.*}}#pipeline.keys<[0, 2] home>
func.func private @g() attributes {cut = #pipeline.cut<step 0 of 3>, keys = #pipeline.keys<[0, 2] home>}

// Numbers, and what the trainer needs, on the program.
// CHECK: pipeline.program @actions ranks 2 microbatches 3 slices 4 attributes {train = {model = "m"}} {
pipeline.program @actions ranks 2 microbatches 3 slices 4 attributes {train = {model = "m"}} {
  // A stage with all its places: the weights wait on two ranks, a third place owns them.
  // CHECK-NEXT: pipeline.piece @s0 <stage 0> parts {{\[}}["embed", -1], ["pre", 0]] at <[0]> homes <[0, 1]> owner <[1]> bodies "s0" {weights = [#pipeline.weight<"w" : tensor<2x4xf32> declared <"w" normal 2.000000e-02 transposed>>]}
  pipeline.piece @s0 <stage 0> parts [["embed", -1], ["pre", 0]] at <[0]> homes <[0, 1]> owner <[1]> bodies "s0" {
    weights = [#pipeline.weight<"w" : !x declared <"w" normal 0.02 transposed>>]}
  // A shard of a part that is cut by the vocabulary.
  // CHECK-NEXT: pipeline.piece @embed0 <part "embed" 0> parts {{\[\[}}"embed.0", -1]] at <[1]> vocabulary <first 0 of tensor<8x4xf32> in 1 shards>
  pipeline.piece @embed0 <part "embed" 0> parts [["embed.0", -1]] at <[1]> vocabulary <first 0 of tensor<8x4xf32> in 1 shards>
  // A part that each layer has once, in shards; a part that exists once, without a place.
  // CHECK-NEXT: pipeline.piece @attn3 <part "attn" 3> parts {{\[}}["attn", 3]] at <[0, 1] shard>
  pipeline.piece @attn3 <part "attn" 3> parts [["attn", 3]] at <[0, 1] shard>
  // CHECK-NEXT: pipeline.piece @head <part "head"> parts {{\[}}["head", -1]]
  pipeline.piece @head <part "head"> parts [["head", -1]]

  // CHECK-NEXT: pipeline.limit stash 4 on [0, 1]
  pipeline.limit stash 4 on [0, 1]

  // Units of every phase; coordinates with and without a slice.
  // CHECK-NEXT: pipeline.unit <F stage 0 mb 2 slice 3> on [0]
  pipeline.unit <F stage 0 mb 2 slice 3> on [0]
  // CHECK-NEXT: pipeline.unit <B part "attn" 3 mb 1 slice 0> on [0, 1]
  pipeline.unit <B part "attn" 3 mb 1 slice 0> on [0, 1]
  // CHECK-NEXT: pipeline.unit <I part "head" mb 1 slice 0> on [1]
  pipeline.unit <I part "head" mb 1 slice 0> on [1]
  // CHECK-NEXT: pipeline.unit <W part "head" mb 1 slice 0> on [1]
  pipeline.unit <W part "head" mb 1 slice 0> on [1]
  // CHECK-NEXT: pipeline.unit <R stage 0 mb 2 slice 3> on [0]
  pipeline.unit <R stage 0 mb 2 slice 3> on [0]
  // CHECK-NEXT: pipeline.unit <U stage 0> on [1]
  pipeline.unit <U stage 0> on [1]
  // One that reads the weights of the step before.
  // CHECK-NEXT: pipeline.unit <F stage 0 mb 0 slice 0> on [0] version -1
  pipeline.unit <F stage 0 mb 0 slice 0> on [0] version -1
  // CHECK-NEXT: pipeline.attend <F stage 0 mb 2 slice 3> over [0, 1] on 1
  pipeline.attend <F stage 0 mb 2 slice 3> over [0, 1] on 1

  // CHECK-NEXT: pipeline.transfer <weight stage 0> from <[0]> to <[1]> anchors [0, 1]
  pipeline.transfer <weight stage 0> from <[0]> to <[1]> anchors [0, 1]
  // From all who hold a share; to the memory of the host.
  // CHECK-NEXT: pipeline.transfer <grad stage 0> to <[1]> anchors []
  pipeline.transfer <grad stage 0> to <[1]> anchors []
  // CHECK-NEXT: pipeline.transfer <stash stage 0 mb 2> from <[0]> to <[0] host> anchors [0]
  pipeline.transfer <stash stage 0 mb 2> from <[0]> to <[0] host> anchors [0]
  // CHECK-NEXT: pipeline.together {
  // CHECK-NEXT:   pipeline.transfer <kv part "attn" 3 mb 1 slice 2> from <[0]> to <[1]> anchors [0]
  // CHECK-NEXT:   pipeline.transfer <dkv part "attn" 3 mb 1 slice 2> from <[1]> to <[0]> anchors [0]
  // CHECK-NEXT: }
  pipeline.together {
    pipeline.transfer <kv part "attn" 3 mb 1 slice 2> from <[0]> to <[1]> anchors [0]
    pipeline.transfer <dkv part "attn" 3 mb 1 slice 2> from <[1]> to <[0]> anchors [0]
  }
}

!a0 = !pipeline.val<act, tuple<!x>, [0]>
!a1 = !pipeline.val<act, tuple<!x>, [1]>
!g0 = !pipeline.val<grad, tuple<!x>, [0]>
!g1 = !pipeline.val<grad, tuple<!x>, [1]>
!partial = !pipeline.val<grad, tuple<!x>, [0, 1] partial>
!sum = !pipeline.val<grad, tuple<!x>, [0, 1]>

// The step: every value has a name that says what it is, every placed type an alias of its ranks and role.
// TYPES-DAG: !r0_act = !pipeline.val<act, tuple<tensor<2x4xf32>>, [0]>
// TYPES-DAG: !r0_data = !pipeline.val<data, tuple<tensor<2x4xi32>>, [0]>
// TYPES-DAG: !r0_1_grad{{[0-9_]*}} = !pipeline.val<grad, tuple<tensor<2x4xf32>>, [0, 1] partial>
// TYPES-DAG: !r0_1_grad{{[0-9_]*}} = !pipeline.val<grad, tuple<tensor<2x4xf32>>, [0, 1]>
// CHECK: pipeline.program @step
pipeline.program @step ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // CHECK: %data_tokens_m0_r0 = pipeline.input <data part "tokens" mb 0> "tokens" : !r0_data
  %t = pipeline.input <data part "tokens" mb 0> "tokens" : !pipeline.val<data, tuple<tensor<2x4xi32>>, [0]>
  // CHECK-NEXT: %grad_s0_r0 = pipeline.input <grad stage 0> : !r0_grad
  %g = pipeline.input <grad stage 0> : !g0
  // The second result is the first operand, written over.
  // CHECK-NEXT: %b_s0_m0_act, %b_s0_m0_grad = pipeline.task @s0.B <B stage 0 mb 0> on [0](%grad_s0_r0, %data_tokens_m0_r0) ties [-1, 0] : (!r0_grad, !r0_data) -> (!r0_act, !r0_grad)
  %a, %h = pipeline.task @s0.B <B stage 0 mb 0> on [0] (%g, %t) ties [-1, 0]
    : (!g0, !pipeline.val<data, tuple<tensor<2x4xi32>>, [0]>) -> (!a0, !g0)
  // CHECK-NEXT: %moving_act_s0_m0 = pipeline.move <act stage 0 mb 0> %b_s0_m0_act group 7 : !r0_act -> <!r1_act>
  %f = pipeline.move <act stage 0 mb 0> %a group 7 : !a0 -> <!a1>
  // CHECK-NEXT: %act_s0_m0 = pipeline.wait %moving_act_s0_m0 : <!r1_act> -> !r1_act
  %b = pipeline.wait %f : <!a1> -> !a1
  // A part of a unit of the third joint, with older weights.
  // CHECK-NEXT: pipeline.task @s0.F <F stage 0 mb 0> on [0]() ties [] version 0 joint 2 share 5.000000e-01 : () -> ()
  pipeline.task @s0.F <F stage 0 mb 0> on [0] () ties [] version 0 joint 2 share 0.5 : () -> ()
  // CHECK-NEXT: %grad_s0_r1 = pipeline.input <grad stage 0> : !r1_grad
  %i = pipeline.input <grad stage 0> : !g1
  // Two shares as one value of partial sums, its sum on both, and what rank 1 holds of it.
  // CHECK-NEXT: %[[J:.*]] = pipeline.join %b_s0_m0_grad, %grad_s0_r1 : !r0_grad, !r1_grad -> !r0_1_grad
  %j = pipeline.join %h, %i : !g0, !g1 -> !partial
  // CHECK-NEXT: %moving_grad_s0 = pipeline.move <grad stage 0> %[[J]] : !r0_1_grad
  %k = pipeline.move <grad stage 0> %j : !partial -> <!sum>
  // CHECK-NEXT: %grad_s0 = pipeline.wait %moving_grad_s0
  %l = pipeline.wait %k : <!sum> -> !sum
  // CHECK-NEXT: %[[M:.*]] = pipeline.split %grad_s0 : !r0_1_grad{{.*}} -> !r1_grad
  %m = pipeline.split %l : !sum -> !g1
  // CHECK-NEXT: pipeline.output <grad stage 0> %[[M]] : !r1_grad
  pipeline.output <grad stage 0> %m : !g1
}

!slot = !pipeline.slot<tuple<!x>>
!bytes = !pipeline.slot<tuple<tensor<64xi8>>>

// The programs of the ranks.
// CHECK: pipeline.program @ranks
pipeline.program @ranks ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // CHECK: pipeline.rank 0 arena 4096 {
  pipeline.rank 0 arena 4096 {
    // CHECK-NEXT: %[[W:.*]] = pipeline.slot weight "weight(0)" offset 64 binding <weight @s0 save> : <tuple<tensor<2x4xf32>>>
    %w = pipeline.slot weight "weight(0)" offset 64 binding <weight @s0 save> : !slot
    // CHECK-NEXT: %[[A:.*]] = pipeline.slot act "act(0, 0)" : <tuple<tensor<2x4xf32>>>
    %a = pipeline.slot act "act(0, 0)" : !slot
    // CHECK-NEXT: %[[S:.*]] = pipeline.slot temporary "scratch" offset 1024 : <tuple<tensor<64xi8>>>
    %s = pipeline.slot temporary "scratch" offset 1024 : !bytes
    // CHECK-NEXT: pipeline.launch @s0.F <F stage 0 mb 0>(%[[W]]) -> (%[[A]]) scratch %[[S]] : (!pipeline.slot<tuple<tensor<2x4xf32>>>) -> !pipeline.slot<tuple<tensor<2x4xf32>>> scratch !pipeline.slot<tuple<tensor<64xi8>>>
    pipeline.launch @s0.F <F stage 0 mb 0>(%w) -> (%a) scratch %s : (!slot) -> !slot scratch !bytes
    // A body may have no result of its own, and no scratch.
    // CHECK-NEXT: pipeline.launch @s0.U <U stage 0>(%[[W]]) -> () : (!pipeline.slot<tuple<tensor<2x4xf32>>>) -> ()
    pipeline.launch @s0.U <U stage 0>(%w) -> () : (!slot) -> ()
    // CHECK-NEXT: pipeline.launch @s0.B <B stage 0 mb 0>(%[[W]]) -> () version 0 joint 2 share 5.000000e-01 :
    pipeline.launch @s0.B <B stage 0 mb 0>(%w) -> () version 0 joint 2 share 0.5 : (!slot) -> ()
    // Whatever the trainer finds in a slot.
    // CHECK-NEXT: pipeline.slot weight "v" binding <previous @s0 shard 1 back 2>
    %v = pipeline.slot weight "v" binding <previous @s0 shard 1 back 2> : !slot
    // CHECK-NEXT: pipeline.slot data "t" binding <tokens mb 0 slice 1 first 4>
    %t = pipeline.slot data "t" binding <tokens mb 0 slice 1 first 4> : !slot
    // CHECK-NEXT: pipeline.slot stat "n" binding <norm>
    %n = pipeline.slot stat "n" binding <norm> : !slot
    // CHECK-NEXT: %[[P:.*]] = pipeline.post send <act stage 0 mb 0> %[[A]] with [1] channel 1 group 2 : <tuple<tensor<2x4xf32>>>
    %p = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 group 2 : !slot
    // CHECK-NEXT: %[[Q:.*]] = pipeline.post all_reduce <stat part "norm"> %[[A]] with [0, 1] : <tuple<tensor<2x4xf32>>>
    %q = pipeline.post all_reduce <stat part "norm"> %a with [0, 1] : !slot
    // CHECK-NEXT: %[[B:.*]] = pipeline.post broadcast <weight stage 0> %[[W]] with [0, 1] root 0 channel 4 : <tuple<tensor<2x4xf32>>>
    %b = pipeline.post broadcast <weight stage 0> %w with [0, 1] root 0 channel 4 : !slot
    // CHECK-NEXT: pipeline.complete %[[P]]
    pipeline.complete %p
    // CHECK-NEXT: pipeline.complete %[[Q]]
    pipeline.complete %q
  }
  // CHECK: pipeline.rank 1 {
  pipeline.rank 1 {
    %a = pipeline.slot act "act(0, 0)" : !slot
    // CHECK: pipeline.post receive <act stage 0 mb 0> %{{.*}} with [0] channel 1 : <tuple<tensor<2x4xf32>>>
    %p = pipeline.post receive <act stage 0 mb 0> %a with [0] channel 1 : !slot
    pipeline.complete %p
  }
}
