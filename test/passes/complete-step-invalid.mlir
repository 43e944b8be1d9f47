// What cannot be completed: shares left behind, missing microbatches, no owner, things that are not there, moves to come.
// RUN: pp-opt %s --split-input-file --pp-derive-tasks --pp-complete-step --verify-diagnostics

// A schedule that moves a gradient must bring all of it to the owner.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  // expected-error@+1 {{`U(0)` runs on rank 0, but the gradient of microbatch 1 is left on rank 1; this schedule moves `grad(0)` itself}}
  pipeline.piece @s0 <stage 0> parts [["all", -1]] homes <[0, 1]> owner <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-note@+1 {{`grad(0)` is moved here}}
  pipeline.transfer <grad stage 0> from <[1]> to <[0]> anchors [1]
  pipeline.unit <F stage 0 mb 1> on [1]
  // expected-note@+1 {{computed here}}
  pipeline.unit <B stage 0 mb 1> on [1]
}

// -----

// Zeros left elsewhere are a mistake of the moves too.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  // expected-error@+1 {{`U(0)` runs on rank 0, but an empty share of its gradient is left on rank 2; this schedule moves `grad(0)` itself}}
  pipeline.piece @s0 <stage 0> parts [["all", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-note@+1 {{last moved here}}
  pipeline.transfer <grad stage 0> from <[1]> to <[2]> anchors [1]
}

// -----

// A backward that is missing (verify-units would say so first).
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 1 microbatches 3 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  // expected-error@+1 {{`U(0)` on rank 0 lacks the gradient of microbatch 1}}
  pipeline.piece @s0 <stage 0> parts [["all", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <F stage 0 mb 2> on [0]
  pipeline.unit <B stage 0 mb 2> on [0]
}

// -----

// Two homes do not say who updates.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  // expected-error@+1 {{stage 0 has no `opt` place, so no rank can update it}}
  pipeline.piece @s0 <stage 0> parts [["all", -1]] homes <[0, 1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// Nor can weights be nowhere.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  // expected-error@+1 {{no rank holds the weights of stage 0; give it a place with `at` or `weight at`}}
  pipeline.piece @s0 <stage 0> parts [["all", -1]] owner <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// The owner needs the weight that it updates.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  // expected-error@+1 {{`U(0)` on rank 1: `weight(0)` is not there at the end of the step}}
  pipeline.piece @s0 <stage 0> parts [["all", -1]] homes <[0]> owner <[1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// A gradient summed on two ranks.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  // expected-note@+1 {{placed here}}
  pipeline.piece @s0 <stage 0> parts [["all", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-error@+1 {{`move grad(0)` sums a gradient on ranks 0, 1, and not all of these ranks update it}}
  pipeline.transfer <grad stage 0> to <[0, 1]> anchors [0]
}

// -----

// To the host.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["all", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-error@+1 {{`move weight(0)` involves the host of rank 0, which is not supported yet}}
  pipeline.transfer <weight stage 0> from <[0]> to <[0] host> anchors [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// To shards.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["all", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-error@+1 {{`move weight(0)` involves shards of ranks 0, 1, which is not supported yet}}
  pipeline.transfer <weight stage 0> from <[0]> to <[0, 1] shard> anchors [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// The state of an optimizer.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["all", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-error@+1 {{`move opt(0)` moves an optimizer state, which is not supported yet}}
  pipeline.transfer <opt stage 0> from <[0]> to <[1]> anchors [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// An activation that the schedule moves to the wrong rank is not where it is read.
!x = tensor<1x8x16xf32>
func.func private @first(%t: tensor<1x8xi32> {nn.data = "tokens"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> !x {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> !x
  return %0 : !x
}
func.func private @last(%x: !x, %t: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<16x32xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.linear %x, %w : (!x, tensor<16x32xf32>) -> tensor<1x8x32xf32>
  %1 = nn.cross_entropy %0, %t : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %1 : tensor<1xf32>
}


pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["first", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["last", -1]] at <[1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-note@+1 {{`act(0, 0)` is moved by hand here, to rank 2; move it to rank 1 too, or leave all its moves to the compiler}}
  pipeline.transfer <act stage 0 mb 0> from <[0]> to <[2]> anchors [0]
  pipeline.unit <F stage 1 mb 0> on [1]
  // expected-error@+1 {{`B(1, 0)` on rank 1 needs `act(0, 0)`, which is on ranks 0, 2}}
  pipeline.unit <B stage 1 mb 0> on [1]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// The move is right, but stands behind what it is for.
!x = tensor<1x8x16xf32>
func.func private @first(%t: tensor<1x8xi32> {nn.data = "tokens"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> !x {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> !x
  return %0 : !x
}
func.func private @last(%x: !x, %t: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<16x32xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.linear %x, %w : (!x, tensor<16x32xf32>) -> tensor<1x8x32xf32>
  %1 = nn.cross_entropy %0, %t : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %1 : tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["first", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["last", -1]] at <[1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <F stage 1 mb 0> on [1]
  // expected-error@+1 {{`B(1, 0)` on rank 1 needs `act(0, 0)`, which is on rank 0}}
  pipeline.unit <B stage 1 mb 0> on [1]
  // expected-note@+1 {{`act(0, 0)` is moved by hand here, to rank 1, and only later}}
  pipeline.transfer <act stage 0 mb 0> from <[0]> to <[1]> anchors [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// A unit of a group.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["all", -1]] at <[0]>
  // expected-error@+1 {{`F(0, 0)` runs on a group of ranks, which is not supported yet}}
  pipeline.unit <F stage 0 mb 0> on [0, 1]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// An update by hand is taken as said, at the end of the step.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["all", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-remark@+1 {{`U(0)` runs at the end of the step: its clipping needs the norm of every gradient}}
  pipeline.unit <U stage 0> on [0]
}

// -----

// The second slice runs where the keys of the first are not.
func.func private @attn(%x: tensor<1x8x16xf32>) -> tensor<1x8x16xf32> {
  %k = nn.gelu %x : (tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  %v = nn.gelu %x : (tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  %o, %lse = nn.attention %x, %k, %v {heads = 4 : i64, causal = true} : (tensor<1x8x16xf32>, tensor<1x8x16xf32>, tensor<1x8x16xf32>) -> (tensor<1x8x16xf32>, tensor<1x4x8xf32>)
  return %o : tensor<1x8x16xf32>
}
func.func private @first(%t: tensor<1x8xi32> {nn.data = "tokens"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1x8x16xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  return %0 : tensor<1x8x16xf32>
}
pipeline.program @p ranks 2 microbatches 1 slices 2 attributes {train = {sequence = 8 : i64}} {
  // expected-note@+1 {{slices read the keys of those before them; run all slices of a microbatch on one rank, or move `kv(0, 0, 0)` to rank 1}}
  pipeline.piece @s0 <stage 0> parts [["first", -1], ["attn", 0]] homes <[0, 1]> owner <[0]>
  pipeline.unit <F stage 0 mb 0 slice 0> on [0]
  // expected-error@+1 {{`F(0, 0, 1)` on rank 1 needs `kv(0, 0, 0)`, which is on rank 0}}
  pipeline.unit <F stage 0 mb 0 slice 1> on [1]
}

// -----

// Weights whole, optimizer state cut.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  // expected-error@+1 {{stage 0 has its weights on rank 0 and its optimizer state on shards of ranks 0, 1; expected the same ranks}}
  pipeline.piece @s0 <stage 0> parts [["all", -1]] homes <[0]> owner <[0, 1] shard>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// A gather that not all take part in.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  // expected-note@+1 {{placed here}}
  pipeline.piece @s0 <stage 0> parts [["all", -1]] homes <[0, 1, 2] shard> owner <[0, 1, 2] shard>
  // expected-error@+1 {{`move weight(0)` goes to ranks 0, 1; expected all of shards of ranks 0, 1, 2}}
  pipeline.transfer <weight stage 0> from <[0, 1, 2] shard> to <[0, 1]> anchors [0, 1, 2]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// Into shards where there are none.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  // expected-note@+1 {{placed here}}
  pipeline.piece @s0 <stage 0> parts [["all", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-error@+1 {{`move grad(0)` goes to shards of ranks 0, 1, but stage 0 is not cut over ranks}}
  pipeline.transfer <grad stage 0> to <[0, 1] shard> anchors [0, 1]
}

// -----

// Half of the gradients stay whole on a rank: this schedule moves them itself.
func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  // expected-error@+1 {{`U(0)` runs on shards of ranks 0, 1, but the gradient of microbatch 1 is left on rank 1; this schedule moves `grad(0)` itself}}
  pipeline.piece @s0 <stage 0> parts [["all", -1]] homes <[0, 1] shard> owner <[0, 1] shard>
  pipeline.transfer <weight stage 0> from <[0, 1] shard> to <[0, 1]> anchors [0, 1]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-note@+1 {{`grad(0)` is moved here}}
  pipeline.transfer <grad stage 0> to <[0, 1] shard> anchors [0, 1]
  pipeline.unit <F stage 0 mb 1> on [1]
  // expected-note@+1 {{computed here}}
  pipeline.unit <B stage 0 mb 1> on [1]
}
