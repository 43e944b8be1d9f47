// What cannot be cut over the tensor axis: counts that it does not divide, and ops without a rule.
// RUN: pp-opt %s --pp-split-parts --split-input-file --verify-diagnostics

!x = tensor<1x8x12xf32>
!w = tensor<12x12xf32>
#mesh = #pipeline.mesh<tensor 4, context 1, data 1, pipeline 1>
func.func private @attn(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %q = nn.linear %x, %w : (!x, !w) -> !x
  // expected-error@below {{`attention` in part `attn` has 6 heads; `tensor = 4` does not divide them}}
  %o, %l = nn.attention %q, %q, %q {heads = 6, causal = true} : (!x, !x, !x) -> (!x, tensor<1x6x8xf32>)
  return %o : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["attn", 0]] at <[0]>
}

// -----

!q = tensor<1x8x12xf32>
!k = tensor<1x8x6xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
func.func private @attn(%q: !q, %k: !k) -> !q {
  // expected-error@below {{`attention` in part `attn` has 3 heads of keys; `tensor = 2` neither divides them nor is a multiple of them}}
  %o, %l = nn.attention %q, %k, %k {heads = 6, kv_heads = 3, causal = true} : (!q, !k, !k) -> (!q, tensor<1x6x8xf32>)
  return %o : !q
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["attn", 0]] at <[0]>
}

// -----

!x = tensor<1x8x8xf32>
!f = tensor<1x8x15xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
// expected-error@below {{`w_up` in part `post` has 15 columns; `tensor = 2` does not divide them}}
func.func private @post(%x: !x, %a: tensor<8x15xf32> {nn.weight = #nn.weight<"w_up">},
    %b: tensor<15x8xf32> {nn.weight = #nn.weight<"w_down">}) -> !x {
  %u = nn.linear %x, %a : (!x, tensor<8x15xf32>) -> !f
  %g = nn.gelu %u : (!f) -> !f
  %d = nn.linear %g, %b : (!f, tensor<15x8xf32>) -> !x
  return %d : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]] at <[0]>
}

// -----

!x = tensor<1x8x8xf32>
!t = tensor<1x8xi32>
#mesh = #pipeline.mesh<tensor 4, context 1, data 1, pipeline 1>
// expected-error@below {{`wte` has 5 rows; cut over `tensor = 4` a device would have none}}
func.func private @embed(%t: !t {nn.data = "tokens"}, %w: tensor<5x8xf32> {nn.weight = #nn.weight<"wte">}) -> !x {
  %x = nn.embedding %t, %w : (!t, tensor<5x8xf32>) -> !x
  return %x : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
}

// -----

// A norm reads whole rows, and the columns of q are on two devices.
!x = tensor<1x8x8xf32>
!w = tensor<8x8xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
func.func private @qkv(%x: !x, %w: !w {nn.weight = #nn.weight<"wq">}, %g: tensor<8xf32> {nn.weight = #nn.weight<"gq">},
    %o: !w {nn.weight = #nn.weight<"wo">}) -> !x {
  %q = nn.linear %x, %w : (!x, !w) -> !x
  // expected-error@below {{`rmsnorm` in part `qkv` has no rule for `tensor = 2`: operand 0 is shard 2; of columns that are cut each device norms whole heads; `mesh of qkv tensor = 1` (`-D mesh.qkv.tensor=1`) gives every device all weights of the part}}
  %n, %r = nn.rmsnorm %q, %g : (!x, tensor<8xf32>) -> (!x, tensor<1x8xf32>)
  %o1 = nn.gelu %n : (!x) -> !x
  %y = nn.linear %o1, %o : (!x, !w) -> !x
  return %y : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["qkv", 0]] at <[0]>
}

// -----

// Each of two devices would have one period, and of its columns nobody could tell how they were cut.
!x = tensor<1x8x8xf32>
!w = tensor<8x24xf32>
!p = tensor<1x8x24xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
func.func private @qkv(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %p = nn.linear %x, %w : (!x, !w) -> !p
  // expected-error@below {{`split` in part `qkv` has no rule for `tensor = 2`: operand 0 is shard 2; of columns that are cut each device has a piece of each of equal runs, or two or more whole periods}}
  %q, %k, %v = nn.split %p {parts = 3, periods = 2} : (!p) -> (!x, !x, !x)
  %o, %l = nn.attention %q, %k, %v {heads = 2, causal = true} : (!x, !x, !x) -> (!x, tensor<1x2x8xf32>)
  return %o : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["qkv", 0]] at <[0]>
}

// -----

// Of ten rows each of two ranks has five.
!x = tensor<1x4x8xf32>
!t = tensor<1x4xi32>
!w = tensor<5x8xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 2>
func.func private @embed.0(%t: !t {nn.data = "tokens"}, %w: !w {nn.weight = #nn.weight<"wte">}) -> !x {
  %x = nn.embedding %t, %w {first = 0, whole = 10} : (!t, !w) -> !x
  return %x : !x
}
func.func private @embed.1(%t: !t {nn.data = "tokens"}, %w: !w {nn.weight = #nn.weight<"wte">}) -> !x {
  %x = nn.embedding %t, %w {first = 5, whole = 10} : (!t, !w) -> !x
  return %x : !x
}
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  // expected-error@below {{`embed(0)` has 5 rows of the vocabulary; `tensor = 2` does not divide them}}
  pipeline.piece @embed0 <part "embed" 0> parts [["embed.0", -1]] at <[0]> homes <[0]> owner <[0]> vocabulary <first 0 of tensor<10x8xf32> in 2 shards>
  pipeline.piece @embed1 <part "embed" 1> parts [["embed.1", -1]] at <[1]> homes <[1]> owner <[1]> vocabulary <first 5 of tensor<10x8xf32> in 2 shards>
}

// -----

// A table that is tied: its rows are cut for the embedding, and `mesh of head tensor = 1` would have it whole.
!x = tensor<1x8x8xf32>
!t = tensor<1x8xi32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
func.func private @embed(%t: !t {nn.data = "tokens"}, %w: tensor<6x8xf32> {nn.weight = #nn.weight<"wte" shared>}) -> !x {
  %x = nn.embedding %t, %w : (!t, tensor<6x8xf32>) -> !x
  return %x : !x
}
// expected-error@below {{`wte` is cut (shard 0) over `tensor` in part `embed` and whole in part `head` (`mesh of`); a weight of two parts has one layout}}
func.func private @head(%x: !x, %t: !t {nn.data = "targets"}, %w: tensor<6x8xf32> {nn.weight = #nn.weight<"wte" shared>})
    -> tensor<1xf32> attributes {nn.whole} {
  %v = nn.transpose %w : (tensor<6x8xf32>) -> tensor<8x6xf32>
  %z = nn.linear %x, %v : (!x, tensor<8x6xf32>) -> tensor<1x8x6xf32>
  %l = nn.cross_entropy %z, %t : (tensor<1x8x6xf32>, !t) -> tensor<1xf32>
  return %l : tensor<1xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1], ["head", -1]] at <[0]>
}
